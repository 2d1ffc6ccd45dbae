//! The store in this process's memory: sharded, bounded, and exact.
//!
//! A key is a [cell](table) of 32 bytes in one of many small tables, each protected by a [lock]. Keys of algorithms
//! that store instants are in [logs] instead. A request with several keys locks all their shards in one global order,
//! decides, writes, and unlocks them. So charges are all or nothing, and threads cannot deadlock.
//!
//! The store has no background thread. After every 64 decisions in a shard, the caller [sweeps](Shards::sweep) the next
//! shard: it visits a few cells and removes the expired ones. Keys of a batch that are decided under one lock count as
//! one decision. If the store is full, live keys stay: the new keys of a
//! policy share one overflow budget until there is room again. Each domain has a [share] of the [room], so that
//! the keys of one domain cannot take all of it.

mod apply;
mod charge;
mod counts;
pub(crate) mod identity;
mod lock;
mod logs;
#[cfg(all(test, pacegate_loom))]
mod loom_tests;
mod overflow;
mod prefetch;
pub(crate) mod reservations;
mod returns;
mod room;
mod share;
mod table;
mod tenants;

use std::{
    slice,
    sync::{Arc, OnceLock},
    time::Duration,
};

use crossbeam_utils::CachePadded;
use smallvec::SmallVec;

#[cfg(pacegate_loom)]
use loom::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
#[cfg(not(pacegate_loom))]
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use self::{
    identity::{Identity, KeyHash, MAX_SHARDS, Scope, Secret},
    lock::Lock,
    logs::Logs,
    overflow::Overflows,
    prefetch::{ListAddress, Prefetcher},
    reservations::{ChargeOrigin, DueCharges, ReservedCharge, ReturnTimes},
    room::Room,
    share::{Owner, Registry, Share},
    table::{CacheLine, Table},
};
use super::{Charge, SettledCharge, SettledCharges, Store};
use crate::{
    Counter, KeyRef, Limit, Outcomes, Reply, StoreError, Update,
    algorithm::{self, Outcome, ReturnedTokens, State},
    clock::{Clock, Disciplined, SystemClock},
    policy::PolicyName,
};

pub(crate) use charge::{BATCH, FEW, LockedCell, Slot};
pub(crate) use counts::ShardCounts;
pub use tenants::ShareUsage;

/// A store in the memory of this process.
///
/// Clones share the state. The store holds at most `max_keys` keys. A key takes 36 to 40 bytes in a large store, and up
/// to twice that in a small one. A log takes 32 more bytes for each instant, with at most eight instants per key on
/// average over the whole store. The memory of expired keys is freed in small steps by later decisions.
///
/// If the store is full, new keys of a policy share one overflow budget, and their decisions have the source
/// [`Source::Overflow`](crate::Source::Overflow). No live key is evicted, so a flood of new keys cannot reset the
/// counter of another client.
///
/// A [`Limiter`](crate::Limiter) contains one. Create one directly to test code that takes any [`Store`]:
///
/// ```
/// use pacegate::{ManualClock, MemoryStore, SharedLimiter};
///
/// let store = MemoryStore::new(10_000, ManualClock::new());
/// let limiter = SharedLimiter::builder(store.clone()).limit("100/minute").build()?;
/// assert_eq!(store.usage().keys, 0);
/// # drop(limiter);
/// # Ok::<(), pacegate::BuildError>(())
/// ```
#[derive(Clone, Debug)]
pub struct MemoryStore {
    inner: Arc<Inner>,
    /// The secret of `inner`, and its shards once this handle has used them. Here, because each pointer that a decision
    /// follows takes time.
    secret: Secret,
    shards: OnceLock<Arc<Shards>>,
}

