//! Queues of callers that wait for units. Callers that wait for one key are served in the order of arrival.

use std::{
    collections::{HashMap, VecDeque},
    future::poll_fn,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    task::{Poll, Waker},
    time::Duration,
};

use parking_lot::Mutex;

use crate::store::memory::identity::Identity;

/// The wait queues of all keys.
#[derive(Clone, Debug)]
pub(super) struct WaitQueue {
    shared: Arc<Shared>,
}

/// The state that all clones and tickets share.
#[derive(Debug)]
struct Shared {
    max_waiters: usize,
    /// Keys without waiters are not in here.
    queues: Mutex<HashMap<Identity, Queue>>,
    /// The number of queues. If it is 0, a notification need not take the lock.
    count: AtomicUsize,
    /// Numbers of notifications, also of keys without a queue: a caller that is about to join one must not miss them.
    /// Each number covers a part of all keys, so a notification may cause a spurious attempt for another key. It is
    /// counted before the lock is taken to wake the first caller, which compares the number under the lock before it
    /// waits; so none is missed.
    notifications: OnceLock<Box<[AtomicU64; PARTS]>>,
}

/// The number of notification counters, a power of two.
const PARTS: usize = 256;

/// The callers that wait for one key, in the order of arrival.
#[derive(Debug, Default)]
struct Queue {
    waiters: VecDeque<Waiter>,
    next_number: u64,
    /// The earliest time at which the first caller can be served, by [`Clock::elapsed`](crate::Clock::elapsed).
    expected: Duration,
}

/// One waiting caller.
#[derive(Debug)]
struct Waiter {
    number: u64,
    cost: u64,
    waker: Option<Waker>,
}

/// A place in a queue. Dropping it leaves the queue, so a cancelled wait does not delay others.
#[derive(Debug)]
pub(super) struct Ticket {
    shared: Arc<Shared>,
    key: Identity,
    number: u64,
}

/// The state of a queue at the time a caller joins it.
#[derive(Debug)]
pub(super) struct Entered {
    pub(super) ticket: Ticket,
    /// The costs of the callers ahead, the first one first.
    pub(super) ahead: Vec<u64>,
    /// The earliest time at which a caller behind the first can be served.
    pub(super) expected: Duration,
}

/// The queue has as many callers as it may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Full(pub(super) usize);

impl WaitQueue {
    /// The default number of callers that wait for one key.
    pub(super) const DEFAULT_MAX_WAITERS: usize = 1_000;

    pub(super) fn new(max_waiters: usize) -> Self {
        let (queues, count, notifications) =
            (Mutex::default(), AtomicUsize::new(0), OnceLock::new());
        Self { shared: Arc::new(Shared { max_waiters, queues, count, notifications }) }
    }

    /// Returns `true` if no caller waits for `key`.
    pub(super) fn is_free(&self, key: Identity) -> bool {
        !self.shared.queues.lock().contains_key(&key)
    }

    /// Wakes the first caller that waits for `key`, or is about to: units were returned.
    pub(super) fn notify(&self, key: Identity) {
        self.shared.notifications(key).fetch_add(1, Ordering::SeqCst);
        // A caller that joins a queue after this compares the number of notifications before it waits.
        if self.shared.count.load(Ordering::SeqCst) == 0 {
            return;
        }
        let mut queues = self.shared.queues.lock();
        let Some(queue) = queues.get_mut(&key) else { return };
        let first = queue.take_first();
        drop(queues);
        if let Some(waker) = first {
            waker.wake();
        }
    }

    /// Wakes the first caller of every queue.
    pub(super) fn notify_all(&self) {
        for notifications in self.shared.all_notifications() {
            notifications.fetch_add(1, Ordering::SeqCst);
        }
        let mut queues = self.shared.queues.lock();
        let firsts: Vec<Waker> = queues.values_mut().filter_map(Queue::take_first).collect();
        drop(queues);
        firsts.into_iter().for_each(Waker::wake);
    }

    /// Returns the number of notifications for `key`, and possibly for other keys.
    pub(super) fn notifications(&self, key: Identity) -> u64 {
        self.shared.notifications(key).load(Ordering::SeqCst)
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
        let number = queue.next_number;
        queue.next_number += 1;
        queue.waiters.push_back(Waiter { number, cost, waker: None });
        let expected = queue.expected;
        self.shared.count.store(queues.len(), Ordering::SeqCst);
        let ticket = Ticket { shared: self.shared.clone(), key, number };
        Ok(Entered { ticket, ahead, expected })
    }
}

impl Queue {
    /// Takes the waker of the first caller, whose expected time no longer holds.
    fn take_first(&mut self) -> Option<Waker> {
        self.expected = Duration::ZERO;
        self.waiters.front_mut().and_then(|first| first.waker.take())
    }
}

impl Shared {
    fn notifications(&self, key: Identity) -> &AtomicU64 {
        &self.all_notifications()[key.part(PARTS)]
    }

    /// Returns the counters, which are allocated at first use.
    fn all_notifications(&self) -> &[AtomicU64; PARTS] {
        self.notifications.get_or_init(|| Box::new([const { AtomicU64::new(0) }; PARTS]))
    }
}

impl Default for WaitQueue {
    fn default() -> Self {
        Self::new(Self::DEFAULT_MAX_WAITERS)
    }
}

impl Ticket {
    /// Completes when this caller is the first.
    pub(super) async fn is_first(&self) {
        self.when(|queue| queue.waiters.front().is_some_and(|first| first.number == self.number))
            .await;
    }

    /// Completes when the queue satisfies `condition`, which is checked whenever the head of the queue changes.
    async fn when(&self, condition: impl Fn(&Queue) -> bool) {
        poll_fn(|cx| {
            let mut queues = self.shared.queues.lock();
            let Some(queue) = queues.get_mut(&self.key) else { return Poll::Ready(()) };
            if condition(queue) {
                return Poll::Ready(());
            }
            let mine = queue.waiters.iter_mut().find(|waiter| waiter.number == self.number);
            if let Some(mine) = mine {
                mine.waker = Some(cx.waker().clone());
            }
            Poll::Pending
        })
        .await;
    }

    /// Completes when there were more notifications than `seen`.
    pub(super) async fn notified(&self, seen: u64) {
        self.when(|_| self.shared.notifications(self.key).load(Ordering::SeqCst) > seen).await;
    }

    /// Sets the earliest time at which the first caller, which calls this, can be served.
    pub(super) fn set_expected(&self, ready: Duration) {
        if let Some(queue) = self.shared.queues.lock().get_mut(&self.key) {
            queue.expected = ready;
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        let mut queues = self.shared.queues.lock();
        let Some(queue) = queues.get_mut(&self.key) else { return };
        if queue.waiters.front().is_some_and(|first| first.number == self.number) {
            queue.expected = Duration::ZERO;
        }
        queue.waiters.retain(|waiter| waiter.number != self.number);
        let next = queue.waiters.front_mut().and_then(|first| first.waker.take());
        if queue.waiters.is_empty() {
            queues.remove(&self.key);
            self.shared.count.store(queues.len(), Ordering::SeqCst);
        }
        drop(queues);
        if let Some(waker) = next {
            waker.wake();
        }
    }
}
