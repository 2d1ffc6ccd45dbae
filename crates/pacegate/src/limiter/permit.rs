//! Permits of concurrency limits: units that are held until their holder returns them.

use smallvec::SmallVec;

use super::{
    CheckError, Limiter, SharedLimiter,
    evaluator::{Evaluation, Evaluator},
    in_memory,
    permit_id::new_permit_id,
    resolve::{Resolved, ResolvedCharge, ResolvedCharges},
};
use crate::{
    Charge, ChargeBuf, CostError, Decision, Denied, Key, Limit, PolicyName, Request, StoreError,
    Update, policy::FailureMode, store::memory::identity::Identity,
};

/// Units of a concurrency limit, held until this is dropped.
///
/// A permit expires when it is older than the period of its limit, so that a holder that hangs does not keep its place
/// for ever. [Renew](Self::renew) it to hold it longer. Choose a period that is longer than the work usually takes.
///
/// Dropping a permit takes one lock, wakes the first caller that [waits](Limiter::acquire_within), and never fails. The
/// permit keeps the limiter alive. It can be moved to another thread or task.
///
/// ```
/// use pacegate::Limiter;
///
/// let limiter = Limiter::builder().limit("2/30s concurrency").build()?;
/// let permit = limiter.acquire("alice").into_result()?;
/// let worker = std::thread::spawn(move || {
///     // ... the work ...
///     drop(permit);
/// });
/// worker.join().unwrap();
/// assert_eq!(limiter.peek("alice").remaining(), 2);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
#[must_use = "dropping a permit returns it"]
pub struct Permit(pub(super) SharedPermit);

/// Units of a concurrency limit, held in a store until this is [released](Self::release) or dropped.
///
/// A permit expires when it is older than the period of its limit, so that a process that has crashed does not keep its
/// place for ever. [Renew](Self::renew) it to hold it longer. If the store did not answer, the permit is held in this
/// process only.
///
/// Prefer [`release`](Self::release) where you can wait: dropping the permit starts the release in the background, and
/// the next request may reach the store before it. See [`SharedLimiter::acquire`] for an example.
#[derive(Debug)]
#[must_use = "dropping a permit returns it"]
pub struct SharedPermit {
    limiter: SharedLimiter,
    held: HeldPermits,
    /// Held in the memory of this process. The store may hold it too, if only its answer was lost.
    degraded: bool,
    /// Released already.
    returned: bool,
}

/// A decision, with a permit if it was allowed. Returned by [`Limiter::acquire`] and [`SharedLimiter::acquire`].
///
/// Keep the permit for as long as the work runs. [`Admission::into_result`] converts to a `Result` for use with `?`.
///
/// ```
/// use pacegate::Limiter;
///
/// let limiter = Limiter::builder().limit("1/30s concurrency").build()?;
/// let admission = limiter.acquire("alice");
/// match &admission.permit {
///     Some(_permit) => println!("started; {} more may run", admission.decision.remaining()),
///     None => println!("busy; retry after {:?}", admission.decision.retry_after()),
/// }
/// # Ok::<(), pacegate::BuildError>(())
/// ```
#[derive(Debug)]
#[must_use = "dropping an admission returns its permit"]
pub struct Admission<P = Permit> {
    /// The decision.
    pub decision: Decision,
    /// The permit, if allowed. Also present if no concurrency limit applies; dropping it then has no effect.
    pub permit: Option<P>,
}

/// The permits that one request holds.
#[derive(Debug, Default)]
pub(super) struct HeldPermits {
    charges: SmallVec<[ChargeBuf; 1]>,
    /// The queue of callers that wait for such permits.
    queue: Option<Identity>,
}

/// Permits that the store was asked for. Dropping this releases them: the caller stopped waiting for the answer, so it
/// does not have them, but the store may have taken them.
#[derive(Debug)]
pub(super) struct UnansweredPermits {
    limiter: SharedLimiter,
    held: HeldPermits,
}

impl Limiter {
    /// Takes a permit for `key` under a [concurrency](crate::Algorithm::Concurrency) limit.
    ///
    /// Other limits of the key are charged as by [`Limiter::check`], all or nothing.
    ///
    /// Use it for work that takes some time and must not run too often in parallel, such as exports of one user. The
    /// time for which units are held decides here, not the rate. [`Decision::retry_after`] of a denial is the time
    /// until the oldest permit expires; usually its holder releases it earlier, so [`Limiter::acquire_within`] waits
    /// better than a retry does.
    ///
    /// # Panics
    ///
    /// Panics if the operating system returns no random bytes for the id of the permit.
    ///
    /// ```
    /// use pacegate::Limiter;
    ///
    /// let limiter = Limiter::builder().limit("1/30s concurrency").build()?;
    /// let first = limiter.acquire("alice");
    /// assert!(first.permit.is_some());
    /// assert!(limiter.acquire("alice").permit.is_none());
    /// drop(first);
    /// assert!(limiter.acquire("alice").permit.is_some());
    /// # Ok::<(), pacegate::BuildError>(())
    /// ```
    pub fn acquire(&self, key: impl Key) -> Admission {
        let admit = |charges: ResolvedCharges<'_>| self.admit(charges);
        let admitted = key.with(|key| self.evaluator().with_key(key, 1, new_permit_id(), admit));
        admitted.unwrap_or_else(|error| unreachable!("one unit fits every limit: {error}"))
    }

