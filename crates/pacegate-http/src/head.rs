//! What is known of a request before its body is read.

use std::net::{IpAddr, SocketAddr};

use http::{HeaderName, header, request::Parts};

/// The head of a request, whichever framework it came through. Everything here may be forged by the client, except the
/// peer's address, the route and extensions.
pub trait Head {
    /// The method, as it is written.
    fn method(&self) -> &str;

    /// The path, as it was sent: without the query, not decoded. Where a router of axum is nested in another, it is
    /// still the whole path, with the feature `axum`: what the nested one has in the URI lacks its beginning.
    fn path(&self) -> &str;

    /// The host that the request line names, with its port if it has one, and with a user before it if somebody wrote
    /// one. HTTP/2 has it here, HTTP/1 in `Host`.
    fn authority(&self) -> Option<&str>;

    /// The values of all lines of a header, in their order.
    fn lines(&self, name: &HeaderName) -> impl DoubleEndedIterator<Item = &[u8]>;

    /// Who is at the other end of the connection.
    fn peer(&self) -> Option<IpAddr>;

    /// The pattern of the route that the framework found, such as `/users/{id}`.
    fn route(&self) -> Option<&str>;

    /// Returns `false` if [`Head::route`] never finds one.
    fn knows_routes(&self) -> bool {
        true
    }

    /// Reads what the program itself has attached to the request, if it has.
    fn extension<T, R>(&self, read: impl FnOnce(&T) -> R) -> Option<R>
    where
        T: Clone + Send + Sync + 'static;

    /// The host that is asked for, from the request line or else from the only `Host`.
    fn host(&self) -> Option<&[u8]> {
        let line = self.authority().map(str::as_bytes);
        line.or_else(|| only(self.lines(&header::HOST)))
    }
}

/// An extension for servers that do not tell the address of a connection in another way: insert it into each request.
/// With the feature `axum`, its `ConnectInfo<SocketAddr>` does the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct PeerAddr(pub SocketAddr);

impl Head for Parts {
    fn method(&self) -> &str {
        self.method.as_str()
    }

    fn path(&self) -> &str {
        #[cfg(feature = "axum")]
        if let Some(axum::extract::OriginalUri(sent)) = self.extensions.get() {
            return sent.path();
        }
        self.uri.path()
    }

    fn authority(&self) -> Option<&str> {
        self.uri.authority().map(http::uri::Authority::as_str)
    }

    fn lines(&self, name: &HeaderName) -> impl DoubleEndedIterator<Item = &[u8]> {
        self.headers.get_all(name).iter().map(http::HeaderValue::as_bytes)
    }

    fn peer(&self) -> Option<IpAddr> {
        let peer = self.extensions.get().map(|PeerAddr(peer)| peer.ip());
        #[cfg(feature = "axum")]
        let peer = peer.or_else(|| {
            let info = self.extensions.get::<axum::extract::ConnectInfo<SocketAddr>>();
            info.map(|info| info.0.ip())
        });
        peer
    }

    fn route(&self) -> Option<&str> {
        #[cfg(feature = "axum")]
        let route = self.extensions.get().map(axum::extract::MatchedPath::as_str);
        #[cfg(not(feature = "axum"))]
        let route = None;
        route
    }

    fn knows_routes(&self) -> bool {
        cfg!(feature = "axum")
    }

    fn extension<T, R>(&self, read: impl FnOnce(&T) -> R) -> Option<R>
    where
        T: Clone + Send + Sync + 'static,
    {
        self.extensions.get::<T>().map(read)
    }
}

/// The only one there is. Of several, a proxy may have written one and the client the other: neither is believed.
pub(crate) fn only<'a>(mut lines: impl Iterator<Item = &'a [u8]>) -> Option<&'a [u8]> {
    let line = lines.next()?;
    lines.next().is_none().then_some(line)
}
