//! Bodies as `/openapi.json` describes them, and as the answers that are not asked for often are written.

use std::collections::BTreeMap;

use pacegate::{
    Decision, Limit, Policy, PolicyName, PolicyStats, Request, Stats, TopKey,
    policy::{FailureMode, Match, Missing, Mode},
};
use pacegate_redis::RedisStats;
use schemars::JsonSchema;
use serde::Serialize;

use crate::{
    explain::{ConditionModel, Seconds},
    gate::State,
};

/// One request to decide: by the policies in force, or for a key with a limit of its own.
#[derive(Debug, JsonSchema)]
#[schemars(untagged)]
#[expect(dead_code, reason = "a schema; what is sent is read by `ask`, without copies")]
pub(super) enum CheckRequest {
    Policies(PolicyRequest),
    Key(KeyRequest),
}

/// Attributes that policies look at.
#[derive(Debug, JsonSchema)]
#[schemars(deny_unknown_fields)]
#[expect(dead_code, reason = "a schema; what is sent is read by `ask`, without copies")]
pub(super) struct PolicyRequest {
    /// The domain whose policies apply; without it, those of the default domain.
    domain: Option<String>,
    /// Names and values that policies look at.
    attributes: Option<BTreeMap<String, String>>,
    /// Units taken, 1 unless said; 0 asks without taking.
    cost: Option<u64>,
    /// Asked again with the same id, a check counts once. Only for a check, and only with a Redis store.
    #[schemars(length(min = 1, max = 128))]
    id: Option<String>,
}

/// A key and a limit of its own. Policies are not asked.
#[derive(Debug, JsonSchema)]
#[schemars(deny_unknown_fields)]
#[expect(dead_code, reason = "a schema; what is sent is read by `ask`, without copies")]
pub(super) struct KeyRequest {
    /// Whose budget.
    key: String,
    /// One limit such as `100/minute`, or several which must all have room.
    limit: OneOrMore,
    /// Units taken, 1 unless said; 0 asks without taking.
    cost: Option<u64>,
    /// Asked again with the same id, a check counts once. Only for a check, and only with a Redis store.
    #[schemars(length(min = 1, max = 128))]
    id: Option<String>,
}

/// A request whose permit is to be given back or renewed: as it was acquired, with the permit.
#[derive(Debug, JsonSchema)]
#[schemars(untagged)]
#[expect(dead_code, reason = "a schema; what is sent is read by `ask`, without copies")]
pub(super) enum HeldRequest {
    Policies(HeldPolicyRequest),
    Key(HeldKeyRequest),
}

/// What was acquired by the policies in force.
#[derive(Debug, JsonSchema)]
#[schemars(deny_unknown_fields)]
#[expect(dead_code, reason = "a schema; what is sent is read by `ask`, without copies")]
pub(super) struct HeldPolicyRequest {
    /// As it was acquired.
    domain: Option<String>,
    /// As it was acquired.
    attributes: Option<BTreeMap<String, String>>,
    /// Not looked at.
    cost: Option<u64>,
    permit: Held,
}

/// What was acquired for a key with a limit of its own.
#[derive(Debug, JsonSchema)]
#[schemars(deny_unknown_fields)]
#[expect(dead_code, reason = "a schema; what is sent is read by `ask`, without copies")]
pub(super) struct HeldKeyRequest {
    /// As it was acquired.
    key: String,
    /// As it was acquired.
    limit: OneOrMore,
    /// Not looked at.
    cost: Option<u64>,
    permit: Held,
}

