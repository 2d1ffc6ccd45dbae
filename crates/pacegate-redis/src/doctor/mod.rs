//! Looks at servers and says what about them is bad for limits, and what to do.
//!
//! What each finding means is in `docs/doctor.md`. A service that would rather not start than count wrong:
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
//!     return Err("the servers are not fit to hold limits".into());
//! }
//! # Ok(())
//! # }
//! ```

mod ask;
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
    ask::{INFO, Info, Seen},
    persistence::Settings,
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
    store::{DEFAULT_DEADLINE, DEFAULT_PREFIX},
    url::{RedisUrl, Servers},
};

pub use report::{Finding, Level, Part, Report, ServerReport};

/// How a store is going to use the servers.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Options {
    /// How long a call may take. Default: 100 ms.
    pub deadline: Duration,
    /// What the names of keys begin with; `pg:` unless said.
    pub prefix: String,
}

impl Default for Options {
    fn default() -> Self {
        Self { deadline: DEFAULT_DEADLINE, prefix: DEFAULT_PREFIX.to_owned() }
    }
}

impl Options {
    /// The same with another deadline.
    #[must_use]
    pub fn deadline(self, deadline: Duration) -> Self {
        Self { deadline, ..self }
    }

    /// The same with another prefix.
    #[must_use]
    pub fn prefix(self, prefix: impl Into<String>) -> Self {
        Self { prefix: prefix.into().replace(['{', '}'], ""), ..self }
    }
}

/// Looks at every server that the address leads to: the one, each master of a cluster, or the sentinels and their
/// master.
///
/// It never fails: what cannot be reached or looked at is a finding. It takes up to some seconds for each server, needs
/// a Tokio runtime, and leaves nothing behind; for a moment it keeps scratch keys under the prefix and `doctor:`. What
/// it may do depends on the user of the address. Passwords are in no text.
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

/// A server that was looked at.
struct Patient {
    report: ServerReport,
    /// The slots that it has, in a cluster.
    slots: Vec<Range>,
    /// Whether a store could work with it.
    is_usable: bool,
}

/// What a server says of itself.
struct Facts {
    info: Seen<Info>,
    settings: Seen<Settings>,
    rights: Seen<Option<Rights>>,
    clock: Seen<i64>,
    trips: Vec<Duration>,
    /// For a server elsewhere: whether it serves those without a password.
    strangers: Option<bool>,
}

