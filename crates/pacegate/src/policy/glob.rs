use std::{
    fmt,
    hash::{Hash, Hasher},
    str::FromStr,
};

use super::Paths;

/// A pattern for values that look like paths.
///
/// | pattern | matches |
/// |---|---|
/// | `*` | any number of characters except `/`, also none |
/// | `**` | any number of characters including `/`, also none |
/// | `?` | one character except `/` |
/// | any other character | itself |
///
/// The pattern must match the whole value: `/api/*` matches `/api/users`, but not `/api/users/7`. A pattern has at most
/// 127 tokens: a literal byte, `?`, `*` or `**` is one. Parsing a longer one fails with [`GlobError`].
///
/// Matching reads each byte of the value once and does a fixed amount of work for it. If the value is longer than
/// [`Glob::MAX_MATCHED`], it reads only the beginning, see [`Glob::matches`].
///
/// ```
/// use pacegate::policy::Glob;
///
/// let files: Glob = "/files/**/*.pdf".parse()?;
/// assert!(files.matches(b"/files/2026/report.pdf"));
/// assert!(!files.matches(b"/files/report.txt"));
/// # Ok::<(), pacegate::policy::GlobError>(())
/// ```
#[derive(Clone)]
pub struct Glob {
    text: String,
    /// The normal form that values have, if they are paths.
    paths: Option<Paths>,
    tokens: Vec<Token>,
    program: Program,
}

/// Error of parsing a [`Glob`]: the pattern is too long.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the pattern is longer than {MAX_TOKENS} characters")]
pub struct GlobError;

/// One element of a pattern: a literal byte, `?`, `*` or `**`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Token {
    Byte(u8),
    One,
    Run,
    RunWithSlashes,
}

/// A pattern as bit sets of positions, so that one step advances all of them by a byte. Bit n of a set is the position
/// before token n.
#[derive(Clone)]
struct Program {
    /// The class of each byte.
    classes: Box<[u8; 256]>,
    /// For each class, the positions before a token for that byte. Bytes of class 0 occur in no token.
    expecting: Vec<u128>,
    ones: u128,
    runs: u128,
    runs_with_slashes: u128,
    /// The position after the last token.
    end: u128,
}

/// The positions reached after some bytes of a value.
#[derive(Clone, Copy, Debug)]
struct Progress {
    places: u128,
    /// The number of bytes left of the current character.
    rest: u8,
}

/// The result, and the number of bytes that were read for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Scan {
    result: Matching,
    steps: usize,
}

/// The result for one value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Matching {
    No,
    /// The value is too long to be read in full; some values with the same first bytes match.
    Perhaps,
    Yes,
}

/// The maximum number of tokens: their positions and the end of the pattern are the bits of a `u128`.
const MAX_TOKENS: usize = 127;

impl Glob {
    /// The bytes of a value that are read. No server routes by paths of this length.
    pub const MAX_MATCHED: usize = 4096;

    /// Returns `true` if the whole of `value` matches.
    ///
    /// A value that is longer than [`Glob::MAX_MATCHED`] matches if some value with the same first bytes does. So a
    /// long value cannot bypass a policy. In return, a policy may apply to a long value that does not match.
    pub fn matches(&self, value: &[u8]) -> bool {
        self.scan(value).result != Matching::No
    }

    /// Returns `true` if the whole of `value` matches and, if it is longer than [`Glob::MAX_MATCHED`], all values with
    /// the same first bytes do.
    pub(super) fn surely_matches(&self, value: &[u8]) -> bool {
        self.scan(value).result == Matching::Yes
    }

    /// Returns this pattern for paths in a normal form.
    ///
    /// Normalized paths do not end with a slash. `/api/**` matches `/api/`, so it must match `/api` too.
    pub(super) fn for_paths(&self, paths: Paths) -> Result<Self, GlobError> {
        match paths {
            Paths::Exact => self.text.parse(),
            _ => Self::new(paths.normalize_pattern(&self.text), Some(paths)),
        }
    }

