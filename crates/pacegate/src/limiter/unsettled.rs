//! Returns the units of reservations that were not settled within their time to live.
//!
//! In memory, every call returns the units that are due before it decides. For a store, the limiter that made a
//! reservation keeps it in a queue, and a task of the store ends it. The queue is in this process only: if the process
//! ends, the units stay charged until their window ends, so a limit is never exceeded.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, HashMap},
    future::{Future, poll_fn},
    pin::pin,
    slice,
    sync::{Arc, Weak},
    task::{Poll, Waker},
    time::Duration,
};

use parking_lot::Mutex;
use smallvec::SmallVec;

use super::{
    SharedLimiter, evaluator::Evaluator, join::join_all, lazy::LazyEvaluator,
    resolve::ResolvedCharge, settled_units::SettledUnits,
};
use crate::{
    Charge, ChargeBuf, MemoryStore, Store, StoreError, Timestamp, policy::Unsettled,
    store::memory::reservations::ReservedCharge,
};

/// Reservations in a store whose units this process returns at the end of their time to live. Shared by the limiters
/// that replace each other on the same state.
#[derive(Debug, Default)]
pub(super) struct UnsettledQueue {
    state: Mutex<QueueState>,
    /// The limiters on this state. The limits of the last one apply.
    limiters: Mutex<Vec<Weak<LazyEvaluator>>>,
}

#[derive(Debug, Default)]
struct QueueState {
    open: HashMap<u128, StoredReservation, foldhash::fast::RandomState>,
    /// When each reservation ends. Also has some that were settled before.
    due: BinaryHeap<Reverse<(Timestamp, u128)>>,
    is_running: bool,
    /// Wakes the task that waits for the first reservation.
    waker: Option<Waker>,
}

#[derive(Clone, Debug)]
struct StoredReservation {
    charges: Arc<[ChargeBuf]>,
    /// The instant after which the store is not called any more.
    give_up: Timestamp,
}

/// Empties the queue if the store drops the task: the units stay charged.
struct Running {
    queue: Arc<UnsettledQueue>,
    has_ended: bool,
}

/// Clocks drift apart by at most one part in this many.
const DRIFT: u32 = 1_000;
/// Added to the time to live, because the store records whole microseconds.
const MARGIN: Duration = Duration::from_millis(1);
/// The time for which a call that failed is repeated. Stores keep an expired reservation for half a minute.
const GRACE: Duration = Duration::from_secs(20);
const RETRY_INTERVAL: Duration = Duration::from_secs(1);
/// The maximum number of reservations that are ended at the same time.
const MAX_CONCURRENT: usize = 256;

impl SharedLimiter {
    /// Ends a reservation in the store after its time to live, if units of it are then returned.
    pub(super) fn return_at_ttl(&self, number: u128, charges: &Arc<[ChargeBuf]>, ttl: Duration) {
        let is_returned = |charge: &ChargeBuf| charge.as_charge().unsettled == Unsettled::Return;
        let Some(store) = self.store.as_ref().filter(|_| charges.iter().any(is_returned)) else {
            return;
        };
        let memory = &self.evaluator.memory;
        let due = Timestamp::from_micros(memory.now()).after(ttl + ttl / DRIFT + MARGIN);
        let reservation = StoredReservation { charges: charges.clone(), give_up: due.after(GRACE) };
        let queue = &self.evaluator.unsettled;
        if queue.limiters.lock().is_empty() {
            queue.register(&self.evaluator);
        }
        if queue.add(number, reservation, due, memory.max_keys()) {
            let running = Running { queue: queue.clone(), has_ended: false };
            store.spawn(Box::pin(run(running, store.clone(), memory.clone())));
        }
    }
}

/// Ends reservations until none is left, or until the limiter is dropped.
async fn run(mut running: Running, store: Arc<dyn Store>, memory: MemoryStore) {
    let queue = &running.queue;
    while let Some(due) = queue.next_due() {
        queue.wait(due, &memory).await;
        let now = Timestamp::from_micros(memory.now());
        let Some(evaluator) = queue.current() else { return };
        let ending = queue.take_due(now).into_iter().map(async |(number, reservation)| {
            let ended = evaluator.expire(&*store, number, &reservation.charges).await;
            let is_final = ended.as_ref().map_or_else(StoreError::is_unsupported, |()| true);
            if !is_final && now < reservation.give_up {
                queue.state.lock().insert(number, reservation, now.after(RETRY_INTERVAL));
            }
        });
        join_all(ending).await;
    }
    running.has_ended = true;
}

impl Evaluator {
    /// Returns the store in memory, after the units that are due were returned to it.
    #[inline]
    pub(super) fn current_memory(&self) -> &MemoryStore {
        if self.memory.has_unsettled_returns() {
            self.return_unsettled();
        }
        &self.memory
    }

