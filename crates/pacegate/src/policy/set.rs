use std::{
    collections::{HashMap, HashSet},
    ops::Range,
    sync::Arc,
};

use smallvec::SmallVec;

use super::{
    FailureMode, Lease, Match, Mode, Override, Policy, PolicyName, PolicyNameError, ThresholdError,
    index::{Candidate, Candidates, DomainIndex, Selectivity},
    view::{Forms, View},
};
use crate::{Charge, Counter, KeyBuf, KeyRef, Limit, ParseLimitError, Request};

/// A validated list of policies, compiled for lookup.
///
/// Clones are cheap. Each policy is indexed by one of its conditions: the values of an attribute, or a path prefix. If
/// a policy has several conditions, the index uses the one that the fewest other policies share. The time to find the
/// policies of a request therefore depends on the number of candidates, not on the size of the set.
///
/// A set never changes. To change policies at runtime, build a new set and pass it to
/// [`Limiter::with_policies`](crate::Limiter::with_policies).
///
/// ```
/// use pacegate::policy::{Condition, Policy, PolicySet};
/// use pacegate::Request;
///
/// let policies = PolicySet::new([
///     Policy::new("all", ["1000/second"]),
///     Policy::new("login", ["5/minute"]).matching("path", Condition::equal("/login")).per(["ip"]),
/// ])?;
/// let request = Request::new().with("path", "/Login/").with("ip", "203.0.113.7");
/// let names: Vec<_> = policies.covering(&request).map(|(policy, _)| policy.name.as_str()).collect();
/// assert_eq!(names, ["all", "login"], "another spelling of the path is covered too");
/// # Ok::<(), pacegate::policy::PolicyError>(())
/// ```
#[derive(Clone, Debug)]
pub struct PolicySet {
    inner: Arc<CompiledPolicies>,
    inline_failure: FailureMode,
}

#[derive(Debug)]
struct CompiledPolicies {
    policies: Vec<Policy>,
    /// The limits of all policies and overrides.
    limits: Vec<LimitEntry>,
    /// For each policy, ranges in `limits`: first the limits of the policy, then the limits of each override.
    ranges: Vec<SmallVec<[Range<usize>; 1]>>,
    /// The index of the default domain, which has the empty name.
    default_domain: DomainIndex,
    /// The indexes of the other domains.
    domains: HashMap<String, DomainIndex, foldhash::fast::RandomState>,
    /// The path forms that the policies compare.
    forms: Forms,
    /// The index of each policy.
    names: HashMap<PolicyName, usize, foldhash::fast::RandomState>,
}

/// One limit of one policy.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LimitEntry {
    pub(crate) policy: usize,
    pub(crate) name: PolicyName,
    pub(crate) counter: Counter,
    pub(crate) limit: Limit,
    pub(crate) enforced: bool,
    /// Units to draw for a lease. 0 if the policy has no lease.
    pub(crate) lease: u64,
}

/// The limits of one policy that apply to a request, and the key they apply to.
#[derive(Debug)]
pub(crate) struct PolicyMatch {
    /// The index of the policy.
    pub(crate) policy: usize,
    /// Indexes in [`PolicySet::limit_entries`]. Empty if an override removes the limit.
    pub(crate) entries: Range<usize>,
    pub(crate) key: KeyBuf,
}

