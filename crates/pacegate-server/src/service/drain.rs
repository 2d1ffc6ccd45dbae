use std::time::Duration;

use tokio::{sync::watch, time::sleep};

/// Starts the drain: notifies all connections of the shutdown.
#[derive(Debug)]
pub(crate) struct DrainSwitch(watch::Sender<bool>);

/// A receiver for the start of the drain.
#[derive(Clone, Debug)]
pub(crate) struct Drain(watch::Receiver<bool>);

/// Time that idle connections stay open after the start of the drain, so that requests that were just sent are still
/// answered.
pub(crate) const GRACE: Duration = Duration::from_millis(250);

impl DrainSwitch {
    pub(crate) fn new() -> (Self, Drain) {
        let (sender, receiver) = watch::channel(false);
        (Self(sender), Drain(receiver))
    }

    /// Starts the drain: connections close after their open requests are answered.
    pub(crate) fn turn(&self) {
        self.0.send_replace(true);
    }
}

impl Drain {
    /// Waits until the drain starts.
    pub(crate) async fn begun(&mut self) {
        // An error means that the switch was dropped, because the process is ending.
        let _ = self.0.wait_for(|begun| *begun).await;
    }

    /// Waits until the drain has started and [`GRACE`] is over.
    pub(crate) async fn grace_over(mut self) {
        self.begun().await;
        sleep(GRACE).await;
    }
}
