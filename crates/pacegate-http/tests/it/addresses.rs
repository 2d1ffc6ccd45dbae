//! Client addresses: a table of cases, and hostile headers.

use std::net::IpAddr;

use http::{HeaderValue, Request, request::Parts};
use pacegate::Key;
use pacegate_http::{
    KeyParts, PeerAddr, Resolve,
    resolve::{ClientAddress, PeerAddress},
};
use proptest::prelude::*;

const CASES: &str = include_str!("addresses.txt");

struct Section {
    header: String,
    resolver: ClientAddress,
    peer: Option<IpAddr>,
}

#[test]
fn every_case_of_the_table() {
    let (mut section, mut cases, mut wrong) = (None, 0, Vec::new());
    for line in CASES.lines().filter(|line| !line.is_empty() && !line.starts_with("# ")) {
        if line.ends_with(']') && line.contains("; ") && !line.contains(" => ") {
            section = Some(Section::parse(line));
            continue;
        }
        let section: &Section = section.as_ref().expect("a section comes first");
        let (lines, expected) = line.rsplit_once(" => ").expect("lines => key");
        let lines: Vec<&str> = match lines {
            "(none)" => Vec::new(),
            lines => lines.split('&').collect(),
        };
        let found = section.key(lines.iter().map(|line| line.as_bytes()));
        cases += 1;
        if found.as_deref().unwrap_or("-") != expected {
            wrong.push(format!("{line}: {found:?}"));
        }
    }
    assert_eq!(wrong, Vec::<String>::new());
    assert!(cases >= 200, "{cases} cases");
}

#[test]
fn the_other_header_is_never_read() {
    for (header, resolver) in [
        ("forwarded", ClientAddress::behind(1)),
        ("x-forwarded-for", ClientAddress::behind(1).forwarded()),
    ] {
        let both = ["203.0.113.7", "for=203.0.113.7"];
        let section = Section { header: header.into(), resolver, peer: Some([10, 0, 0, 1].into()) };
        for line in both {
            assert_eq!(section.key([line.as_bytes()].into_iter()).as_deref(), Some("10.0.0.1"));
        }
    }
}

#[test]
fn prefixes_of_ipv6_are_a_choice() {
    let peer: IpAddr = "2001:db8:1:2:3:4:5:6".parse().unwrap();
    for (bits, expected) in [
        (0, "::"),
        (32, "2001:db8::"),
        (56, "2001:db8:1::"),
        (64, "2001:db8:1:2::"),
        (127, "2001:db8:1:2:3:4:5:6"),
        (128, "2001:db8:1:2:3:4:5:6"),
        (255, "2001:db8:1:2:3:4:5:6"),
    ] {
        let head = head("x-forwarded-for", [].into_iter(), Some(peer));
        assert_eq!(key(&PeerAddress::new().ipv6_prefix(bits), &head).as_deref(), Some(expected));
        let client = ClientAddress::behind(0).ipv6_prefix(bits);
        assert_eq!(key(&client, &head).as_deref(), Some(expected));
    }
    let v4 = head("x-forwarded-for", [].into_iter(), Some("203.0.113.7".parse().unwrap()));
    assert_eq!(key(&PeerAddress::new().ipv6_prefix(0), &v4).as_deref(), Some("203.0.113.7"));
}

/// Anything a client can put before what proxies write.
fn spoofed() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        proptest::collection::vec(prop_oneof![32_u8..127, 128_u8..=255, Just(b'\t')], 0..24),
        "(for=)?\"?(10|6)\\.0\\.0\\.[0-9]\"?(:[0-9]{1,3})?".prop_map(String::into_bytes),
        "[\",;=\\\\ ]{0,6}".prop_map(String::into_bytes),
    ];
    proptest::collection::vec(piece, 0..5).prop_map(|pieces| pieces.join(&b","[..]))
}

