//! What a `rate_limit` of a file says, as a [`Limit`].

use std::time::Duration;

use pacegate::{Algorithm, Limit};
use serde_saphyr::{Location, Spanned};

use super::{
    file::{FileError, RateLimit, Source, shorten},
    proto::Unit,
};

/// A limit, and how it is shown to Envoy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Bound {
    pub(super) limit: Limit,
    /// The unit nearest to the period.
    pub(super) unit: Unit,
    /// Whether their service could not have said it.
    pub(super) is_extension: bool,
}

impl Bound {
    pub(super) fn new(limit: Limit) -> Self {
        let unit = Unit::nearest(limit.period());
        let theirs = limit.algorithm() == Algorithm::FixedWindow
            && unit.period() == Some(limit.period())
            && u32::try_from(limit.amount()).is_ok();
        Self { limit, unit, is_extension: !theirs }
    }

    /// The limit that `requests_per_unit`, `unit` and our extensions say.
    pub(super) fn read(source: &Source, item: &Spanned<RateLimit>) -> Result<Self, FileError> {
        let said = &item.value;
        let period = period(source, item)?;
        let Some(amount) = &said.requests_per_unit else {
            let message = "`requests_per_unit` is missing: write how many, or 0 to deny everything";
            return Err(source.error(item.referenced, message));
        };
        let limit = Limit::new(amount.value, period)
            .map_err(|error| source.error(amount.referenced, error))?;
        let limit = with_burst(source, limit, said.burst.as_ref())?;
        Ok(Self::new(with_algorithm(source, limit, said.algorithm.as_ref())?))
    }
}

/// A rule for which nothing is counted says nothing of how.
pub(super) fn check_unlimited(source: &Source, said: &RateLimit) -> Result<(), FileError> {
    let beside = [
        ("unit", said.unit.as_ref().filter(|unit| !unit.value.is_empty()).map(|it| it.referenced)),
        ("period", said.period.as_ref().map(|it| it.referenced)),
        ("algorithm", said.algorithm.as_ref().map(|it| it.referenced)),
        ("burst", said.burst.as_ref().map(|it| it.referenced)),
    ];
    match beside.into_iter().find_map(|(field, at)| Some((field, at?))) {
        Some((field, at)) => {
            let message = format!("`unlimited` needs no `{field}`: leave one of them out");
            Err(source.error(at, message))
        }
        None => Ok(()),
    }
}

fn with_burst(
    source: &Source,
    limit: Limit,
    burst: Option<&Spanned<u64>>,
) -> Result<Limit, FileError> {
    let Some(burst) = burst else { return Ok(limit) };
    limit.with_burst(burst.value).map_err(|error| source.error(burst.referenced, error))
}

fn with_algorithm(
    source: &Source,
    limit: Limit,
    name: Option<&Spanned<String>>,
) -> Result<Limit, FileError> {
    let Some(name) = name else { return Ok(limit) };
    let failed = |message: String| source.error(name.referenced, message);
    let algorithm: Algorithm = name
        .value
        .parse()
        .map_err(|error| failed(format!("`{}`: {error}", shorten(&name.value, 40))))?;
    if algorithm.holds_permits() {
        let message = "Envoy cannot return a permit: write another algorithm than concurrency";
        return Err(failed(message.to_owned()));
    }
    limit.with_algorithm(algorithm).map_err(|error| failed(error.to_string()))
}

/// What the limit is per.
fn period(source: &Source, item: &Spanned<RateLimit>) -> Result<Duration, FileError> {
    let (text, at): (&str, Location) = match (&item.value.unit, &item.value.period) {
        (Some(_), Some(period)) => {
            let message = "`unit` and `period` say the same: leave one of them out";
            return Err(source.error(period.referenced, message));
        }
        (Some(text), None) | (None, Some(text)) => (&text.value, text.referenced),
        (None, None) => ("", item.referenced),
    };
    parse_period(text).ok_or_else(|| {
        let message = format!(
            "`{}` is no unit: write second, minute, hour, day, week, month or year, \
             or a period such as 30s or 5m",
            shorten(text, 40)
        );
        source.error(at, message)
    })
}

/// One of their units, in any case, or one of our periods.
fn parse_period(text: &str) -> Option<Duration> {
    let text = text.to_ascii_lowercase();
    let unit = Unit::BY_LENGTH.into_iter().find(|(unit, _)| unit.word() == text);
    if let Some((_, seconds)) = unit {
        return Some(Duration::from_secs(seconds));
    }
    // A limit may also have words after its period.
    let one_word = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric());
    let limit: Limit = one_word.then(|| format!("1/{text}").parse())?.ok()?;
    Some(limit.period())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn periods_are_their_units_and_any_length() {
        for (text, seconds) in [
            ("second", Some(1)),
            ("MINUTE", Some(60)),
            ("Week", Some(604_800)),
            ("month", Some(2_592_000)),
            ("year", Some(31_536_000)),
            ("30s", Some(30)),
            ("5m", Some(300)),
            ("2h", Some(7_200)),
            ("unknown", None),
            ("", None),
            ("second burst 3", None),
            ("0s", None),
            ("fortnight", None),
            ("99999999999d", None),
        ] {
            assert_eq!(parse_period(text), seconds.map(Duration::from_secs), "{text}");
        }
    }

    #[test]
    fn what_they_can_say_is_no_extension() {
        for (limit, is_extension) in [
            ("5/minute", false),
            ("5/7d", false),
            ("5/30d", false),
            ("5/5m", true),
            ("5/minute token-bucket", true),
            ("5000000000/minute", true),
        ] {
            assert_eq!(Bound::new(limit.parse().unwrap()).is_extension, is_extension, "{limit}");
        }
    }
}
