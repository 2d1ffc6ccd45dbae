//! `GET /v1/live`: the data of the dashboard and of `pacegate top`.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use axum::extract::Request;
use http::Uri;
use pacegate::{Charge, Plan, PolicyName, PolicyStats, Source, Stats, TopKey};
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
    config::Scope,
    engine::Engine,
    explain::Seconds,
    live::{Counts, Used},
};

/// State of this process, with the history of the last five minutes.
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
    /// Policies in the order of the file, and `ad-hoc` last if inline limits were used. If there are more than 1000,
    /// those with the most decisions.
    policies: Vec<LivePolicy>,
    /// Number of configured policies.
    policies_total: usize,
    history: HistoryModel,
    /// Blocked keys, the longest blocks first; at most 100.
    blocked: Vec<BlockResponse>,
    blocked_total: usize,
}

/// A policy, and its decisions since the process started.
#[derive(Debug, Serialize, JsonSchema)]
struct LivePolicy {
    #[serde(flatten)]
    policy: PolicyModel,
    #[serde(flatten)]
    counts: DecisionCounts,
    /// Highest used share of a limit among the busiest keys, from 0 to 1. Null if unknown, as for policies with
    /// overrides.
    used: Option<f64>,
}

/// Counts and latency per second.
#[derive(Debug, Serialize, JsonSchema)]
struct HistoryModel {
    /// Unix time in seconds when the first entry ended.
    from: u64,
    /// Seconds between entries.
    step: u64,
    /// Number of entries.
    length: usize,
    policies: BTreeMap<&'static str, Counts>,
    /// Decision latency of all listeners in each second.
    latency: LatencyBySecond,
}

/// Decision latency in seconds, as in `listeners`. Null for a second without decisions.
#[derive(Debug, Serialize, JsonSchema)]
struct LatencyBySecond {
    p50: Vec<Option<Seconds>>,
    p99: Vec<Option<Seconds>>,
}

const MAX_POLICIES: usize = 1_000;
const MAX_KEYS: usize = 20;
const MAX_BLOCKS: usize = 100;

/// `GET /v1/live`: returns keys, and so requires the scope `admin`.
pub(super) async fn live(shared: Context, request: Request) -> HttpResult {
    let revision = shared.active.revision();
    revision.access_everywhere(request.headers(), Scope::Admin)?;
    let since = since(request.uri())?;
    let stats = revision.engine.stats();
    let used = used(&shared, &revision, &stats).await;
    let policies = policies(&revision, &stats, &used);
    let (blocked, blocked_total) = revision.engine.blocks().list(MAX_BLOCKS);
    let names: Vec<_> = policies.iter().map(|(name, _)| *name).collect();
    json(&LiveResponse {
        process: ProcessReport::new(&shared.active, &revision, &stats).truncate_keys(MAX_KEYS),
        now: Seconds(Duration::from_micros(shared.now().as_micros())),
        started: shared.active.live().started().as_micros() / 1_000_000,
        version: env!("CARGO_PKG_VERSION"),
        draining: shared.active.is_draining(),
        keys_configured: !revision.settings.security.credentials.is_empty(),
        policies: policies.into_iter().map(|(_, policy)| policy).collect(),
        policies_total: stats.policies.len(),
        history: HistoryModel::new(&shared.active, since, &names),
        blocked: blocked
            .iter()
            .map(|block| BlockResponse::new(block.policy, &block.key, block.until))
            .collect(),
        blocked_total,
    })
}

/// Returns the parameter `since`. Default: 0.
fn since(uri: &Uri) -> Result<u64, ProblemDetails> {
    match &*parse_query(uri)? {
        [] => Ok(0),
        [(name, value)] if name == "since" => value
            .parse()
            .map_err(|_| ProblemDetails::request("invalid `since`: expected whole seconds")),
        _ => Err(ProblemDetails::request(
            "unknown parameter: expected `since`, a Unix time in seconds",
        )),
    }
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
    let ad_hoc = Some(&stats.inline).filter(|stats| decided(stats) > 0).map(|stats| {
        (stats.policy, model(stats, PolicyModel::ad_hoc(revision.settings.inline_failure)))
    });
    own.chain(ad_hoc).collect()
}

/// Returns [`measure_usage`], measured at most once a second for all clients. Empty while the store is unreachable.
async fn used(
    shared: &Shared,
    revision: &Revision,
    stats: &Stats,
) -> Arc<HashMap<PolicyName, f64>> {
    if !shared.active.state().is_reachable() {
        return Arc::default();
    }
    let at = (shared.now().as_micros() / 1_000_000, revision.number);
    let mut known = shared.active.live().used().lock().await;
    if let Some(used) = known.as_ref().filter(|used| used.at == at) {
        return used.shares.clone();
    }
    let shares = Arc::new(measure_usage(&revision.engine, stats).await);
    *known = Some(Used { at, shares: shares.clone() });
    shares
}

/// Peeks at the busiest keys, and returns the highest used share for each policy.
async fn measure_usage(engine: &Engine, stats: &Stats) -> HashMap<PolicyName, f64> {
    // With overrides, the limits of a key depend on its requests.
    let is_plain = |policy: PolicyName| {
        let all = engine.policies();
        all.get(policy).is_some_and(|policy| policy.overrides.is_empty())
    };
    let keys = stats.busiest.iter().filter(|top| is_plain(top.policy));
    let plan =
        |top: &TopKey| Some(engine.charges().plan_for(top.policy, top.whole.as_ref()?.as_ref()));
    let plans: Vec<Plan<'_>> = keys.filter_map(plan).collect();
    let charges = plans.iter().filter_map(|plan| plan.charges(0).ok());
    let charges: Vec<Charge<'_>> = charges.flatten().map(|charge| charge.enforced(true)).collect();
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
            let share = ratio(capacity.saturating_sub(decision.remaining()), capacity);
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
    fn new(active: &ActiveConfig, since: u64, policies: &[PolicyName]) -> Self {
        let history = active.live().history().lock();
        let (from, length) = history.range(since);
        let names = policies.iter().map(|policy| policy.as_str());
        let policies = names.zip(history.counts(since, policies)).collect();
        let [p50, p99] = [50, 99].map(|percent| {
            let times = history.latencies(since).map(|latency| latency.percentile(percent));
            times.map(|time| time.map(Seconds)).collect()
        });
        Self { from, step: 1, length, policies, latency: LatencyBySecond { p50, p99 } }
    }
}
