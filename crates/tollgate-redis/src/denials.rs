//! The deny cache: denials that are known to hold still.
//!
//! What is kept is not the denial but the state that it came from. Nobody but a refund or a reset makes a state
//! smaller, so as long as the state as it was denies, the server would deny too; and what it says to any other cost, to
//! a changed limit, and about when to retry, follows from it exactly. Whether it still denies is asked of the latest
//! instant that it can be at the server, and the hint is counted from the earliest.

use std::time::Duration;

use quick_cache::sync::Cache;
use tokio::time::Instant;
use tollgate::{
    Timestamp,
    algorithm::{Origin, Outcome},
};

use crate::{
    cell::{CellId, Want},
    replay::{Fact, Known, log_outcome},
    time::{Time, Trip},
};

/// States that denied, bounded in number.
#[derive(Debug)]
pub(crate) struct Denials {
    entries: Option<Cache<CellId, Entry>>,
    /// No entry is believed for longer: so long may a reset elsewhere go unnoticed.
    longest: Duration,
    time: Time,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    known: Known,
    trip: Trip,
}

impl Denials {
    /// A cache of at most `capacity` entries; none at all if that is 0.
    pub(crate) fn new(capacity: usize, longest: Duration, time: Time) -> Self {
        let entries = (capacity > 0).then(|| Cache::new(capacity));
        Self { entries, longest, time }
    }

    /// Remembers a state that took part in a denial; and any other, if an older one is remembered.
    pub(crate) fn learn(&self, cell: CellId, known: Known, trip: Trip) {
        let Some(entries) = &self.entries else { return };
        let news = match entries.get(&cell) {
            Some(old) => old.known.now <= known.now,
            None => known.denied,
        };
        if news {
            entries.insert(cell, Entry { known, trip });
        }
    }

    pub(crate) fn forget(&self, cell: CellId) {
        if let Some(entries) = &self.entries {
            entries.remove(&cell);
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.as_ref().map_or(0, Cache::len)
    }

    /// The outcomes of a request that would be denied now. All its states have to be known, so that the hint is that
    /// of the limit which takes longest.
    pub(crate) fn answer(&self, wants: &[Want]) -> Option<Vec<Outcome>> {
        let entries = self.entries.as_ref()?;
        let now = Instant::now();
        let mut denied = false;
        let mut outcomes = Vec::with_capacity(wants.len());
        for want in wants {
            let entry = entries.get(&want.cell)?;
            let outcome = self.outcome(want, &entry, now)?;
            denied |= want.enforced && !outcome.is_admitted();
            outcomes.push(outcome.with_origin(Origin::DenyCache));
        }
        denied.then_some(outcomes)
    }

    fn outcome(&self, want: &Want, entry: &Entry, now: Instant) -> Option<Outcome> {
        let is_old = now.duration_since(entry.trip.1) >= self.longest;
        if want.cost == 0 || matches!(self.time, Time::Server) && is_old {
            return None;
        }
        let (earliest, latest) = self.time.bounds(entry.known.now, entry.trip, now);
        match entry.known.fact {
            Fact::State(state) => {
                let at = |now: Timestamp, cost| want.limit.step(&mut state.clone(), now, cost);
                if at(latest, want.cost).is_admitted() {
                    let untouched = at(earliest, 0);
                    return Some(Outcome::admitted(untouched.remaining(), untouched.reset_after()));
                }
                Some(at(earliest, want.cost))
            }
            // What is free of a log grows before a high cost fits, so only what denies all is known exactly.
            Fact::Log { cost: 1, wait, free: 0, reset }
                if want.cost == 1 && want.limit == entry.known.limit =>
            {
                let since = |instant: Timestamp| {
                    instant.micros_since(Timestamp::from_micros(entry.known.now))
                };
                let (wait, past) = (wait.checked_sub(since(earliest))?, since(latest) >= wait);
                (!past).then(|| log_outcome(want, (0, reset - since(earliest).min(reset)), wait))
            }
            Fact::Log { .. } => None,
        }
    }
}
