//! The store in this process's memory: sharded, bounded, and exact.
//!
//! A key is a [cell](table) of 32 bytes in one of many small tables, each under its own [lock]. Keys of the
//! algorithms that remember instants live in [logs] instead. A request that touches several keys takes the locks of
//! all their shards in one global order, decides, writes, and lets go: that is all there is to all-or-nothing, and it
//! cannot deadlock.
//!
//! There is no background thread. Every so many decisions, the caller [sweeps](Shards::sweep) another shard: looks at a
//! few cells and drops the expired. When there is no room for a new key, nobody else's state makes way: the new keys
//! of a policy share one budget until there is room again. Domains have their own [shares](share) of the [room], so
//! that the keys of one cannot take all of it.

mod apply;
mod charge;
pub(crate) mod identity;
mod lock;
mod logs;
#[cfg(all(test, pacegate_loom))]
mod loom_tests;
mod overflow;
mod room;
mod share;
mod table;
mod tenants;

use std::sync::Arc;

use crossbeam_utils::CachePadded;
use smallvec::SmallVec;

#[cfg(pacegate_loom)]
use loom::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
#[cfg(not(pacegate_loom))]
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use self::{
    identity::{Identity, Scope, Secret},
    lock::Lock,
    logs::Logs,
    overflow::Overflows,
    room::Room,
    share::{Registry, Share},
    table::Table,
};
use super::{Charge, Store};
use crate::{
    Counter, KeyRef, Limit, Outcomes, Reply, StoreError, Update,
    algorithm::{self, State},
    clock::{Clock, Disciplined, SystemClock},
    policy::PolicyName,
};

pub(crate) use charge::{BATCH, Slot};
pub use tenants::ShareUsage;

/// State in the memory of this process.
///
/// Clones share the state. At most `max_keys` keys are held, in 36 to 40 bytes each where they are many and up to
/// twice that where they are few; logs take 32 bytes more for each instant, at most eight instants per key on
/// average. Expired keys give their memory back while others are used.
#[derive(Clone, Debug)]
pub struct MemoryStore {
    inner: Arc<Shards>,
}

/// What a [`MemoryStore`] holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemoryUsage {
    /// Keys held, expired ones not yet dropped among them.
    pub keys: usize,
    /// The most keys it will hold.
    pub max_keys: usize,
    /// Bytes allocated for keys and logs, and for the budgets that keys without room share.
    pub bytes: usize,
    /// Charges that found no room for their key and were decided on their policy's shared budget.
    pub overflowed: u64,
}

#[derive(Debug)]
struct Shards {
    secret: Secret,
    time: Time,
    /// Fixed-size states. The count is a power of two.
    cells: Box<[Padded<Lock<Table>>]>,
    /// States that are lists. In the order of locks these come after the cells.
    logs: Box<[Padded<Lock<Logs>>]>,
    /// Whether there ever was one of those. It need not be looked for where only fixed-size states are in use.
    has_logs: AtomicBool,
    /// The shared budgets of keys without room. Last in the order of locks.
    overflow: Lock<Overflows>,
    /// The shares that have any, a bit for each: new keys of the others need not look.
    overflows: CachePadded<AtomicU64>,
    /// The bound on keys.
    keys: Room,
    /// The bound on entries of logs.
    entries: Room,
    /// The tags of policies. Nothing else is locked while it is held, but for the opening of a share.
    registry: Lock<Registry>,
    /// The tag of [`PolicyName::AD_HOC`], or 0 before it is needed: many limits that come with requests are new.
    inline_tag: AtomicU64,
    overflowed: CachePadded<AtomicU64>,
    /// The shard that is tended next.
    next_tended: CachePadded<AtomicUsize>,
}

/// On a cache line of its own. Not two of them, as [`CachePadded`] would have it: the heads of all shards then fit the
/// nearest cache.
#[derive(Debug)]
#[repr(align(64))]
struct Padded<T>(T);

/// What a shard knows of time.
#[derive(Debug, Default)]
struct ShardClock {
    /// The latest instant at which anything was decided here.
    latest: u64,
    /// Decisions since the shard was made.
    decisions: u32,
}

/// The default clock is called directly, any other through a pointer.
#[derive(Debug)]
enum Time {
    System(&'static Disciplined),
    Other(Arc<dyn Clock>),
}

/// Keys per shard when the store is full: a rebuild of this many takes some tens of microseconds.
const KEYS_PER_SHARD: usize = 2_048;
/// Decisions in a shard between two turns at tending.
const SWEEP_EVERY: u32 = 64;
/// Cells looked at in one turn, so that on average each decision pays for one.
const SWEEP_CELLS: usize = 64;
/// Entries of logs, for each key that may be held.
const ENTRIES_PER_KEY: usize = 8;
/// A clock behind by less than this is two processors disagreeing, not a step.
const JITTER: u64 = 1_000;

impl MemoryStore {
    /// Keys held unless you choose otherwise.
    pub const DEFAULT_MAX_KEYS: usize = 1_000_000;

