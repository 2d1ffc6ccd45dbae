//! `GET /v1/live`: all that the dashboard and `pacegate top` show.

use std::{
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::Duration,
};

use axum::extract::{Query, Request, State};
use http::{StatusCode, Uri};
use pacegate::{Charge, Plan, Policy, PolicyName, PolicyStats, Source, Stats, TopKey};
use pacegate_redis::RedisStats;
use schemars::JsonSchema;
use serde::Serialize;

use super::{
    Answer, Problem, Shared,
    answer::json,
    block::BlockModel,
    model::{PolicyModel, ServerModel},
};
use crate::{
    config::Scope,
    engine::Engine,
    explain::Seconds,
    gate::{self, Gate, Revision},
    live::{Counts, Used, key_of, text_of},
    metrics::{Latency, ListenerMetrics},
};

/// What the service does now, and did in the last five minutes.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Live")]
pub(super) struct LiveModel {
    /// Seconds since the epoch, by the service's clock.
    now: Seconds,
    /// When it began, in seconds since the epoch. Counts begin then.
    started: u64,
    version: &'static str,
    /// The configuration in force.
    revision: u64,
    reload: ReloadModel,
    /// Whether it is going away.
    draining: bool,
    authorized: AuthorizedModel,
    /// In the order of the file, and last `ad-hoc` if limits came with requests. Of more than 1000, those that decided
    /// most.
    policies: Vec<LivePolicy>,
    /// How many policies there are.
    policies_total: usize,
    history: HistoryModel,
    top: TopModel,
    /// Keys that are denied by hand, those that last longest first; at most 100.
    blocked: Vec<BlockModel>,
    blocked_total: usize,
    store: LiveStore,
    listeners: Vec<ListenerModel>,
}

/// What became of configurations that were offered.
#[derive(Debug, Serialize, JsonSchema)]
struct ReloadModel {
    /// How many could not be used.
    refused: u64,
    /// Why the last one was not taken, if it was not.
    complaint: Option<String>,
}

/// What whoever asks may do.
#[derive(Debug, Serialize, JsonSchema)]
struct AuthorizedModel {
    admin: bool,
    keys_configured: bool,
}

/// A policy, and what it has decided since the service began.
#[derive(Debug, Serialize, JsonSchema)]
struct LivePolicy {
    #[serde(flatten)]
    policy: PolicyModel,
    allowed: u64,
    denied: u64,
    shadow_denied: u64,
    /// Decided by a failure mode; they are among the others, too.
    degraded: u64,
    /// The sum of the costs of the allowed requests.
    allowed_units: u64,
    /// The sum of the costs of the denied requests.
    denied_units: u64,
    /// How much of its budget the fullest of the keys that are busiest has used, from 0 to 1. Null if that is not
    /// known, as for policies with overrides.
    used: Option<f64>,
}

