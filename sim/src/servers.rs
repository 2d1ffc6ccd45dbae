//! The Redis servers of a world: one, one with a replica and sentinels, or a cluster.

use std::{ops::Range, sync::Arc};

use parking_lot::Mutex;

use crate::{
    clock::MachineClock,
    network::{Program, Server},
    redis::{Redis, cluster::ClusterView, sentinel::Sentinel},
    scenario::Topology,
};

/// The roles of the servers. Clones share them.
#[derive(Clone, Debug)]
pub(crate) struct Servers {
    topology: Topology,
    groups: Arc<Mutex<Vec<Group>>>,
    /// Number of servers with Redis. Sentinels follow.
    nodes: usize,
    sentinels: usize,
}

/// A master and its replica.
#[derive(Clone, Copy, Debug)]
struct Group {
    master: usize,
    replica: Option<usize>,
    /// A fault is changing it.
    is_claimed: bool,
}

/// The right to change a group, until it is dropped.
#[derive(Debug)]
pub(crate) struct Claim {
    groups: Arc<Mutex<Vec<Group>>>,
    group: usize,
}

/// Number of sentinels.
const SENTINELS: usize = 3;

impl Servers {
    /// Creates the roles of all servers.
    pub(crate) fn new(topology: Topology) -> Self {
        let (masters, has_replicas, sentinels) = match topology {
            Topology::One => (1, false, 0),
            Topology::Sentinels => (1, true, SENTINELS),
            Topology::Cluster { masters } => (masters, true, 0),
        };
        let group = |master| {
            let replica = has_replicas.then_some(masters + master);
            Group { master, replica, is_claimed: false }
        };
        let groups: Vec<_> = (0..masters).map(group).collect();
        let nodes = if has_replicas { 2 * masters } else { masters };
        Self { topology, groups: Arc::new(Mutex::new(groups)), nodes, sentinels }
    }

    /// Creates the servers themselves. Each has one of the clocks, in turn.
    pub(crate) fn create(&self, clocks: &[MachineClock]) -> mlua::Result<Vec<Server>> {
        let clock = |server: usize| clocks[server % clocks.len()].clone();
        let name = |node: usize| format!("node{node}");
        let addresses = Arc::new((0..self.nodes).map(|node| (name(node), 6_379)).collect());
        let masters = self.groups.lock().len();
        let mut servers = Vec::new();
        for node in 0..self.nodes {
            let mut redis = Redis::new()?;
            redis.condition.is_replica = node >= masters;
            if let Topology::Cluster { .. } = self.topology {
                redis.cluster = Some(ClusterView::new(node, masters, Arc::clone(&addresses)));
            }
            servers.push(Server::new(&name(node), Program::Redis(redis), clock(node)));
        }
        for number in 0..self.sentinels {
            let sentinel = Sentinel { master: (name(0), 6_379), epoch: 0, promoted: None };
            let program = Program::Sentinel(sentinel);
            servers.push(Server::new(&format!("sentinel{number}"), program, clock(0)));
        }
        Ok(servers)
    }

    /// Returns the URL of the store.
    pub(crate) fn url(&self) -> String {
        match self.topology {
            Topology::One => "redis://node0:6379".to_owned(),
            Topology::Sentinels => {
                "redis+sentinel://sentinel0:6379,sentinel1:6379,sentinel2:6379/main".to_owned()
            }
            Topology::Cluster { .. } => "redis+cluster://node0:6379,node1:6379".to_owned(),
        }
    }

    pub(crate) fn is_cluster(&self) -> bool {
        matches!(self.topology, Topology::Cluster { .. })
    }

    /// Returns the number of servers.
    pub(crate) fn count(&self) -> usize {
        self.nodes + self.sentinels
    }

    /// Returns all servers with Redis.
    pub(crate) fn nodes(&self) -> Range<usize> {
        0..self.nodes
    }

    pub(crate) fn has_sentinels(&self) -> bool {
        self.sentinels > 0
    }

    /// Returns the sentinels.
    pub(crate) fn sentinels(&self) -> Range<usize> {
        self.nodes..self.count()
    }

    /// Returns the number of masters.
    pub(crate) fn groups(&self) -> usize {
        self.groups.lock().len()
    }

    /// Returns the master of a group.
    pub(crate) fn master(&self, group: usize) -> usize {
        self.groups.lock()[group].master
    }

    /// Returns all masters.
    pub(crate) fn masters(&self) -> Vec<usize> {
        self.groups.lock().iter().map(|group| group.master).collect()
    }

    /// Reserves a group for a fault that changes its roles; `None` if another one does.
    pub(crate) fn claim(&self, group: usize) -> Option<Claim> {
        let is_claimed = &mut self.groups.lock()[group].is_claimed;
        let is_free = !std::mem::replace(is_claimed, true);
        is_free.then(|| Claim { groups: self.groups.clone(), group })
    }
}

impl Claim {
    pub(crate) fn master(&self) -> usize {
        self.groups.lock()[self.group].master
    }

    pub(crate) fn replica(&self) -> Option<usize> {
        self.groups.lock()[self.group].replica
    }

    /// Exchanges the master and its replica.
    pub(crate) fn exchange(&self) {
        let group = &mut self.groups.lock()[self.group];
        if let Some(replica) = &mut group.replica {
            std::mem::swap(&mut group.master, replica);
        }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        self.groups.lock()[self.group].is_claimed = false;
    }
}
