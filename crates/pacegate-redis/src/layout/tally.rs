//! Tallies: requests for one counter that travel as one script call, and how their answers are told apart again.

use std::{collections::HashMap, sync::Arc, time::Duration};

use pacegate::{
    Limit, StoreError, Timestamp,
    algorithm::{Outcome, State},
};
use redis::Cmd;
use tokio::time::Instant;

use super::{Act, Counters, Counting, Note, pair::Pair};
use crate::{
    cell::{period_micros, slot_of},
    mark::{ByMark, Mark},
    replay::{Fact, Known},
    wire::{Settings, Words},
};

/// Requests for one counter.
#[derive(Debug)]
pub(crate) struct Tally {
    counters: Arc<Counters>,
    /// In order of arrival; at least one, and several only if all are charges.
    notes: Vec<Note>,
    /// The start of the window in which they are expected to arrive.
    window: u64,
    /// How often that was wrong, and the latest time that a server told then.
    misses: u32,
    latest: u64,
}

/// What became of a tally.
#[derive(Debug)]
pub(crate) enum Told {
    /// All requests are answered.
    Settled,
    /// It came in another window than expected, which it knows now, and nothing was done.
    Missed(Tally),
}

/// What one script call counts at most: doubles are exact so far.
const MOST_UNITS: u64 = 1 << 52;
/// After so many wrong windows the servers of a cluster disagree about the time, each of them naming a counter that
/// another one has. Then the latest time that was told holds for all.
const MOST_MISSES: u32 = 2;

/// Puts requests for the same counter together.
pub(crate) fn gather(counters: &Arc<Counters>, notes: Vec<Note>) -> Vec<Tally> {
    let mut tallies: Vec<Tally> = Vec::new();
    let mut last: HashMap<Mark, usize, ByMark> = HashMap::default();
    // Where nobody waits for the answer any more, nothing was sent.
    for note in notes.into_iter().filter(|note| note.waiter.since().is_some()) {
        let mark = note.spot.mark;
        match last.get(&mark).map(|&place| &mut tallies[place]) {
            Some(tally) if tally.takes(&note) => tally.notes.push(note),
            _ => {
                last.insert(mark, tallies.len());
                tallies.push(Tally::new(counters.clone(), note));
            }
        }
    }
    tallies
}

impl Tally {
    fn new(counters: Arc<Counters>, note: Note) -> Self {
        Self { counters, window: note.window, notes: vec![note], misses: 0, latest: 0 }
    }

    /// In a window every request is counted, so the count after each is known whatever they cost. What a log takes
    /// depends on what fits, which is simple only among equals.
    fn takes(&self, note: &Note) -> bool {
        let first = &self.notes[0];
        let (Act::Charge(cost), Act::Charge(first_cost)) = (note.act, first.act) else {
            return false;
        };
        let same = match self.counters.rules().counting() {
            Counting::Window | Counting::Pair => self.units().saturating_add(cost) <= MOST_UNITS,
            Counting::Log { .. } => {
                cost > 0 && cost == first_cost && note.spot.limit == first.spot.limit
            }
        };
        same && note.window == self.window && note.spot.key == first.spot.key
    }

    pub(crate) fn len(&self) -> usize {
        self.notes.len()
    }

    pub(crate) fn since(&self) -> Option<Instant> {
        self.notes.iter().filter_map(|note| note.waiter.since()).min()
    }

    /// The same without those that nobody waits for any more, unless that is all.
    pub(crate) fn awaited(mut self) -> Option<Self> {
        self.notes.retain(|note| note.waiter.since().is_some());
        (!self.notes.is_empty()).then_some(self)
    }

    /// Answers all who have waited for too long. How many that were.
    pub(crate) fn expire(&mut self, deadline: Duration) -> usize {
        self.notes.iter_mut().map(|note| usize::from(note.waiter.expire(deadline))).sum()
    }

    pub(crate) fn is_log(&self) -> bool {
        matches!(self.counters.rules().counting(), Counting::Log { .. })
    }

    pub(crate) fn slot(&self) -> u16 {
        slot_of(&self.name())
    }

    fn name(&self) -> Vec<u8> {
        self.name_at(self.window)
    }

    /// The name of the counter in the window that starts then.
    fn name_at(&self, start: u64) -> Vec<u8> {
        let spot = &self.notes[0].spot;
        self.counters.rules().name(&spot.key, start, period_micros(&spot.limit))
    }

