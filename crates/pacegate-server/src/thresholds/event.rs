use std::time::Duration;

use pacegate::{PolicyName, ThresholdEvent, Timestamp};
use schemars::JsonSchema;
use serde::Serialize;
use sha2::{Digest, Sha256};

use crate::{explain::Seconds, live::whole_text_of};

/// A key that has reached a threshold of its limit.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[schemars(rename = "ThresholdEvent")]
pub(crate) struct ThresholdModel {
    /// Identifies the event. Repeated deliveries, and replicas that report the same event, have the same id.
    pub(crate) id: String,
    /// `threshold`.
    r#type: &'static str,
    #[schemars(with = "String")]
    policy: PolicyName,
    /// The values of the policy's attributes, joined by commas.
    key: String,
    /// The limit as text, such as `100/minute`.
    limit: String,
    /// Percentage of the limit.
    threshold: u8,
    /// Used units. If a denial has reached the threshold, there may be fewer than the threshold.
    used: u64,
    /// Units of the limit.
    capacity: u64,
    /// Unix time in seconds of the charge, by the clock of the store.
    at: Seconds,
    /// Unix time in seconds when the window ends. The event is not repeated before.
    window_end: Seconds,
}

impl ThresholdModel {
    pub(crate) fn new(event: &ThresholdEvent) -> Self {
        Self {
            id: id(event),
            r#type: "threshold",
            policy: event.policy,
            key: whole_text_of(event.key.as_ref()),
            limit: event.limit.to_string(),
            threshold: event.threshold.percent(),
            used: event.used,
            capacity: event.limit.capacity(),
            at: seconds(event.at),
            window_end: seconds(event.window_end),
        }
    }
}

fn seconds(instant: Timestamp) -> Seconds {
    Seconds(Duration::from_micros(instant.as_micros()))
}

/// Returns a digest of policy, counter, key, window and threshold.
fn id(event: &ThresholdEvent) -> String {
    let ThresholdEvent { policy, counter, key, limit, threshold, window_start, .. } = event;
    let (policy, algorithm) = (policy.as_str(), limit.algorithm());
    let algorithm = algorithm.name();
    let mut hasher = Sha256::new();
    hasher.update(b"pacegate threshold 1");
    // Lengths come first, so that no two events have the same encoding.
    let period = match limit.calendar() {
        Some(calendar) => calendar.to_string(),
        None => limit.period().as_micros().to_string(),
    };
    for text in [policy, algorithm, &period] {
        hasher.update((text.len() as u64).to_le_bytes());
        hasher.update(text);
    }
    for word in counter.to_words(limit) {
        hasher.update(word.to_le_bytes());
    }
    hasher.update(window_start.as_micros().to_le_bytes());
    hasher.update([threshold.percent()]);
    key.as_ref().feed(|part| hasher.update(part));
    hex(&hasher.finalize()[..16])
}

/// Returns bytes as hexadecimal digits.
pub(super) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use std::{collections::HashSet, sync::mpsc};

    use pacegate::{Limiter, ManualClock, Policy, PolicySet};

    use super::*;

    /// Returns the events of a new limiter that charges `cost` to each key.
    fn events(policy: Policy, at: u64, cost: u64) -> Vec<ThresholdEvent> {
        let (sender, events) = mpsc::channel();
        let clock = ManualClock::new();
        clock.set(Timestamp::from_secs(at));
        let limiter = Limiter::builder().policies(PolicySet::new([policy]).unwrap()).clock(clock);
        let limiter = limiter.on_threshold(move |event| sender.send(event).unwrap());
        let limiter = limiter.build().unwrap();
        for key in ["alice", "bob"] {
            let _ = limiter.check_cost(key, cost).unwrap();
        }
        events.try_iter().collect()
    }

    #[test]
    fn an_id_is_the_same_in_every_process_and_differs_between_events() {
        let policy = |name: &str, limit: &str| {
            Policy::new(name.to_owned(), [limit.to_owned()]).per(["key"]).notify([50, 100])
        };
        let ids = |events: Vec<ThresholdEvent>| events.iter().map(id).collect::<Vec<_>>();
        let first = ids(events(policy("plan", "10/minute"), 60, 10));
        assert_eq!(first.len(), 4);
        assert_eq!(first[0].len(), 32);
        assert_eq!(first, ids(events(policy("plan", "10/minute"), 119, 10)), "the same window");
        let others = [
            events(policy("plan", "10/minute"), 120, 10),
            events(policy("other", "10/minute"), 60, 10),
            events(policy("plan", "10/30s"), 60, 10),
            events(policy("plan", "10/minute sliding-window"), 60, 10),
        ];
        let all: HashSet<_> = others.into_iter().flat_map(ids).chain(first).collect();
        assert_eq!(all.len(), 20);
    }
}
