//! The history of the last day and a sample of recent decisions, for the dashboard and `pacegate top`.

mod history;
mod name;
mod recent;

use std::{
    collections::HashMap,
    sync::{Arc, OnceLock},
    time::Duration,
};

use pacegate::{Clock, PolicyName, SystemClock, Timestamp};
use parking_lot::Mutex;
use tokio::time::sleep;

pub(crate) use self::{
    history::{Counts, History, Resolution},
    name::{MAX_SHOWN_CHARS, key_of, text_of, whole_text_of},
    recent::{Recent, RecentDecision},
};
use crate::{active_config::ActiveConfig, metrics::ListenerMetrics};

/// The recent history of the server.
#[derive(Debug)]
pub(crate) struct Live {
    pub(crate) started: Timestamp,
    /// Written once a second, read by requests for live data.
    pub(crate) history: Mutex<History>,
    /// Set when the server starts.
    listeners: OnceLock<Vec<Arc<ListenerMetrics>>>,
    /// Held during an update, so that other readers wait for it.
    pub(crate) used: tokio::sync::Mutex<Option<Used>>,
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
            listeners: OnceLock::new(),
            used: tokio::sync::Mutex::default(),
        }
    }

    /// Sets the listeners whose latency is recorded. Only the first call has an effect.
    pub(crate) fn set_listeners(&self, listeners: Vec<Arc<ListenerMetrics>>) {
        self.listeners.get_or_init(|| listeners);
    }

    /// Returns the listeners, in the order of their latencies in the history.
    pub(crate) fn listeners(&self) -> &[Arc<ListenerMetrics>] {
        self.listeners.get().map_or(&[], Vec::as_slice)
    }
}

/// Records the decisions at the end of every second. Never returns.
pub(crate) async fn watch(active: Arc<ActiveConfig>) {
    let clock = SystemClock::new();
    loop {
        let into = clock.now().as_micros() % SECOND;
        sleep(Duration::from_micros(SECOND - into)).await;
        // Timers may fire a little early.
        record_second(&active, (clock.now().as_micros() + SECOND / 2) / SECOND);
    }
}

const SECOND: u64 = 1_000_000;

/// Records the decisions up to the end of this second.
pub(crate) fn record_second(active: &ActiveConfig, second: u64) {
    let revision = active.revision();
    revision.engine.blocks.expire();
    revision.engine.recent.refill();
    let latencies = active.live.listeners().iter().map(|listener| listener.latency());
    let (stats, latencies) = (revision.engine.stats(), latencies.collect());
    active.live.history.lock().push(second, &stats, latencies);
}
