//! The limiters: [`Limiter`] in the memory of this process, and [`SharedLimiter`] over any store.
//!
//! Both are handles over the [evaluator], which decides a request in four steps: [resolve] it to charges, charge them,
//! [combine] the outcomes to a decision, and record it.

mod batch;
mod builder;
mod charges;
mod clear;
mod combine;
mod evaluator;
mod fallback;
mod join;
mod lazy;
mod merge;
mod permit;
mod permit_id;
mod reservation;
mod reservation_id;
mod resolve;
mod settled_units;
mod shared;
mod thresholds;
mod up_to;
mod wait;
mod wait_queue;

use std::{
    fmt,
    pin::pin,
    sync::Arc,
    task::{Context, Poll, Waker},
};

use crate::{
    Charge, CostError, Decision, Key, Limit, MemoryStore, PolicyName, PolicySet, Request, Stats,
    StoreError,
};

pub use builder::{BuildError, LimiterBuilder, SharedLimiterBuilder};
pub use charges::{BatchDecision, Charges, Plan};
pub use permit::{Admission, Permit, SharedPermit};
pub(crate) use permit_id::new_permit_id;
#[cfg(feature = "simulation")]
pub use permit_id::seed_permit_ids;
pub use reservation::{Reservation, Reserved, SharedReservation};
pub use reservation_id::{ReservationId, ReservationIdError};
pub use shared::{CheckError, SharedLimiter};
pub use thresholds::ThresholdEvent;
pub use up_to::Grant;
pub use wait::{Wait, WaitError};

use self::{
    evaluator::Evaluator,
    lazy::{LazyEvaluator, SingleLimit},
};

/// A rate limiter with its counters in the memory of this process.
///
/// Cheap to clone; clones share everything. Checks never wait, need no async runtime and cannot fail: a denial is a
/// value.
///
/// ```
/// use pacegate::Limiter;
///
/// let limiter = Limiter::memory("2/minute".parse()?);
/// assert!(limiter.check("alice").is_allowed());
/// assert!(limiter.check("alice").is_allowed());
/// assert!(!limiter.check("alice").is_allowed());
/// assert!(limiter.check("bob").is_allowed());
/// # Ok::<(), pacegate::ParseLimitError>(())
/// ```
///
/// To share counters between processes, use a [`SharedLimiter`].
///
/// # Choosing a call
///
/// | call | use it to |
/// |---|---|
/// | [`check`](Self::check), [`check_cost`](Self::check_cost) | decide one key now |
/// | [`check_up_to`](Self::check_up_to) | take as many units as there are, up to a number |
/// | [`check_many`](Self::check_many) | decide many keys that are independent of each other |
/// | [`check_request`](Self::check_request) | decide by policies that match attributes of the request |
/// | [`check_with`](Self::check_with) | decide by a limit that is known only at the call, such as that of a plan |
/// | [`until_ready`](Self::until_ready) | wait for units instead of being denied |
/// | [`reserve`](Self::reserve) | charge an estimate, and settle it once the real cost is known |
/// | [`acquire`](Self::acquire) | limit the work that runs at the same time |
/// | [`peek`](Self::peek), [`refund`](Self::refund), [`reset`](Self::reset) | read or correct a counter |
/// | [`charges`](Self::charges) | build the charges yourself, as servers and middleware do |
///
/// # Cost and bounds
///
/// A check takes one lock of one shard, or one for each key if several limits apply. It usually allocates nothing for
/// keys of up to 64 bytes. A key takes 36 to 40 bytes in a large store. Memory is bounded by
/// [`max_keys`](LimiterBuilder::max_keys): if it is reached, no live key is evicted, and new keys share an
/// [overflow](crate::Source::Overflow) budget. A counter that is unused again is removed by later checks, without a
/// background thread.
///
/// The process loses its counters when it ends. If limits must survive a restart, use a [`SharedLimiter`].
#[derive(Clone)]
pub struct Limiter {
    /// Without a store: it counts in the memory of its evaluator, so each call is ready at once.
    shared: SharedLimiter,
}

impl Limiter {
    /// Creates a limiter with one limit for each key, and the defaults: at most a million keys, the system's clock.
    ///
    /// Memory for keys is allocated as they arrive: a limiter takes half a kilobyte until its first call, and then
    /// about 48 KiB; with [`max_keys`](LimiterBuilder::max_keys) of up to 32,000, about 9 KiB. Create one limiter and
    /// share it: each new one has separate counters. Two limiters on one key do not act together; for several limits on
    /// one key use [`Limiter::builder`].
    ///
    /// ```
    /// use pacegate::{Limit, Limiter};
    ///
    /// let limiter = Limiter::memory(Limit::per_second(10));
    /// let shared = limiter.clone(); // for another thread: the same counters
    /// let _ = shared.check("alice");
    /// assert_eq!(limiter.peek("alice").remaining(), 9);
    /// ```
    pub fn memory(limit: Limit) -> Self {
        Self::of(LazyEvaluator::of_limit(SingleLimit::new(limit, None, None)))
    }

