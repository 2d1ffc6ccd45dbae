//! The server: binds the listeners, runs them, and drains them on shutdown.

use std::{fmt, future::Future, io, net::SocketAddr, num::NonZeroUsize, sync::Arc, time::Duration};

use pacegate::Stats;
use tokio::{
    runtime::Handle,
    task::JoinSet,
    time::{Instant, interval, sleep, timeout},
};

use crate::{
    active_config::{ActiveConfig, OpenError, State},
    blocks,
    config::{Bind, Settings},
    envoy::{Pages, Statsd},
    listeners::{Exposed, LISTENERS, ListenerEntry, StartContext, check_exposure},
    live,
    metrics::{ListenerMetrics, Metrics},
    outage::StoreOutage,
    reload::Reloader,
    service::{Drain, DrainSwitch, Listener, Protocol, Tls, TlsError, Workers, connections_each},
    source::ConfigSource,
};

/// A server that is bound but not running yet.
#[derive(Debug)]
pub struct Server {
    active: Arc<ActiveConfig>,
    listeners: Vec<BoundListener>,
    workers: Arc<Workers>,
}

/// A listener with its certificates.
pub(crate) struct BoundListener {
    entry: &'static ListenerEntry,
    listener: Arc<Listener>,
    tls: Option<Arc<Tls>>,
}

/// The reason why a server cannot start.
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
    #[error("cannot start the worker threads: {0}")]
    Workers(io::Error),
}

/// The address of a listener.
#[derive(Clone, Copy, Debug)]
pub struct Endpoint {
    /// `http`, `grpc` or `resp`.
    pub name: &'static str,
    /// The address with its port.
    pub address: SocketAddr,
    /// True if connections use TLS.
    pub is_tls: bool,
}

/// The time to wait for the store at the start, and for the return of leases and the delivery of events at the end.
const STORE_TIMEOUT: Duration = Duration::from_secs(1);
/// Maximum number of connections to a port with pages of envoyproxy/ratelimit.
const MAX_PAGE_CONNECTIONS: usize = 64;
/// The interval between checks of the store for the log.
const STORE_CHECK_INTERVAL: Duration = Duration::from_millis(200);
/// The minimum time between two log lines about decisions by failure modes.
const DEGRADED_LOG_INTERVAL: Duration = Duration::from_secs(10);

impl Server {
    /// Opens the store, reads certificates, binds every listener and starts the worker threads. `threads` is their
    /// number; default: one per CPU.
    pub fn bind(mut settings: Settings, threads: Option<NonZeroUsize>) -> Result<Self, StartError> {
        check_exposure(&settings)?;
        let addresses = LISTENERS.iter().filter_map(|entry| match settings.listen[entry.id] {
            Bind::At(address) => Some((entry, address)),
            Bind::Off => None,
        });
        let addresses: Vec<_> = addresses.collect();
        let bounds = &mut settings.bounds;
        bounds.connections = connections_each(bounds.connections, addresses.len());
        let listeners =
            addresses.into_iter().map(|(entry, address)| bind(entry, address, &settings));
        let listeners = listeners.collect::<Result<_, _>>()?;
        let workers = Workers::start(threads).map_err(StartError::Workers)?;
        let active = {
            let _runtime = workers.store_runtime().map(Handle::enter);
            Arc::new(ActiveConfig::open(settings)?)
        };
        Ok(Self { active, listeners, workers: Arc::new(workers) })
    }

    /// Returns the settings in use.
    pub fn settings(&self) -> Arc<Settings> {
        self.active.revision().settings.clone()
    }

    /// Returns a reloader for the source that the settings came from, and for the certificates.
    pub fn reloader(&self, source: ConfigSource) -> Arc<Reloader> {
        let certificates = self.listeners.iter().filter_map(|bound| bound.tls.clone());
        Arc::new(Reloader::new(self.active.clone(), source, certificates.collect()))
    }

    /// Returns the addresses of the listeners.
    pub fn endpoints(&self) -> Vec<Endpoint> {
        let endpoint = |bound: &BoundListener| Endpoint {
            name: bound.entry.name,
            address: bound.listener.address,
            is_tls: bound.tls.is_some(),
        };
        self.listeners.iter().map(endpoint).collect()
    }

    /// Waits up to `STORE_TIMEOUT` until the store answers. Without it the server starts too, and failure modes
    /// apply.
    pub async fn wait_for_store(&self) {
        let last = Instant::now() + STORE_TIMEOUT;
        while let Some(outage) = StoreOutage::of(&self.active) {
            if Instant::now() >= last {
                tracing::warn!("cannot use the store: {outage}");
                return;
            }
            sleep(Duration::from_millis(2)).await;
        }
        // Blocks hold from the first request on. After an error, the task that follows them tries again.
        drop(self.active.revision().engine.blocks.refresh().await);
    }

    /// Serves until `end`, then drains in-flight requests. Returns `false` if connections were still open after the
    /// drain timeout.
    pub async fn run(self, reloader: Arc<Reloader>, end: impl Future<Output = ()>) -> bool {
        let bounds = self.active.revision().settings.bounds;
        let (switch, drain) = DrainSwitch::new();
        let mut accepting =
            Accepting { tasks: JoinSet::new(), workers: self.workers.clone(), drain };
        self.accept(&mut accepting, &reloader);
        let store_log = tokio::spawn(log_store_changes(self.active.clone()));
        let history = tokio::spawn(live::watch(self.active.clone()));
        let active = self.active.clone();
        let threshold_log = tokio::spawn(async move { active.thresholds.log().await });
        let webhook = &self.active.thresholds.webhook;
        let deliveries = webhook.start();
        let blocks = tokio::spawn(blocks::follow(self.active.clone()));
        let statsd = self.settings().envoy.statistics.as_ref().and_then(|it| it.statsd.clone());
        let statsd = statsd.map(|settings| Statsd::start(self.active.clone(), settings));
        end.await;
        store_log.abort();
        history.abort();
        threshold_log.abort();
        blocks.abort();
        tracing::info!("shutting down: draining in-flight requests");
        self.active.drain();
        switch.turn();
        while accepting.tasks.join_next().await.is_some() {}
        let deadline = Instant::now() + bounds.drain_timeout;
        let mut all = true;
        for bound in &self.listeners {
            all &= bound.listener.emptied(deadline.duration_since(Instant::now())).await;
        }
        self.return_leases().await;
        webhook.finish(STORE_TIMEOUT).await;
        drop(deliveries);
        if let Some(statsd) = statsd {
            statsd.finish().await;
        }
        all
    }