    /// The counter of the previous window, if it counts as well.
    fn previous_name(&self) -> Option<Vec<u8>> {
        let counts = self.counters.rules().counting() == Counting::Pair;
        let start = self.window.checked_sub(period_micros(&self.notes[0].spot.limit));
        start.filter(|_| counts).map(|start| self.name_at(start))
    }

    /// Units counted or given back by all requests.
    fn units(&self) -> u64 {
        self.notes.iter().map(|note| note.act.units()).sum()
    }

    /// Completes a call of the layout's script.
    pub(crate) fn command(&self, call: Cmd, settings: Settings) -> Cmd {
        let (rules, note) = (self.counters.rules(), &self.notes[0]);
        let limit = &note.spot.limit;
        let given = if self.misses < MOST_MISSES { settings.now } else { self.latest + 1 };
        let (action, life, create) =
            (note.act.number(), rules.life(limit), u64::from(settings.create));
        let mut command = call;
        let names: Vec<_> = std::iter::once(self.name()).chain(self.previous_name()).collect();
        command.arg(names.len()).arg(names);
        let mut words = Words::with_capacity(10);
        match rules.counting() {
            Counting::Window | Counting::Pair => {
                words.push([given, self.window, period_micros(limit), action, self.units()]);
                words.push([life, u64::from(rules.is_refreshed()), create]);
                command.arg(words.into_bytes());
            }
            Counting::Log { tick } => {
                words.push([given, tick, period_micros(limit) / tick, action, limit.amount()]);
                words.push([note.act.units(), self.notes.len() as u64, life, create]);
                words.push([u64::from(rules.is_refreshed())]);
                command.arg(words.into_bytes()).arg(self.counters.members());
            }
        }
        command
    }

    /// Reads the reply to a call that was sent then. `learn` is told what is now known of the counter.
    pub(crate) fn finish(
        mut self,
        reply: &[i64],
        sent: Instant,
        learn: impl FnOnce(Mark, Known),
    ) -> Told {
        let now = reply.first().map_or(0, |&now| now.unsigned_abs());
        if now > 0 && self.misses < MOST_MISSES {
            self.counters.saw(now, sent);
        }
        match *reply {
            [_] => {
                self.misses += 1;
                self.latest = self.latest.max(now);
                let told = if self.misses < MOST_MISSES { now } else { self.latest };
                self.window = self.notes[0].spot.window(told);
                return Told::Missed(self);
            }
            [_, before] => self.settle_window(now, before, learn),
            [_, before, previous] => self.settle_pair(now, before, previous),
            [_, free, fit, room, empty] => {
                let after = |instant: i64| {
                    Duration::from_micros(instant.unsigned_abs().saturating_sub(now))
                };
                let log =
                    Log { free, fit, room: (room > 0).then(|| after(room)), empty: after(empty) };
                self.settle_log(log, now);
            }
            _ => {
                let problem = format!("a reply of {} numbers", reply.len());
                self.fail(|| StoreError::Failed(problem.clone()));
            }
        }
        Told::Settled
    }

    fn settle_window(self, now: u64, before: i64, learn: impl FnOnce(Mark, Known)) {
        let spot = self.notes[0].spot.clone();
        let end = self.window + period_micros(&spot.limit);
        let left = Duration::from_micros(end.saturating_sub(now));
        let (mut count, mut denied) = (before, false);
        for mut note in self.notes {
            let Act::Charge(cost) = note.act else {
                note.waiter.answer(Ok(Outcome::admitted(0, Duration::ZERO)));
                return;
            };
            count = count.saturating_add_unsigned(cost);
            let outcome = window_outcome(&note.spot.limit, count, cost, left);
            denied |= !outcome.is_admitted();
            let outcome = outcome.with_decided_at(Timestamp::from_micros(now));
            note.waiter.answer(Ok(outcome));
        }
        let used = u64::try_from(count).unwrap_or(0);
        let state = State::from_words(&spot.limit, [self.window, used, 0]);
        learn(spot.mark, Known { denied, now, limit: spot.limit, fact: Fact::State(state) });
    }

