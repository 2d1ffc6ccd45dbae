//! The task that drives a lane: connects, sends what waits, and closes and opens the lane.

use std::{mem, sync::Arc, time::Duration};

use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::time::{Instant, timeout};

use super::{Lane, Trouble};
use crate::link::Link;

/// A closed lane is tried after at most this, and a little later each time that fails. It has to be in use again two
/// seconds after its server is back, even if the first try then takes as long as a try may.
const FIRST_RETRY: Duration = Duration::from_millis(20);
const LAST_RETRY: Duration = Duration::from_millis(500);
/// A server that answers late is asked this often whether it has recovered.
const LATE_RETRY: Duration = Duration::from_millis(200);
const TOO_SLOW: &str = "the server is too slow to answer within the deadline";
/// So many trips may be under way at the same time: while the server works on one, the other is made ready or taken in.
const TRIPS: usize = 2;
/// More cells than this are worth two trips.
const MUCH: usize = 64;
/// A server that does not answer for so long is connected to anew.
const GIVE_UP: Duration = Duration::from_millis(1_000);

/// Whoever drives a lane. When it ends, for whatever reason, nobody must wait for it.
pub(super) struct Driver(pub(super) Arc<Lane>);

impl Drop for Driver {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// Connects, and serves requests until the lane ends.
pub(super) async fn drive(driver: Driver) {
    let lane = &driver.0;
    let mut wait = FIRST_RETRY;
    while !lane.has_ended() {
        lane.queue.lock().moved = false;
        match connect_and_serve(lane).await {
            Ok(()) => wait = FIRST_RETRY,
            Err(reason) => {
                lane.close(&reason);
                // Not at the same moment as everybody else.
                lane.pause(wait / 2 + crate::time::jitter(wait / 2)).await;
                wait = (wait * 2).min(LAST_RETRY);
            }
        }
    }
}

/// Serves requests over a new connection for as long as that is good. `Err`: it was good for nothing, and why.
async fn connect_and_serve(lane: &Arc<Lane>) -> Result<(), String> {
    let cannot = |error| format!("cannot connect to {}: {error}", lane.resolver);
    let mut link = lane.resolver.connect().await.map_err(cannot)?;
    let (since, mut good) = (Instant::now(), false);
    let ended = loop {
        if let Err(reason) = recovered(lane, &mut link).await {
            break reason;
        }
        match serve(lane, &mut link, &mut good).await {
            Trouble::Late => lane.close(TOO_SLOW),
            Trouble::Lost(reason) => break reason,
        }
    };
    lane.close(&ended);
    // Some servers hang up on clients that are idle for long.
    if good || since.elapsed() > GIVE_UP { Ok(()) } else { Err(ended) }
}

/// Serves requests until there is trouble. `good` tells whether any was answered.
async fn serve(lane: &Arc<Lane>, link: &mut Link, good: &mut bool) -> Trouble {
    lane.open();
    let wire = link.wire().clone();
    let mut trips = FuturesUnordered::new();
    while lane.is_open() {
        if trips.len() < TRIPS {
            let mut jobs = lane.take();
            let cells: usize = jobs.iter().map(|job| job.size().1).sum();
            let much = jobs.len() > 1 && cells > MUCH;
            // As one trip, the server would wait for us and we for it, in turns, for as long as all ask again. Several
            // counters of another limiter may be one request's, which is not parted.
            if trips.is_empty() && much && lane.common.layout.is_none() {
                let rest = jobs.split_off(jobs.len() / 2);
                trips.push(lane.trip(&wire, mem::replace(&mut jobs, rest)));
            }
            if !jobs.is_empty() {
                trips.push(lane.trip(&wire, jobs));
            }
        }
        tokio::select! {
            biased;
            Some(returned) = trips.next() => {
                if let Err(trouble) = returned {
                    return finish_others(lane, trips, trouble).await;
                }
                *good = true;
                // Those who have just been answered may be about to ask again.
                tokio::task::yield_now().await;
            }
            () = lane.wake.notified(), if trips.len() < TRIPS => {}
            () = link.gone(), if trips.is_empty() => {
                return Trouble::Lost("the server hung up".to_owned());
            }
        }
    }
    let trouble = Trouble::Lost(lane.trouble());
    finish_others(lane, trips, trouble).await
}

/// Lets no more requests in, and waits for the trips that are still under way: each has its deadline.
async fn finish_others(
    lane: &Lane,
    mut trips: FuturesUnordered<impl Future<Output = Result<(), Trouble>>>,
    trouble: Trouble,
) -> Trouble {
    lane.close(match &trouble {
        Trouble::Late => TOO_SLOW,
        Trouble::Lost(reason) => reason,
    });
    while trips.next().await.is_some() {}
    trouble
}

/// Waits until the server answers within the deadline. `Err`: the connection is of no more use, and why.
async fn recovered(lane: &Lane, link: &mut Link) -> Result<(), String> {
    // A connection's first answer may come late for reasons of its own.
    let mut first = true;
    while !lane.is_over() {
        match timeout(GIVE_UP, link.ping()).await {
            Ok(Ok(took)) if took <= lane.common.deadline => return Ok(()),
            Ok(Ok(_)) if first => {}
            Ok(Ok(took)) => {
                let deadline = lane.common.deadline;
                lane.close(&format!("the server takes {took:.0?} to answer, above {deadline:?}"));
                lane.pause(LATE_RETRY).await;
            }
            Ok(Err(error)) => return Err(error.to_string()),
            Err(_) => return Err(format!("the server has not answered for {GIVE_UP:?}")),
        }
        first = false;
    }
    Err(lane.trouble())
}
