//! Detects charges that reach a threshold of their policy, and reports each of them once.

use std::{
    array,
    collections::HashMap,
    fmt, mem,
    ops::RangeInclusive,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use crossbeam_utils::CachePadded;
use parking_lot::Mutex;

use super::{
    evaluator::{Evaluation, Evaluator},
    permit_id::new_permit_id,
    resolve::ResolvedCharge,
};
use crate::{
    ChargeBuf, Claim, Counter, Excess, KeyBuf, Limit, MemoryStore, PolicyName, PolicySet, Reply,
    Store, StoreError, Timestamp,
    algorithm::{NEVER, Origin, Outcome},
    policy::Threshold,
    store::memory::identity::Identity,
};

/// A key that has reached a threshold of one of its limits. See [`Policy::notify`](crate::Policy::notify).
///
/// Two events with equal `policy`, `counter`, `limit`, `key`, `threshold` and `window_start` are the same event.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ThresholdEvent {
    /// The policy.
    pub policy: PolicyName,
    /// The counter of the policy: that of its limits, or of an override.
    pub counter: Counter,
    /// The key. It is untrusted input.
    pub key: KeyBuf,
    /// The limit.
    pub limit: Limit,
    /// The threshold.
    pub threshold: Threshold,
    /// The used units after the charge. If a denial reached the threshold, there may be fewer than the threshold.
    pub used: u64,
    /// The instant of the charge, by the clock of the store.
    pub at: Timestamp,
    /// The start of the fixed window. Other algorithms: the instant of the charge.
    pub window_start: Timestamp,
    /// The end of the fixed window. Other algorithms: one period later. The event is not reported again until then.
    pub window_end: Timestamp,
}

/// The receiver of threshold events.
pub(super) type OnThreshold = Box<dyn Fn(ThresholdEvent) + Send + Sync>;

/// Reports each event once, to the function of the program.
pub(super) struct ThresholdReporter {
    on_threshold: OnThreshold,
    /// Grants an event to one of several processes. `None`: the counters are not shared.
    store: Option<Arc<dyn Store>>,
    /// Its clock delays repeated claims.
    memory: MemoryStore,
    reported: ReportedEvents,
    /// Events whose claim has not been answered yet.
    pending: AtomicUsize,
    dropped: AtomicU64,
}

/// The thresholds of a policy set, with their reporter.
pub(super) struct ThresholdWatch {
    /// By the index of the policy.
    policies: Box<[Vec<Threshold>]>,
    reporter: Arc<ThresholdReporter>,
}

/// The events that this process has reported or claimed. Bounded: the oldest are forgotten.
struct ReportedEvents {
    shards: [CachePadded<Mutex<Generations>>; SHARDS],
}

/// Reported events, each with the instant in microseconds at which it may be reported again.
#[derive(Default)]
struct Generations {
    current: HashMap<EventId, u64, foldhash::fast::RandomState>,
    previous: HashMap<EventId, u64, foldhash::fast::RandomState>,
}

/// Identifies an event in this process: the counter of the key, the start of its fixed window, and the threshold.
type EventId = (Identity, u64, Threshold);

const SHARDS: usize = 16;
/// Maximum number of events in one of the two generations of a shard: up to 131,072 in all.
const MAX_REPORTED: usize = 4_096;
/// Maximum number of events whose claim has not been answered.
const MAX_PENDING: usize = 16_384;
/// Attempts to claim an event. If all fail, it is reported nevertheless, so that none is lost.
const CLAIM_ATTEMPTS: u32 = 6;
/// The wait after the first failed attempt. It doubles with each further one.
const FIRST_RETRY: Duration = Duration::from_millis(100);

impl ThresholdReporter {
    pub(super) fn new(
        on_threshold: OnThreshold,
        store: Option<Arc<dyn Store>>,
        memory: MemoryStore,
    ) -> Self {
        Self {
            on_threshold,
            store,
            memory,
            reported: ReportedEvents { shards: array::from_fn(|_| CachePadded::default()) },
            pending: AtomicUsize::new(0),
            dropped: AtomicU64::new(0),
        }
    }

    /// Returns the number of events that were not reported because too many claims were pending.
    pub(super) fn dropped(&self) -> u64 {
        self.dropped.load(Ordering::Relaxed)
    }