/// The number of keys in a [`MemoryStore`], and the memory they take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MemoryUsage {
    /// The number of keys, including expired keys that are not removed yet.
    pub keys: usize,
    /// The maximum number of keys.
    pub max_keys: usize,
    /// The bytes allocated for keys, logs and overflow budgets.
    pub bytes: usize,
    /// The number of charges since the store was created for which there was no room, so that the overflow budget of
    /// their policy decided. If it grows, raise `max_keys`.
    pub overflowed: u64,
    /// The number of open reservations, including expired ones that are not removed yet. At most `max_keys`, of which
    /// each domain has a guaranteed share.
    pub reservations: usize,
}

/// The state that all clones of a store share. Small until the first key arrives, so that a program can have many
/// limiters.
#[derive(Debug)]
struct Inner {
    /// A number that is unique in the process.
    number: u64,
    max_keys: usize,
    secret: Secret,
    time: Time,
    /// The tags of policies. While it is locked, only the lock that opens a share is taken.
    registry: Lock<Registry>,
    /// The tag of [`PolicyName::INLINE`], or 0 before its first use. Cached, because inline limits look it up often.
    inline_tag: AtomicU64,
    /// Allocated at the first charge.
    shards: OnceLock<Arc<Shards>>,
}

/// The keys of a store.
#[derive(Debug)]
struct Shards {
    time: Time,
    /// Shards of fixed-size states. Their number is a power of two.
    cells: Box<[Padded<Lock<Table>>]>,
    /// The cells of each shard.
    addresses: Box<[ListAddress<CacheLine>]>,
    prefetcher: Prefetcher,
    /// Shards of logs, allocated at first use. They are locked after the cells.
    logs: OnceLock<LogShards>,
    /// The overflow budgets of keys without room. Locked last.
    overflow: Lock<Overflows>,
    /// One bit for each share, set if the share has overflow budgets. New keys of other shares skip the lookup.
    overflows: CachePadded<AtomicU64>,
    /// The room for keys.
    keys: Room,
    /// The room for entries of logs.
    entries: Room,
    /// The room for open reservations.
    reserved: Room,
    /// Locked before the cells.
    return_times: Lock<ReturnTimes>,
    /// The first of `return_times`. Changed under their lock.
    next_return: CachePadded<AtomicU64>,
    /// Only of a store that limiters share: they know the current limits. Locked alone.
    due: Lock<DueCharges>,
    /// The number of charges in `due`. Changed under its lock.
    due_charges: AtomicU64,
    overflowed: CachePadded<AtomicU64>,
    /// The number of the next sweep, which selects the shard.
    next_tended: CachePadded<AtomicUsize>,
}

type LogShards = Box<[Padded<Lock<Logs>>]>;

/// Aligned to one cache line, not to two as [`CachePadded`] would do. So the headers of all shards fit into the L1
/// cache.
#[derive(Debug)]
#[repr(align(64))]
struct Padded<T>(T);

// A table counts its cells in 32 bits.
const _: () = assert!(MAX_KEYS / MAX_SHARDS < 1 << 30);

/// The time of the last decision in a shard, and a counter for sweeps.
#[derive(Debug)]
struct ShardClock {
    /// The instant of the latest decision in this shard, in microseconds.
    latest: u64,
    /// The number of decisions in this shard, wrapping.
    decisions: u32,
    /// The number of the period in which decisions need only be counted, because there is too much traffic to record
    /// every key.
    busy_period: u32,
}

impl Default for ShardClock {
    fn default() -> Self {
        Self { latest: 0, decisions: 0, busy_period: Self::NEVER_BUSY }
    }
}

/// The clock of the store. The default clock is called directly, any other through a pointer.
#[derive(Clone, Debug)]
pub(crate) enum Time {
    System(&'static Disciplined),
    Other(Arc<dyn Clock>),
}

/// Keys per shard when the store is full. Rebuilding a table of this size takes some tens of microseconds.
const KEYS_PER_SHARD: usize = 2_048;
/// A trillion keys, or on 32-bit targets those that take half of the address space.
const MAX_KEYS: usize = if usize::BITS == 64 { 1 << 40 } else { 1 << 26 };
/// The number of decisions in a shard between two sweeps.
const SWEEP_EVERY: u32 = 64;
/// The number of cells that one sweep visits: one for each decision on average.
const SWEEP_CELLS: usize = 64;
/// The room for entries of logs, for each key of the maximum.
const ENTRIES_PER_KEY: usize = 8;
/// The maximum difference between the clocks of two CPUs, in microseconds. A clock that is further behind has stepped.
const JITTER: u64 = 1_000;

impl MemoryStore {
    /// The default maximum number of keys.
    pub const DEFAULT_MAX_KEYS: usize = 1_000_000;

