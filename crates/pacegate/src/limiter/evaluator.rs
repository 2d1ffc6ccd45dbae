//! The steps that decide a request: resolve, charge, combine, record. [`Limiter`](super::Limiter) and
//! [`SharedLimiter`](super::SharedLimiter) are handles over this.

use std::{ops::Range, slice, sync::Arc};

use arrayvec::ArrayVec;
use smallvec::SmallVec;

use super::{
    combine::{combine, decide, event},
    resolve::{BoundLimit, Resolved, ResolvedCharge, ResolvedCharges, max_cost, spent},
    thresholds::{ThresholdReporter, ThresholdWatch},
    wait_queue::WaitQueue,
};
use crate::{
    Charge, CostError, Counter, Decision, Excess, KeyRef, Limit, MemoryStore, Outcomes, PolicyName,
    Request, Stats, StoreError,
    algorithm::Outcome,
    policy::{LimitEntry, PolicyMatch, PolicySet},
    stats::{Counters, Event, Meter},
    store::{
        Update,
        memory::{
            FEW, LockedCell, Slot,
            identity::{Identity, KeyHash},
        },
    },
};

/// The policies, their state in memory, their statistics, and the callers that wait for units.
pub(super) struct Evaluator {
    pub(super) policies: PolicySet,
    pub(super) meter: Meter,
    /// The store of a `Limiter`, and the fallback of a `SharedLimiter`.
    pub(super) memory: MemoryStore,
    pub(super) wait_queue: WaitQueue,
    /// In the order of [`PolicySet::limit_entries`].
    limits: Box<[BoundLimit]>,
    /// The limits of the only policy, if it counts every request by its key: nothing to match.
    direct: Option<Range<usize>>,
    /// `true` if there is one direct, enforced limit with a fixed-size state and no thresholds: the fast path of
    /// `check`.
    is_single: bool,
    /// `true` if all limits are enforced and have a fixed-size state, and there are no thresholds.
    are_simple: bool,
    /// `true` if the decisions of the single limit are [counted in the store](crate::store::memory::ShardCounts). Only
    /// one evaluator of a store does that.
    counts_in_store: bool,
    /// Set if threshold events have a receiver.
    reporter: Option<Arc<ThresholdReporter>>,
    /// Set if there is a reporter, and a policy has thresholds.
    pub(super) thresholds: Option<Box<ThresholdWatch>>,
}

/// The result of charging a request, before it is recorded.
#[derive(Debug)]
pub(super) struct Evaluation {
    pub(super) decision: Decision,
    /// One for each charge of the caller.
    pub(super) outcomes: Outcomes,
    /// In microseconds.
    pub(super) now: u64,
}

impl Evaluator {
    pub(super) fn new(policies: PolicySet, memory: MemoryStore, wait_queue: WaitQueue) -> Self {
        Self::reporting(policies, memory, wait_queue, None)
    }

    /// Creates an evaluator that reports threshold events.
    pub(super) fn reporting(
        policies: PolicySet,
        memory: MemoryStore,
        wait_queue: WaitQueue,
        reporter: Option<Arc<ThresholdReporter>>,
    ) -> Self {
        let meter = Meter::new(names(&policies));
        let evaluator = Self::with_meter(policies, meter, memory, wait_queue, reporter);
        Self { counts_in_store: evaluator.is_single, ..evaluator }
    }

    fn with_meter(
        policies: PolicySet,
        meter: Meter,
        memory: MemoryStore,
        wait_queue: WaitQueue,
        reporter: Option<Arc<ThresholdReporter>>,
    ) -> Self {
        let all = policies.policies().iter();
        memory.register(all.map(|policy| (policy.name, &*policy.domain)));
        let bind = |entry: &LimitEntry| {
            let policy = &policies.policies()[entry.policy];
            BoundLimit {
                policy: entry.name,
                counter: entry.counter,
                limit: entry.limit,
                scope: memory.scope(entry.name, entry.counter, &entry.limit),
                max_cost: max_cost(&entry.limit, policy.max_cost.unwrap_or(u64::MAX)),
                max_recorded: policy.max_cost.unwrap_or(u64::MAX),
                excess: policy.excess(&entry.limit).under(&entry.limit),
                max_debt: policy.max_debt_of(&entry.limit),
                unsettled: policy.unsettled,
                enforced: entry.enforced,
                lease: entry.lease,
                failure: policy.failure,
                stats_index: entry.policy,
            }
        };
        let limits: Box<[BoundLimit]> = policies.limit_entries().iter().map(bind).collect();
        let direct = policies.direct();
        let thresholds = ThresholdWatch::new(&policies, reporter.as_ref());
        let are_simple = limits.iter().all(|limit| is_simple(limit, thresholds.as_deref()));
        let is_single = are_simple && direct.is_some() && limits.len() == 1;
        Self {
            policies,
            meter,
            memory,
            wait_queue,
            limits,
            direct,
            is_single,
            are_simple,
            counts_in_store: false,
            reporter,
            thresholds,
        }
    }

