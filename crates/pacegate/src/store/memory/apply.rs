//! Charging one slot whose shard is locked, and undoing it.

use super::{
    Ordering, Shards,
    charge::{Shard, Slot},
    identity::Identity,
    lock::Guard,
    logs::Logs,
    overflow::Overflows,
    table::Table,
};
use crate::algorithm::{self, Origin, Outcome, State, log::Log};

/// The information needed to undo a charge.
#[derive(Clone, Copy, Debug)]
pub(super) enum Undo {
    /// Nothing was taken.
    Nothing,
    /// The previous state of the key, if it had one.
    Own(Option<State>),
    /// Units were taken from the log of the key. `new_key`: the log was created for them.
    OwnLog { units: u64, new_key: bool },
    /// The previous state of the overflow budget, if it had one.
    Shared(Option<State>),
    /// Units were taken from the log of the overflow budget.
    SharedLog { units: u64 },
}

/// The overflow budgets, locked at first use.
type LazyOverflow<'a> = Option<Guard<'a, Overflows>>;

impl Shards {
    /// Charges a slot if it fits.
    pub(super) fn apply<'a>(
        &'a self,
        shard: &mut Shard<'a>,
        overflow: &mut LazyOverflow<'a>,
        slot: &Slot<'_>,
        now: u64,
    ) -> (Outcome, Undo) {
        match shard {
            Shard::Cells(table) => self.apply_cell(table, overflow, slot, now),
            Shard::Logs(logs) => self.apply_log(logs, overflow, slot, now),
        }
    }

    /// Undoes [`Shards::apply`] for the same slot. Later charges must have been undone before.
    pub(super) fn undo<'a>(
        &'a self,
        shard: &mut Shard<'a>,
        overflow: &mut LazyOverflow<'a>,
        slot: &Slot<'_>,
        undo: Undo,
    ) {
        match (undo, shard, overflow) {
            (Undo::Own(old), Shard::Cells(table), _) => {
                self.keys.give_back(slot.share(), put_back(table, slot.id, old));
            }
            (Undo::OwnLog { units, new_key }, Shard::Logs(logs), _) => {
                let freed = logs.take_back(slot.id, units, new_key);
                self.entries.give_back(slot.share(), freed);
                self.keys.give_back(slot.share(), usize::from(new_key));
            }
            (Undo::Shared(old), _, Some(overflow)) => {
                put_back(&mut overflow.of(slot.share()).cells, slot.scope.overflow(), old);
            }
            (Undo::SharedLog { units }, _, Some(overflow)) => {
                let logs = &mut overflow.of(slot.share()).logs;
                logs.take_back(slot.scope.overflow(), units, false);
            }
            _ => {}
        }
    }

    pub(super) fn apply_cell<'a>(
        &'a self,
        table: &mut Table,
        overflow: &mut LazyOverflow<'a>,
        slot: &Slot<'_>,
        now: u64,
    ) -> (Outcome, Undo) {
        if let Some(charged) = charge_known(table, slot.id, slot, now) {
            return (charged.0, charged.1.map_or(Undo::Nothing, |old| Undo::Own(Some(old))));
        }
        if !self.room_for_cell(table, slot, now) {
            return self.apply_shared(overflow, slot, now);
        }
        let mut state = self.inherited_state(overflow, slot, now);
        let (outcome, units) =
            algorithm::charge(slot.limit, &mut state, now, slot.cost, slot.excess);
        // A custom algorithm may admit without a state to store.
        if units == 0 || state.is_empty() {
            self.keys.give_back(slot.share(), 1);
            return (outcome, Undo::Nothing);
        }
        let mut freed = self.keys.returns();
        table.insert(slot.id, state, now, |id| freed.add(id.share(), 1));
        self.addresses[slot.id.shard(self.cells.len())].set(table.lines());
        (outcome, Undo::Own(None))
    }

    fn apply_log<'a>(
        &'a self,
        logs: &mut Logs,
        overflow: &mut LazyOverflow<'a>,
        slot: &Slot<'_>,
        now: u64,
    ) -> (Outcome, Undo) {
        // Remove expired entries first, so that they do not take the room that this charge needs.
        self.entries.give_back(slot.share(), logs.prune(slot.id, slot.limit, now));
        let Some((outcome, units)) = logs.evaluate(slot.id, slot, now) else {
            return self.apply_new_log(logs, overflow, slot, now);
        };
        if units == 0 {
            return (outcome, Undo::Nothing);
        }
        if !self.entries.take(slot.share(), 1) {
            return (self.refuse(slot), Undo::Nothing);
        }
        let merged = logs.take(slot.id, slot.limit, now, (units, slot.permit));
        self.entries.give_back(slot.share(), merged);
        (outcome, Undo::OwnLog { units, new_key: false })
    }

    fn apply_new_log<'a>(
        &'a self,
        logs: &mut Logs,
        overflow: &mut LazyOverflow<'a>,
        slot: &Slot<'_>,
        now: u64,
    ) -> (Outcome, Undo) {
        if !self.room_for_log(logs, slot, now) {
            return self.apply_shared(overflow, slot, now);
        }
        let log = self.inherited_log(overflow, slot, now);
        let (outcome, units) = log.charge(slot.limit, now, slot.cost, slot.excess);
        if units == 0 {
            self.keys.give_back(slot.share(), 1);
            return (outcome, Undo::Nothing);
        }
        if !self.entries.take(slot.share(), log.len() + 1) {
            self.keys.give_back(slot.share(), 1);
            return self.apply_shared(overflow, slot, now);
        }
        logs.keep(slot.id, slot.limit, log);
        let merged = logs.take(slot.id, slot.limit, now, (units, slot.permit));
        self.entries.give_back(slot.share(), merged);
        (outcome, Undo::OwnLog { units, new_key: true })
    }

    /// Takes room for a key. If the share has none, removes some expired cells of this shard and tries again.
    fn room_for_cell(&self, table: &mut Table, slot: &Slot<'_>, now: u64) -> bool {
        if self.keys.take(slot.share(), 1) {
            return true;
        }
        self.sweep_cells(table, 16, now);
        self.keys.take(slot.share(), 1)
    }

    /// Does the same as [`Shards::room_for_cell`], for a log.
    fn room_for_log(&self, logs: &mut Logs, slot: &Slot<'_>, now: u64) -> bool {
        if self.keys.take(slot.share(), 1) {
            return true;
        }
        self.sweep_logs(logs, 16, now);
        self.keys.take(slot.share(), 1)
    }

    /// Returns the initial state of a new key: a copy of the overflow budget of its scope if that is in use, otherwise
    /// empty. So a key cannot spend both budgets, and the overflow budget expires once there is room again.
    fn inherited_state<'a>(
        &'a self,
        overflow: &mut LazyOverflow<'a>,
        slot: &Slot<'_>,
        now: u64,
    ) -> State {
        let Some(overflow) = self.overflow_in_use(overflow, slot) else { return State::EMPTY };
        let now = overflow.shard_clock.advance(&self.time, now);
        let cells = &overflow.of(slot.share()).cells;
        match cells.find(slot.scope.overflow()) {
            Some(place) if !cells.state(place).is_expired(now) => cells.state(place),
            _ => State::EMPTY,
        }
    }

    /// Does the same as [`Shards::inherited_state`], for a log.
    fn inherited_log<'a>(
        &'a self,
        overflow: &mut LazyOverflow<'a>,
        slot: &Slot<'_>,
        now: u64,
    ) -> Log {
        let Some(overflow) = self.overflow_in_use(overflow, slot) else { return Log::default() };
        let id = slot.scope.overflow();
        let now = overflow.shard_clock.advance(&self.time, now);
        let logs = &mut overflow.of(slot.share()).logs;
        logs.prune(id, slot.limit, now);
        logs.get(id)
    }

    /// Returns the overflow budgets, if the share of this slot may have any.
    fn overflow_in_use<'a, 's>(
        &'a self,
        overflow: &'s mut LazyOverflow<'a>,
        slot: &Slot<'_>,
    ) -> Option<&'s mut Overflows> {
        let any = overflow.is_some() || self.has_overflow(slot.share());
        any.then(|| &mut **overflow.get_or_insert_with(|| self.overflow.lock()))
    }

    /// Charges the overflow budget, which all keys of a scope without room share.
    #[cold]
    fn apply_shared<'a>(
        &'a self,
        overflow: &mut LazyOverflow<'a>,
        slot: &Slot<'_>,
        now: u64,
    ) -> (Outcome, Undo) {
        let overflow = overflow.get_or_insert_with(|| self.overflow.lock());
        // Keys of all shards are charged here, each with the instant of its shard.
        let now = overflow.shard_clock.advance(&self.time, now);
        let Some((outcome, undo)) = overflow.of(slot.share()).charge_if_room(slot, now) else {
            return (self.refuse(slot), Undo::Nothing);
        };
        self.count_overflow(slot);
        self.overflows.store(overflow.in_use(), Ordering::Relaxed);
        (Outcome { origin: Origin::Overflow, ..outcome }, undo)
    }

    /// Denies for one period, because there is not even room for an overflow budget.
    fn refuse(&self, slot: &Slot<'_>) -> Outcome {
        self.count_overflow(slot);
        let period = slot.limit.period_micros();
        Outcome { origin: Origin::Overflow, ..Outcome::refused(0, period, period) }
    }

    /// Counts a charge without room. Peeks are not counted.
    fn count_overflow(&self, slot: &Slot<'_>) {
        self.overflowed.fetch_add(u64::from(slot.cost > 0), Ordering::Relaxed);
    }
}

/// Charges an existing cell. Also returns its previous state if units were taken. `None` if the key has no cell.
pub(super) fn charge_known(
    table: &mut Table,
    id: Identity,
    slot: &Slot<'_>,
    now: u64,
) -> Option<(Outcome, Option<State>)> {
    let place = table.find(id)?;
    let state = table.state_mut(place);
    let old = *state;
    let (outcome, units) = algorithm::charge(slot.limit, state, now, slot.cost, slot.excess);
    Some((outcome, (units > 0).then_some(old)))
}

/// Restores the previous state of a key, and returns the number of removed keys: 0 or 1. If a later slot caused a
/// rebuild, an expired key may already be gone.
fn put_back(table: &mut Table, id: Identity, old: Option<State>) -> usize {
    let Some(place) = table.find(id) else { return 0 };
    match old {
        Some(old) => *table.state_mut(place) = old,
        None => table.remove(place),
    }
    usize::from(old.is_none())
}
