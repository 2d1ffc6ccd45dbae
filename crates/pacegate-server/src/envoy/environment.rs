//! A deployment of envoyproxy/ratelimit, described by its environment variables, so that migrating only means replacing
//! the image.

use std::{
    net::{SocketAddr, ToSocketAddrs},
    path::PathBuf,
};

use super::{
    file::shorten,
    options::{EnvoyOptions, HeaderNames},
    rules::runtime_path,
    stats::prefer_ipv4,
    variables::{EnvironmentError, Result, Variables},
    xds::XdsOptions,
};
use crate::{
    config::{Bind, Settings, StoreSettings, TlsFiles},
    listeners::{ListenAddresses, ListenerId},
};

/// The configuration of a deployment.
#[derive(Clone, Debug)]
pub(crate) struct Deployment {
    /// The folder with the rules. `None`: the rules come from config servers.
    pub(crate) folder: Option<PathBuf>,
    /// Log level and format.
    pub(crate) log: Logging,
    /// Variables without effect, and the reason.
    pub(crate) warnings: Vec<String>,
    options: EnvoyOptions,
    store: Option<StoreSettings>,
    http: Bind,
    grpc: Bind,
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

/// Variables that, like `CONFIG_TYPE`, identify a deployment of envoyproxy/ratelimit.
const SIGNS: [&str; 5] = [
    "RUNTIME_ROOT",
    "RUNTIME_SUBDIRECTORY",
    "RUNTIME_APPDIRECTORY",
    "RUNTIME_IGNOREDOTFILES",
    "RUNTIME_WATCH_ROOT",
];

impl Deployment {
    /// Reads the variables. Returns `None` if this is not a deployment of envoyproxy/ratelimit: the program is not
    /// named `ratelimit`, none of the [`SIGNS`] is set, and `CONFIG_TYPE` is not a type of theirs.
    pub(crate) fn read(
        lookup: impl Fn(&str) -> Option<String>,
        is_named: bool,
    ) -> Result<Option<Self>> {
        let variables = Variables(lookup);
        // Other programs have a variable of this name too, with other values.
        let config_type = variables.text("CONFIG_TYPE");
        let has_type = config_type.is_some_and(|it| ["FILE", "GRPC_XDS_SOTW"].contains(&&*it));
        if !is_named && !has_type && SIGNS.into_iter().all(|name| variables.text(name).is_none()) {
            return Ok(None);
        }
        variables.reject_unsupported()?;
        Ok(Some(Self {
            folder: variables.folder()?,
            options: variables.options(is_named)?,
            log: variables.logging()?,
            warnings: variables.warnings(),
            store: variables.store()?,
            http: Bind::At(variables.address("HOST", "PORT")?),
            grpc: Bind::At(variables.address("GRPC_HOST", "GRPC_PORT")?),
            shadow: variables.switch("SHADOW_MODE")?,
        }))
    }

    /// Overrides `settings`, except for the rules, whose files may change.
    pub(crate) fn apply(&self, settings: &mut Settings) {
        if let Some(store) = &self.store {
            settings.store = store.clone();
        }
        settings.listen = ListenAddresses::OFF;
        settings.listen[ListenerId::Http] = self.http;
        settings.listen[ListenerId::Grpc] = self.grpc;
        settings.shadow |= self.shadow;
        settings.security.grpc_tls.clone_from(&self.options.tls);
        settings.envoy.clone_from(&self.options);
        let servers = self.options.xds.as_ref().map(XdsOptions::addresses).unwrap_or_default();
        settings.ratelimit = Some(match &self.folder {
            Some(folder) => format!("the files in {}", folder.display()),
            None => format!("the configuration of {servers}"),
        });
    }
}

impl<F: Fn(&str) -> Option<String>> Variables<F> {
    /// Rejects settings that this server cannot honour.
    fn reject_unsupported(&self) -> Result<()> {
        if self.is("BACKEND_TYPE", "memcache") {
            let problem = "is memcache, which is not supported: use Redis or Valkey, or unset it and \
                           REDIS_URL to count in memory";
            return Err(EnvironmentError::new("BACKEND_TYPE", problem));
        }
        if self.text("GRPC_UDS").is_some() {
            let problem = "is a unix socket, which is not supported: set GRPC_HOST and GRPC_PORT";
            return Err(EnvironmentError::new("GRPC_UDS", problem));
        }
        Ok(())
    }

