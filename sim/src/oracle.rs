//! Judges a history by the reference model: how many units may have been admitted, which denials were justified, and
//! which retry times were honest.
//!
//! The server may lose its keys, and its clock may step. Each such disturbance starts a new segment of the history, in
//! which every limit starts unused: docs/failure-modes.md and docs/algorithms.md state one more burst for each. Within
//! a segment nothing may be admitted that the model would not admit.

use std::time::Duration;

use pacegate::{Limit, Source, policy::FailureMode};
use pacegate_testkit::Model;

use crate::{
    history::{Check, Events},
    scenario::{FaultKind, PolicyChoice},
    world::World,
};

/// One limit of one key, and the requests that it applied to.
struct Counter<'a> {
    policy: &'a PolicyChoice,
    policy_index: usize,
    limit: Limit,
    key: usize,
}

/// A request that was decided by the server or by units from it.
#[derive(Clone, Copy, Debug)]
struct Decided<'a> {
    check: &'a Check,
    segment: usize,
    /// The time by the clock of the server.
    at: u64,
}

/// A history with the segments of the server.
struct Judge<'a> {
    world: &'a World,
    events: &'a Events,
    decided: Vec<Decided<'a>>,
    /// Virtual times at which the server lost data or its clock stepped.
    disturbances: Vec<u64>,
}

/// Maximum age of an entry in the deny cache, and the time of a round trip.
const DENY_CACHE_AGE: Duration = Duration::from_millis(1_300);

/// Time in which every host is connected at first.
const CONNECT_TIME: Duration = Duration::from_millis(200);

/// Returns the promises that a history breaks.
pub(crate) fn judge(world: &World, events: &Events) -> Vec<String> {
    let disturbances = world.network.disturbances();
    let judge = Judge { world, events, decided: decided(world, events), disturbances };
    let mut violations = Vec::new();
    for counter in judge.counters() {
        if counter.limit.algorithm().holds_permits() {
            violations.extend(judge.excess_permits(&counter));
        } else {
            violations.extend(judge.excess_units(&counter));
            violations.extend(judge.excess_without_store(&counter));
        }
    }
    violations.extend(judge.needless_fallbacks());
    violations.extend(judge.wrong_denials());
    violations.extend(judge.dishonest_retries());
    violations
}

/// Finds the segment of each decision.
fn decided<'a>(world: &World, events: &'a Events) -> Vec<Decided<'a>> {
    let disturbances = world.network.disturbances();
    let mut decided = Vec::new();
    for check in &events.checks {
        let Some(answer) = check.answer.filter(|answer| !answer.is_degraded()) else { continue };
        if world.network.has_reset_at(answer.decided_at) {
            continue;
        }
        // The stored answer of a repeated request may be older than the request.
        let started = if world.scenario.with_ids { 0 } else { check.started };
        let request = started..=check.ended;
        let before = world.network.disturbances_before(answer.decided_at, request);
        // Leases and the deny cache only estimate the time of the server.
        let before = before.filter(|_| answer.source == Source::Store);
        let until_end = || disturbances.iter().filter(|&&at| at <= check.ended).count();
        let segment = before.unwrap_or_else(until_end);
        decided.push(Decided { check, segment, at: answer.decided_at });
    }
    decided
}

