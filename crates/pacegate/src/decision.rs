//! The [`Decision`] for a request, and the errors that replace one.

use std::{fmt, str::FromStr, time::Duration};

use crate::{
    Limit, Timestamp,
    algorithm::{NEVER, Origin, Outcome, micros},
    policy::PolicyName,
};

/// The answer for one request: allowed or denied, the remaining units, and when to retry.
///
/// If several limits apply, the numbers are those of the tightest one: of the limits that deny, the one with the
/// longest wait; if all admit, the one with the fewest units left. Two decisions are equal if they differ only in the
/// time at which they were made, or in their debt.
///
/// | | allowed | denied | no policy applies |
/// |---|---|---|---|
/// | [`remaining`](Self::remaining) | after this request | now; may be above 0 | `u64::MAX` |
/// | [`retry_after`](Self::retry_after) | `None` | the wait; `None` if no wait helps | `None` |
/// | [`reset_after`](Self::reset_after) | until the limit is unused | until the limit is unused | zero |
/// | [`policy`](Self::policy), [`limit`](Self::limit) | the fewest units left | the longest wait | `None` |
///
/// A decision is `Copy` and borrows nothing, so it can be stored with the response. With the feature `serde` it
/// serializes to the JSON of the server. Prefer [`into_result`](Self::into_result) where a denial ends the function.
///
/// ```
/// use pacegate::{Limit, Limiter};
///
/// let limiter = Limiter::memory(Limit::per_minute(1));
/// let _ = limiter.check("alice");
/// let decision = limiter.check("alice");
/// if !decision.is_allowed() {
///     let seconds = decision.retry_after_secs().unwrap_or(1);
///     println!("HTTP/1.1 429 Too Many Requests\r\nRetry-After: {seconds}");
/// }
/// ```
#[derive(Clone, Copy)]
pub struct Decision {
    pub(crate) allowed: bool,
    pub(crate) shadow_denied: bool,
    pub(crate) source: Source,
    pub(crate) binding: Option<(PolicyName, Limit)>,
    pub(crate) remaining: u64,
    /// Microseconds; [`NEVER`] if waiting does not help, 0 if allowed.
    pub(crate) retry_after: u64,
    pub(crate) reset_after: u64,
    /// Microseconds by the clock of the store; 0 if the store uses the clock of this process.
    pub(crate) decided_at: u64,
    pub(crate) debt: u64,
}

/// The source of a decision: the store, a cache, a lease, or a failure mode.
///
/// Use it in logs and metrics to see how many decisions needed a call to the store. It parses from and prints as the
/// names of [`Source::as_str`].
///
/// ```
/// use pacegate::{Limit, Limiter, Request, Source};
///
/// let limiter = Limiter::memory(Limit::per_minute(1));
/// assert_eq!(limiter.check("alice").source(), Source::Store);
/// let elsewhere = Request::new().in_domain("other").with("key", "alice");
/// assert_eq!(limiter.check_request(&elsewhere)?.source(), Source::Unlimited);
/// assert_eq!("deny-cache".parse(), Ok(Source::DenyCache));
/// # Ok::<(), pacegate::CostError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Source {
    /// The store.
    Store,
    /// The overflow counter of the store, which new keys share while the store is full.
    Overflow,
    /// A denial that is cached in this process and still holds.
    DenyCache,
    /// Units that this process took from the store in advance.
    Lease,
    /// The failure modes of the policies, because the store did not answer.
    Fallback,
    /// A block: an operator denied the key, regardless of its limits.
    #[doc(hidden)]
    Blocked,
    /// No policy applies to the request.
    Unlimited,
}

/// Error of parsing a [`Source`]: the text is not one of its names.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown source `{}`: expected {}", .0.escape_debug(), Source::ALL.map(Source::as_str).join(", "))]
pub struct ParseSourceError(String);

impl Source {
    const ALL: [Self; 7] = [
        Self::Store,
        Self::Overflow,
        Self::DenyCache,
        Self::Lease,
        Self::Fallback,
        Self::Blocked,
        Self::Unlimited,
    ];

