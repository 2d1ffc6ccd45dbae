//! Overflow budgets: one for each limit, shared by all its keys without room.

use super::{
    ENTRIES_PER_KEY, SWEEP_CELLS, ShardClock, Time,
    apply::{Undo, charge_known},
    charge::Slot,
    identity::Identity,
    logs::Logs,
    share::Share,
    table::Table,
};
use crate::algorithm::{self, Outcome, State, log::Log};

/// The overflow budgets of all shares.
#[derive(Debug, Default)]
pub(super) struct Overflows {
    /// By share, up to the last one that ever had an overflow budget.
    by_share: Vec<Overflow>,
    pub(super) shard_clock: ShardClock,
}

/// The overflow budgets of one share: a state for each of its limits that has overflowed.
#[derive(Debug, Default)]
pub(super) struct Overflow {
    pub(super) cells: Table,
    pub(super) logs: Logs,
}

/// The maximum number of overflow budgets of one share. If it is reached, keys without room are denied.
const MAX_OVERFLOW: usize = 4_096;
/// The maximum number of log entries of one share: as many per budget as per key on average.
const MAX_OVERFLOW_ENTRIES: usize = ENTRIES_PER_KEY * MAX_OVERFLOW;

impl Overflows {
    pub(super) fn of(&mut self, share: Share) -> &mut Overflow {
        let place = share.index();
        if self.by_share.len() <= place {
            self.by_share.resize_with(place + 1, Overflow::default);
        }
        &mut self.by_share[place]
    }

    /// Returns one bit for each share, set if the share has overflow budgets.
    pub(super) fn in_use(&self) -> u64 {
        let all = self.by_share.iter().enumerate().filter(|(_, overflow)| overflow.len() > 0);
        all.fold(0, |set, (place, _)| set | 1 << place)
    }

    /// Visits up to `budgets` budgets of each share and removes the expired ones.
    pub(super) fn sweep(&mut self, budgets: usize, now: u64) {
        for overflow in self.by_share.iter_mut().filter(|overflow| overflow.len() > 0) {
            overflow.cells.sweep(budgets, now, |_| {});
            overflow.logs.sweep(budgets, now, |_, _| {});
        }
    }

    /// Removes every budget whose identity `is_meant`.
    pub(super) fn clear(&mut self, is_meant: impl Fn(Identity) -> bool) {
        for overflow in &mut self.by_share {
            overflow.cells.clear(&is_meant, |_| {});
            overflow.logs.clear(&is_meant, |_, _| {});
        }
    }

    pub(super) fn release(&mut self, slot: &Slot<'_>) {
        self.of(slot.share()).logs.release(slot.scope.overflow(), slot.permit);
    }

    pub(super) fn renew(&mut self, slot: &Slot<'_>, time: &Time, now: u64) -> bool {
        let now = self.shard_clock.advance(time, now);
        let logs = &mut self.of(slot.share()).logs;
        logs.renew(slot.scope.overflow(), slot.limit, now, slot.permit).0
    }

    /// Returns the number of allocated cells, and the bytes of the logs.
    pub(super) fn size(&self) -> (usize, usize) {
        let size = |overflow: &Overflow| (overflow.cells.capacity(), overflow.logs.bytes());
        let add = |one: (usize, usize), other: (usize, usize)| (one.0 + other.0, one.1 + other.1);
        self.by_share.iter().map(size).fold((0, 0), add)
    }
}

impl Overflow {
    /// Charges the overflow budget of a slot. `None` if there is no room for the budget or for another entry of its
    /// log.
    pub(super) fn charge_if_room(&mut self, slot: &Slot<'_>, now: u64) -> Option<(Outcome, Undo)> {
        if self.has_room(slot, now) { self.charge(slot, now) } else { None }
    }

    /// Returns `true` if the budget of a slot exists or can be created. Removes expired budgets if needed.
    fn has_room(&mut self, slot: &Slot<'_>, now: u64) -> bool {
        let id = slot.scope.overflow();
        if slot.limit.algorithm().keeps_log() {
            if !self.logs.contains(id) && self.logs.len() >= MAX_OVERFLOW {
                self.logs.sweep(MAX_OVERFLOW, now, |_, _| {});
            }
            return self.logs.contains(id) || self.logs.len() < MAX_OVERFLOW;
        }
        if self.cells.find(id).is_none() && self.cells.live() >= MAX_OVERFLOW {
            self.cells.sweep(self.cells.capacity(), now, |_| {});
        }
        self.cells.find(id).is_some() || self.cells.live() < MAX_OVERFLOW
    }

    fn charge(&mut self, slot: &Slot<'_>, now: u64) -> Option<(Outcome, Undo)> {
        if slot.limit.algorithm().keeps_log() {
            return self.charge_log(slot, now);
        }
        let id = slot.scope.overflow();
        if let Some((outcome, old)) = charge_known(&mut self.cells, id, slot, now) {
            return Some((outcome, old.map_or(Undo::Nothing, |old| Undo::Shared(Some(old)))));
        }
        let mut state = State::EMPTY;
        let (outcome, _) = algorithm::charge(slot.limit, &mut state, now, slot.cost, slot.excess);
        if state.is_empty() {
            return Some((outcome, Undo::Nothing));
        }
        self.cells.insert(id, state, now, |_| {});
        Some((outcome, Undo::Shared(None)))
    }

    /// Charges a log. `None` if the share has the maximum number of log entries.
    fn charge_log(&mut self, slot: &Slot<'_>, now: u64) -> Option<(Outcome, Undo)> {
        let id = slot.scope.overflow();
        self.logs.prune(id, slot.limit, now);
        let known = self.logs.evaluate(id, slot, now);
        let (outcome, units) =
            known.unwrap_or_else(|| Log::default().charge(slot.limit, now, slot.cost, slot.excess));
        if units == 0 {
            return Some((outcome, Undo::Nothing));
        }
        if self.logs.entries() >= MAX_OVERFLOW_ENTRIES {
            self.logs.sweep(SWEEP_CELLS, now, |_, _| {});
        }
        if self.logs.entries() >= MAX_OVERFLOW_ENTRIES {
            return None;
        }
        self.logs.take(id, slot.limit, now, (units, slot.permit));
        Some((outcome, Undo::SharedLog { units }))
    }

    fn len(&self) -> usize {
        self.cells.live() + self.logs.len()
    }
}
