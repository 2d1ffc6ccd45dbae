use std::sync::atomic::{AtomicU64, Ordering};

use super::Limiter;
use crate::{Decision, Denied, Key, KeyBuf};

/// Units of a concurrency limit, held until this is dropped.
///
/// A permit also ends by itself when it is older than the limit's period, so that a holder that hangs cannot keep its place
/// for ever; whoever needs longer [renews](Self::renew) it in time.
#[derive(Debug)]
#[must_use = "dropping a permit returns it"]
pub struct Permit {
    limiter: Limiter,
    key: KeyBuf,
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
        let id = next_id();
        key.with(|key| {
            let decision = self.inner.with_items(key, |items| {
                self.inner.charge(items, 1, id).unwrap_or_else(|error| {
                    unreachable!("one unit fits every limit: {error}");
                })
            });
            let permit = decision.is_allowed().then(|| Permit {
                limiter: self.clone(),
                key: key.to_buf(),
                id,
            });
            Admission { decision, permit }
        })
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
        let mut held = true;
        self.each_permit(|slot| held &= self.limiter.inner.store.renew(slot));
        held
    }

    /// Calls `then` for each concurrency limit that this is a permit of.
    fn each_permit(&self, mut then: impl FnMut(&crate::store::memory::Slot<'_>)) {
        let inner = &self.limiter.inner;
        inner.with_items(self.key.as_ref(), |items| {
            for item in items {
                let slot = inner.slot(item, 0, self.id);
                if slot.limit.algorithm() == crate::Algorithm::Concurrency {
                    then(&slot);
                }
            }
        });
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.each_permit(|slot| {
            self.limiter.inner.store.release(slot);
        });
    }
}

/// Never 0, which is no permit.
pub(super) fn next_id() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}