    /// Returns the name used in JSON, logs and metrics.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Store => "store",
            Self::Overflow => "overflow",
            Self::DenyCache => "deny-cache",
            Self::Lease => "lease",
            Self::Fallback => "fallback",
            Self::Blocked => "blocked",
            Self::Unlimited => "unlimited",
        }
    }
}

/// A denied [`Decision`] as an error, for use with `?`.
///
/// Returned by [`Decision::into_result`]. Its message names the policy, the limit and the time to wait.
///
/// Convert it to the error of your program with `From`, and use [`Denied::decision`] for the headers of the response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Denied(Decision);

/// A cost that no wait would admit, because it is above the capacity of a limit or the maximum cost of a policy.
///
/// This is a mistake of the caller, not a denial. Nothing was charged, and the request was not recorded. Report it as
/// a bad request (HTTP 400), or split the request into smaller ones.
///
/// ```
/// use pacegate::{Limit, Limiter};
///
/// let limiter = Limiter::memory(Limit::per_minute(10));
/// let error = limiter.check_cost("alice", 25).unwrap_err();
/// assert_eq!((error.cost, error.max), (25, 10));
/// assert_eq!(limiter.peek("alice").remaining(), 10, "nothing was charged");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a cost of {cost} can never be admitted: policy `{policy}` takes at most {max} at once")]
#[non_exhaustive]
pub struct CostError {
    /// The cost of the request.
    pub cost: u64,
    /// The policy that never admits it.
    pub policy: PolicyName,
    /// The highest cost that the policy admits.
    pub max: u64,
}

impl Decision {
    /// Returns `true` if the request may proceed. Its cost has been charged then, unless the decision is from a peek.
    ///
    /// A denied request has been charged nothing, on any limit.
    #[inline]
    pub fn is_allowed(&self) -> bool {
        self.allowed
    }

