//! Whose turn it is: callers that wait for one key pass one by one, in the order they came.

use std::{
    collections::{HashMap, VecDeque},
    future::poll_fn,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Poll, Waker},
    time::Duration,
};

use parking_lot::Mutex;

use crate::store::memory::identity::Identity;

/// The queues of all keys that somebody waits for.
#[derive(Clone, Debug)]
pub(super) struct Turnstile {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    max_waiters: usize,
    /// Keys without waiters are not in here.
    queues: Mutex<HashMap<Identity, Queue>>,
    /// How often something was given back, also to keys without a queue: whoever is about to join one has to know. By
    /// parts of the keys, so a nudge to one key may cost another a look too many. A nudge is counted before the lock is
    /// taken to wake the first, who looks at the count under the lock before it waits: so none is missed.
    nudges: Box<[AtomicU64; PARTS]>,
}

const PARTS: usize = 256;

#[derive(Debug, Default)]
struct Queue {
    waiters: VecDeque<Waiter>,
    next_ticket: u64,
    /// When the first expects to be served, as far as is known, by [`Clock::elapsed`](crate::Clock::elapsed).
    expected: Duration,
}

#[derive(Debug)]
struct Waiter {
    ticket: u64,
    cost: u64,
    waker: Option<Waker>,
}

/// A place in a queue. Dropping it leaves the queue, so a cancelled wait holds nobody up.
#[derive(Debug)]
pub(super) struct Turn {
    shared: Arc<Shared>,
    key: Identity,
    ticket: u64,
}

/// What there is to know on joining a queue.
#[derive(Debug)]
pub(super) struct Entered {
    pub(super) turn: Turn,
    /// The costs of those ahead, first come first.
    pub(super) ahead: Vec<u64>,
    /// Nobody who is behind the first will be served before this instant.
    pub(super) expected: Duration,
}

/// So many already wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Full(pub(super) usize);

impl Turnstile {
    pub(super) fn new(max_waiters: usize) -> Self {
        let nudges = Box::new([const { AtomicU64::new(0) }; PARTS]);
        Self { shared: Arc::new(Shared { max_waiters, queues: Mutex::default(), nudges }) }
    }

    /// Whether nobody waits for `key`.
    pub(super) fn is_free(&self, key: Identity) -> bool {
        !self.shared.queues.lock().contains_key(&key)
    }

    /// Tells whoever waits for `key`, or is about to, to look again: something was given back.
    pub(super) fn nudge(&self, key: Identity) {
        self.shared.nudges(key).fetch_add(1, Ordering::SeqCst);
        let mut queues = self.shared.queues.lock();
        let Some(queue) = queues.get_mut(&key) else { return };
        queue.expected = Duration::ZERO;
        let first = queue.waiters.front_mut().and_then(|first| first.waker.take());
        drop(queues);
        if let Some(waker) = first {
            waker.wake();
        }
    }

    /// [`Turnstile::nudge`] for every key.
    pub(super) fn nudge_all(&self) {
        for nudges in self.shared.nudges.iter() {
            nudges.fetch_add(1, Ordering::SeqCst);
        }
        let mut queues = self.shared.queues.lock();
        let first = |queue: &mut Queue| {
            queue.expected = Duration::ZERO;
            queue.waiters.front_mut().and_then(|first| first.waker.take())
        };
        let firsts: Vec<Waker> = queues.values_mut().filter_map(first).collect();
        drop(queues);
        firsts.into_iter().for_each(Waker::wake);
    }

    /// How often `key` was nudged so far, and perhaps others.
    pub(super) fn nudges(&self, key: Identity) -> u64 {
        self.shared.nudges(key).load(Ordering::SeqCst)
    }

    /// Joins the queue for `key`.
    pub(super) fn enter(&self, key: Identity, cost: u64) -> Result<Entered, Full> {
        let mut queues = self.shared.queues.lock();
        let waiting = queues.get(&key).map_or(0, |queue| queue.waiters.len());
        if waiting >= self.shared.max_waiters {
            return Err(Full(waiting));
        }
        let queue = queues.entry(key).or_default();
        let ahead = queue.waiters.iter().map(|waiter| waiter.cost).collect();
        let ticket = queue.next_ticket;
        queue.next_ticket += 1;
        queue.waiters.push_back(Waiter { ticket, cost, waker: None });
        let turn = Turn { shared: self.shared.clone(), key, ticket };
        Ok(Entered { turn, ahead, expected: queue.expected })
    }
}

impl Shared {
    fn nudges(&self, key: Identity) -> &AtomicU64 {
        &self.nudges[key.part(PARTS)]
    }
}

impl Default for Turnstile {
    fn default() -> Self {
        Self::new(1_000)
    }
}

impl Turn {
    /// Completes when everyone ahead has gone.
    pub(super) async fn comes(&self) {
        let first = |queue: &Queue, ticket| {
            queue.waiters.front().is_some_and(|first| first.ticket == ticket)
        };
        self.when(first).await;
    }

    /// Completes when `holds` is true of the queue. It is asked again whenever the queue changes at its head.
    async fn when(&self, holds: impl Fn(&Queue, u64) -> bool) {
        poll_fn(|cx| {
            let mut queues = self.shared.queues.lock();
            let Some(queue) = queues.get_mut(&self.key) else { return Poll::Ready(()) };
            if holds(queue, self.ticket) {
                return Poll::Ready(());
            }
            let mine = queue.waiters.iter_mut().find(|waiter| waiter.ticket == self.ticket);
            if let Some(mine) = mine {
                mine.waker = Some(cx.waker().clone());
            }
            Poll::Pending
        })
        .await;
    }

    /// Completes when the queue has been nudged more than `seen` times.
    pub(super) async fn nudged(&self, seen: u64) {
        self.when(|_, _| self.shared.nudges(self.key).load(Ordering::SeqCst) > seen).await;
    }

    /// Tells those behind the first, who is the one to call this, when it expects to be served.
    pub(super) fn expects(&self, ready: Duration) {
        if let Some(queue) = self.shared.queues.lock().get_mut(&self.key) {
            queue.expected = ready;
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut queues = self.shared.queues.lock();
        let Some(queue) = queues.get_mut(&self.key) else { return };
        if queue.waiters.front().is_some_and(|first| first.ticket == self.ticket) {
            queue.expected = Duration::ZERO;
        }
        queue.waiters.retain(|waiter| waiter.ticket != self.ticket);
        let next = queue.waiters.front_mut().and_then(|first| first.waker.take());
        if queue.waiters.is_empty() {
            queues.remove(&self.key);
        }
        drop(queues);
        if let Some(waker) = next {
            waker.wake();
        }
    }
}
