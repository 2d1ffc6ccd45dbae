//! `GET /v1/live`: the data of the dashboard and of `pacegate top`.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use axum::extract::Request;
use http::Uri;
use pacegate::{Charge, Plan, Policy, PolicyName, PolicyStats, Source, Stats, TopKey};
use pacegate_redis::RedisStats;
use schemars::JsonSchema;
use serde::Serialize;

use super::{
    Context, HttpResult, ProblemDetails, Shared,
    block::BlockResponse,
    bodies::{PolicyModel, ServerModel},
    request::parse_query,
    response::json,
};
use crate::{
    active_config::{self, ActiveConfig, Revision},
    config::Scope,
    engine::Engine,
    explain::Seconds,
    live::{Counts, Used, key_of, text_of},
    metrics::{Latency, ListenerMetrics},
};

/// State of this process, with the history of the last five minutes.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Live")]
pub(super) struct LiveResponse {
    /// Unix time of the server in seconds.
    now: Seconds,
    /// Unix time in seconds when the process started. Counts start then.
    started: u64,
    version: &'static str,
    /// Revision of the configuration.
    revision: u64,
    reload: ReloadModel,
    /// True if the server is shutting down.
    draining: bool,
    authorized: AuthorizedModel,
    /// Policies in the order of the file, and `ad-hoc` last if inline limits were used. If there are more than 1000,
    /// those with the most decisions.
    policies: Vec<LivePolicy>,
    /// Number of configured policies.
    policies_total: usize,
    history: HistoryModel,
    top: TopModel,
    /// Blocked keys, the longest blocks first; at most 100.
    blocked: Vec<BlockResponse>,
    blocked_total: usize,
    store: LiveStore,
    listeners: Vec<ListenerModel>,
}

/// Results of reloads.
#[derive(Debug, Serialize, JsonSchema)]
struct ReloadModel {
    /// Number of failed reloads.
    refused: u64,
    /// Error of the last reload, if it failed.
    complaint: Option<String>,
}

/// Permissions of the client.
#[derive(Debug, Serialize, JsonSchema)]
struct AuthorizedModel {
    admin: bool,
    keys_configured: bool,
}

/// A policy, and its decisions since the process started.
#[derive(Debug, Serialize, JsonSchema)]
struct LivePolicy {
    #[serde(flatten)]
    policy: PolicyModel,
    allowed: u64,
    denied: u64,
    shadow_denied: u64,
    /// Decisions by the failure mode; also counted above.
    degraded: u64,
    /// Total cost of the allowed requests.
    allowed_units: u64,
    /// Total cost of the denied requests.
    denied_units: u64,
    /// Highest used share of a limit among the busiest keys, from 0 to 1. Null if unknown, as for policies with
    /// overrides.
    used: Option<f64>,
}

