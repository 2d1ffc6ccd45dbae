//! What must not be printed of a line of the configuration.

/// The line with what may be secret in it replaced, and where the character at `column` is now.
pub(crate) fn masked(line: &str, column: usize) -> (String, usize) {
    without(line, secrets(line), column)
}

/// [`masked`] for the line of this number, from 0. Among API keys it may be a key itself.
pub(super) fn masked_in(text: &str, number: usize, column: usize) -> Option<(String, usize)> {
    let line = text.lines().nth(number)?;
    let is_top = |line: &&str| line.starts_with(|char: char| char.is_alphabetic() || char == '"');
    let top = text.lines().take(number + 1).filter(is_top).last().unwrap_or_default();
    let is_key = top.trim_start_matches('"').starts_with("keys");
    let says_more = KEYS.iter().any(|field| line.contains(&format!("{field}:")));
    let is_value = |char: char| !(char.is_whitespace() || "-[".contains(char));
    let start = line.find(": ").map_or(0, |colon| colon + 1);
    let start = line[start..].find(is_value).map(|place| line[..start + place].chars().count());
    Some(match start.filter(|_| is_key && !says_more) {
        Some(start) if !line.ends_with(':') => {
            without(line, std::iter::once(start..line.chars().count()), column)
        }
        _ => masked(line, column),
    })
}

fn without(
    line: &str,
    secrets: impl IntoIterator<Item = std::ops::Range<usize>>,
    column: usize,
) -> (String, usize) {
    let mut chars: Vec<(usize, char)> = line.chars().enumerate().collect();
    for range in secrets {
        let mask = range.start;
        let before = chars.iter().position(|(place, _)| *place >= range.start);
        let after = chars.iter().position(|(place, _)| *place >= range.end);
        let (Some(before), after) = (before, after.unwrap_or(chars.len())) else { continue };
        chars.splice(before..after, [(mask, '*'), (mask, '*'), (mask, '*')]);
    }
    let moved = chars.iter().position(|(place, _)| *place >= column).unwrap_or(chars.len());
    let moved = match chars.get(moved) {
        // The place is inside of what is masked now: its beginning is what can be shown.
        Some((place, _)) if *place > column => {
            chars.iter().rposition(|(place, char)| *place <= column && *char == '*')
        }
        _ => Some(moved),
    };
    let moved = moved.unwrap_or_default();
    (chars.into_iter().map(|(_, char)| char).collect(), moved)
}

/// Fields whose values are secret, or might be by mistake.
const FIELDS: [&str; 7] = ["sha256", "secret", "password", "token", "api_key", "key", "value"];

/// What is said of an API key.
const KEYS: [&str; 7] = ["name", "sha256", "file", "env", "scope", "domains", "key"];

/// Fields whose values are addresses.
const ADDRESSES: [&str; 2] = ["store", "url"];

/// Which characters of a line are secret, from left to right and apart from each other.
fn secrets(line: &str) -> Vec<std::ops::Range<usize>> {
    let chars: Vec<char> = line.chars().collect();
    let mut found: Vec<std::ops::Range<usize>> = Vec::new();
    let mut place = 0;
    while place < chars.len() {
        let secret = login(&chars, place)
            .or_else(|| bare_login(&chars, place))
            .or_else(|| field(&chars, place));
        match secret {
            Some(range) if !range.is_empty() => {
                place = range.end;
                found.push(range);
            }
            _ => place += 1,
        }
    }
    found
}

/// From `://` to the last `@` of the same word: the user and the password of an address. If there is none, what stands
/// where a port would, and is no number: it may be a password whose host was left out.
fn login(chars: &[char], place: usize) -> Option<std::ops::Range<usize>> {
    let rest = chars[place..].strip_prefix(&[':', '/', '/'])?;
    let start = place + 3;
    if let Some(at) = rest.iter().rposition(|char| *char == '@') {
        return Some(start..start + at);
    }
    let end = rest.iter().position(|char| "/?, }]\"'".contains(*char)).unwrap_or(rest.len());
    let colon = rest[..end].iter().position(|char| *char == ':')?;
    let is_port = rest[colon + 1..end].iter().all(char::is_ascii_digit) || rest[0] == '[';
    (!is_port).then_some(start + colon + 1..start + end)
}

/// What follows `password: ` or `password=`, up to where a value may end.
fn field(chars: &[char], place: usize) -> Option<std::ops::Range<usize>> {
    let length = named(&FIELDS, chars, place)?;
    let mut start = place + length;
    start += usize::from(matches!(chars.get(start), Some('"' | '\'')));
    let ends = match chars.get(start)? {
        ':' => ",}",
        '=' => "& ",
        _ => return None,
    };
    start += 1;
    start += chars[start..].iter().take_while(|char| char.is_whitespace()).count();
    let end = chars[start..].iter().position(|char| ends.contains(*char));
    Some(start..end.map_or(chars.len(), |end| start + end))
}

