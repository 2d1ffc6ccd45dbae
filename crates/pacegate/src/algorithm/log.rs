//! Logs of units with the time they were taken: the sliding log, and the permits of a concurrency limit.
//!
//! Both admit a cost if it fits together with the units younger than one period. A permit also has an id, by
//! which it can be released early or renewed.

use std::collections::VecDeque;

use super::{Excess, Outcome, excess};
use crate::Limit;

/// Entries, sorted by time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Log {
    entries: VecDeque<Entry>,
}

/// Units taken at one instant, in microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Entry {
    at: u64,
    cost: u64,
    /// The permit; 0 in a sliding log, where entries of one instant are merged.
    id: u128,
}

impl Log {
    /// Evaluates `cost` at `now`, which is not before any entry, without changing anything. Admitted units
    /// are then [taken](Self::take).
    pub(crate) fn evaluate(&self, limit: &Limit, now: u64, cost: u64) -> Outcome {
        if limit.amount() == 0 {
            return Outcome::nothing();
        }
        let used: u64 = self.live(limit, now).map(|entry| entry.cost).sum();
        let free = limit.amount().saturating_sub(used);
        if cost.max(1) > free {
            let retry_after = self.frees_after(limit, now, used + cost.max(1) - limit.amount());
            let debt = used.saturating_sub(limit.amount());
            let outcome = Outcome::refused(free, retry_after, self.reset_after(limit, now));
            return outcome.with_debt(if cost == 0 { debt } else { 0 });
        }
        let reset_after =
            if cost > 0 { limit.period_micros() } else { self.reset_after(limit, now) };
        Outcome::taken(free - cost, reset_after)
    }

    /// Evaluates `cost` at `now`, and treats a cost that does not fit by `excess`. Returns the outcome and the units to
    /// [take](Self::take).
    pub(crate) fn charge(
        &self,
        limit: &Limit,
        now: u64,
        cost: u64,
        excess: Excess,
    ) -> (Outcome, u64) {
        if !excess.is_recorded() || cost <= limit.capacity() {
            let outcome = self.evaluate(limit, now, cost);
            if outcome.is_admitted() {
                return (outcome, cost);
            }
            if !excess.is_recorded() {
                return (outcome, 0);
            }
        }
        let used: u64 = self.live(limit, now).map(|entry| entry.cost).sum();
        if excess == Excess::Count && cost == 0 && used <= limit.capacity() {
            return (Outcome::taken(0, self.reset_after(limit, now)), 0);
        }
        let units = excess::units(limit, used, cost, excess);
        let (period, reset_after) = (limit.period_micros(), self.reset_after(limit, now));
        // Until one unit fits. The recorded units are the last to expire.
        let expires =
            self.frees_after(limit, now, (used + units + 1).saturating_sub(limit.amount()));
        let reset_after = if units > 0 { period } else { reset_after };
        let remaining = excess::free_before(limit, used, excess);
        let debt = (used + units).saturating_sub(limit.amount());
        (Outcome::refused(remaining, expires.min(period), reset_after).with_debt(debt), units)
    }

    /// Takes `cost` units at `now` as permit `id`, 0 in a sliding log.
    pub(crate) fn take(&mut self, now: u64, cost: u64, id: u128) {
        match self.entries.back_mut() {
            Some(last) if last.at == now && last.id == 0 && id == 0 => last.cost += cost,
            _ => self.entries.push_back(Entry { at: now, cost, id }),
        }
    }

    /// Undoes the last charge.
    pub(crate) fn take_back(&mut self, cost: u64) {
        let mut left = cost;
        while let Some(last) = self.entries.back_mut().filter(|_| left > 0) {
            let back = left.min(last.cost);
            left -= back;
            last.cost -= back;
            if last.cost == 0 {
                self.entries.pop_back();
            }
        }
    }

    /// Refunds up to `cost` units, the newest first. Permits are skipped; their holders release them.
    pub(crate) fn refund(&mut self, cost: u64) {
        let mut left = cost;
        for entry in self.entries.iter_mut().rev().filter(|entry| entry.id == 0) {
            let back = left.min(entry.cost);
            left -= back;
            entry.cost -= back;
            if left == 0 {
                break;
            }
        }
        self.entries.retain(|entry| entry.cost > 0);
    }

    /// Returns up to `units` that were charged at `charged_at`.
    pub(crate) fn return_units(&mut self, charged_at: u64, units: u64) {
        let entry = self.entries.binary_search_by_key(&charged_at, |entry| entry.at);
        if let Ok(place) = entry
            && self.entries[place].id == 0
        {
            self.entries[place].cost = self.entries[place].cost.saturating_sub(units);
            if self.entries[place].cost == 0 {
                self.entries.remove(place);
            }
        }
    }

    /// Returns the permit `id`. Returning one that is gone changes nothing.
    pub(crate) fn release(&mut self, id: u128) {
        self.entries.retain(|entry| entry.id != id);
    }

    /// Starts the life of permit `id` anew, unless it is gone. It may have been charged more than once.
    pub(crate) fn renew(&mut self, now: u64, id: u128) -> bool {
        let held: Vec<_> = self.entries.iter().copied().filter(|entry| entry.id == id).collect();
        self.release(id);
        self.entries.extend(held.iter().map(|entry| Entry { at: now, ..*entry }));
        !held.is_empty()
    }

    /// Does the same as [`super::earliest`], on a copy.
    pub(crate) fn earliest(
        mut self,
        limit: &Limit,
        now: u64,
        costs: impl Iterator<Item = u64>,
    ) -> u64 {
        super::soonest(now, costs, |at, cost| {
            let outcome = self.evaluate(limit, at, cost);
            if outcome.is_admitted() {
                self.take(at, cost, 0);
            }
            outcome
        })
    }

    /// Returns the number of entries, including expired ones.
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns the bytes allocated for entries.
    pub(crate) fn bytes(&self) -> usize {
        self.entries.capacity() * size_of::<Entry>()
    }

    /// Returns `true` if no entry counts at `now`, so that the log can be removed.
    pub(crate) fn is_expired(&self, period_micros: u64, now: u64) -> bool {
        self.entries.back().is_none_or(|last| last.at + period_micros <= now)
    }

    /// Removes expired entries. If the clock has stepped back, moves later entries back to now.
    pub(crate) fn prune(&mut self, limit: &Limit, now: u64) {
        for entry in self.entries.iter_mut().rev().take_while(|entry| entry.at > now) {
            entry.at = now;
        }
        let past = self.entries.iter().take_while(|entry| entry.at + limit.period_micros() <= now);
        self.entries.drain(..past.count());
        if self.entries.len() < self.entries.capacity() / 4 {
            self.entries.shrink_to(self.entries.len() * 2);
        }
    }

    /// Returns the entries that count at `now`, the oldest first.
    fn live(&self, limit: &Limit, now: u64) -> impl Iterator<Item = Entry> {
        let period = limit.period_micros();
        self.entries.iter().copied().skip_while(move |entry| entry.at + period <= now)
    }

    /// Returns the time until the oldest `units` have expired.
    fn frees_after(&self, limit: &Limit, now: u64, units: u64) -> u64 {
        let mut freed = 0;
        self.live(limit, now)
            .find(|entry| {
                freed += entry.cost;
                freed >= units
            })
            .map_or(super::NEVER, |entry| entry.at + limit.period_micros() - now)
    }

    /// Returns the microseconds until the newest entry has expired; 0 if none counts.
    fn reset_after(&self, limit: &Limit, now: u64) -> u64 {
        self.live(limit, now).last().map_or(0, |entry| entry.at + limit.period_micros() - now)
    }
}
