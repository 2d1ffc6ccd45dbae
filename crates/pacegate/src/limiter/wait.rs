//! Waits for units instead of denying, in memory or over a store.

use std::{
    convert::identity,
    future::{Future, poll_fn},
    pin::pin,
    task::Poll,
    time::Duration,
};

use smallvec::SmallVec;

use super::{
    CheckError, Limiter, Permit, SharedLimiter, SharedPermit,
    evaluator::{Evaluation, Evaluator},
    permit::HeldPermits,
    permit_id::new_permit_id,
    reservation::{Reservation, SharedReservation, reservable},
    reservation_id::{Place, ReservationId},
    resolve::{BoundLimit, Resolved, ResolvedCharge, ResolvedCharges},
    wait_queue::{Entered, Full},
};
use crate::{
    Charge, CostError, Decision, Excess, Key, Limit, PolicyName, Request, StoreError, Timestamp,
    algorithm::NEVER, store::memory::identity::Identity,
};

/// The maximum time to wait for units, and an optional jitter. A [`Duration`] converts to a wait with this timeout.
///
/// The timeout is measured by [`Clock::elapsed`](crate::Clock::elapsed) of the limiter's clock, so a step of the wall
/// clock does not change it. With a timeout of zero, a call succeeds only if the units are available now and no other
/// caller waits for the key.
///
/// ```
/// use std::time::Duration;
/// use pacegate::{Limiter, Wait};
///
/// let limiter = Limiter::builder().limit("50/second burst 1").build()?;
/// limiter.until_ready_blocking("upstream", Duration::from_secs(1))?;
/// limiter.until_ready_blocking("upstream", Wait::forever())?;
/// limiter.until_ready_blocking("upstream", Wait::forever().jitter(Duration::from_millis(5)))?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wait {
    timeout: Duration,
    jitter: Duration,
}

