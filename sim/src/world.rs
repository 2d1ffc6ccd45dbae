//! Runs one seed: hosts, clients, faults, and then the oracle.

use std::{collections::BTreeSet, future::Future, sync::Arc, time::Duration};

use anyhow::Context;
use pacegate::{SharedPermit, seed_permit_ids};
use pacegate_testkit::Random;
use parking_lot::Mutex;
use tokio::{
    runtime::Builder,
    task::JoinSet,
    time::{sleep, timeout},
};

use crate::{
    clock::{MachineClock, VirtualTime},
    faults,
    history::{Check, History, Kind},
    host::Host,
    ledger::{Origin, Region},
    network::{Network, Path},
    oracle,
    panics::Panics,
    scenario::{FaultKind, Scenario},
    servers::Servers,
    trace::Trace,
    workload,
};

/// The result of one seed.
#[derive(Debug)]
pub struct Outcome {
    /// The seed.
    pub seed: u64,
    /// A hash of everything that happened.
    pub hash: u64,
    /// Number of decisions.
    pub decisions: usize,
    /// Number of faults.
    pub faults: usize,
    /// Virtual microseconds after which clients and faults stopped.
    pub end: u64,
    /// The promises that were broken. Empty: none.
    pub violations: Vec<String>,
    /// The readable trace, if it was requested.
    pub lines: Vec<String>,
}

/// A seed to run.
#[derive(Clone, Copy, Debug)]
pub struct Run {
    /// The seed.
    pub seed: u64,
    /// Virtual microseconds after which clients and faults stop. Default: chosen by the seed.
    pub until: Option<u64>,
    /// Whether to record a readable trace.
    pub with_lines: bool,
}

impl Run {
    /// Runs a seed to its end, without a readable trace.
    pub fn of_seed(seed: u64) -> Self {
        Self { seed, until: None, with_lines: false }
    }
}

/// Everything that clients and faults use.
#[derive(Clone, Debug)]
pub(crate) struct World {
    pub(crate) scenario: Arc<Scenario>,
    pub(crate) time: VirtualTime,
    pub(crate) network: Network,
    pub(crate) servers: Servers,
    /// For each policy: the region of each key.
    regions: Arc<Vec<Vec<Region>>>,
    pub(crate) hosts: Vec<Host>,
    pub(crate) history: History,
    pub(crate) trace: Trace,
    /// Permits that clients forgot to return. They live until the end, so that nothing returns them.
    pub(crate) lost_permits: Arc<Mutex<Vec<SharedPermit>>>,
}

/// A documented bound: a worker is open two seconds after its server can be reached again. Timers have a resolution of
/// a millisecond.
const RECOVERY: Duration = Duration::from_millis(2_050);

/// Interval of requests while hosts recover.
const PROBE_INTERVAL: Duration = Duration::from_millis(20);

/// Virtual time after which a simulation is stuck.
const MAX_TIME: Duration = Duration::from_secs(3_600);

/// Runs a seed. A panic anywhere in it is a violation.
pub fn simulate(run: Run) -> anyhow::Result<Outcome> {
    // On a new thread, so that no thread-local state of an earlier seed is left.
    let panics = Panics::default();
    let seen = panics.clone();
    let run_seed = move || {
        seen.watch();
        block_on(run_seed(run))
    };
    let thread = std::thread::Builder::new().spawn(run_seed).context("cannot start a thread")?;
    let outcome = thread.join();
    let panics = panics.take();
    let mut outcome = match outcome {
        Ok(outcome) => outcome?,
        Err(_) if panics.is_empty() => anyhow::bail!("seed {} ended without a reason", run.seed),
        Err(_) => Outcome::aborted(run.seed),
    };
    outcome.violations.extend(panics);
    Ok(outcome)
}

fn block_on<T>(future: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    let runtime = Builder::new_current_thread().enable_time().start_paused(true).build()?;
    runtime.block_on(future)
}

