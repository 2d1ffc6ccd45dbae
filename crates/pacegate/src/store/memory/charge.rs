//! Deciding charges: one key in one step, several under all their locks.

use arrayvec::ArrayVec;
use smallvec::SmallVec;

use super::{
    MemoryStore, ShardClock, Shards,
    apply::Undo,
    counts::ShardCounts,
    identity::{Identity, Scope},
    lock::Guard,
    logs::Logs,
    overflow::Overflows,
    returns::ReturnMark,
    share::Share,
    table::Table,
};
use crate::{
    Algorithm, Limit, Outcomes,
    algorithm::{self, Excess, Outcome, State},
    clock::Timestamp,
};

/// One for each slot.
pub(super) type ChargedStates = SmallVec<[ChargedState; 4]>;

/// A state just after a charge.
#[derive(Clone, Copy, Debug)]
pub(super) struct ChargedState {
    /// Of a log, its instant only.
    pub(super) state: State,
    /// Of a bucket: the units that were returned to it before.
    pub(super) mark: Option<ReturnMark>,
}

impl ChargedState {
    fn at(now: u64) -> Self {
        Self { state: State::new(Timestamp::from_micros(now), 0, 0), mark: None }
    }
}

impl Table {
    /// Decides a charge in the most frequent cases: the key is known, and [`algorithm::step_often`] decides. Otherwise
    /// changes nothing.
    #[inline(always)]
    fn step_often(&mut self, slot: &Slot<'_>, now: u64) -> Option<Outcome> {
        let state = self.find_often(slot.id)?;
        algorithm::step_often(slot.limit, state, now, slot.cost, slot.excess)
    }

    fn take_counts(&mut self, now: u64) -> (ShardCounts, bool) {
        (std::mem::take(&mut self.counts), self.shard_clock.was_busy(now))
    }

    /// Returns the state of a key just after a charge.
    #[inline]
    fn charged(&mut self, slot: &Slot<'_>, outcome: &Outcome, now: u64) -> ChargedState {
        match self.find(slot.id) {
            Some(place) => self.marked(slot, outcome, self.state(place)),
            None => ChargedState::at(now),
        }
    }

    /// Adds the mark that a reservation of a bucket needs.
    #[inline]
    fn marked(&mut self, slot: &Slot<'_>, outcome: &Outcome, state: State) -> ChargedState {
        let is_taken = outcome.is_admitted() && slot.cost > 0;
        let is_marked = is_taken && slot.limit.algorithm() == Algorithm::TokenBucket;
        let mark = is_marked.then(|| self.mark_returns(slot.id));
        ChargedState { state, mark }
    }
}

/// A charge whose key has been hashed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slot<'a> {
    pub(crate) scope: &'a Scope,
    pub(crate) id: Identity,
    pub(crate) limit: &'a Limit,
    pub(crate) cost: u64,
    pub(crate) permit: u128,
    pub(crate) enforced: bool,
    /// As it applies [under](Excess::under) the limit.
    pub(crate) excess: Excess,
}

impl Slot<'_> {
    /// Returns the share whose room the key takes.
    pub(super) fn share(&self) -> Share {
        self.id.share()
    }
}

/// The locked shard of a charge that has to be decided.
pub(crate) struct LockedCell<'a> {
    inner: &'a Shards,
    table: Guard<'a, Table>,
    now: u64,
    /// Whether to sweep another shard after that.
    sweep: bool,
}

impl LockedCell<'_> {
    /// The instant of the decision.
    pub(crate) fn now(&self) -> u64 {
        self.now
    }

    /// Returns the decisions that were counted in the shard, which start again at 0, and `true` if they are recent.
    pub(crate) fn take_counts(&mut self) -> (ShardCounts, bool) {
        self.table.take_counts(self.now)
    }

    /// Lets the next decisions in the shard only be counted. See [`MemoryStore::charge_often`].
    pub(crate) fn set_busy(&mut self) {
        self.table.shard_clock.set_busy(self.now);
    }

    /// Decides the charge. Returns the outcome and the instant of the decision.
    #[cold]
    pub(crate) fn charge(mut self, slot: &Slot<'_>) -> (Outcome, u64) {
        let outcome = self.inner.charge_alone(&mut self.table, slot, self.now);
        drop(self.table);
        if self.sweep {
            self.inner.sweep();
        }
        (outcome, self.now)
    }
}

