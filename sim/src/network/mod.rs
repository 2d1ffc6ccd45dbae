//! The network between hosts and the Redis server, and the streams over it.
//!
//! A connection is reliable and ordered, as TCP is. Faults delay bytes, block a direction, lose a connection silently,
//! or cut it after any byte. Bytes that cannot be delivered within [`SEND_TIMEOUT`] break the connection, as with
//! `TCP_USER_TIMEOUT`; until then they are delivered even if the client has closed its stream.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    io,
    ops::RangeInclusive,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use pacegate::Clock;
use pacegate_testkit::Random;
use parking_lot::Mutex;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    sync::Notify,
    time::{Instant, sleep, sleep_until, timeout_at},
};

use crate::{
    clock::MachineClock,
    redis::{Redis, Session, resp},
    trace::Trace,
};

/// The network and the server. Clones share them.
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
    /// The clock of the server.
    clock: MachineClock,
}

#[derive(Debug)]
struct State {
    random: Random,
    redis: Redis,
    /// One for each host.
    paths: Vec<Path>,
    /// The server refuses connections.
    is_down: bool,
    /// The server does not read from connections.
    is_frozen: bool,
    connections: BTreeMap<u64, Arc<Connection>>,
    next_connection: u64,
    /// Virtual times at which the server lost data or its clock stepped.
    disturbances: Vec<u64>,
    /// Virtual times at which the server reset a key.
    resets: Vec<u64>,
    /// Hosts whose connections broke, and the virtual times.
    broken: BTreeSet<(usize, u64)>,
    /// Times that the clock of the server showed when it reset a key.
    reset_times: BTreeSet<u64>,
    /// For each time that the clock of the server showed when it ran commands: when that was.
    served: BTreeMap<u64, Vec<Served>>,
}

/// When the server ran commands.
#[derive(Clone, Copy, Debug)]
pub struct Served {
    /// The virtual time.
    pub at: u64,
    /// The number of disturbances before.
    pub disturbances: usize,
    /// The number of resets before.
    pub resets: usize,
}

/// The path between a host and the server.
#[derive(Clone, Copy, Debug)]
pub struct Path {
    /// Minimum and maximum milliseconds of a one-way delay.
    pub delay: (u64, u64),
    /// Nothing reaches the server.
    pub is_blocked_up: bool,
    /// Nothing reaches the host.
    pub is_blocked_down: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    Up,
    Down,
}

#[derive(Debug)]
struct Connection {
    id: u64,
    host: usize,
    state: Mutex<ConnectionState>,
    sent_up: Notify,
    sent_down: Notify,
}

#[derive(Debug, Default)]
struct ConnectionState {
    up: VecDeque<Chunk>,
    down: VecDeque<Chunk>,
    /// Bytes that the client can read.
    inbox: VecDeque<u8>,
    reader: Option<Waker>,
    is_reset: bool,
    is_closed_by_client: bool,
    /// Nothing is delivered any more, and neither side notices.
    is_silent: bool,
    /// Bytes that still pass before the connection breaks.
    cut_up: Option<usize>,
    cut_down: Option<usize>,
    /// The server's side: bytes of an incomplete command.
    unparsed: Vec<u8>,
    session: Session,
}

#[derive(Debug)]
struct Chunk {
    bytes: Vec<u8>,
    written: Instant,
    due: Instant,
}

/// The client's end of a connection.
#[derive(Debug)]
pub struct SimulatedStream {
    network: Network,
    connection: Arc<Connection>,
}

/// Time after which undelivered bytes of a client break its connection: as in the store's environment.
const SEND_TIMEOUT: Duration = Duration::from_secs(1);
/// Time for which a server tries to send.
const REPLY_TIMEOUT: Duration = Duration::from_secs(600);

impl Network {
    /// Creates a network of `paths` to a server.
    pub fn new(
        redis: Redis,
        clock: MachineClock,
        paths: Vec<Path>,
        random: Random,
        trace: Trace,
    ) -> Self {
        let state = State {
            random,
            redis,
            paths,
            is_down: false,
            is_frozen: false,
            connections: BTreeMap::new(),
            next_connection: 1,
            disturbances: Vec::new(),
            resets: Vec::new(),
            broken: BTreeSet::new(),
            reset_times: BTreeSet::new(),
            served: BTreeMap::new(),
        };
        let shared = Shared { state: Mutex::new(state), changed: Notify::new(), trace, clock };
        Self { shared: Arc::new(shared) }
    }

