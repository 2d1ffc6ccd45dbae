//! The clients of a pattern and their next requests.

use std::{cmp::Reverse, collections::BinaryHeap};

use super::spec::{Kind, Pattern};
use crate::{random::Random, simulate::replay::ClientDecision};

#[derive(Debug)]
pub(super) struct Clients {
    pattern: Pattern,
    random: Random,
    queue: BinaryHeap<Reverse<Step>>,
    /// The step whose request is being decided.
    current: Option<Step>,
    end: u64,
    /// Accumulated fraction of a microsecond, in units of 1 / `PARTS`.
    rest: u64,
}

/// A scheduled request of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Step {
    at: u64,
    client: u64,
    /// Remaining requests of the burst.
    left: u64,
}

/// Placeholder for a client that is drawn at random when the request is sent.
const SOMEBODY: u64 = u64::MAX;
/// Number of the greedy client.
const GREEDY: u64 = 0;
const SECOND: u64 = 1_000_000;
/// Time between the requests of a burst, in microseconds.
const WITHIN_BURST: u64 = 20_000;

/// Fractions of a microsecond. Used if the mean time between requests is below `COARSE` microseconds, where
/// rounding would matter.
const PARTS: u64 = 1_000_000;
const COARSE: u64 = 1_000;

/// Traffic in each hour of the day, in percent of the mean.
const HOURS: [u64; 24] = [
    45, 34, 27, 24, 25, 33, 52, 80, 112, 136, 146, 148, 144, 142, 140, 137, 134, 138, 150, 164,
    160, 135, 102, 68,
];

impl Clients {
    pub(super) fn new(pattern: Pattern, start: u64, mut random: Random) -> Self {
        let start = start.saturating_add(pattern.from);
        let mut queue = BinaryHeap::new();
        let mut add = |at, client, left| queue.push(Reverse(Step { at, client, left }));
        match pattern.kind {
            Kind::Steady | Kind::Diurnal => add(start, SOMEBODY, 0),
            Kind::Greedy => {
                add(start, SOMEBODY, 0);
                add(start, GREEDY, 0);
            }
            Kind::Bursts => (0..pattern.clients)
                .for_each(|client| add(start + random.below(pattern.every), client, pattern.size)),
            Kind::RetryStorm => {
                (0..pattern.clients)
                    .for_each(|client| add(start + random.below(SECOND), client, 0));
            }
        }
        let end = pattern.length.map_or(u64::MAX, |length| start.saturating_add(length));
        Self { pattern, random, queue, current: None, end, rest: 0 }
    }

    /// Returns the time of the next request, or `None` after the end of the pattern.
    pub(super) fn next(&self) -> Option<u64> {
        self.queue.peek().map(|Reverse(step)| step.at).filter(|at| *at < self.end)
    }

    /// Takes the next step and returns its client.
    pub(super) fn client(&mut self) -> (u64, &mut Random) {
        self.current = self.queue.pop().map(|Reverse(step)| step);
        let client = match self.current {
            Some(Step { client: SOMEBODY, .. }) | None => {
                1 + self.random.skewed(self.pattern.clients)
            }
            Some(step) => step.client,
        };
        (client, &mut self.random)
    }

    /// Schedules the client's next request, depending on the decision.
    pub(super) fn answer(&mut self, at: u64, client: u64, answer: Option<&ClientDecision>) {
        let Some(step) = self.current.take() else { return };
        let Pattern { rate, greedy, every, size, .. } = self.pattern;
        let next = match self.pattern.kind {
            Kind::Bursts if step.left > 1 => {
                Step { at: at + WITHIN_BURST, left: step.left - 1, ..step }
            }
            Kind::Bursts => {
                let jitter = self.random.below(every / 8 + 1);
                Step { at: at + every - every / 16 + jitter, left: size, ..step }
            }
            Kind::RetryStorm => Step { at: at + self.patience(answer), client, left: 0 },
            _ if step.client == GREEDY => Step { at: at + self.pause(greedy.1, greedy.0), ..step },
            Kind::Diurnal => {
                let (time, count) = (rate.1.saturating_mul(100), rate.0.saturating_mul(share(at)));
                Step { at: at + self.pause(time, count), ..step }
            }
            _ => Step { at: at + self.pause(rate.1, rate.0), ..step },
        };
        self.queue.push(Reverse(next));
    }

    /// Draws the time until the next random request, for `count` requests per `time`.
    fn pause(&mut self, time: u64, count: u64) -> u64 {
        let mean = time / count.max(1);
        if mean >= COARSE {
            return self.random.gap(mean);
        }
        let mean = u128::from(time) * u128::from(PARTS) / u128::from(count.max(1));
        let gap = self.random.gap(u64::try_from(mean).unwrap_or(u64::MAX)) + self.rest;
        self.rest = gap % PARTS;
        gap / PARTS
    }

    /// Returns how long a client of a retry storm waits before its next request.
    fn patience(&self, answer: Option<&ClientDecision>) -> u64 {
        match answer {
            Some(answer) if !answer.allowed => match answer.retry_after_secs() {
                Some(seconds) if self.pattern.obey => seconds * SECOND,
                _ => self.pattern.retry,
            },
            _ => self.pattern.every,
        }
    }
}

/// Returns the traffic at a time of day, in percent of the mean.
fn share(at: u64) -> u64 {
    let minutes = at / (60 * SECOND) % 1_440;
    let hour = usize::try_from(minutes / 60).unwrap_or_default();
    let (from, to) = (HOURS[hour], HOURS[(hour + 1) % 24]);
    let minute = minutes % 60;
    (from * (60 - minute) + to * minute) / 60
}