    /// Creates a store for at most `max_keys` keys with this clock, for example a [`ManualClock`](crate::ManualClock)
    /// in tests. `max_keys` is at least 1: 0 counts as 1.
    ///
    /// The memory for keys is allocated as they arrive. An empty store takes less than a kilobyte; its first key
    /// allocates a table of shards, which takes 2 KiB for up to 32,000 keys and 41 KiB for a million.
    pub fn new(max_keys: usize, clock: impl Clock) -> Self {
        Self::build(max_keys, Time::Other(Arc::new(clock)))
    }

    /// Creates a store for at most `max_keys` keys with the system's clock. `max_keys` is at least 1: 0 counts as 1.
    pub fn bounded(max_keys: usize) -> Self {
        Self::build(max_keys, Time::default())
    }

    pub(crate) fn build(max_keys: usize, time: Time) -> Self {
        let inner = Inner {
            number: next_number(),
            max_keys: max_keys.clamp(1, MAX_KEYS),
            secret: Secret::random(),
            time,
            registry: Lock::new(Registry::default()),
            inline_tag: AtomicU64::new(0),
            shards: OnceLock::new(),
        };
        let shards = OnceLock::new();
        if cfg!(pacegate_loom) {
            // The model checker does not know the lock of the standard library.
            inner.allocate().logs();
            shards.get_or_init(|| inner.allocate().clone());
        }
        Self { secret: inner.secret.clone(), shards, inner: Arc::new(inner) }
    }

    #[inline]
    fn shards(&self) -> &Shards {
        match self.shards.get() {
            Some(shards) => shards,
            None => self.find_shards(),
        }
    }

    #[cold]
    fn find_shards(&self) -> &Shards {
        self.shards.get_or_init(|| self.inner.allocate().clone())
    }

    /// Returns the current usage.
    ///
    /// Locks every shard in turn. Call it for a dashboard or a metrics endpoint, not for every request.
    ///
    /// ```
    /// use pacegate::{Limit, Limiter};
    ///
    /// let limiter = Limiter::memory(Limit::per_minute(5));
    /// let _ = (limiter.check("alice"), limiter.check("bob"));
    /// let usage = limiter.store().usage();
    /// assert_eq!((usage.keys, usage.overflowed), (2, 0));
    /// assert!(usage.bytes < 100_000);
    /// ```
    pub fn usage(&self) -> MemoryUsage {
        let inner = self.shards();
        let cells: usize = inner.cells.iter().map(|shard| shard.0.lock().capacity()).sum();
        let logs = inner.logs.get().into_iter().flatten();
        let logs: usize = logs.map(|shard| shard.0.lock().bytes()).sum();
        let overflow = inner.overflow.lock().size();
        let (cells, logs) = (cells + overflow.0, logs + overflow.1);
        MemoryUsage {
            keys: inner.keys.used(),
            max_keys: inner.keys.max(),
            bytes: cells * 32 + logs,
            overflowed: inner.overflowed.load(Ordering::Relaxed),
            reservations: inner.open_reservations(),
        }
    }

    /// Removes all expired keys and frees their memory now, instead of in small steps during later decisions.
    ///
    /// Locks one shard at a time, so a concurrent request waits for at most some tens of microseconds. Optional: call
    /// it after a flood of keys, or before the process becomes idle.
    pub fn reclaim(&self) {
        let inner = self.shards();
        // The second round is for tables that became too large in the first.
        (0..2 * inner.cells.len()).for_each(|turn| inner.sweep_table(turn, usize::MAX));
        for turn in 0..inner.logs.get().map_or(0, |logs| logs.len()) {
            inner.sweep_log_shard(turn, usize::MAX);
        }
        (0..2).for_each(|_| inner.sweep_overflow(usize::MAX));
    }

