//! When and where requests were decided.

use std::collections::BTreeSet;

use pacegate::Source;

use super::{Counter, Decided, Judge, LATE};
use crate::{
    clock::MachineClock,
    history::{Answer, Check, Kind, Update},
    ledger::{Region, Served},
};

/// The decision about the counters of one region.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    pub(super) region: Region,
    /// The time by the clock of the server.
    pub(super) at: u64,
    /// The virtual time at which the server decided: the earliest and the latest.
    pub(super) first: u64,
    pub(super) ran: u64,
    /// Number of commands of all servers until then.
    commands: usize,
    /// The lineage of the region.
    lineage: usize,
    /// Number of resets before.
    resets: usize,
    /// The time, the lineage, or the order with a reset is unknown.
    pub(super) is_ambiguous: bool,
}

/// Decisions about a counter between two disturbances or resets.
pub(super) struct Segment<'a> {
    /// It is the first one.
    pub(super) is_first: bool,
    /// In order of the server's time. The flag is false for those that it continues.
    pub(super) decided: Vec<(usize, &'a Decided<'a>, bool)>,
}

impl<'a> Judge<'a> {
    /// Finds the decisions of the server, and when it made them.
    pub(super) fn decide(&self) -> Vec<Decided<'a>> {
        let mut decided = Vec::new();
        for (index, check) in self.events.checks.iter().enumerate() {
            let Some(answer) = check.store_answer() else { continue };
            let regions = self.world.regions(&check.policies, check.key);
            let is_spread = regions.len() > 1;
            let place = |region| match is_spread {
                true => self.place_of_part(check, &answer, region),
                false => self.place(check, &answer, region),
            };
            let places = regions.into_iter().map(place).collect();
            decided.push(Decided { index, check, answer, places, is_repeated: false });
        }
        decided.sort_by_key(|it| (it.places.iter().map(|place| place.ran).max(), it.index));
        // A server without memory for the id charges a repeated request again, and then has fewer units left.
        let mut seen = BTreeSet::new();
        for it in &mut decided {
            it.is_repeated = it.check.id.is_some_and(|id| !seen.insert((id, it.facts())));
        }
        decided
    }

    /// Finds the decision about a request in one region.
    fn place(&self, check: &Check, answer: &Answer, region: Region) -> Place {
        let shown = answer.decided_at;
        // The stored answer of a repeated request may be older than the request, and of another host.
        let (started, host) = match check.id {
            Some(_) => (0, None),
            None => (check.started, Some(check.host)),
        };
        // Leases and the deny cache only estimate the time of the server.
        if answer.source == Source::Store {
            return self.served(region, shown, (started, check.ended), host).unwrap_or(Place {
                at: shown,
                is_ambiguous: true,
                ..self.unknown(check, region)
            });
        }
        let at = match answer.source {
            Source::DenyCache => self.shown_near(shown, check.ended),
            _ => shown,
        };
        let has_reset = self.world.network.with_ledger(|ledger| ledger.has_reset_at(shown));
        Place { at, first: check.ended, is_ambiguous: has_reset, ..self.unknown(check, region) }
    }

    /// Finds the decision about the counters of one region, if others were charged before or after. Those of a denied
    /// request were perhaps charged, and certainly returned later.
    fn place_of_part(&self, check: &Check, answer: &Answer, region: Region) -> Place {
        let is_of_region = |policy: usize| self.world.region(policy, check.key) == region;
        let time = check.times.iter().find(|(policy, _)| is_of_region(*policy));
        let unknown = self.unknown(check, region);
        if answer.source != Source::Store {
            // The servers of the regions have different clocks, and the answer shows the time of one of them.
            let own = time.filter(|_| answer.source == Source::Lease).map(|&(_, shown)| shown);
            let decided_at = own.filter(|&shown| shown > 0).unwrap_or(answer.decided_at);
            return self.place(check, &Answer { decided_at, ..*answer }, region);
        }
        if !answer.is_allowed && check.kind != Kind::Spent {
            // The time of the denial, or of the last look at the counters.
            let at = match time {
                Some(&(_, shown)) if shown > 0 => shown,
                _ => self.earliest(check.started),
            };
            return Place { at, ..unknown };
        }
        let range = (check.started, check.ended);
        let found = match time {
            Some(&(_, shown)) => self.served(region, shown, range, Some(check.host)),
            None => self.world.network.with_ledger(|ledger| {
                let mut served = ledger.served_between(check.host, region, range.0..=range.1);
                let only = served.next().filter(|_| served.next().is_none());
                only.map(|it| Place::of(it, ledger.has_reset_at(it.shown)))
            }),
        };
        found.unwrap_or(unknown)
    }

    /// Returns the place of a command; `None` if there is none, or several of different lineages.
    fn served(
        &self,
        region: Region,
        shown: u64,
        (started, ended): (u64, u64),
        host: Option<usize>,
    ) -> Option<Place> {
        self.world.network.with_ledger(|ledger| {
            let served = ledger.served_at(shown, region, started..=ended);
            let mut served = served.filter(|it| host.is_none_or(|host| host == it.host));
            let first = served.next()?;
            let is_ambiguous = served.any(|it| it.lineage != first.lineage);
            Some(Place::of(first, is_ambiguous || ledger.has_reset_at(shown)))
        })
    }

    /// Returns a place of which only the bounds are known: as late as possible.
    fn unknown(&self, check: &Check, region: Region) -> Place {
        self.world
            .network
            .with_ledger(|ledger| Place {
                region,
                at: 0,
                first: check.started,
                ran: check.ended,
                commands: ledger.commands_until(check.ended),
                lineage: ledger.lineage_at(region, check.ended),
                resets: ledger.resets().iter().filter(|&&at| at <= check.ended).count(),
                is_ambiguous: true,
            })
            .with_time(self.latest(check.started, check.ended))
    }

    /// Returns the time that a server's clock showed at a virtual time. Of several clocks, it is the one closest to an
    /// estimate. The estimate is not later than the clock, unless that stepped back.
    fn shown_near(&self, estimate: u64, at: u64) -> u64 {
        let clocks = self.world.server_clocks();
        let times = clocks.iter().map(|clock| clock.at(at));
        times.min_by_key(|time| (*time < estimate, time.abs_diff(estimate))).unwrap_or(estimate)
    }

    /// Returns the earliest time that a server's clock showed at a virtual time.
    fn earliest(&self, at: u64) -> u64 {
        self.world.server_clocks().iter().map(|clock| clock.at(at)).min().unwrap_or(0)
    }

    /// Returns the latest time that the clock of a server showed between two virtual times.
    pub(super) fn latest(&self, from: u64, until: u64) -> u64 {
        let latest = |clock: MachineClock| {
            let steps = clock.steps().into_iter().filter(|at| (from..=until).contains(at));
            let times = steps.flat_map(|at| [at.saturating_sub(1), at]).chain([from, until]);
            times.map(|at| clock.at(at)).max().unwrap_or(0)
        };
        self.world.server_clocks().into_iter().map(latest).max().unwrap_or(0)
    }

    /// Returns the units of requests in several regions that were charged and returned, or perhaps were.
    pub(super) fn compensated(&self) -> Vec<Update> {
        let is_compensated = |check: &&Check| {
            let is_admitted = check.store_answer().is_some_and(|answer| answer.is_allowed);
            check.cost > 0
                && check.kind != Kind::Spent
                && !is_admitted
                && self.world.regions(&check.policies, check.key).len() > 1
        };
        let checks = self.events.checks.iter().filter(is_compensated);
        checks
            .map(|check| Update {
                policies: check.policies.clone(),
                key: check.key,
                units: check.cost,
                started: check.started,
                ended: check.ended.saturating_add(LATE),
                is_certain: false,
            })
            .collect()
    }

    /// Divides the decisions about a counter into segments.
    pub(super) fn segments<'b>(
        &'b self,
        counter: &Counter<'_>,
        is_meant: impl Fn(&Decided<'_>) -> bool,
    ) -> Vec<Segment<'b>> {
        let is_meant =
            |(_, it): &(usize, &Decided<'_>)| counter.applies_to(it.check) && is_meant(it);
        let meant: Vec<_> = self.decided.iter().enumerate().filter(is_meant).collect();
        let id = |it: &Decided<'_>| it.place(counter).segment(counter);
        let ids: BTreeSet<_> = meant.iter().map(|(_, it)| id(it)).collect();
        let segment = |(lineage, resets): (usize, usize)| {
            let origins = self.origins(lineage);
            let part = |&(index, it): &(usize, &'b Decided<'a>)| {
                let place = it.place(counter);
                let is_own = place.lineage == lineage;
                let is_continued = origins.iter().any(|&(origin, commands)| {
                    place.lineage == origin && place.commands <= commands
                });
                let is_included = id(it).1 == resets && (is_own || is_continued);
                is_included.then_some((index, it, is_own))
            };
            let mut decided: Vec<_> = meant.iter().filter_map(part).collect();
            decided.sort_by_key(|(_, it, _)| it.place(counter).at);
            Segment { is_first: (lineage, resets) == (0, 0), decided }
        };
        ids.into_iter().map(segment).collect()
    }

    /// Returns the lineages that another one continues, each with the number of commands until then.
    fn origins(&self, lineage: usize) -> Vec<(usize, usize)> {
        let (mut origins, mut next, mut most) = (Vec::new(), lineage, usize::MAX);
        while let Some(origin) = self.world.network.with_ledger(|ledger| ledger.parent(next)) {
            most = most.min(origin.commands);
            next = origin.lineage;
            origins.push((next, most));
        }
        origins
    }
}

impl Place {
    fn of(served: &Served, is_ambiguous: bool) -> Self {
        let &Served { at, shown, commands, region, lineage, resets, .. } = served;
        Self { region, at: shown, first: at, ran: at, commands, lineage, resets, is_ambiguous }
    }

    fn with_time(self, at: u64) -> Self {
        Self { at, ..self }
    }

    /// Returns the lineage, and the number of resets of the counter before.
    fn segment(&self, counter: &Counter<'_>) -> (usize, usize) {
        let resets = counter.resets.iter().filter(|&&number| number < self.resets).count();
        (self.lineage, resets)
    }
}
