//! Resolvers for plain values of a request.

use std::{fmt, marker::PhantomData};

use http::{HeaderName, header};
use pacegate::{Key, policy::Paths};

use super::{KeyParts, Missing, OrDefault, Resolve, text::plain_host};
use crate::head::{Head, only};

/// No key: one counter for all requests.
#[derive(Clone, Copy, Debug, Default)]
pub struct Everyone;

/// The value of a header. An empty or repeated header is missing: of two lines, the client may have written one.
///
/// A client that can choose the value can have any number of counters. Use this for headers that your proxy sets, or
/// combine it with an address.
///
/// ```
/// use http::Request;
/// use pacegate_http::{KeyParts, Missing, Resolve, resolve::Header};
///
/// let tenant = Header::from_static("x-tenant");
/// let request = Request::builder().header("x-tenant", "acme").header("x-tenant", "other").body(())?;
/// let (head, ()) = request.into_parts();
/// let missing = tenant.resolve(&head, &mut KeyParts::new());
/// assert_eq!(missing, Err(Missing::Unspecified), "two values: none is trusted");
/// # Ok::<(), http::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Header(pub HeaderName);

/// The value of a cookie, without quotes. An empty cookie, or one with different values, is missing. Clients can choose
/// the value, see [`Header`].
#[derive(Clone, Debug)]
pub struct Cookie(pub String);

/// The normalized path in lower case, see [`Paths::Normalized`]. Clients can send any number of paths, so use
/// [`MatchedRoute`] as a key instead, or add an address.
#[derive(Clone, Copy, Debug, Default)]
pub struct Path;

/// The path as the client sent it, without the query. For an attribute `path` of policies that compare
/// [exactly](Paths::Exact) or by [case](Paths::CaseSensitive); other policies normalize it themselves.
#[derive(Clone, Copy, Debug, Default)]
pub struct ExactPath;

/// The pattern of the matched route, such as `/users/{id}`. Requires axum and the feature `axum`; without the feature,
/// requests are answered with 500. Missing if no route matched, or if the layer runs before routing.
///
/// The best key for limits per endpoint: `/users/1` and `/users/2` share a counter, and there are no more keys than
/// routes.
///
/// ```
/// use pacegate::{Limit, Limiter};
/// use pacegate_http::{RateLimitLayer, resolve::{MatchedRoute, PeerAddress, ResolveExt}};
///
/// let by = PeerAddress::new().and(MatchedRoute.or_share());
/// let layer = RateLimitLayer::new(Limiter::memory(Limit::per_minute(60))).by(by);
/// # let _ = layer;
/// ```
#[derive(Clone, Copy, Debug, Default)]
pub struct MatchedRoute;

/// The method.
///
/// Use it together with another value, for example to count `GET` and `POST` of a client separately. Clients can send
/// other methods than your service has, so each adds a key.
#[derive(Clone, Copy, Debug, Default)]
pub struct Method;

/// The requested host in a normal form, see [`plain_host`].
///
/// Use it for servers with several domains, together with a check that the host is one of yours: clients can send any
/// host.
#[derive(Clone, Copy, Debug, Default)]
pub struct Host;

/// A value of the request's extensions that the program has set, such as the authenticated user.
///
/// Set the extension in a layer that runs before this one: with axum, a layer that is added later runs earlier. If it
/// is missing, the request is answered with 400; use `or` of [`ResolveExt`](super::ResolveExt) to count anonymous
/// requests by address.
///
/// ```
/// use pacegate::{Limit, Limiter};
/// use pacegate_http::{RateLimitLayer, resolve::{Extension, PeerAddress, ResolveExt}};
///
/// #[derive(Clone)]
/// struct User {
///     id: u64,
/// }
///
/// let by = Extension::new(|user: &User| ("user", user.id)).or(PeerAddress::new());
/// let layer = RateLimitLayer::new(Limiter::memory(Limit::per_minute(60))).by(by);
/// # let _ = layer;
/// ```
pub struct Extension<T, F> {
    read: F,
    kind: PhantomData<fn(&T)>,
}

