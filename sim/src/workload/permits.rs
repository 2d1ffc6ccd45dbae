//! Clients that take permits.

use std::time::Duration;

use pacegate::{SharedPermit, policy::FailureMode};
use pacegate_testkit::Random;
use tokio::time::sleep;

use super::{Attributes, Choice, in_time, wait};
use crate::{oracle::LATE, world::World};

/// Takes a permit, holds it for some time, and returns it. Some clients forget that.
pub(super) async fn hold(world: &World, choice: Choice, random: &mut Random) {
    let (attributes, key) = (Attributes::new(world), format!("k{}", choice.key));
    let request = choice.request(&attributes, &key);
    let index = choice.start(world);
    let acquiring = choice.instance.limiter.acquire_request(&request);
    let admission = wait(world, &choice, random, acquiring).await;
    let answer = admission.as_ref().map(|it| choice.answer(world, &it.decision, choice.cost));
    choice.finish(world, index, answer);
    let Some(permit) = admission.and_then(|admission| admission.permit) else { return };
    if world.scenario.with_lost_permits && random.one_in(8) {
        return world.lost_permits.lock().push(permit);
    }
    if sleep_on(&choice, random.below(2 * world.scenario.pause)).await.is_none() {
        return;
    }
    if random.one_in(3) {
        renew(world, &choice, index, &permit).await;
        if sleep_on(&choice, random.below(world.scenario.pause)).await.is_none() {
            return;
        }
    }
    let started = world.time.now();
    world.history.change(|events| events.checks[index].released = Some(started));
    match random.one_in(2) {
        true => drop(permit),
        false => {
            let result = choice.instance.call(permit.release()).await;
            world.trace.event(format_args!("client {}: release: {result:?}", choice.client));
            in_time(world, "a release", 1, started);
            if result == Some(Ok(())) {
                let now = world.time.now();
                world.history.change(|events| events.checks[index].returned = Some(now));
            }
        }
    }
}

/// Works with a permit. Returns `None` if the host crashes.
async fn sleep_on(choice: &Choice, millis: u64) -> Option<()> {
    choice.instance.call(sleep(Duration::from_millis(millis))).await
}

/// Renews a permit, which must succeed until it expires, unless the server lost data.
async fn renew(world: &World, choice: &Choice, index: usize, permit: &SharedPermit) {
    let started = world.time.now();
    let renewed = choice.instance.call(permit.renew()).await;
    world.trace.event(format_args!("client {}: renewal: {renewed:?}", choice.client));
    in_time(world, "a renewal", 1, started);
    let limits = choice.policies.iter().map(|&it| &world.scenario.policies[it].limits[0][0]);
    let period = limits.filter(|limit| limit.algorithm().holds_permits()).map(|it| it.period());
    let period = period.min().unwrap_or_default();
    let fails_open =
        choice.policies.iter().any(|&it| world.scenario.policies[it].failure == FailureMode::Open);
    let now = world.time.now();
    world.history.change(|events| {
        let check = &mut events.checks[index];
        // Without an answer, the server may renew it later. A policy that fails open hides that.
        let is_certain = matches!(renewed, Some(Ok(_))) && !fails_open;
        check.renewed = Some(if is_certain { now } else { now + LATE });
        // The clocks drift apart a little.
        let is_young = Duration::from_micros(now - check.started) < period - period / 1_000;
        let is_counted = check.store_answer().is_some();
        // Of any key: the result of a reset may still be on its way.
        let is_undisturbed = world.network.with_ledger(|ledger| {
            ledger.is_undisturbed() && !ledger.resets().iter().any(|&at| at >= check.started)
        });
        if is_young && is_counted && is_undisturbed && renewed == Some(Ok(false)) {
            let problem = format!("a permit was lost: {check:?}");
            events.violations.push(problem);
        }
    });
}
