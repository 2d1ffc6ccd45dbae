//! The clients of a pattern, each with what it does next.

use std::{cmp::Reverse, collections::BinaryHeap};

use super::{
    random::Random,
    spec::{Kind, Pattern},
};
use crate::simulate::replay::Answer;

#[derive(Debug)]
pub(super) struct Clients {
    pattern: Pattern,
    random: Random,
    queue: BinaryHeap<Reverse<Step>>,
    /// What is under way.
    current: Option<Step>,
    end: u64,
    /// What is left of a microsecond, in parts of it.
    rest: u64,
}

/// Something a client is about to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Step {
    at: u64,
    client: u64,
    /// Requests of a burst that are left.
    left: u64,
}

/// Whoever of the crowd it is.
const SOMEBODY: u64 = u64::MAX;
/// The one that wants it all.
const GREEDY: u64 = 0;
const SECOND: u64 = 1_000_000;
/// Between the requests of a burst.
const WITHIN_BURST: u64 = 20_000;

/// Parts of a microsecond, for rates at which that matters: where the mean is not so many of them.
const PARTS: u64 = 1_000_000;
const COARSE: u64 = 1_000;

/// How busy each hour of the day is, in percent of the mean.
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

    /// When something happens next, if anything does.
    pub(super) fn next(&self) -> Option<u64> {
        self.queue.peek().map(|Reverse(step)| step.at).filter(|at| *at < self.end)
    }

    /// Who does it.
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

    /// What that leads to.
    pub(super) fn answer(&mut self, at: u64, client: u64, answer: Option<&Answer>) {
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

    /// How long until the next request that comes by chance, of so many in a time.
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

    /// How long a client of a retry storm waits before it asks again.
    fn patience(&self, answer: Option<&Answer>) -> u64 {
        match answer {
            Some(answer) if !answer.allowed => match answer.retry_after_secs() {
                Some(seconds) if self.pattern.obey => seconds * SECOND,
                _ => self.pattern.retry,
            },
            _ => self.pattern.every,
        }
    }
}

/// How busy an instant of the day is, in percent of the mean.
fn share(at: u64) -> u64 {
    let minutes = at / (60 * SECOND) % 1_440;
    let hour = usize::try_from(minutes / 60).unwrap_or_default();
    let (from, to) = (HOURS[hour], HOURS[(hour + 1) % 24]);
    let minute = minutes % 60;
    (from * (60 - minute) + to * minute) / 60
}
