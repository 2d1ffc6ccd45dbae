//! The answer to one caller.

use std::time::Duration;

use pacegate::{
    SettledCharges, StoreError,
    algorithm::{Outcome, State},
};
use smallvec::SmallVec;
use tokio::{
    runtime::{self, Handle},
    sync::oneshot,
    time::Instant,
};

use crate::BlocksReply;

/// The result of a command for one caller. An update sets `granted` only.
#[derive(Debug, Default)]
pub(crate) struct Answer {
    /// One for each charge; of the last repetition, if there were several.
    pub(crate) outcomes: OutcomeList,
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

/// The outcomes of one request. Most have one limit.
pub(crate) type OutcomeList = SmallVec<[Outcome; 1]>;

type Sender = oneshot::Sender<Result<Answer, StoreError>>;

/// Answers one caller, once.
#[derive(Debug)]
pub(crate) struct Responder {
    since: Instant,
    /// `None` once the answer was sent.
    sender: Option<Sender>,
    /// The caller's runtime, if it has one.
    runtime: Option<Handle>,
}

/// The answers to several callers. Callers in another runtime are woken together: each wake-up of another thread is a
/// system call.
#[derive(Debug)]
pub(crate) struct Delivery {
    /// The runtime of the store.
    own: Option<runtime::Id>,
    others: SmallVec<[(runtime::Id, Vec<Remote>); 2]>,
}

/// An answer to a caller in another runtime. The handle is dropped there, because threads would otherwise compete for
/// its reference count.
#[derive(Debug)]
struct Remote {
    runtime: Handle,
    sender: Sender,
    answer: Result<Answer, StoreError>,
}

impl Responder {
    pub(crate) fn new() -> (Self, Reply) {
        let (sender, reply) = oneshot::channel();
        let runtime = Handle::try_current().ok();
        (Self { since: Instant::now(), sender: Some(sender), runtime }, reply)
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

impl Delivery {
    pub(crate) fn new() -> Self {
        let own = Handle::try_current().map(|runtime| runtime.id()).ok();
        Self { own, others: SmallVec::new() }
    }

    /// Adds an answer, and sends it at once if the caller is in this runtime.
    pub(crate) fn add(&mut self, responder: &mut Responder, answer: Result<Answer, StoreError>) {
        let other = responder.runtime.take_if(|runtime| Some(runtime.id()) != self.own);
        let Some(runtime) = other else { return responder.answer(answer) };
        let Some(sender) = responder.sender.take() else { return };
        let id = runtime.id();
        let remote = Remote { runtime, sender, answer };
        match self.others.iter_mut().find(|(other, _)| *other == id) {
            Some((_, list)) => list.push(remote),
            None => self.others.push((id, vec![remote])),
        }
    }

    /// Sends the answers to other runtimes.
    pub(crate) fn finish(self) {
        for (_, list) in self.others {
            let Some(first) = list.first() else { continue };
            let runtime = first.runtime.clone();
            runtime.spawn(async move { list.into_iter().for_each(Remote::send) });
        }
    }
}

impl Remote {
    fn send(self) {
        let Self { runtime: _runtime, sender, answer } = self;
        drop(sender.send(answer));
    }
}
