//! Metrics for Prometheus. Labels come from the configuration and the program, never from requests.

use std::{
    fmt,
    iter::{Sum, once},
    ops::AddAssign,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use pacegate::{MemoryStore, PolicyStats, ShareUsage};
use pacegate_redis::RedisStats;
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, MetricEncoder, NoLabelSet, text},
    metrics::MetricType,
    registry::Registry,
};

use crate::{
    active_config::{ActiveConfig, State},
    envoy::QuotaRegistry,
    service::Listener,
};

/// All metrics of the server.
#[derive(Debug)]
pub(crate) struct Metrics(Registry);

/// The responses of one listener and their times. Threads count separately.
#[derive(Debug)]
pub(crate) struct ListenerMetrics {
    pub(crate) name: &'static str,
    codes: &'static [&'static str],
    shards: Box<[Shard]>,
    socket: Option<Arc<Listener>>,
}

/// A histogram of response times: the number of responses up to each of [`BOUNDS`], then those above.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Latency([u64; BUCKETS]);

/// The counters of some threads, aligned to cache lines so that other threads do not slow them down.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Shard {
    codes: [AtomicU64; MAX_CODES],
    /// Times of decisions, by bucket of [`Latency`].
    decisions: [AtomicU64; BUCKETS],
    /// Times of other responses, such as reports.
    others: [AtomicU64; BUCKETS],
    /// Sum of all times.
    nanos: AtomicU64,
    degraded: AtomicU64,
}

/// Collects the counters of all parts on each scrape.
#[derive(Debug)]
struct Scrape(Arc<ActiveConfig>);

/// Writes one family of metrics after the other.
struct Families<'a>(DescriptorEncoder<'a>);

