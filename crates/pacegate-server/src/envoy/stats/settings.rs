//! The section `envoy.statistics` of our file, and the same settings as variables of envoyproxy/ratelimit.

use std::{
    collections::BTreeMap,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr, ToSocketAddrs},
    time::Duration,
};

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, de::Error};

use super::{PageSet, prefer_ipv4};
use crate::{
    config::duration,
    envoy::variables::{EnvironmentError, Result, Variables},
};

/// The statistics of envoyproxy/ratelimit about its rules, beside the metrics of this server. A change takes effect
/// after a restart.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "EnvoyStatistics")]
pub(crate) struct StatsSettings {
    /// The part of a limit above which hits count as near it, from 0 to 1 (`NEAR_LIMIT_RATIO`).
    #[serde(default = "default_ratio", deserialize_with = "ratio")]
    #[schemars(range(min = 0, max = 1), extend("default" = 0.8))]
    near_limit_ratio: f32,

    /// A port with metrics for Prometheus, without TLS and API keys (`USE_PROMETHEUS`).
    #[serde(default)]
    #[schemars(with = "PrometheusPort")]
    prometheus: Option<PrometheusPort>,

    /// A port with `/rlconfig` and `/stats`, without TLS and API keys (`DEBUG_PORT`).
    #[serde(default)]
    #[schemars(with = "String", example = "127.0.0.1:6070")]
    debug: Option<PageAddress>,

    /// A statsd server to send counters to (`USE_STATSD`, `USE_DOG_STATSD`).
    #[serde(default)]
    #[schemars(with = "StatsdSettings")]
    pub(crate) statsd: Option<StatsdSettings>,
}

/// A port with metrics for Prometheus.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "EnvoyPrometheus")]
pub(crate) struct PrometheusPort {
    /// The address: `IP:PORT`, or `:PORT` for all addresses of this machine (`PROMETHEUS_ADDR`). A public address
    /// requires `--insecure`.
    #[schemars(with = "String", example = "127.0.0.1:9090")]
    address: PageAddress,

    /// The path of the metrics (`PROMETHEUS_PATH`).
    #[serde(default = "default_path")]
    path: String,
}

/// A statsd server.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "EnvoyStatsd")]
pub(crate) struct StatsdSettings {
    /// The server: `HOST:PORT` (`STATSD_HOST`, `STATSD_PORT`).
    #[serde(deserialize_with = "host_and_port")]
    #[schemars(with = "String", example = "localhost:8125")]
    pub(super) address: (String, u16),

    /// The protocol (`STATSD_PROTOCOL`, `USE_DOG_STATSD`).
    #[serde(default)]
    pub(super) protocol: StatsdProtocol,

    /// The time between two messages, from 10ms to 1h (`STATS_FLUSH_INTERVAL`).
    #[serde(default = "default_interval", deserialize_with = "interval")]
    #[schemars(with = "String", extend("default" = "10s"))]
    pub(super) interval: Duration,

    /// Names and values that are added to each counter (`EXTRA_TAGS`).
    #[serde(default)]
    pub(super) tags: Tags,

    /// True if a variable or a section selects the server. Otherwise failures are logged at a lower level.
    #[serde(skip, default = "yes")]
    pub(super) is_explicit: bool,
}

/// The protocol of a statsd server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, serde::Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum StatsdProtocol {
    /// Over TCP.
    #[default]
    Tcp,
    /// Over UDP.
    Udp,
    /// Over UDP, with the tags of DogStatsD.
    Dogstatsd,
}

/// The addresses of a port. The first that can be bound is used.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
struct PageAddress(Vec<SocketAddr>);

/// An address that is not a socket address.
#[derive(Debug, thiserror::Error)]
#[error("invalid address: expected IP:PORT, or :PORT for all addresses of this machine")]
struct PageAddressError;

type Tags = BTreeMap<String, String>;

const INTERVALS: std::ops::RangeInclusive<Duration> =
    Duration::from_millis(10)..=Duration::from_secs(3_600);

impl StatsSettings {
    /// Returns the ports with pages.
    pub(crate) fn pages(&self) -> impl Iterator<Item = (&[SocketAddr], PageSet)> {
        let debug = self.debug.iter().map(|address| (&*address.0, PageSet::Debug));
        let prometheus = self.prometheus.iter();
        debug.chain(prometheus.map(|PrometheusPort { address, path }| {
            (&*address.0, PageSet::Prometheus(path.clone()))
        }))
    }

