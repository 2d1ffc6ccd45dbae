//! The state of an HTTP connection, and the timeouts that close it.

use std::{
    error::Error,
    future::{Future, poll_fn},
    io,
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering},
    },
    task::{Context, Poll, ready},
    time::Duration,
};

use anyhow::Chain;
use http::Version;
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    task::coop::has_budget_remaining,
    time::{Instant, Sleep, sleep},
};

use super::{Drain, GRACE, Peer, Share, unauthenticated_turn};
use crate::config::Bounds;

/// The state of a connection, written by the socket and by the requests. Atomic because tasks may move; each connection
/// stays on one thread.
#[derive(Debug)]
pub(crate) struct Watch {
    pub(crate) peer: Peer,
    share: Arc<Share>,
    is_authenticated: AtomicBool,
    /// Many requests have lacked an API key.
    is_suspect: AtomicBool,
    /// Such requests since `keyless_since`, in seconds since the connection began.
    keyless: AtomicU64,
    keyless_since: AtomicU64,
    begun: Instant,
    /// Such a client has left too many answers unread.
    is_given_up: AtomicBool,
    /// A part of a request has arrived.
    is_reading: AtomicBool,
    /// The last read found nothing, so HTTP/1.1 has no other request at hand.
    is_read_up: AtomicBool,
    /// Bytes read since the connection was last polled.
    turn: AtomicUsize,
    /// Bytes read since the drain began.
    drained: AtomicUsize,
    /// Requests that are not answered yet.
    open: AtomicU64,
    /// Requests so far.
    requests: AtomicU64,
    is_http2: AtomicBool,
    is_draining: AtomicBool,
    /// Writes wait for the other requests that have arrived.
    holds_writes: AtomicBool,
    has_held_writes: AtomicBool,
}

/// Counts a request as open until it is dropped.
pub(crate) struct Open(Arc<Watch>);

/// A socket whose reads the watch sees.
pub(crate) struct Watched<I> {
    io: I,
    /// Bytes to read before those of the socket.
    first: &'static [u8],
    watch: Arc<Watch>,
    /// Runs until a client without an API key may be read from again.
    pause: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
}

/// The timeouts that close a connection.
struct Timeouts<'a> {
    bounds: Bounds,
    watch: &'a Watch,
    timer: Pin<&'a mut Sleep>,
    reading_since: Option<Instant>,
    idle_since: Instant,
    /// When to check for unread responses.
    period_ends: Instant,
    requests: u64,
    end: End,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    NotBegun,
    /// The client may have sent a request that has not arrived yet. It is answered, too.
    Lingering {
        until: Instant,
    },
    /// The client was notified, and has until then to close the connection.
    Closing {
        until: Instant,
    },
}

/// The action that is due when the timer fires.
enum Due {
    Nothing,
    /// Answer the open requests, and close.
    Close,
    /// Close now.
    GiveUp,
}

/// Bytes that are read from a connection before other connections are polled. Fewer for a client that has shown no API
/// key: a flood of its requests must not delay others.
const TURN_BYTES: usize = 64 << 10;
const UNAUTHENTICATED_TURN_BYTES: usize = 512;
/// Requests without an API key that are read like any others: probes of `/healthz` have none.
const MAX_KEYLESS_PER_SECOND: u64 = 8;
/// Answers over HTTP/2 that a client without an API key may leave unread. The dashboard has 12 files.
const MAX_UNAUTHENTICATED_UNREAD: usize = 32;
/// Bytes of pipelined requests that are answered after the drain has begun.
const MAX_DRAINED_BYTES: usize = 1 << 20;
/// The interval between checks of a busy connection after the grace period of a drain.
const BUSY_PAUSE: Duration = Duration::from_millis(20);