    /// Returns `true` if a policy in shadow mode would have denied the request.
    ///
    /// Independent of [`Decision::is_allowed`]: a policy in shadow mode never denies. The other numbers of the decision
    /// describe enforced limits, if any apply.
    ///
    /// ```
    /// use pacegate::{Limiter, Policy, PolicySet, Request};
    ///
    /// let trial = Policy::new("trial", ["1/minute"]).per(["user"]).shadow();
    /// let limiter = Limiter::builder().policies(PolicySet::new([trial])?).build()?;
    /// let request = Request::new().with("user", "alice");
    /// let _ = limiter.check_request(&request)?;
    /// let second = limiter.check_request(&request)?;
    /// assert!(second.is_allowed() && second.is_shadow_denied());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn is_shadow_denied(&self) -> bool {
        self.shadow_denied
    }

    /// Returns the policy that decided: the one with the tightest limit. `None` if no enforced policy applies.
    ///
    /// [`PolicyName::DEFAULT`] for a limiter that was built from limits, [`PolicyName::INLINE`] for an inline limit.
    pub fn policy(&self) -> Option<PolicyName> {
        self.binding.map(|(policy, _)| policy)
    }

    /// Returns the limit that decided: the tightest one. `None` if no enforced policy applies.
    ///
    /// After a reload, this is the limit at the time of the decision.
    pub fn limit(&self) -> Option<Limit> {
        self.binding.map(|(_, limit)| limit)
    }

    /// Returns the units that would be admitted now. After a denial of a cost above 1 this may be positive.
    ///
    /// `u64::MAX` if no policy applies; the JSON form has `null` then.
    ///
    /// After an admission, these are the units left after this request. They are a snapshot: other requests may take
    /// them before the next check. For a degraded decision of a policy that fails `open`, this is the full capacity.
    #[inline]
    pub fn remaining(&self) -> u64 {
        self.remaining
    }

    /// Returns the [debt](crate::Excess::Debt) of the limit that decided, in units: those that are recorded beyond its
    /// capacity. Known if a peek, or units that are already spent, were denied; otherwise 0.
    ///
    /// ```
    /// use pacegate::{Limiter, Request};
    ///
    /// let limiter = Limiter::builder().limit("100/minute").build()?;
    /// let request = Request::new().with("key", "alice");
    /// let _ = limiter.check_request(&request.clone().cost(120).spent())?;
    /// assert_eq!(limiter.peek_request(&request).debt(), 20);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn debt(&self) -> u64 {
        self.debt
    }

    /// Returns the time until the same request would be allowed. `None` if it was allowed or never will be.
    ///
    /// Exact to the microsecond, if no other request charges the same keys in between: the same cost is denied one
    /// microsecond earlier. After a denial, `None` means that no wait helps, because the amount of the limit is 0 or an
    /// operator has blocked the key; report that without a `Retry-After` header.
    ///
    /// A denial that only a failure mode caused has a wait of [`FailureMode::RETRY_AFTER`].
    ///
    /// [`FailureMode::RETRY_AFTER`]: crate::policy::FailureMode::RETRY_AFTER
    pub fn retry_after(&self) -> Option<Duration> {
        let waits = !self.allowed && self.retry_after != NEVER;
        waits.then(|| Duration::from_micros(self.retry_after))
    }

    /// Returns [`Decision::retry_after`] in whole seconds for a `Retry-After` header: rounded up, never 0.
    pub fn retry_after_secs(&self) -> Option<u64> {
        let waits = !self.allowed && self.retry_after != NEVER;
        waits.then(|| self.retry_after.div_ceil(1_000_000).max(1))
    }

    /// Returns the time until the limit is unused again, if no further request is charged. Zero if it is unused now.
    ///
    /// It belongs to the limit that decided, so another limit of the key may take longer. For a fixed window this is
    /// the end of the window; for a token bucket, the time to refill it.
    pub fn reset_after(&self) -> Duration {
        Duration::from_micros(self.reset_after)
    }

    /// Returns the time until more units are available than [remain](Self::remaining) now. After a denial, this is
    /// [`Decision::retry_after`].
    ///
    /// Never too early, and exact to the microsecond if no other request charges the same keys. `None` if there never
    /// will be more. Also `None` for an admission by a sliding window, a sliding log or a concurrency limit with more
    /// than one unit in use: their units become free at instants that a decision does not carry.
    ///
    /// ```
    /// use std::time::Duration;
    /// use pacegate::{Limiter, ManualClock};
    ///
    /// // One unit is refilled every 100 ms.
    /// let limiter = Limiter::builder().limit("10/second burst 2").clock(ManualClock::new()).build()?;
    /// assert_eq!(limiter.check("alice").more_after(), Some(Duration::from_millis(100)));
    /// # Ok::<(), pacegate::BuildError>(())
    /// ```
    pub fn more_after(&self) -> Option<Duration> {
        if !self.allowed {
            return self.retry_after();
        }
        let (_, limit) = self.binding?;
        let used = limit.capacity().saturating_sub(self.remaining);
        let more = limit.next_unit_after(used, self.reset_after)?;
        Some(Duration::from_micros(more))
    }

    /// Returns the instant at which the limit is unused again, by the clock of the store.
    ///
    /// `None` if the store uses the clock of this process: then [`Decision::reset_after`] counts from now.
    pub fn reset_at(&self) -> Option<Timestamp> {
        let decided = (self.decided_at > 0).then(|| Timestamp::from_micros(self.decided_at));
        decided.map(|decided| decided.after(self.reset_after()))
    }

    /// Returns the source of the answer, for logs and metrics. See [`Source`].
    pub fn source(&self) -> Source {
        self.source
    }

    /// Returns `true` if the store did not answer, so that the failure mode of each policy decided.
    ///
    /// The numbers then describe the local counters of this process. The limit is that of the policy, although this
    /// process may admit only a share of it.
    pub fn is_degraded(&self) -> bool {
        self.source == Source::Fallback
    }

    /// Creates an allowed decision, for a custom limiter. The limiters of this library do not need it.
    ///
    /// `remaining` is the number of units left after this request. `reset_after` is the time until the limit is unused
    /// again, rounded up to the microsecond. The [source](Self::source) is [`Source::Store`].
    ///
    /// ```
    /// use std::time::Duration;
    /// use pacegate::{Decision, Limit};
    ///
    /// let limit = Limit::per_minute(10);
    /// let last = Decision::admission("own".parse()?, limit, 0, Duration::from_secs(60));
    /// let over = Decision::denial("own".parse()?, limit, 0, Some(Duration::from_millis(1_500)));
    /// assert!(last.is_allowed());
    /// assert_eq!(over.retry_after_secs(), Some(2));
    /// # Ok::<(), pacegate::policy::PolicyNameError>(())
    /// ```
    pub fn admission(
        policy: PolicyName,
        limit: Limit,
        remaining: u64,
        reset_after: Duration,
    ) -> Self {
        let reset_after = micros(reset_after);
        Self { binding: Some((policy, limit)), remaining, reset_after, ..Self::UNLIMITED }.own()
    }

    /// Creates a denied decision, for a custom limiter. `retry_after: None` means that waiting does not help.
    ///
    /// Waits are rounded up to the microsecond, and are at least one. The limit counts as unused when the wait is over.
    /// See [`Decision::admission`] for an example.
    pub fn denial(
        policy: PolicyName,
        limit: Limit,
        remaining: u64,
        retry_after: Option<Duration>,
    ) -> Self {
        let retry_after = retry_after.map_or(NEVER, |wait| micros(wait).max(1));
        let reset_after = if retry_after == NEVER { 0 } else { retry_after };
        let binding = Some((policy, limit));
        let denied = Self { binding, remaining, retry_after, reset_after, ..Self::UNLIMITED };
        Self { allowed: false, ..denied.own() }
    }

    /// Sets the source of a decision that a custom limiter creates.
    fn own(self) -> Self {
        Self { source: Source::Store, ..self }
    }

    /// Returns the decision if it is allowed, and a [`Denied`] error otherwise.
    ///
    /// ```
    /// use pacegate::{Denied, Limit, Limiter};
    ///
    /// fn export(limiter: &Limiter, user: &str) -> Result<&'static str, Denied> {
    ///     limiter.check(user).into_result()?;
    ///     Ok("exported")
    /// }
    ///
    /// let limiter = Limiter::memory(Limit::per_hour(1));
    /// assert_eq!(export(&limiter, "alice"), Ok("exported"));
    /// let denied = export(&limiter, "alice").unwrap_err();
    /// assert!(denied.to_string().starts_with("denied by policy `default` (1/hour), retry in "));
    /// ```
    pub fn into_result(self) -> Result<Self, Denied> {
        if self.allowed { Ok(self) } else { Err(Denied(self)) }
    }

    /// The answer to a request that no policy applies to.
    pub(crate) const UNLIMITED: Self = Self {
        allowed: true,
        shadow_denied: false,
        source: Source::Unlimited,
        binding: None,
        remaining: u64::MAX,
        retry_after: 0,
        reset_after: 0,
        decided_at: 0,
        debt: 0,
    };

    /// Creates the decision of one limit from its outcome.
    #[inline]
    pub(crate) fn of(policy: PolicyName, limit: Limit, outcome: Outcome) -> Self {
        Self {
            allowed: outcome.is_admitted(),
            shadow_denied: false,
            source: outcome.origin.into(),
            binding: Some((policy, limit)),
            remaining: outcome.remaining,
            retry_after: outcome.retry_after,
            reset_after: outcome.reset_after,
            decided_at: outcome.decided_at,
            debt: outcome.debt,
        }
    }

    /// Returns true if this decision, not `other`, describes a request to which both limits apply: a denial before
    /// an admission, the denial with the longer wait, the admission with fewer units remaining.
    ///
    /// Use it to combine decisions that were made separately, for example by two limiters. Such a combination is not
    /// all or nothing: the limiter that admitted has been charged.
    ///
    /// ```
    /// use pacegate::{Limit, Limiter};
    ///
    /// let (user, site) = (Limiter::memory(Limit::per_minute(1)), Limiter::memory(Limit::per_minute(9)));
    /// let (one, other) = (user.check("alice"), site.check("shop"));
    /// assert!(one.is_tighter_than(&other), "0 units remain, instead of 8");
    /// ```
    pub fn is_tighter_than(&self, other: &Self) -> bool {
        match (self.allowed, other.allowed) {
            (true, true) => {
                self.remaining < other.remaining
                    || (other.binding.is_none() && self.binding.is_some())
            }
            (false, false) => self.retry_after > other.retry_after,
            (allowed, _) => !allowed,
        }
    }
}

