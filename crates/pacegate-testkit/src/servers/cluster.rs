use super::{
    Flavor, Reply, Server, ServerOptions, options::OWN_USER, wait::SERVER_TIMEOUT, wait::eventually,
};
use crate::SLOTS;

/// A cluster with all nodes on this machine, which ends when it is dropped.
#[derive(Debug)]
pub struct Cluster {
    nodes: Vec<Server>,
}

impl Cluster {
    /// Starts `masters` nodes with equal shares of the slots and `replicas_per_master` replicas of each.
    /// Waits until every node sees all others and accepts commands, which takes about three seconds.
    ///
    /// # Panics
    ///
    /// Panics if it takes too long.
    pub fn start(flavor: Flavor, masters: usize, replicas_per_master: usize) -> Self {
        Self::start_with(flavor, masters, replicas_per_master, |options| options)
    }

    /// Starts a cluster with other options for each node: `|options| options.arg("cluster-node-timeout",
    /// "500")`. The default node timeout is two seconds; without replicas it is 15 seconds once the cluster is ready.
    ///
    /// # Panics
    ///
    /// Panics if it takes too long.
    pub fn start_with(
        flavor: Flavor,
        masters: usize,
        replicas_per_master: usize,
        configure: impl Fn(ServerOptions) -> ServerOptions,
    ) -> Self {
        let start = |_| configure(Server::options(flavor).cluster()).start();
        let nodes = (0..masters * (1 + replicas_per_master)).map(start).collect();
        let cluster = Self { nodes };
        cluster.share_slots(masters);
        cluster.introduce();
        cluster.appoint_replicas(masters);
        eventually(2 * SERVER_TIMEOUT, "the cluster is ready", || cluster.is_ready(masters));
        if replicas_per_master == 0 {
            cluster.tolerate_slow_nodes();
        }
        cluster
    }

    /// Keeps a busy machine from looking like a failed node. Without replicas there is no failover to wait for.
    fn tolerate_slow_nodes(&self) {
        for node in &self.nodes {
            let reply = node.command(&["CONFIG", "SET", "cluster-node-timeout", "15000"]);
            assert!(!reply.is_error(), "{reply:?}");
        }
    }

    /// Returns all nodes: first the initial masters, then the replicas. Replica `masters + i` initially
    /// belongs to master `i % masters`.
    pub fn nodes(&self) -> &[Server] {
        &self.nodes
    }

    /// Returns all nodes, to kill and restart them.
    pub fn nodes_mut(&mut self) -> &mut [Server] {
        &mut self.nodes
    }

    /// Returns `redis+cluster://127.0.0.1:P1,127.0.0.1:P2,...` with all nodes.
    pub fn url(&self) -> String {
        let addresses: Vec<String> = self.nodes.iter().map(Server::address).collect();
        format!("redis+cluster://{}", addresses.join(","))
    }

    /// Returns the index of the running [node](Self::nodes) that owns a slot, according to itself.
    ///
    /// # Panics
    ///
    /// Panics if there is none.
    pub fn owner(&self, slot: u16) -> usize {
        self.try_owner(slot).unwrap_or_else(|| panic!("no node owns slot {slot}"))
    }

    /// Moves a slot with all its keys to another master, and waits until every node knows the new owner.
    ///
    /// # Panics
    ///
    /// Panics if a node returns an error.
    pub fn move_slot(&self, slot: u16, to: usize) {
        self.begin_move(slot, to);
        while self.migrate_keys(slot, to, 100) > 0 {}
        self.end_move(slot, to);
    }

    /// Starts [`move_slot`](Self::move_slot). From here on the owner responds with `ASK` for keys that it
    /// does not have.
    ///
    /// # Panics
    ///
    /// Panics if a node returns an error.
    pub fn begin_move(&self, slot: u16, to: usize) {
        let from = &self.nodes[self.owner(slot)];
        let (slot, to) = (slot.to_string(), &self.nodes[to]);
        to.must(&["CLUSTER", "SETSLOT", &slot, "IMPORTING", &id(from)]);
        from.must(&["CLUSTER", "SETSLOT", &slot, "MIGRATING", &id(to)]);
    }

    /// Moves at most `max` of the owner's remaining keys, after [`begin_move`](Self::begin_move). Returns the
    /// number of moved keys.
    ///
    /// # Panics
    ///
    /// Panics if a node returns an error.
    pub fn migrate_keys(&self, slot: u16, to: usize, max: usize) -> usize {
        let from = &self.nodes[self.owner(slot)];
        let (slot, max) = (slot.to_string(), max.to_string());
        let keys = from.must(&["CLUSTER", "GETKEYSINSLOT", &slot, &max]);
        let keys = keys.items();
        if keys.is_empty() {
            return 0;
        }
        let port = self.nodes[to].port().to_string();
        let mut words = ["MIGRATE", "127.0.0.1", &port, "", "0", "5000"].map(Vec::from).to_vec();
        if from.is_guarded() {
            words.extend(["AUTH2", OWN_USER, "any"].map(Vec::from));
        }
        words.push(b"KEYS".to_vec());
        words.extend(keys.iter().map(bytes));
        from.must(&words);
        keys.len()
    }

    /// Finishes [`move_slot`](Self::move_slot): sends the new owner to all masters, and waits until every
    /// running node knows it.
    ///
    /// # Panics
    ///
    /// Panics if a node returns an error, as the old owner does while it still has keys.
    pub fn end_move(&self, slot: u16, to: usize) {
        let (from, to) = (self.owner(slot), &self.nodes[to]);
        self.wait_for_epochs(to);
        // The new owner first; otherwise the slot would have no owner for a moment.
        set_owner(to, slot, to);
        set_owner(&self.nodes[from], slot, to);
        self.announce(slot, to);
    }

