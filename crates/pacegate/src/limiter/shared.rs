use std::{slice, sync::Arc};

use smallvec::SmallVec;

use super::{
    Limiter, SharedLimiterBuilder, charges,
    core::Core,
    join::join_all,
    path::{Answered, Fit, Item, Items, Path},
    permit,
    turnstile::Turnstile,
    unanswered::Unanswered,
};
use crate::{
    Algorithm, Charge, CostError, Decision, Detached, Key, KeyBuf, KeyRef, Limit, MemoryStore,
    PolicySet, Request, Stats, Store, StoreError, algorithm::Outcome, policy::Target,
};

/// Decides whether a request may pass now, over any [`Store`].
///
/// The same policies, decisions and statistics as [`Limiter`]; only the calls wait for the store. A store that fails
/// is no error either: each policy then decides by its [failure mode](crate::policy::FailureMode), and the decision
/// says that it is [degraded](Decision::is_degraded). An error is a mistake of the caller, and never a denial.
///
/// ```
/// # pollster::block_on(async {
/// use pacegate::{Limit, MemoryStore, PolicySet, SharedLimiter};
///
/// let policies = PolicySet::of_limits([Limit::per_minute(2)])?;
/// let limiter = SharedLimiter::new(MemoryStore::default(), policies);
/// assert!(limiter.check("alice").await?.is_allowed());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
#[derive(Clone, Debug)]
pub struct SharedLimiter {
    pub(super) inner: Arc<Inner>,
}

#[derive(Debug)]
pub(super) struct Inner {
    /// Its memory is what there is to fall back on.
    pub(super) core: Core,
    pub(super) store: Arc<dyn Store>,
    /// One plain policy by key, with one limit: nothing to plan, nothing to fold and no permit to return.
    is_single: bool,
}

