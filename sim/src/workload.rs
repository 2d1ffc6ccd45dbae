//! Clients: each sends one request after the other.

mod permits;
mod reservations;

use std::{future::Future, time::Duration};

use pacegate::{CheckError, Clock, Decision, Request, StoreError};
use pacegate_testkit::Random;
use tokio::time::{sleep, timeout};

use crate::{
    history::{Answer, Check, Kind, Update, decided_at},
    host::Instance,
    world::World,
};

/// The choices for one request.
struct Choice {
    client: usize,
    host: usize,
    instance: Instance,
    policies: Vec<usize>,
    key: usize,
    cost: u64,
    kind: Kind,
    id: Option<u64>,
}

/// The names and values of the attributes of requests.
pub(crate) struct Attributes {
    /// For each policy: the attribute that it matches, and the one that only its keys have.
    names: Vec<[String; 2]>,
}

impl Attributes {
    pub(crate) fn new(world: &World) -> Self {
        let names = |index| [format!("p{index}"), format!("only{index}")];
        Self { names: (0..world.scenario.policies.len()).map(names).collect() }
    }

    /// Returns a request of one unit that these policies apply to.
    pub(crate) fn request<'a>(&'a self, policies: &[usize], key: &'a str) -> Request<'a> {
        let mut request = Request::new().with("key", key);
        for &policy in policies {
            let [matched, only] = &self.names[policy];
            request = request.with(matched, "yes").with(only, only);
        }
        request
    }
}

/// Sends requests until the workload ends.
pub(crate) async fn client(world: World, client: usize, mut random: Random) {
    let end = world.scenario.end;
    while world.time.now() < end {
        sleep(Duration::from_millis(random.below(world.scenario.pause))).await;
        let Some(choice) = choose(&world, client, &mut random) else { continue };
        maintain(&world, &choice, &mut random).await;
        if world.scenario.with_resets && random.one_in(100) {
            reset(&world, choice).await;
            continue;
        }
        match choice.kind {
            Kind::Permit => permits::hold(&world, choice, &mut random).await,
            Kind::Reserve => reservations::reserve(&world, choice, &mut random).await,
            Kind::Check | Kind::UpTo | Kind::Spent => check(&world, choice, &mut random).await,
        }
    }
}

/// Peeks at the counters of a policy and a key from the first host. Returns the answer of the store.
pub(crate) async fn peek(
    world: &World,
    policy: usize,
    key: usize,
    random: &mut Random,
) -> Option<Answer> {
    let (policies, kind) = (vec![policy], Kind::Check);
    let instance = world.hosts[0].instance()?;
    let choice = Choice { client: 0, host: 0, instance, policies, key, cost: 0, kind, id: None };
    // With a short deadline, one answer may be late, such as the first of a new script.
    for _ in 0..MAX_PEEKS {
        let answer = check_once(world, &choice, random).await;
        if let Some(answer) = answer.filter(|answer| !answer.is_degraded()) {
            return Some(answer);
        }
        sleep(Duration::from_millis(100)).await;
    }
    None
}

/// Does now and then what operators and programs do besides requests.
async fn maintain(world: &World, choice: &Choice, random: &mut Random) {
    let host = choice.host;
    if world.scenario.with_lease_returns && random.one_in(50) {
        let started = world.time.now();
        let result = choice.instance.call(choice.instance.store.return_leases()).await;
        world.trace.event(format_args!("host {host} returns its leases: {result:?}"));
        // Waits for draws in progress first.
        in_time(world, "the return of leases", 2, started);
    }
    if world.scenario.with_reloads && random.one_in(40) {
        let result = world.hosts[host].reload(&world.scenario);
        world.trace.event(format_args!("host {host} reloads: {result:?}"));
        if let Err(error) = result {
            world.history.violation(format!("host {host} does not reload: {error}"));
        }
    }
}

