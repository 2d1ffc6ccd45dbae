//! The connections of a store on one runtime.

use std::{
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use pacegate::StoreError;
use parking_lot::Mutex;
use tokio::{runtime::Handle, sync::oneshot, time::timeout};

use crate::{
    cell::CellCharge,
    cluster::Cluster,
    resolver::{Resolver, Sentinels},
    stats::ServerStats,
    url::{RedisUrl, Servers},
    worker::{Common, NodeWorker},
};

/// The connections of a store on one runtime. If that runtime shuts down, another session replaces it.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) runtime: Handle,
    servers: Topology,
    /// Whether the runtime has dropped the tasks of this session.
    has_ended: Arc<AtomicBool>,
    /// Whether requests wait for the first connection, because this session has replaced another.
    is_opening: AtomicBool,
    /// Dropped with the session, which ends the task that watches the runtime.
    _watched: oneshot::Sender<()>,
}

#[derive(Debug)]
enum Topology {
    One(Arc<NodeWorker>),
    Cluster(Arc<Cluster>),
}

/// Sets the flag when its task is dropped.
struct Ended(Arc<AtomicBool>);

/// Interval of queries to the sentinels.
const FOLLOW_INTERVAL: Duration = Duration::from_millis(250);
/// Maximum time that requests wait for a session that replaces another.
const REOPEN_TIMEOUT: Duration = Duration::from_secs(1);

impl Session {
    /// Starts to connect on this runtime.
    pub(super) fn open(url: RedisUrl, common: &Arc<Common>, runtime: Handle) -> Self {
        let _entered = runtime.enter();
        let (watched, closed) = oneshot::channel::<()>();
        let has_ended = Arc::new(AtomicBool::new(false));
        let ended = Ended(has_ended.clone());
        tokio::spawn(async move {
            drop(closed.await);
            drop(ended);
        });
        Self {
            servers: Topology::start(url, common),
            has_ended,
            is_opening: AtomicBool::new(false),
            _watched: watched,
            runtime: runtime.clone(),
        }
    }

    /// [`Session::open`] to replace a session whose runtime has shut down: requests wait until it is connected.
    pub(super) fn reopen(url: RedisUrl, common: &Arc<Common>, runtime: Handle) -> Self {
        let session = Self::open(url, common, runtime);
        session.is_opening.store(true, Ordering::Release);
        session
    }

    pub(super) fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::Acquire)
    }

    pub(super) fn is_opening(&self) -> bool {
        self.is_opening.load(Ordering::Acquire)
    }

    /// Waits for the first connection of a session that replaces another. The caller may be outside of a runtime.
    pub(super) async fn opened(self: Arc<Self>) {
        if self.is_opening() {
            let runtime = self.runtime.clone();
            let opening = runtime.spawn(async move {
                drop(timeout(REOPEN_TIMEOUT, self.first_connection()).await);
                self.is_opening.store(false, Ordering::Release);
            });
            drop(opening.await);
        }
    }

    pub(super) fn workers(&self) -> Vec<Arc<NodeWorker>> {
        match &self.servers {
            Topology::One(worker) => vec![worker.clone()],
            Topology::Cluster(cluster) => cluster.workers(),
        }
    }

    pub(super) fn is_cluster(&self) -> bool {
        matches!(self.servers, Topology::Cluster(_))
    }

    pub(super) fn worker(&self, charge: &CellCharge) -> Result<Arc<NodeWorker>, StoreError> {
        self.worker_of(|| charge.cell.slot())
    }

    pub(super) fn worker_of(
        &self,
        slot: impl FnOnce() -> u16,
    ) -> Result<Arc<NodeWorker>, StoreError> {
        match &self.servers {
            Topology::One(worker) => Ok(worker.clone()),
            Topology::Cluster(cluster) => cluster.worker_of_or_refresh(slot()),
        }
    }

    /// Returns the status of each server, or of a cluster's unusable seed if no server is known.
    pub(super) fn servers(&self) -> Vec<ServerStats> {
        let status = |worker: Arc<NodeWorker>| ServerStats {
            address: worker.resolver().to_string(),
            trouble: (!worker.is_open()).then(|| worker.reason()),
            round_trip: worker.latency(),
        };
        let mut servers: Vec<_> = self.workers().into_iter().map(status).collect();
        if let (Topology::Cluster(cluster), true) = (&self.servers, servers.is_empty()) {
            servers.extend(cluster.map_error().map(|(address, error)| ServerStats {
                address: address.to_string(),
                trouble: Some(error),
                round_trip: Duration::ZERO,
            }));
        }
        servers
    }

    /// Returns the last error; in a cluster with the address of the server.
    pub(super) fn error(&self) -> String {
        match &self.servers {
            Topology::One(worker) => worker.reason(),
            Topology::Cluster(cluster) => cluster.error(),
        }
    }

    /// Returns whether every known server can be used.
    pub(super) fn is_connected(&self) -> bool {
        let workers = self.workers();
        !workers.is_empty() && workers.iter().all(|worker| worker.is_open())
    }

    pub(super) async fn first_connection(&self) {
        let mut wait = Duration::from_millis(1);
        while !self.is_connected() {
            tokio::time::sleep(wait).await;
            wait = (wait * 2).min(Duration::from_millis(20));
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        self.workers().iter().for_each(|worker| worker.shut_down());
    }
}

impl Topology {
    fn start(url: RedisUrl, common: &Arc<Common>) -> Self {
        let RedisUrl { servers, access } = url;
        let resolver = match servers {
            Servers::Cluster(seeds) => {
                let cluster = Cluster::new(seeds, access, common.clone());
                cluster.start();
                return Self::Cluster(cluster);
            }
            Servers::One(address) => Resolver::Fixed(address, access),
            Servers::Sentinel { addresses, access: sentinel_access, master } => {
                Resolver::Sentinel(Box::new(Sentinels {
                    addresses,
                    access: sentinel_access,
                    master,
                    master_access: access,
                    current: Mutex::default(),
                    latest: Mutex::default(),
                }))
            }
        };
        let worker = NodeWorker::new(common.clone(), resolver, Weak::new());
        worker.start();
        tokio::spawn(follow(Arc::downgrade(&worker)));
        Self::One(worker)
    }
}

impl Drop for Ended {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// Follows the master to another server after a failover, until the worker is dropped.
async fn follow(worker: Weak<NodeWorker>) {
    loop {
        tokio::time::sleep(FOLLOW_INTERVAL).await;
        let Some(worker) = worker.upgrade() else { return };
        let Resolver::Sentinel(sentinels) = worker.resolver() else { return };
        let (found, current) = (sentinels.find().await, sentinels.current.lock().clone());
        if let (Some(found), Some(current)) = (found, current)
            && found != current
        {
            worker.relocate("the sentinels named another master");
        }
    }
}
