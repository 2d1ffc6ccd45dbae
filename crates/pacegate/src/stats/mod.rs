//! Statistics of a limiter: counts per policy, and the most frequent keys.
//!
//! Counting takes a few nanoseconds. Each thread has separate counters that only it writes, so there is no
//! contention; reading adds them up. The most frequent decisions are counted in the shards of the memory store
//! first. Keys go into a [sketch](top) of bounded size: all of them under light traffic, a sample under heavy
//! traffic.

mod top;

use std::{
    collections::HashMap,
    sync::{
        OnceLock,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
};

use crossbeam_utils::CachePadded;
use parking_lot::Mutex;
use thread_local::ThreadLocal;

use self::top::{Seen, Sketch};
use crate::{KeyBuf, KeyRef, StoreError, policy::PolicyName, store::memory::ShardCounts};

/// The statistics of a limiter, as of [`Limiter::stats`](crate::Limiter::stats).
///
/// Counts start at 0 when the limiter is created, and only grow. Peeks and requests with an invalid cost are not
/// counted. The lists of keys are estimates of recent traffic with at most 32 keys each.
///
/// Export `policies` as counters of your metrics system, labelled by policy. Do not export keys as labels: a client can
/// create any number of them, and they may be personal data.
///
/// ```
/// use pacegate::{Limit, Limiter};
///
/// let limiter = Limiter::memory(Limit::per_minute(2));
/// for _ in 0..3 {
///     let _ = limiter.check("alice");
/// }
/// for policy in limiter.stats().policies {
///     println!("decisions_total{{policy=\"{}\",result=\"allowed\"}} {}", policy.policy, policy.allowed);
///     println!("decisions_total{{policy=\"{}\",result=\"denied\"}} {}", policy.policy, policy.denied);
/// }
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Stats {
    /// One for each policy of the limiter, in the order of [`PolicySet::policies`](crate::PolicySet::policies).
    pub policies: Vec<PolicyStats>,
    /// Decisions by limits without a policy, such as those of [`Limiter::check_with`](crate::Limiter::check_with).
    pub inline: PolicyStats,
    /// The keys with the most recent requests, estimated, in descending order.
    pub busiest: Vec<TopKey>,
    /// The keys with the most recent denials, estimated, in descending order.
    pub most_denied: Vec<TopKey>,
    /// The number of failed calls to the store; always 0 for a [`Limiter`](crate::Limiter).
    pub store_failures: u64,
    /// The error of the last failed call. `None` if none has failed.
    pub last_store_failure: Option<StoreError>,
    /// The number of [threshold events](crate::ThresholdEvent) that were dropped, because the store has not answered
    /// the claims of 16,384 others yet. Always 0 for a [`Limiter`](crate::Limiter).
    pub dropped_events: u64,
}

/// The statistics of one policy.
///
/// A request that several policies cover is counted for each of them. A policy that would have admitted a request that
/// another policy denied counts nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PolicyStats {
    /// The policy.
    pub policy: PolicyName,
    /// Requests that it covered and that were allowed, without those in `shadow_denied`.
    pub allowed: u64,
    /// Requests that it denied.
    pub denied: u64,
    /// Requests that it would have denied without shadow mode.
    pub shadow_denied: u64,
    /// Requests that its failure mode decided, without the store. They are included in the other counts.
    pub degraded: u64,
    /// The sum of the costs of the allowed requests. For a reservation, the estimate, and when it is settled, the units
    /// beyond it.
    pub allowed_units: u64,
    /// The sum of the costs of the denied requests.
    pub denied_units: u64,
    /// The sum of the costs of the requests that it would have denied without shadow mode.
    pub shadow_denied_units: u64,
    /// The units of reservations that turned out not to be used, of those in `allowed_units`.
    pub returned_units: u64,
}

