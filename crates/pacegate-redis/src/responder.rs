//! The answer to one caller.

use std::time::Duration;

use pacegate::{
    SettledCharges, StoreError,
    algorithm::{Outcome, State},
};
use tokio::{sync::oneshot, time::Instant};

use crate::BlocksReply;

/// The result of a command for one caller. An update sets `granted` only.
#[derive(Debug, Default)]
pub(crate) struct Answer {
    /// One for each charge; of the last repetition, if there were several.
    pub(crate) outcomes: Vec<Outcome>,
    /// The number of repetitions that were admitted. For an update: 1 if it changed anything.
    pub(crate) granted: u64,
    /// The server's time.
    pub(crate) now: u64,
    /// The state of the cell after the charge, if the request has only one.
    pub(crate) state: Option<State>,
    /// For a settlement of an open reservation.
    pub(crate) settled: Option<Box<SettledCharges>>,
    /// For a call about blocks.
    pub(crate) blocks: Option<Box<BlocksReply>>,
}

/// The receiving end of a [`Responder`].
pub(crate) type Reply = oneshot::Receiver<Result<Answer, StoreError>>;

/// Answers one caller, once.
#[derive(Debug)]
pub(crate) struct Responder {
    since: Instant,
    /// `None` once the answer was sent.
    sender: Option<oneshot::Sender<Result<Answer, StoreError>>>,
}

impl Responder {
    pub(crate) fn new() -> (Self, Reply) {
        let (sender, reply) = oneshot::channel();
        (Self { since: Instant::now(), sender: Some(sender) }, reply)
    }

    /// Sends the answer. Does nothing if the caller stopped waiting or was answered before.
    pub(crate) fn answer(&mut self, answer: Result<Answer, StoreError>) {
        if let Some(sender) = self.sender.take() {
            drop(sender.send(answer));
        }
    }

    /// Returns the start of the request if its caller is still waiting.
    pub(crate) fn since(&self) -> Option<Instant> {
        let waits = self.sender.as_ref().is_some_and(|sender| !sender.is_closed());
        waits.then_some(self.since)
    }

    pub(crate) fn is_awaited(&self) -> bool {
        self.since().is_some()
    }

    /// Times out if the deadline has passed; returns whether it did.
    pub(crate) fn expire(&mut self, deadline: Duration) -> bool {
        let late = self.since().is_some_and(|since| since.elapsed() >= deadline);
        if late {
            self.answer(Err(StoreError::TimedOut));
        }
        late
    }
}
