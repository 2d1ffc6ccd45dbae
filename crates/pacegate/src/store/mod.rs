//! Where state lives: the [`Store`] trait, and the store in this process's memory.

mod counter;
pub(crate) mod memory;

use std::{
    fmt,
    future::{Future, ready},
    pin::Pin,
    task::{Context, Waker},
};

use crate::{
    KeyBuf, KeyRef, Limit,
    algorithm::Outcome,
    policy::{FailureMode, PolicyName},
};

pub use counter::Counter;
pub use memory::{MemoryStore, MemoryUsage, ShareUsage};

/// Keeps the state of keys and changes it one charge at a time.
///
/// Implement this to share budgets through a place of your own; the conformance suite in `pacegate-testkit` tells
/// whether it answers as the others do. What it must promise:
///
/// - **Atomic.** The charges of one call are decided and written in one step that nothing else comes between.
/// - **All or nothing.** If any [enforced](Charge::enforced) charge does not fit, none is taken. One that is not
///   enforced is taken if it fits and the enforced ones do; it never stands in their way.
/// - **One clock.** Time comes from the store, not from the caller.
/// - **Denials are free.** A denied charge and a cost of 0 change nothing.
///
/// The charges were checked: no cost is above its limit's capacity, except where the amount is 0, which denies.
pub trait Store: fmt::Debug + Send + Sync + 'static {
    /// Decides the charges of one request. The outcomes are in the order of the charges.
    ///
    /// When the request as a whole is denied, a charge that would have fit says so and reports what remains untouched.
    fn charge<'a>(&'a self, charges: &'a [Charge<'a>]) -> Answer<'a, Vec<Outcome>>;

    /// [`Store::charge`] of this one charge, for a store that need not wait: it spares the caller a future.
    ///
    /// `Some` is the answer, and what it admits has been taken. `None` has changed nothing, and [`Store::charge`] is
    /// called next. It is asked before every charge that has no id and comes alone, so it must be quick and must not
    /// block. A store that stands before another and does something of its own in `charge` does so here, too, or leaves
    /// the default, which is always `None`.
    fn charge_now(&self, charge: &Charge<'_>) -> Option<Outcome> {
        let _ = charge;
        None
    }

    /// As [`Store::charge`], but the same charges with the same `id` within a short time give the same answer and count
    /// once: for a caller that does not know whether its charges were taken. The store says how long that is, and
    /// bounds how often an answer is repeated: after that, the charges count as new ones. Other charges are not
    /// mistaken for them. An id has up to [`Request::MAX_ID`](crate::Request::MAX_ID) bytes.
    ///
    /// By default [unsupported](StoreError::Unsupported).
    fn charge_once<'a>(
        &'a self,
        id: &'a [u8],
        charges: &'a [Charge<'a>],
    ) -> Answer<'a, Vec<Outcome>> {
        let _ = (id, charges);
        Box::pin(ready(Err(StoreError::Unsupported("it takes no request ids".to_owned()))))
    }

    /// Returns an error if the store can never count these limits of one policy. `leased` is whether
    /// the policy has a lease. Called when a limiter is built, so that a mistake shows there and not at the first
    /// check.
    ///
    /// Default: every limit can be counted.
    fn supports(&self, limits: &[Limit], leased: bool) -> Result<(), StoreError> {
        let _ = (limits, leased);
        Ok(())
    }

    /// Gives back up to `charge.cost` units, and no more than are used.
    fn refund<'a>(&'a self, charge: &'a Charge<'a>) -> Answer<'a, ()>;

    /// Forgets what was charged to a key.
    fn reset<'a>(&'a self, charge: &'a Charge<'a>) -> Answer<'a, ()>;

    /// Returns the permit `charge.permit` of a concurrency limit. Returning one that is gone changes nothing.
    ///
    /// A store that can be unreachable retries a release that failed until it succeeds or the permit has expired: the
    /// error is for the caller's information. This is also how a limiter returns a permit whose charge was not
    /// answered.
    fn release<'a>(&'a self, charge: &'a Charge<'a>) -> Answer<'a, ()>;

    /// Starts the life of the permit `charge.permit` anew. `false` if it is gone.
    fn renew<'a>(&'a self, charge: &'a Charge<'a>) -> Answer<'a, bool>;

    /// Removes all keys of these policies, and returns their number.
    ///
    /// By default [unsupported](StoreError::Unsupported): a store need not be able to find the keys of a policy.
    fn clear<'a>(&'a self, policies: &'a [PolicyName]) -> Answer<'a, u64> {
        let _ = policies;
        let reason = "it cannot find the keys of a policy: reset keys one by one".to_owned();
        Box::pin(ready(Err(StoreError::Unsupported(reason))))
    }

    /// Sees to `work` while nobody waits for it: what a dropped permit still has to tell the store. It is called from
    /// `drop`, on any thread, inside a runtime or not, so it must not block.
    ///
    /// The default polls `work` once, which is enough for a store whose answers are always ready. A store that has to
    /// wait for them hands it to its runtime instead; otherwise the permit only ends with its period.
    fn detach(&self, mut work: Detached) {
        let _ = work.as_mut().poll(&mut Context::from_waker(Waker::noop()));
    }
}

/// What [`Store::detach`] sees to. It calls the store, and keeps it alive.
pub type Detached = Pin<Box<dyn Future<Output = ()> + Send>>;

