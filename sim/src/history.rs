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
    /// Refunds, and reservations that were settled with fewer units.
    pub returns: Vec<Update>,
    /// Units beyond those of a reservation.
    pub extras: Vec<Update>,
    /// Resets.
    pub resets: Vec<Update>,
    /// The instant at which the last fault ended.
    pub healed: u64,
    /// Observations that are wrong by themselves.
    pub violations: Vec<String>,
}

/// A kind of check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A check of a cost, or a peek if the cost is 0.
    Check,
    /// An attempt to take a permit.
    Permit,
    /// A reservation.
    Reserve,
    /// A check that may be granted a part of its cost.
    UpTo,
    /// Units that were spent before, and are recorded in any case.
    Spent,
}

/// A check, or an attempt to take a permit.
#[derive(Clone, Debug)]
pub struct Check {
    /// The host.
    pub host: usize,
    /// The number of restarts of the host before.
    pub incarnation: usize,
    /// The policies that applied.
    pub policies: Vec<usize>,
    /// The revision of the policies.
    pub revision: usize,
    /// The key.
    pub key: usize,
    /// The cost.
    pub cost: u64,
    /// The kind.
    pub kind: Kind,
    /// The id. Repetitions of a request have the same.
    pub id: Option<u64>,
    /// When it started.
    pub started: u64,
    /// When it was answered or cancelled.
    pub ended: u64,
    /// For policies that were charged one after the other: when, by the clock of the server.
    pub times: Vec<(usize, u64)>,
    /// The answer; `None` if the client stopped waiting, or if the host crashed.
    pub answer: Option<Answer>,
    /// When the client began to return the permit.
    pub released: Option<u64>,
    /// When the store had confirmed that.
    pub returned: Option<u64>,
    /// When the last attempt to renew the permit had ended.
    pub renewed: Option<u64>,
}

/// The answer to a check.
#[derive(Clone, Copy, Debug)]
pub struct Answer {
    /// True if it was allowed.
    pub is_allowed: bool,
    /// The units that were charged, if it was allowed.
    pub units: u64,
    /// The source of the decision.
    pub source: Source,
    /// The time of the decision by the clock of the server. 0 if a failure mode decided.
    pub decided_at: u64,
    /// The remaining units of the tightest limit.
    pub remaining: u64,
    /// Microseconds after which a denied request fits.
    pub retry_after: Option<u64>,
    /// The time of the answer by the clock of the host.
    pub host_time: u64,
}

/// A change of the counters of a key other than a check.
#[derive(Clone, Debug)]
pub struct Update {
    /// The policies that applied.
    pub policies: Vec<usize>,
    /// The key.
    pub key: usize,
    /// The units.
    pub units: u64,
    /// When it started.
    pub started: u64,
    /// When it ended, successfully or not.
    pub ended: u64,
    /// True if the server certainly ran it.
    pub is_certain: bool,
}

fn micros(time: std::time::Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

/// Returns the time of a decision by the clock of the server. 0 if a failure mode decided.
pub fn decided_at(decision: &Decision) -> u64 {
    let reset_at = decision.reset_at().map_or(0, |reset| reset.as_micros());
    reset_at.saturating_sub(micros(decision.reset_after()))
}

impl Answer {
    /// Reads the decision about a charge of this many units.
    pub fn new(decision: &Decision, units: u64, host_time: u64) -> Self {
        Self {
            is_allowed: decision.is_allowed(),
            units,
            source: decision.source(),
            decided_at: decided_at(decision),
            remaining: decision.remaining(),
            retry_after: decision.retry_after().map(micros),
            host_time,
        }
    }

    /// Returns true if a failure mode decided.
    pub fn is_degraded(&self) -> bool {
        self.source == Source::Fallback
    }
}

impl Check {
    /// Returns the answer, unless a failure mode decided.
    pub fn store_answer(&self) -> Option<Answer> {
        self.answer.filter(|answer| !answer.is_degraded())
    }

    /// Returns the answer of a failure mode.
    pub fn fallback_answer(&self) -> Option<Answer> {
        self.answer.filter(Answer::is_degraded)
    }
}

impl History {
    /// Adds a check, and returns its index.
    pub fn start(&self, check: Check) -> usize {
        let mut events = self.events.lock();
        events.checks.push(check);
        events.checks.len() - 1
    }

    /// Records an observation that is wrong by itself.
    pub fn violation(&self, problem: String) {
        self.change(|events| events.violations.push(problem));
    }

    /// Changes the events.
    pub fn change<T>(&self, change: impl FnOnce(&mut Events) -> T) -> T {
        change(&mut self.events.lock())
    }
}
