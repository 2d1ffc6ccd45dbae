//! The signals that end the server or reload its configuration.

use std::io;

#[cfg(unix)]
pub(super) use unix::{end, reload};
#[cfg(windows)]
pub(super) use windows::{end, reload};

#[cfg(unix)]
mod unix {
    use tokio::signal::unix::{SignalKind, signal};

    use super::io;

    /// Listens for SIGTERM and SIGINT from now on. The future ends with the first of them.
    pub(crate) fn end() -> io::Result<impl Future<Output = ()>> {
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        Ok(async move {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
        })
    }

    /// Listens for SIGHUP from now on. The future calls `reload` for each one.
    pub(crate) fn reload<F: Future + Send>(
        reload: impl Fn() -> F + Send,
    ) -> io::Result<impl Future<Output = ()> + Send> {
        let mut hangup = signal(SignalKind::hangup())?;
        Ok(async move {
            while hangup.recv().await.is_some() {
                reload().await;
            }
        })
    }
}

#[cfg(windows)]
mod windows {
    use std::future;

    use tokio::signal::windows::{ctrl_break, ctrl_c, ctrl_close};

    use super::io;

    /// Listens for Ctrl-C, Ctrl-Break and the end of the console from now on. The future ends with the first of them.
    pub(crate) fn end() -> io::Result<impl Future<Output = ()>> {
        let (mut interrupt, mut stop, mut close) = (ctrl_c()?, ctrl_break()?, ctrl_close()?);
        Ok(async move {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = stop.recv() => {}
                _ = close.recv() => {}
            }
        })
    }

    /// Windows has no signal to reload. The server still reloads files that change, and on `POST /v1/reload`.
    #[expect(clippy::unnecessary_wraps, reason = "the signature is that of Unix")]
    pub(crate) fn reload<F: Future + Send>(
        _: impl Fn() -> F + Send,
    ) -> io::Result<impl Future<Output = ()> + Send> {
        Ok(future::pending())
    }
}
