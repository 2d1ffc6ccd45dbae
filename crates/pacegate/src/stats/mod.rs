//! What a limiter has decided: counts per policy, and the keys that stand out.
//!
//! Counting costs a few nanoseconds. Each thread has counters of its own that only it writes, so there is nothing to
//! contend for; reading adds them up. Keys go to a [sketch](top) of bounded size, every one of them while traffic is
//! light and a sample when it is not.

mod top;

use std::{
    collections::HashMap,
    sync::atomic::{AtomicU32, AtomicU64, Ordering},
};

use crossbeam_utils::CachePadded;
use parking_lot::Mutex;
use thread_local::ThreadLocal;

use self::top::{Seen, Sketch};
use crate::{KeyBuf, KeyRef, StoreError, policy::PolicyName};

/// What a limiter has decided so far.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Stats {
    /// One for each policy, in their order.
    pub policies: Vec<PolicyStats>,
    /// What was decided by limits that belong to no policy.
    pub ad_hoc: PolicyStats,
    /// The keys with most requests of late, estimated, most first.
    pub busiest: Vec<TopKey>,
    /// The keys with most denials of late, estimated, most first.
    pub most_denied: Vec<TopKey>,
    /// Calls that the store failed to answer.
    pub store_failures: u64,
    /// The error of the last of them.
    pub last_store_failure: Option<StoreError>,
}

/// What one policy has decided so far.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PolicyStats {
    /// The policy.
    pub policy: PolicyName,
    /// Requests that it covered and that passed.
    pub allowed: u64,
    /// Requests that it denied.
    pub denied: u64,
    /// Requests that it would have denied were it not in shadow mode.
    pub shadow_denied: u64,
    /// Requests that it decided without the store, by its failure mode. They are among the others, too.
    pub degraded: u64,
}

/// A key that stands out.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TopKey {
    /// The policy whose budget it is.
    pub policy: PolicyName,
    /// The key as text, escaped, cut off after 256 bytes: somebody else's input, to be shown as text only.
    pub key: String,
    /// The key itself. `None` if it has more than 256 bytes.
    pub whole: Option<KeyBuf>,
    /// About how many there were in the last 30 to 60 seconds: while every key is looked at, never fewer than that, and
    /// more by no more than a 128th of those of all keys.
    pub count: u64,
    /// How many of its requests passed since it stands out.
    pub allowed: u64,
    /// How many of its requests were denied since it stands out, or would have been were it not for shadow mode.
    pub denied: u64,
}

/// What happened to a request under one policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    Allowed,
    Denied,
    ShadowDenied,
}

#[derive(Debug)]
pub(crate) struct Meter {
    /// In the order of their set, and last [`PolicyName::AD_HOC`].
    policies: Vec<PolicyName>,
    /// What was counted before the policies last changed.
    before: Vec<[u64; KINDS]>,
    /// Written when a store fails, which is rare.
    store_failures: AtomicU64,
    /// The error of the last failure. A thread that finds it locked does not wait.
    last_store_failure: Mutex<Option<StoreError>>,
    threads: ThreadLocal<CachePadded<Counters>>,
    busiest: CachePadded<Mutex<Sketch>>,
    most_denied: CachePadded<Mutex<Sketch>>,
}

/// The counters of one thread. No other thread writes them, nor anything that shares a cache line with them.
#[derive(Debug)]
pub(crate) struct Counters {
    /// By policy and [`Event`], and last those that were degraded.
    events: Box<[CachePadded<[[AtomicU64; KINDS]; POLICIES]>]>,
    sampler: Sampler,
}

/// What is counted for each policy.
const KINDS: usize = 4;
const DEGRADED: usize = 3;

/// Policies whose counters fit a cache line, or a pair of them.
const POLICIES: usize = 4;

/// Which keys are worth a look at the sketch: in each tenth of a second the first [`EXACT`] of them, and then one in
/// [`ONE_IN`], for the others too.
#[derive(Debug, Default)]
struct Sampler {
    since: AtomicU64,
    left: AtomicU32,
    skipped: AtomicU32,
}

const EXACT: u32 = 256;
const ONE_IN: u32 = 1024;
const TENTH: u64 = 100_000;

impl Meter {
    /// A meter for these policies and for what belongs to none.
    pub(crate) fn new(mut policies: Vec<PolicyName>) -> Self {
        policies.push(PolicyName::AD_HOC);
        let before = vec![[0; KINDS]; policies.len()];
        Self {
            policies,
            before,
            store_failures: AtomicU64::new(0),
            last_store_failure: Mutex::new(None),
            threads: ThreadLocal::new(),
            busiest: CachePadded::default(),
            most_denied: CachePadded::default(),
        }
    }