    /// Returns the part before the first wildcard, up to but not including its last `/`. Every value that matches
    /// starts with it, followed by a `/` or by nothing. `None` if that part has no `/`.
    pub(super) fn literal_prefix(&self) -> Option<Vec<u8>> {
        let mut literal: Vec<u8> = self.tokens.iter().map_while(Token::byte).collect();
        let end = literal.iter().rposition(|&byte| byte == b'/')?;
        literal.truncate(end);
        Some(literal)
    }

    /// Returns the only value that matches, or `None` if the pattern has a wildcard.
    pub(super) fn literal(&self) -> Option<String> {
        let bytes = self.tokens.iter().map(Token::byte).collect::<Option<Vec<u8>>>()?;
        String::from_utf8(bytes).ok()
    }

    /// Compiles a pattern. `paths`: the form of the paths that it is matched with, if values are paths.
    fn new(text: String, paths: Option<Paths>) -> Result<Self, GlobError> {
        let tokens = tokens(text.as_bytes(), paths.is_some());
        if tokens.len() > MAX_TOKENS {
            return Err(GlobError);
        }
        Ok(Self { program: Program::new(&tokens), text, paths, tokens })
    }

    /// Matches a value byte by byte. Stops as soon as the result is certain.
    fn scan(&self, value: &[u8]) -> Scan {
        let program = &self.program;
        let mut progress = Progress { places: program.past_runs(1), rest: 0 };
        let read = &value[..value.len().min(Self::MAX_MATCHED)];
        for (place, &byte) in read.iter().enumerate() {
            progress = program.step(progress, byte);
            if progress.places == 0 {
                return Scan { result: Matching::No, steps: place + 1 };
            }
            if program.takes_all(progress.places) {
                return Scan { result: Matching::Yes, steps: place + 1 };
            }
        }
        if read.len() < value.len() {
            return Scan { result: Matching::Perhaps, steps: read.len() };
        }
        let is_path = self.paths.is_some() && value != b"/";
        let is_folder = || is_path && program.is_end(program.step(progress, b'/').places);
        let result = match program.is_end(progress.places) || is_folder() {
            true => Matching::Yes,
            false => Matching::No,
        };
        Scan { result, steps: read.len() + usize::from(is_path) }
    }
}

impl Token {
    fn byte(&self) -> Option<u8> {
        match self {
            Self::Byte(byte) => Some(*byte),
            Self::One | Self::Run | Self::RunWithSlashes => None,
        }
    }
}

/// Splits a pattern. In the pattern of a path, `%2a` is a literal `*`.
fn tokens(text: &[u8], is_path: bool) -> Vec<Token> {
    let mut tokens = Vec::new();
    let mut rest = text;
    while let Some((&byte, tail)) = rest.split_first() {
        rest = tail;
        match (byte, tokens.last_mut()) {
            (b'*', Some(last @ (Token::Run | Token::RunWithSlashes))) => {
                *last = Token::RunWithSlashes;
            }
            (b'*', _) => tokens.push(Token::Run),
            (b'?', _) => tokens.push(Token::One),
            (b'%', _) if is_path && tail.starts_with(b"2a") => {
                tokens.push(Token::Byte(b'*'));
                rest = &tail[2..];
            }
            (byte, _) => tokens.push(Token::Byte(byte)),
        }
    }
    tokens
}

impl Program {
    fn new(tokens: &[Token]) -> Self {
        let mut program = Self {
            classes: Box::new([0; 256]),
            expecting: vec![0],
            ones: 0,
            runs: 0,
            runs_with_slashes: 0,
            end: 1 << tokens.len(),
        };
        for (n, token) in tokens.iter().enumerate() {
            let place = 1 << n;
            match token {
                Token::Byte(byte) => *program.expecting_mut(*byte) |= place,
                Token::One => program.ones |= place,
                Token::Run => program.runs |= place,
                Token::RunWithSlashes => program.runs_with_slashes |= place,
            }
        }
        program
    }

