//! Examines Redis and Valkey servers for problems that affect rate limits, with advice for each.
//!
//! `docs/doctor.md` explains every finding. Example: a service that refuses to start if there is a problem:
//!
//! ```no_run
//! use pacegate_redis::doctor::{self, Level, Options};
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let report = doctor::examine(&"redis://127.0.0.1:6379".parse()?, &Options::default()).await;
//! for finding in report.findings().filter(|finding| finding.level > Level::Notice) {
//!     eprintln!("{} {}: {}", finding.level, finding.subject, finding.text);
//! }
//! if report.worst() == Level::Problem {
//!     return Err("the servers cannot be used as a store".into());
//! }
//! # Ok(())
//! # }
//! ```

mod ask;
mod findings;
mod memory;
mod network;
mod persistence;
mod reach;
mod report;
mod rights;
mod role;
mod sentinel;
mod trial;
mod version;

use std::time::Duration;

use self::{
    ask::{Checked, INFO, Info},
    findings as table,
    persistence::DiskSettings,
    reach::unreachable,
    rights::Rights,
    trial::Trial,
    version::Version,
};
use crate::{
    cell::SLOTS,
    cluster::{self, Range},
    link::{Access, Address, Link},
    resolver::Sentinels,
    store::RedisStore,
    url::{RedisUrl, Servers},
};

pub use report::{Finding, Level, Part, Report, ServerReport};

/// The settings with which a store will use the servers.
///
/// ```
/// use std::time::Duration;
/// use pacegate_redis::doctor::Options;
///
/// let options = Options::default().deadline(Duration::from_millis(50)).prefix("shop:");
/// assert_eq!(options.prefix, "shop:");
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Options {
    /// Deadline of a call. Default: 100 ms.
    pub deadline: Duration,
    /// Prefix of key names. Default: `pg:`.
    pub prefix: String,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            deadline: RedisStore::DEFAULT_DEADLINE,
            prefix: RedisStore::DEFAULT_PREFIX.to_owned(),
        }
    }
}

impl Options {
    /// Sets the deadline.
    #[must_use]
    pub fn deadline(self, deadline: Duration) -> Self {
        Self { deadline, ..self }
    }

    /// Sets the prefix.
    #[must_use]
    pub fn prefix(self, prefix: impl Into<String>) -> Self {
        Self { prefix: prefix.into().replace(['{', '}'], ""), ..self }
    }
}

/// Examines every server that the address leads to: a single server, each master of a cluster, or the
/// sentinels and their master.
///
/// Never fails: servers that cannot be reached or examined are reported as findings. Takes up to a few
/// seconds per server and needs a Tokio runtime. Temporarily creates keys under the prefix and `doctor:`, and
/// removes them. The checks depend on the permissions of the user in the address. Passwords never appear in
/// the report.
pub async fn examine(url: &RedisUrl, options: &Options) -> Report {
    let doctor = Doctor { url, options };
    match &url.servers {
        Servers::One(address) => doctor.examine_one(address).await,
        Servers::Cluster(seeds) => doctor.examine_cluster(seeds).await,
        Servers::Sentinel { addresses, access, master } => {
            let sentinels = Sentinels {
                addresses: addresses.clone(),
                access: access.clone(),
                master: master.clone(),
                master_access: url.access.clone(),
                current: parking_lot::Mutex::default(),
                latest: parking_lot::Mutex::default(),
            };
            doctor.examine_sentinels(&sentinels).await
        }
    }
}

struct Doctor<'a> {
    url: &'a RedisUrl,
    options: &'a Options,
}

/// An examined server.
struct ExaminedServer {
    report: ServerReport,
    /// Its slots, in a cluster.
    slots: Vec<Range>,
    /// True if a store could use it.
    is_usable: bool,
}

