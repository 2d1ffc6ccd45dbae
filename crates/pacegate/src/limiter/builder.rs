use std::{convert::Infallible, fmt, sync::Arc};

use super::{
    Limiter, SharedLimiter, ThresholdEvent,
    evaluator::Evaluator,
    lazy::{LazyEvaluator, SingleLimit},
    thresholds::{OnThreshold, ThresholdReporter},
    wait_queue::WaitQueue,
};
use crate::{
    Limit, MemoryStore, ParseLimitError, PolicySet, Store, StoreError,
    clock::Clock,
    policy::{PolicyError, PolicyName},
    store::memory::Time,
};

/// Builds a [`Limiter`], or with a [`Store`] a [`SharedLimiter`]. `build` reports the first invalid setting.
///
/// Either add limits, which apply to every key, or set policies. Everything else has a default.
///
/// Errors are collected: `limit` never fails, and `build` returns the first problem, so that calls can be chained
/// without `?`.
///
/// | setting | default |
/// |---|---|
/// | [`limit`](Self::limit) or [`policies`](Self::policies) | none: one of them is required |
/// | [`max_keys`](Self::max_keys) | 1,000,000 |
/// | [`max_waiters`](Self::max_waiters) | 1,000 for each key |
/// | [`clock`](Self::clock) | the system's clock |
/// | [`on_threshold`](Self::on_threshold) | thresholds are not reported |
///
/// ```
/// use pacegate::Limiter;
///
/// let limiter = Limiter::builder()
///     .limit("10/second burst 20")
///     .limit("1000/hour")
///     .max_keys(50_000)
///     .build()?;
/// assert!(limiter.check("alice").is_allowed());
/// # Ok::<(), pacegate::BuildError>(())
/// ```
#[derive(Default)]
#[must_use = "call `build`"]
pub struct LimiterBuilder<S = ()> {
    store: S,
    limits: Vec<Limit>,
    policies: Option<PolicySet>,
    max_keys: Option<usize>,
    max_waiters: Option<usize>,
    clock: Option<Arc<dyn Clock>>,
    on_threshold: Option<OnThreshold>,
    error: Option<BuildError>,
}

/// Builds a [`SharedLimiter`]. Returned by [`SharedLimiter::builder`].
pub type SharedLimiterBuilder = LimiterBuilder<Arc<dyn Store>>;