/// One of the most frequent keys, with its estimated number of recent requests.
///
/// Under heavy traffic only a sample of the requests is counted, so the number is an estimate in both directions. A key
/// with few requests may be missing from the list.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TopKey {
    /// The policy of the key.
    pub policy: PolicyName,
    /// The key as escaped text, truncated to 256 bytes. It is untrusted input; show it only as text.
    pub key: String,
    /// The key itself. `None` if it has more than 256 bytes.
    pub whole: Option<KeyBuf>,
    /// Estimated number of requests or denials in the last 30 to 60 seconds. While every key is counted, it
    /// is never too low, and too high by at most 1/128 of the total of all keys.
    pub count: u64,
    /// Allowed requests in the last 30 to 60 seconds, since the key entered the list.
    pub allowed: u64,
    /// Denied requests in the last 30 to 60 seconds, since the key entered the list, including those in shadow mode.
    pub denied: u64,
}

/// The outcome of a request under one policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    Allowed,
    Denied,
    ShadowDenied,
}

#[derive(Debug)]
pub(crate) struct Meter {
    /// In the order of their set; the last one is [`PolicyName::INLINE`].
    policies: Vec<PolicyName>,
    /// Counts from before the policies last changed. Empty if they never did.
    before: Vec<[u64; KINDS]>,
    /// Written only when a store fails, which is rare.
    store_failures: AtomicU64,
    /// The error of the last failure. A thread that finds it locked does not wait.
    last_store_failure: Mutex<Option<StoreError>>,
    /// Allocated at the first request.
    recorded: OnceLock<Box<Recorded>>,
}

/// The requests since the policies last changed.
#[derive(Debug, Default)]
struct Recorded {
    threads: ThreadLocal<CachePadded<Counters>>,
    busiest: CachePadded<Mutex<Sketch>>,
    most_denied: CachePadded<Mutex<Sketch>>,
}

/// The counters of one thread. No other thread writes them or anything in the same cache line.
#[derive(Debug)]
pub(crate) struct Counters {
    /// Those of the first policy, here because most limiters have only one.
    first: PolicyCounters,
    others: Box<[PolicyCounters]>,
    sampler: Sampler,
}

/// Number of counters per policy.
const KINDS: usize = 8;
const DEGRADED: usize = 3;
/// The first of the counters of units. A request with a cost of 1, the common case, does not touch them.
const EXTRA_UNITS: usize = 4;
const RETURNED_UNITS: usize = 7;

/// The counters of a policy, in one cache line: by [`Event`], then degraded decisions, then the units beyond one per
/// request by [`Event`], then the units of reservations that were not used.
#[derive(Debug, Default)]
#[repr(align(64))]
struct PolicyCounters([AtomicU64; KINDS]);

/// Selects the keys for the sketch: the first [`EXACT`] in each tenth of a second, then one in [`ONE_IN`],
/// which stands for the others too.
#[derive(Debug, Default)]
struct Sampler {
    /// The end of the current tenth of a second.
    until: AtomicU64,
    /// The number of keys that are still selected one by one.
    left: AtomicU32,
    /// The number of keys to skip before the next one is selected.
    skip: AtomicU32,
}

const EXACT: u32 = 256;
const ONE_IN: u32 = 1024;
const TENTH: u64 = 100_000;

impl Meter {
    /// Creates a meter for these policies and for limits without a policy.
    pub(crate) fn new(mut policies: Vec<PolicyName>) -> Self {
        policies.push(PolicyName::INLINE);
        policies.shrink_to_fit();
        Self {
            policies,
            before: Vec::new(),
            store_failures: AtomicU64::new(0),
            last_store_failure: Mutex::new(None),
            recorded: OnceLock::new(),
        }
    }

    /// Creates a meter for other policies that continues the counts of this one.
    pub(crate) fn succeeded_by(&self, policies: Vec<PolicyName>) -> Self {
        let mut next = Self::new(policies);
        let totals: HashMap<_, _> = self.policies.iter().zip(self.totals()).collect();
        let before = |policy| totals.get(policy).copied().unwrap_or_default();
        next.before = next.policies.iter().map(before).collect();
        next.store_failures = self.store_failures.load(Ordering::Relaxed).into();
        next.last_store_failure = Mutex::new(self.last_store_failure.lock().clone());
        if let Some(recorded) = self.recorded.get() {
            let copy = |sketch: &Mutex<Sketch>| CachePadded::new(Mutex::new(sketch.lock().clone()));
            let (busiest, most_denied) = (copy(&recorded.busiest), copy(&recorded.most_denied));
            let threads = ThreadLocal::new();
            next.recorded = Box::new(Recorded { threads, busiest, most_denied }).into();
        }
        next
    }