/// Error of a wait that ended without units. Nothing was charged.
///
/// `TooLong`, `TimedOut` and `QueueFull` correspond to a denial: retry later or reject the request. The others are
/// mistakes of the caller.
///
/// ```
/// # pollster::block_on(async {
/// use std::time::Duration;
/// use pacegate::{Limiter, ManualClock, WaitError};
///
/// let limiter = Limiter::builder().limit("1/minute").clock(ManualClock::new()).build()?;
/// let _ = limiter.check("alice");
/// // The window ends after a minute, so a wait of ten seconds fails at once.
/// let error = limiter.until_ready("alice", Duration::from_secs(10)).await.unwrap_err();
/// assert_eq!(error, WaitError::TooLong { needed: Some(Duration::from_secs(60)) });
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum WaitError {
    /// The units cannot be available in time. Returned as soon as that is known, usually at once.
    #[error("the units will not be available in time: {}", wait_text(.needed))]
    TooLong {
        /// The minimum time that it would take; `None` if the units will never be available.
        needed: Option<Duration>,
    },
    /// The timeout passed before the callers ahead were served or a permit was released.
    #[error("timed out while waiting for units")]
    TimedOut,
    /// The maximum number of callers already wait for this key. See
    /// [`LimiterBuilder::max_waiters`](crate::LimiterBuilder::max_waiters).
    #[error("{waiting} callers already wait for this key")]
    QueueFull {
        /// The number of waiting callers.
        waiting: usize,
    },
    /// The cost can never be admitted: a mistake of the caller.
    #[error(transparent)]
    Cost(#[from] CostError),
    /// The store does not support the call. A failure of the store is not an error: see
    /// [`FailureMode`](crate::policy::FailureMode).
    #[error(transparent)]
    Store(#[from] StoreError),
}

fn wait_text(needed: &Option<Duration>) -> String {
    needed.map_or_else(|| "they never will be".to_owned(), |wait| format!("it takes {wait:?}"))
}

impl Wait {
    /// Waits without a timeout. A wait for units that will never be available still fails at once.
    ///
    /// Use it for background work that has nothing better to do. A request of a client needs a timeout: otherwise it
    /// waits after the client has gone.
    pub const fn forever() -> Self {
        Self::up_to(Duration::MAX)
    }

    /// Waits for at most this long. The same as `Wait::from(timeout)`, for use in constants.
    pub const fn up_to(timeout: Duration) -> Self {
        Self { timeout, jitter: Duration::ZERO }
    }

    /// Delays callers that had to wait by a random time of up to `jitter`, so that callers that are admitted at the
    /// same instant do not all start then. The units are charged before the delay, which ends at the timeout at the
    /// latest.
    #[must_use]
    pub const fn jitter(self, jitter: Duration) -> Self {
        Self { jitter, ..self }
    }
}

impl From<Duration> for Wait {
    fn from(timeout: Duration) -> Self {
        Self::up_to(timeout)
    }
}

impl Limiter {
    /// Waits until one unit can be charged to `key`.
    ///
    /// Callers that wait for the same key are served in the order of arrival. A refund, a reset or a released permit
    /// lets the first caller try again at once. [`Limiter::check`] does not queue, and may take units that others wait
    /// for. A wait is recorded once, by its result.
    ///
    /// # Errors
    ///
    /// Fails at once with [`WaitError::TooLong`] if the time cannot suffice, given the callers ahead. A permit may be
    /// released at any time, so a wait for one lasts until the timeout: [`WaitError::TimedOut`]. See [`WaitError`] for
    /// the others.
    ///
    /// # Cancellation
    ///
    /// Dropping the future leaves the queue, and nothing is charged. If the wait has a [jitter](Wait::jitter), the
    /// units are charged before the delay: dropping the future during the delay keeps them charged.
    ///
    /// ```
    /// # pollster::block_on(async {
    /// use std::time::Duration;
    /// use pacegate::Limiter;
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
        wait: impl Into<Wait>,
    ) -> Result<Decision, WaitError> {
        self.until_ready_cost(key, 1, wait).await
    }

    /// [`Limiter::until_ready`] for programs without an async runtime: blocks the thread.
    ///
    /// Do not call it in an async task: it would block the worker thread of the runtime. With a
    /// [`ManualClock`](crate::ManualClock), another thread must advance the clock.
    pub fn until_ready_blocking(
        &self,
        key: impl Key,
        wait: impl Into<Wait>,
    ) -> Result<Decision, WaitError> {
        pollster::block_on(self.until_ready(key, wait))
    }

    /// Waits for a permit for `key`. See [`Limiter::acquire`] and [`Limiter::until_ready`], whose queue it shares.
    ///
    /// A holder in this process that drops its permit wakes the first caller. A permit whose holder hangs becomes free
    /// when it expires. Dropping the future leaves the queue, and a permit that it has taken is released.
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
        wait: impl Into<Wait>,
    ) -> Result<Permit, WaitError> {
        self.shared.acquire_within(key, wait).await.map(Permit)
    }

    /// [`Limiter::acquire_within`] for programs without an async runtime: blocks the thread.
    ///
    /// Do not call it in an async task: it would block the worker thread of the runtime.
    pub fn acquire_within_blocking(
        &self,
        key: impl Key,
        wait: impl Into<Wait>,
    ) -> Result<Permit, WaitError> {
        pollster::block_on(self.acquire_within(key, wait))
    }
}

impl SharedLimiter {
    /// Waits until one unit can be charged to `key`.
    ///
    /// Callers of this process that wait for the same key are served in the order of arrival. Between processes, the
    /// order is undefined. The first caller in the queue calls the store again after the `retry_after` of the last
    /// answer, or when this process returns units. A wait for permits, which another process may release, calls the
    /// store every second. The other callers do not call the store.
    ///
    /// # Errors
    ///
    /// As [`Limiter::until_ready`]. The call fails at once if this process knows that the time cannot suffice. The time
    /// that a call to the store takes is added to the timeout. If the store fails, the failure modes decide each
    /// attempt: a policy that fails `open` ends the wait with an admission.
    ///
    /// # Cancellation
    ///
    /// Dropping the future leaves the queue. Nothing is charged then, unless a call was in flight.
    pub async fn until_ready(
        &self,
        key: impl Key,
        wait: impl Into<Wait>,
    ) -> Result<Decision, WaitError> {
        self.until_ready_cost(key, 1, wait).await
    }

