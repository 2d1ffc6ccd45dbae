//! The result of a study as data: serialised as JSON, and the input of the text and HTML reports.

mod change;
mod html;
mod text;

use pacegate::{Limit, Policy, policy::Mode};
use serde::Serialize;

use self::change::Change;
pub use self::{html::Page, text::TextReport};
use super::{
    SimulateError, TrafficSummary,
    replay::Variant,
    suggest::{Found, Goal, Outcome},
    tally::{Columns, KeyCounts, KeyTally, OutcomeCounts, PolicyTally, Timeline, shown},
    traffic::{Seen, instant::rfc3339_text},
};
use crate::text::grouped;

/// The complete report.
#[derive(Debug, Serialize)]
pub struct Report {
    /// The result in one sentence: the title of the text and of the page.
    pub finding: String,
    pub(crate) traffic: TrafficReport,
    /// The variants in the given order.
    pub variants: Vec<VariantReport>,
    /// The changes of every other variant compared with the first.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub changes: Vec<Change>,
    /// The result of a search for a limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub suggestion: Option<SuggestionReport>,
    /// Notes on the reliability of the results.
    pub notes: Vec<String>,
}

#[derive(Debug, Serialize)]
pub(crate) struct TrafficReport {
    /// Names of the files or patterns.
    pub source: String,
    pub from: String,
    pub to: String,
    pub seconds: u64,
    pub peak_second: u64,
    pub peak_minute: u64,
    #[serde(flatten)]
    pub seen: Seen,
}

#[derive(Debug, Serialize)]
pub struct VariantReport {
    pub name: String,
    pub requests: u64,
    #[serde(flatten)]
    pub counts: OutcomeCounts,
    /// Requests that no policy covers.
    pub unlimited: u64,
    pub timeline: Columns,
    pub policies: Vec<PolicyReport>,
}

#[derive(Debug, Serialize)]
pub struct PolicyReport {
    pub name: String,
    pub limits: Vec<String>,
    pub algorithm: &'static str,
    pub per: Vec<String>,
    pub shadow: bool,
    /// Amount of the first limit, and its period as text.
    pub amount: u64,
    pub period: String,
    pub requests: u64,
    #[serde(flatten)]
    pub counts: OutcomeCounts,
    /// Requests that this policy would have allowed and another one denied.
    pub denied_elsewhere: u64,
    pub keys: KeyCounts,
    /// The most requests of one key, and the most admitted ones, within any one period of the first limit.
    pub peak_asked: u64,
    pub peak_admitted: u64,
    /// The most requests of one key within any one second.
    pub peak_second: u64,
    /// Number of times a key was admitted more than the amount within one period, across the boundary of a
    /// fixed window.
    pub bursts: u64,
    pub worst_bursts: Vec<BurstReport>,
    pub denied_most: Vec<KeyReport>,
    pub busiest: Vec<KeyReport>,
    pub timeline: Columns,
}

#[derive(Debug, Serialize)]
pub struct BurstReport {
    pub at: String,
    /// Seconds since the Unix epoch.
    pub time: u64,
    pub key: String,
    pub admitted: u64,
    pub amount: u64,
}

#[derive(Debug, Serialize)]
pub struct KeyReport {
    pub key: String,
    pub requests: u64,
    #[serde(flatten)]
    pub counts: OutcomeCounts,
    pub peak_second: u32,
    pub peak_asked: u32,
    pub peak_admitted: u32,
}

/// The limit that a search found.
#[derive(Debug, Serialize)]
pub struct SuggestionReport {
    pub(crate) target: String,
    pub(crate) policy: String,
    pub(crate) per: Vec<String>,
    /// The suggested limit, if one meets the target.
    pub limit: Option<String>,
    /// True if every limit meets the target.
    pub any: bool,
    pub(crate) algorithm: &'static str,
    pub(crate) outcome: Option<Outcome>,
    /// The nearest limit that misses the target.
    pub next: Option<(String, Outcome)>,
    pub(crate) summary: Option<String>,
    pub(crate) next_summary: Option<String>,
    pub(crate) passes: u64,
    pub(crate) tried: u64,
    /// The distance of clients without denials to the suggested limit.
    pub headroom: Option<Headroom>,
    /// The policy with the suggested limit, for a config file.
    pub yaml: Option<String>,
}

