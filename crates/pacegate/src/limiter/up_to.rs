//! Checks that are granted fewer units than requested, if fewer are left.

use std::convert::Infallible;

use smallvec::SmallVec;

use super::{
    Charges, Limiter, SharedLimiter,
    evaluator::{Evaluation, Evaluator},
    resolve::{Resolved, ResolvedCharge, ResolvedCharges},
    shared::CheckError,
};
use crate::{Charge, Decision, Excess, Key, Request, StoreError, store::memory::Slot};

/// The units that a check was granted.
///
/// ```
/// use pacegate::{Limit, Limiter};
///
/// let limiter = Limiter::memory(Limit::per_minute(10));
/// assert_eq!(limiter.check_up_to("alice", 7).units, 7);
/// let rest = limiter.check_up_to("alice", 7);
/// assert_eq!((rest.units, rest.decision.remaining()), (3, 0));
/// let none = limiter.check_up_to("alice", 7);
/// assert_eq!(none.units, 0);
/// assert!(!none.decision.is_allowed() && none.decision.retry_after().is_some());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use = "the units are charged"]
pub struct Grant {
    /// The number of units, from 0 to the number requested. All of them are charged.
    pub units: u64,
    /// The decision for these units. If there are none, it is a denial, and `retry_after` is the time until one unit is
    /// available.
    pub decision: Decision,
}

impl Limiter {
    /// Charges as many units to `key` as every limit has, at most `most`.
    ///
    /// Use it for work that can be done in part, such as messages from a queue or the size of a batch. If several
    /// limits apply, all of them are charged the same number of units: the most that all enforced limits have. If a
    /// policy has a maximum cost, no more than that is granted. 0 is a [peek](Self::peek).
    ///
    /// On a concurrency limit the units cannot be released, as with [`Limiter::check`].
    pub fn check_up_to(&self, key: impl Key, most: u64) -> Grant {
        let evaluator = self.evaluator();
        key.with(|key| evaluator.with_key(key, 0, 0, |charges| evaluator.grant(charges, most)))
    }

    /// Charges as many units to all policies that apply to a request as they have, at most the cost of the request. See
    /// [`Limiter::check_up_to`]. [`Request::spent`] is ignored.
    pub fn check_request_up_to(&self, request: &Request<'_>) -> Grant {
        let evaluator = self.evaluator();
        let plan = evaluator.policies.plan(request);
        evaluator.grant(evaluator.charges_of(&plan, 0, 0), request.units())
    }
}

impl SharedLimiter {
    /// Charges as many units to `key` as every limit has, at most `most`, in one call to the store. See
    /// [`Limiter::check_up_to`].
    ///
    /// Leases are not used. If the store fails, the failure modes decide: `open` grants all units, `closed` none, and
    /// `local` the remaining units of the share of this process.
    ///
    /// # Errors
    ///
    /// [`CheckError::Store`] if the store does not support it. The Redis store supports neither concurrency limits nor
    /// layouts, and on a cluster it needs limits with equal tags.
    pub async fn check_up_to(&self, key: impl Key, most: u64) -> Result<Grant, CheckError> {
        let plan = key.with(|key| self.evaluator.plan_key(key));
        self.grant(self.evaluator.charges_of(&plan, 0, 0), most, None).await
    }

    /// Charges as many units to all policies that apply to a request as they have, at most the cost of the request. See
    /// [`SharedLimiter::check_up_to`]. [`Request::spent`] is ignored.
    pub async fn check_request_up_to(&self, request: &Request<'_>) -> Result<Grant, CheckError> {
        let plan = self.evaluator.policies.plan(request);
        let charges = self.evaluator.charges_of(&plan, 0, 0);
        self.grant(charges, request.units(), request.id_bytes()).await
    }

