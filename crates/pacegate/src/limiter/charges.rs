//! Calls for explicit charges: built by the caller, from the plan of a request, from inline limits, or both.

use std::{marker::PhantomData, time::Duration};

use smallvec::SmallVec;

use super::{
    Limiter, SharedLimiter,
    combine::decide,
    evaluator::{Evaluation, Evaluator},
    in_memory,
    join::join_all,
    permit_id::new_permit_id,
    resolve::{BoundLimit, Resolved, ResolvedCharge, max_cost},
};
use crate::{
    Charge, CheckError, CostError, Decision, Excess, KeyRef, PolicyName, PolicySet, Request,
    Source, StoreError, Update,
    policy::{LimitEntry, PolicyMatch},
    stats::Event,
};

/// The calls of a limiter for explicit [charges](Charge), for servers and middleware that build their own.
///
/// Returned by [`Limiter::charges`], with synchronous calls, and by [`SharedLimiter::charges`].
///
/// Each call consumes the handle, which is `Copy` and costs nothing: call [`Limiter::charges`] again, or copy it.
///
/// Charges that name a policy of the limiter share the counters, the failure mode and the statistics of the policy, if
/// they come from a [`Plan`]. All others count separately, see [`Charge::new`].
///
/// ```
/// use pacegate::{Charge, Limit, Limiter};
///
/// let limiter = Limiter::memory(Limit::per_second(1));
/// let charges = [
///     Charge::new("per-ip".parse()?, "203.0.113.7", Limit::per_minute(100)),
///     Charge::new("per-user".parse()?, "alice", "20/hour sliding-log".parse()?).cost(15),
/// ];
/// assert_eq!(limiter.charges().check(&charges)?.remaining(), 5);
/// let denied = limiter.charges().check(&charges)?;
/// assert_eq!(denied.policy(), Some("per-user".parse()?), "and the address is charged nothing");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Charges<'a, L> {
    shared: &'a SharedLimiter,
    /// The calls of a [`Limiter`] are synchronous.
    handle: PhantomData<&'a L>,
}

/// The limits that apply to a request, each with its key.
///
/// Returned by [`Charges::plan`]. Use it to add inline limits to those of the policies, or to show the limits of a key.
///
/// ```
/// use pacegate::{Limit, Limiter, Request};
///
/// let limiter = Limiter::memory(Limit::per_minute(5));
/// let plan = limiter.charges().plan(&Request::new().with("key", "alice"));
/// assert_eq!(plan.charges(1)?.len(), 1);
/// # Ok::<(), pacegate::CostError>(())
/// ```
///
/// A plan is a snapshot of the policies of one limiter. It charges nothing until its charges are passed to
/// [`Charges::check`](Charges::<Limiter>::check).
///
/// The same plan can be used to check, to refund and to reset. This adds a limit of the call to those of the policies:
///
/// ```
/// use pacegate::{Charge, Limit, Limiter, PolicyName, Request};
///
/// let limiter = Limiter::memory(Limit::per_minute(5));
/// let plan = limiter.charges().plan(&Request::new().with("key", "alice"));
/// let mut charges = plan.charges(1)?;
/// charges.push(Charge::new(PolicyName::INLINE, "alice", Limit::per_hour(1)));
/// assert!(limiter.charges().check(&charges)?.is_allowed());
/// assert!(!limiter.charges().check(&charges)?.is_allowed(), "the hour is used up");
/// limiter.charges().reset(&charges);
/// assert!(limiter.charges().check(&charges)?.is_allowed());
/// # Ok::<(), pacegate::CostError>(())
/// ```
#[derive(Debug)]
pub struct Plan<'a> {
    policies: &'a PolicySet,
    matches: SmallVec<[PolicyMatch; 4]>,
    /// Indices in `matches` of policies that are charged although an override lifts their limit.
    lifted: SmallVec<[usize; 1]>,
}

