//! Charges that the caller has put together: from a request's plan, from limits that came with it, or both.

use std::{slice, sync::Arc, time::Duration};

use arrayvec::ArrayVec;
use smallvec::SmallVec;

use super::{
    Limiter, SharedLimiter, core::Core, join::join_all, joined::Joined, path, permit, shared::Inner,
};
use crate::{
    Algorithm, Charge, CheckError, CostError, Counter, Decision, KeyRef, PolicyName, PolicySet,
    Request, Source, StoreError,
    algorithm::Outcome,
    policy::{FailureMode, Planned, Target},
    stats::Event,
    store::memory::{
        BATCH, Slot,
        identity::{Identity, Scope},
    },
};

/// The limits that apply to a request, each with its key.
#[derive(Debug)]
pub struct Plan<'a> {
    policies: &'a PolicySet,
    planned: SmallVec<[Planned; 4]>,
    /// Places in `planned` of policies that are charged although an override lifts their limit.
    held: SmallVec<[usize; 1]>,
}

/// The answer for several charges together, and for each of them.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use = "a verdict that nobody looks at limits nothing"]
#[non_exhaustive]
pub struct Verdict {
    /// For the request as a whole: the tightest charge speaks.
    pub decision: Decision,
    /// One for each charge, in their order. One that would have been admitted says so, also if another denied. If
    /// several count on one state, the wait of each is that for all of them.
    pub each: Vec<Decision>,
}

impl Plan<'_> {
    /// What the request is charged at this cost. An error is a cost that could never be admitted.
    pub fn charges(&self, cost: u64) -> Result<Vec<Charge<'_>>, CostError> {
        let mut charges = Vec::new();
        for Planned { targets, key, .. } in &self.planned {
            for target in &self.policies.targets()[targets.clone()] {
                if let Some(error) = path::excess(self.policies, target, cost)
                    && target.enforced
                {
                    return Err(error);
                }
                charges.push(charge(self.policies, target, key.as_ref(), cost));
            }
        }
        let held = self.held.iter().map(|&place| {
            let Planned { policy, key, .. } = &self.planned[place];
            charge(self.policies, self.policies.first_target(*policy), key.as_ref(), cost.min(1))
        });
        charges.extend(held);
        Ok(charges)
    }

    /// Adds a charge of at most 1 to the first limit of each policy whose limit an override lifts for this request, if
    /// it `is_meant`. For those who [refuse](Limiter::refuse) a key whatever its limits are: there has to be a charge
    /// that they can refuse.
    #[must_use]
    pub fn with_lifted(mut self, is_meant: impl Fn(PolicyName, KeyRef<'_>) -> bool) -> Self {
        let is_held = |planned: &Planned| {
            let name = self.policies.policies()[planned.policy].name;
            planned.targets.is_empty() && is_meant(name, planned.key.as_ref())
        };
        let places = self.planned.iter().enumerate().filter(|(_, planned)| is_held(planned));
        self.held = places.map(|(place, _)| place).collect();
        self
    }

    /// Whether no policy covers the request.
    pub fn is_empty(&self) -> bool {
        self.planned.is_empty()
    }
}

