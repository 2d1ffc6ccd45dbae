//! `GET /v1/live`: the data of the dashboard and of `pacegate top`.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use axum::extract::Request;
use http::Uri;
use pacegate::{Charge, Decision, Excess, Plan, PolicyName, PolicyStats, Source, Stats};
use schemars::JsonSchema;
use serde::Serialize;

use super::{
    Context, HttpResult, ProblemDetails, Shared,
    block::BlockResponse,
    bodies::{DecisionCounts, PolicyModel, ProcessReport},
    request::parse_query,
    response::json,
};
use crate::{
    active_config::{ActiveConfig, Revision},
    blocks::NamedKey,
    config::Scope,
    engine::Engine,
    explain::{DecisionFields, Seconds},
    live::{Counts, RecentDecision, Resolution, Used},
    thresholds::ThresholdModel,
};

/// State of this process, with its history.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Live")]
pub(super) struct LiveResponse {
    #[serde(flatten)]
    process: ProcessReport,
    /// Unix time of the server in seconds.
    now: Seconds,
    /// Unix time in seconds when the process started. Counts start then.
    started: u64,
    version: &'static str,
    /// True if the server is shutting down.
    draining: bool,
    /// True if the server has API keys.
    keys_configured: bool,
    /// Policies in the order of the file, and `inline` last if inline limits were used. If there are more than 1000,
    /// those with the most decisions.
    policies: Vec<LivePolicy>,
    /// Number of configured policies.
    policies_total: usize,
    history: HistoryModel,
    /// Blocked keys, the longest blocks first; at most 100.
    blocked: Vec<BlockResponse>,
    blocked_total: usize,
    /// Keys that reached a threshold of `notify`, newest first; at most 20.
    thresholds: Vec<ThresholdModel>,
}

/// A policy, and its decisions since the process started.
#[derive(Debug, Serialize, JsonSchema)]
struct LivePolicy {
    #[serde(flatten)]
    policy: PolicyModel,
    #[serde(flatten)]
    counts: DecisionCounts,
    /// Highest used share of a limit among the busiest keys, from 0 to 1, and above 1 if a key is in debt. For policies
    /// with overrides: of the limits of the last recorded request of each key. Null if unknown.
    used: Option<f64>,
}

/// Counts and latency per sample.
#[derive(Debug, Serialize, JsonSchema)]
struct HistoryModel {
    /// Unix time in seconds when the first sample ended.
    from: u64,
    /// Seconds of a sample.
    step: u64,
    /// Number of samples. If `step` is above 1, the last one is not complete yet.
    length: usize,
    policies: BTreeMap<&'static str, Counts>,
    /// Decision latency of all listeners in each sample.
    latency: LatencyBySample,
}

/// Decision latency in seconds, as in `listeners`. Null for a sample without decisions.
#[derive(Debug, Serialize, JsonSchema)]
struct LatencyBySample {
    p50: Vec<Option<Seconds>>,
    p99: Vec<Option<Seconds>>,
}

/// A sample of the recent decisions about a key, newest first.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "RecentDecisions")]
pub(super) struct RecentResponse {
    /// At most 50. The server records up to 256 decisions per second, and keeps the last 8,192.
    decisions: Vec<RecentModel>,
}

/// A decision about a request that the policy covers.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "RecentDecision")]
struct RecentModel {
    /// Unix time in seconds.
    at: Seconds,
    cost: u64,
    #[serde(flatten)]
    #[schemars(with = "DecisionFields")]
    decision: Decision,
}

const MAX_DECISIONS: usize = 50;
const MAX_POLICIES: usize = 1_000;
const MAX_KEYS: usize = 20;
const MAX_BLOCKS: usize = 100;
const MAX_THRESHOLDS: usize = 20;

