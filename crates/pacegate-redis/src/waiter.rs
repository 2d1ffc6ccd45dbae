//! Who waits for an answer, and since when.

use std::time::Duration;

use pacegate::StoreError;
use tokio::{sync::oneshot, time::Instant};

/// Somebody who gets one answer.
#[derive(Debug)]
pub(crate) struct Waiter<T> {
    since: Instant,
    /// `None` once it is answered.
    answer: Option<oneshot::Sender<Result<T, StoreError>>>,
}

impl<T> Waiter<T> {
    /// Somebody who has waited since then, and where the answer comes.
    pub(crate) fn new(since: Instant) -> (Self, oneshot::Receiver<Result<T, StoreError>>) {
        let (answer, answered) = oneshot::channel();
        (Self { since, answer: Some(answer) }, answered)
    }

    /// Whoever asked may be gone by now, or have been answered.
    pub(crate) fn answer(&mut self, answer: Result<T, StoreError>) {
        if let Some(sender) = self.answer.take() {
            drop(sender.send(answer));
        }
    }

    /// Since when somebody waits, if anybody does.
    pub(crate) fn since(&self) -> Option<Instant> {
        let waits = self.answer.as_ref().is_some_and(|answer| !answer.is_closed());
        waits.then_some(self.since)
    }

    /// Lets it wait no longer than this. Returns whether that was so.
    pub(crate) fn expire(&mut self, deadline: Duration) -> bool {
        let late = self.since().is_some_and(|since| since.elapsed() >= deadline);
        if late {
            self.answer(Err(StoreError::TimedOut));
        }
        late
    }
}