const NO_ROUTES: &str = "routes are unknown: enable the feature `axum` of pacegate-http";

impl Header {
    /// Creates a resolver for a header name in lower case. Panics if the name is invalid.
    pub const fn from_static(name: &'static str) -> Self {
        Self(HeaderName::from_static(name))
    }
}

impl Cookie {
    /// Creates a resolver for a cookie.
    pub fn new(name: impl Into<String>) -> Self {
        Self(name.into())
    }
}

impl<T, F> Extension<T, F> {
    /// Creates a resolver that reads a [`Key`] from the extension of type `T`.
    pub fn new<K: Key>(read: F) -> Self
    where
        F: Fn(&T) -> K,
    {
        Self { read, kind: PhantomData }
    }
}

impl<T, F> fmt::Debug for Extension<T, F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Extension({})", std::any::type_name::<T>())
    }
}

impl<T, F: Clone> Clone for Extension<T, F> {
    fn clone(&self) -> Self {
        Self { read: self.read.clone(), kind: PhantomData }
    }
}

impl<H> Resolve<H> for Everyone {
    fn resolve(&self, _: &H, _: &mut KeyParts) -> Result<(), Missing> {
        Ok(())
    }
}

impl<H: Head> Resolve<H> for Header {
    fn resolve(&self, head: &H, key: &mut KeyParts) -> Result<(), Missing> {
        let value = only(head.lines(&self.0)).filter(|value| !value.is_empty());
        key.push(value.ok_or_default()?);
        Ok(())
    }
}

impl<H: Head> Resolve<H> for Cookie {
    fn resolve(&self, head: &H, key: &mut KeyParts) -> Result<(), Missing> {
        let pairs = head.lines(&header::COOKIE).flat_map(|line| line.split(|&byte| byte == b';'));
        let mut values = pairs.filter_map(|pair| {
            let value = pair.trim_ascii().strip_prefix(self.0.as_bytes())?.strip_prefix(b"=")?;
            let quoted = value.strip_prefix(b"\"").and_then(|value| value.strip_suffix(b"\""));
            Some(quoted.unwrap_or(value))
        });
        let value = values.next().filter(|value| !value.is_empty()).ok_or_default()?;
        if values.any(|other| other != value) {
            return Err(Missing::default());
        }
        key.push(value);
        Ok(())
    }
}

impl<H: Head> Resolve<H> for Path {
    fn resolve(&self, head: &H, key: &mut KeyParts) -> Result<(), Missing> {
        key.push(&Paths::Normalized.normalize(head.path().as_bytes()));
        Ok(())
    }
}

impl<H: Head> Resolve<H> for ExactPath {
    fn resolve(&self, head: &H, key: &mut KeyParts) -> Result<(), Missing> {
        key.push(head.path().as_bytes());
        Ok(())
    }
}

impl<H: Head> Resolve<H> for MatchedRoute {
    fn resolve(&self, head: &H, key: &mut KeyParts) -> Result<(), Missing> {
        if !head.knows_routes() {
            return Err(Missing::Misconfigured(NO_ROUTES));
        }
        key.push(head.route().ok_or_default()?.as_bytes());
        Ok(())
    }
}

impl<H: Head> Resolve<H> for Method {
    fn resolve(&self, head: &H, key: &mut KeyParts) -> Result<(), Missing> {
        key.push(head.method().as_bytes());
        Ok(())
    }
}

impl<H: Head> Resolve<H> for Host {
    fn resolve(&self, head: &H, key: &mut KeyParts) -> Result<(), Missing> {
        let host = head.host().filter(|host| !host.is_empty()).ok_or_default()?;
        key.push(&plain_host(host));
        Ok(())
    }
}

impl<H, T, K, F> Resolve<H> for Extension<T, F>
where
    H: Head,
    T: Clone + Send + Sync + 'static,
    K: Key,
    F: Fn(&T) -> K + Send + Sync + 'static,
{
    fn resolve(&self, head: &H, key: &mut KeyParts) -> Result<(), Missing> {
        head.extension(|value: &T| key.push_found((self.read)(value))).ok_or_default()?
    }
}
