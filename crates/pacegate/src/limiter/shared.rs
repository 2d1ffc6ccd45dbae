use std::{
    fmt,
    sync::Arc,
    task::{Context, Waker},
};

use smallvec::SmallVec;

use super::{
    Charges, Limiter, SharedLimiterBuilder,
    evaluator::{Evaluation, Evaluator},
    join::join_all,
    lazy::LazyEvaluator,
    permit::UnansweredPermits,
    permit_id::new_permit_id,
    resolve::{Resolved, ResolvedCharge, ResolvedCharges, spent},
    wait_queue::WaitQueue,
};
use crate::{
    Charge, CostError, Decision, Key, Limit, MemoryStore, Outcomes, PolicyName, PolicySet, Reply,
    Request, Stats, Store, StoreError, Task, Update, policy::FailureMode,
};

/// A rate limiter over any [`Store`].
///
/// It has the policies, decisions and statistics of a [`Limiter`]; its calls are asynchronous. If the store fails, each
/// policy decides by its [failure mode](crate::policy::FailureMode), and the decision is
/// [degraded](Decision::is_degraded). An error is a mistake of the caller, never a denial.
///
/// Cheap to clone; clones share everything.
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
///
/// # If the store fails
///
/// A check then returns a decision, not an error: `open` admits, `closed` denies, `local` counts in this process. See
/// [`FailureMode`](crate::policy::FailureMode). How long a check waits for the store is up to the store: every store
/// call must have a deadline, and that of `RedisStore` is configurable.
///
/// # Cancellation
///
/// Dropping the future of a check is safe, but it does not take back a charge that has been sent: the units may have
/// been charged. A permit that a dropped call may have taken is released. To retry a request that may already have
/// counted, give it an [id](Request::id).
///
/// # Panics
///
/// Calls that take permits panic if the operating system returns no random bytes. No other call panics.
#[derive(Clone)]
pub struct SharedLimiter {
    /// Its memory is the fallback if the store fails.
    pub(super) evaluator: Arc<LazyEvaluator>,
    /// `None`: the memory of the evaluator.
    pub(super) store: Option<Arc<dyn Store>>,
}

