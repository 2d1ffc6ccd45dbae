//! From the states that the server returned to the answer of every request.

use std::time::Duration;

use pacegate::{
    Limit, StoreError, Timestamp,
    algorithm::{Outcome, State},
};
use smallvec::SmallVec;

use crate::{
    batch::{Answer, Answered, Batch, Cell, Run},
    cell::Want,
    mark::Mark,
    wire,
};

/// What a reply says, made ready to be gone through.
#[derive(Debug)]
pub(crate) struct Replay<'a> {
    now: u64,
    /// One for each cell of the batch.
    replicas: Vec<Replica>,
    /// What the script took from each.
    taken: Vec<u64>,
    /// The script's answers to "when will this log have room", in the order in which denials ask.
    waits: Vec<u64>,
    asked: usize,
    cells: &'a [Cell],
    denied: Vec<bool>,
}

/// A cell of the server, followed here.
#[derive(Clone, Copy, Debug)]
struct Replica {
    content: Content,
    taken: u64,
}

#[derive(Clone, Copy, Debug)]
enum Content {
    State(State),
    /// Units free, and when all will be.
    Log {
        free: u64,
        reset: u64,
    },
    /// Something that is not ours.
    Foreign,
}

/// What is known of a cell.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Known {
    /// Whether it took part in a denial.
    pub(crate) denied: bool,
    /// The server's time when it was so.
    pub(crate) now: u64,
    pub(crate) limit: Limit,
    pub(crate) fact: Fact,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Fact {
    /// The whole state: the answer to any cost follows.
    State(State),
    /// A log has room for this cost after that time, and for less perhaps before.
    Log { cost: u64, wait: u64, free: u64, reset: u64 },
}

/// How the script says that a key holds something else.
const BROKEN: u64 = 1 << 53;

impl<'a> Replay<'a> {
    pub(crate) fn read(batch: &'a Batch, reply: &[u8]) -> Result<Self, String> {
        let cells = batch.cells();
        let needed = 1 + 4 * cells.len();
        let words: Vec<u64> = wire::read(reply).collect();
        if words.len() < needed {
            return Err(format!("a reply of {} bytes to {} cells", reply.len(), cells.len()));
        }
        let mut replicas = vec![Replica { content: Content::Foreign, taken: 0 }; cells.len()];
        let mut taken = vec![0; cells.len()];
        for (place, words) in wire::order(batch).into_iter().zip(words[1..needed].chunks(4)) {
            let place = place as usize;
            replicas[place].content =
                content(&cells[place], [words[0], words[1], words[2]], words[3]);
            taken[place] = words[3];
        }
        let waits = words[needed..].to_vec();
        let denied = vec![false; cells.len()];
        Ok(Self { now: words[0], replicas, taken, waits, asked: 0, cells, denied })
    }

    /// The answers in the order of the batch's asks, and what was learnt of the cells.
    pub(crate) fn run(mut self, batch: &Batch) -> (Vec<Answered>, Vec<(Mark, Known)>) {
        let mut answers: Vec<Option<Answered>> = batch.asks().iter().map(|_| None).collect();
        let mut known = Vec::new();
        for run in batch.runs() {
            let wants = &batch.asks()[run.asks[0] as usize].wants;
            match wants.as_slice() {
                [want] if run.times > 0 => self.repeat(batch, run, want, &mut answers, &mut known),
                wants => {
                    let outcomes = self.together(run, wants);
                    answers[run.asks[0] as usize] = Some(self.answer(run, outcomes));
                }
            }
        }
        self.learn_states(&mut known);
        let disagrees = |(replica, taken): (&Replica, &u64)| match replica.content {
            Content::Foreign => false,
            Content::State(_) | Content::Log { .. } => replica.taken != *taken,
        };
        if self.replicas.iter().zip(&self.taken).any(disagrees) {
            let problem = "the script and this library disagree; do their versions differ?";
            let failed = || Some(Err(StoreError::Failed(problem.to_owned())));
            answers.iter_mut().for_each(|answer| *answer = failed());
            known.clear();
        }
        let lost = || Err(StoreError::Failed("an unanswered request".to_owned()));
        (answers.into_iter().map(|answer| answer.unwrap_or_else(lost)).collect(), known)
    }

    /// Asks for the same, one after the other.
    fn repeat(
        &mut self,
        batch: &Batch,
        run: &Run,
        want: &Want,
        answers: &mut [Option<Answered>],
        known: &mut Vec<(Mark, Known)>,
    ) {
        let cell = run.cells[0] as usize;
        let mut wait = None;
        for &ask in &run.asks {
            let times = batch.asks()[ask as usize].times;
            let (granted, outcome) = self.charge_times(cell, want, times, &mut wait);
            let answer = self.answer(run, vec![outcome]);
            answers[ask as usize] = Some(answer.map(|answer| Answer { granted, ..answer }));
        }
        if let (Some(wait), Content::Log { free, reset }, false) =
            (wait, self.replicas[cell].content, want.limit.algorithm().holds_permits())
        {
            let fact = Fact::Log { cost: want.cost.max(1), wait, free, reset };
            let known_now = Known { denied: true, now: self.now, limit: want.limit, fact };
            known.push((want.mark, known_now));
        }
    }

