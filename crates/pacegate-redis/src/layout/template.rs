//! Templates of key names.

use std::{fmt, io::Write, str::FromStr, time::Duration};

use super::{Life, Rules};
use crate::time::MAX_DURATION;

/// A custom [layout](super::Layout), created with [`Layout::template`](super::Layout::template).
///
/// By default, a counter lives for one window from its first request.
///
/// The lifetime only removes old counters; it never ends a window, because the window is part of the key.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "a template does nothing until a store uses it"]
pub struct Template(pub(super) Rules);

/// An error in a template.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LayoutError {
    /// All keys would share one counter.
    #[error(
        "the template `{0}` has no key: write {{key}} where it goes, as in `myapp:{{key}}:{{window}}`"
    )]
    NoKey(String),
    /// The counter would never begin anew.
    #[error(
        "the template `{0}` has no window: add {{window}}, {{window_start}} or {{window_start_ms}}, \
         as in `myapp:{{key}}:{{window}}`"
    )]
    NoWindow(String),
    /// An unknown placeholder.
    #[error(
        "unknown placeholder {{{0}}} in the template: expected {{key}}, {{window}}, {{window_start}} or \
         {{window_start_ms}}"
    )]
    UnknownPlaceholder(String),
    /// An unmatched brace.
    #[error("the template `{0}` has an unmatched brace: double it if it is part of the name")]
    LoneBrace(String),
}

/// A parsed template.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct KeyTemplate(Vec<Piece>);

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Piece {
    Text(String),
    Key,
    Window,
    WindowStart,
    WindowStartMillis,
}

impl Template {
    /// Sets how long a counter outlives its window. Default: 0; at most a year.
    pub fn ttl_slack(mut self, slack: Duration) -> Self {
        self.0.life.slack = slack.min(MAX_DURATION);
        self
    }

    /// Restarts the lifetime of a counter with each request, instead of the first only.
    pub fn refresh_ttl(mut self) -> Self {
        self.0.life = Life { refreshed: true, ..self.0.life };
        self
    }
}

impl KeyTemplate {
    /// `prefix{key}:{window}`.
    pub(super) fn new(prefix: &str, window: Piece) -> Self {
        Self(vec![Piece::Text(prefix.to_owned()), Piece::Key, Piece::Text(":".to_owned()), window])
    }

    /// `{window}:{key}`.
    pub(super) fn leading(window: Piece) -> Self {
        Self(vec![window, Piece::Text(":".to_owned()), Piece::Key])
    }

    /// `prefix{key}`.
    pub(super) fn without_window(prefix: &str) -> Self {
        Self(vec![Piece::Text(prefix.to_owned()), Piece::Key])
    }

    /// Replaces the text before the first placeholder with `prefix:`.
    pub(super) fn prefixed(&self, prefix: &str) -> Self {
        let rest = self.0.iter().skip_while(|piece| matches!(piece, Piece::Text(_))).cloned();
        Self(std::iter::once(Piece::Text(format!("{prefix}:"))).chain(rest).collect())
    }

    pub(super) fn has(&self, piece: &Piece) -> bool {
        self.0.contains(piece)
    }

    pub(super) fn write(&self, key: &[u8], start: u64, period: u64) -> Vec<u8> {
        let mut name = Vec::with_capacity(key.len() + 48);
        for piece in &self.0 {
            let number = match piece {
                Piece::Text(text) => {
                    name.extend_from_slice(text.as_bytes());
                    continue;
                }
                Piece::Key => {
                    name.extend_from_slice(key);
                    continue;
                }
                Piece::Window => start / period,
                Piece::WindowStart => start / super::SECOND_MICROS,
                Piece::WindowStartMillis => start / super::MILLI_MICROS,
            };
            // Writing into a vector cannot fail.
            let _ = write!(name, "{number}");
        }
        name
    }
}

impl FromStr for KeyTemplate {
    type Err = LayoutError;