    /// Returns the scope of a counter, with which its keys are hashed. Registers a new policy.
    #[inline]
    pub(crate) fn scope(&self, policy: PolicyName, counter: Counter, limit: &Limit) -> Scope {
        self.inner.secret.scope(policy, counter, limit, self.inner.tag(policy))
    }

    /// Returns the scope of a charge, with which its key is hashed.
    pub(crate) fn scope_of(&self, charge: &Charge<'_>) -> Scope {
        self.scope(charge.policy, charge.counter, &charge.limit)
    }

    /// Hashes a key, for all scopes.
    #[inline(always)]
    pub(crate) fn hash(&self, key: KeyRef<'_>) -> KeyHash {
        self.secret.hash(key)
    }

    /// Hashes a key in a scope.
    #[inline(always)]
    pub(crate) fn identity(&self, scope: &Scope, key: KeyRef<'_>) -> Identity {
        self.hash(key).in_scope(scope)
    }

    /// Loads the memory for a decision of a key into the cache of the CPU, which does not wait for it. Useful before
    /// the clock is read.
    #[inline(always)]
    pub(crate) fn prefetch(&self, id: Identity) {
        self.shards().prefetch(id);
    }

    /// Returns the time of this store's clock, in microseconds.
    pub(crate) fn now(&self) -> u64 {
        self.inner.time.now()
    }

