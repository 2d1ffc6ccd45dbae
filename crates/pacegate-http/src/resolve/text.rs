//! Normal forms of text.

use std::borrow::Cow;

/// Returns a host in lower case, without port, user information and trailing dot.
pub fn plain_host(host: &[u8]) -> Cow<'_, [u8]> {
    let user = host.iter().rposition(|&byte| byte == b'@');
    let host = &host[user.map_or(0, |at| at + 1)..];
    let is_port = |port: &[u8]| port.iter().all(u8::is_ascii_digit);
    let colon = host.iter().rposition(|&byte| byte == b':');
    let end = colon.filter(|&colon| is_port(&host[colon + 1..])).unwrap_or(host.len());
    let host = host[..end].strip_suffix(b".").unwrap_or(&host[..end]);
    match host.iter().any(u8::is_ascii_uppercase) {
        true => Cow::Owned(host.to_ascii_lowercase()),
        false => Cow::Borrowed(host),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_host_has_one_spelling() {
        for (host, expected) in [
            ("Shop.Example:8080", "shop.example"),
            ("[2001:DB8::1]:80", "[2001:db8::1]"),
            ("shop.example:", "shop.example"),
            ("a", "a"),
            ("me:secret@Shop.Example:8080", "shop.example"),
            ("@shop.example", "shop.example"),
            ("Shop.Example.:8080", "shop.example"),
            ("a@b@[2001:db8::1]", "[2001:db8::1]"),
        ] {
            assert_eq!(String::from_utf8_lossy(&plain_host(host.as_bytes())), expected);
        }
    }
}