    /// Returns a builder, for several limits, policies, a clock or other bounds. [`Limiter::memory`] suffices for one
    /// limit.
    pub fn builder() -> LimiterBuilder {
        LimiterBuilder::default()
    }

    fn new(evaluator: Evaluator) -> Self {
        Self::of(evaluator.into())
    }

    fn of(evaluator: LazyEvaluator) -> Self {
        Self { shared: SharedLimiter { evaluator: Arc::new(evaluator), store: None } }
    }

    fn shared(&self) -> &SharedLimiter {
        &self.shared
    }

    #[inline]
    fn evaluator(&self) -> &Evaluator {
        &self.shared.evaluator
    }

    /// Charges one unit to `key` if every limit has room, and nothing otherwise.
    ///
    /// Does not wait, and needs no async runtime. Unlike [`Limiter::check_cost`] it cannot fail, because one unit is
    /// never above the capacity of a limit, and a limit of 0 denies.
    ///
    /// Any two keys that encode to the same bytes share a counter: `check("42")` and `check(42)` are the same key, see
    /// [`Key`]. If the policies do not count by [`Request::KEY`], the key is the attribute `key` of a request without
    /// other attributes, see [`Limiter::check_request`].
    ///
    /// On a [concurrency](crate::Algorithm::Concurrency) limit this takes a unit that cannot be released: it expires
    /// with the period. Use [`Limiter::acquire`] there.
    ///
    /// ```
    /// use pacegate::Limiter;
    ///
    /// let limiter = Limiter::memory("1/minute".parse()?);
    /// assert!(limiter.check(("eu", 42)).is_allowed());
    /// let denied = limiter.check(("eu", 42));
    /// assert!(!denied.is_allowed() && denied.retry_after().is_some());
    /// # Ok::<(), pacegate::ParseLimitError>(())
    /// ```
    #[inline]
    #[must_use = "a denied request must not proceed"]
    pub fn check(&self, key: impl Key) -> Decision {
        let evaluator = self.evaluator();
        key.with(|key| match evaluator.single() {
            Some(single) => evaluator.check_single(single, key),
            None => evaluator.check_unit(key),
        })
    }

    /// Charges `cost` units to `key` if every limit has room, and nothing otherwise.
    ///
    /// Use it for requests of different weight, for example by bytes or tokens. A cost of 0 is a [peek](Self::peek). A
    /// cost above the capacity of a limit, or above the maximum cost of a policy, is an error: no wait would admit it.
    ///
    /// # Errors
    ///
    /// [`CostError`] if the cost is above the capacity or the maximum cost of an enforced policy. Nothing is charged
    /// then, not even to limits that would have room. In shadow mode such a cost is a reported denial instead.
    ///
    /// ```
    /// use pacegate::{Limit, Limiter};
    ///
    /// let limiter = Limiter::memory(Limit::per_minute(10));
    /// assert_eq!(limiter.check_cost("alice", 4)?.remaining(), 6);
    /// assert!(limiter.check_cost("alice", 11).is_err(), "no wait would admit it");
    /// # Ok::<(), pacegate::CostError>(())
    /// ```
    pub fn check_cost(&self, key: impl Key, cost: u64) -> Result<Decision, CostError> {
        key.with(|key| self.evaluator().check_key(key, cost))
    }

    /// Returns the decision for one unit, without charging it. Not counted in the [statistics](Self::stats).
    ///
    /// Do not peek and then check: another thread may take the unit in between. [`Limiter::check`] does both in one
    /// step.
    ///
    /// A key that was never charged gets the answer of an unused limit, and peeking does not create it. On a
    /// concurrency limit, [`Decision::remaining`] is the number of permits that are free.
    ///
    /// ```
    /// use pacegate::{Limit, Limiter};
    ///
    /// let limiter = Limiter::memory(Limit::per_minute(3));
    /// let _ = limiter.check("alice");
    /// assert_eq!(limiter.peek("alice").remaining(), 2);
    /// assert_eq!(limiter.peek("alice").remaining(), 2, "a peek charges nothing");
    /// ```
    #[must_use]
    pub fn peek(&self, key: impl Key) -> Decision {
        key.with(|key| match self.evaluator().check_key(key, 0) {
            Ok(decision) => decision,
            Err(error) => unreachable!("a cost of 0 fits every limit: {error}"),
        })
    }