    /// Creates an evaluator for other policies on the same state and statistics.
    pub(super) fn with_policies(&self, policies: PolicySet) -> Self {
        self.take_counts();
        let meter = self.meter.succeeded_by(names(&policies));
        let (memory, wait_queue) = (self.memory.clone(), self.wait_queue.clone());
        Self::with_meter(policies, meter, memory, wait_queue, self.reporter.clone())
    }

    pub(super) fn stats(&self) -> Stats {
        self.take_counts();
        let mut stats = self.meter.stats(self.memory.now());
        stats.dropped_events = self.reporter.as_ref().map_or(0, |reporter| reporter.dropped());
        stats
    }

    /// Adds the decisions that were counted in the store to the statistics.
    fn take_counts(&self) {
        if self.counts_in_store {
            let counters = self.meter.tally();
            self.memory.take_counts(|counts| {
                counters.add_counts(counts);
            });
        }
    }

    /// The limit of the fast path.
    #[inline]
    pub(super) fn single(&self) -> Option<&BoundLimit> {
        if self.is_single { self.limits.first() } else { None }
    }

    /// Returns `true` if a direct limit is a concurrency limit.
    pub(super) fn direct_has_permits(&self) -> bool {
        self.limits.iter().any(BoundLimit::has_permits)
    }

    /// Returns `true` if nothing has to be matched: one policy counts every request by its key.
    pub(super) fn is_direct(&self) -> bool {
        self.direct.is_some()
    }
}

/// Resolve.
impl Evaluator {
    /// Returns the policies that apply to a request that is only a key.
    pub(super) fn plan_key(&self, key: KeyRef<'_>) -> SmallVec<[PolicyMatch; 4]> {
        if let Some(entries) = self.direct.clone() {
            return SmallVec::from_iter([PolicyMatch { policy: 0, entries, key: key.to_buf() }]);
        }
        let request = Request::new().with(Request::KEY, key.as_bytes());
        let mut plan = self.policies.plan(&request);
        for matched in plan.iter_mut().filter(|matched| self.policies.is_by_key(matched)) {
            matched.key = key.to_buf();
        }
        plan
    }