/// The locks of all shards that a call touches, in their global order.
struct Locked<'a> {
    guards: SmallVec<[Shard<'a>; 16]>,
    /// For each slot, the index of its guard.
    places: SmallVec<[u32; 16]>,
    /// Locked at first use. It is last in the lock order, so this cannot deadlock.
    overflow: Option<Guard<'a, Overflows>>,
}

/// The maximum number of keys prefetched together: enough for their memory loads to overlap, few enough to stay cached.
pub(crate) const BATCH: usize = 16;

/// The maximum number of slots of [`MemoryStore::charge_few`].
pub(crate) const FEW: usize = 4;

pub(super) enum Shard<'a> {
    Cells(Guard<'a, Table>),
    Logs(Guard<'a, Logs>),
}

impl MemoryStore {
    /// Decides one charge to a fixed-size state. Returns the outcome and the instant of the decision. Nearly all
    /// requests take this path.
    #[inline]
    pub(crate) fn charge_cell(&self, slot: &Slot<'_>) -> (Outcome, u64) {
        self.prefetch(slot.id);
        let read = self.read_clock();
        match self.charge_often(slot.id, slot.limit, (slot.cost, slot.excess), read, false) {
            Ok(charged) => charged,
            Err(locked) => locked.charge(slot),
        }
    }

    /// Does the same as [`MemoryStore::charge_cell`] in the most frequent cases: the key is known, and
    /// [`algorithm::step_often`] decides. Otherwise returns the locked shard.
    ///
    /// `read` is the [clock](Self::read_clock) just before. It is read before the lock is taken, so that the CPU can
    /// overlap both. With `counts`, also counts the decision in the shard, if there is so much traffic that this
    /// suffices.
    #[inline(always)]
    pub(crate) fn charge_often(
        &self,
        id: Identity,
        limit: &Limit,
        (cost, excess): (u64, Excess),
        read: u64,
        counts: bool,
    ) -> Result<(Outcome, u64), LockedCell<'_>> {
        let inner = self.shards();
        let mut table = inner.cells_of(id).lock();
        let now = table.shard_clock.advance(&inner.time, read);
        let sweep = table.shard_clock.sweep_is_due();
        if !sweep
            && (!counts || table.shard_clock.is_busy(now))
            && let Some(state) = table.find_often(id)
            && let Some(outcome) = algorithm::step_often(limit, state, now, cost, excess)
        {
            if counts {
                table.counts.count(outcome.is_admitted());
            }
            return Ok((outcome, now));
        }
        Err(LockedCell { inner, table, now, sweep })
    }

    /// Reads the clock for [`MemoryStore::charge_often`].
    #[inline(always)]
    pub(crate) fn read_clock(&self) -> u64 {
        self.shards().time.now()
    }

    /// Returns how many of the first keys are in one shard; at least 1 if there are any.
    #[inline]
    pub(crate) fn run_length(&self, ids: &[Identity]) -> usize {
        let shards = self.shards().cells.len();
        let shard = |id: &Identity| id.shard(shards);
        let is_other = |id| Some(shard(id)) != ids.first().map(shard);
        ids.iter().position(is_other).unwrap_or(ids.len())
    }

    /// Calls `each` with the counts of each shard, which start again at 0, and `true` if they are recent. The shard is
    /// locked meanwhile.
    pub(crate) fn take_counts(&self, mut each: impl FnMut((ShardCounts, bool))) {
        let now = self.now();
        for shard in self.shards.get().into_iter().flat_map(|shards| &shards.cells) {
            let mut table = shard.0.lock();
            each(table.take_counts(now));
        }
    }

    /// Decides charges to fixed-size states independently, in their order, under the lock of the shard that all of them
    /// are in. There are at most [`BATCH`]. `read_at` is the [clock](Self::read_clock) before. `each` is called with
    /// the index of a charge, its outcome and the instant of the decision, after the lock was released: other threads
    /// wait for less time.
    #[inline]
    pub(crate) fn charge_run<'a>(
        &self,
        slots: impl Iterator<Item = Slot<'a>>,
        read_at: u64,
        mut each: impl FnMut(usize, Outcome, u64),
    ) {
        let inner = self.shards();
        let mut slots = slots.peekable();
        let Some(id) = slots.peek().map(|slot| slot.id) else { return };
        let mut table = inner.cells_of(id).lock();
        let now = table.shard_clock.advance(&inner.time, read_at);
        let mut outcomes = ArrayVec::<Outcome, BATCH>::new();
        for slot in slots {
            // Two pushes, because an outcome of either case would be copied.
            match table.step_often(&slot, now) {
                Some(outcome) => outcomes.push(outcome),
                None => outcomes.push(inner.charge_alone(&mut table, &slot, now)),
            }
        }
        let sweep = table.shard_clock.sweep_is_due();
        drop(table);
        outcomes.into_iter().enumerate().for_each(|(index, outcome)| each(index, outcome, now));
        if sweep {
            inner.sweep();
        }
    }

    /// Decides up to [`FEW`] enforced slots of one request, all or nothing. Adds their outcomes to `outcomes`, and
    /// returns the instant of the decision. After a denial, the outcomes of the other slots are those of an admission.
    #[inline]
    pub(crate) fn charge_few(
        &self,
        slots: &[Slot<'_>],
        outcomes: &mut ArrayVec<Outcome, FEW>,
    ) -> u64 {
        if let [slot] = slots
            && !slot.limit.algorithm().keeps_log()
        {
            let (outcome, now) = self.charge_cell(slot);
            outcomes.push(outcome);
            return now;
        }
        if let Some(now) =
            self.charge_known(slots.iter().copied(), |outcome| outcomes.push(outcome))
        {
            return now;
        }
        let (all, now) = self.charge_all(slots);
        outcomes.clear();
        outcomes.extend(all.iter().copied());
        now
    }

    /// Does the same as [`MemoryStore::charge_few`] for slots of one shard that have different known cells and need
    /// not be recorded after a denial. Calls `each` with their outcomes. Otherwise changes no cell, and returns `None`.
    ///
    /// Nothing has to be undone: the new states are stored only after all of them are known.
    #[inline(always)]
    pub(crate) fn charge_known<'a>(
        &self,
        slots: impl Iterator<Item = Slot<'a>>,
        mut each: impl FnMut(Outcome),
    ) -> Option<u64> {
        let inner = self.shards();
        let mut slots = slots.peekable();
        let shard = slots.peek()?.id.shard(inner.cells.len());
        let read = inner.time.now();
        let mut table = inner.cells[shard].0.lock();
        let now = table.shard_clock.advance(&inner.time, read);
        let mut states = ArrayVec::<(usize, State), FEW>::new();
        let (mut is_admitted, mut is_recorded) = (true, false);
        for slot in slots {
            if slot.id.shard(inner.cells.len()) != shard || slot.limit.algorithm().keeps_log() {
                return None;
            }
            let place = table.find(slot.id)?;
            if states.is_full() || states.iter().any(|(other, _)| *other == place) {
                return None;
            }
            let mut state = table.state(place);
            let Slot { limit, cost, excess, .. } = slot;
            let outcome = match algorithm::step_often(limit, &mut state, now, cost, excess) {
                Some(outcome) => outcome,
                None => algorithm::charge(limit, &mut state, now, cost, excess).0,
            };
            is_admitted &= outcome.is_admitted();
            is_recorded |= excess.is_recorded();
            states.push((place, state));
            each(outcome);
        }
        if !is_admitted && is_recorded {
            return None;
        }
        for (place, state) in states.into_iter().filter(|_| is_admitted) {
            *table.state_mut(place) = state;
        }
        let sweep = table.shard_clock.sweep_is_due();
        drop(table);
        if sweep {
            inner.sweep();
        }
        Some(now)
    }

    /// Decides the slots of one request, all or nothing. Returns the outcomes and the instant of the decision.
    pub(crate) fn charge_all(&self, slots: &[Slot<'_>]) -> (Outcomes, u64) {
        if let [slot] = slots
            && !slot.limit.algorithm().keeps_log()
        {
            let (outcome, now) = self.charge_cell(slot);
            return (Outcomes::from_iter([outcome]), now);
        }
        let inner = self.shards();
        let mut locked = inner.lock_all(slots);
        let (now, sweep) = locked.start_decision(inner);
        let outcomes = inner.charge_locked(&mut locked, slots, now);
        drop(locked);
        inner.sweep_times(sweep);
        (outcomes, now)
    }

    /// Charges as many units to all slots as the enforced ones have, at most `most`. Returns their number, the outcomes
    /// and the instant of the decision. See [`Store::charge_up_to`](crate::Store::charge_up_to).
    pub(crate) fn charge_slots_up_to(&self, slots: &[Slot<'_>], most: u64) -> (u64, Outcomes, u64) {
        let inner = self.shards();
        let mut locked = inner.lock_all(slots);
        let (now, sweep) = locked.start_decision(inner);
        let mut units = most;
        for (place, slot) in slots.iter().enumerate().filter(|(_, slot)| slot.enforced) {
            let (shard, overflow) = locked.parts(place);
            let (peek, _) = inner.apply(shard, overflow, &Slot { cost: 0, ..*slot }, now);
            units = units.min(if peek.is_admitted() { peek.remaining } else { 0 });
        }
        let cost = units.max(1);
        // Only a slot in shadow mode can be too small. It takes nothing.
        let fits_never = |slot: &Slot<'_>| cost > slot.limit.capacity() && slot.limit.amount() > 0;
        let charged: SmallVec<[Slot<'_>; 4]> = slots
            .iter()
            .map(|slot| Slot { cost: if fits_never(slot) { 0 } else { cost }, ..*slot })
            .collect();
        let mut outcomes = inner.charge_locked(&mut locked, &charged, now);
        for (slot, outcome) in slots.iter().zip(outcomes.as_mut_slice()) {
            if fits_never(slot) {
                outcome.retry_after = algorithm::NEVER;
            }
        }
        drop(locked);
        inner.sweep_times(sweep);
        // Another thread may have taken the room for a new key, which then has fewer units.
        let fits = |(slot, outcome): (&Slot<'_>, &Outcome)| outcome.is_admitted() || !slot.enforced;
        let fits = slots.iter().zip(&*outcomes).all(fits);
        (if fits { units } else { 0 }, outcomes, now)
    }

    /// Decides the slots of one request as [`MemoryStore::charge_all`] does. Also returns the state of each key just
    /// after that.
    pub(super) fn charge_and_read(&self, slots: &[Slot<'_>]) -> (Outcomes, ChargedStates, u64) {
        let inner = self.shards();
        let mut locked = inner.lock_all(slots);
        let (now, sweep) = locked.start_decision(inner);
        let outcomes = inner.charge_locked(&mut locked, slots, now);
        let pairs = slots.iter().zip(&*outcomes).enumerate();
        let charged =
            pairs.map(|(place, (slot, outcome))| locked.parts(place).0.charged(slot, outcome, now));
        let charged = charged.collect();
        drop(locked);
        inner.sweep_times(sweep);
        (outcomes, charged, now)
    }
}

impl Shards {
    /// Decides one slot with a fixed-size state whose shard is locked. Also returns the state just after that.
    #[inline]
    pub(super) fn charge_and_read_cell(
        &self,
        table: &mut Table,
        slot: &Slot<'_>,
        now: u64,
    ) -> (Outcome, ChargedState) {
        let often = match table.find_often(slot.id) {
            Some(state) => algorithm::step_often(slot.limit, state, now, slot.cost, slot.excess)
                .map(|outcome| (outcome, *state)),
            None => None,
        };
        match often {
            Some((outcome, state)) => (outcome, table.marked(slot, &outcome, state)),
            None => {
                let outcome = self.charge_alone(table, slot, now);
                (outcome, table.charged(slot, &outcome, now))
            }
        }
    }

    /// Decides one slot whose shard is locked.
    #[inline]
    fn charge_alone(&self, table: &mut Table, slot: &Slot<'_>, now: u64) -> Outcome {
        match table.find_often(slot.id) {
            Some(state) => algorithm::charge(slot.limit, state, now, slot.cost, slot.excess).0,
            None => self.charge_new(table, slot, now),
        }
    }

    /// Decides a charge to a key that has no cell.
    #[cold]
    fn charge_new(&self, table: &mut Table, slot: &Slot<'_>, now: u64) -> Outcome {
        self.apply_cell(table, &mut None, slot, now).0
    }

    fn sweep_times(&self, turns: u32) {
        for _ in 0..turns {
            self.sweep();
        }
    }

    #[inline]
    fn lock_all<'a>(&'a self, slots: &[Slot<'_>]) -> Locked<'a> {
        let mut orders = slots.iter().map(|slot| self.lock_order(slot));
        // The common case: all limits count by the same key.
        if let Some(first) = orders.next()
            && orders.all(|order| order == first)
        {
            return Locked {
                guards: SmallVec::from_iter([self.lock_shard(first)]),
                places: SmallVec::from_elem(0, slots.len()),
                overflow: None,
            };
        }
        self.lock_in_order(slots)
    }

    /// Locks the shards of slots with different keys, in the global order.
    fn lock_in_order<'a>(&'a self, slots: &[Slot<'_>]) -> Locked<'a> {
        let mut order: SmallVec<[(u32, u32); 16]> = slots
            .iter()
            .enumerate()
            .map(|(place, slot)| (self.lock_order(slot) as u32, place as u32))
            .collect();
        order.sort_unstable();
        let mut locked = Locked {
            guards: SmallVec::new(),
            places: SmallVec::from_elem(0, slots.len()),
            overflow: None,
        };
        let mut last = None;
        for (shard, place) in order {
            if last != Some(shard) {
                locked.guards.push(self.lock_shard(shard as usize));
                last = Some(shard);
            }
            locked.places[place as usize] = (locked.guards.len() - 1) as u32;
        }
        locked
    }

    #[inline]
    fn lock_order(&self, slot: &Slot<'_>) -> usize {
        if slot.limit.algorithm().keeps_log() {
            self.cells.len() + slot.id.shard(self.log_shards())
        } else {
            slot.id.shard(self.cells.len())
        }
    }

    #[inline]
    fn lock_shard(&self, order: usize) -> Shard<'_> {
        match self.cells.get(order) {
            Some(table) => Shard::Cells(table.0.lock()),
            None => Shard::Logs(self.logs()[order - self.cells.len()].0.lock()),
        }
    }

    /// Decides the slots of one request whose shards are locked, all or nothing.
    ///
    /// The slots are charged one after the other, because the same key may occur twice and keys without room share a
    /// budget. If an enforced slot does not fit, all of them are undone, and those whose excess is recorded are charged
    /// again. Other threads do not see the intermediate state, because the shards are locked.
    fn charge_locked<'a>(
        &'a self,
        locked: &mut Locked<'a>,
        slots: &[Slot<'_>],
        now: u64,
    ) -> Outcomes {
        let mut outcomes = Outcomes::with_capacity(slots.len());
        let mut undo = SmallVec::<[Undo; 4]>::new();
        for (place, slot) in slots.iter().enumerate() {
            let (shard, overflow) = locked.parts(place);
            let (outcome, step) = self.apply(shard, overflow, slot, now);
            outcomes.push(outcome);
            undo.push(step);
        }
        let fits = |(slot, outcome): (&Slot<'_>, &Outcome)| outcome.is_admitted() || !slot.enforced;
        if slots.iter().zip(&*outcomes).all(fits) {
            return outcomes;
        }
        for (place, (slot, step)) in slots.iter().zip(undo).enumerate().rev() {
            let (shard, overflow) = locked.parts(place);
            self.undo(shard, overflow, slot, step);
        }
        for (place, (slot, outcome)) in slots.iter().zip(outcomes.as_mut_slice()).enumerate() {
            let (shard, overflow) = locked.parts(place);
            if slot.excess.is_recorded() {
                *outcome = self.apply(shard, overflow, slot, now).0;
            } else if outcome.is_admitted() {
                let (untouched, _) = self.apply(shard, overflow, &Slot { cost: 0, ..*slot }, now);
                *outcome = Outcome { retry_after: 0, ..untouched };
            }
        }
        outcomes
    }
}

impl<'a> Locked<'a> {
    /// Returns the shard of a slot, and the overflow budgets.
    fn parts(&mut self, place: usize) -> (&mut Shard<'a>, &mut Option<Guard<'a, Overflows>>) {
        (&mut self.guards[self.places[place] as usize], &mut self.overflow)
    }

    /// Returns the instant of the decision, which is not before any that these shards have seen, and the number of
    /// sweeps that are due.
    fn start_decision(&mut self, inner: &Shards) -> (u64, u32) {
        let mut now = inner.time.now();
        for shard in &mut self.guards {
            now = shard.shard_clock().advance(&inner.time, now);
        }
        let mut due = 0;
        for shard in &mut self.guards {
            let shard_clock = shard.shard_clock();
            shard_clock.latest = now;
            due += u32::from(shard_clock.sweep_is_due());
        }
        (now, due)
    }
}

impl Shard<'_> {
    /// Returns the state of a key that was charged.
    fn charged(&mut self, slot: &Slot<'_>, outcome: &Outcome, now: u64) -> ChargedState {
        match self {
            Self::Cells(table) => table.charged(slot, outcome, now),
            Self::Logs(_) => ChargedState::at(now),
        }
    }

    fn shard_clock(&mut self) -> &mut ShardClock {
        match self {
            Self::Cells(table) => &mut table.shard_clock,
            Self::Logs(logs) => &mut logs.shard_clock,
        }
    }
}

#[cfg(all(test, not(pacegate_loom)))]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;
    use crate::{Counter, KeyRef, ManualClock, PolicyName};

    const LIMITS: [&str; 4] = ["5/minute", "7/hour", "3/second burst 4", "6/minute sliding-window"];

    /// One request: limits as bits, key, cost, excess, and milliseconds since the request before.
    fn request() -> impl Strategy<Value = (u8, u8, u64, Excess, u64)> {
        let excess = prop_oneof![4 => Just(Excess::Reject), 1 => Just(Excess::Debt { max: 3 })];
        (1..16_u8, 0..2_u8, 0..4_u64, excess, prop_oneof![0..300_u64, 0..90_000_u64])
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]

        /// The short way for a few slots decides and charges as the general one.
        #[test]
        fn a_few_slots_are_charged_like_any_number(
            requests in prop::collection::vec(request(), 1..40),
        ) {
            let limits = LIMITS.map(|text| text.parse::<Limit>().unwrap());
            let clock = ManualClock::new();
            let stores = [(); 2].map(|()| MemoryStore::new(100, clock.clone()));
            for (chosen, key, cost, excess, later) in requests {
                clock.advance(Duration::from_millis(later));
                let chosen: Vec<&Limit> = limits
                    .iter()
                    .enumerate()
                    .filter(|(place, _)| chosen >> place & 1 == 1)
                    .map(|(_, limit)| limit)
                    .collect();
                let charge = |store: &MemoryStore, is_short: bool| {
                    let scope = |limit| store.scope(PolicyName::DEFAULT, Counter::Limit, limit);
                    let scopes: Vec<Scope> = chosen.iter().copied().map(scope).collect();
                    let key = [key];
                    let slots: Vec<Slot<'_>> = chosen
                        .iter()
                        .zip(&scopes)
                        .map(|(limit, scope)| {
                            let id = store.identity(scope, KeyRef::new(&key));
                            let excess = excess.under(limit);
                            Slot { scope, id, limit, cost, permit: 0, enforced: true, excess }
                        })
                        .collect();
                    let mut few = ArrayVec::new();
                    if is_short {
                        store.charge_few(&slots, &mut few);
                        few.to_vec()
                    } else {
                        store.charge_all(&slots).0.to_vec()
                    }
                };
                let (short, long) = (charge(&stores[0], true), charge(&stores[1], false));
                let is_admitted = long.iter().all(Outcome::is_admitted);
                for (short, long) in short.iter().zip(&long) {
                    prop_assert_eq!(short.is_admitted(), long.is_admitted());
                    // After a denial, only the outcomes of the limits that deny count.
                    if is_admitted || !long.is_admitted() {
                        prop_assert_eq!(short, long);
                    }
                }
            }
        }
    }
}
