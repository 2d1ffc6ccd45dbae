//! Charging one slot whose shard is locked, and undoing it.

use super::{
    Inner, MAX_SPARE, Ordering, Spare,
    charge::{Shard, Slot},
    identity::Identity,
    lock::Guard,
    logs::Logs,
    table::Table,
};
use crate::algorithm::{self, Budget, Outcome, State};

/// What takes a charge back.
#[derive(Clone, Copy, Debug)]
pub(super) enum Undo {
    /// Nothing was taken.
    Nothing,
    /// The key's own state was this, or none.
    Own(Option<State>),
    /// Units were taken from the key's own log, which was made for them or not.
    OwnLog { new_key: bool },
    /// The shared state was this, or none.
    Shared(Option<State>),
    /// Units were taken from the shared log.
    SharedLog,
}

/// The shared budgets, locked when first needed.
type MaybeSpare<'a> = Option<Guard<'a, Spare>>;

impl Inner {
    /// Charges a slot if it fits.
    pub(super) fn apply<'a>(
        &'a self,
        shard: &mut Shard<'a>,
        spare: &mut MaybeSpare<'a>,
        slot: &Slot<'_>,
        now: u64,
    ) -> (Outcome, Undo) {
        match shard {
            Shard::Cells(table) => self.apply_cell(table, spare, slot, now),
            Shard::Logs(logs) => self.apply_log(logs, spare, slot, now),
        }
    }

    /// Takes back what [`Inner::apply`] did to the same slot, if nothing came after it.
    pub(super) fn undo<'a>(
        &'a self,
        shard: &mut Shard<'a>,
        spare: &mut MaybeSpare<'a>,
        slot: &Slot<'_>,
        undo: Undo,
    ) {
        match (undo, shard, spare) {
            (Undo::Own(old), Shard::Cells(table), _) => {
                put_back(table, slot.id, old);
                self.room.give_back_keys(usize::from(old.is_none()));
            }
            (Undo::OwnLog { new_key }, Shard::Logs(logs), _) => {
                let freed = logs.take_back(slot.id, slot.cost, new_key);
                self.room.give_back_entries(freed);
                self.room.give_back_keys(usize::from(new_key));
            }
            (Undo::Shared(old), _, Some(spare)) => {
                put_back(&mut spare.cells, slot.scope.overflow(), old);
            }
            (Undo::SharedLog, _, Some(spare)) => {
                spare.logs.take_back(slot.scope.overflow(), slot.cost, false);
            }
            _ => {}
        }
    }

    pub(super) fn apply_cell<'a>(
        &'a self,
        table: &mut Table,
        spare: &mut MaybeSpare<'a>,
        slot: &Slot<'_>,
        now: u64,
    ) -> (Outcome, Undo) {
        if let Some(charged) = charge_known(table, slot.id, slot, now) {
            return (charged.0, charged.1.map_or(Undo::Nothing, |old| Undo::Own(Some(old))));
        }
        if self.shares(spare, slot, now) || !self.room_for_cell(table, now) {
            return self.apply_shared(spare, slot, now);
        }
        let mut state = State::EMPTY;
        let outcome = algorithm::step(slot.limit, &mut state, now, slot.cost);
        if state.is_empty() {
            self.room.give_back_keys(1);
            return (outcome, Undo::Nothing);
        }
        self.room.give_back_keys(table.insert(slot.id, state, now));
        (outcome, Undo::Own(None))
    }

    fn apply_log<'a>(
        &'a self,
        logs: &mut Logs,
        spare: &mut MaybeSpare<'a>,
        slot: &Slot<'_>,
        now: u64,
    ) -> (Outcome, Undo) {
        let (outcome, known) = logs.evaluate(slot.id, slot.limit, now, slot.cost);
        if !known && (self.shares(spare, slot, now) || !self.room.take_key()) {
            return self.apply_shared(spare, slot, now);
        }
        let takes = outcome.is_admitted() && slot.cost > 0;
        let has_room = takes && self.room.take_entry();
        if !has_room {
            self.room.give_back_keys(usize::from(!known));
            return match (takes, known) {
                (false, _) => (outcome, Undo::Nothing),
                (true, true) => (self.refuse(slot), Undo::Nothing),
                (true, false) => self.apply_shared(spare, slot, now),
            };
        }
        let made_way = logs.take(slot.id, slot.limit, now, (slot.cost, slot.permit));
        self.room.give_back_entries(made_way);
        (outcome, Undo::OwnLog { new_key: !known })
    }

    /// Takes room for a key; where there is none, a few expired cells of this shard may make some.
    fn room_for_cell(&self, table: &mut Table, now: u64) -> bool {
        if self.room.take_key() {
            return true;
        }
        self.room.give_back_keys(table.sweep(16, now));
        self.room.take_key()
    }

    /// Whether new keys of this scope are still on the shared budget: as long as it is in use, even if there is room
    /// again. Otherwise a key could draw on both.
    fn shares<'a>(&'a self, spare: &mut MaybeSpare<'a>, slot: &Slot<'_>, now: u64) -> bool {
        if self.spares.load(Ordering::Relaxed) == 0 {
            return false;
        }
        let spare = spare.get_or_insert_with(|| self.spare.lock());
        let id = slot.scope.overflow();
        if slot.limit.algorithm().keeps_log() {
            return spare.logs.is_live(id, now);
        }
        spare.cells.find(id).is_some_and(|place| !spare.cells.state(place).is_expired(now))
    }

    /// Charges the budget that the keys of a scope without room share.
    #[cold]
    fn apply_shared<'a>(
        &'a self,
        spare: &mut MaybeSpare<'a>,
        slot: &Slot<'_>,
        now: u64,
    ) -> (Outcome, Undo) {
        let spare = spare.get_or_insert_with(|| self.spare.lock());
        if !spare.has_room(slot, now) {
            return (self.refuse(slot), Undo::Nothing);
        }
        self.count_overflow(slot);
        let (outcome, undo) = spare.charge(slot, now);
        self.spares.store(spare.cells.live() + spare.logs.len(), Ordering::Relaxed);
        (Outcome { budget: Budget::Shared, ..outcome }, undo)
    }

    /// The answer where there is no room left to count even on a shared budget.
    fn refuse(&self, slot: &Slot<'_>) -> Outcome {
        self.count_overflow(slot);
        let period = slot.limit.period_micros();
        Outcome { budget: Budget::Shared, ..Outcome::refused(0, period, period) }
    }

    /// Peeks are not charges.
    fn count_overflow(&self, slot: &Slot<'_>) {
        self.overflowed.fetch_add(u64::from(slot.cost > 0), Ordering::Relaxed);
    }
}