    /// Reports an event that is new in this process. With a store, claims it first, in a task.
    fn report(
        self: &Arc<Self>,
        id: &EventId,
        charge: impl FnOnce() -> ChargeBuf,
        event: ThresholdEvent,
    ) {
        let Some(store) = &self.store else { return (self.on_threshold)(event) };
        let pending = PendingEvent::new(self.clone());
        if self.pending.load(Ordering::Relaxed) > MAX_PENDING {
            // A later charge may report it.
            self.reported.remove(id);
            self.dropped.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let lifetime = event.window_end.micros_since(event.at);
        let words = [id.1, u64::from(event.threshold.percent())];
        // A new owner for each claim: this process may have reported the event before, and forgotten it.
        let owner = new_permit_id();
        let claim = Claim::new(words, owner, event.at, Duration::from_micros(lifetime));
        let (reporter, charge) = (self.clone(), charge());
        store.spawn(Box::pin(async move {
            if reporter.claim(&charge, claim).await {
                (reporter.on_threshold)(event);
            }
            drop(pending);
        }));
    }

    /// Returns `true` if this process has to report the event, because no other process does, nor did this one before.
    async fn claim(&self, charge: &ChargeBuf, claim: Claim) -> bool {
        let Some(store) = &self.store else { return true };
        let mut wait = FIRST_RETRY;
        for _ in 0..CLAIM_ATTEMPTS {
            let reply = store.claim(&charge.as_charge(), claim);
            let answer = match reply {
                Reply::Ready(answer) => answer,
                Reply::Pending(pending) => pending.await,
            };
            match answer {
                Ok(granted) => return granted,
                Err(StoreError::Unsupported(_)) => return true,
                Err(_) => {
                    let now = Timestamp::from_micros(self.memory.now());
                    self.memory.sleep_until(now.after(wait)).await;
                }
            }
            wait *= 2;
        }
        true
    }
}

/// Counts an event as pending until it is dropped.
struct PendingEvent(Arc<ThresholdReporter>);

impl PendingEvent {
    fn new(reporter: Arc<ThresholdReporter>) -> Self {
        reporter.pending.fetch_add(1, Ordering::Relaxed);
        Self(reporter)
    }
}

impl Drop for PendingEvent {
    fn drop(&mut self) {
        self.0.pending.fetch_sub(1, Ordering::Relaxed);
    }
}

impl ThresholdWatch {
    /// Creates a watch. `None` without a receiver, or without a policy that has thresholds.
    pub(super) fn new(
        policies: &PolicySet,
        reporter: Option<&Arc<ThresholdReporter>>,
    ) -> Option<Box<Self>> {
        let all = policies.policies();
        let reporter = reporter.filter(|_| all.iter().any(|policy| !policy.notify.is_empty()))?;
        let policies = all.iter().map(|policy| policy.notify.clone()).collect();
        Some(Box::new(Self { policies, reporter: reporter.clone() }))
    }

