//! The parts of a request's path that do not depend on the store: which limits, may it cost that much, and what the
//! outcomes amount to.

use smallvec::SmallVec;

use crate::{
    CostError, Decision, KeyRef, Request,
    algorithm::Outcome,
    policy::{Planned, PolicySet, Target},
    stats::{Event, Meter},
};

/// The policies in force and what they have decided.
#[derive(Debug)]
pub(super) struct Path {
    pub(super) policies: PolicySet,
    pub(super) meter: Meter,
}

/// One limit that applies to a request: its place in [`PolicySet::targets`], and the key.
pub(super) type Item<'a> = (usize, KeyRef<'a>);

/// Up to eight without a heap.
pub(super) type Items<'a> = SmallVec<[Item<'a>; 8]>;

/// A request whose cost can be admitted.
#[derive(Debug)]
pub(super) struct Fit<'a> {
    /// What is charged.
    pub(super) items: Items<'a>,
    /// The limits in shadow mode that the cost does not fit.
    unfit: SmallVec<[Item<'a>; 2]>,
    pub(super) cost: u64,
}

/// What a store has made of a request.
#[derive(Debug)]
pub(super) struct Answered {
    pub(super) decision: Decision,
    /// One for each item.
    pub(super) outcomes: Vec<Outcome>,
    /// When, in microseconds.
    pub(super) now: u64,
}

impl Path {
    pub(super) fn new(policies: PolicySet) -> Self {
        let meter = Meter::new(names(&policies));
        Self { policies, meter }
    }

    pub(super) fn succeeded_by(&self, policies: PolicySet) -> Self {
        let meter = self.meter.succeeded_by(names(&policies));
        Self { policies, meter }
    }

    /// The limits that apply to a request that is only a key.
    pub(super) fn plan_key(&self, key: KeyRef<'_>) -> SmallVec<[Planned; 4]> {
        match self.policies.direct() {
            Some(targets) => {
                [Planned { policy: 0, targets, key: key.to_buf() }].into_iter().collect()
            }
            None => {
                let request = Request::new().with(Request::KEY, key.as_bytes());
                let mut plan = self.policies.plan(&request);
                let by_key = |planned: &&mut Planned| self.policies.is_by_key(planned);
                plan.iter_mut().filter(by_key).for_each(|planned| planned.key = key.to_buf());
                plan
            }
        }
    }

    pub(super) fn target(&self, item: Item<'_>) -> &Target {
        &self.policies.targets()[item.0]
    }

    /// Refuses a cost that could never be admitted. A policy in shadow mode refuses nothing, so its limits that the
    /// cost does not fit are taken out.
    pub(super) fn fit<'a>(&self, mut items: Items<'a>, cost: u64) -> Result<Fit<'a>, CostError> {
        let mut unfit = SmallVec::new();
        for &item in items.iter() {
            let target = self.target(item);
            match (excess(&self.policies, target, cost), target.enforced) {
                (Some(error), true) => return Err(error),
                (Some(_), false) => unfit.push(item),
                (None, _) => {}
            }
        }
        if !unfit.is_empty() {
            items.retain(|item| !unfit.contains(item));
        }
        Ok(Fit { items, unfit, cost })
    }

    /// [`Path::fit`] for a limit that is enforced.
    pub(super) fn fit_one(&self, item: Item<'_>, cost: u64) -> Result<(), CostError> {
        excess(&self.policies, self.target(item), cost).map_or(Ok(()), Err)
    }

    /// [`Path::count`] for a limit that is enforced and was not answered by a fallback.
    pub(super) fn count_one(
        &self,
        item: Item<'_>,
        cost: u64,
        decision: &Decision,
        now: impl FnOnce() -> u64,
    ) {
        if cost > 0 {
            let event = if decision.allowed { Event::Allowed } else { Event::Denied };
            self.meter.count_cost(self.policy(item), event, cost, item.1, now());
        }
    }

    /// Makes one decision of the outcomes.
    pub(super) fn fold(&self, fit: &Fit<'_>, outcomes: &[Outcome]) -> Decision {
        let mut decision = Decision::UNLIMITED;
        let mut shadow_denied = !fit.unfit.is_empty();
        for (&item, &outcome) in fit.items.iter().zip(outcomes) {
            let target = self.target(item);
            if target.enforced {
                decision = decision.and(Decision::of(target.name, target.limit, outcome));
            } else {
                shadow_denied |= !outcome.is_admitted();
            }
        }
        Decision { shadow_denied, ..decision }
    }

    /// Counts a request by its answer, once for each policy, whose limits stand side by side. Peeks, at a cost of 0,
    /// are not counted.
    pub(super) fn count(&self, fit: &Fit<'_>, answered: &Answered) {
        if fit.cost == 0 {
            return;
        }
        let of_one = |one: &Item<'_>, other: &Item<'_>| self.policy(*one) == self.policy(*other);
        let mut outcomes = &*answered.outcomes;
        for items in fit.items.chunk_by(of_one) {
            let (own, rest) = outcomes.split_at(items.len());
            outcomes = rest;
            let fits = !fit.unfit.iter().any(|unfit| of_one(unfit, &items[0]));
            let admitted = fits && own.iter().all(Outcome::is_admitted);
            self.count_policy(items[0], fit.cost, admitted, answered);
        }
        for unfit in fit.unfit.chunk_by(of_one) {
            if !fit.items.iter().any(|item| of_one(item, &unfit[0])) {
                let (policy, key) = (self.policy(unfit[0]), unfit[0].1);
                self.meter.count_cost(policy, Event::ShadowDenied, fit.cost, key, answered.now);
            }
        }
    }

    /// Counts a request that nobody looked at, as denied by the first policy that could have.
    pub(super) fn count_unserved(&self, fit: &Fit<'_>, now: u64) {
        let first = fit.items.iter().find(|item| self.target(**item).enforced);
        if let Some(&item) = first.filter(|_| fit.cost > 0) {
            self.meter.count_cost(self.policy(item), Event::Denied, fit.cost, item.1, now);
        }
    }

    /// Counts what a policy has made of a request. One that it would have admitted, and that another denies, it has
    /// neither allowed nor denied.
    fn count_policy(&self, item: Item<'_>, cost: u64, admitted: bool, answered: &Answered) {
        let event = match (self.target(item).enforced, admitted) {
            (_, true) if answered.decision.allowed => Event::Allowed,
            (_, true) => return,
            (true, false) => Event::Denied,
            (false, false) => Event::ShadowDenied,
        };
        let policy = self.policy(item);
        self.meter.count_cost(policy, event, cost, item.1, answered.now);
        if answered.decision.is_degraded() {
            self.meter.count_degraded(policy);
        }
    }

    /// The place of the policy that a limit belongs to.
    fn policy(&self, item: Item<'_>) -> usize {
        self.target(item).policy
    }
}

fn names(policies: &PolicySet) -> Vec<crate::PolicyName> {
    policies.policies().iter().map(|policy| policy.name).collect()
}

/// An amount of 0 denies every cost; it is not too high for anything.
pub(super) fn excess(policies: &PolicySet, target: &Target, cost: u64) -> Option<CostError> {
    let capacity = if target.limit.amount() == 0 { u64::MAX } else { target.limit.capacity() };
    let most = policies.policies()[target.policy].max_cost.unwrap_or(u64::MAX).min(capacity);
    (cost > most).then_some(CostError { cost, policy: target.name, max: most })
}