/// A value with its labels.
type Sample<const N: usize> = ([(&'static str, String); N], u64);

const MAX_CODES: usize = 24;
const SHARDS: usize = 16;
const BUCKETS: usize = BOUNDS.len() + 1;

/// Microseconds up to which a request is counted in each bucket.
const BOUNDS: [u64; 15] = [
    25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000,
    1_000_000, 10_000_000,
];

impl Metrics {
    /// Creates the metrics of the server and its listeners.
    pub(crate) fn new(active: Arc<ActiveConfig>, listeners: Vec<Arc<ListenerMetrics>>) -> Self {
        active.live.set_listeners(listeners);
        let mut registry = Registry::default();
        registry.register_collector(Box::new(Scrape(active)));
        Self(registry)
    }

    /// The content type of [`Metrics::encode`].
    pub(crate) const CONTENT_TYPE: &str =
        "application/openmetrics-text; version=1.0.0; charset=utf-8";

    /// Returns the current metrics as OpenMetrics text.
    pub(crate) fn encode(&self) -> Result<String, fmt::Error> {
        let mut out = String::new();
        text::encode(&mut out, &self.0)?;
        Ok(out)
    }
}

impl ListenerMetrics {
    /// Creates the metrics of a listener with this name and these response codes, at most 24.
    pub(crate) fn new(name: &'static str, codes: &'static [&'static str]) -> Self {
        debug_assert!(codes.len() <= MAX_CODES, "{name} has too many codes");
        let shards = std::iter::repeat_with(Shard::default).take(SHARDS).collect();
        Self { name, codes, shards, socket: None }
    }

    /// Reports the connections of this listener.
    #[must_use]
    pub(crate) fn on(self, socket: Arc<Listener>) -> Self {
        Self { socket: Some(socket), ..self }
    }

    /// Counts a decision with the code at this index, and its time.
    pub(crate) fn count(&self, code: usize, took: Duration) {
        self.count_many(code, 1, took);
    }

    /// Counts several decisions that were sent together.
    pub(crate) fn count_many(&self, code: usize, requests: u64, took: Duration) {
        if requests > 0 {
            self.record(code, requests, took, |shard| &shard.decisions);
        }
    }

    /// Counts a response without a decision, such as a report.
    pub(crate) fn count_other(&self, code: usize, took: Duration) {
        self.record(code, 1, took, |shard| &shard.others);
    }

    fn record(
        &self,
        code: usize,
        requests: u64,
        took: Duration,
        times: fn(&Shard) -> &[AtomicU64; BUCKETS],
    ) {
        let shard = &self.shards[thread_number() % SHARDS];
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        let bucket = BOUNDS.iter().position(|bound| micros <= *bound).unwrap_or(BOUNDS.len());
        shard.codes[code.min(MAX_CODES - 1)].fetch_add(requests, Ordering::Relaxed);
        times(shard)[bucket].fetch_add(requests, Ordering::Relaxed);
        shard.nanos.fetch_add(nanos.wrapping_mul(requests), Ordering::Relaxed);
    }

    /// Counts responses that a failure mode decided.
    pub(crate) fn count_degraded(&self, answers: u64) {
        let shard = &self.shards[thread_number() % SHARDS];
        shard.degraded.fetch_add(answers, Ordering::Relaxed);
    }

    /// Returns the number of responses.
    pub(crate) fn answered(&self) -> u64 {
        (0..self.codes.len()).map(|place| self.sum(|shard| &shard.codes[place])).sum()
    }

    /// Returns the times of all decisions so far.
    pub(crate) fn latency(&self) -> Latency {
        Latency(std::array::from_fn(|place| self.sum(|shard| &shard.decisions[place])))
    }

    /// Returns the sum of the times of all responses.
    pub(crate) fn total_time(&self) -> Duration {
        Duration::from_nanos(self.sum(|shard| &shard.nanos))
    }

    /// Returns the number of open connections.
    pub(crate) fn connections(&self) -> usize {
        self.socket.as_ref().map_or(0, |socket| socket.open())
    }

    fn sum(&self, counter: impl Fn(&Shard) -> &AtomicU64) -> u64 {
        let counts = self.shards.iter().map(|shard| counter(shard).load(Ordering::Relaxed));
        counts.fold(0, u64::wrapping_add)
    }
}

impl Latency {
    /// Returns the number of requests.
    pub(crate) fn count(&self) -> u64 {
        self.0.iter().fold(0, |sum, count| sum.wrapping_add(*count))
    }

    /// Returns the highest time of each bucket, which the last one lacks, and its number of requests.
    pub(crate) fn buckets(&self) -> impl Iterator<Item = (Option<Duration>, u64)> {
        let bounds = BOUNDS.map(|micros| Some(Duration::from_micros(micros)));
        bounds.into_iter().chain([None]).zip(self.0)
    }

    /// Returns the requests that are not in an earlier histogram.
    pub(crate) fn since(&self, earlier: &Self) -> Self {
        Self(std::array::from_fn(|place| self.0[place].wrapping_sub(earlier.0[place])))
    }

    /// Returns the upper bound of the bucket that has the request at this percentage, such as 99 for the time within
    /// which 99 % of the requests were answered. The last bucket has no bound; for it, returns a microsecond more than
    /// the highest one, so that it can be shown as "above 10 s". `None` without requests.
    pub(crate) fn percentile(&self, percent: u64) -> Option<Duration> {
        let rank = self.count().checked_mul(percent)?.div_ceil(100);
        let mut seen = 0_u64;
        let place = self.0.iter().position(|count| {
            seen = seen.saturating_add(*count);
            seen >= rank && rank > 0
        })?;
        let micros = BOUNDS.get(place).copied().unwrap_or(BOUNDS[BOUNDS.len() - 1] + 1);
        Some(Duration::from_micros(micros))
    }
}

impl AddAssign for Latency {
    fn add_assign(&mut self, other: Self) {
        self.0.iter_mut().zip(other.0).for_each(|(sum, count)| *sum = sum.wrapping_add(count));
    }
}

impl<'a> Sum<&'a Self> for Latency {
    fn sum<I: Iterator<Item = &'a Self>>(all: I) -> Self {
        all.fold(Self::default(), |mut sum, one| {
            sum += *one;
            sum
        })
    }
}

/// Returns a small number for the current thread.
fn thread_number() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static NUMBER: usize = NEXT.fetch_add(1, Ordering::Relaxed);
    }
    NUMBER.with(|number| *number)
}

impl Collector for Scrape {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> fmt::Result {
        let Self(active) = self;
        let mut families = Families(encoder);
        families.build()?;
        families.decisions(active)?;
        families.listeners(active.live.listeners())?;
        families.config(active)?;
        families.quotas(&active.quotas)?;
        families.thresholds(active)?;
        match &active.state {
            State::Memory(store) => families.memory(store),
            State::Redis(store) => families.redis(&store.stats()),
        }
    }
}

impl Families<'_> {
    fn build(&mut self) -> fmt::Result {
        let labels = [("version", env!("CARGO_PKG_VERSION"))];
        let kind = MetricType::Info;
        let help = "Version of the server";
        self.0.encode_descriptor("pacegate_build", help, None, kind)?.encode_info(&labels)
    }

    fn decisions(&mut self, active: &ActiveConfig) -> fmt::Result {
        let stats = active.revision().engine.stats();
        let all = || stats.policies.iter().chain([&stats.inline]);
        let outcomes = |counts: fn(&PolicyStats) -> [u64; 3]| {
            all().flat_map(move |policy| {
                let outcomes = ["allowed", "denied", "shadow_denied"].into_iter();
                outcomes.zip(counts(policy)).map(|(outcome, count)| {
                    let policy = policy.policy.to_string();
                    ([("policy", policy), ("outcome", outcome.to_owned())], count)
                })
            })
        };
        let requests = outcomes(|policy| [policy.allowed, policy.denied, policy.shadow_denied]);
        self.counters("pacegate_decisions", "Requests by policy and outcome", requests)?;
        let units = outcomes(|policy| {
            [policy.allowed_units, policy.denied_units, policy.shadow_denied_units]
        });
        let help = "Units (the sum of the costs of requests) by policy and outcome";
        self.counters("pacegate_decision_units", help, units)?;
        let returned =
            all().map(|policy| ([("policy", policy.policy.to_string())], policy.returned_units));
        let help = "Units of reservations that were not used, of the allowed units by policy";
        self.counters("pacegate_returned_units", help, returned)?;
        let degraded =
            all().map(|policy| ([("policy", policy.policy.to_string())], policy.degraded));
        let help = "Requests decided by a failure mode because the store failed";
        self.counters("pacegate_degraded", help, degraded)?;
        let help = "Failed calls to the store";
        self.counter("pacegate_store_failures", help, stats.store_failures)
    }

    fn listeners(&mut self, listeners: &[Arc<ListenerMetrics>]) -> fmt::Result {
        let requests = listeners.iter().flat_map(|listener| {
            listener.codes.iter().enumerate().map(|(place, code)| {
                let labels = [("listener", listener.name.to_owned()), ("code", (*code).to_owned())];
                (labels, listener.sum(|shard| &shard.codes[place]))
            })
        });
        let answered = requests.filter(|(_, count)| *count > 0);
        self.counters("pacegate_requests", "Requests answered", answered)?;
        let label = |listener: &ListenerMetrics| [("listener", listener.name.to_owned())];
        let degraded = |listener: &ListenerMetrics| listener.sum(|shard| &shard.degraded);
        let degraded = listeners.iter().map(|listener| (label(listener), degraded(listener)));
        let help = "Responses decided by a failure mode because the store failed";
        self.counters("pacegate_degraded_answers", help, degraded)?;
        self.times(listeners)?;
        let sockets = || listeners.iter().filter_map(|listener| listener.socket.as_ref());
        let label = |socket: &Listener| [("listener", socket.name.to_owned())];
        let open = sockets().map(|socket| (label(socket), socket.open() as u64));
        self.gauges("pacegate_connections", "Open connections", open)?;
        let refused = sockets().map(|socket| (label(socket), socket.refused()));
        let help = "Connections closed because the listener had too many";
        self.counters("pacegate_connections_refused", help, refused)
    }

    fn times(&mut self, listeners: &[Arc<ListenerMetrics>]) -> fmt::Result {
        let (name, help) =
            ("pacegate_request_duration_seconds", "Time from a request to its response");
        let mut encoder = self.0.encode_descriptor(name, help, None, MetricType::Histogram)?;
        for listener in listeners {
            let times = |place: usize| {
                listener
                    .sum(|shard| &shard.decisions[place])
                    .wrapping_add(listener.sum(|shard| &shard.others[place]))
            };
            let times = Latency(std::array::from_fn(times));
            let bounds = BOUNDS.map(|micros| Duration::from_micros(micros).as_secs_f64());
            let buckets: Vec<_> = bounds.into_iter().chain([f64::INFINITY]).zip(times.0).collect();
            let sum = listener.total_time().as_secs_f64();
            let labels = [("listener", listener.name)];
            let mut encoder = encoder.encode_family(&labels)?;
            encoder.encode_histogram::<NoLabelSet>(sum, times.count(), &buckets, None)?;
        }
        Ok(())
    }

    fn config(&mut self, active: &ActiveConfig) -> fmt::Result {
        let help = "Revision of the active configuration";
        self.gauge("pacegate_config_revision", help, active.revision().number)?;
        let (refused, complaint) = active.refusals();
        let help = "Failed reloads of the configuration";
        self.counter("pacegate_config_reload_failures", help, refused)?;
        let help = "1 if the last reload succeeded, otherwise 0";
        self.gauge("pacegate_config_last_reload_success", help, u64::from(complaint.is_none()))?;
        let servers = active.config_servers();
        if servers.is_empty() {
            return Ok(());
        }
        let samples = servers.into_iter().map(|(server, is)| ([("server", server)], u64::from(is)));
        let help = "1 if the config server is connected, otherwise 0";
        self.gauges("pacegate_config_server_connected", help, samples)
    }

    fn quotas(&mut self, quotas: &QuotaRegistry) -> fmt::Result {
        let help = "Quota buckets of connected Envoys";
        self.gauge("pacegate_envoy_quota_buckets", help, quotas.buckets())?;
        let help = "Messages of Envoy's quota streams";
        let messages = [("received", quotas.reports.get()), ("sent", quotas.responses.get())];
        let messages = messages.map(|(kind, count)| ([("direction", kind.to_owned())], count));
        self.counters("pacegate_envoy_quota_messages", help, messages)?;
        let help = "Units assigned to Envoys in advance";
        self.counter("pacegate_envoy_quota_units", help, quotas.units.get())?;
        let help = "Requests that Envoys decided with assigned units, as they reported them";
        let requests = [("allowed", quotas.allowed.get()), ("denied", quotas.denied.get())];
        let requests = requests.map(|(kind, count)| ([("outcome", kind.to_owned())], count));
        self.counters("pacegate_envoy_quota_requests", help, requests)
    }

    fn thresholds(&mut self, active: &ActiveConfig) -> fmt::Result {
        let counts = active.thresholds.counts();
        let counts = counts.iter().map(|((policy, threshold), count)| {
            ([("policy", policy.to_string()), ("threshold", threshold.to_string())], *count)
        });
        let help = "Keys that reached a threshold of their limit, as reported by this process";
        self.counters("pacegate_threshold_events", help, counts)?;
        let dropped = active.revision().engine.stats().dropped_events;
        let help = "Threshold events that were dropped because the store was too slow";
        self.counter("pacegate_threshold_events_dropped", help, dropped)?;
        let webhook = &active.thresholds.webhook;
        if !webhook.is_configured() {
            return Ok(());
        }
        let help = "Events that the webhook confirmed";
        self.counter("pacegate_webhook_delivered", help, webhook.delivered.get())?;
        let help = "Failed attempts to deliver an event to the webhook";
        self.counter("pacegate_webhook_failed_attempts", help, webhook.failed_attempts.get())?;
        let help = "Events for the webhook that were dropped: too old, or no room in the queue";
        self.counter("pacegate_webhook_dropped", help, webhook.dropped.get())?;
        self.gauge(
            "pacegate_webhook_queue",
            "Events that wait for delivery",
            webhook.queued() as u64,
        )
    }

    fn memory(&mut self, store: &MemoryStore) -> fmt::Result {
        let usage = store.usage();
        self.gauge("pacegate_store_keys", "Keys in memory", usage.keys as u64)?;
        let help = "Maximum number of keys in memory";
        self.gauge("pacegate_store_max_keys", help, usage.max_keys as u64)?;
        let help = "Bytes used by the keys in memory";
        self.gauge("pacegate_store_bytes", help, usage.bytes as u64)?;
        let help = "Decisions on the shared counter for keys beyond the maximum";
        self.counter("pacegate_store_overflowed", help, usage.overflowed)?;
        let help = "Open reservations in memory";
        self.gauge("pacegate_store_reservations", help, usage.reservations as u64)?;
        let shares = store.shares();
        let gauges = |value: fn(&ShareUsage) -> usize| {
            shares.iter().map(move |share| {
                // A domain may be named `inline`, so the kind of share has its own label.
                let kind = if share.domain.is_some() { "domain" } else { "inline" };
                let domain = share.domain.as_deref().unwrap_or_default();
                let labels = [("share", kind.to_owned()), ("domain", domain.to_owned())];
                (labels, value(share) as u64)
            })
        };
        let help = "Keys in memory, by domain and for inline limits";
        self.gauges("pacegate_store_share_keys", help, gauges(|share| share.keys))?;
        let help = "Keys guaranteed to a share";
        let guaranteed = gauges(|share| share.guaranteed);
        self.gauges("pacegate_store_share_guaranteed_keys", help, guaranteed)
    }

    fn redis(&mut self, stats: &RedisStats) -> fmt::Result {
        for (name, help, count) in [
            ("trips", "Round trips", stats.trips),
            ("calls", "Script calls", stats.calls),
            ("requests", "Requests sent to the servers", stats.requests),
            ("keys", "Keys in script calls", stats.keys),
            ("denied_locally", "Requests denied from the deny cache", stats.denied_locally),
            ("leased", "Requests allowed from leases", stats.leased),
            ("timed_out", "Requests that timed out", stats.timed_out),
            ("redirects", "Requests redirected to another server", stats.redirects),
            ("closed", "Circuit breaker openings", stats.closed),
        ] {
            self.counter(&format!("pacegate_redis_{name}"), help, count)?;
        }
        let entries = stats.deny_cache_entries as u64;
        self.gauge("pacegate_redis_deny_cache_entries", "Entries in the deny cache", entries)?;
        let help = "Leased units not yet spent, returned or expired";
        self.gauge("pacegate_redis_lease_units", help, stats.lease_units_outstanding)?;
        let in_trouble = stats.servers.iter().filter(|server| server.trouble.is_some()).count();
        let states = [("used", stats.servers.len() - in_trouble), ("in_trouble", in_trouble)];
        let servers = states.map(|(state, count)| ([("state", state.to_owned())], count as u64));
        self.gauges("pacegate_redis_servers", "Servers by state", servers)
    }

    fn counter(&mut self, name: &str, help: &str, count: u64) -> fmt::Result {
        self.counters(name, help, once(([], count)))
    }

    fn gauge(&mut self, name: &str, help: &str, value: u64) -> fmt::Result {
        self.gauges(name, help, once(([], value)))
    }

    fn counters<const N: usize>(
        &mut self,
        name: &str,
        help: &str,
        samples: impl IntoIterator<Item = Sample<N>>,
    ) -> fmt::Result {
        self.family(name, help, MetricType::Counter, samples)
    }

    fn gauges<const N: usize>(
        &mut self,
        name: &str,
        help: &str,
        samples: impl IntoIterator<Item = Sample<N>>,
    ) -> fmt::Result {
        self.family(name, help, MetricType::Gauge, samples)
    }

    fn family<const N: usize>(
        &mut self,
        name: &str,
        help: &str,
        kind: MetricType,
        samples: impl IntoIterator<Item = Sample<N>>,
    ) -> fmt::Result {
        let mut family = self.0.encode_descriptor(name, help, None, kind)?;
        for (labels, value) in samples {
            match N {
                // An empty set of labels would be written as `{}`.
                0 => encode(&mut family, kind, value)?,
                _ => encode(&mut family.encode_family(&labels)?, kind, value)?,
            }
        }
        Ok(())
    }
}