/// Error of a check that returned no decision.
///
/// It is always a mistake of the caller. A store that is unreachable causes no error: the
/// [failure mode](crate::policy::FailureMode) of each policy decides.
///
/// ```
/// use pacegate::CheckError;
///
/// /// Maps the outcome of a check that returned no decision to an HTTP status.
/// fn status(error: &CheckError) -> u16 {
///     match error {
///         CheckError::Cost(_) => 400, // the client asked for more than a limit can ever admit
///         _ => 500,                   // the program uses the store in a way it does not support
///     }
/// }
/// # let _ = status;
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CheckError {
    /// The cost can never be admitted: a mistake of the caller.
    #[error(transparent)]
    Cost(#[from] CostError),
    /// The store does not support the call.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// The start of a check: concluded at once, or waiting for the store.
enum Started<'a> {
    Done(Result<Decision, StoreError>),
    Waiting(crate::PendingReply<'a, Outcomes>, Option<Box<UnansweredPermits>>),
}

impl SharedLimiter {
    /// Creates a limiter over `store`, with the defaults.
    ///
    /// Unlike the [builder](Self::builder), it does not check that the store supports the limits. An unsupported limit
    /// then fails at the first check, with [`CheckError::Store`].
    ///
    /// ```
    /// # pollster::block_on(async {
    /// use pacegate::{MemoryStore, Policy, PolicySet, SharedLimiter};
    ///
    /// let policies = PolicySet::new([Policy::new("api", ["100/minute"]).per(["key"])])?;
    /// let limiter = SharedLimiter::new(MemoryStore::default(), policies);
    /// assert_eq!(limiter.check("alice").await?.remaining(), 99);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    pub fn new(store: impl Store, policies: PolicySet) -> Self {
        let evaluator = Evaluator::new(policies, MemoryStore::default(), WaitQueue::default());
        Self { evaluator: Arc::new(evaluator.into()), store: Some(Arc::new(store)) }
    }

    /// Returns a builder for a limiter over `store`, which may be an `Arc<dyn Store>`.
    ///
    /// Nothing is sent to the store until the first check.
    ///
    /// ```
    /// # pollster::block_on(async {
    /// use std::sync::Arc;
    /// use pacegate::{MemoryStore, SharedLimiter, Store};
    ///
    /// let store: Arc<dyn Store> = Arc::new(MemoryStore::default());
    /// let limiter = SharedLimiter::builder(store).limit("2/minute").build()?;
    /// assert!(limiter.check("alice").await?.is_allowed());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    pub fn builder(store: impl Store) -> SharedLimiterBuilder {
        SharedLimiterBuilder::over(store)
    }

    /// Charges one unit to `key` if every limit has room, and nothing otherwise.
    ///
    /// Usually one round trip to the store; none if the store knows from a cached denial or a lease. If the call is
    /// cancelled, the unit may have been charged.
    ///
    /// On a [concurrency](crate::Algorithm::Concurrency) limit this takes a unit that cannot be released: it expires
    /// with the period. Use [`SharedLimiter::acquire`] there.
    ///
    /// # Errors
    ///
    /// [`CheckError::Store`] if the store can never count the limit. A store that is down causes no error: the decision
    /// is [degraded](Decision::is_degraded).
    ///
    /// ```
    /// # pollster::block_on(async {
    /// use pacegate::{MemoryStore, SharedLimiter};
    ///
    /// let limiter = SharedLimiter::builder(MemoryStore::default()).limit("1/minute").build()?;
    /// assert!(limiter.check("alice").await?.is_allowed());
    /// let denied = limiter.check("alice").await?;
    /// assert!(!denied.is_allowed() && !denied.is_degraded());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    pub async fn check(&self, key: impl Key) -> Result<Decision, CheckError> {
        self.check_cost(key, 1).await
    }

    /// Charges `cost` units to `key` if every limit has room, and nothing otherwise. See [`Limiter::check_cost`].
    ///
    /// # Errors
    ///
    /// [`CheckError::Cost`] before anything is sent to the store, if an enforced limit can never admit the cost.
    /// [`CheckError::Store`] if the store can never count the limit.
    pub async fn check_cost(&self, key: impl Key, cost: u64) -> Result<Decision, CheckError> {
        let evaluator = &*self.evaluator;
        let Some(store) = &self.store else {
            return key.with(|key| evaluator.check_key(key, cost)).map_err(CheckError::from);
        };
        if !evaluator.is_direct() {
            let plan = key.with(|key| evaluator.plan_key(key));
            return self.check_charges(evaluator.charges_of(&plan, cost, 0), None).await;
        }
        // Resolved again after the answer, so that only the key and the reply live across the wait.
        let permit = new_permit_if(evaluator.direct_has_permits());
        let start = |charges: ResolvedCharges<'_>| {
            let resolved = Resolved::new(charges, false)?;
            Ok(match self.start(store, &resolved, None) {
                Reply::Ready(answer) => Started::Done(self.finish(&resolved, answer)),
                Reply::Pending(pending) => {
                    Started::Waiting(pending, UnansweredPermits::new(self, &resolved).map(Box::new))
                }
            })
        };
        let started: Result<_, CostError> =
            key.with(|key| evaluator.with_key(key, cost, permit, start));
        match started? {
            Started::Done(decision) => Ok(decision?),
            Started::Waiting(pending, unanswered) => {
                let answer = pending.await;
                if let Some(unanswered) = unanswered {
                    unanswered.answered();
                }
                let finish = |charges: ResolvedCharges<'_>| {
                    Ok(self.finish(&Resolved::new(charges, false)?, answer)?)
                };
                key.with(|key| evaluator.with_key(key, cost, permit, finish))
            }
        }
    }

    /// Returns the decision for one unit, without charging it. See [`Limiter::peek`].
    ///
    /// A peek is a call to the store like a check. If it fails, the failure modes answer, and nothing is charged
    /// locally either.
    pub async fn peek(&self, key: impl Key) -> Result<Decision, CheckError> {
        self.check_cost(key, 0).await
    }

    /// Charges one unit to `key` under this limit, instead of the limits of the policies.
    ///
    /// See [`Limiter::check_with`]. If the store fails, the failure mode for
    /// [no policy](PolicySet::inline_failure) applies.
    ///
    /// ```
    /// # pollster::block_on(async {
    /// use pacegate::{Limit, MemoryStore, SharedLimiter};
    ///
    /// let limiter = SharedLimiter::builder(MemoryStore::default()).limit("100/minute").build()?;
    /// let plan = Limit::per_minute(1); // for example, from the account of the user
    /// assert!(limiter.check_with("alice", plan).await?.is_allowed());
    /// assert!(!limiter.check_with("alice", plan).await?.is_allowed());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    pub async fn check_with(&self, key: impl Key, limit: Limit) -> Result<Decision, CheckError> {
        let key = key.with(|key| key.to_buf());
        self.charges().check(&[Charge::new(PolicyName::INLINE, &key, limit)]).await
    }

    /// Charges one unit to each key. The calls to the store run concurrently, so the order of two equal keys is
    /// unspecified.
    ///
    /// The keys are independent: a denial of one does not affect the others. All calls start before the first answer is
    /// awaited, so a store that sends in batches needs few round trips. There is no limit on the number of keys: split
    /// a list of unknown length.
    ///
    /// # Errors
    ///
    /// The first error, after all calls have ended. The other keys have been charged.
    pub async fn check_many<K: Key>(&self, keys: &[K]) -> Result<Vec<Decision>, CheckError> {
        if self.store.is_none() {
            let mut decisions = Vec::new();
            self.evaluator.check_many(keys, &mut decisions);
            return Ok(decisions);
        }
        join_all(keys.iter().map(|key| self.check(key))).await.into_iter().collect()
    }

    /// Charges a request to all policies that apply to it, all or nothing.
    ///
    /// A request with an [id](Request::id) counts once, even if it is repeated. A request that no policy covers is
    /// allowed without a call to the store.
    ///
    /// # Errors
    ///
    /// [`CheckError::Cost`] if an enforced policy never admits the cost. [`CheckError::Store`] if the request has an id
    /// and the store does not support ids, or if the store can never count a limit.
    ///
    /// ```
    /// # pollster::block_on(async {
    /// use pacegate::{MemoryStore, Policy, PolicySet, Request, SharedLimiter};
    ///
    /// let policies = PolicySet::new([Policy::new("login", ["1/minute"]).per(["ip"])])?;
    /// let limiter = SharedLimiter::builder(MemoryStore::default()).policies(policies).build()?;
    /// let request = Request::new().with("ip", "203.0.113.7");
    /// assert!(limiter.check_request(&request).await?.is_allowed());
    /// assert!(!limiter.peek_request(&request).await?.is_allowed());
    /// limiter.refund_request(&request).await?;
    /// assert!(limiter.peek_request(&request).await?.is_allowed());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    pub async fn check_request(&self, request: &Request<'_>) -> Result<Decision, CheckError> {
        if self.store.is_none() && request.id_bytes().is_none() {
            return Ok(self.evaluator.check_request(request, request.units())?);
        }
        let plan = self.evaluator.policies.plan(request);
        let charges = self.evaluator.charges_of(&plan, request.units(), 0);
        let is_spent = request.is_spent() && request.units() > 0;
        let charges = if is_spent { spent(charges) } else { charges };
        self.check_charges(charges, request.id_bytes()).await
    }

    /// Returns the decision for one unit of a request, without charging it. The cost and the id of the request are
    /// ignored.
    pub async fn peek_request(&self, request: &Request<'_>) -> Result<Decision, CheckError> {
        let plan = self.evaluator.policies.plan(request);
        self.check_charges(self.evaluator.charges_of(&plan, 0, 0), None).await
    }

    /// Decides the charges of a plan, and records the decision.
    async fn check_charges(
        &self,
        charges: ResolvedCharges<'_>,
        id: Option<&[u8]>,
    ) -> Result<Decision, CheckError> {
        let mut resolved = Resolved::new(charges, false)?;
        if self.store.is_some() {
            resolved.fill_permits();
        }
        let evaluation = self.evaluate(&resolved, id).await?;
        self.evaluator.record(&resolved.charges, &evaluation);
        Ok(evaluation.decision)
    }

    /// Returns up to `cost` units to `key`, and no more than are used. Permits are not affected: their holders release
    /// them. See [`Limiter::refund`].
    ///
    /// # Errors
    ///
    /// The first error of the store, after all limits have been tried. The units of a refund that failed are not
    /// returned later: they become free with their period. Do not retry after [`StoreError::TimedOut`] or
    /// [`StoreError::Interrupted`], because the refund may have been applied.
    pub async fn refund(&self, key: impl Key, cost: u64) -> Result<(), StoreError> {
        let plan = key.with(|key| self.evaluator.plan_key(key));
        self.update_all(&self.evaluator.charges_of(&plan, cost, 0), Update::Refund).await
    }

    /// Returns the cost of a request to all policies that apply to it, and no more than is used. See
    /// [`SharedLimiter::refund`] and [`Limiter::refund_request`]. The [id](Request::id) of the request is ignored.
    pub async fn refund_request(&self, request: &Request<'_>) -> Result<(), StoreError> {
        let plan = self.evaluator.policies.plan(request);
        self.update_all(&self.evaluator.charges_of(&plan, request.units(), 0), Update::Refund).await
    }

    /// Removes the counters of `key`, in this process and in the store. If the store fails, those in this process are
    /// removed nevertheless.
    ///
    /// Only under the policies of this limiter, see [`Limiter::reset`]. On Redis, another process may still deny the
    /// key by a cached denial for up to a second, and may spend units that it has leased.
    pub async fn reset(&self, key: impl Key) -> Result<(), StoreError> {
        let plan = key.with(|key| self.evaluator.plan_key(key));
        self.update_all(&self.evaluator.charges_of(&plan, 0, 0), Update::Reset).await
    }

    /// Creates a limiter with another limit for each key, on the same state. See [`Limiter::with_policies`].
    pub fn with_limit(&self, limit: Limit) -> Self {
        self.with_policies(PolicySet::of_limit(limit))
    }

    /// Creates a limiter with other policies on the same store and statistics. See [`Limiter::with_policies`].
    ///
    /// Does not check that the store supports the new limits. Call [`Store::supports`] for each policy first, or build
    /// a new limiter.
    pub fn with_policies(&self, policies: PolicySet) -> Self {
        let evaluator = Arc::new(self.evaluator.with_policies(policies).into());
        Self { evaluator, store: self.store.clone() }
    }

    /// Returns the calls for explicit charges. See [`Limiter::charges`].
    pub fn charges(&self) -> Charges<'_, Self> {
        Charges::new(self)
    }

    /// Returns the statistics of this process. Other processes on the same store have separate statistics.
    ///
    /// [`Stats::store_failures`] and [`Stats::last_store_failure`] show if and why the store fails.
    pub fn stats(&self) -> Stats {
        self.evaluator.stats()
    }

    /// Returns the policies of this limiter. Other processes on the same store may have other policies.
    pub fn policies(&self) -> &PolicySet {
        &self.evaluator.policies
    }

    /// Runs a task that no caller waits for.
    pub(crate) fn spawn(&self, mut task: Task) {
        match &self.store {
            Some(store) => store.spawn(task),
            // In memory every call is ready at once.
            None => drop(task.as_mut().poll(&mut Context::from_waker(Waker::noop()))),
        }
    }

    /// Returns `true` if the counters are in the memory of this process, as after `SharedLimiter::from(limiter)`. Then
    /// every call is answered without waiting.
    pub fn is_local(&self) -> bool {
        self.store.is_none()
    }
}

