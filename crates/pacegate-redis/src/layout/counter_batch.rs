//! Requests for one counter that one script call decides.

use std::{collections::HashMap, sync::Arc, time::Duration};

use pacegate::{
    Limit, StoreError, Timestamp,
    algorithm::{Outcome, State},
};
use redis::Cmd;
use smallvec::smallvec;
use tokio::time::Instant;

use super::{CounterOp, CounterRequest, Counting, LayoutState, pair::Pair};
use crate::{
    cell::{period_micros, slot_of},
    fingerprint::Fingerprint,
    replay::{Fact, Snapshot},
    responder::{Answer, OutcomeList, Responder},
    wire::{ScriptParams, Words},
};

/// Requests for one counter.
#[derive(Debug)]
pub(crate) struct CounterBatch {
    state: Arc<LayoutState>,
    /// In order of arrival; at least one, and several only if all are charges.
    requests: Vec<CounterRequest>,
    /// The start of the window in which the server is expected to run them.
    window: u64,
    /// The number of wrong windows so far, and the latest time in the replies to them.
    misses: u32,
    latest: u64,
}

/// Maximum number of units of one script call, all of which doubles represent exactly.
const MAX_UNITS: u64 = 1 << 52;
/// Number of wrong windows after which the servers of a cluster must disagree about the time: each names a window whose
/// key another server has. From then on the latest of their times is used.
const MAX_MISSES: u32 = 2;

/// Packs requests for the same counter into one batch, without cancelled ones.
pub(crate) fn pack(state: &Arc<LayoutState>, requests: Vec<CounterRequest>) -> Vec<CounterBatch> {
    let mut batches: Vec<CounterBatch> = Vec::new();
    let mut last: HashMap<Fingerprint, usize, foldhash::fast::RandomState> = HashMap::default();
    for request in requests.into_iter().filter(|request| request.responder.is_awaited()) {
        let fingerprint = request.key.fingerprint;
        match last.get(&fingerprint).map(|&place| &mut batches[place]) {
            Some(batch) if batch.accepts(&request) => batch.requests.push(request),
            _ => {
                last.insert(fingerprint, batches.len());
                batches.push(CounterBatch::new(state.clone(), request));
            }
        }
    }
    batches
}

impl CounterBatch {
    fn new(state: Arc<LayoutState>, request: CounterRequest) -> Self {
        Self { state, window: request.window, requests: vec![request], misses: 0, latest: 0 }
    }

    /// A window counts every request, so the count after each is known for any costs. Only requests of equal cost can
    /// share a call to a log.
    fn accepts(&self, request: &CounterRequest) -> bool {
        let first = &self.requests[0];
        let (Some(cost), Some(first_cost)) = (request.op.charged(), first.op.charged()) else {
            return false;
        };
        let fits = match self.state.rules().counting() {
            Counting::Window | Counting::Pair => self.units().saturating_add(cost) <= MAX_UNITS,
            Counting::Log { .. } => {
                cost > 0 && cost == first_cost && request.key.limit == first.key.limit
            }
        };
        fits && request.window == self.window && request.key.key == first.key.key
    }

    pub(crate) fn len(&self) -> usize {
        self.requests.len()
    }

    pub(crate) fn responders_mut(&mut self) -> impl Iterator<Item = &mut Responder> {
        self.requests.iter_mut().map(|request| &mut request.responder)
    }

    /// Drops cancelled requests; `None` if none is left.
    pub(crate) fn awaited(mut self) -> Option<Self> {
        self.requests.retain(|request| request.responder.is_awaited());
        (!self.requests.is_empty()).then_some(self)
    }

    pub(crate) fn is_log(&self) -> bool {
        matches!(self.state.rules().counting(), Counting::Log { .. })
    }

    pub(crate) fn slot(&self) -> u16 {
        slot_of(&self.name_at(self.window))
    }

    /// Returns the name of the counter in the window that starts at `start`.
    fn name_at(&self, start: u64) -> Vec<u8> {
        let key = &self.requests[0].key;
        self.state.rules().name(&key.key, start, period_micros(&key.limit))
    }

    /// Returns the counter's name, and that of the previous window if the layout counts it too.
    fn names(&self) -> Vec<Vec<u8>> {
        let is_pair = self.state.rules().counting() == Counting::Pair;
        let previous = self.window.checked_sub(period_micros(&self.requests[0].key.limit));
        let previous = previous.filter(|_| is_pair);
        std::iter::once(self.window).chain(previous).map(|start| self.name_at(start)).collect()
    }

