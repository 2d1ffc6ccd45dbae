//! Computes the answer of each request of a batch from the states that the server returned.

use std::time::Duration;

use pacegate::{
    Excess, Limit, StoreError, Timestamp,
    algorithm::{Outcome, State},
};
use smallvec::{SmallVec, smallvec};

use crate::{
    batch::{Batch, Run},
    cell::{CellCharge, period_micros},
    fingerprint::Fingerprint,
    responder::{Answer, OutcomeList},
    wire,
};

/// The reply to a batch, and the progress of its replay.
#[derive(Debug)]
pub(crate) struct Replay {
    now: u64,
    /// One for each cell of the batch.
    replicas: Vec<Replica>,
    /// The waiting times of denied charges to logs, in the order of the denials.
    waits: std::vec::IntoIter<u64>,
}

/// A local copy of a cell.
#[derive(Clone, Copy, Debug)]
struct Replica {
    content: Content,
    /// Units charged by the script, and by the replay so far.
    script_took: u64,
    taken: u64,
    denied: bool,
    /// The time until a log has room for one unit, if units were recorded beyond its limit.
    excess_wait: Option<u64>,
}

#[derive(Clone, Copy, Debug)]
enum Content {
    State(State),
    /// The free units, negative if more are used than the limit allows, and the time until all are free.
    Log {
        free: i64,
        reset: u64,
    },
    /// The key holds a value of something else.
    Foreign,
}

/// The state of a cell at an instant.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Snapshot {
    /// Whether it took part in a denial.
    pub(crate) denied: bool,
    /// The server's time.
    pub(crate) now: u64,
    pub(crate) limit: Limit,
    pub(crate) fact: Fact,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Fact {
    /// The whole state, from which the answer to any cost follows.
    State(State),
    /// A log has room for this cost after this time. It may have room for less before.
    Log { cost: u64, wait: u64, free: u64, reset: u64 },
}

type Answers = Vec<Result<Answer, StoreError>>;

/// The script's mark for a key with a foreign value.
const BROKEN: u64 = 1 << 53;

impl Replay {
    pub(crate) fn read(batch: &Batch, reply: &[u8]) -> Result<Self, StoreError> {
        let cells = batch.cells();
        let needed = 1 + 4 * cells.len();
        let mut words: Vec<u64> = wire::read(reply).collect();
        if words.len() < needed {
            let problem = format!("reply of {} bytes for {} cells", reply.len(), cells.len());
            return Err(StoreError::Failed(problem));
        }
        let waits = words.split_off(needed).into_iter();
        let foreign = Replica {
            content: Content::Foreign,
            script_took: 0,
            taken: 0,
            denied: false,
            excess_wait: None,
        };
        let mut replicas = vec![foreign; cells.len()];
        for (place, words) in wire::order(batch).into_iter().zip(words[1..].chunks(4)) {
            let (cell, replica) = (&cells[place as usize], &mut replicas[place as usize]);
            replica.script_took = words[3];
            replica.content = match words[3] {
                BROKEN => Content::Foreign,
                _ if cell.is_log() => {
                    Content::Log { free: words[0].cast_signed(), reset: words[1] }
                }
                _ => Content::State(State::from_words(&cell.limit, [words[0], words[1], words[2]])),
            };
        }
        Ok(Self { now: words[0], replicas, waits })
    }

    /// Returns the answers in the order of the batch's requests, and the new states of the cells.
    pub(crate) fn run(mut self, batch: &Batch) -> (Answers, Vec<(Fingerprint, Snapshot)>) {
        let missing = || Err(StoreError::Failed("a request without an answer".to_owned()));
        let mut answers: Answers = batch.requests().iter().map(|_| missing()).collect();
        let mut snapshots = Vec::new();
        for run in batch.runs() {
            match batch.charges(run) {
                [charge] if run.times > 0 && batch.reservation(run).is_none() => {
                    snapshots.extend(self.repeat(batch, run, charge, &mut answers));
                }
                charges => {
                    let (granted, outcomes) = self.charge_all(run, charges);
                    let answer = self.answer(run, outcomes);
                    answers[run.requests[0] as usize] =
                        answer.map(|answer| Answer { granted, ..answer });
                }
            }
        }
        if self.replicas.iter().any(Replica::disagrees) {
            let problem = "the script and the library disagree; check that their versions match";
            answers.fill_with(|| Err(StoreError::Failed(problem.to_owned())));
            return (answers, Vec::new());
        }
        // The denials of a cell that returns reservations may end earlier.
        let cells = batch.cells().iter().zip(&self.replicas).filter(|(cell, _)| !cell.returns);
        for (cell, replica) in cells {
            let fact = match (replica.content, replica.excess_wait) {
                (Content::State(state), _) => Fact::State(state),
                (Content::Log { reset, .. }, Some(wait)) => {
                    Fact::Log { cost: 1, wait, free: 0, reset }
                }
                // Replaces the cached denial of a lower limit, whose wait is longer now.
                (Content::Log { reset, .. }, None) if replica.taken > 0 && !replica.denied => {
                    Fact::Log { cost: 1, wait: 0, free: 0, reset }
                }
                _ => continue,
            };
            let (denied, limit) = (replica.denied, cell.limit);
            snapshots.push((cell.fingerprint, Snapshot { denied, now: self.now, limit, fact }));
        }
        (answers, snapshots)
    }

