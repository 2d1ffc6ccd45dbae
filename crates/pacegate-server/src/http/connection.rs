//! One connection: HTTP/1.1 or HTTP/2, as the client begins, with an end to everybody's patience.

use std::{
    convert::Infallible,
    future::{Future, poll_fn},
    io,
    pin::{Pin, pin},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use axum::Router;
use http::Version;
use hyper::service::service_fn;
use hyper_util::{
    rt::{TokioExecutor, TokioIo},
    server::conn::auto::Builder,
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Instant, Sleep, sleep},
};

use super::Shared;
use crate::{config::Bounds, service::Drain};

/// What happens on a connection, seen from both sides of the protocol. Everything is written by the connection's own
/// task; atomics only because tasks may move.
#[derive(Debug, Default)]
pub(super) struct Watch {
    /// Bytes have come that are no whole request yet.
    is_reading: AtomicBool,
    /// Requests that are not answered yet.
    open: AtomicU64,
    /// Requests so far.
    requests: AtomicU64,
    is_http2: AtomicBool,
    /// Answers are the last of their connection.
    is_closing: AtomicBool,
}

/// Counts a request as open until it is dropped.
pub(super) struct Open(Arc<Watch>);

/// Tells the watch when bytes come.
struct Watched<I> {
    io: I,
    watch: Arc<Watch>,
}

/// When to give a connection up.
struct Patience<'a> {
    bounds: Bounds,
    watch: &'a Watch,
    timer: Pin<&'a mut Sleep>,
    reading_since: Option<Instant>,
    idle_since: Instant,
    requests: u64,
    drain: DrainState,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DrainState {
    NotBegun,
    /// The client may have sent a request that has not arrived yet: it is answered, too.
    Lingering {
        until: Instant,
    },
    /// It was told. What it still has to say about that is not waited for much longer.
    Closing {
        until: Instant,
    },
}

/// What the timer says.
enum Due {
    Nothing,
    /// Answer what is there, and close.
    Close,
    /// Nobody is there any more.
    GiveUp,
}

/// How long a connection that does nothing is kept after the drain has begun: a client that has just sent a request
/// on it gets an answer.
const LINGER: Duration = Duration::from_millis(250);

/// Streams of one connection at a time.
const STREAMS: u32 = 100;

/// Hyper takes no smaller buffer.
const LEAST_HEADER_BYTES: usize = 8_192;

/// Serves a connection to its end.
pub(super) async fn serve<I>(shared: Arc<Shared>, router: Router, io: I, mut drain: Drain)
where
    I: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let bounds = shared.gate.revision().settings.bounds;
    let watch = Arc::new(Watch::default());
    let io = TokioIo::new(Watched { io, watch: watch.clone() });
    let service = service_fn(|request| {
        let answer = super::answer(shared.clone(), router.clone(), watch.clone(), request);
        async move { Ok::<_, Infallible>(answer.await) }
    });
    let builder = builder(&bounds);
    let mut connection = pin!(builder.serve_connection(io, service));
    let timer = pin!(sleep(bounds.idle_timeout));
    let mut patience = Patience::new(bounds, &watch, timer);
    let mut begun = pin!(drain.begun());
    poll_fn(|cx| {
        loop {
            if patience.drain == DrainState::NotBegun && begun.as_mut().poll(cx).is_ready() {
                patience.linger();
            }
            if let Poll::Ready(done) = connection.as_mut().poll(cx) {
                if let Err(error) = done {
                    tracing::debug!(%error, "an HTTP connection ended early");
                }
                return Poll::Ready(());
            }
            match patience.poll(cx) {
                Poll::Pending => return Poll::Pending,
                Poll::Ready(Due::Nothing) => {}
                Poll::Ready(Due::Close) => connection.as_mut().graceful_shutdown(),
                Poll::Ready(Due::GiveUp) => return Poll::Ready(()),
            }
        }
    })
    .await;
}