    /// Returns the units that all requests count or return.
    fn units(&self) -> u64 {
        self.requests.iter().map(|request| request.op.units()).sum()
    }

    /// Adds keys and arguments to the call of the layout's script.
    pub(crate) fn command(&self, mut command: Cmd, params: ScriptParams) -> Cmd {
        let (rules, request) = (self.state.rules(), &self.requests[0]);
        let limit = &request.key.limit;
        let now = if self.misses < MAX_MISSES { params.now } else { self.latest + 1 };
        let (op, life, create) = (request.op.code(), rules.life(limit), u64::from(params.create));
        let names = self.names();
        command.arg(names.len()).arg(names);
        let mut words = Words::with_capacity(10);
        match rules.counting() {
            Counting::Window | Counting::Pair => {
                words.push([now, self.window, period_micros(limit), op, self.units()]);
                words.push([life, u64::from(rules.is_refreshed()), create]);
                command.arg(words.into_bytes());
            }
            Counting::Log { tick } => {
                words.push([now, tick, period_micros(limit) / tick, op, limit.amount()]);
                words.push([request.op.units(), self.requests.len() as u64, life, create]);
                words.push([u64::from(rules.is_refreshed())]);
                command.arg(words.into_bytes()).arg(self.state.members());
            }
        }
        command
    }

    /// Reads the reply to a call sent at `sent`, and passes the new state of the counter to `learn`. Returns the batch
    /// with another window if the server's time was not in the expected one, so that nothing ran.
    pub(crate) fn finish(
        mut self,
        reply: &[i64],
        sent: Instant,
        learn: impl FnOnce(Fingerprint, Snapshot),
    ) -> Option<Self> {
        let now = reply.first().map_or(0, |&now| now.unsigned_abs());
        if now > 0 && self.misses < MAX_MISSES {
            self.state.saw(now, sent);
        }
        match *reply {
            [_] => {
                self.misses += 1;
                self.latest = self.latest.max(now);
                let now = if self.misses < MAX_MISSES { now } else { self.latest };
                self.window = self.requests[0].key.window(now);
                return Some(self);
            }
            [_, before] => self.finish_window(now, before, learn),
            [_, before, previous] => {
                let (start, mut count) = (self.window, before);
                let previous = u64::try_from(previous).unwrap_or(0);
                self.answer(now, |limit, op, _| {
                    count = count.saturating_add_unsigned(op.units());
                    let current = u64::try_from(count).unwrap_or(0);
                    Pair { previous, current, start, now }.outcome(limit, op.units())
                });
            }
            [_, free, fit, room, empty] => {
                let after = |at: i64| Duration::from_micros(at.unsigned_abs().saturating_sub(now));
                let room = (room > 0).then(|| after(room));
                let log = Log { free, fit, room, empty: after(empty) };
                self.answer(now, |limit, op, place| log.outcome(limit, op.units(), place));
            }
            _ => {
                let error = StoreError::Failed(format!("reply of {} numbers", reply.len()));
                self.responders_mut().for_each(|responder| responder.answer(Err(error.clone())));
            }
        }
        None
    }

    fn finish_window(self, now: u64, before: i64, learn: impl FnOnce(Fingerprint, Snapshot)) {
        let (key, start) = (self.requests[0].key.clone(), self.window);
        let is_charge = self.requests[0].op.charged().is_some();
        let end = start + period_micros(&key.limit);
        let left = Duration::from_micros(end.saturating_sub(now));
        let (mut count, mut denied) = (before, false);
        self.answer(now, |limit, op, _| {
            count = count.saturating_add_unsigned(op.units());
            let outcome = window_outcome(limit, count, op, left);
            denied |= !outcome.is_admitted();
            outcome
        });
        if is_charge {
            let used = u64::try_from(count).unwrap_or(0);
            let fact = Fact::State(State::from_words(&key.limit, [start, used, 0]));
            learn(key.fingerprint, Snapshot { denied, now, limit: key.limit, fact });
        }
    }

    /// Answers each request with `outcome` of its limit, operation and index. Refunds and resets have no outcome.
    fn answer(self, now: u64, mut outcome: impl FnMut(&Limit, CounterOp, i64) -> Outcome) {
        for (place, mut request) in self.requests.into_iter().enumerate() {
            let outcomes = match request.op.charged() {
                Some(_) => {
                    let outcome = outcome(&request.key.limit, request.op, place as i64);
                    smallvec![outcome.with_decided_at(Timestamp::from_micros(now))]
                }
                None => OutcomeList::new(),
            };
            request.responder.answer(Ok(Answer { outcomes, now, ..Answer::default() }));
        }
    }
}

