//! The lower bound of the usage of a counter: what was certainly charged since the last disturbance.

use pacegate::{Algorithm, Source};
use pacegate_testkit::Model;

use super::{Bounds, Counter, DENY_CACHE_AGE, Decided, Judge, LATE, Place, Segment};
use crate::history::{Kind, Update};

/// A counter of which only certain charges are known, in one segment.
struct Lower {
    model: Model,
    /// Units that were admitted although they do not fit, and that no return explains.
    excess: u64,
    /// For each return: its units that do not explain an excess yet.
    returned: Vec<u64>,
    /// When the last unit of a lease was spent, of those in the model.
    spent_lease: u64,
}

impl Judge<'_> {
    /// Checks that the model admits all requests that were admitted, and bounds retry times and remaining units.
    pub(super) fn excess_units(&self, counter: &Counter<'_>, bounds: &mut [Bounds]) -> Vec<String> {
        let is_meant = |it: &Decided<'_>| !it.place(counter).is_ambiguous;
        let segments = self.segments(counter, is_meant).into_iter();
        segments.filter_map(|it| self.excess_in_segment(counter, &it, bounds)).collect()
    }

    fn excess_in_segment(
        &self,
        counter: &Counter<'_>,
        segment: &Segment<'_>,
        bounds: &mut [Bounds],
    ) -> Option<String> {
        let returned = self.returns(counter).map(|it| it.units).collect();
        let mut lower =
            Lower { model: Model::new(counter.limits[0]), excess: 0, returned, spent_lease: 0 };
        let at = |it: &Decided<'_>| it.place(counter).at;
        let is_cached = |it: &Decided<'_>| it.answer.source == Source::DenyCache;
        let (cached, decided): (Vec<_>, Vec<_>) =
            segment.decided.iter().copied().partition(|(_, it, _)| is_cached(it));
        let mut cached = cached.into_iter().filter(|(_, _, is_own)| *is_own).peekable();
        for group in decided.chunk_by(|(_, one, _), (_, other, _)| at(one) == at(other)) {
            // A cached denial knows what was charged when it was cached.
            let is_earlier = |it: &Decided<'_>| at(it) <= at(group[0].1) + DENY_CACHE_AGE;
            while let Some((index, it, _)) = cached.next_if(|(_, it, _)| is_earlier(it)) {
                self.bound_from_below(counter, it, &mut lower, &mut bounds[index]);
            }
            lower.model.forget(at(group[0].1));
            for &(index, it, is_own) in group {
                // Leased units of an earlier segment are not charged in this one.
                let is_exact = is_own && (segment.is_first || counter.policy.lease.is_none());
                if is_exact && it.answer.source == Source::Store && !it.is_repeated {
                    self.bound_from_below(counter, it, &mut lower, &mut bounds[index]);
                }
            }
            self.admit(counter, group, &mut lower);
            if group.iter().all(|(_, _, is_own)| !is_own) {
                // Judged in its own segment.
                lower.excess = 0;
            }
            // Leased units of an earlier segment may be spent in this one.
            let allowed = if segment.is_first { 0 } else { self.leased(counter) };
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
    fn admit(
        &self,
        counter: &Counter<'_>,
        group: &[(usize, &Decided<'_>, bool)],
        lower: &mut Lower,
    ) {
        let leased = group.iter().filter(|(_, it, _)| it.answer.source == Source::Lease);
        let spent = leased.map(|(_, it, _)| it.check.ended).max().unwrap_or(0);
        lower.spent_lease = lower.spent_lease.max(spent);
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
            let of_revision = group.iter().filter(|(_, it, _)| charged_under(it) == revision);
            let units: u64 = of_revision.map(|(_, it, _)| it.units()).sum();
            if units == 0 {
                continue;
            }
            let at = group[0].1.place(counter).at;
            let is_changed = self.world.scenario.with_reloads;
            lower.model.set_limit(counter.limit(revision, u64::max, is_changed));
            let fit = units.min(lower.model.remaining(at));
            if fit > 0 {
                lower.model.take(at, fit, 0);
            }
            let until = group.iter().map(|(_, it, _)| it.check.ended).max().unwrap_or(0);
            lower.excess += self.unexplained(counter, until, units - fit, &mut lower.returned);
        }
    }

    /// Raises the least retry time, and lowers the most remaining units, to those of the certain charges.
    fn bound_from_below(
        &self,
        counter: &Counter<'_>,
        it: &Decided<'_>,
        lower: &mut Lower,
        bounds: &mut Bounds,
    ) {
        let is_returned =
            |update: &Update| counter.is_changed_by(update) && update.started <= it.check.ended;
        let &Place { at, ran, .. } = it.place(counter);
        // A host that spends a lease estimates the server's time, which may be earlier than the charge of the lease.
        let is_leased_later = lower.spent_lease >= ran;
        if it.places.len() > 1 || is_leased_later || self.returns(counter).any(is_returned) {
            return;
        }
        let model = &mut lower.model;
        let is_changed = self.world.scenario.with_reloads;
        model.set_limit(counter.limit(it.check.revision, u64::max, is_changed));
        if it.answer.is_allowed {
            bounds.remaining.1 = bounds.remaining.1.min(model.remaining(at));
        } else {
            let cost = if it.check.kind == Kind::UpTo { 1 } else { it.check.cost.max(1) };
            let retry = model.first_fit(at, cost).unwrap_or(0);
            bounds.retry_after.0 = bounds.retry_after.0.max(retry);
        }
    }

    /// Returns the updates that may return units of other requests to a counter. If a request is denied by another
    /// slot, a window gets back exactly the units of that request, unless it lost them before.
    fn returns<'b>(&'b self, counter: &'b Counter<'_>) -> impl Iterator<Item = &'b Update> {
        let has_windows = counter.algorithm().windows() > 0;
        let disturbances = &self.disturbances[&counter.region];
        let resets = counter.resets.iter().map(|&number| &self.resets[number]);
        let losses: Vec<u64> = disturbances.iter().chain(resets).copied().collect();
        let may_be_lost = move |it: &&Update| {
            let during = it.started..=it.ended;
            !has_windows || losses.iter().any(|at| during.contains(at))
        };
        self.events.returns.iter().chain(self.compensations.iter().filter(may_be_lost))
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
        for (update, left) in self.returns(counter).zip(returned) {
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
