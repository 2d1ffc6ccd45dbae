use std::{future::Future, pin::Pin, time::Duration};

use pacegate::{Decision, Limiter, SharedLimiter, WaitError};

use crate::KeyParts;

/// What calls wait for: a [`Limiter`], a [`SharedLimiter`], or something of your own.
pub trait Wait: Clone + Send + Sync + 'static {
    /// Waits until so many units can be charged to a key. Dropping the future charges nothing.
    fn wait(&self, key: KeyParts, cost: u64, within: Duration) -> Waiting;
}

/// What [`Wait::wait`] returns: a box, beside a call over the network that is nothing.
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
