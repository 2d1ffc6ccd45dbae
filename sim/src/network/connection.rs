//! One connection: its bytes in both directions, and the stream of the client.

use std::{
    collections::VecDeque,
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, Waker},
    time::Duration,
};

use parking_lot::Mutex;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    sync::Notify,
    time::{Instant, sleep_until},
};

use super::{Network, REPLY_TIMEOUT, SEND_TIMEOUT};
use crate::redis::Session;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    Up,
    Down,
}

#[derive(Debug)]
pub(super) struct Connection {
    pub(super) id: u64,
    pub(super) host: usize,
    pub(super) server: usize,
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
    /// The same, but a proxy acknowledges everything, so that the connection never breaks.
    is_swallowed: bool,
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

impl Connection {
    pub(super) fn new(id: u64, host: usize, server: usize) -> Self {
        let (sent_up, sent_down) = (Notify::new(), Notify::new());
        Self { id, host, server, state: Mutex::default(), sent_up, sent_down }
    }

    pub(super) fn reset(&self) {
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

    pub(super) fn silence(&self) {
        self.state.lock().is_silent = true;
    }

    pub(super) fn swallow(&self) {
        self.state.lock().is_swallowed = true;
    }

    fn is_swallowed(&self) -> bool {
        self.state.lock().is_swallowed
    }

    pub(super) fn is_silent(&self) -> bool {
        self.state.lock().is_silent
    }

    pub(super) fn cut_after(&self, bytes: usize, towards_server: bool) {
        let mut state = self.state.lock();
        match towards_server {
            true => state.cut_up = Some(bytes),
            false => state.cut_down = Some(bytes),
        }
    }

    /// Removes cuts that have not happened yet.
    pub(super) fn heal(&self) {
        let mut state = self.state.lock();
        (state.cut_up, state.cut_down) = (None, None);
    }

    /// Adds bytes to those that the server has not parsed yet, and runs commands from them.
    pub(super) fn with_input(&self, bytes: &[u8], run: impl FnOnce(&mut Vec<u8>, &mut Session)) {
        let state = &mut *self.state.lock();
        state.unparsed.extend_from_slice(bytes);
        run(&mut state.unparsed, &mut state.session);
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

    pub(super) fn is_reset(&self) -> bool {
        self.state.lock().is_reset
    }
}

/// Carries bytes to the server, which runs complete commands.
pub(super) async fn carry_up(network: &Network, connection: &Connection) {
    let path = (connection.host, connection.server);
    while let Some(chunk) = connection.next(Direction::Up).await {
        sleep_until(chunk.due).await;
        let until = chunk.written + SEND_TIMEOUT;
        if !network.opened(path, Some(connection), Direction::Up, until).await {
            return network.reset(connection);
        }
        network.until_read(connection).await;
        if connection.is_reset() {
            return;
        }
        if connection.is_swallowed() {
            continue;
        }
        let (bytes, is_cut) = connection.until_cut(Direction::Up, &chunk.bytes);
        let replies = network.serve(connection, bytes);
        if is_cut {
            return network.is_cut(connection);
        }
        if !replies.is_empty() {
            connection.send(Direction::Down, replies, network.delay(path.0, path.1));
        }
    }
}

/// Carries replies to the client.
pub(super) async fn carry_down(network: Network, connection: Arc<Connection>) {
    let path = (connection.host, connection.server);
    while let Some(chunk) = connection.next(Direction::Down).await {
        sleep_until(chunk.due).await;
        let until = chunk.written + REPLY_TIMEOUT;
        if !network.opened(path, Some(&connection), Direction::Down, until).await {
            return network.reset(&connection);
        }
        if connection.is_swallowed() {
            continue;
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
            return network.is_cut(&connection);
        }
    }
}

impl SimulatedStream {
    pub(super) fn new(network: Network, connection: Arc<Connection>) -> Self {
        Self { network, connection }
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
        let delay = self.network.delay(self.connection.host, self.connection.server);
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
