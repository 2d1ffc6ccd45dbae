//! The statistics of envoyproxy/ratelimit: hits of rules on `PROMETHEUS_ADDR`, on the debug port, and by statsd.

mod hits;
mod pages;
mod prometheus;
mod section;
mod statsd;

use std::{
    collections::BTreeMap,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs},
};

pub(crate) use hits::HitStats;
pub(super) use hits::{HitLevel, RuleHits};
pub(crate) use pages::{PageSet, Pages};
pub(crate) use section::StatisticsSection;
pub(crate) use statsd::Statsd;

use self::{
    hits::STATISTICS,
    statsd::{StatsdSettings, Transport},
};
use super::variables::{EnvironmentError, Result, Variables};
use crate::{active_config::ActiveConfig, listeners::ListenerId, metrics::ListenerMetrics};

/// The outputs of statistics.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct StatsSettings {
    /// The part of a limit above which hits count as near it.
    near_ratio: f32,
    /// Ports with pages. Of several addresses, the first that can be bound is used.
    pub(crate) pages: Vec<(Vec<SocketAddr>, PageSet)>,
    pub(crate) statsd: Option<StatsdSettings>,
}

/// The default of `NEAR_LIMIT_RATIO`.
const DEFAULT_NEAR_RATIO: f32 = 0.8;

impl StatsSettings {
    /// Returns the use of a limit above which hits are near it, in the arithmetic of envoyproxy/ratelimit.
    #[expect(
        clippy::float_arithmetic,
        reason = "equal to envoyproxy/ratelimit, and only for statistics"
    )]
    fn near(&self, limit: u64) -> u64 {
        (limit as f32 * self.near_ratio).floor() as u64
    }
}

impl<F: Fn(&str) -> Option<String>> Variables<F> {
    /// Returns the settings of statistics, or `None` with `DISABLE_STATS`. The debug port is open if the program is
    /// called `ratelimit` or `DEBUG_PORT` is set.
    pub(in crate::envoy) fn stats(&self, is_named: bool) -> Result<Option<StatsSettings>> {
        let mut pages = Vec::new();
        if is_named || self.text("DEBUG_PORT").is_some() {
            pages.push((vec![self.address("DEBUG_HOST", "DEBUG_PORT")?], PageSet::Debug));
        }
        let near_ratio = self.text_or_default("NEAR_LIMIT_RATIO").parse().map_err(|_| {
            EnvironmentError::new("NEAR_LIMIT_RATIO", "is invalid: expected a number, such as 0.8")
        })?;
        let has_prometheus = self.switch("USE_PROMETHEUS")?;
        let statsd = self.statsd(has_prometheus)?;
        if self.switch("DISABLE_STATS")? {
            let settings = StatsSettings { near_ratio, pages, statsd: None };
            return Ok(Some(settings).filter(|settings| !settings.pages.is_empty()));
        }
        if has_prometheus {
            let path = self.text_or_default("PROMETHEUS_PATH");
            pages.push((self.prometheus_addresses()?, PageSet::Prometheus(path)));
        }
        Ok(Some(StatsSettings { near_ratio, pages, statsd }))
    }

    /// Returns the addresses for Prometheus. `:PORT` is IPv6 and IPv4, or IPv4 where IPv6 is off.
    fn prometheus_addresses(&self) -> Result<Vec<SocketAddr>> {
        let text = self.text_or_default("PROMETHEUS_ADDR");
        let any = text.strip_prefix(':').and_then(|port| port.parse().ok());
        if let Some(port) = any {
            return Ok(vec![
                (Ipv6Addr::UNSPECIFIED, port).into(),
                (Ipv4Addr::UNSPECIFIED, port).into(),
            ]);
        }
        let found = text.to_socket_addrs().ok().and_then(prefer_ipv4);
        let problem = "is invalid: expected HOST:PORT or :PORT";
        let address = found.ok_or_else(|| EnvironmentError::new("PROMETHEUS_ADDR", problem))?;
        Ok(vec![address])
    }