/// Error of [`PolicySet::new`]: a policy is invalid, or two policies contradict each other.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PolicyError {
    /// The name of a policy is invalid.
    #[error(transparent)]
    InvalidName(PolicyNameError),
    /// The text of a limit is invalid.
    #[error("policy `{policy}`: {error}")]
    InvalidLimit {
        /// The policy.
        policy: PolicyName,
        /// The reason.
        error: ParseLimitError,
    },
    /// A threshold of a policy is not a percentage from 1 to 100.
    #[error("policy `{policy}`: {error}")]
    InvalidThreshold {
        /// The policy.
        policy: PolicyName,
        /// The reason.
        error: ThresholdError,
    },
    /// Two policies have the same name, so they would share their counters.
    #[error("two policies are named `{0}`: names must be unique")]
    DuplicateName(PolicyName),
    /// The name is reserved for inline limits.
    #[error("the policy name `{0}` is reserved for inline limits: choose another name")]
    ReservedName(PolicyName),
    /// A policy has no limit.
    #[error("policy `{0}` has no limit: write one, such as `100/minute`")]
    NoLimit(PolicyName),
    /// The maximum cost is 0.
    #[error(
        "policy `{0}` has a maximum cost of 0: write at least 1, or use a limit of 0 to deny all requests"
    )]
    NoCost(PolicyName),
    /// Two limits of a policy would share a counter.
    #[error(
        "policy `{policy}` has two limits of one algorithm and period, `{first}` and `{second}`"
    )]
    SameWindow {
        /// The policy.
        policy: PolicyName,
        /// One of the limits.
        first: Limit,
        /// The other.
        second: Limit,
    },
    /// A policy has too many limits.
    #[error("policy `{0}` has more than {MAX_LIMITS} limits")]
    TooManyLimits(PolicyName),
    /// The lease is 0, or more than 100%.
    #[error("policy `{policy}` has a lease of {lease}: write at least 1, or from 1% to 100%")]
    LeaseSize {
        /// The policy.
        policy: PolicyName,
        /// The lease.
        lease: Lease,
    },
    /// The algorithm does not support leases, because it must count each unit at the time of its use.
    #[error(
        "policy `{policy}` has a lease, but `{limit}` does not support leases: \
         leave the lease out, or use fixed-window or sliding-window"
    )]
    LeaseAlgorithm {
        /// The policy.
        policy: PolicyName,
        /// The limit.
        limit: Limit,
    },
    /// The algorithm cannot record a charge that exceeds the limit.
    #[error(
        "policy `{policy}` records charges in full, which `{limit}` does not support: \
         leave `record_in_full` out, or use another algorithm"
    )]
    RecordAlgorithm {
        /// The policy.
        policy: PolicyName,
        /// The limit.
        limit: Limit,
    },
    /// A pattern for paths is too long after its normalization.
    #[error(
        "policy `{0}` has a pattern for `path` that is too long: a pattern has at most 127 characters"
    )]
    PathPattern(PolicyName),
    /// The attribute of the tag is not part of the key. One key would then have several counters, one for each tag.
    #[error(
        "policy `{policy}` is tagged by `{attribute}`, which is not in its key: add it to `per`"
    )]
    ForeignTag {
        /// The policy.
        policy: PolicyName,
        /// The attribute of the tag.
        attribute: String,
    },
}

/// The maximum number of limits of one policy.
const MAX_LIMITS: usize = 16;

impl PolicySet {
    /// Validates and compiles policies. Conditions on `path` are converted to its normal form, see
    /// [`Paths`](super::Paths).
    ///
    /// Names must be unique, and each policy needs at least one and at most 16 limits. Two limits of a policy must
    /// differ in algorithm or period. An empty list is valid: no request is limited.
    ///
    /// # Errors
    ///
    /// The first violation, as a [`PolicyError`] that names the policy.
    pub fn new(policies: impl IntoIterator<Item = Policy>) -> Result<Self, PolicyError> {
        let mut policies: Vec<_> = policies.into_iter().map(normalize).collect::<Result<_, _>>()?;
        policies.shrink_to_fit();
        let mut names = HashSet::new();
        for policy in &policies {
            if let Some(error) = &policy.invalid {
                return Err((**error).clone());
            }
            if !names.insert(policy.name) {
                return Err(PolicyError::DuplicateName(policy.name));
            }
            if policy.name == PolicyName::INLINE {
                return Err(PolicyError::ReservedName(policy.name));
            }
            if policy.limits.is_empty() {
                return Err(PolicyError::NoLimit(policy.name));
            }
            if policy.max_cost == Some(0) {
                return Err(PolicyError::NoCost(policy.name));
            }
            if let Some(attribute) = policy.foreign_tag() {
                let (policy, attribute) = (policy.name, attribute.to_owned());
                return Err(PolicyError::ForeignTag { policy, attribute });
            }
            let replaced = policy.overrides.iter().map(|replaced| &replaced.limits);
            for limits in std::iter::once(&policy.limits).chain(replaced) {
                check_limits(policy.name, limits)?;
                check_lease(policy, limits)?;
                check_record(policy, limits)?;
            }
        }
        let inner = Arc::new(CompiledPolicies::compile(policies));
        Ok(Self { inner, inline_failure: FailureMode::default() })
    }

