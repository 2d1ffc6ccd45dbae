//! What a request asks for: the limits of each descriptor, and what is charged to them.

use std::ops::Range;

use pacegate::{Charge, Counter, Limit, PolicyName, Request};
use smallvec::SmallVec;

use super::{
    decide::AskError,
    limits::Bound,
    proto::{RateLimitDescriptor, RateLimitRequest, Unit},
    rules::{Level, Rule, Subject},
};
use crate::{
    config::{Bounds, Scope},
    gate::Revision,
    stand_in::BoundedPlan,
};

/// One descriptor, with what it led to.
#[derive(Debug)]
pub(super) struct Asked<'a> {
    pub(super) limits: Limits<'a>,
    /// 0 asks without taking.
    pub(super) cost: u64,
    /// The cost is given back.
    pub(super) refund: bool,
}

/// What applies to a descriptor.
#[derive(Debug)]
pub(super) enum Limits<'a> {
    /// Nothing.
    None,
    /// A rule that says so.
    Unlimited,
    /// The limits of a rule.
    Rule(&'a Rule, Subject<'a>),
    /// The limit that came with it.
    Override(Bound, Subject<'a>),
    /// Policies of our own, in a domain that no rule is about.
    Native(Box<BoundedPlan<'a>>),
}

/// What all descriptors are charged.
#[derive(Debug)]
pub(super) struct Bill<'a> {
    pub(super) charges: SmallVec<[Charge<'a>; 4]>,
    /// One for each descriptor.
    pub(super) parts: SmallVec<[Part; 4]>,
}

/// What one descriptor is charged.
#[derive(Clone, Debug)]
pub(super) struct Part {
    /// Where its charges are.
    pub(super) range: Range<usize>,
    /// More than could ever be admitted is asked for; so it asks without taking.
    pub(super) never: bool,
}

impl RateLimitRequest {
    /// What whoever asks must be allowed to do. Giving back is for those who may do everything.
    pub(crate) fn scope(&self) -> Scope {
        let gives_back = self.descriptors.iter().any(|descriptor| descriptor.is_negative_hits);
        if gives_back { Scope::Admin } else { Scope::Check }
    }

    /// Whether a descriptor brings its own limit, and that limit is used: policies ignore it.
    pub(crate) fn is_inline(&self, revision: &Revision) -> bool {
        let has_limit = self.descriptors.iter().any(|descriptor| descriptor.limit.is_some());
        has_limit && revision.settings.rules.domain(&self.domain).is_some()
    }
}

/// Refuses what asks for nothing.
pub(super) fn check(request: &RateLimitRequest) -> Result<(), AskError> {
    if request.domain.is_empty() {
        return Err(AskError::EmptyDomain);
    }
    if request.descriptors.is_empty() {
        return Err(AskError::NoDescriptors);
    }
    Ok(())
}

/// Whether there is more than one request may bring. That is a denial and no error, which Envoy would let pass.
pub(super) fn is_too_much(request: &RateLimitRequest, bounds: &Bounds) -> bool {
    let descriptors = &request.descriptors;
    descriptors.len() > bounds.attributes
        || descriptors.iter().any(|descriptor| descriptor.entries.len() > bounds.attributes)
}

/// Finds what applies to each descriptor.
pub(super) fn find<'a>(
    revision: &'a Revision,
    request: &'a RateLimitRequest,
) -> Result<SmallVec<[Asked<'a>; 4]>, AskError> {
    let level = revision.settings.rules.domain(&request.domain);
    let most = revision.settings.bounds.key_bytes;
    let mut asked = SmallVec::new();
    for descriptor in &request.descriptors {
        let limits = match level {
            Some(level) => by_rules(level, &request.domain, descriptor, most)?,
            None => by_policies(revision, &request.domain, descriptor)?,
        };
        let hits = descriptor.hits_addend.unwrap_or(u64::from(request.hits_addend.max(1)));
        asked.push(Asked { limits, cost: hits, refund: descriptor.is_negative_hits });
    }
    leave_out_replaced(&mut asked);
    Ok(asked)
}

fn by_rules<'a>(
    level: &'a Level,
    domain: &[u8],
    descriptor: &'a RateLimitDescriptor,
    most: usize,
) -> Result<Limits<'a>, AskError> {
    let entries = &*descriptor.entries;
    if let Some(given) = &descriptor.limit {
        let unit = Unit::try_from(given.unit).unwrap_or(Unit::Unknown);
        let period = unit.period().ok_or(AskError::Unit)?;
        let limit =
            Limit::new(u64::from(given.requests_per_unit), period).map_err(|_| AskError::Unit)?;
        let subject = Subject::whole(domain, entries).bounded(most);
        return Ok(Limits::Override(Bound::new(limit), subject));
    }
    Ok(match level.rule(entries) {
        None => Limits::None,
        Some(rule) if rule.is_unlimited() && rule.replaces.is_empty() => Limits::Unlimited,
        Some(rule) => Limits::Rule(rule, rule.subject(entries).bounded(most)),
    })
}

