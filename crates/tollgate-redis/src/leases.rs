//! Leases: units drawn ahead, and spent here without asking.
//!
//! They were charged before they are spent, so whatever happens to this process, nothing is admitted twice. What is
//! drawn in a window is only spent while the server is certainly still in that window. What is drawn from a token
//! bucket dwindles at the bucket's rate, because the bucket refills meanwhile: bucket and leases together never hold
//! more than the burst.

use std::collections::HashMap;

use parking_lot::Mutex;
use tokio::{sync::Notify, time::Instant};
use tollgate::{
    Limit, Timestamp,
    algorithm::{Origin, Outcome, State},
};

use crate::{
    cell::{Kind, Want, period_micros},
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
}

#[derive(Debug)]
struct Lease {
    want: Want,
    /// What was left at `now`, less what was spent since, in periods of a unit: so a bucket's dwindling is exact.
    left: u128,
    /// The state just after the last draw, and when that was.
    state: State,
    now: u64,
    trip: Trip,
    /// The number of the draw that is under way.
    draw: Option<u64>,
}

/// Units to be given back, and as much of one more as `part` of its period, all of which were there at `drawn`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unspent {
    pub(crate) want: Want,
    pub(crate) part: u64,
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
    pub(crate) fn start_draw(&self, want: &Want) -> Option<u64> {
        let held = &mut *self.held.lock();
        if held.leases.len() >= MAX_LEASES && !held.leases.contains_key(&want.mark) {
            held.leases.retain(|_, lease| lease.draw.is_some() || !lease.is_spent(&self.time));
            if held.leases.len() >= MAX_LEASES {
                return None;
            }
        }
        let lease = held.leases.entry(want.mark).or_insert_with(|| Lease::nothing(want));
        // It may be another limit's lease that was too small.
        if lease.draw.is_some() || lease.units(&self.time, Instant::now()) >= want.cost {
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
                None if lease.is_spent(&self.time) => drop(leases.remove(&want.mark)),
                None => {}
            }
        }
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

impl Lease {
    fn nothing(want: &Want) -> Self {
        let trip = Trip::new(Instant::now(), Instant::now());
        Self { want: *want, left: 0, state: State::EMPTY, now: 0, trip, draw: None }
    }

    /// What is left of an earlier draw stays, if it is of the same limit and window.
    fn add(&mut self, want: &Want, drawn: Drawn) {
        let Drawn { units, state, now, trip } = drawn;
        let goes_on = match want.kind {
            Kind::TokenBucket => true,
            _ => self.state.at() == state.at(),
        };
        let rest = match goes_on && self.want.limit == want.limit {
            true => self.left_at(Timestamp::from_micros(now)),
            false => 0,
        };
        let left = rest + in_periods(units, &want.limit);
        *self = Self { want: *want, left, state, now, trip, draw: None };
    }

    /// Whether not even a part of a unit is left.
    fn is_spent(&self, time: &Time) -> bool {
        self.left_at(self.bounds(time, Instant::now()).1) == 0
    }

    /// Units that may be spent whatever the server's clock says, within what it can say now.
    fn units(&self, time: &Time, now: Instant) -> u64 {
        self.units_at(self.bounds(time, now).1)
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
        self.left -= in_periods(claim.cost, claim.limit);
        self.outcome(time, now).with_origin(Origin::Lease)
    }

    fn units_at(&self, instant: Timestamp) -> u64 {
        let units = self.left_at(instant) / u128::from(period_micros(&self.want.limit));
        u64::try_from(units).unwrap_or(u64::MAX)
    }

    /// In periods of a unit.
    fn left_at(&self, instant: Timestamp) -> u128 {
        if self.want.kind == Kind::TokenBucket {
            let passed = instant.micros_since(Timestamp::from_micros(self.now));
            let refilled = u128::from(passed) * u128::from(self.want.limit.amount());
            return self.left.saturating_sub(refilled);
        }
        let end = self.state.at().after(self.want.limit.period());
        if instant < end { self.left } else { 0 }
    }

    fn outcome(&self, time: &Time, now: Instant) -> Outcome {
        let (earliest, latest) = self.bounds(time, now);
        let limit = &self.want.limit;
        let rest = limit.step(&mut self.state.clone(), earliest, 0);
        let remaining = rest.remaining().saturating_add(self.units_at(latest));
        Outcome::admitted(remaining.min(limit.capacity()), rest.reset_after())
    }

    /// All that was left when it was drawn: the server knows best how much of it dwindled since.
    fn unspent(&self, time: &Time) -> Option<Unspent> {
        let period = u128::from(period_micros(&self.want.limit));
        let cost = u64::try_from(self.left / period).unwrap_or(u64::MAX);
        let part = u64::try_from(self.left % period).unwrap_or(0);
        let want = Want { cost, ..self.want };
        let earliest = self.bounds(time, Instant::now()).0;
        (self.left_at(earliest) > 0).then_some(Unspent { want, part, drawn: self.now })
    }
}

fn in_periods(units: u64, limit: &Limit) -> u128 {
    u128::from(units) * u128::from(period_micros(limit))
}

/// Whether a cell comes twice. One look at each lease would then not be enough.
fn repeats(claims: &[Claim<'_>]) -> bool {
    claims
        .iter()
        .enumerate()
        .any(|(place, claim)| claims[..place].iter().any(|earlier| earlier.mark == claim.mark))
}