/// What a store returns: a future, since most stores are elsewhere.
pub type Answer<'a, T> = Pin<Box<dyn Future<Output = Result<T, StoreError>> + Send + 'a>>;

/// What a store is asked for one key.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Charge<'a> {
    /// Which policy's budget. State is kept apart by policy, counter, algorithm, period and key.
    pub policy: PolicyName,
    /// Which of the policy's counters. Stores name it by [`Counter::to_words`].
    pub counter: Counter,
    /// Whose budget.
    pub key: KeyRef<'a>,
    /// What the state is placed by: charges with equal tags can be decided in one step also by a store that is spread
    /// over servers. Always the same for one policy and key. Stores in one place need not look at it.
    pub tag: KeyRef<'a>,
    /// How much, and how it is counted.
    pub limit: Limit,
    /// Units wanted; 0 asks whether one would be admitted.
    pub cost: u64,
    /// Whether the request depends on this charge. One that is not enforced is counted, but never denies.
    pub enforced: bool,
    /// The id under which a concurrency limit holds the units; 0 for all others.
    pub permit: u128,
    /// Units that the store may draw ahead and spend without asking; 0 for none. A store may always draw fewer.
    pub lease: u64,
    /// What happens to this charge when the store cannot answer, in place of what the limiter's policies say.
    pub failure: Option<FailureMode>,
}

impl<'a> Charge<'a> {
    /// One unit of `key`'s budget under `policy`, placed by the key, without a lease. The key is text, bytes, or by
    /// [`Key::with`](crate::Key::with) anything that a limiter takes.
    ///
    /// Each amount and burst has [a separate counter](Counter::Limit). To charge the limits of a policy, use the
    /// charges of a [`Plan`](crate::Plan).
    pub fn new(policy: PolicyName, key: impl Into<KeyRef<'a>>, limit: Limit) -> Self {
        let key = key.into();
        Self {
            policy,
            counter: Counter::Limit,
            key,
            tag: key,
            limit,
            cost: 1,
            enforced: true,
            permit: 0,
            lease: 0,
            failure: None,
        }
    }

    /// The same charge on another counter.
    #[must_use]
    pub fn counter(self, counter: Counter) -> Self {
        Self { counter, ..self }
    }

    /// The same charge for another cost.
    #[must_use]
    pub fn cost(self, cost: u64) -> Self {
        Self { cost, ..self }
    }

    /// The same charge, held under this [permit](crate::Permit::new_id) if its limit is one of concurrency.
    #[must_use]
    pub fn holding(self, permit: u128) -> Self {
        let holds = self.limit.algorithm() == crate::Algorithm::Concurrency;
        Self { permit: if holds { permit } else { 0 }, ..self }
    }

    /// The same charge, with a failure mode of its own.
    #[must_use]
    pub fn failing(self, failure: FailureMode) -> Self {
        Self { failure: Some(failure), ..self }
    }

    /// The same charge, on which nothing depends unless `enforced`.
    #[must_use]
    pub fn enforced(self, enforced: bool) -> Self {
        Self { enforced, ..self }
    }
}

/// A [`Charge`] that owns its key: for a permit that outlives the request that took it.
#[derive(Clone, Debug)]
pub struct ChargeBuf {
    /// With an empty key and tag.
    charge: Charge<'static>,
    key: KeyBuf,
    tag: KeyBuf,
}

impl ChargeBuf {
    /// The charge.
    pub fn as_charge(&self) -> Charge<'_> {
        Charge { key: self.key.as_ref(), tag: self.tag.as_ref(), ..self.charge }
    }
}

impl From<&Charge<'_>> for ChargeBuf {
    fn from(charge: &Charge<'_>) -> Self {
        let Charge { policy, counter, key, tag, limit, .. } = *charge;
        let Charge { cost, enforced, permit, lease, failure, .. } = *charge;
        let empty = Charge::new(policy, KeyRef::new(b""), limit);
        let charge = Charge { counter, cost, enforced, permit, lease, failure, ..empty };
        Self { charge, key: key.to_buf(), tag: tag.to_buf() }
    }
}

/// Why a store could not answer. A denial is never one of these.
///
/// All but `Unsupported` are the store's failure: a charge is then decided by the failure mode of each policy.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// No answer in time. Whether the charge was taken is unknown.
    #[error("the store did not answer in time")]
    TimedOut,
    /// The store cannot be reached, or refused the charge. Nothing was taken.
    #[error("the store is unavailable: {0}")]
    Unavailable(String),
    /// The connection was lost before the answer came. Whether the charge was taken is unknown.
    #[error("the store did not answer: {0}")]
    Interrupted(String),
    /// The store cannot do what was asked, now or later: the caller's mistake.
    #[error("the store cannot do this: {0}")]
    Unsupported(String),
    /// Something that should not happen, such as a foreign value under one of our keys.
    #[error("the store failed: {0}")]
    Failed(String),
}

impl StoreError {
    /// Whether the charge may have been taken although it failed.
    pub(crate) fn is_uncertain(&self) -> bool {
        match self {
            Self::TimedOut | Self::Interrupted(_) | Self::Failed(_) => true,
            Self::Unavailable(_) | Self::Unsupported(_) => false,
        }
    }
}
