//! Judges a history by the reference model: how many units may have been admitted, which denials were justified, and
//! which retry times were honest.
//!
//! A server may lose its keys, and its clock may step. Each such disturbance starts a new segment of the history, in
//! which every limit starts unused: docs/failure-modes.md and docs/algorithms.md state one more burst for each. After a
//! failover to a server with the same clock, a segment continues what the replica had received. A reset starts a
//! segment of its key. Within a segment nothing may be admitted that the model would not admit.
//!
//! The usage of a counter has two bounds. The lower one has only what was certainly charged in the segment. The upper
//! one has everything that may have been charged, as late as possible. Denials, retry times and remaining units must
//! agree with one of the usages in between.

mod fallback;
mod lower;
mod permits;
mod places;
mod upper;

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use pacegate::{Algorithm, Limit, Source};

use places::{Place, Segment};

use crate::{
    history::{Answer, Check, Events, Kind, Update},
    ledger::{Misled, Region},
    scenario::{FaultKind, PolicyChoice, Topology},
    world::World,
};

/// One limit of one key, and the requests that it applied to.
struct Counter<'a> {
    policy: &'a PolicyChoice,
    policy_index: usize,
    /// In both revisions.
    limits: [Limit; 2],
    key: usize,
    region: Region,
    /// Numbers of the server's resets that may have reset this counter.
    resets: Vec<usize>,
}

/// A request that was decided by the server, or by units or denials from it.
#[derive(Clone, Debug)]
struct Decided<'a> {
    index: usize,
    check: &'a Check,
    answer: Answer,
    /// One for each region of its counters.
    places: Vec<Place>,
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
    /// Virtual times at which a region lost data or was ruled by another clock.
    disturbances: BTreeMap<Region, Vec<u64>>,
    /// Virtual times at which a region lost all of its keys.
    losses: BTreeMap<Region, Vec<u64>>,
    /// Virtual times at which the server reset a key.
    resets: Vec<u64>,
    /// Units of requests in several regions that were charged and returned, because another region denied or failed.
    compensations: Vec<Update>,
}

/// Time in which every host is connected at first.
const CONNECT_TIME: Duration = Duration::from_millis(200);

/// Time after which a command that was sent cannot run any more: the time for which a stream is kept, the longest time
/// for which the server does not read, and delays.
pub(crate) const LATE: u64 = 4_500_000;

/// Time for which an old master may still be used after another one has taken over.
pub(crate) const STALE: u64 = 3_000_000;

/// Maximum age of an entry in the deny cache, and the time of a round trip.
const DENY_CACHE_AGE: u64 = 1_300_000;

