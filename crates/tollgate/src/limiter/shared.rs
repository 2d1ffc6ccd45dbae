use std::sync::Arc;

use super::{
    Limiter,
    path::{self, Answered, Item, Items, Path},
};
use crate::{
    Charge, CostError, Decision, Key, PolicySet, Request, Stats, Store, StoreError,
    algorithm::Outcome,
    clock::{Clock, SystemClock},
};

/// Decides whether a request may pass now, over any [`Store`].
///
/// The same policies, decisions and statistics as [`Limiter`]; only the calls wait for the store. An error means that
/// the machinery failed or was misused, never that the request was denied.
///
/// ```
/// # pollster::block_on(async {
/// use tollgate::{Limit, MemoryStore, PolicySet, SharedLimiter};
///
/// let policies = PolicySet::of_limits([Limit::per_minute(2)])?;
/// let limiter = SharedLimiter::new(MemoryStore::default(), policies);
/// assert!(limiter.check("alice").await?.is_allowed());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
#[derive(Clone, Debug)]
pub struct SharedLimiter {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    path: Path,
    store: Arc<dyn Store>,
}

/// Why there is no decision.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CheckError {
    /// The cost could never be admitted: the caller's mistake.
    #[error(transparent)]
    Cost(#[from] CostError),
    /// The store could not answer.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl SharedLimiter {
    /// A limiter over `store`.
    pub fn new(store: impl Store, policies: PolicySet) -> Self {
        Self { inner: Arc::new(Inner { path: Path::new(policies), store: Arc::new(store) }) }
    }

    /// Charges one unit to `key` if every limit has room, and to none of them otherwise.
    pub async fn check(&self, key: impl Key) -> Result<Decision, CheckError> {
        self.check_cost(key, 1).await
    }

    /// Charges `cost` units.
    pub async fn check_cost(&self, key: impl Key, cost: u64) -> Result<Decision, CheckError> {
        let plan = key.with(|key| self.inner.path.plan_key(key));
        self.inner.charge(super::items(&plan), cost).await
    }

    /// Tells whether one unit would be admitted, without charging anything.
    pub async fn peek(&self, key: impl Key) -> Result<Decision, CheckError> {
        self.check_cost(key, 0).await
    }

    /// Charges a request to every policy that covers it, all or nothing.
    pub async fn check_request(&self, request: &Request<'_>) -> Result<Decision, CheckError> {
        let plan = self.inner.path.policies.plan(request);
        self.inner.charge(super::items(&plan), request.units()).await
    }

    /// Charges several keys under several limits, all or nothing: for limits that no policy describes.
    pub async fn check_all(&self, charges: &[Charge<'_>]) -> Result<Decision, CheckError> {
        let fit = path::fit_charges(charges)?;
        let outcomes = self.inner.ask(&fit).await?;
        Ok(path::fold_charges(charges, &fit, &outcomes))
    }

    /// Gives back up to `cost` units, and no more than are used.
    pub async fn refund(&self, key: impl Key, cost: u64) -> Result<(), StoreError> {
        let plan = key.with(|key| self.inner.path.plan_key(key));
        for item in super::items(&plan) {
            self.inner.store.refund(&self.inner.charge_of(item, cost)).await?;
        }
        Ok(())
    }

    /// Forgets what was charged to a key.
    pub async fn reset(&self, key: impl Key) -> Result<(), StoreError> {
        let plan = key.with(|key| self.inner.path.plan_key(key));
        for item in super::items(&plan) {
            self.inner.store.reset(&self.inner.charge_of(item, 0)).await?;
        }
        Ok(())
    }

    /// What has been decided so far, by this process.
    pub fn stats(&self) -> Stats {
        self.inner.path.meter.stats(now())
    }

    /// The policies in force.
    pub fn policies(&self) -> &PolicySet {
        &self.inner.path.policies
    }
}

/// A limiter of this process, for code that takes any.
impl From<Limiter> for SharedLimiter {
    fn from(limiter: Limiter) -> Self {
        let path = limiter.inner.core.path.succeeded_by(limiter.policies().clone());
        Self { inner: Arc::new(Inner { path, store: Arc::new(limiter.store().clone()) }) }
    }
}

impl Inner {
    async fn charge(&self, items: Items<'_>, cost: u64) -> Result<Decision, CheckError> {
        let fit = self.path.fit(items, cost)?;
        let charges: Vec<_> = fit.items.iter().map(|&item| self.charge_of(item, cost)).collect();
        let outcomes = self.ask(&charges).await?;
        let answered = Answered { decision: self.path.fold(&fit, &outcomes), outcomes, now: now() };
        self.path.count(&fit, &answered);
        Ok(answered.decision)
    }

    /// One outcome for each charge, or an error. No charges are no question.
    async fn ask(&self, charges: &[Charge<'_>]) -> Result<Vec<Outcome>, StoreError> {
        if charges.is_empty() {
            return Ok(Vec::new());
        }
        let outcomes = self.store.charge(charges).await?;
        if outcomes.len() == charges.len() {
            return Ok(outcomes);
        }
        let problem = format!("{} outcomes for {} charges", outcomes.len(), charges.len());
        Err(StoreError::Failed(problem))
    }

    fn charge_of<'a>(&'a self, item: Item<'a>, cost: u64) -> Charge<'a> {
        let target = self.path.target(item);
        let charge = Charge::new(target.name, item.1, target.limit).cost(cost);
        let permit = match target.limit.algorithm() {
            crate::Algorithm::Concurrency => super::permit::next_id(),
            _ => 0,
        };
        let tag = self.path.policies.tag(target, item.1);
        Charge { tag, enforced: target.enforced, permit, lease: target.lease, ..charge }
    }
}

fn now() -> u64 {
    SystemClock::new().now().as_micros()
}