    /// Returns the use of a limit above which hits are near it, in the arithmetic of envoyproxy/ratelimit.
    #[expect(
        clippy::float_arithmetic,
        reason = "equal to envoyproxy/ratelimit, and only for statistics"
    )]
    pub(super) fn near(&self, limit: u64) -> u64 {
        (limit as f32 * self.near_limit_ratio).floor() as u64
    }
}

fn default_ratio() -> f32 {
    0.8
}

fn default_path() -> String {
    "/metrics".to_owned()
}

fn default_interval() -> Duration {
    Duration::from_secs(10)
}

fn yes() -> bool {
    true
}

fn ratio<'de, D: Deserializer<'de>>(number: D) -> Result<f32, D::Error> {
    let ratio = Some(f32::deserialize(number)?).filter(|ratio| (0.0..=1.0).contains(ratio));
    ratio.ok_or_else(|| D::Error::custom("invalid ratio: expected a number from 0 to 1"))
}

fn host_and_port<'de, D: Deserializer<'de>>(text: D) -> Result<(String, u16), D::Error> {
    let text = String::deserialize(text)?;
    let (host, port) = text.rsplit_once(':').unwrap_or_default();
    let host = host.trim_start_matches('[').trim_end_matches(']').to_owned();
    let address = port.parse().ok().filter(|_| !host.is_empty()).map(|port| (host, port));
    address.ok_or_else(|| D::Error::custom("invalid address: expected HOST:PORT"))
}

fn interval<'de, D: Deserializer<'de>>(text: D) -> Result<Duration, D::Error> {
    duration(&String::deserialize(text)?, INTERVALS).map_err(D::Error::custom)
}

impl PageAddress {
    /// Parses `:PORT`: all IPv6 and IPv4 addresses, or those of IPv4 where IPv6 is off.
    fn any(text: &str) -> Option<Self> {
        let port = text.strip_prefix(':')?.parse().ok()?;
        Some(Self(vec![(Ipv6Addr::UNSPECIFIED, port).into(), (Ipv4Addr::UNSPECIFIED, port).into()]))
    }
}

impl TryFrom<String> for PageAddress {
    type Error = PageAddressError;

    fn try_from(text: String) -> Result<Self, PageAddressError> {
        let one = || text.parse().ok().map(|address| Self(vec![address]));
        Self::any(&text).or_else(one).ok_or(PageAddressError)
    }
}

impl<F: Fn(&str) -> Option<String>> Variables<F> {
    /// Returns the settings of statistics, or `None` with `DISABLE_STATS`. The debug port is open if the program is
    /// called `ratelimit` or `DEBUG_PORT` is set.
    pub(in crate::envoy) fn statistics(&self, is_named: bool) -> Result<Option<StatsSettings>> {
        let has_debug = is_named || self.text("DEBUG_PORT").is_some();
        let debug = has_debug.then(|| self.address("DEBUG_HOST", "DEBUG_PORT")).transpose()?;
        let debug = debug.map(|address| PageAddress(vec![address]));
        let near_limit_ratio = self.text_or_default("NEAR_LIMIT_RATIO").parse().map_err(|_| {
            EnvironmentError::new("NEAR_LIMIT_RATIO", "is invalid: expected a number, such as 0.8")
        })?;
        let has_prometheus = self.switch("USE_PROMETHEUS")?;
        let statsd = self.statsd(has_prometheus)?;
        let is_off = self.switch("DISABLE_STATS")?;
        let prometheus = (has_prometheus && !is_off).then(|| self.prometheus()).transpose()?;
        let statsd = statsd.filter(|_| !is_off);
        let settings = StatsSettings { near_limit_ratio, prometheus, debug, statsd };
        Ok(Some(settings).filter(|settings| !is_off || settings.debug.is_some()))
    }