async fn run_seed(run: Run) -> anyhow::Result<Outcome> {
    let mut random = Random::new(run.seed);
    seed_permit_ids(random.number());
    let mut scenario = Scenario::draw(&mut random);
    scenario.end = run.until.unwrap_or(scenario.end);
    let world = World::create(scenario, &mut random, run.with_lines).await?;
    world.trace.event(format_args!("{:?}", world.scenario));
    let faults = match timeout(MAX_TIME, world.run(random)).await {
        Ok(faults) => faults?,
        Err(_) => {
            let problem = "the simulation did not end: a call was never answered".to_owned();
            world.history.change(|events| events.violations.push(problem));
            0
        }
    };
    let violations = world.history.change(|events| {
        let mut violations = std::mem::take(&mut events.violations);
        violations.extend(oracle::judge(&world, events));
        violations
    });
    let decisions = world.history.change(|events| events.checks.len());
    let (hash, lines) = (world.trace.hash(), world.trace.take_lines());
    let (seed, end) = (run.seed, world.scenario.end);
    Ok(Outcome { seed, hash, decisions, faults, end, violations, lines })
}

impl Outcome {
    /// The outcome of a seed that panicked.
    fn aborted(seed: u64) -> Self {
        let (violations, lines) = (Vec::new(), Vec::new());
        Self { seed, hash: 0, decisions: 0, faults: 0, end: 1_000, violations, lines }
    }
}

impl World {
    /// Runs clients and faults until the end, and then checks that everything has recovered. Returns the number of
    /// faults.
    async fn run(&self, mut random: Random) -> anyhow::Result<usize> {
        let mut tasks = JoinSet::new();
        for client in 0..self.scenario.clients {
            let random = Random::new(random.number());
            tasks.spawn(workload::client(self.clone(), client, random));
        }
        let faults = tokio::spawn(faults::inject(self.clone(), Random::new(random.number())));
        let faults = faults.await.context("the injection of faults panicked")?;
        // Panics are recorded by their hook.
        while tasks.join_next().await.is_some() {}
        self.check_health().await;
        Ok(faults)
    }

    async fn create(
        scenario: Scenario,
        random: &mut Random,
        with_lines: bool,
    ) -> anyhow::Result<Self> {
        let time = VirtualTime::start();
        let trace = Trace::new(time, with_lines);
        let start = 1_767_225_600_000_000 + random.below(86_400_000_000);
        let mut clock = |most: u64| {
            let (skew, drift) = (random.below(most), random.between(0, 400) as i64 - 200);
            MachineClock::new(time, start + skew, drift)
        };
        let servers = Servers::new(scenario.topology);
        let count = if scenario.with_skew { servers.count() } else { 1 };
        let server_clocks: Vec<_> = (0..count).map(|_| clock(1_000_000)).collect();
        let clocks: Vec<_> = (0..scenario.hosts).map(|_| clock(60_000_000)).collect();
        let machines = servers.create(&server_clocks);
        let machines = machines.map_err(|error| anyhow::anyhow!("no Lua: {error}"))?;
        let paths = (scenario.hosts, Path::open(scenario.delay));
        let network_random = Random::new(random.number());
        let network = Network::new(machines, paths, time, network_random, trace.clone());
        let mut hosts = Vec::new();
        for (index, clock) in clocks.into_iter().enumerate() {
            let host = Host::new(index, clock);
            let random = Random::new(random.number());
            host.start(&scenario, &servers.url(), &network, random)?;
            hosts.push(host);
        }
        let (scenario, history) = (Arc::new(scenario), History::default());
        let (lost_permits, regions) = (Arc::default(), Arc::default());
        let mut world =
            Self { scenario, time, network, servers, regions, hosts, history, trace, lost_permits };
        world.regions = Arc::new(world.find_regions().await?);
        Ok(world)
    }

    /// Returns the region of each policy and key. The slots of a cluster depend on the names of keys, so it peeks at
    /// each counter.
    async fn find_regions(&self) -> anyhow::Result<Vec<Vec<Region>>> {
        let Scenario { policies, keys, .. } = &*self.scenario;
        let mut regions = vec![vec![0; *keys]; policies.len()];
        if !self.servers.is_cluster() {
            return Ok(regions);
        }
        let instance = self.hosts[0].instance().context("the first host is down")?;
        for (policy, regions) in regions.iter_mut().enumerate() {
            for (key, region) in regions.iter_mut().enumerate() {
                let (key, attributes) = (format!("k{key}"), workload::Attributes::new(self));
                let request = attributes.request(&[policy], &key);
                while instance.limiter.peek_request(&request).await?.is_degraded() {
                    sleep(PROBE_INTERVAL).await;
                }
                *region = self.network.with_ledger(|ledger| ledger.last_region());
            }
        }
        let mut used: Vec<_> = regions.iter().flatten().copied().collect();
        used.sort_unstable();
        used.dedup();
        self.network.with_ledger(|ledger| ledger.set_regions(used));
        Ok(regions)
    }

