//! Leases: units charged in advance and spent locally.
//!
//! Leased units are charged before they are spent, so nothing is admitted twice even if the process crashes. Units of a
//! window are spent only while the server is certainly in that window. Only windows are leased: a token bucket starts
//! to refill after a charge, so leased tokens would have to expire in every process while the bucket refills once, and
//! traffic far below the rate would be denied.

use std::{collections::HashMap, time::Duration};

use pacegate::{
    Charge, Timestamp,
    algorithm::{Origin, Outcome, State},
};
use parking_lot::Mutex;
use tokio::{sync::Notify, time::Instant};

use crate::{
    cell::CellCharge,
    fingerprint::Fingerprint,
    time::{RoundTrip, Time},
};

/// All leases of a store.
#[derive(Debug)]
pub(crate) struct Leases {
    held: Mutex<Held>,
    /// Notified when a draw has ended.
    drawn: Notify,
    time: Time,
}

#[derive(Debug, Default)]
struct Held {
    leases: HashMap<Fingerprint, Lease, foldhash::fast::RandomState>,
    /// The number of the last draw.
    draws: u64,
    /// The time of the last sweep.
    swept: Option<Instant>,
}

#[derive(Debug)]
struct Lease {
    charge: CellCharge,
    /// Units drawn and not yet spent.
    left: u64,
    /// The state after the last draw, and its time.
    state: State,
    now: u64,
    trip: RoundTrip,
    /// The number of the draw in progress.
    draw: Option<u64>,
}

/// Unspent units to return.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unspent {
    pub(crate) charge: CellCharge,
    pub(crate) charged_at: u64,
}

/// The result of a draw.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Drawn {
    pub(crate) units: u64,
    pub(crate) state: State,
    pub(crate) now: u64,
    pub(crate) trip: RoundTrip,
}

/// Maximum number of keys with a lease.
const MAX_LEASES: usize = 100_000;
/// Minimum time between sweeps when the table is full. A sweep takes milliseconds, during which requests wait.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);

impl Leases {
    pub(crate) fn new(time: Time) -> Self {
        Self { held: Mutex::default(), drawn: Notify::new(), time }
    }

