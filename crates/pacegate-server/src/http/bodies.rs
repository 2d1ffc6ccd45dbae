//! Response bodies. `/openapi.json` describes them by the same types.

use std::sync::Arc;

use pacegate::{
    Decision, Limit, MemoryUsage, Policy, PolicyName, PolicyStats, Request, Stats, TopKey,
    policy::{FailureMode, Match, Missing, Mode, Unsettled},
};
use pacegate_redis::{RedisStats, ServerStats};
use schemars::JsonSchema;
use serde::Serialize;

use super::ProblemDetails;
use crate::{
    active_config::{ActiveConfig, Revision, State},
    engine::Engine,
    explain::{ConditionModel, DecisionFields, LimitState, Seconds},
    live::{MAX_SHOWN_CHARS, key_of, text_of},
    metrics::ListenerMetrics,
    outage::StoreOutage,
};

/// The decision for a request. If several limits apply, the tightest decides.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[schemars(rename = "Decision")]
pub(super) struct CheckResponse {
    #[serde(flatten)]
    #[schemars(with = "DecisionFields")]
    pub(super) decision: Decision,
    /// Units granted to a request with `up_to`. Absent for other requests.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) granted: Option<u64>,
    /// Revision of the configuration that decided.
    pub(super) revision: u64,
}

/// The decisions for a batch, in the order of the requests.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct BatchResponse {
    pub(super) answers: Vec<BatchAnswer>,
}

/// A decision of a batch, or the error of that request.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(untagged)]
pub(super) enum BatchAnswer {
    Decision(CheckResponse),
    Error { error: ProblemDetails },
}

/// The decision, and a permit if the request is allowed and a concurrency limit applies.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Acquired")]
pub(super) struct AcquireResponse {
    #[serde(flatten)]
    #[schemars(with = "DecisionFields")]
    pub(super) decision: Decision,
    /// Revision of the configuration that decided.
    pub(super) revision: u64,
    /// Permit for `POST /v1/release` and `POST /v1/renew`. Null if no units are held.
    pub(super) permit: Option<String>,
}

/// The decision, and a reservation if the request is allowed.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Reserved")]
pub(super) struct ReserveResponse {
    #[serde(flatten)]
    #[schemars(with = "DecisionFields")]
    pub(super) decision: Decision,
    /// Revision of the configuration that decided.
    pub(super) revision: u64,
    /// Reservation for `POST /v1/settle` and `POST /v1/cancel`: up to 16384 characters of base64url. It contains the
    /// key in readable form. Null if the request is denied.
    pub(super) reservation: Option<String>,
}

/// The result of settling or cancelling a reservation.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Settled")]
pub(super) struct SettleResponse {
    /// False if the reservation was not open: it was settled before, or has expired. Then nothing changed.
    pub(super) settled: bool,
}

/// The decision that a request would get, and the state of each limit.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "State")]
pub(super) struct StateResponse {
    #[serde(flatten)]
    #[schemars(with = "DecisionFields")]
    pub(super) decision: Decision,
    /// Revision of the configuration that decided.
    pub(super) revision: u64,
    /// The limits that apply.
    pub(super) limits: Vec<LimitState>,
}

/// The result of a change.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Done {
    /// Number of limits changed.
    pub(super) limits: usize,
}

/// The configuration after a reload.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Reloaded {
    pub(super) revision: u64,
}

/// The health of the server.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Health {
    pub(super) status: &'static str,
    /// True if the store is unreachable, so that failure modes apply.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) degraded: Option<bool>,
    /// The cause, for clients with an API key where one is needed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) store: Option<crate::outage::StoreOutage>,
}

/// The response of RLaaS.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct SeedResponse {
    pub(super) allowed: bool,
    /// Requests in the current window, including this one if it is allowed.
    pub(super) current_count: u64,
    /// Seconds until the window ends.
    pub(super) ttl: u64,
}

/// The configured policies.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct PolicyList {
    pub(super) revision: u64,
    pub(super) policies: Vec<PolicyModel>,
}

