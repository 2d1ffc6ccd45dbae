//! Addresses: of the connection, and of the client behind proxies.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    sync::Arc,
};

use http::HeaderName;
use ipnet::{IpNet, Ipv4Net};

use super::{KeyParts, Missing, Resolve, forwarded};
use crate::head::Head;

/// Who is at the other end of the connection: the client, or the last proxy before this server.
///
/// IPv4 in the clothes of IPv6 (`::ffff:0:0/96`, `64:ff9b::/96`) is IPv4. Of other IPv6 addresses only a prefix counts,
/// 64 bits unless said: whoever has one address there has all of them.
///
/// If the request does not carry the address, it is answered with 500: the program is not set up to provide it, and a
/// budget that all clients share would let one of them lock out the others. `or_share` and `or_skip` choose something
/// else, see [`ResolveExt`](super::ResolveExt).
#[derive(Clone, Copy, Debug)]
pub struct PeerAddress {
    prefix: u8,
}

/// The address of the client behind proxies that you trust, see [`PeerAddress`] for its form.
///
/// Proxies add the address that they see at the right end of `X-Forwarded-For`, or of `Forwarded`: only one of the two
/// is ever read. From the connection on, the walk goes left as long as it stands on a proxy that is trusted, and ends
/// at the first that is not: that is the client. An entry that is no address ends the walk as well, at the proxy that
/// wrote it. What a client sends ahead of itself is never reached.
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

/// Where [`ClientAddress`] has the address of the connection from: `()` asks the [`Head`], and a closure may look
/// elsewhere, as at what tonic leaves in a request.
pub trait Peer<H>: Send + Sync + 'static {
    /// The address, if it is known.
    fn peer(&self, head: &H) -> Option<IpAddr>;
}

#[derive(Clone, Debug)]
enum Trust {
    Networks(Arc<[IpNet]>),
    Hops(usize),
}

/// The header in which proxies leave addresses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Field {
    XForwardedFor,
    Forwarded,
}

static X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");

/// Every TCP connection has an address, so a missing one was not put into the request.
const NO_PEER: &str = "the peer address of the connection is unknown: with axum, enable the feature `axum` of \
                       pacegate-http and serve with `into_make_service_with_connect_info::<SocketAddr>()`; elsewhere, \
                       insert `PeerAddr` into the extensions of each request; over a Unix socket, choose another key";

/// The bits of an IPv6 address that one subscriber is given, at the least.
const PREFIX: u8 = 64;

impl PeerAddress {
    /// With IPv6 by 64 bits.
    pub const fn new() -> Self {
        Self { prefix: PREFIX }
    }

    /// Counts IPv6 by so many bits; more than 128 are 128.
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
    /// Behind proxies in these networks. A connection from elsewhere is a client's own, whatever its headers say. One
    /// without an address, as over a Unix socket, leads to none: there, count proxies by [`behind`](Self::behind).
    pub fn trusting(networks: impl IntoIterator<Item = IpNet>) -> Self {
        Self::with(Trust::Networks(networks.into_iter().map(canonical_net).collect()))
    }

    /// Behind so many proxies in a row, whatever their addresses: 1 if there is one before this server.
    ///
    /// Everybody must come through all of them. Whoever can connect to a later one chooses the address.
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

    /// Counts IPv6 by so many bits; more than 128 are 128.
    #[must_use]
    pub fn ipv6_prefix(self, bits: u8) -> Self {
        Self { prefix: bits, ..self }
    }

    /// Has the address of the connection from elsewhere: a closure `Fn(&H) -> Option<IpAddr>`.
    pub fn peer<Q>(self, peer: Q) -> ClientAddress<Q> {
        let Self { trust, field, prefix, .. } = self;
        ClientAddress { trust, field, prefix, peer }
    }

    /// The client's whole address, IPv4 as such.
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

    /// Goes from the connection to the left. Blank entries, which lists may have, are passed over.
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
    /// Whether what stands at this place is a proxy, whose word on who came to it is believed.
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

/// The text of an address as [`PeerAddress`] and [`ClientAddress`] count by it: IPv4 as such, and of IPv6 the first 64
/// bits. It may come with brackets, a zone and a port, as proxies write it; `None` if it is no address.
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

/// IPv4 as such, also where it is written as IPv6.
fn canonical(address: IpAddr) -> IpAddr {
    let IpAddr::V6(v6) = address else { return address };
    match v6.octets() {
        [0, 0x64, 0xff, 0x9b, 0, 0, 0, 0, 0, 0, 0, 0, a, b, c, d] => {
            Ipv4Addr::new(a, b, c, d).into()
        }
        _ => v6.to_canonical(),
    }
}

/// Networks have to be in the form that addresses are brought to.
fn canonical_net(net: IpNet) -> IpNet {
    let v4 = match canonical(net.network()) {
        IpAddr::V4(v4) if net.network().is_ipv6() => net.prefix_len().checked_sub(96).zip(Some(v4)),
        _ => None,
    };
    let v4 = v4.and_then(|(prefix, address)| Ipv4Net::new(address, prefix).ok());
    v4.map_or(net, IpNet::V4)
}

/// As text that reads as an address, and without the formatter's detours for the common kind.
fn push_address(key: &mut KeyParts, address: IpAddr, prefix: u8) {
    match address {
        IpAddr::V4(v4) => key.write(|out| {
            let mut text = [0; 15];
            let mut end = 0;
            for (place, octet) in v4.octets().into_iter().enumerate() {
                let digits = [octet / 100, octet / 10 % 10, octet % 10];
                let first = digits.iter().position(|&digit| digit > 0).unwrap_or(2);
                if place > 0 {
                    text[end] = b'.';
                    end += 1;
                }
                for digit in &digits[first..] {
                    text[end] = b'0' + digit;
                    end += 1;
                }
            }
            out.extend_from_slice(&text[..end]);
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