/// The permit, as `POST /v1/acquire` gave it.
#[derive(Debug, JsonSchema)]
#[schemars(transparent, inline)]
#[expect(dead_code, reason = "a schema; what is sent is read by `ask`, without copies")]
pub(super) struct Held(#[schemars(regex(pattern = r"^[0-9a-f]{1,16}$"))] String);

/// Requests to decide, each by itself, in their order.
#[derive(Debug, JsonSchema)]
#[schemars(deny_unknown_fields)]
#[expect(dead_code, reason = "a schema; what is sent is read by `ask`, without copies")]
pub(super) struct BatchRequest {
    requests: Vec<CheckRequest>,
}

/// One limit, or a list of them.
#[derive(Debug, JsonSchema)]
#[schemars(untagged)]
#[expect(dead_code, reason = "a schema; what is sent is read by `ask`, without copies")]
pub(super) enum OneOrMore {
    One(LimitText),
    More(#[schemars(length(min = 1, max = 16))] Vec<LimitText>),
}

/// A limit, such as `100/minute`, `10/second burst 20` or `5/30s sliding-log`.
#[derive(Debug, JsonSchema)]
#[schemars(transparent, inline)]
#[expect(dead_code, reason = "a schema; what is sent is read by `ask`, without copies")]
pub(super) struct LimitText(#[schemars(length(max = 64), regex(pattern = LIMIT))] String);

/// About what a limit looks like.
const LIMIT: &str = "^[0-9]+/([0-9]*(ms|s|m|h|d)|second|minute|hour|day)( .*)?$";

/// Whether a request may pass now. Of several limits, the tightest speaks.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[schemars(rename = "Decision")]
pub(super) struct DecisionModel {
    /// Whether it may pass.
    allowed: bool,
    /// The policy that speaks; null if none covers the request.
    policy: Option<&'static str>,
    /// Its limit, as text.
    limit: Option<String>,
    /// Units that would be admitted now; null without a limit.
    remaining: Option<u64>,
    /// Seconds until the same request would be allowed; null if it is, and if it never will be.
    retry_after: Option<Seconds>,
    /// Seconds until nothing is used any more.
    reset_after: Seconds,
    /// `store`, `overflow`, `deny-cache`, `lease`, `fallback`, `blocked` or `unlimited`.
    source: &'static str,
    /// Whether a policy in shadow mode would have denied it.
    shadow_denied: bool,
    /// Whether the store gave no answer, so that failure modes decided.
    degraded: bool,
    /// The configuration that it was decided by.
    #[serde(skip_serializing_if = "Option::is_none")]
    revision: Option<u64>,
}

/// What went wrong, as in RFC 9457.
#[derive(Debug, JsonSchema)]
#[schemars(rename = "Problem")]
#[expect(dead_code, reason = "a schema; problems write themselves")]
pub(super) struct ProblemModel {
    /// `urn:pacegate:problem:` and a word that stays the same.
    r#type: String,
    /// What kind of thing it is.
    title: String,
    /// The status of the response.
    status: u16,
    /// What it is this time, and what to do instead.
    detail: String,
}

/// One answer of a batch: a decision, or why there is none.
#[derive(Debug, JsonSchema)]
#[schemars(untagged)]
#[expect(dead_code, reason = "a schema; batches are written by hand")]
pub(super) enum BatchAnswer {
    Decision(DecisionModel),
    Error { error: ProblemModel },
}

/// Answers in the order of the requests.
#[derive(Debug, JsonSchema)]
#[expect(dead_code, reason = "a schema; batches are written by hand")]
pub(super) struct BatchAnswers {
    answers: Vec<BatchAnswer>,
}

/// The decision, and the permit if it was allowed and something is held.
#[derive(Debug, JsonSchema)]
#[expect(dead_code, reason = "a schema; decisions are written by hand")]
pub(super) struct Acquired {
    #[schemars(flatten)]
    decision: DecisionModel,
    /// To be given back by `POST /v1/release`; null if nothing is held.
    permit: Option<String>,
}

/// What a request would meet, and each limit by itself.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "State")]
pub(super) struct StateModel {
    #[serde(flatten)]
    pub(super) decision: DecisionModel,
    /// Every limit that applies.
    pub(super) limits: Vec<DecisionModel>,
}

/// How many limits it concerned.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Done {
    pub(super) limits: usize,
}

/// The configuration that is in force now.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Reloaded {
    pub(super) revision: u64,
}

/// How the service is.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Health {
    pub(super) status: &'static str,
    /// Whether the store is unreachable, so that failure modes apply.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) degraded: Option<bool>,
    /// The reason, for requests that may see it: with an API key where one is needed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) store: Option<crate::outage::StoreOutage>,
}

/// Seed 000's answer.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub(super) struct SeedAnswer {
    pub(super) allowed: bool,
    /// Requests in the current window, this one among them if it is allowed.
    pub(super) current_count: u64,
    /// Seconds until the window ends.
    pub(super) ttl: u64,
}

