//! Judges a history by the reference model: how many units may have been admitted, which denials were justified, and
//! which retry times were honest.
//!
//! The server may lose its keys, and its clock may step. Each such disturbance starts a new segment of the history, in
//! which every limit starts unused: docs/failure-modes.md and docs/algorithms.md state one more burst for each. A reset
//! starts a segment of its key. Within a segment nothing may be admitted that the model would not admit.
//!
//! The usage of a counter has two bounds. The lower one has only what was certainly charged in the segment. The upper
//! one has everything that may have been charged, as late as possible. Denials, retry times and remaining units must
//! agree with one of the usages in between.

mod fallback;
mod lower;
mod permits;
mod upper;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use pacegate::{Algorithm, Limit, Source};

use crate::{
    history::{Answer, Check, Events, Kind, Update},
    scenario::{FaultKind, PolicyChoice},
    world::World,
};

/// One limit of one key, and the requests that it applied to.
struct Counter<'a> {
    policy: &'a PolicyChoice,
    policy_index: usize,
    /// In both revisions.
    limits: [Limit; 2],
    key: usize,
    /// Numbers of the server's resets that may have reset this counter.
    resets: Vec<usize>,
}

/// A request that was decided by the server, or by units or denials from it.
#[derive(Clone, Copy, Debug)]
struct Decided<'a> {
    index: usize,
    check: &'a Check,
    answer: Answer,
    /// The time by the clock of the server.
    at: u64,
    /// The virtual time at which the server decided.
    ran: u64,
    /// Number of disturbances, and of resets, before.
    disturbances: usize,
    resets: usize,
    /// The server reset a key at the same time, before or after.
    is_ambiguous: bool,
    /// An earlier answer to the same request: this one charged nothing.
    is_repeated: bool,
}

/// What the usage of all counters of a request allows for its answer.
#[derive(Clone, Copy, Debug)]
struct Bounds {
    /// A limit may have had no room.
    may_be_denied: bool,
    retry_after: (u64, u64),
    /// Before the charge.
    remaining: (u64, u64),
}

/// A history with the segments of the server.
struct Judge<'a> {
    world: &'a World,
    events: &'a Events,
    /// In the order of virtual time.
    decided: Vec<Decided<'a>>,
    /// The ids of requests that the server decided.
    decided_ids: BTreeSet<u64>,
    /// Virtual times at which the server lost data or its clock stepped.
    disturbances: Vec<u64>,
    /// Virtual times at which the server reset a key.
    resets: Vec<u64>,
}

/// Time in which every host is connected at first.
const CONNECT_TIME: Duration = Duration::from_millis(200);

/// Time after which a command that was sent cannot run any more: the time for which a stream is kept, the longest time
/// for which the server does not read, and delays.
pub(crate) const LATE: u64 = 4_500_000;

/// Maximum age of an entry in the deny cache, and the time of a round trip.
const DENY_CACHE_AGE: u64 = 1_300_000;

/// Returns the promises that a history breaks.
pub(crate) fn judge(world: &World, events: &Events) -> Vec<String> {
    let (disturbances, resets) = (world.network.disturbances(), world.network.resets());
    let (decided, decided_ids) = (Vec::new(), BTreeSet::new());
    let mut judge = Judge { world, events, decided, decided_ids, disturbances, resets };
    judge.decided = judge.decide();
    judge.decided_ids = judge.decided.iter().filter_map(|it| it.check.id).collect();
    let mut violations = judge.wrong_repetitions();
    let mut bounds = vec![Bounds::default(); judge.decided.len()];
    for counter in judge.counters() {
        if counter.holds_permits() {
            violations.extend(judge.excess_permits(&counter));
        } else {
            violations.extend(judge.excess_units(&counter, &mut bounds));
        }
        judge.bound_usage(&counter, &mut bounds);
        violations.extend(judge.excess_without_store(&counter));
    }
    violations.extend(judge.needless_fallbacks());
    violations.extend(judge.needless_denials_without_store());
    let judged = judge.decided.iter().zip(&bounds);
    violations.extend(judged.filter_map(|(decided, bounds)| judge.wrong_answer(decided, bounds)));
    violations
}

impl Default for Bounds {
    fn default() -> Self {
        Self { may_be_denied: false, retry_after: (0, 0), remaining: (u64::MAX, u64::MAX) }
    }
}

