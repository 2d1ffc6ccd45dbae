use std::{convert::Infallible, fmt, str::FromStr, time::Duration};

use super::{Algorithm, Calendar, Limit, LimitError, Period, calendar::CalendarWords};

/// Error of parsing a [`Limit`]. The message names the problem and the expected form.
///
/// The message quotes at most 40 characters of each part of the input, escaped, so it is safe to log.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{input}` is not a limit: {problem}")]
pub struct ParseLimitError {
    input: String,
    problem: Problem,
}

/// The reason why a text is not a limit, with advice.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum Problem {
    #[error("write an amount and a period, such as `100/minute`")]
    NoPeriod,
    #[error("the amount `{0}` is not a whole number; write one, such as `100/minute`")]
    Amount(String),
    #[error(
        "the period `{0}` is not one of `second`, `minute`, `hour`, `day`, `week`, `month`, `year`, `30s`, `250ms`, \
         `500us`, `2h`"
    )]
    Period(String),
    #[error("after `burst` comes a whole number, such as `10/second burst 20`")]
    Burst,
    #[error("`{word}` is neither `burst` nor an algorithm ({})", Algorithm::names())]
    Word { word: String },
    #[error("`{0}` is given twice: keep one of them")]
    Twice(&'static str),
    #[error("`in` is for `day`, `week`, `month` and `year`, as in `5/day in Europe/Berlin`")]
    In,
    #[error("`starting` is for `week`, as in `1/week starting monday`")]
    Starting,
    #[error("`anchor` is for `month`, as in `1000/month anchor 17`")]
    Anchor,
    #[error(
        "a week in a time zone needs its first day, as in `1/week starting monday in Europe/Berlin`"
    )]
    NoStart,
    #[error("`{0}` is not a day of the week: write `monday`, `tuesday` and so on")]
    Weekday(String),
    #[error("the anchor `{0}` is not a day of the month: write 1 to 31")]
    Day(String),
    #[cfg(feature = "calendar")]
    #[error("`{0}` is not a time zone of the IANA database; write one, such as `Europe/Berlin`")]
    Zone(String),
    #[cfg(not(feature = "calendar"))]
    #[error(
        "calendar periods need the feature `calendar` of the crate `pacegate`: enable it, or use a fixed length, such \
         as `30d`"
    )]
    NoCalendar,
    #[error("an algorithm is given twice, `{0}` and `{1}`: keep one of them")]
    TwoAlgorithms(Algorithm, Algorithm),
    #[error(transparent)]
    Impossible(#[from] LimitError),
}

/// Parses `AMOUNT/PERIOD`, then `burst N`, the name of an algorithm or the words of a calendar period, in any order.
///
/// The amount is a whole number, which may contain underscores: `1_000/hour`. The period is a unit, such as `minute`,
/// or a number and a unit without a space between them, such as `30s`, `250ms`, `500us` or `2h`. ` per ` can replace
/// the slash. A limit with a burst is a token bucket; other limits are a fixed window by default.
///
/// | unit | names |
/// |---|---|
/// | microsecond | `us`, `µs`, `microsecond`, `microseconds` |
/// | millisecond | `ms`, `millisecond`, `milliseconds` |
/// | second | `s`, `sec`, `second`, `seconds` |
/// | minute | `m`, `min`, `minute`, `minutes` |
/// | hour | `h`, `hr`, `hour`, `hours` |
/// | day of 24 hours | `d`, `day`, `days` |
/// | week of 7 days, from Thursday | `w`, `week`, `weeks` |
/// | calendar month | `month` |
/// | calendar year | `year` |
///
/// Periods of a fixed length count from the Unix epoch, a Thursday, in UTC. These words, also in any order, make the
/// period a [calendar period](Calendar), which needs the feature `calendar`:
///
/// | words | meaning |
/// |---|---|
/// | `in ZONE` | a `day`, `week`, `month` or `year` of an IANA time zone: `5/day in Europe/Berlin` |
/// | `starting DAY` | a `week` that starts on this day: `1/week starting monday` |
/// | `anchor N` | a `month` that starts on this day, or on its last day: `1000/month anchor 31` |
///
/// Names are lower case, and there are no fractions: write `1/500ms`, not `2.0/1s`. Custom algorithms have no text.
///
/// ```
/// use pacegate::Limit;
///
/// assert_eq!("100 per minute".parse(), Ok(Limit::per_minute(100)));
/// assert_eq!("1_000/60s".parse(), Ok(Limit::per_minute(1_000)));
/// assert!("10/fortnight".parse::<Limit>().is_err());
/// ```
impl FromStr for Limit {
    type Err = ParseLimitError;