/// The policies in force.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct PolicyList {
    pub(super) revision: u64,
    pub(super) policies: Vec<PolicyModel>,
}

/// A policy.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Policy")]
pub(super) struct PolicyModel {
    name: &'static str,
    domain: String,
    /// Whether it is a rule for Envoy. Descriptors lead to it then, `match` does not say which, and `per` are the
    /// entries by whose values it counts.
    envoy: bool,
    r#match: Vec<ConditionModel>,
    /// The attributes whose values are the key. None: one budget for all.
    per: Vec<String>,
    /// `share` or `skip`: what becomes of requests that lack one of them.
    missing: &'static str,
    limits: Vec<LimitModel>,
    /// The first that matches replaces the limits.
    overrides: Vec<OverrideModel>,
    /// `enforce` or `shadow`.
    mode: &'static str,
    /// What happens when the store fails: `open`, `closed`, or `local` with this process's share.
    failure: String,
    /// The most that one request may cost, where that is less than the capacity.
    max_cost: Option<u64>,
}

/// A limit, taken apart.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Limit")]
pub(super) struct LimitModel {
    /// As text.
    limit: String,
    amount: u64,
    period: Seconds,
    /// The most at one instant.
    capacity: u64,
    algorithm: String,
}

/// Other limits for some requests of a policy.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Override")]
pub(super) struct OverrideModel {
    r#match: Vec<ConditionModel>,
    /// None at all: no limit.
    limits: Vec<LimitModel>,
}

/// What was decided so far, by this process.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Stats")]
pub(super) struct StatsModel {
    pub(super) revision: u64,
    pub(super) policies: Vec<PolicyCounts>,
    /// Limits that came with requests.
    pub(super) ad_hoc: PolicyCounts,
    /// Keys with most requests of late, estimated.
    pub(super) busiest: Vec<TopKeyModel>,
    /// Keys with most denials of late, estimated.
    pub(super) most_denied: Vec<TopKeyModel>,
    /// Calls that the store failed to answer.
    pub(super) store_failures: u64,
    pub(super) store: StoreModel,
    /// Configurations that were offered and could not be used.
    pub(super) reloads_refused: u64,
    /// Why the last one was not taken, if it was not.
    pub(super) reload_complaint: Option<String>,
}

/// Counts of one policy.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct PolicyCounts {
    policy: &'static str,
    allowed: u64,
    denied: u64,
    shadow_denied: u64,
    degraded: u64,
    /// The sum of the costs of the allowed requests.
    allowed_units: u64,
    /// The sum of the costs of the denied requests.
    denied_units: u64,
    /// The sum of the costs of the requests that it would have denied without shadow mode.
    shadow_denied_units: u64,
}

/// A key that stands out.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "TopKey")]
pub(super) struct TopKeyModel {
    policy: &'static str,
    /// Somebody else's input: show it as text only.
    key: String,
    count: u64,
}

/// How the store is doing.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "lowercase")]
#[schemars(rename = "Store")]
pub(super) enum StoreModel {
    Memory { keys: usize, max_keys: usize, bytes: usize, overflowed: u64 },
    Redis(RedisModel),
}

/// How the store on Redis is doing.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Redis")]
pub(super) struct RedisModel {
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
    closed: u64,
}

/// How one server is doing.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Server")]
pub(super) struct ServerModel {
    pub(super) address: String,
    /// Why it is not in use, if it is not.
    pub(super) trouble: Option<String>,
    pub(super) round_trip: Seconds,
}

impl DecisionModel {
    /// One limit's part of a decision.
    pub(super) fn part(decision: &Decision) -> Self {
        Self {
            allowed: decision.is_allowed(),
            policy: decision.policy().map(|policy| policy.as_str()),
            limit: decision.limit().map(|limit| limit.to_string()),
            remaining: decision.limit().map(|_| decision.remaining()),
            retry_after: decision.retry_after().map(Seconds),
            reset_after: Seconds(decision.reset_after()),
            source: decision.source().as_str(),
            shadow_denied: decision.is_shadow_denied(),
            degraded: decision.is_degraded(),
            revision: None,
        }
    }

    /// A decision by this configuration.
    pub(super) fn whole(decision: &Decision, revision: u64) -> Self {
        Self { revision: Some(revision), ..Self::part(decision) }
    }
}