impl CounterOp {
    fn units(self) -> u64 {
        match self {
            Self::Charge(units) | Self::Count(units) | Self::Refund(units) => units,
            Self::Reset => 0,
        }
    }

    /// Returns its number in the scripts.
    fn code(self) -> u64 {
        match self {
            Self::Charge(_) | Self::Count(_) => 0,
            Self::Refund(_) => 1,
            Self::Reset => 2,
        }
    }
}

/// Returns the answer of a window that has this count after the charge, and ends after `left`.
fn window_outcome(limit: &Limit, count: i64, op: CounterOp, left: Duration) -> Outcome {
    let used = u64::try_from(count).unwrap_or(0);
    let remaining = limit.amount().saturating_sub(used);
    let (is_admitted, remaining) = match op {
        // A peek checks for one unit.
        CounterOp::Charge(0) => (used < limit.amount(), remaining),
        CounterOp::Charge(_) => (used <= limit.amount() && limit.amount() > 0, remaining),
        CounterOp::Count(_) if used <= limit.amount() => (true, remaining),
        // See `Excess::Count`.
        _ => (false, limit.amount().saturating_sub(used.saturating_sub(op.units()))),
    };
    match is_admitted {
        true => Outcome::admitted(remaining, if used > 0 { left } else { Duration::ZERO }),
        false if limit.amount() == 0 => Outcome::denied(0, None, Duration::ZERO),
        false => Outcome::denied(remaining, Some(left), left),
    }
}

/// The script's reply for a log.
#[derive(Clone, Copy, Debug)]
struct Log {
    /// Units free before.
    free: i64,
    /// The number of requests that were admitted.
    fit: i64,
    /// The time until the cost fits.
    room: Option<Duration>,
    /// The time until the log is empty.
    empty: Duration,
}

impl Log {
    /// Returns the answer of one of several requests of equal cost.
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

    use super::*;
    use crate::{
        Layout, environment::OperatingSystem, fingerprint::Fingerprinter, responder::Reply,
        time::Time,
    };

    const MINUTE: u64 = 60_000_000;

    fn requests(
        layout: Layout,
        limit: &str,
        ops: &[CounterOp],
    ) -> (Arc<LayoutState>, Vec<CounterRequest>, Vec<Reply>) {
        let rules = layout.rules().unwrap().clone();
        let state = Arc::new(LayoutState::new(
            rules,
            Time::Server(Arc::new(OperatingSystem)),
            &OperatingSystem,
        ));
        state.saw(100 * MINUTE, Instant::now());
        let fingerprinter = Fingerprinter::new();
        let request = |&op: &CounterOp| {
            "a".with(|key| {
                let charge = Charge::new("api".parse().unwrap(), key, limit.parse().unwrap());
                state.request(state.key(&fingerprinter, &charge).unwrap(), op)
            })
        };
        let (requests, replies) = ops.iter().map(request).unzip();
        (state, requests, replies)
    }

    fn outcomes(replies: Vec<Reply>) -> Vec<(bool, u64)> {
        let outcome = |mut reply: Reply| {
            let outcome = reply.try_recv().unwrap().unwrap().outcomes[0];
            (outcome.is_admitted(), outcome.remaining())
        };
        replies.into_iter().map(outcome).collect()
    }

    #[test]
    fn every_request_in_a_window_gets_a_separate_count() {
        let ops = [1, 3, 0, 2, 1, 0].map(CounterOp::Charge);
        let (state, requests, replies) = requests(Layout::rlaas(), "9/minute", &ops);
        let [batch] = <[CounterBatch; 1]>::try_from(pack(&state, requests)).unwrap();
        assert_eq!(batch.units(), 7);
        let now = (100 * MINUTE + 15_000_000) as i64;
        let mut learnt = None;
        let missed = batch.finish(&[now, 3], Instant::now(), |_, state| learnt = Some(state));
        assert!(missed.is_none());
        let expected = [(true, 5), (true, 2), (true, 2), (true, 0), (false, 0), (false, 0)];
        assert_eq!(outcomes(replies), expected);
        assert!(learnt.unwrap().denied);
    }

