//! Counters that are shared with another rate limiter, and requests that change or read them.

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering},
};

use pacegate::{Charge, Excess, Limit, StoreError};
use parking_lot::Mutex;
use tokio::time::Instant;

use super::{Counting, Rules};
use crate::{
    cell::{period_micros, slot_of},
    environment::Environment,
    fingerprint::{Fingerprint, Fingerprinter},
    responder::{Reply, Responder},
    time::Time,
};

/// The state of a store that uses the layout of another rate limiter.
#[derive(Debug)]
pub(crate) struct LayoutState {
    rules: Arc<Rules>,
    time: Time,
    /// The server's time in the last reply, and the instant at which that command was sent.
    seen: Mutex<(u64, Instant)>,
    /// Random id of this store. See [`LayoutState::members`].
    store: u128,
    /// Number of calls of [`LayoutState::members`].
    calls: AtomicU64,
}

/// A counter: a key under a limit.
#[derive(Clone, Debug)]
pub(crate) struct CounterKey {
    pub(crate) fingerprint: Fingerprint,
    pub(crate) key: Box<[u8]>,
    pub(crate) limit: Limit,
}

/// An operation on a counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CounterOp {
    /// Counts units. 0 is a peek.
    Charge(u64),
    /// The same with [`Excess::Count`](pacegate::Excess::Count).
    Count(u64),
    /// Returns units.
    Refund(u64),
    Reset,
}

/// A request for a counter that waits for its answer.
#[derive(Debug)]
pub(crate) struct CounterRequest {
    pub(crate) key: CounterKey,
    pub(crate) op: CounterOp,
    /// The expected window: the start of the window that contains the server's time when it runs the request.
    pub(crate) window: u64,
    /// Receives the outcome, which has a meaning only for a charge.
    pub(crate) responder: Responder,
}

impl LayoutState {
    pub(crate) fn new(rules: Arc<Rules>, time: Time, host: &dyn Environment) -> Self {
        Self {
            rules,
            time,
            seen: Mutex::new((host.now().as_micros(), Instant::now())),
            store: u128::from(host.random()) << 64 | u128::from(host.random()),
            calls: AtomicU64::new(0),
        }
    }

    pub(crate) fn rules(&self) -> &Rules {
        &self.rules
    }

    /// Returns the counter of a charge, or an error if the layout cannot count it.
    pub(crate) fn key(
        &self,
        fingerprinter: &Fingerprinter,
        charge: &Charge<'_>,
    ) -> Result<CounterKey, StoreError> {
        self.rules.check(charge)?;
        let parts: Vec<&[u8]> = charge.key.parts().map(Option::unwrap_or_default).collect();
        let key = parts.join(&b':').into_boxed_slice();
        // The key of a log does not depend on the period.
        let period = match self.rules.counting() {
            Counting::Window | Counting::Pair => period_micros(&charge.limit),
            Counting::Log { .. } => 0,
        };
        let fingerprint = fingerprinter.of_counter(&key, period);
        Ok(CounterKey { fingerprint, key, limit: charge.limit })
    }

    pub(crate) fn request(&self, key: CounterKey, op: CounterOp) -> (CounterRequest, Reply) {
        let (responder, reply) = Responder::new();
        let window = key.window(self.guess());
        (CounterRequest { key, op, window, responder }, reply)
    }

    /// Estimates the server's time. If the estimate is in the wrong window, the request takes one more round trip.
    fn guess(&self) -> u64 {
        match &self.time {
            Time::Given(clock) => clock.now().as_micros(),
            Time::Server(_) => {
                let (now, sent) = *self.seen.lock();
                let passed = u64::try_from(sent.elapsed().as_micros()).unwrap_or(u64::MAX);
                now.saturating_add(passed)
            }
        }
    }

    /// Records the server's time in the reply to a command sent at `sent`.
    pub(crate) fn saw(&self, now: u64, sent: Instant) {
        *self.seen.lock() = (now, sent);
    }

    /// Returns a prefix for the names of the log entries that one call adds. The id of the store and the number of the
    /// call make it unique.
    pub(crate) fn members(&self) -> String {
        let call = self.calls.fetch_add(1, Ordering::Relaxed);
        format!("{:032x}-{call:x}-", self.store)
    }
}

impl CounterOp {
    /// Returns the operation of a charge. Its units are bounded, because Redis counts up to 2^63, and the other limiter
    /// uses the counter too.
    pub(crate) fn of(charge: &Charge<'_>) -> Self {
        let units = charge.cost.min(Limit::MAX_AMOUNT + 1);
        match charge.excess {
            Excess::Count => Self::Count(units),
            _ => Self::Charge(units),
        }
    }