impl PartialEq for Decision {
    fn eq(&self, other: &Self) -> bool {
        let Self {
            allowed,
            shadow_denied,
            source,
            binding,
            remaining,
            retry_after,
            reset_after,
            ..
        } = *self;
        (allowed, shadow_denied, source, binding)
            == (other.allowed, other.shadow_denied, other.source, other.binding)
            && (remaining, retry_after, reset_after)
                == (other.remaining, other.retry_after, other.reset_after)
    }
}

impl Eq for Decision {}

impl fmt::Display for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for Source {
    type Err = ParseSourceError;

    fn from_str(word: &str) -> Result<Self, ParseSourceError> {
        let source = Self::ALL.into_iter().find(|source| source.as_str() == word);
        source.ok_or_else(|| ParseSourceError(word.chars().take(80).collect()))
    }
}

impl From<Origin> for Source {
    #[inline]
    fn from(origin: Origin) -> Self {
        match origin {
            Origin::Store => Self::Store,
            Origin::Overflow => Self::Overflow,
            Origin::DenyCache => Self::DenyCache,
            Origin::Lease => Self::Lease,
        }
    }
}

impl Denied {
    /// Creates a denial that no wait ends.
    pub(crate) fn for_good(policy: PolicyName, limit: Limit) -> Self {
        Self(Decision::denial(policy, limit, 0, None))
    }