impl Judge<'_> {
    fn counters(&self) -> Vec<Counter<'_>> {
        let scenario = &self.world.scenario;
        let mut counters = Vec::new();
        for (policy_index, policy) in scenario.policies.iter().enumerate() {
            for &limit in &policy.limits {
                for key in 0..scenario.keys {
                    counters.push(Counter { policy, policy_index, limit, key });
                }
            }
        }
        counters
    }

    /// Returns the admitted requests of a counter in a segment, in the order of the server's clock.
    fn admitted(&self, counter: &Counter<'_>, segment: usize) -> Vec<Decided<'_>> {
        let is_admitted = |it: &&Decided<'_>| {
            it.segment == segment
                && counter.applies_to(it.check)
                && it.check.answer.is_some_and(|answer| answer.is_allowed)
        };
        let mut admitted: Vec<_> = self.decided.iter().filter(is_admitted).copied().collect();
        admitted.sort_by_key(|it| it.at);
        admitted
    }

    /// Returns units that were refunded before `until` and may have been admitted again.
    fn refunded(&self, key: usize, until: u64) -> u64 {
        let refunds = self.events.refunds.iter();
        refunds.filter(|it| it.key == key && it.started <= until).map(|it| it.cost).sum()
    }

    /// Checks that the model admits all requests that were admitted.
    fn excess_units(&self, counter: &Counter<'_>) -> Vec<String> {
        let mut violations = Vec::new();
        for segment in 0..=self.disturbances.len() {
            let admitted = self.admitted(counter, segment);
            let mut model = Model::new(counter.limit);
            let mut excess = 0;
            for group in admitted.chunk_by(|one, other| one.at == other.at) {
                let units: u64 = group.iter().map(|it| it.check.cost).sum();
                let at = group[0].at;
                let fit = (0..=units).rev().find(|&units| units == 0 || model.fits(at, units));
                let fit = fit.unwrap_or(0);
                if fit > 0 {
                    model.take(at, fit, 0);
                }
                excess += units - fit;
                let until = group.iter().map(|it| it.check.ended).max().unwrap_or(0);
                // Leased units of an earlier segment may be spent in this one.
                let leased = if segment > 0 { self.leased(counter) } else { 0 };
                let allowed = self.refunded(counter.key, until) + leased;
                if excess > allowed {
                    violations.push(format!(
                        "{} admitted {excess} units too many, {allowed} allowed: {group:?}",
                        counter.name()
                    ));
                    break;
                }
            }
        }
        violations
    }

    /// Returns the units that hosts may hold as leases.
    fn leased(&self, counter: &Counter<'_>) -> u64 {
        let units = counter.policy.lease.map_or(0, |lease| 2 * lease + counter.limit.capacity());
        units * self.world.scenario.hosts as u64
    }

    /// Checks that the failure mode of a policy admits what it promises.
    fn excess_without_store(&self, counter: &Counter<'_>) -> Vec<String> {
        let mut violations = Vec::new();
        let is_degraded = |check: &&Check| {
            let answer = check.answer.as_ref();
            counter.applies_to(check) && answer.is_some_and(|it| it.is_degraded() && it.is_allowed)
        };
        let mut degraded: Vec<_> = self.events.checks.iter().filter(is_degraded).collect();
        degraded.sort_by_key(|check| check.ended);
        let share = match counter.policy.failure {
            FailureMode::Closed => {
                let closed = |check| format!("{} fails closed: {check:?}", counter.name());
                return degraded.into_iter().map(closed).collect();
            }
            // A reset also resets the counters of its host.
            FailureMode::Local { numerator, denominator } if !self.world.scenario.with_resets => {
                counter.limit.share(numerator, denominator)
            }
            _ => return violations,
        };
        for (index, host) in self.world.hosts.iter().enumerate() {
            let steps = host.clock.steps();
            let segment = |check: &Check| steps.iter().filter(|&&at| at <= check.ended).count();
            let of_host: Vec<_> = degraded.iter().filter(|check| check.host == index).collect();
            for checks in of_host.chunk_by(|one, other| segment(one) == segment(other)) {
                let mut model = Model::new(share);
                for check in checks {
                    let now = check.answer.map_or(0, |answer| answer.host_time);
                    if !model.take(now, check.cost, 0) {
                        let name = counter.name();
                        violations.push(format!("{name}: more than a share: {check:?}"));
                        break;
                    }
                }
            }
        }
        violations
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
            let is_degraded = check.answer.is_some_and(|answer| answer.is_degraded());
            is_degraded && check.started > micros(CONNECT_TIME)
        };
        let found = self.events.checks.iter().find(is_needless)?;
        Some(format!("a failure mode decided without a fault: {found:?}"))
    }

    /// Checks that no more permits were held than the limit allows.
    fn excess_permits(&self, counter: &Counter<'_>) -> Option<String> {
        let period = micros(counter.limit.period());
        for segment in 0..=self.disturbances.len() {
            let admitted = self.admitted(counter, segment);
            for one in &admitted {
                let is_held = |other: &&Decided<'_>| {
                    let is_released = other.check.released.is_some_and(|at| at <= one.check.ended);
                    other.at <= one.at && one.at < other.at + period && !is_released
                };
                let held: u64 = admitted.iter().filter(is_held).map(|it| it.check.cost).sum();
                if held > counter.limit.amount() {
                    return Some(format!("{}: {held} permits are held: {one:?}", counter.name()));
                }
            }
        }
        None
    }

    /// Checks that the server and the deny cache denied only requests that did not fit.
    fn wrong_denials(&self) -> Vec<String> {
        // Only before the first disturbance: later, usage from before it may count.
        let is_judged = |it: &&Decided<'_>| {
            let answer = it.check.answer.filter(|answer| !answer.is_allowed);
            // Another host's refund may go unnoticed for a second.
            let is_outdated = answer.is_some_and(|answer| answer.source == Source::DenyCache)
                && self.refunded(it.check.key, u64::MAX) > 0;
            answer.is_some() && it.segment == 0 && !it.check.is_permit && !is_outdated
        };
        let mut denied: Vec<_> = self.decided.iter().filter(is_judged).copied().collect();
        for it in &mut denied {
            // The deny cache only estimates the time of the server.
            if it.check.answer.is_some_and(|answer| answer.source == Source::DenyCache) {
                it.at = self.world.server_clock.at(it.check.ended);
            }
        }
        denied.sort_by_key(|it| it.at);
        let mut is_justified = vec![false; denied.len()];
        for counter in self.counters() {
            self.justify(&counter, &denied, &mut is_justified);
        }
        let wrong = denied.iter().zip(is_justified).filter(|(_, is_justified)| !is_justified);
        wrong.map(|(it, _)| format!("denied although every limit had room: {it:?}")).collect()
    }

    /// Marks the denials for which a limit may have had no room. They are in the order of the server's clock.
    fn justify(&self, counter: &Counter<'_>, denied: &[Decided<'_>], is_justified: &mut [bool]) {
        let admitted = self.admitted(counter, 0);
        let mut admitted = admitted.iter().peekable();
        // Units of requests that may have been charged although the server did not admit them.
        let unknown: Vec<(u64, u64)> = self
            .events
            .checks
            .iter()
            .filter(|check| counter.applies_to(check))
            .filter(|check| check.answer.is_none_or(|answer| answer.is_degraded()))
            .map(|check| (check.started, check.cost))
            .collect();
        let (mut model, mut is_exact) = (Model::new(counter.limit), true);
        for (it, is_justified) in denied.iter().zip(is_justified) {
            if *is_justified || !counter.applies_to(it.check) {
                continue;
            }
            while let Some(earlier) = admitted.next_if(|earlier| earlier.at <= it.at) {
                // More than the limit is possible only after refunds.
                is_exact &= model.take(earlier.at, earlier.check.cost, 0);
            }
            let may_be_charged = unknown.iter().filter(|(started, _)| *started <= it.check.ended);
            let unknown: u64 = may_be_charged.map(|(_, cost)| cost).sum();
            let units = it.check.cost + unknown + self.leased(counter);
            *is_justified = !is_exact || !model.fits(it.at, units);
        }
    }

    /// Returns whether the deny cache may have an entry from before a disturbance.
    fn is_disturbed(&self, decided: &Decided<'_>) -> bool {
        let age = micros(DENY_CACHE_AGE);
        let is_recent = |at: &u64| (*at..=at + age).contains(&decided.check.ended);
        self.disturbances.iter().any(is_recent)
    }

    /// Checks that nothing was admitted before the retry time of a denial.
    fn dishonest_retries(&self) -> Vec<String> {
        let mut violations = Vec::new();
        for denied in &self.decided {
            let Some(answer) = denied.check.answer.filter(|answer| !answer.is_allowed) else {
                continue;
            };
            let Some(retry) = answer.retry_after else { continue };
            let is_outdated = answer.source == Source::DenyCache && self.is_disturbed(denied);
            // A host may return leased units at any time.
            let has_leases = |&policy: &usize| self.world.scenario.policies[policy].lease.is_some();
            let is_returned = self.world.scenario.with_lease_returns
                && denied.check.policies.iter().any(has_leases);
            let is_refunded = self.refunded(denied.check.key, u64::MAX) > 0;
            if denied.check.is_permit || is_outdated || is_returned || is_refunded {
                continue;
            }
            let is_too_early = |other: &&Decided<'_>| {
                let (one, two) = (denied.check, other.check);
                let admitted = two.answer.filter(|answer| answer.is_allowed);
                other.segment == denied.segment
                    && (one.key, &one.policies) == (two.key, &two.policies)
                    && one.cost <= two.cost
                    && admitted.is_some_and(|answer| answer.source == Source::Store)
                    && denied.at < other.at
                    && other.at < denied.at + retry
            };
            if let Some(other) = self.decided.iter().find(is_too_early) {
                violations
                    .push(format!("{other:?} was admitted before the retry time of {denied:?}"));
            }
        }
        violations
    }
}

impl Counter<'_> {
    fn applies_to(&self, check: &Check) -> bool {
        check.key == self.key && check.policies.contains(&self.policy_index)
    }

    fn name(&self) -> String {
        format!("policy {}, `{}`, key {}", self.policy_index, self.limit, self.key)
    }
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}