impl Doctor<'_> {
    async fn examine_one(&self, address: &Address) -> Report {
        let server = self.look(address, Part::Alone).await;
        self.conclude(Vec::new(), Vec::new(), vec![server]).await
    }

    async fn examine_sentinels(&self, sentinels: &Sentinels) -> Report {
        let mut asked = Vec::new();
        for address in &sentinels.addresses {
            asked.push(sentinel::look(address, &sentinels.access, &sentinels.master).await);
        }
        let setup = vec![sentinel::agreement(&asked, &sentinels.master)];
        let mut examined = Vec::new();
        if let Some(master) = sentinels.find().await {
            examined.push(self.look(&master, Part::Master).await);
        }
        let asked = asked.into_iter().map(|sentinel| sentinel.report).collect();
        self.conclude(setup, asked, examined).await
    }

    async fn examine_cluster(&self, seeds: &[Address]) -> Report {
        let (mut ranges, mut silent) = (None, Vec::new());
        for seed in seeds {
            match reach::open(seed, &self.url.access).await {
                Err(error) => silent.push(unreachable(seed, &error)),
                Ok(_) if ranges.is_some() => {}
                Ok(mut link) => ranges = cluster::read(&mut link, seed).await.ok().flatten(),
            }
        }
        let Some(ranges) = ranges else { return self.examine_no_cluster(seeds).await };
        let mut setup = vec![coverage(&ranges)];
        // The other servers have already described the cluster.
        setup.extend(silent.into_iter().map(|it| Finding { level: Level::Warning, ..it }));
        let mut examined = Vec::new();
        for (master, slots) in by_master(ranges) {
            let server = self.look(&master, Part::ClusterMaster).await;
            examined.push(ExaminedServer { slots, ..server });
        }
        self.conclude(setup, Vec::new(), examined).await
    }

    /// Explains for each server why it is not a cluster.
    async fn examine_no_cluster(&self, seeds: &[Address]) -> Report {
        let mut examined = Vec::new();
        for seed in seeds {
            let server = self.look(seed, Part::ClusterMaster).await;
            examined.push(ExaminedServer { is_usable: false, ..server });
        }
        let mut setup = Vec::new();
        if examined.iter().any(|server| server.report.is_reached) {
            setup.push(table::NO_SLOT_MAP.with(&[]));
        }
        self.conclude(setup, Vec::new(), examined).await
    }

    /// Runs the scripts on the servers that can run them.
    async fn conclude(
        &self,
        setup: Vec<Finding>,
        mut servers: Vec<ServerReport>,
        mut examined: Vec<ExaminedServer>,
    ) -> Report {
        let all_usable = !examined.is_empty() && examined.iter().all(|server| server.is_usable);
        let trial = match all_usable {
            true => Some(Trial::begin(self.url, self.options).await),
            false => None,
        };
        for server in examined.iter_mut().filter(|server| server.report.is_reached) {
            let finding = match &trial {
                None => table::SCRIPTS_NOT_TRIED.with(&[]),
                Some(Err(finding)) => finding.clone(),
                Some(Ok(trial)) => trial.run(&server.slots).await,
            };
            server.report.findings.push(finding);
        }
        servers.splice(0..0, examined.into_iter().map(|server| server.report));
        Report { setup, servers }
    }

    async fn look(&self, address: &Address, part: Part) -> ExaminedServer {
        let mut report = ServerReport::new(address, part);
        let mut link = match reach::open(address, &self.url.access).await {
            Ok(link) => link,
            Err(error) => {
                report.findings.push(unreachable(address, &error));
                return ExaminedServer { report, slots: Vec::new(), is_usable: false };
            }
        };
        let user = self.user();
        let info = INFO.ask::<String>(&mut link, user, &[]).await.map(Info::new);
        report.is_reached = true;
        report.name = info.as_ref().ok().and_then(Version::of).map(|it| it.to_string());
        report.findings = self.findings(&mut link, &info, address, part).await;
        // Without permission for INFO, assume that the server is usable, as a store does.
        let is_usable = info.as_ref().map_or(true, |info| role::is_usable(info, part));
        ExaminedServer { report, slots: Vec::new(), is_usable }
    }

    async fn findings(
        &self,
        link: &mut Link,
        info: &Checked<Info>,
        address: &Address,
        part: Part,
    ) -> Vec<Finding> {
        let (user, prefix, name) = (self.user(), &self.options.prefix, &*address.to_string());
        let mut findings = vec![table::REACHABLE.with(&[])];
        match info {
            Ok(info) => {
                findings.extend(Version::of(info).map(Version::check).unwrap_or_default());
                findings.extend(role::check(info, part, name));
                findings.extend(memory::check(info));
                findings.extend(persistence::check(info, &DiskSettings::look(link, user).await));
            }
            Err(failed) => {
                let subjects =
                    ["version", "role", "cluster", "replicas", "eviction", "memory", "persistence"];
                findings.extend(subjects.map(|subject| failed.finding(subject)));
            }
        }
        let trips = network::round_trips(link).await;
        findings.push(network::check_round_trips(&trips, self.options.deadline));
        findings.push(network::check_clock(&network::clock_ahead(link, user).await));
        if !network::is_local(address).await {
            let access = &self.url.access;
            let strangers = network::serves_strangers(address, access).await;
            findings.extend(network::check_exposure(access.tls.is_some(), strangers, name));
        }
        let rights = Rights::look(link, user, part, &format!("{prefix}doctor:key")).await;
        findings.extend(rights::check(&rights, user, prefix));
        findings
    }

    fn user(&self) -> &str {
        let Access { user, .. } = &self.url.access;
        user.as_deref().unwrap_or("default")
    }
}

impl ServerReport {
    fn new(address: &Address, part: Part) -> Self {
        Self {
            address: address.to_string(),
            part,
            name: None,
            is_reached: false,
            findings: Vec::new(),
        }
    }
}

/// Checks that every slot has a master.
fn coverage(ranges: &[Range]) -> Finding {
    let has: usize = ranges.iter().map(|range| usize::from(range.last - range.first) + 1).sum();
    let all = usize::from(SLOTS);
    let row = if has >= all { table::ALL_SLOTS } else { table::SLOTS_WITHOUT_MASTER };
    row.with(&[&all, &all.saturating_sub(has)])
}

/// Groups the ranges by master, in the order of first appearance.
fn by_master(ranges: Vec<Range>) -> Vec<(Address, Vec<Range>)> {
    let mut masters: Vec<(Address, Vec<Range>)> = Vec::new();
    for range in ranges {
        match masters.iter_mut().find(|(master, _)| *master == range.master) {
            Some((_, slots)) => slots.push(range),
            None => masters.push((range.master.clone(), vec![range])),
        }
    }
    masters
}