    /// Returns the region of a policy's key.
    pub(crate) fn region(&self, policy: usize, key: usize) -> Region {
        self.regions[policy][key]
    }

    /// Returns the regions of policies for a key. Several are charged one after the other.
    pub(crate) fn regions(&self, policies: &[usize], key: usize) -> Vec<Region> {
        let mut regions: Vec<_> = policies.iter().map(|&it| self.region(it, key)).collect();
        regions.sort_unstable();
        regions.dedup();
        regions
    }

    /// Returns the regions that a master has.
    pub(crate) fn regions_of(&self, master: usize) -> Vec<Region> {
        let regions = self.network.with_ledger(|ledger| ledger.regions().to_vec());
        let owns = |region: &Region| {
            self.network.with_redis(master, |redis| {
                redis.cluster.as_ref().is_none_or(|view| view.owns(*region))
            })
        };
        regions.into_iter().filter(owns).collect()
    }

    /// Starts a lineage of a region on a server.
    pub(crate) fn branch(&self, server: usize, region: Region, parent: Option<Origin>) {
        let now = self.time.now();
        self.network.with_ledger(|ledger| ledger.branch(now, server, region, parent));
    }

    /// Starts lineages on a master that lost its data, or whose clock has stepped.
    pub(crate) fn start_lineage(&self, master: usize) {
        self.regions_of(master).into_iter().for_each(|region| self.branch(master, region, None));
    }

    /// Records that a master lost all of its keys.
    pub(crate) fn lose_keys(&self, master: usize) {
        let (now, regions) = (self.time.now(), self.regions_of(master));
        self.network.with_ledger(|ledger| {
            regions.into_iter().for_each(|region| ledger.lose(now, region));
        });
        self.start_lineage(master);
    }

    /// Returns the clocks of the servers with Redis. Servers may share one.
    pub(crate) fn server_clocks(&self) -> Vec<MachineClock> {
        let nodes = if self.scenario.with_skew { self.servers.nodes() } else { 0..1 };
        nodes.map(|node| self.network.clock(node)).collect()
    }

    /// Returns whether the clock of a counter may have stepped, also because another server has it.
    pub(crate) fn has_clock_steps(&self) -> bool {
        let is_disturbed = !self.network.with_ledger(|ledger| ledger.is_undisturbed());
        let has_steps = self.server_clocks().iter().any(|clock| !clock.steps().is_empty());
        has_steps || (is_disturbed && self.scenario.with_skew)
    }

    /// Stops the program of a host without notice.
    pub(crate) fn crash(&self, host: usize) {
        self.hosts[host].crash(&self.network);
    }

    /// Starts the program of a host, unless it runs.
    pub(crate) fn start_host(&self, host: usize, random: Random) {
        let url = self.servers.url();
        if let Err(error) = self.hosts[host].start(&self.scenario, &url, &self.network, random) {
            self.history.violation(format!("host {host} does not start: {error}"));
        }
    }

    /// Checks that all permits were returned, except those that clients forgot. If hosts crashed or the server lost
    /// data, they expire later.
    async fn check_returned_permits(&self) {
        let has_crashes = self.scenario.faults.contains(&FaultKind::Crash);
        let is_undisturbed = self.network.with_ledger(|ledger| ledger.is_undisturbed());
        if has_crashes || !is_undisturbed {
            return;
        }
        let mut random = Random::new(0);
        for (index, policy) in self.scenario.policies.iter().enumerate() {
            for key in (0..self.scenario.keys).filter(|_| policy.holds_permits()) {
                let left = workload::peek(self, index, key, &mut random).await;
                let left = left.map_or(0, |answer| answer.remaining);
                let forgotten: u64 = self.history.change(|events| {
                    let is_forgotten = |check: &&Check| {
                        // The store may also have a permit that a failure mode gave.
                        let is_held = check.answer.is_some_and(|answer| answer.is_allowed);
                        let is_meant = check.key == key && check.policies.contains(&index);
                        is_held
                            && is_meant
                            && check.kind == Kind::Permit
                            && check.released.is_none()
                    };
                    events.checks.iter().filter(is_forgotten).map(|check| check.cost).sum()
                });
                let amount = policy.limits[0][0].amount();
                if left + forgotten < amount {
                    self.history.violation(format!(
                        "policy {index}, key {key}: {left} of {amount} permits are free, {forgotten} forgotten"
                    ));
                }
            }
        }
    }