/// `GET /v1/live`: returns keys, and so requires the scope `admin`.
pub(super) async fn live(shared: Context, request: Request) -> HttpResult {
    let revision = shared.active.revision();
    revision.access_everywhere(request.headers(), Scope::Admin)?;
    let range = Range::parse(request.uri())?;
    let stats = revision.engine.stats();
    let used = used(&shared, &revision, &stats).await;
    let policies = policies(&revision, &stats, &used);
    let (blocked, blocked_total) = revision.engine.blocks.list(MAX_BLOCKS);
    let mut thresholds = shared.active.thresholds.recent();
    thresholds.truncate(MAX_THRESHOLDS);
    let names: Vec<_> = policies.iter().map(|(name, _)| *name).collect();
    json(&LiveResponse {
        process: ProcessReport::new(&shared.active, &revision, &stats).truncate_keys(MAX_KEYS),
        now: Seconds(Duration::from_micros(shared.now().as_micros())),
        started: shared.active.live.started.as_micros() / 1_000_000,
        version: env!("CARGO_PKG_VERSION"),
        draining: shared.active.is_draining(),
        keys_configured: !revision.settings.security.credentials.is_empty(),
        policies: policies.into_iter().map(|(_, policy)| policy).collect(),
        policies_total: stats.policies.len(),
        history: HistoryModel::new(&shared.active, range, &names),
        blocked: blocked
            .iter()
            .map(|block| BlockResponse::new(block.policy, &block.key, block.until))
            .collect(),
        blocked_total,
        thresholds,
    })
}

/// `GET /v1/decisions`: returns recent decisions about a key.
pub(super) async fn decisions(shared: Context, request: Request) -> HttpResult {
    let revision = shared.active.revision();
    let named = NamedKey::from_query(&request, &revision)?
        .ok_or_else(|| ProblemDetails::request("the parameters `policy` and `key` are required"))?;
    revision.access_to(request.headers(), Scope::Admin, named.domain)?;
    let found = revision.engine.recent.of(named.policy, named.key.as_ref(), MAX_DECISIONS);
    let model = |RecentDecision { at, cost, decision, .. }| {
        let at = Seconds(Duration::from_micros(at.as_micros()));
        RecentModel { at, cost, decision }
    };
    json(&RecentResponse { decisions: found.into_iter().map(model).collect() })
}

/// The part of the history that a client wants.
#[derive(Clone, Copy, Debug, Default)]
struct Range {
    since: u64,
    resolution: Resolution,
}

impl Range {
    /// Parses the parameters `since` and `step`. Default: all samples of a second.
    fn parse(uri: &Uri) -> Result<Self, ProblemDetails> {
        let mut range = Self::default();
        let pairs = parse_query(uri)?;
        for (place, (name, value)) in pairs.iter().enumerate() {
            if pairs[..place].iter().any(|(other, _)| other == name) {
                return Err(wrong_parameter("`since` and `step` may be given once"));
            }
            let number = value.parse().ok();
            let resolution = |step| Resolution::ALL.into_iter().find(|one| one.step() == step);
            match &**name {
                "since" => range.since = number.ok_or_else(|| wrong_parameter(SINCE))?,
                "step" => {
                    let found = number.and_then(resolution);
                    range.resolution = found.ok_or_else(|| wrong_parameter(STEP))?;
                }
                _ => return Err(wrong_parameter(UNKNOWN)),
            }
        }
        Ok(range)
    }
}

const SINCE: &str = "invalid `since`: expected whole seconds";
const STEP: &str = "invalid `step`: expected 1, 15 or 300 seconds";
const UNKNOWN: &str = "unknown parameter: expected `since`, a Unix time in seconds, or `step`";

fn wrong_parameter(detail: &str) -> ProblemDetails {
    ProblemDetails::request(detail)
}

/// Returns the policies in their order, with their names.
fn policies(
    revision: &Revision,
    stats: &Stats,
    used: &HashMap<PolicyName, f64>,
) -> Vec<(PolicyName, LivePolicy)> {
    let decided = |stats: &PolicyStats| stats.allowed + stats.denied + stats.shadow_denied;
    let mut both: Vec<_> =
        revision.engine.policies().policies().iter().zip(&stats.policies).collect();
    if both.len() > MAX_POLICIES {
        let mut places: Vec<_> = (0..both.len()).collect();
        places.sort_by_key(|&place| u64::MAX - decided(both[place].1));
        places.truncate(MAX_POLICIES);
        places.sort_unstable();
        both = places.into_iter().map(|place| both[place]).collect();
    }
    let model = |stats: &PolicyStats, policy| {
        let used = used.get(&stats.policy).copied();
        LivePolicy { policy, counts: stats.into(), used }
    };
    let own = both.into_iter().map(|(policy, stats)| (policy.name, model(stats, policy.into())));
    let inline = Some(&stats.inline).filter(|stats| decided(stats) > 0).map(|stats| {
        (stats.policy, model(stats, PolicyModel::inline(revision.settings.inline_failure)))
    });
    own.chain(inline).collect()
}

