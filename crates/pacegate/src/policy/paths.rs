//! The normal form of paths, so that another spelling does not bypass a policy.

use std::{borrow::Cow, fmt, str::FromStr};

/// The form in which a policy compares the attribute `path`, in `match` and in overrides, and counts by it.
///
/// Servers accept many spellings of one path: `/login`, `/LOGIN`, `/login/`, `/%6Cogin`, `//x/../login;v=1`. A policy
/// that saw only one of them could be bypassed with another, so the default is to compare and count a normal form.
///
/// Parses from and prints as the word that configurations use: `normalized`, `case-sensitive`, `exact`.
///
/// ```
/// use pacegate::policy::Paths;
///
/// for spelling in ["/LOGIN", "/login/", "/login;v=1", "/x/..;/login", "//%6Cogin?next=/"] {
///     assert_eq!(*Paths::Normalized.normalize(spelling.as_bytes()), *b"/login");
/// }
/// assert_eq!(*Paths::CaseSensitive.normalize(b"/LOGIN/"), *b"/LOGIN");
/// assert_eq!(*Paths::Exact.normalize(b"/LOGIN/"), *b"/LOGIN/");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Paths {
    /// The normal form of the path, in lower case:
    ///
    /// - The path ends at the first `?` or `#`.
    /// - Percent-encodings are decoded once. This includes `%2F`, which many servers decode before they route. An
    ///   encoded `%`, `?` or `#` stays encoded, and so does a byte that is not part of valid UTF-8.
    /// - Path parameters are dropped: each segment ends at its first `;`.
    /// - Empty segments and `.` are dropped, `..` removes the segment before it.
    /// - The path starts with one `/` and does not end with one, unless it is `/`.
    /// - ASCII letters are lower case.
    #[default]
    Normalized,
    /// The normal form of the path, with its letters as they were sent.
    CaseSensitive,
    /// The path as it was sent.
    Exact,
}

/// Error of parsing a [`Paths`]: the text is not one of its names.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("invalid paths `{}`: expected `normalized`, `case-sensitive` or `exact`", .0.escape_debug())]
pub struct ParsePathsError(String);

/// A path, or a pattern in which `*` and `?` are wildcards.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Value,
    Pattern,
}

impl Paths {
    const ALL: [Self; 3] = [Self::Normalized, Self::CaseSensitive, Self::Exact];

    /// Returns a path in the form that is compared and counted.
    ///
    /// Takes time linear in the length of the path, and allocates only if the form differs from the
    /// path or if an encoded byte has to be checked for valid UTF-8. The result is at most three times as long, plus
    /// one byte. Applying it twice is the same as applying it once.
    pub fn normalize(self, path: &[u8]) -> Cow<'_, [u8]> {
        let Some(fold) = self.folds() else { return Cow::Borrowed(path) };
        let path = without_query(path);
        match is_normal(path, fold) {
            true => Cow::Borrowed(path),
            false => Cow::Owned(normal_form(path, fold, Kind::Value).into_bytes()),
        }
    }

    /// Returns a value of a condition in the form that is compared.
    pub(super) fn normalize_text(self, text: &str) -> String {
        String::from_utf8_lossy(&self.normalize(text.as_bytes())).into_owned()
    }

    /// Returns a pattern in the form that is compared: as a path, but `*` and `?` are wildcards. An encoded `*` is
    /// `%2a`.
    pub(super) fn normalize_pattern(self, pattern: &str) -> String {
        match self.folds() {
            Some(fold) => {
                let path = pattern.split('#').next().unwrap_or_default();
                normal_form(path.as_bytes(), fold, Kind::Pattern)
            }
            None => pattern.to_owned(),
        }
    }

    /// Returns the name used in configurations.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Normalized => "normalized",
            Self::CaseSensitive => "case-sensitive",
            Self::Exact => "exact",
        }
    }

    /// Returns `Some(true)` if letters become lower case, and `None` if paths stay as they are.
    fn folds(self) -> Option<bool> {
        match self {
            Self::Normalized => Some(true),
            Self::CaseSensitive => Some(false),
            Self::Exact => None,
        }
    }
}

