//! The hits of rules, with the names that dashboards for envoyproxy/ratelimit use.

use std::{
    array,
    collections::HashMap,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, Ordering},
    },
};

use pacegate::{Charge, Decision, Source};
use parking_lot::{Mutex, RwLock};

use super::StatsSettings;
use crate::envoy::{
    decide::{DescriptorResult, EnvoyError},
    proto::{Entry, RateLimitRequest},
    resolve::{DescriptorLimits, RequestCharges, ResolvedDescriptor},
};

/// Counters of envoyproxy/ratelimit, since the start of the process.
#[derive(Debug, Default)]
pub(crate) struct HitStats {
    rules: RwLock<HashMap<HitName, Arc<HitCounters>>>,
    /// The number of descriptors in domains without rules.
    unknown_domains: Mutex<HashMap<String, u64>>,
    /// Calls that a failure mode decided because Redis did not answer.
    redis_errors: AtomicU64,
    /// Calls without a decision.
    service_errors: AtomicU64,
    /// Denials that `SHADOW_MODE` turned into `OK`.
    global_shadow: AtomicU64,
}

/// A domain, and the name of each level below it.
pub(super) type HitName = Box<[String]>;

/// The hits of one name, in the order of [`STATISTICS`].
type HitCounters = [AtomicU64; STATISTICS.len()];
type Hits = [u64; STATISTICS.len()];

/// The name of a rule in statistics.
#[derive(Debug, Default)]
pub(in crate::envoy) struct RuleHits {
    levels: Vec<HitLevel>,
    /// Set by the first hit, if the name does not depend on the request.
    counters: OnceLock<Arc<HitCounters>>,
}

/// One level of a rule in the name of its statistics.
#[derive(Clone, Debug)]
pub(in crate::envoy) struct HitLevel {
    /// `key`, or `key_value` with the value in the file.
    text: String,
    /// True if the value of the request replaces the one in the file.
    is_detailed: bool,
    /// True if all values that match share a counter, so that the value in the file stays.
    is_shared: bool,
}

/// The use of a limit before a request.
#[derive(Clone, Copy, Debug)]
struct Usage {
    before: u64,
    limit: u64,
    /// True if the denial came from the deny cache.
    is_cached: bool,
}

pub(super) const STATISTICS: [&str; 6] = [
    "total_hits",
    "over_limit",
    "near_limit",
    "within_limit",
    "shadow_mode",
    "over_limit_with_local_cache",
];

/// Maximum number of names with values of requests. Further values are counted under the value in the file.
const MAX_DETAILED_NAMES: usize = 10_000;
/// Maximum number of all names: a reload can add names, and none is removed. Further names are counted as `other`.
const MAX_NAMES: usize = 100_000;
/// Maximum number of unknown domains.
const MAX_UNKNOWN_DOMAINS: usize = 100;
/// Maximum length of a level in characters.
const MAX_LEVEL: usize = 128;

