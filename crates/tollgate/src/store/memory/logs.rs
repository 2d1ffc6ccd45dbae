//! One shard of the states that are lists.

use std::{
    collections::{HashMap, VecDeque},
    hash::BuildHasherDefault,
};

use super::{
    Pace,
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
    pub(super) pace: Pace,
}

#[derive(Debug)]
struct Kept {
    log: Log,
    period_micros: u64,
}

impl Logs {
    /// The answer for a key, and whether it is kept already.
    pub(super) fn evaluate(
        &mut self,
        id: Identity,
        limit: &Limit,
        now: u64,
        cost: u64,
    ) -> (Outcome, bool) {
        match self.kept.get_mut(&id) {
            Some(kept) => {
                kept.log.rebase(now);
                (kept.log.evaluate(limit, now, cost), true)
            }
            None => (Log::default().evaluate(limit, now, cost), false),
        }
    }

    /// A copy of a key's log.
    pub(super) fn get(&self, id: Identity) -> Log {
        self.kept.get(&id).map_or_else(Log::default, |kept| kept.log.clone())
    }

    pub(super) fn contains(&self, id: Identity) -> bool {
        self.kept.contains_key(&id)
    }

    /// Takes units as permit `permit`. Returns how many entries made way.
    pub(super) fn take(
        &mut self,
        id: Identity,
        limit: &Limit,
        now: u64,
        units: (u64, u64),
    ) -> usize {
        let (cost, permit) = units;
        let round = &mut self.round;
        let kept = self.kept.entry(id).or_insert_with(|| {
            round.push_back(id);
            Kept { log: Log::default(), period_micros: limit.period_micros() }
        });
        let before = kept.log.len();
        kept.log.take(limit, now, cost, permit);
        before + 1 - kept.log.len()
    }

    /// Takes back units that were just taken, and the key with them if it was made for them. Returns how many entries
    /// went.
    pub(super) fn take_back(&mut self, id: Identity, cost: u64, new_key: bool) -> usize {
        let Some(kept) = self.kept.get_mut(&id) else { return 0 };
        let before = kept.log.len();
        kept.log.take_back(cost);
        let freed = before - kept.log.len();
        if new_key {
            self.remove(id);
        }
        freed
    }

    pub(super) fn is_live(&self, id: Identity, now: u64) -> bool {
        self.kept.get(&id).is_some_and(|kept| !kept.log.is_expired(kept.period_micros, now))
    }

    /// Returns how many entries are gone.
    pub(super) fn refund(&mut self, id: Identity, limit: &Limit, now: u64, cost: u64) -> usize {
        let Some(kept) = self.kept.get_mut(&id) else { return 0 };
        let before = kept.log.len();
        kept.log.rebase(now);
        kept.log.refund(limit, now, cost);
        before - kept.log.len()
    }

    /// Forgets a key. Returns how many entries it had.
    pub(super) fn remove(&mut self, id: Identity) -> Option<usize> {
        let kept = self.kept.remove(&id)?;
        self.round.retain(|other| *other != id);
        Some(kept.log.len())
    }

    pub(super) fn release(&mut self, id: Identity, permit: u64) -> bool {
        self.kept.get_mut(&id).is_some_and(|kept| kept.log.release(permit))
    }

    /// Whether the permit was there, and how many entries are gone.
    pub(super) fn renew(
        &mut self,
        id: Identity,
        limit: &Limit,
        now: u64,
        permit: u64,
    ) -> (bool, usize) {
        let Some(kept) = self.kept.get_mut(&id) else { return (false, 0) };
        let before = kept.log.len();
        kept.log.rebase(now);
        (kept.log.renew(limit, now, permit), before - kept.log.len())
    }

    /// Looks at the next `keys` keys and drops the expired. Returns how many keys and entries went.
    pub(super) fn sweep(&mut self, keys: usize, now: u64) -> (usize, usize) {
        let (mut dropped, mut entries) = (0, 0);
        for _ in 0..keys.min(self.round.len()) {
            let Some(id) = self.round.pop_front() else { break };
            match self.kept.get(&id) {
                Some(kept) if kept.log.is_expired(kept.period_micros, now) => {
                    entries += kept.log.len();
                    dropped += 1;
                    self.kept.remove(&id);
                }
                _ => self.round.push_back(id),
            }
        }
        if dropped > 0 && self.kept.len() < self.kept.capacity() / 4 {
            self.kept.shrink_to(self.kept.len() * 2);
            self.round.shrink_to(self.round.len() * 2);
        }
        (dropped, entries)
    }

    pub(super) fn len(&self) -> usize {
        self.kept.len()
    }

    /// Roughly what is allocated.
    pub(super) fn bytes(&self) -> usize {
        let logs: usize = self.kept.values().map(|kept| kept.log.bytes()).sum();
        logs + self.kept.capacity() * (size_of::<(Identity, Kept)>() + 1)
            + self.round.capacity() * size_of::<Identity>()
    }
}
