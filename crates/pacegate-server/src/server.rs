//! The service: listeners over one gate, from the first bind to the last answer.

use std::{fmt, future::Future, io, net::SocketAddr, num::NonZeroUsize, sync::Arc, time::Duration};

use pacegate::Stats;
use tokio::{
    task::JoinSet,
    time::{Instant, interval, sleep, timeout},
};

use crate::{
    config::{Bind, Settings},
    envoy::{self, Grpc},
    gate::{Gate, OpenError, State},
    http::{self, HttpService},
    live,
    metrics::{ListenerMetrics, Metrics},
    outage::StoreOutage,
    reload::Reloader,
    resp::{self, RespService},
    service::{
        Drain, DrainSwitch, Exposed, Listener, Protocol, Tls, TlsError, Workers, check_exposure,
        connections_each,
    },
    source::ConfigSource,
};

/// A service that is bound and not yet running.
#[derive(Debug)]
pub struct Server {
    gate: Arc<Gate>,
    http: Option<Entrance>,
    grpc: Option<Entrance>,
    resp: Option<Entrance>,
}

/// A listener, and the certificates that it shows.
#[derive(Debug)]
struct Entrance {
    listener: Arc<Listener>,
    tls: Option<Arc<Tls>>,
}

/// Why a service cannot start.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the message of each variant documents it")]
pub enum StartError {
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error(transparent)]
    Tls(#[from] TlsError),
    #[error("cannot listen for {name} on {address}: {error}")]
    Bind { name: &'static str, address: SocketAddr, error: io::Error },
    #[error(transparent)]
    Exposed(#[from] Exposed),
}

/// Where a listener is, for whoever started it.
#[derive(Clone, Copy, Debug)]
pub struct Endpoint {
    /// `http`, `grpc` or `resp`.
    pub name: &'static str,
    /// The address with its port.
    pub address: SocketAddr,
    /// True if connections use TLS.
    pub is_tls: bool,
}

/// The time to wait for the store at the start, and for the return of leases at the end.
const STORE_TIMEOUT: Duration = Duration::from_secs(1);
/// The interval between checks of the store for the log.
const STORE_CHECK_INTERVAL: Duration = Duration::from_millis(200);
/// The minimum time between two log lines about decisions by failure modes.
const DEGRADED_LOG_INTERVAL: Duration = Duration::from_secs(10);

impl Server {
    /// Opens the store, reads certificates and binds every listener.
    pub fn bind(mut settings: Settings) -> Result<Self, StartError> {
        check_exposure(&settings)?;
        let listeners = [settings.http, settings.grpc, settings.resp];
        let listeners = listeners.iter().filter(|bind| matches!(bind, Bind::At(_))).count();
        let bounds = &mut settings.bounds;
        bounds.connections = connections_each(bounds.connections, listeners);
        let http = bind("http", settings.http, &settings, http::ALPN)?;
        let grpc = bind("grpc", settings.grpc, &settings, &[b"h2"])?;
        let resp = bind("resp", settings.resp, &settings, &[])?;
        let gate = Arc::new(Gate::open(settings)?);
        Ok(Self { gate, http, grpc, resp })
    }

    /// Returns the settings in use.
    pub fn settings(&self) -> Arc<Settings> {
        self.gate.revision().settings.clone()
    }

    /// Returns a reloader for the source that the settings came from, and for the certificates.
    pub fn reloader(&self, source: ConfigSource) -> Arc<Reloader> {
        let certificates = self.entrances().filter_map(|entrance| entrance.tls.clone());
        Arc::new(Reloader::new(self.gate.clone(), source, certificates.collect()))
    }

    /// Returns the addresses of the listeners.
    pub fn endpoints(&self) -> Vec<Endpoint> {
        let endpoint = |entrance: &Entrance| Endpoint {
            name: entrance.listener.name(),
            address: entrance.listener.address(),
            is_tls: entrance.tls.is_some(),
        };
        self.entrances().map(endpoint).collect()
    }

    fn entrances(&self) -> impl Iterator<Item = &Entrance> {
        [&self.http, &self.grpc, &self.resp].into_iter().flatten()
    }

    /// Waits up to [`STORE_TIMEOUT`] until the store answers. Without it the server starts too, and failure modes
    /// apply.
    pub async fn wait_for_store(&self) {
        let last = Instant::now() + STORE_TIMEOUT;
        while let Some(outage) = StoreOutage::of(&self.gate) {
            if Instant::now() >= last {
                tracing::warn!("cannot use the store: {outage}");
                return;
            }
            sleep(Duration::from_millis(2)).await;
        }
    }

    /// Serves with so many threads, or one for each processor, until `end`. Then answers what was begun and returns.
    /// `false` if some connections had to be cut.
    pub async fn run(
        self,
        reloader: Arc<Reloader>,
        threads: Option<NonZeroUsize>,
        end: impl Future<Output = ()>,
    ) -> io::Result<bool> {
        let bounds = self.gate.revision().settings.bounds;
        let (switch, drain) = DrainSwitch::new();
        let mut accepting =
            Accepting { tasks: JoinSet::new(), workers: Arc::new(Workers::start(threads)?), drain };
        self.accept(&mut accepting, reloader);
        let store_log = tokio::spawn(log_store_changes(self.gate.clone()));
        let history = tokio::spawn(live::watch(self.gate.clone()));
        end.await;
        store_log.abort();
        history.abort();
        tracing::info!("shutting down: draining in-flight requests");
        self.gate.drain();
        switch.turn();
        while accepting.tasks.join_next().await.is_some() {}
        let deadline = Instant::now() + bounds.drain_timeout;
        let mut all = true;
        for entrance in self.entrances() {
            all &= entrance.listener.emptied(deadline.duration_since(Instant::now())).await;
        }
        self.return_leases().await;
        Ok(all)
    }

    /// Returns the leased units that were not spent, so that other processes can spend them.
    async fn return_leases(&self) {
        if let State::Redis(store) = self.gate.state() {
            match timeout(STORE_TIMEOUT, store.return_leases()).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => tracing::warn!(%error, "cannot return leased units"),
                Err(_) => tracing::warn!("timed out while returning leased units"),
            }
        }
    }

    fn accept(&self, accepting: &mut Accepting, reloader: Arc<Reloader>) {
        let counted = |entrance: &Option<Entrance>, codes| {
            let listener = &entrance.as_ref()?.listener;
            let metrics = ListenerMetrics::new(listener.name(), codes);
            Some(Arc::new(metrics.on(listener.clone())))
        };
        let http = counted(&self.http, &http::CODES);
        let grpc = counted(&self.grpc, &envoy::CODES);
        let resp = counted(&self.resp, &resp::CODES);
        let all = [&http, &grpc, &resp].into_iter().flatten().cloned().collect();
        let metrics = Arc::new(Metrics::new(self.gate.clone(), all));
        let gate = || self.gate.clone();
        if let (Some(entrance), Some(counted)) = (&self.http, http) {
            let reload = Arc::new(move || reloader.reload());
            accepting.spawn(entrance, HttpService::new(gate(), metrics, counted, reload));
        }
        if let (Some(entrance), Some(counted)) = (&self.grpc, grpc) {
            accepting.spawn(entrance, Grpc::new(gate(), counted));
        }
        if let (Some(entrance), Some(counted)) = (&self.resp, resp) {
            accepting.spawn(entrance, RespService::new(gate(), counted));
        }
    }
}

/// What accepts connections, and what serves them.
struct Accepting {
    tasks: JoinSet<io::Result<()>>,
    workers: Arc<Workers>,
    drain: Drain,
}

impl Accepting {
    fn spawn<P: Protocol>(&mut self, entrance: &Entrance, service: P) {
        let Entrance { listener, tls } = entrance;
        let (listener, tls, service) = (listener.clone(), tls.clone(), Arc::new(service));
        let (workers, drain) = (self.workers.clone(), self.drain.clone());
        self.tasks.spawn(async move { listener.run(service, tls, &workers, drain).await });
    }
}

/// Logs when the connection to the store is lost or restored, and when the error changes.
async fn log_store_changes(gate: Arc<Gate>) {
    let mut ticks = interval(STORE_CHECK_INTERVAL);
    let mut before = StoreOutage::of(&gate);
    let mut degraded = DegradedLog::default();
    loop {
        ticks.tick().await;
        let news = degraded.due(&gate.revision().engine.stats(), Instant::now());
        if let Some((decisions, reason)) = news {
            tracing::warn!(decisions, reason, "decisions made by failure modes, without the store");
        }
        let now = StoreOutage::of(&gate);
        match (&before, &now) {
            (None, Some(outage)) => tracing::warn!("lost connection to the store: {outage}"),
            (Some(_), None) => tracing::info!("connected to the store again"),
            (Some(before), Some(outage)) if before.servers != outage.servers => {
                tracing::debug!("cannot use the store: {outage}");
            }
            _ => {}
        }
        before = now;
    }
}

/// Limits how often decisions without the store are logged.
#[derive(Debug, Default)]
struct DegradedLog {
    logged: u64,
    last: Option<Instant>,
}

impl DegradedLog {
    /// Returns the number of decisions to log now, and the last error of the store.
    fn due(&mut self, stats: &Stats, now: Instant) -> Option<(u64, String)> {
        let policies = stats.policies.iter().chain([&stats.ad_hoc]);
        let total: u64 = policies.map(|policy| policy.degraded).sum();
        // A reload may have removed a policy, with its count.
        self.logged = self.logged.min(total);
        let is_early =
            self.last.is_some_and(|last| now.duration_since(last) < DEGRADED_LOG_INTERVAL);
        if total == self.logged || is_early {
            return None;
        }
        let news = total - self.logged;
        (self.logged, self.last) = (total, Some(now));
        let reason = stats.last_store_failure.as_ref().map(ToString::to_string);
        Some((news, reason.unwrap_or_default()))
    }
}

/// Binds a listener, unless it is off.
fn bind(
    name: &'static str,
    bind: Bind,
    settings: &Settings,
    protocols: &'static [&'static [u8]],
) -> Result<Option<Entrance>, StartError> {
    let Bind::At(address) = bind else { return Ok(None) };
    let listener = Listener::bind(name, address, settings.bounds.connections);
    let listener = listener.map_err(|error| StartError::Bind { name, address, error })?;
    let tls = settings.security.tls_of(name).cloned();
    let tls = tls.map(|files| Tls::load(files, protocols)).transpose()?;
    Ok(Some(Entrance { listener: Arc::new(listener), tls: tls.map(Arc::new) }))
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, address, is_tls } = self;
        let tls = if *is_tls { " with TLS" } else { "" };
        match *name {
            "http" => {
                write!(f, "http listens on http{}://{address}", if *is_tls { "s" } else { "" })
            }
            _ => write!(f, "{name} listens on {address}{tls}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use pacegate::{Limit, Limiter, StoreError};

    use super::*;

    #[test]
    fn degraded_decisions_are_logged_once_in_ten_seconds() {
        let mut stats = Limiter::memory(Limit::per_minute(1)).stats();
        let (mut degraded, start) = (DegradedLog::default(), Instant::now());
        let mut look = |policy, ad_hoc, seconds| {
            (stats.policies[0].degraded, stats.ad_hoc.degraded) = (policy, ad_hoc);
            stats.last_store_failure = Some(StoreError::TimedOut);
            degraded.due(&stats, start + Duration::from_secs(seconds))
        };
        let late = |decisions| Some((decisions, "the store did not answer in time".to_owned()));
        assert_eq!(look(0, 0, 0), None);
        assert_eq!(look(2, 0, 1), late(2));
        assert_eq!(look(5, 4, 10), None);
        assert_eq!(look(6, 4, 11), late(8));
        assert_eq!(look(6, 4, 30), None);
        assert_eq!(look(1, 0, 40), None, "a reload removed a policy");
        assert_eq!(look(2, 0, 50), late(1));
    }
}
