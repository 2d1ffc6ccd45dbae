use std::sync::Arc;

use super::{
    Admission, SharedLimiter,
    path::{Answered, Fit, Items},
    permit::{Held, next_id},
    shared::{CheckError, Inner},
};
use crate::{Key, Request, StoreError};

/// Units of a concurrency limit, held in a store until this is [released](Self::release) or dropped.
///
/// It also ends by itself when it is older than the limit's period, so that a process that is gone cannot keep its
/// place for ever; whoever needs longer [renews](Self::renew) it in time. A permit that was taken while the store was
/// away is held in this process only.
#[derive(Debug)]
#[must_use = "dropping a permit returns it"]
pub struct SharedPermit {
    inner: Arc<Inner>,
    held: Held,
    /// Held in the memory of this process. The store may hold it as well, if only its answer was lost.
    degraded: bool,
    /// There is nothing to give back.
    returned: bool,
}

impl SharedLimiter {
    /// Takes a permit for `key` under a [concurrency](crate::Algorithm::Concurrency) limit.
    ///
    /// Other limits of the same key are charged as [`SharedLimiter::check`] would, all or nothing. If this is cancelled
    /// while the store is asked, or denied because the store did not answer, a permit that the store may have taken is
    /// returned.
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
        let plan = key.with(|key| self.inner.core.path.plan_key(key));
        self.admit(super::items(&plan), 1).await
    }

    /// [`SharedLimiter::acquire`] for a request and the policies that cover it. Its [id](Request::id) is ignored: a
    /// permit belongs to the one who got it.
    pub async fn acquire_request(
        &self,
        request: &Request<'_>,
    ) -> Result<Admission<SharedPermit>, CheckError> {
        let plan = self.inner.core.path.policies.plan(request);
        self.admit(super::items(&plan), request.units()).await
    }

    async fn admit(
        &self,
        items: Items<'_>,
        cost: u64,
    ) -> Result<Admission<SharedPermit>, CheckError> {
        let core = &self.inner.core;
        let held = core.hold(&items, next_id());
        let fit = core.path.fit(items, cost)?;
        let (answered, permit) = self.attempt(&fit, held).await?;
        core.path.count(&fit, &answered);
        Ok(Admission { decision: answered.decision, permit })
    }

    /// A permit that the store holds.
    pub(super) fn permit(&self, held: Held) -> SharedPermit {
        SharedPermit { inner: self.inner.clone(), held, degraded: false, returned: false }
    }

    /// Charges a request, and holds what it says if there is room. Counts nothing yet.
    pub(super) async fn attempt(
        &self,
        fit: &Fit<'_>,
        held: Held,
    ) -> Result<(Answered, Option<SharedPermit>), StoreError> {
        let answered = self.inner.ask(fit, held.id, None).await?;
        let decision = answered.decision;
        if decision.is_allowed() {
            let mut permit = self.permit(held);
            permit.degraded = decision.is_degraded();
            return Ok((answered, Some(permit)));
        }
        Ok((answered, None))
    }
}

impl SharedPermit {
    /// Returns the permit, and reports whether the store has confirmed it. On an error the release is retried in the
    /// background, and the permit ends with its period at the latest.
    pub async fn release(mut self) -> Result<(), StoreError> {
        if !self.degraded {
            self.inner.release(&self.held).await?;
            self.returned = true;
        }
        Ok(())
    }

    /// Starts the permit's life anew. `false` if it had already ended: then somebody else may hold its place.
    pub async fn renew(&self) -> Result<bool, StoreError> {
        if self.degraded {
            return Ok(self.inner.core.renew_share(&self.held));
        }
        let (mut kept, mut error) = (true, None);
        // All of them, also after one is lost.
        for item in self.held.items() {
            let charge = self.inner.charge_of(item, 0, self.held.id);
            match self.inner.heard(self.inner.store.renew(&charge).await) {
                // A limit in shadow mode may never have held it.
                Ok(renewed) => kept &= renewed || !charge.enforced,
                Err(failed) => error = error.or(Some(failed)),
            }
        }
        error.map_or(Ok(kept), Err)
    }
}

/// Returns the permit without waiting for the store, by [`Store::detach`](crate::Store::detach).
impl Drop for SharedPermit {
    fn drop(&mut self) {
        if self.returned || self.held.is_empty() {
            return;
        }
        if self.degraded {
            self.inner.core.release(&self.held);
        }
        let (inner, held) = (self.inner.clone(), std::mem::take(&mut self.held));
        self.inner.store.detach(Box::pin(async move {
            // A failure is counted, and the store retries.
            let _ = inner.release(&held).await;
        }));
    }
}

impl Inner {
    /// Returns a permit that is held in the store, and lets whoever waits for it look again.
    async fn release(&self, held: &Held) -> Result<(), StoreError> {
        let mut result = Ok(());
        for item in held.items() {
            let charge = self.charge_of(item, 0, held.id);
            result = result.and(self.heard(self.store.release(&charge).await));
        }
        self.core.nudge(held.queue);
        result
    }
}