    /// A meter for other policies that goes on counting where this one stands.
    pub(crate) fn succeeded_by(&self, policies: Vec<PolicyName>) -> Self {
        let mut next = Self::new(policies);
        let totals: HashMap<_, _> = self.policies.iter().zip(self.totals()).collect();
        for (policy, before) in next.policies.iter().zip(&mut next.before) {
            if let Some(&total) = totals.get(policy) {
                *before = total;
            }
        }
        next.store_failures = self.store_failures.load(Ordering::Relaxed).into();
        next.last_store_failure = Mutex::new(self.last_store_failure.lock().clone());
        next.busiest = CachePadded::new(Mutex::new(self.busiest.lock().clone()));
        next.most_denied = CachePadded::new(Mutex::new(self.most_denied.lock().clone()));
        next
    }

    /// Counts one request at `now` (in microseconds).
    #[inline]
    pub(crate) fn count(&self, policy: usize, event: Event, key: KeyRef<'_>, now: u64) {
        if let Some(weight) = self.tally().add(policy, event, now) {
            self.look((policy, event), key, now, weight);
        }
    }

    /// Counts a request that was decided without the store, besides what it was counted as.
    pub(crate) fn count_degraded(&self, policy: usize) {
        bump(&self.tally().of(policy)[DEGRADED]);
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

    /// The counters of this thread.
    #[inline]
    pub(crate) fn tally(&self) -> &Counters {
        self.threads.get_or(|| Counters::new(self.policies.len()))
    }

    /// Where charges are counted that belong to no policy.
    #[inline]
    pub(crate) fn ad_hoc(&self) -> usize {
        self.policies.len() - 1
    }

    pub(crate) fn stats(&self, now: u64) -> Stats {
        let totals = self.totals();
        let stats = |place: usize| {
            let [allowed, denied, shadow_denied, degraded] = totals[place];
            let policy = self.policies[place];
            PolicyStats { policy, allowed, denied, shadow_denied, degraded }
        };
        let mut most_denied = self.most_denied.lock().top(now);
        let mut sketch = self.busiest.lock();
        let busiest = sketch.top(now);
        for TopKey { policy, whole, allowed, .. } in &mut most_denied {
            // What passed before the first denial only the other sketch has seen.
            let seen = whole.as_ref().map_or(0, |key| sketch.allowed(*policy, key.as_ref()));
            *allowed = seen.max(*allowed);
        }
        drop(sketch);
        Stats {
            policies: (0..self.ad_hoc()).map(stats).collect(),
            ad_hoc: stats(self.ad_hoc()),
            busiest,
            most_denied,
            store_failures: self.store_failures.load(Ordering::Relaxed),
            last_store_failure: self.last_store_failure.lock().clone(),
        }
    }

    /// Takes note of a key that stands for `weight` requests.
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
        self.busiest.lock().add(policy, key, seen, now);
        if event == Event::Allowed {
            // Beside its denials, of which there must have been some.
            self.most_denied.lock().note(policy, key, Seen { counts: false, ..seen }, now);
        } else {
            self.most_denied.lock().add(policy, key, seen, now);
        }
    }

    /// For each policy, over all threads.
    fn totals(&self) -> Vec<[u64; KINDS]> {
        let mut totals = self.before.clone();
        for counters in &self.threads {
            for (policy, sum) in totals.iter_mut().enumerate() {
                for (sum, events) in sum.iter_mut().zip(counters.of(policy)) {
                    *sum += events.load(Ordering::Relaxed);
                }
            }
        }
        totals
    }
}

impl Counters {
    fn new(policies: usize) -> CachePadded<Self> {
        let events = (0..policies.div_ceil(POLICIES)).map(|_| Default::default()).collect();
        CachePadded::new(Self { events, sampler: Sampler::default() })
    }

    /// Counts one request. If its key is worth a [look](Meter::look), says for how many it stands.
    #[inline]
    pub(crate) fn add(&self, policy: usize, event: Event, now: u64) -> Option<u32> {
        bump(&self.of(policy)[event as usize]);
        self.sampler.weight(now)
    }

    #[inline]
    fn of(&self, policy: usize) -> &[AtomicU64; KINDS] {
        &self.events[policy / POLICIES][policy % POLICIES]
    }
}

impl Sampler {
    /// For how many requests this one stands, if it is looked at.
    #[inline]
    fn weight(&self, now: u64) -> Option<u32> {
        let left = self.left.load(Ordering::Relaxed);
        if left > 0 {
            self.left.store(left - 1, Ordering::Relaxed);
            return Some(1);
        }
        if now.abs_diff(self.since.load(Ordering::Relaxed)) >= TENTH {
            self.since.store(now, Ordering::Relaxed);
            self.left.store(EXACT - 1, Ordering::Relaxed);
            return Some(1);
        }
        let skipped = self.skipped.load(Ordering::Relaxed) + 1;
        let due = skipped == ONE_IN;
        self.skipped.store(if due { 0 } else { skipped }, Ordering::Relaxed);
        due.then_some(ONE_IN)
    }
}

/// Adds one to a counter that only this thread writes.
#[inline]
fn bump(counter: &AtomicU64) {
    counter.store(counter.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
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