    fn folder(&self) -> Result<Option<PathBuf>> {
        match &*self.text_or_default("CONFIG_TYPE") {
            "FILE" => {
                let [root, folder, app] =
                    ["RUNTIME_ROOT", "RUNTIME_SUBDIRECTORY", "RUNTIME_APPDIRECTORY"]
                        .map(|name| self.text_or_default(name));
                Ok(Some(runtime_path(&root, &folder, &app)))
            }
            "GRPC_XDS_SOTW" => Ok(None),
            _ => {
                let problem = "is invalid: expected FILE or GRPC_XDS_SOTW";
                Err(EnvironmentError::new("CONFIG_TYPE", problem))
            }
        }
    }

    fn options(&self, is_named: bool) -> Result<EnvoyOptions> {
        let name = |variable| {
            let name = self.text_or_default(variable).try_into();
            name.map_err(|problem| EnvironmentError::new(variable, format!("has an {problem}")))
        };
        let headers = self.switch("LIMIT_RESPONSE_HEADERS_ENABLED")?.then(|| {
            Ok(HeaderNames {
                limit: name("LIMIT_LIMIT_HEADER")?,
                remaining: name("LIMIT_REMAINING_HEADER")?,
                reset: name("LIMIT_RESET_HEADER")?,
            })
        });
        Ok(EnvoyOptions {
            merge_domains: self.switch("MERGE_DOMAIN_CONFIG")?,
            quota_mode: self.switch("QUOTA_MODE")?,
            dynamic_metadata: self.switch("RESPONSE_DYNAMIC_METADATA")?,
            cache_denials: self.cache_bytes()? > 0,
            response_headers: headers.transpose()?,
            needs_rules: self.switch("HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED")?,
            tls: self.tls()?,
            statistics: self.statistics(is_named)?,
            xds: self.folder()?.is_none().then(|| XdsOptions::read(self)).transpose()?,
        })
    }

    fn cache_bytes(&self) -> Result<u64> {
        let name = "LOCAL_CACHE_SIZE_IN_BYTES";
        let problem = "is invalid: expected a number of bytes; 0 turns the cache off";
        self.text_or_default(name).parse().map_err(|_| EnvironmentError::new(name, problem))
    }

    fn logging(&self) -> Result<Logging> {
        let level = match &*self.text_or_default("LOG_LEVEL").to_ascii_lowercase() {
            "panic" | "fatal" | "error" => "error",
            "warn" | "warning" => "warn",
            "info" => "info",
            "debug" => "debug",
            "trace" => "trace",
            _ => {
                let problem = "is invalid: expected ERROR, WARN, INFO, DEBUG or TRACE";
                return Err(EnvironmentError::new("LOG_LEVEL", problem));
            }
        };
        Ok(Logging { level, json: self.is("LOG_FORMAT", "json") })
    }

    /// Parses the number of a port.
    pub(super) fn port(&self, name: &'static str) -> Result<u16> {
        let problem = "is not a port: expected a number from 0 to 65535";
        let number = self.text_or_default(name).parse();
        number.map_err(|_| EnvironmentError::new(name, problem))
    }

    /// Resolves the address of a listener.
    pub(super) fn address(&self, host: &'static str, port: &'static str) -> Result<SocketAddr> {
        let number = self.port(port)?;
        let name = self.text_or_default(host);
        let found = (name.as_str(), number).to_socket_addrs().ok();
        found.and_then(prefer_ipv4).ok_or_else(|| {
            let name = shorten(&name, 40);
            let problem = format!(
                "is `{name}`: expected an address or a name that resolves, such as 0.0.0.0"
            );
            EnvironmentError::new(host, problem)
        })
    }

