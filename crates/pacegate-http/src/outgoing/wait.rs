use std::{future::Future, pin::Pin, time::Duration};

use pacegate::{Decision, Limiter, SharedLimiter, WaitError};

use crate::KeyParts;

/// A limiter that outgoing calls wait for: a [`Limiter`], a [`SharedLimiter`], or a custom one.
pub trait Wait: Clone + Send + Sync + 'static {
    /// Waits until `cost` units can be charged to a key, and charges them. Dropping the future charges nothing.
    fn wait(&self, key: KeyParts, cost: u64, within: Duration) -> Waiting;
}

/// The future of [`Wait::wait`]. It is boxed, which is cheap compared with a call over the network.
pub type Waiting = Pin<Box<dyn Future<Output = Result<Decision, WaitError>> + Send>>;

impl Wait for Limiter {
    fn wait(&self, key: KeyParts, cost: u64, within: Duration) -> Waiting {
        let limiter = self.clone();
        Box::pin(async move { limiter.until_ready_cost(key, cost, within).await })
    }
}

impl Wait for SharedLimiter {
    fn wait(&self, key: KeyParts, cost: u64, within: Duration) -> Waiting {
        let limiter = self.clone();
        Box::pin(async move { limiter.until_ready_cost(key, cost, within).await })
    }
}
