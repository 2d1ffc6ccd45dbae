//! The schedule of requests.

use std::time::Duration;

/// A fixed request rate, independent of the responses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rate {
    /// Number of requests per `time`.
    pub requests: u64,
    /// Period in which `requests` are sent.
    pub time: Duration,
    /// Number of requests sent at the same instant.
    pub at_once: u64,
}

/// The schedule of one thread.
#[derive(Debug)]
pub(super) struct Schedule {
    /// `None` if a request is due whenever there is room.
    rate: Option<Rate>,
    /// Index of this thread and number of threads: the threads take turns.
    turn: (u64, u64),
    /// Requests sent so far.
    sent: u64,
    most: u64,
}

/// Maximum number of calls to report requests that were never sent.
const MAX_GROUPS: u64 = 1_000_000;

impl Schedule {
    /// Creates the schedule for a rate of all threads together, with at most `most` requests of this thread.
    pub(super) fn new(rate: Option<Rate>, turn: (u64, u64), most: Option<u64>) -> Self {
        Self { rate, turn, sent: 0, most: most.unwrap_or(u64::MAX) }
    }

    /// Returns when the next request is due; `None` after the last request.
    #[inline]
    pub(super) fn due(&self, now: u64) -> Option<u64> {
        if self.sent >= self.most {
            return None;
        }
        let Some(rate) = self.rate else { return Some(now) };
        let (which, threads) = self.turn;
        let before = u128::from(self.sent) * u128::from(threads) + u128::from(which);
        let before = before - before % u128::from(rate.at_once);
        u64::try_from(before * rate.time.as_nanos() / u128::from(rate.requests)).ok()
    }

    #[inline]
    pub(super) fn advance(&mut self) {
        self.sent += 1;
    }

    /// Skips all requests that are due before `end`. Reports them in groups (number of requests, due time of
    /// the last one), because an unattainable rate can skip too many to report them one by one.
    pub(super) fn skip_until(&mut self, end: u64, mut skipped: impl FnMut(u64, u64)) {
        if !self.is_open() {
            return;
        }
        let part = (self.left_until(end) / MAX_GROUPS).max(1);
        loop {
            let part = part.min(self.left_until(end));
            let Some(last) = part.checked_sub(1) else { return };
            self.sent += last;
            let due = self.due(0).unwrap_or(end);
            self.sent += 1;
            skipped(part, due);
        }
    }

    /// Returns the number of unsent requests that are due before `end`.
    fn left_until(&self, end: u64) -> u64 {
        let Some(rate) = self.rate else { return 0 };
        let (which, threads) = self.turn;
        // Of all threads: up to the end of the last burst that begins before `end`.
        let bursts = u128::from(end) * u128::from(rate.requests);
        let bursts = bursts.div_ceil(rate.time.as_nanos().max(1) * u128::from(rate.at_once));
        let all = bursts * u128::from(rate.at_once);
        let own = all.saturating_sub(which.into()).div_ceil(threads.into());
        u64::try_from(own).unwrap_or(u64::MAX).min(self.most).saturating_sub(self.sent)
    }

    pub(super) fn is_open(&self) -> bool {
        self.rate.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_schedule_does_not_depend_on_responses() {
        let rate = Rate { requests: 3, time: Duration::from_secs(1), at_once: 1 };
        let mut schedules = [0, 1].map(|which| Schedule::new(Some(rate), (which, 2), Some(2)));
        let dues = schedules.each_mut().map(|schedule| {
            let first = schedule.due(7);
            schedule.advance();
            let second = schedule.due(9_000_000_000);
            schedule.advance();
            (first, second, schedule.due(0))
        });
        // Every third of a second, in turns.
        let expected =
            [(Some(0), Some(666_666_666), None), (Some(333_333_333), Some(1_000_000_000), None)];
        assert_eq!(dues, expected);
    }

    #[test]
    fn bursts_are_one_period_apart() {
        let rate = Rate { requests: 2, time: Duration::from_nanos(50), at_once: 2 };
        let mut schedule = Schedule::new(Some(rate), (0, 1), None);
        let mut due = || {
            let due = schedule.due(0);
            schedule.advance();
            due
        };
        let dues = [(); 5].map(|()| due());
        assert_eq!(dues, [0, 0, 50, 50, 100].map(Some));
    }

    #[test]
    fn every_skipped_request_is_reported() {
        let skipped = |rate, turn, sent, end| {
            let mut schedule = Schedule::new(Some(rate), turn, Some(1_000_000_000));
            (0..sent).for_each(|_| schedule.advance());
            let (mut count, mut dues) = (0, Vec::new());
            schedule.skip_until(end, |part, due| {
                count += part;
                dues.push(due);
            });
            assert!(schedule.due(0) >= Some(end), "{rate:?}");
            (count, dues)
        };
        let steady = Rate { requests: 3, time: Duration::from_nanos(100), at_once: 1 };
        assert_eq!(skipped(steady, (0, 1), 1, 100), (2, vec![33, 66]));
        assert_eq!(skipped(steady, (0, 1), 1, 101), (3, vec![33, 66, 100]));
        assert_eq!(skipped(steady, (1, 2), 0, 101), (2, vec![33, 100]));
        assert_eq!(skipped(steady, (0, 1), 9, 101), (0, vec![]));
        let bursts = Rate { requests: 3, time: Duration::from_nanos(50), at_once: 3 };
        assert_eq!(skipped(bursts, (0, 2), 1, 51), (2, vec![0, 50]));
        let fast = Rate { requests: 100, time: Duration::from_nanos(1), at_once: 1 };
        let (count, dues) = skipped(fast, (0, 1), 0, 2_500_000);
        assert_eq!((count, dues.last()), (250_000_000, Some(&2_499_999)));
        assert!(dues.len() <= 1_000_001, "{}", dues.len());
    }

    #[test]
    fn without_a_rate_a_request_is_always_due() {
        let mut schedule = Schedule::new(None, (0, 1), None);
        assert_eq!((schedule.due(5), schedule.is_open()), (Some(5), false));
        schedule.advance();
        assert_eq!(schedule.due(6), Some(6));
        schedule.skip_until(u64::MAX, |_, _| panic!("nothing was due"));
    }
}