fn builder(bounds: &Bounds) -> Builder<TokioExecutor> {
    let mut builder = Builder::new(TokioExecutor::new());
    // How long the head of a request may take is Patience's to say.
    builder
        .http1()
        .keep_alive(true)
        .header_read_timeout(None)
        .max_buf_size(bounds.header_bytes.max(LEAST_HEADER_BYTES));
    builder
        .http2()
        .max_concurrent_streams(STREAMS)
        .max_header_list_size(u32::try_from(bounds.header_bytes).unwrap_or(u32::MAX));
    builder
}

impl Watch {
    /// A request has arrived.
    pub(super) fn begin(self: &Arc<Self>, version: Version) -> Open {
        self.is_reading.store(false, Ordering::Relaxed);
        self.open.fetch_add(1, Ordering::Relaxed);
        self.requests.fetch_add(1, Ordering::Relaxed);
        if version == Version::HTTP_2 {
            self.is_http2.store(true, Ordering::Relaxed);
        }
        Open(self.clone())
    }

    /// Whether an answer should say that it is the last one. HTTP/2 has its own way.
    pub(super) fn is_closing(&self) -> bool {
        self.is_closing.load(Ordering::Relaxed) && !self.is_http2.load(Ordering::Relaxed)
    }

    fn heard(&self) {
        let quiet = self.open.load(Ordering::Relaxed) == 0;
        // HTTP/2 has frames that belong to no request.
        if quiet && !self.is_http2.load(Ordering::Relaxed) {
            self.is_reading.store(true, Ordering::Relaxed);
        }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}

impl<'a> Patience<'a> {
    fn new(bounds: Bounds, watch: &'a Watch, timer: Pin<&'a mut Sleep>) -> Self {
        Self {
            bounds,
            watch,
            timer,
            reading_since: None,
            idle_since: Instant::now(),
            requests: 0,
            drain: DrainState::NotBegun,
        }
    }

    /// The service goes away: what comes now is the last. HTTP/2 can be told at once.
    fn linger(&mut self) {
        let is_http2 = self.watch.is_http2.load(Ordering::Relaxed);
        let until = Instant::now() + if is_http2 { Duration::ZERO } else { LINGER };
        self.watch.is_closing.store(true, Ordering::Relaxed);
        self.drain = DrainState::Lingering { until };
        self.timer.as_mut().reset(until);
    }

    /// Ready when there is something to do, or the timer has to be asked again.
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
        self.timer.as_mut().poll(cx).map(|()| self.look())
    }

    fn look(&mut self) -> Due {
        let now = Instant::now();
        let read_until = self.reading_since.map(|since| since + self.bounds.read_timeout);
        if read_until.is_some_and(|until| until <= now) {
            return Due::GiveUp;
        }
        let is_open = self.watch.open.load(Ordering::Relaxed) > 0;
        let requests = self.watch.requests.load(Ordering::Relaxed);
        if is_open || requests != self.requests {
            (self.idle_since, self.requests) = (now, requests);
        }
        let idle_until = self.idle_since + self.bounds.idle_timeout;
        let mut next = read_until.map_or(idle_until, |until| until.min(idle_until));
        let mut due = if idle_until <= now { Due::GiveUp } else { Due::Nothing };
        match self.drain {
            DrainState::Lingering { until } if until <= now => {
                let until = now + self.bounds.read_timeout;
                self.drain = DrainState::Closing { until };
                (due, next) = (Due::Close, next.min(until));
            }
            DrainState::Lingering { until } => next = next.min(until),
            DrainState::Closing { until } if until <= now && !is_open => due = Due::GiveUp,
            DrainState::Closing { until } => next = next.min(until.max(now + LINGER)),
            DrainState::NotBegun => {}
        }
        self.timer.as_mut().reset(next);
        due
    }
}

impl<I: AsyncRead + Unpin> AsyncRead for Watched<I> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let done = Pin::new(&mut self.io).poll_read(cx, buf);
        if done.is_ready() && buf.filled().len() > before {
            self.watch.heard();
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
        Pin::new(&mut self.io).poll_write_vectored(cx, bufs)
    }

    fn is_write_vectored(&self) -> bool {
        self.io.is_write_vectored()
    }
}
