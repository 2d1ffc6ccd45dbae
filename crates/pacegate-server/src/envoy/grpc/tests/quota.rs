//! Streams of the quota service. Each call of [`assignments`] is a new stream, as after a lost connection.

use std::{
    collections::BTreeMap,
    num::NonZeroU32,
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
};

use pacegate::{
    Charge, KeyRef, MemoryStore, Outcomes, Policy, Reply, SharedLimiter, Store, StoreError, Update,
    policy::FailureMode,
};

use super::{
    super::super::{
        proto,
        rlqs::proto::{
            Action, Assignment, BlanketRule, BucketAction, BucketId, BucketUsage, QuotaResponse,
            StrategyKind, UsageReports,
        },
    },
    *,
};

/// A store that can be made unreachable.
#[derive(Debug, Default)]
struct Unreliable {
    store: MemoryStore,
    is_down: AtomicBool,
}

impl Store for Unreliable {
    fn charge(&self, charges: &[Charge<'_>], id: Option<&[u8]>) -> Reply<'_, Outcomes> {
        match self.is_down.load(Ordering::Relaxed) {
            true => Reply::Ready(Err(StoreError::Unavailable("down".to_owned()))),
            false => self.store.charge(charges, id),
        }
    }

    fn update(&self, charge: &Charge<'_>, update: Update) -> Reply<'_, bool> {
        self.store.update(charge, update)
    }
}

/// A store in which another server charges units between a peek and the charge that follows it.
#[derive(Debug, Default)]
struct Contended {
    store: MemoryStore,
    /// The units of the other server. It charges them once.
    other: AtomicU64,
}

impl Store for Contended {
    fn charge(&self, charges: &[Charge<'_>], id: Option<&[u8]>) -> Reply<'_, Outcomes> {
        let is_peek = charges.iter().all(|charge| charge.cost == 0);
        let other = if is_peek { 0 } else { self.other.swap(0, Ordering::Relaxed) };
        if other > 0 {
            let others: Vec<_> = charges.iter().map(|charge| charge.cost(other)).collect();
            let Reply::Ready(Ok(outcomes)) = self.store.charge(&others, None) else { panic!() };
            assert!(outcomes.iter().all(|outcome| outcome.is_admitted()));
        }
        self.store.charge(charges, id)
    }

    fn update(&self, charge: &Charge<'_>, update: Update) -> Reply<'_, bool> {
        self.store.update(charge, update)
    }
}

const QUOTAS: &str =
    "/envoy.service.rate_limit_quota.v3.RateLimitQuotaService/StreamRateLimitQuotas";

fn quota_settings() -> Settings {
    settings_with("100/365d", FailureMode::Closed)
}

fn settings_with(limit: &str, failure: FailureMode) -> Settings {
    let policy = |name: &str, domain: &str| {
        Policy::new(name, [limit]).in_domain(domain).per(["k"]).failing(failure)
    };
    let policies = [policy("quota", "d"), policy("other", "undeclared")];
    let mut settings = Settings::new(PolicySet::new(policies).unwrap());
    settings.envoy_quotas.insert("quota".parse().unwrap());
    settings
}

/// The first request of a bucket, which was denied.
fn first_usage() -> BucketUsage {
    let attributes = BTreeMap::from([("k".to_owned(), "v".to_owned())]);
    BucketUsage { id: Some(BucketId { attributes }), denied: 1, ..Default::default() }
}

fn report_of(domain: &str, usage: BucketUsage) -> Bytes {
    let reports = UsageReports { domain: domain.to_owned(), usages: vec![usage] };
    framed(&reports.encode_to_vec())
}

fn report(domain: &str) -> Bytes {
    report_of(domain, first_usage())
}

/// Sends a report on a new stream, and returns the assignments in the only message, if there is one.
async fn assignments(client: &mut Client, report: Bytes) -> Vec<Assignment> {
    let (message, status, text) = call(client, QUOTAS, report, None).await;
    assert_eq!((status, &*text), (0, ""));
    if message.is_empty() {
        return Vec::new();
    }
    let response = QuotaResponse::decode(message.slice(5..)).unwrap();
    let assignment = |action: BucketAction| match action.action.unwrap() {
        Action::Assign(assignment) => assignment,
        Action::Abandon(_) => panic!("abandoned"),
    };
    response.actions.into_iter().map(assignment).collect()
}

async fn strategies(client: &mut Client, domain: &str) -> Vec<StrategyKind> {
    let all = assignments(client, report(domain)).await;
    all.into_iter().map(|assignment| assignment.strategy.unwrap().kind.unwrap()).collect()
}

/// Returns the tokens that an Envoy gets after this report, and their life in seconds.
async fn tokens_after(client: &mut Client, report: Bytes) -> (u64, i64) {
    let all = assignments(client, report).await;
    if all.is_empty() {
        return (0, 0);
    }
    let kind = |assignment: &Assignment| assignment.strategy.unwrap().kind.unwrap();
    assert_eq!(kind(&all[0]), StrategyKind::Blanket(BlanketRule::DenyAll.into()));
    let tokens = all.get(1).map_or(0, |assignment| match kind(assignment) {
        StrategyKind::TokenBucket(bucket) => bucket.max_tokens,
        other @ StrategyKind::Blanket(_) => panic!("{other:?}"),
    });
    (tokens.into(), all.last().unwrap().time_to_live.unwrap().seconds)
}

/// Returns the tokens that new streams get until there are none, and their longest life in seconds.
async fn all_tokens(client: &mut Client) -> (u64, i64) {
    let (mut sum, mut longest) = (0, 0);
    for _ in 0..30 {
        let (tokens, seconds) = tokens_after(client, report("d")).await;
        if tokens > 0 {
            (sum, longest) = (sum + tokens, longest.max(seconds));
        }
    }
    (sum, longest)
}

async fn units_left(server: &Server) -> u64 {
    let request = pacegate::Request::new().in_domain("d").with("k", "v").cost(0);
    server.active.revision().engine.check(&request).await.unwrap().remaining()
}

#[tokio::test]
async fn assigned_units_are_charged_first() {
    let (server, mut client) = connect(quota_settings()).await;
    let mut assigned = 0;
    for _ in 0..30 {
        assigned += tokens_after(&mut client, report("d")).await.0;
        assert_eq!(assigned + units_left(&server).await, 100);
    }
    assert_eq!(assigned, 100, "all of them");
    let quotas = &server.active.quotas;
    let messages = (quotas.reports.get(), quotas.responses.get());
    assert_eq!((messages, quotas.units.get(), quotas.buckets()), ((30, 30), 100, 0));
}

#[tokio::test]
async fn policies_without_quotas_deny_and_unlimited_buckets_pass() {
    let (_server, mut client) = connect(quota_settings()).await;
    let blanket = |rule: BlanketRule| vec![StrategyKind::Blanket(rule.into())];
    assert_eq!(strategies(&mut client, "undeclared").await, blanket(BlanketRule::DenyAll));
    assert_eq!(strategies(&mut client, "unknown").await, blanket(BlanketRule::AllowAll));
}

#[tokio::test]
async fn a_quota_stream_survives_buckets_with_long_ids() {
    let (server, mut client) = connect(quota_settings()).await;
    let usage = |number: usize| {
        let attributes = BTreeMap::from([("k".to_owned(), format!("{number:04000}"))]);
        BucketUsage { id: Some(BucketId { attributes }), denied: 1, ..Default::default() }
    };
    let reports = UsageReports { domain: "d".to_owned(), usages: (0..100).map(usage).collect() };
    let body = framed(&reports.encode_to_vec());
    let (message, status, text) = call(&mut client, QUOTAS, body, None).await;
    assert_eq!((status, &*text), (0, ""));
    let actions = QuotaResponse::decode(message.slice(5..)).unwrap().actions;
    let abandoned =
        actions.iter().filter(|action| matches!(action.action, Some(Action::Abandon(_)))).count();
    assert_eq!(abandoned, 100 - (256 << 10) / 4_009, "those beyond 256 KiB");
    assert_eq!(server.active.quotas.buckets(), 0, "after the end of the stream");
}

#[tokio::test]
async fn a_quota_stream_ends_with_its_status() {
    let mut settings = quota_settings();
    settings.security.credentials = vec![Credential {
        name: "edge".into(),
        sha256: Sha256::digest("secret").into(),
        scope: Scope::Check,
        domains: Some(vec!["d".into()]),
        inline: false,
    }];
    let (server, mut client) = connect(settings).await;
    let mut status = async |body: Bytes, key| {
        let response = send(&mut client, QUOTAS, body, key).await;
        let headers = response.headers().clone();
        let body = response.into_body().collect().await.unwrap();
        let trailers = body.trailers().cloned().unwrap_or_default();
        let status = headers.get("grpc-status").or(trailers.get("grpc-status")).unwrap();
        status.to_str().unwrap().parse::<u32>().unwrap()
    };
    assert_eq!(status(report("d"), None).await, 16);
    assert_eq!(status(report("other"), Some("secret")).await, 7);
    assert_eq!(status(report("d"), Some("secret")).await, 0);
    assert_eq!(status(report(""), Some("secret")).await, 3);
    assert_eq!(status(framed(&[0xff]), Some("secret")).await, 3);
    let two_domains = [report("d"), report("other")].concat();
    assert_eq!(status(two_domains.into(), Some("secret")).await, 3);
    assert_eq!(status(framed(&vec![0; 961 << 10]), Some("secret")).await, 8);
    assert_eq!(server.active.quotas.buckets(), 0);
}

#[tokio::test]
async fn an_outage_of_the_store_assigns_units_by_the_failure_mode() {
    let local = FailureMode::Local { numerator: 1, denominator: NonZeroU32::MIN };
    for (failure, most) in [(FailureMode::Closed, 0), (local, 100)] {
        let store = Arc::new(Unreliable::default());
        let settings = settings_with("100/365d", failure);
        let limiter = SharedLimiter::new(store.clone(), settings.policies.clone());
        let state = State::Memory(store.store.clone());
        let active = ActiveConfig::new(Engine::shared(limiter), state, settings);
        let (server, mut client) = handshaken(serve(active)).await;
        let (before, _) = tokens_after(&mut client, report("d")).await;
        assert!(before > 0);
        store.is_down.store(true, Ordering::Relaxed);
        let (during, longest) = all_tokens(&mut client).await;
        assert_eq!(during, most, "{failure:?}: at most one limit");
        assert!(longest <= 10, "{failure:?}: {longest} s");
        store.is_down.store(false, Ordering::Relaxed);
        let (after, _) = all_tokens(&mut client).await;
        assert_eq!(before + after, 100, "{failure:?}: the store has kept its count");
        assert_eq!(units_left(&server).await, 0);
    }
}

#[tokio::test]
async fn units_that_cannot_be_assigned_are_not_recorded_as_debt() {
    let store = Arc::new(Contended { other: AtomicU64::new(95), ..Contended::default() });
    let policy = Policy::new("quota", ["100/365d"]).in_domain("d").per(["k"]).record_in_full();
    let mut settings = Settings::new(PolicySet::new([policy]).unwrap());
    settings.envoy_quotas.insert("quota".parse().unwrap());
    let limiter = SharedLimiter::new(store.clone(), settings.policies.clone());
    let state = State::Memory(store.store.clone());
    let (server, mut client) =
        handshaken(serve(ActiveConfig::new(Engine::shared(limiter), state, settings))).await;
    assert_eq!(tokens_after(&mut client, report("d")).await.0, 5, "the rest");
    server.active.replace(settings_with("107/365d", FailureMode::Closed));
    assert_eq!(units_left(&server).await, 7, "100 are used");
}

#[tokio::test]
async fn an_assignment_lives_for_less_than_a_day() {
    // Envoy adds a token each year.
    let (_server, mut client) = connect(quota_settings()).await;
    assert_eq!(tokens_after(&mut client, report("d")).await.1, 24 * 3_600 - 1);
}

#[tokio::test]
async fn a_blocked_key_gets_no_units_until_the_block_ends() {
    let (server, mut client) = connect(quota_settings()).await;
    let (before, _) = tokens_after(&mut client, report("d")).await;
    let engine = server.active.revision().engine.clone();
    let (policy, key) = ("quota".parse().unwrap(), KeyRef::new(b"v").to_buf());
    engine.blocks.add(policy, key, Duration::from_secs(3_600)).await.unwrap();
    assert_eq!(all_tokens(&mut client).await.0, 0);
    assert_eq!(engine.blocks.lift(|_| true).await.unwrap().len(), 1);
    assert_eq!(before + all_tokens(&mut client).await.0, 100);
}

#[tokio::test]
async fn a_reload_changes_the_units_that_are_left() {
    let (server, mut client) = connect(quota_settings()).await;
    assert_eq!(all_tokens(&mut client).await.0, 100);
    let reload = |limit| server.active.replace(settings_with(limit, FailureMode::Closed));
    reload("250/365d");
    assert_eq!(all_tokens(&mut client).await.0, 150, "the rest of a raised limit");
    reload("200/365d");
    assert_eq!(all_tokens(&mut client).await.0, 0, "more is used than a lowered limit has");
    reload("260/365d");
    assert_eq!(all_tokens(&mut client).await.0, 10);
}

/// An Envoy keeps its tokens if its stream is lost, and may also lose an assignment.
#[tokio::test]
async fn a_reconnected_envoy_gets_units_that_no_stream_has() {
    let (server, mut client) = connect(quota_settings()).await;
    let mut assigned = 0;
    for allowed in [0, 1, 7] {
        let time_elapsed = Some(proto::Duration { seconds: 4, nanos: 0 });
        let usage = BucketUsage { allowed, time_elapsed, ..first_usage() };
        let (tokens, _) = tokens_after(&mut client, report_of("d", usage)).await;
        assert!(tokens > 0, "after {allowed} requests");
        assigned += tokens;
        assert_eq!(assigned + units_left(&server).await, 100);
    }
    assert_eq!(server.active.quotas.buckets(), 0, "of open streams");
}
