//! Parses `X-Forwarded-For` and `Forwarded` from right to left: the last proxy wrote the rightmost entry, and nothing
//! to the left of an entry may change how it is parsed.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Parses an address, with or without brackets, zone and port: `203.0.113.7:80`, `[2001:db8::1%eth0]:443`.
pub(super) fn node(text: &[u8]) -> Option<IpAddr> {
    let text = str::from_utf8(text).ok()?.trim_ascii();
    if let Some(bracketed) = text.strip_prefix('[') {
        let (address, port) = bracketed.split_once(']')?;
        let port = port.strip_prefix(':').map_or(port.is_empty(), is_port);
        return v6(address).filter(|_| port);
    }
    if let Some(address) = v6(text) {
        return Some(address);
    }
    let address = match text.split_once(':') {
        Some((address, port)) if is_port(port) => address,
        Some(_) => return None,
        None => text,
    };
    address.parse::<Ipv4Addr>().ok().map(IpAddr::V4)
}

/// Returns the elements of a line of `Forwarded`, the last first. Commas in quotes do not separate.
pub(super) fn elements_from_right(line: &[u8]) -> impl Iterator<Item = &[u8]> {
    let mut rest = Some(line);
    std::iter::from_fn(move || {
        let line = rest?;
        let mut quoted = false;
        let comma = line.iter().rposition(|&byte| {
            quoted ^= byte == b'"';
            byte == b',' && !quoted
        });
        rest = comma.map(|comma| &line[..comma]);
        Some(comma.map_or(line, |comma| &line[comma + 1..]))
    })
}

/// Returns the address in the only `for` of an element. `unknown` and names such as `_hidden` are not addresses.
pub(super) fn element_for(element: &[u8]) -> Option<IpAddr> {
    let mut quoted = false;
    let mut pairs = element
        .split(|&byte| {
            quoted ^= byte == b'"';
            byte == b';' && !quoted
        })
        .filter_map(|pair| {
            let (name, value) = pair.trim_ascii().split_at_checked(4)?;
            name.eq_ignore_ascii_case(b"for=").then_some(value)
        });
    let value = pairs.next()?;
    if pairs.next().is_some() {
        return None;
    }
    match value {
        [b'"', inner @ .., b'"'] => node(inner),
        value => node(value),
    }
}

fn v6(text: &str) -> Option<IpAddr> {
    let address = text.split_once('%').map_or(text, |(address, _)| address);
    address.parse::<Ipv6Addr>().ok().map(IpAddr::V6)
}

/// RFC 7239 also allows a made-up name that begins with `_`.
fn is_port(port: &str) -> bool {
    let is_name = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    match port.strip_prefix('_') {
        Some(name) => !name.is_empty() && name.chars().all(is_name),
        None => (1..=5).contains(&port.len()) && port.bytes().all(|byte| byte.is_ascii_digit()),
    }
}
