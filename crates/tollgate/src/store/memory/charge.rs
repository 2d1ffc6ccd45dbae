//! Deciding charges: one key in one step, several under all their locks.

use smallvec::SmallVec;

use super::{
    Inner, MAX_SPARE, MemoryStore, Ordering, Pace, Spare,
    identity::{Identity, Scope},
    lock::Guard,
    logs::Logs,
    table::Table,
};
use crate::{
    Limit,
    algorithm::{self, Budget, Outcome, State},
};

/// A charge whose key has been hashed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Slot<'a> {
    pub(crate) scope: &'a Scope,
    pub(crate) id: Identity,
    pub(crate) limit: &'a Limit,
    pub(crate) cost: u64,
    pub(crate) permit: u64,
    pub(crate) enforced: bool,
}

/// What a slot would get, and what is to be written if its whole request is admitted.
struct Evaluated {
    outcome: Outcome,
    write: Write,
}

enum Write {
    Nothing,
    /// Keep this state. Room for the key has been taken if it is new, unless an earlier slot of the request adds it.
    Put {
        state: State,
        room_taken: bool,
    },
    /// Take units from a log. Room for an entry has been taken, and for the key if it is new.
    Take {
        new_key: bool,
    },
    /// There was no room: take it from the shared budget.
    Spare(Option<State>),
}

/// The locks of all shards that a call touches, in their global order.
struct Locked<'a> {
    guards: SmallVec<[Shard<'a>; 16]>,
    /// For each slot, which guard is its own.
    places: SmallVec<[u16; 16]>,
    /// Taken when first needed. It comes last in the order, so that is safe.
    spare: Option<Guard<'a, Spare>>,
}

