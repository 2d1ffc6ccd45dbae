//! The environment variables of envoyproxy/ratelimit.
//!
//! The tables declare every variable once: the parser takes defaults from them, and a test compares the guide with
//! them.

use std::time::Duration;

/// Looks up variables. Empty variables count as unset.
pub(super) struct Variables<F>(pub(super) F);

/// An invalid variable. Values are never shown, because they may be secrets.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{variable} {problem}")]
pub struct EnvironmentError {
    variable: &'static str,
    problem: String,
}

pub(super) type Result<T, E = EnvironmentError> = std::result::Result<T, E>;

/// Variables that have an effect, with their defaults. Empty: none.
const VARIABLES: &[(&str, &str)] = &[
    ("RUNTIME_ROOT", "/srv/runtime_data/current"),
    ("RUNTIME_SUBDIRECTORY", ""),
    ("RUNTIME_APPDIRECTORY", "config"),
    ("CONFIG_TYPE", "FILE"),
    ("MERGE_DOMAIN_CONFIG", "false"),
    ("CONFIG_GRPC_XDS_SERVER_URL", "localhost:18000"),
    ("CONFIG_GRPC_XDS_NODE_ID", "default"),
    ("CONFIG_GRPC_XDS_NODE_METADATA", ""),
    ("CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS", ""),
    ("CONFIG_GRPC_XDS_SERVER_USE_TLS", "false"),
    ("CONFIG_GRPC_XDS_SERVER_TLS_CACERT", ""),
    ("CONFIG_GRPC_XDS_SERVER_TLS_SAN", ""),
    ("CONFIG_GRPC_XDS_CLIENT_TLS_CERT", ""),
    ("CONFIG_GRPC_XDS_CLIENT_TLS_KEY", ""),
    ("XDS_CLIENT_BACKOFF_INITIAL_INTERVAL", "100ms"),
    ("XDS_CLIENT_BACKOFF_MAX_INTERVAL", "800ms"),
    ("XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES", "67108864"),
    ("FORCE_START_WITHOUT_INITIAL_CONFIG", "false"),
    ("HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED", "false"),
    ("HOST", "0.0.0.0"),
    ("PORT", "8080"),
    ("GRPC_HOST", "0.0.0.0"),
    ("GRPC_PORT", "8081"),
    ("GRPC_UDS", ""),
    ("GRPC_SERVER_USE_TLS", "false"),
    ("GRPC_SERVER_TLS_CERT", ""),
    ("GRPC_SERVER_TLS_KEY", ""),
    ("GRPC_CLIENT_TLS_CACERT", ""),
    ("GRPC_CLIENT_TLS_SAN", ""),
    ("USE_PROMETHEUS", "false"),
    ("PROMETHEUS_ADDR", ":9090"),
    ("PROMETHEUS_PATH", "/metrics"),
    ("USE_STATSD", "true"),
    ("USE_DOG_STATSD", "false"),
    ("STATSD_HOST", "localhost"),
    ("STATSD_PORT", "8125"),
    ("STATSD_PROTOCOL", "tcp"),
    ("STATS_FLUSH_INTERVAL", "10s"),
    ("EXTRA_TAGS", ""),
    ("NEAR_LIMIT_RATIO", "0.8"),
    ("DISABLE_STATS", "false"),
    ("DEBUG_HOST", "0.0.0.0"),
    ("DEBUG_PORT", "6070"),
    ("LOG_LEVEL", "WARN"),
    ("LOG_FORMAT", "text"),
    ("BACKEND_TYPE", "redis"),
    ("REDIS_URL", ""),
    ("REDIS_TYPE", "SINGLE"),
    ("REDIS_SOCKET_TYPE", ""),
    ("REDIS_AUTH", ""),
    ("REDIS_SENTINEL_AUTH", ""),
    ("REDIS_TLS", "false"),
    ("REDIS_TLS_CACERT", ""),
    ("REDIS_TLS_CLIENT_CERT", ""),
    ("REDIS_TLS_CLIENT_KEY", ""),
    ("REDIS_TIMEOUT", "100ms"),
    ("CACHE_KEY_PREFIX", "pg:"),
    ("LOCAL_CACHE_SIZE_IN_BYTES", "0"),
    ("SHADOW_MODE", "false"),
    ("QUOTA_MODE", "false"),
    ("RESPONSE_DYNAMIC_METADATA", "false"),
    ("LIMIT_RESPONSE_HEADERS_ENABLED", "false"),
    ("LIMIT_LIMIT_HEADER", "RateLimit-Limit"),
    ("LIMIT_REMAINING_HEADER", "RateLimit-Remaining"),
    ("LIMIT_RESET_HEADER", "RateLimit-Reset"),
    ("RUNTIME_WATCH_ROOT", "true"),
    ("RUNTIME_IGNOREDOTFILES", "true"),
    ("PACEGATE_DESCRIPTORS", "independent"),
    ("PACEGATE_INSECURE", "false"),
    ("PACEGATE_RESP", "off"),
    ("PACEGATE_LOG", ""),
    ("PACEGATE_LOG_FORMAT", ""),
];