    /// Charges one cell for each request of a run. Returns a snapshot of a log that denied.
    fn repeat(
        &mut self,
        batch: &Batch,
        run: &Run,
        charge: &CellCharge,
        answers: &mut Answers,
    ) -> Option<(Fingerprint, Snapshot)> {
        let cell = run.cells[0] as usize;
        let mut wait = None;
        for &request in &run.requests {
            let times = batch.requests()[request as usize].times;
            let (granted, outcome) = self.charge_times(cell, charge, times, &mut wait);
            let answer = self.answer(run, smallvec![outcome]);
            answers[request as usize] = answer.map(|answer| Answer { granted, ..answer });
        }
        let Content::Log { free, reset } = self.replicas[cell].content else { return None };
        let is_reusable =
            !charge.holds_permits() && !charge.excess.is_recorded() && !charge.returns;
        let wait = wait.filter(|_| is_reusable)?;
        let free = free.max(0).cast_unsigned();
        let fact = Fact::Log { cost: charge.cost.max(1), wait, free, reset };
        let snapshot = Snapshot { denied: true, now: self.now, limit: charge.limit, fact };
        Some((charge.fingerprint, snapshot))
    }

    /// Charges several cells in order, so that later charges see the earlier ones. Restores them if one does not fit,
    /// or if the request is a peek. Then charges those whose excess is recorded again. Returns the number of times, and
    /// the outcomes.
    fn charge_all(&mut self, run: &Run, charges: &[CellCharge]) -> (u64, OutcomeList) {
        let times = self.times(run, charges);
        let before: SmallVec<[(usize, Replica); 8]> =
            run.cells.iter().map(|&cell| (cell as usize, self.replicas[cell as usize])).collect();
        let mut outcomes = OutcomeList::with_capacity(charges.len());
        let is_peek = run.times == 0;
        for (&cell, charge) in run.cells.iter().zip(charges) {
            let excess = if is_peek { Excess::Reject } else { charge.excess };
            let charge = CellCharge { excess, cost: charge.cost * times, ..*charge };
            outcomes.push(self.charge(cell as usize, &charge, &mut None));
        }
        let fits =
            |(outcome, charge): (&Outcome, &CellCharge)| outcome.is_admitted() || !charge.enforced;
        if !is_peek && outcomes.iter().zip(charges).all(fits) && !self.is_foreign(run) {
            return (times, outcomes);
        }
        let is_foreign = self.is_foreign(run);
        for &(cell, replica) in before.iter().rev() {
            self.replicas[cell] = Replica { denied: true, ..replica };
        }
        for ((&cell, charge), outcome) in run.cells.iter().zip(charges).zip(&mut outcomes) {
            if charge.excess.is_recorded() && !is_peek && !is_foreign {
                *outcome = self.charge(cell as usize, charge, &mut None);
            } else if outcome.is_admitted() {
                let untouched = self.replicas[cell as usize].peek(charge, self.now);
                *outcome = Outcome::admitted(untouched.remaining(), untouched.reset_after());
            }
        }
        (0, outcomes)
    }

    /// Returns how often all cells that are enforced fit, at least 1.
    fn times(&self, run: &Run, charges: &[CellCharge]) -> u64 {
        if run.times <= 1 {
            return 1;
        }
        let pairs = run.cells.iter().zip(charges).filter(|(_, charge)| charge.enforced);
        let free = pairs.map(|(&cell, charge)| {
            self.replicas[cell as usize].peek(charge, self.now).remaining() / charge.cost.max(1)
        });
        free.min().map_or(run.times, |free| free.clamp(1, run.times))
    }

    /// Charges a cell up to `times` times. Returns how often it fitted, and the outcome of these charges, or if there
    /// are none, of the first. Several charges are one step, since a lease may draw millions of units.
    fn charge_times(
        &mut self,
        cell: usize,
        charge: &CellCharge,
        times: u64,
        wait: &mut Option<u64>,
    ) -> (u64, Outcome) {
        let free = self.replicas[cell].peek(charge, self.now).remaining();
        let granted = if times > 1 { times.min(free / charge.cost.max(1)) } else { 0 };
        let several = CellCharge { cost: charge.cost * granted, ..*charge };
        if granted == times {
            return (granted, self.charge(cell, &several, wait));
        }
        let outcome = (granted > 0).then(|| self.charge(cell, &several, wait));
        let next = self.charge(cell, charge, wait);
        (granted + u64::from(next.is_admitted()), outcome.unwrap_or(next))
    }