    #[cold]
    fn return_unsettled(&self) {
        let current_limit = |reserved: &ReservedCharge| self.current_limit_of(reserved);
        let mut units = SettledUnits::new(self);
        self.memory.return_unsettled(current_limit, |reserved| {
            self.notify(Some(reserved.id));
            units.count_reserved(reserved, 0);
        });
    }

    /// Ends a reservation in the store, under the limits that apply now.
    async fn expire(
        &self,
        store: &dyn Store,
        number: u128,
        charges: &[ChargeBuf],
    ) -> Result<(), StoreError> {
        let mut current: SmallVec<[Charge<'_>; 1]> =
            charges.iter().map(ChargeBuf::as_charge).collect();
        for charge in &mut current {
            let current = self.current_limit(charge.policy, charge.counter, charge.limit);
            (charge.limit, charge.max_debt) = current.unwrap_or((charge.limit, charge.max_debt));
        }
        let settled = self.record_failure(store.expire(&current, number).await)?;
        let mut units = SettledUnits::new(self);
        for (charge, settled) in current.iter().zip(settled.into_iter().flatten()) {
            let limit = self.bind_one(charge);
            if let Some(settled) = settled.filter(|_| charge.unsettled == Unsettled::Return) {
                let counter = (charge.policy, charge.counter);
                units.count(counter, &charge.limit, settled.reserved, 0);
            }
            let charge = ResolvedCharge::of_charge(&limit, charge);
            self.notify(self.queue_of(slice::from_ref(&charge)));
        }
        Ok(())
    }
}

impl UnsettledQueue {
    /// Adds a limiter, whose limits apply from now on.
    pub(super) fn register(&self, evaluator: &Arc<LazyEvaluator>) {
        let (mut limiters, added) = (self.limiters.lock(), Arc::downgrade(evaluator));
        limiters.retain(|limiter| limiter.strong_count() > 0 && !limiter.ptr_eq(&added));
        limiters.push(added);
    }

    /// Returns the last limiter. `None` if all were dropped.
    fn current(&self) -> Option<Arc<LazyEvaluator>> {
        self.limiters.lock().iter().rev().find_map(Weak::upgrade)
    }

    /// Removes a reservation that was settled.
    pub(super) fn remove(&self, number: u128) {
        self.state.lock().open.remove(&number);
    }

    /// Adds a reservation, unless there are `max`. Returns `true` if the task has to be started.
    fn add(
        &self,
        number: u128,
        reservation: StoredReservation,
        due: Timestamp,
        max: usize,
    ) -> bool {
        let mut state = self.state.lock();
        if state.open.len() >= max {
            return false;
        }
        state.insert(number, reservation, due);
        !std::mem::replace(&mut state.is_running, true)
    }

    /// Returns when the next reservation is due. If there is none, the task ends.
    fn next_due(&self) -> Option<Timestamp> {
        let mut state = self.state.lock();
        let next = state.first_due();
        state.is_running = next.is_some();
        next
    }

    /// Waits until `due`, or until an earlier reservation was added.
    async fn wait(&self, due: Timestamp, memory: &MemoryStore) {
        let mut sleep = pin!(memory.sleep_until(due));
        poll_fn(|context| {
            let mut state = self.state.lock();
            if state.first_due().is_none_or(|first| first < due) {
                return Poll::Ready(());
            }
            state.waker = Some(context.waker().clone());
            drop(state);
            sleep.as_mut().poll(context)
        })
        .await;
    }

    /// Removes some reservations that are due.
    fn take_due(&self, now: Timestamp) -> Vec<(u128, StoredReservation)> {
        let (mut state, mut taken) = (self.state.lock(), Vec::new());
        while taken.len() < MAX_CONCURRENT && state.first_due().is_some_and(|due| due <= now) {
            if let Some(Reverse((_, number))) = state.due.pop() {
                taken.extend(state.open.remove(&number).map(|reservation| (number, reservation)));
            }
        }
        taken
    }
}

impl QueueState {
    fn insert(&mut self, number: u128, reservation: StoredReservation, due: Timestamp) {
        if self.due.len() >= 64 && self.due.len() > 2 * self.open.len() {
            self.due.retain(|Reverse((_, number))| self.open.contains_key(number));
        }
        self.open.insert(number, reservation);
        self.due.push(Reverse((due, number)));
        let is_first = self.due.peek() == Some(&Reverse((due, number)));
        if let Some(waker) = self.waker.take_if(|_| is_first) {
            waker.wake();
        }
    }

    /// Returns when the first reservation is due that was not settled.
    fn first_due(&mut self) -> Option<Timestamp> {
        while let Some(&Reverse((due, number))) = self.due.peek() {
            if self.open.contains_key(&number) {
                return Some(due);
            }
            self.due.pop();
        }
        None
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !self.has_ended {
            *self.queue.state.lock() = QueueState::default();
        }
    }
}