    /// Pays a request from leases, if a lease covers each of its charges.
    pub(crate) fn spend(
        &self,
        charges: &[Charge<'_>],
        fingerprints: &[Fingerprint],
    ) -> Option<Vec<Outcome>> {
        let leases = &mut self.held.lock().leases;
        // Read under the lock, so that a later caller never uses an earlier time, at which more units are left.
        let now = Instant::now();
        let pairs = || fingerprints.iter().zip(charges);
        let is_covered = |(fingerprint, charge): (&Fingerprint, &Charge<'_>)| {
            leases.get(fingerprint).is_some_and(|lease| lease.covers(charge, &self.time, now))
        };
        // If a cell occurs twice, its lease would have to cover both charges.
        let repeats = (1..fingerprints.len())
            .any(|place| fingerprints[..place].contains(&fingerprints[place]));
        if repeats || !pairs().all(is_covered) {
            return None;
        }
        let pay = |(fingerprint, charge): (&Fingerprint, &Charge<'_>)| {
            Some(leases.get_mut(fingerprint)?.pay(charge, &self.time, now))
        };
        pairs().map(pay).collect()
    }

    /// [`Leases::spend`] for a request with one charge.
    pub(crate) fn spend_one(
        &self,
        charge: &Charge<'_>,
        fingerprint: Fingerprint,
    ) -> Option<Outcome> {
        let leases = &mut self.held.lock().leases;
        let lease = leases.get_mut(&fingerprint)?;
        let now = Instant::now();
        lease.covers(charge, &self.time, now).then(|| lease.pay(charge, &self.time, now))
    }

    /// Starts a draw for this cell and returns its number, if one is needed. Each cell has at most one draw at a time,
    /// until [`Leases::deposit`].
    pub(crate) fn start_draw(&self, charge: &CellCharge, now: Instant) -> Option<u64> {
        let held = &mut *self.held.lock();
        let fingerprint = charge.fingerprint;
        if !held.leases.contains_key(&fingerprint) && !held.has_room(&self.time, now) {
            return None;
        }
        let empty = || Lease::empty(charge, self.time.round_trip(now, now));
        let lease = held.leases.entry(fingerprint).or_insert_with(empty);
        // The lease of another limit may have been the one that was too small.
        let is_enough =
            lease.charge.limit == charge.limit && lease.units(&self.time, now) >= charge.cost;
        if lease.draw.is_some() || is_enough {
            return None;
        }
        held.draws += 1;
        lease.draw = Some(held.draws);
        lease.draw
    }

    /// Ends a draw and adds its units. If the lease was removed since, the units are dropped, because a reset may have
    /// come before or after the draw.
    pub(crate) fn deposit(&self, charge: &CellCharge, draw: u64, drawn: Option<Drawn>) {
        let leases = &mut self.held.lock().leases;
        let fingerprint = charge.fingerprint;
        if let Some(lease) = leases.get_mut(&fingerprint).filter(|lease| lease.draw == Some(draw)) {
            lease.draw = None;
            match drawn.filter(|drawn| drawn.units > 0) {
                Some(drawn) => lease.add(charge, drawn),
                None if lease.units(&self.time, Instant::now()) == 0 => {
                    leases.remove(&fingerprint);
                }
                None => {}
            }
        }
        self.drawn.notify_waiters();
    }

    /// Forgets the draws in progress: their runtime has shut down.
    pub(crate) fn end_draws(&self) {
        self.held.lock().leases.values_mut().for_each(|lease| lease.draw = None);
        self.drawn.notify_waiters();
    }

    pub(crate) fn forget(&self, fingerprint: Fingerprint) {
        self.held.lock().leases.remove(&fingerprint);
    }

    pub(crate) fn outstanding(&self) -> u64 {
        self.held.lock().leases.values().map(|lease| lease.units(&self.time, Instant::now())).sum()
    }

    /// Waits until no draw is in progress.
    pub(crate) async fn settled(&self) {
        loop {
            let drawn = self.drawn.notified();
            if self.held.lock().leases.values().all(|lease| lease.draw.is_none()) {
                return;
            }
            drawn.await;
        }
    }

    /// Removes all leases, and returns the units that can be returned to the server.
    pub(crate) fn take_all(&self) -> Vec<Unspent> {
        let leases = &mut self.held.lock().leases;
        let mut unspent: Vec<_> =
            leases.values().filter_map(|lease| lease.unspent(&self.time)).collect();
        // The order of the map is random, and a simulation must be repeatable.
        unspent.sort_by_key(|unspent| unspent.charge.cell);
        leases.retain(|_, lease| {
            lease.left = 0;
            lease.draw.is_some()
        });
        unspent
    }
}

impl Held {
    /// Returns whether there is room for another lease, after a sweep if necessary.
    fn has_room(&mut self, time: &Time, now: Instant) -> bool {
        let is_recent = self.swept.is_some_and(|swept| now.duration_since(swept) < SWEEP_INTERVAL);
        if self.leases.len() >= MAX_LEASES && !is_recent {
            self.swept = Some(now);
            self.leases.retain(|_, lease| lease.draw.is_some() || lease.units(time, now) > 0);
        }
        self.leases.len() < MAX_LEASES
    }
}

impl Lease {
    fn empty(charge: &CellCharge, trip: RoundTrip) -> Self {
        Self { charge: *charge, left: 0, state: State::EMPTY, now: 0, trip, draw: None }
    }

    /// Adds drawn units. Units of an earlier draw are kept if limit and window are the same.
    fn add(&mut self, charge: &CellCharge, drawn: Drawn) {
        let Drawn { units, state, now, trip } = drawn;
        let is_same = self.charge.limit == charge.limit && self.state.at() == state.at();
        let rest = if is_same { self.left } else { 0 };
        *self = Self { charge: *charge, left: rest + units, state, now, trip, draw: None };
    }

    /// Returns the units that may be spent at any time that the server's clock can show now.
    fn units(&self, time: &Time, now: Instant) -> u64 {
        self.left_at(self.bounds(time, now).1)
    }

    /// Returns the earliest and the latest time that the server's clock can show.
    fn bounds(&self, time: &Time, now: Instant) -> (Timestamp, Timestamp) {
        time.bounds(self.now, self.trip, self.trip.age(now))
    }

    fn covers(&self, charge: &Charge<'_>, time: &Time, now: Instant) -> bool {
        charge.cost > 0 && self.charge.limit == charge.limit && self.units(time, now) >= charge.cost
    }

    /// Spends the units of a charge, and returns its outcome.
    fn pay(&mut self, charge: &Charge<'_>, time: &Time, now: Instant) -> Outcome {
        self.left -= charge.cost;
        let (earliest, latest) = self.bounds(time, now);
        let limit = &self.charge.limit;
        let rest = limit.step(&mut self.state.clone(), earliest, 0);
        let remaining = rest.remaining().saturating_add(self.left_at(latest));
        let outcome = Outcome::admitted(remaining.min(limit.capacity()), rest.reset_after());
        outcome.with_decided_at(earliest).with_origin(Origin::Lease)
    }

