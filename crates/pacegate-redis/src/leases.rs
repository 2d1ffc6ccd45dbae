//! Leases: units drawn ahead, and spent here without asking.
//!
//! They were charged before they are spent, so whatever happens to this process, nothing is admitted twice. What is
//! drawn in a window is only spent while the server is certainly still in that window. Only units of windows are drawn:
//! a charge to a bucket drains at once, so leased units would have to expire in every process while the bucket refills
//! once, and traffic far below the rate would be denied.

use std::{collections::HashMap, time::Duration};

use pacegate::{
    Timestamp,
    algorithm::{Origin, Outcome, State},
};
use parking_lot::Mutex;
use tokio::{sync::Notify, time::Instant};

use crate::{
    cell::Want,
    mark::{ByMark, Claim, Mark},
    time::{Time, Trip},
};

/// All leases of a store.
#[derive(Debug)]
pub(crate) struct Leases {
    held: Mutex<Held>,
    /// A draw has ended.
    drawn: Notify,
    time: Time,
}

#[derive(Debug, Default)]
struct Held {
    leases: HashMap<Mark, Lease, ByMark>,
    /// The number of the last draw.
    draws: u64,
    /// When leases that are spent were last cleared away.
    swept: Option<Instant>,
}

#[derive(Debug)]
struct Lease {
    want: Want,
    /// Units that were drawn and not spent.
    left: u64,
    /// The state just after the last draw, and when that was.
    state: State,
    now: u64,
    trip: Trip,
    /// The number of the draw that is under way.
    draw: Option<u64>,
}

/// Units to be given back, which were drawn at this instant.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unspent {
    pub(crate) want: Want,
    pub(crate) drawn: u64,
}

/// What a draw brought.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Drawn {
    pub(crate) units: u64,
    pub(crate) state: State,
    pub(crate) now: u64,
    pub(crate) trip: Trip,
}

/// So many keys may have a lease.
const MAX_LEASES: usize = 100_000;
/// Once there are as many, they are all looked at no more often than this: it takes milliseconds, for which everybody
/// waits.
const SWEEP_EVERY: Duration = Duration::from_secs(1);

impl Leases {
    pub(crate) fn new(time: Time) -> Self {
        Self { held: Mutex::default(), drawn: Notify::new(), time }
    }

    /// Pays a request from leases, if every one of its limits has one that covers it.
    pub(crate) fn spend(&self, claims: &[Claim<'_>]) -> Option<Vec<Outcome>> {
        let leases = &mut self.held.lock().leases;
        // Under the lock: who comes later must not look at an earlier time, when more was left.
        let now = Instant::now();
        let covers = |claim: &Claim<'_>| {
            leases.get(&claim.mark).is_some_and(|lease| lease.covers(claim, &self.time, now))
        };
        if !claims.iter().all(covers) || repeats(claims) {
            return None;
        }
        let pay =
            |claim: &Claim<'_>| Some(leases.get_mut(&claim.mark)?.pay(claim, &self.time, now));
        claims.iter().map(pay).collect()
    }

    /// [`Leases::spend`], for a request with one limit.
    pub(crate) fn spend_one(&self, claim: &Claim<'_>) -> Option<Outcome> {
        let leases = &mut self.held.lock().leases;
        let lease = leases.get_mut(&claim.mark)?;
        let now = Instant::now();
        lease.covers(claim, &self.time, now).then(|| lease.pay(claim, &self.time, now))
    }

    /// The number of a draw to be made for this cell now. There is one at a time, until [`Leases::deposit`].
    pub(crate) fn start_draw(&self, want: &Want, now: Instant) -> Option<u64> {
        let held = &mut *self.held.lock();
        if !held.leases.contains_key(&want.mark) && !held.has_room(&self.time, now) {
            return None;
        }
        let lease = held.leases.entry(want.mark).or_insert_with(|| Lease::nothing(want));
        // It may be another limit's lease that was too small.
        let enough = lease.want.limit == want.limit && lease.units(&self.time, now) >= want.cost;
        if lease.draw.is_some() || enough {
            return None;
        }
        held.draws += 1;
        lease.draw = Some(held.draws);
        lease.draw
    }

