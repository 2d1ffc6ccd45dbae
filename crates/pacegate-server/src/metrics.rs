//! Metrics for Prometheus. Labels come from the configuration and the program, never from requests.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use pacegate::{PolicyStats, ShareUsage};
use pacegate_redis::RedisStats;
use prometheus_client::{
    collector::Collector,
    encoding::{
        DescriptorEncoder, EncodeCounterValue, EncodeLabelSet, MetricEncoder, NoLabelSet, text,
    },
    metrics::MetricType,
    registry::Registry,
};

use crate::{
    active_config::{ActiveConfig, State},
    service::Listener,
};

/// All metrics of the server.
#[derive(Debug)]
pub(crate) struct Metrics {
    registry: Registry,
    listeners: Vec<Arc<ListenerMetrics>>,
}

/// The responses of one listener and their times. Threads count separately.
#[derive(Debug)]
pub(crate) struct ListenerMetrics {
    name: &'static str,
    codes: &'static [&'static str],
    shards: Box<[Shard]>,
    socket: Option<Arc<Listener>>,
}

/// A histogram of response times.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Latency {
    buckets: [u64; BOUNDS.len() + 1],
    sum: Duration,
}

/// The counters of some threads, aligned to cache lines so that other threads do not slow them down.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Shard {
    codes: [AtomicU64; MOST_CODES],
    /// By [`BOUNDS`], and last those above all of them.
    times: [AtomicU64; BOUNDS.len() + 1],
    nanos: AtomicU64,
    degraded: AtomicU64,
}

/// Collects the counters of other parts on each scrape.
#[derive(Debug)]
struct Scrape {
    active: Arc<ActiveConfig>,
    listeners: Vec<Arc<ListenerMetrics>>,
}

/// Writes one family after the other.
struct Families<'a>(DescriptorEncoder<'a>);

const MOST_CODES: usize = 24;

const SHARDS: usize = 16;

/// Microseconds up to which a request is counted in each bucket.
const BOUNDS: [u64; 14] = [
    25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000, 250_000, 1_000_000,
];

impl Metrics {
    /// Creates the metrics of the server and its listeners.
    pub(crate) fn new(active: Arc<ActiveConfig>, listeners: Vec<Arc<ListenerMetrics>>) -> Self {
        let mut registry = Registry::default();
        let scrape = Scrape { active, listeners: listeners.clone() };
        registry.register_collector(Box::new(scrape));
        Self { registry, listeners }
    }

    /// Returns the metrics of the listeners.
    pub(crate) fn listeners(&self) -> &[Arc<ListenerMetrics>] {
        &self.listeners
    }

    /// The content type of [`Metrics::encode`].
    pub(crate) const CONTENT_TYPE: &str =
        "application/openmetrics-text; version=1.0.0; charset=utf-8";

    /// Returns the current metrics as OpenMetrics text.
    pub(crate) fn encode(&self) -> Result<String, fmt::Error> {
        let mut out = String::new();
        text::encode(&mut out, &self.registry)?;
        Ok(out)
    }
}

impl ListenerMetrics {
    /// Creates the metrics of a listener with this name and these response codes, at most 24.
    pub(crate) fn new(name: &'static str, codes: &'static [&'static str]) -> Self {
        debug_assert!(codes.len() <= MOST_CODES, "{name} has too many codes");
        let shards = std::iter::repeat_with(Shard::default).take(SHARDS).collect();
        Self { name, codes, shards, socket: None }
    }

    /// Reports the connections of this listener.
    #[must_use]
    pub(crate) fn on(self, socket: Arc<Listener>) -> Self {
        Self { socket: Some(socket), ..self }
    }

    /// Counts a response with the code at this index, and its time.
    pub(crate) fn count(&self, code: usize, took: Duration) {
        self.count_many(code, 1, took);
    }

    /// Counts several responses that were sent together.
    pub(crate) fn count_many(&self, code: usize, requests: u64, took: Duration) {
        if requests == 0 {
            return;
        }
        let shard = &self.shards[thread_number() % SHARDS];
        let micros = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        let nanos = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        let bucket = BOUNDS.iter().position(|bound| micros <= *bound).unwrap_or(BOUNDS.len());
        shard.codes[code.min(MOST_CODES - 1)].fetch_add(requests, Ordering::Relaxed);
        shard.times[bucket].fetch_add(requests, Ordering::Relaxed);
        shard.nanos.fetch_add(nanos.wrapping_mul(requests), Ordering::Relaxed);
    }

    /// Counts responses that a failure mode decided.
    pub(crate) fn count_degraded(&self, answers: u64) {
        let shard = &self.shards[thread_number() % SHARDS];
        shard.degraded.fetch_add(answers, Ordering::Relaxed);
    }

    pub(crate) fn name(&self) -> &'static str {
        self.name
    }

