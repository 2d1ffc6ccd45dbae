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
    path::{Item, Items},
};
use crate::{
    Algorithm, CostError, Decision, Denied, Key, KeyBuf, Request,
    store::memory::{Slot, identity::Identity},
};

/// Units of a concurrency limit, held until this is dropped.
///
/// A permit also ends by itself when it is older than the limit's period, so that a holder that hangs cannot keep its
/// place for ever; whoever needs longer [renews](Self::renew) it in time.
#[derive(Debug)]
#[must_use = "dropping a permit returns it"]
pub struct Permit {
    limiter: Limiter,
    /// The concurrency limits it is a permit of, by their places in the policy set, each with the key.
    held: SmallVec<[(usize, KeyBuf); 1]>,
    /// Where somebody may wait for it.
    queue: Option<Identity>,
    id: u64,
}

/// A decision, with a permit if it was allowed.
#[derive(Debug)]
#[must_use = "dropping an admission returns its permit"]
pub struct Admission {
    /// What was decided.
    pub decision: Decision,
    /// What is now held, if allowed.
    pub permit: Option<Permit>,
}

impl Limiter {
    /// Takes a permit for `key` under a [concurrency](crate::Algorithm::Concurrency) limit.
    ///
    /// Other limits of the same key are charged as [`Limiter::check`] would, all or nothing.
    ///
    /// ```
    /// use tollgate::Limiter;
    ///
    /// let limiter = Limiter::builder().limit("1/30s concurrency").build()?;
    /// let first = limiter.acquire("alice");
    /// assert!(first.permit.is_some());
    /// assert!(limiter.acquire("alice").permit.is_none());
    /// drop(first);
    /// assert!(limiter.acquire("alice").permit.is_some());
    /// # Ok::<(), tollgate::BuildError>(())
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
        let permit = decision.is_allowed().then(|| {
            let queue = self.inner.core.queue_of(&items);
            let concurrent = |item: &Item<'_>| {
                self.inner.core.path.target(*item).limit.algorithm() == Algorithm::Concurrency
            };
            let held = items.into_iter().filter(concurrent);
            let held = held.map(|(target, key)| (target, key.to_buf())).collect();
            Permit { limiter: self.clone(), held, queue, id }
        });
        Ok(Admission { decision, permit })
    }
}

impl Admission {
    /// The permit, or the denial as an error.
    pub fn into_result(self) -> Result<Permit, Denied> {
        let decision = self.decision.into_result();
        match (decision, self.permit) {
            (Ok(_), Some(permit)) => Ok(permit),
            (Err(denied), _) => Err(denied),
            (Ok(_), None) => unreachable!("what is allowed comes with a permit"),
        }
    }
}

impl Permit {
    /// Starts the permit's life anew. `false` if it had already ended: then somebody else may hold its place.
    #[must_use = "a lost permit means that somebody else may run"]
    pub fn renew(&self) -> bool {
        // All of them, also after one is lost.
        self.slots().filter(|slot| !self.limiter.inner.core.memory.renew(slot)).count() == 0
    }

    fn slots(&self) -> impl Iterator<Item = Slot<'_>> {
        let core = &self.limiter.inner.core;
        self.held.iter().map(|(target, key)| core.slot((*target, key.as_ref()), 0, self.id))
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        for slot in self.slots() {
            self.limiter.inner.core.memory.release(&slot);
        }
        if let Some(queue) = self.queue {
            self.limiter.inner.core.turnstile.nudge(queue);
        }
    }
}

/// Never 0, which is no permit. Other processes give other ids: each begins somewhere else.
pub(super) fn next_id() -> u64 {
    static FIRST: LazyLock<u64> = LazyLock::new(|| RandomState::new().hash_one(0));
    static NEXT: AtomicU64 = AtomicU64::new(0);
    FIRST.wrapping_add(NEXT.fetch_add(1, Ordering::Relaxed)).max(1)
}