fn encode(encoder: &mut MetricEncoder<'_>, kind: MetricType, value: u64) -> fmt::Result {
    match kind {
        MetricType::Counter => encoder.encode_counter::<NoLabelSet, u64, u64>(&value, None),
        _ => encoder.encode_gauge(&i64::try_from(value).unwrap_or(i64::MAX)),
    }
}

#[cfg(test)]
mod tests {
    use pacegate::{Limiter, PolicySet, Request};

    use super::*;
    use crate::{config::Settings, engine::Engine};

    const CODES: [&str; 2] = ["200", "429"];

    #[test]
    fn metrics_sum_up_all_threads() {
        let policies = PolicySet::of_limits(["5/hour sliding-log".parse().unwrap()]).unwrap();
        let limiter = Limiter::builder().policies(policies.clone()).build().unwrap();
        for (allowed, cost) in [(true, 1), (false, 5), (false, 5)] {
            let request = Request::new().with("key", "alice").cost(cost);
            assert_eq!(limiter.check_request(&request).unwrap().is_allowed(), allowed);
        }
        let state = State::Memory(limiter.store().clone());
        let active = ActiveConfig::new(Engine::memory(limiter), state, Settings::new(policies));
        active.refuse("line 1: nonsense".to_owned());
        let listener = Arc::new(ListenerMetrics::new("http", &CODES));
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    for micros in [25, 26, 2_000_000] {
                        listener.count(usize::from(micros == 26), Duration::from_micros(micros));
                    }
                });
            }
        });
        listener.count_degraded(3);
        listener.count_other(0, Duration::from_secs(20));
        let latency = listener.latency();
        assert_eq!(latency.count(), 24);
        let percentiles = [1, 33, 50, 66, 67, 99].map(|percent| latency.percentile(percent));
        let micros = |micros| Some(Duration::from_micros(micros));
        let last = micros(10_000_000);
        let expected = [micros(25), micros(25), micros(50), micros(50), last, last];
        assert_eq!(percentiles, expected);
        assert_eq!(ListenerMetrics::new("http", &CODES).latency().percentile(50), None);
        let text = Metrics::new(Arc::new(active), vec![listener]).encode().unwrap();
        for line in [
            "pacegate_build_info{version=\"0.1.0\"} 1",
            "pacegate_decisions_total{policy=\"default\",outcome=\"allowed\"} 1",
            "pacegate_decisions_total{policy=\"default\",outcome=\"denied\"} 2",
            "pacegate_decisions_total{policy=\"inline\",outcome=\"shadow_denied\"} 0",
            "pacegate_decision_units_total{policy=\"default\",outcome=\"allowed\"} 1",
            "pacegate_decision_units_total{policy=\"default\",outcome=\"denied\"} 10",
            "pacegate_degraded_total{policy=\"default\"} 0",
            "pacegate_requests_total{listener=\"http\",code=\"200\"} 17",
            "pacegate_requests_total{listener=\"http\",code=\"429\"} 8",
            "pacegate_request_duration_seconds_bucket{le=\"0.000025\",listener=\"http\"} 8",
            "pacegate_request_duration_seconds_bucket{le=\"0.00005\",listener=\"http\"} 16",
            "pacegate_request_duration_seconds_bucket{le=\"1.0\",listener=\"http\"} 16",
            "pacegate_request_duration_seconds_bucket{le=\"10.0\",listener=\"http\"} 24",
            "pacegate_request_duration_seconds_bucket{le=\"+Inf\",listener=\"http\"} 25",
            "pacegate_request_duration_seconds_count{listener=\"http\"} 25",
            "pacegate_request_duration_seconds_sum{listener=\"http\"} 36.000408",
            "pacegate_degraded_answers_total{listener=\"http\"} 3",
            "pacegate_store_failures_total 0",
            "pacegate_store_keys 1",
            "pacegate_store_max_keys 1000000",
            "pacegate_store_overflowed_total 0",
            "pacegate_store_reservations 0",
            "pacegate_config_revision 1",
            "pacegate_config_reload_failures_total 1",
            "pacegate_config_last_reload_success 0",
            "# EOF",
        ] {
            assert!(text.lines().any(|other| other == line), "{line} is not in:\n{text}");
        }
        assert!(!text.contains("alice"), "{text}");
    }
}
