//! The sliding window of the TypeScript limiter's repository, with exactly its results.
//!
//! Its estimate is `floor(previous * (1 - weight)) + current` in doubles, where `weight` is the time in milliseconds
//! modulo the window in *seconds*, over the window. So the weight runs through all its values once per `window`
//! milliseconds.

use std::time::Duration;

use pacegate::{Limit, algorithm::Outcome};

use super::{MILLI_MICROS, SECOND_MICROS};
use crate::cell::period_micros;

/// The counts of the current and the previous window.
#[derive(Clone, Copy, Debug)]
pub(super) struct Pair {
    pub(super) previous: u64,
    /// Includes the units of the request to answer.
    pub(super) current: u64,
    /// The start of the window, and the time, in microseconds.
    pub(super) start: u64,
    pub(super) now: u64,
}

impl Pair {
    /// Returns the answer to a request that was counted.
    pub(super) fn outcome(&self, limit: &Limit, cost: u64) -> Outcome {
        if limit.amount() == 0 {
            return Outcome::denied(0, None, Duration::ZERO);
        }
        let window = Window::of(limit);
        let carried = window.carried(self.previous, self.now / MILLI_MICROS);
        let total = carried.saturating_add(self.current);
        let remaining = limit.amount().saturating_sub(total);
        let reset = Duration::from_micros(self.empty_at(&window).saturating_sub(self.now));
        // A peek checks for one unit.
        let wanted = if cost == 0 { total.saturating_add(1) } else { total };
        if wanted <= limit.amount() {
            return Outcome::admitted(remaining, reset);
        }
        let retry_at = self.admits_at(limit, &window, cost.max(1)) * MILLI_MICROS;
        let wait = Duration::from_micros(retry_at.saturating_sub(self.now));
        Outcome::denied(remaining, Some(wait), reset)
    }

    /// Returns the time at which both counts have expired.
    fn empty_at(&self, window: &Window) -> u64 {
        let end = self.start + window.seconds * SECOND_MICROS;
        match (self.current, self.previous) {
            (0, 0) => self.now,
            (0, _) => end,
            _ => end + window.seconds * SECOND_MICROS,
        }
    }

    /// Returns the first millisecond at which the cost is admitted if nothing else is counted.
    fn admits_at(&self, limit: &Limit, window: &Window, cost: u64) -> u64 {
        let length = window.seconds * 1_000;
        let next = self.start / MILLI_MICROS + length;
        let amount = limit.amount();
        let now_room = amount.checked_sub(self.current.saturating_add(cost));
        let this = now_room
            .and_then(|room| window.first(self.previous, room, self.now / MILLI_MICROS + 1..next));
        let then_room = amount.checked_sub(cost);
        let following =
            || then_room.and_then(|room| window.first(self.current, room, next..next + length));
        this.or_else(following).unwrap_or(next + length)
    }
}

/// A window of whole seconds.
struct Window {
    seconds: u64,
}

impl Window {
    fn of(limit: &Limit) -> Self {
        Self { seconds: (period_micros(limit) / SECOND_MICROS).max(1) }
    }

    /// Returns the part of the previous count that is added at a millisecond.
    #[expect(
        clippy::float_arithmetic,
        reason = "the other limiter computes in doubles, and both must agree"
    )]
    fn carried(&self, previous: u64, millis: u64) -> u64 {
        let weight = (millis % self.seconds) as f64 / self.seconds as f64;
        (previous as f64 * (1.0 - weight)).floor() as u64
    }

    /// Returns the first millisecond of `span` at which at most `room` is added.
    fn first(&self, previous: u64, room: u64, span: std::ops::Range<u64>) -> Option<u64> {
        // Within each run of `seconds` milliseconds, the added part decreases.
        let (mut fits, mut exceeds) = (self.seconds, 0);
        while exceeds < fits {
            let middle = exceeds + (fits - exceeds) / 2;
            if self.carried(previous, middle) <= room {
                fits = middle;
            } else {
                exceeds = middle + 1;
            }
        }
        let wait = fits.saturating_sub(span.start % self.seconds);
        let found = span.start + wait;
        (fits < self.seconds && span.contains(&found)).then_some(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: u64 = 1_700_000_040 * SECOND_MICROS;

    fn at(millis: u64, previous: u64, current: u64) -> Pair {
        Pair { previous, current, start: START, now: START + millis * MILLI_MICROS }
    }

    #[test]
    fn the_estimate_is_that_of_javascript() {
        let window = Window { seconds: 10 };
        // In exact arithmetic 10 * (1 - 9/10) is 1; in doubles it is below.
        assert_eq!(window.carried(10, 9), 0);
        assert_eq!([0, 1, 5, 10, 15].map(|millis| window.carried(10, millis)), [10, 9, 5, 10, 5]);
    }

    #[test]
    fn the_weight_jumps_within_milliseconds() {
        let limit: Limit = "10/10s sliding-window".parse().unwrap();
        let admitted = |millis| at(millis, 10, 5).outcome(&limit, 1).is_admitted();
        let first = START / MILLI_MICROS % 10;
        assert_eq!(first, 0);
        assert_eq!([0, 4, 5, 9, 10, 15].map(admitted), [false, false, true, true, false, true]);
    }

    /// Each hint is compared with the first millisecond at which the request fits.
    #[test]
    fn a_denied_request_fits_after_retry_after_and_not_before() {
        for (previous, current, cost, millis) in
            [(10, 8, 1, 0), (10, 12, 1, 3), (300, 2, 3, 9_995), (0, 11, 1, 7), (7, 100, 10, 9_999)]
        {
            let limit: Limit = "10/10s sliding-window".parse().unwrap();
            let denied = at(millis, previous, current).outcome(&limit, cost);
            let hint = denied.retry_after().unwrap().as_micros() as u64 / MILLI_MICROS;
            let fits = |millis: u64| {
                let pair = match millis / 10_000 {
                    0 => at(millis, previous, current + cost),
                    1 => at(millis, current, cost),
                    _ => at(millis, 0, cost),
                };
                pair.outcome(&limit, cost).is_admitted()
            };
            let first = (millis + 1..).find(|&millis| fits(millis)).unwrap();
            assert_eq!(hint, first - millis, "{previous} {current} {cost} {millis}");
        }
    }

    #[test]
    fn both_counts_expire_two_windows_later() {
        let limit: Limit = "10/10s sliding-window".parse().unwrap();
        let reset =
            |previous, current| at(4_000, previous, current).outcome(&limit, 0).reset_after();
        assert_eq!([reset(0, 0), reset(3, 0), reset(3, 1)].map(|time| time.as_secs()), [0, 6, 16]);
    }
}
