//! Waiting for a budget instead of being denied.

use std::{
    future::{Future, poll_fn},
    pin::pin,
    task::Poll,
    time::Duration,
};

use super::{Inner, Limiter, path::Items, turnstile::Full};
use crate::{CostError, Decision, Key, KeyBuf, Timestamp, algorithm::NEVER};

/// Why a wait ended without a budget. Nothing was charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WaitError {
    /// It cannot be in time. Told as soon as that is known, mostly at once.
    #[error("the budget will not be there in time: {}", wait_text(.needed))]
    TooLong {
        /// How long it would take, at the least; `None` if for ever.
        needed: Option<Duration>,
    },
    /// The time was over before those ahead had been served.
    #[error("the time was over before those ahead had been served")]
    TimedOut,
    /// Too many wait for this key already.
    #[error("{waiting} callers wait for this key already")]
    QueueFull {
        /// How many.
        waiting: usize,
    },
    /// The cost could never be admitted.
    #[error(transparent)]
    Cost(#[from] CostError),
}

fn wait_text(needed: &Option<Duration>) -> String {
    needed.map_or_else(|| "it never will be".to_owned(), |wait| format!("it takes {wait:?}"))
}

impl Limiter {
    /// Waits until one unit can be charged to `key`, for at most `within`.
    ///
    /// Callers that wait for the same key are served in the order they came. If the time cannot suffice, given those
    /// ahead, this fails at once instead of waiting in vain. A refund, a reset or a returned permit lets the first
    /// look again at once. Dropping the future leaves the queue; nothing is charged then. [`Limiter::check`] does not
    /// queue, and may take what somebody waits for.
    ///
    /// ```
    /// # pollster::block_on(async {
    /// use std::time::Duration;
    /// use tollgate::{Limiter, WaitError};
    ///
    /// let limiter = Limiter::builder().limit("50/second burst 1").build()?;
    /// for _ in 0..3 {
    ///     limiter.until_ready("upstream", Duration::from_secs(1)).await?;
    ///     // call the upstream: at most one call every 20 ms
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    pub async fn until_ready(
        &self,
        key: impl Key,
        within: Duration,
    ) -> Result<Decision, WaitError> {
        self.until_ready_cost(key, 1, within).await
    }

    /// [`Limiter::until_ready`] for more than one unit.
    pub async fn until_ready_cost(
        &self,
        key: impl Key,
        cost: u64,
        within: Duration,
    ) -> Result<Decision, WaitError> {
        let key = key.with(|key| key.to_buf());
        self.inner.until_ready(key, cost, within).await
    }
}

impl Inner {
    async fn until_ready(
        &self,
        key: KeyBuf,
        cost: u64,
        within: Duration,
    ) -> Result<Decision, WaitError> {
        let deadline = Timestamp::from_micros(self.core.memory.now()).after(within);
        let queue = self.with_items(key.as_ref(), |items| self.core.queue_of(&items));
        let Some(queue) = queue else { return Ok(Decision::UNLIMITED) };
        if self.core.turnstile.is_free(queue) {
            let decision = self.check_key(key.as_ref(), cost)?;
            if decision.allowed {
                return Ok(decision);
            }
        }
        let (turn, ahead) = self
            .core
            .turnstile
            .enter(queue, cost)
            .map_err(|Full(waiting)| WaitError::QueueFull { waiting })?;
        let needed = self.with_items(key.as_ref(), |items| self.earliest(items, &ahead, cost));
        self.in_time(needed, deadline)?;
        if !self.before(deadline, turn.comes()).await {
            return Err(WaitError::TimedOut);
        }
        loop {
            // Read before the check: a nudge in between is not missed.
            let nudges = turn.nudges();
            let decision = self.check_key(key.as_ref(), cost)?;
            if decision.allowed {
                return Ok(decision);
            }
            let ready = self.in_time(decision.retry_after, deadline)?;
            self.before(ready, turn.nudged(nudges)).await;
        }
    }

    /// When a wait of so many microseconds would be over, if that is in time.
    fn in_time(&self, wait: u64, deadline: Timestamp) -> Result<Timestamp, WaitError> {
        if wait == NEVER {
            return Err(WaitError::TooLong { needed: None });
        }
        let needed = Duration::from_micros(wait);
        let ready = Timestamp::from_micros(self.core.memory.now()).after(needed);
        if ready > deadline {
            return Err(WaitError::TooLong { needed: Some(needed) });
        }
        Ok(ready)
    }

    /// Whether `future` completes before the deadline.
    async fn before(&self, deadline: Timestamp, future: impl Future<Output = ()>) -> bool {
        let (mut future, mut sleep) = (pin!(future), pin!(self.core.memory.sleep_until(deadline)));
        poll_fn(|cx| match future.as_mut().poll(cx) {
            Poll::Ready(()) => Poll::Ready(true),
            Poll::Pending => sleep.as_mut().poll(cx).map(|()| false),
        })
        .await
    }

    /// Microseconds until `cost` could be admitted once those ahead have been, at the least.
    fn earliest(&self, items: Items<'_>, ahead: &[u64], cost: u64) -> u64 {
        items
            .iter()
            .map(|&item| {
                let costs = ahead.iter().copied().chain([cost]);
                self.core.memory.earliest(&self.core.slot(item, cost, 0), costs)
            })
            .max()
            .unwrap_or(0)
    }
}