    async fn grant(
        &self,
        charges: ResolvedCharges<'_>,
        most: u64,
        id: Option<&[u8]>,
    ) -> Result<Grant, CheckError> {
        let Some(store) = &self.store else {
            return match id.filter(|_| most > 0) {
                Some(_) => Err(StoreError::no_ids().into()),
                None => Ok(self.evaluator.grant(charges, most)),
            };
        };
        let Some(bounded) = highest(&charges, most) else {
            let resolved = Resolved::new(with_cost(charges, most), false)?;
            let evaluation = self.evaluate(&resolved, id).await?;
            return Ok(self.evaluator.finish_grant(resolved, most, (most, evaluation)));
        };
        let resolved = Resolved::new(with_cost(charges, 1), false)?;
        if resolved.charges.iter().any(|charge| charge.limit.has_permits()) {
            let problem = "a concurrency limit grants no part of the units: acquire permits";
            return Err(StoreError::Unsupported(problem.to_owned()).into());
        }
        let sent = resolved.sent().iter().map(|charge| self.evaluator.to_charge(charge));
        let sent: SmallVec<[Charge<'_>; 1]> = sent.collect();
        let answer = store.charge_up_to(&sent, bounded, id).await.and_then(|(units, outcomes)| {
            let problem = || format!("{} outcomes for {} charges", outcomes.len(), sent.len());
            let fits = outcomes.len() == sent.len() && units <= bounded;
            if fits { Ok((units, outcomes)) } else { Err(StoreError::Failed(problem())) }
        });
        let granted = match self.evaluator.record_failure(answer) {
            Ok((units, outcomes)) => {
                let now = self.evaluator.memory.now();
                (units, self.evaluator.conclude(&resolved, outcomes, now, false))
            }
            Err(error @ StoreError::Unsupported(_)) => return Err(error.into()),
            Err(_) => self.evaluator.grant_fallback(&resolved, bounded),
        };
        Ok(self.evaluator.finish_grant(resolved, most, granted))
    }
}

impl Charges<'_, SharedLimiter> {
    /// Charges as many units as every enforced charge has left, at most the lowest cost of the charges. See
    /// [`SharedLimiter::check_up_to`]. Each charge needs a separate counter, and its `excess` is ignored.
    ///
    /// # Errors
    ///
    /// [`CheckError::Store`] if the store does not support it, or if two charges have the same counter.
    pub async fn check_up_to(
        self,
        charges: &[Charge<'_>],
        id: Option<&[u8]>,
    ) -> Result<Grant, CheckError> {
        let limits = self.evaluator().bind(charges);
        let pairs = limits.iter().zip(charges);
        let resolved: ResolvedCharges<'_> =
            pairs.map(|(limit, charge)| ResolvedCharge::of_charge(limit, charge)).collect();
        if Resolved::new(with_cost(resolved.clone(), 1), true)?.sent().len() < resolved.len() {
            let problem = "check_up_to needs a separate counter for each charge";
            return Err(StoreError::Unsupported(problem.to_owned()).into());
        }
        let most = charges.iter().map(|charge| charge.cost).min().unwrap_or(0);
        self.shared().grant(resolved, most, id).await
    }
}

impl Evaluator {
    /// Charges memory, and records the decision.
    fn grant(&self, charges: ResolvedCharges<'_>, most: u64) -> Grant {
        let bounded = highest(&charges, most);
        let cost = if bounded.is_some() { 1 } else { most };
        let resolved = match Resolved::new(with_cost(charges, cost), false) {
            Ok(resolved) => resolved,
            Err(error) => unreachable!("one unit fits every enforced limit: {error}"),
        };
        let granted = match bounded {
            None => (most, self.evaluate(&resolved)),
            Some(bounded) => {
                let slots: SmallVec<[Slot<'_>; 4]> =
                    resolved.sent().iter().map(|charge| self.slot(charge)).collect();
                let (units, outcomes, now) =
                    self.current_memory().charge_slots_up_to(&slots, bounded);
                (units, self.conclude(&resolved, outcomes, now, false))
            }
        };
        self.finish_grant(resolved, most, granted)
    }

    /// Decides by failure modes.
    fn grant_fallback(&self, resolved: &Resolved<'_>, most: u64) -> (u64, Evaluation) {
        let mut granted = 0;
        let charge = |slots: &[Slot<'_>]| {
            let (units, outcomes, now) = self.current_memory().charge_slots_up_to(slots, most);
            granted = units;
            Ok::<_, Infallible>((outcomes, now))
        };
        let Ok(evaluation) = self.fall_back(resolved, charge);
        (granted, evaluation)
    }

    /// Records the decision: the units that were granted, or those of a denied request.
    fn finish_grant(
        &self,
        resolved: Resolved<'_>,
        most: u64,
        (units, evaluation): (u64, Evaluation),
    ) -> Grant {
        let decision = evaluation.decision;
        let units = if decision.is_allowed() { units } else { 0 };
        let cost = if units > 0 { units } else { most };
        self.record(&with_cost(resolved.charges, cost), &evaluation);
        Grant { units, decision }
    }
}

/// Returns the units to request from the store: no more than an enforced limit can ever admit, at least 1. `None` if
/// the number of units is known: a peek, or no limit is enforced.
fn highest(charges: &[ResolvedCharge<'_>], most: u64) -> Option<u64> {
    let enforced = charges.iter().filter(|charge| charge.limit.enforced);
    let bounds = enforced.map(|charge| charge.limit.max_cost.min(charge.limit.limit.capacity()));
    bounds.min().filter(|_| most > 0).map(|bound| bound.min(most).max(1))
}

/// Sets the cost, which is rejected if it does not fit.
fn with_cost(mut charges: ResolvedCharges<'_>, cost: u64) -> ResolvedCharges<'_> {
    for charge in &mut charges {
        (charge.cost, charge.excess) = (cost, Excess::Reject);
    }
    charges
}