/// Converts a [`Limiter`] for code that takes any store. Both share policies, counters and statistics.
impl From<Limiter> for SharedLimiter {
    fn from(limiter: Limiter) -> Self {
        limiter.shared
    }
}

/// Prints the number of policies and the kind of store on one line. Never prints keys.
impl fmt::Debug for SharedLimiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let store = if self.is_local() { "memory" } else { "shared" };
        let policies = self.policies().policies().len();
        write!(f, "SharedLimiter {{ policies: {policies}, store: {store} }}")
    }
}

impl SharedLimiter {
    /// Charges the store, or decides by failure modes if it fails. Records nothing.
    ///
    /// If the call is cancelled, permits that the store may have taken are released.
    pub(super) async fn evaluate(
        &self,
        resolved: &Resolved<'_>,
        id: Option<&[u8]>,
    ) -> Result<Evaluation, StoreError> {
        let Some(store) = &self.store else {
            // A peek changes nothing, so it can be repeated without an id.
            return match id.filter(|_| resolved.takes_units()) {
                Some(_) => Err(StoreError::no_ids()),
                None => Ok(self.evaluator.evaluate(resolved)),
            };
        };
        let answer = match self.start(store, resolved, id) {
            Reply::Ready(answer) => answer,
            Reply::Pending(pending) => {
                let unanswered = UnansweredPermits::new(self, resolved);
                let answer = pending.await;
                if let Some(unanswered) = unanswered {
                    unanswered.answered();
                }
                answer
            }
        };
        self.conclude(resolved, answer)
    }