/// Returns [`measure_usage`], measured at most once a second for all clients. Empty while the store is unreachable.
async fn used(
    shared: &Shared,
    revision: &Revision,
    stats: &Stats,
) -> Arc<HashMap<PolicyName, f64>> {
    if !shared.active.state.is_reachable() {
        return Arc::default();
    }
    let at = (shared.now().as_micros() / 1_000_000, revision.number);
    let mut known = shared.active.live.used.lock().await;
    if let Some(used) = known.as_ref().filter(|used| used.at == at) {
        return used.shares.clone();
    }
    let shares = Arc::new(measure_usage(&revision.engine, stats).await);
    *known = Some(Used { at, shares: shares.clone() });
    shares
}

/// Peeks at the busiest keys, and returns the highest used share for each policy.
async fn measure_usage(engine: &Engine, stats: &Stats) -> HashMap<PolicyName, f64> {
    let keys =
        stats.busiest.iter().filter_map(|top| Some((top.policy, top.whole.as_ref()?.as_ref())));
    let recent: Vec<RecentDecision> =
        keys.clone().filter_map(|(policy, key)| engine.recent.of(policy, key, 1).pop()).collect();
    let is_plain = |policy: PolicyName| {
        let all = engine.policies();
        all.get(policy).is_some_and(|policy| policy.overrides.is_empty())
    };
    let plans: Vec<Plan<'_>> = keys
        .filter(|(policy, _)| is_plain(*policy))
        .map(|(policy, key)| engine.charges().plan_for(policy, key))
        .collect();
    let plain = plans.iter().filter_map(|plan| plan.charges(0).ok()).flatten();
    // With overrides, the limits of a key depend on its requests: look at those of the last one.
    let overridden = recent
        .iter()
        .flat_map(|one| &one.charges)
        .map(|charge| charge.as_charge().cost(0).holding(0).excess(Excess::Reject));
    let charges: Vec<Charge<'_>> =
        plain.chain(overridden).map(|charge| charge.enforced(true)).collect();
    let mut decisions = Vec::new();
    engine.check_each(&charges, &mut decisions).await;
    let mut used = HashMap::new();
    for (charge, decision) in charges.iter().zip(decisions) {
        let capacity = charge.limit.capacity();
        if let Ok(decision) = decision
            && !decision.is_degraded()
            // A block does not depend on the counter.
            && decision.source() != Source::Blocked
            && capacity > 0
        {
            let taken = capacity.saturating_sub(decision.remaining());
            let share = ratio(taken.saturating_add(decision.debt()), capacity);
            let most = used.entry(charge.policy).or_insert(share);
            *most = share.max(*most);
        }
    }
    used
}

#[expect(clippy::cast_precision_loss, clippy::float_arithmetic, reason = "for display only")]
fn ratio(part: u64, whole: u64) -> f64 {
    part as f64 / whole as f64
}

impl HistoryModel {
    fn new(active: &ActiveConfig, range: Range, policies: &[PolicyName]) -> Self {
        let Range { since, resolution } = range;
        let history = active.live.history.lock();
        let span = history.span(resolution);
        let (from, length) = span.range(since);
        let names = policies.iter().map(|policy| policy.as_str());
        let policies = names.zip(span.counts(since, policies)).collect();
        let [p50, p99] = [50, 99].map(|percent| {
            let times = span.latencies(since).map(|latency| latency.percentile(percent));
            times.map(|time| time.map(Seconds)).collect()
        });
        Self {
            from,
            step: resolution.step(),
            length,
            policies,
            latency: LatencyBySample { p50, p99 },
        }
    }
}
