//! The upper bound of the usage of a counter: everything that may have been charged, as late as possible.

use pacegate::{Algorithm, Excess, Limit, Source};
use pacegate_testkit::Model;

use super::{Bounds, Counter, DENY_CACHE_AGE, Decided, Judge, LATE, Place, STALE};
use crate::{
    history::{Check, Kind},
    scenario::FaultKind,
};

/// Units that may have been charged.
#[derive(Clone, Copy, Debug)]
struct Charged {
    /// The check.
    index: usize,
    units: u64,
    /// The latest time by the clock of the server.
    at: u64,
    /// Virtual times of the earliest and the latest charge.
    first: u64,
    last: u64,
    /// The virtual time at which a permit was certainly returned.
    returned: Option<u64>,
}

/// Number of charges after which a bucket is assumed to have been empty.
const MAX_BUCKET_CHARGES: usize = 300;

impl Judge<'_> {
    /// Bounds the answers of the server and of the deny cache by the highest possible usage of a counter.
    pub(super) fn bound_usage(&self, counter: &Counter<'_>, bounds: &mut [Bounds]) {
        let charged = self.possible_charges(counter);
        let has_steps = self.world.has_clock_steps();
        let horizon = self.horizon(counter);
        let leased = self.leased_and_unused(counter).filter(|_| !self.has_unclear_debt(counter));
        let lives = horizon + horizon / 500 + DENY_CACHE_AGE;
        let sample = self.sample(counter);
        for (place, (it, bounds)) in self.decided.iter().zip(bounds).enumerate() {
            let is_judged = it.answer.source != Source::Lease
                && it.check.kind != Kind::Spent
                && counter.applies_to(it.check)
                && !it.is_repeated;
            if !is_judged {
                continue;
            }
            let Some(leased) = leased.filter(|_| place % sample == 0) else {
                bounds.know_nothing();
                continue;
            };
            // A step of the clock may bring old charges back.
            let ran = it.place(counter).ran;
            let oldest = if has_steps { 0 } else { ran.saturating_sub(lives) };
            let parts = charged.each_ref().map(|charged| {
                let start = charged.partition_point(|one| one.last < oldest);
                let end = charged.partition_point(|one| one.first <= ran);
                &charged[start.min(end)..end]
            });
            let limit =
                counter.limit(it.check.revision, u64::min, self.world.scenario.with_reloads);
            let model = self.upper_model((counter, limit), it, (parts, horizon), leased);
            bounds.raise(&model, it, it.place(counter).at);
        }
    }

    /// Returns the interval of the decisions to judge. Debt of fixed windows is slow to model, and after a step of the
    /// clock all charges may count again.
    fn sample(&self, counter: &Counter<'_>) -> usize {
        let scenario = &self.world.scenario;
        let has_debt = scenario.with_debt || scenario.with_reservations;
        let is_slow = has_debt && counter.algorithm() == Algorithm::FixedWindow;
        match (is_slow, !self.world.has_clock_steps()) {
            _ if self.decided.len() < 1_000 => 1,
            (true, _) => self.decided.len() / 500,
            (false, false) => self.decided.len() / 1_000,
            (false, true) => 1,
        }
    }

    /// Returns all charges that may have reached the server: those that did, permits among them, and the others. Each
    /// list is sorted by virtual time.
    fn possible_charges(&self, counter: &Counter<'_>) -> [Vec<Charged>; 2] {
        let holds_permits = counter.holds_permits();
        let mut charged = Vec::new();
        for it in self.decided.iter().filter(|it| counter.applies_to(it.check)) {
            let is_charged = it.answer.is_allowed || it.check.kind == Kind::Spent;
            if !is_charged || it.is_repeated || it.check.cost == 0 {
                continue;
            }
            let renewed = it.check.renewed.filter(|_| holds_permits);
            let &Place { at, first, ran, is_ambiguous, .. } = it.place(counter);
            let ended = if is_ambiguous { it.check.ended } else { 0 };
            charged.push(Charged {
                index: it.index,
                units: it.answer.units,
                at: at.max(renewed.map_or(0, |at| self.latest(ran, at))),
                first,
                last: ran.max(renewed.unwrap_or(0)).max(ended),
                returned: it.check.returned.filter(|_| holds_permits),
            });
        }
        let mut unknown = Vec::new();
        for (index, check) in self.events.checks.iter().enumerate() {
            if counter.applies_to(check) && self.may_have_been_charged(check) {
                let last = check.ended.saturating_add(LATE);
                unknown.push(Charged {
                    index,
                    units: check.cost,
                    at: self.latest(check.started, last),
                    first: check.started,
                    last,
                    returned: None,
                });
            }
        }
        unknown.extend(self.compensated_charges(counter));
        for extra in self.events.extras.iter().filter(|it| counter.is_changed_by(it)) {
            let last =
                if extra.is_certain { extra.ended } else { extra.ended.saturating_add(LATE) };
            unknown.push(Charged {
                index: usize::MAX,
                units: extra.units,
                at: self.latest(extra.started, last),
                first: extra.started,
                last,
                returned: None,
            });
        }
        if self.world.has_clock_steps() {
            place_behind_earlier(&mut charged, &mut unknown);
        }
        // Intervals of one list do not contain each other, or not by much.
        unknown.sort_by_key(|it| it.first);
        let longest = unknown.iter().map(|it| it.last - it.first).max().unwrap_or(0);
        unknown.iter_mut().for_each(|it| it.last = it.first.saturating_add(longest));
        charged.sort_by_key(|it| it.first);
        let longest = charged.iter().map(|it| it.last - it.first).max().unwrap_or(0);
        charged.iter_mut().for_each(|it| it.last = it.first.saturating_add(longest));
        [charged, unknown]
    }

    /// Returns the charges of requests that another region denied. They are returned before the answer, unless that
    /// fails because of a fault.
    fn compensated_charges(&self, counter: &Counter<'_>) -> Vec<Charged> {
        let is_calm = self.is_calm(24, |kind| matches!(kind, FaultKind::ScriptFlush));
        let is_compensated = |it: &&Decided<'_>| {
            let is_denied = it.answer.source == Source::Store && !it.answer.is_allowed;
            counter.applies_to(it.check)
                && it.places.len() > 1
                && is_denied
                && it.check.kind != Kind::Spent
        };
        let charge = |it: &Decided<'_>| {
            let (started, ended) = (it.check.started, it.check.ended);
            let last = if is_calm { ended } else { ended.saturating_add(LATE) };
            Charged {
                index: it.index,
                units: it.check.cost,
                at: self.latest(started, last),
                first: started,
                last,
                returned: is_calm.then_some(ended),
            }
        };
        self.decided.iter().filter(is_compensated).map(charge).collect()
    }

    /// Returns whether the server may have charged a request without a certain answer.
    fn may_have_been_charged(&self, check: &Check) -> bool {
        if check.store_answer().is_some() || check.cost == 0 {
            return false;
        }
        // The circuit breaker was open, so nothing was sent.
        let is_spread = self.world.regions(&check.policies, check.key).len() > 1;
        let is_instant = check.answer.is_some() && check.started == check.ended && !is_spread;
        if is_instant && !self.world.network.was_broken(check.host, check.ended) {
            return false;
        }
        // If a repetition was answered, both count once.
        let may_count_twice =
            self.is_disturbed() || self.world.scenario.faults.contains(&FaultKind::OutOfMemory);
        may_count_twice || check.id.is_none_or(|id| !self.decided_ids.contains(&id))
    }

    /// Returns when a counter was last certainly unused, before a time: the start of a reset, or a loss of all keys.
    /// The data of the server never goes back behind such a loss, but it may behind a reset.
    fn cleared(&self, counter: &Counter<'_>, before: u64) -> Option<u64> {
        let resets = self.events.resets.iter().filter(|it| counter.is_changed_by(it));
        let certain = resets.filter(|it| it.is_certain && it.ended < before);
        let is_undisturbed = self.disturbances[&counter.region].is_empty();
        let reset = certain.map(|it| it.started).max().filter(|_| is_undisturbed);
        let loss = self.losses[&counter.region].iter().copied().filter(|&at| at < before).max();
        reset.max(loss)
    }

    /// Returns the time for which a charge counts.
    fn horizon(&self, counter: &Counter<'_>) -> u64 {
        let period = counter.period();
        let scenario = &self.world.scenario;
        let has_debt = scenario.with_debt || scenario.with_reservations;
        match counter.algorithm() {
            Algorithm::FixedWindow if has_debt => 6 * period,
            Algorithm::FixedWindow | Algorithm::SlidingLog | Algorithm::Concurrency => period,
            Algorithm::TokenBucket => {
                let most = counter.limits.iter().map(Limit::capacity).max().unwrap_or(1);
                let least = counter.limits.iter().map(Limit::amount).min().unwrap_or(1);
                6 * period * most.div_ceil(least)
            }
            _ => 2 * period,
        }
    }

    /// Returns the units that hosts may have reserved as leases and not spent: a lease and less than a cost for each.
    /// Only windows have leases. In a sliding window, those of the last window count too. `None` if faults may have
    /// lost others.
    fn leased_and_unused(&self, counter: &Counter<'_>) -> Option<u64> {
        let lease = counter.policy.lease.filter(|_| counter.algorithm().windows() > 0);
        let Some(lease) = lease else { return Some(0) };
        let scenario = &self.world.scenario;
        let is_calm = self.is_calm(12, |kind| matches!(kind, FaultKind::ScriptFlush));
        if !is_calm || scenario.with_resets || scenario.with_reloads {
            return None;
        }
        let costs = self.events.checks.iter().filter(|check| counter.applies_to(check));
        let most = costs.map(|check| check.cost).max().unwrap_or(1).max(1);
        let windows = if counter.algorithm() == Algorithm::SlidingWindow { 2 } else { 1 };
        Some(scenario.hosts as u64 * (lease + most - 1) * windows)
    }

    /// Returns true if the debt of a fixed window depends on the limit of the host that recorded it.
    fn has_unclear_debt(&self, counter: &Counter<'_>) -> bool {
        let scenario = &self.world.scenario;
        let has_debt = scenario.with_debt || scenario.with_reservations;
        has_debt && scenario.with_reloads && counter.algorithm() == Algorithm::FixedWindow
    }

    /// Returns the model of the highest usage before a decision.
    fn upper_model(
        &self,
        (counter, limit): (&Counter<'_>, Limit),
        it: &Decided<'_>,
        (charged, horizon): ([&[Charged]; 2], u64),
        leased: u64,
    ) -> Model {
        // A cached denial may be of a moment ago.
        let is_cached = it.answer.source == Source::DenyCache;
        let age = if is_cached { DENY_CACHE_AGE } else { 0 };
        let &Place { at, ran, .. } = it.place(counter);
        let max_debt = limit.capacity();
        // An answer to an id may be from before, if the first request with the id got none.
        let since = it.check.started.min(ran).saturating_sub(age);
        let may_count = |one: &&Charged| {
            // A server that lost data may have lost the return.
            let disturbances = &self.disturbances[&counter.region];
            let is_lost = |at: u64| {
                let during = at.saturating_sub(STALE)..=ran;
                disturbances.iter().any(|time| during.contains(time))
            };
            let is_returned = one.returned.is_some_and(|at| at < since && !is_lost(at));
            one.index != it.index && one.first <= ran && !is_returned
        };
        let cleared = self.cleared(counter, since);
        let may_count = |one: &&Charged| may_count(one) && one.last >= cleared.unwrap_or(0);
        let place = |one: &Charged| (one.at.min(at), one.units);
        let from = at.saturating_sub(horizon + age);
        let mut placed: Vec<_> = charged
            .into_iter()
            .flatten()
            .filter(may_count)
            .map(place)
            .filter(|(at, _)| *at >= from)
            .collect();
        placed.sort_unstable();
        let mut model = Model::new(limit);
        // Charges from before `from` are left out, so the counter was certainly unused only if it was so afterwards.
        let was_unused = cleared.is_some_and(|since| since + horizon / 2 > ran);
        if limit.algorithm() == Algorithm::TokenBucket && !was_unused {
            // Whatever was charged before.
            placed.drain(..placed.len().saturating_sub(MAX_BUCKET_CHARGES));
            let from = placed.first().map_or(from, |(at, _)| from.max(*at));
            let capacities = counter.limits.iter().map(Limit::capacity);
            model.force(from, capacities.max().unwrap_or(0) + max_debt);
        }
        // Only fixed windows tell debt from other units. The order of charges at one instant is unknown, so any of them
        // may be the one that exceeds the limit.
        let scenario = &self.world.scenario;
        let may_owe = limit.algorithm() == Algorithm::FixedWindow
            && (scenario.with_debt || scenario.with_reservations);
        let excess = Excess::Debt { max: max_debt };
        if may_owe && !was_unused {
            model.record(from, limit.capacity() + max_debt, excess);
        }
        let mut leased_in = None;
        for (at, units) in placed {
            if !may_owe {
                model.force(at, units);
                continue;
            }
            // If the units of a lease were charged before these, more of these are debt.
            let window = Some(at / counter.period());
            if leased > 0 && leased_in != window {
                model.force(at, leased.min(model.remaining(at)));
                leased_in = window;
            }
            model.record(at, units, excess);
        }
        if leased > 0 && leased_in != Some(at / counter.period()) {
            model.force(at, leased);
        }
        model
    }
}

