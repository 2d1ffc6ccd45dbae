//! Delivers events to a webhook, at least once.

use std::{
    collections::VecDeque,
    hash::{BuildHasher, RandomState},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use arc_swap::ArcSwapOption;
use bytes::Bytes;
use hmac::{Hmac, Mac};
use http::{HeaderName, HeaderValue, StatusCode};
use pacegate::{Clock, SystemClock};
use parking_lot::Mutex;
use prometheus_client::metrics::counter::Counter;
use sha2::Sha256;
use tokio::{
    sync::Notify,
    task::JoinSet,
    time::{Instant, sleep, timeout},
};

use super::event::{ThresholdModel, hex};
use crate::{
    client::{ClientConnection, ClientError},
    config::WebhookSettings,
    service::Quiet,
};

/// The queue of a webhook, and its workers.
#[derive(Debug)]
pub(crate) struct Webhook {
    settings: ArcSwapOption<WebhookSettings>,
    /// Oldest first, except for events that are sent again.
    queue: Mutex<VecDeque<QueuedEvent>>,
    /// Wakes a worker.
    added: Notify,
    /// Notified after each attempt.
    attempted: Notify,
    /// Events that a worker is sending.
    in_flight: AtomicUsize,
    pub(crate) delivered: Counter,
    pub(crate) failed_attempts: Counter,
    /// Events that were too old, or that had no room in the queue.
    pub(crate) dropped: Counter,
    failures_log: Quiet,
    dropped_log: Quiet,
}

#[derive(Debug)]
struct QueuedEvent {
    id: String,
    body: Bytes,
    since: Instant,
}

/// The reason why an attempt failed.
#[derive(Debug, thiserror::Error)]
enum DeliveryError {
    #[error(transparent)]
    Client(#[from] ClientError),
    #[error("the receiver returned {0}")]
    Status(StatusCode),
    #[error("the receiver did not answer within {0:?}")]
    TimedOut(Duration),
}

/// A connection that is used again while the settings are the same.
type Reused = Option<(Arc<WebhookSettings>, ClientConnection)>;

/// The id of the event.
const EVENT_HEADER: HeaderName = HeaderName::from_static("pacegate-event");
/// The time of the attempt and the signature, as `t=SECONDS,v1=HEX`.
const SIGNATURE_HEADER: HeaderName = HeaderName::from_static("pacegate-signature");
/// Each worker sends one event at a time.
const WORKERS: usize = 4;
const MAX_RESPONSE_BYTES: usize = 64 * 1024;
/// The wait after a failed attempt. It doubles with each further one of a worker.
const FIRST_RETRY: Duration = Duration::from_millis(500);
const MAX_RETRY: Duration = Duration::from_secs(30);

impl Webhook {
    pub(super) fn new(settings: Option<WebhookSettings>) -> Self {
        Self {
            settings: ArcSwapOption::from_pointee(settings),
            queue: Mutex::default(),
            added: Notify::new(),
            attempted: Notify::new(),
            in_flight: AtomicUsize::new(0),
            delivered: Counter::default(),
            failed_attempts: Counter::default(),
            dropped: Counter::default(),
            failures_log: Quiet::default(),
            dropped_log: Quiet::default(),
        }
    }

    /// Applies other settings. Events in the queue are sent to the new receiver.
    pub(crate) fn configure(&self, settings: Option<WebhookSettings>) {
        self.settings.store(settings.map(Arc::new));
    }

    pub(crate) fn is_configured(&self) -> bool {
        self.settings.load().is_some()
    }

    /// Returns the number of events that are not delivered yet.
    pub(crate) fn queued(&self) -> usize {
        self.queue.lock().len() + self.in_flight.load(Ordering::Relaxed)
    }

    /// Adds an event. If the queue is full, drops the oldest one.
    pub(super) fn push(&self, event: &ThresholdModel) {
        if let Some(settings) = &*self.settings.load()
            && let Ok(body) = serde_json::to_vec(event)
        {
            let event =
                QueuedEvent { id: event.id.clone(), body: body.into(), since: Instant::now() };
            self.enqueue(event, settings.queue);
        }
    }

    fn enqueue(&self, event: QueuedEvent, max: usize) {
        let mut queue = self.queue.lock();
        queue.push_back(event);
        let is_full = queue.len() > max;
        if is_full {
            queue.pop_front();
        }
        drop(queue);
        self.added.notify_one();
        if is_full {
            self.count_dropped("the queue of the webhook is full");
        }
    }

    fn count_dropped(&self, reason: &str) {
        self.dropped.inc();
        if let Some(events) = self.dropped_log.events() {
            tracing::warn!(events, "dropped events: {reason}");
        }
    }

    /// Starts the workers. They end when the set is dropped.
    pub(crate) fn start(self: &Arc<Self>) -> JoinSet<()> {
        (0..WORKERS).map(|_| self.clone().deliver_all()).collect()
    }

    /// Waits until all events are delivered, at most for this time.
    pub(crate) async fn finish(&self, limit: Duration) {
        let delivered = async {
            loop {
                let attempted = self.attempted.notified();
                if self.queued() == 0 {
                    return;
                }
                attempted.await;
            }
        };
        if timeout(limit, delivered).await.is_err() {
            let events = self.queued();
            tracing::warn!(events, "shutting down: events were not delivered to the webhook");
        }
    }

    async fn deliver_all(self: Arc<Self>) {
        let (mut connection, mut failures) = (None, 0);
        loop {
            let event = self.next().await;
            // Without a receiver, the events of the last one are dropped.
            let Some(settings) = self.settings.load_full() else {
                self.count_dropped("the webhook was removed from the configuration");
                self.end_attempt();
                continue;
            };
            let sent = timeout(settings.timeout, deliver(&settings, &event, &mut connection));
            let sent = sent.await.unwrap_or(Err(DeliveryError::TimedOut(settings.timeout)));
            failures = match sent {
                Ok(()) => {
                    self.delivered.inc();
                    0
                }
                Err(error) => {
                    connection = None;
                    self.retry(event, &settings, &error);
                    failures + 1
                }
            };
            self.end_attempt();
            if failures > 0 {
                sleep(retry_delay(failures)).await;
            }
        }
    }

    async fn next(&self) -> QueuedEvent {
        loop {
            let added = self.added.notified();
            let event = {
                let mut queue = self.queue.lock();
                let event = queue.pop_front();
                // Under the lock, so that an event is always counted as queued or in flight.
                self.in_flight.fetch_add(usize::from(event.is_some()), Ordering::Relaxed);
                if !queue.is_empty() {
                    self.added.notify_one();
                }
                event
            };
            match event {
                Some(event) => return event,
                None => added.await,
            }
        }
    }

    fn end_attempt(&self) {
        self.in_flight.fetch_sub(1, Ordering::Relaxed);
        self.attempted.notify_waiters();
    }

    /// Adds an event again, after a failed attempt, unless it is too old.
    fn retry(&self, event: QueuedEvent, settings: &WebhookSettings, error: &DeliveryError) {
        self.failed_attempts.inc();
        if let Some(attempts) = self.failures_log.events() {
            // Not the URL, because it may contain a token.
            let (host, _) = settings.client.host_and_port();
            let reason = describe(error);
            tracing::warn!(
                host,
                attempts,
                reason,
                "cannot deliver events to the webhook; retrying"
            );
        }
        match event.since.elapsed() > settings.max_age {
            true => self.count_dropped("they could not be delivered before `max_age`"),
            false => self.enqueue(event, settings.queue),
        }
    }
}

/// Sends an event once.
async fn deliver(
    settings: &Arc<WebhookSettings>,
    event: &QueuedEvent,
    connection: &mut Reused,
) -> Result<(), DeliveryError> {
    let mut request = settings.client.post(event.body.clone())?;
    let seconds = SystemClock::new().now().as_micros() / 1_000_000;
    let signature = signature(&settings.secret, seconds, &event.body);
    let headers = request.headers_mut();
    for (name, value) in [(EVENT_HEADER, &event.id), (SIGNATURE_HEADER, &signature)] {
        // Both are ASCII.
        if let Ok(value) = HeaderValue::from_str(value) {
            headers.insert(name, value);
        }
    }
    let is_usable = |(owner, open): &(Arc<WebhookSettings>, ClientConnection)| {
        Arc::ptr_eq(owner, settings) && open.is_open()
    };
    let mut open = match connection.take().filter(is_usable) {
        Some((_, open)) => open,
        None => settings.client.connect().await?,
    };
    let status = open.exchange(request, MAX_RESPONSE_BYTES).await?.status();
    if !status.is_success() {
        return Err(DeliveryError::Status(status));
    }
    *connection = Some((settings.clone(), open));
    Ok(())
}

/// Returns the signature header: HMAC-SHA256 of the time, a dot and the body.
fn signature(secret: &[u8], seconds: u64, body: &[u8]) -> String {
    // HMAC takes keys of any length.
    let Ok(mac) = Hmac::<Sha256>::new_from_slice(secret) else { return String::new() };
    let mac = mac.chain_update(seconds.to_string()).chain_update(b".").chain_update(body);
    format!("t={seconds},v1={}", hex(&mac.finalize().into_bytes()))
}

/// Returns the reason of a failure without the address, because its path may contain a token.
fn describe(error: &DeliveryError) -> String {
    match error {
        DeliveryError::Client(ClientError::Unreachable { error, .. }) => {
            format!("cannot connect: {error}")
        }
        DeliveryError::Client(ClientError::Http { error, .. }) => format!("HTTP failed: {error}"),
        other => other.to_string(),
    }
}

/// Returns the wait after this number of failed attempts in a row: a random time between the half and the whole of a
/// delay that doubles with each of them.
fn retry_delay(failures: u32) -> Duration {
    let factor = 1_u32.checked_shl(failures.saturating_sub(1)).unwrap_or(u32::MAX);
    let half = FIRST_RETRY.saturating_mul(factor).min(MAX_RETRY) / 2;
    let range = u64::try_from(half.as_micros()).unwrap_or(u64::MAX).max(1);
    half + Duration::from_micros(RandomState::new().hash_one(0) % range)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::client::Client;

    /// Computed with Python: `hmac.new(secret, b"1700000000." + body, hashlib.sha256).hexdigest()`.
    #[test]
    fn the_signature_covers_the_time_and_the_body() {
        let secret = b"0123456789abcdef";
        assert_eq!(signature(secret, 1_700_000_000, b"{}"), SIGNED);
        assert_ne!(signature(secret, 1_700_000_001, b"{}"), SIGNED);
        assert_ne!(signature(secret, 1_700_000_000, b"{ }"), SIGNED);
    }

    fn settings(queue: usize) -> WebhookSettings {
        WebhookSettings {
            client: Client::for_url("http://127.0.0.1:9/hook", None).unwrap(),
            secret: Arc::from(*b"0123456789abcdef"),
            timeout: Duration::from_secs(1),
            max_age: Duration::from_secs(60),
            queue,
        }
    }

    fn event(id: u32) -> QueuedEvent {
        QueuedEvent { id: id.to_string(), body: Bytes::new(), since: Instant::now() }
    }

    #[tokio::test]
    async fn a_full_queue_drops_the_oldest_events() {
        let webhook = Webhook::new(Some(settings(3)));
        (0..5).for_each(|id| webhook.enqueue(event(id), 3));
        assert_eq!((webhook.queued(), webhook.dropped.get()), (3, 2));
        assert_eq!(webhook.next().await.id, "2");
        assert_eq!(webhook.queued(), 3, "one of them is in flight");
        webhook.configure(None);
        assert!(!webhook.is_configured());
    }

    #[tokio::test]
    async fn an_event_is_sent_again_until_it_is_too_old() {
        let (settings, webhook) = (settings(3), Webhook::new(None));
        let failed = DeliveryError::Status(StatusCode::BAD_GATEWAY);
        webhook.retry(event(1), &settings, &failed);
        assert_eq!(webhook.queued(), 1);
        let mut event = webhook.next().await;
        event.since = Instant::now().checked_sub(Duration::from_secs(61)).unwrap();
        webhook.retry(event, &settings, &failed);
        webhook.end_attempt();
        assert_eq!((webhook.queued(), webhook.dropped.get()), (0, 1));
    }

    #[test]
    fn delays_double_up_to_30_seconds() {
        for (failures, most) in [(1, 500), (2, 1_000), (5, 8_000), (8, 30_000), (u32::MAX, 30_000)]
        {
            let delay = retry_delay(failures).as_millis();
            assert!((most / 2..=most).contains(&delay), "{failures}: {delay}");
        }
    }

    const SIGNED: &str =
        "t=1700000000,v1=e4f8e2ecae2295b2ddb2f0b5584c8275e226c0ebe9b3b819e70156bb67122e3e";
}
