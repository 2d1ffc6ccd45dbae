//! The limits of each descriptor, and the charges to them.

use std::ops::Range;

use pacegate::{Algorithm, Charge, Counter, Excess, Limit, PolicyName, Request};
use smallvec::SmallVec;

use super::{
    decide::EnvoyError,
    limits::Bound,
    proto::{RateLimitDescriptor, RateLimitRequest, Unit},
    rules::{DescriptorKey, Level, Rule},
};
use crate::{
    active_config::Revision,
    config::{Bounds, Scope},
    long_key_digest::BoundedPlan,
};

/// A descriptor with the limits that apply to it.
#[derive(Debug)]
pub(super) struct ResolvedDescriptor<'a> {
    pub(super) limits: DescriptorLimits<'a>,
    /// A cost of 0 is a peek.
    pub(super) cost: u64,
    /// True if the cost is refunded.
    pub(super) refund: bool,
    /// True in quota mode: quotas deny only if all of them are exceeded.
    pub(super) is_quota: bool,
}

/// The limits of a descriptor.
#[derive(Debug)]
pub(super) enum DescriptorLimits<'a> {
    /// No rule or policy applies.
    None,
    /// A rule with `unlimited`.
    Unlimited,
    /// The limits of a rule.
    Rule(&'a Rule, DescriptorKey<'a>),
    /// The limit in the request, with its counter.
    Override(Bound, (PolicyName, Counter), DescriptorKey<'a>),
    /// Policies, in a domain without rules.
    Native(Box<BoundedPlan<'a>>),
}

/// The charges of a request.
#[derive(Debug)]
pub(super) struct RequestCharges<'a> {
    pub(super) charges: SmallVec<[Charge<'a>; 4]>,
    /// One entry for each descriptor.
    pub(super) parts: SmallVec<[DescriptorCharges; 4]>,
}

/// The charges of one descriptor.
#[derive(Clone, Debug)]
pub(super) struct DescriptorCharges {
    /// The range of its charges.
    pub(super) range: Range<usize>,
    /// True if the cost exceeds the capacity of a limit, so that its charges are peeks, except those recorded in full.
    pub(super) is_too_large: bool,
}

impl RateLimitRequest {
    /// Returns the scope that the request needs: refunds need `admin`.
    pub(crate) fn scope(&self) -> Scope {
        let refunds = self.descriptors.iter().any(|descriptor| descriptor.is_negative_hits);
        if refunds { Scope::Admin } else { Scope::Check }
    }

    /// Returns whether the request has an inline limit that applies. Policies ignore such limits.
    pub(crate) fn is_inline(&self, revision: &Revision) -> bool {
        let has_limit = self.descriptors.iter().any(|descriptor| descriptor.limit.is_some());
        has_limit && revision.settings.rules.domain(&self.domain).is_some()
    }
}

/// Rejects a request without a domain or descriptors.
pub(super) fn check(request: &RateLimitRequest) -> Result<(), EnvoyError> {
    if request.domain.is_empty() {
        return Err(EnvoyError::EmptyDomain);
    }
    if request.descriptors.is_empty() {
        return Err(EnvoyError::NoDescriptors);
    }
    Ok(())
}

/// Returns whether a request exceeds the bounds. It is then denied: Envoy would let a request pass on an error.
pub(super) fn exceeds_bounds(request: &RateLimitRequest, bounds: &Bounds) -> bool {
    let descriptors = &request.descriptors;
    descriptors.len() > bounds.attributes
        || descriptors.iter().any(|descriptor| descriptor.entries.len() > bounds.attributes)
}

/// Finds the limits of each descriptor.
pub(super) fn resolve<'a>(
    revision: &'a Revision,
    request: &'a RateLimitRequest,
    is_independent: bool,
) -> Result<SmallVec<[ResolvedDescriptor<'a>; 4]>, EnvoyError> {
    let level = revision.settings.rules.domain(&request.domain);
    let most = revision.settings.bounds.key_bytes;
    let all_quotas = level.is_some() && revision.settings.envoy.quota_mode;
    let mut resolved = SmallVec::new();
    for descriptor in &request.descriptors {
        let limits = match level {
            Some(level) => by_rules(level, &request.domain, descriptor, most, is_independent)?,
            None => by_policies(revision, &request.domain, descriptor)?,
        };
        let hits = descriptor.hits_addend.unwrap_or(u64::from(request.hits_addend.max(1)));
        let is_quota = match &limits {
            DescriptorLimits::Rule(rule, _) => !rule.is_unlimited() && (all_quotas || rule.quota),
            DescriptorLimits::Unlimited => false,
            _ => all_quotas,
        };
        resolved.push(ResolvedDescriptor {
            is_quota,
            limits,
            cost: hits,
            refund: descriptor.is_negative_hits,
        });
    }
    remove_replaced(&mut resolved, all_quotas);
    Ok(resolved)
}