    /// Waits for a permit for `key`. See [`SharedLimiter::acquire`] and [`SharedLimiter::until_ready`], whose queue it
    /// shares. If the future is dropped during a call to the store, a permit that it may have taken is released.
    pub async fn acquire_within(
        &self,
        key: impl Key,
        wait: impl Into<Wait>,
    ) -> Result<SharedPermit, WaitError> {
        let plan = key.with(|key| self.evaluator.plan_key(key));
        self.acquire_charges(self.evaluator.charges_of(&plan, 1, 0), wait.into()).await
    }

    /// Waits until the charges are admitted. The units are not held: they expire with their periods.
    async fn until_charged(
        &self,
        charges: ResolvedCharges<'_>,
        wait: Wait,
    ) -> Result<Decision, WaitError> {
        let waited = self.wait(charges, wait, Purpose::Charge).await?;
        self.evaluator.sleep_until(waited.start).await;
        Ok(waited.decision)
    }

    /// Waits until the charges are admitted, as a reservation.
    async fn until_reserved(
        &self,
        charges: ResolvedCharges<'_>,
        ttl: Duration,
        wait: Wait,
    ) -> Result<SharedReservation, WaitError> {
        let waited = self.wait(reservable(charges)?, wait, Purpose::Reserve(ttl)).await?;
        let reservation = self.reservation(waited.reservation);
        self.evaluator.sleep_until(waited.start).await;
        Ok(reservation)
    }

    async fn acquire_charges(
        &self,
        charges: ResolvedCharges<'_>,
        wait: Wait,
    ) -> Result<SharedPermit, WaitError> {
        let waited = self.wait(charges, wait, Purpose::Acquire).await?;
        let permit = self.permit(waited.held, waited.decision.is_degraded());
        self.evaluator.sleep_until(waited.start).await;
        Ok(permit)
    }

    /// Waits until the charges are admitted, and records the result.
    async fn wait(
        &self,
        mut charges: ResolvedCharges<'_>,
        wait: Wait,
        purpose: Purpose,
    ) -> Result<Waited, WaitError> {
        let evaluator = &*self.evaluator;
        let deadline = evaluator.elapsed().saturating_add(wait.timeout);
        let Some(queue) = evaluator.queue_of(&charges) else { return Ok(Waited::unlimited()) };
        // Only the attempt that is admitted is recorded.
        charges.iter_mut().for_each(|charge| charge.excess = Excess::Reject);
        let resolved = Resolved::new(charges, false)?;
        let (last, reservation) = (None, NO_RESERVATION);
        let limiter = self;
        let mut waiting =
            Waiting { limiter, resolved, queue, deadline, purpose, last, reservation };
        let result = waiting.run().await;
        waiting.record(&result);
        let has_queued = result?;
        let decision = waiting.decision();
        let held = evaluator.hold(&waiting.resolved);
        let jitter = if has_queued { random_up_to(wait.jitter) } else { Duration::ZERO };
        let start = evaluator.elapsed().saturating_add(jitter).min(deadline);
        let start = (!jitter.is_zero()).then_some(start);
        Ok(Waited { decision, held, reservation: waiting.reservation, start })
    }
}