    /// Takes a permit for `key` under this limit, instead of the limits of the policies. See [`Limiter::check_with`].
    ///
    /// Use it if the number of permits depends on the caller, such as the plan of an account. A different amount has a
    /// different counter, so permits under the old amount do not count against the new one.
    ///
    /// ```
    /// use pacegate::{Limit, Limiter};
    ///
    /// let limiter = Limiter::memory(Limit::per_second(100));
    /// let jobs = "1/30s concurrency".parse()?;
    /// let permit = limiter.acquire_with("alice", jobs).into_result()?;
    /// assert!(limiter.acquire_with("alice", jobs).permit.is_none());
    /// # drop(permit);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn acquire_with(&self, key: impl Key, limit: Limit) -> Admission {
        let admitted = key.with(|key| {
            let charge = Charge::new(PolicyName::INLINE, key, limit).holding(new_permit_id());
            let limit = self.evaluator().bind_one(&charge);
            self.admit(SmallVec::from_iter([ResolvedCharge::of_charge(&limit, &charge)]))
        });
        admitted.unwrap_or_else(|error| unreachable!("one unit fits every limit: {error}"))
    }

    /// Takes permits for a request under the policies that apply to it. See [`Limiter::acquire`].
    ///
    /// The cost of the request is the number of units that the permit holds under each concurrency limit.
    ///
    /// # Errors
    ///
    /// [`CostError`] if an enforced policy never admits the cost, for example a cost of 3 on `2/30s concurrency`.
    ///
    /// ```
    /// use pacegate::{Limiter, Policy, PolicySet, Request};
    ///
    /// let policies = PolicySet::new([Policy::new("exports", ["3/30s concurrency"]).per(["user"])])?;
    /// let limiter = Limiter::builder().policies(policies).build()?;
    /// let large = Request::new().with("user", "alice").cost(2);
    /// let admission = limiter.acquire_request(&large)?;
    /// assert_eq!(admission.decision.remaining(), 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn acquire_request(&self, request: &Request<'_>) -> Result<Admission, CostError> {
        let plan = self.evaluator().policies.plan(request);
        self.admit(self.evaluator().charges_of(&plan, request.units(), new_permit_id()))
    }

    fn admit(&self, charges: ResolvedCharges<'_>) -> Result<Admission, CostError> {
        let resolved = Resolved::new(charges, false)?;
        let evaluation = self.evaluator().evaluate(&resolved);
        let Admission { decision, permit } = self.shared.admission(&resolved, &evaluation);
        Ok(Admission { decision, permit: permit.map(Permit) })
    }
}