/// The distance between a limit and the clients that it does not deny.
#[derive(Clone, Debug, Serialize)]
pub struct Headroom {
    /// The most requests of a client without denials within any one period.
    pub(crate) peak: u64,
    /// The amount of the limit.
    pub(crate) amount: u64,
    pub(crate) period: String,
    /// The unused part of the amount, in percent.
    pub(crate) share: String,
}

impl Headroom {
    /// Returns `None` if all clients have denied requests.
    fn new(policy: &Policy, tally: &PolicyTally) -> Option<Self> {
        let limit = policy.limits.first()?;
        let untouched = tally.keys.iter().filter(|(_, key)| key.counts.all_denied() == 0);
        let peak = untouched.map(|(_, key)| u64::from(key.peak_asked)).max()?;
        let amount = limit.amount();
        let share = percent(amount.saturating_sub(peak), amount);
        Some(Self { peak, amount, period: period(limit), share })
    }
}

/// Formats a policy with another first limit as part of a config file.
fn policy_yaml(policy: &Policy, limit: &Limit) -> String {
    let limits = std::iter::once(limit).chain(policy.limits.iter().skip(1));
    let limits: Vec<String> = limits.map(Limit::to_string).collect();
    let limits = match &*limits {
        [limit] => limit.clone(),
        limits => format!("[{}]", limits.join(", ")),
    };
    let is_plain = policy.matching.is_any()
        && policy.domain.is_empty()
        && policy.overrides.is_empty()
        && policy.mode == Mode::Enforce;
    let (rest, per) = match (is_plain, &*policy.per) {
        (false, _) => (" # keep its other fields", String::new()),
        (true, []) => ("", String::new()),
        (true, per) => ("", format!("    per: [{}]\n", per.join(", "))),
    };
    format!("policies:\n  - name: {}{rest}\n{per}    limit: {limits}\n", policy.name)
}

impl Report {
    /// Creates a report that lists the `top` keys of each policy.
    pub fn new(source: String, span: &TrafficSummary, variants: &[Variant], top: usize) -> Self {
        let traffic = TrafficReport {
            source,
            from: rfc3339_text(span.first),
            to: rfc3339_text(span.last),
            seconds: (span.last - span.first) / 1_000_000,
            peak_second: span.peak_second.most.into(),
            peak_minute: span.peak_minute.most.into(),
            seen: span.seen.clone(),
        };
        let others = variants.iter().skip(1);
        let changes = match variants.first() {
            Some(first) => others.map(|other| Change::new(first, other, top)).collect(),
            None => Vec::new(),
        };
        let mut timelines: Vec<_> = variants.iter().map(|one| one.timeline.clone()).collect();
        Timeline::align(&mut timelines.iter_mut().collect::<Vec<_>>());
        let told = variants.iter().zip(&timelines);
        let variant_reports: Vec<_> =
            told.map(|(one, timeline)| VariantReport::new(one, timeline, top)).collect();
        Self {
            finding: finding(&variant_reports),
            traffic,
            variants: variant_reports,
            changes,
            suggestion: None,
            notes: notes(span, variants),
        }
    }

    /// Adds the result of a search, whose limit the only variant has.
    pub fn add_suggestion(&mut self, mut suggestion: SuggestionReport, variants: &[Variant]) {
        if let Some(limit) = &suggestion.limit {
            let per = whose(&suggestion.per);
            self.finding =
                format!("suggested limit: {limit} {per} (target: {})", suggestion.target);
        }
        let policies = variants.iter().flat_map(|one| one.policies().iter().zip(&one.tallies));
        let searched = policies.filter(|(policy, _)| policy.name.as_str() == suggestion.policy);
        suggestion.headroom =
            searched.filter_map(|(policy, tally)| Headroom::new(policy, tally)).next();
        self.suggestion = Some(suggestion);
    }
}