    /// Sets the failure mode of [charges](crate::Charge) whose policy is not in this set, such as inline limits.
    /// Default: `local` with the full limit.
    #[must_use]
    pub fn inline_failure(self, failure: FailureMode) -> Self {
        Self { inline_failure: failure, ..self }
    }

    /// Returns the same policies, all in this mode. For example, a program can start with all policies in shadow mode.
    #[must_use]
    pub fn in_mode(&self, mode: Mode) -> Self {
        let policies = self.policies().iter().map(|policy| Policy { mode, ..policy.clone() });
        let inner = Arc::new(CompiledPolicies::compile(policies.collect()));
        Self { inner, inline_failure: self.inline_failure }
    }

    /// Creates a set of one policy with these limits for each key, named [`PolicyName::DEFAULT`].
    pub fn of_limits(limits: impl IntoIterator<Item = Limit>) -> Result<Self, PolicyError> {
        Self::new([Policy::new(PolicyName::DEFAULT, limits).per([Request::KEY])])
    }

    /// Creates a set of one policy with one limit, which is always valid.
    pub(crate) fn of_limit(limit: Limit) -> Self {
        Self::of_limits([limit]).unwrap_or_else(|error| {
            unreachable!("one limit cannot contradict itself: {error}");
        })
    }

    /// Returns the policies in their original order.
    pub fn policies(&self) -> &[Policy] {
        &self.inner.policies
    }