    /// Changes the server.
    pub fn with_redis<T>(&self, change: impl FnOnce(&mut Redis) -> T) -> T {
        change(&mut self.shared.state.lock().redis)
    }

    /// Changes the path of a host.
    pub fn change_path(&self, host: usize, change: impl FnOnce(&mut Path)) {
        change(&mut self.shared.state.lock().paths[host]);
        self.shared.changed.notify_waiters();
    }

    /// Stops the server, or starts it again. A stop breaks all connections.
    pub fn set_down(&self, is_down: bool) {
        self.shared.state.lock().is_down = is_down;
        if is_down {
            self.break_all();
        }
        self.shared.changed.notify_waiters();
    }

    /// Stops the server from reading, or resumes it.
    pub fn set_frozen(&self, is_frozen: bool) {
        self.shared.state.lock().is_frozen = is_frozen;
        self.shared.changed.notify_waiters();
    }

    /// Breaks all connections. A client behind a blocked path does not notice.
    pub fn break_all(&self) {
        let connections = std::mem::take(&mut self.shared.state.lock().connections);
        for connection in connections.into_values() {
            let path = self.shared.state.lock().paths[connection.host];
            match path.is_blocked_down {
                true => connection.silence(),
                false => self.reset(&connection),
            }
        }
        self.shared.changed.notify_waiters();
    }

    /// Makes the connections of a host lose everything without notice, as after the loss of a middlebox's state.
    pub fn silence(&self, host: usize) {
        self.of_host(host).iter().for_each(|connection| connection.silence());
        self.shared.changed.notify_waiters();
    }

    /// Cuts the connections of a host after this many more bytes towards the server, or towards the host.
    pub fn cut_after(&self, host: usize, bytes: usize, towards_server: bool) {
        for connection in self.of_host(host) {
            let mut state = connection.state.lock();
            match towards_server {
                true => state.cut_up = Some(bytes),
                false => state.cut_down = Some(bytes),
            }
        }
    }

    /// Records that the server lost data or that its clock stepped.
    pub fn disturb(&self) {
        let now = self.shared.clock.elapsed().as_micros() as u64;
        self.shared.state.lock().disturbances.push(now);
    }

    /// Returns the virtual times at which the server lost data or its clock stepped.
    pub fn disturbances(&self) -> Vec<u64> {
        self.shared.state.lock().disturbances.clone()
    }

    /// Returns the virtual times at which the server reset a key.
    pub fn resets(&self) -> Vec<u64> {
        self.shared.state.lock().resets.clone()
    }

    /// Returns when the server ran a command, given the time that its clock showed then and the virtual time of the
    /// request.
    pub fn served(&self, shown: u64, request: RangeInclusive<u64>) -> Option<Served> {
        let state = self.shared.state.lock();
        state.served.get(&shown)?.iter().find(|served| request.contains(&served.at)).copied()
    }

    /// Returns whether the server reset a key when its clock showed this time. Then the order of that and of other
    /// commands is unknown.
    pub fn has_reset_at(&self, shown: u64) -> bool {
        self.shared.state.lock().reset_times.contains(&shown)
    }

    /// Returns whether a connection of a host broke at a virtual time.
    pub fn was_broken(&self, host: usize, at: u64) -> bool {
        self.shared.state.lock().broken.contains(&(host, at))
    }

    /// Breaks the connections of a host that has crashed.
    pub fn crash(&self, host: usize) {
        self.of_host(host).iter().for_each(|connection| self.reset(connection));
    }

    fn reset(&self, connection: &Connection) {
        let now = self.shared.clock.elapsed().as_micros() as u64;
        self.shared.state.lock().broken.insert((connection.host, now));
        connection.reset();
    }

    /// Removes cuts that have not happened yet.
    pub fn heal(&self) {
        for connection in self.shared.state.lock().connections.values() {
            let mut state = connection.state.lock();
            (state.cut_up, state.cut_down) = (None, None);
        }
    }

    fn of_host(&self, host: usize) -> Vec<Arc<Connection>> {
        let state = self.shared.state.lock();
        state.connections.values().filter(|it| it.host == host).cloned().collect()
    }

