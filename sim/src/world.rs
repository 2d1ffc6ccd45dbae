//! Runs one seed: hosts, clients, faults, and then the oracle.

use std::{future::Future, sync::Arc, time::Duration};

use anyhow::Context;
use pacegate::{Request, SharedPermit, seed_permit_ids};
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
    network::{Network, Path},
    oracle,
    panics::Panics,
    redis::Redis,
    scenario::{FaultKind, Scenario},
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
    pub(crate) server_clock: MachineClock,
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
        let server_clock = clock(1_000_000);
        let clocks: Vec<_> = (0..scenario.hosts).map(|_| clock(60_000_000)).collect();
        let redis = Redis::new().map_err(|error| anyhow::anyhow!("no Lua: {error}"))?;
        let path = Path { delay: scenario.delay, is_blocked_up: false, is_blocked_down: false };
        let paths = vec![path; scenario.hosts];
        let network_random = Random::new(random.number());
        let network =
            Network::new(redis, server_clock.clone(), paths, network_random, trace.clone());
        let mut hosts = Vec::new();
        for (index, clock) in clocks.into_iter().enumerate() {
            let host = Host::new(index, clock);
            host.start(&scenario, &network, Random::new(random.number()))?;
            hosts.push(host);
        }
        let (scenario, history) = (Arc::new(scenario), History::default());
        let lost_permits = Arc::default();
        Ok(Self { scenario, time, network, server_clock, hosts, history, trace, lost_permits })
    }

    /// Stops the program of a host without notice.
    pub(crate) fn crash(&self, host: usize) {
        self.hosts[host].crash(&self.network);
    }

    /// Starts the program of a host, unless it runs.
    pub(crate) fn start_host(&self, host: usize, random: Random) {
        if let Err(error) = self.hosts[host].start(&self.scenario, &self.network, random) {
            self.history.violation(format!("host {host} does not start: {error}"));
        }
    }

    /// Checks that all permits were returned, except those that clients forgot. If hosts crashed or the server lost
    /// data, they expire later.
    async fn check_returned_permits(&self) {
        let has_crashes = self.scenario.faults.contains(&FaultKind::Crash);
        if has_crashes || !self.network.disturbances().is_empty() {
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
        let held = self.history.change(|events| {
            let is_held = |check: &&Check| check.kind == Kind::Permit && check.returned.is_none();
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
                let has_steps = !self.server_clock.steps().is_empty();
                if policy.holds_permits() && left != amount && !has_steps {
                    let problem =
                        format!("policy {index}, key {key}: {left} of {amount} permits are free");
                    self.history.violation(problem);
                }
            }
        }
    }

    /// Checks that every host can use the server some time after the last fault. A host notices a lost connection only
    /// when it uses it, so each sends requests meanwhile.
    async fn check_health(&self) {
        let healed = Duration::from_micros(self.history.change(|events| events.healed));
        let request = Request::new().with("key", "k0").with("p0", "yes");
        loop {
            let is_due = Duration::from_micros(self.time.now()) >= healed + RECOVERY;
            for (index, host) in self.hosts.iter().enumerate() {
                let Some(instance) = host.instance() else { continue };
                let decision = instance.limiter.peek_request(&request).await;
                let is_healthy = decision.is_ok_and(|decision| !decision.is_degraded());
                if is_due && !is_healthy {
                    let servers = instance.store.stats().servers;
                    self.history.violation(format!("host {index} has not recovered: {servers:?}"));
                }
            }
            if is_due {
                break;
            }
            sleep(PROBE_INTERVAL).await;
        }
        self.check_returned_permits().await;
        self.expire_permits().await;
        self.check_counters().await;
    }
}