/// Second by second. Each second goes to the policy's place in its lists.
#[derive(Debug, Serialize, JsonSchema)]
struct HistoryModel {
    /// When the first second ended, in seconds since the epoch.
    from: u64,
    /// Seconds from one to the next.
    step: u64,
    /// How many seconds there are.
    length: usize,
    policies: BTreeMap<&'static str, CountsModel>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "CountsBySecond")]
struct CountsModel {
    allowed: Vec<u32>,
    denied: Vec<u32>,
    shadow_denied: Vec<u32>,
    /// The sums of the costs of the allowed requests.
    allowed_units: Vec<u32>,
    /// The sums of the costs of the denied requests.
    denied_units: Vec<u32>,
}

/// Keys that stand out in the last 30 to 60 seconds. Under heavy traffic they are an estimate.
#[derive(Debug, Serialize, JsonSchema)]
struct TopModel {
    /// With most requests.
    traffic: Vec<LiveKey>,
    /// With most denials.
    denied: Vec<LiveKey>,
}

/// A key that stands out.
#[derive(Debug, Serialize, JsonSchema)]
struct LiveKey {
    policy: &'static str,
    /// Somebody else's input: show it as text only.
    key: String,
    allowed: u64,
    /// Those that shadow mode let pass among them.
    denied: u64,
    /// Whether `policy` and `key` name it, for `/v1/state` and `/v1/block`.
    exact: bool,
}

/// How the store is doing.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "lowercase")]
enum LiveStore {
    Memory { reachable: bool, keys: usize, max_keys: usize, bytes: usize, overflowed: u64 },
    Redis(LiveRedis),
}

#[derive(Debug, Serialize, JsonSchema)]
struct LiveRedis {
    /// Whether decisions are the store's. If not, failure modes decide.
    reachable: bool,
    /// `closed` if all servers are in use, `open` if none is, else `partly open`.
    breaker: &'static str,
    /// How long the last answer of the slowest server took, in microseconds.
    latency_us: u64,
    servers: Vec<ServerModel>,
    trips: u64,
    /// Requests in one call, on average.
    batch: f64,
    deny_cache: DenyCacheModel,
    leases: LeasesModel,
    timeouts: u64,
    redirects: u64,
    /// How often the breaker opened.
    opened: u64,
}

#[derive(Debug, Serialize, JsonSchema)]
struct DenyCacheModel {
    size: usize,
    hits: u64,
}

#[derive(Debug, Serialize, JsonSchema)]
struct LeasesModel {
    /// Units drawn ahead and not spent.
    outstanding: u64,
    /// Requests answered from them.
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
    /// The average.
    mean: Option<Seconds>,
    p50: Option<Seconds>,
    p99: Option<Seconds>,
}

const MOST_POLICIES: usize = 1_000;
const MOST_KEYS: usize = 20;
const MOST_BLOCKS: usize = 100;

/// `GET /v1/live`. It names keys, so it is not for everybody.
pub(super) async fn live(
    State(shared): State<Arc<Shared>>,
    request: Request,
) -> Result<Answer, Problem> {
    let revision = shared.gate.revision();
    revision.access_everywhere(request.headers(), Scope::Admin)?;
    let since = since(request.uri())?;
    let stats = revision.engine.stats();
    let used = used(&shared, &revision, &stats).await;
    let policies = policies(&revision, &stats, &used);
    let (refused, complaint) = shared.gate.refusals();
    let (blocked, blocked_total) = revision.engine.blocks().list(MOST_BLOCKS);
    let block =
        |block: &crate::blocks::Block| BlockModel::new(block.policy, &block.key, block.until);
    let names: Vec<_> = policies.iter().map(|(name, _)| *name).collect();
    json(
        StatusCode::OK,
        &LiveModel {
            now: Seconds(Duration::from_micros(shared.now().as_micros())),
            started: shared.gate.live().started().as_micros() / 1_000_000,
            version: env!("CARGO_PKG_VERSION"),
            revision: revision.number,
            reload: ReloadModel { refused, complaint },
            draining: shared.gate.is_draining(),
            authorized: AuthorizedModel {
                admin: true,
                keys_configured: !revision.settings.security.credentials.is_empty(),
            },
            policies: policies.into_iter().map(|(_, policy)| policy).collect(),
            policies_total: stats.policies.len(),
            history: HistoryModel::new(&shared.gate, since, &names),
            top: TopModel::new(&revision.engine, &stats),
            blocked: blocked.iter().map(block).collect(),
            blocked_total,
            store: LiveStore::from(shared.gate.state()),
            listeners: shared.metrics.listeners().iter().map(ListenerModel::from).collect(),
        },
    )
}

/// Up to which second the history is known already.
fn since(uri: &Uri) -> Result<u64, Problem> {
    let query = Query::<Vec<(String, String)>>::try_from_uri(uri);
    let Query(pairs) = query.map_err(|error| Problem::request(error.body_text()))?;
    match &*pairs {
        [] => Ok(0),
        [(name, value)] if name == "since" => {
            value.parse().map_err(|_| Problem::request("`since` is in whole seconds"))
        }
        _ => Err(Problem::request("the only parameter is `since`, in seconds since the epoch")),
    }
}

/// The policies in their order, each with its name.
fn policies(
    revision: &Revision,
    stats: &Stats,
    used: &HashMap<PolicyName, f64>,
) -> Vec<(PolicyName, LivePolicy)> {
    let decided = |stats: &PolicyStats| stats.allowed + stats.denied + stats.shadow_denied;
    let mut both: Vec<_> =
        revision.engine.policies().policies().iter().zip(&stats.policies).collect();
    if both.len() > MOST_POLICIES {
        let mut places: Vec<_> = (0..both.len()).collect();
        places.sort_by_key(|&place| u64::MAX - decided(both[place].1));
        places.truncate(MOST_POLICIES);
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
    let ad_hoc = Some(&stats.ad_hoc).filter(|stats| decided(stats) > 0).map(|stats| {
        (stats.policy, model(stats, PolicyModel::ad_hoc(revision.settings.ad_hoc_failure)))
    });
    own.chain(ad_hoc).collect()
}

/// [`look`] at most once a second, however many watch, and not while it would only add to a store's trouble.
async fn used(
    shared: &Shared,
    revision: &Revision,
    stats: &Stats,
) -> Arc<HashMap<PolicyName, f64>> {
    if !shared.gate.state().is_reachable() {
        return Arc::default();
    }
    let at = (shared.now().as_micros() / 1_000_000, revision.number);
    let mut known = shared.gate.live().used().lock().await;
    if let Some(used) = known.as_ref().filter(|used| used.at == at) {
        return used.shares.clone();
    }
    let shares = Arc::new(look(&revision.engine, stats).await);
    *known = Some(Used { at, shares: shares.clone() });
    shares
}

/// How much of its budget the fullest of the busiest keys of each policy has used. This asks the store.
async fn look(engine: &Engine, stats: &Stats) -> HashMap<PolicyName, f64> {
    // Which limits a key has depends on its requests where there are overrides.
    let is_plain = |policy: PolicyName| {
        let all = engine.policies();
        all.get(policy).is_some_and(|policy| policy.overrides.is_empty())
    };
    let keys = stats.busiest.iter().filter(|top| is_plain(top.policy));
    let plan = |top: &TopKey| Some(engine.plan_for(top.policy, top.whole.as_ref()?.as_ref()));
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
            // What is denied by hand says nothing of the budget.
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

#[expect(
    clippy::cast_precision_loss,
    clippy::float_arithmetic,
    reason = "for people to look at; nothing is decided by it"
)]
fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 { 0.0 } else { part as f64 / whole as f64 }
}

