//! Environment variables of envoyproxy/ratelimit, so that migrating only means replacing the image.

use std::{
    net::{IpAddr, Ipv4Addr, SocketAddr},
    path::PathBuf,
};

use super::{
    file::shorten,
    rules::{HeaderNames, Options, runtime_path},
};
use crate::{
    config::{Bind, Settings, StoreSettings, TlsFiles},
    listeners::ListenerId,
};

/// The configuration of a deployment.
#[derive(Clone, Debug)]
pub(crate) struct Deployment {
    /// Directory of the rule files.
    pub(crate) files: PathBuf,
    /// Options of all rules.
    pub(crate) options: Options,
    /// Log level and format.
    pub(crate) log: Logging,
    /// Variables without effect, and the reason.
    pub(crate) warnings: Vec<String>,
    store: Option<StoreSettings>,
    http: Bind,
    grpc: Bind,
    /// For gRPC only, as in envoyproxy/ratelimit: probes of the HTTP port do not use TLS.
    tls: Option<TlsFiles>,
    shadow: bool,
}

/// Log settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Logging {
    /// Value of `--log`.
    pub level: &'static str,
    /// True if each line is a JSON object.
    pub json: bool,
}

/// An invalid variable. Values are never shown, because they may be secrets.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{variable} {problem}")]
pub struct EnvironmentError {
    variable: &'static str,
    problem: String,
}

/// Looks up variables. Empty variables count as unset.
struct Variables<F>(F);

type Result<T> = std::result::Result<T, EnvironmentError>;

/// Variables that identify a deployment of envoyproxy/ratelimit.
const SIGNS: [&str; 2] = ["RUNTIME_ROOT", "RUNTIME_SUBDIRECTORY"];

/// Variables without effect, and the reason.
const WITHOUT_EFFECT: [(&str, &str); 23] = [
    ("REDIS_TLS_SKIP_HOSTNAME_VERIFICATION", "the server's name is always verified"),
    ("REDIS_POOL_SIZE", "requests share connections"),
    ("REDIS_PIPELINE_WINDOW", "requests are batched automatically"),
    ("REDIS_PIPELINE_LIMIT", "requests are batched automatically"),
    ("REDIS_HEALTH_CHECK_ACTIVE_CONNECTION", "failure modes apply while the store is unreachable"),
    ("EXPIRATION_JITTER_MAX_SECONDS", "counters expire with their window"),
    ("LOCAL_CACHE_SIZE_IN_BYTES", "denials are always cached"),
    ("STOP_CACHE_KEY_INCREMENT_WHEN_OVERLIMIT", "denied requests are not counted"),
    ("NEAR_LIMIT_RATIO", "metrics report the units left"),
    ("RUNTIME_WATCH_ROOT", "the directory of rules is watched"),
    ("RUNTIME_IGNOREDOTFILES", "hidden files and directories are ignored"),
    ("FORCE_START_WITHOUT_INITIAL_CONFIG", "the rule files must exist"),
    ("DEBUG_PORT", "use the HTTP listener"),
    ("USE_STATSD", "metrics are at /metrics of the HTTP listener, for Prometheus"),
    ("USE_DOG_STATSD", "metrics are at /metrics of the HTTP listener, for Prometheus"),
    ("PROMETHEUS_ADDR", "metrics are at /metrics of the HTTP listener"),
    ("PROMETHEUS_PATH", "metrics are at /metrics of the HTTP listener"),
    ("PROMETHEUS_MAPPER_YAML", "metrics are labelled by policy"),
    ("EXTRA_TAGS", "add labels in Prometheus"),
    ("GRPC_MAX_CONNECTION_AGE", "connections have no maximum age"),
    ("GRPC_CLIENT_TLS_SAN", "every certificate of the client CA is accepted"),
    ("TRACING_ENABLED", "set OTEL_EXPORTER_OTLP_ENDPOINT to send traces"),
    ("RESPONSE_DYNAMIC_METADATA", "metadata reports limits that Envoy's units cannot express"),
];