    /// Returns the units left at a time of the server's clock.
    fn left_at(&self, instant: Timestamp) -> u64 {
        let window = self.charge.limit.window_at(self.state.at());
        if window.is_some_and(|window| instant < window.end()) { self.left } else { 0 }
    }

    /// Returns the units that can be returned: none if the window is certainly over.
    fn unspent(&self, time: &Time) -> Option<Unspent> {
        let charge = CellCharge { cost: self.left, ..self.charge };
        let earliest = self.bounds(time, Instant::now()).0;
        (self.left_at(earliest) > 0).then_some(Unspent { charge, charged_at: self.now })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use pacegate::{Clock, Counter, KeyRef, Limit, ManualClock};

    use super::*;
    use crate::cell::Names;

    /// Leases with a manual clock.
    struct Holder {
        leases: Leases,
        names: Names,
        clock: ManualClock,
    }

    impl Holder {
        fn new() -> Self {
            let clock = ManualClock::new();
            let leases = Leases::new(Time::Given(Arc::new(clock.clone())));
            Self { leases, names: Names::new("", b""), clock }
        }

        fn charge(&self, key: usize, limit: Limit) -> CellCharge {
            let key = key.to_le_bytes();
            let charge = Charge::new("a".parse().unwrap(), KeyRef::new(&key), limit);
            self.names.cell_charge(&charge.counter(Counter::Policy)).unwrap()
        }

        /// Draws units, if a draw is needed.
        fn draw(&self, charge: &CellCharge, units: u64, now: Instant) -> bool {
            let Some(draw) = self.leases.start_draw(charge, now) else { return false };
            let at = self.clock.now();
            let mut state = State::EMPTY;
            charge.limit.step(&mut state, at, units);
            let trip = self.leases.time.round_trip(now, now);
            let drawn = Drawn { units, state, now: at.as_micros(), trip };
            self.leases.deposit(charge, draw, Some(drawn));
            true
        }
    }

    /// While the table is full, requests for new keys do not sweep it each time.
    #[test]
    fn a_full_table_is_swept_once_a_second() {
        let (holder, start) = (Holder::new(), Instant::now());
        let [short, long] = [Limit::per_minute(10), Limit::per_hour(10)];
        for key in 0..MAX_LEASES {
            assert!(holder.draw(&holder.charge(key, if key < 2 { short } else { long }), 5, start));
        }
        let new = [1, 2, 3].map(|n| holder.charge(MAX_LEASES + n, short));
        assert!(!holder.draw(&new[0], 5, start), "all are in use");
        holder.clock.advance(Duration::from_secs(60));
        let soon = start + Duration::from_millis(999);
        assert!(!holder.draw(&new[0], 5, soon), "no second sweep yet");
        assert!(holder.draw(&holder.charge(0, short), 5, soon), "an existing lease needs no room");
        let later = start + Duration::from_secs(1);
        assert!(holder.draw(&new[0], 5, later), "one was spent");
        assert!(!holder.draw(&new[1], 5, later));
        assert_eq!(holder.leases.held.lock().leases.len(), MAX_LEASES);
    }

    #[test]
    fn a_lease_of_a_calendar_period_ends_with_its_window() {
        let (holder, now) = (Holder::new(), Instant::now());
        // The epoch was at 01:00 in Berlin.
        let charge = holder.charge(0, "10/day in Europe/Berlin".parse().unwrap());
        assert!(holder.draw(&charge, 5, now));
        holder.clock.advance(Duration::from_secs(23 * 3_600) - Duration::from_micros(1));
        assert_eq!(holder.leases.outstanding(), 5);
        holder.clock.advance(Duration::from_micros(1));
        assert_eq!(holder.leases.outstanding(), 0);
    }

    #[test]
    fn a_lease_of_the_old_limit_does_not_prevent_a_draw() {
        let (holder, now) = (Holder::new(), Instant::now());
        let [old, new] = [10, 20].map(|amount| holder.charge(0, Limit::per_minute(amount)));
        assert_eq!(old.fingerprint, new.fingerprint);
        assert!(holder.draw(&old, 5, now));
        assert!(!holder.draw(&old, 5, now), "it has enough");
        assert!(holder.draw(&new, 7, now));
        assert_eq!(holder.leases.outstanding(), 7);
    }
}