    /// Counts one request with a cost of 1 at `now` (in microseconds).
    #[cfg(test)]
    pub(crate) fn count(&self, policy: usize, event: Event, key: KeyRef<'_>, now: u64) {
        if let Some(weight) = self.tally().add(policy, event, now) {
            self.look((policy, event), key, now, weight);
        }
    }

    /// Counts one request with this cost at `now` (in microseconds).
    #[inline]
    pub(crate) fn count_cost(
        &self,
        policy: usize,
        event: Event,
        cost: u64,
        key: KeyRef<'_>,
        now: u64,
    ) {
        if let Some(weight) = self.tally().add_cost(policy, event, cost, now) {
            self.look((policy, event), key, now, weight);
        }
    }

    /// Counts a request that was decided without the store, in addition to its outcome.
    pub(crate) fn count_degraded(&self, policy: usize) {
        increase(&self.tally().of(policy)[DEGRADED], 1);
    }

    /// Corrects the units of a reservation, which were counted when it was made.
    pub(crate) fn count_settled(&self, policy: usize, reserved: u64, actual: u64) {
        let units = match actual > reserved {
            true => &self.tally().of(policy)[EXTRA_UNITS + Event::Allowed as usize],
            false => &self.tally().of(policy)[RETURNED_UNITS],
        };
        increase(units, actual.abs_diff(reserved));
    }

    /// Counts a call that the store failed to answer, and keeps its error.
    pub(crate) fn count_store_failure(&self, error: &StoreError) {
        self.store_failures.fetch_add(1, Ordering::Relaxed);
        if let Some(mut last) = self.last_store_failure.try_lock()
            && last.as_ref() != Some(error)
        {
            *last = Some(error.clone());
        }
    }

    /// Returns the counters of this thread.
    #[inline]
    pub(crate) fn tally(&self) -> &Counters {
        self.recorded().threads.get_or(|| Counters::new(self.policies.len()))
    }

    #[inline]
    fn recorded(&self) -> &Recorded {
        self.recorded.get_or_init(Box::default)
    }

    /// Returns the index for charges without a policy.
    #[inline]
    pub(crate) fn inline_index(&self) -> usize {
        self.policies.len() - 1
    }

    pub(crate) fn stats(&self, now: u64) -> Stats {
        let totals = self.totals();
        let stats = |place: usize| {
            let [allowed, denied, shadow_denied, degraded, extra @ .., returned_units] =
                totals[place];
            let [allowed_units, denied_units, shadow_denied_units] =
                [(allowed, 0), (denied, 1), (shadow_denied, 2)]
                    .map(|(requests, event): (u64, usize)| requests.wrapping_add(extra[event]));
            PolicyStats {
                policy: self.policies[place],
                allowed,
                denied,
                shadow_denied,
                degraded,
                allowed_units,
                denied_units,
                shadow_denied_units,
                returned_units,
            }
        };
        let recorded = self.recorded();
        let mut most_denied = recorded.most_denied.lock().top(now);
        let mut sketch = recorded.busiest.lock();
        let busiest = sketch.top(now);
        for TopKey { policy, whole, allowed, .. } in &mut most_denied {
            // Only the other sketch has seen requests that were allowed before the first denial.
            let seen = whole.as_ref().map_or(0, |key| sketch.allowed(*policy, key.as_ref()));
            *allowed = seen.max(*allowed);
        }
        drop(sketch);
        Stats {
            policies: (0..self.inline_index()).map(stats).collect(),
            inline: stats(self.inline_index()),
            busiest,
            most_denied,
            store_failures: self.store_failures.load(Ordering::Relaxed),
            last_store_failure: self.last_store_failure.lock().clone(),
            dropped_events: 0,
        }
    }