impl Spare {
    fn has_room(&mut self, slot: &Slot<'_>, now: u64) -> bool {
        let id = slot.scope.overflow();
        if slot.limit.algorithm().keeps_log() {
            if !self.logs.contains(id) && self.logs.len() >= MAX_SPARE {
                self.logs.sweep(MAX_SPARE, now);
            }
            return self.logs.contains(id) || self.logs.len() < MAX_SPARE;
        }
        if self.cells.find(id).is_none() && self.cells.live() >= MAX_SPARE {
            self.cells.sweep(self.cells.capacity(), now);
        }
        self.cells.find(id).is_some() || self.cells.live() < MAX_SPARE
    }

    fn charge(&mut self, slot: &Slot<'_>, now: u64) -> (Outcome, Undo) {
        let id = slot.scope.overflow();
        if slot.limit.algorithm().keeps_log() {
            let (outcome, _) = self.logs.evaluate(id, slot.limit, now, slot.cost);
            if outcome.is_admitted() && slot.cost > 0 {
                self.logs.take(id, slot.limit, now, (slot.cost, slot.permit));
                return (outcome, Undo::SharedLog);
            }
            return (outcome, Undo::Nothing);
        }
        if let Some((outcome, old)) = charge_known(&mut self.cells, id, slot, now) {
            return (outcome, old.map_or(Undo::Nothing, |old| Undo::Shared(Some(old))));
        }
        let mut state = State::EMPTY;
        let outcome = algorithm::step(slot.limit, &mut state, now, slot.cost);
        if state.is_empty() {
            return (outcome, Undo::Nothing);
        }
        self.cells.insert(id, state, now);
        (outcome, Undo::Shared(None))
    }
}

/// Charges a cell that is there. Also returns what it was before, if anything was taken.
fn charge_known(
    table: &mut Table,
    id: Identity,
    slot: &Slot<'_>,
    now: u64,
) -> Option<(Outcome, Option<State>)> {
    let place = table.find(id)?;
    let state = table.state_mut(place);
    let old = *state;
    let outcome = algorithm::step(slot.limit, state, now, slot.cost);
    let took = outcome.is_admitted() && slot.cost > 0;
    Some((outcome, took.then_some(old)))
}

fn put_back(table: &mut Table, id: Identity, old: Option<State>) {
    let Some(place) = table.find(id) else { return };
    match old {
        Some(old) => *table.state_mut(place) = old,
        None => table.remove(place),
    }
}
