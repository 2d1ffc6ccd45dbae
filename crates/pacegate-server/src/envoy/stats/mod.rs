//! The statistics of envoyproxy/ratelimit: hits of rules on `PROMETHEUS_ADDR`, on the debug port, and by statsd.

mod hits;
mod pages;
mod prometheus;
mod settings;
mod statsd;

use std::{collections::BTreeMap, net::SocketAddr};

pub(crate) use hits::HitStats;
pub(super) use hits::{HitLevel, RuleHits};
pub(crate) use pages::{PageSet, Pages};
pub(crate) use settings::StatsSettings;
pub(crate) use statsd::Statsd;

use self::hits::STATISTICS;
use crate::{active_config::ActiveConfig, listeners::ListenerId, metrics::ListenerMetrics};

/// Returns the first IPv4 address, or the first address if there is none, as Go does.
pub(super) fn prefer_ipv4(addresses: impl Iterator<Item = SocketAddr>) -> Option<SocketAddr> {
    let addresses: Vec<_> = addresses.collect();
    addresses.iter().find(|address| address.is_ipv4()).or(addresses.first()).copied()
}

/// Returns all counters with their names in statsd, without tags. Each name occurs once.
fn counters(active: &ActiveConfig) -> Vec<(String, u64)> {
    let stats = &active.revision().hits;
    let mut all = Vec::new();
    for (name, hits) in stats.hits() {
        let name = name.join(".");
        let hits = STATISTICS.iter().zip(hits);
        all.extend(hits.map(|(statistic, count)| {
            (format!("ratelimit.service.rate_limit.{name}.{statistic}"), count)
        }));
    }
    all.extend(stats.unknown_domains().into_iter().map(|(domain, count)| {
        (format!("ratelimit.service.rate_limit.{domain}.domain_not_found"), count)
    }));
    let loads = config_loads(active);
    let service = stats.calls().into_iter().chain(loads);
    all.extend(service.map(|(name, count)| (format!("ratelimit.service.{name}"), count)));
    let calls = grpc(active).map_or(0, |grpc| grpc.latency().count());
    all.push(("ratelimit_server.ShouldRateLimit.total_requests".to_owned(), calls));
    summed(all).into_iter().collect()
}

/// Adds the counts of equal names: the parts of different names can be equal when they are joined.
fn summed(counts: impl IntoIterator<Item = (String, u64)>) -> BTreeMap<String, u64> {
    let mut sums = BTreeMap::new();
    for (name, count) in counts {
        *sums.entry(name).or_default() += count;
    }
    sums
}

/// Returns the calls of the gRPC listener.
fn grpc(active: &ActiveConfig) -> Option<&ListenerMetrics> {
    let name = ListenerId::Grpc.name();
    active.live.listeners().iter().find(|listener| listener.name == name).map(|it| &**it)
}

/// Returns the numbers of configurations that were loaded and rejected.
fn config_loads(active: &ActiveConfig) -> [(&'static str, u64); 2] {
    let (rejected, _) = active.refusals();
    [("config_load_success", active.revision().number), ("config_load_error", rejected)]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counters_with_equal_names_are_added() {
        let names: [&[&str]; 3] = [&["a.b", "c"], &["a", "b.c"], &["a", "c"]];
        let sums = summed(names.map(|parts| (parts.join("."), 2)));
        assert_eq!(sums, [("a.b.c".to_owned(), 4), ("a.c".to_owned(), 2)].into());
    }

    #[test]
    fn an_ipv4_address_is_preferred() {
        let [six, four]: [SocketAddr; 2] = ["[::1]:1", "127.0.0.1:1"].map(|it| it.parse().unwrap());
        assert_eq!(prefer_ipv4([six, four].into_iter()), Some(four));
        assert_eq!(prefer_ipv4([six].into_iter()), Some(six));
        assert_eq!(prefer_ipv4([].into_iter()), None);
    }
}