    /// Draws the delay of a message from or to a host.
    fn delay(&self, host: usize) -> Duration {
        let mut state = self.shared.state.lock();
        let (least, most) = state.paths[host].delay;
        Duration::from_millis(state.random.between(least, most))
    }

    /// Opens a connection from a host.
    pub async fn connect(&self, host: usize) -> io::Result<SimulatedStream> {
        sleep(self.delay(host)).await;
        let give_up = Instant::now() + REPLY_TIMEOUT;
        for direction in [Direction::Up, Direction::Down] {
            if !self.opened(host, None, direction, give_up).await {
                return Err(io::ErrorKind::TimedOut.into());
            }
        }
        sleep(self.delay(host)).await;
        let mut state = self.shared.state.lock();
        if state.is_down {
            return Err(io::ErrorKind::ConnectionRefused.into());
        }
        let id = state.next_connection;
        state.next_connection += 1;
        let connection = Arc::new(Connection {
            id,
            host,
            state: Mutex::default(),
            sent_up: Notify::new(),
            sent_down: Notify::new(),
        });
        state.connections.insert(id, connection.clone());
        drop(state);
        self.shared.trace.event(format_args!("host {host} opens connection {id}"));
        let network = self.clone();
        let carried = connection.clone();
        tokio::spawn(async move {
            carry_up(&network, &carried).await;
            network.shared.state.lock().connections.remove(&id);
        });
        tokio::spawn(carry_down(self.clone(), connection.clone()));
        Ok(SimulatedStream { network: self.clone(), connection })
    }

    /// Waits until a direction is open. Returns `false` if it is not before `until`.
    async fn opened(
        &self,
        host: usize,
        connection: Option<&Connection>,
        direction: Direction,
        until: Instant,
    ) -> bool {
        let is_open = || {
            let path = self.shared.state.lock().paths[host];
            let is_blocked = match direction {
                Direction::Up => path.is_blocked_up,
                Direction::Down => path.is_blocked_down,
            };
            !is_blocked && connection.is_none_or(|connection| !connection.state.lock().is_silent)
        };
        timeout_at(until, self.until(is_open)).await.is_ok()
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
        let now = self.shared.clock.now().as_micros();
        let network = &mut *self.shared.state.lock();
        let elapsed = self.shared.clock.elapsed().as_micros() as u64;
        let served = Served {
            at: elapsed,
            disturbances: network.disturbances.len(),
            resets: network.resets.len(),
        };
        network.served.entry(now).or_default().push(served);
        let redis = &mut network.redis;
        let state = &mut *connection.state.lock();
        state.unparsed.extend_from_slice(bytes);
        let mut replies = Vec::new();
        while let Ok(Some(args)) = resp::take_command(&mut state.unparsed) {
            let name = String::from_utf8_lossy(&args[0]).into_owned();
            args.iter().for_each(|arg| self.shared.trace.bytes(arg));
            let resets = redis.resets();
            let reply = redis.execute(&mut state.session, args, now);
            if redis.resets() > resets {
                network.resets.push(elapsed);
                network.reset_times.insert(now);
            }
            let before = replies.len();
            reply.encode(state.session.resp3, &mut replies);
            self.shared.trace.bytes(&replies[before..]);
            let shown = match &reply {
                resp::Reply::Error(text) => text.as_str(),
                _ => "ok",
            };
            let id = connection.id;
            self.shared.trace.event(format_args!("redis: connection {id}: {name}: {shown}"));
        }
        replies
    }
}

impl Connection {
    fn reset(&self) {
        let mut state = self.state.lock();
        state.is_reset = true;
        state.up.clear();
        state.down.clear();
        if let Some(reader) = state.reader.take() {
            reader.wake();
        }
        drop(state);
        self.sent_up.notify_one();
        self.sent_down.notify_one();
    }

    fn silence(&self) {
        self.state.lock().is_silent = true;
    }

    fn send(&self, direction: Direction, bytes: Vec<u8>, delay: Duration) {
        let mut state = self.state.lock();
        let queue = match direction {
            Direction::Up => &mut state.up,
            Direction::Down => &mut state.down,
        };
        let written = Instant::now();
        // In order: never before an earlier chunk.
        let due = (written + delay).max(queue.back().map_or(written, |last| last.due));
        queue.push_back(Chunk { bytes, written, due });
        drop(state);
        match direction {
            Direction::Up => self.sent_up.notify_one(),
            Direction::Down => self.sent_down.notify_one(),
        }
    }