    /// Gives a slot that no node owns to a master, and waits until every node knows it.
    ///
    /// # Panics
    ///
    /// Panics if a node returns an error.
    pub fn assign_slot(&self, slot: u16, to: usize) {
        let to = &self.nodes[to];
        self.wait_for_epochs(to);
        to.must(&["CLUSTER", "BUMPEPOCH"]);
        to.must(&["CLUSTER", "ADDSLOTS", &slot.to_string()]);
        self.announce(slot, to);
    }

    /// Waits until the new owner of a slot knows all epochs. Otherwise it may take the slot with an older epoch, and a
    /// message of the old owner takes it back.
    fn wait_for_epochs(&self, to: &Server) {
        let known = || epoch(to, "cluster_current_epoch");
        let is_newest = || self.running().all(|node| known() >= epoch(node, "cluster_my_epoch"));
        eventually(SERVER_TIMEOUT, "the new owner knows all epochs", is_newest);
    }

    /// Reports the new owner of a slot to every master, because gossip alone takes seconds, and waits until all nodes
    /// know it.
    fn announce(&self, slot: u16, to: &Server) {
        self.running().filter(|node| is_master(node)).for_each(|node| set_owner(node, slot, to));
        let known = || self.running().all(|node| owner_port(node, slot) == Some(to.port()));
        eventually(SERVER_TIMEOUT, "every node knows the new owner", known);
    }

    fn running(&self) -> impl Iterator<Item = &Server> {
        self.nodes.iter().filter(|node| node.is_running())
    }

    fn try_owner(&self, slot: u16) -> Option<usize> {
        let owns = |node: &Server| node.is_running() && owner_port(node, slot) == Some(node.port());
        self.nodes.iter().position(owns)
    }

    fn share_slots(&self, masters: usize) {
        for (place, node) in self.nodes.iter().enumerate() {
            node.must(&["CLUSTER", "SET-CONFIG-EPOCH", &(place + 1).to_string()]);
            if place < masters {
                let first = place * SLOTS / masters;
                let last = (place + 1) * SLOTS / masters - 1;
                let range = [first.to_string(), last.to_string()];
                node.must(&["CLUSTER", "ADDSLOTSRANGE", &range[0], &range[1]]);
            }
        }
    }

    /// Introduces every pair of nodes, because gossip alone takes longer.
    fn introduce(&self) {
        for (place, node) in self.nodes.iter().enumerate() {
            for other in &self.nodes[place + 1..] {
                let bus = other.bus_port().expect("a cluster node").to_string();
                node.must(&["CLUSTER", "MEET", "127.0.0.1", &other.port().to_string(), &bus]);
            }
        }
        let all = self.nodes.len();
        let met = || self.nodes.iter().all(|node| peers(node).len() == all);
        eventually(2 * SERVER_TIMEOUT, "all nodes have met", met);
    }

    fn appoint_replicas(&self, masters: usize) {
        for (place, node) in self.nodes.iter().enumerate().skip(masters) {
            node.must(&["CLUSTER", "REPLICATE", &id(&self.nodes[place % masters])]);
        }
    }

    fn is_ready(&self, masters: usize) -> bool {
        self.nodes.iter().enumerate().all(|(place, node)| {
            let state = node.must(&["CLUSTER", "INFO"]).text();
            let replicas = peers(node).iter().filter(|line| line.contains("slave")).count();
            let follows = || node.info("master_link_status").as_deref() == Some("up");
            state.contains("cluster_state:ok")
                && replicas == self.nodes.len() - masters
                && (place < masters || follows())
        })
    }
}

fn id(node: &Server) -> String {
    node.must(&["CLUSTER", "MYID"]).text()
}

fn set_owner(node: &Server, slot: u16, owner: &Server) {
    node.must(&["CLUSTER", "SETSLOT", &slot.to_string(), "NODE", &id(owner)]);
}

fn is_master(node: &Server) -> bool {
    node.info("role").as_deref() == Some("master")
}

/// Returns the ids of all nodes that this one knows, including itself but not unconfirmed ones.
fn peers(node: &Server) -> Vec<String> {
    let text = node.must(&["CLUSTER", "NODES"]).text();
    text.lines().filter(|line| !line.contains("handshake")).map(str::to_owned).collect()
}

/// Returns an epoch of a node: `cluster_my_epoch`, or `cluster_current_epoch`, the highest that it knows.
fn epoch(node: &Server, field: &str) -> Option<u64> {
    let info = node.must(&["CLUSTER", "INFO"]).text();
    let mut lines = info.lines();
    lines.find_map(|line| line.strip_prefix(field)?.strip_prefix(':')?.trim().parse().ok())
}

/// Returns the port of the owner of a slot, according to a node.
fn owner_port(node: &Server, slot: u16) -> Option<u16> {
    let ranges = node.must(&["CLUSTER", "SLOTS"]);
    let range = ranges
        .items()
        .iter()
        .map(Reply::items)
        .find(|range| (range[0].int()..=range[1].int()).contains(&i64::from(slot)))?;
    u16::try_from(range[2].items()[1].int()).ok()
}

fn bytes(reply: &Reply) -> Vec<u8> {
    let Reply::Bulk(bytes) = reply else { panic!("not a byte string: {reply:?}") };
    bytes.clone()
}