fn by_rules<'a>(
    level: &'a Level,
    domain: &[u8],
    descriptor: &'a RateLimitDescriptor,
    most: usize,
    is_independent: bool,
) -> Result<DescriptorLimits<'a>, EnvoyError> {
    let entries = &*descriptor.entries;
    if let Some(given) = &descriptor.limit {
        let unit = Unit::try_from(given.unit).unwrap_or(Unit::Unknown);
        let period = unit.period().ok_or(EnvoyError::Unit)?;
        let limit =
            Limit::new(u64::from(given.requests_per_unit), period).map_err(|_| EnvoyError::Unit)?;
        // In envoyproxy/ratelimit, all limits of the same entries and unit share a counter. Otherwise each has its own,
        // because clients choose them.
        let rule = level.rule(entries).filter(|rule| !rule.is_unlimited() && !rule.is_shared);
        let (counter, key) = match rule {
            Some(rule) if is_independent => ((rule.policy, Counter::Policy), rule.key(entries)),
            _ => {
                let counter = if is_independent { Counter::Policy } else { Counter::Limit };
                ((PolicyName::INLINE, counter), DescriptorKey::whole(domain, entries))
            }
        };
        return Ok(DescriptorLimits::Override(Bound::new(limit), counter, key.bounded(most)));
    }
    Ok(match level.rule(entries) {
        None => DescriptorLimits::None,
        Some(rule) if rule.is_unlimited() && rule.replaces.is_empty() => {
            DescriptorLimits::Unlimited
        }
        Some(rule) => DescriptorLimits::Rule(rule, rule.key(entries).bounded(most)),
    })
}

/// Plans a descriptor as a request whose attributes are its entries.
fn by_policies<'a>(
    revision: &'a Revision,
    domain: &'a [u8],
    descriptor: &'a RateLimitDescriptor,
) -> Result<DescriptorLimits<'a>, EnvoyError> {
    let text = |bytes: &'a [u8]| std::str::from_utf8(bytes).map_err(|_| EnvoyError::NotText);
    let mut request = Request::new().in_domain(text(domain)?);
    for entry in &descriptor.entries {
        request = request.with(text(&entry.key)?, &entry.value);
    }
    let most = revision.settings.bounds.key_bytes;
    let plan = BoundedPlan::new(&revision.engine, &request, most);
    Ok(if plan.is_empty() {
        DescriptorLimits::None
    } else {
        DescriptorLimits::Native(Box::new(plan))
    })
}

