//! Whose turn it is: callers that wait for one key pass one by one, in the order they came.

use std::{
    collections::{HashMap, VecDeque},
    future::poll_fn,
    sync::Arc,
    task::{Poll, Waker},
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
}

#[derive(Debug, Default)]
struct Queue {
    waiters: VecDeque<Waiter>,
    next_ticket: u64,
    /// How often the first was told to look again.
    nudges: u64,
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

/// So many already wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Full(pub(super) usize);

impl Turnstile {
    pub(super) fn new(max_waiters: usize) -> Self {
        Self { shared: Arc::new(Shared { max_waiters, queues: Mutex::default() }) }
    }

    /// Whether nobody waits for `key`.
    pub(super) fn is_free(&self, key: Identity) -> bool {
        !self.shared.queues.lock().contains_key(&key)
    }

    /// Tells whoever is first in the queue for `key` to look again: something was given back.
    pub(super) fn nudge(&self, key: Identity) {
        let mut queues = self.shared.queues.lock();
        let Some(queue) = queues.get_mut(&key) else { return };
        queue.nudges += 1;
        let first = queue.waiters.front_mut().and_then(|first| first.waker.take());
        drop(queues);
        if let Some(waker) = first {
            waker.wake();
        }
    }

    /// Joins the queue for `key`. Also returns the costs of those ahead, first come first.
    pub(super) fn enter(&self, key: Identity, cost: u64) -> Result<(Turn, Vec<u64>), Full> {
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
        Ok((Turn { shared: self.shared.clone(), key, ticket }, ahead))
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

    /// How often the queue was nudged so far.
    pub(super) fn nudges(&self) -> u64 {
        self.shared.queues.lock().get(&self.key).map_or(0, |queue| queue.nudges)
    }

    /// Completes when the queue is nudged once more than `seen`.
    pub(super) async fn nudged(&self, seen: u64) {
        self.when(|queue, _| queue.nudges > seen).await;
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut queues = self.shared.queues.lock();
        let Some(queue) = queues.get_mut(&self.key) else { return };
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