/// Suffixes of `REDIS_PERSECOND`, the variables of the second Redis.
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

const NO_TLS: &str = "cannot be used with a unix socket";

impl Deployment {
    /// Reads the variables. Returns `None` if this is not a deployment of envoyproxy/ratelimit.
    pub(crate) fn read(lookup: impl Fn(&str) -> Option<String>) -> Result<Option<Self>> {
        let variables = Variables(lookup);
        if SIGNS.into_iter().all(|name| variables.text(name).is_none()) {
            return Ok(None);
        }
        variables.refuse_what_is_missing_here()?;
        let text = |name, default: &str| variables.text(name).unwrap_or_else(|| default.to_owned());
        Ok(Some(Self {
            files: runtime_path(
                &text("RUNTIME_ROOT", "/srv/runtime_data/current"),
                &text("RUNTIME_SUBDIRECTORY", ""),
                &text("RUNTIME_APPDIRECTORY", "config"),
            ),
            options: variables.options()?,
            log: variables.logging()?,
            warnings: variables.warnings(),
            store: variables.store()?,
            http: variables.bind("HOST", "PORT", 8080)?,
            grpc: variables.bind("GRPC_HOST", "GRPC_PORT", 8081)?,
            tls: variables.tls()?,
            shadow: variables.switch("SHADOW_MODE")?,
        }))
    }

    /// Overrides `settings`, except for the rules, whose files may change.
    pub(crate) fn apply(&self, settings: &mut Settings) {
        if let Some(store) = &self.store {
            settings.store = store.clone();
        }
        settings.listen[ListenerId::Http] = self.http;
        settings.listen[ListenerId::Grpc] = self.grpc;
        settings.shadow |= self.shadow;
        settings.security.grpc_tls.clone_from(&self.tls);
    }
}

impl<F: Fn(&str) -> Option<String>> Variables<F> {
    fn text(&self, name: &str) -> Option<String> {
        (self.0)(name).filter(|text| !text.is_empty())
    }

    /// Parses a boolean as Go does.
    fn switch(&self, name: &'static str) -> Result<bool> {
        match self.text(name).as_deref() {
            None | Some("0" | "f" | "F" | "FALSE" | "false" | "False") => Ok(false),
            Some("1" | "t" | "T" | "TRUE" | "true" | "True") => Ok(true),
            Some(_) => Err(error(name, "is invalid: expected true or false")),
        }
    }

    /// Returns warnings for variables without effect.
    fn warnings(&self) -> Vec<String> {
        let about = |name: &str, instead: &str| {
            self.text(name).map(|_| format!("{name} has no effect: {instead}"))
        };
        let per_second = PER_SECOND.iter().filter_map(|end| {
            about(&format!("REDIS_PERSECOND{end}"), "limits per second use the same store")
        });
        let others = WITHOUT_EFFECT.iter().filter_map(|(name, instead)| about(name, instead));
        per_second.chain(others).collect()
    }

    /// Rejects settings that this server cannot honour.
    fn refuse_what_is_missing_here(&self) -> Result<()> {
        let is =
            |name, value: &str| self.text(name).is_some_and(|it| it.eq_ignore_ascii_case(value));
        if is("BACKEND_TYPE", "memcache") {
            let problem = "is memcache, which is not supported: use Redis or Valkey, or unset it and \
                           REDIS_URL to count in memory";
            return Err(error("BACKEND_TYPE", problem));
        }
        if self.text("CONFIG_TYPE").is_some() && !is("CONFIG_TYPE", "FILE") {
            let problem = "is xDS, which is not supported: use files";
            return Err(error("CONFIG_TYPE", problem));
        }
        if self.text("GRPC_UDS").is_some() {
            let problem = "is a unix socket, which is not supported: set GRPC_HOST and GRPC_PORT";
            return Err(error("GRPC_UDS", problem));
        }
        Ok(())
    }