/// Defines the waits that both kinds of limiters have, over the [`SharedLimiter`] in each of them.
macro_rules! waits {
    ($limiter:ident, $shared:expr, $held:ident, $permit:expr, $reservation:ident, $reserved:expr) => {
        impl $limiter {
            /// Waits until `cost` units can be charged to `key`, all at once. See [`Self::until_ready`].
            ///
            /// A cost above the capacity of a limit fails at once with [`WaitError::Cost`].
            ///
            /// A high cost waits longer than a low one, and callers behind it wait too, even if their units are
            /// available. If small requests must not wait for large ones, use separate keys.
            pub async fn until_ready_cost(
                &self,
                key: impl Key,
                cost: u64,
                wait: impl Into<Wait>,
            ) -> Result<Decision, WaitError> {
                let limiter = $shared(self);
                let plan = key.with(|key| limiter.evaluator.plan_key(key));
                let charges = limiter.evaluator.charges_of(&plan, cost, 0);
                limiter.until_charged(charges, wait.into()).await
            }

            /// Waits until one unit can be charged to `key` under this limit, instead of the limits of the policies.
            /// See [`Limiter::check_with`].
            ///
            /// Callers queue separately for each limit, because each has a separate counter.
            ///
            /// ```
            /// # pollster::block_on(async {
            /// use std::time::Duration;
            /// use pacegate::{Limit, Limiter, WaitError};
            ///
            /// let limiter = Limiter::memory(Limit::per_second(1));
            /// let limit = "1/30s sliding-log".parse()?;
            /// let wait = Duration::from_millis(5);
            /// assert!(limiter.until_ready_with("alice", limit, wait).await?.is_allowed());
            /// let late = limiter.until_ready_with("alice", limit, wait).await;
            /// assert!(matches!(late, Err(WaitError::TooLong { .. })));
            /// # Ok::<(), Box<dyn std::error::Error>>(())
            /// # }).unwrap();
            /// ```
            pub async fn until_ready_with(
                &self,
                key: impl Key,
                limit: Limit,
                wait: impl Into<Wait>,
            ) -> Result<Decision, WaitError> {
                let limiter = $shared(self);
                let key = key.with(|key| key.to_buf());
                let charge = Charge::new(PolicyName::INLINE, &key, limit);
                let limit = limiter.evaluator.bind_one(&charge);
                let charges = SmallVec::from_iter([ResolvedCharge::of_charge(&limit, &charge)]);
                limiter.until_charged(charges, wait.into()).await
            }

            /// Waits until a request can be charged to all policies that apply to it. Its [id](Request::id) is
            /// ignored. See [`Self::until_ready`].
            ///
            /// Callers queue by the first limit that applies. Two requests that share only a later limit are not
            /// ordered.
            ///
            /// ```
            /// # pollster::block_on(async {
            /// use std::time::Duration;
            /// use pacegate::{Limiter, Policy, PolicySet, Request};
            ///
            /// let policies = [Policy::new("upstream", ["50/second burst 1"]).per(["host"])];
            /// let limiter = Limiter::builder().policies(PolicySet::new(policies)?).build()?;
            /// let request = Request::new().with("host", "api.example.com");
            /// for _ in 0..2 {
            ///     limiter.until_ready_request(&request, Duration::from_secs(1)).await?;
            /// }
            /// # Ok::<(), Box<dyn std::error::Error>>(())
            /// # }).unwrap();
            /// ```
            pub async fn until_ready_request(
                &self,
                request: &Request<'_>,
                wait: impl Into<Wait>,
            ) -> Result<Decision, WaitError> {
                let limiter = $shared(self);
                let plan = limiter.evaluator.policies.plan(request);
                let charges = limiter.evaluator.charges_of(&plan, request.units(), 0);
                limiter.until_charged(charges, wait.into()).await
            }

            /// Waits until an estimate can be reserved for `key`. The reservation is open for `ttl`. See
            /// [`Self::reserve`] and [`Self::until_ready`], whose queue it shares.
            ///
            /// ```
            /// # pollster::block_on(async {
            /// use std::time::Duration;
            /// use pacegate::Limiter;
            ///
            /// let limiter = Limiter::builder().limit("10000/minute").build()?;
            /// let (ttl, wait) = (Duration::from_secs(60), Duration::from_secs(5));
            /// let reservation = limiter.reserve_within("upstream", 4_000, ttl, wait).await?;
            /// reservation.settle(1_500);
            /// assert_eq!(limiter.peek("upstream").remaining(), 8_500);
            /// # Ok::<(), Box<dyn std::error::Error>>(())
            /// # }).unwrap();
            /// ```
            pub async fn reserve_within(
                &self,
                key: impl Key,
                estimate: u64,
                ttl: Duration,
                wait: impl Into<Wait>,
            ) -> Result<$reservation, WaitError> {
                let limiter = $shared(self);
                let plan = key.with(|key| limiter.evaluator.plan_key(key));
                let charges = limiter.evaluator.charges_of(&plan, estimate, 0);
                limiter.until_reserved(charges, ttl, wait.into()).await.map($reserved)
            }

            /// Waits for a permit for `key` under this limit, instead of the limits of the policies. See
            /// [`Limiter::acquire_with`] and [`Self::acquire_within`].
            ///
            /// ```
            /// # pollster::block_on(async {
            /// use std::time::Duration;
            /// use pacegate::{Limit, Limiter};
            ///
            /// let limiter = Limiter::memory(Limit::per_second(1));
            /// let (limit, wait) = ("1/30s concurrency".parse()?, Duration::from_secs(5));
            /// let permit = limiter.acquire_within_with("printer", limit, wait).await?;
            /// drop(permit);
            /// assert!(limiter.acquire_within_with("printer", limit, wait).await.is_ok());
            /// # Ok::<(), Box<dyn std::error::Error>>(())
            /// # }).unwrap();
            /// ```
            pub async fn acquire_within_with(
                &self,
                key: impl Key,
                limit: Limit,
                wait: impl Into<Wait>,
            ) -> Result<$held, WaitError> {
                let limiter = $shared(self);
                let key = key.with(|key| key.to_buf());
                let charge = Charge::new(PolicyName::INLINE, &key, limit);
                let limit = limiter.evaluator.bind_one(&charge);
                let charges = SmallVec::from_iter([ResolvedCharge::of_charge(&limit, &charge)]);
                limiter.acquire_charges(charges, wait.into()).await.map($permit)
            }

            /// Waits for the permits of a request. See [`Self::acquire_request`] and [`Self::acquire_within`].
            ///
            /// ```
            /// # pollster::block_on(async {
            /// use std::time::Duration;
            /// use pacegate::{Limiter, Policy, PolicySet, Request, WaitError};
            ///
            /// let policies = [Policy::new("exports", ["1/30s concurrency"]).per(["user"])];
            /// let limiter = Limiter::builder().policies(PolicySet::new(policies)?).build()?;
            /// let request = Request::new().with("user", "alice");
            /// let wait = Duration::from_millis(5);
            /// let permit = limiter.acquire_request_within(&request, wait).await?;
            /// let late = limiter.acquire_request_within(&request, wait).await;
            /// assert_eq!(late.unwrap_err(), WaitError::TimedOut);
            /// drop(permit);
            /// # Ok::<(), Box<dyn std::error::Error>>(())
            /// # }).unwrap();
            /// ```
            pub async fn acquire_request_within(
                &self,
                request: &Request<'_>,
                wait: impl Into<Wait>,
            ) -> Result<$held, WaitError> {
                let limiter = $shared(self);
                let plan = limiter.evaluator.policies.plan(request);
                let charges = limiter.evaluator.charges_of(&plan, request.units(), 0);
                limiter.acquire_charges(charges, wait.into()).await.map($permit)
            }
        }
    };
}

