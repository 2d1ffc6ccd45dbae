//! The history of the last minutes, for the dashboard and `pacegate top`.

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
use crate::active_config::ActiveConfig;

/// The recent history of the server.
#[derive(Debug)]
pub(crate) struct Live {
    started: Timestamp,
    history: Mutex<History>,
    used: tokio::sync::Mutex<Option<Used>>,
}

/// The highest usage among the busiest keys of each policy.
#[derive(Debug)]
pub(crate) struct Used {
    /// When, in seconds since the epoch, and by which revision.
    pub(crate) at: (u64, u64),
    /// From 0 to 1.
    pub(crate) shares: Arc<HashMap<PolicyName, f64>>,
}

impl Live {
    /// Creates an empty history that starts now.
    pub(crate) fn new() -> Self {
        Self {
            started: SystemClock::new().now(),
            history: Mutex::default(),
            used: tokio::sync::Mutex::default(),
        }
    }

    /// Returns the time of the start.
    pub(crate) fn started(&self) -> Timestamp {
        self.started
    }

    /// The last known usage. The lock is held during an update, so that other readers wait for it.
    pub(crate) fn used(&self) -> &tokio::sync::Mutex<Option<Used>> {
        &self.used
    }

    /// The last minutes, second by second.
    pub(crate) fn history(&self) -> &Mutex<History> {
        &self.history
    }
}

/// Records the decisions at the end of every second. Never returns.
pub(crate) async fn watch(active: Arc<ActiveConfig>) {
    let clock = SystemClock::new();
    loop {
        let into = clock.now().as_micros() % SECOND;
        sleep(Duration::from_micros(SECOND - into)).await;
        // Timers may fire a little early.
        look(&active, (clock.now().as_micros() + SECOND / 2) / SECOND);
    }
}

const SECOND: u64 = 1_000_000;

/// Records the decisions up to the end of this second.
pub(crate) fn look(active: &ActiveConfig, second: u64) {
    let revision = active.revision();
    revision.engine.blocks().expire();
    active.live().history().lock().push(second, &revision.engine.stats());
}