    fn tls(&self) -> Result<Option<TlsFiles>> {
        if !self.switch("GRPC_SERVER_USE_TLS")? {
            return Ok(None);
        }
        let file = |name| {
            let problem = "is not set, but GRPC_SERVER_USE_TLS is: expected the path of a PEM file";
            let path = self.text(name).map(PathBuf::from);
            path.ok_or_else(|| EnvironmentError::new(name, problem))
        };
        let client_ca = self.text("GRPC_CLIENT_TLS_CACERT").map(PathBuf::from);
        let client_name = self.text("GRPC_CLIENT_TLS_SAN");
        if client_name.is_some() && client_ca.is_none() {
            let problem = "needs GRPC_CLIENT_TLS_CACERT: without it, clients need no certificate";
            return Err(EnvironmentError::new("GRPC_CLIENT_TLS_SAN", problem));
        }
        Ok(Some(TlsFiles {
            certificate: file("GRPC_SERVER_TLS_CERT")?,
            key: file("GRPC_SERVER_TLS_KEY")?,
            client_ca,
            client_name,
        }))
    }
}

#[cfg(test)]
mod tests {
    use std::{collections::HashMap, path::Path};

    use pacegate::PolicySet;

    use super::*;

    fn read(variables: &[(&str, &str)]) -> Result<Option<Deployment>> {
        let variables: HashMap<_, _> = variables.iter().copied().collect();
        Deployment::read(|name| variables.get(name).map(|value| (*value).to_owned()), false)
    }

    /// Creates a deployment with these variables and a directory of rules.
    fn deployed(variables: &[(&str, &str)]) -> Result<Deployment> {
        let files = [("RUNTIME_ROOT", "/data"), ("RUNTIME_SUBDIRECTORY", "ratelimit")];
        read(&[&files, variables].concat()).map(|deployment| deployment.unwrap())
    }

    fn folder(deployment: &Deployment) -> &Path {
        deployment.folder.as_deref().unwrap()
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
        assert_eq!(folder(&deployment), Path::new("/data/ratelimit/config"));
        let options = EnvoyOptions { statistics: None, ..deployment.options.clone() };
        assert_eq!(options, EnvoyOptions::default());
        assert!(deployment.warnings.is_empty());
        assert_eq!(deployment.log, Logging { level: "warn", json: false });
        let mut settings = Settings::new(PolicySet::new([]).unwrap());
        deployment.apply(&mut settings);
        assert_eq!(settings.listen[ListenerId::Http], Bind::At(([0, 0, 0, 0], 8080).into()));
        assert_eq!(settings.listen[ListenerId::Grpc], Bind::At(([0, 0, 0, 0], 8081).into()));
        assert_eq!(settings.store, StoreSettings::default());
        assert!(!settings.shadow && settings.security.grpc_tls.is_none());
        assert_eq!(settings.listen[ListenerId::Resp], Bind::Off);
        assert_eq!(settings.ratelimit, Some("the files in /data/ratelimit/config".into()));
    }

