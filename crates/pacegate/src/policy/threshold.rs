use std::{fmt, str::FromStr};

use crate::Limit;

/// A percentage of a limit, from 1% to 100%, at which a policy reports a key. Its text form is `80%`.
///
/// ```
/// use pacegate::{Limit, policy::Threshold};
///
/// let threshold: Threshold = "80%".parse()?;
/// assert_eq!(threshold.units(&Limit::per_minute(100)), 80);
/// assert_eq!(threshold.units(&Limit::per_minute(3)), 3, "rounded up");
/// # Ok::<(), pacegate::policy::ThresholdError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Threshold(u8);

/// Error of creating a [`Threshold`]: the value is not a percentage from 1% to 100%.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{}` is not a threshold: write a percentage from `1%` to `100%`", .0.escape_debug())]
pub struct ThresholdError(String);

impl Threshold {
    /// All units of a limit. It is also reached by the first denial.
    pub const FULL: Self = Self(100);

    /// Creates a threshold of `percent`, from 1 to 100.
    pub fn new(percent: u8) -> Result<Self, ThresholdError> {
        match percent {
            1..=100 => Ok(Self(percent)),
            _ => Err(ThresholdError(format!("{percent}%"))),
        }
    }

    /// Returns the percentage.
    pub const fn percent(self) -> u8 {
        self.0
    }

    /// Returns the used units at which a limit reaches the threshold: its part of the capacity, rounded up.
    pub fn units(self, limit: &Limit) -> u64 {
        let part = (u128::from(limit.capacity()) * u128::from(self.0)).div_ceil(100);
        u64::try_from(part).unwrap_or(u64::MAX)
    }
}

impl FromStr for Threshold {
    type Err = ThresholdError;

    fn from_str(text: &str) -> Result<Self, ThresholdError> {
        let digits = text.strip_suffix('%').filter(|digits| {
            // `parse` alone accepts a sign.
            digits.bytes().all(|byte| byte.is_ascii_digit())
        });
        let threshold = digits.and_then(|digits| Self::new(digits.parse().ok()?).ok());
        threshold.ok_or_else(|| ThresholdError(text.chars().take(80).collect()))
    }
}

impl fmt::Display for Threshold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}%", self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_and_prints() {
        for (text, percent) in [("1%", 1), ("80%", 80), ("100%", 100)] {
            assert_eq!(text.parse(), Threshold::new(percent));
            assert_eq!(Threshold::new(percent).unwrap().to_string(), text);
        }
        for bad in ["", "%", "80", "0%", "101%", "256%", "+5%", "-1%", "5 %", "5.5%", "a%", "\n"] {
            let error = bad.parse::<Threshold>().unwrap_err().to_string();
            assert!(error.ends_with("write a percentage from `1%` to `100%`"), "{error}");
            assert!(!error.contains('\n'), "{error}");
        }
        assert!(Threshold::new(0).is_err() && Threshold::new(101).is_err());
    }

    #[test]
    fn units_are_rounded_up_and_never_above_the_capacity() {
        let burst = Limit::per_second(10).with_burst(30).unwrap();
        for (percent, units) in [(1, 1), (10, 3), (11, 4), (99, 30), (100, 30)] {
            assert_eq!(Threshold::new(percent).unwrap().units(&burst), units);
        }
        let largest = Limit::per_second(u32::MAX);
        assert_eq!(Threshold::FULL.units(&largest), largest.capacity());
    }
}