/// The decision for several charges together, and for each of them.
///
/// Use it to report every limit of a request, not only the tightest one, for example in several header fields.
///
/// ```
/// use pacegate::{Charge, Limit, Limiter};
///
/// let limiter = Limiter::memory(Limit::per_second(1));
/// let (user, site) = (Limit::per_minute(1), Limit::per_minute(100));
/// let charges = [
///     Charge::new("user".parse()?, "alice", user),
///     Charge::new("site".parse()?, "shop", site),
/// ];
/// let _ = limiter.charges().check_batch(&charges)?;
/// let batch = limiter.charges().check_batch(&charges)?;
/// assert!(!batch.decision.is_allowed());
/// assert_eq!(batch.each[1].remaining(), 99, "not charged, because the other limit denied");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct BatchDecision {
    /// The decision for all charges together: that of the tightest one.
    pub decision: Decision,
    /// One for each charge, in their order. A charge that would have been admitted by itself is reported as allowed,
    /// even if another one denied. If several charges share a counter, the wait of each is that for all of them.
    pub each: Vec<Decision>,
}

impl Plan<'_> {
    /// Returns the charges of the request at this cost, one for each limit.
    ///
    /// Fails if an enforced limit can never admit the cost. The charges borrow the plan.
    ///
    /// A cost of 0 makes every charge a peek. Charges of policies in shadow mode are included, with
    /// [`enforced`](Charge::enforced) set to `false`.
    pub fn charges(&self, cost: u64) -> Result<Vec<Charge<'_>>, CostError> {
        let mut charges = Vec::new();
        for PolicyMatch { entries, key, .. } in &self.matches {
            for entry in &self.policies.limit_entries()[entries.clone()] {
                let charge = self.charge(entry, key.as_ref(), cost);
                let max = match charge.excess.under(&charge.limit).is_recorded() {
                    true => charge.max_cost,
                    false => max_cost(&charge.limit, charge.max_cost),
                };
                if cost > max && charge.enforced {
                    return Err(CostError { cost, policy: charge.policy, max });
                }
                charges.push(charge);
            }
        }
        let lifted = self.lifted.iter().map(|&place| {
            let PolicyMatch { policy, key, .. } = &self.matches[place];
            let charge = self.charge(self.policies.first_entry(*policy), key.as_ref(), cost.min(1));
            // It must not be recorded.
            charge.excess(Excess::Reject)
        });
        charges.extend(lifted);
        Ok(charges)
    }

    fn charge<'a>(&'a self, entry: &LimitEntry, key: KeyRef<'a>, cost: u64) -> Charge<'a> {
        let policy = &self.policies.policies()[entry.policy];
        Charge {
            counter: entry.counter,
            tag: policy.tag_of(key),
            cost,
            max_cost: policy.max_cost.unwrap_or(u64::MAX),
            enforced: entry.enforced,
            lease: entry.lease,
            excess: policy.excess(&entry.limit),
            max_debt: policy.max_debt_of(&entry.limit),
            unsettled: policy.unsettled,
            ..Charge::new(entry.name, key, entry.limit)
        }
    }

    /// Adds a charge of at most 1 to the first limit of each policy whose limit an override lifts for this request, if
    /// `is_included` returns `true`: a block needs a charge that it can deny.
    #[doc(hidden)]
    #[must_use]
    pub fn with_lifted(mut self, is_included: impl Fn(PolicyName, KeyRef<'_>) -> bool) -> Self {
        let matches = self.matches.iter().enumerate().filter(|(_, matched)| {
            let name = self.policies.policies()[matched.policy].name;
            matched.entries.is_empty() && is_included(name, matched.key.as_ref())
        });
        self.lifted = matches.map(|(place, _)| place).collect();
        self
    }

    /// Returns `true` if no policy applies to the request. A policy whose limit an override lifts does apply.
    pub fn is_empty(&self) -> bool {
        self.matches.is_empty()
    }
}