    /// Records a key that stands for `weight` requests.
    #[cold]
    pub(crate) fn look(
        &self,
        (policy, event): (usize, Event),
        key: KeyRef<'_>,
        now: u64,
        weight: u32,
    ) {
        let policy = self.policies[policy];
        let seen = Seen { event, weight, counts: true };
        let recorded = self.recorded();
        recorded.busiest.lock().add(policy, key, seen, now);
        if event == Event::Allowed {
            // Only if the key already has denials.
            recorded.most_denied.lock().note(policy, key, Seen { counts: false, ..seen }, now);
        } else {
            recorded.most_denied.lock().add(policy, key, seen, now);
        }
    }

    /// Returns the counts of each policy, over all threads.
    fn totals(&self) -> Vec<[u64; KINDS]> {
        let mut totals = self.before.clone();
        totals.resize(self.policies.len(), [0; KINDS]);
        for counters in self.recorded.get().iter().flat_map(|recorded| &recorded.threads) {
            for (policy, sum) in totals.iter_mut().enumerate() {
                for (sum, events) in sum.iter_mut().zip(counters.of(policy)) {
                    *sum = sum.wrapping_add(events.load(Ordering::Relaxed));
                }
            }
        }
        totals
    }
}

impl Counters {
    fn new(policies: usize) -> CachePadded<Self> {
        let others = (1..policies).map(|_| Default::default()).collect();
        let (first, sampler) = (PolicyCounters::default(), Sampler::default());
        CachePadded::new(Self { first, others, sampler })
    }

    /// Counts one request. If its key should be [recorded](Meter::look), returns the number of requests that
    /// it stands for.
    #[inline]
    pub(crate) fn add(&self, policy: usize, event: Event, now: u64) -> Option<u32> {
        increase(&self.of(policy)[event as usize], 1);
        if self.sampler.skips(now) { None } else { Some(self.sampler.select(now)) }
    }

    /// [`Counters::add`] for a request with this cost.
    #[inline]
    pub(crate) fn add_cost(&self, policy: usize, event: Event, cost: u64, now: u64) -> Option<u32> {
        if cost > 1 {
            let units = &self.of(policy)[EXTRA_UNITS + event as usize];
            increase(units, cost - 1);
        }
        self.add(policy, event, now)
    }

    /// Returns `true` if keys are only sampled at `now`.
    #[inline]
    pub(crate) fn is_sampling(&self, now: u64) -> bool {
        self.sampler.is_sampling(now)
    }

    /// Adds decisions of the first policy that were counted in a shard of the store, without their keys. Returns
    /// for how many of them the next key should stand.
    pub(crate) fn add_counts(&self, (counts, is_recent): (ShardCounts, bool)) -> u32 {
        let [allowed, denied, ..] = self.of(0);
        increase(allowed, counts.allowed.into());
        increase(denied, counts.denied.into());
        // The next key is probably not of the same traffic if that was long ago.
        if is_recent { self.sampler.pass(counts.total()) } else { 0 }
    }

    #[inline]
    fn of(&self, policy: usize) -> &[AtomicU64; KINDS] {
        match policy.checked_sub(1) {
            None => &self.first.0,
            Some(other) => &self.others[other].0,
        }
    }
}

impl Sampler {
    /// Returns `true` if the key of a request at `now` would not be selected.
    #[inline]
    fn is_sampling(&self, now: u64) -> bool {
        self.skip.load(Ordering::Relaxed) > 0 && now < self.until.load(Ordering::Relaxed)
    }

    /// Returns `true` if the key of this request is not selected, as most are under heavy traffic.
    #[inline]
    fn skips(&self, now: u64) -> bool {
        let skips = self.is_sampling(now);
        if skips {
            self.skip.store(self.skip.load(Ordering::Relaxed) - 1, Ordering::Relaxed);
        }
        skips
    }