    /// Returns the decision, which is never [allowed](Decision::is_allowed), for its remaining units or time to wait.
    pub fn decision(&self) -> Decision {
        self.0
    }
}

impl std::error::Error for Denied {}

impl fmt::Display for Denied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("denied")?;
        if let Some((policy, limit)) = self.0.binding {
            write!(f, " by policy `{policy}` ({limit})")?;
        }
        match self.0.retry_after() {
            Some(wait) => write!(f, ", retry in {wait:?}"),
            None => f.write_str(", permanently"),
        }
    }
}

impl fmt::Debug for Decision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Decision")
            .field("allowed", &self.allowed)
            .field("policy", &self.policy())
            .field("limit", &self.limit())
            .field("remaining", &self.remaining)
            .field("retry_after", &self.retry_after())
            .field("reset_after", &self.reset_after())
            .field("source", &self.source)
            .field("shadow_denied", &self.shadow_denied)
            .field("degraded", &self.is_degraded())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn source_round_trips_through_text() {
        for source in Source::ALL {
            assert_eq!(source.to_string().parse(), Ok(source));
        }
        assert_eq!(Source::DenyCache.to_string(), "deny-cache");
        let error = "shop\n".parse::<Source>().unwrap_err().to_string();
        let words = "store, overflow, deny-cache, lease, fallback, blocked, unlimited";
        assert_eq!(error, format!("unknown source `shop\\n`: expected {words}"));
    }

    #[test]
    fn custom_denial_waits_at_least_a_microsecond() {
        let denial = |wait| Decision::denial(PolicyName::DEFAULT, Limit::per_second(1), 0, wait);
        for (wait, expected) in [(0, 1), (1, 1), (1_000, 1), (1_001, 2)] {
            let denied = denial(Some(Duration::from_nanos(wait)));
            assert_eq!(denied.retry_after(), Some(Duration::from_micros(expected)), "{wait}");
            assert_eq!(denied.reset_after(), Duration::from_micros(expected), "{wait}");
        }
        assert_eq!(
            denial(Some(Duration::MAX)).retry_after(),
            Some(Duration::from_micros(NEVER - 1))
        );
        assert_eq!(
            (denial(None).retry_after(), denial(None).reset_after()),
            (None, Duration::ZERO)
        );
    }
}