    fn prometheus(&self) -> Result<PrometheusPort> {
        let text = self.text_or_default("PROMETHEUS_ADDR");
        let one = || {
            let address = prefer_ipv4(text.to_socket_addrs().ok()?)?;
            Some(PageAddress(vec![address]))
        };
        let problem = "is invalid: expected HOST:PORT or :PORT";
        let address = PageAddress::any(&text)
            .or_else(one)
            .ok_or_else(|| EnvironmentError::new("PROMETHEUS_ADDR", problem))?;
        Ok(PrometheusPort { address, path: self.text_or_default("PROMETHEUS_PATH") })
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
        let protocol = match &*self.text_or_default("STATSD_PROTOCOL").to_ascii_lowercase() {
            _ if is_dog => StatsdProtocol::Dogstatsd,
            "tcp" | "tcp4" | "tcp6" => StatsdProtocol::Tcp,
            "udp" | "udp4" | "udp6" => StatsdProtocol::Udp,
            _ => {
                let problem = "is invalid: expected tcp or udp";
                return Err(EnvironmentError::new("STATSD_PROTOCOL", problem));
            }
        };
        let interval = self.duration("STATS_FLUSH_INTERVAL")?.unwrap_or_else(default_interval);
        if interval.is_zero() {
            let problem = "is 0: expected a duration, such as 10s";
            return Err(EnvironmentError::new("STATS_FLUSH_INTERVAL", problem));
        }
        Ok(Some(StatsdSettings {
            address: (self.text_or_default("STATSD_HOST"), self.port("STATSD_PORT")?),
            protocol,
            tags: self.tags()?,
            interval,
            is_explicit: is_explicit || is_dog || self.text("STATSD_HOST").is_some(),
        }))
    }

    /// Parses `EXTRA_TAGS`: `name:value,name:value`.
    fn tags(&self) -> Result<Tags> {
        let text = self.text_or_default("EXTRA_TAGS");
        let pairs = text.split(',').filter(|pair| !pair.is_empty());
        let tags = pairs.map(|pair| pair.split_once(':'));
        let owned = |(name, value): (&str, &str)| (name.to_owned(), value.to_owned());
        tags.map(|pair| pair.map(owned)).collect::<Option<_>>().ok_or_else(|| {
            let problem = "is invalid: expected name:value, with commas between several";
            EnvironmentError::new("EXTRA_TAGS", problem)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads the settings of a program that is not called `ratelimit`.
    fn read(variables: &[(&str, &str)]) -> Result<Option<StatsSettings>> {
        let value = |name: &str| variables.iter().find(|(other, _)| *other == name).map(|it| it.1);
        Variables(|name: &str| value(name).map(str::to_owned)).statistics(false)
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
            let found = (stats.statsd.is_some(), stats.pages().count());
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

    fn parse(text: &str) -> Result<StatsSettings, String> {
        serde_saphyr::from_str(text).map_err(|error: serde_saphyr::Error| error.to_string())
    }

    #[test]
    fn sections_set_the_same_settings_as_variables() {
        let settings = parse(
            "near_limit_ratio: 0.5
debug: 127.0.0.1:6070
prometheus: { address: ':9090', path: /m }
statsd: { address: 'localhost:8125', protocol: dogstatsd, interval: 2s, tags: { b: y, a: x } }
",
        );
        let variables = [
            ("NEAR_LIMIT_RATIO", "0.5"),
            ("DEBUG_HOST", "127.0.0.1"),
            ("DEBUG_PORT", "6070"),
            ("USE_PROMETHEUS", "true"),
            ("PROMETHEUS_PATH", "/m"),
            ("USE_DOG_STATSD", "true"),
            ("STATS_FLUSH_INTERVAL", "2s"),
            ("EXTRA_TAGS", "a:x,b:y"),
        ];
        assert_eq!(settings.unwrap(), read(&variables).unwrap().unwrap());
    }

    #[test]
    fn outputs_are_off_by_default() {
        let settings = parse("{}").unwrap();
        assert_eq!(
            (settings.pages().count(), settings.statsd.is_none(), settings.near(10)),
            (0, true, 8)
        );
        let settings = parse("statsd: { address: 'a:1' }").unwrap();
        let statsd = settings.statsd.unwrap();
        assert_eq!(
            (statsd.protocol, statsd.interval),
            (StatsdProtocol::Tcp, Duration::from_secs(10))
        );
        let any = parse("debug: ':7'").unwrap();
        let addresses = ["[::]:7", "0.0.0.0:7"].map(|address| address.parse().unwrap());
        assert_eq!(any.pages().collect::<Vec<_>>(), [(&addresses[..], PageSet::Debug)]);
    }

    #[test]
    fn invalid_values_are_errors() {
        for (text, expected) in [
            ("near_limit_ratio: 2", "invalid ratio: expected a number from 0 to 1"),
            ("debug: localhost", "invalid address: expected IP:PORT"),
            ("statsd: { address: a }", "invalid address: expected HOST:PORT"),
            ("statsd: { address: 'a:1', interval: 0s }", "10ms"),
            ("statsd: { address: 'a:1', protocol: http }", "dogstatsd"),
            ("other: 1", "other"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
