//! The connections of a store, and the runtime that drives them.

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
    cell::Want,
    cluster::{Cluster, NO_SERVER},
    lane::{Common, Lane},
    resolver::{Resolver, Sentinels},
    url::{RedisUrl, Servers},
};

/// The connections of a store on one runtime. If that runtime shuts down, another session replaces it.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) runtime: Handle,
    servers: Topology,
    /// The runtime has dropped the tasks of this session.
    has_ended: Arc<AtomicBool>,
    /// Whether requests wait for the first connection, because this session has replaced another.
    is_opening: AtomicBool,
    /// Dropped with the session, which ends the task that watches the runtime.
    _watched: oneshot::Sender<()>,
}

#[derive(Debug)]
enum Topology {
    One(Arc<Lane>),
    Cluster(Arc<Cluster>),
}

/// Reports that a task was dropped.
struct Ended(Arc<AtomicBool>);

/// How often the sentinels are asked where the master is.
const FOLLOW: Duration = Duration::from_millis(250);
/// How long requests wait for the first connection of a session that replaces another.
const REOPEN_TIMEOUT: Duration = Duration::from_secs(1);

impl Session {
    /// Starts to connect, on this runtime.
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

    /// [`Session::open`] in place of a session that has ended: requests wait until it is connected.
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

    /// Waits for the first connection of a session that replaces another. The caller may be in no runtime.
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

    pub(super) fn lanes(&self) -> Vec<Arc<Lane>> {
        match &self.servers {
            Topology::One(lane) => vec![lane.clone()],
            Topology::Cluster(cluster) => cluster.lanes(),
        }
    }

    pub(super) fn is_cluster(&self) -> bool {
        matches!(self.servers, Topology::Cluster(_))
    }

    pub(super) fn lane(&self, want: &Want) -> Result<Arc<Lane>, StoreError> {
        self.lane_of(|| want.cell.slot())
    }

    pub(super) fn lane_of(&self, slot: impl FnOnce() -> u16) -> Result<Arc<Lane>, StoreError> {
        match &self.servers {
            Topology::One(lane) => Ok(lane.clone()),
            Topology::Cluster(cluster) => cluster
                .of_slot_now(slot())
                .ok_or_else(|| StoreError::Unavailable(NO_SERVER.to_owned())),
        }
    }

    pub(super) fn describe(&self) -> String {
        match &self.servers {
            Topology::One(lane) => lane.resolver().to_string(),
            Topology::Cluster(_) => "the cluster".to_owned(),
        }
    }

    /// Whether every server that is known answers.
    pub(super) fn is_connected(&self) -> bool {
        let lanes = self.lanes();
        !lanes.is_empty() && lanes.iter().all(|lane| lane.is_open())
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
        self.lanes().iter().for_each(|lane| lane.end());
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
        let lane = Lane::new(common.clone(), resolver, Weak::new());
        lane.start();
        tokio::spawn(follow(Arc::downgrade(&lane)));
        Self::One(lane)
    }
}

impl Drop for Ended {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// Follows the master from one server to the next, for as long as the lane is there.
async fn follow(lane: Weak<Lane>) {
    loop {
        tokio::time::sleep(FOLLOW).await;
        let Some(lane) = lane.upgrade() else { return };
        let Resolver::Sentinel(sentinels) = lane.resolver() else { return };
        let (found, current) = (sentinels.find().await, sentinels.current.lock().clone());
        if let (Some(found), Some(current)) = (found, current)
            && found != current
        {
            lane.look_again("the sentinels have named another master");
        }
    }
}
