//! The task of a worker: connects, sends queued requests, and opens and closes the worker.

use std::{sync::Arc, time::Duration};

use futures_util::stream::{FuturesUnordered, StreamExt};
use tokio::time::{Instant, timeout};

use super::{Failure, NodeWorker, Queue};
use crate::{command::Command, link::Link};

/// Delays between attempts to connect, doubled after each failure. A worker has to be open two seconds after its server
/// is back, even if the first attempt then takes as long as an attempt may.
const FIRST_RETRY: Duration = Duration::from_millis(20);
const LAST_RETRY: Duration = Duration::from_millis(500);
/// Interval of pings to a server that is too slow.
const SLOW_RETRY: Duration = Duration::from_millis(200);
/// Maximum number of round trips in flight: the server works on one while the worker prepares or reads the other.
const MAX_TRIPS: usize = 2;
/// Number of cells above which a queue is split into two round trips.
const SPLIT_CELLS: usize = 64;
/// Number of queued requests that start a second round trip in any case.
const MAX_WAITING: usize = 32;
/// Maximum number of yields to the callers of a finished round trip.
const MAX_YIELDS: usize = 4;
/// Time without an answer after which the worker reconnects.
pub(super) const PING_TIMEOUT: Duration = Duration::from_millis(1_000);

/// Shuts the worker down when its task ends for any reason, so that no request waits for it.
pub(super) struct CloseOnDrop(pub(super) Arc<NodeWorker>);

impl Drop for CloseOnDrop {
    fn drop(&mut self) {
        self.0.shut_down();
    }
}

/// Connects and serves requests until the worker shuts down.
pub(super) async fn run(guard: CloseOnDrop) {
    let worker = &guard.0;
    let mut wait = FIRST_RETRY;
    while !worker.has_ended() {
        worker.queue.lock().moved = false;
        match connect_and_serve(worker).await {
            Ok(()) => wait = FIRST_RETRY,
            Err(failure) => {
                worker.close(failure);
                // With jitter, so that not all clients reconnect at once.
                let random = worker.common.environment.random();
                worker.pause(wait / 2 + crate::time::jitter(wait / 2, random)).await;
                wait = (wait * 2).min(LAST_RETRY);
            }
        }
    }
}

/// Serves requests over a new connection until it breaks. Returns an error if it was never usable.
async fn connect_and_serve(worker: &Arc<NodeWorker>) -> Result<(), Failure> {
    let mut link = worker.resolver.connect().await.map_err(Failure::Connect)?;
    let (since, mut answered) = (Instant::now(), false);
    let failure = loop {
        if let Err(failure) = wait_until_fast(worker, &mut link).await {
            break failure;
        }
        match serve(worker, &mut link, &mut answered).await {
            Failure::Late => worker.close(Failure::Late),
            failure => break failure,
        }
    };
    worker.close(&failure);
    // Some servers disconnect idle clients.
    if answered || since.elapsed() > PING_TIMEOUT { Ok(()) } else { Err(failure) }
}

/// Serves requests until a failure. Sets `answered` after the first reply.
async fn serve(worker: &Arc<NodeWorker>, link: &mut Link, answered: &mut bool) -> Failure {
    worker.open();
    let wire = link.wire().clone();
    let mut trips = FuturesUnordered::new();
    let mut in_flight = 0;
    while worker.is_open() {
        // A second round trip is worth its cost if it carries about as many requests as the first.
        let needed = match trips.len() {
            0 => 1,
            1..MAX_TRIPS => in_flight.clamp(1, MAX_WAITING),
            _ => usize::MAX,
        };
        if let Some(queue) = worker.take_queued(needed) {
            let commands = worker.commands(queue);
            for commands in split(worker, commands, trips.is_empty()) {
                let requests: usize = commands.iter().map(|command| command.size().0).sum();
                in_flight += requests;
                let trip = worker.round_trip(&wire, commands);
                trips.push(async move { (requests, trip.await) });
            }
            continue;
        }
        tokio::select! {
            biased;
            Some((requests, finished)) = trips.next() => {
                if let Err(failure) = finished {
                    return finish_others(worker, trips, failure).await;
                }
                *answered = true;
                in_flight -= requests;
                worker.yield_to_callers(requests).await;
            }
            () = worker.wake.notified() => {}
            // A round trip may take longer than the deadline, if a command has to be sent again.
            () = worker.expire_queued(), if !trips.is_empty() => {}
            () = link.gone(), if trips.is_empty() => {
                return Failure::Closed;
            }
        }
    }
    finish_others(worker, trips, Failure::Interrupted(worker.reason())).await
}

/// Divides the commands of a queue into round trips: two if they are the first in flight, and large, because server
/// and worker would otherwise wait for each other in turns. Counters of another limiter are not split, since they may
/// belong to one request.
fn split(worker: &NodeWorker, mut commands: Vec<Command>, is_first: bool) -> Vec<Vec<Command>> {
    let cells: usize = commands.iter().map(|command| command.size().1).sum();
    let is_large = commands.len() > 1 && cells > SPLIT_CELLS;
    match commands.len() {
        0 => Vec::new(),
        len if is_first && is_large && worker.common.layout.is_none() => {
            let rest = commands.split_off(len / 2);
            vec![commands, rest]
        }
        _ => vec![commands],
    }
}

impl NodeWorker {
    /// Returns everything that is queued, if that is at least `needed` requests. Otherwise the task is woken as soon as
    /// it is.
    fn take_queued(&self, needed: usize) -> Option<Queue> {
        let mut queue = self.queue.lock();
        queue.wake_at = needed;
        (queue.len() >= needed).then(|| queue.take())
    }

    /// Lets the callers that were just answered queue their next requests, so that these leave together. Callers in
    /// other threads may need longer, or may have no further request.
    async fn yield_to_callers(&self, answered: usize) {
        for _ in 0..MAX_YIELDS {
            tokio::task::yield_now().await;
            if self.queue.lock().len() >= answered {
                return;
            }
        }
    }
}

/// Closes the worker and waits for the round trips in flight, each of which has a deadline.
async fn finish_others(
    worker: &NodeWorker,
    mut trips: FuturesUnordered<impl Future<Output = (usize, Result<(), Failure>)>>,
    failure: Failure,
) -> Failure {
    worker.close(&failure);
    while trips.next().await.is_some() {}
    failure
}

/// Waits until the server answers within the deadline. Returns an error if the connection is no longer usable.
async fn wait_until_fast(worker: &NodeWorker, link: &mut Link) -> Result<(), Failure> {
    // The first reply of a connection may be late without a reason to worry.
    let mut is_first = true;
    while !worker.is_interrupted() {
        match timeout(PING_TIMEOUT, link.ping()).await {
            Ok(Ok(took)) if took <= worker.common.deadline => return Ok(()),
            Ok(Ok(_)) if is_first => {}
            Ok(Ok(took)) => {
                let deadline = worker.common.deadline;
                worker.close(format_args!("the server answers in {took:.0?}, above {deadline:?}"));
                worker.pause(SLOW_RETRY).await;
            }
            Ok(Err(error)) => return Err(Failure::Ping(error)),
            Err(_) => return Err(Failure::PingTimeout),
        }
        is_first = false;
    }
    Err(Failure::Interrupted(worker.reason()))
}
