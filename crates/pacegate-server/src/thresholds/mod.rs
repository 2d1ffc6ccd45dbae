//! Keys that have reached a threshold of their policy: for the log, metrics, the dashboard and webhooks.

mod event;
mod webhook;

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
    time::Duration,
};

use pacegate::{PolicyName, ThresholdEvent, policy::Threshold};
use parking_lot::Mutex;
use tokio::{
    sync::{Semaphore, broadcast},
    time::interval,
};

pub(crate) use self::{event::ThresholdModel, webhook::Webhook};
use crate::config::WebhookSettings;

/// All threshold events of this process.
#[derive(Debug)]
pub(crate) struct ThresholdEvents {
    /// The number of events since the start.
    counts: Mutex<EventCounts>,
    /// Newest last.
    recent: Mutex<VecDeque<Arc<ThresholdModel>>>,
    live: broadcast::Sender<Arc<ThresholdModel>>,
    streams: Arc<Semaphore>,
    pub(crate) webhook: Arc<Webhook>,
}

/// Numbers of events by policy and threshold.
pub(crate) type EventCounts = BTreeMap<(PolicyName, Threshold), u64>;

/// The number of recent events to keep.
const MAX_RECENT: usize = 100;
/// Events that a slow stream may be behind. Older ones are skipped.
const MAX_BEHIND: usize = 256;
/// The number of open event streams.
const MAX_STREAMS: usize = 64;
/// Time between log lines about one policy and threshold.
const LOG_INTERVAL: Duration = Duration::from_secs(1);

impl ThresholdEvents {
    pub(crate) fn new(webhook: Option<WebhookSettings>) -> Self {
        Self {
            counts: Mutex::default(),
            recent: Mutex::default(),
            live: broadcast::Sender::new(MAX_BEHIND),
            streams: Arc::new(Semaphore::new(MAX_STREAMS)),
            webhook: Arc::new(Webhook::new(webhook)),
        }
    }

    /// Records an event. Called by decisions, so it does not wait.
    pub(crate) fn record(&self, event: &ThresholdEvent) {
        *self.counts.lock().entry((event.policy, event.threshold)).or_default() += 1;
        let model = Arc::new(ThresholdModel::new(event));
        self.webhook.push(&model);
        let mut recent = self.recent.lock();
        if recent.len() == MAX_RECENT {
            recent.pop_front();
        }
        recent.push_back(model.clone());
        // Sent under the lock, so that a new stream neither repeats nor misses an event.
        let _ = self.live.send(model);
    }

    /// Returns the last events, newest first.
    pub(crate) fn recent(&self) -> Vec<ThresholdModel> {
        self.recent.lock().iter().rev().map(|event| ThresholdModel::clone(event)).collect()
    }

    /// Returns the number of events since the start.
    pub(crate) fn counts(&self) -> EventCounts {
        self.counts.lock().clone()
    }

    /// Returns a stream of new events, and a permit to keep while it is open. `None` if too many streams are open.
    pub(crate) fn subscribe(&self) -> Option<EventStream> {
        let permit = self.streams.clone().try_acquire_owned().ok()?;
        Some((self.live.subscribe(), permit))
    }

    /// Logs the numbers of new events, without their keys. Never returns.
    pub(crate) async fn log(&self) {
        let mut ticks = interval(LOG_INTERVAL);
        let mut logged = EventCounts::new();
        loop {
            ticks.tick().await;
            let counts = self.counts();
            for ((policy, threshold), count) in &counts {
                let keys = count - logged.get(&(*policy, *threshold)).unwrap_or(&0);
                if keys > 0 {
                    tracing::warn!(%policy, %threshold, keys, "keys have reached a threshold of their limit");
                }
            }
            logged = counts;
        }
    }
}

/// New events, and the permit of the stream.
pub(crate) type EventStream =
    (broadcast::Receiver<Arc<ThresholdModel>>, tokio::sync::OwnedSemaphorePermit);