    /// Returns the number of responses.
    pub(crate) fn answered(&self) -> u64 {
        (0..self.codes.len()).map(|place| self.sum(|shard| &shard.codes[place])).sum()
    }

    /// Returns the response times so far.
    pub(crate) fn latency(&self) -> Latency {
        let buckets = std::array::from_fn(|place| self.sum(|shard| &shard.times[place]));
        Latency { buckets, sum: Duration::from_nanos(self.sum(|shard| &shard.nanos)) }
    }

    /// Returns the number of open connections.
    pub(crate) fn connections(&self) -> usize {
        self.socket.as_ref().map_or(0, |socket| socket.open())
    }

    fn sum(&self, counter: impl Fn(&Shard) -> &AtomicU64) -> u64 {
        let counts = self.shards.iter().map(|shard| counter(shard).load(Ordering::Relaxed));
        counts.fold(0, u64::wrapping_add)
    }

    fn encode_times(&self, mut encoder: MetricEncoder<'_>) -> fmt::Result {
        let latency = self.latency();
        let bounds = Latency::bounds().map(|bound| bound.as_secs_f64()).chain([f64::INFINITY]);
        let buckets: Vec<(f64, u64)> = bounds.zip(latency.buckets).collect();
        let sum = latency.sum.as_secs_f64();
        encoder.encode_histogram::<NoLabelSet>(sum, latency.count(), &buckets, None)
    }
}

impl Latency {
    /// Returns the upper bounds of all buckets but the last, which has none.
    pub(crate) fn bounds() -> impl Iterator<Item = Duration> {
        BOUNDS.iter().map(|&micros| Duration::from_micros(micros))
    }

    /// Returns the number of requests.
    pub(crate) fn count(&self) -> u64 {
        self.buckets.iter().fold(0, |sum, count| sum.wrapping_add(*count))
    }

    /// Returns the sum of all response times.
    pub(crate) fn sum(&self) -> Duration {
        self.sum
    }

    /// Returns the upper bound of the bucket that has the request at this percentage, such as 99 for the time within
    /// which 99 % of the requests were answered. `None` without requests, and above the last bound.
    pub(crate) fn percentile(&self, percent: u64) -> Option<Duration> {
        let rank = self.count().checked_mul(percent)?.div_ceil(100).max(1);
        let mut seen = 0_u64;
        for (bound, count) in Self::bounds().zip(self.buckets) {
            seen = seen.saturating_add(count);
            if seen >= rank {
                return Some(bound);
            }
        }
        None
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
        let mut families = Families(encoder);
        families.info(
            "pacegate_build",
            "Version of the server",
            &[("version", env!("CARGO_PKG_VERSION"))],
        )?;
        self.encode_decisions(&mut families)?;
        self.encode_listeners(&mut families)?;
        self.encode_config(&mut families)?;
        match self.active.state() {
            State::Memory(store) => {
                let usage = store.usage();
                families.gauge("pacegate_store_keys", "Keys in memory", usage.keys)?;
                let help = "Maximum number of keys in memory";
                families.gauge("pacegate_store_max_keys", help, usage.max_keys)?;
                families.gauge(
                    "pacegate_store_bytes",
                    "Bytes used by the keys in memory",
                    usage.bytes,
                )?;
                let help = "Decisions on the shared counter for keys beyond the maximum";
                families.count("pacegate_store_overflowed", help, usage.overflowed)?;
                families.shares(&store.shares())
            }
            State::Redis(store) => families.redis(&store.stats()),
        }
    }
}

impl Scrape {
    fn encode_decisions(&self, families: &mut Families<'_>) -> fmt::Result {
        let stats = self.active.revision().engine.stats();
        let all = || stats.policies.iter().chain([&stats.inline]);
        let decisions = all().flat_map(|policy: &PolicyStats| {
            let PolicyStats { allowed, denied, shadow_denied, .. } = *policy;
            let name = policy.policy.as_str();
            [("allowed", allowed), ("denied", denied), ("shadow_denied", shadow_denied)]
                .map(|(outcome, count)| ([("policy", name), ("outcome", outcome)], count))
        });
        families.counts("pacegate_decisions", "Requests by policy and outcome", decisions)?;
        let units = all().flat_map(|policy: &PolicyStats| {
            let PolicyStats { allowed_units, denied_units, shadow_denied_units, .. } = *policy;
            let name = policy.policy.as_str();
            [("allowed", allowed_units), ("denied", denied_units)]
                .into_iter()
                .chain([("shadow_denied", shadow_denied_units)])
                .map(move |(outcome, units)| ([("policy", name), ("outcome", outcome)], units))
        });
        let help = "Units (the sum of the costs of requests) by policy and outcome";
        families.counts("pacegate_decision_units", help, units)?;
        let degraded = all().map(|policy| ([("policy", policy.policy.as_str())], policy.degraded));
        let help = "Requests decided by a failure mode because the store failed";
        families.counts("pacegate_degraded", help, degraded)?;
        let help = "Failed calls to the store";
        families.count("pacegate_store_failures", help, stats.store_failures)
    }