    /// Charges one unit to `key` under this limit, instead of the limits of the policies.
    ///
    /// Each algorithm, period, amount and burst has a separate counter for the key, which is recorded as
    /// [inline limits](crate::Stats::inline).
    ///
    /// Use it if limits come from data, such as the plan of an account. If a few limits cover all requests, prefer a
    /// [`Policy`](crate::Policy) with overrides: it has a name in statistics and headers. A changed amount or burst
    /// starts with an unused counter; with policies, usage carries over.
    ///
    /// ```
    /// use pacegate::{Limit, Limiter};
    ///
    /// let limiter = Limiter::memory(Limit::per_minute(100));
    /// let plan = Limit::per_minute(1); // for example, from the account of the user
    /// assert!(limiter.check_with("alice", plan).is_allowed());
    /// assert!(!limiter.check_with("alice", plan).is_allowed());
    /// ```
    #[must_use = "a denied request must not proceed"]
    pub fn check_with(&self, key: impl Key, limit: Limit) -> Decision {
        key.with(|key| {
            if !limit.algorithm().keeps_log() {
                return self.evaluator().check_inline(&limit, key);
            }
            let charge = Charge::new(PolicyName::INLINE, key, limit);
            match self.evaluator().check_charge(&charge) {
                Ok(decision) => decision,
                Err(error) => unreachable!("one unit fits every limit: {error}"),
            }
        })
    }

    /// Charges one unit to each key, one after the other, as [`Limiter::check`] does.
    ///
    /// Faster than single checks for many keys: they are loaded together, so that cache misses overlap, and the
    /// clock is read less often. The decisions are independent and in the order of the keys: a denial of one key
    /// does not affect the others.
    ///
    /// If a key occurs several times, it is charged once for each occurrence, in this order.
    ///
    /// ```
    /// use pacegate::{Limit, Limiter};
    ///
    /// let limiter = Limiter::memory(Limit::per_minute(1));
    /// let decisions = limiter.check_many(&["alice", "bob", "alice"]);
    /// let allowed: Vec<_> = decisions.iter().map(|decision| decision.is_allowed()).collect();
    /// assert_eq!(allowed, [true, true, false]);
    /// ```
    #[must_use = "a denied request must not proceed"]
    pub fn check_many<K: Key>(&self, keys: &[K]) -> Vec<Decision> {
        let mut decisions = Vec::new();
        self.check_many_into(keys, &mut decisions);
        decisions
    }

    /// Does the same as [`Limiter::check_many`], and appends the decisions to a vector of the caller, which can be
    /// reused.
    pub fn check_many_into<K: Key>(&self, keys: &[K], decisions: &mut Vec<Decision>) {
        self.evaluator().check_many(keys, decisions);
    }

