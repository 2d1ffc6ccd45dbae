//! Decisions of failure modes.

use pacegate::{Algorithm, Limit, policy::FailureMode};
use pacegate_testkit::Model;

use super::{Counter, Judge};
use crate::history::{Answer, Check, Kind};

/// Maximum number of denials that are judged, because each compares all earlier decisions of its program.
const MAX_JUDGED: usize = 500;

impl Judge<'_> {
    /// Returns the requests that a failure mode allowed under this counter, by the program that decided.
    fn fallbacks(&self, counter: &Counter<'_>) -> Vec<Vec<(&Check, Answer)>> {
        let allowed = self.events.checks.iter().filter(|check| counter.applies_to(check));
        let allowed = allowed.filter_map(|check| Some((check, check.fallback_answer()?)));
        let mut allowed: Vec<_> = allowed.filter(|(_, answer)| answer.is_allowed).collect();
        allowed.sort_by_key(|(check, _)| (check.host, check.incarnation, check.ended));
        let program = |check: &Check| (check.host, check.incarnation);
        let programs = allowed.chunk_by(|(one, _), (other, _)| program(one) == program(other));
        programs.map(<[_]>::to_vec).collect()
    }

    /// Returns true if counters in memory changed in other ways than by checks.
    fn has_other_changes(&self) -> bool {
        let scenario = &self.world.scenario;
        scenario.with_resets || scenario.with_reservations || scenario.with_debt
    }

    /// Checks that the failure mode of a policy admits what it promises.
    pub(super) fn excess_without_store(&self, counter: &Counter<'_>) -> Vec<String> {
        let share = |limit: Limit| match counter.policy.failure {
            FailureMode::Local { numerator, denominator } => limit.share(numerator, denominator),
            _ => limit,
        };
        let is_bucket = counter.algorithm() == Algorithm::TokenBucket;
        let has_changed_rate = is_bucket && self.world.scenario.with_reloads;
        let mut violations = Vec::new();
        for checks in self.fallbacks(counter) {
            let name = counter.name();
            match counter.policy.failure {
                FailureMode::Closed => {
                    violations.push(format!("{name} fails closed: {:?}", checks[0].0));
                }
                FailureMode::Local { .. } if counter.holds_permits() => {
                    // A step back brings expired permits back, in the eyes of this check only.
                    let steps = self.world.hosts[checks[0].0.host].clock.steps();
                    if !steps.is_empty() || self.world.scenario.with_resets {
                        continue;
                    }
                    let share = share(counter.limits[0]);
                    violations.extend(excess_permits(counter, &checks, share.amount()));
                }
                FailureMode::Local { .. } if !self.has_other_changes() && !has_changed_rate => {
                    violations.extend(self.excess_units_of(counter, &checks, share));
                }
                _ => {}
            }
        }
        violations
    }

    /// Checks that one program admitted no more than its share, since each step of its clock.
    fn excess_units_of(
        &self,
        counter: &Counter<'_>,
        checks: &[(&Check, Answer)],
        share: impl Fn(Limit) -> Limit,
    ) -> Option<String> {
        let steps = self.world.hosts[checks[0].0.host].clock.steps();
        let segment = |check: &Check| steps.iter().filter(|&&at| at <= check.ended).count();
        // The clock may have stepped before or after such a decision.
        let is_certain =
            |check: &Check| !steps.iter().any(|at| (check.started..=check.ended).contains(at));
        let mut checks: Vec<_> = checks.iter().filter(|(check, _)| is_certain(check)).collect();
        // The order at one instant is unknown: this one admits the most.
        let capacity = |check: &Check| counter.limits[check.revision].capacity();
        checks.sort_by_key(|(check, answer)| (segment(check), answer.host_time, capacity(check)));
        for checks in checks.chunk_by(|one, other| segment(one.0) == segment(other.0)) {
            let mut model = Model::new(share(counter.limits[0]));
            for (check, answer) in checks {
                model.set_limit(share(counter.limits[check.revision]));
                model.forget(answer.host_time);
                if answer.units > 0 && !model.take(answer.host_time, answer.units, 0) {
                    return Some(format!("{}: more than a share: {check:?}", counter.name()));
                }
            }
        }
        None
    }

    /// Checks that failure modes denied only requests that `closed` denies, or that exceed a share.
    pub(super) fn needless_denials_without_store(&self) -> Vec<String> {
        let is_denied = |check: &&Check| {
            let is_denied = check.fallback_answer().is_some_and(|answer| !answer.is_allowed);
            is_denied && check.kind != Kind::Spent
        };
        let mut denied: Vec<_> =
            self.events.checks.iter().filter(is_denied).take(MAX_JUDGED).collect();
        for counter in self.counters() {
            let fallbacks = self.fallbacks(&counter);
            denied.retain(|check| {
                !(counter.applies_to(check) && self.may_deny(&counter, check, &fallbacks))
            });
        }
        denied
            .into_iter()
            .map(|check| format!("a failure mode denied needlessly: {check:?}"))
            .collect()
    }

    /// Returns whether the failure mode of a policy may deny a request.
    fn may_deny(
        &self,
        counter: &Counter<'_>,
        denied: &Check,
        fallbacks: &[Vec<(&Check, Answer)>],
    ) -> bool {
        let share = match counter.policy.failure {
            FailureMode::Open => return false,
            FailureMode::Local { numerator, denominator } => {
                counter.limits[denied.revision].share(numerator, denominator)
            }
            _ => return true,
        };
        let is_bucket = counter.algorithm() == Algorithm::TokenBucket;
        let has_changed_rate = is_bucket && self.world.scenario.with_reloads;
        let cost = if denied.kind == Kind::UpTo { 1 } else { denied.cost.max(1) };
        if cost > share.capacity() || self.has_other_changes() || has_changed_rate {
            return true;
        }
        let now = denied.answer.map_or(0, |answer| answer.host_time);
        let program = |check: &Check| (check.host, check.incarnation);
        let of_program = fallbacks.iter().find(|checks| program(checks[0].0) == program(denied));
        let counts = |(check, _): &&(&Check, Answer)| {
            let is_released = check.released.is_some_and(|at| at < denied.started);
            check.ended <= denied.ended && !(counter.holds_permits() && is_released)
        };
        let earlier = of_program.into_iter().flatten().filter(counts);
        let mut placed: Vec<_> = earlier
            .map(|(check, answer)| (self.host_time(check, answer).min(now), answer.units))
            .collect();
        placed.sort_unstable();
        let mut model = Model::new(share);
        placed.iter().for_each(|&(at, units)| model.force(at, units));
        !model.fits(now, cost)
    }

    /// Returns the time of a charge by the clock of its host, or of the last attempt to renew its permit.
    fn host_time(&self, check: &Check, answer: &Answer) -> u64 {
        let renewed = check.renewed.map_or(0, |at| self.world.hosts[check.host].clock.at(at));
        answer.host_time.max(renewed)
    }
}

/// Checks that one program held no more permits than its share.
fn excess_permits(
    counter: &Counter<'_>,
    checks: &[(&Check, Answer)],
    share: u64,
) -> Option<String> {
    for (one, answer) in checks {
        let is_held = |(other, earlier): &&(&Check, Answer)| {
            let is_released = other.released.is_some_and(|at| at <= one.ended);
            let has_expired = earlier.host_time + counter.period() <= answer.host_time;
            other.ended <= one.ended && !has_expired && !is_released
        };
        let held: u64 = checks.iter().filter(is_held).map(|(_, answer)| answer.units).sum();
        if held > share {
            return Some(format!(
                "{}: {held} permits of a share are held: {one:?}",
                counter.name()
            ));
        }
    }
    None
}