    /// Waits until permits that were not returned have expired.
    async fn expire_permits(&self) {
        // A return may be lost too.
        let is_disturbed = !self.network.with_ledger(|ledger| ledger.is_undisturbed());
        let held = self.history.change(|events| {
            let is_held = |check: &&Check| {
                check.kind == Kind::Permit && (is_disturbed || check.returned.is_none())
            };
            let policies = events.checks.iter().filter(is_held).flat_map(|check| &check.policies);
            let limits = policies.flat_map(|&policy| &self.scenario.policies[policy].limits[0]);
            let permits = limits.filter(|limit| limit.algorithm().holds_permits());
            permits.map(|limit| limit.period()).max()
        });
        if let Some(period) = held {
            // Longer than clocks drift apart in that time.
            sleep(period + period / 500 + Duration::from_secs(4)).await;
        }
    }

    /// Peeks at every counter. The oracle compares the remaining units. All permits must be free, unless the server's
    /// clock stepped.
    async fn check_counters(&self) {
        let mut random = Random::new(0);
        for (index, policy) in self.scenario.policies.iter().enumerate() {
            for key in 0..self.scenario.keys {
                let decision = workload::peek(self, index, key, &mut random).await;
                let (left, amount) =
                    (decision.map_or(0, |it| it.remaining), policy.limits[0][0].amount());
                if policy.holds_permits() && left != amount && !self.has_clock_steps() {
                    let problem =
                        format!("policy {index}, key {key}: {left} of {amount} permits are free");
                    self.history.violation(problem);
                }
            }
        }
    }

    /// Checks that every host can use every server some time after the last fault, and then all counters.
    async fn check_health(&self) {
        let mut probes = JoinSet::new();
        for host in 0..self.hosts.len() {
            let mut probed = BTreeSet::new();
            for policy in 0..self.scenario.policies.len() {
                for key in 0..self.scenario.keys {
                    if probed.insert(self.region(policy, key)) {
                        probes.spawn(self.clone().check_recovery(host, policy, key));
                    }
                }
            }
        }
        probes.join_all().await;
        self.check_returned_permits().await;
        self.expire_permits().await;
        self.check_counters().await;
    }

    /// Checks that a host can use the server of a counter some time after the last fault. It notices a lost connection
    /// only when it uses it, so it sends requests meanwhile. The time starts with the first of them: the clients end
    /// later than the faults, and may not have used this connection since.
    async fn check_recovery(self, host: usize, policy: usize, key: usize) {
        let healed = self.history.change(|events| events.healed).max(self.time.now());
        let due = Duration::from_micros(healed) + RECOVERY;
        let Some(instance) = self.hosts[host].instance() else { return };
        let (attributes, key) = (workload::Attributes::new(&self), format!("k{key}"));
        let request = attributes.request(&[policy], &key);
        // With a short deadline, one answer may be late, such as the first of a new script.
        let round_trip = 2 * Duration::from_millis(self.scenario.delay.1);
        let attempts = if self.scenario.deadline > 3 * round_trip { 1 } else { 5 };
        loop {
            let is_due = Duration::from_micros(self.time.now()) >= due;
            let mut is_healthy = false;
            for _ in 0..attempts {
                let decision = instance.limiter.peek_request(&request).await;
                is_healthy |= decision.is_ok_and(|decision| !decision.is_degraded());
            }
            if is_due && !is_healthy {
                let servers = instance.store.stats().servers;
                self.history.violation(format!("host {host} has not recovered: {servers:?}"));
            }
            if is_due {
                return;
            }
            sleep(PROBE_INTERVAL).await;
        }
    }
}