    fn options(&self) -> Result<Options> {
        let name = |variable, default: &str| {
            let name = self.text(variable).unwrap_or_else(|| default.to_owned());
            let parsed = http::HeaderName::from_bytes(name.as_bytes());
            parsed.map(|_| name).map_err(|_| error(variable, "is not a header name"))
        };
        let headers = self.switch("LIMIT_RESPONSE_HEADERS_ENABLED")?.then(|| {
            Ok(HeaderNames {
                limit: name("LIMIT_LIMIT_HEADER", "RateLimit-Limit")?,
                remaining: name("LIMIT_REMAINING_HEADER", "RateLimit-Remaining")?,
                reset: name("LIMIT_RESET_HEADER", "RateLimit-Reset")?,
            })
        });
        Ok(Options {
            merge_domains: self.switch("MERGE_DOMAIN_CONFIG")?,
            quota_mode: self.switch("QUOTA_MODE")?,
            headers: headers.transpose()?,
        })
    }

    /// Returns the log settings. Default: warnings as text.
    fn logging(&self) -> Result<Logging> {
        let level = self.text("LOG_LEVEL").unwrap_or_else(|| "warn".to_owned());
        let level = match &*level.to_ascii_lowercase() {
            "panic" | "fatal" | "error" => "error",
            "warn" | "warning" => "warn",
            "info" => "info",
            "debug" => "debug",
            "trace" => "trace",
            _ => {
                return Err(error(
                    "LOG_LEVEL",
                    "is invalid: expected ERROR, WARN, INFO, DEBUG or TRACE",
                ));
            }
        };
        let json = self.text("LOG_FORMAT").is_some_and(|it| it.eq_ignore_ascii_case("json"));
        Ok(Logging { level, json })
    }

    fn bind(&self, host: &'static str, port: &'static str, default: u16) -> Result<Bind> {
        let address = match self.text(host).as_deref() {
            None => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
            Some("localhost") => IpAddr::V4(Ipv4Addr::LOCALHOST),
            Some(text) => text.parse().map_err(|_| {
                let text = shorten(text, 40);
                error(host, format!("is `{text}`: expected an address, such as 0.0.0.0"))
            })?,
        };
        let port = match self.text(port) {
            None => default,
            Some(text) => text
                .parse()
                .map_err(|_| error(port, "is not a port: expected a number from 0 to 65535"))?,
        };
        Ok(Bind::At(SocketAddr::new(address, port)))
    }

    fn tls(&self) -> Result<Option<TlsFiles>> {
        if !self.switch("GRPC_SERVER_USE_TLS")? {
            return Ok(None);
        }
        let file = |name| {
            let missing = || {
                error(
                    name,
                    "is not set, but GRPC_SERVER_USE_TLS is: expected the path of a PEM file",
                )
            };
            self.text(name).map(PathBuf::from).ok_or_else(missing)
        };
        Ok(Some(TlsFiles {
            certificate: file("GRPC_SERVER_TLS_CERT")?,
            key: file("GRPC_SERVER_TLS_KEY")?,
            client_ca: self.text("GRPC_CLIENT_TLS_CACERT").map(PathBuf::from),
        }))
    }

    /// Returns the store, or `None` without `REDIS_URL`.
    fn store(&self) -> Result<Option<StoreSettings>> {
        let Some(address) = self.text("REDIS_URL") else { return Ok(None) };
        let url = self.url(&address)?;
        let mut store: StoreSettings = url.parse().map_err(|problem| {
            // The problem never has a password in it.
            error(
                "REDIS_URL",
                format!("and the variables beside it are not a valid address: {problem}"),
            )
        })?;
        if let (StoreSettings::Redis { prefix, .. }, Some(own)) =
            (&mut store, self.text("CACHE_KEY_PREFIX"))
        {
            *prefix = own;
        }
        Ok(Some(store))
    }

