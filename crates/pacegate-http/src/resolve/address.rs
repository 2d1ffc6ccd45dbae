//! Resolvers for the peer address of the connection and for the address of the client behind proxies.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    sync::Arc,
};

use arrayvec::ArrayVec;
use http::HeaderName;
use ipnet::{IpNet, Ipv4Net};

use super::{KeyParts, Missing, Resolve, forwarded};
use crate::head::Head;

/// The peer address of the connection: the client, or the last proxy before this server.
///
/// IPv4 addresses in IPv6 form (`::ffff:0:0/96`, `64:ff9b::/96`) count as IPv4. Other IPv6 addresses are counted by a
/// prefix of 64 bits by default, because one client usually has all addresses of a prefix.
///
/// If the program does not provide the address, the request is answered with 500. It does not use a shared counter,
/// because one client could then lock out all others. To change this, use `or_share` or `or_skip` of
/// [`ResolveExt`](super::ResolveExt).
///
/// Use it if clients connect directly. Behind a proxy, all requests have the address of the proxy and share one
/// counter: use [`ClientAddress`] there.
#[derive(Clone, Copy, Debug)]
pub struct PeerAddress {
    prefix: u8,
}

/// The address of the client behind trusted proxies, in the form of [`PeerAddress`].
///
/// Each proxy appends the address of its peer to `X-Forwarded-For` or `Forwarded`. Only one of the two headers is read,
/// by default `X-Forwarded-For`. The search starts with the peer address of the connection. If that is a trusted proxy,
/// the search continues with the last entry of the header, then with the one before it, and so on. The first address
/// that is not a trusted proxy is the client. If an entry is not an address, the proxy that wrote it is the client.
/// Entries that a client has forged come before all of these and are never used.
///
/// ```
/// use http::Request;
/// use pacegate_http::{PeerAddr, resolve::ClientAddress};
///
/// let client = ClientAddress::trusting(["10.0.0.0/8".parse()?]);
/// let mut request = Request::new(());
/// request.extensions_mut().insert(PeerAddr("10.0.0.1:4711".parse()?));
/// request.headers_mut().insert("x-forwarded-for", "6.6.6.6, 203.0.113.7, 10.0.0.2".parse()?);
/// let (head, ()) = request.into_parts();
/// assert_eq!(client.address(&head), Some("203.0.113.7".parse()?));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct ClientAddress<P = ()> {
    trust: Trust,
    field: Field,
    prefix: u8,
    peer: P,
}

/// The source of the connection's address for [`ClientAddress`]: `()` reads it from the [`Head`]; a closure can read it
/// from elsewhere.
pub trait Peer<H>: Send + Sync + 'static {
    /// Returns the address, if it is known.
    fn peer(&self, head: &H) -> Option<IpAddr>;
}

#[derive(Clone, Debug)]
enum Trust {
    Networks(Arc<[IpNet]>),
    Hops(usize),
}

/// The header to which proxies append addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Field {
    XForwardedFor,
    Forwarded,
}

static X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// Every TCP connection has a peer address. If it is missing, the program did not pass it to the middleware.
const NO_PEER: &str = "the peer address of the connection is unknown: with axum, enable the feature `axum` of \
                       pacegate-http and serve with `into_make_service_with_connect_info::<SocketAddr>()`; with tonic, \
                       enable the feature `tonic`; elsewhere, insert `PeerAddr` into the extensions of each request; \
                       over a Unix socket, choose another key";

/// Default prefix length of IPv6 addresses. Providers assign at least a /64 network to each subscriber.
const PREFIX: u8 = 64;

impl PeerAddress {
    /// Creates a resolver that counts IPv6 addresses by their first 64 bits.
    pub const fn new() -> Self {
        Self { prefix: PREFIX }
    }

    /// Sets the prefix length of IPv6 addresses. Default: 64. Values above 128 mean 128.
    #[must_use]
    pub const fn ipv6_prefix(self, bits: u8) -> Self {
        Self { prefix: bits }
    }
}

impl Default for PeerAddress {
    fn default() -> Self {
        Self::new()
    }
}