waits!(Limiter, Limiter::shared, Permit, Permit, Reservation, Reservation);
waits!(SharedLimiter, identity, SharedPermit, identity, SharedReservation, identity);

/// The result of a successful wait.
struct Waited {
    decision: Decision,
    held: HeldPermits,
    reservation: ReservationId,
    /// The time to return at, if jitter delays the caller.
    start: Option<Duration>,
}

/// A request that waits.
struct Waiting<'l, 'a> {
    limiter: &'l SharedLimiter,
    resolved: Resolved<'a>,
    queue: Identity,
    /// As all times here by [`Clock::elapsed`](crate::Clock::elapsed), which ignores steps of the clock.
    deadline: Duration,
    purpose: Purpose,
    last: Option<Evaluation>,
    /// The reservation of the last attempt.
    reservation: ReservationId,
}

/// The result that a caller waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Purpose {
    /// A charge.
    Charge,
    /// Permits, which the caller releases.
    Acquire,
    /// A reservation that is open for this time.
    Reserve(Duration),
}

/// The id for a request without limits.
const NO_RESERVATION: ReservationId = ReservationId { number: 0, place: Place::Nowhere };

/// The longest time between two attempts, if only a permit is missing. Another process, or a request of other policies,
/// may release one without a notification.
const MAX_ATTEMPT_INTERVAL: Duration = Duration::from_secs(1);

