//! What the scripts are told: little-endian words of 64 bits, one after the other.

use crate::{
    batch::Batch,
    cell::{Want, period_micros},
};

/// What holds for all batches of a store.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Settings {
    /// The time to go by, in microseconds; 0 for the server's own.
    pub(crate) now: u64,
    /// Milliseconds that a key outlives its use.
    pub(crate) slack: u64,
    /// Milliseconds for which a remembered answer is kept.
    pub(crate) once: u64,
    /// How often a remembered answer is repeated.
    pub(crate) repeats: u64,
    /// Whether keys may be made.
    pub(crate) create: bool,
}

/// How often the answer to a request with an id is repeated: enough for a caller that retries, and few enough that
/// reusing one id for many requests gains little.
pub(crate) const MAX_REPEATS: u64 = 4;

/// A batch as the script reads it.
#[derive(Debug)]
pub(crate) struct Program {
    pub(crate) bytes: Vec<u8>,
    /// The places of the batch's cells in the order in which the script has them.
    pub(crate) order: Vec<u32>,
}

/// What to do to one cell besides charging it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    /// Gives the cost back.
    Refund,
    /// Gives back the cost to a window, unless that is over: it was charged at this instant.
    Return { drawn: u64 },
    /// Ends a permit.
    Release,
    /// Starts the life of a permit anew.
    Renew,
}

impl Program {
    /// For the script that decides any batch.
    pub(crate) fn general(batch: &Batch, settings: Settings) -> Self {
        let order = order(batch);
        let mut place_of = vec![0; order.len()];
        for (place, &cell) in order.iter().enumerate() {
            // The script counts from 1.
            place_of[cell as usize] = place as u64 + 1;
        }
        let strings =
            batch.cells().iter().filter(|cell| !cell.limit.algorithm().keeps_log()).count();
        let once = if batch.once().is_some() { settings.once } else { 0 };
        let mut words = Words(Vec::with_capacity(64 + 88 * order.len()));
        words.push([settings.now, settings.slack, once, settings.repeats]);
        words.push([u64::from(settings.create)]);
        words.push([order.len() as u64, strings as u64, batch.runs().len() as u64]);
        for &cell in &order {
            let cell = &batch.cells()[cell as usize];
            words.limit(cell.kind, &cell.limit);
        }
        for run in batch.runs() {
            words.push([run.times, run.cells.len() as u64]);
            let wants = &batch.asks()[run.asks[0] as usize].wants;
            for (&cell, want) in run.cells.iter().zip(wants) {
                let Want { cost, permit: [high, low], enforced, .. } = *want;
                words.push([place_of[cell as usize], cost, high, low, u64::from(enforced)]);
            }
        }
        Self { bytes: words.0, order }
    }

    /// For the script that decides [simple](Batch::is_simple) batches: cells with the same limit side by side.
    pub(crate) fn simple(batch: &Batch, settings: Settings) -> Self {
        let order = order(batch);
        let cells = batch.cells();
        let groups =
            order.chunk_by(|&one, &other| cells[one as usize].limit == cells[other as usize].limit);
        let mut words = Words(Vec::with_capacity(80 + 16 * order.len()));
        words.push([settings.now, settings.slack, u64::from(settings.create)]);
        words.push([order.len() as u64, groups.clone().count() as u64]);
        for group in groups {
            let cell = &cells[group[0] as usize];
            words.push([group.len() as u64]);
            words.limit(cell.kind, &cell.limit);
            for &cell in group {
                let run = &batch.runs()[cells[cell as usize].last_run];
                words.push([run.times, batch.asks()[run.asks[0] as usize].wants[0].cost]);
            }
        }
        Self { bytes: words.0, order }
    }
}

/// The program of the script that amends one cell.
pub(crate) fn amendment(want: &Want, action: Action, settings: Settings) -> Vec<u8> {
    let (action, drawn) = match action {
        Action::Refund => (0, 0),
        Action::Return { drawn } => (0, drawn),
        Action::Release => (1, 0),
        Action::Renew => (2, 0),
    };
    let mut words = Words(Vec::with_capacity(88));
    words.push([settings.now, settings.slack, action, want.cost, drawn]);
    words.push(want.permit);
    words.limit(want.kind, &want.limit);
    words.0
}

/// Reads words back.
pub(crate) fn read(bytes: &[u8]) -> impl Iterator<Item = u64> {
    let (words, _) = bytes.as_chunks::<8>();
    words.iter().map(|&word| u64::from_le_bytes(word))
}

/// The places of the cells: strings first, and what has the same limit side by side.
pub(crate) fn order(batch: &Batch) -> Vec<u32> {
    let cells = batch.cells();
    let mut order: Vec<u32> = (0..cells.len() as u32).collect();
    if cells.windows(2).any(|pair| pair[0].limit != pair[1].limit) {
        let first_like = |cell: u32| {
            let limit = cells[cell as usize].limit;
            cells.iter().position(|other| other.limit == limit)
        };
        order.sort_by_cached_key(|&cell| {
            (cells[cell as usize].limit.algorithm().keeps_log(), first_like(cell))
        });
    }
    order
}

/// Words to be sent.
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

    fn limit(&mut self, kind: u64, limit: &pacegate::Limit) {
        self.push([kind, limit.amount(), limit.capacity(), period_micros(limit)]);
    }
}
