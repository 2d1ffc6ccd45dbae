//! Inline limits: limits that come with a request instead of from a policy. All listeners use these rules.

use std::time::Duration;

use pacegate::{Limit, ParseLimitError, Timestamp};
use smallvec::SmallVec;

/// The limits of one key. No two have the same algorithm and period, so each has its own counter.
pub(crate) type Limits = SmallVec<[Limit; 2]>;

/// The reason why an inline limit is rejected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the message of each variant documents it")]
pub enum InlineLimitError {
    #[error("no more than {MAX_LIMITS} limits at once")]
    TooMany,
    #[error(transparent)]
    NoLimit(#[from] ParseLimitError),
    /// The limits would share one counter, and a request would be charged twice.
    #[error("`{0}` and `{1}` have one algorithm and period")]
    Alike(Limit, Limit),
    #[error(transparent)]
    TooLong(#[from] TooLong),
}

/// An inline limit whose counter would live too long: clients must not occupy memory for any time they choose.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "`{0}` takes longer than {MAX_RESET_DAYS} days to reset, the most for a limit that comes with a \
     request: write a policy for it"
)]
pub struct TooLong(Limit);

/// The maximum number of days that a charge to an inline limit may count.
const MAX_RESET_DAYS: u64 = 31;
const MAX_RESET: Duration = Duration::from_secs(MAX_RESET_DAYS * 24 * 3_600);

/// Maximum number of inline limits in a request.
pub(crate) const MAX_LIMITS: usize = 16;

/// Parses a limit and adds it.
pub(crate) fn add(limits: &mut Limits, text: &str) -> Result<(), InlineLimitError> {
    if limits.len() == MAX_LIMITS {
        return Err(InlineLimitError::TooMany);
    }
    let limit: Limit = text.parse()?;
    if let Some(&other) = limits.iter().find(|other| other.counts_like(&limit)) {
        return Err(InlineLimitError::Alike(other, limit));
    }
    limits.push(check(limit)?);
    Ok(())
}

/// Rejects a limit whose counter would live too long.
pub(crate) fn check(limit: Limit) -> Result<Limit, TooLong> {
    let reset = match limit.calendar() {
        // The longest window: the epoch may be in the middle of one.
        Some(_) => limit.period(),
        // A charge counts longest at the start of a window, as the epoch is.
        None => Duration::from_micros(limit.counts_until(Timestamp::EPOCH).as_micros()),
    };
    if reset > MAX_RESET { Err(TooLong(limit)) } else { Ok(limit) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_resets_within_31_days() {
        for text in [
            "5/31d",
            "0/3660d",
            "1/31d sliding-log",
            "1/31d concurrency",
            "1/15d sliding-window",
            "1/day burst 31",
            "1000/3660d burst 8",
            "1000000000/hour burst 3",
            "1/month",
            "1/week starting monday",
        ] {
            let limit: Limit = text.parse().unwrap();
            assert_eq!(check(limit), Ok(limit), "{text}");
        }
        for text in [
            "5/32d",
            "1/32d sliding-log",
            "1/32d concurrency",
            "1/16d sliding-window",
            "1/day burst 32",
            "1/3660d burst 999999",
            "1/year",
        ] {
            let limit: Limit = text.parse().unwrap();
            assert_eq!(check(limit), Err(TooLong(limit)), "{text}");
        }
        let error = add(&mut Limits::new(), "1/day burst 32").unwrap_err().to_string();
        let expected = "`1/day burst 32` takes longer than 31 days to reset, the most for a limit \
                        that comes with a request: write a policy for it";
        assert_eq!(error, expected);
    }
}
