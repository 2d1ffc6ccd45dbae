use std::{
    net::{Ipv4Addr, SocketAddr},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use pacegate::{MemoryStore, PolicySet, policy::FailureMode};
use pacegate_http::Headers;
use pacegate_redis::Layout;

use schemars::JsonSchema;
use serde::Deserialize;

use super::{
    Bounds,
    layout::{LayoutError, check_cluster, supported},
};
use crate::{
    envoy::{EnvoyOptions, Rules},
    listeners::{ListenAddresses, ListenerId},
};

/// A checked configuration. Fields that are absent from the file are as in [`Settings::new`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Settings {
    /// The store for counters.
    pub store: StoreSettings,
    /// The layout of the counters on Redis or Valkey.
    pub layout: Layout,
    /// True if every denied request reaches Redis or Valkey.
    pub count_denied: bool,
    /// All policies, including those of the rules for Envoy's descriptors.
    pub policies: PolicySet,
    /// True if the configuration states that it has no policies, instead of just having none.
    pub(crate) may_limit_nothing: bool,
    /// The rules for Envoy's descriptors.
    pub(crate) rules: Arc<Rules>,
    /// The failure mode of inline limits, such as those of `CL.THROTTLE`.
    pub ad_hoc_failure: FailureMode,
    /// True if all policies are in shadow mode.
    pub shadow: bool,
    /// The addresses of the listeners.
    pub listen: ListenAddresses,
    /// Names that HTTP requests may have in their `Host`, in small letters, besides `localhost` and addresses.
    pub hosts: Vec<String>,
    /// The rate limit headers of HTTP responses.
    pub headers: Headers,
    /// True if HTTP denials are problem details with the key.
    pub problem_details: bool,
    /// The way that several descriptors of one Envoy request are charged.
    /// Default: independently for rules of envoyproxy/ratelimit files, together for policies.
    pub descriptors: Option<Descriptors>,
    /// Options for Envoy's descriptors.
    pub(crate) envoy: EnvoyOptions,
    /// The folder of rules, if the server was started in the place of envoyproxy/ratelimit.
    pub ratelimit: Option<PathBuf>,
    /// TLS and API keys.
    pub security: Security,
    /// Limits on the resources that clients can use.
    pub bounds: Bounds,
}

/// The store for counters. Its `Debug` form shows no password.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum StoreSettings {
    /// In this process.
    Memory {
        /// Maximum number of keys.
        max_keys: usize,
    },
    /// On Redis or Valkey.
    Redis {
        /// Any address that `pacegate_redis::RedisUrl` parses. It may contain a password: mask it before printing.
        url: String,
        /// The prefix of all keys.
        prefix: String,
        /// The deadline for a call.
        deadline: Duration,
    },
}

/// The address of a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Bind {
    /// The listener is off.
    Off,
    /// This address; port 0 is a free port.
    At(SocketAddr),
}

/// The way that several descriptors of one Envoy request are charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Descriptors {
    /// All or none of them: a denied request consumes nothing.
    Together,
    /// Each separately, as envoyproxy/ratelimit does: allowed descriptors are charged even if another is denied, and
    /// denied hits are counted.
    Independent,
}

/// TLS and API keys.
#[derive(Clone, Debug, Default)]
#[non_exhaustive]
pub struct Security {
    /// The certificate of the server, and the certificate authority of its clients.
    pub tls: Option<TlsFiles>,
    /// Overrides `tls` for the gRPC listener.
    pub grpc_tls: Option<TlsFiles>,
    /// API keys. Empty means no authentication.
    pub credentials: Vec<Credential>,
    /// Allows public addresses without TLS and API keys, for networks that are protected otherwise.
    pub insecure: bool,
}

/// PEM files, reloaded when they change.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TlsFiles {
    /// The certificate chain, starting with the server's own certificate.
    pub certificate: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// The certificate authority for client certificates. `None`: clients need none.
    pub client_ca: Option<PathBuf>,
}

/// An API key, stored as a hash.
#[derive(Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Credential {
    /// For logs.
    pub name: String,
    /// SHA-256 of the key.
    pub sha256: [u8; 32],
    /// Its permissions.
    pub scope: Scope,
    /// The domains it may be used for; `None` for all.
    pub domains: Option<Vec<String>>,
    /// True if it allows inline limits.
    pub inline: bool,
}

