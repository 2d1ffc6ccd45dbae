//! The choices of a seed: limits, hosts, clients, and the kinds of faults.

use std::{num::NonZeroU32, time::Duration};

use pacegate::{
    Algorithm, Limit, Policy, PolicySet,
    policy::{Condition, FailureMode, Lease},
};
use pacegate_testkit::Random;

/// The Redis servers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Topology {
    /// One server.
    One,
    /// A master with a replica, which sentinels watch.
    Sentinels,
    /// A cluster. Each master has a replica.
    Cluster {
        /// Number of masters.
        masters: usize,
    },
}

/// The choices of a seed.
#[derive(Clone, Debug)]
pub struct Scenario {
    /// The Redis servers.
    pub topology: Topology,
    /// Whether each server has its own clock.
    pub with_skew: bool,
    /// Number of hosts, each with a limiter and a store.
    pub hosts: usize,
    /// Number of clients, each of which sends one request after the other to any host.
    pub clients: usize,
    /// Number of keys.
    pub keys: usize,
    /// The policies. Each request names those that apply.
    pub policies: Vec<PolicyChoice>,
    /// The deadline of store calls.
    pub deadline: Duration,
    /// Minimum and maximum milliseconds of a one-way delay without faults.
    pub delay: (u64, u64),
    /// Maximum milliseconds between two requests of a client.
    pub pause: u64,
    /// The kinds of faults that occur. Empty: none.
    pub faults: Vec<FaultKind>,
    /// Average milliseconds between faults.
    pub fault_interval: u64,
    /// Whether clients refund some requests.
    pub with_refunds: bool,
    /// Whether clients cancel some requests.
    pub with_cancellations: bool,
    /// Whether requests have an id, and are repeated with it if the server did not decide.
    pub with_ids: bool,
    /// Whether clients reset keys.
    pub with_resets: bool,
    /// Whether hosts return their leases now and then.
    pub with_lease_returns: bool,
    /// Whether clients reserve units, and settle or cancel that later.
    pub with_reservations: bool,
    /// Whether hosts reload their policies, which changes amounts and bursts.
    pub with_reloads: bool,
    /// Whether clients record units that were spent before, which may become debt.
    pub with_debt: bool,
    /// Whether clients ask for a part of their cost.
    pub with_parts: bool,
    /// Whether clients forget to return some permits.
    pub with_lost_permits: bool,
    /// Whether the deny cache is on.
    pub with_deny_cache: bool,
    /// Virtual microseconds after which clients and faults stop. A change leaves everything before the end as it was.
    pub end: u64,
}

/// A policy, as chosen by a seed.
#[derive(Clone, Debug)]
pub struct PolicyChoice {
    /// Its limits, in both revisions. Two limits have different periods; the revisions differ in amounts and bursts.
    pub limits: [Vec<Limit>; 2],
    /// The failure mode.
    pub failure: FailureMode,
    /// Units of a lease.
    pub lease: Option<u64>,
    /// Whether its keys are in other slots of a cluster than those of other policies.
    pub is_apart: bool,
}

/// A kind of fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FaultKind {
    /// A host cannot reach the server, or the other way round, or both.
    Partition,
    /// The connections of a host lose everything without notice.
    HalfOpen,
    /// The connections of a host are cut after some bytes.
    Cut,
    /// Messages of a host take long.
    SlowPath,
    /// The server does not read for some time.
    Freeze,
    /// The server restarts without its keys.
    Restart,
    /// A replica takes over, without the last writes and with another clock.
    Failover,
    /// The server is a replica for some time.
    Demotion,
    /// The server reads its data from disk, and rejects commands.
    Loading,
    /// The server forgets all scripts.
    ScriptFlush,
    /// The server has no memory for new keys.
    OutOfMemory,
    /// The server's clock steps.
    ServerClockStep,
    /// A host's clock steps.
    HostClockStep,
    /// A host crashes, and starts again.
    Crash,
    /// A slot moves to another node of a cluster, key by key.
    Migration,
}

impl FaultKind {
    const ALL: [Self; 15] = [
        Self::Partition,
        Self::HalfOpen,
        Self::Cut,
        Self::SlowPath,
        Self::Freeze,
        Self::Restart,
        Self::Failover,
        Self::Demotion,
        Self::Loading,
        Self::ScriptFlush,
        Self::OutOfMemory,
        Self::ServerClockStep,
        Self::HostClockStep,
        Self::Crash,
        Self::Migration,
    ];
}