/// Error of building a limiter: a setting is invalid, or two settings contradict each other.
///
/// ```
/// use pacegate::{BuildError, Limiter};
///
/// assert_eq!(Limiter::builder().build().unwrap_err(), BuildError::NoLimit);
/// let error = Limiter::builder().limit("100/fortnight").build().unwrap_err();
/// assert!(error.to_string().starts_with("`100/fortnight` is not a limit"));
/// let error = Limiter::builder().limit("1/minute").limit("2/minute").build().unwrap_err();
/// assert!(matches!(error, BuildError::Policy(_)), "two limits on one counter");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// The text of a limit is invalid.
    #[error(transparent)]
    Limit(#[from] ParseLimitError),
    /// The limits or policies contradict each other.
    #[error(transparent)]
    Policy(#[from] PolicyError),
    /// Neither a limit nor policies were set.
    #[error("no limit: call `limit` or `policies`")]
    NoLimit,
    /// Both limits and policies were set.
    #[error("set either limits or policies: add the limit as a policy")]
    LimitAndPolicies,
    /// The store can never count the limits of a policy.
    #[error("policy `{policy}`: {error}")]
    Store {
        /// The policy.
        policy: PolicyName,
        /// The reason.
        error: StoreError,
    },
}

impl LimiterBuilder {
    /// Builds the limiter.
    ///
    /// Fails if neither limits nor policies were set, if both were, or with the first invalid limit. Memory for keys is
    /// allocated as they arrive.
    pub fn build(self) -> Result<Limiter, BuildError> {
        match self.single_limit() {
            Some(settings) => Ok(Limiter::of(LazyEvaluator::of_limit(settings))),
            None => Ok(Limiter::new(self.finish(|()| None)?.1)),
        }
    }

    /// Returns the settings of a limiter that is created at its first use. `None` if it has other settings too.
    fn single_limit(&self) -> Option<SingleLimit> {
        let has_others = self.policies.is_some()
            || self.clock.is_some()
            || self.on_threshold.is_some()
            || self.error.is_some();
        match *self.limits {
            [limit] if !has_others => {
                Some(SingleLimit::new(limit, self.max_keys, self.max_waiters))
            }
            _ => None,
        }
    }
}

impl SharedLimiterBuilder {
    pub(super) fn over(store: impl Store) -> Self {
        Self {
            store: Arc::new(store),
            limits: Vec::new(),
            policies: None,
            max_keys: None,
            max_waiters: None,
            clock: None,
            on_threshold: None,
            error: None,
        }
    }

    /// Builds the limiter. It sends no charges: the only call to the store is [`Store::supports`].
    ///
    /// Fails if neither limits nor policies were set, if both were, with the first invalid limit, or if the store can
    /// never count one of the limits, see [`Store::supports`].
    pub fn build(self) -> Result<SharedLimiter, BuildError> {
        let (store, evaluator) = self.finish(|store| Some(store.clone()))?;
        check_support(&*store, &evaluator.policies)?;
        Ok(SharedLimiter { evaluator: Arc::new(evaluator.into()), store: Some(store) })
    }
}

/// Returns an error if the store cannot count the limits of a policy or of one of its overrides.
fn check_support(store: &dyn Store, policies: &PolicySet) -> Result<(), BuildError> {
    for policy in policies.policies() {
        let overrides = policy.overrides.iter().map(|other| &other.limits);
        for limits in std::iter::once(&policy.limits).chain(overrides) {
            store
                .supports(limits, policy.lease.is_some())
                .map_err(|error| BuildError::Store { policy: policy.name, error })?;
        }
    }
    Ok(())
}

/// Settings of both kinds of limiters.
///
/// With a store, `max_keys` bounds only the local fallback, and the clock is used only for the fallback and for
/// waiting: the store uses a separate clock.
impl<S> LimiterBuilder<S> {
    /// Adds a limit for each key: text such as `"100/minute"`, or a [`Limit`].
    ///
    /// Call it several times to combine limits: a request is charged to all of them or to none. Two limits of one
    /// limiter must differ in algorithm or period, and there are at most 16. `build` reports invalid text.
    pub fn limit<L>(mut self, limit: L) -> Self
    where
        L: TryInto<Limit>,
        BuildError: From<L::Error>,
    {
        match limit.try_into() {
            Ok(limit) => self.limits.push(limit),
            Err(error) => self.error = self.error.or(Some(error.into())),
        }
        self
    }

    /// Sets the policies, for different limits for different requests. Cannot be combined with [`limit`](Self::limit).
    ///
    /// ```
    /// use pacegate::{Limiter, Policy, PolicySet, Request};
    ///
    /// let per_user = Policy::new("per-user", ["2/minute"]).per(["user"]);
    /// let limiter = Limiter::builder().policies(PolicySet::new([per_user])?).build()?;
    /// let decision = limiter.check_request(&Request::new().with("user", "alice"))?;
    /// assert_eq!(decision.remaining(), 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn policies(self, policies: PolicySet) -> Self {
        Self { policies: Some(policies), ..self }
    }

    /// Sets the maximum number of keys in memory, at least one. Default: 1,000,000, which take about 40 MB when in use.
    ///
    /// If the maximum is reached, live keys stay, and new keys of a policy share one
    /// [overflow](crate::Source::Overflow) budget.
    ///
    /// A key counts once for each limit that was charged to it. Choose a maximum above the number of keys that are
    /// active within the longest period. [`MemoryStore::usage`] shows the keys in use and the charges that overflowed.
    ///
    /// ```
    /// use pacegate::{Limiter, Source};
    ///
    /// let limiter = Limiter::builder().limit("5/hour").max_keys(1).build()?;
    /// assert_eq!(limiter.check("alice").source(), Source::Store);
    /// assert_eq!(limiter.check("bob").source(), Source::Overflow);
    /// assert_eq!(limiter.check("carol").remaining(), 3, "bob and carol share one budget");
    /// # Ok::<(), pacegate::BuildError>(())
    /// ```
    pub fn max_keys(self, max_keys: usize) -> Self {
        Self { max_keys: Some(max_keys), ..self }
    }

    /// Sets the maximum number of callers that wait for one key, as in
    /// [`Limiter::until_ready`]. Default: 1,000.
    ///
    /// Further callers fail with [`WaitError::QueueFull`](crate::WaitError::QueueFull).
    ///
    /// A bound keeps a slow upstream from filling the memory with waiting requests. Raise it for background jobs that
    /// may all queue; lower it where a quick error is better than a long wait.
    pub fn max_waiters(self, max_waiters: usize) -> Self {
        Self { max_waiters: Some(max_waiters), ..self }
    }

    /// Sets the clock. Default: the system's clock.
    ///
    /// Use a [`ManualClock`](crate::ManualClock) in tests: decisions and waits then depend only on the test.
    pub fn clock(self, clock: impl Clock) -> Self {
        Self { clock: Some(Arc::new(clock)), ..self }
    }

    /// Sets the function that receives the keys which reach a [threshold](crate::Policy::notify) of their policy.
    /// Default: thresholds are not reported.
    ///
    /// A [`Limiter`] calls it in the decision, and a [`SharedLimiter`] in a task of the store. It must return quickly:
    /// pass the event to a channel if the work takes longer.
    ///
    /// Each event is reported once for its key, limit, window and threshold. Processes that share a store agree through
    /// the store on the one that reports it ([`Store::claim`]). If the store does not answer for several seconds, more
    /// than one process may report it. Decisions by a failure mode or by the overflow counter report nothing.
    ///
    /// ```
    /// use std::sync::mpsc;
    /// use pacegate::{Limiter, Policy, PolicySet};
    ///
    /// let plan = Policy::new("plan", ["10/day"]).per(["key"]).notify([80, 100]);
    /// let (sender, events) = mpsc::sync_channel(100);
    /// let limiter = Limiter::builder()
    ///     .policies(PolicySet::new([plan])?)
    ///     .on_threshold(move |event| drop(sender.try_send(event)))
    ///     .build()?;
    /// limiter.check_cost("alice", 9)?;
    /// let event = events.try_recv()?;
    /// assert_eq!((event.threshold.percent(), event.used), (80, 9));
    /// limiter.check_cost("alice", 1)?;
    /// assert_eq!(events.try_recv()?.threshold.percent(), 100);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn on_threshold(
        self,
        on_threshold: impl Fn(ThresholdEvent) + Send + Sync + 'static,
    ) -> Self {
        Self { on_threshold: Some(Box::new(on_threshold)), ..self }
    }

    /// Validates the settings and creates the evaluator. Returns the store with it. `shared` returns the store that
    /// other processes use too.
    fn finish(
        self,
        shared: impl FnOnce(&S) -> Option<Arc<dyn Store>>,
    ) -> Result<(S, Evaluator), BuildError> {
        if let Some(error) = self.error {
            return Err(error);
        }
        let policies = match (self.policies, self.limits) {
            (Some(policies), limits) if limits.is_empty() => policies,
            (Some(_), _) => return Err(BuildError::LimitAndPolicies),
            (None, limits) if limits.is_empty() => return Err(BuildError::NoLimit),
            (None, limits) => PolicySet::of_limits(limits)?,
        };
        let max_keys = self.max_keys.unwrap_or(MemoryStore::DEFAULT_MAX_KEYS);
        let time = self.clock.map_or_else(Time::default, Time::Other);
        let memory = MemoryStore::build(max_keys, time);
        let wait_queue = self.max_waiters.map_or_else(WaitQueue::default, WaitQueue::new);
        let reporter = self.on_threshold.map(|on_threshold| {
            Arc::new(ThresholdReporter::new(on_threshold, shared(&self.store), memory.clone()))
        });
        Ok((self.store, Evaluator::reporting(policies, memory, wait_queue, reporter)))
    }
}