    /// Ends a draw, with what it brought if anything. What it was to be added to may have been forgotten meanwhile, and
    /// then so is this, since nobody knows whether it was drawn before or after.
    pub(crate) fn deposit(&self, want: &Want, draw: u64, drawn: Option<Drawn>) {
        let leases = &mut self.held.lock().leases;
        if let Some(lease) = leases.get_mut(&want.mark).filter(|lease| lease.draw == Some(draw)) {
            lease.draw = None;
            match drawn.filter(|drawn| drawn.units > 0) {
                Some(drawn) => lease.add(want, drawn),
                None if lease.is_spent(&self.time, Instant::now()) => {
                    leases.remove(&want.mark);
                }
                None => {}
            }
        }
        self.drawn.notify_waiters();
    }

    /// Forgets the draws in progress: their runtime has ended, so they never will.
    pub(crate) fn end_draws(&self) {
        self.held.lock().leases.values_mut().for_each(|lease| lease.draw = None);
        self.drawn.notify_waiters();
    }

    pub(crate) fn forget(&self, mark: Mark) {
        self.held.lock().leases.remove(&mark);
    }

    pub(crate) fn outstanding(&self) -> u64 {
        self.held.lock().leases.values().map(|lease| lease.units(&self.time, Instant::now())).sum()
    }

    /// Waits until nothing is being drawn.
    pub(crate) async fn settled(&self) {
        loop {
            let drawn = self.drawn.notified();
            if self.held.lock().leases.values().all(|lease| lease.draw.is_none()) {
                return;
            }
            drawn.await;
        }
    }

    /// Takes all leases away, and tells what of them can be given back.
    pub(crate) fn take_all(&self) -> Vec<Unspent> {
        let leases = &mut self.held.lock().leases;
        let unspent = leases.values().filter_map(|lease| lease.unspent(&self.time)).collect();
        leases.retain(|_, lease| {
            lease.left = 0;
            lease.draw.is_some()
        });
        unspent
    }
}

impl Held {
    /// Whether one more key may have a lease, if need be after those that are spent have gone.
    fn has_room(&mut self, time: &Time, now: Instant) -> bool {
        let rests = self.swept.is_some_and(|swept| now.duration_since(swept) < SWEEP_EVERY);
        if self.leases.len() >= MAX_LEASES && !rests {
            self.swept = Some(now);
            self.leases.retain(|_, lease| lease.draw.is_some() || !lease.is_spent(time, now));
        }
        self.leases.len() < MAX_LEASES
    }
}

impl Lease {
    fn nothing(want: &Want) -> Self {
        let trip = Trip::new(Instant::now(), Instant::now());
        Self { want: *want, left: 0, state: State::EMPTY, now: 0, trip, draw: None }
    }

    /// What is left of an earlier draw stays, if it is of the same limit and window.
    fn add(&mut self, want: &Want, drawn: Drawn) {
        let Drawn { units, state, now, trip } = drawn;
        let goes_on = self.want.limit == want.limit && self.state.at() == state.at();
        let rest = if goes_on { self.left } else { 0 };
        *self = Self { want: *want, left: rest + units, state, now, trip, draw: None };
    }

    /// Whether nothing is left to spend.
    fn is_spent(&self, time: &Time, now: Instant) -> bool {
        self.units(time, now) == 0
    }

    /// Units that may be spent whatever the server's clock says, within what it can say now.
    fn units(&self, time: &Time, now: Instant) -> u64 {
        self.left_at(self.bounds(time, now).1)
    }

    /// Between which instants the server's clock stands.
    fn bounds(&self, time: &Time, now: Instant) -> (Timestamp, Timestamp) {
        time.bounds(self.now, self.trip, self.trip.age(now))
    }

    fn covers(&self, claim: &Claim<'_>, time: &Time, now: Instant) -> bool {
        let same = claim.cost > 0 && self.want.limit == *claim.limit;
        same && self.units(time, now) >= claim.cost
    }