    /// Returns the leased units that were not spent, so that other processes can spend them.
    async fn return_leases(&self) {
        if let State::Redis(store) = &self.active.state {
            match timeout(STORE_TIMEOUT, store.return_leases()).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => tracing::warn!(%error, "cannot return leased units"),
                Err(_) => tracing::warn!("timed out while returning leased units"),
            }
        }
    }

    fn accept(&self, accepting: &mut Accepting, reloader: &Arc<Reloader>) {
        let own = self.listeners.iter().map(|BoundListener { entry, listener, .. }| {
            Arc::new(ListenerMetrics::new(entry.name, entry.codes).on(listener.clone()))
        });
        let own: Vec<_> = own.collect();
        let metrics = Arc::new(Metrics::new(self.active.clone(), own.clone()));
        for (bound, own_metrics) in self.listeners.iter().zip(own) {
            let (active, metrics) = (self.active.clone(), metrics.clone());
            let context = StartContext { active, metrics, own_metrics, reloader: reloader.clone() };
            (bound.entry.start)(accepting, bound, context);
        }
        let settings = self.settings();
        for (addresses, set) in settings.envoy.statistics.iter().flat_map(|it| it.pages()) {
            let pages = Pages::new(self.active.clone(), set);
            accepting.spawn_pages(addresses, &settings, pages);
        }
    }
}

/// The tasks that accept connections, and the workers that serve them.
pub(crate) struct Accepting {
    tasks: JoinSet<io::Result<()>>,
    workers: Arc<Workers>,
    drain: Drain,
}

impl Accepting {
    /// Accepts connections for a protocol.
    pub(crate) fn spawn<P: Protocol>(&mut self, bound: &BoundListener, protocol: P) {
        let (listener, tls, protocol) =
            (bound.listener.clone(), bound.tls.clone(), Arc::new(protocol));
        let (workers, drain) = (self.workers.clone(), self.drain.clone());
        self.tasks.spawn(async move { listener.run(protocol, tls, &workers, drain).await });
    }

    /// Serves pages of envoyproxy/ratelimit. The server starts even if their port cannot be used.
    fn spawn_pages(&mut self, addresses: &[SocketAddr], settings: &Settings, pages: Pages) {
        let mut problem =
            "set PACEGATE_INSECURE to use an address that others can reach".to_owned();
        let is_allowed = |address: &&SocketAddr| {
            settings.security.insecure || address.ip().to_canonical().is_loopback()
        };
        for address in addresses.iter().filter(is_allowed) {
            match Listener::bind("pages", *address, MAX_PAGE_CONNECTIONS) {
                Ok(listener) => {
                    let (workers, drain) = (self.workers.clone(), self.drain.clone());
                    let pages = Arc::new(pages.on(*address));
                    self.tasks
                        .spawn(async move { listener.run(pages, None, &workers, drain).await });
                    return;
                }
                Err(error) => problem = error.to_string(),
            }
        }
        tracing::error!("cannot serve {} on {addresses:?}: {problem}", pages.name());
    }
}

/// Logs when the connection to the store is lost or restored, and when the error changes.
async fn log_store_changes(active: Arc<ActiveConfig>) {
    let mut ticks = interval(STORE_CHECK_INTERVAL);
    let mut before = StoreOutage::of(&active);
    let mut degraded = DegradedLog::default();
    loop {
        ticks.tick().await;
        let news = degraded.due(&active.revision().engine.stats(), Instant::now());
        if let Some((decisions, reason)) = news {
            tracing::warn!(decisions, reason, "decisions made by failure modes, without the store");
        }
        let now = StoreOutage::of(&active);
        match (&before, &now) {
            (None, Some(outage)) => tracing::warn!("lost connection to the store: {outage}"),
            (Some(_), None) => tracing::info!("connected to the store again"),
            (Some(before), Some(outage))
                if before.servers.is_empty() && !outage.servers.is_empty() =>
            {
                tracing::warn!("cannot use the store: {outage}");
            }
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
        let policies = stats.policies.iter().chain([&stats.inline]);
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

fn bind(
    entry: &'static ListenerEntry,
    address: SocketAddr,
    settings: &Settings,
) -> Result<BoundListener, StartError> {
    let name = entry.name;
    let listener = Listener::bind(name, address, settings.bounds.connections);
    let listener = listener.map_err(|error| StartError::Bind { name, address, error })?;
    let tls = settings.security.tls_of(entry.id).cloned();
    let tls = tls.map(|files| Tls::load(files, entry.alpn)).transpose()?;
    Ok(BoundListener { entry, listener: Arc::new(listener), tls: tls.map(Arc::new) })
}

impl fmt::Debug for BoundListener {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.listener.fmt(f)
    }
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
        let mut look = |policy, inline, seconds| {
            (stats.policies[0].degraded, stats.inline.degraded) = (policy, inline);
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
