//! Policies: named rules with the requests they cover, the attributes they count by, and their limits.
//!
//! A [`Policy`] is plain data. [`PolicySet::new`] validates a list of policies and compiles it for lookup. A set is
//! immutable: a changed list is a new set, so each request is decided by one set.
//!
//! # Example
//!
//! ```
//! use pacegate::{Limiter, Request};
//! use pacegate::policy::{Condition, FailureMode, Match, Policy, PolicySet};
//!
//! let login = Policy::new("login-per-ip", ["5/minute sliding-log"])
//!     .matching("path", Condition::equal("/login"))
//!     .per(["ip"])
//!     .failing(FailureMode::Closed);
//! let api = Policy::new("api-per-user", ["100/minute", "5000/day"])
//!     .matching("path", Condition::Glob("/api/**".parse()?))
//!     .per(["user"])
//!     .overriding(Match::any().and("plan", Condition::equal("partner")), ["1000/minute"]);
//! let limiter = Limiter::builder().policies(PolicySet::new([login, api])?).build()?;
//!
//! let request = Request::new().with("path", "/api/orders").with("user", "alice");
//! assert_eq!(limiter.check_request(&request)?.remaining(), 99);
//! let partner = request.with("plan", "partner");
//! assert_eq!(limiter.check_request(&partner)?.remaining(), 999, "a separate counter");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod glob;
mod index;
mod lease;
mod matcher;
mod name;
mod paths;
mod set;
mod tag;
mod threshold;
mod view;
mod words;

use std::{borrow::Cow, num::NonZeroU32, time::Duration};

use crate::{Counter, Excess, KeyRef, Limit, ParseLimitError, Request};

pub use glob::{Glob, GlobError};
pub use lease::{Lease, ParseLeaseError};
pub use matcher::{Condition, Match};
pub use name::{PolicyName, PolicyNameError};
pub use paths::{ParsePathsError, Paths};
pub use set::{PolicyError, PolicySet};
pub use tag::Tag;
pub use threshold::{Threshold, ThresholdError};
pub use words::{ParseFailureModeError, ParseModeError};

pub(crate) use set::{LimitEntry, PolicyMatch};

/// A named rule: the requests it covers, the attributes it counts by, and its limits.
///
/// Every policy that covers a request applies to it, all or nothing.
///
/// Defaults of [`Policy::new`]: the default domain, every request, one counter for all of them, enforced, and
/// `local` as failure mode. The fields are public, so that configuration code can set them directly;
/// [`PolicySet::new`] validates them.
///
/// ```
/// use pacegate::{Limiter, Request};
/// use pacegate::policy::{Condition, Policy, PolicySet};
///
/// let login = Policy::new("login-per-ip", ["5/minute sliding-window"])
///     .matching("path", Condition::equal("/login"))
///     .per(["ip"]);
/// let limiter = Limiter::builder().policies(PolicySet::new([login])?).build()?;
///
/// let request = Request::new().with("path", "/login").with("ip", "203.0.113.7");
/// assert_eq!(limiter.check_request(&request)?.remaining(), 4);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Policy {
    /// The name, unique in its set. It is part of the identity of each counter, so a renamed policy starts unused.
    pub name: PolicyName,
    /// The domain. Requests of other domains are not covered. Default: the empty text.
    pub domain: String,
    /// Conditions on the attributes of a covered request.
    pub matching: Match,
    /// The form in which the attribute `path` is compared and counted.
    pub paths: Paths,
    /// The attributes whose values form the key. If empty, all requests share one counter.
    pub per: Vec<String>,
    /// The treatment of requests that lack one of those attributes.
    pub missing: Missing,
    /// The limits, at least one. All of them apply to each key, all or nothing.
    pub limits: Vec<Limit>,
    /// Replacements of `limits` for some requests. The first that matches applies.
    pub overrides: Vec<Override>,
    /// The mode: deny, or only report. Default: deny.
    pub mode: Mode,
    /// The failure mode, which applies when the store does not answer. Not used by a [`Limiter`](crate::Limiter), whose
    /// store always answers.
    pub failure: FailureMode,
    /// The maximum cost of one request, if it is less than the capacity. `None`: the capacity of the limits.
    pub max_cost: Option<u64>,
    /// `true` if every charge is recorded in full, even if it exceeds a limit, because its units have already been
    /// spent. See [`Policy::record_in_full`].
    pub record_in_full: bool,
    /// The maximum debt, in units beyond the capacity of each limit. `None`: the capacity.
    pub max_debt: Option<u64>,
    /// The treatment of a reservation that is not settled within its time to live.
    pub unsettled: Unsettled,
    /// The tag that selects the server of a counter on a cluster.
    pub tag: Tag,
    /// Units that a store may reserve in advance for this process; for fixed and sliding windows only. Leases never
    /// over-admit. If several processes hold leases, a request may be denied although another process has unused
    /// units. `None`: the store decides every request.
    pub lease: Option<Lease>,
    /// The parts of each limit at which a key is reported. See [`Policy::notify`].
    pub notify: Vec<Threshold>,
    /// The first invalid argument of [`Policy::new`], reported by [`PolicySet::new`].
    invalid: Option<Box<PolicyError>>,
}

