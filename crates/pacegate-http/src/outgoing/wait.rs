use std::{future::Future, pin::Pin, time::Duration};

use pacegate::{Decision, Limiter, SharedLimiter, WaitError};

use crate::{KeyParts, Settle, settlement::InMemory};

/// A limiter that outgoing calls wait for: a [`Limiter`], a [`SharedLimiter`], or a custom one.
pub trait Wait: Clone + Send + Sync + 'static {
    /// Waits until `cost` units can be charged to a key, and charges them. Dropping the future charges nothing.
    fn wait(&self, key: KeyParts, cost: u64, within: Duration) -> Waiting;

    /// Waits until an estimate can be charged to a key, and charges it. The returned reservation corrects the charge
    /// within `ttl`. Default: [waits](Self::wait), and returns none, so that charges stay as they are.
    fn reserve(
        &self,
        key: KeyParts,
        estimate: u64,
        ttl: Duration,
        within: Duration,
    ) -> Waiting<Option<Box<dyn Settle>>> {
        let _ = ttl;
        let waiting = self.wait(key, estimate, within);
        Box::pin(async move { waiting.await.map(|_| None) })
    }
}

/// The future of a wait. It is boxed, which is cheap compared with a call over the network.
pub type Waiting<T = Decision> = Pin<Box<dyn Future<Output = Result<T, WaitError>> + Send>>;

impl Wait for Limiter {
    fn wait(&self, key: KeyParts, cost: u64, within: Duration) -> Waiting {
        let limiter = self.clone();
        Box::pin(async move { limiter.until_ready_cost(key, cost, within).await })
    }

    fn reserve(
        &self,
        key: KeyParts,
        estimate: u64,
        ttl: Duration,
        within: Duration,
    ) -> Waiting<Option<Box<dyn Settle>>> {
        let limiter = self.clone();
        Box::pin(async move {
            let reservation = limiter.reserve_within(key, estimate, ttl, within).await?;
            Ok(Some(InMemory::boxed(reservation, estimate)))
        })
    }
}

impl Wait for SharedLimiter {
    fn wait(&self, key: KeyParts, cost: u64, within: Duration) -> Waiting {
        let limiter = self.clone();
        Box::pin(async move { limiter.until_ready_cost(key, cost, within).await })
    }

    fn reserve(
        &self,
        key: KeyParts,
        estimate: u64,
        ttl: Duration,
        within: Duration,
    ) -> Waiting<Option<Box<dyn Settle>>> {
        let limiter = self.clone();
        Box::pin(async move {
            let reservation = limiter.reserve_within(key, estimate, ttl, within).await?;
            Ok(Some(Box::new(reservation) as Box<dyn Settle>))
        })
    }
}