impl PolicyModel {
    /// What limits that come with requests amount to.
    pub(super) fn ad_hoc(failure: FailureMode) -> Self {
        Self {
            name: PolicyName::AD_HOC.as_str(),
            domain: String::new(),
            envoy: false,
            r#match: Vec::new(),
            per: vec![Request::KEY.to_owned()],
            missing: "share",
            limits: Vec::new(),
            overrides: Vec::new(),
            mode: "enforce",
            failure: failure_text(failure),
            max_cost: None,
        }
    }
}

fn failure_text(failure: FailureMode) -> String {
    match failure {
        FailureMode::Open => "open".to_owned(),
        FailureMode::Closed => "closed".to_owned(),
        FailureMode::Local { numerator, denominator } => format!("local {numerator}/{denominator}"),
        other => format!("{other:?}"),
    }
}

impl From<&Policy> for PolicyModel {
    fn from(policy: &Policy) -> Self {
        let missing = match policy.missing {
            Missing::Skip => "skip",
            _ => "share",
        };
        let mode = match policy.mode {
            Mode::Shadow => "shadow",
            _ => "enforce",
        };
        let overrides = policy.overrides.iter().map(|other| OverrideModel {
            r#match: conditions(&other.matching),
            limits: other.limits.iter().map(LimitModel::from).collect(),
        });
        let envoy = policy.matching == Match::never();
        Self {
            name: policy.name.as_str(),
            domain: policy.domain.clone(),
            envoy,
            r#match: if envoy { Vec::new() } else { conditions(&policy.matching) },
            per: policy.per.clone(),
            missing,
            limits: policy.limits.iter().map(LimitModel::from).collect(),
            overrides: overrides.collect(),
            mode,
            failure: failure_text(policy.failure),
            max_cost: policy.max_cost,
        }
    }
}

fn conditions(matching: &Match) -> Vec<ConditionModel> {
    let model = |(attribute, condition)| ConditionModel::new(attribute, condition);
    matching.conditions().map(model).collect()
}

impl From<&Limit> for LimitModel {
    fn from(limit: &Limit) -> Self {
        Self {
            limit: limit.to_string(),
            amount: limit.amount(),
            period: Seconds(limit.period()),
            capacity: limit.capacity(),
            algorithm: limit.algorithm().to_string(),
        }
    }
}

impl StatsModel {
    pub(super) fn new(revision: u64, stats: &Stats, state: &State) -> Self {
        Self {
            revision,
            policies: stats.policies.iter().map(PolicyCounts::from).collect(),
            ad_hoc: PolicyCounts::from(&stats.ad_hoc),
            busiest: stats.busiest.iter().map(TopKeyModel::from).collect(),
            most_denied: stats.most_denied.iter().map(TopKeyModel::from).collect(),
            store_failures: stats.store_failures,
            store: StoreModel::from(state),
            reloads_refused: 0,
            reload_complaint: None,
        }
    }
}

impl From<&PolicyStats> for PolicyCounts {
    fn from(stats: &PolicyStats) -> Self {
        Self {
            policy: stats.policy.as_str(),
            allowed: stats.allowed,
            denied: stats.denied,
            shadow_denied: stats.shadow_denied,
            degraded: stats.degraded,
            allowed_units: stats.allowed_units,
            denied_units: stats.denied_units,
            shadow_denied_units: stats.shadow_denied_units,
        }
    }
}

impl From<&TopKey> for TopKeyModel {
    fn from(top: &TopKey) -> Self {
        Self { policy: top.policy.as_str(), key: top.key.clone(), count: top.count }
    }
}

impl From<&State> for StoreModel {
    fn from(state: &State) -> Self {
        match state {
            State::Memory(store) => {
                let usage = store.usage();
                let (keys, max_keys) = (usage.keys, usage.max_keys);
                Self::Memory { keys, max_keys, bytes: usage.bytes, overflowed: usage.overflowed }
            }
            State::Redis(store) => Self::Redis(store.stats().into()),
        }
    }
}

impl From<RedisStats> for RedisModel {
    fn from(stats: RedisStats) -> Self {
        let servers = stats.servers.into_iter().map(|server| ServerModel {
            address: server.address,
            trouble: server.trouble,
            round_trip: Seconds(server.round_trip),
        });
        Self {
            servers: servers.collect(),
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
