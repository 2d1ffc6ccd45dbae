use std::{
    hash::{BuildHasher, RandomState},
    sync::{
        LazyLock,
        atomic::{AtomicU64, Ordering},
    },
};

use smallvec::SmallVec;

use super::{
    Limiter,
    core::Core,
    path::{Item, Items},
};
use crate::{
    Algorithm, CostError, Decision, Denied, Key, KeyBuf, Request, store::memory::identity::Identity,
};

/// Units of a concurrency limit, held until this is dropped.
///
/// A permit also ends by itself when it is older than the limit's period, so that a holder that hangs cannot keep its
/// place for ever; whoever needs longer [renews](Self::renew) it in time.
#[derive(Debug)]
#[must_use = "dropping a permit returns it"]
pub struct Permit {
    limiter: Limiter,
    held: Held,
}

/// A decision, with a permit if it was allowed.
#[derive(Debug)]
#[must_use = "dropping an admission returns its permit"]
pub struct Admission<P = Permit> {
    /// What was decided.
    pub decision: Decision,
    /// What is now held, if allowed.
    pub permit: Option<P>,
}

/// What a permit is a permit of.
#[derive(Debug, Default)]
pub(super) struct Held {
    /// The concurrency limits, by their places in the policy set, each with the key.
    limits: SmallVec<[(usize, KeyBuf); 1]>,
    /// Where somebody may wait for it.
    pub(super) queue: Option<Identity>,
    pub(super) id: u64,
}

impl Limiter {
    /// Takes a permit for `key` under a [concurrency](crate::Algorithm::Concurrency) limit.
    ///
    /// Other limits of the same key are charged as [`Limiter::check`] would, all or nothing.
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
        key.with(|key| {
            self.inner.with_items(key, |items| self.admit(items, 1)).unwrap_or_else(|error| {
                unreachable!("one unit fits every limit: {error}");
            })
        })
    }

    /// [`Limiter::acquire`] for a request and the policies that cover it.
    pub fn acquire_request(&self, request: &Request<'_>) -> Result<Admission, CostError> {
        let plan = self.inner.core.path.policies.plan(request);
        self.admit(super::items(&plan), request.units())
    }

    fn admit(&self, items: Items<'_>, cost: u64) -> Result<Admission, CostError> {
        let id = next_id();
        let decision = self.inner.charge(items.clone(), cost, id)?;
        let permit = decision.is_allowed().then(|| self.permit(&items, id));
        Ok(Admission { decision, permit })
    }

    /// Permit `id`, which has been taken.
    pub(super) fn permit(&self, items: &[Item<'_>], id: u64) -> Permit {
        Permit { limiter: self.clone(), held: self.inner.core.hold(items, id) }
    }
}

impl<P> Admission<P> {
    /// The permit, or the denial as an error.
    pub fn into_result(self) -> Result<P, Denied> {
        let decision = self.decision.into_result();
        match (decision, self.permit) {
            (Ok(_), Some(permit)) => Ok(permit),
            (Err(denied), _) => Err(denied),
            (Ok(_), None) => unreachable!("what is allowed comes with a permit"),
        }
    }
}

impl Permit {
    /// An id for a [charge](crate::Charge::permit) to a concurrency limit, unlike that of any other permit. For those
    /// who keep permits themselves, as a service does for its clients.
    pub fn new_id() -> u64 {
        next_id()
    }

    /// Starts the permit's life anew. `false` if it had already ended: then somebody else may hold its place.
    #[must_use = "a lost permit means that somebody else may run"]
    pub fn renew(&self) -> bool {
        self.limiter.inner.core.renew(&self.held)
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.limiter.inner.core.release(&self.held);
    }
}

impl Held {
    pub(super) fn items(&self) -> impl Iterator<Item = Item<'_>> {
        self.limits.iter().map(|(target, key)| (*target, key.as_ref()))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.limits.is_empty()
    }
}

impl Core {
    /// What permit `id` of a request is a permit of.
    pub(super) fn hold(&self, items: &[Item<'_>], id: u64) -> Held {
        let concurrent =
            |item: &&Item<'_>| self.path.target(**item).limit.algorithm() == Algorithm::Concurrency;
        let limits = items.iter().filter(concurrent);
        let limits = limits.map(|(target, key)| (*target, key.to_buf())).collect();
        Held { limits, queue: self.queue_of(items), id }
    }

    /// Returns a permit that is held in memory.
    pub(super) fn release(&self, held: &Held) {
        held.items().for_each(|item| self.memory.release(&self.slot(item, 0, held.id)));
        self.nudge(held.queue);
    }

    /// Renews a permit that is held in memory. `false` if it is gone.
    pub(super) fn renew(&self, held: &Held) -> bool {
        self.renew_items(held.items(), held.id)
    }

    /// Renews permit `id` of these limits in memory. One in shadow mode may never have held it.
    pub(super) fn renew_items<'a>(&self, items: impl Iterator<Item = Item<'a>>, id: u64) -> bool {
        let lost = |item: &Item<'_>| {
            !self.memory.renew(&self.slot(*item, 0, id)) && self.path.target(*item).enforced
        };
        // All of them, also after one is lost.
        items.filter(lost).count() == 0
    }
}

/// Never 0, which is no permit. Other processes give other ids: each begins somewhere else.
pub(super) fn next_id() -> u64 {
    static FIRST: LazyLock<u64> = LazyLock::new(|| RandomState::new().hash_one(0));
    static NEXT: AtomicU64 = AtomicU64::new(0);
    FIRST.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed)).max(1)
}