impl Scenario {
    /// Draws a scenario. Each seed uses only some features and faults, so that rare combinations occur.
    pub fn draw(random: &mut Random) -> Self {
        let topology = match random.below(10) {
            0..5 => Topology::One,
            5..7 => Topology::Sentinels,
            _ => Topology::Cluster { masters: random.between(2, 3) as usize },
        };
        let is_cluster = matches!(topology, Topology::Cluster { .. });
        // In a cluster, most requests shall have limits in several slots.
        let count = random.between(if is_cluster { 2 } else { 1 }, 3);
        let policies = (0..count).map(|_| PolicyChoice::draw(random)).collect();
        let mut kinds = FaultKind::ALL.to_vec();
        kinds.retain(|kind| is_cluster || *kind != FaultKind::Migration);
        let faults = match random.below(8) {
            0 => Vec::new(),
            1..4 => vec![random.pick(&kinds)],
            4 if is_cluster => vec![FaultKind::Migration],
            _ => kinds.into_iter().filter(|_| random.one_in(3)).collect(),
        };
        let scenario = Self {
            topology,
            with_skew: topology != Topology::One && random.one_in(2),
            with_resets: random.one_in(6),
            with_ids: random.one_in(4),
            with_lease_returns: random.one_in(2),
            hosts: random.between(1, 4) as usize,
            clients: random.between(1, 12) as usize,
            keys: random.between(1, 3) as usize,
            policies,
            deadline: Duration::from_millis(random.pick(&[20, 50, 100, 250])),
            delay: random.pick(&[(0, 1), (0, 3), (1, 2), (2, 9)]),
            pause: random.pick(&[5, 20, 60, 200, 600]),
            faults,
            fault_interval: random.pick(&[100, 300, 1_000, 3_000]),
            with_refunds: random.one_in(3),
            with_cancellations: random.one_in(3),
            with_deny_cache: !random.one_in(4),
            with_reservations: random.one_in(4),
            with_reloads: random.one_in(5),
            with_debt: random.one_in(6),
            with_parts: random.one_in(5),
            with_lost_permits: random.one_in(3),
            end: random.pick(&[3_000_000, 6_000_000, 12_000_000]),
        };
        match random.below(9) {
            0..3 if is_cluster => scenario.moving_slots(random),
            3 if is_cluster => scenario.denying_reservations(random),
            4 if is_cluster => scenario.denying_requests(random),
            8 if !is_cluster => scenario.stepping_hosts(random),
            _ => scenario,
        }
    }

    /// Returns a scenario in which slots move nearly all the time, while each host sends batches with checks and
    /// reservations of the same keys.
    fn moving_slots(self, random: &mut Random) -> Self {
        Self {
            hosts: random.between(1, 2) as usize,
            clients: random.between(8, 16) as usize,
            deadline: Duration::from_millis(random.pick(&[100, 250])),
            delay: random.pick(&[(0, 1), (0, 3), (1, 2)]),
            pause: random.pick(&[5, 20]),
            faults: vec![FaultKind::Migration],
            fault_interval: 100,
            with_reservations: random.one_in(2),
            ..self
        }
    }

    /// Returns a scenario without faults in which a strict limit denies most reservations. A bucket in another slot is
    /// often full again, and then shows whether a denied reservation takes a token.
    fn denying_reservations(self, random: &mut Random) -> Self {
        let period = Duration::from_millis(random.pick(&[100, 200, 500]));
        let bucket = Limit::new(random.between(1, 3), period).expect("a valid limit");
        let bucket = bucket.with_algorithm(Algorithm::TokenBucket).expect("a valid limit");
        let strict = Limit::new(1, Duration::from_secs(10)).expect("a valid limit");
        Self {
            // The bucket is charged first.
            policies: vec![PolicyChoice::alone(bucket), PolicyChoice::alone(strict)],
            pause: random.pick(&[20, 60, 200]),
            faults: Vec::new(),
            with_refunds: false,
            with_cancellations: false,
            with_resets: false,
            with_reservations: true,
            with_reloads: false,
            with_debt: false,
            with_deny_cache: false,
            ..self
        }
    }

    /// Returns a scenario without faults in which a strict limit denies most requests. Another slot has a short window
    /// or a log, which shows whether a denied request returns its own units.
    fn denying_requests(self, random: &mut Random) -> Self {
        let period = Duration::from_millis(random.pick(&[20, 50, 200]));
        let short = Limit::new(random.pick(&[1, 2, 5]), period).expect("a valid limit");
        let algorithm = random.pick(&[Algorithm::SlidingWindow, Algorithm::SlidingLog]);
        let short = short.with_algorithm(algorithm).expect("a valid limit");
        let strict = Limit::new(1, Duration::from_secs(10)).expect("a valid limit");
        Self {
            policies: vec![PolicyChoice::alone(short), PolicyChoice::alone(strict)],
            hosts: random.between(1, 2) as usize,
            keys: random.between(1, 2) as usize,
            pause: random.pick(&[5, 20]),
            faults: Vec::new(),
            with_refunds: false,
            with_cancellations: false,
            with_resets: false,
            with_reservations: random.one_in(2),
            with_reloads: false,
            with_debt: false,
            ..self
        }
    }