/// Draws a request. Returns `None` if the host is down. Two permits are not taken at once.
fn choose(world: &World, client: usize, random: &mut Random) -> Option<Choice> {
    let scenario = &world.scenario;
    let first = random.below(scenario.policies.len() as u64) as usize;
    let mut policies = vec![first];
    let rarity = if world.servers.is_cluster() { 2 } else { 3 };
    let others = (0..scenario.policies.len()).filter(|&other| {
        other != first && !scenario.policies[other].holds_permits() && random.one_in(rarity)
    });
    policies.extend(others);
    policies.sort_unstable();
    let most = scenario.max_cost(&policies);
    let cost = match random.below(6) {
        0 => random.between(1, most),
        1 => 2.min(most),
        _ => 1,
    };
    let host = random.below(scenario.hosts as u64) as usize;
    let key = random.below(scenario.keys as u64) as usize;
    let kind = match random.below(12) {
        _ if scenario.policies[first].holds_permits() => Kind::Permit,
        0..4 if scenario.with_reservations => Kind::Reserve,
        4..7 if scenario.with_parts => Kind::UpTo,
        7 if scenario.with_debt => Kind::Spent,
        _ => Kind::Check,
    };
    let has_id = scenario.with_ids && !matches!(kind, Kind::Permit | Kind::Reserve);
    if (has_id || kind == Kind::UpTo) && world.regions(&policies, key).len() > 1 {
        // Not supported in several slots.
        policies = vec![first];
    }
    let id = has_id.then(|| random.number());
    let instance = world.hosts[host].instance()?;
    Some(Choice { client, host, instance, policies, key, cost, kind, id })
}

impl Choice {
    /// Returns the request.
    fn request<'a>(&self, attributes: &'a Attributes, key: &'a str) -> Request<'a> {
        let request = attributes.request(&self.policies, key).cost(self.cost);
        if self.kind == Kind::Spent { request.spent() } else { request }
    }

    /// Records the start, and returns the index of the check.
    fn start(&self, world: &World) -> usize {
        world.history.start(Check {
            host: self.host,
            incarnation: self.instance.incarnation,
            policies: self.policies.clone(),
            revision: self.instance.revision,
            key: self.key,
            cost: self.cost,
            kind: self.kind,
            id: self.id,
            started: world.time.now(),
            ended: u64::MAX,
            times: Vec::new(),
            answer: None,
            released: None,
            returned: None,
            renewed: None,
        })
    }

    /// Records the answer, and checks that it came in time.
    fn finish(&self, world: &World, index: usize, answer: Option<Answer>) {
        let ended = world.time.now();
        let Self { client, host, policies, key, cost, kind, .. } = self;
        world.trace.event(format_args!(
            "client {client}: host {host}, {kind:?}, policies {policies:?}, key {key}, cost {cost}: {answer:?}"
        ));
        world.history.change(|events| {
            let check = &mut events.checks[index];
            (check.ended, check.answer) = (ended, answer);
            let took = Duration::from_micros(ended - check.started);
            if took > world.scenario.deadline + EPSILON {
                let problem = format!("an answer took {took:?}: {check:?}");
                events.violations.push(problem);
            }
        });
    }

    /// Reads a decision about a charge of this many units.
    fn answer(&self, world: &World, decision: &Decision, units: u64) -> Answer {
        Answer::new(decision, units, world.hosts[self.host].clock.now().as_micros())
    }

    /// Records the result of an update of all counters, which took one store call for each of `calls`.
    fn update(&self, world: &World, units: u64, started: u64, is_certain: bool) -> Update {
        let (policies, key) = (self.policies.clone(), self.key);
        Update { policies, key, units, started, ended: world.time.now(), is_certain }
    }

    /// Returns the number of counters, each of which an update changes in one store call.
    fn counters(&self, world: &World) -> u32 {
        let policies = self.policies.iter().map(|&policy| &world.scenario.policies[policy]);
        policies.map(|policy| policy.limits[0].len() as u32).sum()
    }
}

/// Maximum number of attempts to peek at a counter.
const MAX_PEEKS: usize = 5;

/// Timers have a resolution of a millisecond, and a request may wait for two of them.
const EPSILON: Duration = Duration::from_millis(3);

/// Checks that a number of store calls, one after the other, took no longer than their deadlines.
fn in_time(world: &World, what: &str, calls: u32, started: u64) {
    let took = Duration::from_micros(world.time.now() - started);
    if took > (world.scenario.deadline + EPSILON) * calls {
        world.history.violation(format!("{what} took {took:?}, with {calls} calls"));
    }
}

/// Waits for the answer to a check, unless the client loses patience or the host crashes.
async fn wait<T>(
    world: &World,
    choice: &Choice,
    random: &mut Random,
    call: impl Future<Output = Result<T, CheckError>>,
) -> Option<T> {
    // The last peeks are not cancelled.
    let may_cancel = world.scenario.with_cancellations && choice.cost > 0;
    let patience = match may_cancel && random.one_in(10) {
        true => Duration::from_millis(random.below(20)),
        false => Duration::from_secs(60),
    };
    let answer = choice.instance.call(timeout(patience, call)).await?.ok()?;
    answer.inspect_err(|error| world.history.violation(format!("a check failed: {error}"))).ok()
}

