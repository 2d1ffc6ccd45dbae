//! The section `envoy.statistics` of our file.

use std::{
    collections::BTreeMap,
    net::{Ipv4Addr, Ipv6Addr, SocketAddr},
    time::Duration,
};

use schemars::JsonSchema;
use serde::Deserialize;

use super::{
    PageSet, StatsSettings,
    statsd::{StatsdSettings, Transport},
};
use crate::config::{ValueError, duration};

/// The statistics of envoyproxy/ratelimit about its rules, beside the metrics of this server. A change takes effect
/// after a restart.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
#[schemars(rename = "EnvoyStatistics")]
pub(crate) struct StatisticsSection {
    /// The part of a limit above which hits count as near it, from 0 to 1 (`NEAR_LIMIT_RATIO`).
    #[schemars(with = "f32", range(min = 0, max = 1), extend("default" = 0.8))]
    near_limit_ratio: NearRatio,

    /// A port with metrics for Prometheus, without TLS and API keys (`USE_PROMETHEUS`).
    #[schemars(with = "PrometheusSection")]
    prometheus: Option<PrometheusSection>,

    /// A port with `/rlconfig` and `/stats`, without TLS and API keys (`DEBUG_PORT`).
    #[schemars(with = "String", example = "127.0.0.1:6070")]
    debug: Option<PageAddress>,

    /// A statsd server to send counters to (`USE_STATSD`, `USE_DOG_STATSD`).
    #[schemars(with = "StatsdSection")]
    statsd: Option<StatsdSection>,
}

/// A port with metrics for Prometheus.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "EnvoyPrometheus")]
pub(crate) struct PrometheusSection {
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
pub(crate) struct StatsdSection {
    /// The server: `HOST:PORT` (`STATSD_HOST`, `STATSD_PORT`).
    #[schemars(with = "String", example = "localhost:8125")]
    address: HostPort,

    /// The protocol (`STATSD_PROTOCOL`, `USE_DOG_STATSD`).
    #[serde(default)]
    protocol: StatsdProtocol,

    /// The time between two messages, from 10ms to 1h (`STATS_FLUSH_INTERVAL`).
    #[serde(default)]
    #[schemars(with = "String", extend("default" = "10s"))]
    interval: FlushInterval,

    /// Names and values that are added to each counter (`EXTRA_TAGS`).
    #[serde(default)]
    tags: BTreeMap<String, String>,
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

/// A ratio from 0 to 1.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(try_from = "f32")]
struct NearRatio(f32);

/// The addresses of a port. The first that can be bound is used.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
struct PageAddress(Vec<SocketAddr>);

/// A host and a port.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
struct HostPort(String, u16);

/// The time between two messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(try_from = "String")]
struct FlushInterval(Duration);

/// An invalid value.
#[derive(Debug, thiserror::Error)]
enum SectionError {
    #[error("invalid ratio: expected a number from 0 to 1")]
    Ratio,
    #[error("invalid address: expected IP:PORT, or :PORT for all addresses of this machine")]
    Address,
    #[error("invalid address: expected HOST:PORT")]
    Host,
}

const INTERVALS: std::ops::RangeInclusive<Duration> =
    Duration::from_millis(10)..=Duration::from_secs(3_600);

impl StatisticsSection {
    /// Returns the settings.
    pub(crate) fn settings(&self) -> StatsSettings {
        let debug = self.debug.iter().map(|address| (address.0.clone(), PageSet::Debug));
        let prometheus = self
            .prometheus
            .iter()
            .map(|section| (section.address.0.clone(), PageSet::Prometheus(section.path.clone())));
        StatsSettings {
            near_ratio: self.near_limit_ratio.0,
            pages: debug.chain(prometheus).collect(),
            statsd: self.statsd.as_ref().map(StatsdSection::settings),
        }
    }
}

impl StatsdSection {
    fn settings(&self) -> StatsdSettings {
        StatsdSettings {
            host: self.address.0.clone(),
            port: self.address.1,
            transport: match self.protocol {
                StatsdProtocol::Tcp => Transport::Tcp,
                StatsdProtocol::Udp | StatsdProtocol::Dogstatsd => Transport::Udp,
            },
            is_dog: self.protocol == StatsdProtocol::Dogstatsd,
            tags: self.tags.clone().into_iter().collect(),
            interval: self.interval.0,
            is_explicit: true,
        }
    }
}

fn default_path() -> String {
    "/metrics".to_owned()
}

impl Default for NearRatio {
    fn default() -> Self {
        Self(super::DEFAULT_NEAR_RATIO)
    }
}

impl Default for FlushInterval {
    fn default() -> Self {
        Self(super::statsd::DEFAULT_INTERVAL)
    }
}

impl TryFrom<f32> for NearRatio {
    type Error = SectionError;

    fn try_from(ratio: f32) -> Result<Self, SectionError> {
        if (0.0..=1.0).contains(&ratio) { Ok(Self(ratio)) } else { Err(SectionError::Ratio) }
    }
}

impl TryFrom<String> for PageAddress {
    type Error = SectionError;

    fn try_from(text: String) -> Result<Self, SectionError> {
        if let Some(port) = text.strip_prefix(':') {
            let port = port.parse().map_err(|_| SectionError::Address)?;
            return Ok(Self(vec![
                (Ipv6Addr::UNSPECIFIED, port).into(),
                (Ipv4Addr::UNSPECIFIED, port).into(),
            ]));
        }
        Ok(Self(vec![text.parse().map_err(|_| SectionError::Address)?]))
    }
}

impl TryFrom<String> for HostPort {
    type Error = SectionError;

    fn try_from(text: String) -> Result<Self, SectionError> {
        let (host, port) = text.rsplit_once(':').ok_or(SectionError::Host)?;
        let host = host.trim_start_matches('[').trim_end_matches(']');
        match port.parse() {
            Ok(port) if !host.is_empty() => Ok(Self(host.to_owned(), port)),
            _ => Err(SectionError::Host),
        }
    }
}

impl TryFrom<String> for FlushInterval {
    type Error = ValueError;

    fn try_from(text: String) -> Result<Self, ValueError> {
        duration(&text, INTERVALS).map(Self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<StatsSettings, String> {
        let section: Result<StatisticsSection, _> = serde_saphyr::from_str(text);
        section.map(|section| section.settings()).map_err(|error| error.to_string())
    }

    #[test]
    fn sections_set_the_same_settings_as_variables() {
        let settings = read(
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
        let value = |name: &str| variables.iter().find(|(other, _)| *other == name).map(|it| it.1);
        let variables = super::super::Variables(|name: &str| value(name).map(str::to_owned));
        assert_eq!(settings.unwrap(), variables.stats(false).unwrap().unwrap());
    }

    #[test]
    fn outputs_are_off_by_default() {
        let settings = read("{}").unwrap();
        assert_eq!(
            (settings.pages.len(), settings.statsd.is_none(), settings.near(10)),
            (0, true, 8)
        );
        let settings = read("statsd: { address: 'a:1' }").unwrap();
        let statsd = settings.statsd.unwrap();
        assert_eq!((statsd.transport, statsd.interval), (Transport::Tcp, Duration::from_secs(10)));
        let any = read("debug: ':7'").unwrap().pages;
        assert_eq!(
            any,
            [(vec!["[::]:7".parse().unwrap(), "0.0.0.0:7".parse().unwrap()], PageSet::Debug)]
        );
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
            let error = read(text).unwrap_err();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