/// Describes the result in one sentence.
fn finding(variants: &[VariantReport]) -> String {
    let [variant] = variants else {
        let share = |one: &VariantReport| {
            format!("{} {}", one.name, percent(one.counts.all_denied(), one.requests))
        };
        let shares: Vec<String> = variants.iter().map(share).collect();
        return format!("denied: {}", shares.join(", "));
    };
    let (subject, requests, denied, shadow) = match &*variant.policies {
        [policy] => {
            let subject = format!("{} {}", policy.limits.join(" and "), whose(&policy.per));
            (subject, policy.requests, policy.counts.all_denied(), policy.shadow)
        }
        _ => (
            variant.name.clone(),
            variant.requests,
            variant.counts.all_denied(),
            variant.counts.denied == 0,
        ),
    };
    let verb = if shadow && denied > 0 { "would deny" } else { "denies" };
    let clients = match &*variant.policies {
        [policy] if !policy.per.is_empty() && denied > 0 => {
            let about = if policy.keys.exact { "" } else { "about " };
            let [touched, seen] = [policy.keys.touched, policy.keys.seen].map(grouped);
            format!(", from {about}{touched} of {seen} clients")
        }
        _ => String::new(),
    };
    match denied {
        0 => format!("{subject} {verb} none of {} requests", grouped(requests)),
        denied => {
            let share = percent(denied, requests);
            format!("{subject} {verb} {share} of {} requests{clients}", grouped(requests))
        }
    }
}

/// Describes whose requests a policy counts together.
fn whose(per: &[String]) -> String {
    match per {
        [] => "shared by all clients".to_owned(),
        per => format!("per {}", per.join(" and ")),
    }
}

/// Collects notes on missing attributes, coarse timestamps and estimates.
fn notes(span: &TrafficSummary, variants: &[Variant]) -> Vec<String> {
    let mut notes = Vec::new();
    if let [first, others @ ..] = variants
        && others.iter().any(|other| other.requests() != first.requests())
    {
        notes.push(format!(
            "clients react to denials, so the traffic differs between variants; the traffic summary is \
             that of {}",
            first.name
        ));
    }
    for name in &span.missing {
        let needs = |policy: &&Policy| {
            policy.per.contains(name)
                || policy.matching.conditions().any(|(other, _)| other == name)
        };
        let policies = variants.iter().flat_map(Variant::policies).filter(needs);
        let mut policies: Vec<_> = policies.map(|policy| format!("`{}`", policy.name)).collect();
        policies.dedup();
        notes.push(format!(
            "no request has the attribute `{name}`, which {} needs: set its field with \
             --map {name}=FIELD",
            if policies.is_empty() { "an override".to_owned() } else { policies.join(", ") }
        ));
    }
    if !span.unused.is_empty() {
        let names: Vec<String> = span.unused.iter().map(|name| format!("`{name}`")).collect();
        notes.push(format!("no policy uses {}, set with --map", names.join(" and ")));
    }
    let limits = variants.iter().flat_map(Variant::policies).flat_map(|policy| &policy.limits);
    let fine = |limit: &Limit| limit.burst().is_some() || limit.period().as_secs() <= 1;
    if span.whole_seconds && span.seen.requests > 0 && limits.into_iter().any(fine) {
        notes.push(
            "the log has timestamps in whole seconds: all requests of a second count at its start"
                .to_owned(),
        );
    }
    let forgotten = variants.iter().flat_map(|variant| &variant.tallies);
    if forgotten.into_iter().any(|tally| tally.keys.forgotten > 0) {
        notes.push(
            "there were more keys than --keys: the number of clients is an estimate, and inactive \
             keys that came back count as new"
                .to_owned(),
        );
    }
    if variants.iter().any(|variant| variant.overflowed() > 0) {
        notes.push("there were more live keys than the simulated store can hold".to_owned());
    }
    notes
}

impl VariantReport {
    fn new(variant: &Variant, timeline: &Timeline, top: usize) -> Self {
        let policies = variant.policies().iter().zip(&variant.tallies);
        Self {
            name: variant.name.clone(),
            requests: variant.requests(),
            counts: variant.counts,
            unlimited: variant.unlimited,
            timeline: timeline.columns(),
            policies: policies
                .map(|(policy, tally)| PolicyReport::new(policy, tally, top))
                .collect(),
        }
    }
}

