//! Clients that reserve units and settle them.

use std::time::Duration;

use pacegate::{ReservationId, StoreError};
use pacegate_testkit::Random;
use tokio::time::sleep;

use super::{Attributes, Choice, in_time, wait};
use crate::world::World;

/// A reservation of a client.
struct Open<'a> {
    choice: &'a Choice,
    id: ReservationId,
    /// Virtual times before and after it was made.
    started: u64,
    made: u64,
    ttl: Duration,
    /// Number of settlements that were sent before.
    attempts: usize,
    /// Number of settlements that found it open.
    settled: usize,
    /// True if the store, not a failure mode, admitted it.
    is_counted: bool,
}

/// Reserves units, and settles that some time later, on any host, more than once now and then.
pub(super) async fn reserve(world: &World, choice: Choice, random: &mut Random) {
    let (attributes, key) = (Attributes::new(world), format!("k{}", choice.key));
    let request = choice.request(&attributes, &key);
    let ttl = Duration::from_millis(random.pick(&[100, 1_000, 30_000]));
    let started = world.time.now();
    let index = choice.start(world);
    let reserving = choice.instance.limiter.reserve_request(&request, ttl);
    let reserved = wait(world, &choice, random, reserving).await;
    let answer = reserved.as_ref().map(|it| choice.answer(world, &it.decision, choice.cost));
    choice.finish(world, index, answer);
    let Some(reservation) = reserved.and_then(|reserved| reserved.reservation) else { return };
    let mut open = Open {
        choice: &choice,
        id: reservation.id().clone(),
        started,
        made: world.time.now(),
        ttl,
        attempts: 0,
        settled: 0,
        is_counted: answer.is_some_and(|answer| !answer.is_degraded()),
    };
    let pause = Duration::from_millis(random.below(2 * world.scenario.pause));
    if choice.instance.call(sleep(pause)).await.is_none() {
        return;
    }
    let actual = match random.below(4) {
        0 => 0,
        1 => choice.cost,
        2 => random.below(choice.cost + 1),
        _ => choice.cost + random.below(3),
    };
    settle(world, &mut open, actual, random).await;
    for _ in 0..2 {
        if random.one_in(3) {
            settle(world, &mut open, actual, random).await;
        }
    }
}

/// Settles a reservation, and checks that it counts once.
async fn settle(world: &World, open: &mut Open<'_>, actual: u64, random: &mut Random) {
    // A reservation that a failure mode admitted is in the memory of its host.
    let host = match open.is_counted {
        true => random.below(world.scenario.hosts as u64) as usize,
        false => open.choice.host,
    };
    let Some(instance) = world.hosts[host].instance() else { return };
    let started = world.time.now();
    let result = match actual {
        0 => instance.call(instance.limiter.cancel(&open.id)).await,
        _ => instance.call(instance.limiter.settle(&open.id, actual)).await,
    };
    let client = open.choice.client;
    world.trace.event(format_args!("client {client}: host {host} settles {actual}: {result:?}"));
    in_time(world, "a settlement", 1, started);
    if open.is_counted {
        open.record(world, actual, started, result.as_ref());
        open.judge(world, started, result.as_ref());
    }
    open.attempts += 1;
    open.settled += usize::from(result == Some(Ok(true)));
}

impl Open<'_> {
    /// Records the units that the first settlement returns, or charges in addition.
    fn record(
        &self,
        world: &World,
        actual: u64,
        started: u64,
        result: Option<&Result<bool, StoreError>>,
    ) {
        let is_certain = result == Some(&Ok(true));
        if self.settled > 0 || result == Some(&Ok(false)) {
            return;
        }
        let estimate = self.choice.cost;
        let update = self.choice.update(world, actual.abs_diff(estimate), started, is_certain);
        world.history.change(|events| match actual < estimate {
            true => events.returns.push(update),
            false => events.extras.push(update),
        });
    }

    /// Checks that a reservation that was neither settled nor has expired is open, and that another is not.
    fn judge(&self, world: &World, started: u64, result: Option<&Result<bool, StoreError>>) {
        let now = world.time.now();
        let ttl = u64::try_from(self.ttl.as_micros()).unwrap_or(u64::MAX);
        let is_disturbed = !world.network.with_ledger(|ledger| ledger.is_undisturbed());
        let problem = match result {
            Some(Ok(true)) if self.settled > 0 && !is_disturbed => "settled twice",
            Some(Ok(true)) if started > self.made + ttl + ttl / 1_000 && !is_disturbed => {
                "settled after its time"
            }
            Some(Ok(false))
                if self.attempts == 0
                    && !is_disturbed
                    && now < self.started + ttl - ttl / 1_000 =>
            {
                "lost"
            }
            _ => return,
        };
        let Choice { policies, key, cost, .. } = self.choice;
        world.history.violation(format!(
            "a reservation of {cost} units, policies {policies:?}, key {key}, was {problem}"
        ));
    }
}