/// Removes rules that other rules of the request replace by name. A replaced rule still replaces others.
fn remove_replaced(resolved: &mut SmallVec<[ResolvedDescriptor<'_>; 4]>, all_quotas: bool) {
    let replaces =
        resolved.iter().any(|one| one.rule().is_some_and(|rule| !rule.replaces.is_empty()));
    if !replaces {
        return;
    }
    let replaced: SmallVec<[usize; 4]> = (0..resolved.len())
        .filter(|&place| {
            let name =
                resolved[place].rule().map(|rule| &*rule.name).filter(|name| !name.is_empty());
            name.is_some_and(|name| {
                let lists = resolved
                    .iter()
                    .filter_map(ResolvedDescriptor::rule)
                    .flat_map(|rule| &rule.replaces);
                lists.into_iter().any(|other| other.as_bytes() == name)
            })
        })
        .collect();
    for place in replaced {
        if resolved[place].rule().is_some_and(|rule| !rule.is_unlimited()) {
            resolved[place].limits = DescriptorLimits::None;
            resolved[place].is_quota = all_quotas;
        }
    }
}

impl<'a> ResolvedDescriptor<'a> {
    pub(super) fn rule(&self) -> Option<&'a Rule> {
        match self.limits {
            DescriptorLimits::Rule(rule, _) => Some(rule),
            _ => None,
        }
    }

    /// Returns whether the descriptor never denies.
    pub(super) fn is_shadow(&self) -> bool {
        self.refund || self.rule().is_some_and(|rule| rule.shadow)
    }

    /// Adds its charges.
    fn add_charges(
        &'a self,
        charges: &mut SmallVec<[Charge<'a>; 4]>,
        is_independent: bool,
    ) -> DescriptorCharges {
        let start = charges.len();
        let enforced = !self.is_shadow();
        let mut is_too_large = false;
        let mut add = |(policy, counter), bounds: &[Bound], subject: &'a DescriptorKey<'_>| {
            let key = subject.as_key();
            let charge = |bound: &Bound| Charge::new(policy, key, bound.limit).counter(counter);
            let charge = |bound: &Bound| charge(bound).enforced(enforced).cost(self.cost);
            charges.extend(
                bounds.iter().map(charge).map(|charge| self.recorded(charge, is_independent)),
            );
            is_too_large = charges[start..].iter().any(|charge| self.exceeds(charge));
        };
        match &self.limits {
            DescriptorLimits::None | DescriptorLimits::Unlimited => {}
            DescriptorLimits::Rule(rule, subject) => {
                add((rule.policy, Counter::Policy), &rule.bounds, subject);
            }
            DescriptorLimits::Override(bound, counter, subject) => {
                add(*counter, std::slice::from_ref(bound), subject);
            }
            DescriptorLimits::Native(plan) => match self.plan_charges(plan) {
                Some(planned) => {
                    let planned = planned.into_iter();
                    charges.extend(planned.map(|charge| self.recorded(charge, is_independent)));
                }
                None => {
                    // A cost of 0 never exceeds a limit.
                    let planned = plan.charges(0).unwrap_or_default().into_iter();
                    charges.extend(planned.map(|charge| self.recorded(charge, is_independent)));
                    for charge in &mut charges[start..] {
                        let is_possible = self.cost <= charge.max_cost;
                        is_too_large |= charge.enforced && (self.exceeds(charge) || !is_possible);
                        charge.cost = if is_possible { self.cost } else { 0 };
                    }
                }
            },
        }
        if is_too_large {
            peek(&mut charges[start..]);
        }
        DescriptorCharges { range: start..charges.len(), is_too_large }
    }

    /// Sets what happens to hits that do not fit. Independent descriptors count them, as envoyproxy/ratelimit does, but
    /// only in fixed windows, which forget them at their end.
    fn recorded<'c>(&self, charge: Charge<'c>, is_independent: bool) -> Charge<'c> {
        let is_window = charge.limit.algorithm() == Algorithm::FixedWindow;
        if self.rule().is_some_and(|rule| rule.record_in_full) {
            charge.spent()
        } else if !charge.excess.is_recorded() && is_independent && is_window && charge.lease == 0 {
            charge.excess(Excess::Count)
        } else {
            charge
        }
    }

    /// Returns the charges of policies, or `None` if the cost exceeds a capacity. Refunds are capped at the capacity.
    fn plan_charges<'p>(&self, plan: &'p BoundedPlan<'_>) -> Option<Vec<Charge<'p>>> {
        let mut cost = self.cost;
        loop {
            match plan.charges(cost) {
                Ok(charges) => return Some(charges),
                Err(error) if self.refund && error.max < cost => cost = error.max,
                Err(_) => return None,
            }
        }
    }

    /// Returns whether the cost exceeds the capacity of a limit, and is not recorded.
    fn exceeds(&self, charge: &Charge<'_>) -> bool {
        let limit = &charge.limit;
        !self.refund && !is_recorded(charge) && self.cost > limit.capacity() && limit.amount() > 0
    }
}

/// Returns whether the hits are recorded even if they do not fit.
pub(super) fn is_recorded(charge: &Charge<'_>) -> bool {
    charge.excess.under(&charge.limit).is_recorded()
}

/// Turns the charges into peeks, except those that are recorded in full.
pub(super) fn peek(charges: &mut [Charge<'_>]) {
    charges.iter_mut().filter(|charge| !is_recorded(charge)).for_each(|charge| charge.cost = 0);
}

impl<'a> RequestCharges<'a> {
    pub(super) fn new(resolved: &'a [ResolvedDescriptor<'a>], is_independent: bool) -> Self {
        let mut charges = SmallVec::new();
        let parts = resolved.iter();
        let parts = parts.map(|resolved| resolved.add_charges(&mut charges, is_independent));
        let parts = parts.collect();
        Self { charges, parts }
    }
}
