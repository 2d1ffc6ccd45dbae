//! Masks secrets in lines of the configuration before they are printed.

/// Masks possible secrets in a line. Returns the line and the new position of the character at `column`.
pub(crate) fn masked(line: &str, column: usize) -> (String, usize) {
    without(line, secrets(line), column)
}

/// Masks the line of this number, from 0, like [`masked`]. In the section `keys`, a bare value may be an API key.
pub(super) fn masked_in(text: &str, number: usize, column: usize) -> Option<(String, usize)> {
    let line = text.lines().nth(number)?;
    let is_top = |line: &&str| line.starts_with(|char: char| char.is_alphabetic() || char == '"');
    let top = text.lines().take(number + 1).filter(is_top).last().unwrap_or_default();
    let is_key = top.trim_start_matches('"').starts_with("keys");
    let is_below_secret = is_below_secret(text, number);
    let says_more =
        !is_below_secret && KEYS.iter().any(|field| line.contains(&format!("{field}:")));
    let is_value = |char: char| !(char.is_whitespace() || "-[".contains(char));
    let start = line.find(": ").map_or(0, |colon| colon + 1);
    let start = line[start..].find(is_value).map(|place| line[..start + place].chars().count());
    Some(match start.filter(|_| is_below_secret || is_key && !says_more) {
        Some(start) if !line.ends_with(':') => {
            without(line, std::iter::once(start..line.chars().count()), column)
        }
        _ => masked(line, column),
    })
}

/// Masks the parts of a message that quote a masked part of the line of this number, from 1.
pub(super) fn masked_message(message: &str, text: &str, number: u64) -> String {
    let index = usize::try_from(number).ok().and_then(|number| number.checked_sub(1));
    let line = index.and_then(|index| text.lines().nth(index));
    let shown = index.and_then(|index| masked_in(text, index, 0));
    let (Some(line), Some((shown, _))) = (line, shown) else { return message.to_owned() };
    let mut masked = message.to_owned();
    for quote in ['`', '"'] {
        let parts = masked.split(quote).enumerate().map(|(place, part)| {
            let quoted = part.trim_end_matches('…');
            let is_masked = place % 2 == 1 && line.contains(quoted) && !shown.contains(quoted);
            if is_masked { "***" } else { part }
        });
        masked = parts.collect::<Vec<_>>().join(&quote.to_string());
    }
    masked
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
        // The position is inside a masked part: use the start of the mask.
        Some((place, _)) if *place > column => {
            chars.iter().rposition(|(place, char)| *place <= column && *char == '*')
        }
        _ => Some(moved),
    };
    let moved = moved.unwrap_or_default();
    (chars.into_iter().map(|(_, char)| char).collect(), moved)
}

/// Last words of fields whose values are secret, or might be by mistake.
const SECRET_WORDS: [&str; 3] = ["sha256", "key", "value"];

/// Parts of the names of such fields: `pass` stands for `pass`, `password` and `passphrase`.
const SECRET_PARTS: [&str; 9] =
    ["pass", "auth", "secret", "token", "pwd", "credential", "api_key", "apikey", "private"];

/// The fields of an API key.
const KEYS: [&str; 8] = ["name", "sha256", "file", "env", "scope", "domains", "inline", "key"];

/// Returns true if a field of this name may have a secret value.
fn is_secret(name: &str) -> bool {
    let name = name.to_ascii_lowercase().replace('-', "_");
    let last = name.rsplit('_').next().unwrap_or_default();
    SECRET_WORDS.contains(&last) || SECRET_PARTS.iter().any(|part| name.contains(part))
}

/// Returns true if the line of this number belongs to the value of a secret field above it: an item of a list, a
/// member of a map, or a further line of a text.
fn is_below_secret(text: &str, number: usize) -> bool {
    let lines: Vec<&str> = text.lines().take(number + 1).collect();
    let Some((line, above)) = lines.split_last() else { return false };
    let (mut indent, mut is_item) = (indent(line), line.trim_start().starts_with('-'));
    for line in above.iter().rev() {
        let content = line.trim_start();
        let own = self::indent(line);
        let is_item_here = content.starts_with('-');
        // A list may stand at the indentation of its field.
        let is_parent = own < indent || (own == indent && is_item && !is_item_here);
        if content.is_empty() || content.starts_with('#') || !is_parent {
            continue;
        }
        let field = content.trim_start_matches(['-', ' ']);
        let is_sibling = is_item_here && own + (content.len() - field.len()) == indent;
        let name =
            field.split(':').next().unwrap_or_default().trim_matches(['"', '\'', ' ', '{', '[']);
        if !is_sibling && field.contains(':') && is_secret(name) {
            return true;
        }
        (indent, is_item) = (own, is_item_here);
    }
    false
}

fn indent(line: &str) -> usize {
    line.len() - line.trim_start().len()
}

/// Fields whose values are addresses.
const ADDRESSES: [&str; 2] = ["store", "url"];

/// Returns the ranges of secret characters in a line, in order and without overlap.
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

/// Returns the user and password of an address: from `://` to the last `@` of the same word. Without an `@`, returns a
/// port that is not a number: it may be a password of an address that lacks its host.
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

