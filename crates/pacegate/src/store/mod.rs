//! The [`Store`] trait, and the store in the memory of this process.

mod counter;
pub(crate) mod memory;
mod reply;

use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Waker},
    time::Duration,
};

use crate::{
    Algorithm, Excess, Key, KeyBuf, KeyRef, Limit, Timestamp,
    algorithm::Outcome,
    policy::{FailureMode, PolicyName, Unsettled},
};

pub use counter::Counter;
pub use memory::{MemoryStore, MemoryUsage, ShareUsage};
pub use reply::{Outcomes, PendingReply, Reply};

/// Holds counters, and charges them.
///
/// Implement this to share limits through another database. `pacegate-testkit` has a conformance suite that
/// compares a store with the reference model. A store must be:
///
/// - **Atomic.** The charges of one call are decided and written in one step.
/// - **All or nothing.** If any [enforced](Charge::enforced) charge does not fit, none is taken. A charge that is not
///   enforced is taken if it fits and all enforced charges fit; it never denies. A charge whose [`Excess`] is recorded
///   is always taken, even if it or another charge denies the request.
/// - **On one clock.** Time comes from the store, not from the caller.
/// - **Unchanged by denials.** A denied charge changes nothing, unless its excess is recorded. A cost of 0 changes
///   nothing.
///
/// Limiters check costs before: no cost is above the capacity of its limit, unless the amount is 0, which denies, or
/// the excess is recorded.
///
/// Calls start at once and return a [`Reply`]. A reply may borrow the store, but not the charges: encode the command,
/// send it, and return a future for the answer. A reply that is dropped before it is polled may have charged.
///
/// Every call needs a deadline of the store's own: limiters wait for as long as the reply takes. Return
/// [`StoreError::TimedOut`] then, and the failure mode of each policy decides.
///
/// A store that only adds to another one delegates. This one counts the calls that reach the store:
///
/// ```
/// use std::sync::atomic::{AtomicU64, Ordering};
/// use pacegate::{Charge, MemoryStore, Outcomes, Reply, SharedLimiter, Store, Update};
///
/// #[derive(Debug, Default)]
/// struct Counted {
///     store: MemoryStore,
///     calls: AtomicU64,
/// }
///
/// impl Store for Counted {
///     fn charge(&self, charges: &[Charge<'_>], id: Option<&[u8]>) -> Reply<'_, Outcomes> {
///         self.calls.fetch_add(1, Ordering::Relaxed);
///         self.store.charge(charges, id)
///     }
///
///     fn update(&self, charge: &Charge<'_>, update: Update) -> Reply<'_, bool> {
///         self.store.update(charge, update)
///     }
/// }
///
/// # pollster::block_on(async {
/// let store = std::sync::Arc::new(Counted::default());
/// let limiter = SharedLimiter::builder(store.clone()).limit("10/minute").build()?;
/// limiter.check("alice").await?;
/// assert_eq!(store.calls.load(Ordering::Relaxed), 1);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
///
/// The guide `docs/guide/store.md` of the repository builds a store that keeps its counters in a file.
pub trait Store: fmt::Debug + Send + Sync + 'static {
    /// Charges one request, and returns one outcome for each charge, in their order.
    ///
    /// If the request is denied, a charge that would have fit is reported as admitted, with the units that remain
    /// without it. Answer [`Reply::Ready`] if there is nothing to wait for: it spares a heap allocation.
    ///
    /// With an `id`, the same charges with the same id within a short time get the same answer and count once, for a
    /// caller that does not know if its charges were taken. The store limits for how long and how often an answer is
    /// repeated; after that the charges count again. Other charges with the id count separately. An id has up to
    /// [`Request::MAX_ID`](crate::Request::MAX_ID) bytes. A store without ids returns
    /// [`StoreError::no_ids`].
    fn charge(&self, charges: &[Charge<'_>], id: Option<&[u8]>) -> Reply<'_, Outcomes>;

    /// Charges one request with as many units as all of its enforced limits have, at most `most`, to all limits.
    /// Returns the number of units, and the outcomes of a charge of that many units. If there are none, the outcomes
    /// are those of a charge of one unit, which was denied.
    ///
    /// Each charge has a cost of 1 and a separate counter, no excess is recorded, and at least one charge is enforced.
    /// `most` is at least 1, and at most the capacity of each enforced limit that has one. The id is that of
    /// [`Store::charge`].
    ///
    /// Default: [unsupported](StoreError::Unsupported).
    fn charge_up_to(
        &self,
        charges: &[Charge<'_>],
        most: u64,
        id: Option<&[u8]>,
    ) -> Reply<'_, (u64, Outcomes)> {
        let _ = (charges, most, id);
        let reason = "it grants no part of the units: check a cost instead".to_owned();
        Reply::Ready(Err(StoreError::Unsupported(reason)))
    }

    /// Changes one counter without a decision. The answer is `false` if a permit to renew has expired, otherwise
    /// `true`.
    ///
    /// A release must be idempotent: limiters may repeat it, and may release permits that were never taken.
    fn update(&self, charge: &Charge<'_>, update: Update) -> Reply<'_, bool>;

    /// Returns an error if the store can never count these limits of one policy. `leased`: the policy has a lease.
    ///
    /// Called when a limiter is built, so that a mistake shows there and not at the first check. Default: every limit
    /// can be counted.
    fn supports(&self, limits: &[Limit], leased: bool) -> Result<(), StoreError> {
        let _ = (limits, leased);
        Ok(())
    }

    /// Removes all keys of these policies, and returns their number.
    ///
    /// Default: [unsupported](StoreError::Unsupported), because a store may be unable to find the keys of a policy.
    fn clear(&self, policies: &[PolicyName]) -> Reply<'_, u64> {
        let _ = policies;
        let reason = "it cannot find the keys of a policy: reset keys one by one".to_owned();
        Reply::Ready(Err(StoreError::Unsupported(reason)))
    }

    /// Charges one request as [`Store::charge`] does. If it is admitted, opens the reservation `id` for `ttl`: a record
    /// of the units of each charge and of when they were charged, in the same atomic step.
    ///
    /// The id is random and new. No charge has a recorded [`Excess`], a lease applies to none, and no two charges have
    /// the same counter. An error means that nothing was charged, unless its [variant](StoreError) allows it.
    ///
    /// If the reservation was not settled within `ttl`, it ends. The units of those charges whose [`Charge::unsettled`]
    /// is [`Unsettled::Return`] are then returned, as [`Store::settle`] does with 0 units, in the same atomic step as
    /// the next call for their counter, before it and under its limit. All calls for the counter have the same
    /// [`Charge::unsettled`], except while a configuration changes: a call that keeps units returns none.
    ///
    /// Default: [unsupported](StoreError::Unsupported).
    fn reserve(&self, charges: &[Charge<'_>], id: u128, ttl: Duration) -> Reply<'_, Outcomes> {
        let _ = (charges, id, ttl);
        Reply::Ready(Err(StoreError::no_reservations()))
    }

    /// Ends the reservation `id`, whose units turned out to be `actual` for each charge. The answer is `None` if the
    /// reservation is not open, because it was settled before or has expired; then nothing changes. Otherwise it has
    /// one element for each charge; `None` for a charge that is not part of the reservation.
    ///
    /// In the same atomic step, each charge is changed independently of the others. If fewer units were used than
    /// reserved, the difference is returned to where it was charged: to the window of the charge as long as it counts,
    /// to the entry of a log, and to a bucket the tokens of the charge that are certainly missing. These are the larger
    /// of two numbers: the tokens of the charge, less those that were refilled or refunded since; and all tokens that
    /// were missing just after the charge, less those that were refilled, refunded or returned by other settlements
    /// since. A reset refunds all. If more were used, the difference is charged as [`Charge::spent`] does.
    ///
    /// The charges have the keys of the reservation, and the limits that apply now. They come from a client: a store
    /// must not change counters that are not part of the reservation. The cost is ignored.
    fn settle(
        &self,
        charges: &[Charge<'_>],
        id: u128,
        actual: u64,
    ) -> Reply<'_, Option<SettledCharges>> {
        let _ = (charges, id, actual);
        Reply::Ready(Err(StoreError::no_reservations()))
    }

    /// Claims an event of the counter of a charge, so that of all processes only one reports it, and only once.
    ///
    /// The answer is `true` if the event is unclaimed at the instant of the claim, or claimed by the same owner: a
    /// repeated claim gets the same answer. The claim ends after its lifetime.
    ///
    /// Default: `true`, so that every process reports the event.
    fn claim(&self, charge: &Charge<'_>, claim: Claim) -> Reply<'_, bool> {
        let _ = (charge, claim);
        Reply::Ready(Ok(true))
    }

    /// Runs a task that no caller waits for, such as the release of a dropped permit. Must not block: it is called from
    /// `drop`, on any thread, with or without an async runtime.
    ///
    /// Default: polls the task once, which suffices if all replies are ready. A store that waits for answers passes the
    /// task to its runtime; otherwise permits end only with their period.
    fn spawn(&self, mut task: Task) {
        let _ = task.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    }
}

/// A task for [`Store::spawn`]. It calls the store, and keeps it alive.
pub type Task = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A change of a counter for [`Store::update`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Update {
    /// Returns up to `cost` units, and no more than are used.
    Refund,
    /// Removes the counter of the key.
    Reset,
    /// Returns the permit `charge.permit` of a concurrency limit. If it has expired, nothing changes.
    ///
    /// A store that can be unreachable retries a failed release until it succeeds or the permit has expired; it reports
    /// the error nevertheless. Limiters also release permits whose charge was not answered.
    Release,
    /// Restarts the period of the permit `charge.permit`. If it has expired, nothing changes, and the answer is
    /// `false`.
    Renew,
}

/// The answer of [`Store::settle`] for an open reservation.
pub type SettledCharges = Vec<Option<SettledCharge>>;

/// One charge of a reservation that was settled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SettledCharge {
    /// The units that were reserved.
    pub reserved: u64,
    /// The outcome of the charge of the units beyond the reserved ones, with its instant; `None` if there were none.
    /// Its waiting times are not used, so a store need not compute them.
    pub beyond: Option<Outcome>,
}

impl SettledCharge {
    /// Creates the answer for one charge.
    pub fn new(reserved: u64, beyond: Option<Outcome>) -> Self {
        Self { reserved, beyond }
    }
}

/// The claim of one process to report an event, for [`Store::claim`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub struct Claim {
    /// Identifies the event among those of one counter.
    pub event: [u64; 2],
    /// A random number that identifies the claim, also if it is repeated because its answer was lost.
    pub owner: u128,
    /// The instant of the event, by the clock of the store.
    pub at: Timestamp,
    /// The time from the event until it may be claimed again.
    pub lifetime: Duration,
}

impl Claim {
    /// Creates a claim.
    pub fn new(event: [u64; 2], owner: u128, at: Timestamp, lifetime: Duration) -> Self {
        Self { event, owner, at, lifetime }
    }
}

/// A limit to apply to a key, as a store gets it.
///
/// Limiters create charges from policies. Create them with [`Charge::new`] for inline limits, and pass them to the
/// calls of [`Charges`](crate::Charges).
///
/// ```
/// use pacegate::{Charge, Limit, Limiter, policy::FailureMode};
///
/// let limiter = Limiter::memory(Limit::per_second(1));
/// let charge = Charge::new("uploads".parse()?, "alice", Limit::per_hour(100))
///     .cost(30)
///     .failing(FailureMode::Open);
/// assert_eq!(limiter.charges().check(&[charge])?.remaining(), 70);
/// assert!(limiter.charges().check(&[charge.cost(0)])?.is_allowed(), "a peek");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Charge<'a> {
    /// The policy. Counters are separate for each policy, counter, algorithm, period and key.
    pub policy: PolicyName,
    /// One of the policy's counters. Stores name it by [`Counter::to_words`].
    pub counter: Counter,
    /// The key.
    pub key: KeyRef<'a>,
    /// Decides where a distributed store puts the counter: charges with equal tags can be decided in one step. Always
    /// the same for one policy and key. A store in one place ignores it.
    pub tag: KeyRef<'a>,
    /// The limit.
    pub limit: Limit,
    /// Units to take. 0 is a peek: the outcome is that of one unit, and nothing is taken.
    pub cost: u64,
    /// The maximum cost of the policy. A higher cost is an error, or in shadow mode a denial.
    pub max_cost: u64,
    /// `false` in shadow mode: the charge is counted, but never denies.
    pub enforced: bool,
    /// The id under which a concurrency limit holds the units; 0 for other limits.
    pub permit: u128,
    /// Units that the store may take in advance and then admit without a call; 0 for none. A store may take fewer.
    pub lease: u64,
    /// The failure mode for this charge. `None`: that of the policy. Used by limiters, not by stores.
    pub failure: Option<FailureMode>,
    /// The treatment of a cost that does not fit.
    pub excess: Excess,
    /// The maximum debt of [`Charge::spent`], in units beyond the capacity.
    pub max_debt: u64,
    /// The treatment of a reservation of this charge that is not settled within its time to live.
    pub unsettled: Unsettled,
}

impl<'a> Charge<'a> {
    /// Creates a charge of one unit to a key, tagged by the key, without a lease.
    ///
    /// Each amount and burst has [a separate counter](Counter::Limit). To charge the limits of a policy, use the
    /// charges of a [`Plan`](crate::Plan).
    ///
    /// The key is text, bytes or a [`KeyRef`], which the charge borrows. For a tuple, a number or another
    /// [`Key`](crate::Key), use [`ChargeBuf::new`].
    pub fn new(policy: PolicyName, key: impl Into<KeyRef<'a>>, limit: Limit) -> Self {
        let key = key.into();
        Self {
            policy,
            counter: Counter::Limit,
            key,
            tag: key,
            limit,
            cost: 1,
            max_cost: u64::MAX,
            enforced: true,
            permit: 0,
            lease: 0,
            failure: None,
            excess: Excess::Reject,
            max_debt: limit.capacity(),
            unsettled: Unsettled::Keep,
        }
    }

    /// Sets the counter. Default: [`Counter::Limit`], a separate counter for each amount and burst.
    #[must_use]
    pub fn counter(self, counter: Counter) -> Self {
        Self { counter, ..self }
    }

    /// Sets the cost in units. Default: 1. A cost of 0 is a peek.
    #[must_use]
    pub fn cost(self, cost: u64) -> Self {
        Self { cost, ..self }
    }

    /// Sets the id of the permit. Ignored unless the limit is a concurrency limit.
    ///
    /// Pass the same charge with this id to release or renew the permit. Use a random id, such as one of
    /// [`Charges::new_permit_id`](crate::Charges::new_permit_id): a client that can guess it can release the permit.
    #[must_use]
    pub fn holding(self, permit: u128) -> Self {
        let holds = self.limit.algorithm() == Algorithm::Concurrency;
        Self { permit: if holds { permit } else { 0 }, ..self }
    }

    /// Sets the failure mode. Default: that of the policy.
    #[must_use]
    pub fn failing(self, failure: FailureMode) -> Self {
        Self { failure: Some(failure), ..self }
    }

    /// Enforces the charge (`true`, the default), or puts it in shadow mode (`false`): it counts, but never denies.
    #[must_use]
    pub fn enforced(self, enforced: bool) -> Self {
        Self { enforced, ..self }
    }

    /// Sets the treatment of a cost that does not fit. Default: [`Excess::Reject`].
    #[must_use]
    pub fn excess(self, excess: Excess) -> Self {
        Self { excess, ..self }
    }

    /// Marks the units as already spent: they are recorded in full, and units beyond the limit become debt, up to
    /// [`max_debt`](Self::max_debt).
    ///
    /// ```
    /// use pacegate::{Charge, Limit, Limiter};
    ///
    /// let limiter = Limiter::memory(Limit::per_second(1));
    /// let tokens = Charge::new("tokens".parse()?, "alice", Limit::per_hour(1_000));
    /// assert!(!limiter.charges().check(&[tokens.cost(1_200).spent()])?.is_allowed(), "200 too many");
    /// assert!(!limiter.charges().check(&[tokens])?.is_allowed(), "and they are recorded");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn spent(self) -> Self {
        Self { excess: Excess::Debt { max: self.max_debt }, ..self }
    }

    /// Sets the treatment of a reservation that is not settled within its time to live. Default: [`Unsettled::Keep`].
    #[must_use]
    pub fn unsettled(self, unsettled: Unsettled) -> Self {
        Self { unsettled, ..self }
    }

    /// Returns `true` if two charges differ in nothing but key, cost and permit.
    #[inline]
    pub(crate) fn has_same_limit(&self, other: &Charge<'_>) -> bool {
        (self.policy, self.counter, self.limit, self.max_cost)
            == (other.policy, other.counter, other.limit, other.max_cost)
            && (self.enforced, self.lease, self.failure, self.excess)
                == (other.enforced, other.lease, other.failure, other.excess)
    }
}

/// A [`Charge`] that owns its key, for a permit that outlives the request that took it.
///
/// ```
/// use pacegate::{Charge, ChargeBuf, Limiter};
///
/// let limiter = Limiter::memory("1/second".parse()?);
/// let permits = "1/30s concurrency".parse()?;
/// let id = limiter.charges().new_permit_id();
/// let held = {
///     let user = String::from("alice");
///     let charge = Charge::new("jobs".parse()?, user.as_str(), permits).holding(id);
///     assert!(limiter.charges().check(&[charge])?.is_allowed());
///     ChargeBuf::from(&charge)
/// };
/// limiter.charges().release(&[held.as_charge()]); // later, when the key is gone
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
pub struct ChargeBuf {
    /// With an empty key and tag.
    charge: Charge<'static>,
    key: KeyBuf,
    tag: KeyBuf,
}

impl ChargeBuf {
    /// Creates a charge of one unit to any [`Key`], such as a tuple or a number. See [`Charge::new`].
    ///
    /// ```
    /// use pacegate::{ChargeBuf, Limit, Limiter};
    ///
    /// let limiter = Limiter::memory(Limit::per_minute(1));
    /// let charge = ChargeBuf::new("api".parse()?, ("eu", 42), Limit::per_minute(5));
    /// let decision = limiter.charges().check(&[charge.as_charge().cost(2)])?;
    /// assert_eq!(decision.remaining(), 3);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn new(policy: PolicyName, key: impl Key, limit: Limit) -> Self {
        key.with(|key| Self::from(&Charge::new(policy, key, limit)))
    }

    /// Returns the charge, which borrows the key and the tag.
    pub fn as_charge(&self) -> Charge<'_> {
        Charge { key: self.key.as_ref(), tag: self.tag.as_ref(), ..self.charge }
    }
}

