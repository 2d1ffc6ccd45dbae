//! Everything that clients observed, and the faults that explain deviations.

use std::sync::Arc;

use pacegate::{Decision, Source};
use parking_lot::Mutex;

/// What happened in a simulation. Clones share one history. All times are virtual microseconds unless a field says
/// otherwise.
#[derive(Clone, Debug, Default)]
pub struct History {
    events: Arc<Mutex<Events>>,
}

/// The events of a history.
#[derive(Debug, Default)]
pub struct Events {
    /// Checks, in the order in which they started.
    pub checks: Vec<Check>,
    /// Refunds.
    pub refunds: Vec<Refund>,
    /// The instant at which the last fault ended.
    pub healed: u64,
    /// Observations that are wrong by themselves.
    pub violations: Vec<String>,
}

/// A check, or an attempt to take a permit.
#[derive(Clone, Debug)]
pub struct Check {
    /// The host.
    pub host: usize,
    /// The policies that applied.
    pub policies: Vec<usize>,
    /// The key.
    pub key: usize,
    /// The cost.
    pub cost: u64,
    /// Whether it was an attempt to take a permit.
    pub is_permit: bool,
    /// When it started.
    pub started: u64,
    /// When it was answered or cancelled.
    pub ended: u64,
    /// The answer; `None` if the client stopped waiting.
    pub answer: Option<Answer>,
    /// When the client began to return the permit.
    pub released: Option<u64>,
}

/// The answer to a check.
#[derive(Clone, Copy, Debug)]
pub struct Answer {
    /// True if it was allowed.
    pub is_allowed: bool,
    /// The source of the decision.
    pub source: Source,
    /// The time of the decision by the clock of the server. 0 if a failure mode decided.
    pub decided_at: u64,
    /// Microseconds after which a denied request fits.
    pub retry_after: Option<u64>,
    /// The time of the answer by the clock of the host.
    pub host_time: u64,
}

/// Units that a client returned.
#[derive(Clone, Copy, Debug)]
pub struct Refund {
    /// The key.
    pub key: usize,
    /// The cost.
    pub cost: u64,
    /// When it started.
    pub started: u64,
}

impl Answer {
    /// Reads a decision.
    pub fn new(decision: &Decision, host_time: u64) -> Self {
        let micros =
            |time: std::time::Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        let reset_at = decision.reset_at().map_or(0, |reset| reset.as_micros());
        Self {
            is_allowed: decision.is_allowed(),
            source: decision.source(),
            decided_at: reset_at.saturating_sub(micros(decision.reset_after())),
            retry_after: decision.retry_after().map(micros),
            host_time,
        }
    }

    /// Returns true if a failure mode decided.
    pub fn is_degraded(&self) -> bool {
        self.source == Source::Fallback
    }
}

impl History {
    /// Adds a check, and returns its index.
    pub fn start(&self, check: Check) -> usize {
        let mut events = self.events.lock();
        events.checks.push(check);
        events.checks.len() - 1
    }

    /// Changes the events.
    pub fn change<T>(&self, change: impl FnOnce(&mut Events) -> T) -> T {
        change(&mut self.events.lock())
    }
}
