//! The lower bound of the usage of a counter: what was certainly charged since the last disturbance.

use pacegate::{Algorithm, Source};
use pacegate_testkit::Model;

use super::{Bounds, Counter, Decided, Judge, LATE};
use crate::history::{Kind, Update};

/// A counter of which only certain charges are known, in one segment.
struct Lower {
    model: Model,
    /// Units that were admitted although they do not fit, and that no return explains.
    excess: u64,
    /// For each return: its units that do not explain an excess yet.
    returned: Vec<u64>,
}

impl Judge<'_> {
    /// Checks that the model admits all requests that were admitted, and bounds retry times and remaining units.
    pub(super) fn excess_units(&self, counter: &Counter<'_>, bounds: &mut [Bounds]) -> Vec<String> {
        let is_meant = |(_, it): &(usize, &Decided<'_>)| {
            counter.applies_to(it.check)
                && !it.is_ambiguous
                && it.answer.source != Source::DenyCache
        };
        let meant: Vec<_> = self.decided.iter().enumerate().filter(is_meant).collect();
        let mut violations = Vec::new();
        let last = meant.iter().map(|(_, it)| it.segment(counter)).max().unwrap_or(0);
        for segment in 0..=last {
            let in_segment = meant.iter().filter(|(_, it)| it.segment(counter) == segment);
            let mut in_segment: Vec<_> = in_segment.copied().collect();
            in_segment.sort_by_key(|(_, it)| it.at);
            violations.extend(self.excess_in_segment(counter, segment, &in_segment, bounds));
        }
        violations
    }

    fn excess_in_segment(
        &self,
        counter: &Counter<'_>,
        segment: usize,
        decided: &[(usize, &Decided<'_>)],
        bounds: &mut [Bounds],
    ) -> Option<String> {
        let returned = self.events.returns.iter().map(|it| it.units).collect();
        let mut lower = Lower { model: Model::new(counter.limits[0]), excess: 0, returned };
        for group in decided.chunk_by(|(_, one), (_, other)| one.at == other.at) {
            let at = group[0].1.at;
            lower.model.forget(at);
            for &(index, it) in group {
                // Leased units of an earlier segment are not charged in this one.
                let is_exact = segment == 0 || counter.policy.lease.is_none();
                if is_exact && it.answer.source == Source::Store && !it.is_repeated {
                    self.bound_from_below(counter, it, &mut lower.model, &mut bounds[index]);
                }
            }
            self.admit(counter, group, &mut lower);
            // Leased units of an earlier segment may be spent in this one.
            let allowed = if segment > 0 { self.leased(counter) } else { 0 };
            if lower.excess > allowed {
                return Some(format!(
                    "{} admitted {} units too many, {allowed} allowed: {group:?}",
                    counter.name(),
                    lower.excess
                ));
            }
        }
        None
    }

    /// Adds the units that were admitted at one instant, under the limits of their requests.
    fn admit(&self, counter: &Counter<'_>, group: &[(usize, &Decided<'_>)], lower: &mut Lower) {
        // Units of a lease were charged before, perhaps when fewer of a higher limit were used.
        let higher = usize::from(counter.limits[1].amount() > counter.limits[0].amount());
        let charged_under = |it: &Decided<'_>| match it.answer.source {
            Source::Lease if self.world.scenario.with_reloads => higher,
            _ => it.check.revision,
        };
        // The order of the server is unknown: this one admits the most.
        let mut revisions = [0, 1];
        revisions.sort_by_key(|&revision: &usize| counter.limits[revision].capacity());
        for revision in revisions {
            let of_revision = group.iter().filter(|(_, it)| charged_under(it) == revision);
            let units: u64 = of_revision.map(|(_, it)| it.units()).sum();
            if units == 0 {
                continue;
            }
            let at = group[0].1.at;
            let is_changed = self.world.scenario.with_reloads;
            lower.model.set_limit(counter.limit(revision, u64::max, is_changed));
            let fit = units.min(lower.model.remaining(at));
            if fit > 0 {
                lower.model.take(at, fit, 0);
            }
            let until = group.iter().map(|(_, it)| it.check.ended).max().unwrap_or(0);
            lower.excess += self.unexplained(counter, until, units - fit, &mut lower.returned);
        }
    }

    /// Raises the least retry time, and lowers the most remaining units, to those of the certain charges.
    fn bound_from_below(
        &self,
        counter: &Counter<'_>,
        it: &Decided<'_>,
        model: &mut Model,
        bounds: &mut Bounds,
    ) {
        let is_returned =
            |update: &Update| counter.is_changed_by(update) && update.started <= it.check.ended;
        if self.events.returns.iter().any(is_returned) {
            return;
        }
        let is_changed = self.world.scenario.with_reloads;
        model.set_limit(counter.limit(it.check.revision, u64::max, is_changed));
        if it.answer.is_allowed {
            bounds.remaining.1 = bounds.remaining.1.min(model.remaining(it.at));
        } else {
            let cost = if it.check.kind == Kind::UpTo { 1 } else { it.check.cost.max(1) };
            let retry = model.first_fit(it.at, cost).unwrap_or(0);
            bounds.retry_after.0 = bounds.retry_after.0.max(retry);
        }
    }

    /// Explains an excess by units that were returned before, as long as that has an effect. Returns the rest.
    fn unexplained(
        &self,
        counter: &Counter<'_>,
        until: u64,
        excess: u64,
        returned: &mut [u64],
    ) -> u64 {
        let lives = match counter.algorithm() {
            Algorithm::TokenBucket => u64::MAX,
            _ => 2 * counter.period() + LATE,
        };
        let counts = |it: &Update| {
            counter.is_changed_by(it)
                && it.started <= until
                && it.ended.saturating_add(lives) >= until
        };
        let mut rest = excess;
        for (update, left) in self.events.returns.iter().zip(returned) {
            if rest > 0 && counts(update) {
                let used = rest.min(*left);
                (rest, *left) = (rest - used, *left - used);
            }
        }
        rest
    }

    /// Returns the units that hosts may hold as leases.
    fn leased(&self, counter: &Counter<'_>) -> u64 {
        let units = counter.policy.lease.map_or(0, |lease| {
            2 * lease + counter.limits.iter().map(|limit| limit.capacity()).max().unwrap_or(0)
        });
        units * self.world.scenario.hosts as u64
    }
}