/// The locks of the first keys of a batch.
struct Held<'a> {
    tables: SmallVec<[(usize, Guard<'a, Table>); BATCH]>,
    /// For each key, which of the tables is its own.
    places: SmallVec<[u8; BATCH]>,
}

/// Keys whose locks are held together: enough for their loads to overlap, few enough to hold them for a moment only.
pub(crate) const BATCH: usize = 16;

enum Shard<'a> {
    Cells(Guard<'a, Table>),
    Logs(Guard<'a, Logs>),
}

impl MemoryStore {
    /// Decides one charge to a fixed-size state, and says when. The path that nearly all requests take.
    #[inline]
    pub(crate) fn charge_cell(&self, slot: &Slot<'_>) -> (Outcome, u64) {
        let inner = &*self.inner;
        let read = inner.time.now();
        let mut table = inner.cells_of(slot.id).lock();
        let now = table.pace.settle(&inner.time, read);
        let tend = table.pace.tend_is_due();
        let outcome = inner.charge_alone(&mut table, slot, now);
        drop(table);
        if tend {
            inner.tend();
        }
        (outcome, now)
    }

    /// Decides the same charge to many keys of fixed-size state, one after the other, and says when. `each` is called with
    /// the place of a key and its outcome.
    ///
    /// Takes as many locks as are to be had without waiting, touches the memory of all their keys, and only then decides:
    /// the loads of a batch overlap instead of queueing. Nothing is waited for while a lock is held, so no order is needed.
    #[inline]
    pub(crate) fn charge_each(
        &self,
        charge: &Slot<'_>,
        ids: &[Identity],
        mut each: impl FnMut(usize, Outcome, u64),
    ) {
        let inner = &*self.inner;
        let mut from = 0;
        while from < ids.len() {
            let mut held = inner.lock_some(&ids[from..]);
            let ids = &ids[from..from + held.keys()];
            held.touch(ids);
            let (now, tend) = held.settle(inner);
            for (place, &id) in ids.iter().enumerate() {
                let slot = Slot { id, ..*charge };
                each(from + place, inner.charge_alone(held.table(place), &slot, now), now);
            }
            drop(held);
            inner.tend_times(tend);
            from += ids.len();
        }
    }

    /// Decides groups of slots one after the other, each all or nothing, and says when. `ends` are the ends of the groups
    /// in `slots`; `outcomes` gets one outcome per slot.
    pub(crate) fn charge_groups(
        &self,
        slots: &[Slot<'_>],
        ends: &[usize],
        outcomes: &mut Vec<Outcome>,
    ) -> u64 {
        let inner = &*self.inner;
        let mut locked = inner.lock_all(slots);
        let (now, tend) = locked.settle(inner);
        let mut start = 0;
        for &end in ends {
            inner.charge_group(&mut locked, start, &slots[start..end], now, outcomes);
            start = end;
        }
        drop(locked);
        inner.tend_times(tend);
        now
    }
}

impl Inner {
    /// Decides one slot whose shard is locked.
    #[inline]
    fn charge_alone(&self, table: &mut Table, slot: &Slot<'_>, now: u64) -> Outcome {
        match table.find(slot.id) {
            Some(place) => algorithm::step(slot.limit, table.state_mut(place), now, slot.cost),
            None => self.charge_new(table, slot, now),
        }
    }

    fn tend_times(&self, turns: u32) {
        for _ in 0..turns {
            self.tend();
        }
    }

    /// The first charge to a key: it needs room.
    #[cold]
    fn charge_new(&self, table: &mut Table, slot: &Slot<'_>, now: u64) -> Outcome {
        let mut spare = None;
        let evaluated = self.evaluate_cell(table, &mut spare, slot, now, None);
        self.commit_cell(table, &mut spare, slot, now, &evaluated.write);
        evaluated.outcome
    }

    /// The lock of the first key, and those of the following, up to one that somebody else holds.
    #[inline]
    fn lock_some(&self, ids: &[Identity]) -> Held<'_> {
        let mut held = Held { tables: SmallVec::new(), places: SmallVec::new() };
        for id in ids.iter().take(BATCH) {
            let shard = id.shard(self.cells.len());
            let lock = &self.cells[shard].0;
            let guard = if held.tables.is_empty() { Some(lock.lock()) } else { lock.try_lock() };
            if let Some(guard) = guard {
                held.tables.push((shard, guard));
                held.places.push(held.tables.len() as u8 - 1);
            } else if let Some(place) = held.tables.iter().position(|(own, _)| *own == shard) {
                held.places.push(place as u8);
            } else {
                break;
            }
        }
        held
    }

    fn lock_all<'a>(&'a self, slots: &[Slot<'_>]) -> Locked<'a> {
        let mut order: SmallVec<[(u32, u16); 16]> = slots
            .iter()
            .enumerate()
            .map(|(place, slot)| (self.lock_order(slot) as u32, place as u16))
            .collect();
        order.sort_unstable();
        let mut locked = Locked {
            guards: SmallVec::new(),
            places: SmallVec::from_elem(0, slots.len()),
            spare: None,
        };
        let mut last = None;
        for (shard, place) in order {
            if last != Some(shard) {
                locked.guards.push(self.lock_shard(shard as usize));
                last = Some(shard);
            }
            locked.places[place as usize] = (locked.guards.len() - 1) as u16;
        }
        locked
    }

    fn lock_order(&self, slot: &Slot<'_>) -> usize {
        if slot.limit.algorithm().keeps_log() {
            self.cells.len() + slot.id.shard(self.logs.len())
        } else {
            slot.id.shard(self.cells.len())
        }
    }

    fn lock_shard(&self, order: usize) -> Shard<'_> {
        match self.cells.get(order) {
            Some(table) => Shard::Cells(table.0.lock()),
            None => Shard::Logs(self.logs[order - self.cells.len()].0.lock()),
        }
    }

    /// Decides the slots of one request, all or nothing. `first` is the place of the first among all slots locked.
    fn charge_group<'a>(
        &'a self,
        locked: &mut Locked<'a>,
        first: usize,
        slots: &[Slot<'_>],
        now: u64,
        outcomes: &mut Vec<Outcome>,
    ) {
        let mut evaluated = SmallVec::<[Evaluated; 4]>::new();
        for (place, slot) in slots.iter().enumerate() {
            let one = self.evaluate(locked, first + place, slot, now, (slots, &evaluated));
            evaluated.push(one);
        }
        let admitted = slots
            .iter()
            .zip(&evaluated)
            .all(|(slot, one)| one.outcome.is_admitted() || !slot.enforced);
        for (place, (slot, one)) in slots.iter().zip(&mut evaluated).enumerate() {
            if admitted {
                self.commit(locked, first + place, slot, now, &one.write);
            } else {
                self.give_up(&one.write);
                if one.outcome.is_admitted() {
                    let peek = Slot { cost: 0, ..*slot };
                    let untouched = self.evaluate(locked, first + place, &peek, now, (&[], &[]));
                    one.outcome = Outcome { retry_after: 0, ..untouched.outcome };
                }
            }
        }
        outcomes.extend(evaluated.iter().map(|one| one.outcome));
    }

    /// What a slot would get after the `earlier` slots of its request: the same key may come twice.
    fn evaluate<'a>(
        &'a self,
        locked: &mut Locked<'a>,
        place: usize,
        slot: &Slot<'_>,
        now: u64,
        earlier: (&[Slot<'_>], &[Evaluated]),
    ) -> Evaluated {
        let same = || {
            let pairs = earlier.0.iter().zip(earlier.1);
            pairs.filter(|(other, one)| other.id == slot.id && one.outcome.is_admitted())
        };
        let Locked { guards, places, spare } = locked;
        match &mut guards[places[place] as usize] {
            Shard::Cells(table) => {
                let state = same().rev().find_map(|(_, one)| one.write.state());
                self.evaluate_cell(table, spare, slot, now, state)
            }
            Shard::Logs(logs) => {
                let cost = same().map(|(other, _)| other.cost).sum();
                self.evaluate_log(logs, spare, slot, now, cost)
            }
        }
    }

    fn evaluate_cell<'a>(
        &'a self,
        table: &mut Table,
        spare: &mut Option<Guard<'a, Spare>>,
        slot: &Slot<'_>,
        now: u64,
        earlier: Option<State>,
    ) -> Evaluated {
        let kept = state_at(table, slot.id, slot.limit, now);
        let is_new = kept.is_none() && earlier.is_none();
        if is_new && !self.room_for_cell(table, now) {
            return self.evaluate_spare(spare, slot, now);
        }
        let mut state = earlier.or(kept).unwrap_or(State::EMPTY);
        let outcome = algorithm::step(slot.limit, &mut state, now, slot.cost);
        if outcome.is_admitted() && slot.cost > 0 {
            return Evaluated { outcome, write: Write::Put { state, room_taken: is_new } };
        }
        self.room.give_back_keys(usize::from(is_new));
        Evaluated { outcome, write: Write::Nothing }
    }

    /// Takes room for a key; where there is none, a few expired cells of this shard may make some.
    fn room_for_cell(&self, table: &mut Table, now: u64) -> bool {
        if self.room.take_key() {
            return true;
        }
        self.room.give_back_keys(table.sweep(16, now));
        self.room.take_key()
    }

    fn evaluate_log<'a>(
        &'a self,
        logs: &mut Logs,
        spare: &mut Option<Guard<'a, Spare>>,
        slot: &Slot<'_>,
        now: u64,
        earlier: u64,
    ) -> Evaluated {
        let (outcome, known) = logs.evaluate(slot.id, slot.limit, now, slot.cost + earlier);
        if slot.cost == 0 || !outcome.is_admitted() {
            return Evaluated { outcome, write: Write::Nothing };
        }
        let new_key = !known && earlier == 0;
        if new_key && !self.room.take_key() {
            return self.evaluate_spare(spare, slot, now);
        }
        if !self.room.take_entry() {
            self.room.give_back_keys(usize::from(new_key));
            return self.evaluate_spare(spare, slot, now);
        }
        Evaluated { outcome, write: Write::Take { new_key } }
    }

    /// The budget that keys without room share. Where even that has no room, the answer is no.
    #[cold]
    fn evaluate_spare<'a>(
        &'a self,
        spare: &mut Option<Guard<'a, Spare>>,
        slot: &Slot<'_>,
        now: u64,
    ) -> Evaluated {
        self.overflowed.fetch_add(1, Ordering::Relaxed);
        let Spare { cells, logs } = &mut **spare.get_or_insert_with(|| self.spare.lock());
        let id = slot.scope.overflow();
        let (outcome, write) = if slot.limit.algorithm().keeps_log() {
            if !logs.contains(id) && logs.len() >= MAX_SPARE {
                logs.sweep(MAX_SPARE, now);
            }
            let (outcome, _) = logs.evaluate(id, slot.limit, now, slot.cost);
            (outcome, Write::Spare(None))
        } else {
            let known = state_at(cells, id, slot.limit, now);
            if known.is_none() && cells.live() >= MAX_SPARE {
                cells.sweep(cells.capacity(), now);
            }
            let mut state = known.unwrap_or(State::EMPTY);
            let outcome = algorithm::step(slot.limit, &mut state, now, slot.cost);
            (outcome, Write::Spare(Some(state)))
        };
        if logs.len() >= MAX_SPARE || cells.live() >= MAX_SPARE {
            let retry_after = slot.limit.period_micros();
            let full = Outcome { remaining: 0, retry_after, budget: Budget::Shared, ..outcome };
            return Evaluated { outcome: full, write: Write::Nothing };
        }
        let write = if outcome.is_admitted() && slot.cost > 0 { write } else { Write::Nothing };
        Evaluated { outcome: Outcome { budget: Budget::Shared, ..outcome }, write }
    }

    fn commit(
        &self,
        locked: &mut Locked<'_>,
        place: usize,
        slot: &Slot<'_>,
        now: u64,
        write: &Write,
    ) {
        let Locked { guards, places, spare } = locked;
        match &mut guards[places[place] as usize] {
            Shard::Cells(table) => self.commit_cell(table, spare, slot, now, write),
            Shard::Logs(logs) => match write {
                Write::Take { .. } => {
                    let made_way = logs.take(slot.id, slot.limit, now, (slot.cost, slot.permit));
                    self.room.give_back_entries(made_way);
                }
                _ => self.commit_spare(spare, slot, now, write),
            },
        }
    }

    fn commit_cell(
        &self,
        table: &mut Table,
        spare: &mut Option<Guard<'_, Spare>>,
        slot: &Slot<'_>,
        now: u64,
        write: &Write,
    ) {
        let Write::Put { state, .. } = *write else {
            return self.commit_spare(spare, slot, now, write);
        };
        // Found anew: what was put for an earlier slot may have moved every cell.
        match table.find(slot.id) {
            Some(place) => *table.state_mut(place) = state,
            None => self.room.give_back_keys(table.insert(slot.id, state, now)),
        }
    }

    fn commit_spare(
        &self,
        spare: &mut Option<Guard<'_, Spare>>,
        slot: &Slot<'_>,
        now: u64,
        write: &Write,
    ) {
        let (Write::Spare(state), Some(spare)) = (write, spare) else { return };
        let id = slot.scope.overflow();
        match (state, spare.cells.find(id)) {
            (Some(state), Some(place)) => *spare.cells.state_mut(place) = *state,
            (Some(state), None) => {
                spare.cells.insert(id, *state, now);
            }
            (None, _) => {
                spare.logs.take(id, slot.limit, now, (slot.cost, slot.permit));
            }
        }
    }

    /// Gives back the room taken for a write that will not happen.
    fn give_up(&self, write: &Write) {
        match *write {
            Write::Put { room_taken, .. } => self.room.give_back_keys(usize::from(room_taken)),
            Write::Take { new_key } => {
                self.room.give_back_keys(usize::from(new_key));
                self.room.give_back_entries(1);
            }
            Write::Nothing | Write::Spare(_) => {}
        }
    }
}

