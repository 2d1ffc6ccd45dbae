//! Parses the `rate_limit` of a rule as a [`Limit`].

use std::time::Duration;

use pacegate::{Algorithm, Limit};
use serde_saphyr::{Location, Spanned};

use super::{
    file::{FileError, RuleFile, RuleLimit, shorten},
    proto::Unit,
};

/// A limit, and its form for Envoy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Bound {
    pub(super) limit: Limit,
    /// The unit nearest to the period.
    pub(super) unit: Unit,
    /// True if envoyproxy/ratelimit cannot express it.
    pub(super) is_extension: bool,
}

impl Bound {
    pub(super) fn new(limit: Limit) -> Self {
        let unit = Unit::nearest(limit.period());
        let is_standard = limit.algorithm() == Algorithm::FixedWindow
            && unit.period() == Some(limit.period())
            && u32::try_from(limit.amount()).is_ok();
        Self { limit, unit, is_extension: !is_standard }
    }

    /// Parses a limit from `requests_per_unit`, `unit` and our extensions.
    pub(super) fn read(source: &RuleFile, item: &Spanned<RuleLimit>) -> Result<Self, FileError> {
        let written = &item.value;
        let period = period(source, item)?;
        let Some(amount) = &written.requests_per_unit else {
            let message = "missing `requests_per_unit`; 0 denies everything";
            return Err(source.error(item.referenced, message));
        };
        let limit = Limit::new(amount.value, period)
            .map_err(|error| source.error(amount.referenced, error))?;
        let limit = with_burst(source, limit, written.burst.as_ref())?;
        Ok(Self::new(with_algorithm(source, limit, written.algorithm.as_ref())?))
    }
}

/// Rejects settings of a limit beside `unlimited`.
pub(super) fn check_unlimited(source: &RuleFile, written: &RuleLimit) -> Result<(), FileError> {
    let beside = [
        (
            "unit",
            written.unit.as_ref().filter(|unit| !unit.value.is_empty()).map(|it| it.referenced),
        ),
        ("period", written.period.as_ref().map(|it| it.referenced)),
        ("algorithm", written.algorithm.as_ref().map(|it| it.referenced)),
        ("burst", written.burst.as_ref().map(|it| it.referenced)),
    ];
    match beside.into_iter().find_map(|(field, at)| Some((field, at?))) {
        Some((field, at)) => {
            let message = format!("`unlimited` and `{field}` exclude each other");
            Err(source.error(at, message))
        }
        None => Ok(()),
    }
}

fn with_burst(
    source: &RuleFile,
    limit: Limit,
    burst: Option<&Spanned<u64>>,
) -> Result<Limit, FileError> {
    let Some(burst) = burst else { return Ok(limit) };
    limit.with_burst(burst.value).map_err(|error| source.error(burst.referenced, error))
}

fn with_algorithm(
    source: &RuleFile,
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
        let message =
            "concurrency limits need permits, which Envoy cannot release: use another algorithm";
        return Err(failed(message.to_owned()));
    }
    limit.with_algorithm(algorithm).map_err(|error| failed(error.to_string()))
}

/// Parses the period of a limit.
fn period(source: &RuleFile, item: &Spanned<RuleLimit>) -> Result<Duration, FileError> {
    let (text, at): (&str, Location) = match (&item.value.unit, &item.value.period) {
        (Some(_), Some(period)) => {
            let message = "`unit` and `period` exclude each other";
            return Err(source.error(period.referenced, message));
        }
        (Some(text), None) | (None, Some(text)) => (&text.value, text.referenced),
        (None, None) => ("", item.referenced),
    };
    parse_period(text).ok_or_else(|| {
        let message = format!(
            "unknown unit `{}`: expected second, minute, hour, day, week, month or year, \
             or a period such as 30s or 5m",
            shorten(text, 40)
        );
        source.error(at, message)
    })
}

/// Parses a unit of Envoy in any case, or a period such as `30s`.
fn parse_period(text: &str) -> Option<Duration> {
    let text = text.to_ascii_lowercase();
    let unit = Unit::BY_LENGTH.into_iter().find(|(unit, _)| unit.word() == text);
    if let Some((_, seconds)) = unit {
        return Some(Duration::from_secs(seconds));
    }
    // Rejects words after the period, which are valid in a limit.
    let one_word = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric());
    let limit: Limit = one_word.then(|| format!("1/{text}").parse())?.ok()?;
    Some(limit.period())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn periods_are_units_or_durations() {
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
    fn standard_limits_are_no_extension() {
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
