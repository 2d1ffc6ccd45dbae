//! The arguments of the scripts: little-endian words of 64 bits.

use pacegate::{Excess, Limit, Timestamp};

use crate::{
    batch::{Batch, NewReservation},
    cell::{CellCharge, period_micros},
    settlement::Settlement,
};

/// Parameters of all script calls of a store.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ScriptParams {
    /// The time plus one, in microseconds; 0 means the server's time.
    pub(crate) now: u64,
    /// An estimate of the server's time, from which the windows of calendar periods are computed.
    pub(crate) estimate: Timestamp,
    /// Milliseconds that keys live longer than needed.
    pub(crate) slack: u64,
    /// Milliseconds for which the answer of a request with an id is stored.
    pub(crate) once: u64,
    /// Maximum number of times that a stored answer is repeated.
    pub(crate) repeats: u64,
    /// Whether keys may be created.
    pub(crate) create: bool,
}

/// Maximum number of times that the answer of a request with an id is repeated: enough for a caller that retries, and
/// too few to gain from reusing an id.
pub(crate) const MAX_REPEATS: u64 = 4;

/// The number of fixed windows of a calendar period in the scripts. No algorithm has this number.
const CALENDAR: u64 = 100;

/// The argument of a script that decides a batch.
#[derive(Debug)]
pub(crate) struct Program {
    pub(crate) bytes: Vec<u8>,
    /// Indexes of the batch's cells in the order of the script's keys.
    pub(crate) order: Vec<u32>,
    /// Whether it is for `charge_simple.lua`, where runs are in the order of the cells.
    pub(crate) is_simple: bool,
}

/// A change of one cell other than a charge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// Returns the cost.
    Refund,
    /// Returns the cost, unless the window in which it was charged is over.
    Return { charged_at: u64 },
    /// Ends a permit.
    Release,
    /// Restarts the lifetime of a permit.
    Renew,
    /// Deletes the state.
    Reset,
    /// Claims an event. The cell is that of the claim.
    Claim { owner: [u64; 2], at: u64, ends: u64 },
}

impl Program {
    /// Encodes any batch, for `charge_batch.lua`.
    pub(crate) fn general(batch: &Batch, params: ScriptParams) -> Self {
        let order = order(batch);
        let mut place_of = vec![0; order.len()];
        for (place, &cell) in order.iter().enumerate() {
            // Lua counts from 1.
            place_of[cell as usize] = place as u64 + 1;
        }
        let strings = batch.cells().iter().filter(|cell| !cell.is_log()).count();
        let once = if batch.once().is_some() { params.once } else { 0 };
        let mut words = Words::with_capacity(9 + 13 * order.len());
        words.push([params.now, params.slack, once, params.repeats, u64::from(params.create)]);
        let returning = batch.cells().iter().filter(|cell| cell.returns).count();
        let counts = [order.len(), strings, batch.runs().len(), returning];
        words.push(counts.map(|count| count as u64));
        for &cell in &order {
            let cell = &batch.cells()[cell as usize];
            words.push([u64::from(cell.returns)]);
            words.limit(cell.script_id, &cell.limit, params);
        }
        for run in batch.runs() {
            let ttl = batch.reservation(run).map_or(0, |reservation| reservation.ttl);
            words.push([run.times, run.cells.len() as u64, ttl]);
            for (&cell, charge) in run.cells.iter().zip(batch.charges(run)) {
                let CellCharge { cost, permit: [high, low], enforced, .. } = *charge;
                let [enforced, excess] = [u64::from(enforced), excess_word(charge)];
                words.push([place_of[cell as usize], cost, high, low, enforced, excess]);
            }
        }
        Self { bytes: words.0, order, is_simple: false }
    }

    /// Encodes a [simple](Batch::is_simple) batch, for `charge_simple.lua`: cells with the same limit are adjacent.
    pub(crate) fn simple(batch: &Batch, params: ScriptParams) -> Self {
        let order = order(batch);
        let cells = batch.cells();
        let groups =
            order.chunk_by(|&one, &other| cells[one as usize].limit == cells[other as usize].limit);
        let mut words = Words::with_capacity(10 + 3 * order.len());
        words.push([params.now, params.slack, u64::from(params.create)]);
        words.push([order.len() as u64, groups.clone().count() as u64]);
        for group in groups {
            let cell = &cells[group[0] as usize];
            words.push([group.len() as u64]);
            words.limit(cell.script_id, &cell.limit, params);
            for &cell in group {
                let run = &batch.runs()[cells[cell as usize].last_run];
                let charge = &batch.charges(run)[0];
                match batch.reservation(run) {
                    Some(NewReservation { ttl, .. }) => words.push([0, charge.cost, ttl]),
                    None => words.push([run.times, charge.cost, excess_word(charge)]),
                }
            }
        }
        Self { bytes: words.0, order, is_simple: true }
    }
}