impl<'a> Judge<'a> {
    /// Finds the decisions of the server, and when it made them.
    fn decide(&self) -> Vec<Decided<'a>> {
        let network = &self.world.network;
        let mut decided = Vec::new();
        for (index, check) in self.events.checks.iter().enumerate() {
            let Some(answer) = check.store_answer() else { continue };
            // The stored answer of a repeated request may be older than the request.
            let started = if check.id.is_some() { 0 } else { check.started };
            let served = network.served(answer.decided_at, started..=check.ended);
            // Leases and the deny cache only estimate the time of the server.
            let served = served.filter(|_| answer.source == Source::Store);
            let count = |times: &[u64]| times.iter().filter(|&&at| at <= check.ended).count();
            let at = match answer.source {
                Source::DenyCache => self.world.server_clock.at(check.ended),
                _ => answer.decided_at,
            };
            decided.push(Decided {
                index,
                check,
                answer,
                at,
                ran: served.map_or(check.ended, |served| served.at),
                disturbances: served.map_or(count(&self.disturbances), |it| it.disturbances),
                resets: served.map_or(count(&self.resets), |it| it.resets),
                is_ambiguous: network.has_reset_at(answer.decided_at),
                is_repeated: false,
            });
        }
        decided.sort_by_key(|it| (it.ran, it.index));
        let mut seen = BTreeSet::new();
        for it in &mut decided {
            it.is_repeated = it.check.id.is_some_and(|id| !seen.insert((id, it.at)));
        }
        decided
    }

    fn counters(&self) -> Vec<Counter<'a>> {
        let scenario = &self.world.scenario;
        let mut counters = Vec::new();
        for (policy_index, policy) in scenario.policies.iter().enumerate() {
            for place in 0..policy.limits[0].len() {
                for key in 0..scenario.keys {
                    let limits = [0, 1].map(|revision| policy.limits[revision][place]);
                    let resets = Vec::new();
                    let mut counter = Counter { policy, policy_index, limits, key, resets };
                    counter.resets = self.resets_of(&counter);
                    counters.push(counter);
                }
            }
        }
        counters
    }

    /// Returns the numbers of the server's resets that may have reset a counter.
    fn resets_of(&self, counter: &Counter<'_>) -> Vec<usize> {
        let resets: Vec<_> =
            self.events.resets.iter().filter(|reset| counter.is_changed_by(reset)).collect();
        let may_be = |at: u64| resets.iter().any(|it| (it.started..=it.ended + LATE).contains(&at));
        (0..self.resets.len()).filter(|&number| may_be(self.resets[number])).collect()
    }

    /// Returns true if a server without faults has always answered in time.
    fn is_calm(&self) -> bool {
        let scenario = &self.world.scenario;
        let is_fast = scenario.deadline > 12 * Duration::from_millis(scenario.delay.1);
        is_fast && scenario.faults.iter().all(|kind| matches!(kind, FaultKind::ScriptFlush))
    }

    /// Checks that failure modes decide only after a fault. The loss of scripts has no effect, and neither has a step
    /// of a host's clock.
    fn needless_fallbacks(&self) -> Option<String> {
        let scenario = &self.world.scenario;
        let is_harmless =
            |kind: &FaultKind| matches!(kind, FaultKind::ScriptFlush | FaultKind::HostClockStep);
        let is_fast = scenario.deadline > 12 * Duration::from_millis(scenario.delay.1);
        if !is_fast || !scenario.faults.iter().all(is_harmless) {
            return None;
        }
        let is_needless = |check: &&Check| {
            check.fallback_answer().is_some() && check.started > micros(CONNECT_TIME)
        };
        let found = self.events.checks.iter().find(is_needless)?;
        Some(format!("a failure mode decided without a fault: {found:?}"))
    }

    /// Checks that a request that is repeated with its id gets the same answer, unless the server lost that: its data,
    /// its memory for another key, or its time.
    fn wrong_repetitions(&self) -> Vec<String> {
        let is_lost = !self.disturbances.is_empty()
            || self.world.scenario.faults.contains(&FaultKind::OutOfMemory);
        if is_lost {
            return Vec::new();
        }
        let mut first: BTreeMap<u64, &Decided<'_>> = BTreeMap::new();
        let mut violations = Vec::new();
        for it in &self.decided {
            let Some(id) = it.check.id else { continue };
            let earlier = first.entry(id).or_insert(it);
            let facts = |it: &Decided<'_>| {
                let Answer { is_allowed, units, decided_at, remaining, retry_after, .. } =
                    it.answer;
                (is_allowed, units, decided_at, remaining, retry_after)
            };
            if facts(earlier) != facts(it) {
                violations.push(format!("{it:?} is another answer than that of {earlier:?}"));
            }
        }
        violations
    }

    /// Checks an answer of the server, or of the deny cache, against the usage of all counters.
    fn wrong_answer(&self, it: &Decided<'_>, bounds: &Bounds) -> Option<String> {
        let (check, answer) = (it.check, it.answer);
        let is_judged = check.kind != Kind::Spent && !it.is_repeated && !self.is_stale(it);
        if !is_judged || answer.source == Source::Lease {
            return None;
        }
        let is_partial = check.kind == Kind::UpTo && answer.is_allowed && answer.units < check.cost;
        if (!answer.is_allowed || is_partial) && !bounds.may_be_denied {
            return Some(format!("denied although every limit had room: {it:?}"));
        }
        if !answer.is_allowed {
            return self.wrong_retry(it, bounds);
        }
        let before = answer.remaining + if check.kind == Kind::Permit { 0 } else { answer.units };
        let (least, most) = bounds.remaining;
        let is_judged = answer.source == Source::Store && check.kind != Kind::Permit;
        if is_judged && !(least..=most).contains(&before) {
            return Some(format!(
                "{before} units remained before a charge, not {least} to {most}: {it:?}"
            ));
        }
        None
    }

    fn wrong_retry(&self, it: &Decided<'_>, bounds: &Bounds) -> Option<String> {
        let Some(retry) = it.answer.retry_after else {
            return Some(format!("a denial has no retry time: {it:?}"));
        };
        let (least, mut most) = bounds.retry_after;
        if it.answer.source == Source::DenyCache {
            // Its estimate is too late by at most a round trip.
            most = most.saturating_add(micros(self.world.scenario.deadline) + 10_000);
        }
        let is_honest = retry >= least && retry <= most;
        (!is_honest).then(|| format!("the retry time is not from {least} to {most} µs: {it:?}"))
    }

    /// Returns whether the deny cache may have an entry from before a disturbance, a reset or a reload.
    fn is_stale(&self, it: &Decided<'_>) -> bool {
        let is_recent = |at: &u64| (*at..=at + DENY_CACHE_AGE).contains(&it.check.ended);
        it.answer.source == Source::DenyCache
            && (self.disturbances.iter().any(is_recent) || self.resets.iter().any(is_recent))
    }
}

