//! Waiting for a budget instead of being denied, over memory or over a store.

use std::{
    future::{Future, poll_fn},
    pin::pin,
    task::Poll,
    time::Duration,
};

use super::{
    Limiter, Permit, SharedLimiter, SharedPermit,
    core::Core,
    path::{Answered, Fit},
    permit::{Held, next_id},
    turnstile::{Entered, Full},
};
use crate::{
    Algorithm, CostError, Decision, Key, Limit, StoreError, Timestamp, algorithm::NEVER,
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
    /// The time was over, and those ahead had not been served or no permit had been returned.
    #[error("the time was over before there was room")]
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
    /// ahead, this fails at once instead of waiting in vain; but a permit of a concurrency limit may be returned at any
    /// time, and is waited for to the end. A refund, a reset or a returned permit lets the first look again at once.
    /// Dropping the future leaves the queue; nothing is charged then. [`Limiter::check`] does not queue, and may take
    /// what somebody waits for. A wait is counted once, by how it ends.
    ///
    /// ```
    /// # pollster::block_on(async {
    /// use std::time::Duration;
    /// use pacegate::{Limiter, WaitError};
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
        wait(Charges(self), key, cost, within).await
    }

    /// Waits for a permit for `key`, for at most `within`: [`Limiter::acquire`] for those who have time.
    ///
    /// Waits in one queue with those who call [`Limiter::until_ready`], and as they do: in the order of arrival, a
    /// returned permit goes to the first at once, and dropping the future leaves the queue and takes nothing.
    ///
    /// ```
    /// # pollster::block_on(async {
    /// use std::time::Duration;
    /// use pacegate::{Limiter, WaitError};
    ///
    /// let limiter = Limiter::builder().limit("1/30s concurrency").build()?;
    /// let permit = limiter.acquire_within("printer", Duration::from_secs(5)).await?;
    /// let late = limiter.acquire_within("printer", Duration::from_millis(5)).await;
    /// assert_eq!(late.unwrap_err(), WaitError::TimedOut);
    /// drop(permit);
    /// assert!(limiter.acquire_within("printer", Duration::from_secs(5)).await.is_ok());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    pub async fn acquire_within(
        &self,
        key: impl Key,
        within: Duration,
    ) -> Result<Permit, WaitError> {
        wait(Permits(self), key, 1, within).await
    }
}

impl SharedLimiter {
    /// Waits until one unit can be charged to `key`, for at most `within`.
    ///
    /// Callers of this process that wait for the same key are served in the order they came; between processes there is
    /// no order. If the time cannot suffice, as far as is known here, this fails at once instead of waiting in vain.
    /// The first in the queue asks the store again when its last answer said to, or when this process gives something
    /// back, and no sooner; where only a permit is missing, which another process may return, every second. How long
    /// an answer takes is up to the store and comes on top of `within`.
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
        wait(Charges(self), key, cost, within).await
    }

    /// Waits for a permit for `key`, for at most `within`: [`SharedLimiter::acquire`] for those who have time.
    ///
    /// Waits as [`SharedLimiter::until_ready`] does, in one queue with those who call it. If the future is dropped
    /// while the store is asked, what it may have taken is returned.
    pub async fn acquire_within(
        &self,
        key: impl Key,
        within: Duration,
    ) -> Result<SharedPermit, WaitError> {
        wait(Permits(self), key, 1, within).await
    }
}

/// What is waited for: a charge or a permit, of a limiter of either kind.
trait Gate {
    /// What a wait ends with.
    type Got;

    fn core(&self) -> &Core;

    /// Charges a request if every limit has room. Counts nothing.
    async fn look(&self, fit: &Fit<'_>) -> Result<(Answered, Option<Self::Got>), StoreError>;

    /// What there is to get where nothing is limited.
    fn unlimited(&self) -> Self::Got;

    /// Microseconds until a request could be admitted once those `ahead` have been, at the least. `known` is what
    /// answers so far say of that.
    fn earliest(&self, fit: &Fit<'_>, ahead: &[u64], known: u64) -> u64;
}

struct Charges<'a, L>(&'a L);

struct Permits<'a, L>(&'a L);

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