impl Limiter {
    /// Which limits apply to a request, for those who want to charge it together with something else.
    pub fn plan(&self, request: &Request<'_>) -> Plan<'_> {
        self.inner.core.plan(request)
    }

    /// The limits that a policy has for a key, without a request: for looking at a key that is known by name. Of its
    /// overrides nothing can be known then. The plan is empty if there is no such policy.
    pub fn plan_for(&self, policy: PolicyName, key: KeyRef<'_>) -> Plan<'_> {
        self.inner.core.plan_for(policy, key, false)
    }

    /// [`Limiter::plan_for`] with the limits of all overrides, too: everywhere that a policy may have counted a key.
    pub fn plan_for_all(&self, policy: PolicyName, key: KeyRef<'_>) -> Plan<'_> {
        self.inner.core.plan_for(policy, key, true)
    }

    /// Denies a charge without a look at its state, and counts it: for those who know better than its limit. It may be
    /// asked again after `retry_after`, or never.
    pub fn refuse(&self, charge: &Charge<'_>, retry_after: Option<Duration>) -> Decision {
        self.inner.core.refuse(charge, retry_after)
    }

    /// Decides charges, all or nothing, and tells what each of them amounts to.
    ///
    /// They need not belong to a policy. Those that do are counted under it, all others as
    /// [ad hoc](crate::Stats::ad_hoc).
    pub fn verdict(&self, charges: &[Charge<'_>]) -> Result<Verdict, CostError> {
        fit(charges)?;
        let joined = Joined::of(charges);
        let core = &self.inner.core;
        let (outcomes, now) =
            core.with_slots(&joined.charges, |slots| core.memory.charge_all(slots));
        Ok(core.conclude(charges, joined.spread(charges, outcomes), now, false))
    }

    /// Decides charges one after the other, each by itself, and adds the decisions to a vector that can be used again.
    ///
    /// Much faster than one call for each: they are looked up together, so their cache misses overlap.
    pub fn check_each(
        &self,
        charges: &[Charge<'_>],
        decisions: &mut Vec<Result<Decision, CheckError>>,
    ) {
        decisions.reserve(charges.len());
        let mut rest = charges;
        while let Some(first) = rest.first() {
            let plain = rest.iter().take(BATCH).take_while(|charge| is_plain(charge)).count();
            if plain == 0 {
                let verdict = self.verdict(slice::from_ref(first));
                decisions.push(verdict.map(|verdict| verdict.decision).map_err(CheckError::from));
            } else {
                self.inner.core.check_plain(&rest[..plain], decisions);
            }
            rest = &rest[plain.max(1)..];
        }
    }

    /// Gives back what charges took: up to their cost, and no more than is used.
    pub fn refund_all(&self, charges: &[Charge<'_>]) {
        self.each_charge(charges, |slot| self.inner.core.memory.refund(slot));
    }

    /// Forgets what was charged to the keys of charges.
    pub fn reset_all(&self, charges: &[Charge<'_>]) {
        self.each_charge(charges, |slot| self.inner.core.memory.reset(slot));
    }

    /// Returns the permits of charges. Returning one that is gone changes nothing.
    pub fn release_all(&self, charges: &[Charge<'_>]) {
        self.each_charge(charges, |slot| self.inner.core.memory.release(slot));
    }

    /// Starts the life of the permits of charges anew. `false` if any was gone that is enforced.
    #[must_use = "a lost permit means that somebody else may run"]
    pub fn renew_all(&self, charges: &[Charge<'_>]) -> bool {
        let mut kept = true;
        let held = |charge: &&Charge<'_>| charge.permit != 0;
        for charge in charges.iter().filter(held) {
            let scope = self.inner.core.scope_of(charge);
            let memory = &self.inner.core.memory;
            kept &= memory.renew(&memory.slot(charge, &scope)) || !charge.enforced;
        }
        kept
    }

    /// Gives something back to each key, and lets whoever waits for it look again.
    fn each_charge(&self, charges: &[Charge<'_>], give_back: impl Fn(&Slot<'_>)) {
        for charge in charges {
            let scope = self.inner.core.scope_of(charge);
            let slot = self.inner.core.memory.slot(charge, &scope);
            give_back(&slot);
            self.inner.core.nudge(Some(slot.id));
        }
    }
}

impl SharedLimiter {
    /// Which limits apply to a request, for those who want to charge it together with something else.
    pub fn plan(&self, request: &Request<'_>) -> Plan<'_> {
        self.inner.core.plan(request)
    }

    /// The limits that a policy has for a key, without a request: for looking at a key that is known by name. Of its
    /// overrides nothing can be known then. The plan is empty if there is no such policy.
    pub fn plan_for(&self, policy: PolicyName, key: KeyRef<'_>) -> Plan<'_> {
        self.inner.core.plan_for(policy, key, false)
    }

    /// [`SharedLimiter::plan_for`] with the limits of all overrides, too: everywhere that a policy may have counted a
    /// key.
    pub fn plan_for_all(&self, policy: PolicyName, key: KeyRef<'_>) -> Plan<'_> {
        self.inner.core.plan_for(policy, key, true)
    }

    /// Denies a charge without a look at its state, and counts it: for those who know better than its limit. It may be
    /// asked again after `retry_after`, or never.
    pub fn refuse(&self, charge: &Charge<'_>, retry_after: Option<Duration>) -> Decision {
        self.inner.core.refuse(charge, retry_after)
    }

    /// Decides charges, all or nothing, and tells what each of them amounts to. See [`Limiter::verdict`].
    ///
    /// If the store fails, each is decided by its [own](Charge::failing) failure mode, by that of its policy, or by
    /// that for [no policy](PolicySet::failing_ad_hoc).
    pub async fn verdict(&self, charges: &[Charge<'_>]) -> Result<Verdict, CheckError> {
        self.inner.decide(charges, None).await
    }

    /// As [`SharedLimiter::verdict`], but the same `id` gives the same answer and counts once, by stores that can.
    /// See [`Request::id`].
    pub async fn verdict_once(
        &self,
        id: &[u8],
        charges: &[Charge<'_>],
    ) -> Result<Verdict, CheckError> {
        self.inner.decide(charges, Some(id)).await
    }

    /// Decides charges by their failure modes, all or nothing, without asking the store: for a caller that has given up
    /// waiting for a [`verdict`](Self::verdict), for this reason. Counts the store's failure.
    pub fn verdict_without_store(
        &self,
        charges: &[Charge<'_>],
        reason: &StoreError,
    ) -> Result<Verdict, CostError> {
        fit(charges)?;
        let joined = Joined::of(charges);
        let held = with_permits(&joined);
        let _ = self.inner.heard(Err::<(), _>(reason.clone()));
        Ok(self.inner.fall_back(charges, &joined, &held))
    }

    /// Decides charges, each by itself. The store is asked for all of them at the same time, in their order.
    pub async fn check_each(
        &self,
        charges: &[Charge<'_>],
        decisions: &mut Vec<Result<Decision, CheckError>>,
    ) {
        let checks = charges.iter().map(|charge| async move {
            let verdict = self.inner.decide(slice::from_ref(charge), None).await?;
            Ok(verdict.decision)
        });
        decisions.extend(join_all(checks).await);
    }

    /// Gives back what charges took: up to their cost, and no more than is used in the store. Permits are left to those
    /// who hold them: [`SharedLimiter::release_all`] returns them.
    pub async fn refund_all(&self, charges: &[Charge<'_>]) -> Result<(), StoreError> {
        for charge in charges {
            self.inner.refund(charge).await?;
            self.inner.nudge(charge);
        }
        Ok(())
    }

    /// Forgets what was charged to the keys of charges, here and in the store. If the store fails, what is here is
    /// forgotten all the same.
    pub async fn reset_all(&self, charges: &[Charge<'_>]) -> Result<(), StoreError> {
        let mut result = Ok(());
        // All of them, also after one has failed.
        for charge in charges {
            let scope = self.inner.core.scope_of(charge);
            let memory = &self.inner.core.memory;
            memory.reset(&memory.slot(charge, &scope));
            result = result.and(self.inner.heard(self.inner.store.reset(charge).await));
            self.inner.nudge(charge);
        }
        result
    }

    /// Returns the permits of charges. Returning one that is gone changes nothing.
    pub async fn release_all(&self, charges: &[Charge<'_>]) -> Result<(), StoreError> {
        let mut result = Ok(());
        // All of them, also after one has failed.
        for charge in charges.iter().filter(|charge| charge.permit != 0) {
            let scope = self.inner.core.scope_of(charge);
            let memory = &self.inner.core.memory;
            memory.release(&memory.slot(charge, &scope));
            result = result.and(self.inner.heard(self.inner.store.release(charge).await));
            self.inner.nudge(charge);
        }
        result
    }

    /// Starts the life of the permits of charges anew. `false` if any was gone that is enforced. While the store is
    /// away, those that fail open are kept.
    pub async fn renew_all(&self, charges: &[Charge<'_>]) -> Result<bool, StoreError> {
        let mut kept = true;
        for charge in charges.iter().filter(|charge| charge.permit != 0) {
            let scope = self.inner.core.scope_of(charge);
            let memory = &self.inner.core.memory;
            // One that was taken while the store was away is held here.
            let held_here = memory.renew(&memory.slot(charge, &scope));
            kept &= held_here || self.inner.renew(charge).await? || !charge.enforced;
        }
        Ok(kept)
    }
}

impl Inner {
    async fn decide(
        self: &Arc<Self>,
        charges: &[Charge<'_>],
        id: Option<&[u8]>,
    ) -> Result<Verdict, CheckError> {
        fit(charges)?;
        let joined = Joined::of(charges);
        let held = with_permits(&joined);
        // A peek changes nothing, so it can be asked as often as one likes.
        let id = id.filter(|_| held.iter().any(|charge| charge.cost > 0));
        match self.charge_store(&held, id).await {
            Ok(outcomes) => {
                let (outcomes, now) = (joined.spread(charges, outcomes), self.core.memory.now());
                Ok(self.core.conclude(charges, outcomes, now, false))
            }
            Err(error @ StoreError::Unsupported(_)) => Err(error.into()),
            Err(error) => {
                let verdict = self.fall_back(charges, &joined, &held);
                self.return_unless(verdict.decision.allowed, &held, &error);
                Ok(verdict)
            }
        }
    }

    /// Decides charges by their failure modes. `held` are those of `joined` that could be admitted.
    fn fall_back(
        &self,
        charges: &[Charge<'_>],
        joined: &Joined<'_>,
        held: &[Charge<'_>],
    ) -> Verdict {
        let (outcomes, now) = self.core.with_slots(held, |slots| {
            self.core.charge_shares(slots, |place| self.failure(&held[place]))
        });
        self.core.conclude(charges, joined.spread(charges, outcomes), now, true)
    }

    /// Renews a permit in the store.
    async fn renew(&self, charge: &Charge<'_>) -> Result<bool, StoreError> {
        match self.heard(self.store.renew(charge).await) {
            Err(error @ StoreError::Unsupported(_)) => Err(error),
            // It may have been admitted without being counted, and is no more likely to be lost now than it was then.
            Err(_) if self.failure(charge) == FailureMode::Open => Ok(true),
            answer => answer,
        }
    }

    fn failure(&self, charge: &Charge<'_>) -> FailureMode {
        let of_policy = || self.core.path.policies.failure_of(charge.policy);
        charge.failure.unwrap_or_else(of_policy)
    }

    /// Wakes the first caller that waits for the key of a charge.
    pub(super) fn nudge(&self, charge: &Charge<'_>) {
        let scope = self.core.scope_of(charge);
        self.core.nudge(Some(self.core.memory.identity(&scope, charge.key)));
    }
}

impl Core {
    fn plan(&self, request: &Request<'_>) -> Plan<'_> {
        let policies = &self.path.policies;
        Plan { policies, planned: policies.plan(request), held: SmallVec::new() }
    }

    fn plan_for(&self, policy: PolicyName, key: KeyRef<'_>, overrides: bool) -> Plan<'_> {
        let policies = &self.path.policies;
        let planned = policies.plan_for(policy, key, overrides);
        Plan { policies, planned, held: SmallVec::new() }
    }

    fn refuse(&self, charge: &Charge<'_>, retry_after: Option<Duration>) -> Decision {
        if charge.cost > 0 {
            let (place, now) = (self.meter_place(charge), self.memory.now());
            self.path.meter.count_cost(place, Event::Denied, charge.cost, charge.key, now);
        }
        let denial = Decision::denial(charge.policy, charge.limit, 0, retry_after);
        Decision { source: Source::Blocked, ..denial }
    }

    /// What the key of a charge is hashed with.
    fn scope_of(&self, charge: &Charge<'_>) -> Scope {
        self.scope_at(self.path.policies.place(charge.policy), charge)
    }

    /// [`Core::scope_of`] for a charge to the policy at this place.
    fn scope_at(&self, place: Option<usize>, charge: &Charge<'_>) -> Scope {
        let policies = &self.path.policies;
        match place.and_then(|place| policies.target_of(place, charge)) {
            Some(target) => self.scopes[target],
            None => self.memory.scope_of(charge),
        }
    }

    /// Calls `then` with a slot for each charge that could be admitted.
    fn with_slots<R>(&self, charges: &[Charge<'_>], then: impl FnOnce(&[Slot<'_>]) -> R) -> R {
        let fit: SmallVec<[&Charge<'_>; 8]> =
            charges.iter().filter(|charge| fits(charge)).collect();
        let scopes: SmallVec<[Scope; 8]> = fit.iter().map(|charge| self.scope_of(charge)).collect();
        let slots: SmallVec<[Slot<'_>; 8]> = fit
            .iter()
            .zip(&scopes)
            .map(|(charge, scope)| self.memory.slot(charge, scope))
            .collect();
        then(&slots)
    }

    /// Makes a verdict of the outcomes of the charges, and counts it.
    fn conclude(
        &self,
        charges: &[Charge<'_>],
        outcomes: Vec<Outcome>,
        now: u64,
        degraded: bool,
    ) -> Verdict {
        let mut decision = Decision::UNLIMITED;
        let mut shadow_denied = false;
        let each: Vec<_> = charges
            .iter()
            .zip(outcomes)
            .map(|(charge, outcome)| {
                let mut own = Decision::of(charge.policy, charge.limit, outcome);
                if degraded {
                    own.source = Source::Fallback;
                }
                match charge.enforced {
                    true => decision = decision.and(own),
                    false => shadow_denied |= !own.allowed,
                }
                own
            })
            .collect();
        if degraded && decision.binding.is_none() && !charges.is_empty() {
            decision.source = Source::Fallback;
        }
        let decision = Decision { shadow_denied, ..decision };
        let verdict = Verdict { decision, each };
        self.count(charges, &verdict, now);
        verdict
    }

    /// One event for each policy and key, whose charges stand side by side.
    fn count(&self, charges: &[Charge<'_>], verdict: &Verdict, now: u64) {
        let of_one = |one: &Charge<'_>, other: &Charge<'_>| {
            (one.policy, one.key) == (other.policy, other.key)
        };
        let mut each = &*verdict.each;
        for charges in charges.chunk_by(of_one) {
            let (own, rest) = each.split_at(charges.len());
            each = rest;
            let denied = |enforced| {
                let mut both = charges.iter().zip(own);
                both.any(|(charge, own)| charge.enforced == enforced && !own.allowed)
            };
            let event = match (denied(true), denied(false)) {
                (true, _) => Event::Denied,
                (_, true) => Event::ShadowDenied,
                _ if verdict.decision.allowed => Event::Allowed,
                _ => continue,
            };
            let cost = charges.iter().map(|charge| charge.cost).max().unwrap_or(0);
            if cost > 0 {
                let place = self.meter_place(&charges[0]);
                self.path.meter.count_cost(place, event, cost, charges[0].key, now);
                if own[0].is_degraded() {
                    self.path.meter.count_degraded(place);
                }
            }
        }
    }

    fn meter_place(&self, charge: &Charge<'_>) -> usize {
        self.path.policies.place(charge.policy).unwrap_or(self.path.meter.ad_hoc())
    }

    /// Decides up to [`BATCH`] charges of which [`is_plain`] holds.
    fn check_plain(
        &self,
        charges: &[Charge<'_>],
        decisions: &mut Vec<Result<Decision, CheckError>>,
    ) {
        let mut scopes = ArrayVec::<Scope, BATCH>::new();
        let mut places = ArrayVec::<usize, BATCH>::new();
        let mut ids = ArrayVec::<Identity, BATCH>::new();
        for (n, charge) in charges.iter().enumerate() {
            let last = n.checked_sub(1).filter(|&last| counts_like(&charges[last], charge));
            let (scope, place) = match last {
                Some(last) => (scopes[last], places[last]),
                None => {
                    let place = self.path.policies.place(charge.policy);
                    let counted = place.unwrap_or(self.path.meter.ad_hoc());
                    (self.scope_at(place, charge), counted)
                }
            };
            scopes.push(scope);
            places.push(place);
            ids.push(self.memory.identity(&scopes[n], charge.key));
        }
        let slot = |place: usize, id| {
            let Charge { limit, cost, permit, enforced, .. } = &charges[place];
            let (cost, permit, enforced) = (*cost, *permit, *enforced);
            Slot { scope: &scopes[place], id, limit, cost, permit, enforced }
        };
        let tally = self.path.meter.tally();
        let mut looks = ArrayVec::<_, BATCH>::new();
        self.memory.charge_each(&ids, slot, |place, outcome, now| {
            let charge = &charges[place];
            let event = super::event(outcome);
            if charge.cost > 0
                && let Some(weight) = tally.add(places[place], event, now)
            {
                looks.push((place, event, now, weight));
            }
            decisions.push(Ok(Decision::of(charge.policy, charge.limit, outcome)));
        });
        for (place, event, now, weight) in looks {
            self.path.meter.look((places[place], event), charges[place].key, now, weight);
        }
    }
}

/// What is charged for one limit of a policy.
pub(super) fn charge<'a>(
    policies: &'a PolicySet,
    target: &Target,
    key: KeyRef<'a>,
    cost: u64,
) -> Charge<'a> {
    let tag = policies.tag(target, key);
    let charge = Charge::new(target.name, key, target.limit).counter(target.counter).cost(cost);
    Charge { tag, enforced: target.enforced, lease: target.lease, ..charge }
}

/// The charges that could be admitted, each with a permit if its limit needs one.
fn with_permits<'a>(joined: &Joined<'a>) -> SmallVec<[Charge<'a>; 2]> {
    let held = joined.charges.iter().filter(|charge| fits(charge)).map(|&charge| {
        let needs = charge.limit.algorithm() == Algorithm::Concurrency && charge.permit == 0;
        Charge { permit: if needs { permit::next_id() } else { charge.permit }, ..charge }
    });
    held.collect()
}

/// Refuses a cost that could never be admitted, unless nothing depends on it.
fn fit(charges: &[Charge<'_>]) -> Result<(), CostError> {
    match charges.iter().find(|charge| charge.enforced && !fits(charge)) {
        Some(Charge { cost, policy, limit, .. }) => {
            Err(CostError { cost: *cost, policy: *policy, max: limit.capacity() })
        }
        None => Ok(()),
    }
}

/// An amount of 0 denies every cost; it is not too high for anything.
#[inline]
pub(super) fn fits(charge: &Charge<'_>) -> bool {
    charge.cost <= charge.limit.capacity() || charge.limit.amount() == 0
}

/// Whether a charge can be decided in a batch: its state is a cell, and nothing else is to be said of it.
#[inline]
fn is_plain(charge: &Charge<'_>) -> bool {
    charge.enforced && fits(charge) && !charge.limit.algorithm().keeps_log()
}

#[inline]
fn counts_like(one: &Charge<'_>, other: &Charge<'_>) -> bool {
    let is_carried = one.counter != Counter::Limit && one.limit.counts_like(&other.limit);
    (one.policy, one.counter) == (other.policy, other.counter)
        && (is_carried || one.limit == other.limit)
}