impl Waited {
    /// No limit applies.
    fn unlimited() -> Self {
        let held = HeldPermits::default();
        Self { decision: Decision::UNLIMITED, held, reservation: NO_RESERVATION, start: None }
    }
}

impl Waiting<'_, '_> {
    /// Returns when the request is admitted: `true` if it had to wait.
    async fn run(&mut self) -> Result<bool, WaitError> {
        let evaluator = &*self.limiter.evaluator;
        // Read before each attempt, so that no notification in between is missed.
        let mut notifications = evaluator.wait_queue.notifications(self.queue);
        if evaluator.wait_queue.is_free(self.queue) && self.attempt().await? {
            return Ok(false);
        }
        let Entered { ticket, ahead, expected } = evaluator
            .wait_queue
            .enter(self.queue, self.cost())
            .map_err(|Full(waiting)| WaitError::QueueFull { waiting })?;
        let known = match &*ahead {
            [] => self.min_wait(),
            _ => micros(expected.saturating_sub(evaluator.elapsed())),
        };
        let earliest = match self.limiter.store {
            None => evaluator.earliest(&self.resolved, &ahead),
            Some(_) => known,
        };
        let mut ready = self.in_time(earliest)?;
        let mut next = self.next_attempt(ready);
        if !evaluator.before(self.deadline, ticket.is_first()).await {
            return Err(WaitError::TimedOut);
        }
        if !ahead.is_empty() {
            ready = evaluator.elapsed();
            next = ready;
        }
        loop {
            ticket.set_expected(ready);
            evaluator.before(next, ticket.notified(notifications)).await;
            notifications = evaluator.wait_queue.notifications(self.queue);
            if self.attempt().await? {
                return Ok(true);
            }
            ready = self.in_time(self.min_wait())?;
            next = self.next_attempt(ready);
        }
    }

    /// Charges the request if every limit has room. Returns `true` if it was admitted.
    async fn attempt(&mut self) -> Result<bool, WaitError> {
        let evaluation = match self.purpose {
            Purpose::Reserve(ttl) => {
                let reserved = self.limiter.evaluate_reservation(&self.resolved, ttl).await;
                let evaluation;
                (evaluation, self.reservation) = reserved.map_err(|error| match error {
                    CheckError::Cost(error) => WaitError::Cost(error),
                    CheckError::Store(error) => WaitError::Store(error),
                })?;
                evaluation
            }
            purpose => {
                // A new id in each attempt: the store may still hold the permits of an attempt that failed. A store
                // identifies units by their ids.
                if purpose == Purpose::Acquire || self.limiter.store.is_some() {
                    self.resolved.set_permit(new_permit_id());
                }
                self.limiter.evaluate(&self.resolved, None).await?
            }
        };
        let allowed = evaluation.decision.allowed;
        self.last = Some(evaluation);
        Ok(allowed)
    }

