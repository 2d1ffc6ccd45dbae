//! Leases: units drawn ahead, and spent here without asking.
//!
//! They were charged before they are spent, so whatever happens to this process, nothing is admitted twice. What is
//! drawn in a window is only spent while the server is certainly still in that window. What is drawn from a token bucket
//! dwindles at the bucket's rate, because the bucket refills meanwhile: bucket and leases together never hold more than
//! the burst.

use std::collections::HashMap;

use parking_lot::Mutex;
use tokio::time::Instant;
use tollgate::{
    Limit, Timestamp,
    algorithm::{Origin, Outcome, State},
};

use crate::{
    cell::{CellId, Kind, Want, period_micros},
    time::{Time, Trip},
};

/// All leases of a store.
#[derive(Debug)]
pub(crate) struct Leases {
    held: Mutex<HashMap<CellId, Lease, foldhash::fast::RandomState>>,
    time: Time,
}

#[derive(Debug)]
struct Lease {
    want: Want,
    limit: Limit,
    /// Units drawn, and how many of them were spent.
    drawn: u64,
    spent: u64,
    /// The state just after the draw, and when that was.
    state: State,
    now: u64,
    trip: Trip,
    /// Whether more is being drawn.
    drawing: bool,
}

/// Units to be given back, if the server's time has not reached `before`.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unspent {
    pub(crate) want: Want,
    pub(crate) before: u64,
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
        Self { held: Mutex::default(), time }
    }

    /// Pays a request from leases, if every one of its limits has one that covers it.
    pub(crate) fn spend(&self, wants: &[Want]) -> Option<Vec<Outcome>> {
        let mut held = self.held.lock();
        let covers = |want: &Want| {
            let lease = held.get(&want.cell).filter(|lease| lease.limit == want.limit);
            want.cost > 0 && lease.is_some_and(|lease| lease.left(&self.time) >= want.cost)
        };
        if !wants.iter().all(covers) || repeats(wants) {
            return None;
        }
        let outcomes = wants.iter().map(|want| {
            let lease = held.get_mut(&want.cell)?;
            lease.spent += want.cost;
            Some(lease.outcome(&self.time).with_origin(Origin::Lease))
        });
        outcomes.collect()
    }

    /// Whether to draw more for this cell now. The answer is yes to one caller until [`Leases::deposit`].
    pub(crate) fn start_draw(&self, want: &Want) -> bool {
        let mut held = self.held.lock();
        if let Some(lease) = held.get_mut(&want.cell) {
            return !std::mem::replace(&mut lease.drawing, true);
        }
        if held.len() >= MAX_LEASES {
            held.retain(|_, lease| lease.drawing || lease.left(&self.time) > 0);
        }
        let room = held.len() < MAX_LEASES;
        if room {
            held.insert(want.cell, Lease::awaited(want));
        }
        room
    }

    /// Ends a draw, with what it brought if anything.
    pub(crate) fn deposit(&self, want: &Want, drawn: Option<Drawn>) {
        let mut held = self.held.lock();
        let Some(lease) = held.get_mut(&want.cell) else { return };
        lease.drawing = false;
        match drawn {
            Some(Drawn { units, state, now, trip }) if units > 0 => {
                // What is left of the old lease stays charged and unspent: little, since it did not cover a request.
                *lease = Lease { drawn: units, state, now, trip, ..Lease::awaited(want) };
                lease.drawing = false;
            }
            _ => drop(held.remove(&want.cell)),
        }
    }

    pub(crate) fn forget(&self, cell: CellId) {
        self.held.lock().remove(&cell);
    }

    pub(crate) fn outstanding(&self) -> u64 {
        self.held.lock().values().map(|lease| lease.left(&self.time)).sum()
    }

    /// Takes all leases away, and tells what of them can be given back within `reach` microseconds.
    pub(crate) fn take_all(&self, reach: u64) -> Vec<Unspent> {
        let held = std::mem::take(&mut *self.held.lock());
        held.into_values().filter_map(|lease| lease.unspent(&self.time, reach)).collect()
    }
}

impl Lease {
    /// Nothing yet, but on its way.
    fn awaited(want: &Want) -> Self {
        let trip = (Instant::now(), Instant::now());
        Self {
            want: *want,
            limit: want.limit,
            drawn: 0,
            spent: 0,
            state: State::EMPTY,
            now: 0,
            trip,
            drawing: true,
        }
    }

    /// Units that may be spent whatever the server's clock says, within what it can say now.
    fn left(&self, time: &Time) -> u64 {
        self.left_at(time.bounds(self.now, self.trip, Instant::now()).1)
    }

    fn left_at(&self, latest: Timestamp) -> u64 {
        let left = self.drawn - self.spent;
        if self.want.kind == Kind::TokenBucket {
            let passed = latest.micros_since(Timestamp::from_micros(self.now));
            let refilled = u128::from(passed) * u128::from(self.limit.amount());
            let refilled = refilled.div_ceil(u128::from(period_micros(&self.limit)));
            return left.saturating_sub(u64::try_from(refilled).unwrap_or(u64::MAX));
        }
        if latest < self.end() { left } else { 0 }
    }

    /// The end of the window in which the units were drawn.
    fn end(&self) -> Timestamp {
        self.state.at().after(self.limit.period())
    }

    fn outcome(&self, time: &Time) -> Outcome {
        let (earliest, latest) = time.bounds(self.now, self.trip, Instant::now());
        let rest = self.limit.step(&mut self.state.clone(), earliest, 0);
        let remaining = rest.remaining().saturating_add(self.left_at(latest));
        Outcome::admitted(remaining.min(self.limit.capacity()), rest.reset_after())
    }

    fn unspent(self, time: &Time, reach: u64) -> Option<Unspent> {
        let latest = time.bounds(self.now, self.trip, Instant::now()).1.as_micros();
        let reached = Timestamp::from_micros(latest.saturating_add(reach));
        let before = match self.want.kind {
            Kind::TokenBucket => reached,
            _ => self.end(),
        };
        let cost = match self.want.kind {
            Kind::TokenBucket => self.left_at(reached),
            _ => self.left_at(Timestamp::from_micros(latest)),
        };
        let want = Want { cost, ..self.want };
        (cost > 0).then_some(Unspent { want, before: before.as_micros() })
    }
}

/// Whether a cell comes twice. One look at each lease would then not be enough.
fn repeats(wants: &[Want]) -> bool {
    wants
        .iter()
        .enumerate()
        .any(|(place, want)| wants[..place].iter().any(|earlier| earlier.cell == want.cell))
}