impl HitStats {
    /// Counts the hits of a request.
    pub(in crate::envoy) fn record(
        &self,
        settings: &StatsSettings,
        request: &RateLimitRequest,
        resolved: &[ResolvedDescriptor<'_>],
        charged: &RequestCharges<'_>,
        results: &[DescriptorResult],
    ) {
        let each = request.descriptors.iter().zip(resolved).zip(&charged.parts).zip(results);
        for (((descriptor, resolved), part), result) in each {
            let Some((place, decision)) = result.tightest else { continue };
            let Some(charge) = charged.charges.get(part.range.start + place) else { continue };
            if resolved.cost == 0 || resolved.refund {
                continue;
            }
            let usage = Usage::new(charge, &decision);
            let hits = usage.hits(resolved.cost, settings.near(usage.limit), resolved.is_shadow());
            match &resolved.limits {
                DescriptorLimits::Rule(rule, _) => {
                    self.add_to_rule(&request.domain, &rule.hits, &descriptor.entries, hits);
                }
                DescriptorLimits::Override(..) => {
                    let levels = descriptor.entries.iter().map(entry_level);
                    let name = named(&request.domain, levels);
                    add(&self.detailed(name, || named(&request.domain, ["other".into()])), hits);
                }
                DescriptorLimits::None
                | DescriptorLimits::Unlimited
                | DescriptorLimits::Native(_) => {}
            }
        }
    }

    /// Counts the descriptors of a domain without rules.
    pub(in crate::envoy) fn count_unknown_domain(&self, domain: &[u8], descriptors: usize) {
        let mut domains = self.unknown_domains.lock();
        let name = sanitized(&String::from_utf8_lossy(domain));
        let has_room = domains.len() < MAX_UNKNOWN_DOMAINS || domains.contains_key(&name);
        let name = if has_room { name } else { "other".into() };
        *domains.entry(name).or_default() += descriptors as u64;
    }

    /// Counts a call without a decision.
    pub(in crate::envoy) fn count_error(&self, error: &EnvoyError) {
        let is_store = matches!(error, EnvoyError::Check(_) | EnvoyError::Store(_));
        let counter = if is_store { &self.redis_errors } else { &self.service_errors };
        counter.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a call that a failure mode decided.
    pub(in crate::envoy) fn count_degraded(&self) {
        self.redis_errors.fetch_add(1, Ordering::Relaxed);
    }

    /// Counts a denial that `SHADOW_MODE` turned into `OK`.
    pub(in crate::envoy) fn count_global_shadow(&self) {
        self.global_shadow.fetch_add(1, Ordering::Relaxed);
    }

    fn add_to_rule(&self, domain: &[u8], rule: &RuleHits, entries: &[Entry], hits: Hits) {
        if !rule.levels.iter().any(|level| level.is_detailed) {
            add(rule.counters.get_or_init(|| self.counters(rule.name(domain))), hits);
            return;
        }
        let levels =
            rule.levels.iter().zip(entries).map(|(level, entry)| match level.is_detailed {
                true => entry_level(entry),
                false => sanitized(&level.text),
            });
        add(&self.detailed(named(domain, levels), || rule.name(domain)), hits);
    }

    /// Returns the counters of a name with values of a request, or of the other name if there are too many.
    fn detailed(&self, name: HitName, other: impl FnOnce() -> HitName) -> Arc<HitCounters> {
        let known = self.rules.read().get(&name).cloned();
        known.unwrap_or_else(|| {
            let has_room = self.rules.read().len() < MAX_DETAILED_NAMES;
            self.counters(if has_room { name } else { other() })
        })
    }

    /// Returns the counters of a name.
    fn counters(&self, name: HitName) -> Arc<HitCounters> {
        let mut rules = self.rules.write();
        let has_room = rules.len() < MAX_NAMES || rules.contains_key(&name);
        let name = if has_room { name } else { ["other".into()].into() };
        rules.entry(name).or_default().clone()
    }

    /// Returns the hits of each name, in the order of the names.
    pub(super) fn hits(&self) -> Vec<(HitName, Hits)> {
        let rules = self.rules.read();
        let mut all: Vec<_> = rules.iter().map(|(name, hits)| (name.clone(), load(hits))).collect();
        drop(rules);
        all.sort_unstable();
        all
    }

    /// Returns the unknown domains with the number of their descriptors.
    pub(super) fn unknown_domains(&self) -> Vec<(String, u64)> {
        let mut all: Vec<_> = self.unknown_domains.lock().clone().into_iter().collect();
        all.sort_unstable();
        all
    }

    /// Returns the counters that do not depend on rules, with their names in statsd.
    pub(super) fn calls(&self) -> [(&'static str, u64); 3] {
        [
            ("call.should_rate_limit.redis_error", &self.redis_errors),
            ("call.should_rate_limit.service_error", &self.service_errors),
            ("global_shadow_mode", &self.global_shadow),
        ]
        .map(|(name, count)| (name, count.load(Ordering::Relaxed)))
    }
}

impl RuleHits {
    /// Creates the name of a rule. `is_detailed`: the values of the request replace all values in the file.
    pub(in crate::envoy) fn new(levels: &[HitLevel], is_detailed: bool) -> Self {
        let mut levels = levels.to_vec();
        if is_detailed {
            levels.iter_mut().for_each(|level| level.is_detailed = !level.is_shared);
        }
        Self { levels, counters: OnceLock::new() }
    }

    /// Returns the name without values of a request.
    fn name(&self, domain: &[u8]) -> HitName {
        named(domain, self.levels.iter().map(|level| sanitized(&level.text)))
    }
}

impl HitLevel {
    /// Creates the level of a descriptor. `is_detailed`: the value of the request replaces the one in the file.
    pub(in crate::envoy) fn new(
        key: &str,
        value: Option<&str>,
        is_detailed: bool,
        is_shared: bool,
    ) -> Self {
        let text = value.map_or_else(|| key.to_owned(), |value| format!("{key}_{value}"));
        Self { text, is_detailed, is_shared }
    }
}

impl Usage {
    fn new(charge: &Charge<'_>, decision: &Decision) -> Self {
        let capacity = charge.limit.capacity();
        let taken = if decision.is_allowed() { charge.cost } else { 0 };
        Self {
            before: capacity.saturating_sub(decision.remaining()).saturating_sub(taken),
            limit: capacity,
            is_cached: decision.source() == Source::DenyCache,
        }
    }

    /// Returns the hits to add to each of [`STATISTICS`]. `near` is the use above which a limit is almost reached.
    fn hits(self, cost: u64, near: u64, is_shadow: bool) -> Hits {
        let Self { before, limit, is_cached } = self;
        let after = before.saturating_add(cost);
        if after <= limit {
            let near_hits = cost.min(after.saturating_sub(near));
            return [cost, 0, near_hits, cost, 0, 0];
        }
        let over = if is_cached { cost } else { cost.min(after - limit) };
        let near_hits = if is_cached { 0 } else { limit.saturating_sub(near.max(before)) };
        let shadow = if is_shadow { over } else { 0 };
        [cost, over, near_hits, 0, shadow, if is_cached { cost } else { 0 }]
    }
}

fn add(counters: &HitCounters, hits: Hits) {
    for (counter, hits) in counters.iter().zip(hits).filter(|(_, hits)| *hits > 0) {
        counter.fetch_add(hits, Ordering::Relaxed);
    }
}

fn load(counters: &HitCounters) -> Hits {
    array::from_fn(|place| counters[place].load(Ordering::Relaxed))
}

fn named(domain: &[u8], levels: impl IntoIterator<Item = String>) -> HitName {
    let domain = sanitized(&String::from_utf8_lossy(domain));
    std::iter::once(domain).chain(levels).collect()
}

/// Returns the level of an entry of a request: `key`, or `key_value`.
fn entry_level(entry: &Entry) -> String {
    let (key, value) = (String::from_utf8_lossy(&entry.key), String::from_utf8_lossy(&entry.value));
    sanitized(&if value.is_empty() { key.into_owned() } else { format!("{key}_{value}") })
}

/// Replaces characters that separate fields in statsd, and the dots of IPv4 addresses. Shortens long texts.
fn sanitized(text: &str) -> String {
    let is_separator = |char: char| matches!(char, ':' | '|') || char.is_control();
    let short = text.chars().take(MAX_LEVEL);
    let text: String = short.map(|char| if is_separator(char) { '_' } else { char }).collect();
    let parts: Vec<&str> = text.split('.').collect();
    let mut separators = vec!["."; parts.len() - 1];
    let mut place = 0;
    while let Some(four) = parts.get(place..place + 4) {
        if is_address(four) {
            separators[place..place + 3].fill("_");
            // A fourth part with other characters can also begin the next address.
            place += if is_number(four[3]) { 4 } else { 3 };
        } else {
            place += 1;
        }
    }
    separators.push("");
    parts.into_iter().zip(separators).flat_map(|(part, separator)| [part, separator]).collect()
}

/// Returns true if an IPv4 address begins in the first part and ends in the last.
fn is_address(parts: &[&str]) -> bool {
    let is_digit = |char: char| char.is_ascii_digit();
    matches!(parts, [first, second, third, fourth] if first.ends_with(is_digit)
        && is_number(second) && is_number(third) && fourth.starts_with(is_digit))
}

fn is_number(text: &str) -> bool {
    (1..=3).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hits_are_split_at_the_limit_and_near_it() {
        for (before, cost, expected) in [
            // Of 10, from 8 on it is near.
            (0, 3, [3, 0, 0, 3]),
            (7, 2, [2, 0, 1, 2]),
            (8, 2, [2, 0, 2, 2]),
            (9, 4, [4, 3, 1, 0]),
            (0, 40, [40, 30, 2, 0]),
            (10, 4, [4, 4, 0, 0]),
            (11, 4, [4, 4, 0, 0]),
        ] {
            let usage = Usage { before, limit: 10, is_cached: false };
            assert_eq!(usage.hits(cost, 8, false)[..4], expected, "{before} {cost}");
            let [_, over, _, _, shadow, cached] = usage.hits(cost, 8, true);
            assert_eq!((shadow, cached), (over, 0), "{before} {cost}");
        }
        let usage = Usage { before: 10, limit: 10, is_cached: true };
        assert_eq!(usage.hits(4, 8, true), [4, 4, 0, 0, 4, 4]);
    }

    #[test]
    fn names_are_those_of_statsd() {
        for (text, expected) in [
            ("a:b|c.d", "a_b_c.d"),
            ("10.0.0.1", "10_0_0_1"),
            ("ip_10.0.0.1/24", "ip_10_0_0_1/24"),
            ("1.2.3.4.5.6.7.8x9.1.2.3", "1_2_3_4.5_6_7_8x9_1_2_3"),
            ("1.2.3", "1.2.3"),
            ("1.2222.3.4", "1.2222.3.4"),
            ("a\nb", "a_b"),
            ("", ""),
        ] {
            assert_eq!(sanitized(text), expected);
        }
        assert_eq!(sanitized(&"x".repeat(1_000)).len(), MAX_LEVEL);
    }

    #[test]
    fn values_of_requests_do_not_create_names_without_bound() {
        let stats = HitStats::default();
        let rule = RuleHits::new(&[HitLevel::new("user", None, false, false)], true);
        for user in 0..MAX_DETAILED_NAMES + 10 {
            let entry = Entry { key: "user".into(), value: user.to_string().into() };
            stats.add_to_rule(b"edge", &rule, &[entry], [1; STATISTICS.len()]);
        }
        let hits = stats.hits();
        assert_eq!(hits.len(), MAX_DETAILED_NAMES + 1);
        let (name, rest) = &hits[0];
        assert_eq!((&**name, rest[0]), (&["edge".to_owned(), "user".to_owned()][..], 10));
    }
}
