//! Clients: each sends one request after the other.

use std::time::Duration;

use pacegate::{Clock, Request, SharedPermit};
use pacegate_testkit::Random;
use tokio::time::{sleep, timeout};

use crate::{
    history::{Answer, Check, Refund},
    world::World,
};

/// The choices for one request.
struct Choice {
    client: usize,
    host: usize,
    policies: Vec<usize>,
    key: usize,
    cost: u64,
}

/// Sends requests until the workload ends.
pub(crate) async fn client(world: World, client: usize, mut random: Random) {
    let end = world.scenario.end;
    while world.time.now() < end {
        sleep(Duration::from_millis(random.below(world.scenario.pause))).await;
        let choice = choose(&world, client, &mut random);
        let holds_permits = world.scenario.policies[choice.policies[0]].holds_permits();
        if world.scenario.with_lease_returns && random.one_in(50) {
            let result = world.hosts[choice.host].store.return_leases().await;
            world.trace.event(format_args!("host {} returns its leases: {result:?}", choice.host));
        }
        if world.scenario.with_resets && random.one_in(100) {
            reset(&world, choice).await;
        } else if holds_permits {
            hold(&world, choice, &mut random).await;
        } else {
            check(&world, choice, &mut random).await;
        }
    }
}

/// Draws a request. Permits are taken under one policy at a time.
fn choose(world: &World, client: usize, random: &mut Random) -> Choice {
    let scenario = &world.scenario;
    let first = random.below(scenario.policies.len() as u64) as usize;
    let mut policies = vec![first];
    if !scenario.policies[first].holds_permits() {
        let others = (0..scenario.policies.len()).filter(|&other| {
            other != first && !scenario.policies[other].holds_permits() && random.one_in(3)
        });
        policies.extend(others);
        policies.sort_unstable();
    }
    let most = scenario.max_cost(&policies);
    let cost = match random.below(6) {
        0 => random.between(1, most),
        1 => 2.min(most),
        _ => 1,
    };
    let host = random.below(scenario.hosts as u64) as usize;
    let key = random.below(scenario.keys as u64) as usize;
    Choice { client, host, policies, key, cost }
}

impl Choice {
    /// Calls `send` with the request.
    fn request<'a>(&self, names: &'a [String], key: &'a str) -> Request<'a> {
        let mut request = Request::new().with("key", key).cost(self.cost);
        for &policy in &self.policies {
            request = request.with(&names[policy], "yes");
        }
        request
    }

    /// Records the start, and returns the index of the check.
    fn start(&self, world: &World, is_permit: bool) -> usize {
        world.history.start(Check {
            host: self.host,
            policies: self.policies.clone(),
            key: self.key,
            cost: self.cost,
            is_permit,
            started: world.time.now(),
            ended: 0,
            answer: None,
            released: None,
        })
    }