/// A policy.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Policy")]
pub(super) struct PolicyModel {
    #[schemars(with = "String")]
    name: PolicyName,
    domain: String,
    /// True if this is a rule of an Envoy file. Descriptors select it, `match` is empty, and `per` lists the entries
    /// that it counts by.
    envoy: bool,
    r#match: Vec<ConditionModel>,
    /// Attributes whose values are the key. Empty: one counter for all requests.
    per: Vec<String>,
    /// For requests without one of these attributes: `share` one counter, or `skip` the policy.
    missing: &'static str,
    limits: Vec<LimitModel>,
    /// The first override that matches replaces the limits.
    overrides: Vec<OverrideModel>,
    /// `enforce` or `shadow`.
    #[schemars(with = "String")]
    mode: Mode,
    /// Failure mode: `open`, `closed`, `local`, or `local` and the share of this process, such as `local 1/3`.
    #[schemars(with = "String")]
    failure: FailureMode,
    /// Maximum cost of one request, if it is less than the capacity.
    max_cost: Option<u64>,
    /// True if every charge is recorded in full, even if it exceeds a limit. Absent if not.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    record_in_full: bool,
    /// Maximum debt in units beyond each limit. Absent: as much as the limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    max_debt: Option<u64>,
    /// `return` if the estimate of a reservation that is not settled is returned. Absent: it stays charged.
    #[serde(skip_serializing_if = "Option::is_none")]
    unsettled: Option<&'static str>,
    /// Parts of each limit at which a key is reported, such as `80%`. Absent if there are none.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    notify: Vec<String>,
}

/// A limit.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Limit")]
pub(super) struct LimitModel {
    /// The limit as text, such as `100/minute`.
    #[schemars(with = "String")]
    limit: Limit,
    amount: u64,
    period: Seconds,
    /// Maximum units at one instant.
    capacity: u64,
    algorithm: String,
}

/// Other limits for some requests of a policy.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Override")]
pub(super) struct OverrideModel {
    r#match: Vec<ConditionModel>,
    /// Empty: unlimited.
    limits: Vec<LimitModel>,
}

/// Counts of this process since it started.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Stats")]
pub(super) struct StatsResponse {
    #[serde(flatten)]
    pub(super) process: ProcessReport,
    pub(super) policies: Vec<PolicyCounts>,
    /// Inline limits.
    pub(super) inline: PolicyCounts,
    /// Failed store calls.
    pub(super) store_failures: u64,
}

/// The state of this process, for `/v1/stats` and `/v1/live`.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct ProcessReport {
    /// Revision of the configuration.
    revision: u64,
    /// Failed reloads.
    reloads_refused: u64,
    /// Error of the last reload, if it failed.
    reload_complaint: Option<String>,
    store: StoreModel,
    listeners: Vec<ListenerModel>,
    /// Keys with the most requests in the last 30 to 60 seconds. Estimated under heavy traffic.
    busiest: Vec<KeyModel>,
    /// Keys with the most denials in the last 30 to 60 seconds. Estimated under heavy traffic.
    most_denied: Vec<KeyModel>,
}

/// The counts of one policy.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct PolicyCounts {
    #[schemars(with = "String")]
    policy: PolicyName,
    #[serde(flatten)]
    counts: DecisionCounts,
}

/// Decisions of a policy since the process started.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct DecisionCounts {
    allowed: u64,
    denied: u64,
    /// Requests that shadow mode allowed.
    shadow_denied: u64,
    /// Requests that the failure mode decided; also counted above.
    degraded: u64,
    /// Total cost of the allowed requests: of reservations, the estimate, and units that were used beyond it.
    allowed_units: u64,
    /// Total cost of the denied requests.
    denied_units: u64,
    /// Total cost of the requests that shadow mode allowed.
    shadow_denied_units: u64,
    /// Units of settled reservations that were not used. They are part of `allowed_units`.
    returned_units: u64,
}

/// A key with many requests or denials.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "TopKey")]
struct KeyModel {
    #[schemars(with = "String")]
    policy: PolicyName,
    /// Untrusted input: render it as text only.
    key: String,
    /// Requests in `busiest`, denials in `most_denied`.
    count: u64,
    allowed: u64,
    /// Denials, including those of shadow mode.
    denied: u64,
    /// True if `/v1/state` and `/v1/block` accept this `policy` and `key`.
    exact: bool,
}

