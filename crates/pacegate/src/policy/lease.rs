use std::{fmt, str::FromStr};

use crate::Limit;

/// The units that a store may reserve in advance for this process, to be spent without a call to the store.
///
/// Its text form is a number of units, such as `50`, or a part of the capacity, such as `5%`.
///
/// A larger lease saves more calls. In return, units that one process has reserved and not spent are denied to the
/// others until the window ends: at most the lease times the number of processes, for each key. Limits are never
/// exceeded.
///
/// ```
/// use pacegate::{Limit, policy::Lease};
///
/// let lease: Lease = "5%".parse()?;
/// assert_eq!(lease.of(&Limit::per_minute(1_000)), 50);
/// assert_eq!(lease.of(&Limit::per_minute(10)), 1);
/// # Ok::<(), pacegate::policy::ParseLeaseError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Lease {
    /// A number of units.
    Units(u64),
    /// A percentage of the capacity, rounded down.
    Percent(u8),
}

/// Error of parsing a [`Lease`]: the text is neither a number of units nor a percentage from 1 to 100.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{}` is not a lease: write units, such as `50`, or a part from `1%` to `100%`", .0.escape_debug())]
pub struct ParseLeaseError(String);

impl Lease {
    /// Returns the units for `limit`: at least 1 and at most the capacity.
    pub fn of(self, limit: &Limit) -> u64 {
        let units = match self {
            Self::Units(units) => units,
            Self::Percent(percent) => {
                let part = u128::from(limit.capacity()) * u128::from(percent) / 100;
                u64::try_from(part).unwrap_or(u64::MAX)
            }
        };
        units.max(1).min(limit.capacity())
    }

    /// Returns true if it is more than 0 and at most 100%.
    pub(super) fn is_sound(self) -> bool {
        match self {
            Self::Units(units) => units > 0,
            Self::Percent(percent) => (1..=100).contains(&percent),
        }
    }
}

impl FromStr for Lease {
    type Err = ParseLeaseError;

    fn from_str(text: &str) -> Result<Self, ParseLeaseError> {
        let lease = match text.strip_suffix('%') {
            Some(percent) => number(percent).map(Self::Percent),
            None => number(text).map(Self::Units),
        };
        let error = || ParseLeaseError(text.chars().take(80).collect());
        lease.filter(|lease| lease.is_sound()).ok_or_else(error)
    }
}

impl fmt::Display for Lease {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Units(units) => write!(f, "{units}"),
            Self::Percent(percent) => write!(f, "{percent}%"),
        }
    }
}

/// Parses digits only; `parse` alone accepts a sign.
fn number<T: FromStr>(text: &str) -> Option<T> {
    text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_and_prints() {
        for (text, lease) in [
            ("1", Lease::Units(1)),
            ("50", Lease::Units(50)),
            ("1%", Lease::Percent(1)),
            ("100%", Lease::Percent(100)),
        ] {
            assert_eq!(text.parse(), Ok(lease));
            assert_eq!(lease.to_string(), text);
        }
        for bad in ["", "%", "0", "0%", "101%", "256%", "+5", "-1", "5 %", "5.5%", "a", "\n"] {
            let error = bad.parse::<Lease>().unwrap_err().to_string();
            assert!(error.ends_with("write units, such as `50`, or a part from `1%` to `100%`"));
            assert!(!error.contains('\n'), "{error}");
        }
    }

    #[test]
    fn is_at_least_one_unit_and_at_most_the_capacity() {
        let burst = Limit::per_second(10).with_burst(30).unwrap();
        assert_eq!(Lease::Units(7).of(&burst), 7);
        assert_eq!(Lease::Units(31).of(&burst), 30);
        assert_eq!(Lease::Percent(50).of(&burst), 15);
        assert_eq!(Lease::Percent(1).of(&burst), 1);
        assert_eq!(Lease::Percent(1).of(&Limit::per_second(0)), 0, "of nothing, nothing");
    }
}