/// The permissions of an API key.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum Scope {
    /// Checks, peeks, acquire and release.
    #[default]
    Check,
    /// Also resets, refunds, reloads, and everything about all keys.
    Admin,
}

impl Settings {
    /// Creates settings with these policies and the defaults: the memory store, and all listeners on the loopback.
    pub fn new(policies: PolicySet) -> Self {
        Self {
            store: StoreSettings::default(),
            layout: Layout::native(),
            count_denied: false,
            policies,
            may_limit_nothing: false,
            rules: Arc::default(),
            ad_hoc_failure: FailureMode::default(),
            shadow: false,
            listen: ListenAddresses::default(),
            hosts: Vec::new(),
            headers: Headers::default(),
            problem_details: false,
            descriptors: None,
            envoy: EnvoyOptions::default(),
            ratelimit: None,
            security: Security::default(),
            bounds: Bounds::default(),
        }
    }

    /// Returns an error if the store cannot count a limit because of its layout.
    pub(crate) fn check_layout(&self) -> Result<(), LayoutError> {
        let StoreSettings::Redis { url, .. } = &self.store else { return Ok(()) };
        check_cluster(url, &self.layout)?;
        for policy in self.policies.policies() {
            let overrides = policy.overrides.iter().map(|other| &other.limits);
            for limits in std::iter::once(&policy.limits).chain(overrides) {
                supported(&self.layout, limits, policy.lease.is_some()).map_err(|error| {
                    LayoutError::Policy { policy: policy.name, error: Box::new(error) }
                })?;
            }
        }
        Ok(())
    }

    /// Returns whether descriptors in this domain are charged independently.
    pub(crate) fn counts_independently(&self, domain: &[u8]) -> bool {
        match self.descriptors {
            Some(descriptors) => descriptors == Descriptors::Independent,
            None => self.rules.domain(domain).is_some(),
        }
    }

    /// Returns the number of policies that do not come from rules.
    pub(crate) fn own_policies(&self) -> usize {
        self.policies.policies().len().saturating_sub(self.rules.policies())
    }
}

impl Security {
    /// Returns the certificate files of a listener.
    pub(crate) fn tls_of(&self, listener: ListenerId) -> Option<&TlsFiles> {
        let own = self.grpc_tls.as_ref().filter(|_| listener == ListenerId::Grpc);
        own.or(self.tls.as_ref())
    }

    /// Returns what a listener lacks to be reachable from other machines.
    pub(crate) fn missing(&self, listener: ListenerId) -> Option<&'static str> {
        let tls = self.tls_of(listener);
        let has_clients = tls.is_some_and(|tls| tls.client_ca.is_some());
        match (tls, has_clients || !self.credentials.is_empty()) {
            _ if self.insecure => None,
            (Some(_), true) => None,
            (None, false) => Some("certificates (tls) and API keys (keys)"),
            (None, true) => Some("certificates (tls)"),
            (Some(_), false) => Some("API keys (keys) or the clients' authority (tls.client_ca)"),
        }
    }
}

impl Default for StoreSettings {
    fn default() -> Self {
        Self::Memory { max_keys: MemoryStore::DEFAULT_MAX_KEYS }
    }
}

/// Prints the address without its secrets.
impl std::fmt::Display for StoreSettings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Memory { max_keys } => write!(f, "memory for up to {max_keys} keys"),
            Self::Redis { url, .. } => match url.parse::<pacegate_redis::RedisUrl>() {
                Ok(url) => url.fmt(f),
                Err(_) => f.write_str("Redis"),
            },
        }
    }
}

impl std::fmt::Display for Bind {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Off => f.write_str("off"),
            Self::At(address) => address.fmt(f),
        }
    }
}

impl Bind {
    pub(crate) const fn loopback(port: u16) -> Self {
        Self::At(SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), port))
    }
}

impl std::fmt::Debug for StoreSettings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Memory { max_keys } => {
                f.debug_struct("Memory").field("max_keys", max_keys).finish()
            }
            Self::Redis { url, prefix, deadline } => f
                .debug_struct("Redis")
                .field("url", &super::mask::masked(url, 0).0)
                .field("prefix", prefix)
                .field("deadline", deadline)
                .finish(),
        }
    }
}

impl std::fmt::Debug for Credential {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { name, scope, domains, .. } = self;
        f.debug_struct("Credential")
            .field("name", name)
            .field("scope", scope)
            .field("domains", domains)
            .finish()
    }
}