    fn from_str(text: &str) -> Result<Self, ParseLimitError> {
        parse(text).map_err(|problem| ParseLimitError { input: shorten(text), problem })
    }
}

impl TryFrom<String> for Limit {
    type Error = ParseLimitError;

    fn try_from(text: String) -> Result<Self, ParseLimitError> {
        text.parse()
    }
}

/// Lets a function that accepts text also accept a [`Limit`], whose conversion cannot fail.
impl From<Infallible> for ParseLimitError {
    fn from(never: Infallible) -> Self {
        match never {}
    }
}

impl TryFrom<&String> for Limit {
    type Error = ParseLimitError;

    fn try_from(text: &String) -> Result<Self, ParseLimitError> {
        text.parse()
    }
}

/// Formats the limit so that parsing the text returns an equal limit: `100/minute`, `10/second burst 20`.
///
/// The period is written in the largest unit that divides it. The algorithm is left out if it is the default or follows
/// from the burst.
impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.amount(), self.period)?;
        if let Some(burst) = self.burst() {
            return write!(f, " burst {burst}");
        }
        match self.algorithm() {
            Algorithm::FixedWindow => Ok(()),
            other => write!(f, " {other}"),
        }
    }
}

/// Parses a limit. The words after the period may be in any order.
fn parse(text: &str) -> Result<Limit, Problem> {
    // Time zones contain slashes.
    let (amount, rest) =
        text.split_once(" per ").or_else(|| text.split_once('/')).ok_or(Problem::NoPeriod)?;
    let mut words = rest.split_whitespace();
    let unit = words.next().ok_or(Problem::NoPeriod)?;
    let (mut burst, mut algorithm, mut calendar) = (None, None, CalendarWords::default());
    while let Some(word) = words.next() {
        match word {
            "burst" => {
                let number = words.next().and_then(parse_number).ok_or(Problem::Burst);
                set(&mut burst, "burst", number)?;
            }
            "in" => set(&mut calendar.zone, "in", words.next().ok_or(Problem::In))?,
            "starting" => {
                set(&mut calendar.starting, "starting", words.next().ok_or(Problem::Starting))?;
            }
            "anchor" => set(&mut calendar.anchor, "anchor", words.next().ok_or(Problem::Anchor))?,
            _ => {
                let named = word.parse().map_err(|_| Problem::Word { word: shorten(word) })?;
                if let Some(first) = algorithm.replace(named) {
                    return Err(Problem::TwoAlgorithms(first, named));
                }
            }
        }
    }
    let period = match Calendar::parse(unit, calendar)? {
        Some(calendar) => Period::of(calendar),
        None => Period::try_from(parse_period(unit)?)?,
    };
    let amount = parse_number(amount).ok_or_else(|| Problem::Amount(shorten(amount)))?;
    build(Limit::with_period(amount, period)?, burst, algorithm)
}

/// Sets an option of a limit that is not set yet.
fn set<T>(
    option: &mut Option<T>,
    name: &'static str,
    value: Result<T, Problem>,
) -> Result<(), Problem> {
    if option.is_some() {
        return Err(Problem::Twice(name));
    }
    *option = Some(value?);
    Ok(())
}

/// Sets the parsed burst and algorithm.
fn build(
    mut limit: Limit,
    burst: Option<u64>,
    algorithm: Option<Algorithm>,
) -> Result<Limit, Problem> {
    if let Some(burst) = burst {
        if let Some(other) = algorithm.filter(|other| !other.has_burst()) {
            return Err(LimitError::BurstWithout(other).into());
        }
        limit = limit.with_burst(burst)?;
    }
    match algorithm {
        Some(algorithm) => Ok(limit.with_algorithm(algorithm)?),
        None => Ok(limit),
    }
}

/// Parses digits, which may be grouped by underscores: `1_000`.
fn parse_number(text: &str) -> Option<u64> {
    let text = text.trim();
    let grouped = text.starts_with(|c: char| c.is_ascii_digit())
        && text.bytes().all(|byte| byte.is_ascii_digit() || byte == b'_');
    if !grouped {
        return None;
    }
    text.replace('_', "").parse().ok()
}