/// Variables without effect, and the reason.
const WITHOUT_EFFECT: &[(&str, &str)] = &[
    ("REDIS_TLS_SKIP_HOSTNAME_VERIFICATION", "the server's name is always verified"),
    ("REDIS_POOL_SIZE", "requests share connections"),
    ("REDIS_PIPELINE_WINDOW", "requests are batched automatically"),
    ("REDIS_PIPELINE_LIMIT", "requests are batched automatically"),
    ("REDIS_CLUSTER_PIPELINE_PARALLELISM", "all servers of a cluster are called at once"),
    ("REDIS_POOL_ON_EMPTY_BEHAVIOR", "requests share connections"),
    ("REDIS_STARTUP_MAX_ELAPSED_TIME", "the server starts without Redis, and connects to it later"),
    ("REDIS_HEALTH_CHECK_ACTIVE_CONNECTION", "failure modes apply while the store is unreachable"),
    ("EXPIRATION_JITTER_MAX_SECONDS", "counters expire with their window"),
    (
        "STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT",
        "set `PACEGATE_DESCRIPTORS=together`, under which a denied request consumes nothing",
    ),
    ("CONFIG_GRPC_XDS_SERVER_CONNECT_RETRY_INTERVAL", "use XDS_CLIENT_BACKOFF_INITIAL_INTERVAL"),
    ("XDS_CLIENT_BACKOFF_RANDOM_FACTOR", "the delay doubles each time"),
    ("XDS_CLIENT_BACKOFF_JITTER", "delays are always random, from half to the whole"),
    ("USE_DOG_STATSD_MOGRIFIERS", "names of counters do not change"),
    ("PROMETHEUS_MAPPER_YAML", "names and labels are those of the default mapping"),
    ("PROMETHEUS_RESPONSE_TIME_AS_MILLISECONDS", "response times are in seconds"),
    ("GRPC_MAX_CONNECTION_AGE", "connections have no maximum age"),
    ("GRPC_MAX_CONNECTION_AGE_GRACE", "connections have no maximum age"),
    ("TRACING_ENABLED", "set OTEL_EXPORTER_OTLP_ENDPOINT to send traces"),
];

/// Endings of `REDIS_PERSECOND`, the variables of the second Redis.
const PER_SECOND: [&str; 14] = [
    "",
    "_SOCKET_TYPE",
    "_TYPE",
    "_URL",
    "_AUTH",
    "_SENTINEL_AUTH",
    "_TLS",
    "_POOL_SIZE",
    "_POOL_ON_EMPTY_BEHAVIOR",
    "_POOL_ON_EMPTY_WAIT_DURATION",
    "_PIPELINE_WINDOW",
    "_PIPELINE_LIMIT",
    "_TIMEOUT",
    "_HEALTH_CHECK_ACTIVE_CONNECTION",
];

impl EnvironmentError {
    pub(super) fn new(variable: &'static str, problem: impl Into<String>) -> Self {
        Self { variable, problem: problem.into() }
    }
}

impl<F: Fn(&str) -> Option<String>> Variables<F> {
    /// Returns the value of a variable, if it is set.
    pub(super) fn text(&self, name: &str) -> Option<String> {
        (self.0)(name).filter(|text| !text.is_empty())
    }

    /// Returns the value of a variable, or its default in the table.
    pub(super) fn text_or_default(&self, name: &str) -> String {
        let known = VARIABLES.iter().find(|(known, _)| *known == name);
        let default = known.map_or("", |(_, default)| default);
        self.text(name).unwrap_or_else(|| default.to_owned())
    }

    /// Returns whether a variable has this value, in any case.
    pub(super) fn is(&self, name: &str, value: &str) -> bool {
        self.text_or_default(name).eq_ignore_ascii_case(value)
    }

    /// Parses a boolean as Go does.
    pub(super) fn switch(&self, name: &'static str) -> Result<bool> {
        match &*self.text_or_default(name) {
            "" | "0" | "f" | "F" | "FALSE" | "false" | "False" => Ok(false),
            "1" | "t" | "T" | "TRUE" | "true" | "True" => Ok(true),
            _ => Err(EnvironmentError::new(name, "is invalid: expected true or false")),
        }
    }