    /// Skips requests whose keys are unknown. Returns the number of those that were not to be skipped.
    fn pass(&self, requests: u32) -> u32 {
        let skip = self.skip.load(Ordering::Relaxed);
        self.skip.store(skip.saturating_sub(requests), Ordering::Relaxed);
        requests.saturating_sub(skip)
    }

    /// Selects the key of this request. Returns the number of requests that it stands for.
    #[cold]
    fn select(&self, now: u64) -> u32 {
        let (until, mut left) =
            (self.until.load(Ordering::Relaxed), self.left.load(Ordering::Relaxed));
        // Further away than a tenth after the clock has stepped back.
        if now >= until || until - now > TENTH {
            self.until.store(now + TENTH, Ordering::Relaxed);
            left = EXACT;
        }
        let weight = if left > 0 { 1 } else { ONE_IN };
        left = left.saturating_sub(1);
        self.left.store(left, Ordering::Relaxed);
        self.skip.store(if left > 0 { 0 } else { ONE_IN - 1 }, Ordering::Relaxed);
        weight
    }
}

/// Adds to a counter that only this thread writes.
#[inline]
fn increase(counter: &AtomicU64, by: u64) {
    counter.store(counter.load(Ordering::Relaxed).wrapping_add(by), Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meter() -> Meter {
        Meter::new(vec!["a".parse().unwrap(), "b".parse().unwrap()])
    }

    #[test]
    fn counts_of_all_threads_add_up() {
        let meter = meter();
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for n in 0..10_000 {
                        let event = if n % 4 == 0 { Event::Denied } else { Event::Allowed };
                        meter.count(1, event, KeyRef::new(b"k"), n);
                    }
                });
            }
        });
        let stats = meter.stats(0);
        let [a, b] = &*stats.policies else { panic!("two policies") };
        assert_eq!((a.allowed, a.denied), (0, 0));
        assert_eq!((b.allowed, b.denied, b.shadow_denied), (60_000, 20_000, 0));
    }

    #[test]
    fn units_are_counted_beside_requests() {
        let meter = meter();
        for (event, cost) in [
            (Event::Allowed, 1),
            (Event::Allowed, 10),
            (Event::Denied, 5),
            (Event::ShadowDenied, 2),
        ] {
            meter.count_cost(0, event, cost, KeyRef::new(b"k"), 0);
        }
        let next = meter.succeeded_by(vec!["a".parse().unwrap()]);
        for stats in [meter.stats(0), next.stats(0)] {
            let a = stats.policies[0];
            assert_eq!((a.allowed, a.denied, a.shadow_denied), (2, 1, 1));
            assert_eq!((a.allowed_units, a.denied_units, a.shadow_denied_units), (11, 5, 2));
        }
    }

    #[test]
    fn a_successor_goes_on_counting() {
        let meter = meter();
        meter.count(1, Event::ShadowDenied, KeyRef::new(b"k"), 0);
        let next = meter.succeeded_by(vec!["c".parse().unwrap(), "b".parse().unwrap()]);
        next.count(1, Event::ShadowDenied, KeyRef::new(b"k"), 0);
        let shadow: Vec<_> = next.stats(0).policies.iter().map(|p| p.shadow_denied).collect();
        assert_eq!(shadow, [0, 2]);
    }

    #[test]
    fn light_traffic_is_seen_in_full_and_heavy_traffic_in_proportion() {
        let meter = meter();
        for n in 0..100 {
            meter.count(0, Event::Allowed, KeyRef::new(b"light"), TENTH + n);
        }
        assert_eq!(meter.stats(0).busiest[0].count, 100);

        let meter = self::meter();
        for n in 0..100_000_u64 {
            let key: &[u8] = if n % 5 == 0 { b"one" } else { b"four" };
            meter.count(0, Event::Denied, KeyRef::new(key), 7);
        }
        let stats = meter.stats(7);
        for (top, (key, share)) in
            stats.most_denied.iter().zip([("four", 80_000_u64), ("one", 20_000)])
        {
            assert_eq!(top.key, key);
            assert!(top.count.abs_diff(share) < share / 5, "{top:?}");
        }
    }
}