    /// Starts to charge the store. Without charges, the store is not called.
    fn start<'s>(
        &self,
        store: &'s Arc<dyn Store>,
        resolved: &Resolved<'_>,
        id: Option<&[u8]>,
    ) -> Reply<'s, Outcomes> {
        if resolved.sent().is_empty() {
            return Reply::Ready(Ok(Outcomes::default()));
        }
        let charges = resolved.sent().iter().map(|charge| self.evaluator.to_charge(charge));
        let charges: SmallVec<[Charge<'_>; 1]> = charges.collect();
        store.charge(&charges, id.filter(|_| resolved.takes_units()))
    }

    /// Combines the answer of the store, or decides by failure modes if it failed. Records nothing but the failure.
    ///
    /// If the store may have taken permits of a request that is then denied, they are released.
    fn conclude(
        &self,
        resolved: &Resolved<'_>,
        answer: Result<Outcomes, StoreError>,
    ) -> Result<Evaluation, StoreError> {
        match self.evaluator.record_failure(complete(answer, resolved.sent().len())) {
            Ok(outcomes) => {
                let now = self.evaluator.memory.now();
                Ok(self.evaluator.conclude(resolved, outcomes, now, false))
            }
            Err(error @ StoreError::Unsupported(_)) => Err(error),
            Err(error) => {
                let evaluation = self.evaluator.evaluate_fallback(resolved);
                if !evaluation.decision.allowed && error.is_uncertain() {
                    drop(UnansweredPermits::new(self, resolved));
                }
                Ok(evaluation)
            }
        }
    }

    /// [`SharedLimiter::conclude`], and records the decision.
    fn finish(
        &self,
        resolved: &Resolved<'_>,
        answer: Result<Outcomes, StoreError>,
    ) -> Result<Decision, StoreError> {
        let evaluation = self.conclude(resolved, answer)?;
        self.evaluator.record(&resolved.charges, &evaluation);
        Ok(evaluation.decision)
    }

    /// Changes one counter without a decision, and wakes a caller that waits for its key.
    ///
    /// Changes in memory too, because units may have been taken there when the store failed. Refunds are the exception:
    /// the same units would be returned twice.
    pub(super) async fn update(
        &self,
        charge: &ResolvedCharge<'_>,
        update: Update,
    ) -> Result<bool, StoreError> {
        let evaluator = &*self.evaluator;
        let Some(store) = &self.store else {
            return Ok(evaluator.update_and_notify(charge, update));
        };
        let in_memory = update != Update::Refund && evaluator.update(charge, update);
        match update {
            // All units of a concurrency limit in the store have an id, by which their holders release them.
            Update::Refund if charge.limit.has_permits() => return Ok(true),
            Update::Renew if in_memory => return Ok(true),
            _ => {}
        }
        let reply = store.update(&evaluator.to_charge(charge), update);
        let answer = match reply {
            Reply::Ready(answer) => answer,
            Reply::Pending(pending) => pending.await,
        };
        let answer = evaluator.record_failure(answer);
        if update != Update::Renew {
            // After a failed release, an attempt of a waiting caller would fail too.
            if answer.is_ok() || update == Update::Reset {
                evaluator.notify(evaluator.queue_of(std::slice::from_ref(charge)));
            }
            return answer;
        }
        match answer {
            // It may have been admitted without being counted.
            Err(error) if charge.limit.failure == FailureMode::Open && !error.is_unsupported() => {
                Ok(true)
            }
            answer => answer,
        }
    }

    /// Changes all of these counters, even if one fails, and returns the first error.
    pub(super) async fn update_all(
        &self,
        charges: &[ResolvedCharge<'_>],
        update: Update,
    ) -> Result<(), StoreError> {
        let mut result = Ok(());
        for charge in charges {
            result = result.and(self.update(charge, update).await.map(drop));
        }
        result
    }
}

/// Returns an error if the store did not return one outcome for each charge.
pub(super) fn complete(
    answer: Result<Outcomes, StoreError>,
    expected: usize,
) -> Result<Outcomes, StoreError> {
    answer.and_then(|outcomes| match outcomes.len() {
        count if count == expected => Ok(outcomes),
        count => Err(StoreError::Failed(format!("{count} outcomes for {expected} charges"))),
    })
}

fn new_permit_if(needed: bool) -> u128 {
    if needed { new_permit_id() } else { 0 }
}
