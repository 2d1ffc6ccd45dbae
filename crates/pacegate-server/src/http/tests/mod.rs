//! Tests of the HTTP listener over its byte stream.

mod browser;
mod budget;
mod check;
mod connection;
mod descriptors;
mod documents;
mod hostile;
mod live;
mod page;
mod proxy;
mod rates;
mod report;
mod reservations;
mod units;

use std::{sync::Arc, time::Duration};

use pacegate::{Clock, Limiter, ManualClock, Policy, PolicySet, SharedLimiter, policy::Condition};
use pacegate_http::{HeaderStyle, ResetStyle};
use pacegate_redis::RedisStore;
use pacegate_testkit::servers;
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, duplex};

use super::{CODES, HttpService};
use crate::{
    active_config::{ActiveConfig, State},
    config::{Credential, Scope, Settings, StoreSettings},
    engine::Engine,
    metrics::{ListenerMetrics, Metrics},
    reload::ReloadError,
    service::{Drain, DrainSwitch, Protocol},
};

/// A server in memory with a manual clock, which starts at the beginning of 2026.
pub(super) struct Server {
    pub(super) service: Arc<HttpService>,
    pub(super) active: Arc<ActiveConfig>,
    pub(super) clock: ManualClock,
    pub(super) switch: DrainSwitch,
    drain: Drain,
}

/// A whole response.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Reply {
    pub(super) status: u16,
    pub(super) headers: Vec<(String, String)>,
    pub(super) body: String,
}

/// The policies of most tests: `user` with a limit per minute, and the domain `shop` with several policies.
pub(super) fn policies() -> PolicySet {
    let policy = |name: &str, limits: &[&str]| Policy::new(name, limits.iter().copied());
    PolicySet::new([
        policy("api", &["3/minute"]).matching("user", Condition::Present).per(["user"]),
        policy("login", &["2/minute", "3/hour"])
            .in_domain("shop")
            .matching("path", Condition::equal("/login"))
            .per(["ip"]),
        policy("shop", &["5/second burst 10"]).in_domain("shop").per(["ip"]),
        policy("jobs", &["2/minute concurrency"]).in_domain("jobs").per(["queue"]),
        policy("seed", &["5/minute"]).matching("userId", Condition::Present).per(["userId"]),
    ])
    .unwrap()
}

pub(super) fn credential(name: &str, key: &str, scope: Scope, domains: &[&str]) -> Credential {
    use sha2::{Digest, Sha256};
    let domains = domains.iter().map(|&domain| domain.to_owned()).collect::<Vec<_>>();
    let domains = (!domains.is_empty()).then_some(domains);
    let sha256 = Sha256::digest(key).into();
    Credential { name: name.to_owned(), sha256, scope, domains, inline: false }
}

impl Server {
    pub(super) fn new() -> Self {
        Self::with(Settings::new(policies()))
    }

    pub(super) fn with(settings: Settings) -> Self {
        let clock = ManualClock::new();
        Self::at(clock.clone(), clock, settings)
    }

    /// Uses another clock, which wraps the manual one.
    pub(super) fn at(clock: ManualClock, shown: impl Clock + Clone, settings: Settings) -> Self {
        let limiter =
            Limiter::builder().policies(settings.policies.clone()).clock(shown.clone()).build();
        let limiter = limiter.unwrap();
        let state = State::Memory(limiter.store().clone());
        let engine = Engine::memory(limiter).with_clock(shown.clone());
        Self::over(clock, shown, ActiveConfig::new(engine, state, settings))
    }

    /// Creates a service with its counters on a Redis server and a manual clock.
    pub(super) async fn over_redis(server: &servers::Server, settings: Settings) -> Self {
        let clock = ManualClock::new();
        let builder = RedisStore::builder(&server.url()).unwrap().deadline(Duration::from_secs(10));
        let store = builder.clock(clock.clone()).connect().await.unwrap();
        let limiter = SharedLimiter::new(store.clone(), settings.policies.clone());
        let engine = Engine::shared(limiter).with_clock(clock.clone());
        Self::over(clock.clone(), clock, ActiveConfig::new(engine, State::Redis(store), settings))
    }