impl Doctor<'_> {
    async fn examine_one(&self, address: &Address) -> Report {
        let patient = self.look(address, Part::Alone).await;
        self.conclude(Vec::new(), Vec::new(), vec![patient]).await
    }

    async fn examine_sentinels(&self, sentinels: &Sentinels) -> Report {
        let mut asked = Vec::new();
        for address in &sentinels.addresses {
            asked.push(sentinel::look(address, &sentinels.access, &sentinels.master).await);
        }
        let setup = sentinel::agreement(&asked, &sentinels.master);
        let mut patients = Vec::new();
        if let Some(master) = sentinels.find().await {
            patients.push(self.look(&master, Part::Master).await);
        }
        let asked = asked.into_iter().map(|sentinel| sentinel.report).collect();
        self.conclude(setup, asked, patients).await
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
        // The others have said all there is to know.
        setup.extend(silent.into_iter().map(|it| Finding { level: Level::Warning, ..it }));
        let mut patients = Vec::new();
        for (master, slots) in by_master(ranges) {
            let patient = self.look(&master, Part::ClusterMaster).await;
            patients.push(Patient { slots, ..patient });
        }
        self.conclude(setup, Vec::new(), patients).await
    }

    /// Says of each server why it is no cluster.
    async fn examine_no_cluster(&self, seeds: &[Address]) -> Report {
        let mut patients = Vec::new();
        for seed in seeds {
            let patient = self.look(seed, Part::ClusterMaster).await;
            patients.push(Patient { is_usable: false, ..patient });
        }
        let mut setup = Vec::new();
        if patients.iter().any(|patient| patient.report.is_reached) {
            let advice = "look at CLUSTER INFO and CLUSTER SLOTS there; `redis-cli --cluster create` gives out slots";
            setup.push(Finding::problem(
                "cluster",
                "no server tells which has which slots",
                advice,
            ));
        }
        self.conclude(setup, Vec::new(), patients).await
    }

    /// Tries the scripts where they can work.
    async fn conclude(
        &self,
        setup: Vec<Finding>,
        mut servers: Vec<ServerReport>,
        mut patients: Vec<Patient>,
    ) -> Report {
        let all_usable = !patients.is_empty() && patients.iter().all(|patient| patient.is_usable);
        let trial = match all_usable {
            true => Some(Trial::begin(self.url, self.options).await),
            false => None,
        };
        for patient in patients.iter_mut().filter(|patient| patient.report.is_reached) {
            let finding = match &trial {
                None => trial::not_tried(),
                Some(Err(finding)) => finding.clone(),
                Some(Ok(trial)) => trial.run(&patient.slots).await,
            };
            patient.report.findings.push(finding);
        }
        servers.splice(0..0, patients.into_iter().map(|patient| patient.report));
        Report { setup, servers }
    }

    async fn look(&self, address: &Address, part: Part) -> Patient {
        let mut report = ServerReport::new(address, part);
        let mut link = match reach::open(address, &self.url.access).await {
            Ok(link) => link,
            Err(error) => {
                report.findings.push(unreachable(address, &error));
                return Patient { report, slots: Vec::new(), is_usable: false };
            }
        };
        let facts = self.facts(&mut link, address, part).await;
        report.is_reached = true;
        report.name = facts.info.as_ref().ok().and_then(Version::of).map(|it| it.to_string());
        report.findings = self.findings(&facts, part, &report.address);
        // Without a right to INFO a store takes its chance, and so does the doctor.
        let is_usable = facts.info.as_ref().map_or(true, |info| role::is_usable(info, part));
        Patient { report, slots: Vec::new(), is_usable }
    }

    async fn facts(&self, link: &mut Link, address: &Address, part: Part) -> Facts {
        let user = self.user();
        let key = format!("{}doctor:key", self.options.prefix);
        let strangers = match network::is_local(address).await {
            true => None,
            false => Some(network::serves_strangers(address, &self.url.access).await),
        };
        Facts {
            info: INFO.ask::<String>(link, user, &[]).await.map(Info::new),
            settings: Settings::look(link, user).await,
            rights: Rights::look(link, user, part, &key).await,
            clock: network::clock_ahead(link, user).await,
            trips: network::round_trips(link).await,
            strangers,
        }
    }

    fn findings(&self, facts: &Facts, part: Part, address: &str) -> Vec<Finding> {
        let mut findings = vec![Finding::good("reach", "it answers")];
        match &facts.info {
            Ok(info) => {
                findings.extend(Version::of(info).map(Version::check).unwrap_or_default());
                findings.extend(role::check(info, part, address));
                findings.extend(memory::check(info));
                findings.extend(persistence::check(info, &facts.settings));
            }
            Err(blind) => {
                let subjects =
                    ["version", "role", "cluster", "replicas", "eviction", "memory", "persistence"];
                findings.extend(subjects.map(|subject| blind.finding(subject)));
            }
        }
        findings.push(network::check_round_trips(&facts.trips, self.options.deadline));
        findings.push(network::check_clock(&facts.clock));
        if let Some(strangers) = facts.strangers {
            let encrypted = self.url.access.tls.is_some();
            findings.extend(network::check_exposure(encrypted, strangers, address));
        }
        findings.extend(rights::check(&facts.rights, self.user(), &self.options.prefix));
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

/// Whether every slot has a master.
fn coverage(ranges: &[Range]) -> Finding {
    let has: usize = ranges.iter().map(|range| usize::from(range.last - range.first) + 1).sum();
    let all = usize::from(SLOTS);
    if has >= all {
        return Finding::good("slots", format!("all {all} slots have a master"));
    }
    let text = format!("{} of {all} slots have no master, and their keys no budget", all - has);
    let advice =
        "bring back the masters that are missing, or run `redis-cli --cluster fix HOST:PORT`";
    Finding::problem("slots", text, advice)
}

/// The ranges of each master, in the order in which they come.
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