    /// Charges a request to all policies that apply to it, all or nothing. Its [id](Request::id) is ignored, because no
    /// answer gets lost.
    ///
    /// A request that no policy covers is allowed, with [`Source::Unlimited`](crate::Source::Unlimited). The time
    /// depends on the number of policies that could cover the request, not on the size of the set.
    ///
    /// # Errors
    ///
    /// [`CostError`] if an enforced policy never admits the cost of the request.
    ///
    /// ```
    /// use pacegate::{Limiter, Policy, PolicySet, Request};
    ///
    /// let policies = PolicySet::new([Policy::new("login", ["1/minute"]).per(["ip"])])?;
    /// let limiter = Limiter::builder().policies(policies).build()?;
    /// let request = Request::new().with("ip", "203.0.113.7");
    /// assert!(limiter.check_request(&request)?.is_allowed());
    /// assert!(!limiter.peek_request(&request).is_allowed());
    /// limiter.refund_request(&request);
    /// assert!(limiter.peek_request(&request).is_allowed());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn check_request(&self, request: &Request<'_>) -> Result<Decision, CostError> {
        self.evaluator().check_request(request, request.units())
    }

    /// Returns the decision for one unit of a request, without charging it. The cost of the request is ignored.
    ///
    /// Use it to show the remaining units of a client without a call that counts. Not counted in the statistics.
    #[must_use]
    pub fn peek_request(&self, request: &Request<'_>) -> Decision {
        match self.evaluator().check_request(request, 0) {
            Ok(decision) => decision,
            Err(error) => unreachable!("a cost of 0 fits every limit: {error}"),
        }
    }

    /// Returns up to `cost` units to `key`, and no more than are used.
    ///
    /// Use it for a request that was charged but not served, for example because it failed. If the window of the charge
    /// is over, the refund returns units that later requests have used, so refund promptly. Permits are not affected.
    ///
    /// A refund lets the first caller that [waits](Self::until_ready) for the key try again at once. It is not counted
    /// in the statistics: the request stays recorded as allowed. With several limits, all of them get the units back.
    ///
    /// ```
    /// use pacegate::{Limit, Limiter};
    ///
    /// let limiter = Limiter::memory(Limit::per_hour(5));
    /// let _ = limiter.check_cost("alice", 3)?;
    /// limiter.refund("alice", 2);
    /// assert_eq!(limiter.peek("alice").remaining(), 4);
    /// limiter.refund("alice", 100);
    /// assert_eq!(limiter.peek("alice").remaining(), 5, "never above the limit");
    /// # Ok::<(), pacegate::CostError>(())
    /// ```
    pub fn refund(&self, key: impl Key, cost: u64) {
        in_memory(self.shared.refund(key, cost));
    }

    /// Returns the cost of a request to all policies that apply to it, and no more than is used. See
    /// [`Limiter::refund`].
    ///
    /// Pass the request that was charged: other attributes select other counters. If the policies have changed since,
    /// the refund goes to the policies that apply now.
    pub fn refund_request(&self, request: &Request<'_>) {
        in_memory(self.shared.refund_request(request));
    }

    /// Removes the counters of `key`, so that its limits are unused again.
    ///
    /// Only under the policies of this limiter: inline limits, as in [`Limiter::check_with`], keep their counters. To
    /// remove all keys of a policy, use [`Limiter::clear_policy`].
    ///
    /// Permits of a concurrency limit are removed too, although their holders still work; their release has no effect
    /// then. Callers that wait for the key try again at once.
    pub fn reset(&self, key: impl Key) {
        in_memory(self.shared.reset(key));
    }

    /// Creates a limiter with another limit for each key, on the same state. See [`Limiter::with_policies`].
    ///
    /// The counters carry over if this limiter was built with a limit of the same algorithm and period.
    ///
    /// ```
    /// use pacegate::{Limit, Limiter};
    ///
    /// let limiter = Limiter::memory(Limit::per_minute(2));
    /// let _ = limiter.check("alice");
    /// let raised = limiter.with_limit(Limit::per_minute(10));
    /// assert_eq!(raised.peek("alice").remaining(), 9);
    /// ```
    pub fn with_limit(&self, limit: Limit) -> Self {
        self.with_policies(PolicySet::of_limit(limit))
    }

    /// Creates a limiter with other policies on the same state and statistics.
    ///
    /// Usage carries over to a policy of the same name whose algorithm and period are the same: a new amount or burst
    /// applies from the next decision on. A limit with another algorithm or period starts unused. Over the change, no
    /// more is admitted than the bounds of the old and the new limit allow together. The debt of a token bucket may be
    /// forgiven once it would have been paid at the old rate.
    ///
    /// Both limiters share the counters. If both are used, they admit together no more than a limit with the larger
    /// burst and the larger amount of the two would.
    ///
    /// To change the policies of a running program, keep the limiter in a cell that readers swap, for example of the
    /// crate `arc-swap`. A request that started with the old limiter finishes with it.
    pub fn with_policies(&self, policies: PolicySet) -> Self {
        Self { shared: self.shared.with_policies(policies) }
    }

    /// Returns the calls for explicit charges, for servers and middleware that build their own. Most programs need
    /// [`Limiter::check`] or [`Limiter::check_request`] instead.
    ///
    /// Use it to combine limits of policies with limits of the call, to get the decision of each limit, or to hold
    /// permits for a remote client. See [`Charges`] for an example.
    pub fn charges(&self) -> Charges<'_, Self> {
        Charges::new(&self.shared)
    }

    /// Returns the policies. A limiter that was built from limits has one policy, [`PolicyName::DEFAULT`].
    pub fn policies(&self) -> &PolicySet {
        self.shared.policies()
    }

    /// Returns the statistics since the limiter was created. A limiter from [`Limiter::with_policies`] continues the
    /// counts of policies with the same name.
    ///
    /// Adds up the counters of all threads: call it for a metrics endpoint, not for every request.
    pub fn stats(&self) -> Stats {
        self.shared.stats()
    }

    /// Returns the store, for its [usage](MemoryStore::usage) or to [reclaim](MemoryStore::reclaim) memory.
    pub fn store(&self) -> &MemoryStore {
        &self.evaluator().memory
    }
}

/// Runs a call of a limiter without a store, which is ready at once and cannot fail.
fn in_memory<T>(call: impl Future<Output = Result<T, StoreError>>) -> T {
    match pin!(call).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(Ok(answer)) => answer,
        Poll::Ready(Err(error)) => unreachable!("memory supports every call: {error}"),
        Poll::Pending => unreachable!("memory answers at once"),
    }
}

/// Prints the number of policies on one line. Never prints keys, which may be personal data.
impl fmt::Debug for Limiter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Limiter {{ policies: {} }}", self.policies().policies().len())
    }
}