impl SharedLimiter {
    /// Takes a permit for `key` under a [concurrency](crate::Algorithm::Concurrency) limit.
    ///
    /// Other limits of the key are charged as by [`SharedLimiter::check`], all or nothing. If the call is cancelled, or
    /// denied because the store did not answer, a permit that the store may have taken is released.
    ///
    /// # Errors
    ///
    /// [`CheckError::Store`] if the store does not support concurrency limits. A store that is down causes no error:
    /// the failure mode decides, and the permit is then held in this process only.
    ///
    /// ```
    /// # pollster::block_on(async {
    /// use pacegate::{MemoryStore, SharedLimiter};
    ///
    /// let limiter = SharedLimiter::builder(MemoryStore::default());
    /// let limiter = limiter.limit("1/30s concurrency").build()?;
    /// let permit = limiter.acquire("alice").await?.into_result()?;
    /// assert!(limiter.acquire("alice").await?.permit.is_none());
    /// permit.release().await?;
    /// assert!(limiter.acquire("alice").await?.permit.is_some());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    pub async fn acquire(&self, key: impl Key) -> Result<Admission<SharedPermit>, CheckError> {
        let plan = key.with(|key| self.evaluator.plan_key(key));
        self.admit(self.evaluator.charges_of(&plan, 1, new_permit_id())).await
    }

    /// Takes a permit for `key` under this limit, instead of the limits of the policies. See [`Limiter::acquire_with`]
    /// and, for cancellation, [`SharedLimiter::acquire`].
    pub async fn acquire_with(
        &self,
        key: impl Key,
        limit: Limit,
    ) -> Result<Admission<SharedPermit>, CheckError> {
        let key = key.with(|key| key.to_buf());
        let charge = Charge::new(PolicyName::INLINE, &key, limit).holding(new_permit_id());
        let limit = self.evaluator.bind_one(&charge);
        self.admit(SmallVec::from_iter([ResolvedCharge::of_charge(&limit, &charge)])).await
    }

    /// Takes permits for a request under the policies that apply to it. Its [id](Request::id) is ignored, because a
    /// permit has one holder.
    ///
    /// See [`Limiter::acquire_request`] and, for cancellation, [`SharedLimiter::acquire`].
    pub async fn acquire_request(
        &self,
        request: &Request<'_>,
    ) -> Result<Admission<SharedPermit>, CheckError> {
        let plan = self.evaluator.policies.plan(request);
        self.admit(self.evaluator.charges_of(&plan, request.units(), new_permit_id())).await
    }

    async fn admit(
        &self,
        charges: ResolvedCharges<'_>,
    ) -> Result<Admission<SharedPermit>, CheckError> {
        let resolved = Resolved::new(charges, false)?;
        let evaluation = self.evaluate(&resolved, None).await?;
        Ok(self.admission(&resolved, &evaluation))
    }

    /// Records an evaluation, and creates the permit if it was allowed.
    fn admission(
        &self,
        resolved: &Resolved<'_>,
        evaluation: &Evaluation,
    ) -> Admission<SharedPermit> {
        self.evaluator.record(&resolved.charges, evaluation);
        let decision = evaluation.decision;
        let held = decision.is_allowed().then(|| self.evaluator.hold(resolved));
        let permit = held.map(|held| self.permit(held, decision.is_degraded()));
        Admission { decision, permit }
    }

    pub(super) fn permit(&self, held: HeldPermits, degraded: bool) -> SharedPermit {
        SharedPermit { limiter: self.clone(), held, degraded, returned: false }
    }

    /// Releases permits, and wakes a caller that waits for them.
    async fn release(&self, held: &HeldPermits) -> Result<(), StoreError> {
        let charges = held.charges();
        let limits = self.evaluator.bind(&charges);
        let pairs = limits.iter().zip(&charges);
        let resolved = pairs.map(|(limit, charge)| ResolvedCharge::of_charge(limit, charge));
        self.update_all(&resolved.collect::<ResolvedCharges<'_>>(), Update::Release).await?;
        self.evaluator.notify(held.queue);
        Ok(())
    }

    /// Releases permits without waiting for the store. Failures are recorded, and the store retries.
    pub(super) fn release_later(&self, held: HeldPermits) {
        match &self.store {
            None => self.evaluator.release(&held),
            Some(store) => {
                let limiter = self.clone();
                store.spawn(Box::pin(async move { drop(limiter.release(&held).await) }));
            }
        }
    }
}

impl<P> Admission<P> {
    /// Returns the permit, or the denial as an error, for use with `?`.
    ///
    /// ```
    /// use pacegate::{Denied, Limiter};
    ///
    /// fn export(limiter: &Limiter, user: &str) -> Result<(), Denied> {
    ///     let _permit = limiter.acquire(user).into_result()?;
    ///     // ... the export; the permit is released at the end of the function ...
    ///     Ok(())
    /// }
    ///
    /// let limiter = Limiter::builder().limit("1/30s concurrency").build()?;
    /// assert!(export(&limiter, "alice").is_ok());
    /// assert!(export(&limiter, "alice").is_ok(), "the first one has ended");
    /// # Ok::<(), pacegate::BuildError>(())
    /// ```
    pub fn into_result(self) -> Result<P, Denied> {
        match (self.decision.into_result(), self.permit) {
            (Ok(_), Some(permit)) => Ok(permit),
            (Err(denied), _) => Err(denied),
            (Ok(_), None) => unreachable!("an allowed admission has a permit"),
        }
    }
}

impl Permit {
    /// Restarts the permit's period. Returns `false` if it had expired: another request may hold its place.
    ///
    /// Call it regularly while the work runs, for example after a third of the period. An expired permit stays expired:
    /// stop the work, or take a new one.
    ///
    /// ```
    /// use std::time::Duration;
    /// use pacegate::{Limiter, ManualClock};
    ///
    /// let clock = ManualClock::new();
    /// let limiter = Limiter::builder().limit("1/30s concurrency").clock(clock.clone()).build()?;
    /// let permit = limiter.acquire("alice").into_result()?;
    /// clock.advance(Duration::from_secs(20));
    /// assert!(permit.renew(), "valid for another 30 seconds");
    /// clock.advance(Duration::from_secs(30));
    /// assert!(!permit.renew(), "too late");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use = "a permit that has expired no longer protects its holder"]
    pub fn renew(&self) -> bool {
        in_memory(self.0.renew())
    }
}

