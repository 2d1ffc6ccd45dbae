//! The network between hosts and servers, and the streams over it.
//!
//! A connection is reliable and ordered, as TCP is. Faults delay bytes, block a direction, lose a connection silently,
//! or cut it after any byte. Bytes that cannot be delivered within [`SEND_TIMEOUT`] break the connection, as with
//! `TCP_USER_TIMEOUT`; until then they are delivered even if the client has closed its stream.

mod connection;
mod server;

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    sync::Arc,
    time::Duration,
};

use pacegate::Clock;
use pacegate_testkit::Random;
use parking_lot::Mutex;
use tokio::{
    sync::Notify,
    time::{Instant, sleep, timeout_at},
};

pub use connection::SimulatedStream;
use connection::{Connection, Direction, carry_down, carry_up};
pub use server::{Program, Server};

use crate::{
    clock::{MachineClock, VirtualTime},
    ledger::Ledger,
    redis::{Redis, resp, sentinel::Sentinel},
    trace::Trace,
};

/// The network and the servers. Clones share them.
#[derive(Clone, Debug)]
pub struct Network {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    state: Mutex<State>,
    /// Notified when a fault begins or ends.
    changed: Notify,
    trace: Trace,
    time: VirtualTime,
}

#[derive(Debug)]
struct State {
    random: Random,
    servers: Vec<Server>,
    /// For each host: one for each server.
    paths: Vec<Vec<Path>>,
    connections: BTreeMap<u64, Arc<Connection>>,
    next_connection: u64,
    /// Hosts whose connections broke, and the virtual times.
    broken: BTreeSet<(usize, u64)>,
    ledger: Ledger,
}

/// The path between a host and a server.
#[derive(Clone, Copy, Debug)]
pub struct Path {
    /// Minimum and maximum milliseconds of a one-way delay.
    pub delay: (u64, u64),
    /// Nothing reaches the server.
    pub is_blocked_up: bool,
    /// Nothing reaches the host.
    pub is_blocked_down: bool,
}

/// The paths of a host: to one server, or to all of them.
#[derive(Clone, Copy, Debug)]
pub struct Route {
    /// The host.
    pub host: usize,
    /// The server; `None` means all.
    pub server: Option<usize>,
}

/// Time after which undelivered bytes of a client break its connection: as in the store's environment.
const SEND_TIMEOUT: Duration = Duration::from_secs(1);
/// Time for which a server tries to send.
const REPLY_TIMEOUT: Duration = Duration::from_secs(600);

impl Path {
    /// Creates an open path with these minimum and maximum milliseconds of a one-way delay.
    pub fn open(delay: (u64, u64)) -> Self {
        Self { delay, is_blocked_up: false, is_blocked_down: false }
    }
}

impl Route {
    fn includes(self, host: usize, server: usize) -> bool {
        self.host == host && self.server.is_none_or(|it| it == server)
    }
}

impl Network {
    /// Creates a network between servers and a number of hosts.
    pub fn new(
        servers: Vec<Server>,
        (hosts, path): (usize, Path),
        time: VirtualTime,
        random: Random,
        trace: Trace,
    ) -> Self {
        let paths = vec![vec![path; servers.len()]; hosts];
        let state = State {
            random,
            servers,
            paths,
            connections: BTreeMap::new(),
            next_connection: 1,
            broken: BTreeSet::new(),
            ledger: Ledger::default(),
        };
        let shared = Shared { state: Mutex::new(state), changed: Notify::new(), trace, time };
        Self { shared: Arc::new(shared) }
    }

    /// Changes a Redis server.
    pub fn with_redis<T>(&self, server: usize, change: impl FnOnce(&mut Redis) -> T) -> T {
        change(self.shared.state.lock().servers[server].redis())
    }

    /// Changes a sentinel.
    pub fn with_sentinel<T>(&self, server: usize, change: impl FnOnce(&mut Sentinel) -> T) -> T {
        match &mut self.shared.state.lock().servers[server].program {
            Program::Sentinel(sentinel) => change(sentinel),
            Program::Redis(_) => panic!("server {server} is not a sentinel"),
        }
    }

    /// Reads or changes the record of commands.
    pub fn with_ledger<T>(&self, change: impl FnOnce(&mut Ledger) -> T) -> T {
        change(&mut self.shared.state.lock().ledger)
    }

    /// Returns the clock of a server.
    pub fn clock(&self, server: usize) -> MachineClock {
        self.shared.state.lock().servers[server].clock.clone()
    }

