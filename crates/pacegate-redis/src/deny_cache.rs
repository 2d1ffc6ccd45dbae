//! The deny cache: denials that still hold.
//!
//! An entry is the state that caused a denial. Only a refund or a reset lowers the usage of a state, so as long as the
//! cached state denies a charge, the server would deny it too. The exact answer for any cost, for a changed limit and
//! for the retry time follows from the state. The cache tests the denial at the latest time that the server's clock
//! can show now, and computes the retry time from the earliest.

use std::time::Duration;

use pacegate::{
    Charge, Excess, Timestamp,
    algorithm::{Origin, Outcome},
};
use quick_cache::{
    UnitWeighter,
    sync::{Cache, DefaultLifecycle},
};
use tokio::time::Instant;

use crate::{
    fingerprint::Fingerprint,
    replay::{Fact, Snapshot, log_outcome},
    time::{RoundTrip, Time, nanos},
};

/// A bounded cache of states that denied a request.
#[derive(Debug)]
pub(crate) struct DenyCache {
    entries: Option<Cache<Fingerprint, Entry, UnitWeighter, foldhash::fast::RandomState>>,
    /// True if it answers charges with [`Excess::Count`], which are then not counted.
    answers_counted: bool,
    /// Maximum age of an entry in nanoseconds: a reset by another process can go unnoticed for this long.
    max_age: u64,
    time: Time,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    snapshot: Snapshot,
    trip: RoundTrip,
}

impl DenyCache {
    /// Creates a cache of at most `capacity` entries. 0 turns it off.
    pub(crate) fn new(
        capacity: usize,
        max_age: Duration,
        answers_counted: bool,
        time: Time,
    ) -> Self {
        let (hasher, lifecycle) =
            (foldhash::fast::RandomState::default(), DefaultLifecycle::default());
        let entries = (capacity > 0)
            .then(|| Cache::with(capacity, capacity as u64, UnitWeighter, hasher, lifecycle));
        Self { entries, answers_counted, max_age: nanos(max_age), time }
    }

    /// Inserts a state that took part in a denial, or replaces an older entry. An expired entry counts as older
    /// whatever its time: the server's clock may have stepped back since.
    pub(crate) fn learn(&self, fingerprint: Fingerprint, snapshot: Snapshot, trip: RoundTrip) {
        let Some(entries) = &self.entries else { return };
        let is_newer = match entries.get(&fingerprint) {
            Some(old) => old.snapshot.now <= snapshot.now || self.is_old(&old, Instant::now()),
            None => snapshot.denied,
        };
        if is_newer {
            entries.insert(fingerprint, Entry { snapshot, trip });
        }
    }

    pub(crate) fn forget(&self, fingerprint: Fingerprint) {
        if let Some(entries) = &self.entries {
            entries.remove(&fingerprint);
        }
    }

    /// Returns false if a denial of these charges changes a counter, so that it must reach the server.
    pub(crate) fn may_answer(&self, charges: &[Charge<'_>]) -> bool {
        charges.iter().all(|charge| match charge.excess {
            Excess::Reject => true,
            Excess::Count => self.answers_counted,
            _ => false,
        })
    }

    pub(crate) fn len(&self) -> usize {
        self.entries.as_ref().map_or(0, Cache::len)
    }

    /// Returns the outcomes of a request that is certain to be denied now. Requires entries for all of its charges, so
    /// that the retry time is that of the slowest limit.
    pub(crate) fn answer<'a>(
        &self,
        charges: impl Iterator<Item = (Fingerprint, &'a Charge<'a>)>,
    ) -> Option<Vec<Outcome>> {
        let entries = self.entries.as_ref()?;
        // Most keys have no entry; the clock is read only for those with one.
        let mut now = None;
        let mut denied = false;
        let mut outcomes = Vec::new();
        for (fingerprint, charge) in charges {
            let entry = entries.get(&fingerprint)?;
            let now = *now.get_or_insert_with(Instant::now);
            let outcome = self.outcome(charge, &entry, now)?;
            denied |= charge.enforced && !outcome.is_admitted();
            outcomes.push(outcome.with_origin(Origin::DenyCache));
        }
        denied.then_some(outcomes)
    }

    /// [`DenyCache::answer`] for a request with one charge.
    pub(crate) fn answer_one(
        &self,
        fingerprint: Fingerprint,
        charge: &Charge<'_>,
    ) -> Option<Outcome> {
        let entry = self.entries.as_ref()?.get(&fingerprint)?;
        let outcome = self.outcome(charge, &entry, Instant::now())?;
        let denied = charge.enforced && !outcome.is_admitted();
        denied.then(|| outcome.with_origin(Origin::DenyCache))
    }

