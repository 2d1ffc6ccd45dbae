//! Warnings about valid configurations that are likely mistakes.

use ipnet::IpNet;
use pacegate::{
    Algorithm, Limit,
    policy::{Condition, Match, Policy},
};
use pacegate_redis::Layout;

use super::{Settings, StoreSettings, hint::shorten};
use crate::listeners::{Exposed, exposed};

/// Maximum number of pairs of policies in warnings, and of policies that are compared with each other.
const MAX_PAIRS: usize = 20;
const MAX_COMPARED: usize = 5_000;

/// Returns a sentence for each likely mistake in a valid configuration.
pub fn warnings(settings: &Settings) -> Vec<String> {
    let mut warnings = Vec::new();
    for policy in settings.policies.policies() {
        overrides(policy, &mut warnings);
        conditions(policy, &mut warnings);
        limits(policy, &mut warnings);
        cost(policy, &mut warnings);
    }
    layout(settings, &mut warnings);
    cluster(settings, &mut warnings);
    listeners(settings, &mut warnings);
    warnings
}

/// Warns about overrides that are never used.
fn overrides(policy: &Policy, warnings: &mut Vec<String>) {
    let name = policy.name;
    for (index, later) in policy.overrides.iter().enumerate() {
        let number = index + 1;
        let earlier = policy.overrides[..index]
            .iter()
            .position(|earlier| earlier.matching.is_any() || earlier.matching == later.matching);
        if let Some(earlier) = earlier {
            warnings.push(format!(
                "policy `{name}`: override {number} is never used because override {} matches first",
                earlier + 1
            ));
        } else if policy.matching.excludes(&later.matching) {
            warnings.push(format!(
                "policy `{name}`: override {number} is never used because the policy covers no such request"
            ));
        }
    }
}

/// Warns about literal values that look like networks or patterns.
fn conditions(policy: &Policy, warnings: &mut Vec<String>) {
    let overrides = policy.overrides.iter().map(|other| &other.matching);
    for (attribute, condition) in
        std::iter::once(&policy.matching).chain(overrides).flat_map(Match::conditions)
    {
        let Condition::OneOf(values) = condition else { continue };
        let is_network = |value: &&String| value.contains('/') && value.parse::<IpNet>().is_ok();
        let about = if let Some(net) = values.iter().find(is_network) {
            format!(
                "`{net}` is compared literally: to match addresses in it, write `{{cidr: {net}}}`"
            )
        } else if let (true, Some(glob)) =
            (values.len() > 1, values.iter().find(|value| value.contains('*')))
        {
            let glob = shorten(glob);
            format!("`{glob}` in a list is compared literally: use `glob` for a pattern")
        } else {
            continue;
        };
        warnings.push(format!("policy `{}`: `{}`: {about}", policy.name, shorten(attribute)));
    }
}

/// Warns about limits that never deny because another limit of the policy is tighter.
fn limits(policy: &Policy, warnings: &mut Vec<String>) {
    let lists = std::iter::once(&policy.limits).chain(policy.overrides.iter().map(|o| &o.limits));
    for limits in lists {
        for idle in limits {
            let Some((tighter, max)) = limits.iter().find_map(|other| max_of(other, idle)) else {
                continue;
            };
            warnings.push(format!(
                "policy `{}`: the limit `{idle}` never denies because `{tighter}` admits at most {max} in that time",
                policy.name
            ));
        }
    }
}

/// Returns the maximum that `tighter` admits in a window of `idle`, if `idle` never denies that much. This is exact,
/// because windows whose periods divide each other start together.
fn max_of<'a>(tighter: &'a Limit, idle: &Limit) -> Option<(&'a Limit, u64)> {
    let is_aligned =
        |limit: &&Limit| limit.algorithm() == Algorithm::FixedWindow && limit.calendar().is_none();
    let windows = [tighter, idle].iter().all(is_aligned);
    let (short, long) = (tighter.period().as_micros(), idle.period().as_micros());
    if !windows || short >= long || !long.is_multiple_of(short) {
        return None;
    }
    let times = u64::try_from(long / short).ok()?;
    let max = tighter.amount().checked_mul(times)?;
    (max <= idle.amount()).then_some((tighter, max))
}

fn cost(policy: &Policy, warnings: &mut Vec<String>) {
    let Some(cost) = policy.max_cost else { return };
    let lists = std::iter::once(&policy.limits).chain(policy.overrides.iter().map(|o| &o.limits));
    // In each list the tightest limit decides. A cost is useful if any list can admit it.
    let max =
        lists.map(|limits| limits.iter().map(Limit::capacity).min().unwrap_or(u64::MAX)).max();
    if let Some(max) = max.filter(|max| *max < cost) {
        warnings.push(format!(
            "policy `{}`: a `max_cost` of {cost} has no effect because its limits admit at most {max} at once",
            policy.name
        ));
    }
}

fn layout(settings: &Settings, warnings: &mut Vec<String>) {
    if settings.layout != Layout::native() && settings.policies.policies().len() > 1 {
        warnings.push(
            "the layout of the store has no names of policies in its keys: policies with the same key \
             and period share one counter"
                .to_owned(),
        );
    }
}

/// Warns about policies whose counters for one request may be on different servers of a cluster.
fn cluster(settings: &Settings, warnings: &mut Vec<String>) {
    let StoreSettings::Redis { url, .. } = &settings.store else { return };
    let scheme = url.split("://").next().unwrap_or_default();
    if !scheme.ends_with("+cluster") {
        return;
    }
    if settings.policies.policies().len() > MAX_COMPARED {
        warnings.push(format!(
            "more than {MAX_COMPARED} policies: skipped the check whether a cluster charges them in one step"
        ));
        return;
    }
    let pairs = settings.policies.split_tags();
    for (first, second) in pairs.iter().take(MAX_PAIRS) {
        warnings.push(format!(
            "policies `{first}` and `{second}`: a request that meets both is charged to one after the other on \
             a cluster, and refunded if one denies; use the same `tag` to charge both in one step"
        ));
    }
    if pairs.len() > MAX_PAIRS {
        warnings.push(format!("and {} more such pairs", pairs.len() - MAX_PAIRS));
    }
}

fn listeners(settings: &Settings, warnings: &mut Vec<String>) {
    for Exposed { name, missing, .. } in exposed(settings) {
        warnings.push(format!(
            "`listen.{name}` is open to other machines: the server does not start without {missing}"
        ));
    }
}
