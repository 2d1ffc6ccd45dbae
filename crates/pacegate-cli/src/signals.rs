//! The signals that end the server or reload its configuration.

use std::io;

#[cfg(unix)]
pub(super) use unix::{EndSignals, ReloadSignal};
#[cfg(windows)]
pub(super) use windows::{EndSignals, ReloadSignal};

#[cfg(unix)]
mod unix {
    use tokio::signal::unix::{Signal, SignalKind, signal};

    use super::io;

    /// SIGTERM and SIGINT.
    pub(crate) struct EndSignals([Signal; 2]);

    /// SIGHUP.
    pub(crate) struct ReloadSignal(Signal);

    impl EndSignals {
        pub(crate) fn listen() -> io::Result<Self> {
            Ok(Self([signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?]))
        }

        pub(crate) async fn recv(&mut self) {
            let [terminate, interrupt] = &mut self.0;
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
        }
    }

    impl ReloadSignal {
        pub(crate) fn listen() -> io::Result<Self> {
            signal(SignalKind::hangup()).map(Self)
        }

        pub(crate) async fn recv(&mut self) -> Option<()> {
            self.0.recv().await
        }
    }
}

#[cfg(windows)]
mod windows {
    use std::future;

    use tokio::signal::windows::{CtrlBreak, CtrlC, CtrlClose, ctrl_break, ctrl_c, ctrl_close};

    use super::io;

    /// Ctrl-C, Ctrl-Break and the end of the console.
    pub(crate) struct EndSignals(CtrlC, CtrlBreak, CtrlClose);

    /// Windows has no signal to reload. The server still reloads files that change, and on `POST /v1/reload`.
    pub(crate) struct ReloadSignal;

    impl EndSignals {
        pub(crate) fn listen() -> io::Result<Self> {
            Ok(Self(ctrl_c()?, ctrl_break()?, ctrl_close()?))
        }

        pub(crate) async fn recv(&mut self) {
            tokio::select! {
                _ = self.0.recv() => {}
                _ = self.1.recv() => {}
                _ = self.2.recv() => {}
            }
        }
    }

    impl ReloadSignal {
        #[expect(clippy::unnecessary_wraps, reason = "the signature is that of Unix")]
        pub(crate) fn listen() -> io::Result<Self> {
            Ok(Self)
        }

        pub(crate) async fn recv(&mut self) -> Option<()> {
            future::pending().await
        }
    }
}