/// Counts per second, for each policy.
#[derive(Debug, Serialize, JsonSchema)]
struct HistoryModel {
    /// Unix time in seconds when the first entry ended.
    from: u64,
    /// Seconds between entries.
    step: u64,
    /// Number of entries.
    length: usize,
    policies: BTreeMap<&'static str, CountsModel>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "CountsBySecond")]
struct CountsModel {
    allowed: Vec<u32>,
    denied: Vec<u32>,
    shadow_denied: Vec<u32>,
    /// Total cost of the allowed requests.
    allowed_units: Vec<u32>,
    /// Total cost of the denied requests.
    denied_units: Vec<u32>,
}

/// The busiest keys of the last 30 to 60 seconds. Estimated under heavy traffic.
#[derive(Debug, Serialize, JsonSchema)]
struct TopModel {
    /// Keys with the most requests.
    traffic: Vec<LiveKey>,
    /// Keys with the most denials.
    denied: Vec<LiveKey>,
}

/// A key with many requests or denials.
#[derive(Debug, Serialize, JsonSchema)]
struct LiveKey {
    #[schemars(with = "String")]
    policy: PolicyName,
    /// Untrusted input: render it as text only.
    key: String,
    allowed: u64,
    /// Denials, including those of shadow mode.
    denied: u64,
    /// True if `/v1/state` and `/v1/block` accept this `policy` and `key`.
    exact: bool,
}

/// State of the store.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "lowercase")]
enum LiveStore {
    Memory { reachable: bool, keys: usize, max_keys: usize, bytes: usize, overflowed: u64 },
    Redis(LiveRedis),
}

#[derive(Debug, Serialize, JsonSchema)]
struct LiveRedis {
    /// True if the store answers. If not, failure modes apply.
    reachable: bool,
    /// `closed` if all servers are in use, `open` if none is, otherwise `partly open`.
    breaker: &'static str,
    /// Last round trip of the slowest server in microseconds.
    latency_us: u64,
    servers: Vec<ServerModel>,
    trips: u64,
    /// Mean number of requests per call.
    batch: f64,
    deny_cache: DenyCacheModel,
    leases: LeasesModel,
    timeouts: u64,
    redirects: u64,
    /// Circuit breaker openings.
    opened: u64,
}

#[derive(Debug, Serialize, JsonSchema)]
struct DenyCacheModel {
    size: usize,
    hits: u64,
}

#[derive(Debug, Serialize, JsonSchema)]
struct LeasesModel {
    /// Leased units not spent yet.
    outstanding: u64,
    /// Requests decided by leases.
    hits: u64,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Listener")]
struct ListenerModel {
    name: &'static str,
    connections: usize,
    requests: u64,
    latency: LatencyModel,
}

/// Response times since the start, each the upper bound of a histogram bucket. Null without requests, and above the
/// last bound of 1 second.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Latency")]
struct LatencyModel {
    mean: Option<Seconds>,
    p50: Option<Seconds>,
    p99: Option<Seconds>,
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
    let (refused, complaint) = shared.active.refusals();
    let (blocked, blocked_total) = revision.engine.blocks().list(MAX_BLOCKS);
    let names: Vec<_> = policies.iter().map(|(name, _)| *name).collect();
    json(&LiveResponse {
        now: Seconds(Duration::from_micros(shared.now().as_micros())),
        started: shared.active.live().started().as_micros() / 1_000_000,
        version: env!("CARGO_PKG_VERSION"),
        revision: revision.number,
        reload: ReloadModel { refused, complaint },
        draining: shared.active.is_draining(),
        authorized: AuthorizedModel {
            admin: true,
            keys_configured: !revision.settings.security.credentials.is_empty(),
        },
        policies: policies.into_iter().map(|(_, policy)| policy).collect(),
        policies_total: stats.policies.len(),
        history: HistoryModel::new(&shared.active, since, &names),
        top: TopModel::new(&revision.engine, &stats),
        blocked: blocked
            .iter()
            .map(|block| BlockResponse::new(block.policy, &block.key, block.until))
            .collect(),
        blocked_total,
        store: LiveStore::from(shared.active.state()),
        listeners: shared.metrics.listeners().iter().map(ListenerModel::from).collect(),
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
    let model = |stats: &PolicyStats, policy| LivePolicy {
        policy,
        allowed: stats.allowed,
        denied: stats.denied,
        shadow_denied: stats.shadow_denied,
        degraded: stats.degraded,
        allowed_units: stats.allowed_units,
        denied_units: stats.denied_units,
        used: used.get(&stats.policy).copied(),
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
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

impl HistoryModel {
    fn new(active: &ActiveConfig, since: u64, policies: &[PolicyName]) -> Self {
        let history = active.live().history().lock();
        let (from, length) = history.range(since);
        let counts = history.counts(since, policies);
        let model = |counts: Counts| CountsModel {
            allowed: counts.allowed,
            denied: counts.denied,
            shadow_denied: counts.shadow_denied,
            allowed_units: counts.allowed_units,
            denied_units: counts.denied_units,
        };
        let names = policies.iter().map(|policy| policy.as_str());
        let policies = names.zip(counts.into_iter().map(model)).collect();
        Self { from, step: 1, length, policies }
    }
}

impl TopModel {
    fn new(engine: &Engine, stats: &Stats) -> Self {
        let model = |top: &TopKey| {
            let whole = top.whole.as_ref();
            let key = match whole {
                Some(key) => text_of(key.as_ref()),
                None => top.key.chars().take(200).chain(['…']).collect(),
            };
            let policy: Option<&Policy> = engine.policies().get(top.policy);
            let exact = whole.is_some_and(|whole| key_of(policy, &key).as_ref() == Some(whole));
            let (allowed, denied) = (top.allowed, top.denied);
            LiveKey { policy: top.policy, key, allowed, denied, exact }
        };
        let first = |keys: &[TopKey]| keys.iter().take(MAX_KEYS).map(model).collect();
        Self { traffic: first(&stats.busiest), denied: first(&stats.most_denied) }
    }
}

impl From<&active_config::State> for LiveStore {
    fn from(state: &active_config::State) -> Self {
        match state {
            active_config::State::Memory(store) => {
                let usage = store.usage();
                Self::Memory {
                    reachable: true,
                    keys: usage.keys,
                    max_keys: usage.max_keys,
                    bytes: usage.bytes,
                    overflowed: usage.overflowed,
                }
            }
            active_config::State::Redis(store) => {
                Self::Redis(LiveRedis::new(state.is_reachable(), store.stats()))
            }
        }
    }
}

impl LiveRedis {
    fn new(reachable: bool, stats: RedisStats) -> Self {
        let troubled = stats.servers.iter().filter(|server| server.trouble.is_some()).count();
        let slowest = stats.servers.iter().map(|server| server.round_trip).max();
        Self {
            reachable,
            breaker: match troubled {
                0 => "closed",
                all if all == stats.servers.len() => "open",
                _ => "partly open",
            },
            latency_us: slowest
                .and_then(|time| u64::try_from(time.as_micros()).ok())
                .unwrap_or_default(),
            servers: stats.servers.into_iter().map(ServerModel::from).collect(),
            trips: stats.trips,
            batch: ratio(stats.requests, stats.calls),
            deny_cache: DenyCacheModel {
                size: stats.deny_cache_entries,
                hits: stats.denied_locally,
            },
            leases: LeasesModel { outstanding: stats.lease_units_outstanding, hits: stats.leased },
            timeouts: stats.timed_out,
            redirects: stats.redirects,
            opened: stats.closed,
        }
    }
}

impl From<&Arc<ListenerMetrics>> for ListenerModel {
    fn from(listener: &Arc<ListenerMetrics>) -> Self {
        Self {
            name: listener.name(),
            connections: listener.connections(),
            requests: listener.answered(),
            latency: LatencyModel::from(listener.latency()),
        }
    }
}

impl From<Latency> for LatencyModel {
    fn from(latency: Latency) -> Self {
        let count = u32::try_from(latency.count()).unwrap_or(u32::MAX);
        Self {
            mean: latency.sum().checked_div(count).map(Seconds),
            p50: latency.percentile(50).map(Seconds),
            p99: latency.percentile(99).map(Seconds),
        }
    }
}