    #[test]
    fn counted_requests_follow_the_rules_of_envoy() {
        let counted = |limit: &str, before: i64, ops: &[CounterOp]| {
            let (state, requests, replies) = requests(Layout::rlaas(), limit, ops);
            let [batch] = <[CounterBatch; 1]>::try_from(pack(&state, requests)).unwrap();
            let now = (100 * MINUTE) as i64;
            assert!(batch.finish(&[now, before], Instant::now(), |_, _| {}).is_none());
            outcomes(replies)
        };
        let ops = [0, 2, 0, 5, 0].map(CounterOp::Count);
        let expected = [(true, 2), (true, 0), (true, 0), (false, 0), (false, 0)];
        assert_eq!(counted("9/minute", 7, &ops), expected, "a peek at a full counter");
        let ops = [CounterOp::Count(5), CounterOp::Charge(0)];
        assert_eq!(counted("9/minute", 7, &ops), [(false, 2), (false, 0)], "free before");
        let ops = [0, 1, 0].map(CounterOp::Count);
        assert_eq!(counted("0/minute", 0, &ops), [(true, 0), (false, 0), (false, 0)]);
        assert_eq!(counted("0/minute", -1, &[CounterOp::Charge(1)]), [(false, 0)]);
    }

    #[test]
    fn refunds_keep_their_order() {
        use CounterOp::{Charge, Refund, Reset};
        let ops = [Charge(1), Refund(1), Charge(1), Charge(1), Reset];
        let (state, requests, _replies) = requests(Layout::rlaas(), "9/minute", &ops);
        let lengths: Vec<usize> = pack(&state, requests).iter().map(CounterBatch::len).collect();
        assert_eq!(lengths, [1, 1, 2, 1]);
    }

    #[test]
    fn only_equal_costs_share_a_call_to_a_log() {
        let ops = [1, 1, 2, 2, 0, 0].map(CounterOp::Charge);
        let (state, requests, _replies) =
            requests(Layout::unix_time_log(), "9/minute sliding-log", &ops);
        let lengths: Vec<usize> = pack(&state, requests).iter().map(CounterBatch::len).collect();
        assert_eq!(lengths, [2, 2, 1, 1]);
    }

    #[test]
    fn a_log_admits_as_many_as_fit() {
        let ops = [CounterOp::Charge(2); 4];
        let (state, requests, replies) =
            requests(Layout::rlaas_log(), "9/minute sliding-log", &ops);
        let [batch] = <[CounterBatch; 1]>::try_from(pack(&state, requests)).unwrap();
        let now = (100 * MINUTE) as i64;
        batch.finish(&[now, 5, 2, now + 7, now + 9], Instant::now(), |_, _| {});
        assert_eq!(outcomes(replies), [(true, 3), (true, 1), (false, 1), (false, 1)]);
    }

    #[test]
    fn a_wrong_window_is_corrected() {
        let ops = [CounterOp::Charge(1)];
        let (state, requests, _replies) = requests(Layout::rlaas(), "9/minute", &ops);
        let [batch] = <[CounterBatch; 1]>::try_from(pack(&state, requests)).unwrap();
        assert_eq!(batch.names(), [b"rlaas:rate_limit:a:100"]);
        let now = (101 * MINUTE + 5) as i64;
        let missed = batch.finish(&[now], Instant::now(), |_, _| panic!("nothing was learnt"));
        let batch = missed.unwrap();
        assert_eq!(batch.names(), [b"rlaas:rate_limit:a:101"]);
        let (next, _) = state.request(batch.requests[0].key.clone(), CounterOp::Charge(1));
        assert_eq!(next.window, 101 * MINUTE, "the next guess is better");
    }

    #[test]
    fn servers_with_different_times_do_not_cause_endless_retries() {
        let ops = [CounterOp::Charge(1)];
        let (state, requests, _replies) = requests(Layout::rlaas(), "9/minute", &ops);
        let [mut batch] = <[CounterBatch; 1]>::try_from(pack(&state, requests)).unwrap();
        let params = ScriptParams {
            now: 0,
            estimate: Timestamp::EPOCH,
            slack: 0,
            once: 0,
            repeats: 0,
            create: true,
        };
        for now in [101 * MINUTE, 101 * MINUTE - 1] {
            batch = batch.finish(&[now as i64], Instant::now(), |_, _| {}).unwrap();
        }
        assert_eq!(batch.window, 101 * MINUTE, "the latest time is used");
        let command = batch.command(redis::cmd("EVALSHA"), params).get_packed_command();
        let given = (101 * MINUTE + 1).to_le_bytes();
        assert!(command.windows(8).any(|bytes| bytes == given), "and passed to the script");
    }
}