impl From<&Charge<'_>> for ChargeBuf {
    fn from(charge: &Charge<'_>) -> Self {
        let empty = KeyRef::new(b"");
        let Charge { policy, counter, key, tag, limit, cost, max_cost, .. } = *charge;
        let Charge { enforced, permit, lease, failure, excess, max_debt, unsettled, .. } = *charge;
        let charge = Charge {
            policy,
            counter,
            key: empty,
            tag: empty,
            limit,
            cost,
            max_cost,
            enforced,
            permit,
            lease,
            failure,
            excess,
            max_debt,
            unsettled,
        };
        Self { charge, key: key.to_buf(), tag: tag.to_buf() }
    }
}

/// The reason why a store did not answer. A denial is never an error.
///
/// Except for `Unsupported`, the store has failed, and the failure mode of each policy decides.
///
/// A store chooses the variant by the question whether the charge may have been taken. That decides if a limiter
/// releases permits after the failure, and if a caller may retry without counting twice.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The store did not answer before the deadline. The charge may have been taken.
    #[error("the store did not answer in time")]
    TimedOut,
    /// The store cannot be reached, or rejected the charge. Nothing was taken.
    #[error("the store is unavailable: {0}")]
    Unavailable(String),
    /// The connection was lost before the answer arrived. The charge may have been taken.
    #[error("the store did not answer: {0}")]
    Interrupted(String),
    /// The store never supports this call: a mistake of the caller. Returned as an error by the limiter; failure modes
    /// do not apply.
    #[error("the store cannot do this: {0}")]
    Unsupported(String),
    /// An unexpected failure, such as a foreign value under one of our keys. The charge may have been taken.
    #[error("the store failed: {0}")]
    Failed(String),
}