    /// Returns `true` if the policy at this index has thresholds.
    pub(super) fn has_thresholds(&self, policy: usize) -> bool {
        self.policies.get(policy).is_some_and(|thresholds| !thresholds.is_empty())
    }
}

impl Evaluator {
    /// Reports the thresholds that the charges of a request have reached.
    #[cold]
    pub(super) fn report_thresholds(
        &self,
        watch: &ThresholdWatch,
        charges: &[ResolvedCharge<'_>],
        evaluation: &Evaluation,
    ) {
        let Evaluation { decision, outcomes, now } = evaluation;
        // A failure mode does not know the usage.
        if decision.is_degraded() {
            return;
        }
        for (charge, outcome) in charges.iter().zip(&**outcomes) {
            self.report_reached(watch, charge, outcome, decision.allowed, *now);
        }
    }

    /// Reports the thresholds that a settlement has reached, by the units beyond the reserved ones.
    pub(super) fn report_debt(&self, charge: &ResolvedCharge<'_>, outcome: &Outcome, now: u64) {
        if let Some(watch) = &self.thresholds {
            let max = charge.limit.max_debt;
            let excess = Excess::Debt { max }.under(&charge.limit.limit);
            let charge = ResolvedCharge { excess, ..*charge };
            self.report_reached(watch, &charge, outcome, true, now);
        }
    }

    fn report_reached(
        &self,
        watch: &ThresholdWatch,
        charge: &ResolvedCharge<'_>,
        outcome: &Outcome,
        allowed: bool,
        now: u64,
    ) {
        // Inline limits have no thresholds.
        let Some(thresholds) = watch.policies.get(charge.limit.stats_index) else { return };
        let is_shared = watch.reporter.store.is_some();
        let Some(reached) = reached_units(charge, outcome, allowed, is_shared) else { return };
        let at = if outcome.decided_at > 0 { outcome.decided_at } else { now };
        for &threshold in thresholds {
            if reached.contains(&threshold.units(&charge.limit.limit)) {
                self.report_threshold(watch, charge, outcome, threshold, at);
            }
        }
    }

    fn report_threshold(
        &self,
        watch: &ThresholdWatch,
        charge: &ResolvedCharge<'_>,
        outcome: &Outcome,
        threshold: Threshold,
        at: u64,
    ) {
        let limit = charge.limit.limit;
        let at = Timestamp::from_micros(at);
        let (window_start, window_end) = window(&limit, at);
        let identity = self.memory.identity(&charge.limit.scope, charge.key);
        // Other algorithms have no windows: an event is the same for one period.
        let window = if has_windows(&limit) { window_start.as_micros() } else { 0 };
        let id = (identity, window, threshold);
        if !watch.reporter.reported.insert(id, at.as_micros(), window_end.as_micros()) {
            return;
        }
        let event = ThresholdEvent {
            policy: charge.limit.policy,
            counter: charge.limit.counter,
            key: charge.key.to_buf(),
            limit,
            threshold,
            used: limit.capacity().saturating_sub(outcome.remaining),
            at,
            window_start,
            window_end,
        };
        watch.reporter.report(&id, || ChargeBuf::from(&self.to_charge(charge)), event);
    }
}

/// Returns the numbers of used units that a charge has reached. `None` if it has reached none, or if they are unknown.
///
/// An admitted charge reaches those from the usage before to the usage after it. Two cases include the units below:
/// units of a lease, which other processes may have charged, and shared fixed windows, where the answer to an earlier
/// charge may have been lost. There, an event is reported once per window anyway.
fn reached_units(
    charge: &ResolvedCharge<'_>,
    outcome: &Outcome,
    allowed: bool,
    is_shared: bool,
) -> Option<RangeInclusive<u64>> {
    let limit = &charge.limit.limit;
    let capacity = limit.capacity();
    let used = capacity.saturating_sub(outcome.remaining);
    let is_recorded = charge.excess.is_recorded();
    // The overflow counter is not that of the key. A cost that can never be admitted does not exhaust the limit.
    if charge.cost == 0
        || limit.amount() == 0
        || outcome.origin == Origin::Overflow
        || outcome.retry_after == NEVER
    {
        return None;
    }
    match outcome.is_admitted() {
        true if !allowed && !is_recorded => None,
        true if outcome.origin == Origin::Lease || is_shared && has_windows(limit) => {
            Some(1..=used)
        }
        true => Some(used.saturating_sub(charge.cost) + 1..=used),
        false if is_recorded => Some(1..=capacity),
        // A denial reaches 100%.
        false => Some(capacity..=capacity),
    }
}

fn has_windows(limit: &Limit) -> bool {
    limit.algorithm().windows() == 1
}

/// Returns the start and the end of the window of an event.
fn window(limit: &Limit, at: Timestamp) -> (Timestamp, Timestamp) {
    match limit.window_at(at).filter(|_| has_windows(limit)) {
        Some(window) => (window.start(), window.end()),
        None => (at, at.after(limit.period())),
    }
}

impl ReportedEvents {
    /// Adds an event that must not be reported again before `until`. Returns `false` if it was reported before.
    fn insert(&self, id: EventId, now: u64, until: u64) -> bool {
        let mut shard = self.shard(&id).lock();
        let is_known = |known: Option<&u64>| known.is_some_and(|until| *until > now);
        if is_known(shard.current.get(&id)) || is_known(shard.previous.get(&id)) {
            return false;
        }
        if shard.current.len() >= MAX_REPORTED {
            shard.previous = mem::take(&mut shard.current);
        }
        shard.current.insert(id, until);
        true
    }

    fn remove(&self, id: &EventId) {
        let mut shard = self.shard(id).lock();
        shard.current.remove(id);
        shard.previous.remove(id);
    }

    fn shard(&self, (identity, ..): &EventId) -> &Mutex<Generations> {
        &self.shards[identity.part(SHARDS)]
    }
}

impl fmt::Debug for ThresholdReporter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ThresholdReporter").field("pending", &self.pending).finish_non_exhaustive()
    }
}