    fn expecting_mut(&mut self, byte: u8) -> &mut u128 {
        let class = &mut self.classes[usize::from(byte)];
        if *class == 0 {
            // There are at most as many classes as tokens.
            *class = u8::try_from(self.expecting.len()).unwrap_or(u8::MAX);
            self.expecting.push(0);
        }
        &mut self.expecting[usize::from(*class)]
    }

    /// Advances all positions by one byte.
    fn step(&self, Progress { places, rest }: Progress, byte: u8) -> Progress {
        let is_inside = rest > 0 && byte & 0xc0 == 0x80;
        let expecting = self.expecting[usize::from(self.classes[usize::from(byte)])];
        let mut next = (places & expecting) << 1 | places & self.runs_with_slashes;
        if is_inside {
            // A continuation byte of the character that `?` matches.
            next |= places & self.ones << 1 | places & self.runs;
        } else if byte != b'/' {
            next |= (places & self.ones) << 1 | places & self.runs;
        }
        let rest = if is_inside { rest - 1 } else { bytes_after(byte) };
        Progress { places: self.past_runs(next), rest }
    }

    /// Adds the position after each run to the position before it, because a run may be empty. No two runs are
    /// adjacent, so one pass is enough.
    fn past_runs(&self, places: u128) -> u128 {
        places | (places & (self.runs | self.runs_with_slashes)) << 1
    }

    fn is_end(&self, places: u128) -> bool {
        places & self.end != 0
    }

    /// Returns `true` if the last token is `**` and was reached: anything may follow.
    fn takes_all(&self, places: u128) -> bool {
        places & self.runs_with_slashes & self.end >> 1 != 0
    }
}

/// Returns the number of continuation bytes after the first byte of a UTF-8 character. A byte that cannot start a
/// character counts as a character by itself.
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
        Self::new(text.to_owned(), None)
    }
}

impl PartialEq for Glob {
    fn eq(&self, other: &Self) -> bool {
        (&self.text, self.paths) == (&other.text, other.paths)
    }
}

impl Eq for Glob {}