    fn settle_pair(self, now: u64, before: i64, previous: i64) {
        let (start, previous) = (self.window, u64::try_from(previous).unwrap_or(0));
        let mut count = before;
        for mut note in self.notes {
            let outcome = match note.act {
                Act::Charge(cost) => {
                    count = count.saturating_add_unsigned(cost);
                    let current = u64::try_from(count).unwrap_or(0);
                    let pair = Pair { previous, current, start, now };
                    let outcome = pair.outcome(&note.spot.limit, cost);
                    outcome.with_decided_at(Timestamp::from_micros(now))
                }
                Act::Refund(_) | Act::Reset => Outcome::admitted(0, Duration::ZERO),
            };
            note.waiter.answer(Ok(outcome));
        }
    }

    fn settle_log(self, log: Log, now: u64) {
        for (place, mut note) in self.notes.into_iter().enumerate() {
            let outcome = log.outcome(&note.spot.limit, note.act.units(), place as i64);
            let outcome = outcome.with_decided_at(Timestamp::from_micros(now));
            note.waiter.answer(Ok(outcome));
        }
    }

    /// Gives every request the same error.
    pub(crate) fn fail(self, error: impl Fn() -> StoreError) {
        for mut note in self.notes {
            note.waiter.answer(Err(error()));
        }
    }
}

impl Act {
    fn units(self) -> u64 {
        match self {
            Self::Charge(units) | Self::Refund(units) => units,
            Self::Reset => 0,
        }
    }

    fn number(self) -> u64 {
        match self {
            Self::Charge(_) => 0,
            Self::Refund(_) => 1,
            Self::Reset => 2,
        }
    }
}

/// The answer where the count is now so high, with that much of the window left.
fn window_outcome(limit: &Limit, count: i64, cost: u64, left: Duration) -> Outcome {
    if limit.amount() == 0 {
        return Outcome::denied(0, None, Duration::ZERO);
    }
    let used = u64::try_from(count).unwrap_or(0);
    let remaining = limit.amount().saturating_sub(used);
    // A question takes nothing, and is whether one would be admitted.
    let wanted = if cost == 0 { used.saturating_add(1) } else { used };
    if wanted > limit.amount() {
        return Outcome::denied(remaining, Some(left), left);
    }
    Outcome::admitted(remaining, if used > 0 { left } else { Duration::ZERO })
}

/// What the script says of a log.
#[derive(Clone, Copy, Debug)]
struct Log {
    /// Units free before.
    free: i64,
    /// How many of the requests were admitted.
    fit: i64,
    /// How long until there is room for the cost.
    room: Option<Duration>,
    empty: Duration,
}

impl Log {
    /// The answer to one of several requests of equal cost.
    fn outcome(&self, limit: &Limit, cost: u64, place: i64) -> Outcome {
        if limit.amount() == 0 {
            return Outcome::denied(0, None, Duration::ZERO);
        }
        let taken = u64::try_from((place + 1).min(self.fit)).unwrap_or(0) * cost;
        let remaining = u64::try_from(self.free).unwrap_or(0).saturating_sub(taken);
        let admitted = if cost == 0 { remaining > 0 } else { place < self.fit };
        if admitted {
            return Outcome::admitted(remaining, self.empty);
        }
        Outcome::denied(remaining, self.room, self.empty)
    }
}

#[cfg(test)]
mod tests {
    use pacegate::{Charge, Key};
    use tokio::sync::oneshot;

    use super::*;
    use crate::{Layout, mark::Marker, time::Time};

    type Answers = Vec<oneshot::Receiver<Result<Outcome, StoreError>>>;

    const MINUTE: u64 = 60_000_000;

    fn notes(layout: Layout, limit: &str, acts: &[Act]) -> (Arc<Counters>, Vec<Note>, Answers) {
        let rules = layout.rules().unwrap().clone();
        let counters = Arc::new(Counters::new(rules, Time::Server));
        counters.saw(100 * MINUTE, Instant::now());
        let marker = Marker::random();
        let note = |&act: &Act| {
            "a".with(|key| {
                let charge = Charge::new("api".parse().unwrap(), key, limit.parse().unwrap());
                let spot = counters.spot(&marker, &charge).unwrap();
                counters.note(spot, act)
            })
        };
        let (notes, answers) = acts.iter().map(note).unzip();
        (counters, notes, answers)
    }

    fn outcomes(answers: Answers) -> Vec<(bool, u64)> {
        let outcome = |mut answer: oneshot::Receiver<Result<Outcome, StoreError>>| {
            let outcome = answer.try_recv().unwrap().unwrap();
            (outcome.is_admitted(), outcome.remaining())
        };
        answers.into_iter().map(outcome).collect()
    }