    /// Returns the elapsed time by the clock of this store. See [`Clock::elapsed`].
    pub(crate) fn elapsed(&self) -> Duration {
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

    /// Returns up to the cost of the slot to its key. Overflow budgets are not refunded.
    pub(crate) fn refund(&self, slot: &Slot<'_>) {
        let inner = self.shards();
        if slot.limit.algorithm().keeps_log() {
            let mut logs = inner.logs_of(slot.id).lock();
            let now = logs.shard_clock.advance(&inner.time, inner.time.now());
            let freed = logs.refund(slot.id, slot.limit, now, slot.cost);
            inner.entries.give_back(slot.share(), freed);
            return;
        }
        let mut table = inner.cells_of(slot.id).lock();
        let now = table.shard_clock.advance(&inner.time, inner.time.now());
        if let Some(place) = table.find(slot.id) {
            let state = table.state_mut(place);
            *state = algorithm::refund(slot.limit, *state, now, slot.cost);
            let returned = ReturnedTokens { refunded: slot.cost, settled: 0 };
            table.count_returned(slot.id, returned);
        }
    }

    /// Removes the counter of the key, and returns its room to the share.
    pub(crate) fn reset(&self, slot: &Slot<'_>) {
        let inner = self.shards();
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

    /// Releases a permit. If it was taken from the overflow budget, it is there, and its key may have inherited a copy.
    pub(crate) fn release(&self, slot: &Slot<'_>) {
        let inner = self.shards();
        if slot.permit == 0 {
            return;
        }
        let freed = inner.logs_of(slot.id).lock().release(slot.id, slot.permit);
        inner.entries.give_back(slot.share(), freed);
        if inner.has_overflow(slot.share()) {
            inner.overflow.lock().release(slot);
        }
    }

    /// Restarts the period of a permit. Returns `false` if it has expired.
    pub(crate) fn renew(&self, slot: &Slot<'_>) -> bool {
        let inner = self.shards();
        let mut logs = inner.logs_of(slot.id).lock();
        let now = logs.shard_clock.advance(&inner.time, inner.time.now());
        let (renewed, freed) = logs.renew(slot.id, slot.limit, now, slot.permit);
        inner.entries.give_back(slot.share(), freed);
        drop(logs);
        if !inner.has_overflow(slot.share()) {
            return renewed;
        }
        let shared = inner.overflow.lock().renew(slot, &inner.time, now);
        renewed || shared
    }

    /// Returns the microseconds until the last of `costs` could be admitted, if they are charged in this order, each as
    /// early as possible, without other charges. Changes nothing.
    pub(crate) fn earliest(&self, slot: &Slot<'_>, costs: impl Iterator<Item = u64>) -> u64 {
        let inner = self.shards();
        let now = inner.time.now();
        if slot.limit.algorithm().keeps_log() {
            let mut log = inner.logs_of(slot.id).lock().get(slot.id);
            log.prune(slot.limit, now);
            return log.earliest(slot.limit, now, costs);
        }
        let table = inner.cells_of(slot.id).lock();
        let state = table.find(slot.id).map_or(State::EMPTY, |place| table.state(place));
        drop(table);
        algorithm::earliest(slot.limit, state, now, costs)
    }

    /// Hashes the key of a charge.
    #[inline]
    pub(crate) fn slot<'a>(&self, charge: &'a Charge<'a>, scope: &'a Scope) -> Slot<'a> {
        Slot {
            scope,
            id: self.identity(scope, charge.key),
            limit: &charge.limit,
            cost: charge.cost,
            permit: charge.permit,
            enforced: charge.enforced,
            excess: charge.excess.under(&charge.limit),
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

fn next_number() -> u64 {
    static NEXT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Enough for the threads of a small machine. The model checker uses the smallest number above one.
const MIN_SHARDS: usize = if cfg!(pacegate_loom) { 2 } else { 16 };

impl Default for MemoryStore {
    fn default() -> Self {
        Self::bounded(Self::DEFAULT_MAX_KEYS)
    }
}

/// Every reply is [`Reply::Ready`]. Request ids are not supported.
impl Store for MemoryStore {
    fn charge(&self, charges: &[Charge<'_>], id: Option<&[u8]>) -> Reply<'_, Outcomes> {
        if id.is_some() {
            return Reply::Ready(Err(StoreError::no_ids()));
        }
        let scopes: SmallVec<[Scope; 4]> =
            charges.iter().map(|charge| self.scope_of(charge)).collect();
        let slots = charges.iter().zip(&scopes).map(|(charge, scope)| self.slot(charge, scope));
        let slots: SmallVec<[Slot<'_>; 4]> = slots.collect();
        self.return_unsettled_to(&slots);
        Reply::Ready(Ok(self.charge_all(&slots).0))
    }

    fn charge_up_to(
        &self,
        charges: &[Charge<'_>],
        most: u64,
        id: Option<&[u8]>,
    ) -> Reply<'_, (u64, Outcomes)> {
        if id.is_some() {
            return Reply::Ready(Err(StoreError::no_ids()));
        }
        let scopes: Vec<Scope> = charges.iter().map(|charge| self.scope_of(charge)).collect();
        let slots = charges.iter().zip(&scopes).map(|(charge, scope)| self.slot(charge, scope));
        let slots: Vec<Slot<'_>> = slots.collect();
        self.return_unsettled_to(&slots);
        let (units, outcomes, _) = self.charge_slots_up_to(&slots, most);
        Reply::Ready(Ok((units, outcomes)))
    }

    fn update(&self, charge: &Charge<'_>, update: Update) -> Reply<'_, bool> {
        let scope = self.scope_of(charge);
        let slot = self.slot(charge, &scope);
        self.return_unsettled_to(slice::from_ref(&slot));
        Reply::Ready(Ok(self.update_slot(&slot, update)))
    }

    fn clear(&self, policies: &[PolicyName]) -> Reply<'_, u64> {
        Reply::Ready(Ok(self.clear(policies)))
    }

    fn reserve(&self, charges: &[Charge<'_>], id: u128, ttl: Duration) -> Reply<'_, Outcomes> {
        let scopes: SmallVec<[Scope; 4]> =
            charges.iter().map(|charge| self.scope_of(charge)).collect();
        let slots = charges.iter().zip(&scopes).map(|(charge, scope)| self.slot(charge, scope));
        let slots: SmallVec<[Slot<'_>; 4]> = slots.collect();
        self.return_unsettled_to(&slots);
        let origin = |place: usize| {
            let Charge { policy, counter, unsettled, .. } = charges[place];
            let (follows_policy, is_recorded, key) = (true, false, None);
            ChargeOrigin { policy, counter, follows_policy, is_recorded, key, unsettled }
        };
        let reserved = self.reserve_slots(&slots, origin, (id, ttl));
        Reply::Ready(reserved.map(|(outcomes, _)| outcomes))
    }

    fn settle(
        &self,
        charges: &[Charge<'_>],
        id: u128,
        actual: u64,
    ) -> Reply<'_, Option<SettledCharges>> {
        let scopes: SmallVec<[Scope; 4]> =
            charges.iter().map(|charge| self.scope_of(charge)).collect();
        let slots = charges.iter().zip(&scopes).map(|(charge, scope)| self.slot(charge, scope));
        let slots: SmallVec<[Slot<'_>; 4]> = slots.collect();
        self.return_unsettled_to(&slots);
        let place =
            |reserved: &ReservedCharge| slots.iter().position(|slot| slot.id == reserved.id);
        let current_limit = |reserved: &ReservedCharge| match place(reserved) {
            Some(place) => (charges[place].limit, charges[place].max_debt),
            None => reserved.unchanged_limit(),
        };
        let mut settled = vec![None; charges.len()];
        let each = |reserved: &ReservedCharge, _: Limit, beyond: Option<(Outcome, u64)>| {
            let beyond = beyond.map(|(outcome, now)| Outcome { decided_at: now, ..outcome });
            if let Some(place) = place(reserved) {
                settled[place] = Some(SettledCharge::new(reserved.units, beyond));
            }
        };
        let is_open = self.settle_reservation(id, actual, current_limit, each);
        Reply::Ready(Ok(is_open.then_some(settled)))
    }
}

impl Inner {
    /// Allocates the shards, and opens the shares of all policies.
    #[cold]
    fn allocate(&self) -> &Arc<Shards> {
        let new = || Arc::new(Shards::new(self.max_keys, self.time.clone()));
        let shards = self.shards.get_or_init(new);
        // A policy that is registered from here on finds the shards, and opens its share itself.
        self.registry.lock().tags().for_each(|tag| shards.open(tag));
        shards
    }
}

impl Shards {
    fn new(max_keys: usize, time: Time) -> Self {
        let shards = (max_keys / KEYS_PER_SHARD).next_power_of_two().clamp(MIN_SHARDS, MAX_SHARDS);
        Self {
            time,
            cells: (0..shards).map(|_| Padded(Lock::new(Table::default()))).collect(),
            addresses: (0..shards).map(|_| ListAddress::default()).collect(),
            prefetcher: Prefetcher::new(),
            logs: OnceLock::new(),
            overflow: Lock::new(Overflows::default()),
            overflows: CachePadded::new(AtomicU64::new(0)),
            keys: Room::new(max_keys),
            entries: Room::new(max_keys.saturating_mul(ENTRIES_PER_KEY)),
            reserved: Room::new(max_keys),
            return_times: Lock::new(ReturnTimes::default()),
            next_return: CachePadded::new(AtomicU64::new(u64::MAX)),
            due: Lock::new(DueCharges::default()),
            due_charges: AtomicU64::new(0),
            overflowed: CachePadded::new(AtomicU64::new(0)),
            next_tended: CachePadded::new(AtomicUsize::new(0)),
        }
    }

    /// Gives the share of a tag its guarantees for keys, log entries and reservations.
    fn open(&self, tag: Owner) {
        self.keys.open(tag.share());
        self.entries.open(tag.share());
        self.reserved.open(tag.share());
    }

    /// Prefetches the lock of the shard of a key, and its first cells.
    #[inline(always)]
    fn prefetch(&self, id: Identity) {
        // Elsewhere a prefetch does nothing, and the loads of addresses would remain.
        if cfg!(target_arch = "x86_64") {
            let shard = id.shard(self.cells.len());
            self.prefetcher.prefetch(&raw const self.cells[shard]);
            self.prefetcher.prefetch(self.addresses[shard].of(|lines| id.spread(lines)));
        }
    }

    #[inline]
    fn cells_of(&self, id: Identity) -> &Lock<Table> {
        &self.cells[id.shard(self.cells.len())].0
    }

    /// Returns the shards of logs.
    fn logs(&self) -> &LogShards {
        let new = |_| Padded(Lock::new(Logs::default()));
        self.logs.get_or_init(|| (0..self.log_shards()).map(new).collect())
    }

    /// Returns the number of shards of logs, a power of two.
    #[inline]
    fn log_shards(&self) -> usize {
        self.cells.len().min(256)
    }

    fn logs_of(&self, id: Identity) -> &Lock<Logs> {
        &self.logs()[id.shard(self.log_shards())].0
    }

    /// Visits some keys of the next shards and removes the expired ones.
    #[cold]
    fn sweep(&self) {
        let turn = self.next_tended.fetch_add(1, Ordering::Relaxed);
        self.sweep_table(turn, SWEEP_CELLS);
        self.sweep_log_shard(turn, SWEEP_CELLS);
        if self.overflows.load(Ordering::Relaxed) > 0 {
            self.sweep_overflow(SWEEP_CELLS);
        }
    }

    /// Sweeps one shard of cells. Skips it if it is locked.
    fn sweep_table(&self, turn: usize, cells: usize) {
        let shard = turn % self.cells.len();
        if let Some(mut table) = self.cells[shard].0.try_lock() {
            let now = table.shard_clock.advance(&self.time, self.time.now());
            self.sweep_cells(&mut table, cells, now);
            self.addresses[shard].set(table.lines());
        }
    }

    /// Visits the next `cells` cells of a table, and returns the room of expired keys and reservations.
    fn sweep_cells(&self, table: &mut Table, cells: usize, now: u64) {
        let mut freed = self.keys.returns();
        table.sweep(cells, now, |id| freed.add(id.share(), 1));
        if let Some(reservations) = table.known_reservations() {
            reservations.expire(now, cells, &self.reserved);
        }
    }

    /// Visits the next `keys` logs of a shard, and returns the room of expired keys and their entries.
    fn sweep_logs(&self, logs: &mut Logs, keys: usize, now: u64) {
        let (mut freed, mut entries) = (self.keys.returns(), self.entries.returns());
        logs.sweep(keys, now, |id, count| {
            freed.add(id.share(), 1);
            entries.add(id.share(), count);
        });
    }

    /// Returns `true` if this share may have overflow budgets.
    fn has_overflow(&self, share: Share) -> bool {
        self.overflows.load(Ordering::Relaxed) & share.bit() != 0
    }

    /// Removes expired overflow budgets. Once a share has none, its new keys skip the lookup.
    fn sweep_overflow(&self, budgets: usize) {
        if let Some(mut overflow) = self.overflow.try_lock() {
            let now = overflow.shard_clock.advance(&self.time, self.time.now());
            overflow.sweep(budgets, now);
            self.overflows.store(overflow.in_use(), Ordering::Relaxed);
        }
    }

    /// Sweeps one shard of logs, if there are any. See [`Shards::sweep_table`].
    fn sweep_log_shard(&self, turn: usize, keys: usize) {
        let shard = self.logs.get().map(|logs| &logs[turn % logs.len()].0);
        if let Some(mut logs) = shard.and_then(Lock::try_lock) {
            let now = logs.shard_clock.advance(&self.time, self.time.now());
            self.sweep_logs(&mut logs, keys, now);
        }
    }
}

impl Default for Time {
    fn default() -> Self {
        Self::System(crate::clock::disciplined())
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
    /// Returns the instant of a decision: `now`, unless this shard has already seen a later instant.
    ///
    /// The clock is read before the lock is taken, so `now` may be older than the state. Then the clock is read again.
    /// If it is still behind by [`JITTER`] or more, it has stepped back, and the new time applies. A smaller difference
    /// is that between two CPUs: the later instant applies, because counting the time twice would over-admit.
    #[inline]
    fn advance(&mut self, time: &Time, now: u64) -> u64 {
        let now = if now >= self.latest { now } else { self.again(time) };
        self.latest = now;
        now
    }

    /// Reads the clock again, and ignores a difference that is smaller than [`JITTER`].
    #[cold]
    fn again(&self, time: &Time) -> u64 {
        let now = time.now();
        let behind = self.latest.saturating_sub(now);
        if behind < JITTER { self.latest.max(now) } else { now }
    }

    /// Counts a decision. Returns `true` if the caller should sweep another shard.
    #[inline]
    fn sweep_is_due(&mut self) -> bool {
        self.decisions = self.decisions.wrapping_add(1);
        self.decisions.is_multiple_of(SWEEP_EVERY)
    }
}

#[cfg(all(test, not(pacegate_loom)))]
mod tests {
    use super::*;
    use crate::{Limiter, ManualClock};

    /// Every call finds the cells of a shard where they are, also after tables were rebuilt.
    #[test]
    fn the_addresses_of_all_cells_are_up_to_date() {
        let clock = ManualClock::new();
        let limiter = Limiter::builder().limit("1/second").max_keys(4_000).clock(clock.clone());
        let limiter = limiter.build().unwrap();
        let check = || {
            let shards = limiter.store().shards();
            for (shard, address) in shards.cells.iter().zip(&shards.addresses) {
                let table = shard.0.lock();
                let end = address.of(|length| length);
                assert!(table.lines().is_empty() || end == table.lines().as_ptr_range().end);
                address.of(|length| {
                    assert_eq!(length, table.lines().len());
                    0
                });
            }
        };
        let _ = limiter.check_many(&(0..2_000).collect::<Vec<u32>>());
        check();
        clock.advance(Duration::from_secs(10));
        limiter.store().reclaim();
        check();
        let _ = limiter.check("key");
        limiter.store().clear(&[PolicyName::DEFAULT]);
        check();
    }

    /// A batch reads the clock before other threads decide.
    #[test]
    fn the_keys_of_a_batch_are_not_decided_before_earlier_decisions() {
        let clock = ManualClock::new();
        let store = MemoryStore::new(100, clock.clone());
        let limit = Limit::per_minute(5);
        let scope = store.scope(PolicyName::DEFAULT, Counter::Policy, &limit);
        let slot = |key: &'static str| Slot {
            scope: &scope,
            id: store.identity(&scope, KeyRef::new(key.as_bytes())),
            limit: &limit,
            cost: 1,
            permit: 0,
            enforced: true,
            excess: crate::Excess::Reject,
        };
        let read_at = store.read_clock();
        clock.advance(Duration::from_millis(100));
        let (_, later) = store.charge_cell(&slot("key"));
        assert_ne!(later, read_at);
        store.charge_run([slot("key"); 2].into_iter(), read_at, |_, _, now| assert_eq!(now, later));
    }

    /// After a flood, new keys no longer lock the overflow budgets.
    #[test]
    fn shared_budgets_are_forgotten_by_use_alone() {
        let texts = ["1/second", "1/second sliding-log"];
        for (text, in_batches) in texts.into_iter().flat_map(|text| [(text, false), (text, true)]) {
            let clock = ManualClock::new();
            let limiter = Limiter::builder().limit(text).max_keys(1).clock(clock.clone());
            let limiter = limiter.build().unwrap();
            let _ = (limiter.check("first"), limiter.check("second"));
            let overflows = || limiter.store().shards().overflows.load(Ordering::Relaxed);
            assert_ne!(overflows(), 0, "{text}");
            clock.advance(Duration::from_secs(10));
            for _ in 0..2 * SWEEP_EVERY {
                if in_batches {
                    let _ = limiter.check_many(&["first"; 2]);
                } else {
                    let _ = limiter.check("first");
                }
            }
            assert_eq!(overflows(), 0, "{text}, in batches: {in_batches}");
        }
    }
}