    fn encode_listeners(&self, families: &mut Families<'_>) -> fmt::Result {
        let requests = self.listeners.iter().flat_map(|listener| {
            listener.codes.iter().enumerate().map(|(place, &code)| {
                let labels = [("listener", listener.name), ("code", code)];
                (labels, listener.sum(|shard| &shard.codes[place]))
            })
        });
        let asked = requests.filter(|(_, count)| *count > 0);
        families.counts("pacegate_requests", "Requests answered", asked)?;
        let degraded = self
            .listeners
            .iter()
            .map(|listener| ([("listener", listener.name)], listener.sum(|shard| &shard.degraded)));
        let help = "Responses decided by a failure mode because the store failed";
        families.counts("pacegate_degraded_answers", help, degraded)?;
        families.times(&self.listeners)?;
        let sockets = || {
            let on = |listener: &Arc<ListenerMetrics>| listener.socket.clone();
            self.listeners.iter().filter_map(on)
        };
        let open = sockets().map(|socket| ([("listener", socket.name())], socket.open()));
        families.gauges("pacegate_connections", "Open connections", open)?;
        let refused = sockets().map(|socket| ([("listener", socket.name())], socket.refused()));
        let help = "Connections closed because the listener had too many";
        families.counts("pacegate_connections_refused", help, refused)
    }

    fn encode_config(&self, families: &mut Families<'_>) -> fmt::Result {
        let number = self.active.revision().number;
        families.gauge(
            "pacegate_config_revision",
            "Revision of the active configuration",
            number,
        )?;
        let (refused, complaint) = self.active.refusals();
        let help = "Failed reloads of the configuration";
        families.count("pacegate_config_reload_failures", help, refused)?;
        let help = "1 if the last reload succeeded, otherwise 0";
        families.gauge("pacegate_config_last_reload_success", help, u32::from(complaint.is_none()))
    }
}