    #[test]
    fn every_request_in_a_window_gets_its_own_count() {
        let acts = [1, 3, 0, 2, 1, 0].map(Act::Charge);
        let (counters, notes, answers) = notes(Layout::rlaas(), "9/minute", &acts);
        let [tally] = <[Tally; 1]>::try_from(gather(&counters, notes)).unwrap();
        assert_eq!(tally.units(), 7);
        let now = (100 * MINUTE + 15_000_000) as i64;
        let mut learnt = None;
        let told = tally.finish(&[now, 3], Instant::now(), |_, known| learnt = Some(known));
        assert!(matches!(told, Told::Settled));
        let expected = [(true, 5), (true, 2), (true, 2), (true, 0), (false, 0), (false, 0)];
        assert_eq!(outcomes(answers), expected);
        assert!(learnt.unwrap().denied);
    }

    #[test]
    fn a_refund_keeps_its_place() {
        let acts = [Act::Charge(1), Act::Refund(1), Act::Charge(1), Act::Charge(1), Act::Reset];
        let (counters, notes, _answers) = notes(Layout::rlaas(), "9/minute", &acts);
        let lengths: Vec<usize> = gather(&counters, notes).iter().map(Tally::len).collect();
        assert_eq!(lengths, [1, 1, 2, 1]);
    }

    #[test]
    fn only_equals_share_a_call_to_a_log() {
        let acts = [1, 1, 2, 2, 0, 0].map(Act::Charge);
        let (counters, notes, _answers) =
            notes(Layout::unix_time_log(), "9/minute sliding-log", &acts);
        let lengths: Vec<usize> = gather(&counters, notes).iter().map(Tally::len).collect();
        assert_eq!(lengths, [2, 2, 1, 1]);
    }

    #[test]
    fn a_log_admits_as_many_as_fit() {
        let acts = [Act::Charge(2); 4];
        let (counters, notes, answers) = notes(Layout::rlaas_log(), "9/minute sliding-log", &acts);
        let [tally] = <[Tally; 1]>::try_from(gather(&counters, notes)).unwrap();
        let now = (100 * MINUTE) as i64;
        tally.finish(&[now, 5, 2, now + 7, now + 9], Instant::now(), |_, _| {});
        assert_eq!(outcomes(answers), [(true, 3), (true, 1), (false, 1), (false, 1)]);
    }

    #[test]
    fn a_wrong_window_is_corrected() {
        let (counters, notes, _answers) = notes(Layout::rlaas(), "9/minute", &[Act::Charge(1)]);
        let [tally] = <[Tally; 1]>::try_from(gather(&counters, notes)).unwrap();
        assert_eq!(tally.name(), b"rlaas:rate_limit:a:100");
        let now = (101 * MINUTE + 5) as i64;
        let told = tally.finish(&[now], Instant::now(), |_, _| panic!("nothing is known"));
        let Told::Missed(tally) = told else { panic!("{told:?}") };
        assert_eq!(tally.name(), b"rlaas:rate_limit:a:101");
        let (next, _) = counters.note(tally.notes[0].spot.clone(), Act::Charge(1));
        assert_eq!(next.window, 101 * MINUTE, "the next one guesses better");
    }

    #[test]
    fn servers_that_disagree_are_not_asked_for_ever() {
        let (counters, notes, _answers) = notes(Layout::rlaas(), "9/minute", &[Act::Charge(1)]);
        let [mut tally] = <[Tally; 1]>::try_from(gather(&counters, notes)).unwrap();
        let settings = Settings { now: 0, slack: 0, once: 0, repeats: 0, create: true };
        for now in [101 * MINUTE, 101 * MINUTE - 1] {
            let told = tally.finish(&[now as i64], Instant::now(), |_, _| {});
            let Told::Missed(missed) = told else { panic!("{told:?}") };
            tally = missed;
        }
        assert_eq!(tally.window, 101 * MINUTE, "the latest time holds");
        let command = tally.command(redis::cmd("EVALSHA"), settings).get_packed_command();
        let given = (101 * MINUTE + 1).to_le_bytes();
        assert!(command.windows(8).any(|bytes| bytes == given), "and is told to the script");
    }
}