impl StoreError {
    /// Creates the error of a store that does not support [request ids](crate::Request::id).
    pub fn no_ids() -> Self {
        let text = "it has no request ids: leave the id out, or use the Redis store";
        Self::Unsupported(text.to_owned())
    }

    /// Creates the error of a store that does not support [reservations](Store::reserve).
    pub fn no_reservations() -> Self {
        Self::Unsupported(
            "it has no reservations: charge the units afterwards, as spent".to_owned(),
        )
    }

    /// Returns `true` if the call is a mistake of the caller, not a failure of the store.
    pub(crate) fn is_unsupported(&self) -> bool {
        matches!(self, Self::Unsupported(_))
    }

    /// Returns `true` if the charge may have been taken although it failed.
    pub(crate) fn is_uncertain(&self) -> bool {
        match self {
            Self::TimedOut | Self::Interrupted(_) | Self::Failed(_) => true,
            Self::Unavailable(_) | Self::Unsupported(_) => false,
        }
    }
}

/// A shared store, also `Arc<dyn Store>`.
impl<S: Store + ?Sized> Store for Arc<S> {
    fn charge(&self, charges: &[Charge<'_>], id: Option<&[u8]>) -> Reply<'_, Outcomes> {
        (**self).charge(charges, id)
    }

    fn charge_up_to(
        &self,
        charges: &[Charge<'_>],
        most: u64,
        id: Option<&[u8]>,
    ) -> Reply<'_, (u64, Outcomes)> {
        (**self).charge_up_to(charges, most, id)
    }

    fn update(&self, charge: &Charge<'_>, update: Update) -> Reply<'_, bool> {
        (**self).update(charge, update)
    }

    fn supports(&self, limits: &[Limit], leased: bool) -> Result<(), StoreError> {
        (**self).supports(limits, leased)
    }

    fn clear(&self, policies: &[PolicyName]) -> Reply<'_, u64> {
        (**self).clear(policies)
    }

    fn reserve(&self, charges: &[Charge<'_>], id: u128, ttl: Duration) -> Reply<'_, Outcomes> {
        (**self).reserve(charges, id, ttl)
    }

    fn settle(
        &self,
        charges: &[Charge<'_>],
        id: u128,
        actual: u64,
    ) -> Reply<'_, Option<SettledCharges>> {
        (**self).settle(charges, id, actual)
    }

    fn claim(&self, charge: &Charge<'_>, claim: Claim) -> Reply<'_, bool> {
        (**self).claim(charge, claim)
    }

    fn spawn(&self, task: Task) {
        (**self).spawn(task);
    }
}
