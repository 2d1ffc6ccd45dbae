//! Which requests, whose budget, how much: policies, and the set of them that is in force.
//!
//! A [`Policy`] is plain data. [`PolicySet::new`] checks a list of them as a whole and compiles it for lookup; from
//! then on it never changes. A new list is a new set, so a request sees one set or the other and never a mixture.

mod glob;
mod lease;
mod matcher;
mod name;
mod paths;
mod set;
mod tag;
mod view;
mod words;

use std::{borrow::Cow, num::NonZeroU32, time::Duration};

use crate::{Counter, KeyRef, Limit, ParseLimitError, Request};

pub use glob::{Glob, GlobError};
pub use lease::{Lease, ParseLeaseError};
pub use matcher::{Condition, Match};
pub use name::{PolicyName, PolicyNameError};
pub use paths::{ParsePathsError, Paths};
pub use set::{PolicyError, PolicySet};
pub use tag::Tag;
pub use words::{ParseFailureModeError, ParseModeError};

pub(crate) use set::{Planned, Target};

/// A named rule: which requests it covers, whose budget they draw on, and how much that is.
///
/// Every policy that covers a request applies to it, all or nothing.
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
    /// Unique in its set; part of the identity of the state.
    pub name: PolicyName,
    /// Requests of other domains are not covered.
    pub domain: String,
    /// What else a covered request looks like.
    pub matching: Match,
    /// The form in which the attribute `path` is compared and counted.
    pub paths: Paths,
    /// The attributes whose values are the key. None: one budget for all.
    pub per: Vec<String>,
    /// What happens if one of those attributes is missing.
    pub missing: Missing,
    /// At least one. All of them apply to each key, all or nothing.
    pub limits: Vec<Limit>,
    /// Other limits for some of the requests: the first that matches replaces `limits`.
    pub overrides: Vec<Override>,
    /// Whether it denies or only reports.
    pub mode: Mode,
    /// What happens when the store cannot answer.
    pub failure: FailureMode,
    /// The most that one request may cost, where that is less than the capacity.
    pub max_cost: Option<u64>,
    /// What its state is placed by, in a store that is spread over servers.
    pub tag: Tag,
    /// What a store may draw ahead for this process, for fixed and sliding windows. Never admits too much; while
    /// several processes hold leases, up to as much as they hold may be denied that would have been admitted. None:
    /// every decision is the store's.
    pub lease: Option<Lease>,
    /// The first invalid argument of [`Policy::new`], reported by [`PolicySet::new`].
    invalid: Option<PolicyError>,
}

/// Other limits for the requests of a policy that look a certain way.
///
/// They count separately from the policy and from other overrides. The counter is named by the policy and `matching`,
/// so usage carries over to a new amount or burst.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Override {
    /// Which of the policy's requests.
    pub matching: Match,
    /// What they get instead. None at all: no limit.
    pub limits: Vec<Limit>,
}

/// Whether a policy denies. Parses from and prints as the word that configurations have: `enforce`, `shadow`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Mode {
    /// Requests over the limit are denied.
    #[default]
    Enforce,
    /// Requests over the limit are reported, and pass.
    Shadow,
}

/// What a policy does when the store cannot answer: the decision is then [degraded](crate::Decision::is_degraded).
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
    /// Let requests pass, and count nothing.
    Open,
    /// Deny them, to be tried again after [`FailureMode::RETRY_AFTER`].
    Closed,
    /// Count in the memory of this process, at `numerator / denominator` of the limit. What is counted there is kept
    /// when the store is back, in case it goes away again. A cost above the share is denied as by `Closed`.
    Local {
        /// This process's part.
        numerator: u32,
        /// Of so many.
        denominator: NonZeroU32,
    },
}