    /// A store for at most `max_keys` keys (at least one) with a clock of your choice.
    pub fn new(max_keys: usize, clock: impl Clock) -> Self {
        Self::build(max_keys, Time::Other(Arc::new(clock)))
    }

    /// A store for at most `max_keys` keys (at least one) on the system's clock.
    pub fn bounded(max_keys: usize) -> Self {
        Self::build(max_keys, Time::System(crate::clock::disciplined()))
    }

    fn build(max_keys: usize, time: Time) -> Self {
        let max_keys = max_keys.clamp(1, 1 << 40);
        let shards = (max_keys / KEYS_PER_SHARD).next_power_of_two().clamp(MIN_SHARDS, 1 << 16);
        let inner = Shards {
            secret: Secret::random(),
            time,
            cells: (0..shards).map(|_| Padded(Lock::new(Table::default()))).collect(),
            logs: (0..shards.min(256)).map(|_| Padded(Lock::new(Logs::default()))).collect(),
            has_logs: AtomicBool::new(false),
            overflow: Lock::new(Overflows::default()),
            overflows: CachePadded::new(AtomicU64::new(0)),
            keys: Room::new(max_keys),
            entries: Room::new(max_keys.saturating_mul(ENTRIES_PER_KEY)),
            registry: Lock::new(Registry::default()),
            inline_tag: AtomicU64::new(0),
            overflowed: CachePadded::new(AtomicU64::new(0)),
            next_tended: CachePadded::new(AtomicUsize::new(0)),
        };
        Self { inner: Arc::new(inner) }
    }

    /// What is held now. Visits every shard: for a dashboard, not for every request.
    pub fn usage(&self) -> MemoryUsage {
        let inner = &*self.inner;
        let cells: usize = inner.cells.iter().map(|shard| shard.0.lock().capacity()).sum();
        let logs: usize = inner.logs.iter().map(|shard| shard.0.lock().bytes()).sum();
        let overflow = inner.overflow.lock().size();
        let (cells, logs) = (cells + overflow.0, logs + overflow.1);
        MemoryUsage {
            keys: inner.keys.used(),
            max_keys: inner.keys.max(),
            bytes: cells * 32 + logs,
            overflowed: inner.overflowed.load(Ordering::Relaxed),
        }
    }

    /// Drops all expired keys and gives their memory back now, rather than in small steps while others are used. One
    /// shard at a time: nobody waits for longer than some tens of microseconds.
    pub fn reclaim(&self) {
        let inner = &*self.inner;
        // The second round is for tables that became too large in the first.
        (0..2 * inner.cells.len()).for_each(|turn| inner.sweep_table(turn, usize::MAX));
        (0..inner.logs.len()).for_each(|turn| inner.sweep_log_shard(turn, usize::MAX));
        (0..2).for_each(|_| inner.sweep_overflow(usize::MAX));
    }

    pub(crate) fn scope(&self, policy: PolicyName, counter: Counter, limit: &Limit) -> Scope {
        self.inner.secret.scope(policy, counter, limit, || self.inner.tag(policy))
    }

    /// What the key of a charge is hashed with.
    pub(crate) fn scope_of(&self, charge: &Charge<'_>) -> Scope {
        self.scope(charge.policy, charge.counter, &charge.limit)
    }

    #[inline]
    pub(crate) fn identity(&self, scope: &Scope, key: KeyRef<'_>) -> Identity {
        self.inner.secret.identity(scope, key)
    }

    /// Now, by the clock of this store.
    pub(crate) fn now(&self) -> u64 {
        self.inner.time.now()
    }

    /// How much time has passed, by the clock of this store. See [`Clock::elapsed`].
    pub(crate) fn elapsed(&self) -> std::time::Duration {
        match &self.inner.time {
            Time::System(_) => SystemClock::new().elapsed(),
            Time::Other(clock) => clock.elapsed(),
        }
    }

    pub(crate) async fn sleep_until(&self, until: crate::Timestamp) {
        match &self.inner.time {
            Time::System(_) => SystemClock::new().sleep_until(until).await,
            Time::Other(clock) => clock.sleep_until(until).await,
        }
    }

    pub(crate) fn refund(&self, slot: &Slot<'_>) {
        let inner = &*self.inner;
        if slot.limit.algorithm().keeps_log() {
            let mut logs = inner.logs_of(slot.id).lock();
            let now = logs.shard_clock.settle(&inner.time, inner.time.now());
            let freed = logs.refund(slot.id, slot.limit, now, slot.cost);
            inner.entries.give_back(slot.share(), freed);
            return;
        }
        let mut table = inner.cells_of(slot.id).lock();
        let now = table.shard_clock.settle(&inner.time, inner.time.now());
        if let Some(place) = table.find(slot.id) {
            let state = table.state_mut(place);
            *state = algorithm::refund(slot.limit, *state, now, slot.cost);
        }
    }