    /// Combines address, type and credentials into a URL.
    fn url(&self, address: &str) -> Result<String> {
        let tls = self.switch("REDIS_TLS")?;
        let redis = if tls { "rediss" } else { "redis" };
        let login = self.text("REDIS_AUTH").map(|auth| login(&auth)).unwrap_or_default();
        let kind = self.text("REDIS_TYPE").unwrap_or_default().to_ascii_uppercase();
        let socket = self.text("REDIS_SOCKET_TYPE").unwrap_or_default();
        let is_sentinel = kind == "SENTINEL" || address.contains("+sentinel://");
        let options = self.url_options(is_sentinel);
        Ok(match &*kind {
            "" | "SINGLE" if address.contains("://") => self.complete(address, &login, &options)?,
            "CLUSTER" | "SENTINEL" if address.contains("://") => {
                let problem = "has a scheme, which excludes REDIS_TYPE";
                return Err(error("REDIS_URL", problem));
            }
            "" | "SINGLE" if socket == "unix" || address.starts_with('/') => {
                if tls {
                    return Err(error("REDIS_TLS", NO_TLS));
                }
                format!("redis+unix://{login}{address}")
            }
            "" | "SINGLE" => format!("{redis}://{login}{address}{options}"),
            "CLUSTER" => format!("{redis}+cluster://{login}{address}{options}"),
            "SENTINEL" => {
                let (master, sentinels) = address.split_once(',').ok_or_else(|| {
                    error("REDIS_URL", "lacks sentinels: expected `master,host:26379,host:26379`")
                })?;
                format!("{redis}+sentinel://{login}{sentinels}/{master}{options}")
            }
            _ => {
                return Err(error(
                    "REDIS_TYPE",
                    "is invalid: expected SINGLE, SENTINEL or CLUSTER",
                ));
            }
        })
    }

    /// Adds credentials and options to an address with a scheme.
    fn complete(&self, address: &str, login: &str, options: &str) -> Result<String> {
        let (scheme, rest) = address.split_once("://").unwrap_or(("redis", address));
        let (base, shape) = scheme.split_at(scheme.find('+').unwrap_or(scheme.len()));
        let wants_tls = self.switch("REDIS_TLS")?;
        if wants_tls && shape == "+unix" {
            return Err(error("REDIS_TLS", NO_TLS));
        }
        let is_plain = matches!(base, "redis" | "valkey");
        let secure = if wants_tls && is_plain { "s" } else { "" };
        let authority = &rest[..rest.find(['/', '?']).unwrap_or(rest.len())];
        let own = authority.rfind('@').map(|at| &rest[..=at]);
        let login = match own {
            Some(own) if !login.is_empty() && own != login => {
                let problem = "differs from the credentials in REDIS_URL: unset one of them";
                return Err(error("REDIS_AUTH", problem));
            }
            Some(_) => "",
            None => login,
        };
        // There are options already, which others can follow.
        let options = match rest.contains('?') {
            true => options.replacen('?', "&", 1),
            false => options.to_owned(),
        };
        Ok(format!("{base}{secure}{shape}://{login}{rest}{options}"))
    }

    fn url_options(&self, sentinel: bool) -> String {
        let mut options = Vec::new();
        for (variable, option) in [
            ("REDIS_TLS_CACERT", "ca"),
            ("REDIS_TLS_CLIENT_CERT", "cert"),
            ("REDIS_TLS_CLIENT_KEY", "key"),
        ] {
            options.extend(self.text(variable).map(|file| format!("{option}={}", escape(&file))));
        }
        if let Some(auth) = self.text("REDIS_SENTINEL_AUTH").filter(|_| sentinel) {
            let (user, password) = auth.split_once(':').unwrap_or(("", &auth));
            if !user.is_empty() {
                options.push(format!("sentinel_user={}", escape(user)));
            }
            options.push(format!("sentinel_password={}", escape(password)));
        }
        if options.is_empty() { String::new() } else { format!("?{}", options.join("&")) }
    }
}

fn error(variable: &'static str, problem: impl Into<String>) -> EnvironmentError {
    EnvironmentError { variable, problem: problem.into() }
}