impl HistoryModel {
    fn new(gate: &Gate, since: u64, policies: &[PolicyName]) -> Self {
        let history = gate.live().history().lock();
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
            LiveKey { policy: top.policy.as_str(), key, allowed, denied, exact }
        };
        let first = |keys: &[TopKey]| keys.iter().take(MOST_KEYS).map(model).collect();
        Self { traffic: first(&stats.busiest), denied: first(&stats.most_denied) }
    }
}

impl From<&gate::State> for LiveStore {
    fn from(state: &gate::State) -> Self {
        match state {
            gate::State::Memory(store) => {
                let usage = store.usage();
                Self::Memory {
                    reachable: true,
                    keys: usage.keys,
                    max_keys: usage.max_keys,
                    bytes: usage.bytes,
                    overflowed: usage.overflowed,
                }
            }
            gate::State::Redis(store) => {
                Self::Redis(LiveRedis::new(state.is_reachable(), store.stats()))
            }
        }
    }
}

impl LiveRedis {
    fn new(reachable: bool, stats: RedisStats) -> Self {
        let troubled = stats.servers.iter().filter(|server| server.trouble.is_some()).count();
        let slowest = stats.servers.iter().map(|server| server.round_trip).max();
        let server = |server: pacegate_redis::ServerStats| ServerModel {
            address: server.address,
            trouble: server.trouble,
            round_trip: Seconds(server.round_trip),
        };
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
            servers: stats.servers.into_iter().map(server).collect(),
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