    pub(crate) fn reset(&self, slot: &Slot<'_>) {
        let inner = &*self.inner;
        if slot.limit.algorithm().keeps_log() {
            if let Some(entries) = inner.logs_of(slot.id).lock().remove(slot.id) {
                inner.entries.give_back(slot.share(), entries);
                inner.keys.give_back(slot.share(), 1);
            }
            return;
        }
        let mut table = inner.cells_of(slot.id).lock();
        if let Some(place) = table.find(slot.id) {
            table.remove(place);
            inner.keys.give_back(slot.share(), 1);
        }
    }

    /// Returns a permit. One that was taken on the shared budget is there, and may have been inherited by its key.
    pub(crate) fn release(&self, slot: &Slot<'_>) {
        let inner = &*self.inner;
        if slot.permit == 0 {
            return;
        }
        let freed = inner.logs_of(slot.id).lock().release(slot.id, slot.permit);
        inner.entries.give_back(slot.share(), freed);
        if inner.has_overflow(slot.share()) {
            inner.overflow.lock().release(slot);
        }
    }

    pub(crate) fn renew(&self, slot: &Slot<'_>) -> bool {
        let inner = &*self.inner;
        let mut logs = inner.logs_of(slot.id).lock();
        let now = logs.shard_clock.settle(&inner.time, inner.time.now());
        let (renewed, freed) = logs.renew(slot.id, slot.limit, now, slot.permit);
        inner.entries.give_back(slot.share(), freed);
        drop(logs);
        if !inner.has_overflow(slot.share()) {
            return renewed;
        }
        let shared = inner.overflow.lock().renew(slot, &inner.time, now);
        renewed || shared
    }

    /// Microseconds until the last of `costs` could be admitted if they were charged in this order, each as early as it
    /// can be, and nobody else charged anything. Changes nothing.
    pub(crate) fn earliest(&self, slot: &Slot<'_>, costs: impl Iterator<Item = u64>) -> u64 {
        let inner = &*self.inner;
        let now = inner.time.now();
        if slot.limit.algorithm().keeps_log() {
            let mut log = inner.logs_of(slot.id).lock().get(slot.id);
            log.settle(slot.limit, now);
            return log.earliest(slot.limit, now, costs);
        }
        let table = inner.cells_of(slot.id).lock();
        let state = table.find(slot.id).map_or(State::EMPTY, |place| table.state(place));
        drop(table);
        algorithm::earliest(slot.limit, state, now, costs)
    }

    #[inline]
    pub(crate) fn slot<'a>(&self, charge: &'a Charge<'a>, scope: &'a Scope) -> Slot<'a> {
        Slot {
            scope,
            id: self.identity(scope, charge.key),
            limit: &charge.limit,
            cost: charge.cost,
            permit: charge.permit,
            enforced: charge.enforced,
        }
    }

    /// Changes a counter without a decision. `false` if a permit to renew has expired.
    pub(crate) fn update_slot(&self, slot: &Slot<'_>, update: Update) -> bool {
        match update {
            Update::Refund => self.refund(slot),
            Update::Reset => self.reset(slot),
            Update::Release => self.release(slot),
            Update::Renew => return self.renew(slot),
        }
        true
    }
}

/// Enough for the threads of a small machine; under the model checker as few as still are several.
const MIN_SHARDS: usize = if cfg!(pacegate_loom) { 2 } else { 16 };

impl Default for MemoryStore {
    fn default() -> Self {
        Self::bounded(Self::DEFAULT_MAX_KEYS)
    }
}

