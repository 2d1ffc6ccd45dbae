//! Numbers and times as text.

use std::time::Duration;

use comfy_table::{CellAlignment, Table, presets};
use indicatif::HumanCount;
use jiff::{Span, SpanRelativeTo, SpanRound, Unit};

/// A text that is not a time.
#[derive(Debug, thiserror::Error)]
pub enum DurationError {
    /// No number with a unit.
    #[error("expected a time such as 20ms, 30s, 10m, 1h or 7d")]
    Invalid,
    /// No time at all.
    #[error("expected a time above zero, such as 20ms, 30s, 10m, 1h or 7d")]
    Zero,
}

/// Parses a time such as `500ms`, `90s` or `7d`.
pub fn parse_duration(text: &str) -> Result<Duration, DurationError> {
    let span = text.parse::<Span>().map_err(|_| DurationError::Invalid)?;
    let duration = span.to_duration(SpanRelativeTo::days_are_24_hours());
    let duration = duration.ok().and_then(|duration| Duration::try_from(duration).ok());
    duration.ok_or(DurationError::Invalid)
}

/// Parses a time above zero.
pub fn parse_period(text: &str) -> Result<Duration, DurationError> {
    let duration = parse_duration(text)?;
    if duration.is_zero() { Err(DurationError::Zero) } else { Ok(duration) }
}

/// Formats a number of seconds with the units that it needs, such as `1h 30m`.
pub fn format_seconds(seconds: u64) -> String {
    let days = SpanRound::new().largest(Unit::Day).days_are_24_hours();
    let span =
        i64::try_from(seconds).ok().and_then(|seconds| Span::new().try_seconds(seconds).ok());
    match span.and_then(|span| span.round(days).ok()) {
        Some(span) => format!("{span:#}"),
        None => format!("{seconds}s"),
    }
}

/// Formats a number with commas between groups of three digits.
pub fn grouped(number: u64) -> String {
    HumanCount(number).to_string()
}

/// A text with its control characters shown as blanks, so that it stays on one line.
pub(crate) fn printable(text: &str) -> String {
    text.chars().map(|char| if char.is_control() { ' ' } else { char }).collect()
}

/// Aligns the cells of rows, and returns a line for each row, which begins with a blank. Columns for which `is_number`
/// returns true are right-aligned. Control characters are shown as blanks.
pub fn table(rows: Vec<Vec<String>>, is_number: impl Fn(usize) -> bool) -> Vec<String> {
    let mut table = Table::new();
    let cells = |row: Vec<String>| row.into_iter().map(|cell| printable(&cell));
    table.load_style(presets::NOTHING).add_rows(rows.into_iter().map(cells));
    for (place, column) in table.column_iter_mut().enumerate() {
        if is_number(place) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table.lines().map(|line| line.trim_end().to_owned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_are_grouped_by_thousands() {
        assert_eq!([0, 999, 1_000, 1_234_567].map(grouped), ["0", "999", "1,000", "1,234,567"]);
    }

    #[test]
    fn seconds_are_shown_in_larger_units() {
        let texts = [0, 59, 3_600, 90_061, 864_000, u64::MAX].map(format_seconds);
        assert_eq!(texts[..5], ["0s", "59s", "1h", "1d 1h 1m 1s", "10d"]);
        assert_eq!(texts[5], format!("{}s", u64::MAX));
    }

    #[test]
    fn times_have_a_number_and_a_unit() {
        for (text, micros) in [
            ("250us", 250),
            ("500ms", 500_000),
            ("90s", 90_000_000),
            ("10m", 600_000_000),
            ("10min", 600_000_000),
            ("1h", 3_600_000_000),
            ("7d", 604_800_000_000),
            ("0s", 0),
        ] {
            let parsed = parse_duration(text).unwrap();
            assert_eq!(parsed, Duration::from_micros(micros), "{text}");
            assert_eq!(parse_period(text).is_ok(), micros > 0, "{text}");
        }
        for text in ["", "10", "s", "-5s", "5 parsecs", "1mo", "1y", "99999999999d"] {
            assert!(parse_duration(text).is_err(), "{text}");
        }
    }
}
