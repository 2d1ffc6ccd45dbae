//! The RESP listener: any Redis client is a client of Pacegate.

mod error;
mod frame;
mod query;
mod reply;
mod session;
mod throttle;

use std::{
    io,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bytes::{Buf, BufMut, BytesMut};
use quanta::Instant as Tick;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt},
    time::{Instant, sleep, timeout},
};

use self::session::{MAX_PENDING_BYTES, RespSession};
use crate::{
    active_config::ActiveConfig,
    config::Bounds,
    metrics::ListenerMetrics,
    service::{Drain, GRACE, Guesses, Peer, Protocol, Quiet, unauthenticated_turn},
};

/// The listener for RESP2 and RESP3.
#[derive(Debug)]
pub(crate) struct RespService {
    active: Arc<ActiveConfig>,
    metrics: Arc<ListenerMetrics>,
    connections: AtomicU64,
    guesses: Arc<Guesses>,
    /// Clients that sent HTTP.
    http_clients: Quiet,
}

/// Outcomes of commands, for [`ListenerMetrics`].
pub(crate) const CODES: [&str; 2] = ["ok", "error"];

/// One connection.
struct Connection<'a, I> {
    io: I,
    input: BytesMut,
    session: RespSession,
    service: &'a RespService,
    peer: Peer,
}

/// Bytes to read at once before authentication.
const UNAUTHENTICATED_READ: usize = 512;
/// Capacity of a read, which an empty buffer keeps.
const READ_BYTES: usize = 16 * 1024;
/// Time for a client to receive the last replies before the connection is closed.
const LINGER_TIMEOUT: Duration = Duration::from_millis(500);
/// Bytes of commands to answer while draining, for a client that keeps sending.
const MAX_DRAINED_BYTES: usize = 1 << 20;
/// Idle time after which a draining connection is closed.
const DRAIN_IDLE_TIMEOUT: Duration = Duration::from_millis(20);

impl RespService {
    /// Creates the listener, which counts its commands in `metrics`.
    pub(crate) fn new(active: Arc<ActiveConfig>, metrics: Arc<ListenerMetrics>) -> Self {
        let (connections, guesses) = (AtomicU64::new(0), Arc::new(Guesses::new()));
        Self { active, metrics, connections, guesses, http_clients: Quiet::default() }
    }

    /// Logs an HTTP client, without its request, which may contain secrets.
    fn log_http_client(&self, peer: &Peer) {
        if self.http_clients.events().is_some() {
            tracing::warn!(
                %peer,
                "received HTTP on the RESP listener; closed the connection"
            );
        }
    }
}

impl Protocol for RespService {
    async fn serve<I>(&self, io: I, peer: Peer, drain: Drain)
    where
        I: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let id = self.connections.fetch_add(1, Ordering::Relaxed) + 1;
        let session = RespSession::new(id).with_peer(peer.ip(), self.guesses.clone());
        let bounds = self.active.revision().settings.bounds;
        let input = BytesMut::new();
        let connection = Connection { io, input, session, service: self, peer: peer.clone() };
        if let Err(error) = connection.run(bounds, drain).await {
            tracing::debug!(%peer, %error, "lost a RESP connection");
        }
    }

    fn active(&self) -> &ActiveConfig {
        &self.active
    }
}