impl ClientAddress {
    /// Trusts proxies in these networks. The headers of a connection from another network are ignored. For a
    /// connection without an address, such as a Unix socket, there is no result: use [`behind`](Self::behind) instead.
    pub fn trusting(networks: impl IntoIterator<Item = IpNet>) -> Self {
        Self::with(Trust::Networks(networks.into_iter().map(canonical_net).collect()))
    }

    /// Trusts this number of proxies in a row, at any address. Use 1 for a single proxy in front of this
    /// server.
    ///
    /// Every request must pass through all of the proxies. A client that can bypass one of them can forge its address.
    pub fn behind(proxies: usize) -> Self {
        Self::with(Trust::Hops(proxies))
    }

    fn with(trust: Trust) -> Self {
        Self { trust, field: Field::XForwardedFor, prefix: PREFIX, peer: () }
    }
}

impl<P> ClientAddress<P> {
    /// Reads `Forwarded` (RFC 7239) instead of `X-Forwarded-For`.
    #[must_use]
    pub fn forwarded(self) -> Self {
        Self { field: Field::Forwarded, ..self }
    }

    /// Sets the prefix length of IPv6 addresses. Default: 64. Values above 128 mean 128.
    #[must_use]
    pub fn ipv6_prefix(self, bits: u8) -> Self {
        Self { prefix: bits, ..self }
    }

    /// Sets another source for the address of the connection: a closure `Fn(&H) -> Option<IpAddr>`.
    pub fn peer<Q>(self, peer: Q) -> ClientAddress<Q> {
        let Self { trust, field, prefix, .. } = self;
        ClientAddress { trust, field, prefix, peer }
    }

    /// Returns the full address of the client. IPv6 addresses are not reduced to a prefix.
    pub fn address<H: Head>(&self, head: &H) -> Option<IpAddr>
    where
        P: Peer<H>,
    {
        let peer = self.peer.peer(head);
        match self.field {
            Field::XForwardedFor => {
                let lines = head.lines(&X_FORWARDED_FOR).rev();
                let entries = lines.flat_map(|line| line.rsplit(|&byte| byte == b','));
                self.walk(peer, entries, forwarded::node)
            }
            Field::Forwarded => {
                let lines = head.lines(&http::header::FORWARDED).rev();
                let elements = lines.flat_map(forwarded::elements_from_right);
                self.walk(peer, elements, forwarded::element_for)
            }
        }
    }

    /// Returns the client: the first of the peer and the entries, last entry first, that is not a trusted proxy. Skips
    /// blank entries.
    fn walk<'a>(
        &self,
        peer: Option<IpAddr>,
        entries: impl Iterator<Item = &'a [u8]>,
        read: impl Fn(&[u8]) -> Option<IpAddr>,
    ) -> Option<IpAddr> {
        let mut client = peer.map(canonical);
        let entries = entries.filter(|entry| !entry.trim_ascii().is_empty());
        for (hop, entry) in entries.enumerate() {
            if !self.trust.reaches(hop, client) {
                break;
            }
            let Some(address) = read(entry) else { break };
            client = Some(canonical(address));
        }
        client
    }
}

impl Trust {
    /// Returns whether the address at this hop is a trusted proxy, so that the entry it wrote can be used.
    fn reaches(&self, hop: usize, address: Option<IpAddr>) -> bool {
        match self {
            Self::Networks(networks) => {
                address.is_some_and(|address| networks.iter().any(|net| net.contains(&address)))
            }
            Self::Hops(proxies) => hop < *proxies,
        }
    }
}

impl<P> fmt::Debug for ClientAddress<P> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ClientAddress")
            .field("trust", &self.trust)
            .field("field", &self.field)
            .field("ipv6_prefix", &self.prefix)
            .finish_non_exhaustive()
    }
}

impl<H: Head> Peer<H> for () {
    fn peer(&self, head: &H) -> Option<IpAddr> {
        head.peer()
    }
}

impl<H, F> Peer<H> for F
where
    F: Fn(&H) -> Option<IpAddr> + Send + Sync + 'static,
{
    fn peer(&self, head: &H) -> Option<IpAddr> {
        self(head)
    }
}