    #[test]
    fn the_name_of_the_program_or_any_sign_selects_the_deployment() {
        let default = PathBuf::from("/srv/runtime_data/current/config");
        let named = Deployment::read(|_| None, true).unwrap().unwrap();
        assert_eq!(folder(&named), default);
        let signs = [("CONFIG_TYPE", "FILE"), ("RUNTIME_WATCH_ROOT", "true")];
        for sign in signs {
            assert_eq!(folder(&read(&[sign]).unwrap().unwrap()), default, "{sign:?}");
        }
        assert!(read(&[("CONFIG_TYPE", "production")]).unwrap().is_none(), "of another program");
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
            ("GRPC_CLIENT_TLS_SAN", "envoy"),
            ("REDIS_URL", "redis:6379"),
            ("REDIS_SOCKET_TYPE", "tcp"),
            ("CACHE_KEY_PREFIX", "rl:"),
            ("REDIS_POOL_SIZE", "9"),
            ("REDIS_TIMEOUT", "2s"),
            ("LOCAL_CACHE_SIZE_IN_BYTES", "1000"),
            ("RESPONSE_DYNAMIC_METADATA", "true"),
        ])
        .unwrap();
        assert_eq!(folder(&deployment), Path::new("/data/ratelimit/rules"));
        assert_eq!(deployment.log, Logging { level: "debug", json: true });
        assert!(deployment.options.merge_domains && deployment.options.quota_mode);
        let headers = deployment.options.response_headers.as_ref().unwrap();
        assert_eq!(
            (headers.limit.as_str(), headers.reset.as_str()),
            ("RateLimit-Limit", "X-Reset")
        );
        assert_eq!(
            deployment.warnings,
            ["REDIS_POOL_SIZE has no effect: requests share connections"]
        );
        let mut settings = Settings::new(PolicySet::new([]).unwrap());
        deployment.apply(&mut settings);
        assert_eq!(settings.listen[ListenerId::Http], Bind::At("[::1]:9090".parse().unwrap()));
        assert_eq!(settings.listen[ListenerId::Grpc], Bind::At(([127, 0, 0, 1], 9091).into()));
        assert!(settings.shadow);
        assert!(settings.security.tls.is_none());
        let tls = settings.security.grpc_tls.unwrap();
        assert_eq!((tls.key, tls.client_ca), ("/tls/key".into(), Some("/tls/ca".into())));
        assert_eq!(tls.client_name.as_deref(), Some("envoy"));
        let StoreSettings::Redis { url, prefix, deadline } = settings.store else { panic!() };
        assert_eq!((&*url, &*prefix), ("redis://redis:6379", "rl:"));
        assert_eq!(deadline, std::time::Duration::from_secs(2));
        assert!(settings.envoy.dynamic_metadata && settings.envoy.cache_denials);
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
                &[("CONFIG_TYPE", "GRPC_XDS_DELTA")],
                "CONFIG_TYPE is invalid: expected FILE or GRPC_XDS_SOTW",
            ),
            (
                &[("REDIS_URL", "a:1"), ("REDIS_TIMEOUT", "fast")],
                "REDIS_TIMEOUT is invalid: expected a duration, such as 100ms or 10s",
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
            (
                &[("HOST", "no host")],
                "HOST is `no host`: expected an address or a name that resolves, such as 0.0.0.0",
            ),
            (
                &[("LIMIT_RESPONSE_HEADERS_ENABLED", "true"), ("LIMIT_LIMIT_HEADER", "a b")],
                "LIMIT_LIMIT_HEADER has an invalid header name: expected letters, digits and dashes, such as \
                 X-RateLimit-Limit",
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
    fn a_name_of_client_certificates_needs_their_authority() {
        let problem = problem(&[
            ("GRPC_SERVER_USE_TLS", "true"),
            ("GRPC_SERVER_TLS_CERT", "/tls/cert"),
            ("GRPC_SERVER_TLS_KEY", "/tls/key"),
            ("GRPC_CLIENT_TLS_SAN", "envoy"),
        ]);
        let expected = "needs GRPC_CLIENT_TLS_CACERT: without it, clients need no certificate";
        assert_eq!(problem, format!("GRPC_CLIENT_TLS_SAN {expected}"));
    }

    #[test]
    fn the_size_of_the_local_cache_is_a_number() {
        let name = "LOCAL_CACHE_SIZE_IN_BYTES";
        let problem = problem(&[(name, "1 MB")]);
        let expected = "is invalid: expected a number of bytes; 0 turns the cache off";
        assert_eq!(problem, format!("{name} {expected}"));
        assert!(!deployed(&[(name, "0")]).unwrap().options.cache_denials);
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