/// Answers at once: for code that takes any store.
impl Store for MemoryStore {
    fn charge(&self, charges: &[Charge<'_>], id: Option<&[u8]>) -> Reply<'_, Outcomes> {
        if id.is_some() {
            return Reply::Ready(Err(StoreError::no_ids()));
        }
        let scopes: SmallVec<[Scope; 4]> =
            charges.iter().map(|charge| self.scope_of(charge)).collect();
        let slots = charges.iter().zip(&scopes).map(|(charge, scope)| self.slot(charge, scope));
        Reply::Ready(Ok(self.charge_all(&slots.collect::<SmallVec<[Slot<'_>; 4]>>()).0))
    }

    fn update(&self, charge: &Charge<'_>, update: Update) -> Reply<'_, bool> {
        let scope = self.scope_of(charge);
        Reply::Ready(Ok(self.update_slot(&self.slot(charge, &scope), update)))
    }

    fn clear(&self, policies: &[PolicyName]) -> Reply<'_, u64> {
        Reply::Ready(Ok(self.clear(policies)))
    }
}

impl Shards {
    #[inline]
    fn cells_of(&self, id: Identity) -> &Lock<Table> {
        &self.cells[id.shard(self.cells.len())].0
    }

    fn logs_of(&self, id: Identity) -> &Lock<Logs> {
        &self.logs[id.shard(self.logs.len())].0
    }

    /// Looks at some keys of the next shards and drops the expired.
    #[cold]
    fn sweep(&self) {
        let turn = self.next_tended.fetch_add(1, Ordering::Relaxed);
        self.sweep_table(turn, SWEEP_CELLS);
        if self.has_logs.load(Ordering::Relaxed) {
            self.sweep_log_shard(turn, SWEEP_CELLS);
        }
        if self.overflows.load(Ordering::Relaxed) > 0 {
            self.sweep_overflow(SWEEP_CELLS);
        }
    }

    /// A shard that is in use is left for the next round.
    fn sweep_table(&self, turn: usize, cells: usize) {
        if let Some(mut table) = self.cells[turn % self.cells.len()].0.try_lock() {
            let now = table.shard_clock.settle(&self.time, self.time.now());
            self.sweep_cells(&mut table, cells, now);
        }
    }

    fn sweep_cells(&self, table: &mut Table, cells: usize, now: u64) {
        let mut freed = self.keys.returns();
        table.sweep(cells, now, |id| freed.add(id.share(), 1));
    }

    fn sweep_logs(&self, logs: &mut Logs, keys: usize, now: u64) {
        let (mut freed, mut entries) = (self.keys.returns(), self.entries.returns());
        logs.sweep(keys, now, |id, count| {
            freed.add(id.share(), 1);
            entries.add(id.share(), count);
        });
    }

    /// Whether keys of this share may have to look at its shared budgets.
    fn has_overflow(&self, share: Share) -> bool {
        self.overflows.load(Ordering::Relaxed) & share.bit() != 0
    }

    /// Forgets shared budgets that are no longer in use. Once there are none, new keys need not look any more.
    fn sweep_overflow(&self, budgets: usize) {
        if let Some(mut overflow) = self.overflow.try_lock() {
            let now = overflow.shard_clock.settle(&self.time, self.time.now());
            overflow.sweep(budgets, now);
            self.overflows.store(overflow.in_use(), Ordering::Relaxed);
        }
    }

    /// As [`Shards::sweep_table`].
    fn sweep_log_shard(&self, turn: usize, keys: usize) {
        if let Some(mut logs) = self.logs[turn % self.logs.len()].0.try_lock() {
            let now = logs.shard_clock.settle(&self.time, self.time.now());
            self.sweep_logs(&mut logs, keys, now);
        }
    }
}

impl Time {
    #[inline]
    fn now(&self) -> u64 {
        match self {
            Self::System(clock) => clock.micros(),
            Self::Other(clock) => clock.now().as_micros(),
        }
    }
}

impl ShardClock {
    /// `now`, but not before what the shard has already seen.
    ///
    /// The clock is read before the lock is taken, so a thread may come with an instant older than the state it finds.
    /// Then it reads again. A clock that is still behind has stepped back, and is believed, unless by so little that it
    /// is two processors disagreeing: counting that time twice would admit too much.
    #[inline]
    fn settle(&mut self, time: &Time, now: u64) -> u64 {
        let now = if now >= self.latest { now } else { self.again(time) };
        self.latest = now;
        now
    }

    #[cold]
    fn again(&self, time: &Time) -> u64 {
        let now = time.now();
        let behind = self.latest.saturating_sub(now);
        if behind < JITTER { self.latest.max(now) } else { now }
    }

    /// Counts a decision. Every so many, whoever made it sweeps another shard.
    #[inline]
    fn sweep_is_due(&mut self) -> bool {
        self.decisions = self.decisions.wrapping_add(1);
        self.decisions.is_multiple_of(SWEEP_EVERY)
    }
}

#[cfg(all(test, not(pacegate_loom)))]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::{Limiter, ManualClock};

    /// Once a flood is over, new keys do not take the lock of the shared budgets any more.
    #[test]
    fn shared_budgets_are_forgotten_by_use_alone() {
        for text in ["1/second", "1/second sliding-log"] {
            let clock = ManualClock::new();
            let limiter = Limiter::builder().limit(text).max_keys(1).clock(clock.clone());
            let limiter = limiter.build().unwrap();
            let _ = (limiter.check("first"), limiter.check("second"));
            let overflows = || limiter.store().inner.overflows.load(Ordering::Relaxed);
            assert_ne!(overflows(), 0, "{text}");
            clock.advance(Duration::from_secs(10));
            for _ in 0..2 * SWEEP_EVERY {
                let _ = limiter.check("first");
            }
            assert_eq!(overflows(), 0, "{text}");
        }
    }
}