impl Decided<'_> {
    /// Returns the number of the segment of a counter.
    fn segment(&self, counter: &Counter<'_>) -> usize {
        let resets = counter.resets.iter().filter(|&&number| number < self.resets).count();
        self.disturbances + resets
    }

    /// Returns the units that it charged.
    fn units(&self) -> u64 {
        if self.answer.is_allowed && !self.is_repeated { self.answer.units } else { 0 }
    }
}

impl Counter<'_> {
    fn applies_to(&self, check: &Check) -> bool {
        check.key == self.key && check.policies.contains(&self.policy_index)
    }

    fn is_changed_by(&self, update: &Update) -> bool {
        update.key == self.key && update.policies.contains(&self.policy_index)
    }

    fn holds_permits(&self) -> bool {
        self.limits[0].algorithm() == Algorithm::Concurrency
    }

    fn algorithm(&self) -> Algorithm {
        self.limits[0].algorithm()
    }

    fn period(&self) -> u64 {
        micros(self.limits[0].period())
    }

    /// Returns the limit of a revision. A bucket refills at the lower or the higher rate of both revisions, because the
    /// order of charges by different hosts may be unknown.
    fn limit(&self, revision: usize, pick_rate: fn(u64, u64) -> u64, is_changed: bool) -> Limit {
        let limit = self.limits[revision];
        if self.algorithm() != Algorithm::TokenBucket || !is_changed {
            return limit;
        }
        let amount = pick_rate(self.limits[0].amount(), self.limits[1].amount());
        let slower =
            Limit::new(amount, limit.period()).and_then(|it| it.with_algorithm(limit.algorithm()));
        slower.and_then(|it| it.with_burst(limit.capacity())).expect("a valid limit")
    }

    fn name(&self) -> String {
        format!("policy {}, `{}`, key {}", self.policy_index, self.limits[0], self.key)
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}