/// State of the store.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "lowercase")]
#[schemars(rename = "Store")]
enum StoreModel {
    Memory {
        reachable: bool,
        keys: usize,
        max_keys: usize,
        bytes: usize,
        overflowed: u64,
        /// Open reservations.
        reservations: usize,
    },
    Redis(RedisModel),
}

/// Statistics of the Redis store.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Redis")]
struct RedisModel {
    /// True if the store answers. If not, failure modes apply.
    reachable: bool,
    /// The addresses and errors of an unreachable store, and the failure modes that apply.
    outage: Option<String>,
    /// `closed` if all servers are in use, `open` if none is, otherwise `partly open`.
    breaker: &'static str,
    servers: Vec<ServerModel>,
    trips: u64,
    calls: u64,
    requests: u64,
    keys: u64,
    denied_locally: u64,
    deny_cache_entries: usize,
    leased: u64,
    lease_units_outstanding: u64,
    timed_out: u64,
    redirects: u64,
    /// Circuit breaker openings.
    closed: u64,
}

/// State of a Redis server.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Server")]
struct ServerModel {
    address: String,
    /// The error, if the server is not in use.
    trouble: Option<String>,
    /// Duration of the last round trip.
    round_trip: Seconds,
}

/// A listener.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Listener")]
struct ListenerModel {
    name: &'static str,
    connections: usize,
    requests: u64,
    latency: LatencyModel,
}

/// Decision latency in the last minute. Null without decisions.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Latency")]
struct LatencyModel {
    /// Half of the decisions took at most this time: the upper bound of a histogram bucket.
    p50: Option<Seconds>,
    /// 99 % of the decisions took at most this time. The highest value, 10, stands for 10 seconds or more.
    p99: Option<Seconds>,
}

impl PolicyModel {
    /// Describes inline limits as a policy.
    pub(super) fn inline(failure: FailureMode) -> Self {
        let no_limits: [Limit; 0] = [];
        let policy = Policy::new(PolicyName::INLINE, no_limits).per([Request::KEY]);
        Self::from(&policy.failing(failure))
    }
}

impl From<&Policy> for PolicyModel {
    fn from(policy: &Policy) -> Self {
        let missing = match policy.missing {
            Missing::Skip => "skip",
            _ => "share",
        };
        let overrides = policy.overrides.iter().map(|other| OverrideModel {
            r#match: conditions(&other.matching),
            limits: other.limits.iter().map(LimitModel::from).collect(),
        });
        let envoy = policy.matching == Match::never();
        Self {
            name: policy.name,
            domain: policy.domain.clone(),
            envoy,
            r#match: if envoy { Vec::new() } else { conditions(&policy.matching) },
            per: policy.per.clone(),
            missing,
            limits: policy.limits.iter().map(LimitModel::from).collect(),
            overrides: overrides.collect(),
            mode: policy.mode,
            failure: policy.failure,
            max_cost: policy.max_cost,
            record_in_full: policy.record_in_full,
            max_debt: policy.max_debt,
            unsettled: (policy.unsettled == Unsettled::Return).then_some("return"),
            notify: policy.notify.iter().map(ToString::to_string).collect(),
        }
    }
}

fn conditions(matching: &Match) -> Vec<ConditionModel> {
    let conditions = matching.conditions();
    conditions.map(|(attribute, condition)| ConditionModel::new(attribute, condition)).collect()
}

impl From<&Limit> for LimitModel {
    fn from(limit: &Limit) -> Self {
        Self {
            limit: *limit,
            amount: limit.amount(),
            period: Seconds(limit.period()),
            capacity: limit.capacity(),
            algorithm: limit.algorithm().to_string(),
        }
    }
}