/// What a policy does with a request that lacks an attribute of its key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Missing {
    /// All requests that lack it share one budget, so that leaving it out gains nothing.
    #[default]
    Share,
    /// The policy does not cover the request.
    Skip,
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
        let (name, mut invalid) = match name.try_into() {
            Ok(name) => (name, None),
            Err(error) => (PolicyName::DEFAULT, Some(PolicyError::InvalidName(error.into()))),
        };
        let mut valid = Vec::new();
        for limit in limits {
            match limit.try_into() {
                Ok(limit) => valid.push(limit),
                Err(error) if invalid.is_none() => {
                    invalid = Some(PolicyError::InvalidLimit { policy: name, error: error.into() });
                }
                Err(_) => {}
            }
        }
        Self {
            name,
            domain: String::new(),
            matching: Match::default(),
            paths: Paths::default(),
            per: Vec::new(),
            missing: Missing::default(),
            limits: valid,
            overrides: Vec::new(),
            mode: Mode::default(),
            failure: FailureMode::default(),
            max_cost: None,
            tag: Tag::default(),
            lease: None,
            invalid,
        }
    }

    /// Covers only requests of `domain`.
    #[must_use]
    pub fn in_domain(self, domain: impl Into<String>) -> Self {
        Self { domain: domain.into(), ..self }
    }

    /// Covers only requests whose `attribute` meets `condition`, besides what was said before.
    #[must_use]
    pub fn matching(mut self, attribute: impl Into<String>, condition: Condition) -> Self {
        self.matching = self.matching.and(attribute, condition);
        self
    }

    /// Compares the attribute `path` like this, and counts by it like this.
    #[must_use]
    pub fn paths(self, paths: Paths) -> Self {
        Self { paths, ..self }
    }

    /// A budget for each combination of values of these attributes.
    #[must_use]
    pub fn per<A: Into<String>>(self, attributes: impl IntoIterator<Item = A>) -> Self {
        Self { per: attributes.into_iter().map(Into::into).collect(), ..self }
    }

    /// Other limits for requests that match, unless an earlier override does.
    #[must_use]
    pub fn overriding(mut self, matching: Match, limits: impl IntoIterator<Item = Limit>) -> Self {
        self.overrides.push(Override { matching, limits: limits.into_iter().collect() });
        self
    }

    /// Does this with a request that lacks one of the attributes it is [`per`](Self::per).
    #[must_use]
    pub fn missing(self, missing: Missing) -> Self {
        Self { missing, ..self }
    }

    /// Takes no more than this of one request, where that is less than the capacity.
    #[must_use]
    pub fn max_cost(self, max_cost: u64) -> Self {
        Self { max_cost: Some(max_cost), ..self }
    }

    /// Places its state by the value of `attribute`, one of those it is [`per`](Self::per).
    #[must_use]
    pub fn tagged_by(self, attribute: impl Into<String>) -> Self {
        Self { tag: Tag::Attribute(attribute.into()), ..self }
    }

    /// Places all of its state by `name`, together with that of other policies of this tag.
    #[must_use]
    pub fn tagged(self, name: impl Into<String>) -> Self {
        Self { tag: Tag::Name(name.into()), ..self }
    }

    /// Does this when the store cannot answer.
    #[must_use]
    pub fn failing(self, failure: FailureMode) -> Self {
        Self { failure, ..self }
    }

    /// Lets a store draw so much ahead.
    #[must_use]
    pub fn leased(self, lease: Lease) -> Self {
        Self { lease: Some(lease), ..self }
    }

    /// Reports instead of denying.
    #[must_use]
    pub fn shadow(self) -> Self {
        Self { mode: Mode::Shadow, ..self }
    }

    /// Returns the value of an attribute as this policy compares it and counts by it: a path in the form of
    /// [`Policy::paths`](Self::paths), everything else as it is.
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

    /// Whether a request with this key may meet `matching`. Only lists of values are compared: the value of an
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
    /// When a request should be tried again that was denied only because the store is away: it may be back then.
    pub const RETRY_AFTER: Duration = Duration::from_secs(1);
}

impl Default for FailureMode {
    /// A full share: what is right for one process, and safe for each of several.
    fn default() -> Self {
        Self::Local { numerator: 1, denominator: NonZeroU32::MIN }
    }
}