/// A descriptor is then a request whose attributes are its entries.
fn by_policies<'a>(
    revision: &'a Revision,
    domain: &'a [u8],
    descriptor: &'a RateLimitDescriptor,
) -> Result<Limits<'a>, AskError> {
    let text = |bytes: &'a [u8]| std::str::from_utf8(bytes).map_err(|_| AskError::NotText);
    let mut request = Request::new().in_domain(text(domain)?);
    for entry in &descriptor.entries {
        request = request.with(text(&entry.key)?, &entry.value);
    }
    let most = revision.settings.bounds.key_bytes;
    let plan = BoundedPlan::new(&revision.engine, &request, most);
    Ok(if plan.is_empty() { Limits::None } else { Limits::Native(Box::new(plan)) })
}

/// A rule that was found takes others out by their names, also if it is itself taken out.
fn leave_out_replaced(asked: &mut SmallVec<[Asked<'_>; 4]>) {
    let replaces = asked.iter().any(|one| one.rule().is_some_and(|rule| !rule.replaces.is_empty()));
    if !replaces {
        return;
    }
    let replaced: SmallVec<[usize; 4]> = (0..asked.len())
        .filter(|&place| {
            let name = asked[place].rule().map(|rule| &*rule.name).filter(|name| !name.is_empty());
            name.is_some_and(|name| {
                let lists = asked.iter().filter_map(Asked::rule).flat_map(|rule| &rule.replaces);
                lists.into_iter().any(|other| other.as_bytes() == name)
            })
        })
        .collect();
    for place in replaced {
        if asked[place].rule().is_some_and(|rule| !rule.is_unlimited()) {
            asked[place].limits = Limits::None;
        }
    }
}

impl<'a> Asked<'a> {
    pub(super) fn rule(&self) -> Option<&'a Rule> {
        match self.limits {
            Limits::Rule(rule, _) => Some(rule),
            _ => None,
        }
    }

    /// Whether it is denied together with others of its kind only.
    pub(super) fn is_quota(&self) -> bool {
        self.rule().is_some_and(|rule| rule.quota && !rule.shadow && !rule.is_unlimited())
    }

    /// Whether it is never denied: it reports only.
    pub(super) fn is_shadow(&self) -> bool {
        self.refund || self.rule().is_some_and(|rule| rule.shadow)
    }

    /// Adds what it is charged.
    fn bill(&'a self, charges: &mut SmallVec<[Charge<'a>; 4]>) -> Part {
        let start = charges.len();
        let enforced = !self.is_shadow();
        let mut never = false;
        let mut add = |(policy, counter), bounds: &[Bound], subject: &'a Subject<'_>| {
            let key = subject.as_key();
            let charge = |bound: &Bound| Charge::new(policy, key, bound.limit).counter(counter);
            let charge = |bound: &Bound| charge(bound).enforced(enforced).cost(self.cost);
            charges.extend(bounds.iter().map(charge));
            never = bounds.iter().any(|bound| self.exceeds(&bound.limit));
        };
        match &self.limits {
            Limits::None | Limits::Unlimited => {}
            Limits::Rule(rule, subject) => {
                add((rule.policy, Counter::Policy), &rule.bounds, subject);
            }
            // The client chooses the rate, so each rate has its counter.
            Limits::Override(bound, subject) => {
                let counter = (PolicyName::AD_HOC, Counter::Limit);
                add(counter, std::slice::from_ref(bound), subject);
            }
            Limits::Native(plan) => match self.planned(plan) {
                Some(planned) => charges.extend(planned),
                None => {
                    never = true;
                    // Nothing is more than any policy takes at once.
                    charges.extend(plan.charges(0).unwrap_or_default());
                }
            },
        }
        if never {
            charges[start..].iter_mut().for_each(|charge| charge.cost = 0);
        }
        Part { range: start..charges.len(), never }
    }

    /// What policies of our own charge; `None` if it could never be admitted. As much as there can be is given back.
    fn planned<'p>(&self, plan: &'p BoundedPlan<'_>) -> Option<Vec<Charge<'p>>> {
        let mut cost = self.cost;
        loop {
            match plan.charges(cost) {
                Ok(charges) => return Some(charges),
                Err(error) if self.refund && error.max < cost => cost = error.max,
                Err(_) => return None,
            }
        }
    }

    /// Whether it asks for more than could ever be admitted.
    fn exceeds(&self, limit: &Limit) -> bool {
        !self.refund && self.cost > limit.capacity() && limit.amount() > 0
    }
}

impl<'a> Bill<'a> {
    pub(super) fn new(asked: &'a [Asked<'a>]) -> Self {
        let mut charges = SmallVec::new();
        let parts = asked.iter().map(|asked| asked.bill(&mut charges)).collect();
        Self { charges, parts }
    }
}