/// Formats `password` or `user:password` for a URL.
fn login(auth: &str) -> String {
    let (user, password) = auth.split_once(':').unwrap_or(("", auth));
    format!("{}:{}@", escape(user), escape(password))
}

/// Percent-encodes a text.
fn escape(text: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte);
    let mut escaped = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            _ if plain(byte) => escaped.push(char::from(byte)),
            _ => escaped.push_str(&format!("%{byte:02X}")),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use pacegate::PolicySet;

    use super::*;

    fn read(variables: &[(&str, &str)]) -> Result<Option<Deployment>> {
        let variables: HashMap<_, _> = variables.iter().copied().collect();
        Deployment::read(|name| variables.get(name).map(|value| (*value).to_owned()))
    }

    /// Creates a deployment with these variables and a directory of rules.
    fn deployed(variables: &[(&str, &str)]) -> Result<Deployment> {
        let files = [("RUNTIME_ROOT", "/data"), ("RUNTIME_SUBDIRECTORY", "ratelimit")];
        read(&[&files, variables].concat()).map(|deployment| deployment.unwrap())
    }

    fn url(variables: &[(&str, &str)]) -> String {
        let Some(StoreSettings::Redis { url, .. }) = deployed(variables).unwrap().store else {
            panic!("{variables:?}")
        };
        url
    }

    fn problem(variables: &[(&str, &str)]) -> String {
        deployed(variables).unwrap_err().to_string()
    }

    #[test]
    fn other_environments_are_ignored() {
        assert!(read(&[]).unwrap().is_none());
        let other = [("REDIS_URL", "x:1"), ("PORT", "no"), ("RUNTIME_ROOT", "")];
        assert!(read(&other).unwrap().is_none());
    }

    #[test]
    fn defaults_are_those_of_envoyproxy_ratelimit() {
        let deployment = deployed(&[]).unwrap();
        assert_eq!(deployment.files, PathBuf::from("/data/ratelimit/config"));
        assert_eq!(deployment.options, Options::default());
        assert!(deployment.warnings.is_empty());
        assert_eq!(deployment.log, Logging { level: "warn", json: false });
        let mut settings = Settings::new(PolicySet::new([]).unwrap());
        deployment.apply(&mut settings);
        assert_eq!(settings.listen[ListenerId::Http], Bind::At(([0, 0, 0, 0], 8080).into()));
        assert_eq!(settings.listen[ListenerId::Grpc], Bind::At(([0, 0, 0, 0], 8081).into()));
        assert_eq!(settings.store, StoreSettings::default());
        assert!(!settings.shadow && settings.security.grpc_tls.is_none());
    }

    #[test]
    fn supported_variables_are_read() {
        let deployment = deployed(&[
            ("RUNTIME_APPDIRECTORY", "rules"),
            ("HOST", "::1"),
            ("PORT", "9090"),
            ("GRPC_HOST", "localhost"),
            ("GRPC_PORT", "9091"),
            ("SHADOW_MODE", "true"),
            ("QUOTA_MODE", "1"),
            ("MERGE_DOMAIN_CONFIG", "T"),
            ("LIMIT_RESPONSE_HEADERS_ENABLED", "true"),
            ("LIMIT_RESET_HEADER", "X-Reset"),
            ("LOG_LEVEL", "DEBUG"),
            ("LOG_FORMAT", "json"),
            ("BACKEND_TYPE", "redis"),
            ("CONFIG_TYPE", "FILE"),
            ("GRPC_SERVER_USE_TLS", "true"),
            ("GRPC_SERVER_TLS_CERT", "/tls/cert"),
            ("GRPC_SERVER_TLS_KEY", "/tls/key"),
            ("GRPC_CLIENT_TLS_CACERT", "/tls/ca"),
            ("REDIS_URL", "redis:6379"),
            ("REDIS_SOCKET_TYPE", "tcp"),
            ("CACHE_KEY_PREFIX", "rl:"),
            ("USE_STATSD", "false"),
        ])
        .unwrap();
        assert_eq!(deployment.files, PathBuf::from("/data/ratelimit/rules"));
        assert_eq!(deployment.log, Logging { level: "debug", json: true });
        assert!(deployment.options.merge_domains && deployment.options.quota_mode);
        let headers = deployment.options.headers.as_ref().unwrap();
        assert_eq!((&*headers.limit, &*headers.reset), ("RateLimit-Limit", "X-Reset"));
        let about = "USE_STATSD has no effect: metrics are at /metrics of the HTTP listener, \
                     for Prometheus";
        assert_eq!(deployment.warnings, [about]);
        let mut settings = Settings::new(PolicySet::new([]).unwrap());
        deployment.apply(&mut settings);
        assert_eq!(settings.listen[ListenerId::Http], Bind::At("[::1]:9090".parse().unwrap()));
        assert_eq!(settings.listen[ListenerId::Grpc], Bind::At(([127, 0, 0, 1], 9091).into()));
        assert!(settings.shadow);
        assert!(settings.security.tls.is_none());
        let tls = settings.security.grpc_tls.unwrap();
        assert_eq!((tls.key, tls.client_ca), ("/tls/key".into(), Some("/tls/ca".into())));
        let StoreSettings::Redis { url, prefix, .. } = settings.store else { panic!() };
        assert_eq!((&*url, &*prefix), ("redis://redis:6379", "rl:"));
    }

    #[test]
    fn every_kind_of_redis_becomes_a_url() {
        for (variables, expected) in [
            (
                &[("REDIS_URL", "a:1"), ("REDIS_AUTH", "p@ss/wörd")][..],
                "redis://:p%40ss%2Fw%C3%B6rd@a:1",
            ),
            (
                &[("REDIS_URL", "a:1"), ("REDIS_AUTH", "me:p:q"), ("REDIS_TLS", "true")],
                "rediss://me:p%3Aq@a:1",
            ),
            (&[("REDIS_URL", "redis://a:1/2")], "redis://a:1/2"),
            (
                &[("REDIS_URL", "redis://a:1/2"), ("REDIS_TLS", "true"), ("REDIS_AUTH", "me:p@ss")],
                "rediss://me:p%40ss@a:1/2",
            ),
            (
                &[
                    ("REDIS_URL", "redis+sentinel://a/main?sentinel_user=s"),
                    ("REDIS_SENTINEL_AUTH", "t"),
                ],
                "redis+sentinel://a/main?sentinel_user=s&sentinel_password=t",
            ),
            (
                &[("REDIS_URL", "valkey+cluster://a,b"), ("REDIS_TLS", "true")],
                "valkeys+cluster://a,b",
            ),
            (&[("REDIS_URL", "rediss://a:1"), ("REDIS_TLS", "false")], "rediss://a:1"),
            (&[("REDIS_URL", "redis://:p@a:1"), ("REDIS_AUTH", "p")], "redis://:p@a:1"),
            (
                &[("REDIS_URL", "redis+unix:///run/r.sock"), ("REDIS_AUTH", "p")],
                "redis+unix://:p@/run/r.sock",
            ),
            (&[("REDIS_URL", "/run/redis.sock")], "redis+unix:///run/redis.sock"),
            (
                &[
                    ("REDIS_URL", "/run/redis.sock"),
                    ("REDIS_SOCKET_TYPE", "unix"),
                    ("REDIS_AUTH", "p"),
                ],
                "redis+unix://:p@/run/redis.sock",
            ),
            (&[("REDIS_URL", "a:1,b:2"), ("REDIS_TYPE", "CLUSTER")], "redis+cluster://a:1,b:2"),
            (
                &[
                    ("REDIS_URL", "main,a:1,b:2"),
                    ("REDIS_TYPE", "sentinel"),
                    ("REDIS_SENTINEL_AUTH", "s:t"),
                ],
                "redis+sentinel://a:1,b:2/main?sentinel_user=s&sentinel_password=t",
            ),
        ] {
            assert_eq!(url(variables), expected);
        }
    }

    #[test]
    fn unsupported_settings_are_errors() {
        for (variables, expected) in [
            (
                &[("BACKEND_TYPE", "memcache")][..],
                "BACKEND_TYPE is memcache, which is not supported: use Redis or Valkey, or unset it and \
                 REDIS_URL to count in memory",
            ),
            (
                &[("CONFIG_TYPE", "GRPC_XDS_SOTW")],
                "CONFIG_TYPE is xDS, which is not supported: use files",
            ),
            (
                &[("GRPC_UDS", "/x")],
                "GRPC_UDS is a unix socket, which is not supported: set GRPC_HOST and GRPC_PORT",
            ),
            (&[("SHADOW_MODE", "yes")], "SHADOW_MODE is invalid: expected true or false"),
            (
                &[("LOG_LEVEL", "loud")],
                "LOG_LEVEL is invalid: expected ERROR, WARN, INFO, DEBUG or TRACE",
            ),
            (&[("PORT", "80800")], "PORT is not a port: expected a number from 0 to 65535"),
            (&[("HOST", "here")], "HOST is `here`: expected an address, such as 0.0.0.0"),
            (
                &[("LIMIT_RESPONSE_HEADERS_ENABLED", "true"), ("LIMIT_LIMIT_HEADER", "a b")],
                "LIMIT_LIMIT_HEADER is not a header name",
            ),
            (
                &[("GRPC_SERVER_USE_TLS", "true")],
                "GRPC_SERVER_TLS_CERT is not set, but GRPC_SERVER_USE_TLS is: expected the path of a PEM file",
            ),
            (
                &[("REDIS_URL", "main"), ("REDIS_TYPE", "SENTINEL")],
                "REDIS_URL lacks sentinels: expected `master,host:26379,host:26379`",
            ),
            (
                &[("REDIS_URL", "a:1"), ("REDIS_TYPE", "ring")],
                "REDIS_TYPE is invalid: expected SINGLE, SENTINEL or CLUSTER",
            ),
            (
                &[("REDIS_URL", "redis://me:x@a:1"), ("REDIS_AUTH", "me:y")],
                "REDIS_AUTH differs from the credentials in REDIS_URL: unset one of them",
            ),
            (
                &[("REDIS_URL", "/run/redis.sock"), ("REDIS_TLS", "true")],
                "REDIS_TLS cannot be used with a unix socket",
            ),
            (
                &[("REDIS_URL", "redis+unix:///run/redis.sock"), ("REDIS_TLS", "true")],
                "REDIS_TLS cannot be used with a unix socket",
            ),
            (
                &[("REDIS_URL", "redis://a:1"), ("REDIS_TYPE", "cluster")],
                "REDIS_URL has a scheme, which excludes REDIS_TYPE",
            ),
        ] {
            assert_eq!(problem(variables), expected);
        }
        let secret = problem(&[("REDIS_URL", "a:port"), ("REDIS_AUTH", "hidden")]);
        assert!(
            secret.starts_with("REDIS_URL and the variables beside it are not a valid address: ")
        );
        assert!(!secret.contains("hidden"), "{secret}");
    }

    #[test]
    fn variables_of_a_second_redis_are_warnings() {
        for end in ["", "_URL", "_TYPE", "_AUTH", "_TLS", "_POOL_SIZE", "_SENTINEL_AUTH"] {
            let name = format!("REDIS_PERSECOND{end}");
            let warnings = deployed(&[(&name, "x")]).unwrap().warnings;
            let expected = format!("{name} has no effect: limits per second use the same store");
            assert_eq!(warnings, [expected]);
        }
    }

    #[test]
    fn debug_hides_the_password() {
        let deployment = deployed(&[("REDIS_URL", "a:1"), ("REDIS_AUTH", "hidden")]).unwrap();
        assert!(!format!("{deployment:?}").contains("hidden"));
    }
}