    /// Returns a scenario in which the clocks of hosts step often, while the deny cache answers most requests. It
    /// learns the state of each limit at another time, some of them before a step and some after.
    fn stepping_hosts(self, random: &mut Random) -> Self {
        let algorithms = [
            Algorithm::FixedWindow,
            Algorithm::SlidingWindow,
            Algorithm::SlidingLog,
            Algorithm::TokenBucket,
        ];
        let periods = [random.pick(&[200, 500, 1_000]), random.pick(&[3_000, 10_000, 60_000])];
        let policies = periods.map(|period| {
            let limit = Limit::new(random.between(1, 3), Duration::from_millis(period));
            let limit = limit.and_then(|limit| limit.with_algorithm(random.pick(&algorithms)));
            let limits = vec![limit.expect("a valid limit")];
            PolicyChoice::of([limits.clone(), limits])
        });
        Self {
            policies: policies.to_vec(),
            hosts: random.between(1, 2) as usize,
            keys: 1,
            pause: random.pick(&[5, 20]),
            faults: vec![FaultKind::HostClockStep],
            fault_interval: random.pick(&[100, 300]),
            with_refunds: false,
            with_cancellations: false,
            with_resets: false,
            with_reservations: false,
            with_reloads: false,
            with_debt: false,
            with_deny_cache: true,
            ..self
        }
    }

    /// Returns the policies of a revision. A request is subject to policy `i` if it has the attribute `p<i>`.
    pub fn policy_set(&self, revision: usize) -> Result<PolicySet, pacegate::policy::PolicyError> {
        let policies = self.policies.iter().enumerate().map(|(index, choice)| {
            let name = format!("p{index}");
            let policy = Policy::new(&*name, choice.limits[revision].iter().copied())
                .matching(&*name, Condition::equal("yes"))
                .per(choice.attributes(index))
                .failing(choice.failure);
            match choice.lease {
                Some(units) => policy.leased(Lease::Units(units)),
                None => policy,
            }
        });
        PolicySet::new(policies)
    }

    /// Returns the highest cost that every limit of these policies can admit.
    pub fn max_cost(&self, policies: &[usize]) -> u64 {
        let limits =
            policies.iter().flat_map(|&policy| self.policies[policy].limits.iter().flatten());
        limits.map(Limit::capacity).min().unwrap_or(1)
    }
}

impl PolicyChoice {
    fn draw(random: &mut Random) -> Self {
        let first = draw_limit(random);
        let mut limits = vec![first];
        if first.algorithm() != Algorithm::Concurrency && random.one_in(3) {
            let second = draw_limit(random);
            let differs = second.period() != first.period();
            if differs && second.algorithm() != Algorithm::Concurrency {
                limits.push(second);
            }
        }
        let can_be_leased = limits.iter().all(|limit| limit.algorithm().can_be_leased());
        let lease = (can_be_leased && random.one_in(3)).then(|| random.between(1, 10));
        let quarter = NonZeroU32::new(4).unwrap_or(NonZeroU32::MIN);
        let failure = random.pick(&[
            FailureMode::Open,
            FailureMode::Closed,
            FailureMode::Local { numerator: 1, denominator: NonZeroU32::MIN },
            FailureMode::Local { numerator: 1, denominator: quarter },
        ]);
        let changed = limits.iter().map(|limit| change_limit(*limit, random)).collect();
        Self { limits: [limits, changed], failure, lease, is_apart: random.one_in(2) }
    }

    /// Returns a policy with one limit, whose keys are in slots of their own.
    fn alone(limit: Limit) -> Self {
        Self { is_apart: true, ..Self::of([vec![limit], vec![limit]]) }
    }

    /// Returns a policy with these limits in each revision.
    fn of(limits: [Vec<Limit>; 2]) -> Self {
        Self { limits, failure: FailureMode::Closed, lease: None, is_apart: false }
    }

    /// Returns the attributes that its keys consist of.
    fn attributes(&self, index: usize) -> Vec<String> {
        let own = self.is_apart.then(|| format!("only{index}"));
        std::iter::once("key".to_owned()).chain(own).collect()
    }

    /// Returns true if requests hold permits.
    pub fn holds_permits(&self) -> bool {
        self.limits[0].iter().any(|limit| limit.algorithm() == Algorithm::Concurrency)
    }
}

/// Returns a limit with the same counter, but with another amount. Permits keep theirs.
fn change_limit(limit: Limit, random: &mut Random) -> Limit {
    if limit.algorithm() == Algorithm::Concurrency {
        return limit;
    }
    let amount = random.between(1, 2 * limit.amount());
    let changed = Limit::new(amount, limit.period()).expect("a valid limit");
    changed.with_algorithm(limit.algorithm()).expect("a valid limit")
}

fn draw_limit(random: &mut Random) -> Limit {
    let period = random.pick(&[50, 200, 500, 1_000, 1_001, 3_000, 10_000, 60_000]);
    let amount = random.pick(&[1, 2, 3, 5, 10, 20, 50]);
    let algorithm = random.pick(&[
        Algorithm::FixedWindow,
        Algorithm::SlidingWindow,
        Algorithm::SlidingLog,
        Algorithm::TokenBucket,
        Algorithm::Concurrency,
    ]);
    let limit = Limit::new(amount, Duration::from_millis(period)).expect("a valid limit");
    let limit = limit.with_algorithm(algorithm).expect("a valid limit");
    if algorithm == Algorithm::TokenBucket && random.one_in(2) {
        return limit.with_burst(random.between(1, 2 * amount)).expect("a valid burst");
    }
    limit
}
