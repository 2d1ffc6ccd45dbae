//! The result of a study as data: serialised as JSON, and the input of the text and HTML reports.

mod change;
mod html;
mod text;

use pacegate::{Limit, Policy, policy::Mode};
use serde::Serialize;

use self::change::Change;
pub use self::{html::Page, text::Words};
use super::{
    Span, Trouble,
    replay::Variant,
    suggest::{Found, Outcome, Target},
    tally::{Columns, KeyCounts, KeyTally, PolicyTally, Timeline, shown},
    traffic::{Seen, instant::rfc3339_text},
};

/// The complete report.
#[derive(Debug, Serialize)]
pub struct Report {
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
    pub allowed: u64,
    pub denied: u64,
    pub shadow_denied: u64,
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
    pub allowed: u64,
    pub denied: u64,
    pub shadow_denied: u64,
    /// Requests that this policy would have allowed and another one denied.
    pub denied_elsewhere: u64,
    pub keys: KeyCounts,
    /// The most requests of one key, and the most admitted ones, within any one period of the first limit.
    pub peak_asked: u64,
    pub peak_admitted: u64,
    /// The most requests of one key within a calendar second.
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
    pub allowed: u64,
    pub denied: u64,
    pub shadow_denied: u64,
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
    pub(crate) told: Option<String>,
    pub(crate) next_told: Option<String>,
    pub(crate) passes: u64,
    pub(crate) tried: u64,
}

impl Report {
    /// Creates a report that lists the `top` keys of each policy.
    pub fn new(source: String, span: &Span, variants: &[Variant], top: usize) -> Self {
        let traffic = TrafficReport {
            source,
            from: rfc3339_text(span.first),
            to: rfc3339_text(span.last),
            seconds: (span.last - span.first) / 1_000_000,
            peak_second: span.peak_second.most,
            peak_minute: span.peak_minute.most,
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
        Self {
            traffic,
            variants: told.map(|(one, timeline)| VariantReport::new(one, timeline, top)).collect(),
            changes,
            suggestion: None,
            notes: notes(span, variants),
        }
    }
}

/// Collects notes on missing attributes, coarse timestamps and estimates.
fn notes(span: &Span, variants: &[Variant]) -> Vec<String> {
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
            allowed: variant.allowed,
            denied: variant.denied,
            shadow_denied: variant.shadow_denied,
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
        let keys = |measure: fn(&KeyTally) -> u64| {
            let keys = tally.keys.top(top, measure).into_iter();
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
            requests: tally.requests(),
            allowed: tally.allowed,
            denied: tally.denied,
            shadow_denied: tally.shadow_denied,
            denied_elsewhere: tally.elsewhere,
            keys: tally.keys.counts(),
            peak_asked: most(|key| key.peak_asked),
            peak_admitted: most(|key| key.peak_admitted),
            peak_second: most(|key| key.peak_second),
            bursts: tally.bursts.count,
            worst_bursts: bursts.collect(),
            denied_most: keys(KeyTally::all_denied),
            busiest: keys(KeyTally::requests),
            timeline: tally.timeline.columns(),
        }
    }

    /// Returns the number of requests that were denied or, in shadow mode, would have been.
    pub fn all_denied(&self) -> u64 {
        self.denied + self.shadow_denied
    }
}

impl KeyReport {
    fn new(key: &[u8], tally: &KeyTally) -> Self {
        Self {
            key: shown(key),
            requests: tally.requests(),
            allowed: tally.allowed,
            denied: tally.denied,
            shadow_denied: tally.shadow_denied,
            peak_second: tally.peak_second,
            peak_asked: tally.peak_asked,
            peak_admitted: tally.peak_admitted,
        }
    }
}

impl SuggestionReport {
    /// Creates the report of a search.
    pub fn new(
        (target, text): (Target, &str),
        policy: &Policy,
        like: &Limit,
        found: &Found,
    ) -> Self {
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
            told: found.map(|found| target.told(&found.outcome)),
            next_told: next.map(|(_, outcome)| target.told(&outcome)),
            passes: found.map_or(0, |found| found.passes),
            tried: found.map_or(0, |found| found.tried),
        }
    }
}

/// Returns the period of a limit as written in its text: `minute`, `30s`.
fn period(limit: &Limit) -> String {
    let text = limit.to_string();
    let rest = text.split_once('/').map_or("", |(_, rest)| rest);
    rest.split(' ').next().unwrap_or_default().to_owned()
}

/// Formats a share in percent, with more decimals for small values.
pub(crate) fn percent(part: u64, whole: u64) -> String {
    if whole == 0 || part == 0 {
        return "0%".to_owned();
    }
    let millionths = u128::from(part) * 1_000_000 / u128::from(whole);
    let (whole, decimals) = (millionths / 10_000, millionths % 10_000);
    match whole {
        0 if decimals == 0 => "<0.0001%".to_owned(),
        0 if decimals < 100 => format!("0.{decimals:04}%"),
        0..10 => format!("{whole}.{:02}%", decimals / 100),
        _ => format!("{whole}.{}%", decimals / 1_000),
    }
}

/// Converts JSON errors into errors of this module.
impl From<serde_json::Error> for Trouble {
    fn from(error: serde_json::Error) -> Self {
        Self::Print(error)
    }
}