    /// Returns a charge for each limit of a plan.
    pub(super) fn charges_of<'a>(
        &'a self,
        plan: &'a [PolicyMatch],
        cost: u64,
        permit: u128,
    ) -> ResolvedCharges<'a> {
        let limits = plan.iter().flat_map(|matched| {
            let limits = &self.limits[matched.entries.clone()];
            limits.iter().map(|limit| (limit, matched.key.as_ref()))
        });
        limits.map(|(limit, key)| ResolvedCharge::new(limit, key, cost, permit)).collect()
    }

    /// Returns a charge for each limit of [matches](PolicySet::with_matches).
    pub(super) fn charges_for<'a>(
        &'a self,
        matches: &[(Range<usize>, KeyRef<'a>)],
        cost: u64,
    ) -> ResolvedCharges<'a> {
        let mut charges = ResolvedCharges::new();
        for (entries, key) in matches {
            for limit in &self.limits[entries.clone()] {
                charges.push(ResolvedCharge::new(limit, *key, cost, 0));
            }
        }
        charges
    }

    /// Returns the limit of [matches](PolicySet::with_matches) and its key, if it is the only one and can be decided
    /// as a [single](Self::single) one.
    pub(super) fn only_limit<'a>(
        &self,
        matches: &[(Range<usize>, KeyRef<'a>)],
    ) -> Option<(&BoundLimit, KeyRef<'a>)> {
        let [(entries, key)] = matches else { return None };
        let [limit] = &self.limits[entries.clone()] else { return None };
        is_simple(limit, self.thresholds.as_deref()).then_some((limit, *key))
    }

    /// Calls `then` with the charges of a request that is only a key.
    #[inline]
    pub(super) fn with_key<R>(
        &self,
        key: KeyRef<'_>,
        cost: u64,
        permit: u128,
        then: impl FnOnce(ResolvedCharges<'_>) -> R,
    ) -> R {
        match &self.direct {
            Some(direct) => {
                let limits = self.limits[direct.clone()].iter();
                let charge = |limit| ResolvedCharge::new(limit, key, cost, permit);
                then(limits.map(charge).collect())
            }
            None => {
                let plan = self.plan_key(key);
                then(self.charges_of(&plan, cost, permit))
            }
        }
    }

    /// Binds explicit charges to limits. Those of a policy share its counters, all others have their own.
    pub(super) fn bind(&self, charges: &[Charge<'_>]) -> SmallVec<[BoundLimit; 2]> {
        charges.iter().map(|charge| self.bind_one(charge)).collect()
    }

    /// Binds one explicit charge to a limit. See [`Evaluator::bind`].
    pub(super) fn bind_one(&self, charge: &Charge<'_>) -> BoundLimit {
        let place = self.policies.index_of(charge.policy);
        let entry = place.and_then(|place| self.policies.entry_of(place, charge));
        let scope = match entry {
            Some(entry) => self.limits[entry].scope,
            None => self.memory.scope_of(charge),
        };
        BoundLimit {
            policy: charge.policy,
            counter: charge.counter,
            limit: charge.limit,
            scope,
            max_cost: max_cost(&charge.limit, charge.max_cost),
            max_recorded: charge.max_cost,
            excess: charge.excess.under(&charge.limit),
            max_debt: charge.max_debt,
            unsettled: charge.unsettled,
            enforced: charge.enforced,
            lease: charge.lease,
            failure: charge.failure.unwrap_or_else(|| self.policies.failure_of(charge.policy)),
            stats_index: place.unwrap_or(self.meter.inline_index()),
        }
    }

    /// Returns the index of a policy in the statistics.
    pub(super) fn stats_index(&self, policy: PolicyName) -> usize {
        self.policies.index_of(policy).unwrap_or(self.meter.inline_index())
    }

    /// Returns a charge as a store gets it.
    pub(super) fn to_charge<'a>(&'a self, charge: &ResolvedCharge<'a>) -> Charge<'a> {
        let BoundLimit { policy, counter, limit, enforced, lease, failure, .. } = *charge.limit;
        let tag = match charge.tag {
            Some(tag) => *tag,
            None => self.policies.policies()[charge.limit.stats_index].tag_of(charge.key),
        };
        Charge {
            policy,
            counter,
            key: charge.key,
            tag,
            limit,
            cost: charge.cost,
            max_cost: charge.limit.max_cost,
            enforced,
            permit: charge.permit,
            lease,
            failure: Some(failure),
            excess: charge.excess,
            max_debt: charge.limit.max_debt,
            unsettled: charge.limit.unsettled,
        }
    }
}

/// Charge.
impl Evaluator {
    /// Charges memory and records the decision.
    pub(super) fn check(&self, resolved: &Resolved<'_>) -> Decision {
        let evaluation = self.evaluate(resolved);
        self.record(&resolved.charges, &evaluation);
        evaluation.decision
    }

    /// [`Evaluator::check`] for one unit of a [single](Self::single) limit.
    ///
    /// Everything that it calls in the most frequent case is always inlined, so that numbers stay in registers. Copies
    /// of outcomes and charges in memory would take half as long again.
    #[inline(always)]
    pub(super) fn check_single(&self, limit: &BoundLimit, key: KeyRef<'_>) -> Decision {
        let memory = self.current_memory();
        let id = memory.identity(&limit.scope, key);
        memory.prefetch(id);
        self.check_cell(memory, limit, (key, id), memory.read_clock())
    }

    /// [`Evaluator::check_single`] for a key that was hashed, at an instant that was just
    /// [read](MemoryStore::read_clock).
    #[inline(always)]
    pub(super) fn check_cell(
        &self,
        memory: &MemoryStore,
        limit: &BoundLimit,
        (key, id): (KeyRef<'_>, Identity),
        read: u64,
    ) -> Decision {
        let counts = self.counts_in_store;
        match memory.charge_often(id, &limit.limit, (1, limit.excess), read, counts) {
            Ok((outcome, _)) if counts => decide(limit, outcome, false),
            Ok((outcome, now)) => {
                self.record_single(self.meter.tally(), limit, (key, 1), outcome, now)
            }
            Err(locked) => self.check_locked(locked, limit, key),
        }
    }

    /// Decides and records one unit for a key whose shard is locked.
    #[cold]
    fn check_locked(
        &self,
        mut locked: LockedCell<'_>,
        limit: &BoundLimit,
        key: KeyRef<'_>,
    ) -> Decision {
        let slot = self.slot(&ResolvedCharge::new(limit, key, 1, 0));
        if !self.counts_in_store {
            let (outcome, now) = locked.charge(&slot);
            return self.record_single(self.meter.tally(), limit, (key, 1), outcome, now);
        }
        let (counters, now) = (self.meter.tally(), locked.now());
        // Before the shard is unlocked, so that the statistics always include all earlier decisions.
        let unsampled = counters.add_counts(locked.take_counts());
        if counters.is_sampling(now) {
            locked.set_busy();
        }
        let (outcome, now) = locked.charge(&slot);
        let decision = decide(limit, outcome, false);
        let event = if decision.allowed { Event::Allowed } else { Event::Denied };
        if let Some(weight) = counters.add(limit.stats_index, event, now) {
            self.meter.look((limit.stats_index, event), key, now, weight.saturating_add(unsampled));
        }
        decision
    }

    /// [`Evaluator::check`] for a limit that is like a [single](Self::single) one.
    #[inline(always)]
    fn check_simple(&self, limit: &BoundLimit, key: KeyRef<'_>, cost: u64) -> Decision {
        // Found before the shard is locked, so that the CPU can overlap both.
        let counters = self.meter.tally();
        let hash = self.memory.hash(key);
        let memory = self.current_memory();
        let id = hash.in_scope(&limit.scope);
        memory.prefetch(id);
        let read = memory.read_clock();
        let charged = memory.charge_often(id, &limit.limit, (cost, limit.excess), read, false);
        let (outcome, now) = match charged {
            Ok(charged) => charged,
            Err(locked) => charge_locked(locked, limit, key, cost, hash),
        };
        self.record_single(counters, limit, (key, cost), outcome, now)
    }

    /// Records a charge to a [single](Self::single) limit. One enforced limit needs no combining: its decision is that
    /// of the request.
    #[inline(always)]
    pub(super) fn record_single(
        &self,
        counters: &Counters,
        limit: &BoundLimit,
        (key, cost): (KeyRef<'_>, u64),
        outcome: Outcome,
        now: u64,
    ) -> Decision {
        let decision = decide(limit, outcome, false);
        let event = if decision.allowed { Event::Allowed } else { Event::Denied };
        if cost > 0
            && let Some(weight) = counters.add_cost(limit.stats_index, event, cost, now)
        {
            self.meter.look((limit.stats_index, event), key, now, weight);
        }
        decision
    }

    /// Charges one unit to a key under an inline limit with a fixed-size state.
    #[inline]
    pub(super) fn check_inline(&self, limit: &Limit, key: KeyRef<'_>) -> Decision {
        let scope = self.memory.scope(PolicyName::INLINE, Counter::Limit, limit);
        let (outcome, now) = self.current_memory().charge_cell(&Slot {
            scope: &scope,
            id: self.memory.identity(&scope, key),
            limit,
            cost: 1,
            permit: 0,
            enforced: true,
            excess: Excess::Reject,
        });
        let decision = Decision::of(PolicyName::INLINE, *limit, outcome);
        let event = if decision.allowed { Event::Allowed } else { Event::Denied };
        self.meter.count_cost(self.meter.inline_index(), event, 1, key, now);
        decision
    }

    /// Charges a key of this cost, all or nothing.
    #[inline]
    pub(super) fn check_key(&self, key: KeyRef<'_>, cost: u64) -> Result<Decision, CostError> {
        if let Some(single) = self.single() {
            if cost == 1 {
                return Ok(self.check_single(single, key));
            }
            single.check_cost(cost, single.excess)?;
            return Ok(self.check_simple(single, key, cost));
        }
        if let Some(decision) = self.check_known(key, cost)? {
            return Ok(decision);
        }
        self.with_key(key, cost, 0, |charges| self.check_charges(&charges))
    }

    /// Charges a key under several [simple](is_simple) limits of one policy. Returns `None`, and charges nothing, if
    /// the limits are others, or if [`MemoryStore::charge_known`] does not decide. Builds no lists of charges.
    #[inline]
    fn check_known(&self, key: KeyRef<'_>, cost: u64) -> Result<Option<Decision>, CostError> {
        let Some(direct) = self.direct.clone().filter(|_| self.are_simple) else { return Ok(None) };
        let limits = &self.limits[direct];
        limits.iter().try_for_each(|limit| limit.check_cost(cost, limit.excess))?;
        let hash = self.memory.hash(key);
        let slots = limits.iter().map(|limit| ResolvedCharge::new(limit, key, cost, 0).slot(hash));
        let (mut place, mut tightest) = (0, None::<(usize, Outcome)>);
        let charged = self.current_memory().charge_known(slots, |outcome| {
            if tightest.is_none_or(|(_, other)| outcome.is_tighter_than(&other)) {
                tightest = Some((place, outcome));
            }
            place += 1;
        });
        let (Some(now), Some((place, outcome))) = (charged, tightest) else { return Ok(None) };
        let charge = (key, cost);
        Ok(Some(self.record_single(self.meter.tally(), &limits[place], charge, outcome, now)))
    }

    /// Charges a request in memory, all or nothing, as if it had this cost.
    pub(super) fn check_request(
        &self,
        request: &Request<'_>,
        cost: u64,
    ) -> Result<Decision, CostError> {
        self.policies.with_matches(request, |matches| {
            if let Some((limit, key)) = self.only_limit(matches)
                && !request.is_spent()
            {
                limit.check_cost(cost, limit.excess)?;
                return Ok(self.check_simple(limit, key, cost));
            }
            let mut charges = self.charges_for(matches, cost);
            if request.is_spent() && cost > 0 {
                charges = spent(charges);
            }
            self.check_charges(&charges)
        })
    }

    /// Charges a request in which no two charges share a counter.
    pub(super) fn check_charges(
        &self,
        charges: &[ResolvedCharge<'_>],
    ) -> Result<Decision, CostError> {
        let is_simple = charges.len() <= FEW && self.thresholds.is_none();
        if !is_simple || charges.iter().any(|charge| !charge.limit.enforced) {
            let charges = charges.iter().copied().collect();
            return Ok(self.check(&Resolved::new(charges, false)?));
        }
        charges.iter().try_for_each(ResolvedCharge::check_cost)?;
        Ok(self.check_few(charges))
    }

    /// [`Evaluator::check`] for up to [`FEW`] enforced charges, none of which has to be merged with another.
    fn check_few(&self, charges: &[ResolvedCharge<'_>]) -> Decision {
        let (mut slots, mut outcomes) = (ArrayVec::<Slot<'_>, FEW>::new(), ArrayVec::new());
        let mut last: Option<(KeyRef<'_>, KeyHash)> = None;
        for charge in charges {
            // Most limits of a request count by the same key.
            let hash = match last {
                Some((key, hash)) if key.is_same(charge.key) => hash,
                _ => self.memory.hash(charge.key),
            };
            last = Some((charge.key, hash));
            slots.push(charge.slot(hash));
        }
        let now = self.current_memory().charge_few(&slots, &mut outcomes);
        let decision = combine(charges, &outcomes, false);
        self.record_outcomes(charges, &outcomes, &decision, now);
        decision
    }

    /// Charges memory, all or nothing. Records nothing.
    pub(super) fn evaluate(&self, resolved: &Resolved<'_>) -> Evaluation {
        let slots: SmallVec<[Slot<'_>; 4]> =
            resolved.sent().iter().map(|charge| self.slot(charge)).collect();
        let (outcomes, now) = self.current_memory().charge_all(&slots);
        self.conclude(resolved, outcomes, now, false)
    }

    /// Combines the outcomes of the charges that were [sent](Resolved::sent) to a store.
    pub(super) fn conclude(
        &self,
        resolved: &Resolved<'_>,
        outcomes: Outcomes,
        now: u64,
        degraded: bool,
    ) -> Evaluation {
        let outcomes = resolved.split_outcomes(outcomes);
        let decision = combine(&resolved.charges, &outcomes, degraded);
        Evaluation { decision, outcomes, now }
    }

    /// Changes a counter in memory without a decision. `false` if a permit has expired.
    pub(super) fn update(&self, charge: &ResolvedCharge<'_>, update: Update) -> bool {
        self.current_memory().update_slot(&self.slot(charge), update)
    }

    /// Changes a counter in memory, and wakes a caller that waits for its key.
    pub(super) fn update_and_notify(&self, charge: &ResolvedCharge<'_>, update: Update) -> bool {
        let updated = self.update(charge, update);
        if update != Update::Renew {
            self.notify(self.queue_of(slice::from_ref(charge)));
        }
        updated
    }

    /// Hashes the key of a charge, for the store in memory.
    #[inline]
    pub(super) fn slot<'a>(&self, charge: &ResolvedCharge<'a>) -> Slot<'a> {
        charge.slot(self.memory.hash(charge.key))
    }
}

/// Record.
impl Evaluator {
    /// Records a request: one event for each policy and key, whose charges are adjacent. Reports thresholds.
    pub(super) fn record(&self, all: &[ResolvedCharge<'_>], evaluation: &Evaluation) {
        let Evaluation { decision, outcomes, now } = evaluation;
        self.record_outcomes(all, outcomes, decision, *now);
        if let Some(watch) = &self.thresholds {
            self.report_thresholds(watch, all, evaluation);
        }
    }

    /// [`Evaluator::record`] without thresholds.
    #[inline]
    fn record_outcomes(
        &self,
        charges: &[ResolvedCharge<'_>],
        mut outcomes: &[Outcome],
        decision: &Decision,
        now: u64,
    ) {
        for charges in charges.chunk_by(|one, other| one.has_same_policy_and_key(other)) {
            let (own, rest) = outcomes.split_at(charges.len());
            outcomes = rest;
            self.record_policy(charges, own, decision, now);
        }
    }

    /// Records the charges of one policy and key.
    #[inline]
    fn record_policy(
        &self,
        charges: &[ResolvedCharge<'_>],
        outcomes: &[Outcome],
        decision: &Decision,
        now: u64,
    ) {
        if let Some(event) = event(charges, outcomes, decision.allowed) {
            let cost = charges.iter().map(|charge| charge.cost).max().unwrap_or(0);
            let place = charges[0].limit.stats_index;
            self.meter.count_cost(place, event, cost, charges[0].key, now);
            if decision.is_degraded() {
                self.meter.count_degraded(place);
            }
        }
    }

    /// Records a request that gave up before it was evaluated, as denied by its first enforced policy.
    pub(super) fn record_unserved(&self, charges: &[ResolvedCharge<'_>]) {
        let first = charges.iter().find(|charge| charge.limit.enforced && charge.cost > 0);
        if let Some(charge) = first {
            let now = self.memory.now();
            let index = charge.limit.stats_index;
            self.meter.count_cost(index, Event::Denied, charge.cost, charge.key, now);
        }
    }

    /// Records a failure of the store. An unsupported call is a mistake of the caller instead.
    pub(super) fn record_failure<T>(&self, answer: Result<T, StoreError>) -> Result<T, StoreError> {
        if let Err(error) = &answer
            && !matches!(error, StoreError::Unsupported(_))
        {
            self.meter.count_store_failure(error);
        }
        answer
    }
}

/// Notify.
impl Evaluator {
    /// Returns the wait queue of a request: that of its first limit.
    pub(super) fn queue_of(&self, charges: &[ResolvedCharge<'_>]) -> Option<Identity> {
        charges.first().map(|charge| self.memory.identity(&charge.limit.scope, charge.key))
    }

    /// Wakes the first caller in a wait queue, because units were returned.
    pub(super) fn notify(&self, queue: Option<Identity>) {
        if let Some(queue) = queue {
            self.wait_queue.notify(queue);
        }
    }
}

/// Returns `true` if a limit is enforced and has a fixed-size state, and if there are no thresholds.
fn is_simple(limit: &BoundLimit, thresholds: Option<&ThresholdWatch>) -> bool {
    limit.enforced && !limit.limit.algorithm().keeps_log() && thresholds.is_none()
}

/// Charges a key whose shard is locked.
#[cold]
fn charge_locked(
    locked: LockedCell<'_>,
    limit: &BoundLimit,
    key: KeyRef<'_>,
    cost: u64,
    hash: KeyHash,
) -> (Outcome, u64) {
    locked.charge(&ResolvedCharge::new(limit, key, cost, 0).slot(hash))
}

/// Describes itself without keys: a limiter ends up in logs.
impl std::fmt::Debug for Evaluator {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Evaluator").field("policies", &self.policies.policies().len()).finish()
    }
}

fn names(policies: &PolicySet) -> Vec<PolicyName> {
    policies.policies().iter().map(|policy| policy.name).collect()
}