/// Runs `connection` to its end. `close` starts its graceful shutdown.
pub(crate) async fn run_connection<C, E>(
    connection: C,
    close: impl Fn(Pin<&mut C>),
    watch: &Watch,
    bounds: Bounds,
    mut drain: Drain,
) -> Result<(), E>
where
    C: Future<Output = Result<(), E>>,
{
    let mut connection = pin!(connection);
    let timer = pin!(sleep(bounds.idle_timeout.min(bounds.write_timeout)));
    let mut timeouts = Timeouts::new(bounds, watch, timer);
    let mut begun = pin!(drain.begun());
    poll_fn(|cx| {
        watch.turn.store(0, Ordering::Relaxed);
        loop {
            if !watch.is_draining() && begun.as_mut().poll(cx).is_ready() {
                timeouts.linger();
            }
            if let Poll::Ready(done) = poll_and_flush(connection.as_mut(), watch, cx) {
                return Poll::Ready(done);
            }
            if watch.is_given_up.load(Ordering::Relaxed) {
                return Poll::Ready(Ok(()));
            }
            match timeouts.poll(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Due::Nothing) => {}
                Poll::Ready(Due::Close) => close(connection.as_mut()),
                Poll::Ready(Due::GiveUp) => return Poll::Ready(Ok(())),
            }
        }
    })
    .await
}

/// Polls a connection. HTTP/2 flushes after each request that is answered at once; here the responses to all requests
/// that have arrived are written together.
fn poll_and_flush<C: Future>(
    mut connection: Pin<&mut C>,
    watch: &Watch,
    cx: &mut Context<'_>,
) -> Poll<C::Output> {
    loop {
        let polled = connection.as_mut().poll(cx);
        if polled.is_ready() || !watch.release_writes() {
            return polled;
        }
    }
}

