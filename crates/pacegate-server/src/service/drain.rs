use std::time::Duration;

use tokio::{sync::watch, time::sleep};

/// Notifies connections of the shutdown.
#[derive(Debug)]
pub(crate) struct DrainSwitch(watch::Sender<bool>);

/// Hears of it.
#[derive(Clone, Debug)]
pub(crate) struct Drain(watch::Receiver<bool>);

/// How long connections on which nothing is asked are kept once the drain has begun: what a client has just sent is
/// still answered.
pub(crate) const GRACE: Duration = Duration::from_millis(250);

impl DrainSwitch {
    pub(crate) fn new() -> (Self, Drain) {
        let (sender, receiver) = watch::channel(false);
        (Self(sender), Drain(receiver))
    }

    /// From now on, connections end once what they have begun is answered.
    pub(crate) fn turn(&self) {
        self.0.send_replace(true);
    }
}

impl Drain {
    /// Waits until it begins.
    pub(crate) async fn begun(&mut self) {
        // A switch that is gone was never going to be turned: then the program itself is ending.
        let _ = self.0.wait_for(|begun| *begun).await;
    }

    /// Waits until it has begun and nobody is waited for any more who has not asked for anything.
    pub(crate) async fn grace_over(mut self) {
        self.begun().await;
        sleep(GRACE).await;
    }
}
