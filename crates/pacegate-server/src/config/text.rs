//! Parses values that are written as text: durations, sizes, numbers, shares.

use std::{ops::RangeInclusive, time::Duration};

use pacegate::policy::FailureMode;

use super::hint::shorten;

/// The reason why a text is not a valid value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ValueError {
    #[error("invalid duration `{text}`: expected {min} to {max}, written as `250ms`, `5s` or `1m`")]
    Duration { text: String, min: String, max: String },
    #[error("invalid size `{text}`: expected {min} to {max} bytes, written as `4096` or `64KiB`")]
    Size { text: String, min: usize, max: usize },
    #[error("invalid number `{text}`: expected a whole number from {min} to {max}")]
    Count { text: String, min: usize, max: usize },
    #[error("invalid share `{0}`: expected a fraction such as `1/3`, at most `1/1`")]
    Share(String),
}

const MILLI: u64 = 1_000_000;
const TIMES: [(&str, u64); 6] = [
    ("us", 1_000),
    ("ms", MILLI),
    ("s", 1_000 * MILLI),
    ("m", 60_000 * MILLI),
    ("h", 3_600_000 * MILLI),
    ("d", 86_400_000 * MILLI),
];

const SIZES: [(&str, u64); 4] = [("", 1), ("B", 1), ("KiB", 1 << 10), ("MiB", 1 << 20)];

/// Parses a whole number with a unit, as in `250ms`.
pub(crate) fn duration(
    text: &str,
    range: RangeInclusive<Duration>,
) -> Result<Duration, ValueError> {
    let duration = number_and_unit(text, &TIMES).map(Duration::from_nanos);
    duration.filter(|duration| range.contains(duration)).ok_or_else(|| {
        let (min, max) = (format_duration(*range.start()), format_duration(*range.end()));
        ValueError::Duration { text: shorten(text), min, max }
    })
}

/// Parses a number of bytes with an optional unit, as in `64KiB`.
pub(super) fn size(text: &str, range: RangeInclusive<usize>) -> Result<usize, ValueError> {
    let bytes = number_and_unit(text, &SIZES).and_then(|bytes| usize::try_from(bytes).ok());
    bytes.filter(|bytes| range.contains(bytes)).ok_or_else(|| ValueError::Size {
        text: shorten(text),
        min: *range.start(),
        max: *range.end(),
    })
}

/// Parses a whole number, with optional underscores: `10_000`.
pub(super) fn count(text: &str, range: RangeInclusive<usize>) -> Result<usize, ValueError> {
    let number = digits(text).and_then(|number| usize::try_from(number).ok());
    number.filter(|number| range.contains(number)).ok_or_else(|| ValueError::Count {
        text: shorten(text),
        min: *range.start(),
        max: *range.end(),
    })
}

/// Parses a fraction of the limit, as in `1/3`.
pub(super) fn share(text: &str) -> Result<FailureMode, ValueError> {
    let (part, whole) = text.split_once('/').unwrap_or((text, ""));
    let mode = format!("local {}/{}", part.trim(), whole.trim());
    mode.parse().map_err(|_| ValueError::Share(shorten(text)))
}

/// Formats a duration in the largest unit that divides it.
pub(super) fn format_duration(time: Duration) -> String {
    let nanos = time.as_nanos();
    let fits = |unit: &&(&str, u64)| nanos > 0 && nanos.is_multiple_of(u128::from(unit.1));
    match TIMES.iter().rev().find(fits) {
        Some((name, unit)) => format!("{}{name}", nanos / u128::from(*unit)),
        None => format!("{}s", time.as_secs()),
    }
}

/// Formats a size in the largest unit that divides it.
pub(super) fn format_size(bytes: usize) -> String {
    let fits = |unit: &&(&str, u64)| bytes > 0 && (bytes as u64).is_multiple_of(unit.1);
    match SIZES.iter().rev().find(fits) {
        Some((name, unit)) => format!("{}{name}", bytes as u64 / unit),
        None => bytes.to_string(),
    }
}

fn number_and_unit(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let end = text.find(|char: char| !char.is_ascii_digit() && char != '_').unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let (_, factor) = units.iter().find(|(name, _)| *name == unit.trim_start())?;
    digits(number)?.checked_mul(*factor)
}

fn digits(text: &str) -> Option<u64> {
    let grouped = text.starts_with(|char: char| char.is_ascii_digit())
        && text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'_');
    grouped.then(|| text.replace('_', "").parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_units() {
        let range = Duration::from_millis(1)..=Duration::from_secs(3_600);
        for (text, millis) in [
            ("250ms", Some(250)),
            ("5s", Some(5_000)),
            ("1 m", Some(60_000)),
            ("1h", Some(3_600_000)),
            ("1000us", Some(1)),
            ("61m", None),
            ("0s", None),
            ("5", None),
            ("1.5s", None),
            ("-1s", None),
            ("", None),
            ("s", None),
            ("99999999999999999999d", None),
            ("999999999999999d", None),
        ] {
            assert_eq!(
                duration(text, range.clone()).ok(),
                millis.map(Duration::from_millis),
                "{text}"
            );
        }
        assert_eq!(
            duration("soon", range).unwrap_err().to_string(),
            "invalid duration `soon`: expected 1ms to 1h, written as `250ms`, `5s` or `1m`"
        );
    }

    #[test]
    fn sizes_may_have_units() {
        for (text, bytes) in [
            ("4096", Some(4_096)),
            ("4_096", Some(4_096)),
            ("64KiB", Some(65_536)),
            ("1 MiB", Some(1 << 20)),
            ("16B", Some(16)),
            ("15", None),
            ("2MiB", None),
            ("64KB", None),
            ("_1", None),
        ] {
            assert_eq!(size(text, 16..=1 << 20).ok(), bytes, "{text}");
        }
    }

    #[test]
    fn shares_are_at_most_all() {
        assert_eq!(share("1/3"), Ok("local 1/3".parse().unwrap()));
        assert_eq!(share("3 / 3"), Ok("local 3/3".parse().unwrap()));
        for bad in ["0/3", "4/3", "1/0", "1", "a/b", "", "1/4294967296", "-1/3", "1 0/30", "1/3/3"]
        {
            assert!(share(bad).is_err(), "{bad}");
        }
    }
}
