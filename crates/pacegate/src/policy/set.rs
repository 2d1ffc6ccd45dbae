use std::{
    collections::{HashMap, HashSet},
    ops::Range,
    sync::Arc,
};

use smallvec::SmallVec;

use super::{
    Condition, FailureMode, Lease, Match, Mode, Override, Paths, Policy, PolicyName,
    PolicyNameError,
    view::{Forms, View},
};
use crate::{Charge, Counter, KeyBuf, KeyRef, Limit, ParseLimitError, Request};

/// Policies that are in force together, compiled for lookup.
///
/// Clones are free. How long it takes to find the policies of a request depends on how many could cover it, not on how
/// many there are: each policy is filed under one value, or one path prefix, that its requests must have; if there are
/// several, under the one that it shares with the fewest others.
#[derive(Clone, Debug)]
pub struct PolicySet {
    inner: Arc<Inner>,
    ad_hoc_failure: FailureMode,
}

#[derive(Debug)]
struct Inner {
    policies: Vec<Policy>,
    /// Every limit of every policy and override, with the policy it belongs to.
    limits: Vec<Target>,
    /// For each policy, and then for each of its overrides, where in `limits` its own are.
    ranges: Vec<SmallVec<[Range<usize>; 1]>>,
    domains: HashMap<String, Index>,
    /// The forms of paths that policies look at.
    forms: Forms,
    /// The place of each policy.
    names: HashMap<PolicyName, usize, foldhash::fast::RandomState>,
}

/// One limit of one policy.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Target {
    pub(crate) policy: usize,
    pub(crate) name: PolicyName,
    pub(crate) counter: Counter,
    pub(crate) limit: Limit,
    pub(crate) enforced: bool,
    /// Units that may be drawn ahead.
    pub(crate) lease: u64,
}

/// The limits of one policy that apply to a request, and the key they apply to.
#[derive(Debug)]
pub(crate) struct Planned {
    /// The place of the policy.
    pub(crate) policy: usize,
    /// Places in [`PolicySet::targets`]. None of them where an override lifts the limit.
    pub(crate) targets: Range<usize>,
    pub(crate) key: KeyBuf,
}

/// The policies of one domain, by something that every request they cover must have.
#[derive(Debug, Default)]
struct Index {
    /// By attribute, by value.
    values: Vec<(Attribute, Places)>,
    /// By attribute, by the part of the value before some `/`, or by the whole value.
    prefixes: Vec<(Attribute, Places)>,
    /// No such thing: looked at for every request.
    rest: Vec<usize>,
}

/// An attribute in the form that it is compared in.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Attribute {
    name: String,
    paths: Paths,
}

/// What the policies of a domain can be found by: the values of an attribute, or how such a value begins.
struct Handle {
    is_prefix: bool,
    attribute: Attribute,
    texts: Vec<Vec<u8>>,
}

/// How many policies of a domain could be found by the same text of an attribute.
struct Crowds<'a>(HashMap<(&'a str, bool, Attribute), HashMap<Vec<u8>, usize>>);

/// The policies that a value, or the beginning of one, stands for.
type Places = HashMap<Vec<u8>, Vec<usize>>;

/// Why policies cannot be in force together.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PolicyError {
    /// The text given as the name of a policy is not one.
    #[error(transparent)]
    InvalidName(PolicyNameError),
    /// The text given as a limit is not one.
    #[error("policy `{policy}`: {error}")]
    InvalidLimit {
        /// The policy.
        policy: PolicyName,
        /// The reason.
        error: ParseLimitError,
    },
    /// State is kept by name, so two policies of one name would share it.
    #[error("two policies are named `{0}`: give each a name of its own")]
    DuplicateName(PolicyName),
    /// The name of limits that belong to no policy.
    #[error("no policy can be named `{0}`: limits that come with a request count under that name")]
    ReservedName(PolicyName),
    /// A policy without a limit says nothing.
    #[error("policy `{0}` has no limit: write one, such as `100/minute`")]
    NoLimit(PolicyName),
    /// Nothing could ever pass.
    #[error("policy `{0}` allows no cost at all: write at least 1, or a limit of 0 to deny all")]
    NoCost(PolicyName),
    /// Two limits that would count in the same place.
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
    /// A request draws on so many budgets at most.
    #[error("policy `{0}` has more than {MAX_LIMITS} limits")]
    TooManyLimits(PolicyName),
    /// A lease of nothing, or of more than all.
    #[error("policy `{policy}` has a lease of {lease}: write at least 1, or from 1% to 100%")]
    LeaseSize {
        /// The policy.
        policy: PolicyName,
        /// The lease.
        lease: Lease,
    },
    /// Units that have to be counted when they are used, and not before.
    #[error(
        "policy `{policy}` has a lease, but nothing can be drawn ahead from `{limit}`: \
         leave the lease out, or use fixed-window or sliding-window"
    )]
    LeaseAlgorithm {
        /// The policy.
        policy: PolicyName,
        /// The limit.
        limit: Limit,
    },
    /// A pattern for paths that is too long once it is normalized.
    #[error(
        "policy `{0}` has a pattern for `path` that is too long: a pattern has at most 127 characters"
    )]
    PathPattern(PolicyName),
    /// One key would have a budget for each tag that it comes with.
    #[error(
        "policy `{policy}` is tagged by `{attribute}`, which is not in its key: add it to `per`"
    )]
    ForeignTag {
        /// The policy.
        policy: PolicyName,
        /// What it is tagged by.
        attribute: String,
    },
}