/// Replacement limits for some requests of a policy.
///
/// They count separately from the policy and from other overrides. The counter is named by the policy and `matching`,
/// so usage carries over to a new amount or burst.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Override {
    /// Conditions on the requests of the policy.
    pub matching: Match,
    /// The limits of these requests. If empty, they are not limited.
    pub limits: Vec<Limit>,
}

/// The mode of a policy. Its text form, as in configurations, is `enforce` or `shadow`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Mode {
    /// Denies requests over the limit.
    #[default]
    Enforce,
    /// Reports requests over the limit, and admits them. Requests within the limit are counted as in `Enforce`.
    Shadow,
}

/// The action of a policy when the store does not answer. Such a decision is
/// [degraded](crate::Decision::is_degraded).
///
/// A limit of 0 denies in every mode, and a policy in shadow mode in none.
///
/// Parses from and prints as text: `open`, `closed`, `local` with all of the limit, `local 1/3` with a part of it.
///
/// ```
/// use pacegate::policy::FailureMode;
///
/// let share: FailureMode = "local 1/3".parse()?;
/// assert!(matches!(share, FailureMode::Local { numerator: 1, denominator } if denominator.get() == 3));
/// assert_eq!(FailureMode::default().to_string(), "local");
/// # Ok::<(), pacegate::policy::ParseFailureModeError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum FailureMode {
    /// Admits requests without counting them. Choose it if availability matters more than the limit.
    Open,
    /// Denies requests, with a retry after [`FailureMode::RETRY_AFTER`]. Choose it if the limit protects against abuse,
    /// such as guessing passwords.
    Closed,
    /// Counts in the memory of this process, with `numerator / denominator` of the limit. The counters are kept after
    /// the store recovers, in case it fails again. A cost above the share is denied as by `Closed`.
    Local {
        /// The share of this process.
        numerator: u32,
        /// The number of shares.
        denominator: NonZeroU32,
    },
}

/// The treatment of a request that lacks an attribute of the key.
///
/// ```
/// use pacegate::{Limiter, Request};
/// use pacegate::policy::{Missing, Policy, PolicySet};
///
/// let users = Policy::new("users", ["1/minute"]).per(["user"]).missing(Missing::Skip);
/// let limiter = Limiter::builder().policies(PolicySet::new([users])?).build()?;
/// let anonymous = Request::new().with("ip", "203.0.113.7");
/// for _ in 0..2 {
///     assert!(limiter.check_request(&anonymous)?.is_allowed(), "no policy covers it");
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Missing {
    /// All requests that lack it share one counter, so a client gains nothing by omitting it.
    #[default]
    Share,
    /// The policy does not cover the request. Choose it only if another policy limits such requests.
    Skip,
}

/// The treatment of a reservation that is neither settled nor cancelled within its time to live.
///
/// ```
/// use std::time::Duration;
/// use pacegate::{Limiter, ManualClock};
/// use pacegate::policy::{Policy, PolicySet, Unsettled};
///
/// let tokens = Policy::new("tokens", ["100/hour"]).per(["key"]).unsettled(Unsettled::Return);
/// let clock = ManualClock::new();
/// let limiter = Limiter::builder().policies(PolicySet::new([tokens])?).clock(clock.clone()).build()?;
/// let _lost = limiter.reserve("alice", 80, Duration::from_secs(60))?;
/// assert_eq!(limiter.peek("alice").remaining(), 20);
/// clock.advance(Duration::from_secs(60));
/// assert_eq!(limiter.peek("alice").remaining(), 100);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Unsettled {
    /// The estimate stays charged, because its units were probably spent.
    #[default]
    Keep,
    /// The estimate is returned, as far as it still counts. Choose it if work that was not settled did not take place.
    ///
    /// It is returned before the next decision for the key after the time to live, also if the process that made the
    /// reservation has ended: a shared store does it.
    Return,
}