impl ProcessReport {
    pub(super) fn new(active: &ActiveConfig, revision: &Revision, stats: &Stats) -> Self {
        let (reloads_refused, reload_complaint) = active.refusals();
        let keys = |keys: &[TopKey]| {
            keys.iter().map(|top| KeyModel::new(&revision.engine, top)).collect::<Vec<_>>()
        };
        Self {
            revision: revision.number,
            reloads_refused,
            reload_complaint,
            store: StoreModel::new(active),
            listeners: listeners(active),
            busiest: keys(&stats.busiest),
            most_denied: keys(&stats.most_denied),
        }
    }

    /// Keeps the first `max` keys of each list.
    pub(super) fn truncate_keys(mut self, max: usize) -> Self {
        self.busiest.truncate(max);
        self.most_denied.truncate(max);
        self
    }
}

fn listeners(active: &ActiveConfig) -> Vec<ListenerModel> {
    let history = active.live.history.lock();
    let listeners = active.live.listeners().iter().enumerate();
    let model = |(place, listener): (usize, &Arc<ListenerMetrics>)| {
        let latency = history.last_minute(place);
        ListenerModel {
            name: listener.name,
            connections: listener.connections(),
            requests: listener.answered(),
            latency: LatencyModel {
                p50: latency.percentile(50).map(Seconds),
                p99: latency.percentile(99).map(Seconds),
            },
        }
    };
    listeners.map(model).collect()
}

impl From<&PolicyStats> for PolicyCounts {
    fn from(stats: &PolicyStats) -> Self {
        Self { policy: stats.policy, counts: stats.into() }
    }
}

impl From<&PolicyStats> for DecisionCounts {
    fn from(stats: &PolicyStats) -> Self {
        Self {
            allowed: stats.allowed,
            denied: stats.denied,
            shadow_denied: stats.shadow_denied,
            degraded: stats.degraded,
            allowed_units: stats.allowed_units,
            denied_units: stats.denied_units,
            shadow_denied_units: stats.shadow_denied_units,
            returned_units: stats.returned_units,
        }
    }
}

impl KeyModel {
    fn new(engine: &Engine, top: &TopKey) -> Self {
        let &TopKey { policy, count, allowed, denied, .. } = top;
        let whole = top.whole.as_ref();
        let key = match whole {
            Some(key) => text_of(key.as_ref()),
            None => top.key.chars().take(MAX_SHOWN_CHARS).chain(['…']).collect(),
        };
        let parsed = key_of(engine.policies().get(policy), &key);
        let exact = whole.is_some() && parsed.as_ref() == whole;
        Self { policy, key, count, allowed, denied, exact }
    }
}

impl StoreModel {
    fn new(active: &ActiveConfig) -> Self {
        match &active.state {
            State::Memory(store) => {
                let MemoryUsage { keys, max_keys, bytes, overflowed, reservations, .. } =
                    store.usage();
                let reachable = true;
                Self::Memory { reachable, keys, max_keys, bytes, overflowed, reservations }
            }
            State::Redis(store) => {
                Self::Redis(RedisModel::new(StoreOutage::of(active), store.stats()))
            }
        }
    }
}

impl RedisModel {
    fn new(outage: Option<StoreOutage>, stats: RedisStats) -> Self {
        let troubled = stats.servers.iter().filter(|server| server.trouble.is_some()).count();
        Self {
            reachable: outage.is_none(),
            outage: outage.map(|outage| outage.to_string()),
            breaker: match troubled {
                0 => "closed",
                all if all == stats.servers.len() => "open",
                _ => "partly open",
            },
            servers: stats.servers.into_iter().map(ServerModel::from).collect(),
            trips: stats.trips,
            calls: stats.calls,
            requests: stats.requests,
            keys: stats.keys,
            denied_locally: stats.denied_locally,
            deny_cache_entries: stats.deny_cache_entries,
            leased: stats.leased,
            lease_units_outstanding: stats.lease_units_outstanding,
            timed_out: stats.timed_out,
            redirects: stats.redirects,
            closed: stats.closed,
        }
    }
}

impl From<ServerStats> for ServerModel {
    fn from(server: ServerStats) -> Self {
        let ServerStats { address, trouble, round_trip, .. } = server;
        Self { address, trouble, round_trip: Seconds(round_trip) }
    }
}