    /// Returns the name and port of a server.
    pub fn address(&self, server: usize) -> (String, u16) {
        self.shared.state.lock().servers[server].address.clone()
    }

    /// Moves a key from one node of a cluster to another. Returns false if it does not exist.
    pub fn move_key(&self, key: &[u8], from: usize, to: usize) -> bool {
        let servers = &mut self.shared.state.lock().servers;
        let now = [from, to].map(|server| servers[server].clock.now().as_micros());
        let Ok([from, to]) = servers.get_disjoint_mut([from, to]) else { return false };
        from.redis().move_key(key, to.redis(), now.into())
    }

    /// Changes the paths of a route.
    pub fn change_paths(&self, route: Route, change: impl Fn(&mut Path)) {
        let paths = &mut self.shared.state.lock().paths[route.host];
        let paths = paths.iter_mut().enumerate();
        paths.filter(|(server, _)| route.includes(route.host, *server)).for_each(|it| change(it.1));
        self.shared.changed.notify_waiters();
    }

    /// Stops a server, or starts it again. A stop breaks all connections.
    pub fn set_down(&self, server: usize, is_down: bool) {
        self.shared.state.lock().servers[server].is_down = is_down;
        if is_down {
            self.break_all(server);
        }
        self.shared.changed.notify_waiters();
    }

    /// Stops a server from reading, or resumes it.
    pub fn set_frozen(&self, server: usize, is_frozen: bool) {
        self.shared.state.lock().servers[server].is_frozen = is_frozen;
        self.shared.changed.notify_waiters();
    }

    /// Returns whether a server runs and reads.
    pub fn is_available(&self, server: usize) -> bool {
        let server = &self.shared.state.lock().servers[server];
        !server.is_down && !server.is_frozen
    }

    /// Breaks all connections to a server. A client behind a blocked path does not notice.
    pub fn break_all(&self, server: usize) {
        for connection in self.connections(|it| it.server == server) {
            let mut state = self.shared.state.lock();
            state.connections.remove(&connection.id);
            let path = state.paths[connection.host][server];
            drop(state);
            match path.is_blocked_down {
                true => connection.silence(),
                false => self.reset(&connection),
            }
        }
        self.shared.changed.notify_waiters();
    }

    /// Makes connections lose everything without notice, as after the loss of a middlebox's state. With a `proxy` that
    /// acknowledges everything, they never break.
    pub fn silence(&self, route: Route, proxy: bool) {
        for connection in self.connections(|it| route.includes(it.host, it.server)) {
            match proxy {
                true => connection.swallow(),
                false => connection.silence(),
            }
        }
        self.shared.changed.notify_waiters();
    }

    /// Cuts connections after this many more bytes towards the server, or towards the host.
    pub fn cut_after(&self, route: Route, bytes: usize, towards_server: bool) {
        for connection in self.connections(|it| route.includes(it.host, it.server)) {
            connection.cut_after(bytes, towards_server);
        }
    }

    /// Returns whether a connection of a host broke at a virtual time.
    pub fn was_broken(&self, host: usize, at: u64) -> bool {
        self.shared.state.lock().broken.contains(&(host, at))
    }

    /// Breaks the connections of a host that has crashed.
    pub fn crash(&self, host: usize) {
        self.connections(|it| it.host == host).iter().for_each(|connection| self.reset(connection));
        self.with_ledger(|ledger| ledger.forget(host));
    }

    fn reset(&self, connection: &Connection) {
        let now = self.shared.time.now();
        self.shared.state.lock().broken.insert((connection.host, now));
        connection.reset();
    }

    /// Removes cuts that have not happened yet.
    pub fn heal(&self) {
        self.connections(|_| true).iter().for_each(|connection| connection.heal());
    }

    fn connections(&self, is_meant: impl Fn(&Connection) -> bool) -> Vec<Arc<Connection>> {
        let state = self.shared.state.lock();
        state.connections.values().filter(|it| is_meant(it)).cloned().collect()
    }

    /// Draws the delay of a message between a host and a server.
    fn delay(&self, host: usize, server: usize) -> Duration {
        let mut state = self.shared.state.lock();
        let (least, most) = state.paths[host][server].delay;
        Duration::from_millis(state.random.between(least, most))
    }

