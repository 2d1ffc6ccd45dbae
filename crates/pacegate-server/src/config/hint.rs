//! Suggestions for misspelled words.

/// Returns the first 40 characters of a text, escaped, followed by `…` if there are more.
pub(super) fn shorten(text: &str) -> String {
    shorten_to(text, 40)
}

/// Returns at most `length` characters of a text, escaped, followed by `…` if there are more.
pub(crate) fn shorten_to(text: &str, length: usize) -> String {
    let mut short: String = text.chars().take(length).flat_map(char::escape_debug).collect();
    if text.chars().nth(length).is_some() {
        short.push('…');
    }
    short
}

/// Returns a suggestion for an unknown word: the most similar choice, or a list of all choices.
pub(crate) fn among(word: &str, choices: &[&str]) -> String {
    if let Some(meant) = likely(word, choices) {
        return format!("did you mean `{meant}`?");
    }
    let quoted: Vec<_> = choices.iter().map(|choice| format!("`{choice}`")).collect();
    match &*quoted {
        [] => "remove it".to_owned(),
        [only] => format!("write {only}"),
        [first @ .., last] => format!("write {} or {last}", first.join(", ")),
    }
}

/// Field names from other systems, each with the name of the same field in Pacegate.
const MEANINGS: [(&str, &str); 13] = [
    ("algo", "algorithm"),
    ("by", "per"),
    ("cost", "max_cost"),
    ("group_by", "per"),
    ("id", "name"),
    ("if", "match"),
    ("key", "per"),
    ("max_requests", "limit"),
    ("quota", "limit"),
    ("rate", "limit"),
    ("rate_limit", "limit"),
    ("rules", "policies"),
    ("when", "match"),
];

fn likely<'a>(word: &str, choices: &[&'a str]) -> Option<&'a str> {
    let word = word.to_ascii_lowercase().replace('-', "_");
    let choice =
        |text: &str| choices.iter().copied().find(|choice| choice.replace('-', "_") == text);
    if let Some(same) = choice(&word) {
        return Some(same);
    }
    let other = MEANINGS.iter().find(|(other, _)| *other == word);
    if let Some(meant) = other.and_then(|(_, meant)| choice(meant)) {
        return Some(meant);
    }
    let near = choices.iter().map(|choice| (distance(&word, choice), *choice)).min()?;
    let most = if word.len() > 4 { 2 } else { 1 };
    (near.0 <= most).then_some(near.1)
}

/// Returns the edit distance between two words. If one is longer than 32 bytes, returns 32 without a comparison, so
/// that the word is similar to none.
fn distance(a: &str, b: &str) -> usize {
    const MAX_LENGTH: usize = 32;
    match a.len().max(b.len()) > MAX_LENGTH {
        true => MAX_LENGTH,
        false => strsim::osa_distance(a, b),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_similar_choice_is_suggested_otherwise_all() {
        let fields = ["name", "limit", "per", "max_cost", "algorithm"];
        for (word, said) in [
            ("limits", "did you mean `limit`?"),
            ("Limit", "did you mean `limit`?"),
            ("max-cost", "did you mean `max_cost`?"),
            ("quota", "did you mean `limit`?"),
            ("pre", "did you mean `per`?"),
            ("algoritm", "did you mean `algorithm`?"),
            ("x", "write `name`, `limit`, `per`, `max_cost` or `algorithm`"),
        ] {
            assert_eq!(among(word, &fields), said, "{word}");
        }
        assert_eq!(among("x", &["only"]), "write `only`");
        assert_eq!(among("x", &[]), "remove it");
        assert_eq!(among(&"limit".repeat(1_000), &fields[..1]), "write `name`");
    }

    #[test]
    fn quoted_text_is_shortened_and_escaped() {
        assert_eq!(shorten("a\u{1b}\n"), "a\\u{1b}\\n");
        assert_eq!(shorten(&"x".repeat(41)), format!("{}…", "x".repeat(40)));
    }
}