/// A permit may have been returned by somebody who does not know of the queue: in another process, or for other
/// policies as well. Where nothing else is in the way, the first looks again after this.
const PATIENCE: Duration = Duration::from_secs(1);

async fn wait<G: Gate>(
    gate: G,
    key: impl Key,
    cost: u64,
    within: Duration,
) -> Result<G::Got, WaitError> {
    let core = gate.core();
    let deadline = core.elapsed().saturating_add(within);
    let plan = key.with(|key| core.path.plan_key(key));
    let items = super::items(&plan);
    let Some(queue) = core.queue_of(&items) else { return Ok(gate.unlimited()) };
    let fit = core.path.fit(items, cost)?;
    let mut wait = Wait { gate: &gate, fit, queue, deadline, last: None };
    let result = wait.run().await;
    wait.count(&result);
    result
}

impl<G: Gate> Wait<'_, G> {
    async fn run(&mut self) -> Result<G::Got, WaitError> {
        let core = self.gate.core();
        // Read before each look: what is given back in between is not missed.
        let mut nudges = core.turnstile.nudges(self.queue);
        if core.turnstile.is_free(self.queue)
            && let Some(got) = self.look().await?
        {
            return Ok(got);
        }
        let Entered { turn, ahead, expected } = core
            .turnstile
            .enter(self.queue, self.fit.cost)
            .map_err(|Full(waiting)| WaitError::QueueFull { waiting })?;
        let known = match &*ahead {
            [] => self.least(),
            _ => micros(expected.saturating_sub(core.elapsed())),
        };
        let mut ready = self.in_time(self.gate.earliest(&self.fit, &ahead, known))?;
        let mut next = self.next_look(ready);
        if !core.before(self.deadline, turn.comes()).await {
            return Err(WaitError::TimedOut);
        }
        if !ahead.is_empty() {
            ready = core.elapsed();
            next = ready;
        }
        loop {
            turn.expects(ready);
            core.before(next, turn.nudged(nudges)).await;
            nudges = core.turnstile.nudges(self.queue);
            if let Some(got) = self.look().await? {
                return Ok(got);
            }
            ready = self.in_time(self.least())?;
            next = self.next_look(ready);
        }
    }

    /// What is waited for, if the request is admitted now.
    async fn look(&mut self) -> Result<Option<G::Got>, WaitError> {
        let (answered, got) = self.gate.look(&self.fit).await?;
        self.last = Some(answered);
        Ok(got)
    }

    /// Microseconds until the request could be admitted, at the least, by the last answer.
    fn least(&self) -> u64 {
        let path = &self.gate.core().path;
        let outcomes = self.last.iter().flat_map(|last| &last.outcomes);
        let binding = self.fit.items.iter().zip(outcomes).filter(|(item, outcome)| {
            let target = path.target(**item);
            target.enforced && (outcome.retry_after == NEVER || !may_be_returned(&target.limit))
        });
        binding.map(|(_, outcome)| outcome.retry_after).max().unwrap_or(0)
    }

    /// When to look again by oneself, if there can be room at `ready`.
    fn next_look(&self, ready: Duration) -> Duration {
        let told = Duration::from_micros(self.decision().retry_after);
        let next = self.gate.core().elapsed() + told.min(PATIENCE);
        next.max(ready).min(self.deadline)
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
        let now = self.gate.core().elapsed();
        if wait > 0 && now + needed > self.deadline {
            return Err(WaitError::TooLong { needed: Some(needed) });
        }
        if now >= self.deadline && self.last.is_some() {
            return Err(WaitError::TimedOut);
        }
        Ok(now + needed)
    }

    /// Counts the request by how its wait ended; a mistake of the caller is not counted.
    fn count(&self, result: &Result<G::Got, WaitError>) {
        let core = self.gate.core();
        match (result, &self.last) {
            (Err(WaitError::Cost(_) | WaitError::Store(_)), _) => {}
            (_, Some(last)) => core.path.count(&self.fit, last),
            (_, None) => core.path.count_unserved(&self.fit, core.memory.now()),
        }
    }
}