    pub(super) fn over(clock: ManualClock, shown: impl Clock, active: ActiveConfig) -> Self {
        let active = Arc::new(active);
        let listener = Arc::new(ListenerMetrics::new("http", &CODES));
        let metrics = Arc::new(Metrics::new(active.clone(), vec![listener.clone()]));
        let replaced = active.clone();
        let reload = Arc::new(move || {
            let settings = (*replaced.revision().settings).clone();
            match settings.shadow {
                false => Ok(replaced.replace(settings)),
                true => Err(ReloadError::NoPolicies),
            }
        });
        let service = HttpService::new(active.clone(), metrics, listener, reload);
        let service = Arc::new(service.with_clock(shown));
        let (switch, drain) = DrainSwitch::new();
        Self { service, active, clock, switch, drain }
    }

    /// Opens a connection.
    pub(super) fn connect(&self) -> DuplexStream {
        let (client, server) = duplex(1 << 20);
        let (service, drain) = (self.service.clone(), self.drain.clone());
        let peer: std::net::SocketAddr = "192.0.2.1:1234".parse().unwrap();
        tokio::spawn(async move { service.serve(server, peer.into(), drain).await });
        client
    }

    /// Sends bytes and reads until the server closes the connection.
    pub(super) async fn exchange(&self, bytes: &[u8]) -> Vec<u8> {
        let mut client = self.connect();
        client.write_all(bytes).await.unwrap();
        let mut reply = Vec::new();
        client.read_to_end(&mut reply).await.unwrap();
        reply
    }

    /// Sends a request with a body. Each line of `headers` ends with CR LF.
    pub(super) async fn send(&self, line: &str, headers: &str, body: &str) -> Reply {
        let length = body.len();
        let head = format!("{line} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{headers}");
        let whole = format!("{head}Content-Length: {length}\r\n\r\n{body}");
        Reply::parse(&self.exchange(whole.as_bytes()).await)
    }

    pub(super) async fn get(&self, path: &str) -> Reply {
        self.send(&format!("GET {path}"), "", "").await
    }

    pub(super) async fn post(&self, path: &str, body: &str) -> Reply {
        self.send(&format!("POST {path}"), "Content-Type: application/json\r\n", body).await
    }

    pub(super) async fn check(&self, body: &str) -> Reply {
        self.post("/v1/check", body).await
    }
}

impl Reply {
    /// Parses bytes that contain a single response.
    pub(super) fn parse(bytes: &[u8]) -> Self {
        let text = String::from_utf8(bytes.to_vec()).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{text:?}"));
        let mut lines = head.split("\r\n");
        let status = lines.next().unwrap().split(' ').nth(1).unwrap().parse().unwrap();
        let headers = lines.map(|line| {
            let (name, value) = line.split_once(": ").unwrap();
            (name.to_ascii_lowercase(), value.to_owned())
        });
        let headers: Vec<_> = headers.filter(|(name, _)| name != "date").collect();
        let reply = Self { status, headers, body: body.to_owned() };
        if let Some(length) = reply.header("content-length").filter(|_| !reply.body.is_empty()) {
            assert_eq!(length, reply.body.len().to_string(), "{reply:?}");
        }
        reply
    }

    pub(super) fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(other, _)| other == name);
        found.map(|(_, value)| value.as_str())
    }

    pub(super) fn sorted_headers(&self) -> Vec<(&str, &str)> {
        let mut headers: Vec<(&str, &str)> =
            self.headers.iter().map(|(name, value)| (&**name, &**value)).collect();
        headers.sort_unstable();
        headers
    }

    pub(super) fn json(&self) -> serde_json::Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// Checks a problem response and returns the last part of its type.
    pub(super) fn problem(&self) -> String {
        assert_eq!(self.header("content-type"), Some("application/problem+json"), "{self:?}");
        let json = self.json();
        assert_eq!(json["status"], self.status, "{self:?}");
        assert!(json["title"].is_string() && json["detail"].is_string(), "{self:?}");
        json["type"].as_str().unwrap().strip_prefix("urn:pacegate:problem:").unwrap().to_owned()
    }
}
