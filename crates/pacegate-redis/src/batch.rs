//! Batches: requests that travel together, and how their answers are told apart again.
//!
//! A batch is one script call. Requests for the same cell and cost become one run of that many, so a hot key costs the
//! server one step however many requests there are. The server answers with the states as they were; what each request
//! gets is replayed here, in order of arrival, by the same steps that the memory store takes.

use std::{collections::HashMap, time::Duration};

use pacegate::{
    Limit, StoreError,
    algorithm::{Outcome, State},
};
use redis::Cmd;
use smallvec::SmallVec;
use tokio::time::Instant;

use crate::{
    cell::{CellId, Names, Want},
    mark::Mark,
    replay::{Known, Replay},
    waiter::Waiter,
    wire::Program,
};

/// One request on its way.
#[derive(Debug)]
pub(crate) struct Ask {
    /// What it wants: all or nothing, all in one slot.
    pub(crate) wants: SmallVec<[Want; 1]>,
    /// How often, as far as it fits. More than once only to draw units ahead, with a single want; 0 only asks what
    /// would be answered.
    pub(crate) times: u64,
    /// Where the answer is remembered, so that the same question again changes nothing.
    pub(crate) once: Option<CellId>,
    pub(crate) waiter: Waiter<Answer>,
}

impl Ask {
    pub(crate) fn is_awaited(&self) -> bool {
        self.waiter.since().is_some()
    }
}

/// What comes back.
pub(crate) type Answered = Result<Answer, StoreError>;

#[derive(Debug)]
pub(crate) struct Answer {
    /// One for each want; of the last time, if there were several.
    pub(crate) outcomes: Vec<Outcome>,
    /// How many of the times were admitted.
    pub(crate) granted: u64,
    /// The server's time.
    pub(crate) now: u64,
    /// What the state of its only cell is now.
    pub(crate) state: Option<State>,
}

/// Requests that one script call decides.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    cells: Vec<Cell>,
    places: HashMap<CellId, u32, foldhash::fast::RandomState>,
    runs: Vec<Run>,
    asks: Vec<Ask>,
}

#[derive(Debug)]
pub(crate) struct Cell {
    pub(crate) id: CellId,
    pub(crate) mark: Mark,
    pub(crate) limit: Limit,
    pub(crate) kind: u64,
    /// The last run that touches it.
    pub(crate) last_run: usize,
}

/// Asks that want the same of the same cell; or one ask that wants something of several.
#[derive(Debug)]
pub(crate) struct Run {
    /// Places in the batch's asks, in order of arrival.
    pub(crate) asks: SmallVec<[u32; 1]>,
    pub(crate) times: u64,
    /// Places in the batch's cells, one for each want of the first ask.
    pub(crate) cells: SmallVec<[u32; 1]>,
}

/// More cells than this would keep the server busy for too long at a stretch.
const MAX_CELLS: usize = 64;
/// The same for runs that could not be combined.
const MAX_RUNS: usize = 256;

impl Batch {
    pub(crate) fn with_capacity(asks: usize) -> Self {
        Self { asks: Vec::with_capacity(asks), ..Self::default() }
    }

    /// Takes a request in, or hands it back if it has to travel with the next batch.
    pub(crate) fn add(&mut self, ask: Ask) -> Option<Ask> {
        if !self.has_room_for(&ask) {
            return Some(ask);
        }
        self.push(ask);
        None
    }

    fn push(&mut self, ask: Ask) {
        let cells: SmallVec<[u32; 1]> = ask.wants.iter().map(|want| self.place(want)).collect();
        let place = self.asks.len() as u32;
        match self.run_to_join(&ask, &cells) {
            Some(run) => {
                run.asks.push(place);
                run.times += ask.times;
            }
            None => {
                for &cell in &cells {
                    self.cells[cell as usize].last_run = self.runs.len();
                }
                let asks = SmallVec::from_elem(place, 1);
                self.runs.push(Run { asks, times: ask.times, cells });
            }
        }
        self.asks.push(ask);
    }

    /// A remembered answer is that of a whole batch, so it must be the only one. A cell has one limit in a batch.
    fn has_room_for(&self, ask: &Ask) -> bool {
        let same_limit = |want: &Want| {
            let place = self.places.get(&want.cell);
            place.is_none_or(|&place| self.cells[place as usize].limit == want.limit)
        };
        let small = self.cells.len() < MAX_CELLS && self.runs.len() < MAX_RUNS;
        let alone = ask.once.is_some() || self.once().is_some();
        self.asks.is_empty() || (small && !alone && ask.wants.iter().all(same_limit))
    }