impl<H: Head> Resolve<H> for PeerAddress {
    fn resolve(&self, head: &H, key: &mut KeyParts) -> Result<(), Missing> {
        let peer = head.peer().ok_or(Missing::Misconfigured(NO_PEER))?;
        push_address(key, canonical(peer), self.prefix);
        Ok(())
    }
}

impl<H: Head, P: Peer<H>> Resolve<H> for ClientAddress<P> {
    fn resolve(&self, head: &H, key: &mut KeyParts) -> Result<(), Missing> {
        let address = self.address(head).ok_or(Missing::Misconfigured(NO_PEER))?;
        push_address(key, address, self.prefix);
        Ok(())
    }
}

/// Returns an address in the form that [`PeerAddress`] and [`ClientAddress`] count by: IPv4 unchanged, IPv6 reduced to
/// its first 64 bits. The text may have brackets, a zone and a port. `None` if it is not an address.
///
/// ```
/// use pacegate_http::resolve::plain_address;
///
/// assert_eq!(plain_address(b"[2001:db8:0:1:2::3]:443").as_deref(), Some("2001:db8:0:1::"));
/// assert_eq!(plain_address(b"64:ff9b::203.0.113.7").as_deref(), Some("203.0.113.7"));
/// assert_eq!(plain_address(b"203.0.113.7:5555").as_deref(), Some("203.0.113.7"));
/// assert_eq!(plain_address(b"unknown"), None);
/// ```
pub fn plain_address(text: &[u8]) -> Option<String> {
    Some(match canonical(forwarded::node(text)?) {
        IpAddr::V4(v4) => v4.to_string(),
        IpAddr::V6(v6) => prefix_of(v6, PREFIX).to_string(),
    })
}

/// Converts IPv4 addresses in IPv6 form (mapped or NAT64) to IPv4.
fn canonical(address: IpAddr) -> IpAddr {
    let IpAddr::V6(v6) = address else { return address };
    match v6.octets() {
        [0, 0x64, 0xff, 0x9b, 0, 0, 0, 0, 0, 0, 0, 0, a, b, c, d] => {
            Ipv4Addr::new(a, b, c, d).into()
        }
        _ => v6.to_canonical(),
    }
}

/// Converts a network like [`canonical`] converts addresses, so that it contains the converted addresses.
fn canonical_net(net: IpNet) -> IpNet {
    let v4 = match canonical(net.network()) {
        IpAddr::V4(v4) if net.network().is_ipv6() => net.prefix_len().checked_sub(96).zip(Some(v4)),
        _ => None,
    };
    let v4 = v4.and_then(|(prefix, address)| Ipv4Net::new(address, prefix).ok());
    v4.map_or(net, IpNet::V4)
}

/// Appends an address as text. IPv4, the common case, is written directly, because `std::fmt` is slower.
fn push_address(key: &mut KeyParts, address: IpAddr, prefix: u8) {
    match address {
        IpAddr::V4(v4) => key.write(|out| {
            let mut text = ArrayVec::<u8, 15>::new();
            for (place, octet) in v4.octets().into_iter().enumerate() {
                if place > 0 {
                    text.push(b'.');
                }
                if octet > 99 {
                    text.push(b'0' + octet / 100);
                }
                if octet > 9 {
                    text.push(b'0' + octet / 10 % 10);
                }
                text.push(b'0' + octet % 10);
            }
            out.extend_from_slice(&text);
        }),
        IpAddr::V6(v6) => key.write(|out| {
            use std::io::Write;
            // Writing into a vector cannot fail.
            let _ = write!(out, "{}", prefix_of(v6, prefix));
        }),
    }
}

fn prefix_of(address: Ipv6Addr, bits: u8) -> Ipv6Addr {
    let hidden = 128 - u32::from(bits.min(128));
    let kept = u128::from(address).checked_shr(hidden).and_then(|bits| bits.checked_shl(hidden));
    Ipv6Addr::from(kept.unwrap_or(0))
}
