//! The text forms of [`Mode`] and [`FailureMode`].

use std::{fmt, num::NonZeroU32, str::FromStr};

use super::{FailureMode, Mode};

/// Error of parsing a [`Mode`]: the text is neither `enforce` nor `shadow`.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{}` is not a mode: write `enforce` or `shadow`", .0.escape_debug())]
pub struct ParseModeError(String);

/// Error of parsing a [`FailureMode`]: the text is not `open`, `closed`, `local` or `local` with a share.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{}` is not a failure mode: write `open`, `closed`, `local` or `local 1/3`", .0.escape_debug())]
pub struct ParseFailureModeError(String);

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Enforce => "enforce",
            Self::Shadow => "shadow",
        })
    }
}

impl FromStr for Mode {
    type Err = ParseModeError;

    fn from_str(word: &str) -> Result<Self, ParseModeError> {
        match word {
            "enforce" => Ok(Self::Enforce),
            "shadow" => Ok(Self::Shadow),
            other => Err(ParseModeError(shorten(other))),
        }
    }
}

impl fmt::Display for FailureMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Self::Open => f.pad("open"),
            Self::Closed => f.pad("closed"),
            Self::Local { numerator, denominator } if numerator == denominator.get() => {
                f.pad("local")
            }
            Self::Local { numerator, denominator } => write!(f, "local {numerator}/{denominator}"),
        }
    }
}

impl FromStr for FailureMode {
    type Err = ParseFailureModeError;

    fn from_str(text: &str) -> Result<Self, ParseFailureModeError> {
        match text {
            "open" => Ok(Self::Open),
            "closed" => Ok(Self::Closed),
            "local" => Ok(Self::default()),
            other => {
                let share = other.strip_prefix("local ").and_then(parse_share);
                share.ok_or_else(|| ParseFailureModeError(shorten(other)))
            }
        }
    }
}

/// A part of the limit: something, and no more than all.
fn parse_share(text: &str) -> Option<FailureMode> {
    let (part, whole) = text.split_once('/')?;
    let (numerator, denominator) = (digits(part)?, NonZeroU32::new(digits(whole)?)?);
    let is_part = (1..=denominator.get()).contains(&numerator);
    is_part.then_some(FailureMode::Local { numerator, denominator })
}

/// `parse` alone would take a sign.
fn digits(text: &str) -> Option<u32> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

fn shorten(text: &str) -> String {
    text.chars().take(80).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn local(numerator: u32, denominator: u32) -> FailureMode {
        FailureMode::Local { numerator, denominator: NonZeroU32::new(denominator).unwrap() }
    }

    #[test]
    fn modes_are_read_and_printed() {
        for (mode, word) in [(Mode::Enforce, "enforce"), (Mode::Shadow, "shadow")] {
            assert_eq!((mode.to_string(), word.parse()), (word.to_owned(), Ok(mode)));
        }
        let error = "Shadow\n".parse::<Mode>().unwrap_err().to_string();
        assert_eq!(error, "`Shadow\\n` is not a mode: write `enforce` or `shadow`");
    }

    #[test]
    fn failure_modes_are_read_and_printed() {
        for (mode, text) in [
            (FailureMode::Open, "open"),
            (FailureMode::Closed, "closed"),
            (FailureMode::default(), "local"),
            (local(1, 3), "local 1/3"),
        ] {
            assert_eq!((mode.to_string(), text.parse()), (text.to_owned(), Ok(mode)));
        }
        assert_eq!(
            ("local 3/3".parse(), local(3, 3).to_string()),
            (Ok(local(3, 3)), "local".into())
        );
        let bad =
            ["", "Open", "local 0/3", "local 4/3", "local 1/0", "local +1/3", "local 1", "local /"];
        for bad in bad {
            let error = bad.parse::<FailureMode>().unwrap_err().to_string();
            let expected = "is not a failure mode: write `open`, `closed`, `local` or `local 1/3`";
            assert_eq!(error, format!("`{bad}` {expected}"));
        }
    }
}