    /// Opens a connection from a host to the server of this name.
    pub async fn connect(&self, host: usize, name: &str) -> io::Result<SimulatedStream> {
        let server = {
            let servers = &self.shared.state.lock().servers;
            servers.iter().position(|server| server.address.0 == name)
        };
        let server = server.ok_or(io::ErrorKind::HostUnreachable)?;
        self.record_connect(host, server);
        sleep(self.delay(host, server)).await;
        let give_up = Instant::now() + REPLY_TIMEOUT;
        for direction in [Direction::Up, Direction::Down] {
            if !self.opened((host, server), None, direction, give_up).await {
                return Err(io::ErrorKind::TimedOut.into());
            }
        }
        sleep(self.delay(host, server)).await;
        let mut state = self.shared.state.lock();
        if state.servers[server].is_down {
            return Err(io::ErrorKind::ConnectionRefused.into());
        }
        let id = state.next_connection;
        state.next_connection += 1;
        let connection = Arc::new(Connection::new(id, host, server));
        state.connections.insert(id, connection.clone());
        drop(state);
        self.shared.trace.event(format_args!("host {host} opens connection {id} to {name}"));
        let network = self.clone();
        let carried = connection.clone();
        tokio::spawn(async move {
            carry_up(&network, &carried).await;
            network.shared.state.lock().connections.remove(&id);
        });
        tokio::spawn(carry_down(self.clone(), connection.clone()));
        Ok(SimulatedStream::new(self.clone(), connection))
    }

    /// Records that a host connects to a server with Redis.
    fn record_connect(&self, host: usize, server: usize) {
        let state = &mut *self.shared.state.lock();
        if let Program::Redis(_) = state.servers[server].program {
            state.ledger.connect(self.shared.time.now(), host, server);
        }
    }

    /// Waits until a direction is open. Returns `false` if it is not before `until`.
    async fn opened(
        &self,
        (host, server): (usize, usize),
        connection: Option<&Connection>,
        direction: Direction,
        until: Instant,
    ) -> bool {
        let is_open = || {
            let path = self.shared.state.lock().paths[host][server];
            let is_blocked = match direction {
                Direction::Up => path.is_blocked_up,
                Direction::Down => path.is_blocked_down,
            };
            !is_blocked && connection.is_none_or(|connection| !connection.is_silent())
        };
        timeout_at(until, self.until(is_open)).await.is_ok()
    }

    /// Waits until a server reads from a connection, or the connection breaks.
    async fn until_read(&self, connection: &Connection) {
        let is_read = || !self.shared.state.lock().servers[connection.server].is_frozen;
        self.until(|| is_read() || connection.is_reset()).await;
    }

    /// Waits until a condition holds that changes with faults only.
    async fn until(&self, holds: impl Fn() -> bool) {
        loop {
            let changed = self.shared.changed.notified();
            if holds() {
                return;
            }
            changed.await;
        }
    }

    /// Delivers bytes to the server, and returns its replies.
    fn serve(&self, connection: &Connection, bytes: &[u8]) -> Vec<u8> {
        let elapsed = self.shared.time.now();
        let state = &mut *self.shared.state.lock();
        let server = &mut state.servers[connection.server];
        let now = server.clock.now().as_micros();
        let mut replies = Vec::new();
        connection.with_input(bytes, |unparsed, session| {
            while let Ok(Some(args)) = resp::take_command(unparsed) {
                let name = String::from_utf8_lossy(&args[0]).into_owned();
                args.iter().for_each(|arg| self.shared.trace.bytes(arg));
                let region = server.region(&args);
                let resets = server.resets();
                let reply = server.execute(session, args, now);
                let (host, number) = (connection.host, connection.server);
                if let Some(region) = region.filter(|_| !matches!(reply, resp::Reply::Error(_))) {
                    state.ledger.serve(now, elapsed, host, number, region);
                }
                if server.resets() > resets {
                    state.ledger.reset(now, elapsed);
                }
                let before = replies.len();
                reply.encode(session.resp3, &mut replies);
                self.shared.trace.bytes(&replies[before..]);
                let shown = match &reply {
                    resp::Reply::Error(text) => text.as_str(),
                    _ => "ok",
                };
                let (id, to) = (connection.id, &server.address.0);
                let trace = &self.shared.trace;
                trace.event(format_args!("{to}: connection {id}: {name}: {shown}"));
            }
        });
        replies
    }

    fn is_cut(&self, connection: &Connection) {
        self.shared.trace.event(format_args!("connection {} is cut", connection.id));
        self.reset(connection);
    }
}
