//! Keys as text, and back.

use pacegate::{KeyBuf, KeyRef, Policy};

/// The number of characters of a key that are shown.
pub(crate) const MAX_SHOWN_CHARS: usize = 200;

const ABSENT: &str = "(absent)";
const SEPARATOR: &str = ", ";

/// Returns a key as text: its parts, joined by commas and truncated. Untrusted input.
pub(crate) fn text_of(key: KeyRef<'_>) -> String {
    let mut text = whole_text_of(key);
    if let Some((end, _)) = text.char_indices().nth(MAX_SHOWN_CHARS) {
        text.truncate(end);
        text.push('…');
    }
    text
}

/// Returns a key as text: its parts, joined by commas. Untrusted input.
pub(crate) fn whole_text_of(key: KeyRef<'_>) -> String {
    let mut text = String::new();
    for (place, part) in key.parts().enumerate() {
        if place > 0 {
            text.push_str(SEPARATOR);
        }
        match part {
            Some(part) => text.push_str(&String::from_utf8_lossy(part)),
            None => text.push_str(ABSENT),
        }
    }
    text
}

/// Parses the text of a key of a policy, or of inline limits if `policy` is `None`. Returns `None` if it does not fit.
///
/// Some texts of [`text_of`] cannot be parsed, such as truncated ones. Their keys can only be displayed.
pub(crate) fn key_of(policy: Option<&Policy>, text: &str) -> Option<KeyBuf> {
    let part = |text: &str| (text != ABSENT).then(|| text.as_bytes().to_vec());
    let tuple = |parts: &mut dyn Iterator<Item = &str>| {
        let mut key = KeyBuf::empty();
        parts.for_each(|text| key.push(part(text).as_deref()));
        key
    };
    let one = || match part(text) {
        Some(part) => KeyRef::new(&part).to_buf(),
        None => tuple(&mut [text].into_iter()),
    };
    let parts = || text.split(SEPARATOR);
    match policy {
        None => Some(KeyRef::new(text.as_bytes()).to_buf()),
        Some(policy) => match policy.per.len() {
            0 => text.is_empty().then(KeyBuf::empty),
            1 => Some(one()),
            most => (parts().count() == most).then(|| tuple(&mut parts())),
        },
    }
}

#[cfg(test)]
mod tests {
    use pacegate::{Key, Limit, PolicyName, PolicySet, Request};

    use super::*;

    fn policy(per: &[&str]) -> Policy {
        Policy::new(PolicyName::DEFAULT, [Limit::per_hour(1)]).per(per.iter().copied())
    }

    /// The key of a request under a policy, as the library makes it.
    fn key(policy: &Policy, attributes: &[(&str, &str)]) -> KeyBuf {
        let set = PolicySet::new([policy.clone()]).unwrap();
        let limiter = pacegate::Limiter::builder().policies(set).build().unwrap();
        let mut request = Request::new();
        for &(name, value) in attributes {
            request = request.with(name, value);
        }
        limiter.charges().plan(&request).charges(1).unwrap()[0].key.to_buf()
    }

    #[test]
    fn a_displayed_key_can_be_parsed() {
        for (per, attributes, text) in [
            (&[][..], &[][..], ""),
            (&["ip"], &[("ip", "203.0.113.9")], "203.0.113.9"),
            (&["ip"], &[("ip", "")], ""),
            (&["ip"], &[], "(absent)"),
            (&["ip"], &[("ip", "a, b")], "a, b"),
            (&["user", "ip"], &[("user", "alice"), ("ip", "::1")], "alice, ::1"),
            (&["user", "ip"], &[("ip", "::1")], "(absent), ::1"),
            (&["user", "ip"], &[], "(absent), (absent)"),
        ] {
            let policy = policy(per);
            let key = key(&policy, attributes);
            assert_eq!(text_of(key.as_ref()), text);
            assert_eq!(key_of(Some(&policy), text), Some(key), "{text}");
        }
        let own = "alice".with(|key| key.to_buf());
        assert_eq!(key_of(None, "alice"), Some(own));
    }

    #[test]
    fn ambiguous_texts_do_not_parse_as_another_key() {
        let long = "x".repeat(MAX_SHOWN_CHARS + 1);
        for (per, attributes) in [
            (&["ip"][..], &[("ip", "(absent)")][..]),
            (&["ip"], &[("ip", &*long)]),
            (&["user", "ip"], &[("user", "a, b"), ("ip", "c")]),
        ] {
            let policy = policy(per);
            let key = key(&policy, attributes);
            assert_ne!(key_of(Some(&policy), &text_of(key.as_ref())), Some(key));
        }
        let binary = KeyRef::new(b"\xff\x00").to_buf();
        assert_ne!(key_of(None, &text_of(binary.as_ref())), Some(binary));
        assert_eq!(key_of(Some(&policy(&[])), "alice"), None);
        assert_eq!(key_of(Some(&policy(&["a", "b"])), "alice"), None);
    }

    #[test]
    fn a_long_key_is_cut_at_a_character() {
        let text = text_of(KeyRef::new("ä".repeat(500).as_bytes()));
        assert_eq!(text, "ä".repeat(MAX_SHOWN_CHARS) + "…");
        let text = text_of(KeyRef::new("ä".repeat(MAX_SHOWN_CHARS).as_bytes()));
        assert_eq!(text, "ä".repeat(MAX_SHOWN_CHARS));
    }
}
