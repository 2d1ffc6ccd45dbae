use std::{cell::OnceCell, fmt, net::IpAddr, ops::Deref};

use actix_web::{HttpMessage as _, HttpRequest};
use http::HeaderName;
use pacegate_http::Head;

/// The head of a request, for resolvers and for the closures of [`Rules`](crate::Rules). It is an [`HttpRequest`] that
/// cannot be cloned, because actix-web must be its only owner while it searches the handler.
///
/// It dereferences to [`HttpRequest`], so `path()`, `headers()` and `match_info()` work as in a handler. Extensions
/// that an outer middleware has set are readable too.
pub struct Incoming {
    request: HttpRequest,
    /// Cached, because actix-web builds a new string each time.
    route: OnceCell<Option<String>>,
}

impl Incoming {
    pub(crate) fn new(request: HttpRequest) -> Self {
        Self { request, route: OnceCell::new() }
    }

    pub(crate) fn into_request(self) -> HttpRequest {
        self.request
    }
}

impl Head for Incoming {
    fn method(&self) -> &str {
        self.request.method().as_str()
    }

    fn path(&self) -> &str {
        self.request.path()
    }

    fn authority(&self) -> Option<&str> {
        Some(self.request.uri().authority()?.as_str())
    }

    fn lines(&self, name: &HeaderName) -> impl DoubleEndedIterator<Item = &[u8]> {
        self.request.headers().get_all(name.as_str()).map(|value| value.as_bytes())
    }

    fn peer(&self) -> Option<IpAddr> {
        Some(self.request.peer_addr()?.ip())
    }

    fn route(&self) -> Option<&str> {
        self.route.get_or_init(|| self.request.match_pattern()).as_deref()
    }

    fn extension<T, R>(&self, read: impl FnOnce(&T) -> R) -> Option<R>
    where
        T: Clone + Send + Sync + 'static,
    {
        self.request.extensions().get::<T>().map(read)
    }
}

impl Deref for Incoming {
    type Target = HttpRequest;

    fn deref(&self) -> &HttpRequest {
        &self.request
    }
}

impl fmt::Debug for Incoming {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.request.fmt(f)
    }
}