    /// Returns the highest cost of the charges, by which later callers estimate their wait.
    fn cost(&self) -> u64 {
        self.resolved.charges.iter().map(|charge| charge.cost).max().unwrap_or(0)
    }

    /// Returns the microseconds until the request can be admitted at the earliest, by the last attempt.
    fn min_wait(&self) -> u64 {
        let outcomes = self.last.iter().flat_map(|last| last.outcomes.iter());
        let waits = self.resolved.charges.iter().zip(outcomes).filter(|(charge, outcome)| {
            charge.limit.enforced
                && (outcome.retry_after == NEVER || !may_be_released(charge.limit))
        });
        waits.map(|(_, outcome)| outcome.retry_after).max().unwrap_or(0)
    }

    /// Returns the time of the next attempt without a notification, if there can be room at `ready`.
    fn next_attempt(&self, ready: Duration) -> Duration {
        let wait = Duration::from_micros(self.decision().retry_after).min(MAX_ATTEMPT_INTERVAL);
        (self.limiter.evaluator.elapsed() + wait).max(ready).min(self.deadline)
    }

    /// Returns the decision of the last attempt.
    fn decision(&self) -> Decision {
        self.last.as_ref().map_or(Decision::UNLIMITED, |last| last.decision)
    }

    /// Returns the time at which a wait of this many microseconds ends, or an error if that is too late.
    fn in_time(&self, wait: u64) -> Result<Duration, WaitError> {
        if wait == NEVER {
            return Err(WaitError::TooLong { needed: None });
        }
        let needed = Duration::from_micros(wait);
        let now = self.limiter.evaluator.elapsed();
        if wait > 0 && now + needed > self.deadline {
            return Err(WaitError::TooLong { needed: Some(needed) });
        }
        if now >= self.deadline && self.last.is_some() {
            return Err(WaitError::TimedOut);
        }
        Ok(now + needed)
    }

    /// Records the request by the result of its wait. A mistake of the caller is not recorded.
    fn record(&self, result: &Result<bool, WaitError>) {
        let evaluator = &self.limiter.evaluator;
        match (result, &self.last) {
            (Err(WaitError::Cost(_) | WaitError::Store(_)), _) => {}
            (_, Some(last)) => evaluator.record(&self.resolved.charges, last),
            (_, None) => evaluator.record_unserved(&self.resolved.charges),
        }
    }
}

/// Returns `true` if units may become free at any time, not only when the limit says so.
fn may_be_released(limit: &BoundLimit) -> bool {
    limit.has_permits() && limit.limit.amount() > 0
}

impl Evaluator {
    fn elapsed(&self) -> Duration {
        self.memory.elapsed()
    }

    /// Returns the microseconds until the request can be admitted after the callers `ahead`, by the state in memory.
    fn earliest(&self, resolved: &Resolved<'_>, ahead: &[u64]) -> u64 {
        let waits = resolved
            .charges
            .iter()
            .filter(|charge| charge.limit.enforced && !may_be_released(charge.limit));
        let earliest = |charge: &ResolvedCharge<'_>| {
            let costs = ahead.iter().copied().chain([charge.cost]);
            self.current_memory().earliest(&self.slot(charge), costs)
        };
        waits.map(earliest).max().unwrap_or(0)
    }

    /// Returns `true` if `future` completes before the deadline.
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

    /// Waits until this time, if there is one.
    async fn sleep_until(&self, time: Option<Duration>) {
        if let Some(time) = time {
            self.before(time, std::future::pending()).await;
        }
    }
}

/// Converts to whole microseconds below [`NEVER`].
fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(NEVER).min(NEVER - 1)
}

/// Returns a random time of at most `max`.
fn random_up_to(max: Duration) -> Duration {
    if max.is_zero() {
        return max;
    }
    let micros = max.as_micros().min(u128::from(u64::MAX));
    Duration::from_micros((new_permit_id() % (micros + 1)) as u64)
}
