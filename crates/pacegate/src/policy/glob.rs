use std::{fmt, str::FromStr};

/// A pattern for values that look like paths: `*` is any run without `/`, `**` any run at all, `?` any one character
/// but `/`, and everything else stands for itself.
///
/// Matching takes one pass over the value, whatever the pattern: a hostile value cannot make it slow.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Glob {
    text: String,
    tokens: Vec<Token>,
}

/// Why a text is not a [`Glob`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the pattern is longer than {MAX_TOKENS} characters")]
pub struct GlobError;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Token {
    Byte(u8),
    One,
    Run,
    RunWithSlashes,
}

/// The places in a pattern, its end among them, are the bits of a `u128`.
const MAX_TOKENS: usize = 127;

impl Glob {
    /// Whether the whole of `value` matches.
    pub fn matches(&self, value: &[u8]) -> bool {
        // Bit n: the pattern up to its n-th token has matched what was read so far.
        let mut places = self.past_runs(1);
        let mut rest = 0;
        for &byte in value {
            let is_inside = rest > 0 && byte & 0xc0 == 0x80;
            rest = if is_inside { rest - 1 } else { bytes_after(byte) };
            let mut next = 0;
            for (n, token) in self.tokens.iter().enumerate() {
                next |= match token {
                    // More of the character that it stands for.
                    Token::One if is_inside => places & (1 << (n + 1)),
                    _ if places >> n & 1 == 0 => 0,
                    Token::Byte(wanted) => u128::from(*wanted == byte) << (n + 1),
                    Token::One => u128::from(byte != b'/') << (n + 1),
                    Token::Run => u128::from(byte != b'/') << n,
                    Token::RunWithSlashes => 1 << n,
                };
            }
            places = self.past_runs(next);
            if places == 0 {
                return false;
            }
        }
        places >> self.tokens.len() & 1 == 1
    }

    /// The part before the first wildcard, up to and with its last `/`: every value that matches begins with it.
    pub(super) fn literal_prefix(&self) -> &[u8] {
        let literal =
            self.tokens.iter().take_while(|token| matches!(token, Token::Byte(_))).count();
        let literal = &self.text.as_bytes()[..literal];
        let end = literal.iter().rposition(|&byte| byte == b'/').map_or(0, |slash| slash + 1);
        &literal[..end]
    }

    /// Whether there is no wildcard at all.
    pub(super) fn is_literal(&self) -> bool {
        self.tokens.iter().all(|token| matches!(token, Token::Byte(_)))
    }

    /// A run may be empty: whoever stands before one also stands behind it.
    fn past_runs(&self, mut places: u128) -> u128 {
        for (n, token) in self.tokens.iter().enumerate() {
            if matches!(token, Token::Run | Token::RunWithSlashes) {
                places |= (places >> n & 1) << (n + 1);
            }
        }
        places
    }
}

/// How many more bytes the character has that begins with this one. What is no UTF-8 has a character for each byte.
fn bytes_after(first: u8) -> u8 {
    match first {
        0xc0..=0xdf => 1,
        0xe0..=0xef => 2,
        0xf0..=0xf7 => 3,
        _ => 0,
    }
}

impl FromStr for Glob {
    type Err = GlobError;

    fn from_str(text: &str) -> Result<Self, GlobError> {
        let mut tokens = Vec::new();
        for &byte in text.as_bytes() {
            match (byte, tokens.last_mut()) {
                (b'*', Some(last @ (Token::Run | Token::RunWithSlashes))) => {
                    *last = Token::RunWithSlashes;
                }
                (b'*', _) => tokens.push(Token::Run),
                (b'?', _) => tokens.push(Token::One),
                (byte, _) => tokens.push(Token::Byte(byte)),
            }
        }
        if tokens.len() > MAX_TOKENS {
            return Err(GlobError);
        }
        Ok(Self { text: text.to_owned(), tokens })
    }
}

impl fmt::Display for Glob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl fmt::Debug for Glob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.text.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matches_as_documented() {
        for (pattern, yes, no) in [
            ("/api/**", vec!["/api/", "/api/x", "/api/x/y"], vec!["/api", "/apix", "x/api/y"]),
            ("/api/*", vec!["/api/", "/api/x"], vec!["/api/x/y", "/api"]),
            (
                "*.example.com",
                vec!["a.example.com", ".example.com"],
                vec!["a/b.example.com", "example.com"],
            ),
            ("/u/?/x", vec!["/u/1/x"], vec!["/u//x", "/u/12/x"]),
            ("**/x/**/y*", vec!["/x//y", "a/x/b/c/yz", "/x/q/x/q/y"], vec!["/x/y", "a/x/b/y/"]),
            ("/u/?", vec!["/u/a", "/u/ä", "/u/€", "/u/🦀"], vec!["/u/", "/u/ää", "/u/ä/", "/u//"]),
            ("??", vec!["ää", "a€"], vec!["ä", "€", "🦀", "äää"]),
            ("?*ß?", vec!["äxß€", "ß🦀ßß"], vec!["ß€", "äß", "äß/ß€"]),
            ("*?", vec!["ä", "aä"], vec!["", "ä/"]),
            ("*?ä", vec!["aä", "ää", "xxää"], vec!["ä", "äa"]),
            ("", vec![""], vec!["a"]),
            ("***", vec!["", "a/b"], vec![]),
        ] {
            let glob: Glob = pattern.parse().unwrap();
            for value in yes {
                assert!(glob.matches(value.as_bytes()), "{pattern} {value}");
            }
            for value in no {
                assert!(!glob.matches(value.as_bytes()), "{pattern} {value}");
            }
        }
    }

    #[test]
    fn what_is_no_text_has_a_character_for_each_byte() {
        let glob: Glob = "a??".parse().unwrap();
        for (value, matches) in [
            (&b"a\xa4\xa4"[..], true),
            (b"a\xa4", false),
            (b"a\xc3x", true),
            (b"a\xc3\xa4", false),
            (b"a\xc3\xa4\xa4", true),
            (b"a\xff\xff", true),
            (b"a\xe2\x82", false),
        ] {
            assert_eq!(glob.matches(value), matches, "{value:?}");
        }
    }

    #[test]
    fn knows_its_literal_prefix() {
        for (pattern, prefix) in [
            ("/api/v1/*", "/api/v1/"),
            ("/api/v1*", "/api/"),
            ("api*", ""),
            ("/a?/b", "/"),
            ("**", ""),
        ] {
            assert_eq!(pattern.parse::<Glob>().unwrap().literal_prefix(), prefix.as_bytes());
        }
    }

    #[test]
    fn refuses_patterns_it_cannot_hold() {
        assert!("a".repeat(127).parse::<Glob>().unwrap().matches("a".repeat(127).as_bytes()));
        assert_eq!("a".repeat(128).parse::<Glob>(), Err(GlobError));
        assert!("*".repeat(1_000).parse::<Glob>().unwrap().matches(b"a/b"));
    }
}