impl Hash for Glob {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (&self.text, self.paths).hash(state);
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
    fn each_byte_of_invalid_utf8_is_one_character() {
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
            ("/api/v1/*", Some("/api/v1")),
            ("/api/v1*", Some("/api")),
            ("api*", None),
            ("/a?/b", Some("")),
            ("**", None),
        ] {
            let prefix = prefix.map(|prefix| prefix.as_bytes().to_vec());
            assert_eq!(pattern.parse::<Glob>().unwrap().literal_prefix(), prefix);
        }
    }

    /// The definition, by trying everything.
    fn matches_slowly(tokens: &[Token], value: &str) -> bool {
        let Some((token, others)) = tokens.split_first() else { return value.is_empty() };
        let character = value.chars().next();
        let after = || &value[character.map_or(0, char::len_utf8)..];
        match token {
            Token::Byte(byte) => {
                value.as_bytes().first() == Some(byte) && matches_slowly(others, &value[1..])
            }
            Token::One => {
                character.is_some_and(|one| one != '/') && matches_slowly(others, after())
            }
            Token::Run | Token::RunWithSlashes => {
                let goes_on = match token {
                    Token::Run => character.is_some_and(|one| one != '/'),
                    _ => character.is_some(),
                };
                matches_slowly(others, value) || goes_on && matches_slowly(tokens, after())
            }
        }
    }

    proptest::proptest! {
        #[test]
        fn agrees_with_the_definition(pattern in "[ab/*?]{0,12}", value in "[ab/é]{0,12}") {
            proptest::prop_assume!(pattern.is_ascii());
            let glob: Glob = pattern.parse().unwrap();
            let expected = matches_slowly(&glob.tokens, &value);
            proptest::prop_assert_eq!(glob.matches(value.as_bytes()), expected);
            proptest::prop_assert_eq!(glob.surely_matches(value.as_bytes()), expected);
        }
    }

    /// Each step is a fixed number of instructions, so steps are a bound on the work.
    #[test]
    fn no_value_costs_more_steps_than_the_bound() {
        let patterns = ["**a", "*a*a*a*a*a*a*b", &"*a".repeat(60), &"?".repeat(127), "**/x/**/y*"];
        for pattern in patterns {
            let glob: Glob = pattern.parse().unwrap();
            for value in ["a".repeat(60_000), "/x".repeat(30_000), "é".repeat(30_000)] {
                let Scan { steps, .. } = glob.scan(value.as_bytes());
                assert!(steps <= Glob::MAX_MATCHED, "{pattern}: {steps}");
                let path = glob.for_paths(Paths::Normalized).unwrap();
                assert!(path.scan(value.as_bytes()).steps <= Glob::MAX_MATCHED, "{pattern}");
            }
        }
        let folder: Glob = "/api/**".parse().unwrap();
        let long = format!("/api/{}", "x".repeat(60_000));
        assert_eq!(folder.scan(long.as_bytes()), Scan { result: Matching::Yes, steps: 5 });
        assert_eq!(folder.scan(&long.as_bytes()[1..]), Scan { result: Matching::No, steps: 1 });
    }

    #[test]
    fn a_value_beyond_the_bound_matches_if_one_with_its_beginning_does() {
        let long = |begin: &str| format!("{begin}{}", "x".repeat(Glob::MAX_MATCHED));
        for (pattern, begin, matches, surely) in [
            ("/api/**", "/api/", true, true),
            ("/api/**", "/login/", false, false),
            ("/api/*", "/api/", true, false),
            ("/api/*/y", "/api/", true, false),
            ("/api/x", "/api/", false, false),
            ("**.js", "/login/", true, false),
        ] {
            let glob: Glob = pattern.parse().unwrap();
            let value = long(begin);
            assert_eq!(glob.matches(value.as_bytes()), matches, "{pattern} {begin}");
            assert_eq!(glob.surely_matches(value.as_bytes()), surely, "{pattern} {begin}");
        }
        let glob: Glob = "/*".parse().unwrap();
        let exact = format!("/{}", "x".repeat(Glob::MAX_MATCHED - 1));
        assert!(glob.surely_matches(exact.as_bytes()), "as long as the bound");
    }

    #[test]
    fn patterns_of_paths_match_normal_forms() {
        for (pattern, yes, no) in [
            ("/api/**", vec!["/api", "/api/x"], vec!["/apix", "/", "/a"]),
            ("/API/*/", vec!["/api", "/api/x"], vec!["/api/x/y"]),
            ("/**", vec!["/", "/x"], vec![]),
            ("/*", vec!["/", "/x"], vec!["/x/y"]),
            ("/*/*", vec!["/x", "/x/y"], vec!["/", "/x/y/z"]),
            ("**/login", vec!["/login", "/x/login"], vec!["/loginx"]),
            ("/a%2A*", vec!["/a*", "/a*b"], vec!["/ab"]),
            ("/caf%C3%A9?", vec!["/caféx"], vec!["/café"]),
        ] {
            let glob: Glob = pattern.parse().unwrap();
            let glob = glob.for_paths(Paths::Normalized).unwrap();
            for value in yes {
                assert!(glob.matches(value.as_bytes()), "{pattern} {value}");
            }
            for value in no {
                assert!(!glob.matches(value.as_bytes()), "{pattern} {value}");
            }
        }
    }

    #[test]
    fn refuses_patterns_it_cannot_hold() {
        assert!("a".repeat(127).parse::<Glob>().unwrap().matches("a".repeat(127).as_bytes()));
        assert_eq!("a".repeat(128).parse::<Glob>(), Err(GlobError));
        assert!("*".repeat(1_000).parse::<Glob>().unwrap().matches(b"a/b"));
    }
}