    fn place(&mut self, want: &Want) -> u32 {
        *self.places.entry(want.cell).or_insert_with(|| {
            let Want { cell: id, mark, limit, kind, .. } = *want;
            self.cells.push(Cell { id, mark, limit, kind, last_run: usize::MAX });
            (self.cells.len() - 1) as u32
        })
    }

    /// The run that this request continues: the last one of its cell, if it is for the same cost. Permits are taken one
    /// by one, since each has a name.
    fn run_to_join(&mut self, ask: &Ask, cells: &[u32]) -> Option<&mut Run> {
        let ([want], &[cell]) = (ask.wants.as_slice(), cells) else { return None };
        let run = self.runs.get_mut(self.cells[cell as usize].last_run)?;
        let first = &self.asks[run.asks[0] as usize].wants;
        let real = ask.times > 0 && run.times > 0;
        let same = real
            && first.len() == 1
            && first[0].cost == want.cost
            && !want.limit.algorithm().holds_permits();
        same.then_some(run)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.asks.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.asks.len()
    }

    pub(crate) fn cells(&self) -> &[Cell] {
        &self.cells
    }

    pub(crate) fn runs(&self) -> &[Run] {
        &self.runs
    }

    pub(crate) fn asks(&self) -> &[Ask] {
        &self.asks
    }

    pub(crate) fn once(&self) -> Option<CellId> {
        self.asks.first().and_then(|ask| ask.once)
    }

    /// Since when somebody waits for it, if anybody does.
    pub(crate) fn since(&self) -> Option<Instant> {
        self.asks.iter().filter_map(|ask| ask.waiter.since()).min()
    }

    /// Answers all who have waited for too long. How many that were.
    pub(crate) fn expire(&mut self, deadline: Duration) -> usize {
        self.asks.iter_mut().map(|ask| usize::from(ask.waiter.expire(deadline))).sum()
    }

    /// Whether everybody wants one thing of one string, and nobody wants it at another cost.
    pub(crate) fn is_simple(&self) -> bool {
        self.runs.len() == self.cells.len()
            && self.once().is_none()
            && self.runs.iter().all(|run| run.cells.len() == 1 && run.times > 0)
            && self.cells.iter().all(|cell| !cell.limit.algorithm().keeps_log())
    }

    /// Puts the keys and the program behind the call of a script.
    pub(crate) fn command(&self, mut command: Cmd, names: &Names, program: Program) -> Cmd {
        command.arg(self.cells.len() + usize::from(self.once().is_some()));
        for &place in &program.order {
            command.arg(names.key(self.cells[place as usize].id));
        }
        if let Some(once) = self.once() {
            command.arg(names.key(once));
        }
        command.arg(program.bytes);
        command
    }

    /// Answers every request, and tells `learn` what is now known of the cells.
    pub(crate) fn settle(mut self, reply: &[u8], mut learn: impl FnMut(Mark, Known)) {
        match Replay::read(&self, reply) {
            Ok(replay) => {
                let (answers, known) = replay.run(&self);
                // A remembered answer speaks of the time when it was given.
                if self.once().is_none() {
                    known.into_iter().for_each(|(mark, known)| learn(mark, known));
                }
                for (mut ask, answer) in self.asks.drain(..).zip(answers) {
                    ask.waiter.answer(answer);
                }
            }
            Err(problem) => self.fail(|| StoreError::Failed(problem.clone())),
        }
    }

    /// The same without those that nobody waits for any more, unless that is all.
    pub(crate) fn awaited(self) -> Option<Self> {
        let mut rest = Self::with_capacity(self.asks.len());
        self.asks.into_iter().filter(Ask::is_awaited).for_each(|ask| rest.push(ask));
        (!rest.is_empty()).then_some(rest)
    }

    /// Requests for the same cells stay together, in their order.
    pub(crate) fn split(self) -> Vec<Self> {
        let mut parts: HashMap<SmallVec<[CellId; 1]>, Vec<Ask>> = HashMap::new();
        for ask in self.asks {
            let cells = ask.wants.iter().map(|want| want.cell).collect();
            parts.entry(cells).or_default().push(ask);
        }
        parts.into_values().flat_map(Self::of).collect()
    }

    /// As few batches as hold all of these requests.
    pub(crate) fn of(asks: Vec<Ask>) -> Vec<Self> {
        let mut batches = vec![Self::with_capacity(asks.len())];
        for ask in asks {
            let last = batches.len() - 1;
            if let Some(ask) = batches[last].add(ask) {
                let mut next = Self::default();
                // An empty batch takes any request.
                drop(next.add(ask));
                batches.push(next);
            }
        }
        batches.retain(|batch| !batch.is_empty());
        batches
    }

    /// Gives every request the same error.
    pub(crate) fn fail(self, error: impl Fn() -> StoreError) {
        for mut ask in self.asks {
            ask.waiter.answer(Err(error()));
        }
    }
}