impl Policy {
    /// Creates a policy that covers every request of the default domain, with one budget for all of them.
    ///
    /// The name and the limits may be text. [`PolicySet::new`] returns an error if the text is invalid.
    ///
    /// ```
    /// use pacegate::{Limit, policy::{Policy, PolicySet}};
    ///
    /// let policy = Policy::new("api", ["10/second burst 20", "1000/hour"]);
    /// assert_eq!(policy.limits[1], Limit::per_hour(1_000));
    ///
    /// let error = PolicySet::new([Policy::new("api", ["10/fortnight"])]).unwrap_err();
    /// assert!(error.to_string().starts_with("policy `api`: `10/fortnight` is not a limit"));
    /// ```
    pub fn new<L>(
        name: impl TryInto<PolicyName, Error: Into<PolicyNameError>>,
        limits: impl IntoIterator<Item = L>,
    ) -> Self
    where
        L: TryInto<Limit, Error: Into<ParseLimitError>>,
    {
        let (name, invalid) = match name.try_into() {
            Ok(name) => (name, None),
            Err(error) => (PolicyName::DEFAULT, Some(PolicyError::InvalidName(error.into()))),
        };
        let mut policy = Self {
            name,
            domain: String::new(),
            matching: Match::default(),
            paths: Paths::default(),
            per: Vec::new(),
            missing: Missing::default(),
            limits: Vec::new(),
            overrides: Vec::new(),
            mode: Mode::default(),
            failure: FailureMode::default(),
            max_cost: None,
            record_in_full: false,
            max_debt: None,
            unsettled: Unsettled::default(),
            tag: Tag::default(),
            lease: None,
            notify: Vec::new(),
            invalid: invalid.map(Box::new),
        };
        policy.limits = policy.parse_limits(limits);
        policy
    }

    /// Converts limits, which may be text. Keeps the first error for [`PolicySet::new`].
    fn parse_limits<L>(&mut self, limits: impl IntoIterator<Item = L>) -> Vec<Limit>
    where
        L: TryInto<Limit, Error: Into<ParseLimitError>>,
    {
        let limits = limits.into_iter();
        let mut valid = Vec::with_capacity(limits.size_hint().0);
        for limit in limits {
            match limit.try_into() {
                Ok(limit) => valid.push(limit),
                Err(error) if self.invalid.is_none() => {
                    let error =
                        PolicyError::InvalidLimit { policy: self.name, error: error.into() };
                    self.invalid = Some(Box::new(error));
                }
                Err(_) => {}
            }
        }
        valid
    }

    /// Covers only requests of `domain`. Default: the empty text, the domain of [`Request::new`].
    ///
    /// Use domains to keep the policies of several applications apart in one set.
    #[must_use]
    pub fn in_domain(self, domain: impl Into<String>) -> Self {
        Self { domain: domain.into(), ..self }
    }

    /// Adds a condition: covers only requests whose `attribute` meets `condition`. Several conditions must all hold.
    ///
    /// A condition that a client controls selects the policy: test a value that your program has verified, such as the
    /// route, and not a header. See [`Condition`] for the kinds.
    #[must_use]
    pub fn matching(mut self, attribute: impl Into<String>, condition: Condition) -> Self {
        self.matching = self.matching.and(attribute, condition);
        self
    }

    /// Sets the form in which the attribute `path` is compared and counted. Default: [`Paths::Normalized`], so that
    /// another spelling of a path does not bypass the policy.
    #[must_use]
    pub fn paths(self, paths: Paths) -> Self {
        Self { paths, ..self }
    }

