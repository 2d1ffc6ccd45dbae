//! The service: listeners over one gate, from the first bind to the last answer.

use std::{fmt, future::Future, io, net::SocketAddr, sync::Arc, thread::available_parallelism};

use tokio::task::JoinSet;

use crate::{
    config::{Bind, Settings, TlsFiles},
    gate::{Gate, OpenError},
    reload::Reloader,
    resp::RespService,
    service::{Drain, DrainSwitch, Listener, Protocol, Tls, TlsError, Workers},
};

/// A service that is bound and not yet running.
#[derive(Debug)]
pub(crate) struct Server {
    gate: Arc<Gate>,
    resp: Option<Arc<Listener>>,
    tls: Option<Arc<Tls>>,
}

/// Why a service cannot start.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StartError {
    #[error(transparent)]
    Open(#[from] OpenError),
    #[error(transparent)]
    Tls(#[from] TlsError),
    #[error("cannot listen for {name} on {address}: {error}")]
    Bind { name: &'static str, address: SocketAddr, error: io::Error },
    #[error("{name} would listen on {address}, which others can reach, without {missing}")]
    Public { name: &'static str, address: SocketAddr, missing: &'static str },
}

/// Where a listener is, for whoever started it.
pub(crate) struct Endpoint {
    pub(crate) name: &'static str,
    pub(crate) address: SocketAddr,
    pub(crate) is_tls: bool,
}

impl Server {
    /// Opens the store, reads certificates and binds every listener.
    pub(crate) fn bind(settings: Settings) -> Result<Self, StartError> {
        let resp = bind("resp", settings.resp, &settings)?;
        let tls = settings.security.tls.as_ref().map(|files| load(files, &[])).transpose()?;
        let gate = Arc::new(Gate::open(settings)?);
        Ok(Self { gate, resp, tls })
    }

    pub(crate) fn gate(&self) -> &Arc<Gate> {
        &self.gate
    }

    /// What is to be read again when it changes.
    pub(crate) fn certificates(&self) -> Vec<Arc<Tls>> {
        self.tls.iter().cloned().collect()
    }

    pub(crate) fn endpoints(&self) -> Vec<Endpoint> {
        let listeners = [&self.resp].into_iter().flatten();
        let endpoint = |listener: &Arc<Listener>| Endpoint {
            name: listener.name(),
            address: listener.address(),
            is_tls: self.tls.is_some(),
        };
        listeners.map(endpoint).collect()
    }

    /// Serves until `end`, then answers what was begun and returns. `false` if some connections had to be cut.
    pub(crate) async fn run(
        self,
        _reloader: Arc<Reloader>,
        end: impl Future<Output = ()>,
    ) -> io::Result<bool> {
        let bounds = self.gate.revision().settings.bounds;
        let workers = Arc::new(Workers::start(available_parallelism().map_or(1, usize::from))?);
        let (switch, drain) = DrainSwitch::new();
        let mut accepting = JoinSet::new();
        if let Some(listener) = &self.resp {
            let service = Arc::new(RespService::new(self.gate.clone()));
            accept(&mut accepting, listener, service, self.tls.clone(), &workers, &drain);
        }
        end.await;
        self.gate.drain();
        switch.turn();
        while accepting.join_next().await.is_some() {}
        let mut all = true;
        for listener in [&self.resp].into_iter().flatten() {
            all &= listener.emptied(bounds.drain_timeout).await;
        }
        Ok(all)
    }
}

fn accept<P: Protocol>(
    accepting: &mut JoinSet<io::Result<()>>,
    listener: &Arc<Listener>,
    service: Arc<P>,
    tls: Option<Arc<Tls>>,
    workers: &Arc<Workers>,
    drain: &Drain,
) {
    let (listener, workers, drain) = (listener.clone(), workers.clone(), drain.clone());
    accepting.spawn(async move { listener.run(service, tls, &workers, drain).await });
}

fn load(files: &TlsFiles, protocols: &'static [&'static [u8]]) -> Result<Arc<Tls>, TlsError> {
    Ok(Arc::new(Tls::load(files.clone(), protocols)?))
}

/// Binds a listener, unless it is off. One that others can reach needs certificates and credentials.
fn bind(
    name: &'static str,
    bind: Bind,
    settings: &Settings,
) -> Result<Option<Arc<Listener>>, StartError> {
    let Bind::At(address) = bind else { return Ok(None) };
    let security = &settings.security;
    if !address.ip().to_canonical().is_loopback() && !security.insecure {
        let has_clients = security.tls.as_ref().is_some_and(|tls| tls.client_ca.is_some());
        let missing = match (&security.tls, has_clients || !security.credentials.is_empty()) {
            (Some(_), true) => None,
            (None, false) => Some("certificates (tls) and API keys (keys)"),
            (None, true) => Some("certificates (tls)"),
            (Some(_), false) => Some("API keys (keys) or the clients' authority (tls.client_ca)"),
        };
        if let Some(missing) = missing {
            return Err(StartError::Public { name, address, missing });
        }
    }
    let listener = Listener::bind(name, address, settings.bounds.connections);
    let listener = listener.map_err(|error| StartError::Bind { name, address, error })?;
    Ok(Some(Arc::new(listener)))
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
