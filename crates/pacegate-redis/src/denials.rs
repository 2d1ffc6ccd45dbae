//! The deny cache: denials that are known to hold still.
//!
//! What is kept is not the denial but the state that it came from. Nobody but a refund or a reset makes a state
//! smaller, so as long as the state as it was denies, the server would deny too; and what it says to any other cost, to
//! a changed limit, and about when to retry, follows from it exactly. Whether it still denies is asked of the latest
//! instant that it can be at the server, and the hint is counted from the earliest.

use std::time::Duration;

use pacegate::{
    Timestamp,
    algorithm::{Origin, Outcome},
};
use quick_cache::{
    UnitWeighter,
    sync::{Cache, DefaultLifecycle},
};
use tokio::time::Instant;

use crate::{
    mark::{ByMark, Claim, Mark},
    replay::{Fact, Known, log_outcome},
    time::{Time, Trip, nanos},
};

/// States that denied, bounded in number.
#[derive(Debug)]
pub(crate) struct Denials {
    entries: Option<Cache<Mark, Entry, UnitWeighter, ByMark>>,
    /// No entry is believed for longer, in nanoseconds: so long may a reset elsewhere go unnoticed.
    longest: u64,
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
        let entries = (capacity > 0).then(|| {
            let most = capacity as u64;
            Cache::with(
                capacity,
                most,
                UnitWeighter,
                ByMark::default(),
                DefaultLifecycle::default(),
            )
        });
        Self { entries, longest: nanos(longest), time }
    }

    /// Remembers a state that took part in a denial; and any other, if an older one is remembered. One that is believed
    /// no more is older whatever time it has: the server's clock may have stepped back since.
    pub(crate) fn learn(&self, mark: Mark, known: Known, trip: Trip) {
        let Some(entries) = &self.entries else { return };
        let news = match entries.get(&mark) {
            Some(old) => old.known.now <= known.now || self.is_old(&old, Instant::now()),
            None => known.denied,
        };
        if news {
            entries.insert(mark, Entry { known, trip });
        }
    }

    pub(crate) fn forget(&self, mark: Mark) {
        if let Some(entries) = &self.entries {
            entries.remove(&mark);
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.as_ref().map_or(0, Cache::len)
    }

    /// The outcomes of a request that would be denied now. All its states have to be known, so that the hint is that
    /// of the limit which takes longest.
    pub(crate) fn answer<'a>(
        &self,
        claims: impl Iterator<Item = Claim<'a>>,
    ) -> Option<Vec<Outcome>> {
        let entries = self.entries.as_ref()?;
        // Most keys are not known here, and then nobody need look at a clock.
        let mut now = None;
        let mut denied = false;
        let mut outcomes = Vec::new();
        for claim in claims {
            let entry = entries.get(&claim.mark)?;
            let now = *now.get_or_insert_with(Instant::now);
            let outcome = self.outcome(&claim, &entry, now)?;
            denied |= claim.enforced && !outcome.is_admitted();
            outcomes.push(outcome.with_origin(Origin::DenyCache));
        }
        denied.then_some(outcomes)
    }

    /// [`Denials::answer`], for a request with one limit.
    pub(crate) fn answer_one(&self, claim: &Claim<'_>) -> Option<Outcome> {
        let entry = self.entries.as_ref()?.get(&claim.mark)?;
        let outcome = self.outcome(claim, &entry, Instant::now())?;
        let denied = claim.enforced && !outcome.is_admitted();
        denied.then(|| outcome.with_origin(Origin::DenyCache))
    }

    /// Whether an entry is believed no more. A clock of ours may stand still for as long as it likes.
    fn is_old(&self, entry: &Entry, now: Instant) -> bool {
        matches!(self.time, Time::Server) && entry.trip.age(now) >= self.longest
    }

    fn outcome(&self, claim: &Claim<'_>, entry: &Entry, now: Instant) -> Option<Outcome> {
        if claim.cost == 0 || self.is_old(entry, now) {
            return None;
        }
        let age = entry.trip.age(now);
        let (earliest, latest) = self.time.bounds(entry.known.now, entry.trip, age);
        let outcome = match entry.known.fact {
            Fact::State(state) => {
                let at = |now: Timestamp, cost| claim.limit.step(&mut state.clone(), now, cost);
                if at(latest, claim.cost).is_admitted() {
                    let untouched = at(earliest, 0);
                    Outcome::admitted(untouched.remaining(), untouched.reset_after())
                } else {
                    at(earliest, claim.cost)
                }
            }
            // What is free of a log grows before a high cost fits, so only what denies all is known exactly.
            Fact::Log { cost: 1, wait, free: 0, reset }
                if claim.cost == 1 && *claim.limit == entry.known.limit =>
            {
                let since = |instant: Timestamp| {
                    instant.micros_since(Timestamp::from_micros(entry.known.now))
                };
                let (wait, past) = (wait.checked_sub(since(earliest))?, since(latest) >= wait);
                let asked = (claim.limit, claim.cost);
                let reset = reset - since(earliest).min(reset);
                if past {
                    return None;
                }
                log_outcome(asked, (0, reset), wait)
            }
            Fact::Log { .. } => return None,
        };
        Some(outcome.with_decided_at(earliest))
    }
}

#[cfg(test)]
mod tests {
    use pacegate::{Charge, KeyRef, Limit, algorithm::State};

    use super::*;
    use crate::mark::Marker;

    /// The time of the state that is remembered after two denials, the second of them by a clock that has stepped back.
    fn remembered(longest: Duration) -> u64 {
        let denials = Denials::new(10, longest, Time::Server);
        let limit = Limit::per_minute(1);
        let charge = Charge::new("api".parse().unwrap(), KeyRef::new(b"key"), limit);
        let mark = Marker::random().mark(&charge);
        for now in [7_200_000_000, 3_600_000_000] {
            let state = State::from_words(&limit, [now, 1, 0]);
            let known = Known { denied: true, now, limit, fact: Fact::State(state) };
            denials.learn(mark, known, Trip::new(Instant::now(), Instant::now()));
        }
        denials.entries.unwrap().get(&mark).unwrap().known.now
    }

    /// Otherwise no denial of such a key would be remembered before the clock is where it was.
    #[test]
    fn a_clock_that_steps_back_is_followed_when_what_was_known_is_old() {
        assert_eq!(remembered(Duration::from_secs(3_600)), 7_200_000_000, "it may have come late");
        assert_eq!(remembered(Duration::ZERO), 3_600_000_000);
    }
}
