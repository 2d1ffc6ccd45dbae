//! Counters that are shared with another limiter, and requests on their way to them.

use std::{
    hash::{BuildHasher, RandomState},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use pacegate::{Charge, Clock, Limit, StoreError, SystemClock, algorithm::Outcome};
use parking_lot::Mutex;
use tokio::{sync::oneshot, time::Instant};

use super::{Counting, Rules};
use crate::{
    cell::{period_micros, slot_of},
    mark::{Claim, Mark, Marker},
    time::Time,
    waiter::Waiter,
};

/// What a store that has a layout knows besides.
#[derive(Debug)]
pub(crate) struct Counters {
    rules: Arc<Rules>,
    time: Time,
    /// The server's time when it was last seen, and when the question was sent: what is sent later finds a time that
    /// much later.
    seen: Mutex<(u64, Instant)>,
    /// Names entries of logs so that no two are the same: of which store, and of which call.
    store: u128,
    calls: AtomicU64,
}

/// A counter: a key under a limit.
#[derive(Clone, Debug)]
pub(crate) struct Spot {
    pub(crate) mark: Mark,
    pub(crate) key: Box<[u8]>,
    pub(crate) limit: Limit,
}

/// What to do to a counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Act {
    /// Counts so many units; none only looks.
    Charge(u64),
    /// Gives back so many.
    Refund(u64),
    Reset,
}

/// One request on its way to a counter.
#[derive(Debug)]
pub(crate) struct Note {
    pub(crate) spot: Spot,
    pub(crate) act: Act,
    /// The start of the window in which it is expected to arrive.
    pub(crate) window: u64,
    /// The answer is of no meaning except for a charge.
    pub(crate) waiter: Waiter<Outcome>,
}

impl Counters {
    pub(crate) fn new(rules: Arc<Rules>, time: Time) -> Self {
        let now = SystemClock::new().now().as_micros();
        let [high, low] = [0, 1].map(|half: u8| u128::from(RandomState::new().hash_one(half)));
        Self {
            rules,
            time,
            seen: Mutex::new((now, Instant::now())),
            store: high << 64 | low,
            calls: AtomicU64::new(0),
        }
    }

    pub(crate) fn rules(&self) -> &Rules {
        &self.rules
    }

    /// The counter of a charge, if the layout can count it.
    pub(crate) fn spot(&self, marker: &Marker, charge: &Charge<'_>) -> Result<Spot, StoreError> {
        self.rules.check(charge)?;
        let parts: Vec<&[u8]> = charge.key.parts().map(Option::unwrap_or_default).collect();
        let key = parts.join(&b':').into_boxed_slice();
        // All periods of a log are in one key.
        let period = match self.rules.counting() {
            Counting::Window | Counting::Pair => period_micros(&charge.limit),
            Counting::Log { .. } => 0,
        };
        Ok(Spot { mark: marker.spot(&key, period), key, limit: charge.limit })
    }

    pub(crate) fn note(
        &self,
        spot: Spot,
        act: Act,
    ) -> (Note, oneshot::Receiver<Result<Outcome, StoreError>>) {
        let (waiter, answered) = Waiter::new(Instant::now());
        let window = spot.window(self.guess());
        (Note { spot, act, window, waiter }, answered)
    }

    /// What time it probably is at the server. A wrong guess costs a trip, and nothing else.
    fn guess(&self) -> u64 {
        match &self.time {
            Time::Given(clock) => clock.now().as_micros(),
            Time::Server => {
                let (now, sent) = *self.seen.lock();
                let passed = u64::try_from(sent.elapsed().as_micros()).unwrap_or(u64::MAX);
                now.saturating_add(passed)
            }
        }
    }

    /// A question that was sent then found that time at the server.
    pub(crate) fn saw(&self, now: u64, sent: Instant) {
        *self.seen.lock() = (now, sent);
    }

    /// What the names of the entries of one call begin with.
    pub(crate) fn members(&self) -> String {
        let call = self.calls.fetch_add(1, Ordering::Relaxed);
        format!("{:032x}-{call:x}-", self.store)
    }
}