fn client() -> impl Strategy<Value = IpAddr> {
    prop_oneof![any::<[u8; 4]>().prop_map(IpAddr::from), any::<[u8; 16]>().prop_map(IpAddr::from),]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4_000))]

    #[test]
    fn a_spoofed_prefix_never_changes_the_key(
        spoofed in spoofed(),
        client in client(),
        proxies in 0_usize..3,
        by_hops: bool,
        forwarded: bool,
        own_line: bool,
    ) {
        let inside: ipnet::IpNet = "10.0.0.0/8".parse().unwrap();
        prop_assume!(!inside.contains(&client.to_canonical()));
        let nat64 = matches!(client, IpAddr::V6(v6) if v6.segments()[..2] == [0x64, 0xff9b]);
        prop_assume!(!nat64);
        let resolver = match by_hops {
            true => ClientAddress::behind(proxies + 1),
            false => ClientAddress::trusting([inside]),
        };
        let addresses = [client].into_iter().chain((0..proxies).map(|_| [10, 0, 0, 2].into()));
        let written = addresses.map(|address| match (forwarded, address) {
            (false, address) => address.to_string(),
            (true, IpAddr::V4(address)) => format!("for={address};proto=https"),
            (true, IpAddr::V6(address)) => format!("for=\"[{address}]\""),
        });
        let written = written.collect::<Vec<_>>().join(", ").into_bytes();
        let resolver = if forwarded { resolver.forwarded() } else { resolver };
        let header = if forwarded { "forwarded" } else { "x-forwarded-for" };
        let section = Section { header: header.into(), resolver, peer: Some([10, 0, 0, 1].into()) };
        let honest = section.key([&*written].into_iter());
        prop_assert!(honest.is_some());
        let joined = [&*spoofed, &*written].join(&b", "[..]);
        let lines = if own_line { vec![&*spoofed, &*written] } else { vec![&*joined] };
        prop_assert_eq!(section.key(lines.into_iter()), honest);
    }

    #[test]
    fn anything_at_all_gives_an_address(line in spoofed(), forwarded: bool, hops in 0_usize..4) {
        let resolver = ClientAddress::behind(hops);
        let resolver = if forwarded { resolver.forwarded() } else { resolver };
        let header = if forwarded { "forwarded" } else { "x-forwarded-for" };
        let section = Section { header: header.into(), resolver, peer: Some([10, 0, 0, 1].into()) };
        let key = section.key([&*line].into_iter()).unwrap();
        prop_assert!(key.parse::<IpAddr>().is_ok(), "{}", key);
    }
}

impl Section {
    fn parse(line: &str) -> Self {
        let [header, trust, peer] = line[1..line.len() - 1].split("; ").collect::<Vec<_>>()[..]
        else {
            panic!("{line}: not [header; trust; peer]");
        };
        let resolver = match trust.strip_prefix("hops ") {
            Some(hops) => ClientAddress::behind(hops.parse().unwrap()),
            None if trust == "none" => ClientAddress::trusting([]),
            None => ClientAddress::trusting(trust.split(", ").map(|net| net.parse().unwrap())),
        };
        let resolver = if header == "forwarded" { resolver.forwarded() } else { resolver };
        let peer = (peer != "-").then(|| peer.parse().unwrap());
        Self { header: header.to_owned(), resolver, peer }
    }

    fn key<'a>(&self, lines: impl Iterator<Item = &'a [u8]>) -> Option<String> {
        key(&self.resolver, &head(&self.header, lines, self.peer))
    }
}

fn head<'a>(header: &str, lines: impl Iterator<Item = &'a [u8]>, peer: Option<IpAddr>) -> Parts {
    let mut request = Request::new(());
    for line in lines {
        let name: http::HeaderName = header.parse().unwrap();
        request.headers_mut().append(name, HeaderValue::from_bytes(line).unwrap());
    }
    if let Some(peer) = peer {
        request.extensions_mut().insert(PeerAddr((peer, 4711).into()));
    }
    request.into_parts().0
}

fn key(resolver: &impl Resolve, head: &Parts) -> Option<String> {
    let mut parts = KeyParts::new();
    resolver.resolve(head, &mut parts).ok()?;
    Some(parts.with(|key| key.to_string()))
}