/// Returns the promises that a history breaks.
pub(crate) fn judge(world: &World, events: &Events) -> Vec<String> {
    let mut judge = world.network.with_ledger(|ledger| {
        let regions = || ledger.regions().iter().copied();
        Judge {
            world,
            events,
            decided: Vec::new(),
            decided_ids: BTreeSet::new(),
            disturbances: regions().map(|it| (it, ledger.disturbances(it))).collect(),
            losses: regions().map(|it| (it, ledger.losses(it).collect())).collect(),
            resets: ledger.resets().to_vec(),
            compensations: Vec::new(),
        }
    });
    judge.compensations = judge.compensated();
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
    violations.extend(judge.leases_of_other_limits());
    violations.extend(judge.misled_hosts());
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
    fn counters(&self) -> Vec<Counter<'a>> {
        let scenario = &self.world.scenario;
        let mut counters = Vec::new();
        for (policy_index, policy) in scenario.policies.iter().enumerate() {
            for place in 0..policy.limits[0].len() {
                for key in 0..scenario.keys {
                    let limits = [0, 1].map(|revision| policy.limits[revision][place]);
                    let (resets, region) = (Vec::new(), self.world.region(policy_index, key));
                    let mut counter = Counter { policy, policy_index, limits, key, region, resets };
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

    /// Returns true if only these kinds of faults occurred, and a server without faults has always answered in time,
    /// even if this many messages are necessary.
    fn is_calm(&self, messages: u32, is_harmless: impl Fn(&FaultKind) -> bool) -> bool {
        let scenario = &self.world.scenario;
        let is_fast = scenario.deadline > messages * Duration::from_millis(scenario.delay.1);
        is_fast && scenario.faults.iter().all(is_harmless)
    }

    /// Checks that failure modes decide only after a fault. The loss of scripts has no effect, and neither has a step
    /// of a host's clock. While a slot moves, requests with one key follow it.
    fn needless_fallbacks(&self) -> Option<String> {
        use FaultKind::{HostClockStep, Migration, ScriptFlush};
        let scenario = &self.world.scenario;
        let (is_calm, with_one_key) = match scenario.topology {
            Topology::Cluster { .. } => {
                let is_harmless =
                    |kind: &FaultKind| matches!(kind, ScriptFlush | HostClockStep | Migration);
                (self.is_calm(24, is_harmless), scenario.faults.contains(&Migration))
            }
            _ => {
                let is_harmless = |kind: &FaultKind| matches!(kind, ScriptFlush | HostClockStep);
                (self.is_calm(12, is_harmless), false)
            }
        };
        let has_one_key = |check: &Check| match check.policies[..] {
            [policy] => scenario.policies[policy].limits[0].len() == 1,
            _ => false,
        };
        let is_needless = |check: &&Check| {
            check.fallback_answer().is_some()
                && check.started > micros(CONNECT_TIME)
                && (!with_one_key
                    || (has_one_key(check) && check.id.is_none() && check.kind != Kind::Reserve))
        };
        let found = self.events.checks.iter().find(is_needless).filter(|_| is_calm)?;
        Some(format!("a failure mode decided without a fault: {found:?}"))
    }

    /// Checks that hosts that can reach the sentinels leave an old master soon, and that none returns to it.
    fn misled_hosts(&self) -> Option<String> {
        use FaultKind::{Crash, Cut, Freeze, HalfOpen, Partition, Restart, SlowPath};
        let faults = &self.world.scenario.faults;
        let cut_off = [Crash, Cut, Freeze, HalfOpen, Partition, Restart, SlowPath];
        let is_reachable = !faults.iter().any(|kind| cut_off.contains(kind));
        let is_wrong = |misled: &&Misled| is_reachable || misled.is_return;
        let misled =
            self.world.network.with_ledger(|ledger| ledger.misled().iter().find(is_wrong).copied());
        let Misled { host, server, at, .. } = misled?;
        Some(format!("host {host} used node {server}, an old master, at {at} µs"))
    }

    /// Checks that no lease pays for the first request of a host under a limit: it would be a lease of another limit.
    fn leases_of_other_limits(&self) -> Option<String> {
        let mut known = BTreeSet::new();
        for check in &self.events.checks {
            let is_leased = check.answer.is_some_and(|answer| answer.source == Source::Lease);
            for &policy in &check.policies {
                let limits = &self.world.scenario.policies[policy].limits;
                let host = (check.host, check.incarnation);
                let is_new = known.insert((host, check.revision, policy, check.key));
                if is_new && is_leased && limits[0] != limits[1] {
                    return Some(format!("a lease of another limit was spent: {check:?}"));
                }
            }
        }
        None
    }

    /// Checks that a request that is repeated with its id gets the same answer, unless the server lost that: its data,
    /// its memory for another key, or its time.
    fn wrong_repetitions(&self) -> Vec<String> {
        let is_lost =
            self.is_disturbed() || self.world.scenario.faults.contains(&FaultKind::OutOfMemory);
        if is_lost {
            return Vec::new();
        }
        let mut first: BTreeMap<u64, &Decided<'_>> = BTreeMap::new();
        let mut violations = Vec::new();
        for it in &self.decided {
            let Some(id) = it.check.id else { continue };
            let earlier = first.entry(id).or_insert(it);
            if earlier.facts() != it.facts() {
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
        if it.places.len() > 1 {
            // The counters were not charged at one time.
            return None;
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
        if it.places.len() > 1 && it.check.times.is_empty() {
            // It is unknown which slot decided, and when.
            most = u64::MAX;
        }
        let is_honest = retry >= least && retry <= most;
        (!is_honest).then(|| format!("the retry time is not from {least} to {most} µs: {it:?}"))
    }

    /// Returns whether any region lost data or was ruled by another clock.
    fn is_disturbed(&self) -> bool {
        self.disturbances.values().any(|times| !times.is_empty())
    }

    /// Returns whether the deny cache may have an entry from before a disturbance, a reset or a reload.
    fn is_stale(&self, it: &Decided<'_>) -> bool {
        let is_recent = |at: &u64| (*at..=at + DENY_CACHE_AGE).contains(&it.check.ended);
        let is_disturbed = |place: &Place| self.disturbances[&place.region].iter().any(is_recent);
        it.answer.source == Source::DenyCache
            && (it.places.iter().any(is_disturbed) || self.resets.iter().any(is_recent))
    }
}

impl Decided<'_> {
    /// Returns when and where a counter was charged.
    fn place(&self, counter: &Counter<'_>) -> &Place {
        let place = self.places.iter().find(|place| place.region == counter.region);
        place.expect("a place for each region of the request")
    }

    /// Returns the parts of the answer that are the same when the request is repeated.
    fn facts(&self) -> (bool, u64, u64, u64, Option<u64>) {
        let Answer { is_allowed, units, decided_at, remaining, retry_after, .. } = self.answer;
        (is_allowed, units, decided_at, remaining, retry_after)
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