impl<I: AsyncRead + AsyncWrite + Unpin> Connection<'_, I> {
    async fn run(mut self, bounds: Bounds, drain: Drain) -> io::Result<()> {
        let mut waiting = drain.clone();
        let mut begun = pin!(waiting.begun());
        let mut alarm = pin!(sleep(bounds.idle_timeout));
        let (mut decided, mut is_partial) = (Tick::now(), false);
        while !self.session.is_closing {
            let lacks_key = self.session.lacks_key(&self.service.active.revision());
            let most = if lacks_key { UNAUTHENTICATED_READ } else { bounds.request_bytes };
            self.make_room(most);
            let mut input = (&mut self.input).limit(if lacks_key { most } else { usize::MAX });
            let read = tokio::select! {
                biased;
                read = self.io.read_buf(&mut input) => read?,
                () = &mut alarm => {
                    // The timer is not reset for each command.
                    let left = bounds.idle_timeout.saturating_sub(decided.elapsed());
                    if is_partial || left.is_zero() {
                        break;
                    }
                    alarm.as_mut().reset(Instant::now() + left);
                    continue;
                }
                () = &mut begun => {
                    self.drain(bounds, drain).await?;
                    break;
                }
            };
            if read == 0 {
                return Ok(());
            }
            let was_partial = is_partial;
            let has_answered = self.answer(&mut decided).await?;
            if lacks_key && !self.session.is_authenticated() {
                // A flood of commands without a key must not delay others.
                unauthenticated_turn().await;
            }
            is_partial = !self.input.is_empty();
            // The timeout of a command starts with its first byte.
            if is_partial && (has_answered || !was_partial) {
                alarm.as_mut().reset(Instant::now() + bounds.read_timeout);
            } else if was_partial && !is_partial {
                alarm.as_mut().reset(Instant::now() + bounds.idle_timeout);
            }
        }
        if self.session.received_http {
            self.service.log_http_client(&self.peer);
        }
        self.close().await
    }

    /// Answers commands that the client sent before it noticed the shutdown.
    async fn drain(&mut self, bounds: Bounds, drain: Drain) -> io::Result<()> {
        let mut over = pin!(drain.grace_over());
        let mut left = MAX_DRAINED_BYTES;
        while !self.session.is_closing && left > 0 {
            self.make_room(bounds.request_bytes);
            let idle = if self.input.is_empty() { DRAIN_IDLE_TIMEOUT } else { GRACE };
            let read = tokio::select! {
                biased;
                read = self.io.read_buf(&mut self.input) => read?,
                () = &mut over => break,
                () = sleep(idle) => break,
            };
            if read == 0 {
                break;
            }
            left = left.saturating_sub(read);
            self.answer(&mut Tick::now()).await?;
        }
        Ok(())
    }

    /// Answers all complete commands, and returns whether there were any. Sets `decided` to the instant of the last
    /// decision.
    async fn answer(&mut self, decided: &mut Tick) -> io::Result<bool> {
        let mut has_answered = false;
        loop {
            let begun = Tick::now();
            let used = self.session.answer(&self.service.active, &self.input).await;
            self.input.advance(used);
            has_answered |= used > 0;
            if self.session.is_authenticated() {
                self.peer.authenticated();
            }
            let (all, failed) = std::mem::take(&mut self.session.answered);
            *decided = Tick::now();
            let took = *decided - begun;
            self.service.metrics.count_many(0, all - failed.min(all), took);
            self.service.metrics.count_many(1, failed, took);
            match std::mem::take(&mut self.session.degraded) {
                0 => {}
                degraded => self.service.metrics.count_degraded(degraded),
            }
            if !self.session.replies.bytes.is_empty() {
                self.io.write_all(&self.session.replies.bytes).await?;
                // TLS may keep the end of the replies in its buffer otherwise.
                self.io.flush().await?;
                self.session.replies.bytes.clear();
                self.session.replies.bytes.shrink_to(MAX_PENDING_BYTES);
            }
            if used == 0 || self.input.is_empty() || self.session.is_closing {
                return Ok(has_answered);
            }
        }
    }

    fn make_room(&mut self, most: usize) {
        let free = self.input.capacity() - self.input.len();
        let room = READ_BYTES.min(most);
        if free < room / 4 {
            self.input.reserve(room);
        }
    }

    /// Closes the connection after the last replies: reads on for a while, so that a client that still sends gets no
    /// reset.
    async fn close(mut self) -> io::Result<()> {
        self.io.shutdown().await?;
        self.input.clear();
        let discard = async {
            while self.io.read_buf(&mut self.input).await.is_ok_and(|read| read > 0) {
                self.input.clear();
            }
        };
        let _ = timeout(LINGER_TIMEOUT, discard).await;
        Ok(())
    }
}

/// Answers all complete commands in `bytes`, for fuzzing.
pub(crate) async fn answer_all(active: Arc<ActiveConfig>, bytes: &[u8]) -> Vec<u8> {
    let mut session = RespSession::new(1);
    let (mut rest, mut answers) = (bytes, Vec::new());
    while !session.is_closing {
        let used = session.answer(&active, rest).await;
        rest = &rest[used..];
        answers.append(&mut session.replies.bytes);
        if used == 0 {
            break;
        }
    }
    answers
}

#[cfg(test)]
mod tests {
    use pacegate::{Limit, Limiter, Policy, PolicySet, policy::Condition};

    use super::*;
    use crate::{active_config::State, config::Settings, engine::Engine};

    #[tokio::test]
    async fn replies_are_written_before_many_accumulate() {
        let policy = |n: usize| {
            let policy = Policy::new(format!("p{n}"), [Limit::per_hour(1)]);
            policy.matching("path", Condition::equal(format!("/{n}")))
        };
        let policies = PolicySet::new((0..200).map(policy)).unwrap();
        let limiter = Limiter::builder().policies(policies.clone()).build().unwrap();
        let state = State::Memory(limiter.store().clone());
        let active = ActiveConfig::new(Engine::memory(limiter), state, Settings::new(policies));
        let mut session = RespSession::new(1);
        let command = b"PACEGATE.EXPLAIN ATTR user a\r\n";
        assert_eq!(session.answer(&active, command).await, command.len());
        let one = session.replies.bytes.len();
        assert!(one > 10_000, "{one}");
        let input = command.repeat(500);
        let (mut at, mut written) = (0, 0);
        while at < input.len() {
            session.replies.bytes.clear();
            let used = session.answer(&active, &input[at..]).await;
            let made = session.replies.bytes.len();
            assert!(used > 0 && made < 64 * 1024 + one, "{used} {made}");
            at += used;
            written += made;
        }
        assert_eq!((written, session.answered), (501 * one - one, (501, 0)));
    }
}
