//! When servers ran commands, and how their data came about.
//!
//! The data of a server is a lineage. If a server loses data, a replica without the last writes takes over, or a clock
//! steps, a new lineage starts. It inherits the commands that its parent ran before a point, or nothing. Each slot of a
//! cluster is a region with its own lineages, because it can move to another server. A single server is one region.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::RangeInclusive,
};

/// A slot of a cluster; 0 for all keys of a single server.
pub type Region = u16;

/// Commands and lineages of all servers. All times are virtual microseconds.
#[derive(Debug)]
pub struct Ledger {
    /// The regions that have counters.
    regions: Vec<Region>,
    /// All commands, in order.
    served: Vec<Served>,
    /// For each time that the clock of a server showed when it ran commands: their numbers.
    shown: BTreeMap<u64, Vec<usize>>,
    /// For each lineage but the first: the lineage that it continues, and the number of its commands until then.
    parents: Vec<Option<Origin>>,
    /// The lineage of a region on a server, unless it is the first.
    current: BTreeMap<(usize, Region), usize>,
    /// When the lineage of a region changed on the server that clients should use, and the new lineage.
    changes: Vec<(u64, Region, usize)>,
    /// When a region lost data, or was ruled by another clock.
    disturbances: Vec<(u64, Region)>,
    /// When all keys of a region were lost.
    losses: Vec<(u64, Region)>,
    /// When a server reset a key.
    resets: Vec<u64>,
    /// Times that the clock of a server showed then.
    reset_times: BTreeSet<u64>,
    /// The region of the last command.
    last_region: Region,
    /// Masters that a sentinel has replaced by another, and when.
    replaced: BTreeMap<usize, u64>,
    /// Replicas that became the master that sentinels watch, and when.
    promotions: Vec<(u64, usize)>,
    /// The number of promotions until the last one that a host has certainly heard of.
    heard: BTreeMap<usize, usize>,
    /// When hosts used, or tried to use, an old master: the host, the server and when.
    misled: Vec<Misled>,
}

/// The use of an old master.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Misled {
    /// The host.
    pub host: usize,
    /// The old master.
    pub server: usize,
    /// When.
    pub at: u64,
    /// True if the host had certainly heard of a later master before.
    pub is_return: bool,
}

/// A lineage, and the number of commands before a point of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The lineage.
    pub lineage: usize,
    /// The number of commands of all servers.
    pub commands: usize,
}

/// A command of a host that a server ran.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Served {
    /// When.
    pub at: u64,
    /// The time that the clock of the server showed.
    pub shown: u64,
    /// Number of commands of all servers until then, with this one.
    pub commands: usize,
    /// The host.
    pub host: usize,
    /// The region of its keys, and the lineage of the region.
    pub region: Region,
    /// The lineage.
    pub lineage: usize,
    /// Number of resets before.
    pub resets: usize,
}

impl Default for Ledger {
    fn default() -> Self {
        Self {
            regions: vec![0],
            served: Vec::new(),
            shown: BTreeMap::new(),
            parents: vec![None],
            current: BTreeMap::new(),
            changes: Vec::new(),
            disturbances: Vec::new(),
            losses: Vec::new(),
            resets: Vec::new(),
            reset_times: BTreeSet::new(),
            last_region: 0,
            replaced: BTreeMap::new(),
            promotions: Vec::new(),
            heard: BTreeMap::new(),
            misled: Vec::new(),
        }
    }
}

/// Time in which a host leaves a master after a sentinel has named another: it asks every 250 ms, and an answer takes
/// several round trips.
const LEAVE_TIME: u64 = 600_000;

/// Maximum age of the answer of a sentinel when a host connects to the master that it names.
const ANSWER_AGE: u64 = 350_000;

impl Ledger {
    /// Sets the regions that have counters.
    pub fn set_regions(&mut self, regions: Vec<Region>) {
        self.regions = regions;
    }

    /// Returns the regions that have counters.
    pub fn regions(&self) -> &[Region] {
        &self.regions
    }

    /// Returns the region of the last command.
    pub fn last_region(&self) -> Region {
        self.last_region
    }

    /// Records a command for keys of a region, with the time that the clock of the server showed.
    pub fn serve(&mut self, shown: u64, at: u64, host: usize, server: usize, region: Region) {
        self.last_region = region;
        if self.replaced.get(&server).is_some_and(|replaced| at > replaced + LEAVE_TIME) {
            self.misled.push(Misled { host, server, at, is_return: false });
        }
        let (lineage, resets) = (self.lineage(server, region), self.resets.len());
        self.shown.entry(shown).or_default().push(self.served.len());
        let commands = self.served.len() + 1;
        self.served.push(Served { at, shown, commands, host, region, lineage, resets });
    }

    /// Records that a replica has become the master that sentinels watch.
    pub fn promote(&mut self, at: u64, server: usize) {
        self.promotions.push((at, server));
        self.replaced.remove(&server);
    }

    /// Records that a sentinel has named another master.
    pub fn replace(&mut self, at: u64, old: usize) {
        self.replaced.entry(old).or_insert(at);
    }