/// Sends a request. With an id, repeats it until the server has decided, and sometimes after that, on any host.
async fn check(world: &World, mut choice: Choice, random: &mut Random) {
    let answer = check_once(world, &choice, random).await;
    if choice.id.is_some() {
        let mut answer = answer;
        for _ in 0..3 {
            let is_decided = answer.is_some_and(|answer| !answer.is_degraded());
            if is_decided && !random.one_in(4) {
                return;
            }
            choice.host = random.below(world.scenario.hosts as u64) as usize;
            match world.hosts[choice.host].instance() {
                Some(instance) if instance.revision == choice.instance.revision => {
                    choice.instance = instance;
                }
                _ => return,
            }
            answer = check_once(world, &choice, random).await;
        }
        return;
    }
    let is_counted = answer.is_some_and(|answer| answer.is_allowed && !answer.is_degraded());
    if is_counted && world.scenario.with_refunds && random.one_in(8) {
        refund(world, &choice).await;
    }
}

async fn check_once(world: &World, choice: &Choice, random: &mut Random) -> Option<Answer> {
    let (attributes, key) = (Attributes::new(world), format!("k{}", choice.key));
    let request = choice.request(&attributes, &key);
    let id = choice.id.map(u64::to_le_bytes);
    let request = match &id {
        Some(id) => request.id(id).expect("a short id"),
        None => request,
    };
    let limiter = &choice.instance.limiter;
    let index = choice.start(world);
    let decided = match choice.kind {
        Kind::Check if world.regions(&choice.policies, choice.key).len() > 1 => {
            let decision = check_parts(world, choice, random, (&request, index)).await;
            decision.map(|decision| (decision, choice.cost))
        }
        Kind::UpTo => {
            let grant = wait(world, choice, random, limiter.check_request_up_to(&request)).await;
            grant.map(|grant| (grant.decision, grant.units))
        }
        _ => {
            let decision = wait(world, choice, random, limiter.check_request(&request)).await;
            decision.map(|decision| (decision, choice.cost))
        }
    };
    let answer = decided.map(|(decision, units)| choice.answer(world, &decision, units));
    choice.finish(world, index, answer);
    answer
}

/// Checks limits that are charged one after the other, and records when.
async fn check_parts(
    world: &World,
    choice: &Choice,
    random: &mut Random,
    (request, index): (&Request<'_>, usize),
) -> Option<Decision> {
    let charges = choice.instance.limiter.charges();
    let plan = charges.plan(request);
    let parts = plan.charges(choice.cost).expect("no cost exceeds its limits");
    let batch = wait(world, choice, random, charges.check_batch(&parts, None)).await?;
    let times = parts.iter().zip(&batch.each).map(|(charge, decision)| {
        let name = charge.policy.as_str();
        let policy = name.strip_prefix('p').and_then(|index| index.parse().ok());
        (policy.expect("the name of a policy"), decided_at(decision))
    });
    let times = times.collect();
    world.history.change(|events| events.checks[index].times = times);
    Some(batch.decision)
}

async fn refund(world: &World, choice: &Choice) {
    let (attributes, key) = (Attributes::new(world), format!("k{}", choice.key));
    let request = choice.request(&attributes, &key);
    let started = world.time.now();
    let result = choice.instance.call(choice.instance.limiter.refund_request(&request)).await;
    let is_certain = result == Some(Ok(()));
    let refund = choice.update(world, choice.cost, started, is_certain);
    world.trace.event(format_args!("refund of {refund:?}: {result:?}"));
    world.history.change(|events| events.returns.push(refund));
    in_time(world, "a refund", choice.counters(world), started);
}

/// Resets a key. When the server does it, a new segment of the history of its counters starts.
async fn reset(world: &World, choice: Choice) {
    let limiter = &choice.instance.limiter;
    let (attributes, key) = (Attributes::new(world), format!("k{}", choice.key));
    let request = choice.request(&attributes, &key);
    let plan = limiter.charges().plan(&request);
    let started = world.time.now();
    let result: Option<Result<_, StoreError>> = match plan.charges(0) {
        Ok(charges) => choice.instance.call(limiter.charges().reset(&charges)).await,
        Err(error) => return world.history.violation(error.to_string()),
    };
    world.trace.event(format_args!("reset of key {}: {result:?}", choice.key));
    let is_certain = matches!(result, Some(Ok(_)));
    let reset = choice.update(world, 0, started, is_certain);
    world.history.change(|events| events.resets.push(reset));
    in_time(world, "a reset", choice.counters(world), started);
}