    /// Each in turn, so that the next one sees it; if one does not fit, or this is only a question, all are given back.
    fn together(&mut self, run: &Run, wants: &[Want]) -> Vec<Outcome> {
        let before: SmallVec<[(usize, Replica); 8]> =
            run.cells.iter().map(|&cell| (cell as usize, self.replicas[cell as usize])).collect();
        let mut outcomes: Vec<Outcome> = Vec::with_capacity(wants.len());
        for (&cell, want) in run.cells.iter().zip(wants) {
            outcomes.push(self.charge(cell as usize, want, &mut None));
        }
        let fits = |(outcome, want): (&Outcome, &Want)| outcome.is_admitted() || !want.enforced;
        if run.times > 0 && outcomes.iter().zip(wants).all(fits) && !self.is_foreign(run) {
            return outcomes;
        }
        for &(cell, replica) in &before {
            self.replicas[cell] = replica;
            self.denied[cell] = true;
        }
        for ((&cell, want), outcome) in run.cells.iter().zip(wants).zip(&mut outcomes) {
            if outcome.is_admitted() {
                let untouched = self.replicas[cell as usize].peek(want, self.now);
                *outcome = Outcome::admitted(untouched.remaining(), untouched.reset_after());
            }
        }
        outcomes
    }

    /// As often as it fits: how often that is, and the last outcome. Many times are one step, since a draw may be for
    /// millions of units.
    fn charge_times(
        &mut self,
        cell: usize,
        want: &Want,
        times: u64,
        wait: &mut Option<u64>,
    ) -> (u64, Outcome) {
        let free = self.replicas[cell].peek(want, self.now).remaining();
        let granted = if times > 1 { times.min(free / want.cost.max(1)) } else { 0 };
        if granted == times {
            let all = Want { cost: want.cost * granted, ..*want };
            return (granted, self.charge(cell, &all, wait));
        }
        if granted > 0 {
            self.charge(cell, &Want { cost: want.cost * granted, ..*want }, wait);
        }
        let outcome = self.charge(cell, want, wait);
        (granted + u64::from(outcome.is_admitted()), outcome)
    }

    fn charge(&mut self, cell: usize, want: &Want, wait: &mut Option<u64>) -> Outcome {
        let outcome = match self.replicas[cell].content {
            Content::Log { free, reset } => {
                if want.cost.max(1) > free && wait.is_none() {
                    *wait = Some(self.waits.get(self.asked).copied().unwrap_or(0));
                    self.asked += 1;
                }
                log_outcome((&want.limit, want.cost), (free, reset), wait.unwrap_or(0))
            }
            Content::State(mut state) => {
                let outcome =
                    want.limit.step(&mut state, Timestamp::from_micros(self.now), want.cost);
                self.replicas[cell].content = Content::State(state);
                outcome
            }
            Content::Foreign => Outcome::denied(0, None, Duration::ZERO),
        };
        self.denied[cell] |= !outcome.is_admitted();
        if outcome.is_admitted() && want.cost > 0 {
            self.replicas[cell].take(want);
        }
        outcome
    }

    fn answer(&self, run: &Run, outcomes: Vec<Outcome>) -> Answered {
        if self.is_foreign(run) {
            let problem =
                "a key of ours holds a foreign value, or memory is full: see `pacegate doctor`";
            return Err(StoreError::Failed(problem.to_owned()));
        }
        let granted = u64::from(outcomes.iter().all(Outcome::is_admitted));
        let now = Timestamp::from_micros(self.now);
        let outcomes = outcomes.into_iter().map(|outcome| outcome.with_decided_at(now)).collect();
        let state = match self.replicas[run.cells[0] as usize].content {
            Content::State(state) => Some(state),
            Content::Log { .. } | Content::Foreign => None,
        };
        Ok(Answer { outcomes, granted, now: self.now, state })
    }

    fn is_foreign(&self, run: &Run) -> bool {
        let is_foreign =
            |&cell: &u32| matches!(self.replicas[cell as usize].content, Content::Foreign);
        run.cells.iter().any(is_foreign)
    }

    fn learn_states(&self, known: &mut Vec<(Mark, Known)>) {
        for ((cell, replica), &denied) in self.cells.iter().zip(&self.replicas).zip(&self.denied) {
            if let Content::State(state) = replica.content {
                let (now, limit, fact) = (self.now, cell.limit, Fact::State(state));
                known.push((cell.mark, Known { denied, now, limit, fact }));
            }
        }
    }
}

impl Replica {
    /// Counts what was taken. A state has moved on by itself.
    fn take(&mut self, want: &Want) {
        self.taken += want.cost;
        if let Content::Log { free, reset } = &mut self.content {
            *free -= want.cost;
            *reset = crate::cell::period_micros(&want.limit);
        }
    }

    fn peek(&self, want: &Want, now: u64) -> Outcome {
        match self.content {
            Content::State(mut state) => {
                want.limit.step(&mut state, Timestamp::from_micros(now), 0)
            }
            Content::Log { free, reset } => Outcome::admitted(free, Duration::from_micros(reset)),
            Content::Foreign => Outcome::denied(0, None, Duration::ZERO),
        }
    }
}

fn content(cell: &Cell, words: [u64; 3], taken: u64) -> Content {
    if taken == BROKEN {
        return Content::Foreign;
    }
    if cell.limit.algorithm().keeps_log() {
        Content::Log { free: words[0], reset: words[1] }
    } else {
        Content::State(State::from_words(&cell.limit, words))
    }
}

/// The answer of a log with so many units free, until all of which so much time passes.
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