/// The most limits of one policy.
const MAX_LIMITS: usize = 16;

impl PolicySet {
    /// Checks the policies together and compiles them. Their conditions on `path` become those on its normal form, see
    /// [`Paths`].
    pub fn new(policies: impl IntoIterator<Item = Policy>) -> Result<Self, PolicyError> {
        let policies: Vec<_> = policies.into_iter().map(normalize).collect::<Result<_, _>>()?;
        let mut names = HashSet::new();
        for policy in &policies {
            if let Some(error) = &policy.invalid {
                return Err(error.clone());
            }
            if !names.insert(policy.name) {
                return Err(PolicyError::DuplicateName(policy.name));
            }
            if policy.name == PolicyName::AD_HOC {
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
            }
        }
        let inner = Arc::new(Inner::compile(policies));
        Ok(Self { inner, ad_hoc_failure: FailureMode::default() })
    }

    /// The same policies, with this failure mode for [charges](crate::Charge) that name none of them.
    #[must_use]
    pub fn failing_ad_hoc(self, failure: FailureMode) -> Self {
        Self { ad_hoc_failure: failure, ..self }
    }

    /// The same policies, all of them in this mode.
    #[must_use]
    pub fn in_mode(&self, mode: Mode) -> Self {
        let policies = self.policies().iter().map(|policy| Policy { mode, ..policy.clone() });
        let inner = Arc::new(Inner::compile(policies.collect()));
        Self { inner, ad_hoc_failure: self.ad_hoc_failure }
    }

    /// One policy with these limits on each key, named [`PolicyName::DEFAULT`].
    pub fn of_limits(limits: impl IntoIterator<Item = Limit>) -> Result<Self, PolicyError> {
        Self::new([Policy::new(PolicyName::DEFAULT, limits).per([Request::KEY])])
    }

    /// [`PolicySet::of_limits`] for one, which cannot fail.
    pub(crate) fn of_limit(limit: Limit) -> Self {
        Self::of_limits([limit]).unwrap_or_else(|error| {
            unreachable!("one limit cannot contradict itself: {error}");
        })
    }

    /// The policies, in the order they were given.
    pub fn policies(&self) -> &[Policy] {
        &self.inner.policies
    }