impl PolicyReport {
    fn new(policy: &Policy, tally: &PolicyTally, top: usize) -> Self {
        let most = |of: fn(&KeyTally) -> u32| {
            tally.keys.iter().map(|(_, key)| u64::from(of(key))).max().unwrap_or_default()
        };
        let first = policy.limits.first();
        let keys = |measure: fn(&OutcomeCounts) -> u64| {
            let keys = tally.keys.top(top, |key| measure(&key.counts)).into_iter();
            keys.map(|(key, tally)| KeyReport::new(key, tally)).collect()
        };
        let mut bursts = tally.bursts.worst.clone();
        bursts.sort_by_key(|burst| (std::cmp::Reverse(burst.admitted), burst.at));
        let bursts = bursts.iter().map(|burst| BurstReport {
            at: rfc3339_text(burst.at),
            time: burst.at / 1_000_000,
            key: shown(&burst.key),
            admitted: burst.admitted,
            amount: burst.amount,
        });
        Self {
            name: policy.name.to_string(),
            limits: policy.limits.iter().map(Limit::to_string).collect(),
            algorithm: first.map_or("", |limit| limit.algorithm().name()),
            per: policy.per.clone(),
            shadow: policy.mode == Mode::Shadow,
            amount: first.map_or(0, Limit::amount),
            period: first.map(period).unwrap_or_default(),
            requests: tally.counts.requests(),
            counts: tally.counts,
            denied_elsewhere: tally.counts.elsewhere,
            keys: tally.keys.counts(),
            peak_asked: most(|key| key.peak_asked),
            peak_admitted: most(|key| key.peak_admitted),
            peak_second: most(|key| key.peak_second),
            bursts: tally.bursts.count,
            worst_bursts: bursts.collect(),
            denied_most: keys(OutcomeCounts::all_denied),
            busiest: keys(OutcomeCounts::requests),
            timeline: tally.timeline.columns(),
        }
    }
}

impl KeyReport {
    fn new(key: &[u8], tally: &KeyTally) -> Self {
        Self {
            key: shown(key),
            requests: tally.counts.requests(),
            counts: tally.counts,
            peak_second: tally.peak_second,
            peak_asked: tally.peak_asked,
            peak_admitted: tally.peak_admitted,
        }
    }
}

impl SuggestionReport {
    /// Creates the report of a search.
    pub fn new((target, text): (Goal, &str), policy: &Policy, like: &Limit, found: &Found) -> Self {
        let any = matches!(found, Found::Any);
        let found = match found {
            Found::Limit(suggestion) => Some(suggestion),
            Found::Any | Found::Nothing => None,
        };
        let next = found.and_then(|found| found.next);
        Self {
            target: text.to_owned(),
            policy: policy.name.to_string(),
            per: policy.per.clone(),
            limit: found.map(|found| found.limit.to_string()),
            any,
            algorithm: like.algorithm().name(),
            outcome: found.map(|found| found.outcome),
            next: next.map(|(limit, outcome)| (limit.to_string(), outcome)),
            summary: found.map(|found| target.describe(&found.outcome)),
            next_summary: next.map(|(_, outcome)| target.describe(&outcome)),
            passes: found.map_or(0, |found| found.passes),
            tried: found.map_or(0, |found| found.tried),
            headroom: None,
            yaml: found.map(|found| policy_yaml(policy, &found.limit)),
        }
    }
}

/// Returns the period of a limit as written in its text: `minute`, `30s`.
fn period(limit: &Limit) -> String {
    let text = limit.to_string();
    let rest = text.split_once('/').map_or("", |(_, rest)| rest);
    rest.split(' ').next().unwrap_or_default().to_owned()
}

/// Formats a share in percent, rounded, with more decimals for small values. Only the whole is 100%.
pub(crate) fn percent(part: u64, whole: u64) -> String {
    if whole == 0 || part == 0 {
        return "0%".to_owned();
    }
    if part >= whole {
        return "100%".to_owned();
    }
    let (part, whole) = (u128::from(part), u128::from(whole));
    let scaled = |scale: u128| (2 * part * 100 * scale + whole) / (2 * whole);
    match scaled(10_000) {
        0 => "<0.0001%".to_owned(),
        1..100 => format!("0.{:04}%", scaled(10_000)),
        100..100_000 => format!("{}.{:02}%", scaled(100) / 100, scaled(100) % 100),
        _ => {
            let tenths = scaled(10).min(999);
            format!("{}.{}%", tenths / 10, tenths % 10)
        }
    }
}

/// Converts JSON errors into errors of this module.
impl From<serde_json::Error> for SimulateError {
    fn from(error: serde_json::Error) -> Self {
        Self::Print(error)
    }
}