    /// Returns the next chunk; `None` if there will be none.
    async fn next(&self, direction: Direction) -> Option<Chunk> {
        loop {
            {
                let mut state = self.state.lock();
                if state.is_reset {
                    return None;
                }
                let queue = match direction {
                    Direction::Up => &mut state.up,
                    Direction::Down => &mut state.down,
                };
                if let Some(chunk) = queue.pop_front() {
                    return Some(chunk);
                }
                if state.is_closed_by_client {
                    return None;
                }
            }
            match direction {
                Direction::Up => self.sent_up.notified().await,
                Direction::Down => self.sent_down.notified().await,
            }
        }
    }

    /// Returns the part of a chunk that passes before a cut, and whether the connection is cut there.
    fn until_cut<'a>(&self, direction: Direction, bytes: &'a [u8]) -> (&'a [u8], bool) {
        let mut state = self.state.lock();
        let cut = match direction {
            Direction::Up => &mut state.cut_up,
            Direction::Down => &mut state.cut_down,
        };
        match cut {
            Some(left) if *left <= bytes.len() => (&bytes[..*left], true),
            Some(left) => {
                *left -= bytes.len();
                (bytes, false)
            }
            None => (bytes, false),
        }
    }

    fn is_reset(&self) -> bool {
        self.state.lock().is_reset
    }
}

/// Carries bytes to the server, which runs complete commands.
async fn carry_up(network: &Network, connection: &Connection) {
    let host = connection.host;
    while let Some(chunk) = connection.next(Direction::Up).await {
        sleep_until(chunk.due).await;
        let until = chunk.written + SEND_TIMEOUT;
        if !network.opened(host, Some(connection), Direction::Up, until).await {
            return network.reset(connection);
        }
        network.until(|| !network.shared.state.lock().is_frozen || connection.is_reset()).await;
        if connection.is_reset() {
            return;
        }
        let (bytes, is_cut) = connection.until_cut(Direction::Up, &chunk.bytes);
        let replies = network.serve(connection, bytes);
        if is_cut {
            network.shared.trace.event(format_args!("connection {} is cut", connection.id));
            return network.reset(connection);
        }
        if !replies.is_empty() {
            connection.send(Direction::Down, replies, network.delay(host));
        }
    }
}

/// Carries replies to the client.
async fn carry_down(network: Network, connection: Arc<Connection>) {
    let host = connection.host;
    while let Some(chunk) = connection.next(Direction::Down).await {
        sleep_until(chunk.due).await;
        let until = chunk.written + REPLY_TIMEOUT;
        if !network.opened(host, Some(&connection), Direction::Down, until).await {
            return network.reset(&connection);
        }
        let (bytes, is_cut) = connection.until_cut(Direction::Down, &chunk.bytes);
        let mut state = connection.state.lock();
        if state.is_reset {
            return;
        }
        state.inbox.extend(bytes);
        if let Some(reader) = state.reader.take() {
            reader.wake();
        }
        drop(state);
        if is_cut {
            network.shared.trace.event(format_args!("connection {} is cut", connection.id));
            return network.reset(&connection);
        }
    }
}

impl AsyncRead for SimulatedStream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let mut state = self.connection.state.lock();
        if !state.inbox.is_empty() {
            let count = state.inbox.len().min(buffer.remaining());
            for byte in state.inbox.drain(..count) {
                buffer.put_slice(&[byte]);
            }
            return Poll::Ready(Ok(()));
        }
        if state.is_reset {
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        }
        state.reader = Some(context.waker().clone());
        Poll::Pending
    }
}

impl AsyncWrite for SimulatedStream {
    fn poll_write(
        self: Pin<&mut Self>,
        _: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if self.connection.is_reset() {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        let delay = self.network.delay(self.connection.host);
        self.connection.send(Direction::Up, bytes.to_vec(), delay);
        Poll::Ready(Ok(bytes.len()))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

impl Drop for SimulatedStream {
    fn drop(&mut self) {
        self.connection.state.lock().is_closed_by_client = true;
        self.connection.sent_up.notify_one();
        self.connection.sent_down.notify_one();
    }
}
