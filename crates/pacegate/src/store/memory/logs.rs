//! One shard of the states that are lists.

use std::{
    collections::{HashMap, VecDeque},
    hash::BuildHasherDefault,
};

use super::{
    ShardClock,
    identity::{AsItIs, Identity},
};
use crate::{
    Limit,
    algorithm::{Outcome, log::Log},
};

#[derive(Debug, Default)]
pub(super) struct Logs {
    kept: HashMap<Identity, Kept, BuildHasherDefault<AsItIs>>,
    /// Every key of `kept` once, in the order in which the sweep looks at them.
    round: VecDeque<Identity>,
    /// Of all logs together.
    entries: usize,
    pub(super) shard_clock: ShardClock,
}

#[derive(Debug)]
struct Kept {
    log: Log,
    period_micros: u64,
}

impl Logs {
    /// Brings a key's log to `now`: drops what is past, and takes back what is ahead of a clock that has stepped back.
    /// Returns how many entries went.
    pub(super) fn settle(&mut self, id: Identity, limit: &Limit, now: u64) -> usize {
        self.change(id, |log| log.settle(limit, now))
    }

    /// The answer for a key whose log is [settled](Self::settle), if it has one.
    pub(super) fn evaluate(
        &self,
        id: Identity,
        limit: &Limit,
        now: u64,
        cost: u64,
    ) -> Option<Outcome> {
        self.kept.get(&id).map(|kept| kept.log.evaluate(limit, now, cost))
    }

    /// Keeps a log for a key that has none.
    pub(super) fn keep(&mut self, id: Identity, limit: &Limit, log: Log) {
        self.round.push_back(id);
        self.entries += log.len();
        self.kept.insert(id, Kept { log, period_micros: limit.period_micros() });
    }

    /// A copy of a key's log.
    pub(super) fn get(&self, id: Identity) -> Log {
        self.kept.get(&id).map_or_else(Log::default, |kept| kept.log.clone())
    }

    pub(super) fn contains(&self, id: Identity) -> bool {
        self.kept.contains_key(&id)
    }

    /// Takes units as permit `permit` from a settled log, which is made if there is none. Returns how many entries were
    /// merged into one: 1 or 0.
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

    /// Takes back units that were just taken, and the key with them if it was made for them. Returns how many entries
    /// went.
    pub(super) fn take_back(&mut self, id: Identity, cost: u64, new_key: bool) -> usize {
        if new_key {
            return self.remove(id).unwrap_or(0);
        }
        self.change(id, |log| log.take_back(cost))
    }

    /// Returns how many entries are gone.
    pub(super) fn refund(&mut self, id: Identity, limit: &Limit, now: u64, cost: u64) -> usize {
        self.change(id, |log| {
            log.settle(limit, now);
            log.refund(cost);
        })
    }

    /// Forgets a key. Returns how many entries it had.
    pub(super) fn remove(&mut self, id: Identity) -> Option<usize> {
        let kept = self.kept.remove(&id)?;
        self.entries -= kept.log.len();
        // One that was made a moment ago, and is undone, is the last.
        match self.round.back() {
            Some(last) if *last == id => drop(self.round.pop_back()),
            _ => self.round.retain(|other| *other != id),
        }
        Some(kept.log.len())
    }

    /// Returns how many entries are gone.
    pub(super) fn release(&mut self, id: Identity, permit: u128) -> usize {
        self.change(id, |log| log.release(permit))
    }

    /// Whether the permit was there, and how many entries are gone.
    pub(super) fn renew(
        &mut self,
        id: Identity,
        limit: &Limit,
        now: u64,
        permit: u128,
    ) -> (bool, usize) {
        let mut is_held = false;
        let gone = self.change(id, |log| {
            log.settle(limit, now);
            is_held = log.renew(now, permit);
        });
        (is_held, gone)
    }

    /// Changes the log of a key, which makes it no longer. Returns how many entries are gone.
    fn change(&mut self, id: Identity, change: impl FnOnce(&mut Log)) -> usize {
        let Some(kept) = self.kept.get_mut(&id) else { return 0 };
        let before = kept.log.len();
        change(&mut kept.log);
        let gone = before - kept.log.len();
        self.entries -= gone;
        gone
    }

    /// Looks at the next `keys` keys and drops the expired. Calls `removed` for each with the number of its entries.
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

    /// Roughly what is allocated.
    pub(super) fn bytes(&self) -> usize {
        let logs: usize = self.kept.values().map(|kept| kept.log.bytes()).sum();
        logs + self.kept.capacity() * (size_of::<(Identity, Kept)>() + 1)
            + self.round.capacity() * size_of::<Identity>()
    }
}
