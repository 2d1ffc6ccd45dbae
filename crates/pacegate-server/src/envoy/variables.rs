//! The environment variables of envoyproxy/ratelimit.
//!
//! The tables declare every variable once: the parser takes defaults from them, and the guide shows them.

use std::time::Duration;

/// Looks up variables. Empty variables count as unset.
pub(super) struct Variables<F>(pub(super) F);

/// A variable that the server reads.
struct Variable {
    name: &'static str,
    /// Empty: none.
    default: &'static str,
    #[cfg_attr(
        not(test),
        expect(dead_code, reason = "only the test that compares the guide reads it")
    )]
    meaning: &'static str,
}

/// An invalid variable. Values are never shown, because they may be secrets.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{variable} {problem}")]
pub struct EnvironmentError {
    variable: &'static str,
    problem: String,
}

pub(super) type Result<T> = std::result::Result<T, EnvironmentError>;

const fn variable(name: &'static str, default: &'static str, meaning: &'static str) -> Variable {
    Variable { name, default, meaning }
}

/// Variables that have an effect.
const VARIABLES: &[Variable] = &[
    variable("RUNTIME_ROOT", "/srv/runtime_data/current", "folder of the files"),
    variable("RUNTIME_SUBDIRECTORY", "", "folder below `RUNTIME_ROOT`"),
    variable("RUNTIME_APPDIRECTORY", "config", "folder below `RUNTIME_SUBDIRECTORY`"),
    variable(
        "CONFIG_TYPE",
        "FILE",
        "`FILE`, or `GRPC_XDS_SOTW` for [config servers](envoy-gateway.md)",
    ),
    variable("MERGE_DOMAIN_CONFIG", "false", "several files or config servers may have one domain"),
    variable(
        "CONFIG_GRPC_XDS_SERVER_URL",
        "localhost:18000",
        "config servers: `host:port`, or several separated by commas",
    ),
    variable("CONFIG_GRPC_XDS_NODE_ID", "default", "name of this client"),
    variable("CONFIG_GRPC_XDS_NODE_METADATA", "", "metadata of this client: `k=v,k=v`"),
    variable("CONFIG_GRPC_XDS_CLIENT_ADDITIONAL_HEADERS", "", "gRPC metadata: `k:v,k:v`"),
    variable("CONFIG_GRPC_XDS_SERVER_USE_TLS", "false", "TLS to the config servers"),
    variable("CONFIG_GRPC_XDS_SERVER_TLS_CACERT", "", "PEM file, beside the system's authorities"),
    variable(
        "CONFIG_GRPC_XDS_SERVER_TLS_SAN",
        "",
        "name in the server's certificate, if not its host",
    ),
    variable("CONFIG_GRPC_XDS_CLIENT_TLS_CERT", "", "PEM file; read for each connection"),
    variable("CONFIG_GRPC_XDS_CLIENT_TLS_KEY", "", "PEM file; read for each connection"),
    variable(
        "XDS_CLIENT_BACKOFF_INITIAL_INTERVAL",
        "100ms",
        "first delay before a new connection; theirs: 10s",
    ),
    variable(
        "XDS_CLIENT_BACKOFF_MAX_INTERVAL",
        "800ms",
        "maximum delay, which doubles each time; theirs: 60s",
    ),
    variable(
        "XDS_CLIENT_MAX_MSG_SIZE_IN_BYTES",
        "67108864",
        "maximum size of a configuration; theirs: 4 MiB",
    ),
    variable(
        "FORCE_START_WITHOUT_INITIAL_CONFIG",
        "false",
        "start before a config server has answered",
    ),
    variable(
        "HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED",
        "false",
        "health checks fail while no domain is loaded",
    ),
    variable("HOST", "0.0.0.0", "address or name for HTTP"),
    variable("PORT", "8080", "port for HTTP"),
    variable("GRPC_HOST", "0.0.0.0", "address or name for gRPC"),
    variable("GRPC_PORT", "8081", "port for gRPC"),
    variable("GRPC_UDS", "", "rejected if set"),
    variable("GRPC_SERVER_USE_TLS", "false", "TLS for gRPC; HTTP stays without"),
    variable("GRPC_SERVER_TLS_CERT", "", "PEM file; reloaded"),
    variable("GRPC_SERVER_TLS_KEY", "", "PEM file; reloaded"),
    variable("GRPC_CLIENT_TLS_CACERT", "", "if set, clients need a certificate of this authority"),
    variable(
        "GRPC_CLIENT_TLS_SAN",
        "",
        "name that these certificates need; rejected without `GRPC_CLIENT_TLS_CACERT`",
    ),
    variable("USE_PROMETHEUS", "false", "metrics of rules at `PROMETHEUS_ADDR`"),
    variable("PROMETHEUS_ADDR", ":9090", "address for these metrics"),
    variable("PROMETHEUS_PATH", "/metrics", "path of these metrics"),
    variable("USE_STATSD", "true", "counters by statsd; off by default with `USE_PROMETHEUS`"),
    variable("USE_DOG_STATSD", "false", "counters by DogStatsD, over UDP and with tags"),
    variable("STATSD_HOST", "localhost", "address or name of the statsd server"),
    variable("STATSD_PORT", "8125", "port of the statsd server"),
    variable("STATSD_PROTOCOL", "tcp", "`tcp` or `udp`"),
    variable("STATS_FLUSH_INTERVAL", "10s", "interval of sending to statsd"),
    variable("EXTRA_TAGS", "", "tags for statsd: `name:value,name:value`"),
    variable("NEAR_LIMIT_RATIO", "0.8", "hits above this part of a limit are near it"),
    variable("DISABLE_STATS", "false", "no metrics for Prometheus, and no statsd"),
    variable("DEBUG_HOST", "0.0.0.0", "address or name for `/rlconfig` and `/stats`"),
    variable("DEBUG_PORT", "6070", "its port; off unless set or the program is called `ratelimit`"),
    variable("LOG_LEVEL", "WARN", "log level, unless `PACEGATE_LOG` is set"),
    variable("LOG_FORMAT", "text", "`text` or `json`, unless `PACEGATE_LOG_FORMAT` is set"),
    variable("BACKEND_TYPE", "redis", "`memcache` is rejected"),
    variable("REDIS_URL", "", "`host:port`, a list, a socket or a URL; unset: memory"),
    variable("REDIS_TYPE", "SINGLE", "`SINGLE`, `SENTINEL` (`master,host:port,...`) or `CLUSTER`"),
    variable("REDIS_SOCKET_TYPE", "", "`tcp` or `unix`; by default as `REDIS_URL` looks"),
    variable("REDIS_AUTH", "", "`password` or `user:password`"),
    variable("REDIS_SENTINEL_AUTH", "", "the same, for sentinels"),
    variable("REDIS_TLS", "false", "TLS to Redis, also for a `REDIS_URL` with a scheme"),
    variable("REDIS_TLS_CACERT", "", "PEM file"),
    variable("REDIS_TLS_CLIENT_CERT", "", "PEM file"),
    variable("REDIS_TLS_CLIENT_KEY", "", "PEM file"),
    variable("REDIS_TIMEOUT", "100ms", "deadline of a call to Redis; theirs: 10s; `0`: 10s"),
    variable("CACHE_KEY_PREFIX", "pg:", "prefix of key names"),
    variable(
        "LOCAL_CACHE_SIZE_IN_BYTES",
        "0",
        "above 0: cached denials do not reach Redis and are not counted; the size itself has no effect",
    ),
    variable("SHADOW_MODE", "false", "every request is allowed"),
    variable("QUOTA_MODE", "false", "every rule is in quota mode"),
    variable("RESPONSE_DYNAMIC_METADATA", "false", "`dynamic_metadata` in responses"),
    variable("LIMIT_RESPONSE_HEADERS_ENABLED", "false", "headers in responses"),
    variable("LIMIT_LIMIT_HEADER", "RateLimit-Limit", "name of a header"),
    variable("LIMIT_REMAINING_HEADER", "RateLimit-Remaining", "name of a header"),
    variable("LIMIT_RESET_HEADER", "RateLimit-Reset", "name of a header"),
    variable("RUNTIME_WATCH_ROOT", "true", "changed files are always reloaded"),
    variable("RUNTIME_IGNOREDOTFILES", "true", "hidden files are always ignored"),
    variable("PACEGATE_DESCRIPTORS", "independent", "`together`: all or nothing"),
    variable("PACEGATE_INSECURE", "false", "needed to listen without TLS and API keys"),
    variable("PACEGATE_RESP", "off", "address for Redis clients"),
    variable("PACEGATE_LOG", "", "replaces `LOG_LEVEL`"),
    variable("PACEGATE_LOG_FORMAT", "", "replaces `LOG_FORMAT`"),
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
        let known = VARIABLES.iter().find(|variable| variable.name == name);
        let default = known.map_or("", |variable| variable.default);
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
    use std::{fmt::Write as _, fs, path::Path};

    use super::*;

    const GUIDE: &str = "../../docs/guide/envoy-ratelimit.md";

    /// Returns the tables of the guide.
    fn tables() -> String {
        let mut text = "| variable | default | effect |\n|---|---|---|\n".to_owned();
        for Variable { name, default, meaning } in VARIABLES {
            let default = if default.is_empty() { String::new() } else { format!(" `{default}`") };
            writeln!(text, "| `{name}` |{default} | {meaning} |").unwrap();
        }
        text.push_str(
            "\nThese have no effect, and cause a warning:\n\n| variable | reason |\n|---|---|\n",
        );
        text.push_str("| `REDIS_PERSECOND*` | limits per second use the same store |\n");
        for (name, reason) in WITHOUT_EFFECT {
            writeln!(text, "| `{name}` | {reason} |").unwrap();
        }
        text
    }

    /// With `PACEGATE_BLESS=1` this writes the tables instead.
    #[test]
    fn the_guide_has_the_tables_of_variables() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(GUIDE);
        let page = fs::read_to_string(&path).unwrap();
        let (begin, end) = ("<!-- variables -->\n", "<!-- end of variables -->");
        let (before, rest) = page.split_once(begin).unwrap();
        let (found, after) = rest.split_once(end).unwrap();
        if std::env::var_os("PACEGATE_BLESS").is_some() {
            fs::write(path, format!("{before}{begin}{}{end}{after}", tables())).unwrap();
        } else {
            assert_eq!(found, tables());
        }
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