/// After a step back of the clock, units are charged at the time of the last charge before.
fn place_behind_earlier(charged: &mut [Charged], unknown: &mut [Charged]) {
    let both = || charged.iter().chain(&*unknown);
    let mut latest: Vec<_> = both().map(|one| (one.first, one.at)).collect();
    latest.sort_unstable();
    let mut most = 0;
    for (_, at) in &mut latest {
        most = most.max(*at);
        *at = most;
    }
    for one in charged.iter_mut().chain(unknown) {
        let earlier = latest.partition_point(|(first, _)| *first <= one.last);
        one.at = latest[..earlier].last().map_or(one.at, |(_, at)| one.at.max(*at));
    }
}

impl Bounds {
    /// Widens the bounds to those of the highest usage of one counter.
    fn raise(&mut self, model: &Model, it: &Decided<'_>, at: u64) {
        let is_part = it.check.kind == Kind::UpTo;
        let (check, answer) = (it.check, it.answer);
        if answer.is_allowed {
            let remaining = model.remaining(at);
            self.remaining.0 = self.remaining.0.min(remaining);
            self.may_be_denied |= is_part && remaining <= answer.units;
            return;
        }
        let cost = if is_part { 1 } else { check.cost.max(1) };
        if !model.fits(at, cost) {
            self.may_be_denied = true;
            let retry = model.first_fit(at, cost).unwrap_or(u64::MAX);
            self.retry_after.1 = self.retry_after.1.max(retry);
        }
    }

    /// The usage of a counter may be anything.
    fn know_nothing(&mut self) {
        self.may_be_denied = true;
        self.retry_after.1 = u64::MAX;
        self.remaining.0 = 0;
    }
}