/// Why there is no decision.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CheckError {
    /// The cost could never be admitted: the caller's mistake.
    #[error(transparent)]
    Cost(#[from] CostError),
    /// The store cannot do what was asked.
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl SharedLimiter {
    /// A limiter over `store`, with the defaults.
    pub fn new(store: impl Store, policies: PolicySet) -> Self {
        let core = Core::new(Path::new(policies), MemoryStore::default(), Turnstile::default());
        Self::over(Arc::new(store), core)
    }

    /// A limiter over `store` with limits, policies, a clock or bounds of your choice.
    ///
    /// ```
    /// # pollster::block_on(async {
    /// use pacegate::{MemoryStore, SharedLimiter};
    ///
    /// let limiter = SharedLimiter::builder(MemoryStore::default()).limit("2/minute").build()?;
    /// assert!(limiter.check("alice").await?.is_allowed());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    pub fn builder(store: impl Store) -> SharedLimiterBuilder {
        SharedLimiterBuilder::over(store)
    }

    pub(super) fn over(store: Arc<dyn Store>, core: Core) -> Self {
        let policies = &core.path.policies;
        let holds = |target: &Target| target.limit.algorithm() == Algorithm::Concurrency;
        let is_single = policies.direct() == Some(0..1) && !policies.targets().iter().any(holds);
        Self { inner: Arc::new(Inner { core, store, is_single }) }
    }

    /// Charges one unit to `key` if every limit has room, and to none of them otherwise.
    ///
    /// On a [concurrency](crate::Algorithm::Concurrency) limit this takes a unit that cannot be released: it ends with
    /// the period. Use `acquire` there.
    pub async fn check(&self, key: impl Key) -> Result<Decision, CheckError> {
        self.check_cost(key, 1).await
    }

    /// Charges `cost` units.
    pub async fn check_cost(&self, key: impl Key, cost: u64) -> Result<Decision, CheckError> {
        if self.inner.is_single {
            if let Some(decision) = key.with(|key| self.inner.check_now(key, cost)) {
                return Ok(decision);
            }
            let key = key.with(|key| key.to_buf());
            return self.inner.check_single(key, cost).await;
        }
        let plan = key.with(|key| self.inner.core.path.plan_key(key));
        self.inner.charge(super::items(&plan), cost, None).await
    }

    /// Tells whether one unit would be admitted, without charging anything.
    pub async fn peek(&self, key: impl Key) -> Result<Decision, CheckError> {
        self.check_cost(key, 0).await
    }

    /// Charges one unit to each key, as [`SharedLimiter::check`] would. The store is asked for all of them at the same
    /// time, so that it may answer several at once; which of two equal keys is decided first is not said.
    pub async fn check_many<K: Key>(&self, keys: &[K]) -> Result<Vec<Decision>, CheckError> {
        let checks = keys.iter().map(|key| {
            let plan = key.with(|key| self.inner.core.path.plan_key(key));
            async move { self.inner.charge(super::items(&plan), 1, None).await }
        });
        join_all(checks).await.into_iter().collect()
    }

    /// Charges a request to every policy that covers it, all or nothing. One with an [id](Request::id) is counted once,
    /// however often it is asked, by stores that [can](Store::charge_once); for others it is an error.
    pub async fn check_request(&self, request: &Request<'_>) -> Result<Decision, CheckError> {
        let plan = self.inner.core.path.policies.plan(request);
        self.inner.charge(super::items(&plan), request.units(), request.id_bytes()).await
    }

    /// Charges several keys under several limits, all or nothing. [`SharedLimiter::verdict`] tells more.
    pub async fn check_all(&self, charges: &[Charge<'_>]) -> Result<Decision, CheckError> {
        Ok(self.verdict(charges).await?.decision)
    }

    /// Gives back up to `cost` units, and no more than are used in the store. Permits are left to those who hold them.
    pub async fn refund(&self, key: impl Key, cost: u64) -> Result<(), StoreError> {
        let plan = key.with(|key| self.inner.core.path.plan_key(key));
        let items = super::items(&plan);
        for &item in &items {
            self.inner.refund(&self.inner.charge_of(item, cost, 0)).await?;
        }
        self.inner.core.nudge(self.inner.core.queue_of(&items));
        Ok(())
    }

    /// Forgets what was charged to a key, here and in the store. If the store fails, what is here is forgotten all the
    /// same.
    pub async fn reset(&self, key: impl Key) -> Result<(), StoreError> {
        let plan = key.with(|key| self.inner.core.path.plan_key(key));
        let items = super::items(&plan);
        let mut result = Ok(());
        // All of them, also after one has failed.
        for &item in &items {
            self.inner.core.memory.reset(&self.inner.core.slot(item, 0, 0));
            let charge = self.inner.charge_of(item, 0, 0);
            result = result.and(self.inner.heard(self.inner.store.reset(&charge).await));
        }
        self.inner.core.nudge(self.inner.core.queue_of(&items));
        result
    }

    /// The same limiter with another limit for each key, on the same state. See [`Limiter::with_policies`].
    pub fn with_limit(&self, limit: Limit) -> Self {
        self.with_policies(PolicySet::of_limit(limit))
    }

    /// A limiter with other policies on the same store and statistics. See [`Limiter::with_policies`].
    pub fn with_policies(&self, policies: PolicySet) -> Self {
        let core = self.inner.core.succeeded_by(policies);
        Self::over(self.inner.store.clone(), core)
    }

    /// What has been decided so far, by this process.
    pub fn stats(&self) -> Stats {
        self.inner.core.stats()
    }

    /// Has the store see to `work`, which nobody waits for.
    pub(crate) fn detach(&self, work: Detached) {
        self.inner.store.detach(work);
    }

    /// The policies in force.
    pub fn policies(&self) -> &PolicySet {
        &self.inner.core.path.policies
    }
}

/// A limiter of this process, for code that takes any: with the same policies, on the same state. Its statistics go on
/// from where those of the other stand, and from then on each counts its own.
impl From<Limiter> for SharedLimiter {
    fn from(limiter: Limiter) -> Self {
        let core = limiter.inner.core.succeeded_by(limiter.policies().clone());
        Self::over(Arc::new(core.memory.clone()), core)
    }
}

impl Inner {
    /// The decision, if the store need not be waited for.
    fn check_now(&self, key: KeyRef<'_>, cost: u64) -> Option<Decision> {
        let (path, item) = (&self.core.path, (0, key));
        path.fit_one(item, cost).ok()?;
        let charge = self.charge_of(item, cost, 0);
        let outcome = self.store.charge_now(&charge)?;
        let decision = Decision::of(charge.policy, charge.limit, outcome);
        path.count_one(item, cost, &decision, || self.core.memory.now());
        Some(decision)
    }

    /// What [`Inner::charge`] does, for the common case and nothing but it: what it need not carry it need not copy.
    async fn check_single(&self, key: KeyBuf, cost: u64) -> Result<Decision, CheckError> {
        let (path, item) = (&self.core.path, (0, key.as_ref()));
        path.fit_one(item, cost)?;
        let charge = self.charge_of(item, cost, 0);
        match self.store.charge(slice::from_ref(&charge)).await.as_deref() {
            Ok(&[outcome]) => {
                let decision = Decision::of(charge.policy, charge.limit, outcome);
                path.count_one(item, cost, &decision, || self.core.memory.now());
                Ok(decision)
            }
            // The rest is rare, and the same for all.
            Ok(outcomes) => self.fall_back_one(item, &charge, miscounted(outcomes.len(), 1)),
            Err(error) => self.fall_back_one(item, &charge, error.clone()),
        }
    }

    fn fall_back_one(
        &self,
        item: Item<'_>,
        charge: &Charge<'_>,
        error: StoreError,
    ) -> Result<Decision, CheckError> {
        if let Err(error @ StoreError::Unsupported(_)) = self.heard(Err::<(), _>(error)) {
            return Err(error.into());
        }
        let fit = self.core.path.fit([item].into_iter().collect(), charge.cost)?;
        let answered = self.core.fall_back(&fit, charge.permit);
        self.core.path.count(&fit, &answered);
        Ok(answered.decision)
    }

    async fn charge(
        self: &Arc<Self>,
        items: Items<'_>,
        cost: u64,
        id: Option<&[u8]>,
    ) -> Result<Decision, CheckError> {
        let fit = self.core.path.fit(items, cost)?;
        let holds =
            |&item: &_| self.core.path.target(item).limit.algorithm() == Algorithm::Concurrency;
        let permit = if fit.items.iter().any(holds) { permit::next_id() } else { 0 };
        let answered = self.ask(&fit, permit, id).await?;
        self.core.path.count(&fit, &answered);
        Ok(answered.decision)
    }

    /// Charges the store, or where it fails, falls back. Counts nothing yet. Permits of a request that is not allowed
    /// are returned, if the store may have taken them.
    pub(super) async fn ask(
        self: &Arc<Self>,
        fit: &Fit<'_>,
        permit: u128,
        id: Option<&[u8]>,
    ) -> Result<Answered, StoreError> {
        let charge = |&item: &_| self.charge_of(item, fit.cost, permit);
        let charges: SmallVec<[_; 1]> = fit.items.iter().map(charge).collect();
        // A peek changes nothing, so it can be asked as often as one likes.
        match self.charge_store(&charges, id.filter(|_| fit.cost > 0)).await {
            Ok(outcomes) => {
                let decision = self.core.path.fold(fit, &outcomes);
                Ok(Answered { decision, outcomes, now: self.core.memory.now() })
            }
            Err(error @ StoreError::Unsupported(_)) => Err(error),
            Err(error) => {
                let answered = self.core.fall_back(fit, permit);
                self.return_unless(answered.decision.allowed, &charges, &error);
                Ok(answered)
            }
        }
    }

    /// Returns the permits of charges that failed, unless the caller was allowed to hold them nevertheless.
    pub(super) fn return_unless(
        self: &Arc<Self>,
        allowed: bool,
        charges: &[Charge<'_>],
        error: &StoreError,
    ) {
        if !allowed && error.is_uncertain() {
            drop(Unanswered::of(self, charges));
        }
    }

    /// Returns one outcome for each charge, or an error. Without charges, the store is not asked. If this is cancelled,
    /// permits that the store may have taken are returned.
    pub(super) async fn charge_store(
        self: &Arc<Self>,
        charges: &[Charge<'_>],
        id: Option<&[u8]>,
    ) -> Result<Vec<Outcome>, StoreError> {
        if charges.is_empty() {
            return Ok(Vec::new());
        }
        if let ([charge], None) = (charges, id)
            && let Some(outcome) = self.store.charge_now(charge)
        {
            return Ok(vec![outcome]);
        }
        let unanswered = Unanswered::of(self, charges);
        let outcomes = match id {
            Some(id) => self.store.charge_once(id, charges).await,
            None => self.store.charge(charges).await,
        };
        if let Some(unanswered) = unanswered {
            unanswered.answered();
        }
        self.heard(outcomes.and_then(|outcomes| {
            if outcomes.len() == charges.len() {
                return Ok(outcomes);
            }
            Err(miscounted(outcomes.len(), charges.len()))
        }))
    }

    /// Gives back what a charge took. All that a concurrency limit admits here has an id, by which it is returned: the
    /// store would look in vain for units without one.
    pub(super) async fn refund(&self, charge: &Charge<'_>) -> Result<(), StoreError> {
        if charge.limit.algorithm() == Algorithm::Concurrency {
            return Ok(());
        }
        self.heard(self.store.refund(charge).await)
    }

    /// Counts an answer that did not come.
    pub(super) fn heard<T>(&self, answer: Result<T, StoreError>) -> Result<T, StoreError> {
        if let Err(error) = &answer
            && !matches!(error, StoreError::Unsupported(_))
        {
            self.core.path.meter.count_store_failure(error);
        }
        answer
    }

    pub(super) fn charge_of<'a>(&'a self, item: Item<'a>, cost: u64, permit: u128) -> Charge<'a> {
        let target = self.core.path.target(item);
        let permit = if target.limit.algorithm() == Algorithm::Concurrency { permit } else { 0 };
        Charge { permit, ..charges::charge(&self.core.path.policies, target, item.1, cost) }
    }
}

fn miscounted(outcomes: usize, charges: usize) -> StoreError {
    StoreError::Failed(format!("{outcomes} outcomes for {charges} charges"))
}
