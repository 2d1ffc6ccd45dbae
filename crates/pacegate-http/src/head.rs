//! The head of a request: everything before its body.

use std::net::{IpAddr, SocketAddr};

use http::{HeaderName, header, request::Parts};

/// The head of a request, independent of the framework. Clients can forge everything in it except the peer address, the
/// route and the extensions.
///
/// Implement it to use the resolvers and [`Rules`](crate::Rules) with a framework that does not use [`http::Request`],
/// as `pacegate-actix` does. All methods are called once or a few times for each request, so they must not block.
pub trait Head {
    /// Returns the method as sent.
    fn method(&self) -> &str;

    /// Returns the path as sent: without the query, not decoded. With the feature `axum` it is the whole path in nested
    /// routers too, where the URI lacks the prefix.
    fn path(&self) -> &str;

    /// Returns the authority of the request line, with its port and user information if it has them. HTTP/2 requests
    /// have it; HTTP/1 requests have the header `Host` instead.
    fn authority(&self) -> Option<&str>;

    /// Returns the values of all lines of a header, in order.
    fn lines(&self, name: &HeaderName) -> impl DoubleEndedIterator<Item = &[u8]>;

    /// Returns the address of the peer of the connection.
    fn peer(&self) -> Option<IpAddr>;

    /// Returns the pattern of the matched route, such as `/users/{id}`.
    fn route(&self) -> Option<&str>;

    /// Returns `false` if [`Head::route`] is always `None`.
    fn knows_routes(&self) -> bool {
        true
    }

    /// Reads an extension that the program has attached to the request.
    fn extension<T, R>(&self, read: impl FnOnce(&T) -> R) -> Option<R>
    where
        T: Clone + Send + Sync + 'static;

    /// Returns the requested host: from the request line, or else from the header `Host` if there is exactly one.
    fn host(&self) -> Option<&[u8]> {
        let line = self.authority().map(str::as_bytes);
        line.or_else(|| only(self.lines(&header::HOST)))
    }
}

/// The peer address as a request extension, for servers that do not provide it otherwise: insert it into each request.
/// With the feature `axum`, `ConnectInfo<SocketAddr>` works too. With the feature `tonic`, a tonic server provides it.
///
/// ```
/// use http::Request;
/// use pacegate_http::{Head, PeerAddr};
///
/// let mut request = Request::new(());
/// request.extensions_mut().insert(PeerAddr("203.0.113.7:4711".parse()?)); // when the connection is accepted
/// let (head, ()) = request.into_parts();
/// assert_eq!(Head::peer(&head), Some("203.0.113.7".parse()?));
/// # Ok::<(), std::net::AddrParseError>(())
/// ```
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
        // tonic inserts this for connections with TLS too.
        #[cfg(feature = "tonic")]
        let peer = peer.or_else(|| {
            let info = self.extensions.get::<tonic::transport::server::TcpConnectInfo>()?;
            info.remote_addr().map(|address| address.ip())
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

/// Returns the line if there is exactly one. Of several, a proxy may have written one and the client another, so none
/// is trusted.
pub(crate) fn only<'a>(mut lines: impl Iterator<Item = &'a [u8]>) -> Option<&'a [u8]> {
    let line = lines.next()?;
    lines.next().is_none().then_some(line)
}
