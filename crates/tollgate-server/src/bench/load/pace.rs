//! When the next request is due.

use std::time::Duration;

/// So many requests in a time, whether or not they are answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Rate {
    pub(crate) requests: u64,
    pub(crate) time: Duration,
    /// How many of them come at one instant.
    pub(crate) at_once: u64,
}

/// The requests of one thread.
#[derive(Debug)]
pub(super) struct Pace {
    /// `None` if a request is due whenever there is room.
    rate: Option<Rate>,
    /// Which of the threads this is, and how many there are: they take turns.
    turn: (u64, u64),
    /// Requests so far.
    sent: u64,
    most: u64,
}

impl Pace {
    /// At a rate of all threads together, and so many requests of this thread.
    pub(super) fn new(rate: Option<Rate>, turn: (u64, u64), most: Option<u64>) -> Self {
        Self { rate, turn, sent: 0, most: most.unwrap_or(u64::MAX) }
    }

    /// When the next request should be sent; `None` if there is none.
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

    pub(super) fn is_open(&self) -> bool {
        self.rate.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_kept_whatever_the_answers_do() {
        let rate = Rate { requests: 3, time: Duration::from_secs(1), at_once: 1 };
        let mut paces = [0, 1].map(|which| Pace::new(Some(rate), (which, 2), Some(2)));
        let dues = paces.each_mut().map(|pace| {
            let first = pace.due(7);
            pace.advance();
            let second = pace.due(9_000_000_000);
            pace.advance();
            (first, second, pace.due(0))
        });
        // Every third of a second, in turns.
        let expected =
            [(Some(0), Some(666_666_666), None), (Some(333_333_333), Some(1_000_000_000), None)];
        assert_eq!(dues, expected);
    }

    #[test]
    fn bursts_are_as_far_apart_as_they_should_be() {
        let rate = Rate { requests: 2, time: Duration::from_nanos(50), at_once: 2 };
        let mut pace = Pace::new(Some(rate), (0, 1), None);
        let mut due = || {
            let due = pace.due(0);
            pace.advance();
            due
        };
        let dues = [(); 5].map(|()| due());
        assert_eq!(dues, [0, 0, 50, 50, 100].map(Some));
    }

    #[test]
    fn without_a_rate_it_is_always_now() {
        let mut pace = Pace::new(None, (0, 1), None);
        assert_eq!((pace.due(5), pace.is_open()), (Some(5), false));
        pace.advance();
        assert_eq!(pace.due(6), Some(6));
    }
}