/// An error with its causes, in one line.
pub(crate) fn describe(error: &(dyn Error + 'static)) -> String {
    let texts: Vec<_> = Chain::new(error).map(ToString::to_string).collect();
    texts.join(": ")
}

/// Returns true if a connection ended because of a protocol violation by the client.
pub(crate) fn is_violation(error: &(dyn Error + 'static)) -> bool {
    !Chain::new(error).any(|error| error.is::<io::Error>())
}

impl Watch {
    /// A connection of this client, which begins as HTTP/1.1 unless `is_http2`.
    pub(crate) fn new(peer: Peer, share: Arc<Share>, is_http2: bool) -> Arc<Self> {
        Arc::new(Self {
            peer,
            share,
            is_authenticated: AtomicBool::new(false),
            is_suspect: AtomicBool::new(false),
            keyless: AtomicU64::new(0),
            keyless_since: AtomicU64::new(0),
            begun: Instant::now(),
            is_given_up: AtomicBool::new(false),
            is_reading: AtomicBool::new(false),
            is_read_up: AtomicBool::new(false),
            turn: AtomicUsize::new(0),
            drained: AtomicUsize::new(0),
            open: AtomicU64::new(0),
            requests: AtomicU64::new(0),
            is_http2: AtomicBool::new(is_http2),
            is_draining: AtomicBool::new(false),
            holds_writes: AtomicBool::new(false),
            has_held_writes: AtomicBool::new(false),
        })
    }

    /// Watches the reads of a socket.
    pub(crate) fn watched<I>(self: &Arc<Self>, io: I) -> Watched<I> {
        Watched { io, first: &[], watch: self.clone(), pause: None }
    }

    /// A request has arrived.
    pub(crate) fn begin(self: &Arc<Self>, version: Version) -> Open {
        self.is_reading.store(false, Ordering::Relaxed);
        self.open.fetch_add(1, Ordering::Relaxed);
        self.requests.fetch_add(1, Ordering::Relaxed);
        if version == Version::HTTP_2 {
            self.is_http2.store(true, Ordering::Relaxed);
            self.holds_writes.store(true, Ordering::Relaxed);
        }
        Open(self.clone())
    }

    /// Returns true if a write has to wait until the connection was polled.
    fn holds_write(&self) -> bool {
        let holds = self.holds_writes.load(Ordering::Relaxed);
        if holds {
            self.has_held_writes.store(true, Ordering::Relaxed);
        }
        holds
    }

    /// Allows writes again. Returns true if one was held, so that the connection has to be polled again.
    fn release_writes(&self) -> bool {
        self.holds_writes.store(false, Ordering::Relaxed);
        self.has_held_writes.swap(false, Ordering::Relaxed)
    }

    /// Returns the bytes that an HTTP/2 connection holds. HTTP/1.1 has one request at a time and needs no count.
    pub(crate) fn share(&self) -> Option<&Arc<Share>> {
        self.is_http2().then_some(&self.share)
    }

    /// True if a request of this connection had an API key, or none is needed.
    pub(crate) fn is_authenticated(&self) -> bool {
        self.is_authenticated.load(Ordering::Relaxed)
    }

    /// Records that a request lacks an API key. After many of them in one second, few bytes are read from the
    /// connection. It is closed if the client does not read the responses.
    pub(crate) fn suspect(&self) {
        let second = self.begun.elapsed().as_secs();
        if self.keyless_since.swap(second, Ordering::Relaxed) != second {
            self.keyless.store(0, Ordering::Relaxed);
        }
        let keyless = self.keyless.fetch_add(1, Ordering::Relaxed) + 1;
        self.is_suspect.store(keyless > MAX_KEYLESS_PER_SECOND, Ordering::Relaxed);
        if self.share.unread() > MAX_UNAUTHENTICATED_UNREAD {
            self.is_given_up.store(true, Ordering::Relaxed);
        }
    }

    /// Records that a request has an API key.
    pub(crate) fn authenticate(&self) {
        self.is_authenticated.store(true, Ordering::Relaxed);
        self.peer.authenticated();
    }

    /// Returns true if a response should announce the end of the connection. HTTP/2 uses a frame, HTTP/1.1 the
    /// response to the last request that has arrived. When its buffer is empty, hyper reads the socket while a request
    /// is open. If this read finds nothing, the request is the last one.
    pub(crate) fn is_last(&self) -> bool {
        let is_flood = self.drained.load(Ordering::Relaxed) > MAX_DRAINED_BYTES;
        self.is_draining() && !self.is_http2() && (self.is_read_up() || is_flood)
    }

    pub(crate) fn is_http2(&self) -> bool {
        self.is_http2.load(Ordering::Relaxed)
    }

    fn is_draining(&self) -> bool {
        self.is_draining.load(Ordering::Relaxed)
    }

    fn is_read_up(&self) -> bool {
        self.is_read_up.load(Ordering::Relaxed)
    }

    fn is_open(&self) -> bool {
        self.open.load(Ordering::Relaxed) > 0
    }

    /// Bytes that may be read before other connections are polled.
    fn turn_left(&self) -> usize {
        let turn = match self.is_authenticated() {
            true => TURN_BYTES,
            false => UNAUTHENTICATED_TURN_BYTES,
        };
        turn.saturating_sub(self.turn.load(Ordering::Relaxed))
    }

    fn has_read(&self, bytes: usize) {
        self.turn.fetch_add(bytes, Ordering::Relaxed);
        if self.is_draining() {
            self.drained.fetch_add(bytes, Ordering::Relaxed);
        }
        // HTTP/2 has frames that belong to no request.
        if !self.is_open() && !self.is_http2() {
            self.is_reading.store(true, Ordering::Relaxed);
        }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}

impl<'a> Timeouts<'a> {
    fn new(bounds: Bounds, watch: &'a Watch, timer: Pin<&'a mut Sleep>) -> Self {
        let now = Instant::now();
        Self {
            bounds,
            watch,
            timer,
            reading_since: None,
            idle_since: now,
            period_ends: now + bounds.write_timeout,
            requests: 0,
            end: End::NotBegun,
        }
    }

    /// Starts to drain. HTTP/2 is notified at once.
    fn linger(&mut self) {
        let grace = if self.watch.is_http2() { Duration::ZERO } else { GRACE };
        let until = Instant::now() + grace;
        self.watch.is_draining.store(true, Ordering::Relaxed);
        if self.end == End::NotBegun {
            self.end = End::Lingering { until };
            self.timer.as_mut().reset(until);
        }
    }

    /// Ready when there is something to do, or the timer has to be polled again.
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Due> {
        match (self.watch.is_reading.load(Ordering::Relaxed), self.reading_since) {
            // No clock is read for a request that comes in one piece.
            (true, None) => {
                let now = Instant::now();
                self.reading_since = Some(now);
                let end = now + self.bounds.read_timeout;
                if end < self.timer.deadline() {
                    self.timer.as_mut().reset(end);
                }
            }
            (false, Some(_)) => self.reading_since = None,
            _ => {}
        }
        self.timer.as_mut().poll(cx).map(|()| self.check())
    }

    fn check(&mut self) -> Due {
        let now = Instant::now();
        let read_until = self.reading_since.map(|since| since + self.bounds.read_timeout);
        if read_until.is_some_and(|until| until <= now) || self.has_unread(now) {
            return Due::GiveUp;
        }
        let is_open = self.watch.is_open();
        let requests = self.watch.requests.load(Ordering::Relaxed);
        if is_open || requests != self.requests {
            (self.idle_since, self.requests) = (now, requests);
        }
        let idle_until = self.idle_since + self.bounds.idle_timeout;
        let mut next = read_until.map_or(self.period_ends, |until| until.min(self.period_ends));
        let mut due = Due::Nothing;
        let is_http2 = self.watch.is_http2();
        match self.end {
            End::NotBegun if idle_until > now => next = next.min(idle_until),
            End::NotBegun if !is_http2 => due = Due::GiveUp,
            // An HTTP/2 client may be about to send a request, so it is notified first.
            End::NotBegun => (due, next) = self.close(now, next),
            End::Lingering { until } if until > now => next = next.min(until),
            // Pipelined requests that have arrived are answered.
            End::Lingering { .. } if !is_http2 && (is_open || !self.watch.is_read_up()) => {
                next = next.min(now + BUSY_PAUSE);
            }
            End::Lingering { .. } => (due, next) = self.close(now, next),
            End::Closing { until } if until <= now && !is_open => due = Due::GiveUp,
            End::Closing { until } => next = next.min(until.max(now + BUSY_PAUSE)),
        }
        self.timer.as_mut().reset(next);
        due
    }

    fn close(&mut self, now: Instant, next: Instant) -> (Due, Instant) {
        let until = now + self.bounds.read_timeout;
        self.end = End::Closing { until };
        (Due::Close, next.min(until))
    }

    /// Returns true if the client has left a response unread for too long.
    fn has_unread(&mut self, now: Instant) -> bool {
        if now < self.period_ends {
            return false;
        }
        self.period_ends = now + self.bounds.write_timeout;
        self.watch.share.next_period()
    }
}

impl<I: AsyncRead + Unpin> Watched<I> {
    /// Replays bytes that have already been read.
    pub(crate) fn after(self, first: &'static [u8]) -> Self {
        Self { first, ..self }
    }

    /// Reads at most `max` bytes, once it is the turn of a client without an API key.
    fn poll_unauthenticated(
        &mut self,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
        max: usize,
    ) -> Poll<io::Result<()>> {
        if let Some(pause) = &mut self.pause {
            ready!(pause.as_mut().poll(cx));
            self.pause = None;
        }
        let mut bytes = [0; UNAUTHENTICATED_TURN_BYTES];
        let mut part = ReadBuf::new(&mut bytes[..max.min(buf.remaining())]);
        let done = Pin::new(&mut self.io).poll_read(cx, &mut part);
        buf.put_slice(part.filled());
        if !part.filled().is_empty() && self.watch.is_suspect.load(Ordering::Relaxed) {
            self.pause = Some(Box::pin(unauthenticated_turn()));
        }
        done
    }
}

impl<I: AsyncRead + Unpin> AsyncRead for Watched<I> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if !self.first.is_empty() {
            let (now, later) = self.first.split_at(buf.remaining().min(self.first.len()));
            buf.put_slice(now);
            self.first = later;
            return Poll::Ready(Ok(()));
        }
        let left = self.watch.turn_left();
        if left == 0 {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let before = buf.filled().len();
        let done = match self.watch.is_authenticated() {
            true => Pin::new(&mut self.io).poll_read(cx, buf),
            false => self.poll_unauthenticated(cx, buf, left),
        };
        // A task without budget reads nothing, even if data has arrived.
        let is_read_up = done.is_pending() && self.pause.is_none() && has_budget_remaining();
        self.watch.is_read_up.store(is_read_up, Ordering::Relaxed);
        if done.is_ready() && buf.filled().len() > before {
            self.watch.has_read(buf.filled().len() - before);
        }
        done
    }
}

impl<I: AsyncWrite + Unpin> AsyncWrite for Watched<I> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<io::Result<usize>> {
        if self.watch.holds_write() {
            return Poll::Pending;
        }
        Pin::new(&mut self.io).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        if self.watch.holds_write() {
            return Poll::Pending;
        }
        Pin::new(&mut self.io).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }
}