    /// Records that a host connects to the server that sentinels named.
    pub fn connect(&mut self, at: u64, host: usize, server: usize) {
        // A failover starts only when all sentinels know of the one before.
        let named_at = at.saturating_sub(ANSWER_AGE);
        let heard = self.promotions_until(named_at, server);
        let heard = heard.max(self.heard.get(&host).copied().unwrap_or(0));
        self.heard.insert(host, heard);
        if self.promotions_until(at, server) < heard {
            self.misled.push(Misled { host, server, at, is_return: true });
        }
    }

    /// Returns the number of promotions until the last one of a server before a time. 0: none.
    fn promotions_until(&self, at: u64, server: usize) -> usize {
        let is_meant = |promotion: &(u64, usize)| promotion.0 <= at && promotion.1 == server;
        self.promotions.iter().rposition(is_meant).map_or(0, |place| place + 1)
    }

    /// Records that a host has lost what it had heard.
    pub fn forget(&mut self, host: usize) {
        self.heard.remove(&host);
    }

    /// Returns when hosts used, or tried to use, an old master.
    pub fn misled(&self) -> &[Misled] {
        &self.misled
    }

    /// Records that a server reset a key when its clock showed this time.
    pub fn reset(&mut self, shown: u64, at: u64) {
        self.resets.push(at);
        self.reset_times.insert(shown);
    }

    /// Returns the lineage of a region on a server, and the number of commands so far.
    pub fn origin(&self, server: usize, region: Region) -> Origin {
        Origin { lineage: self.lineage(server, region), commands: self.served.len() }
    }

    fn lineage(&self, server: usize, region: Region) -> usize {
        self.current.get(&(server, region)).copied().unwrap_or(0)
    }

    /// Starts a lineage of a region on a server, which has only what another one had before a point.
    pub fn branch(&mut self, at: u64, server: usize, region: Region, parent: Option<Origin>) {
        let lineage = self.parents.len();
        self.parents.push(parent);
        self.current.insert((server, region), lineage);
        self.changes.push((at, region, lineage));
        self.disturbances.push((at, region));
    }

    /// Records that all keys of a region were lost.
    pub fn lose(&mut self, at: u64, region: Region) {
        self.losses.push((at, region));
    }

    /// Returns when all keys of a region were lost.
    pub fn losses(&self, region: Region) -> impl Iterator<Item = u64> {
        self.losses.iter().filter(move |it| it.1 == region).map(|it| it.0)
    }

    /// Records that a part of a region is ruled by another clock.
    pub fn disturb(&mut self, at: u64, region: Region) {
        self.disturbances.push((at, region));
    }

    /// Continues the lineage of a region on another server.
    pub fn continue_on(&mut self, server: usize, region: Region, origin: Origin) {
        self.current.insert((server, region), origin.lineage);
    }

    /// Returns the lineage that another one continues.
    pub fn parent(&self, lineage: usize) -> Option<Origin> {
        self.parents[lineage]
    }

    /// Returns the lineage of a region for those who use its right server.
    pub fn lineage_at(&self, region: Region, at: u64) -> usize {
        let mut changes = self.changes.iter().rev();
        changes.find(|change| change.1 == region && change.0 <= at).map_or(0, |change| change.2)
    }

    /// Returns when a region lost data, or was ruled by another clock.
    pub fn disturbances(&self, region: Region) -> Vec<u64> {
        self.disturbances.iter().filter(|it| it.1 == region).map(|it| it.0).collect()
    }

    /// Returns whether no region lost data or was ruled by another clock.
    pub fn is_undisturbed(&self) -> bool {
        self.disturbances.is_empty()
    }

    /// Returns when servers reset a key.
    pub fn resets(&self) -> &[u64] {
        &self.resets
    }

    /// Returns the commands for a region that a server ran when its clock showed this time.
    pub fn served_at(
        &self,
        shown: u64,
        region: Region,
        request: RangeInclusive<u64>,
    ) -> impl Iterator<Item = &Served> {
        let numbers = self.shown.get(&shown).into_iter().flatten();
        let served = numbers.map(|&number| &self.served[number]);
        served.filter(move |it| it.region == region && request.contains(&it.at))
    }

    /// Returns the commands of a host for a region between two times.
    pub fn served_between(
        &self,
        host: usize,
        region: Region,
        request: RangeInclusive<u64>,
    ) -> impl Iterator<Item = &Served> {
        let first = self.served.partition_point(|it| it.at < *request.start());
        let served = self.served[first..].iter().take_while(move |it| it.at <= *request.end());
        served.filter(move |it| it.host == host && it.region == region)
    }

    /// Returns the number of commands until a time.
    pub fn commands_until(&self, at: u64) -> usize {
        self.served.partition_point(|it| it.at <= at)
    }

    /// Returns whether a server reset a key when its clock showed this time. Then the order of that and of other
    /// commands is unknown.
    pub fn has_reset_at(&self, shown: u64) -> bool {
        self.reset_times.contains(&shown)
    }
}
