//! What both kinds of limiter are made of.

use smallvec::SmallVec;

use super::{
    path::{Answered, Fit, Item, Path},
    turnstile::Turnstile,
};
use crate::{
    Algorithm, MemoryStore, PolicySet, Stats,
    policy::Target,
    store::memory::{
        Slot,
        identity::{Identity, Scope},
    },
};

/// The path of a request, state in memory, and the queues of those who wait.
#[derive(Debug)]
pub(super) struct Core {
    pub(super) path: Path,
    pub(super) memory: MemoryStore,
    /// For each of the policy set's targets, what its keys are hashed with.
    pub(super) scopes: Box<[Scope]>,
    pub(super) turnstile: Turnstile,
}

impl Core {
    pub(super) fn new(path: Path, memory: MemoryStore, turnstile: Turnstile) -> Self {
        let policies = path.policies.policies().iter();
        memory.register(policies.map(|policy| (policy.name, &*policy.domain)));
        let targets = path.policies.targets().iter();
        let scope = |target: &Target| memory.scope(target.name, target.counter, &target.limit);
        let scopes = targets.map(scope).collect();
        Self { path, memory, scopes, turnstile }
    }

    /// Other policies on the same state and statistics.
    pub(super) fn succeeded_by(&self, policies: PolicySet) -> Self {
        let path = self.path.succeeded_by(policies);
        Self::new(path, self.memory.clone(), self.turnstile.clone())
    }

    pub(super) fn stats(&self) -> Stats {
        self.path.meter.stats(self.memory.now())
    }

    /// Charges memory, all or nothing. Counts nothing yet.
    pub(super) fn ask(&self, fit: &Fit<'_>, permit: u128) -> Answered {
        let slots: SmallVec<[Slot<'_>; 8]> =
            fit.items.iter().map(|&item| self.slot(item, fit.cost, permit)).collect();
        let (outcomes, now) = self.memory.charge_all(&slots);
        Answered { decision: self.path.fold(fit, &outcomes), outcomes, now }
    }

    pub(super) fn slot<'a>(&'a self, item: Item<'_>, cost: u64, permit: u128) -> Slot<'a> {
        let (scope, target) = (&self.scopes[item.0], self.path.target(item));
        let id = self.memory.identity(scope, item.1);
        let permit = if target.limit.algorithm() == Algorithm::Concurrency { permit } else { 0 };
        Slot { scope, id, limit: &target.limit, cost, permit, enforced: target.enforced }
    }

    /// Lets whoever waits for these limits look again: something was given back.
    pub(super) fn nudge(&self, queue: Option<Identity>) {
        if let Some(queue) = queue {
            self.turnstile.nudge(queue);
        }
    }

    /// Which queue those wait in who wait for all of these limits: that of the first.
    pub(super) fn queue_of(&self, items: &[Item<'_>]) -> Option<Identity> {
        items.first().map(|&item| self.slot(item, 0, 0).id)
    }
}