    /// Returns whether an entry has expired. With a clock of the caller, entries do not expire.
    fn is_old(&self, entry: &Entry, now: Instant) -> bool {
        matches!(self.time, Time::Server(_)) && entry.trip.age(now) >= self.max_age
    }

    fn outcome(&self, charge: &Charge<'_>, entry: &Entry, now: Instant) -> Option<Outcome> {
        if charge.cost == 0 || self.is_old(entry, now) {
            return None;
        }
        let Snapshot { now: seen, limit, fact, .. } = entry.snapshot;
        let (earliest, latest) = self.time.bounds(seen, entry.trip, entry.trip.age(now));
        let outcome = match fact {
            Fact::State(state) => {
                let at = |now: Timestamp, cost| {
                    charge.limit.charge(&mut state.clone(), now, cost, charge.excess).0
                };
                if at(latest, charge.cost).is_admitted() {
                    // If it is only admitted at the latest time, another limit may deny for less time than this one.
                    if !at(earliest, charge.cost).is_admitted() {
                        return None;
                    }
                    let untouched = at(earliest, 0);
                    Outcome::admitted(untouched.remaining(), untouched.reset_after())
                } else {
                    at(earliest, charge.cost)
                }
            }
            // The free units of a log grow before a high cost fits, so only a full log gives an exact answer.
            Fact::Log { cost: 1, wait, free: 0, reset }
                if charge.cost == 1 && charge.limit == limit =>
            {
                let since = |at: Timestamp| at.micros_since(Timestamp::from_micros(seen));
                if since(latest) >= wait {
                    return None;
                }
                let passed = since(earliest);
                let wait = wait.checked_sub(passed)?;
                log_outcome((&charge.limit, charge.cost), (0, reset.saturating_sub(passed)), wait)
            }
            Fact::Log { .. } => return None,
        };
        Some(outcome.with_decided_at(earliest))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use pacegate::{KeyRef, Limit, algorithm::State};

    use super::*;
    use crate::{environment::OperatingSystem, fingerprint::Fingerprinter};

    /// The time of the state that is remembered after two deny_cache, the second of them by a clock that has stepped
    /// back.
    fn cached_time(max_age: Duration) -> u64 {
        let time = Time::Server(Arc::new(OperatingSystem));
        let cache = DenyCache::new(10, max_age, false, time.clone());
        let limit = Limit::per_minute(1);
        let charge = Charge::new("api".parse().unwrap(), KeyRef::new(b"key"), limit);
        let fingerprint = Fingerprinter::new().of(&charge);
        for now in [7_200_000_000, 3_600_000_000] {
            let state = State::from_words(&limit, [now, 1, 0]);
            let snapshot = Snapshot { denied: true, now, limit, fact: Fact::State(state) };
            let trip = time.round_trip(Instant::now(), Instant::now());
            cache.learn(fingerprint, snapshot, trip);
        }
        cache.entries.unwrap().get(&fingerprint).unwrap().snapshot.now
    }

    /// Otherwise no denial of the key would be cached until the clock has caught up.
    #[test]
    fn a_clock_step_back_replaces_an_expired_entry() {
        assert_eq!(cached_time(Duration::from_secs(3_600)), 7_200_000_000, "the reply may be late");
        assert_eq!(cached_time(Duration::ZERO), 3_600_000_000);
    }

    /// Otherwise the retry time would be that of the other limit, which may be shorter.
    #[test]
    fn a_limit_that_may_deny_is_left_to_the_server() {
        let time = Time::Server(Arc::new(OperatingSystem));
        let cache = DenyCache::new(10, Duration::from_secs(3_600), false, time.clone());
        let fingerprinter = Fingerprinter::new();
        // After a round trip of 30 seconds, the window of 10 seconds may have ended.
        let sent = Instant::now() - Duration::from_secs(30);
        let mut learn = |text: &str| {
            let limit: Limit = text.parse().unwrap();
            let charge = Charge::new("api".parse().unwrap(), KeyRef::new(b"key"), limit);
            let (now, fingerprint) = (7_200_000_000, fingerprinter.of(&charge));
            let state = State::from_words(&limit, [now, 1, 0]);
            let snapshot = Snapshot { denied: true, now, limit, fact: Fact::State(state) };
            cache.learn(fingerprint, snapshot, time.round_trip(sent, Instant::now()));
            (fingerprint, charge)
        };
        let [minute, ten, hour] = ["1/minute", "1/10s", "1/hour"].map(&mut learn);
        let answer = |charges: [&(Fingerprint, Charge<'static>); 2]| {
            cache.answer(charges.into_iter().map(|(fingerprint, charge)| (*fingerprint, charge)))
        };
        assert_eq!(answer([&minute, &hour]).map(|outcomes| outcomes.len()), Some(2));
        assert!(answer([&minute, &ten]).is_none());
    }
}
