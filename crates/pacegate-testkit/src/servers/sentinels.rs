use super::{Flavor, Server, wait::SERVER_TIMEOUT, wait::eventually};

/// Name of the monitored master.
const NAME: &str = "mymaster";

/// A master, a replica and three sentinels, which end when they are dropped.
///
/// The sentinels start a failover if the master is down for a second and two of them agree.
#[derive(Debug)]
pub struct Sentinels {
    master: Server,
    replica: Server,
    sentinels: Vec<Server>,
}

impl Sentinels {
    /// Starts all five and waits until the sentinels know each other and the replica, which takes about three
    /// seconds.
    ///
    /// # Panics
    ///
    /// Panics if it takes too long.
    pub fn start(flavor: Flavor) -> Self {
        let master = Server::start(flavor);
        let replica = Server::options(flavor).replica_of(&master).start();
        let linked = || replica.info("master_link_status").as_deref() == Some("up");
        eventually(SERVER_TIMEOUT, "the replica follows", linked);
        let sentinels = (0..3).map(|_| sentinel(flavor, &master)).collect();
        let all = Self { master, replica, sentinels };
        eventually(2 * SERVER_TIMEOUT, "the sentinels agree", || all.agree());
        all
    }

    /// Returns the initial master. [`master_address`](Self::master_address) returns the current one.
    pub fn master(&self) -> &Server {
        &self.master
    }

    /// Returns the initial replica.
    pub fn replica(&self) -> &Server {
        &self.replica
    }

    /// Returns the initial replica, to kill and restart it.
    pub fn replica_mut(&mut self) -> &mut Server {
        &mut self.replica
    }

    /// Returns the three sentinels.
    pub fn sentinels(&self) -> &[Server] {
        &self.sentinels
    }

    /// Returns `redis+sentinel://127.0.0.1:S1,127.0.0.1:S2,127.0.0.1:S3/mymaster`.
    pub fn url(&self) -> String {
        let addresses: Vec<String> = self.sentinels.iter().map(Server::address).collect();
        format!("redis+sentinel://{}/{NAME}", addresses.join(","))
    }

    /// Returns the address of the master, according to the first running sentinel.
    ///
    /// # Panics
    ///
    /// Panics if no sentinel is running.
    pub fn master_address(&self) -> String {
        address_by(self.running().next().expect("a running sentinel"))
    }

    /// Swaps master and replica, and waits until every sentinel names the new master and the old one, if it
    /// is running, replicates from it.
    ///
    /// # Panics
    ///
    /// Panics if it takes too long.
    pub fn failover(&self) {
        let old = self.master_address();
        let sentinel = self.running().next().expect("a running sentinel");
        // Sentinels reject it if they have no recent information about the replica, or during another
        // failover.
        let begun = || !sentinel.command(&["SENTINEL", "FAILOVER", NAME]).is_error();
        eventually(2 * SERVER_TIMEOUT, "a failover begins", begun);
        eventually(2 * SERVER_TIMEOUT, "the failover is over", || self.is_over(&old));
    }

    fn is_over(&self, old: &str) -> bool {
        let (before, after) = match self.master.address() == old {
            true => (&self.master, &self.replica),
            false => (&self.replica, &self.master),
        };
        let follows = || before.info("master_link_status").as_deref() == Some("up");
        self.running().all(|sentinel| address_by(sentinel) == after.address())
            && after.info("role").as_deref() == Some("master")
            && (!before.is_running() || follows())
    }

    fn agree(&self) -> bool {
        self.sentinels.iter().all(|sentinel| {
            let fields = sentinel.must(&["SENTINEL", "MASTER", NAME]);
            let is = |name, value| {
                let mut pairs = fields.items().chunks(2);
                pairs.any(|pair| pair[0].text() == name && pair[1].text() == value)
            };
            let sees_all = is("num-slaves", "1") && is("num-other-sentinels", "2");
            let quorum = sentinel.command(&["SENTINEL", "CKQUORUM", NAME]);
            sees_all && is("flags", "master") && !quorum.is_error()
        })
    }

    fn running(&self) -> impl Iterator<Item = &Server> {
        self.sentinels.iter().filter(|sentinel| sentinel.is_running())
    }
}

fn sentinel(flavor: Flavor, master: &Server) -> Server {
    let server = Server::options(flavor)
        .sentinel()
        .arg("sentinel", &format!("monitor {NAME} 127.0.0.1 {} 2", master.port()))
        .arg("sentinel", &format!("down-after-milliseconds {NAME} 1000"))
        .arg("sentinel", &format!("failover-timeout {NAME} 3000"))
        .start();
    // By default, sentinels check each other every two seconds and the servers every ten, and after a stall
    // of two seconds they take no action for thirty more.
    let periods = ["INFO-PERIOD", "500", "PUBLISH-PERIOD", "300", "TILT-PERIOD", "1000"];
    server.must(&[["SENTINEL", "DEBUG"].as_slice(), &periods].concat());
    server
}

fn address_by(sentinel: &Server) -> String {
    let answer = sentinel.must(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", NAME]);
    answer.items().iter().map(|part| part.text()).collect::<Vec<_>>().join(":")
}