    /// The policies that cover a request, in the order they were given, each with the limits that apply.
    pub fn covering<'a>(
        &'a self,
        request: &Request<'_>,
    ) -> impl Iterator<Item = (&'a Policy, &'a [Limit])> {
        let view = self.inner.view(request);
        let found = self.inner.find(&view);
        let limits: Vec<_> = found
            .iter()
            .map(|&place| {
                let policy = &self.inner.policies[place];
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

    /// Returns the place of the override that a policy applies to a request that it covers: the first that matches.
    pub fn override_for(&self, name: PolicyName, request: &Request<'_>) -> Option<usize> {
        self.inner.view(request).override_of(self.get(name)?)
    }

    /// The policy of this name.
    pub fn get(&self, name: PolicyName) -> Option<&Policy> {
        Some(&self.inner.policies[self.place(name)?])
    }

    /// Where in [`PolicySet::policies`] the policy of this name is.
    #[inline]
    pub(crate) fn place(&self, name: PolicyName) -> Option<usize> {
        if name == PolicyName::AD_HOC {
            return None;
        }
        self.inner.names.get(&name).copied()
    }

    /// What a charge to a policy of this name, or of none, does when the store fails.
    pub(crate) fn failure_of(&self, name: PolicyName) -> FailureMode {
        self.get(name).map_or(self.ad_hoc_failure, |policy| policy.failure)
    }

    /// The limit of the policy at `place` that counts where a charge to this policy does.
    #[inline]
    pub(crate) fn target_of(&self, place: usize, charge: &Charge<'_>) -> Option<usize> {
        if charge.counter == Counter::Limit {
            return None;
        }
        let ranges = &self.inner.ranges[place];
        let own = |range: &&Range<usize>| self.counter(range) == Some(charge.counter);
        let alike = |&target: &usize| self.inner.limits[target].limit.counts_like(&charge.limit);
        ranges.iter().filter(own).cloned().flatten().find(alike)
    }

    /// The counter of limits that stand side by side for one override, or for none.
    #[inline]
    fn counter(&self, range: &Range<usize>) -> Option<Counter> {
        self.inner.limits[range.clone()].first().map(|target| target.counter)
    }

    pub(crate) fn targets(&self) -> &[Target] {
        &self.inner.limits
    }

    /// The first limit of a policy's own, which every policy has.
    pub(crate) fn first_target(&self, place: usize) -> &Target {
        &self.inner.limits[self.inner.ranges[place][0].start]
    }

    /// If there is one policy alone, for every request, by its [`Request::KEY`]: the places of its limits.
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

    /// Whether the key of some planned limits is the [`Request::KEY`] itself, which may have several parts.
    pub(crate) fn is_by_key(&self, planned: &Planned) -> bool {
        self.inner.policies[planned.policy].per == [Request::KEY]
    }

    /// The limits of a policy for a key, and if wanted, those of its overrides that can have counted the key.
    pub(crate) fn plan_for(
        &self,
        policy: PolicyName,
        key: KeyRef<'_>,
        overrides: bool,
    ) -> SmallVec<[Planned; 4]> {
        let Some(place) = self.place(policy) else { return SmallVec::new() };
        let Some((own, replaced)) = self.inner.ranges[place].split_first() else {
            return SmallVec::new();
        };
        let policy = &self.inner.policies[place];
        let planned = |targets| Planned { policy: place, targets, key: key.to_buf() };
        let mut plan: SmallVec<[Planned; 4]> = SmallVec::from_iter([planned(own.clone())]);
        let mut counters = HashSet::new();
        for (replaced, targets) in policy.overrides.iter().zip(replaced).filter(|_| overrides) {
            let is_new = self.counter(targets).is_some_and(|counter| counters.insert(counter));
            if is_new && policy.may_meet(key, &replaced.matching) {
                plan.push(planned(targets.clone()));
            }
        }
        plan
    }

    /// The limits that apply to a request, each with its key.
    pub(crate) fn plan(&self, request: &Request<'_>) -> SmallVec<[Planned; 4]> {
        let view = self.inner.view(request);
        self.inner
            .find(&view)
            .into_iter()
            .map(|place| {
                let policy = &self.inner.policies[place];
                let key = view.key(policy);
                let which = view.override_of(policy).map_or(0, |place| place + 1);
                let targets = self.inner.ranges[place][which].clone();
                Planned { policy: place, targets, key }
            })
            .collect()
    }
}

/// Returns a policy with its conditions on paths in the form that is compared.
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

/// Two limits of one algorithm and period would share their state.
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

/// Only units of windows can be charged before they are used.
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

impl Inner {
    fn compile(policies: Vec<Policy>) -> Self {
        let (mut limits, mut ranges) = (Vec::new(), Vec::new());
        let mut domains: HashMap<String, Index> = HashMap::new();
        for (place, policy) in policies.iter().enumerate() {
            let own = std::iter::once((Counter::Policy, &policy.limits));
            let replaced = policy.overrides.iter();
            let replaced = replaced.map(|other| (other.counter(), &other.limits));
            let mut range = |(counter, list): (Counter, &Vec<Limit>)| {
                let start = limits.len();
                limits.extend(list.iter().map(|&limit| Target {
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
        let crowds = Crowds::of(&policies);
        for (place, policy) in policies.iter().enumerate() {
            let index = domains.entry(policy.domain.clone()).or_default();
            index.file(place, crowds.rarest(policy));
        }
        let names = policies.iter().enumerate().map(|(place, policy)| (policy.name, place));
        let names = names.collect();
        let forms = Forms::of(&policies);
        Self { policies, limits, ranges, domains, forms, names }
    }

    fn view<'r, 'a>(&self, request: &'r Request<'a>) -> View<'r, 'a> {
        View::new(request, self.forms)
    }

    /// The policies that cover a request, in their order.
    fn find(&self, view: &View<'_, '_>) -> SmallVec<[usize; 8]> {
        let Some(index) = self.domains.get(view.domain()) else { return SmallVec::new() };
        let mut found = index.candidates(view);
        found.retain(|place| view.is_covered_by(&self.policies[*place]));
        found.sort_unstable();
        found
    }
}

impl Handle {
    /// All there are for a policy, those by value first.
    fn all(policy: &Policy) -> impl Iterator<Item = Self> {
        let by_value = policy.matching.conditions().filter_map(|(attribute, condition)| {
            let mut values = condition.values()?.into_owned();
            values.sort_unstable();
            values.dedup();
            let texts = values.into_iter().map(String::into_bytes).collect();
            Some(Self { is_prefix: false, attribute: Attribute::of(policy, attribute), texts })
        });
        let by_prefix = policy.matching.conditions().filter_map(|(attribute, condition)| {
            let Condition::Glob(glob) = condition else { return None };
            let texts = vec![glob.literal_prefix()?];
            Some(Self { is_prefix: true, attribute: Attribute::of(policy, attribute), texts })
        });
        by_value.chain(by_prefix)
    }
}

impl Attribute {
    fn of(policy: &Policy, name: &str) -> Self {
        let paths = if name == Request::PATH { policy.paths } else { Paths::Exact };
        Self { name: name.to_owned(), paths }
    }
}

impl<'a> Crowds<'a> {
    fn of(policies: &'a [Policy]) -> Self {
        let mut crowds: HashMap<_, HashMap<Vec<u8>, usize>> = HashMap::new();
        for policy in policies {
            for Handle { is_prefix, attribute, texts } in Handle::all(policy) {
                let by_text = crowds.entry((&*policy.domain, is_prefix, attribute)).or_default();
                for text in texts {
                    *by_text.entry(text).or_default() += 1;
                }
            }
        }
        Self(crowds)
    }

    /// By which of its handles a policy is in the least company.
    fn rarest(&self, policy: &'a Policy) -> Option<Handle> {
        Handle::all(policy).min_by_key(|handle| {
            let place = (&*policy.domain, handle.is_prefix, handle.attribute.clone());
            let by_text = self.0.get(&place);
            let crowd = |text: &Vec<u8>| by_text.and_then(|by_text| by_text.get(text));
            handle.texts.iter().filter_map(crowd).max().copied()
        })
    }
}

impl Index {
    /// Files a policy under what it can be found by, if there is anything.
    fn file(&mut self, place: usize, handle: Option<Handle>) {
        let Some(Handle { is_prefix, attribute, texts }) = handle else {
            self.rest.push(place);
            return;
        };
        let index = if is_prefix { &mut self.prefixes } else { &mut self.values };
        for text in texts {
            insert(index, &attribute, text, place);
        }
    }

    /// Every policy that could cover a request, each once.
    fn candidates(&self, view: &View<'_, '_>) -> SmallVec<[usize; 8]> {
        let mut found = SmallVec::from_slice(&self.rest);
        for (Attribute { name, paths }, by_value) in &self.values {
            let places = view.value(name, *paths).and_then(|value| by_value.get(value));
            found.extend(places.into_iter().flatten().copied());
        }
        for (Attribute { name, paths }, by_prefix) in &self.prefixes {
            let Some(value) = view.value(name, *paths) else { continue };
            let start = &value[..value.len().min(MAX_PREFIX + 1)];
            let slashes = start.iter().enumerate().filter(|(_, byte)| **byte == b'/');
            let ends = slashes.map(|(slash, _)| slash);
            let whole = Some(value.len()).filter(|length| *length <= MAX_PREFIX);
            for end in ends.chain(whole) {
                let places = by_prefix.get(&value[..end]);
                found.extend(places.into_iter().flatten().copied());
            }
        }
        found
    }
}

/// No pattern is longer, so no prefix is.
const MAX_PREFIX: usize = 128;

fn insert(
    index: &mut Vec<(Attribute, Places)>,
    attribute: &Attribute,
    value: Vec<u8>,
    place: usize,
) {
    let known = index.iter().position(|(other, _)| other == attribute).unwrap_or_else(|| {
        index.push((attribute.clone(), HashMap::new()));
        index.len() - 1
    });
    index[known].1.entry(value).or_default().push(place);
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How many policies are looked at for one request, if there are so many for other values and other paths. All of
    /// them say a method, too, which tells none of them from the others.
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
            set.inner.domains[""].candidates(&set.inner.view(&request)).len()
        })
    }

    #[test]
    fn as_few_policies_are_looked_at_among_ten_thousand_as_among_ten() {
        assert_eq!(looked_at(10), [1, 1, 0]);
        assert_eq!(looked_at(10_000), [1, 1, 0]);
    }
}
