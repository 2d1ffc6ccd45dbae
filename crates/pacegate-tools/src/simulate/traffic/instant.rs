//! Parses and formats timestamps of logs, in microseconds since the Unix epoch.

use jiff::{
    Timestamp,
    fmt::{strtime, temporal::DateTimeParser},
    tz::Offset,
};

/// A timestamp parser that caches the last second, because consecutive lines often share it.
#[derive(Debug, Default)]
pub(super) struct Instants {
    text: [u8; COMMON],
    micros: Option<u64>,
}

/// Length of `10/Oct/2026:13:55:36 -0700`.
const COMMON: usize = 26;
const COMMON_FORMAT: &str = "%d/%b/%Y:%H:%M:%S %z";
const SECOND: u64 = 1_000_000;

impl Instants {
    /// Parses a timestamp in the common log format, without its brackets.
    pub(super) fn common(&mut self, text: &[u8]) -> Option<u64> {
        if self.micros.is_some() && text == self.text {
            return self.micros;
        }
        self.text = text.try_into().ok()?;
        let parsed = strtime::parse(COMMON_FORMAT, text).and_then(|time| time.to_timestamp());
        self.micros = parsed.ok().and_then(micros);
        self.micros
    }

    /// Parses a timestamp in any supported form: RFC 3339, the common log format, or a number since the Unix
    /// epoch in seconds, milli-, micro- or nanoseconds, depending on its size.
    pub(super) fn any(&mut self, text: &[u8]) -> Option<u64> {
        let text = text.trim_ascii();
        match text {
            [b'[', inner @ .., b']'] => self.common(inner),
            _ if text.len() == COMMON && text[2] == b'/' => self.common(text),
            _ if text.len() > 10 && text[4] == b'-' => rfc3339(text),
            _ => number(text),
        }
    }
}

/// Parses RFC 3339. A time without an offset is in UTC.
fn rfc3339(text: &[u8]) -> Option<u64> {
    const PARSER: DateTimeParser = DateTimeParser::new();
    let with_offset = PARSER.parse_timestamp(text);
    let in_utc = || PARSER.parse_datetime(text).and_then(|time| Offset::UTC.to_timestamp(time));
    with_offset.or_else(|_| in_utc()).ok().and_then(micros)
}

fn micros(timestamp: Timestamp) -> Option<u64> {
    u64::try_from(timestamp.as_microsecond()).ok()
}

fn number(text: &[u8]) -> Option<u64> {
    let text = std::str::from_utf8(text).ok()?;
    let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
    if !(whole.to_owned() + fraction).bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let whole: u64 = whole.parse().ok()?;
    match whole {
        // Seconds up to the year 5138, milliseconds from 1973 on, and so on.
        0..100_000_000_000 => {
            let micros = format!("{fraction:0<6.6}");
            Some(whole * SECOND + micros.parse::<u64>().ok()?)
        }
        100_000_000_000..100_000_000_000_000 => whole.checked_mul(1_000),
        100_000_000_000_000..100_000_000_000_000_000 => Some(whole),
        _ => Some(whole / 1_000),
    }
}

/// Returns the timestamp, or the latest possible one.
pub(crate) fn timestamp(micros: u64) -> Timestamp {
    let micros = i64::try_from(micros).ok();
    micros.and_then(|micros| Timestamp::from_microsecond(micros).ok()).unwrap_or(Timestamp::MAX)
}

/// Formats a timestamp as RFC 3339, in whole seconds.
pub(crate) fn rfc3339_text(micros: u64) -> String {
    format!("{:.0}", timestamp(micros - micros % SECOND))
}

/// Formats a timestamp in the common log format.
pub(crate) fn common_text(micros: u64) -> String {
    timestamp(micros).strftime(COMMON_FORMAT).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_timestamp_forms_are_parsed() {
        for (text, expected) in [
            ("10/Oct/2000:13:55:36 -0700", Some(971_211_336_000_000)),
            ("[10/Oct/2000:20:55:36 +0000]", Some(971_211_336_000_000)),
            ("2000-10-10T20:55:36Z", Some(971_211_336_000_000)),
            ("2000-10-10 22:55:36.25+02:00", Some(971_211_336_250_000)),
            ("2000-10-10T20:55:36,1234567", Some(971_211_336_123_456)),
            ("2024-02-29T00:00:00+0000", Some(1_709_164_800_000_000)),
            ("971211336", Some(971_211_336_000_000)),
            ("971211336.5", Some(971_211_336_500_000)),
            ("971211336001", Some(971_211_336_001_000)),
            ("971211336000001", Some(971_211_336_000_001)),
            ("971211336000001999", Some(971_211_336_000_001)),
            ("2000-13-10T20:55:36Z", None),
            ("31/Feb/2026:00:00:00 +0000", None),
            ("2026-02-29T00:00:00Z", None),
            ("2100-02-29T00:00:00Z", None),
            ("2026-04-31T00:00:00Z", None),
            ("2000-02-29T00:00:00Z", Some(951_782_400_000_000)),
            ("10/Okt/2000:13:55:36 -0700", None),
            ("10/Oct/2000:24:55:36 -0700", None),
            ("yesterday", None),
            ("1.2.3", None),
            ("", None),
            ("01/Jan/1970:00:00:00 +0100", None),
        ] {
            assert_eq!(Instants::default().any(text.as_bytes()), expected, "{text}");
        }
    }

    #[test]
    fn the_cached_second_is_used_only_for_the_same_text() {
        let mut instants = Instants::default();
        let mut read = |text: &str| instants.common(text.as_bytes());
        assert_eq!(read("10/Oct/2000:20:55:36 +0000"), Some(971_211_336_000_000));
        assert_eq!(read("10/Oct/2000:20:55:36 +0000"), Some(971_211_336_000_000));
        assert_eq!(read("10/Oct/2000:20:55:37 +0000"), Some(971_211_337_000_000));
        assert_eq!(read("10/Oct/2000:20:55:3x +0000"), None);
        assert_eq!(read("10/Oct/2000:20:55:37 +0000"), Some(971_211_337_000_000));
    }

    #[test]
    fn formatted_timestamps_parse_to_the_same_time() {
        let mut instants = Instants::default();
        for days in 0..60_000_u64 {
            let micros = (days * 86_400 + days % 86_400) * SECOND;
            assert_eq!(instants.any(rfc3339_text(micros).as_bytes()), Some(micros));
            assert_eq!(instants.any(common_text(micros).as_bytes()), Some(micros));
        }
    }
}