    /// Returns the units of a charge; `None` for other operations.
    pub(crate) fn charged(self) -> Option<u64> {
        match self {
            Self::Charge(units) | Self::Count(units) => Some(units),
            Self::Refund(_) | Self::Reset => None,
        }
    }
}

impl CounterKey {
    /// Returns the start of the window that contains `now`.
    pub(crate) fn window(&self, now: u64) -> u64 {
        now - now % period_micros(&self.limit)
    }
}

impl CounterRequest {
    pub(crate) fn slot(&self, rules: &Rules) -> u16 {
        slot_of(&rules.name(&self.key.key, self.window, period_micros(&self.key.limit)))
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::LazyLock, time::Duration};

    use pacegate::{Clock, Key, SystemClock};

    use super::*;
    use crate::{Layout, environment::OperatingSystem};

    fn state(layout: Layout) -> LayoutState {
        let time = Time::Server(Arc::new(OperatingSystem));
        LayoutState::new(layout.rules().unwrap().clone(), time, &OperatingSystem)
    }

    fn counter(state: &LayoutState, key: impl Key, limit: &str) -> Result<CounterKey, StoreError> {
        static FINGERPRINTER: LazyLock<Fingerprinter> = LazyLock::new(Fingerprinter::new);
        key.with(|key| {
            let charge = Charge::new("api".parse().unwrap(), key, limit.parse().unwrap());
            state.key(&FINGERPRINTER, &charge)
        })
    }

    #[test]
    fn keys_match_those_of_the_other_limiter() {
        let state = state(Layout::rlaas());
        let key = |key: &dyn Fn() -> CounterKey| String::from_utf8(key().key.into_vec()).unwrap();
        assert_eq!(key(&|| counter(&state, "alice", "1/minute").unwrap()), "alice");
        assert_eq!(key(&|| counter(&state, ("eu", 7, ""), "1/minute").unwrap()), "eu:7:");
        assert_eq!(key(&|| counter(&state, (), "1/minute").unwrap()), "");
    }

    #[test]
    fn the_period_distinguishes_windows_but_not_logs() {
        let id =
            |layout: Layout, limit: &str| counter(&state(layout), "a", limit).unwrap().fingerprint;
        assert_eq!(id(Layout::rlaas(), "1/minute"), id(Layout::rlaas(), "9/minute"));
        assert_ne!(id(Layout::rlaas(), "1/minute"), id(Layout::rlaas(), "1/hour"));
        let log = Layout::rlaas_log;
        assert_eq!(id(log(), "1/minute sliding-log"), id(log(), "1/hour sliding-log"));
    }

    #[test]
    fn the_guess_follows_the_server() {
        let state = state(Layout::rlaas());
        let guess = state.guess();
        let system = SystemClock::new().now().as_micros();
        assert!(guess.abs_diff(system) < 1_000_000, "starts with the local clock");
        let sent = Instant::now() - Duration::from_millis(300);
        state.saw(1_000_000, sent);
        assert!((1_300_000..2_000_000).contains(&state.guess()));
    }

    #[test]
    fn unsupported_limits_are_rejected_with_advice() {
        let rejected = |layout: Layout, limit: &str| match counter(&state(layout), "a", limit) {
            Err(StoreError::Unsupported(text)) => text,
            other => panic!("{other:?}"),
        };
        assert_eq!(
            rejected(Layout::rlaas(), "5/minute token-bucket"),
            "the layout `rlaas:rate_limit:{key}:{window}` counts by fixed-window, and \
             `5/minute token-bucket` does not: use the algorithm fixed-window"
        );
        assert_eq!(
            rejected(Layout::unix_time(), "5/1500ms"),
            "the layout `rl:{key}:{window}` supports whole seconds only: \
             use a period such as 2s instead of `5/1500ms`"
        );
        assert!(
            rejected(Layout::unix_time_log(), "5/minute").contains("use the algorithm sliding-log")
        );
        let seconds = Layout::template("{key}:{window_start}").unwrap().into();
        assert!(rejected(seconds, "5/1500ms").contains("whole seconds"));
        for free in [Layout::spring("a"), Layout::template("{key}:{window}").unwrap().into()] {
            assert!(counter(&state(free), "a", "5/1500ms").is_ok());
        }
    }
}