    /// Returns the policies that cover a request, in their original order, each with the limits that apply.
    ///
    /// The limits are those of the first override that matches, or else those of the policy. Nothing is charged. Use
    /// this to explain a decision.
    pub fn covering<'a>(
        &'a self,
        request: &Request<'_>,
    ) -> impl Iterator<Item = (&'a Policy, &'a [Limit])> {
        let view = self.inner.view(request);
        let found = self.inner.find(&view);
        let limits: Vec<_> = found
            .iter()
            .map(|found| {
                let policy = &self.inner.policies[found.place];
                let replaced = view.override_of(policy).map(|place| &policy.overrides[place]);
                (policy, replaced.map_or(&*policy.limits, |other| &*other.limits))
            })
            .collect();
        limits.into_iter()
    }

    /// Returns `true` if the policy of this name applies to a request.
    pub fn covers(&self, name: PolicyName, request: &Request<'_>) -> bool {
        self.get(name).is_some_and(|policy| {
            policy.domain == request.domain() && self.inner.view(request).is_covered_by(policy)
        })
    }

    /// Returns the index of the policy's first override that matches a request. The policy must cover the request.
    pub fn override_for(&self, name: PolicyName, request: &Request<'_>) -> Option<usize> {
        self.inner.view(request).override_of(self.get(name)?)
    }

    /// Returns the policy of this name, or `None` if the set has none.
    pub fn get(&self, name: PolicyName) -> Option<&Policy> {
        Some(&self.inner.policies[self.index_of(name)?])
    }

    /// Returns the index in [`PolicySet::policies`] of the policy of this name.
    #[inline]
    pub(crate) fn index_of(&self, name: PolicyName) -> Option<usize> {
        if name == PolicyName::INLINE {
            return None;
        }
        self.inner.names.get(&name).copied()
    }

    /// Returns the failure mode of a policy. If the set has no such policy, returns that of
    /// [`PolicySet::inline_failure`].
    pub(crate) fn failure_of(&self, name: PolicyName) -> FailureMode {
        self.get(name).map_or(self.inline_failure, |policy| policy.failure)
    }

    /// Returns the index in [`PolicySet::limit_entries`] of the limit that has the same counter as a charge. `place` is
    /// the index of the policy.
    #[inline]
    pub(crate) fn entry_of(&self, place: usize, charge: &Charge<'_>) -> Option<usize> {
        if charge.counter == Counter::Limit {
            return None;
        }
        let ranges = &self.inner.ranges[place];
        let own = |range: &&Range<usize>| self.counter(range) == Some(charge.counter);
        let alike = |&entry: &usize| self.inner.limits[entry].limit.counts_like(&charge.limit);
        ranges.iter().filter(own).cloned().flatten().find(alike)
    }

    /// Returns the counter of the limits in a range: those of the policy, or of one override.
    #[inline]
    fn counter(&self, range: &Range<usize>) -> Option<Counter> {
        self.inner.limits[range.clone()].first().map(|entry| entry.counter)
    }

    pub(crate) fn limit_entries(&self) -> &[LimitEntry] {
        &self.inner.limits
    }

    /// Returns the first of the policy's own limits.
    pub(crate) fn first_entry(&self, place: usize) -> &LimitEntry {
        &self.inner.limits[self.inner.ranges[place][0].start]
    }

    /// Returns the indexes of the limits if the set is a single policy that covers every request and counts by
    /// [`Request::KEY`]. Such a set needs no lookup.
    pub(crate) fn direct(&self) -> Option<Range<usize>> {
        let [policy] = &*self.inner.policies else { return None };
        let plain = policy.matching.is_any()
            && policy.domain.is_empty()
            && policy.per == [Request::KEY]
            && policy.overrides.is_empty()
            && policy.mode == Mode::Enforce
            && policy.max_cost.is_none();
        plain.then(|| 0..self.inner.limits.len())
    }

    /// Returns true if the policy counts by [`Request::KEY`] alone. The key of the request is then used unchanged: it
    /// may have several parts.
    pub(crate) fn is_by_key(&self, matched: &PolicyMatch) -> bool {
        self.inner.policies[matched.policy].per == [Request::KEY]
    }

    /// Returns the limits of a policy for a key. If `overrides` is true, adds those of each override that may have
    /// counted the key.
    pub(crate) fn plan_for(
        &self,
        policy: PolicyName,
        key: KeyRef<'_>,
        overrides: bool,
    ) -> SmallVec<[PolicyMatch; 4]> {
        let Some(place) = self.index_of(policy) else { return SmallVec::new() };
        let Some((own, replaced)) = self.inner.ranges[place].split_first() else {
            return SmallVec::new();
        };
        let policy = &self.inner.policies[place];
        let matched = |entries| PolicyMatch { policy: place, entries, key: key.to_buf() };
        let mut plan: SmallVec<[PolicyMatch; 4]> = SmallVec::from_iter([matched(own.clone())]);
        let mut counters = HashSet::new();
        for (replaced, entries) in policy.overrides.iter().zip(replaced).filter(|_| overrides) {
            let is_new = self.counter(entries).is_some_and(|counter| counters.insert(counter));
            if is_new && policy.may_meet(key, &replaced.matching) {
                plan.push(matched(entries.clone()));
            }
        }
        plan
    }

    /// Calls `then` with the limits that apply to a request, as indexes in [`PolicySet::limit_entries`], each with its
    /// key. Unlike [`PolicySet::plan`], it does not copy keys of one attribute.
    pub(crate) fn with_matches<R>(
        &self,
        request: &Request<'_>,
        then: impl FnOnce(&[(Range<usize>, KeyRef<'_>)]) -> R,
    ) -> R {
        let view = self.inner.view(request);
        let found = self.inner.find(&view);
        if let [Candidate { place, .. }] = *found
            && let Some(key) = view.key_of_one(&self.inner.policies[place])
        {
            return then(&[(self.entries(&view, place), key)]);
        }
        // A key of one attribute is borrowed from the request. All others are composed before any of them is borrowed.
        let mut composed = SmallVec::<[KeyBuf; 1]>::new();
        let borrowed = found.iter().map(|found| {
            let policy = &self.inner.policies[found.place];
            let key = view.key_of_one(policy);
            if key.is_none() {
                composed.push(view.key(policy));
            }
            key
        });
        let borrowed: SmallVec<[_; 4]> = borrowed.collect();
        let mut composed = composed.iter();
        let mut matches = SmallVec::<[_; 4]>::new();
        for (&Candidate { place, .. }, key) in found.iter().zip(borrowed) {
            if let Some(key) = key.or_else(|| composed.next().map(KeyBuf::as_ref)) {
                matches.push((self.entries(&view, place), key));
            }
        }
        then(&matches)
    }

    /// Returns the limits of a policy that apply to a request.
    fn entries(&self, view: &View<'_, '_>, place: usize) -> Range<usize> {
        let which = view.override_of(&self.inner.policies[place]).map_or(0, |place| place + 1);
        self.inner.ranges[place][which].clone()
    }

    /// Returns the limits that apply to a request, each with its key.
    pub(crate) fn plan(&self, request: &Request<'_>) -> SmallVec<[PolicyMatch; 4]> {
        let view = self.inner.view(request);
        let mut plan = SmallVec::new();
        for &Candidate { place, .. } in &self.inner.find(&view) {
            let (entries, key) =
                (self.entries(&view, place), view.key(&self.inner.policies[place]));
            plan.push(PolicyMatch { policy: place, entries, key });
        }
        plan
    }
}

/// Returns a policy whose conditions on paths are in the normal form, in which they are compared.
fn normalize(mut policy: Policy) -> Result<Policy, PolicyError> {
    let (name, paths) = (policy.name, policy.paths);
    let normalized =
        |matching: &Match| matching.normalized(paths).map_err(|_| PolicyError::PathPattern(name));
    policy.matching = normalized(&policy.matching)?;
    for Override { matching, .. } in &mut policy.overrides {
        *matching = normalized(matching)?;
    }
    Ok(policy)
}

/// Rejects too many limits, and two limits with the same algorithm and period, which would share a counter.
fn check_limits(policy: PolicyName, limits: &[Limit]) -> Result<(), PolicyError> {
    if limits.len() > MAX_LIMITS {
        return Err(PolicyError::TooManyLimits(policy));
    }
    for (place, first) in limits.iter().enumerate() {
        let same = |second: &&Limit| second.counts_like(first);
        if let Some(&second) = limits[place + 1..].iter().find(same) {
            return Err(PolicyError::SameWindow { policy, first: *first, second });
        }
    }
    Ok(())
}

/// Rejects an invalid lease, and a lease of limits whose algorithm does not support it.
fn check_lease(policy: &Policy, limits: &[Limit]) -> Result<(), PolicyError> {
    let (Some(lease), policy) = (policy.lease, policy.name) else { return Ok(()) };
    if !lease.is_sound() {
        return Err(PolicyError::LeaseSize { policy, lease });
    }
    match limits.iter().find(|limit| !limit.algorithm().can_be_leased()) {
        Some(&limit) => Err(PolicyError::LeaseAlgorithm { policy, limit }),
        None => Ok(()),
    }
}

/// Rejects a policy that records charges in full, if one of its limits cannot.
fn check_record(policy: &Policy, limits: &[Limit]) -> Result<(), PolicyError> {
    let rejects =
        |limit: &&Limit| limit.amount() > 0 && !policy.excess(limit).under(limit).is_recorded();
    match limits.iter().find(rejects) {
        Some(&limit) if policy.record_in_full => {
            Err(PolicyError::RecordAlgorithm { policy: policy.name, limit })
        }
        _ => Ok(()),
    }
}

impl CompiledPolicies {
    fn compile(policies: Vec<Policy>) -> Self {
        let (mut limits, mut ranges) = (Vec::new(), Vec::with_capacity(policies.len()));
        let (mut default_domain, mut domains) = (DomainIndex::default(), HashMap::default());
        for (place, policy) in policies.iter().enumerate() {
            let own = std::iter::once((Counter::Policy, &policy.limits));
            let replaced = policy.overrides.iter();
            let replaced = replaced.map(|other| (other.counter(), &other.limits));
            let mut range = |(counter, list): (Counter, &Vec<Limit>)| {
                let start = limits.len();
                limits.extend(list.iter().map(|&limit| LimitEntry {
                    policy: place,
                    name: policy.name,
                    counter,
                    limit,
                    enforced: policy.mode == Mode::Enforce,
                    lease: policy.lease.map_or(0, |lease| lease.of(&limit)),
                }));
                start..limits.len()
            };
            ranges.push(own.chain(replaced).map(&mut range).collect());
        }
        let selectivity = Selectivity::of(&policies);
        for (place, policy) in policies.iter().enumerate() {
            let index: &mut DomainIndex = match &*policy.domain {
                "" => &mut default_domain,
                _ => domains.entry(policy.domain.clone()).or_default(),
            };
            index.file(place, selectivity.rarest(policy));
        }
        let names = policies.iter().enumerate().map(|(place, policy)| (policy.name, place));
        let names = names.collect();
        let forms = Forms::of(&policies);
        limits.shrink_to_fit();
        Self { policies, limits, ranges, default_domain, domains, forms, names }
    }

    fn view<'r, 'a>(&self, request: &'r Request<'a>) -> View<'r, 'a> {
        View::new(request, self.forms)
    }

    /// Returns the policies that cover a request, in their order.
    fn find(&self, view: &View<'_, '_>) -> Candidates {
        // Every path returns this variable, so the compiler builds it in the memory of the caller.
        let mut found = Candidates::new();
        let index = match view.domain() {
            "" => Some(&self.default_domain),
            domain => self.domains.get(domain),
        };
        let Some(index) = index else { return found };
        index.candidates(view, &mut found);
        found.retain(|found| found.is_sure || view.is_covered_by(&self.policies[found.place]));
        if found.len() > 1 {
            found.sort_unstable_by_key(|found| found.place);
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use super::{super::Condition, *};

    /// Returns the number of candidate policies for each of three requests, in a set of `count` policies for different
    /// paths. All policies also require the method `GET`. The index does not use that condition, because all share it.
    fn looked_at(count: usize) -> [usize; 3] {
        let limit = Limit::per_second(1);
        let policies = (0..count).map(|n| {
            let policy =
                Policy::new(format!("p{n}"), [limit]).matching("method", Condition::equal("GET"));
            match n % 2 {
                0 => policy.matching("path", Condition::equal(format!("/api/{n}"))),
                _ => policy
                    .matching("path", Condition::Glob(format!("/files/{n}/**").parse().unwrap())),
            }
        });
        let set = PolicySet::new(policies).unwrap();
        ["/api/8", "/files/9/a/b", "/elsewhere"].map(|path| {
            let request = Request::new().with("path", path).with("method", "GET");
            let mut found = Candidates::new();
            set.inner.default_domain.candidates(&set.inner.view(&request), &mut found);
            found.len()
        })
    }

    #[test]
    fn as_few_policies_are_looked_at_among_ten_thousand_as_among_ten() {
        assert_eq!(looked_at(10), [1, 1, 0]);
        assert_eq!(looked_at(10_000), [1, 1, 0]);
    }
}