    fn charge(&mut self, cell: usize, charge: &CellCharge, wait: &mut Option<u64>) -> Outcome {
        let replica = &mut self.replicas[cell];
        let (outcome, units) = match &mut replica.content {
            Content::Log { free, reset } => {
                if i128::from(charge.cost.max(1)) > i128::from(*free) && wait.is_none() {
                    *wait = Some(self.waits.next().unwrap_or(0));
                }
                let charged = charge_log(charge, (free, reset), wait.unwrap_or(0));
                if charge.excess.is_recorded() && !charged.0.is_admitted() {
                    replica.excess_wait = *wait;
                }
                charged
            }
            Content::State(state) => {
                let now = Timestamp::from_micros(self.now);
                charge.limit.charge(state, now, charge.cost, charge.excess)
            }
            Content::Foreign => (Outcome::denied(0, None, Duration::ZERO), 0),
        };
        replica.denied |= !outcome.is_admitted();
        replica.taken += units;
        outcome
    }

    fn answer(&self, run: &Run, mut outcomes: OutcomeList) -> Result<Answer, StoreError> {
        if self.is_foreign(run) {
            let problem = "a key holds a foreign value, or memory is full: run `pacegate doctor`";
            return Err(StoreError::Failed(problem.to_owned()));
        }
        let granted = u64::from(outcomes.iter().all(Outcome::is_admitted));
        let now = Timestamp::from_micros(self.now);
        outcomes.iter_mut().for_each(|outcome| *outcome = outcome.with_decided_at(now));
        let state = match self.replicas[run.cells[0] as usize].content {
            Content::State(state) => Some(state),
            Content::Log { .. } | Content::Foreign => None,
        };
        Ok(Answer { outcomes, granted, now: self.now, state, ..Answer::default() })
    }

    fn is_foreign(&self, run: &Run) -> bool {
        run.cells.iter().any(|&cell| self.replicas[cell as usize].is_foreign())
    }
}

impl Replica {
    fn is_foreign(&self) -> bool {
        matches!(self.content, Content::Foreign)
    }

    fn disagrees(&self) -> bool {
        !self.is_foreign() && self.taken != self.script_took
    }

    fn peek(&self, charge: &CellCharge, now: u64) -> Outcome {
        match self.content {
            Content::State(mut state) => {
                charge.limit.step(&mut state, Timestamp::from_micros(now), 0)
            }
            Content::Log { free, reset } => {
                let free = free.max(0).cast_unsigned();
                Outcome::admitted(free, Duration::from_micros(reset))
            }
            Content::Foreign => Outcome::denied(0, None, Duration::ZERO),
        }
    }
}

/// Charges a log with `free` units, all of which are free after `reset` microseconds. `wait` is the time until the cost
/// fits, or one unit if the excess is recorded. Returns the outcome and the units taken.
fn charge_log(
    charge: &CellCharge,
    (free, reset): (&mut i64, &mut u64),
    wait: u64,
) -> (Outcome, u64) {
    let CellCharge { ref limit, cost, excess, .. } = *charge;
    let debt = |free: i64| free.min(0).unsigned_abs();
    let whole = (*free).max(0).cast_unsigned();
    let mut outcome = log_outcome((limit, cost), (whole, *reset), wait);
    if cost == 0 {
        outcome = outcome.with_debt(debt(*free));
    }
    let units = match excess {
        _ if outcome.is_admitted() => cost,
        Excess::Count if cost == 0 && *free == 0 => {
            outcome = Outcome::admitted(0, outcome.reset_after());
            0
        }
        Excess::Count => recorded(*free, limit.max_excess(), cost),
        Excess::Debt { max } => recorded(*free, max, cost),
        _ => 0,
    };
    if units > 0 {
        *free -= units.cast_signed();
        *reset = period_micros(limit);
        if !outcome.is_admitted() {
            let remaining = if excess == Excess::Count { whole } else { 0 };
            let [wait, reset] = [wait, *reset].map(Duration::from_micros);
            outcome = Outcome::denied(remaining, Some(wait), reset).with_debt(debt(*free));
        }
    }
    (outcome, units)
}

/// Returns the units of a cost that are recorded, up to `max` beyond the capacity.
fn recorded(free: i64, max: u64, cost: u64) -> u64 {
    cost.min(u64::try_from(i128::from(free) + i128::from(max)).unwrap_or(0))
}

/// Returns the answer of a log with `free` units, all of which are free after `reset` microseconds. `wait` is the time
/// until the cost fits.
pub(crate) fn log_outcome(
    (limit, cost): (&Limit, u64),
    (free, reset): (u64, u64),
    wait: u64,
) -> Outcome {
    if limit.amount() == 0 {
        return Outcome::denied(0, None, Duration::ZERO);
    }
    if cost.max(1) > free {
        let wait = Duration::from_micros(wait);
        return Outcome::denied(free, Some(wait), Duration::from_micros(reset));
    }
    let reset = if cost > 0 { limit.period() } else { Duration::from_micros(reset) };
    Outcome::admitted(free - cost, reset)
}