    fn from_str(template: &str) -> Result<Self, LayoutError> {
        let mut pieces = Vec::new();
        let mut text = String::new();
        let mut rest = template;
        while let Some(brace) = rest.find(['{', '}']) {
            text.push_str(&rest[..brace]);
            rest = &rest[brace..];
            if let Some(after) = rest.strip_prefix("{{").or_else(|| rest.strip_prefix("}}")) {
                text.push_str(&rest[..1]);
                rest = after;
                continue;
            }
            let lone = || LayoutError::LoneBrace(template.to_owned());
            let (word, after) =
                rest.strip_prefix('{').and_then(|rest| rest.split_once('}')).ok_or_else(lone)?;
            if !text.is_empty() {
                pieces.push(Piece::Text(std::mem::take(&mut text)));
            }
            pieces.push(word.parse()?);
            rest = after;
        }
        text.push_str(rest);
        if !text.is_empty() {
            pieces.push(Piece::Text(text));
        }
        let is_window = |piece: &Piece| !matches!(piece, Piece::Text(_) | Piece::Key);
        let name = Self(pieces);
        if !name.has(&Piece::Key) {
            return Err(LayoutError::NoKey(template.to_owned()));
        }
        if !name.0.iter().any(is_window) {
            return Err(LayoutError::NoWindow(template.to_owned()));
        }
        Ok(name)
    }
}

impl FromStr for Piece {
    type Err = LayoutError;

    fn from_str(word: &str) -> Result<Self, LayoutError> {
        match word {
            "key" => Ok(Self::Key),
            "window" => Ok(Self::Window),
            "window_start" => Ok(Self::WindowStart),
            "window_start_ms" => Ok(Self::WindowStartMillis),
            other => Err(LayoutError::UnknownPlaceholder(other.to_owned())),
        }
    }
}

/// Writes the template.
impl fmt::Display for KeyTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|piece| match piece {
            Piece::Text(text) => f.write_str(&text.replace('{', "{{").replace('}', "}}")),
            Piece::Key => f.write_str("{key}"),
            Piece::Window => f.write_str("{window}"),
            Piece::WindowStart => f.write_str("{window_start}"),
            Piece::WindowStartMillis => f.write_str("{window_start_ms}"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINUTE: u64 = 60_000_000;

    fn name(template: &str) -> String {
        let name: KeyTemplate = template.parse().unwrap();
        assert_eq!(name.to_string(), template);
        String::from_utf8(name.write(b"alice", 28_333_335 * MINUTE, MINUTE)).unwrap()
    }

    fn problem(template: &str) -> String {
        template.parse::<KeyTemplate>().unwrap_err().to_string()
    }

    #[test]
    fn placeholders_are_replaced() {
        assert_eq!(name("a:{key}:{window}"), "a:alice:28333335");
        assert_eq!(name("{window_start}{key}"), "1700000100alice");
        assert_eq!(name("{key}/{window_start_ms}/z"), "alice/1700000100000/z");
        assert_eq!(name("rl:{{{key}}}:{window}"), "rl:{alice}:28333335");
    }

    #[test]
    fn errors_contain_advice() {
        assert_eq!(
            problem("a:{window}"),
            "the template `a:{window}` has no key: write {key} where it goes, as in `myapp:{key}:{window}`"
        );
        assert_eq!(
            problem("a:{key}"),
            "the template `a:{key}` has no window: add {window}, {window_start} or {window_start_ms}, \
             as in `myapp:{key}:{window}`"
        );
        assert_eq!(
            problem("{key}:{bucket}"),
            "unknown placeholder {bucket} in the template: expected {key}, {window}, {window_start} or \
             {window_start_ms}"
        );
        for lone in ["{key}:{window", "key}", "{", "{key}{window}}"] {
            assert!(problem(lone).contains("unmatched brace"), "{lone}");
        }
    }
}