    /// Parses a duration as Go does, such as `1m30s` or `1.5s`. `None` if the variable is not set.
    pub(super) fn duration(&self, name: &'static str) -> Result<Option<Duration>> {
        let Some(text) = self.text(name) else { return Ok(None) };
        let problem = "is invalid: expected a duration, such as 100ms or 10s";
        parse_duration(&text).map(Some).ok_or_else(|| EnvironmentError::new(name, problem))
    }

    /// Returns warnings for variables without effect.
    pub(super) fn warnings(&self) -> Vec<String> {
        let warning = |name: &str, reason: &str| {
            self.text(name).map(|_| format!("{name} has no effect: {reason}"))
        };
        let per_second = PER_SECOND.iter().filter_map(|end| {
            warning(&format!("REDIS_PERSECOND{end}"), "limits per second use the same store")
        });
        let others = WITHOUT_EFFECT.iter().filter_map(|(name, reason)| warning(name, reason));
        per_second.chain(others).collect()
    }
}

/// Parses a sequence of numbers with units, or `0`.
fn parse_duration(text: &str) -> Option<Duration> {
    let mut text = text.strip_prefix('+').unwrap_or(text);
    let mut sum = Duration::ZERO;
    if text.is_empty() || text == "0" {
        return Some(sum).filter(|_| !text.is_empty());
    }
    while !text.is_empty() {
        let number = text.find(|char: char| !char.is_ascii_digit() && char != '.')?;
        if !text[..number].contains(|char: char| char.is_ascii_digit()) {
            return None;
        }
        let (number, rest) = text.split_at(number);
        let is_number = |char: char| char.is_ascii_digit() || char == '.';
        let unit = rest.find(is_number).unwrap_or(rest.len());
        let (unit, rest) = rest.split_at(unit);
        let nanos: u64 = match unit {
            "h" => 3_600_000_000_000,
            "m" => 60_000_000_000,
            "s" => 1_000_000_000,
            "ms" => 1_000_000,
            "us" | "µs" => 1_000,
            "ns" => 1,
            _ => return None,
        };
        let (whole, part) = number.split_once('.').unwrap_or((number, ""));
        let (whole, part) = (format!("0{whole}"), format!("{part}0"));
        let digits = u32::try_from(part.len()).ok()?;
        let part = part.parse::<u64>().ok()?.checked_mul(nanos)? / 10_u64.checked_pow(digits)?;
        let nanos = whole.parse::<u64>().ok()?.checked_mul(nanos)?.checked_add(part)?;
        sum = sum.checked_add(Duration::from_nanos(nanos))?;
        text = rest;
    }
    Some(sum)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_guide_has_the_tables_of_variables() {
        let page = include_str!("../../../../docs/guide/envoy-ratelimit.md");
        let (_, tables) = page.split_once("<!-- variables -->\n").unwrap();
        let (tables, _) = tables.split_once("<!-- end of variables -->").unwrap();
        let rows = tables.lines().filter(|line| line.starts_with("| `"));
        let found = rows.map(|row| {
            let mut cells = row.split('|').map(|cell| cell.trim().trim_matches('`'));
            (cells.nth(1).unwrap(), cells.next().unwrap())
        });
        let second_redis = ("REDIS_PERSECOND*", "limits per second use the same store");
        let expected = VARIABLES.iter().chain([&second_redis]).chain(WITHOUT_EFFECT);
        let plain = expected.map(|(name, text)| (*name, text.trim_matches('`')));
        assert_eq!(found.collect::<Vec<_>>(), plain.collect::<Vec<_>>());
    }

    #[test]
    fn durations_are_parsed_as_in_go() {
        for (text, micros) in [
            ("10s", Some(10_000_000)),
            ("100ms", Some(100_000)),
            ("1m30s", Some(90_000_000)),
            ("1.5s", Some(1_500_000)),
            ("250us", Some(250)),
            (".5s", Some(500_000)),
            ("1.s", Some(1_000_000)),
            ("+10s", Some(10_000_000)),
            ("0", Some(0)),
            ("+0", Some(0)),
            ("1s.5s", Some(1_500_000)),
            ("10", None),
            ("", None),
            ("+", None),
            (".s", None),
            ("1.2.3s", None),
            ("s", None),
            ("1d", None),
            ("1s ", None),
            ("-1s", None),
        ] {
            assert_eq!(parse_duration(text), micros.map(Duration::from_micros), "{text}");
        }
    }
}