/// What follows `store: ` up to the last `@`, if it is an address without the `://` by which [`login`] knows one.
fn bare_login(chars: &[char], place: usize) -> Option<std::ops::Range<usize>> {
    let start = place + named(&ADDRESSES, chars, place)?;
    let start = start + usize::from(matches!(chars.get(start), Some('"' | '\'')));
    let rest = chars[start..].strip_prefix(&[':'])?;
    let blanks = rest.iter().take_while(|char| char.is_whitespace()).count();
    let at = rest.iter().rposition(|char| *char == '@')?;
    let has_scheme = rest.windows(3).any(|three| three == [':', '/', '/']);
    (!has_scheme && blanks < at).then_some(start + 1 + blanks..start + 1 + at)
}

/// The length of the field that is named here, if it is one of these.
fn named(fields: &[&str], chars: &[char], place: usize) -> Option<usize> {
    let begins_word =
        place == 0 || !(chars[place - 1].is_alphanumeric() || "-.".contains(chars[place - 1]));
    let length = |field: &&str| {
        let named = field.chars().zip(&chars[place..]).filter(|(a, b)| a == *b).count();
        (named == field.chars().count()).then_some(named)
    };
    begins_word.then(|| fields.iter().find_map(length)).flatten()
}

#[cfg(test)]
mod tests {
    use super::{masked, masked_in};

    #[test]
    fn secrets_are_not_shown() {
        for (line, shown) in [
            ("store: redis://u:p@ss@host:6379/0", "store: redis://***@host:6379/0"),
            (
                "url: redis://host?sentinel_password=pass&db=1",
                "url: redis://host?sentinel_password=***&db=1",
            ),
            ("  - {name: a, key: hunter2, scope: admin}", "  - {name: a, key: ***, scope: admin}"),
            ("    secret: hunter 2", "    secret: ***"),
            ("    \"token\": hunter2", "    \"token\": ***"),
            ("    sha256: hunter2", "    sha256: ***"),
            ("  - name: monkey: x", "  - name: monkey: x"),
            ("limit: 5/minute", "limit: 5/minute"),
            ("key:", "key:"),
            ("store: hunter2@host:6379", "store: ***@host:6379"),
            ("  url: \"u:hunt,er@2@host\"", "  url: ***@host\""),
            ("  \"url\": u:hunter2@host", "  \"url\": ***@host"),
            ("store: redis://u:hunter2", "store: redis://u:***"),
            ("store: {url: 'redis://u:hunter2'}", "store: {url: 'redis://u:***'}"),
            ("store: redis://host:6379/0", "store: redis://host:6379/0"),
            ("store: redis://[::1]:6379", "store: redis://[::1]:6379"),
            ("store: redis://", "store: redis://"),
            ("store: @host", "store: @host"),
            ("store: memory", "store: memory"),
            ("  - curl: a@b", "  - curl: a@b"),
        ] {
            assert_eq!(masked(line, 0).0, shown);
        }
    }

    #[test]
    fn what_stands_in_the_place_of_a_key_may_be_one() {
        for (text, number, shown) in [
            ("keys:\n  - hunter2", 1, "  - ***"),
            ("keys: hunter2", 0, "keys: ***"),
            ("keys: [hunter2, hunter3]", 0, "keys: [***"),
            ("keys:\n  boss: hunter2", 1, "  boss: ***"),
            ("\"keys\":\n- hunter2", 1, "- ***"),
            ("keys:", 0, "keys:"),
            ("keys:\n  - boss:\n", 1, "  - boss:"),
            ("keys:\n  - { name: a, scope: b }", 1, "  - { name: a, scope: b }"),
            ("keys: []\nstore: memory", 1, "store: memory"),
            ("policies:\n  - often", 1, "  - often"),
        ] {
            assert_eq!(masked_in(text, number, 0).unwrap().0, shown, "{text}");
        }
        assert_eq!(masked_in("keys:\n  - hunter2", 1, 4), Some(("  - ***".to_owned(), 4)));
        assert_eq!(masked_in("a", 1, 0), None);
    }

    #[test]
    fn places_move_with_what_stands_before_them() {
        let line = "a: redis://user:password@host # x";
        for (column, under) in
            [(0, 'a'), (3, 'r'), (11, '*'), (20, '*'), (25, 'h'), (30, '#'), (32, 'x')]
        {
            let (shown, moved) = masked(line, column);
            assert_eq!(shown.chars().nth(moved), Some(under), "{column}");
        }
        assert_eq!(masked("ab", 2), ("ab".to_owned(), 2));
    }
}
