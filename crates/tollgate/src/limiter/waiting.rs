//! Waiting for a budget instead of being denied, over memory or over a store.

use std::{
    future::{Future, poll_fn},
    pin::pin,
    task::Poll,
    time::Duration,
};

use super::{
    Limiter, SharedLimiter,
    core::Core,
    path::{Answered, Fit},
    permit::next_id,
    shared,
    turnstile::{Entered, Full},
};
use crate::{
    CostError, Decision, Key, StoreError, Timestamp, algorithm::NEVER,
    store::memory::identity::Identity,
};

/// Why a wait ended without a budget. Nothing was charged.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
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
    /// The store cannot do what was asked. That it fails is no error: see [`FailureMode`](crate::policy::FailureMode).
    #[error(transparent)]
    Store(#[from] StoreError),
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
    /// queue, and may take what somebody waits for. A wait is counted once, by how it ends.
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
        until_ready(&self.inner.core, key, cost, within).await
    }
}

impl SharedLimiter {
    /// Waits until one unit can be charged to `key`, for at most `within`.
    ///
    /// Callers of this process that wait for the same key are served in the order they came; between processes there is
    /// no order. If the time cannot suffice, as far as is known here, this fails at once instead of waiting in vain.
    /// The first in the queue asks the store again when its last answer said to, or when this process gives something
    /// back, and no sooner. How long an answer takes is up to the store and comes on top of `within`.
    ///
    /// Dropping the future leaves the queue. Nothing is charged then, unless the store was just being asked. Otherwise
    /// as [`Limiter::until_ready`].
    pub async fn until_ready(
        &self,
        key: impl Key,
        within: Duration,
    ) -> Result<Decision, WaitError> {
        self.until_ready_cost(key, 1, within).await
    }

    /// [`SharedLimiter::until_ready`] for more than one unit.
    pub async fn until_ready_cost(
        &self,
        key: impl Key,
        cost: u64,
        within: Duration,
    ) -> Result<Decision, WaitError> {
        until_ready(&*self.inner, key, cost, within).await
    }
}

/// What is waited for: a limiter of either kind.
trait Gate {
    fn core(&self) -> &Core;

    /// Charges a request if every limit has room. Counts nothing.
    async fn look(&self, fit: &Fit<'_>) -> Result<Answered, StoreError>;

    /// Microseconds until a request could be admitted once those `ahead` have been, at the least. `known` is what
    /// answers so far say of that.
    fn earliest(&self, fit: &Fit<'_>, ahead: &[u64], known: u64) -> u64;
}

/// A request that waits.
struct Wait<'a, G> {
    gate: &'a G,
    fit: Fit<'a>,
    queue: Identity,
    /// As all instants here by [`Clock::elapsed`](crate::Clock::elapsed), which no step changes.
    deadline: Duration,
    /// The last answer.
    last: Option<Answered>,
}

async fn until_ready<G: Gate>(
    gate: &G,
    key: impl Key,
    cost: u64,
    within: Duration,
) -> Result<Decision, WaitError> {
    let core = gate.core();
    let deadline = core.elapsed().saturating_add(within);
    let plan = key.with(|key| core.path.plan_key(key));
    let items = super::items(&plan);
    let Some(queue) = core.queue_of(&items) else { return Ok(Decision::UNLIMITED) };
    let fit = core.path.fit(items, cost)?;
    let mut wait = Wait { gate, fit, queue, deadline, last: None };
    let result = wait.run().await;
    wait.count(&result);
    result
}

impl<G: Gate> Wait<'_, G> {
    async fn run(&mut self) -> Result<Decision, WaitError> {
        let core = self.gate.core();
        // Read before each look: what is given back in between is not missed.
        let mut nudges = core.turnstile.nudges(self.queue);
        if core.turnstile.is_free(self.queue) && self.look().await? {
            return Ok(self.decision());
        }
        let Entered { turn, ahead, expected } = core
            .turnstile
            .enter(self.queue, self.fit.cost)
            .map_err(|Full(waiting)| WaitError::QueueFull { waiting })?;
        let known = match &*ahead {
            [] => self.decision().retry_after,
            _ => micros(expected.saturating_sub(core.elapsed())),
        };
        let mut ready = self.in_time(self.gate.earliest(&self.fit, &ahead, known))?;
        if !core.before(self.deadline, turn.comes()).await {
            return Err(WaitError::TimedOut);
        }
        if !ahead.is_empty() {
            ready = core.elapsed();
        }
        loop {
            turn.expects(ready);
            core.before(ready, turn.nudged(nudges)).await;
            nudges = core.turnstile.nudges(self.queue);
            if self.look().await? {
                return Ok(self.decision());
            }
            ready = self.in_time(self.decision().retry_after)?;
        }
    }