fn without_query(path: &[u8]) -> &[u8] {
    let end = path.iter().position(|byte| matches!(byte, b'?' | b'#'));
    &path[..end.unwrap_or(path.len())]
}

/// Returns `true` only if a path is its own normal form. `false` means that it has to be computed.
fn is_normal(path: &[u8], fold: bool) -> bool {
    let [b'/', rest @ ..] = path else { return false };
    if rest.is_empty() {
        return true;
    }
    let mut ascii = true;
    let plain = rest.iter().enumerate().all(|(place, &byte)| match byte {
        b';' => false,
        b'%' => matches!(rest.get(place + 1..place + 3), Some(b"25" | b"3f" | b"23")),
        b'A'..=b'Z' => !fold,
        0x80.. => {
            ascii = false;
            true
        }
        // `path` has the slash before.
        b'/' | b'.' if path[place] == b'/' => !is_dropped(&rest[place..]),
        _ => true,
    });
    plain && rest.last() != Some(&b'/') && (ascii || str::from_utf8(rest).is_ok())
}

/// Returns `true` if the segment that starts here is empty, `.` or `..`.
fn is_dropped(rest: &[u8]) -> bool {
    matches!(
        rest,
        [] | [b'/', ..] | [b'.'] | [b'.', b'/', ..] | [b'.', b'.'] | [b'.', b'.', b'/', ..]
    )
}

fn normal_form(path: &[u8], fold: bool, kind: Kind) -> String {
    let decoded = decode(path, fold, kind);
    // `**/x` also matches without the slash.
    let is_relative = kind == Kind::Pattern && matches!(path, [b'*' | b'?', ..]);
    let mut form = Vec::with_capacity(decoded.len() + 1);
    for segment in decoded.split(|&byte| byte == b'/') {
        let end = segment.iter().position(|&byte| byte == b';').unwrap_or(segment.len());
        match &segment[..end] {
            b"" | b"." => {}
            // Each byte is removed once at most, so this is linear.
            b".." => form.truncate(form.iter().rposition(|&byte| byte == b'/').unwrap_or(0)),
            segment => {
                if !(is_relative && form.is_empty() && matches!(segment, [b'*' | b'?', ..])) {
                    form.push(b'/');
                }
                form.extend_from_slice(segment);
            }
        }
    }
    if form.is_empty() {
        form.push(b'/');
    }
    to_text(&form)
}

/// Decodes once. What would be read as something else by a second pass stays encoded, in lower case.
fn decode(path: &[u8], fold: bool, kind: Kind) -> Vec<u8> {
    let mut decoded = Vec::with_capacity(path.len() + 2);
    let mut rest = path;
    while let Some((&byte, tail)) = rest.split_first() {
        let escaped = tail.first_chunk().filter(|_| byte == b'%').and_then(hex);
        rest = if escaped.is_some() { &tail[2..] } else { tail };
        match escaped.unwrap_or(byte) {
            b'%' => decoded.extend_from_slice(b"%25"),
            b'?' if escaped.is_some() => decoded.extend_from_slice(b"%3f"),
            b'#' if escaped.is_some() => decoded.extend_from_slice(b"%23"),
            b'*' if escaped.is_some() && kind == Kind::Pattern => {
                decoded.extend_from_slice(b"%2a");
            }
            byte if fold => decoded.push(byte.to_ascii_lowercase()),
            byte => decoded.push(byte),
        }
    }
    decoded
}

fn hex(digits: &[u8; 2]) -> Option<u8> {
    let [high, low] = digits.map(|digit| char::from(digit).to_digit(16));
    u8::try_from(high? * 16 + low?).ok()
}