/// The state of a key at `now`. One from a clock that has since stepped back is brought back with it for good: otherwise a
/// key that is denied would stay so until the clock has caught up.
fn state_at(table: &mut Table, id: Identity, limit: &Limit, now: u64) -> Option<State> {
    let state = table.find(id).map(|place| table.state_mut(place))?;
    if state.at().as_micros() > now {
        algorithm::rebase(limit, state, now);
    }
    Some(*state)
}

impl Write {
    fn state(&self) -> Option<State> {
        match *self {
            Self::Put { state, .. } => Some(state),
            Self::Nothing | Self::Take { .. } | Self::Spare(_) => None,
        }
    }
}

impl Held<'_> {
    fn keys(&self) -> usize {
        self.places.len()
    }

    #[inline]
    fn table(&mut self, place: usize) -> &mut Table {
        &mut self.tables[self.places[place] as usize].1
    }

    #[inline]
    fn touch(&self, ids: &[Identity]) {
        let touch = |(id, place): (&Identity, &u8)| self.tables[*place as usize].1.touch(*id);
        // What is read does not matter, that it is read does.
        std::hint::black_box(ids.iter().zip(&self.places).fold(0, |seen, key| seen ^ touch(key)));
    }

    /// As [`Locked::settle`].
    #[inline]
    fn settle(&mut self, inner: &Inner) -> (u64, u32) {
        let mut now = inner.time.now();
        for (_, table) in &mut self.tables {
            now = table.pace.settle(&inner.time, now);
        }
        let mut due = 0;
        for (_, table) in &mut self.tables {
            table.pace.latest = now;
            due += u32::from(table.pace.tend_is_due());
        }
        (now, due)
    }
}

impl Locked<'_> {
    /// The instant of the decision, not before any that these shards have seen; and how many turns of tending are due.
    fn settle(&mut self, inner: &Inner) -> (u64, u32) {
        let mut now = inner.time.now();
        for shard in &mut self.guards {
            now = shard.pace().settle(&inner.time, now);
        }
        let mut due = 0;
        for shard in &mut self.guards {
            let pace = shard.pace();
            pace.latest = now;
            due += u32::from(pace.tend_is_due());
        }
        (now, due)
    }
}

impl Shard<'_> {
    fn pace(&mut self) -> &mut Pace {
        match self {
            Self::Cells(table) => &mut table.pace,
            Self::Logs(logs) => &mut logs.pace,
        }
    }
}
