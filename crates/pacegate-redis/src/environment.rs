//! The wall clock, the random numbers and the connections of a store.

use std::{fmt, io, pin::Pin};

use futures_util::future::select_ok;
use pacegate::{Clock, SystemClock, Timestamp};
#[cfg(target_os = "linux")]
use socket2::SockRef;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::{TcpStream, lookup_host},
};

use crate::fingerprint::random;

/// A bidirectional stream of bytes, such as a TCP connection.
pub trait ByteStream: AsyncRead + AsyncWrite + Unpin + Send + 'static {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> ByteStream for S {}

/// The future that [`Environment::connect`] returns.
pub type Connecting<'a> =
    Pin<Box<dyn Future<Output = io::Result<Box<dyn ByteStream>>> + Send + 'a>>;

/// Provides a store with time, random numbers and connections.
///
/// The default, [`OperatingSystem`], is right for every program. A simulation replaces it, so that one seed determines
/// every decision. Timers and durations come from Tokio, whose clock can be paused.
pub trait Environment: fmt::Debug + Send + Sync + 'static {
    /// Returns the wall clock time of this host.
    fn now(&self) -> Timestamp;

    /// Returns a random number.
    fn random(&self) -> u64;

    /// Opens a TCP connection. TLS, if configured, uses the returned stream.
    fn connect<'a>(&'a self, host: &'a str, port: u16) -> Connecting<'a>;
}

/// The default [`Environment`]: the clock, the random numbers and the sockets of the operating system.
#[derive(Clone, Copy, Debug, Default)]
#[non_exhaustive]
pub struct OperatingSystem;

/// Time for which the kernel tries to send a command: as long as the worker waits for the reply. A delayed command must
/// not run after the worker has reconnected and released the command's permit over the new connection.
#[cfg(target_os = "linux")]
const SEND_TIMEOUT: std::time::Duration = std::time::Duration::from_secs(1);

impl Environment for OperatingSystem {
    fn now(&self) -> Timestamp {
        SystemClock::new().now()
    }

    fn random(&self) -> u64 {
        random()
    }

    fn connect<'a>(&'a self, host: &'a str, port: u16) -> Connecting<'a> {
        Box::pin(async move {
            // One address that does not answer must not use up the time of the others.
            let attempts: Vec<_> = lookup_host((host, port))
                .await?
                .map(|address| Box::pin(TcpStream::connect(address)))
                .collect();
            if attempts.is_empty() {
                return Err(io::Error::other("the host name has no addresses"));
            }
            let (stream, _) = select_ok(attempts).await?;
            stream.set_nodelay(true)?;
            #[cfg(target_os = "linux")]
            SockRef::from(&stream).set_tcp_user_timeout(Some(SEND_TIMEOUT))?;
            Ok(Box::new(stream) as Box<dyn ByteStream>)
        })
    }
}
