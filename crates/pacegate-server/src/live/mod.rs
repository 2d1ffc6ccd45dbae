//! What the service did in the last minutes, for those who watch it: the dashboard and `pacegate top`.

mod history;
mod name;

use std::{collections::HashMap, sync::Arc, time::Duration};

use pacegate::{Clock, PolicyName, SystemClock, Timestamp};
use parking_lot::Mutex;
use tokio::time::sleep;

pub(crate) use self::{
    history::{Counts, History},
    name::{SHOWN, key_of, text_of},
};
use crate::gate::Gate;

/// What is remembered for those who watch. Decisions know nothing of it.
#[derive(Debug)]
pub(crate) struct Live {
    started: Timestamp,
    history: Mutex<History>,
    used: tokio::sync::Mutex<Option<Used>>,
}

/// How much of its budget the fullest of the busiest keys of each policy had used.
#[derive(Debug)]
pub(crate) struct Used {
    /// When, in seconds since the epoch, and by which revision.
    pub(crate) at: (u64, u64),
    /// From 0 to 1.
    pub(crate) shares: Arc<HashMap<PolicyName, f64>>,
}

impl Live {
    /// Begins now.
    pub(crate) fn new() -> Self {
        Self {
            started: SystemClock::new().now(),
            history: Mutex::default(),
            used: tokio::sync::Mutex::default(),
        }
    }

    /// When it began.
    pub(crate) fn started(&self) -> Timestamp {
        self.started
    }

    /// What was found when last looked. Whoever looks again holds it meanwhile, so that others wait instead.
    pub(crate) fn used(&self) -> &tokio::sync::Mutex<Option<Used>> {
        &self.used
    }

    /// The last minutes, second by second.
    pub(crate) fn history(&self) -> &Mutex<History> {
        &self.history
    }
}

/// Takes note of what was decided, at the end of every second, for as long as it is polled.
pub(crate) async fn watch(gate: Arc<Gate>) {
    let clock = SystemClock::new();
    loop {
        let into = clock.now().as_micros() % SECOND;
        sleep(Duration::from_micros(SECOND - into)).await;
        // Timers may be a little early.
        look(&gate, (clock.now().as_micros() + SECOND / 2) / SECOND);
    }
}

const SECOND: u64 = 1_000_000;

/// Takes note of what was decided up to the end of this second.
pub(crate) fn look(gate: &Gate, second: u64) {
    let revision = gate.revision();
    revision.engine.blocks().expire();
    gate.live().history().lock().push(second, &revision.engine.stats());
}