impl<'a, L> Charges<'a, L> {
    pub(super) fn new(shared: &'a SharedLimiter) -> Self {
        Self { shared, handle: PhantomData }
    }

    pub(super) fn shared(self) -> &'a SharedLimiter {
        self.shared
    }

    pub(super) fn evaluator(self) -> &'a Evaluator {
        &self.shared.evaluator
    }

    /// Returns the limits that apply to a request.
    pub fn plan(self, request: &Request<'_>) -> Plan<'a> {
        self.new_plan(self.evaluator().policies.plan(request))
    }

    /// Returns the limits of a policy for a key, without those of its overrides, which depend on the request. Empty if
    /// there is no such policy.
    ///
    /// For operators who know the policy and the key, but not the request: to show a counter, or to reset it. To reset,
    /// use [`plan_for_all`](Self::plan_for_all), which includes the counters of overrides.
    pub fn plan_for(self, policy: PolicyName, key: KeyRef<'_>) -> Plan<'a> {
        self.new_plan(self.evaluator().policies.plan_for(policy, key, false))
    }

    /// Returns the limits of a policy and of all its overrides for a key: every counter that the key may have.
    pub fn plan_for_all(self, policy: PolicyName, key: KeyRef<'_>) -> Plan<'a> {
        self.new_plan(self.evaluator().policies.plan_for(policy, key, true))
    }

    fn new_plan(self, matches: SmallVec<[PolicyMatch; 4]>) -> Plan<'a> {
        Plan { policies: &self.evaluator().policies, matches, lifted: SmallVec::new() }
    }

    /// Returns a denial of a charge regardless of its limit, and records it: for a key that an operator has blocked.
    /// Charges nothing. `retry_after: None` denies permanently.
    ///
    /// The decision has the source `blocked` in logs and metrics. A charge with a cost of 0 is not recorded.
    pub fn deny(self, charge: &Charge<'_>, retry_after: Option<Duration>) -> Decision {
        if charge.cost > 0 {
            let index = self.evaluator().stats_index(charge.policy);
            let now = self.evaluator().memory.now();
            let meter = &self.evaluator().meter;
            meter.count_cost(index, Event::Denied, charge.cost, charge.key, now);
        }
        let denial = Decision::denial(charge.policy, charge.limit, 0, retry_after);
        Decision { source: Source::Blocked, ..denial }
    }

    /// Returns a new id for [`Charge::holding`], for a server that holds permits for its clients: 128 random bits that
    /// cannot be guessed.
    ///
    /// # Panics
    ///
    /// Panics if the operating system returns no random bytes.
    pub fn new_permit_id(self) -> u128 {
        new_permit_id()
    }
}

/// In memory: every call is synchronous.
impl Charges<'_, Limiter> {
    /// Decides charges, all or nothing. An empty list is allowed, with [`Source::Unlimited`].
    ///
    /// Charges of one key under one limit are added up: two charges of 1 need two units. A sum that the limit can never
    /// admit is denied permanently.
    ///
    /// # Errors
    ///
    /// [`CostError`] if an enforced charge by itself costs more than its limit can ever admit.
    #[must_use = "a denied request must not proceed"]
    pub fn check(self, charges: &[Charge<'_>]) -> Result<Decision, CostError> {
        match charges {
            [charge] => self.evaluator().check_charge(charge),
            _ => Ok(self.check_batch(charges)?.decision),
        }
    }

    /// Decides charges, all or nothing, and returns the decision for each of them.
    ///
    /// Charges of a policy are recorded for the policy, all others as [inline limits](crate::Stats::inline).
    pub fn check_batch(self, charges: &[Charge<'_>]) -> Result<BatchDecision, CostError> {
        let limits = self.evaluator().bind(charges);
        let resolved = resolve(charges, &limits)?;
        Ok(self.evaluator().finish_batch(&resolved, &self.evaluator().evaluate(&resolved)))
    }

    /// Decides each charge separately, and adds the decisions to `decisions`.
    ///
    /// Faster than one call for each: the keys are loaded together, so that cache misses overlap.
    pub fn check_each(
        self,
        charges: &[Charge<'_>],
        decisions: &mut Vec<Result<Decision, CheckError>>,
    ) {
        self.evaluator().check_each(charges, decisions);
    }

    /// Returns the units of charges: up to their cost, and no more than are used.
    pub fn refund(self, charges: &[Charge<'_>]) {
        in_memory(self.shared.charges().refund(charges));
    }

    /// Removes the counters of charges.
    pub fn reset(self, charges: &[Charge<'_>]) {
        in_memory(self.shared.charges().reset(charges));
    }

    /// Releases the permits of charges. Expired permits are ignored, and so are charges without a permit.
    pub fn release(self, charges: &[Charge<'_>]) {
        in_memory(self.shared.charges().release(charges));
    }

    /// Restarts the period of the permits of charges. Returns `false` if one has expired, unless in shadow mode.
    #[must_use = "a permit that has expired no longer protects its holder"]
    pub fn renew(self, charges: &[Charge<'_>]) -> bool {
        in_memory(self.shared.charges().renew(charges))
    }
}

/// Over a store: every call is asynchronous.
impl Charges<'_, SharedLimiter> {
    /// Decides charges, all or nothing. An empty list is allowed without a call to the store.
    ///
    /// # Errors
    ///
    /// [`CheckError::Cost`] if an enforced charge costs more than its limit can ever admit. [`CheckError::Store`] if
    /// the store does not support it.
    ///
    /// # Cancellation
    ///
    /// If the future is dropped, the charges may have been taken. Permits that they may have taken are released.
    pub async fn check(self, charges: &[Charge<'_>]) -> Result<Decision, CheckError> {
        let limits = self.evaluator().bind(charges);
        let mut resolved = resolve(charges, &limits)?;
        if !self.shared.is_local() {
            resolved.fill_permits();
        }
        let evaluation = self.shared.evaluate(&resolved, None).await?;
        self.evaluator().record(&resolved.charges, &evaluation);
        Ok(evaluation.decision)
    }

    /// Decides charges, all or nothing, and returns the decision for each of them.
    ///
    /// Charges of a policy are recorded for the policy, all others as [inline limits](crate::Stats::inline). With an
    /// `id`, the same charges count once, even if they are repeated; see [`Request::id`].
    ///
    /// If the store fails, each charge is decided by its [own](Charge::failing) failure mode, by that of its policy, or
    /// by that for [no policy](PolicySet::inline_failure).
    pub async fn check_batch(
        self,
        charges: &[Charge<'_>],
        id: Option<&[u8]>,
    ) -> Result<BatchDecision, CheckError> {
        let limits = self.evaluator().bind(charges);
        let mut resolved = resolve(charges, &limits)?;
        if !self.shared.is_local() {
            resolved.fill_permits();
        }
        let evaluation = self.shared.evaluate(&resolved, id).await?;
        Ok(self.evaluator().finish_batch(&resolved, &evaluation))
    }

    /// Decides charges by their failure modes, all or nothing, without the store: for a caller that stopped waiting for
    /// [`check_batch`](Self::check_batch). Records the failure of the store.
    pub fn check_without_store(
        self,
        charges: &[Charge<'_>],
        reason: &StoreError,
    ) -> Result<BatchDecision, CostError> {
        let limits = self.evaluator().bind(charges);
        let mut resolved = resolve(charges, &limits)?;
        resolved.fill_permits();
        drop(self.evaluator().record_failure(Err::<(), _>(reason.clone())));
        Ok(self.evaluator().finish_batch(&resolved, &self.evaluator().evaluate_fallback(&resolved)))
    }

    /// Decides each charge separately, and adds the decisions to `decisions`. The calls to the store run concurrently.
    pub async fn check_each(
        self,
        charges: &[Charge<'_>],
        decisions: &mut Vec<Result<Decision, CheckError>>,
    ) {
        if self.shared.is_local() {
            return self.evaluator().check_each(charges, decisions);
        }
        if charges.len() == 1 {
            return decisions.push(self.check(charges).await);
        }
        let checks = charges.iter().map(|charge| self.check(std::slice::from_ref(charge)));
        decisions.extend(join_all(checks).await);
    }

    /// Returns the units of charges: up to their cost, and no more than are used. Permits are not affected; see
    /// [`release`](Self::release). Continues with the other charges if one fails, and returns the first error.
    pub async fn refund(self, charges: &[Charge<'_>]) -> Result<(), StoreError> {
        self.update(charges, Update::Refund).await
    }

    /// Removes the counters of charges, in this process and in the store. If the store fails, those in this process are
    /// removed nevertheless.
    pub async fn reset(self, charges: &[Charge<'_>]) -> Result<(), StoreError> {
        self.update(charges, Update::Reset).await
    }

    /// Releases the permits of charges. Expired permits are ignored, and so are charges without a permit.
    pub async fn release(self, charges: &[Charge<'_>]) -> Result<(), StoreError> {
        self.update(charges, Update::Release).await
    }

    /// Restarts the period of the permits of charges. Returns `false` if one has expired, unless in shadow mode. If the
    /// store does not answer, permits that fail open are kept.
    pub async fn renew(self, charges: &[Charge<'_>]) -> Result<bool, StoreError> {
        let (mut kept, mut error) = (true, None);
        // All of them, even if one fails.
        for charge in charges.iter().filter(|charge| charge.permit != 0) {
            let limit = self.evaluator().bind_one(charge);
            let charge = ResolvedCharge::of_charge(&limit, charge);
            match self.shared.update(&charge, Update::Renew).await {
                // A limit in shadow mode may not have admitted it.
                Ok(renewed) => kept &= renewed || !limit.enforced,
                Err(failed) => error = error.or(Some(failed)),
            }
        }
        error.map_or(Ok(kept), Err)
    }

    async fn update(self, charges: &[Charge<'_>], update: Update) -> Result<(), StoreError> {
        let mut result = Ok(());
        for charge in charges {
            if update == Update::Release && charge.permit == 0 {
                continue;
            }
            let limit = self.evaluator().bind_one(charge);
            let charge = ResolvedCharge::of_charge(&limit, charge);
            let updated = self.shared.update(&charge, update).await;
            if updated.is_err() {
                // It may have been released in memory.
                self.evaluator().notify(self.evaluator().queue_of(std::slice::from_ref(&charge)));
            }
            result = result.and(updated.map(drop));
        }
        result
    }
}

impl Evaluator {
    /// Records the evaluation of explicit charges, and returns the decision for each of them.
    fn finish_batch(&self, resolved: &Resolved<'_>, evaluation: &Evaluation) -> BatchDecision {
        self.record(&resolved.charges, evaluation);
        let degraded = evaluation.decision.is_degraded();
        let each = resolved.charges.iter().zip(&*evaluation.outcomes);
        let each = each.map(|(charge, &outcome)| decide(charge.limit, outcome, degraded));
        BatchDecision { decision: evaluation.decision, each: each.collect() }
    }
}

impl<L> Clone for Charges<'_, L> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<L> Copy for Charges<'_, L> {}

/// Binds charges to their limits, and checks their costs.
fn resolve<'a>(
    charges: &'a [Charge<'a>],
    limits: &'a [BoundLimit],
) -> Result<Resolved<'a>, CostError> {
    let pairs = limits.iter().zip(charges);
    let charges = pairs.map(|(limit, charge)| ResolvedCharge::of_charge(limit, charge));
    Resolved::new(charges.collect(), true)
}
