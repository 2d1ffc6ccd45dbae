use std::{
    future::Future,
    io,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use parking_lot::Mutex;
use socket2::{Domain, Protocol as Transport, Socket, Type};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore},
    time::timeout,
};
use tokio_io_timeout::TimeoutWriter;

use super::{Drain, Keys, Peer, Quiet, Sources, Tls, Workers};
use crate::active_config::ActiveConfig;

/// Implements a protocol on connections.
pub(crate) trait Protocol: Send + Sync + 'static {
    /// Serves a connection until it ends. After the start of the drain, answers the requests it has read and closes.
    fn serve<I>(&self, io: I, peer: Peer, drain: Drain) -> impl Future<Output = ()> + Send
    where
        I: AsyncRead + AsyncWrite + Send + Unpin + 'static;

    /// Returns the active configuration.
    fn active(&self) -> &ActiveConfig;
}

/// A bound socket and its connections.
#[derive(Debug)]
pub(crate) struct Listener {
    /// The name in logs and metrics.
    pub(crate) name: &'static str,
    /// Taken by [`Listener::run`], and closed when the drain starts.
    socket: Mutex<Option<std::net::TcpListener>>,
    /// The bound address, with the actual port.
    pub(crate) address: SocketAddr,
    max: usize,
    room: Arc<Semaphore>,
    sources: Arc<Sources>,
    refused: AtomicU64,
    refusals: Quiet,
}

/// Maximum number of connections that wait to be accepted.
const BACKLOG: i32 = 1024;
/// The deadline for a TLS handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);
/// Pause after a failed accept, for example because too many files are open.
const RETRY_INTERVAL: Duration = Duration::from_millis(50);
/// Size of the kernel's buffers for a connection, in each direction. By default, the kernel would buffer megabytes for
/// a client that does not read its responses.
const SOCKET_BYTES: usize = 128 << 10;

impl Listener {
    /// Binds `address`. At most `max` connections are open at once.
    pub(crate) fn bind(name: &'static str, address: SocketAddr, max: usize) -> io::Result<Self> {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Transport::TCP))?;
        socket.set_reuse_address(true)?;
        socket.set_nonblocking(true)?;
        // Connections inherit these.
        socket.set_recv_buffer_size(SOCKET_BYTES)?;
        socket.set_send_buffer_size(SOCKET_BYTES)?;
        socket.bind(&address.into())?;
        socket.listen(BACKLOG)?;
        let socket: std::net::TcpListener = socket.into();
        let address = socket.local_addr()?;
        let socket = Mutex::new(Some(socket));
        let max = max.min(Semaphore::MAX_PERMITS);
        let room = Arc::new(Semaphore::new(max));
        let sources = Sources::new(max.div_ceil(2));
        let (refused, refusals) = (AtomicU64::new(0), Quiet::default());
        Ok(Self { name, socket, address, max, room, sources, refused, refusals })
    }

    /// Returns the number of open connections.
    pub(crate) fn open(&self) -> usize {
        self.max - self.room.available_permits()
    }

    /// Returns the number of connections that were closed at once because there were too many.
    pub(crate) fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// Accepts connections until the drain starts. Then serves those in the backlog, and closes the socket.
    pub(crate) async fn run<P: Protocol>(
        &self,
        protocol: Arc<P>,
        tls: Option<Arc<Tls>>,
        workers: &Workers,
        mut drain: Drain,
    ) -> io::Result<()> {
        let Some(socket) = self.socket.lock().take() else { return Ok(()) };
        let socket = TcpListener::from_std(socket)?;
        let connections = drain.clone();
        let serve = |stream: std::net::TcpStream, address| {
            let Some((peer, permit)) = self.admit(address, protocol.active()) else { return };
            let (protocol, tls) = (protocol.clone(), tls.clone());
            workers.spawn(connection(protocol, tls, stream, peer, connections.clone(), permit));
        };
        loop {
            let accepted = tokio::select! {
                () = drain.begun() => break,
                accepted = socket.accept() => accepted,
            };
            match accepted.and_then(|(stream, peer)| Ok((stream.into_std()?, peer))) {
                Ok((stream, peer)) => serve(stream, peer),
                Err(error) => {
                    tracing::warn!(listener = self.name, %error, "cannot accept a connection");
                    tokio::time::sleep(RETRY_INTERVAL).await;
                }
            }
        }
        let socket = socket.into_std()?;
        while let Ok((stream, peer)) = socket.accept() {
            stream.set_nonblocking(true)?;
            serve(stream, peer);
        }
        Ok(())
    }

    /// Admits a connection, unless too many are open, or too many unauthenticated ones from its address. If no API key
    /// is required, only the first limit applies.
    fn admit(
        &self,
        address: SocketAddr,
        active: &ActiveConfig,
    ) -> Option<(Peer, OwnedSemaphorePermit)> {
        let Ok(permit) = self.room.clone().try_acquire_owned() else {
            let (refused, max) = (self.count_refused(), self.max);
            if self.refusals.events().is_some() {
                let listener = self.name;
                tracing::warn!(listener, max, refused, "too many connections; closing new ones");
            }
            return None;
        };
        if !Keys(&active.revision().settings.security.credentials).are_needed() {
            return Some((address.into(), permit));
        }
        let Some(peer) = self.sources.admit(address) else {
            let (refused, max) = (self.count_refused(), self.max.div_ceil(2));
            if self.refusals.events().is_some() {
                let (listener, source) = (self.name, address.ip());
                tracing::warn!(
                    listener, %source, max, refused,
                    "too many unauthenticated connections from one address; closing new ones"
                );
            }
            return None;
        };
        Some((peer, permit))
    }

    fn count_refused(&self) -> u64 {
        self.refused.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Waits until all connections are closed. Returns `false` on timeout.
    pub(crate) async fn emptied(&self, within: Duration) -> bool {
        let all = u32::try_from(self.max).unwrap_or(u32::MAX);
        timeout(within, self.room.acquire_many(all)).await.is_ok()
    }
}

async fn connection<P: Protocol>(
    protocol: Arc<P>,
    tls: Option<Arc<Tls>>,
    stream: std::net::TcpStream,
    peer: Peer,
    drain: Drain,
    permit: OwnedSemaphorePermit,
) {
    let Ok(stream) = TcpStream::from_std(stream) else { return };
    // If this fails, the connection is only slower.
    let _ = stream.set_nodelay(true);
    let write_timeout = protocol.active().revision().settings.bounds.write_timeout;
    let mut stream = TimeoutWriter::new(stream);
    stream.set_timeout(Some(write_timeout));
    let stream = Box::pin(stream);
    match tls {
        None => protocol.serve(stream, peer, drain).await,
        Some(tls) => {
            let shaken = tokio::select! {
                shaken = timeout(HANDSHAKE_TIMEOUT, tls.accept(stream)) => shaken,
                () = drain.clone().grace_over() => return,
            };
            match shaken {
                Ok(Ok(stream)) => {
                    if tls.verifies_clients() {
                        peer.authenticated();
                    }
                    protocol.serve(stream, peer, drain).await;
                }
                Ok(Err(error)) => tracing::debug!(%peer, %error, "TLS handshake failed"),
                Err(_) => tracing::debug!(%peer, "TLS handshake timed out"),
            }
        }
    }
    drop(permit);
}