    /// Records the answer, and checks that it came in time.
    fn finish(&self, world: &World, index: usize, answer: Option<Answer>) {
        let ended = world.time.now();
        let Self { client, host, policies, key, cost } = self;
        world.trace.event(format_args!(
            "client {client}: host {host}, policies {policies:?}, key {key}, cost {cost}: {answer:?}"
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
}

/// Timers have a resolution of a millisecond, and a request may wait for two of them.
const EPSILON: Duration = Duration::from_millis(3);

fn names(world: &World) -> Vec<String> {
    (0..world.scenario.policies.len()).map(|index| format!("p{index}")).collect()
}

/// Draws the time after which a client stops waiting.
fn patience(world: &World, random: &mut Random) -> Duration {
    match world.scenario.with_cancellations && random.one_in(10) {
        true => Duration::from_millis(random.below(20)),
        false => Duration::from_secs(60),
    }
}

/// Sends a request. With an id, repeats it until the server decides, three times at most.
async fn check(world: &World, choice: Choice, random: &mut Random) {
    let (names, key) = (names(world), format!("k{}", choice.key));
    let request = choice.request(&names, &key);
    if !world.scenario.with_ids {
        return check_once(world, &choice, &request, random).await.map_or((), drop);
    }
    let id = random.number().to_le_bytes();
    let request = request.id(&id).expect("a short id");
    for _ in 0..3 {
        let answer = check_once(world, &choice, &request, random).await;
        if answer.is_some_and(|answer| !answer.is_degraded()) {
            return;
        }
    }
}

async fn check_once(
    world: &World,
    choice: &Choice,
    request: &Request<'_>,
    random: &mut Random,
) -> Option<Answer> {
    let host = &world.hosts[choice.host];
    let index = choice.start(world, false);
    let checking = timeout(patience(world, random), host.limiter.check_request(request));
    let answer = match checking.await {
        Ok(Ok(decision)) => Some(Answer::new(&decision, host.clock.now().as_micros())),
        Ok(Err(error)) => {
            let problem = format!("a check failed: {error}");
            world.history.change(|events| events.violations.push(problem));
            None
        }
        Err(_) => None,
    };
    choice.finish(world, index, answer);
    let is_counted = answer.is_some_and(|answer| answer.is_allowed && !answer.is_degraded());
    if is_counted && world.scenario.with_refunds && random.one_in(8) {
        let refund = Refund { key: choice.key, cost: choice.cost, started: world.time.now() };
        world.history.change(|events| events.refunds.push(refund));
        let result = host.limiter.refund_request(request).await;
        world.trace.event(format_args!("refund of {refund:?}: {result:?}"));
    }
    answer
}

/// Resets a key. When the server does it, a new segment of the history starts, as after a loss of data.
async fn reset(world: &World, choice: Choice) {
    let limiter = &world.hosts[choice.host].limiter;
    let (names, key) = (names(world), format!("k{}", choice.key));
    let request = choice.request(&names, &key);
    let plan = limiter.charges().plan(&request);
    let result = match plan.charges(0) {
        Ok(charges) => limiter.charges().reset(&charges).await,
        Err(error) => {
            return world.history.change(|events| events.violations.push(error.to_string()));
        }
    };
    world.trace.event(format_args!("reset of key {}: {result:?}", choice.key));
}

/// Takes a permit, holds it for some time, and returns it.
async fn hold(world: &World, choice: Choice, random: &mut Random) {
    let host = &world.hosts[choice.host];
    let (names, key) = (names(world), format!("k{}", choice.key));
    let request = choice.request(&names, &key);
    let index = choice.start(world, true);
    let acquiring = timeout(patience(world, random), host.limiter.acquire_request(&request));
    let admission = match acquiring.await {
        Ok(Ok(admission)) => admission,
        Err(_) => return choice.finish(world, index, None),
        Ok(Err(error)) => {
            let problem = format!("an attempt to take a permit failed: {error}");
            return world.history.change(|events| events.violations.push(problem));
        }
    };
    let answer = Answer::new(&admission.decision, host.clock.now().as_micros());
    choice.finish(world, index, Some(answer));
    let Some(permit) = admission.permit else { return };
    sleep(Duration::from_millis(random.below(2 * world.scenario.pause))).await;
    if random.one_in(3) {
        renew(world, &choice, index, &permit).await;
        sleep(Duration::from_millis(random.below(world.scenario.pause))).await;
    }
    let now = world.time.now();
    world.history.change(|events| events.checks[index].released = Some(now));
    match random.one_in(2) {
        true => drop(permit),
        false => {
            let result = permit.release().await;
            world.trace.event(format_args!("client {}: release: {result:?}", choice.client));
        }
    }
}

/// Renews a permit, which must succeed until it expires, unless the server lost data.
async fn renew(world: &World, choice: &Choice, index: usize, permit: &SharedPermit) {
    let renewed = permit.renew().await;
    world.trace.event(format_args!("client {}: renewal: {renewed:?}", choice.client));
    let period = world.scenario.policies[choice.policies[0]].limits[0].period();
    let now = world.time.now();
    world.history.change(|events| {
        let check = &events.checks[index];
        let is_young = Duration::from_micros(now - check.started) < period;
        let is_counted = check.answer.is_some_and(|answer| !answer.is_degraded());
        let is_undisturbed = world.network.disturbances().is_empty();
        if is_young && is_counted && is_undisturbed && renewed == Ok(false) {
            let problem = format!("a permit was lost: {check:?}");
            events.violations.push(problem);
        }
    });
}
