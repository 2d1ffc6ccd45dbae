//! The number of units that a bucket is assigned at once.
//!
//! An assignment is charged before it is sent, so any number keeps the limit. The number decides how well the limit is
//! used: units of an Envoy that stops sending requests are lost until the window ends, and an Envoy with too few denies
//! requests while units are left.

use std::time::Duration;

/// Requests for each thousand seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Rate(u64);

/// The state of one limit before an assignment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Budget {
    /// The units of the limit.
    pub(super) limit: u64,
    /// The units that are left.
    pub(super) remaining: u64,
    /// The sum of [`need`] over all buckets of this server that use the limit.
    pub(super) total_need: u64,
}

/// The time that an assignment should last: the interval between two reports of Envoy, and one second to answer.
const HORIZON: Duration = Duration::from_secs(6);
/// The part of a limit that a bucket gets without demand is one in this many units.
const IDLE_PART: u64 = 100;
/// The part of a limit that a bucket with unknown demand needs is one in this many units.
const FIRST_PART: u64 = 10;
/// The units that a bucket with unknown demand needs at least.
const FIRST_UNITS: u64 = 10;

impl Rate {
    /// Returns the rate of this many requests in this time.
    pub(super) fn new(requests: u64, time: Duration) -> Self {
        let millis = time.as_millis().max(1);
        Self(u64::try_from(u128::from(requests) * 1_000_000 / millis).unwrap_or(u64::MAX))
    }

    /// Returns the requests in this time, rounded up.
    pub(super) fn requests_in(self, time: Duration) -> u64 {
        let requests = (u128::from(self.0) * time.as_millis()).div_ceil(1_000_000);
        u64::try_from(requests).unwrap_or(u64::MAX)
    }

    /// Returns the time in which this many requests arrive, rounded down. `None` without requests.
    pub(super) fn time_of(self, requests: u64) -> Option<Duration> {
        let millis = (u128::from(requests) * 1_000_000).checked_div(u128::from(self.0))?;
        Some(Duration::from_millis(u64::try_from(millis).unwrap_or(u64::MAX)))
    }
}

/// Returns the units that a bucket needs, of a limit whose window ends in `left`: for its demand until the next report,
/// and a few more. `None`: the demand is not known yet.
pub(super) fn need(rate: Option<Rate>, limit: u64, left: Duration) -> u64 {
    let spare = (limit / IDLE_PART).max(1);
    let Some(rate) = rate else { return (limit / FIRST_PART).max(FIRST_UNITS) };
    let expected = rate.requests_in(left.min(HORIZON));
    expected.saturating_add(expected / 20).saturating_add(spare)
}

/// Returns the units to assign to a bucket that needs `need` units of a limit.
///
/// All buckets of this server together get at most two thirds of the units that are left, in proportion to their needs.
/// The rest is for other servers on the same store, and for buckets that appear later in the window.
pub(super) fn units(need: u64, budget: Budget) -> u64 {
    let Budget { limit, remaining, total_need } = budget;
    let total = u128::from(total_need.max(need)).max(1);
    let share = (u128::from(remaining) * u128::from(need)).div_ceil(total + total.div_ceil(2));
    // Ever smaller shares would leave the last units unused.
    let last = (limit / IDLE_PART).max(1).min(remaining);
    u64::try_from(share).unwrap_or(u64::MAX).max(last).min(need).min(remaining)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn rates_are_rounded_towards_enough_units() {
        let rate = Rate::new(7, 3 * SECOND);
        assert_eq!(rate.requests_in(3 * SECOND), 7);
        assert_eq!(rate.requests_in(SECOND), 3);
        assert_eq!(rate.time_of(7), Some(Duration::from_millis(3_000)));
        assert_eq!(Rate::new(0, SECOND).time_of(1), None);
        assert_eq!(Rate::new(u64::MAX, Duration::ZERO).requests_in(SECOND), u64::MAX / 1_000 + 1);
    }

    #[test]
    fn a_need_covers_the_time_until_the_next_report() {
        let rate = Some(Rate::new(100, SECOND));
        assert_eq!(need(rate, 10_000, 60 * SECOND), 600 + 30 + 100);
        assert_eq!(need(rate, 10_000, 2 * SECOND), 200 + 10 + 100, "not beyond the window");
        assert_eq!(need(Some(Rate::new(0, SECOND)), 10_000, 60 * SECOND), 100, "without demand");
        assert_eq!(need(None, 10_000, 60 * SECOND), 1_000, "of a new bucket");
        assert_eq!(need(None, 5, 60 * SECOND), 10);
    }

    #[test]
    fn shares_follow_the_demand() {
        let of = |need| units(need, Budget { limit: 1_000, remaining: 1_000, total_need: 1_000 });
        assert_eq!([of(900), of(90), of(10)], [600, 60, 10]);
    }

    #[test]
    fn a_share_is_never_above_the_need_or_the_rest() {
        for limit in [0, 1, 5, 99, 1_000] {
            for remaining in 0..=limit.min(120) {
                for need in [1, 2, 7, 100] {
                    for total_need in [0, 7, 100, 1_000_000] {
                        let budget = Budget { limit, remaining, total_need };
                        let units = units(need, budget);
                        assert!(units <= need && units <= remaining, "{need} {budget:?}");
                        assert_eq!(units == 0, remaining == 0, "{need} {budget:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn repeated_assignments_use_up_a_limit() {
        let (mut remaining, mut times) = (1_000, 0);
        while remaining > 0 {
            remaining -= units(1_000, Budget { limit: 1_000, remaining, total_need: 1_000 });
            times += 1;
        }
        assert!(times <= 16, "{times}");
    }
}