/// Percent-encodes bytes that are not part of valid UTF-8.
fn to_text(form: &[u8]) -> String {
    use fmt::Write as _;

    let mut text = String::with_capacity(form.len());
    for chunk in form.utf8_chunks() {
        text.push_str(chunk.valid());
        for byte in chunk.invalid() {
            // Writing to a string does not fail.
            let _ = write!(text, "%{byte:02x}");
        }
    }
    text
}

impl fmt::Display for Paths {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for Paths {
    type Err = ParsePathsError;

    fn from_str(word: &str) -> Result<Self, ParsePathsError> {
        let known = Self::ALL.into_iter().find(|paths| paths.as_str() == word);
        known.ok_or_else(|| ParsePathsError(word.chars().take(80).collect()))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn normalized(path: &str) -> String {
        String::from_utf8(Paths::Normalized.normalize(path.as_bytes()).into_owned()).unwrap()
    }

    #[test]
    fn other_spellings_have_one_form() {
        for (path, expected) in [
            ("/login", "/login"),
            ("/login?a=/b", "/login"),
            ("/login#x", "/login"),
            ("//login", "/login"),
            ("/%6Cogin", "/login"),
            ("/%6cogin", "/login"),
            ("/LOGIN", "/login"),
            ("/%4COGIN", "/login"),
            ("/login/", "/login"),
            ("/login//", "/login"),
            ("/login/.", "/login"),
            ("/login;x=1", "/login"),
            ("/login;x=1/", "/login"),
            ("/;/login", "/login"),
            ("/login%3Bx=1", "/login"),
            ("/x/..;/login", "/login"),
            ("/x/..;a=b;c/login", "/login"),
            ("/x/.%2e;/login", "/login"),
            ("/a/../login", "/login"),
            ("/a/%2e%2e/login", "/login"),
            ("/a%2F..%2flogin", "/login"),
            ("/login%2F", "/login"),
            ("/../../login", "/login"),
            ("/./login/", "/login"),
            ("/login/..", "/"),
            ("/a/b/.", "/a/b"),
            ("/a%2Fb", "/a/b"),
            ("/a%20b", "/a b"),
            ("/caf%C3%A9", "/café"),
            ("/café", "/café"),
            ("/caf%E9", "/caf%e9"),
            ("/100%25", "/100%25"),
            ("/100%", "/100%25"),
            ("/%zz", "/%25zz"),
            ("/%%36c", "/%256c"),
            ("/%256C", "/%256c"),
            ("/a%3Fb%23c", "/a%3fb%23c"),
            ("/a%2Ab", "/a*b"),
            ("", "/"),
            ("?x", "/"),
            ("*", "/*"),
            ("login", "/login"),
            ("..", "/"),
            ("/a...", "/a..."),
            ("/...", "/..."),
            ("/.well-known/x", "/.well-known/x"),
            ("/..a/.b", "/..a/.b"),
        ] {
            assert_eq!(normalized(path), expected, "{path}");
        }
        assert_eq!(*Paths::Normalized.normalize(b"/caf\xe9"), *b"/caf%e9");
    }

    #[test]
    fn the_case_or_all_of_it_can_be_kept() {
        assert_eq!(*Paths::CaseSensitive.normalize(b"/x/../%4Cogin/?a"), *b"/Login");
        assert_eq!(*Paths::Exact.normalize(b"/x/../%4Cogin/?a"), *b"/x/../%4Cogin/?a");
    }

    #[test]
    fn a_path_in_normal_form_is_borrowed() {
        for path in ["/", "/login", "/a/b.c/..d", "/.well-known", "/100%25", "/café", "/a b"] {
            let same = Paths::Normalized.normalize(path.as_bytes());
            assert!(matches!(same, Cow::Borrowed(same) if *same == *path.as_bytes()), "{path}");
        }
        assert!(matches!(Paths::CaseSensitive.normalize(b"/Login?x"), Cow::Borrowed(b"/Login")));
    }

    #[test]
    fn patterns_keep_their_wildcards() {
        for (pattern, expected) in [
            ("/API/**", "/api/**"),
            ("/api/*/", "/api/*"),
            ("/users/?", "/users/?"),
            ("**/Login", "**/login"),
            ("*", "*"),
            ("login*", "/login*"),
            ("/a%2Ab%3F", "/a%2ab%3f"),
            ("/a//b/../*", "/a/*"),
            ("/a;*/b", "/a/b"),
        ] {
            assert_eq!(Paths::Normalized.normalize_pattern(pattern), expected, "{pattern}");
        }
        assert_eq!(Paths::Exact.normalize_pattern("/API/"), "/API/");
    }

    #[test]
    fn words_are_read_and_printed() {
        for paths in Paths::ALL {
            assert_eq!(paths.to_string().parse(), Ok(paths));
        }
        let error = "Exact\n".parse::<Paths>().unwrap_err().to_string();
        let expected = "expected `normalized`, `case-sensitive` or `exact`";
        assert_eq!(error, format!("invalid paths `Exact\\n`: {expected}"));
    }

    /// Spells a path in another way: one choice for each byte.
    fn respell(path: &str, choices: &[u8]) -> Vec<u8> {
        let mut spelt = Vec::new();
        for (byte, choice) in path.bytes().zip(choices.iter().cycle()) {
            match (byte, choice % 8) {
                (b'/', 0) => spelt.extend_from_slice(b"//"),
                (b'/', 1) => spelt.extend_from_slice(b"/./"),
                (b'/', 2) => spelt.extend_from_slice(b"/q/..;v=1/"),
                (b'/', 3) => spelt.extend_from_slice(b";v=1/"),
                (b'/', 4) => spelt.extend_from_slice(b"%2f"),
                (byte, 5) => spelt.extend(format!("%{byte:02X}").bytes()),
                (byte, 6) => spelt.push(byte.to_ascii_uppercase()),
                (byte, _) => spelt.push(byte),
            }
        }
        let endings: [&[u8]; 5] = [b"", b"/", b";v=1", b"?a=/b", b"/."];
        spelt.extend_from_slice(endings[usize::from(choices[0]) % 5]);
        spelt
    }

    /// Bytes that mean something in a path, and some that do not.
    fn hostile() -> impl Strategy<Value = Vec<u8>> {
        let byte = prop_oneof![
            4 => prop::sample::select(&b"/.;%?#*2eEfF35aAz\xc3\xa9"[..]),
            1 => any::<u8>(),
        ];
        prop::collection::vec(byte, 0..64)
    }

    proptest! {
        #[test]
        fn normal_forms_stay_as_they_are(path in hostile()) {
            for paths in [Paths::Normalized, Paths::CaseSensitive] {
                let once = paths.normalize(&path).into_owned();
                prop_assert!(str::from_utf8(&once).is_ok());
                prop_assert!(once.len() <= 3 * path.len() + 1);
                prop_assert_eq!(&*paths.normalize(&once), &*once);
            }
            let text = String::from_utf8_lossy(&path);
            let once = Paths::Normalized.normalize_pattern(&text);
            prop_assert_eq!(Paths::Normalized.normalize_pattern(&once), once);
        }

        #[test]
        fn normal_forms_have_no_other_spelling(path in hostile()) {
            let form = Paths::Normalized.normalize(&path);
            prop_assert!(form.starts_with(b"/") && (form.len() == 1 || !form.ends_with(b"/")));
            let odd = |byte: &u8| byte.is_ascii_uppercase() || b"?#;".contains(byte);
            prop_assert!(!form.iter().any(odd), "{:?}", form);
            let dropped = form[1..].split(|&byte| byte == b'/').any(is_dropped);
            prop_assert!(form.len() == 1 || !dropped, "{:?}", form);
        }

        #[test]
        fn equal_spellings_are_equal(
            path in "(/[a-z][a-z0-9._~-]{0,6}){1,5}",
            choices in prop::collection::vec(any::<u8>(), 1..40),
        ) {
            let spelt = respell(&path, &choices);
            prop_assert_eq!(&*Paths::Normalized.normalize(&spelt), path.as_bytes());
        }
    }
}