    /// Counts by these attributes: each combination of their values has a separate counter.
    ///
    /// Without this call, all covered requests share one counter. See [`Policy::missing`](Self::missing()) for requests
    /// that lack an attribute.
    ///
    /// The order of the attributes is part of the key, so changing it starts all counters at zero. Each attribute
    /// multiplies the number of keys: check [`max_keys`](crate::LimiterBuilder::max_keys) before you count by one that
    /// clients choose.
    ///
    /// ```
    /// use pacegate::{Limiter, Policy, PolicySet, Request};
    ///
    /// let policy = Policy::new("per-user-and-ip", ["1/minute"]).per(["user", "ip"]);
    /// let limiter = Limiter::builder().policies(PolicySet::new([policy])?).build()?;
    /// let home = Request::new().with("user", "alice").with("ip", "203.0.113.7");
    /// let work = Request::new().with("user", "alice").with("ip", "198.51.100.2");
    /// assert!(limiter.check_request(&home)?.is_allowed());
    /// assert!(limiter.check_request(&work)?.is_allowed(), "another counter");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn per<A: Into<String>>(self, attributes: impl IntoIterator<Item = A>) -> Self {
        Self { per: attributes.into_iter().map(Into::into).collect(), ..self }
    }

    /// Adds an override: other limits for requests that match, unless an earlier override matches.
    ///
    /// The limits may be text. [`PolicySet::new`] returns an error if the text is invalid.
    ///
    /// ```
    /// use pacegate::{Limit, policy::{Condition, Match, Policy}};
    ///
    /// let partner = Match::any().and("plan", Condition::equal("partner"));
    /// let policy = Policy::new("api", ["100/minute"])
    ///     .per(["user"])
    ///     .overriding(partner, ["1000/minute"]);
    /// assert_eq!(policy.overrides[0].limits, [Limit::per_minute(1_000)]);
    /// ```
    #[must_use]
    pub fn overriding<L>(mut self, matching: Match, limits: impl IntoIterator<Item = L>) -> Self
    where
        L: TryInto<Limit, Error: Into<ParseLimitError>>,
    {
        let limits = self.parse_limits(limits);
        self.overrides.push(Override { matching, limits });
        self
    }

    /// Adds an override without limits: requests that match are not limited, unless an earlier override matches.
    ///
    /// ```
    /// use pacegate::{Limiter, Request};
    /// use pacegate::policy::{Condition, Match, Policy, PolicySet};
    ///
    /// let staff = Match::any().and("plan", Condition::equal("staff"));
    /// let policy = Policy::new("api", ["1/minute"]).per(["user"]).exempting(staff);
    /// let limiter = Limiter::builder().policies(PolicySet::new([policy])?).build()?;
    /// let alice = Request::new().with("user", "alice").with("plan", "staff");
    /// for _ in 0..2 {
    ///     assert!(limiter.check_request(&alice)?.is_allowed());
    /// }
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    #[must_use]
    pub fn exempting(self, matching: Match) -> Self {
        self.overriding::<Limit>(matching, [])
    }

    /// Sets the treatment of requests that lack one of the [`per`](Self::per) attributes. Default: [`Missing::Share`].
    #[must_use]
    pub fn missing(self, missing: Missing) -> Self {
        Self { missing, ..self }
    }

    /// Sets the maximum cost of one request, at least 1. Default: the capacity of the limits.
    ///
    /// A higher cost is a [`CostError`](crate::CostError), or in shadow mode a reported denial.
    ///
    /// Use it if clients choose the cost, so that one request cannot take a whole period.
    #[must_use]
    pub fn max_cost(self, max_cost: u64) -> Self {
        Self { max_cost: Some(max_cost), ..self }
    }

    /// Records every charge in full, even if it exceeds a limit. Default: a charge that does not fit takes nothing.
    ///
    /// For units that have already been spent, such as the tokens of an answer. Check with a cost of 0 before, and
    /// charge the units afterwards: units beyond a limit become [debt](crate::Excess::Debt), which later requests wait
    /// for. To record only some requests in full, use [`Request::spent`](crate::Request::spent) instead.
    #[must_use]
    pub fn record_in_full(self) -> Self {
        Self { record_in_full: true, ..self }
    }

    /// Sets the maximum debt, in units beyond the capacity of each limit. Default: the capacity.
    ///
    /// Units above it are not recorded. It bounds the time for which a key is denied.
    #[must_use]
    pub fn max_debt(self, units: u64) -> Self {
        Self { max_debt: Some(units), ..self }
    }

    /// Sets the treatment of a reservation that is not settled within its time to live. Default: [`Unsettled::Keep`].
    #[must_use]
    pub fn unsettled(self, unsettled: Unsettled) -> Self {
        Self { unsettled, ..self }
    }

    /// Returns the treatment of a cost that does not fit one of the policy's limits.
    pub(crate) fn excess(&self, limit: &Limit) -> Excess {
        match self.record_in_full {
            true => Excess::Debt { max: self.max_debt_of(limit) },
            false => Excess::Reject,
        }
    }

    /// Returns the maximum debt of one of the policy's limits.
    pub(crate) fn max_debt_of(&self, limit: &Limit) -> u64 {
        self.max_debt.unwrap_or_else(|| limit.capacity())
    }

    /// Tags counters by the value of `attribute`, one of the [`per`](Self::per) attributes. See [`Tag`].
    ///
    /// On a cluster, policies with the same tag attribute can then be charged in one step.
    #[must_use]
    pub fn tagged_by(self, attribute: impl Into<String>) -> Self {
        Self { tag: Tag::Attribute(attribute.into()), ..self }
    }

    /// Tags all counters with `name`, so that they share a server with other policies of this tag.
    #[must_use]
    pub fn tagged(self, name: impl Into<String>) -> Self {
        Self { tag: Tag::Name(name.into()), ..self }
    }

    /// Sets the failure mode, which applies if the store does not answer. Default: `local` with the full limit.
    ///
    /// Used by a [`SharedLimiter`](crate::SharedLimiter) only. With several processes, `local 1/N` keeps the sum of N
    /// processes near the limit while the store is down.
    #[must_use]
    pub fn failing(self, failure: FailureMode) -> Self {
        Self { failure, ..self }
    }

    /// Sets the units that a store may reserve in advance, to save calls. Default: none.
    ///
    /// Supported by fixed and sliding windows; [`PolicySet::new`] rejects a lease on other algorithms.
    ///
    /// Worth it for keys with many requests per second over a store on the network. See [`Lease`] for the price.
    #[must_use]
    pub fn leased(self, lease: Lease) -> Self {
        Self { lease: Some(lease), ..self }
    }

    /// Reports a key when its used units reach one of these percentages of a limit. Default: no reports.
    ///
    /// A limiter reports to the function of [`LimiterBuilder::on_threshold`](crate::LimiterBuilder::on_threshold), once
    /// for each key, limit, window and percentage. A percentage of 100 is reached by the charge that takes the last
    /// unit, or by the first denial. [`PolicySet::new`] rejects percentages above 100, and 0.
    ///
    /// ```
    /// use pacegate::policy::{Policy, PolicySet};
    ///
    /// let policy = Policy::new("plan", ["1000/day"]).per(["account"]).notify([80, 100]);
    /// assert_eq!(policy.notify[0].to_string(), "80%");
    /// assert!(PolicySet::new([policy.notify([101])]).is_err());
    /// ```
    #[must_use]
    pub fn notify(mut self, percentages: impl IntoIterator<Item = u8>) -> Self {
        for percent in percentages {
            match Threshold::new(percent) {
                Ok(threshold) => self.notify.push(threshold),
                Err(error) => {
                    let invalid = PolicyError::InvalidThreshold { policy: self.name, error };
                    self.invalid = self.invalid.or(Some(Box::new(invalid)));
                }
            }
        }
        self
    }

    /// Switches to shadow mode: requests over the limit are admitted and reported, see
    /// [`Decision::is_shadow_denied`](crate::Decision::is_shadow_denied). Use it to try a limit before enforcing it.
    #[must_use]
    pub fn shadow(self) -> Self {
        Self { mode: Mode::Shadow, ..self }
    }

    /// Returns the value of an attribute as this policy compares it and counts by it: a path in the form of
    /// [`Policy::paths`](Self::paths), all other values unchanged.
    pub fn value<'a>(&self, request: &Request<'a>, attribute: &str) -> Option<Cow<'a, [u8]>> {
        Some(self.form(attribute, request.attribute(attribute)?))
    }

    /// Returns a value in the form that this policy compares and counts by.
    fn form<'a>(&self, attribute: &str, value: &'a [u8]) -> Cow<'a, [u8]> {
        match attribute {
            Request::PATH => self.paths.normalize(value),
            _ => Cow::Borrowed(value),
        }
    }

    /// Returns true if a request with this key may meet `matching`. Only lists of values are compared: the value of an
    /// attribute that is too long has another text in the key, and no list has such a value.
    pub(crate) fn may_meet(&self, key: KeyRef<'_>, matching: &Match) -> bool {
        let mut conditions = matching.conditions();
        conditions.all(|(attribute, condition)| {
            let place = self.per.iter().position(|other| other == attribute);
            let (Condition::OneOf(values), Some(place)) = (condition, place) else { return true };
            let is_listed = |value: &[u8]| {
                values.iter().any(|one| *self.form(attribute, one.as_bytes()) == *value)
            };
            match self.per.len() {
                // One attribute is the key as it is, which may have several parts itself.
                1 => key.is_tuple() || is_listed(key.as_bytes()),
                _ => key.parts().nth(place).flatten().is_some_and(is_listed),
            }
        })
    }
}

impl Override {
    /// Returns the counter of its limits, which no other override with another `match` has, nor the policy.
    pub(crate) fn counter(&self) -> Counter {
        Counter::Override(self.matching.digest())
    }
}

impl FailureMode {
    /// The `retry_after` of a request that was denied only because the store did not answer: 1 second.
    pub const RETRY_AFTER: Duration = Duration::from_secs(1);
}

impl Default for FailureMode {
    /// Returns `local` with the full limit.
    fn default() -> Self {
        Self::Local { numerator: 1, denominator: NonZeroU32::MIN }
    }
}
