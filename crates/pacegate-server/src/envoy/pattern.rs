//! Values with `*` in them.

/// A text in which each `*` stands for any bytes, also for none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Pattern {
    prefix: Box<[u8]>,
    /// What must come between, in this order.
    middle: Box<[Box<[u8]>]>,
    suffix: Box<[u8]>,
}

impl Pattern {
    /// `None` if there is no `*` in the text.
    pub(super) fn new(text: &str) -> Option<Self> {
        let (prefix, rest) = text.split_once('*')?;
        let (middle, suffix) = rest.rsplit_once('*').unwrap_or(("", rest));
        let middle = middle.split('*').filter(|part| !part.is_empty());
        Some(Self {
            prefix: prefix.as_bytes().into(),
            middle: middle.map(|part| part.as_bytes().into()).collect(),
            suffix: suffix.as_bytes().into(),
        })
    }

    /// Whether the whole of `value` is as the pattern says. The first place that fits is always good enough: it leaves
    /// most for what comes after.
    pub(super) fn matches(&self, value: &[u8]) -> bool {
        let Some(rest) = value.strip_prefix(&*self.prefix) else { return false };
        let Some(mut rest) = rest.strip_suffix(&*self.suffix) else { return false };
        self.middle.iter().all(|part| {
            let found = rest.windows(part.len()).position(|window| window == &**part);
            found.is_some_and(|place| {
                rest = &rest[place + part.len()..];
                true
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_stands_for_anything() {
        for (pattern, value, matches) in [
            ("v*", "v", true),
            ("v*", "v1", true),
            ("v*", "w1", false),
            ("*", "", true),
            ("*v", "av", true),
            ("*v", "va", false),
            ("a*c", "abc", true),
            ("a*c", "ac", true),
            ("a*a", "a", false),
            ("/api/*/users/*", "/api/v1/users/7", true),
            ("/api/*/users/*", "/api/users/7", false),
            ("/api/*/users/*", "/api//users/", true),
            ("*a*b*", "xaxbx", true),
            ("*a*b*", "xbxax", false),
            ("*ab*ab", "ab", false),
            ("*ab*ab", "abab", true),
            ("a**b", "ab", true),
            ("a*b", "a\nb", true),
        ] {
            let compiled = Pattern::new(pattern).unwrap();
            assert_eq!(compiled.matches(value.as_bytes()), matches, "{pattern} {value:?}");
        }
        assert_eq!(Pattern::new("v"), None);
    }
}