    /// Whether the request is admitted now.
    async fn look(&mut self) -> Result<bool, WaitError> {
        let answered = self.gate.look(&self.fit).await?;
        Ok(self.last.insert(answered).decision.allowed)
    }

    /// The last decision; before the first, nothing stands in the way.
    fn decision(&self) -> Decision {
        self.last.as_ref().map_or(Decision::UNLIMITED, |last| last.decision)
    }

    /// When a wait of so many microseconds would be over, if that is in time.
    fn in_time(&self, wait: u64) -> Result<Duration, WaitError> {
        if wait == NEVER {
            return Err(WaitError::TooLong { needed: None });
        }
        let needed = Duration::from_micros(wait);
        let ready = self.gate.core().elapsed() + needed;
        if ready > self.deadline {
            return Err(WaitError::TooLong { needed: Some(needed) });
        }
        Ok(ready)
    }

    /// Counts the request by how its wait ended; a mistake of the caller is not counted.
    fn count(&self, result: &Result<Decision, WaitError>) {
        let core = self.gate.core();
        match (result, &self.last) {
            (Err(WaitError::Cost(_) | WaitError::Store(_)), _) => {}
            (_, Some(last)) => core.path.count(&self.fit, last),
            (_, None) => core.path.count_unserved(&self.fit, core.memory.now()),
        }
    }
}

impl Gate for Core {
    fn core(&self) -> &Core {
        self
    }

    async fn look(&self, fit: &Fit<'_>) -> Result<Answered, StoreError> {
        Ok(self.ask(fit, 0))
    }

    /// Memory can look ahead.
    fn earliest(&self, fit: &Fit<'_>, ahead: &[u64], _: u64) -> u64 {
        let enforced = fit.items.iter().filter(|item| self.path.target(**item).enforced);
        let earliest = |&item| {
            let costs = ahead.iter().copied().chain([fit.cost]);
            self.memory.earliest(&self.slot(item, fit.cost, 0), costs)
        };
        enforced.map(earliest).max().unwrap_or(0)
    }
}

impl Gate for shared::Inner {
    fn core(&self) -> &Core {
        &self.core
    }

    async fn look(&self, fit: &Fit<'_>) -> Result<Answered, StoreError> {
        self.ask(fit, next_id(), None).await
    }

    fn earliest(&self, _: &Fit<'_>, _: &[u64], known: u64) -> u64 {
        known
    }
}

impl Core {
    fn elapsed(&self) -> Duration {
        self.memory.elapsed()
    }

    /// Whether `future` completes before the deadline.
    async fn before(&self, deadline: Duration, future: impl Future<Output = ()>) -> bool {
        let left = deadline.saturating_sub(self.elapsed());
        let deadline = Timestamp::from_micros(self.memory.now()).after(left);
        let (mut future, mut sleep) = (pin!(future), pin!(self.memory.sleep_until(deadline)));
        poll_fn(|cx| match future.as_mut().poll(cx) {
            Poll::Ready(()) => Poll::Ready(true),
            Poll::Pending => sleep.as_mut().poll(cx).map(|()| false),
        })
        .await
    }
}

/// Whole microseconds, short of for ever.
fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(NEVER).min(NEVER - 1)
}