impl<S: fmt::Debug> fmt::Debug for LimiterBuilder<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { store, limits, policies, max_keys, max_waiters, clock, error, .. } = self;
        f.debug_struct("LimiterBuilder")
            .field("store", store)
            .field("limits", limits)
            .field("policies", policies)
            .field("max_keys", max_keys)
            .field("max_waiters", max_waiters)
            .field("clock", clock)
            .field("error", error)
            .finish_non_exhaustive()
    }
}

impl From<Infallible> for BuildError {
    fn from(never: Infallible) -> Self {
        match never {}
    }
}

impl TryFrom<&str> for Limit {
    type Error = ParseLimitError;

    fn try_from(text: &str) -> Result<Self, ParseLimitError> {
        text.parse()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn builders_take_any_text() {
        let text = "5/minute".to_owned();
        let build = |builder: LimiterBuilder| builder.build().unwrap().peek("a");
        let expected = build(Limiter::builder().limit("5/minute")).limit();
        assert_eq!(expected, Some(Limit::per_minute(5)));
        assert_eq!(build(Limiter::builder().limit(&text)).limit(), expected);
        assert_eq!(build(Limiter::builder().limit(text)).limit(), expected);
        let error = Limiter::builder().limit("5".to_owned()).build().unwrap_err();
        assert_eq!(error, "5".parse::<Limit>().unwrap_err().into());
    }
}