impl Families<'_> {
    fn info(&mut self, name: &str, help: &str, labels: &[(&str, &str)]) -> fmt::Result {
        let Self(encoder) = self;
        encoder.encode_descriptor(name, help, None, MetricType::Info)?.encode_info(&labels)
    }

    fn count(&mut self, name: &str, help: &str, count: u64) -> fmt::Result {
        let Self(encoder) = self;
        let mut encoder = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        encoder.encode_counter::<NoLabelSet, u64, u64>(&count, None)
    }

    fn gauge(&mut self, name: &str, help: &str, value: impl Gauge) -> fmt::Result {
        let Self(encoder) = self;
        let mut encoder = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        encoder.encode_gauge(&value.whole())
    }

    fn counts<L: EncodeLabelSet, C: EncodeCounterValue>(
        &mut self,
        name: &str,
        help: &str,
        counts: impl Iterator<Item = (L, C)>,
    ) -> fmt::Result {
        let Self(encoder) = self;
        let mut encoder = encoder.encode_descriptor(name, help, None, MetricType::Counter)?;
        for (labels, count) in counts {
            encoder.encode_family(&labels)?.encode_counter::<NoLabelSet, C, u64>(&count, None)?;
        }
        Ok(())
    }

    fn gauges<L: EncodeLabelSet>(
        &mut self,
        name: &str,
        help: &str,
        values: impl Iterator<Item = (L, usize)>,
    ) -> fmt::Result {
        let Self(encoder) = self;
        let mut encoder = encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
        for (labels, value) in values {
            encoder.encode_family(&labels)?.encode_gauge(&value.whole())?;
        }
        Ok(())
    }

    fn times(&mut self, listeners: &[Arc<ListenerMetrics>]) -> fmt::Result {
        let Self(encoder) = self;
        let (name, help) =
            ("pacegate_request_duration_seconds", "Time from a request to its response");
        let mut encoder = encoder.encode_descriptor(name, help, None, MetricType::Histogram)?;
        for listener in listeners {
            listener.encode_times(encoder.encode_family(&[("listener", listener.name)])?)?;
        }
        Ok(())
    }

    /// A domain may be named `inline`, so the kind of share has its own label.
    fn shares(&mut self, shares: &[ShareUsage]) -> fmt::Result {
        let gauges = |value: fn(&ShareUsage) -> usize| {
            shares.iter().map(move |share| {
                let kind = if share.domain.is_some() { "domain" } else { "inline" };
                let domain = share.domain.as_deref().unwrap_or_default();
                ([("share", kind), ("domain", domain)], value(share))
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
            ("pacegate_redis_trips", "Round trips", stats.trips),
            ("pacegate_redis_calls", "Script calls", stats.calls),
            ("pacegate_redis_requests", "Requests sent to the servers", stats.requests),
            ("pacegate_redis_keys", "Keys in script calls", stats.keys),
            (
                "pacegate_redis_denied_locally",
                "Requests denied from the deny cache",
                stats.denied_locally,
            ),
            ("pacegate_redis_leased", "Requests allowed from leases", stats.leased),
            ("pacegate_redis_timed_out", "Requests that timed out", stats.timed_out),
            ("pacegate_redis_redirects", "Requests redirected to another server", stats.redirects),
            ("pacegate_redis_closed", "Circuit breaker openings", stats.closed),
        ] {
            self.count(name, help, count)?;
        }
        let help = "Entries in the deny cache";
        self.gauge("pacegate_redis_deny_cache_entries", help, stats.deny_cache_entries)?;
        let help = "Leased units not yet spent, returned or expired";
        self.gauge("pacegate_redis_lease_units", help, stats.lease_units_outstanding)?;
        let in_trouble = stats.servers.iter().filter(|server| server.trouble.is_some()).count();
        let states = [("used", stats.servers.len() - in_trouble), ("in_trouble", in_trouble)];
        let servers = states.into_iter().map(|(state, count)| ([("state", state)], count));
        self.gauges("pacegate_redis_servers", "Servers by state", servers)
    }
}

/// A whole number that a gauge shows.
trait Gauge {
    fn whole(&self) -> i64;
}

macro_rules! gauges {
    ($($type:ty),*) => {$(
        impl Gauge for $type {
            fn whole(&self) -> i64 {
                i64::try_from(*self).unwrap_or(i64::MAX)
            }
        }
    )*};
}

gauges!(u32, u64, usize);

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
        let latency = listener.latency();
        assert_eq!((latency.count(), latency.sum()), (24, Duration::from_micros(16_000_408)));
        let percentiles = [1, 33, 50, 66, 67, 99].map(|percent| latency.percentile(percent));
        let micros = |micros| Some(Duration::from_micros(micros));
        let expected = [micros(25), micros(25), micros(50), micros(50), None, None];
        assert_eq!(percentiles, expected);
        assert_eq!(ListenerMetrics::new("http", &CODES).latency().percentile(50), None);
        let text = Metrics::new(Arc::new(active), vec![listener]).encode().unwrap();
        for line in [
            "pacegate_build_info{version=\"0.1.0\"} 1",
            "pacegate_decisions_total{policy=\"default\",outcome=\"allowed\"} 1",
            "pacegate_decisions_total{policy=\"default\",outcome=\"denied\"} 2",
            "pacegate_decisions_total{policy=\"ad-hoc\",outcome=\"shadow_denied\"} 0",
            "pacegate_decision_units_total{policy=\"default\",outcome=\"allowed\"} 1",
            "pacegate_decision_units_total{policy=\"default\",outcome=\"denied\"} 10",
            "pacegate_degraded_total{policy=\"default\"} 0",
            "pacegate_requests_total{listener=\"http\",code=\"200\"} 16",
            "pacegate_requests_total{listener=\"http\",code=\"429\"} 8",
            "pacegate_request_duration_seconds_bucket{le=\"0.000025\",listener=\"http\"} 8",
            "pacegate_request_duration_seconds_bucket{le=\"0.00005\",listener=\"http\"} 16",
            "pacegate_request_duration_seconds_bucket{le=\"1.0\",listener=\"http\"} 16",
            "pacegate_request_duration_seconds_bucket{le=\"+Inf\",listener=\"http\"} 24",
            "pacegate_request_duration_seconds_count{listener=\"http\"} 24",
            "pacegate_request_duration_seconds_sum{listener=\"http\"} 16.000408",
            "pacegate_degraded_answers_total{listener=\"http\"} 3",
            "pacegate_store_failures_total 0",
            "pacegate_store_keys 1",
            "pacegate_store_max_keys 1000000",
            "pacegate_store_overflowed_total 0",
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
