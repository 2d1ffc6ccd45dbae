//! One spelling for what can be written in several ways.

use std::borrow::Cow;

/// The path of a URI without the query, decoded once, with dots followed and slashes merged, as most servers read it.
/// Other spellings of a path would be a way around its policies.
///
/// ```
/// use pacegate_http::resolve::plain_path;
///
/// assert_eq!(*plain_path(b"//a/../%6Cogin?next=/"), *b"/login");
/// ```
pub fn plain_path(uri: &[u8]) -> Cow<'_, [u8]> {
    let end = uri.iter().position(|byte| matches!(byte, b'?' | b'#')).unwrap_or(uri.len());
    let path = &uri[..end];
    if is_plain(path) {
        return Cow::Borrowed(path);
    }
    let decoded = decode(path);
    let mut parts: Vec<&[u8]> = Vec::new();
    for part in decoded.split(|&byte| byte == b'/') {
        match part {
            b"" | b"." => {}
            b".." => drop(parts.pop()),
            part => parts.push(part),
        }
    }
    let mut path = Vec::with_capacity(decoded.len() + 1);
    for part in &parts {
        path.push(b'/');
        path.extend_from_slice(part);
    }
    let is_folder = [&b"/"[..], b"/.", b"/.."].iter().any(|end| decoded.ends_with(end));
    if is_folder || path.is_empty() {
        path.push(b'/');
    }
    Cow::Owned(path)
}

/// A host in small letters, without its port, without a user before it, and without the dot that may end its name.
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

/// Whether nothing in a path can be written in another way.
fn is_plain(path: &[u8]) -> bool {
    let starts = path.first() == Some(&b'/');
    let mut after_slash = false;
    starts
        && path.iter().all(|&byte| {
            let fine = byte != b'%' && !(after_slash && matches!(byte, b'/' | b'.'));
            after_slash = byte == b'/';
            fine
        })
}

fn decode(text: &[u8]) -> Vec<u8> {
    let mut decoded = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&byte, tail)) = rest.split_first() {
        let escaped = tail.first_chunk::<2>().filter(|_| byte == b'%').and_then(hex);
        decoded.push(escaped.unwrap_or(byte));
        rest = if escaped.is_some() { &tail[2..] } else { tail };
    }
    decoded
}

fn hex(digits: &[u8; 2]) -> Option<u8> {
    let [high, low] = digits.map(|digit| char::from(digit).to_digit(16));
    u8::try_from(high? * 16 + low?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_has_one_spelling() {
        for (uri, expected) in [
            ("/login", "/login"),
            ("/login?a=/b", "/login"),
            ("/login#x", "/login"),
            ("//login", "/login"),
            ("/%6Cogin", "/login"),
            ("/%6cogin", "/login"),
            ("/a/../login", "/login"),
            ("/a/%2e%2e/login", "/login"),
            ("/./login/", "/login/"),
            ("/../../login", "/login"),
            ("/login/..", "/"),
            ("/a/b/.", "/a/b/"),
            ("/a%2Fb", "/a/b"),
            ("/100%", "/100%"),
            ("/%zz", "/%zz"),
            ("/a%20b", "/a b"),
            ("", "/"),
            ("?x", "/"),
            ("*", "/*"),
            ("/a...", "/a..."),
            ("/.well-known/x", "/.well-known/x"),
        ] {
            assert_eq!(String::from_utf8_lossy(&plain_path(uri.as_bytes())), expected, "{uri}");
        }
    }

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