/// The names of each unit, and its microseconds.
const UNITS: [(&[&str], u64); 7] = [
    (&["us", "µs", "microsecond", "microseconds"], 1),
    (&["ms", "millisecond", "milliseconds"], 1_000),
    (&["s", "sec", "second", "seconds"], 1_000_000),
    (&["m", "min", "minute", "minutes"], 60_000_000),
    (&["h", "hr", "hour", "hours"], 3_600_000_000),
    (&["d", "day", "days"], 86_400_000_000),
    (&["w", "week", "weeks"], 604_800_000_000),
];

/// Parses a unit, or a number directly followed by a unit.
fn parse_period(text: &str) -> Result<Duration, Problem> {
    let bad = || Problem::Period(shorten(text));
    let letters = text.find(|c: char| !c.is_ascii_digit()).ok_or_else(bad)?;
    let (count, unit) = text.split_at(letters);
    let count: u64 = if count.is_empty() { 1 } else { count.parse().map_err(|_| bad())? };
    let (_, micros) = UNITS.iter().find(|(names, _)| names.contains(&unit)).ok_or_else(bad)?;
    count.checked_mul(*micros).map(Duration::from_micros).ok_or_else(bad)
}

/// Displays a fixed length in the largest unit that divides it.
impl fmt::Display for Period {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(calendar) = self.calendar() {
            return calendar.fmt(f);
        }
        let micros = self.micros();
        let (short, long, unit) = [
            ("d", "day", 86_400_000_000),
            ("h", "hour", 3_600_000_000),
            ("m", "minute", 60_000_000),
            ("s", "second", 1_000_000),
            ("ms", "ms", 1_000),
        ]
        .into_iter()
        .find(|(_, _, unit)| micros.is_multiple_of(*unit))
        .unwrap_or(("us", "us", 1));
        match micros / unit {
            1 => f.write_str(long),
            count => write!(f, "{count}{short}"),
        }
    }
}

