//! Parses and formats timestamps of logs, in microseconds since the Unix epoch.

/// A timestamp parser that caches the last second, because consecutive lines often share it.
#[derive(Debug, Default)]
pub(super) struct Instants {
    text: [u8; COMMON],
    micros: Option<u64>,
}

/// Length of `10/Oct/2026:13:55:36 -0700`.
const COMMON: usize = 26;

const SECOND: u64 = 1_000_000;
const MONTHS: &[u8; 36] = b"JanFebMarAprMayJunJulAugSepOctNovDec";

impl Instants {
    /// Parses a timestamp in the common log format, without its brackets.
    pub(super) fn common(&mut self, text: &[u8]) -> Option<u64> {
        if self.micros.is_some() && text == self.text {
            return self.micros;
        }
        self.micros = common(text);
        self.text = text.try_into().ok()?;
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

fn common(text: &[u8]) -> Option<u64> {
    let text: &[u8; COMMON] = text.try_into().ok()?;
    let separators = [text[2], text[6], text[11], text[14], text[17], text[20]];
    if separators != *b"//::: " {
        return None;
    }
    let month = MONTHS.chunks_exact(3).position(|name| *name == text[3..6])?;
    let date = (digits(&text[7..11])?, u64::try_from(month).ok()? + 1, digits(&text[..2])?);
    let time = (digits(&text[12..14])?, digits(&text[15..17])?, digits(&text[18..20])?);
    let (hours, minutes) = (digits(&text[22..24])?, digits(&text[24..26])?);
    micros(date, time, offset(text[21], hours, minutes)?)
}

fn rfc3339(text: &[u8]) -> Option<u64> {
    if text.len() < 19 || !matches!(text[10], b'T' | b't' | b' ') {
        return None;
    }
    if [text[4], text[7], text[13], text[16]] != *b"--::" {
        return None;
    }
    let date = (digits(&text[..4])?, digits(&text[5..7])?, digits(&text[8..10])?);
    let time = (digits(&text[11..13])?, digits(&text[14..16])?, digits(&text[17..19])?);
    let (fraction, zone) = match &text[19..] {
        [b'.' | b',', rest @ ..] => {
            let length = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
            (fraction(&rest[..length])?, &rest[length..])
        }
        rest => (0, rest),
    };
    let zone = match zone {
        [] | [b'Z' | b'z'] => 0,
        [sign, h1, h2, b':', m1, m2] | [sign, h1, h2, m1, m2] => {
            offset(*sign, digits(&[*h1, *h2])?, digits(&[*m1, *m2])?)?
        }
        _ => return None,
    };
    Some(micros(date, time, zone)? + fraction)
}

fn number(text: &[u8]) -> Option<u64> {
    let point = text.iter().position(|&byte| byte == b'.').unwrap_or(text.len());
    let whole = digits(&text[..point])?;
    let rest = text.get(point + 1..).unwrap_or_default();
    match whole {
        // Seconds up to the year 5138, milliseconds from 1973 on, and so on.
        0..100_000_000_000 => Some(whole * SECOND + fraction(rest)?),
        100_000_000_000..100_000_000_000_000 => whole.checked_mul(1_000),
        100_000_000_000_000..100_000_000_000_000_000 => Some(whole),
        _ => Some(whole / 1_000),
    }
}

/// Parses a decimal fraction of a second into microseconds; further digits are dropped.
fn fraction(text: &[u8]) -> Option<u64> {
    let known = &text[..text.len().min(6)];
    if known.is_empty() {
        return Some(0);
    }
    let scale = 10_u64.pow(u32::try_from(6 - known.len()).ok()?);
    Some(digits(known)? * scale)
}

fn digits(text: &[u8]) -> Option<u64> {
    if text.is_empty() || text.len() > 19 {
        return None;
    }
    text.iter().try_fold(0_u64, |sum, byte| {
        let digit = byte.wrapping_sub(b'0');
        (digit < 10).then(|| sum * 10 + u64::from(digit))
    })
}

/// Returns the time zone offset in seconds east of Greenwich.
fn offset(sign: u8, hours: u64, minutes: u64) -> Option<i64> {
    let seconds = i64::try_from(hours * 3_600 + minutes * 60).ok()?;
    match sign {
        b'+' => Some(seconds),
        b'-' => Some(-seconds),
        _ => None,
    }
}

type Three = (u64, u64, u64);

fn micros((year, month, day): Three, (hour, minute, second): Three, offset: i64) -> Option<u64> {
    let sound = (1..=12).contains(&month)
        && (1970..=9999).contains(&year)
        && (1..=days(year, month)).contains(&day)
        && hour < 24
        && minute < 60
        && second <= 60;
    if !sound {
        return None;
    }
    // Use years that begin in March, so that the leap day is the last day.
    let (year, month) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let days = 365 * year + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + day - 1;
    let seconds = i64::try_from((days - EPOCH) * 86_400 + hour * 3_600 + minute * 60 + second);
    u64::try_from(seconds.ok()? - offset).ok()?.checked_mul(SECOND)
}

fn days(year: u64, month: u64) -> u64 {
    let leap = year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
    match month {
        2 => 28 + u64::from(leap),
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// Days from 1 March of the year 0 to 1 January 1970.
const EPOCH: u64 = 719_468;

/// Formats a timestamp as RFC 3339, in whole seconds.
pub(crate) fn rfc3339_text(micros: u64) -> String {
    let [year, month, day, hour, minute, second] = civil(micros / SECOND);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

/// Formats a timestamp in the common log format.
pub(crate) fn common_text(micros: u64) -> String {
    let [year, month, day, hour, minute, second] = civil(micros / SECOND);
    let month = usize::try_from(month - 1).unwrap_or_default();
    let month = String::from_utf8_lossy(&MONTHS[3 * month..3 * month + 3]);
    format!("{day:02}/{month}/{year:04}:{hour:02}:{minute:02}:{second:02} +0000")
}

fn civil(seconds: u64) -> [u64; 6] {
    let (days, rest) = (seconds / 86_400 + EPOCH, seconds % 86_400);
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let of_year = day - (365 * year + year / 4 - year / 100);
    let month = (5 * of_year + 2) / 153;
    let day = of_year - (153 * month + 2) / 5 + 1;
    let (month, later) = if month < 10 { (month + 3, 0) } else { (month - 9, 1) };
    [400 * era + year + later, month, day, rest / 3_600, rest / 60 % 60, rest % 60]
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