/// Encodes the treatment of a cost that does not fit: 0, or 1 + 2 × the maximum beyond the capacity, + 1 for debt.
fn excess_word(charge: &CellCharge) -> u64 {
    match charge.excess {
        Excess::Count => 1 + 2 * charge.limit.max_excess(),
        Excess::Debt { max } => 2 + 2 * max,
        _ => 0,
    }
}

/// Encodes the argument of `update.lua`.
pub(crate) fn encode_update(charge: &CellCharge, action: Action, params: ScriptParams) -> Vec<u8> {
    let (action, charged_at) = match action {
        Action::Refund | Action::Claim { .. } => (0, 0),
        Action::Return { charged_at } => (0, charged_at),
        Action::Release => (1, 0),
        Action::Renew => (2, 0),
        Action::Reset => (3, 0),
    };
    let mut words = Words::with_capacity(11);
    words.push([params.now, params.slack, action, charge.cost, charged_at]);
    words.push(charge.permit);
    words.limit(charge.script_id, &charge.limit, params);
    words.0
}

/// Encodes the argument of `settle.lua`.
pub(crate) fn encode_settlements(settlements: &[Settlement], params: ScriptParams) -> Vec<u8> {
    let mut words = Words::with_capacity(3 + 8 * settlements.len());
    words.push([params.now, params.slack, settlements.len() as u64]);
    for settlement in settlements {
        words.push([used(settlement), settlement.charges.len() as u64]);
        for charge in &settlement.charges {
            words.push([u64::from(charge.returns), excess_word(charge)]);
            words.limit(charge.script_id, &charge.limit, params);
        }
    }
    words.0
}

/// Encodes [simple](crate::settlement::is_simple) settlements, for `settle_simple.lua`.
pub(crate) fn encode_simple_settlements(
    settlements: &[Settlement],
    params: ScriptParams,
) -> Vec<u8> {
    let groups = settlements.chunk_by(|one, other| one.charges[0].limit == other.charges[0].limit);
    let mut words = Words::with_capacity(9 + 2 * settlements.len());
    words.push([params.now, params.slack, settlements.len() as u64, groups.clone().count() as u64]);
    for group in groups {
        let charge = &group[0].charges[0];
        words.push([group.len() as u64]);
        words.limit(charge.script_id, &charge.limit, params);
        for settlement in group {
            words.push([used(settlement), excess_word(&settlement.charges[0])]);
        }
    }
    words.0
}

/// Returns the used units. No counter holds more than the maximum, and a double would not be exact.
fn used(settlement: &Settlement) -> u64 {
    settlement.actual.min(Limit::MAX_AMOUNT)
}

/// Decodes words.
pub(crate) fn read(bytes: &[u8]) -> impl Iterator<Item = u64> {
    let (words, _) = bytes.as_chunks::<8>();
    words.iter().map(|&word| u64::from_le_bytes(word))
}

/// Returns the order of the cells in a program: strings before logs, and cells with the same limit adjacent.
pub(crate) fn order(batch: &Batch) -> Vec<u32> {
    let cells = batch.cells();
    let mut order: Vec<u32> = (0..cells.len() as u32).collect();
    if cells.windows(2).any(|pair| pair[0].limit != pair[1].limit) {
        order.sort_by_cached_key(|&cell| {
            let cell = &cells[cell as usize];
            let first_like = cells.iter().position(|other| other.limit == cell.limit);
            (cell.is_log(), first_like)
        });
    }
    order
}

/// Encoded words.
#[derive(Debug)]
pub(crate) struct Words(Vec<u8>);

impl Words {
    pub(crate) fn with_capacity(words: usize) -> Self {
        Self(Vec::with_capacity(8 * words))
    }

    pub(crate) fn into_bytes(self) -> Vec<u8> {
        self.0
    }

    pub(crate) fn push<const COUNT: usize>(&mut self, words: [u64; COUNT]) {
        words.iter().for_each(|word| self.0.extend_from_slice(&word.to_le_bytes()));
    }

    /// Adds a limit. For a calendar period, adds its current window too: the server cannot compute it.
    fn limit(&mut self, script_id: u64, limit: &Limit, params: ScriptParams) {
        match limit.calendar().and(limit.window_at(params.estimate)) {
            None => self.push([script_id, limit.amount(), limit.capacity(), period_micros(limit)]),
            Some(window) => {
                self.push([CALENDAR, limit.amount(), limit.capacity(), limit.max_window_micros()]);
                self.push([window.start().as_micros(), window.end().as_micros(), window.number()]);
            }
        }
    }
}