/// Returns at most 40 characters of untrusted text, safe to print.
pub(super) fn shorten(text: &str) -> String {
    let mut short: String = text.chars().take(40).flat_map(char::escape_debug).collect();
    if text.chars().nth(40).is_some() {
        short.push('…');
    }
    short
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_and_prints() {
        for (text, printed) in [
            ("100/minute", "100/minute"),
            ("10/second burst 20", "10/second burst 20"),
            ("5/30s", "5/30s"),
            ("1000/day", "1000/day"),
            ("3/250ms", "3/250ms"),
            ("0/hour", "0/hour"),
            ("1_000 / 60s", "1000/minute"),
            ("7 per 2 hours", ""),
            ("7 per 2hours", "7/2h"),
            ("1/week", "1/7d"),
            ("1/1ms", "1/ms"),
            ("1/500us", "1/500us"),
            ("2/1500 us", ""),
            ("2/1500µs", "2/1500us"),
            ("2/2000us", "2/2ms"),
            ("1/us burst 3", "1/us burst 3"),
            ("9/90s sliding-log", "9/90s sliding-log"),
            ("9/90s token-bucket", "9/90s token-bucket"),
            ("9/90s token-bucket burst 4", "9/90s burst 4"),
            ("9/90s burst 9", "9/90s burst 9"),
            ("10/second burst 10", "10/second burst 10"),
            ("1000/month", "1000/month"),
            ("1000 per month in UTC", "1000/month"),
            ("1000/month anchor 1", "1000/month"),
            ("1/month in asia/kolkata anchor 17", "1/month anchor 17 in Asia/Kolkata"),
            ("5/day in Europe/Berlin", "5/day in Europe/Berlin"),
            ("5 per day in Europe/Berlin", "5/day in Europe/Berlin"),
            ("5/d in UTC fixed-window", "5/day in UTC"),
            ("1/week starting monday", "1/week starting monday"),
            ("1/w in Europe/Berlin starting sunday", "1/week starting sunday in Europe/Berlin"),
            ("1/year in America/New_York", "1/year in America/New_York"),
            ("1/2month", ""),
            ("1/Month", ""),
        ] {
            match text.parse::<Limit>() {
                Ok(limit) => {
                    assert_eq!(limit.to_string(), printed, "{text}");
                    assert_eq!(printed.parse(), Ok(limit), "{text}");
                }
                Err(_) => assert_eq!(printed, "", "{text}"),
            }
        }
    }

    #[test]
    fn errors_name_the_problem() {
        let period = "is not one of `second`, `minute`, `hour`, `day`, `week`, `month`, `year`, `30s`, `250ms`, \
                      `500us`, `2h`";
        let whole = "is not a whole number; write one, such as `100/minute`";
        let names = "(fixed-window, sliding-window, sliding-log, token-bucket, concurrency)";
        for (text, problem) in [
            ("", "write an amount and a period, such as `100/minute`".to_owned()),
            ("100", "write an amount and a period, such as `100/minute`".to_owned()),
            ("x/minute", format!("the amount `x` {whole}")),
            ("1.5/s", format!("the amount `1.5` {whole}")),
            ("-1/s", format!("the amount `-1` {whole}")),
            ("1/fortnight", format!("the period `fortnight` {period}")),
            ("1/30", format!("the period `30` {period}")),
            (
                "1/s burst",
                "after `burst` comes a whole number, such as `10/second burst 20`".to_owned(),
            ),
            ("1/s bucket", format!("`bucket` is neither `burst` nor an algorithm {names}")),
            (
                "1/0s",
                "the period 0ns is out of range: expected more than 0 and at most 3660d".to_owned(),
            ),
            ("1/s burst 0", "a burst must be at least 1, on an amount of at least 1".to_owned()),
            (
                "1/s burst 2 fixed-window",
                "fixed-window has no burst: leave it out, or use token-bucket".to_owned(),
            ),
            ("10/s burst 20 burst 2000", "`burst` is given twice: keep one of them".to_owned()),
            ("10/s burst 20 burst 20", "`burst` is given twice: keep one of them".to_owned()),
            ("9/s burst 2 burst", "`burst` is given twice: keep one of them".to_owned()),
            (
                "5/s sliding-log fixed-window",
                "an algorithm is given twice, `sliding-log` and `fixed-window`: keep one of them"
                    .to_owned(),
            ),
            (
                "5/s token-bucket burst 9 token-bucket",
                "an algorithm is given twice, `token-bucket` and `token-bucket`: keep one of them"
                    .to_owned(),
            ),
            (
                "20000/s sliding-log",
                "the amount 20000 is too large: at most 10000 with sliding-log".to_owned(),
            ),
        ] {
            let error = text.parse::<Limit>().unwrap_err().to_string();
            assert_eq!(error, format!("`{text}` is not a limit: {problem}"));
        }
        let long = format!("{}\u{1b}/s", "9".repeat(60));
        assert!(long.parse::<Limit>().unwrap_err().to_string().len() < 260);
    }

    #[test]
    fn errors_name_the_problem_of_a_calendar_period() {
        for (text, problem) in [
            (
                "1/day in",
                "`in` is for `day`, `week`, `month` and `year`, as in `5/day in Europe/Berlin`",
            ),
            (
                "1/24h in UTC",
                "`in` is for `day`, `week`, `month` and `year`, as in `5/day in Europe/Berlin`",
            ),
            (
                "1/day in Europe/Berln",
                "`Europe/Berln` is not a time zone of the IANA database; write one, such as `Europe/Berlin`",
            ),
            ("1/day in UTC in UTC", "`in` is given twice: keep one of them"),
            ("1/month starting monday", "`starting` is for `week`, as in `1/week starting monday`"),
            (
                "1/week starting mon",
                "`mon` is not a day of the week: write `monday`, `tuesday` and so on",
            ),
            (
                "1/week in UTC",
                "a week in a time zone needs its first day, as in `1/week starting monday in Europe/Berlin`",
            ),
            ("1/year anchor 17", "`anchor` is for `month`, as in `1000/month anchor 17`"),
            ("1/month anchor 32", "the anchor `32` is not a day of the month: write 1 to 31"),
            (
                "1/month sliding-window",
                "sliding-window cannot count calendar periods: use fixed-window without a burst, or a fixed length, \
                 such as `30d`",
            ),
            (
                "1/month burst 2",
                "token-bucket cannot count calendar periods: use fixed-window without a burst, or a fixed length, such \
                 as `30d`",
            ),
        ] {
            let error = text.parse::<Limit>().unwrap_err().to_string();
            assert_eq!(error, format!("`{text}` is not a limit: {problem}"));
        }
    }
}