impl Gate for Charges<'_, Limiter> {
    type Got = Decision;

    fn core(&self) -> &Core {
        &self.0.inner.core
    }

    async fn look(&self, fit: &Fit<'_>) -> Result<(Answered, Option<Decision>), StoreError> {
        Ok(charged(self.core().ask(fit, 0)))
    }

    fn unlimited(&self) -> Decision {
        Decision::UNLIMITED
    }

    fn earliest(&self, fit: &Fit<'_>, ahead: &[u64], _: u64) -> u64 {
        self.core().earliest(fit, ahead)
    }
}

impl Gate for Permits<'_, Limiter> {
    type Got = Permit;

    fn core(&self) -> &Core {
        &self.0.inner.core
    }

    async fn look(&self, fit: &Fit<'_>) -> Result<(Answered, Option<Permit>), StoreError> {
        let id = next_id();
        let answered = self.core().ask(fit, id);
        let permit = answered.decision.allowed.then(|| self.0.permit(&fit.items, id));
        Ok((answered, permit))
    }

    fn unlimited(&self) -> Permit {
        self.0.permit(&[], 0)
    }

    fn earliest(&self, fit: &Fit<'_>, ahead: &[u64], _: u64) -> u64 {
        self.core().earliest(fit, ahead)
    }
}

impl Gate for Charges<'_, SharedLimiter> {
    type Got = Decision;

    fn core(&self) -> &Core {
        &self.0.inner.core
    }

    async fn look(&self, fit: &Fit<'_>) -> Result<(Answered, Option<Decision>), StoreError> {
        Ok(charged(self.0.inner.ask(fit, next_id(), None).await?))
    }

    fn unlimited(&self) -> Decision {
        Decision::UNLIMITED
    }

    fn earliest(&self, _: &Fit<'_>, _: &[u64], known: u64) -> u64 {
        known
    }
}

impl Gate for Permits<'_, SharedLimiter> {
    type Got = SharedPermit;

    fn core(&self) -> &Core {
        &self.0.inner.core
    }

    /// Each look has an id of its own: what one may have left in the store is no other's.
    async fn look(&self, fit: &Fit<'_>) -> Result<(Answered, Option<SharedPermit>), StoreError> {
        self.0.attempt(fit, self.core().hold(&fit.items, next_id())).await
    }

    fn unlimited(&self) -> SharedPermit {
        self.0.permit(Held::default())
    }

    fn earliest(&self, _: &Fit<'_>, _: &[u64], known: u64) -> u64 {
        known
    }
}

fn charged(answered: Answered) -> (Answered, Option<Decision>) {
    let decision = Some(answered.decision).filter(Decision::is_allowed);
    (answered, decision)
}

/// Whether room may come at any time, and not only when the limit says so.
fn may_be_returned(limit: &Limit) -> bool {
    limit.algorithm() == Algorithm::Concurrency && limit.amount() > 0
}

impl Core {
    fn elapsed(&self) -> Duration {
        self.memory.elapsed()
    }

    /// What [`Gate::earliest`] asks for: memory can look ahead.
    fn earliest(&self, fit: &Fit<'_>, ahead: &[u64]) -> u64 {
        let binding = fit.items.iter().filter(|item| {
            let target = self.path.target(**item);
            target.enforced && !may_be_returned(&target.limit)
        });
        let earliest = |&item| {
            let costs = ahead.iter().copied().chain([fit.cost]);
            self.memory.earliest(&self.slot(item, fit.cost, 0), costs)
        };
        binding.map(earliest).max().unwrap_or(0)
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
