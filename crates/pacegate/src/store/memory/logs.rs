//! One shard of logs: the states of algorithms that store a list of instants.

use std::{
    collections::{HashMap, VecDeque},
    hash::BuildHasherDefault,
};

use super::{
    ShardClock,
    charge::Slot,
    identity::{Identity, PassThroughHasher},
};
use crate::{
    Limit,
    algorithm::{Outcome, log::Log},
};

#[derive(Debug, Default)]
pub(super) struct Logs {
    kept: HashMap<Identity, Kept, BuildHasherDefault<PassThroughHasher>>,
    /// Every key of `kept` once, in the order in which sweeps visit them.
    round: VecDeque<Identity>,
    /// The total number of entries.
    entries: usize,
    pub(super) shard_clock: ShardClock,
}

#[derive(Debug)]
struct Kept {
    log: Log,
    period_micros: u64,
}

impl Logs {
    /// Removes expired entries of a key. If the clock has stepped back, moves later entries back to `now`. Returns the
    /// number of removed entries.
    pub(super) fn prune(&mut self, id: Identity, limit: &Limit, now: u64) -> usize {
        self.change(id, |log| log.prune(limit, now))
    }

    /// Evaluates a charge for a key whose log is [pruned](Self::prune). Returns the outcome and the units to take.
    /// `None` if the key has no log.
    pub(super) fn evaluate(
        &self,
        id: Identity,
        slot: &Slot<'_>,
        now: u64,
    ) -> Option<(Outcome, u64)> {
        let log = &self.kept.get(&id)?.log;
        Some(log.charge(slot.limit, now, slot.cost, slot.excess))
    }

    /// Stores a log for a key that has none.
    pub(super) fn keep(&mut self, id: Identity, limit: &Limit, log: Log) {
        self.round.push_back(id);
        self.entries += log.len();
        self.kept.insert(id, Kept { log, period_micros: limit.period_micros() });
    }

    /// Returns a copy of the log of a key; empty if it has none.
    pub(super) fn get(&self, id: Identity) -> Log {
        self.kept.get(&id).map_or_else(Log::default, |kept| kept.log.clone())
    }

    pub(super) fn contains(&self, id: Identity) -> bool {
        self.kept.contains_key(&id)
    }

    /// Takes units as permit `permit` from a settled log, which is created if the key has none. Returns 1 if the units
    /// were merged into an existing entry, otherwise 0.
    pub(super) fn take(
        &mut self,
        id: Identity,
        limit: &Limit,
        now: u64,
        (cost, permit): (u64, u128),
    ) -> usize {
        if !self.contains(id) {
            self.keep(id, limit, Log::default());
        }
        let Some(kept) = self.kept.get_mut(&id) else { return 0 };
        let before = kept.log.len();
        kept.log.take(now, cost, permit);
        let more = kept.log.len() - before;
        self.entries += more;
        1 - more
    }

    /// Undoes the last charge, and removes the key if it was created for it. Returns the number of removed entries.
    pub(super) fn take_back(&mut self, id: Identity, cost: u64, new_key: bool) -> usize {
        if new_key {
            return self.remove(id).unwrap_or(0);
        }
        self.change(id, |log| log.take_back(cost))
    }

    /// Refunds up to `cost` units. Returns the number of removed entries.
    pub(super) fn refund(&mut self, id: Identity, limit: &Limit, now: u64, cost: u64) -> usize {
        self.change(id, |log| {
            log.prune(limit, now);
            log.refund(cost);
        })
    }

    /// Returns up to `units` of a charge. Returns the number of removed entries.
    pub(super) fn return_units(
        &mut self,
        id: Identity,
        limit: &Limit,
        now: u64,
        (charged_at, units): (u64, u64),
    ) -> usize {
        self.change(id, |log| {
            log.prune(limit, now);
            log.return_units(charged_at, units);
        })
    }

    /// Removes a key, and returns the number of its entries.
    pub(super) fn remove(&mut self, id: Identity) -> Option<usize> {
        let kept = self.kept.remove(&id)?;
        self.entries -= kept.log.len();
        // A key that is undone right after it was created is the last one.
        match self.round.back() {
            Some(last) if *last == id => drop(self.round.pop_back()),
            _ => self.round.retain(|other| *other != id),
        }
        Some(kept.log.len())
    }

    /// Releases a permit. Returns the number of removed entries.
    pub(super) fn release(&mut self, id: Identity, permit: u128) -> usize {
        self.change(id, |log| log.release(permit))
    }

    /// Renews a permit. Returns `true` if it had not expired, and the number of removed entries.
    pub(super) fn renew(
        &mut self,
        id: Identity,
        limit: &Limit,
        now: u64,
        permit: u128,
    ) -> (bool, usize) {
        let mut is_held = false;
        let gone = self.change(id, |log| {
            log.prune(limit, now);
            is_held = log.renew(now, permit);
        });
        (is_held, gone)
    }

    /// Applies a change that does not add entries to the log of a key. Returns the number of removed entries.
    fn change(&mut self, id: Identity, change: impl FnOnce(&mut Log)) -> usize {
        let Some(kept) = self.kept.get_mut(&id) else { return 0 };
        let before = kept.log.len();
        change(&mut kept.log);
        let gone = before - kept.log.len();
        self.entries -= gone;
        gone
    }

    /// Visits the next `keys` keys and removes the expired ones. Calls `removed` for each with the number of its
    /// entries.
    pub(super) fn sweep(
        &mut self,
        keys: usize,
        now: u64,
        mut removed: impl FnMut(Identity, usize),
    ) {
        let before = self.kept.len();
        for _ in 0..keys.min(self.round.len()) {
            let Some(id) = self.round.pop_front() else { break };
            match self.kept.get(&id) {
                Some(kept) if kept.log.is_expired(kept.period_micros, now) => {
                    let entries = kept.log.len();
                    self.entries -= entries;
                    self.kept.remove(&id);
                    removed(id, entries);
                }
                _ => self.round.push_back(id),
            }
        }
        self.shrink(before);
    }

    /// Drops every key that `is_meant`. Calls `removed` for each with the number of its entries.
    pub(super) fn clear(
        &mut self,
        is_meant: impl Fn(Identity) -> bool,
        mut removed: impl FnMut(Identity, usize),
    ) {
        let before = self.kept.len();
        for (id, kept) in self.kept.extract_if(|id, _| is_meant(*id)) {
            self.entries -= kept.log.len();
            removed(id, kept.log.len());
        }
        self.round.retain(|id| !is_meant(*id));
        self.shrink(before);
    }

    /// Gives memory back once keys have gone since there were `before`.
    fn shrink(&mut self, before: usize) {
        if self.kept.len() < before && self.kept.len() < self.kept.capacity() / 4 {
            self.kept.shrink_to(self.kept.len() * 2);
            self.round.shrink_to(self.round.len() * 2);
        }
    }

    pub(super) fn len(&self) -> usize {
        self.kept.len()
    }

    pub(super) fn entries(&self) -> usize {
        self.entries
    }

    /// Returns the approximate number of allocated bytes.
    pub(super) fn bytes(&self) -> usize {
        let logs: usize = self.kept.values().map(|kept| kept.log.bytes()).sum();
        logs + self.kept.capacity() * (size_of::<(Identity, Kept)>() + 1)
            + self.round.capacity() * size_of::<Identity>()
    }
}