impl SharedPermit {
    /// Releases the permit, and waits until the store has confirmed it. After that, the next request finds the place
    /// free.
    ///
    /// # Errors
    ///
    /// The error of the store. The release is retried in the background then, and the permit expires at the end of its
    /// period at the latest, so there is nothing to do but log.
    ///
    /// # Cancellation
    ///
    /// Dropping the future still releases the permit, as dropping the permit does.
    pub async fn release(mut self) -> Result<(), StoreError> {
        if !self.degraded {
            self.limiter.release(&self.held).await?;
            self.returned = true;
        }
        Ok(())
    }

    /// Restarts the permit's period. Returns `false` if it had expired: another request may hold its place.
    ///
    /// Call it regularly while the work runs, for example after a third of the period, so that two calls may fail
    /// before the permit expires. See [`Permit::renew`].
    ///
    /// # Errors
    ///
    /// The error of the store, if it did not answer: the permit may or may not have been renewed, so try again. A
    /// permit of a policy that fails [open](FailureMode::Open) is kept, without an error.
    pub async fn renew(&self) -> Result<bool, StoreError> {
        let evaluator = &self.limiter.evaluator;
        if self.degraded {
            // A limit that fails open has admitted without counting, so it cannot expire.
            return Ok(evaluator.renew(&self.held, |failure| failure != FailureMode::Open));
        }
        self.limiter.charges().renew(&self.held.charges()).await
    }
}

/// Releases the permit without waiting for the store, by [`Store::spawn`](crate::Store::spawn).
impl Drop for SharedPermit {
    fn drop(&mut self) {
        if self.returned || self.held.charges.is_empty() {
            return;
        }
        if self.degraded {
            self.limiter.evaluator.release(&self.held);
        }
        self.limiter.release_later(std::mem::take(&mut self.held));
    }
}

impl HeldPermits {
    fn charges(&self) -> SmallVec<[Charge<'_>; 1]> {
        self.charges.iter().map(ChargeBuf::as_charge).collect()
    }
}

impl UnansweredPermits {
    /// Returns `None` if the request takes no permit.
    pub(super) fn new(limiter: &SharedLimiter, resolved: &Resolved<'_>) -> Option<Self> {
        if !resolved.sent().iter().any(|charge| charge.permit != 0) {
            return None;
        }
        let held = limiter.evaluator.hold(resolved);
        (!held.charges.is_empty()).then(|| Self { limiter: limiter.clone(), held })
    }

    /// Keeps the permits: the answer arrived, so the caller knows which it holds.
    pub(super) fn answered(mut self) {
        self.held.charges.clear();
    }
}

impl Drop for UnansweredPermits {
    fn drop(&mut self) {
        if !self.held.charges.is_empty() {
            self.limiter.release_later(std::mem::take(&mut self.held));
        }
    }
}

impl Evaluator {
    /// Returns the permits that a request takes.
    pub(super) fn hold(&self, resolved: &Resolved<'_>) -> HeldPermits {
        let takes = |charge: &&ResolvedCharge<'_>| charge.permit != 0 && charge.cost > 0;
        let charges = resolved.sent().iter().filter(takes);
        HeldPermits {
            charges: charges.map(|charge| ChargeBuf::from(&self.to_charge(charge))).collect(),
            queue: self.queue_of(&resolved.charges),
        }
    }

    /// Releases permits that are held in memory.
    fn release(&self, held: &HeldPermits) {
        for charge in &held.charges {
            let charge = charge.as_charge();
            let limit = self.bind_one(&charge);
            self.update(&ResolvedCharge::of_charge(&limit, &charge), Update::Release);
        }
        self.notify(held.queue);
    }

    /// Renews permits that are held in memory under limits whose failure mode `is_counted`. `false` if one has expired.
    fn renew(&self, held: &HeldPermits, is_counted: impl Fn(FailureMode) -> bool) -> bool {
        let has_expired = |charge: &&ChargeBuf| {
            let charge = charge.as_charge();
            let limit = self.bind_one(&charge);
            // A limit in shadow mode may not have admitted it.
            is_counted(limit.failure)
                && !self.update(&ResolvedCharge::of_charge(&limit, &charge), Update::Renew)
                && limit.enforced
        };
        // All of them, even if one has expired.
        held.charges.iter().filter(has_expired).count() == 0
    }
}
