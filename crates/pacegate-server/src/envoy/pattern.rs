//! Values with wildcards.

use memchr::memmem;

/// A text in which each `*` matches any number of bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Pattern {
    prefix: Box<[u8]>,
    /// Parts between prefix and suffix, in this order.
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

    /// Returns whether the whole of `value` matches. Takes the first occurrence of each part, which leaves the most for
    /// the parts behind it. The time is linear in the length of `value`, which a client chooses.
    pub(super) fn matches(&self, value: &[u8]) -> bool {
        let Some(rest) = value.strip_prefix(&*self.prefix) else { return false };
        let Some(mut rest) = rest.strip_suffix(&*self.suffix) else { return false };
        self.middle.iter().all(|part| {
            memmem::find(rest, part).is_some_and(|place| {
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

    /// Comparing the part at each place of the value takes a second: 10 × 30,000 × 30,000 bytes.
    #[test]
    #[expect(clippy::disallowed_methods, reason = "compares two durations")]
    fn a_value_that_almost_matches_everywhere_takes_linear_time() {
        let pattern = Pattern::new(&format!("*{}b*", "a".repeat(30_000))).unwrap();
        let value = vec![b'a'; 60_000];
        let begun = std::time::Instant::now();
        for _ in 0..10 {
            assert!(!pattern.matches(&value));
        }
        let by_search = begun.elapsed();
        let begun = std::time::Instant::now();
        for _ in 0..10 {
            let part = &pattern.middle[0];
            assert!(!value.windows(part.len()).any(|window| window == &**part));
        }
        let by_comparison = begun.elapsed();
        assert!(by_search < by_comparison / 4, "{by_search:?}, by comparison {by_comparison:?}");
    }
}