    fn pay(&mut self, claim: &Claim<'_>, time: &Time, now: Instant) -> Outcome {
        self.left -= claim.cost;
        self.outcome(time, now).with_origin(Origin::Lease)
    }

    /// Units that are left at an instant of the server's clock.
    fn left_at(&self, instant: Timestamp) -> u64 {
        let end = self.state.at().after(self.want.limit.period());
        if instant < end { self.left } else { 0 }
    }

    fn outcome(&self, time: &Time, now: Instant) -> Outcome {
        let (earliest, latest) = self.bounds(time, now);
        let limit = &self.want.limit;
        let rest = limit.step(&mut self.state.clone(), earliest, 0);
        let remaining = rest.remaining().saturating_add(self.left_at(latest));
        let outcome = Outcome::admitted(remaining.min(limit.capacity()), rest.reset_after());
        outcome.with_decided_at(earliest)
    }

    /// The units that can be returned: none if the window is certainly over.
    fn unspent(&self, time: &Time) -> Option<Unspent> {
        let want = Want { cost: self.left, ..self.want };
        let earliest = self.bounds(time, Instant::now()).0;
        (self.left_at(earliest) > 0).then_some(Unspent { want, drawn: self.now })
    }
}

/// Whether a cell comes twice. One look at each lease would then not be enough.
fn repeats(claims: &[Claim<'_>]) -> bool {
    claims
        .iter()
        .enumerate()
        .any(|(place, claim)| claims[..place].iter().any(|earlier| earlier.mark == claim.mark))
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use pacegate::{Charge, Clock, Counter, KeyRef, Limit, ManualClock};

    use super::*;
    use crate::cell::Names;

    /// Leases whose server's clock is in our hands.
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

        fn want(&self, key: usize, limit: Limit) -> Want {
            let key = key.to_le_bytes();
            let charge = Charge::new("a".parse().unwrap(), KeyRef::new(&key), limit);
            self.names.want(&charge.counter(Counter::Policy)).unwrap()
        }

        /// Draws so many units, if any are to be drawn.
        fn draw(&self, want: &Want, units: u64, now: Instant) -> bool {
            let Some(draw) = self.leases.start_draw(want, now) else { return false };
            let at = self.clock.now();
            let mut state = State::EMPTY;
            want.limit.step(&mut state, at, units);
            let drawn = Drawn { units, state, now: at.as_micros(), trip: Trip::new(now, now) };
            self.leases.deposit(want, draw, Some(drawn));
            true
        }
    }

    /// While there is no room, a request for yet another key does not look for some again and again.
    #[test]
    fn a_full_house_is_swept_once_a_second() {
        let (holder, start) = (Holder::new(), Instant::now());
        let [short, long] = [Limit::per_minute(10), Limit::per_hour(10)];
        for key in 0..MAX_LEASES {
            assert!(holder.draw(&holder.want(key, if key < 2 { short } else { long }), 5, start));
        }
        let new = [1, 2, 3].map(|n| holder.want(MAX_LEASES + n, short));
        assert!(!holder.draw(&new[0], 5, start), "all are in use");
        holder.clock.advance(Duration::from_secs(60));
        let soon = start + Duration::from_millis(999);
        assert!(!holder.draw(&new[0], 5, soon), "nobody has looked again");
        assert!(holder.draw(&holder.want(0, short), 5, soon), "what is there needs no room");
        let later = start + Duration::from_secs(1);
        assert!(holder.draw(&new[0], 5, later), "one was spent");
        assert!(!holder.draw(&new[1], 5, later));
        assert_eq!(holder.leases.held.lock().leases.len(), MAX_LEASES);
    }

    #[test]
    fn a_lease_of_a_limit_that_was_changed_keeps_nobody_from_drawing() {
        let (holder, now) = (Holder::new(), Instant::now());
        let [old, new] = [10, 20].map(|amount| holder.want(0, Limit::per_minute(amount)));
        assert_eq!(old.mark, new.mark);
        assert!(holder.draw(&old, 5, now));
        assert!(!holder.draw(&old, 5, now), "it has enough");
        assert!(holder.draw(&new, 7, now));
        assert_eq!(holder.leases.outstanding(), 7);
    }
}