/// Returns the value after `password: ` or `password=`.
fn field(chars: &[char], place: usize) -> Option<std::ops::Range<usize>> {
    let is_name = |char: &&char| char.is_alphanumeric() || "_-".contains(**char);
    if place > 0 && (is_name(&&chars[place - 1]) || chars[place - 1] == '.') {
        return None;
    }
    let name: String = chars[place..].iter().take_while(is_name).collect();
    if !is_secret(&name) {
        return None;
    }
    let mut start = place + name.chars().count();
    start += usize::from(matches!(chars.get(start), Some('"' | '\'')));
    let is_parameter = match chars.get(start)? {
        ':' => false,
        '=' => true,
        _ => return None,
    };
    start += 1;
    start += chars[start..].iter().take_while(|char| char.is_whitespace()).count();
    let is_in_flow = chars[..place].iter().any(|char| "{[".contains(*char));
    let value = &chars[start..];
    let end = match value.first() {
        _ if is_parameter => value.iter().position(|char| "& ".contains(*char)),
        Some(quote @ ('"' | '\'')) => {
            value[1..].iter().position(|char| char == quote).map(|end| end + 2)
        }
        // A list or map, or a text to the end of the line.
        Some('[' | '{') => None,
        _ if is_in_flow => value.iter().position(|char| ",}]".contains(*char)),
        _ => None,
    };
    Some(start..end.map_or(chars.len(), |end| start + end))
}

/// Returns the text between `store: ` and the last `@`, for addresses without `://`, which [`login`] does not find.
fn bare_login(chars: &[char], place: usize) -> Option<std::ops::Range<usize>> {
    let start = place + named(&ADDRESSES, chars, place)?;
    let start = start + usize::from(matches!(chars.get(start), Some('"' | '\'')));
    let rest = chars[start..].strip_prefix(&[':'])?;
    let blanks = rest.iter().take_while(|char| char.is_whitespace()).count();
    let at = rest.iter().rposition(|char| *char == '@')?;
    let has_scheme = rest.windows(3).any(|three| three == [':', '/', '/']);
    (!has_scheme && blanks < at).then_some(start + 1 + blanks..start + 1 + at)
}

/// Returns the length of the field name at this position, if it is one of `fields`.
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
    use super::{masked, masked_in, masked_message};

    #[test]
    fn messages_mask_the_secrets_of_their_line() {
        for (text, message, shown) in [
            (
                "keys: hunter2",
                "expected a list, found string \"hunter2\"",
                "expected a list, found string \"***\"",
            ),
            ("keys:\n- hunter2: x", "unknown field `keys`", "unknown field `keys`"),
            (
                "auth: hunter2",
                "unknown field `auth`: did you mean `a`",
                "unknown field `auth`: did you mean `a`",
            ),
            ("auth: hunter2", "`hunter2` is not a choice", "`***` is not a choice"),
            ("auth: hunter2long", "`hunter2…` is not a choice", "`***` is not a choice"),
            ("limit: often", "`often` is not a limit", "`often` is not a limit"),
        ] {
            assert_eq!(masked_message(message, text, 1), shown);
        }
        assert_eq!(masked_message("`a`", "auth: a", 0), "`a`");
        assert_eq!(masked_message("`a`", "auth: a", 9), "`a`");
    }

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
            ("  max_keys: 5", "  max_keys: 5"),
            ("  pass: hunter2", "  pass: ***"),
            ("  pass: \"hunter, 2\"", "  pass: ***"),
            ("  passphrase: hunter, 2", "  passphrase: ***"),
            ("auth: hunter2", "auth: ***"),
            (
                "store: {url: h, auth: 'hunter, 2', prefix: p}",
                "store: {url: h, auth: ***, prefix: p}",
            ),
            ("  Redis-Auth: hunter2", "  Redis-Auth: ***"),
            ("api_keys: [hunter2, hunter3]", "api_keys: ***"),
            ("tls: {private_key: hunter2}", "tls: {private_key: ***}"),
            ("credentials: {a: hunter2}", "credentials: ***"),
        ] {
            assert_eq!(masked(line, 0).0, shown);
        }
    }

    #[test]
    fn values_in_the_place_of_an_api_key_are_masked() {
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
        for (text, number, shown) in [
            ("api_keys:\n  - hunter2", 1, "  - ***"),
            ("api_keys:\n- hunter2", 1, "- ***"),
            ("api_keys:\n  # a comment\n\n  boss: hunter2", 3, "  boss: ***"),
            ("store:\n  auth:\n    user: hunter2", 2, "    user: ***"),
            ("store:\n  pass: |\n    hunter2", 2, "    ***"),
            ("store:\n  pass: \"hunter\n    2\"", 2, "    ***"),
            ("{\n  \"api_keys\": [\n    \"hunter2\"\n  ]\n}", 2, "    ***"),
            ("keys:\n  - name: a\n    tokens:\n      - hunter2", 3, "      - ***"),
            ("keys:\n  - key: x\n    scope: boss", 2, "    scope: boss"),
            ("store:\n  auth: x\n  prefix: p", 2, "  prefix: p"),
            ("auth: x\npolicies:\n  - often", 2, "  - often"),
        ] {
            assert_eq!(masked_in(text, number, 0).unwrap().0, shown, "{text}");
        }
        assert_eq!(masked_in("a", 1, 0), None);
    }

    #[test]
    fn positions_move_with_the_masks_before_them() {
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