impl Spot {
    /// The start of its window at that time.
    pub(crate) fn window(&self, now: u64) -> u64 {
        now - now % period_micros(&self.limit)
    }

    /// As the deny cache knows it.
    pub(crate) fn claim(&self, cost: u64, enforced: bool) -> Claim<'_> {
        Claim { mark: self.mark, limit: &self.limit, cost, enforced }
    }
}

impl Note {
    pub(crate) fn slot(&self, rules: &Rules) -> u16 {
        let period = period_micros(&self.spot.limit);
        slot_of(&rules.name(&self.spot.key, self.window, period))
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::LazyLock, time::Duration};

    use pacegate::Key;

    use super::*;
    use crate::Layout;

    fn counters(layout: Layout) -> Counters {
        Counters::new(layout.rules().unwrap().clone(), Time::Server)
    }

    fn spot(counters: &Counters, key: impl Key, limit: &str) -> Result<Spot, StoreError> {
        static MARKER: LazyLock<Marker> = LazyLock::new(Marker::random);
        key.with(|key| {
            let charge = Charge::new("api".parse().unwrap(), key, limit.parse().unwrap());
            counters.spot(&MARKER, &charge)
        })
    }

    #[test]
    fn keys_are_as_the_other_limiter_knows_them() {
        let counters = counters(Layout::rlaas());
        let key = |key: &dyn Fn() -> Spot| String::from_utf8(key().key.into_vec()).unwrap();
        assert_eq!(key(&|| spot(&counters, "alice", "1/minute").unwrap()), "alice");
        assert_eq!(key(&|| spot(&counters, ("eu", 7, ""), "1/minute").unwrap()), "eu:7:");
        assert_eq!(key(&|| spot(&counters, (), "1/minute").unwrap()), "");
    }

    #[test]
    fn the_period_tells_windows_apart_and_logs_not() {
        let id = |layout: Layout, limit: &str| spot(&counters(layout), "a", limit).unwrap().mark;
        assert_eq!(id(Layout::rlaas(), "1/minute"), id(Layout::rlaas(), "9/minute"));
        assert_ne!(id(Layout::rlaas(), "1/minute"), id(Layout::rlaas(), "1/hour"));
        let log = Layout::rlaas_log;
        assert_eq!(id(log(), "1/minute sliding-log"), id(log(), "1/hour sliding-log"));
    }

    #[test]
    fn the_guess_follows_the_server() {
        let counters = counters(Layout::rlaas());
        let guess = counters.guess();
        let system = SystemClock::new().now().as_micros();
        assert!(guess.abs_diff(system) < 1_000_000, "at first the clock here is as good as any");
        let sent = Instant::now() - Duration::from_millis(300);
        counters.saw(1_000_000, sent);
        assert!((1_300_000..2_000_000).contains(&counters.guess()));
    }

    #[test]
    fn what_cannot_be_counted_is_refused_with_what_to_write() {
        let refused = |layout: Layout, limit: &str| match spot(&counters(layout), "a", limit) {
            Err(StoreError::Unsupported(text)) => text,
            other => panic!("{other:?}"),
        };
        assert_eq!(
            refused(Layout::rlaas(), "5/minute token-bucket"),
            "the layout `rlaas:rate_limit:{key}:{window}` counts by fixed-window, and \
             `5/minute token-bucket` does not: write fixed-window as its algorithm"
        );
        assert_eq!(
            refused(Layout::unix_time(), "5/1500ms"),
            "the layout `rl:{key}:{window}` knows whole seconds only: \
             write a period such as 2s instead of `5/1500ms`"
        );
        assert!(refused(Layout::unix_time_log(), "5/minute").contains("write sliding-log"));
        let seconds = Layout::template("{key}:{window_start}").unwrap().into();
        assert!(refused(seconds, "5/1500ms").contains("whole seconds"));
        for free in [Layout::spring("a"), Layout::template("{key}:{window}").unwrap().into()] {
            assert!(spot(&counters(free), "a", "5/1500ms").is_ok());
        }
    }
}