    /// Returns the statsd server. By default that of envoyproxy/ratelimit, unless another output is chosen.
    fn statsd(&self, has_prometheus: bool) -> Result<Option<StatsdSettings>> {
        let is_dog = self.switch("USE_DOG_STATSD")?;
        let is_explicit = self.text("USE_STATSD").is_some();
        let is_on = match is_explicit {
            true => self.switch("USE_STATSD")?,
            false => !has_prometheus,
        };
        if !is_on && !is_dog {
            return Ok(None);
        }
        let transport = match &*self.text_or_default("STATSD_PROTOCOL").to_ascii_lowercase() {
            _ if is_dog => Transport::Udp,
            "tcp" | "tcp4" | "tcp6" => Transport::Tcp,
            "udp" | "udp4" | "udp6" => Transport::Udp,
            _ => {
                let problem = "is invalid: expected tcp or udp";
                return Err(EnvironmentError::new("STATSD_PROTOCOL", problem));
            }
        };
        let interval = self.duration("STATS_FLUSH_INTERVAL")?.unwrap_or(statsd::DEFAULT_INTERVAL);
        if interval.is_zero() {
            let problem = "is 0: expected a duration, such as 10s";
            return Err(EnvironmentError::new("STATS_FLUSH_INTERVAL", problem));
        }
        Ok(Some(StatsdSettings {
            host: self.text_or_default("STATSD_HOST"),
            port: self.port("STATSD_PORT")?,
            transport,
            is_dog,
            tags: self.tags()?,
            interval,
            is_explicit: is_explicit || is_dog || self.text("STATSD_HOST").is_some(),
        }))
    }

    /// Parses `EXTRA_TAGS`: `name:value,name:value`.
    fn tags(&self) -> Result<Vec<(String, String)>> {
        let text = self.text_or_default("EXTRA_TAGS");
        let pairs = text.split(',').filter(|pair| !pair.is_empty());
        let mut tags: Vec<_> = pairs
            .map(|pair| {
                let (name, value) = pair.split_once(':')?;
                Some((name.to_owned(), value.to_owned()))
            })
            .collect::<Option<_>>()
            .ok_or_else(|| {
                let problem = "is invalid: expected name:value, with commas between several";
                EnvironmentError::new("EXTRA_TAGS", problem)
            })?;
        tags.sort_unstable();
        Ok(tags)
    }
}

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
    active.live().listeners().iter().find(|listener| listener.name() == name).map(|it| &**it)
}

/// Returns the numbers of configurations that were loaded and rejected.
fn config_loads(active: &ActiveConfig) -> [(&'static str, u64); 2] {
    let (rejected, _) = active.refusals();
    [("config_load_success", active.revision().number), ("config_load_error", rejected)]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads the settings of a program that is not called `ratelimit`.
    fn read(variables: &[(&str, &str)]) -> Result<Option<StatsSettings>> {
        let value = |name: &str| variables.iter().find(|(other, _)| *other == name).map(|it| it.1);
        Variables(|name: &str| value(name).map(str::to_owned)).stats(false)
    }

    #[test]
    fn statsd_is_the_default_output() {
        for (variables, has_statsd, pages) in [
            (&[][..], true, 0),
            (&[("USE_STATSD", "false")], false, 0),
            (&[("USE_PROMETHEUS", "true")], false, 1),
            (&[("USE_PROMETHEUS", "true"), ("USE_STATSD", "true")], true, 1),
            (&[("USE_DOG_STATSD", "true"), ("USE_STATSD", "false")], true, 0),
            (&[("DEBUG_PORT", "1"), ("DISABLE_STATS", "true")], false, 1),
        ] {
            let stats = read(variables).unwrap().unwrap();
            let found = (stats.statsd.is_some(), stats.pages.len());
            assert_eq!(found, (has_statsd, pages), "{variables:?}");
        }
        assert!(read(&[("DISABLE_STATS", "true")]).unwrap().is_none());
    }

    #[test]
    fn invalid_variables_are_errors() {
        for (name, value, problem) in [
            ("NEAR_LIMIT_RATIO", "most", "is invalid: expected a number, such as 0.8"),
            ("STATSD_PROTOCOL", "http", "is invalid: expected tcp or udp"),
            ("STATS_FLUSH_INTERVAL", "0", "is 0: expected a duration, such as 10s"),
            ("STATSD_PORT", "x", "is not a port: expected a number from 0 to 65535"),
            ("EXTRA_TAGS", "a", "is invalid: expected name:value, with commas between several"),
            ("PROMETHEUS_ADDR", "9090", "is invalid: expected HOST:PORT or :PORT"),
        ] {
            let error = read(&[("USE_PROMETHEUS", "true"), ("USE_STATSD", "true"), (name, value)]);
            assert_eq!(error.unwrap_err().to_string(), format!("{name} {problem}"));
        }
    }

    #[test]
    fn hits_are_near_above_a_part_of_the_limit() {
        let near =
            |ratio, limit| read(&[("NEAR_LIMIT_RATIO", ratio)]).unwrap().unwrap().near(limit);
        assert_eq!((near("0.8", 10), near("0.8", 2), near(".5", 3)), (8, 1, 1));
    }

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
