//! A worker sends the commands for one server.
//!
//! Requests queue up while round trips are in flight, and leave together when one returns: batches form by themselves
//! under load, and an idle worker sends at once. One task runs each worker. It is also the circuit breaker: it closes
//! the worker if the server is lost or slow. A closed worker rejects requests within microseconds. The task opens it
//! again when the server answers within the deadline.

mod run;

use std::{
    collections::BTreeMap,
    fmt::Display,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use pacegate::StoreError;
use parking_lot::Mutex;
use redis::{Pipeline, RedisError};
use tokio::{
    sync::Notify,
    time::{Instant, sleep, sleep_until, timeout, timeout_at},
};

use run::{CloseOnDrop, PING_TIMEOUT, run};

use crate::{
    batch::{Batch, PendingRequest},
    cell::Names,
    cluster::{self, Cluster},
    command::{Command, Disposition, Payload, Redirect},
    deny_cache::DenyCache,
    environment::Environment,
    layout::{self, CounterRequest},
    link::Wire,
    resolver::Resolver,
    settlement::{self, Settlement},
    stats::Totals,
    time::{Time, TimeEstimate},
    wire::{MAX_REPEATS, ScriptParams},
};

/// State that all workers of a store share.
#[derive(Debug)]
pub(crate) struct Common {
    pub(crate) names: Names,
    pub(crate) deadline: Duration,
    pub(crate) time: Time,
    pub(crate) environment: Arc<dyn Environment>,
    pub(crate) once: Duration,
    pub(crate) deny_cache: DenyCache,
    pub(crate) totals: Totals,
    /// Present if the keys are those of another limiter.
    pub(crate) layout: Option<Arc<layout::LayoutState>>,
}

/// Sends the commands for one server.
#[derive(Debug)]
pub(crate) struct NodeWorker {
    pub(crate) common: Arc<Common>,
    resolver: Resolver,
    queue: Mutex<Queue>,
    /// Wakes the task.
    wake: Notify,
    /// Whether requests are accepted. Written under the lock of the queue only.
    open: AtomicBool,
    /// Round trip time of the last reply, in microseconds.
    latency: AtomicU64,
    server_time: TimeEstimate,
    /// The reason why it is, or was last, closed.
    reason: Mutex<String>,
    /// The cluster of the server, if any.
    cluster: Weak<Cluster>,
}

#[derive(Debug, Default)]
struct Queue {
    requests: Vec<PendingRequest>,
    counters: Vec<CounterRequest>,
    settlements: Vec<Settlement>,
    /// Updates, and commands that another worker forwarded.
    commands: Vec<Command>,
    /// The number of queued requests at which the task is woken.
    wake_at: usize,
    /// The worker has shut down.
    ended: bool,
    /// The server may have moved: stay closed until the task has resolved its address again.
    moved: bool,
}

/// Maximum number of queued requests.
const MAX_QUEUED: usize = 65_536;
/// Delay before a command for a migrating slot is sent again.
const RETRY_DELAY: Duration = Duration::from_millis(1);
const SLOT_MIGRATES: &str = "the slot is migrating to another server";

impl NodeWorker {
    pub(crate) fn new(
        common: Arc<Common>,
        resolver: Resolver,
        cluster: Weak<Cluster>,
    ) -> Arc<Self> {
        Arc::new(Self {
            server_time: TimeEstimate::new(common.environment.clone()),
            common,
            resolver,
            queue: Mutex::default(),
            wake: Notify::new(),
            open: AtomicBool::new(false),
            latency: AtomicU64::new(0),
            reason: Mutex::new("not connected yet".to_owned()),
            cluster,
        })
    }

    /// Starts the task, which ends with [`NodeWorker::shut_down`].
    pub(crate) fn start(self: &Arc<Self>) {
        tokio::spawn(run(CloseOnDrop(self.clone())));
    }

    pub(crate) fn is_open(&self) -> bool {
        self.open.load(Ordering::Acquire)
    }

    /// Returns the round trip time of the last reply.
    pub(crate) fn latency(&self) -> Duration {
        Duration::from_micros(self.latency.load(Ordering::Relaxed))
    }

    /// Returns the server's address and the reason why the worker is closed.
    pub(crate) fn error(&self) -> String {
        format!("{}: {}", self.resolver, self.reason())
    }

    /// Returns the reason why the worker is, or was last, closed, without the address.
    pub(crate) fn reason(&self) -> String {
        self.reason.lock().clone()
    }

    pub(crate) fn resolver(&self) -> &Resolver {
        &self.resolver
    }

    pub(crate) fn send(&self, request: PendingRequest) -> Result<(), StoreError> {
        self.push(|queue| queue.requests.push(request))
    }

    /// Queues requests for counters of another limiter. They are sent in this order in one round trip.
    pub(crate) fn send_counters(&self, requests: Vec<CounterRequest>) -> Result<(), StoreError> {
        self.push(|queue| queue.counters.extend(requests))
    }

    pub(crate) fn send_settlement(&self, settlement: Settlement) -> Result<(), StoreError> {
        self.push(|queue| queue.settlements.push(settlement))
    }

    /// Queues a command, or answers it with an error.
    pub(crate) fn send_command(&self, command: Command) {
        let mut command = Some(command);
        let pushed = self.push(|queue| queue.commands.extend(command.take()));
        if let (Err(error), Some(command)) = (pushed, command) {
            command.fail(&error);
        }
    }

    /// [`NodeWorker::send_command`] for a command that has waited for another server. Wakes the task, because the
    /// deadline of the command may be earlier than those of all queued requests.
    fn send_forwarded(&self, command: Command) {
        self.send_command(command);
        self.wake.notify_one();
    }

    fn push(&self, add: impl FnOnce(&mut Queue)) -> Result<(), StoreError> {
        let mut queue = self.queue.lock();
        if !self.is_open() {
            return Err(StoreError::Unavailable(self.error()));
        }
        if queue.len() >= MAX_QUEUED {
            let problem = format!("{}: {MAX_QUEUED} requests are queued", self.resolver);
            return Err(StoreError::Unavailable(problem));
        }
        let before = queue.len();
        add(&mut queue);
        let is_enough = (before + 1..=queue.len()).contains(&queue.wake_at);
        drop(queue);
        if is_enough {
            self.wake.notify_one();
        }
        Ok(())
    }

    /// Makes the task resolve the server's address again.
    pub(crate) fn relocate(&self, reason: &str) {
        self.queue.lock().moved = true;
        self.close(reason);
        self.wake.notify_one();
    }

    /// Closes the worker for good.
    pub(crate) fn shut_down(&self) {
        self.queue.lock().ended = true;
        self.close("the store, or its runtime, has shut down");
        self.wake.notify_one();
    }

    fn has_ended(&self) -> bool {
        self.queue.lock().ended
    }

    /// Returns whether the task has to give up its connection.
    fn is_interrupted(&self) -> bool {
        let queue = self.queue.lock();
        queue.ended || queue.moved
    }

    /// Accepts requests, unless it is interrupted.
    fn open(&self) {
        let queue = self.queue.lock();
        self.open.store(!queue.ended && !queue.moved, Ordering::Release);
    }

    /// Rejects all requests from now on, including the queued ones.
    fn close(&self, reason: impl Display) {
        *self.reason.lock() = reason.to_string();
        let mut queue = self.queue.lock();
        if self.open.swap(false, Ordering::AcqRel) {
            self.common.totals.closed.add(1);
        }
        let rejected = queue.take();
        drop(queue);
        let error = StoreError::Unavailable(self.error());
        self.commands(rejected).into_iter().for_each(|command| command.fail(&error));
        if let Some(cluster) = self.cluster.upgrade() {
            cluster.refresh_soon();
        }
    }

    fn params(&self) -> ScriptParams {
        let once = u64::try_from(self.common.once.as_millis()).unwrap_or(u64::MAX);
        let (now, slack) = self.common.time.script_time();
        let estimate = self.server_time.now();
        ScriptParams { now, estimate, slack, once, repeats: MAX_REPEATS, create: true }
    }

    /// Packs queued requests into commands, without cancelled ones.
    fn commands(&self, queue: Queue) -> Vec<Command> {
        let Queue { mut requests, counters, mut settlements, commands, .. } = queue;
        let mut commands: Vec<Command> =
            commands.into_iter().filter_map(Command::awaited).collect();
        settlements.retain(|settlement| settlement.responder.is_awaited());
        let settlements = settlement::pack(settlements, self.cluster.strong_count() > 0);
        let settlements = settlements.into_iter().map(Payload::Settlements);
        commands.extend(settlements.map(Command::new));
        requests.retain(|request| request.responder.is_awaited());
        let batches = self.batches(requests).into_iter();
        commands.extend(batches.map(|batch| Command::new(Payload::Charges(batch))));
        if let Some(state) = &self.common.layout {
            let batches = layout::pack(state, counters).into_iter();
            commands.extend(batches.map(|batch| Command::new(Payload::Counter(batch))));
        }
        commands
    }

    /// In a cluster, each batch has keys of one slot.
    fn batches(&self, requests: Vec<PendingRequest>) -> Vec<Batch> {
        if self.cluster.strong_count() == 0 {
            return Batch::pack(requests);
        }
        let mut slots: BTreeMap<u16, Vec<_>> = BTreeMap::new();
        for request in requests {
            slots.entry(request.charges[0].cell.slot()).or_default().push(request);
        }
        slots.into_values().flat_map(Batch::pack).collect()
    }

    /// Sends commands until all are answered or forwarded. On error the connection is no longer usable.
    async fn round_trip(
        self: &Arc<Self>,
        wire: &Wire,
        mut commands: Vec<Command>,
    ) -> Result<(), Failure> {
        while !commands.is_empty() {
            let sent = Instant::now();
            let pipeline = self.encode(wire, &commands);
            let replies = match self.replies(wire.run(&pipeline), sent, &mut commands).await {
                Some(Ok(replies)) => replies,
                Some(Err(error)) => {
                    let failure = Failure::Broken(error);
                    let interrupted =
                        StoreError::Interrupted(format!("{}: {failure}", self.resolver));
                    commands.into_iter().for_each(|command| command.fail(&interrupted));
                    return Err(failure);
                }
                None => return Err(Failure::Late),
            };
            self.latency.store(sent.elapsed().as_micros() as u64, Ordering::Relaxed);
            self.common.totals.trips.add(1);
            commands = self.finish(commands, replies, sent)?;
        }
        Ok(())
    }

    /// Waits for the replies until the deadline of the server. Requests that were queued before have an earlier
    /// deadline: those time out, and the others wait on.
    async fn replies<T>(
        &self,
        run: impl Future<Output = T>,
        sent: Instant,
        commands: &mut [Command],
    ) -> Option<T> {
        let mut run = std::pin::pin!(run);
        let deadline = self.common.deadline;
        loop {
            let since = commands.iter_mut().filter_map(Command::since).min().unwrap_or(sent);
            if let Ok(replies) = timeout_at(since.min(sent) + deadline, &mut run).await {
                return Some(replies);
            }
            let expired: usize = commands.iter_mut().map(|command| command.expire(deadline)).sum();
            self.common.totals.timed_out.add(expired as u64);
            if sent.elapsed() >= deadline {
                return None;
            }
        }
    }

    /// Times out queued requests when their deadline passes. Never completes.
    async fn expire_queued(&self) {
        let deadline = self.common.deadline;
        loop {
            // A request that arrives later has a later deadline. A forwarded command wakes the task, which calls this
            // again.
            let since = self.queue.lock().since().unwrap_or_else(Instant::now);
            sleep_until(since + deadline).await;
            let expired = self.queue.lock().expire(deadline);
            self.common.totals.timed_out.add(expired as u64);
        }
    }

    fn encode(&self, wire: &Wire, commands: &[Command]) -> Pipeline {
        let params = self.params();
        let mut pipeline = Pipeline::with_capacity(commands.len());
        for command in commands {
            if command.asking {
                pipeline.add_command(redis::cmd("ASKING"));
            }
            pipeline.add_command(command.encode(&self.common.names, &wire.scripts, params));
        }
        pipeline
    }

    /// Reads the replies. Returns the commands to send again.
    fn finish(
        self: &Arc<Self>,
        commands: Vec<Command>,
        replies: Vec<redis::Value>,
        sent: Instant,
    ) -> Result<Vec<Command>, Failure> {
        let trip = self.common.time.round_trip(sent, Instant::now());
        let mut replies = replies.into_iter();
        let (mut again, mut rejected) = (Vec::new(), None);
        for command in commands {
            if command.asking {
                replies.next();
            }
            let reply = replies.next().unwrap_or(redis::Value::Nil);
            let cache = &self.common.deny_cache;
            let (requests, cells) = command.size();
            match command.finish(reply, sent, |cell, state| cache.learn(cell, state, trip)) {
                Disposition::Done => self.common.totals.batched(requests, cells),
                Disposition::Retry(command) => {
                    if let Some(time) = command.server_time {
                        self.server_time.correct(time);
                    }
                    again.extend(command.awaited());
                }
                Disposition::Renamed(command) => {
                    again.extend(command.awaited().and_then(|command| self.forward(command)));
                }
                Disposition::Redirect(command, redirect) => {
                    if let Some(command) = command.awaited() {
                        self.redirect(command, &redirect);
                    }
                }
                Disposition::Reconnect(command, reason) => {
                    again.push(command);
                    rejected = Some(reason);
                }
            }
        }
        match rejected {
            Some(reason) => {
                let error = StoreError::Unavailable(format!("{}: {reason}", self.resolver));
                again.into_iter().for_each(|command| command.fail(&error));
                Err(Failure::Rejected(reason))
            }
            None => Ok(again),
        }
    }

    /// Sends a command whose key has changed to the server of the key; returns it if that is this one.
    fn forward(&self, mut command: Command) -> Option<Command> {
        let Some(cluster) = self.cluster.upgrade() else { return Some(command) };
        if self.is_late(&mut command) {
            command.fail(&StoreError::TimedOut);
            return None;
        }
        match command.slot().and_then(|slot| cluster.worker_of(slot)) {
            Some(worker) if std::ptr::eq(&*worker, self) => return Some(command),
            Some(worker) => worker.send_forwarded(command),
            None => command.fail(&cluster::no_server()),
        }
        None
    }

    /// Sends a command to the server that a cluster redirects to.
    fn redirect(self: &Arc<Self>, mut command: Command, redirect: &Redirect) {
        self.common.totals.redirects.add(1);
        let Some(cluster) = self.cluster.upgrade() else {
            let reason = "the server is part of a cluster: use redis+cluster:// in its address";
            return command.fail(&StoreError::Unavailable(format!("{}: {reason}", self.resolver)));
        };
        if self.is_late(&mut command) {
            return command.fail(&StoreError::Unavailable(SLOT_MIGRATES.to_owned()));
        }
        let (address, moved) = match redirect {
            Redirect::Moved(address) => (address, true),
            Redirect::Ask(address) => (address, false),
            Redirect::TryAgain => return self.clone().try_again(command),
        };
        let from = self.resolver.address();
        let Some(address) = from.and_then(|from| cluster::parse(address, from)) else {
            return command.fail(&cluster::no_server());
        };
        command.asking = !moved;
        let worker = match moved {
            true => cluster.moved(command.slot(), &address),
            false => cluster.worker(&address),
        };
        if worker.is_open() {
            worker.send_forwarded(command);
        } else {
            tokio::spawn(worker.send_later(command));
        }
    }

    /// Handles a slot that has migrated partly: single keys can be charged, several together only later.
    fn try_again(self: Arc<Self>, mut command: Command) {
        command.asking = false;
        let cluster = self.cluster.upgrade();
        let owner = command.slot().and_then(|slot| cluster?.worker_of(slot)).unwrap_or(self);
        let parts = command.split();
        let is_whole = parts.len() == 1;
        for part in parts {
            match is_whole {
                true => drop(tokio::spawn(owner.clone().send_later(part))),
                false => owner.send_forwarded(part),
            }
        }
    }

    /// Sends a command after a delay, once the worker is open.
    async fn send_later(self: Arc<Self>, mut command: Command) {
        sleep(RETRY_DELAY).await;
        while !self.is_open() && !self.is_late(&mut command) {
            sleep(RETRY_DELAY).await;
        }
        if self.is_late(&mut command) {
            return command.fail(&StoreError::Unavailable(SLOT_MIGRATES.to_owned()));
        }
        self.send_forwarded(command);
    }

    /// Returns whether all requests are cancelled, or too old for another attempt.
    fn is_late(&self, command: &mut Command) -> bool {
        let time = self.common.deadline.saturating_sub(RETRY_DELAY);
        command.since().is_none_or(|since| since.elapsed() > time)
    }

    /// Waits, unless it is interrupted before.
    async fn pause(&self, time: Duration) {
        let interrupted = async {
            while !self.is_interrupted() {
                self.wake.notified().await;
            }
        };
        drop(timeout(time, interrupted).await);
    }
}

impl Queue {
    fn len(&self) -> usize {
        self.requests.len() + self.counters.len() + self.settlements.len() + self.commands.len()
    }

    /// Returns the start of the oldest request whose caller is still waiting.
    fn since(&mut self) -> Option<Instant> {
        // Requests are in order of arrival. Commands may have waited for another server before.
        let request = self.requests.iter().find_map(|request| request.responder.since());
        let counter = self.counters.iter().find_map(|request| request.responder.since());
        let settlement = self.settlements.iter().find_map(|request| request.responder.since());
        let command = self.commands.iter_mut().filter_map(Command::since).min();
        [request, counter, settlement, command].into_iter().flatten().min()
    }

    /// Times out requests past the deadline, and returns their number.
    fn expire(&mut self, deadline: Duration) -> usize {
        let requests = self.requests.iter_mut().map(|request| &mut request.responder);
        let counters = self.counters.iter_mut().map(|request| &mut request.responder);
        let settlements = self.settlements.iter_mut().map(|request| &mut request.responder);
        let responders = requests.chain(counters).chain(settlements);
        let expired: usize =
            responders.map(|responder| usize::from(responder.expire(deadline))).sum();
        let commands = self.commands.iter_mut().map(|command| command.expire(deadline));
        expired + commands.sum::<usize>()
    }

    /// Removes and returns everything that is queued.
    fn take(&mut self) -> Self {
        let Self { ended, moved, .. } = *self;
        // About as many requests will follow.
        let requests = Vec::with_capacity(self.requests.len());
        std::mem::replace(self, Self { ended, moved, requests, ..Self::default() })
    }
}

/// The reason why a connection cannot be used.
#[derive(Debug, thiserror::Error)]
enum Failure {
    #[error("cannot connect: {0}")]
    Connect(RedisError),
    #[error(transparent)]
    Ping(RedisError),
    #[error("no answer to a ping within {PING_TIMEOUT:?}")]
    PingTimeout,
    #[error("the connection broke before the reply: {0}")]
    Broken(RedisError),
    #[error("the server closed the connection")]
    Closed,
    /// An error reply that requires a new connection, for example because the server changed its role.
    #[error("{0}")]
    Rejected(String),
    /// The worker was closed meanwhile, for this reason.
    #[error("{0}")]
    Interrupted(String),
    /// No reply within the deadline. It may still come.
    #[error("the server is too slow to answer within the deadline")]
    Late,
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;
    use pacegate::{Charge, Limit};

    use super::*;
    use crate::{
        cell::CellCharges,
        command::UpdateCommand,
        environment::OperatingSystem,
        link::{Access, Address},
        responder::Responder,
        wire::Action,
    };

    fn worker(deadline: Duration) -> Arc<NodeWorker> {
        let environment: Arc<dyn Environment> = Arc::new(OperatingSystem);
        let time = Time::Server(environment.clone());
        let common = Common {
            names: Names::new("", b""),
            deadline,
            deny_cache: DenyCache::new(0, deadline, false, time.clone()),
            time,
            environment: environment.clone(),
            once: deadline,
            totals: Totals::default(),
            layout: None,
        };
        let (user, password, tls) = (None, None, None);
        let access = Access { user, password, database: 0, tls, environment };
        let resolver = Resolver::Fixed(Address::Tcp("node".to_owned(), 6_379), access);
        NodeWorker::new(Arc::new(common), resolver, Weak::new())
    }

    /// Otherwise it would time out only after the round trips in flight, because the task computed the next deadline
    /// before.
    #[test]
    fn a_forwarded_command_wakes_the_task() {
        let worker = worker(Duration::from_millis(100));
        worker.open();
        let charge = Charge::new("api".parse().unwrap(), "key", Limit::per_minute(9));
        let send = |send: fn(&NodeWorker, Command)| {
            // As many round trips as possible are in flight.
            worker.queue.lock().wake_at = usize::MAX;
            let charge = worker.common.names.cell_charge(&charge).unwrap();
            let (responder, _reply) = Responder::new();
            let update = UpdateCommand { charge, action: Action::Refund, responder };
            send(&worker, Command::new(Payload::Update(update)));
            worker.wake.notified().now_or_never().is_some()
        };
        assert!(!send(NodeWorker::send_command), "a new request has a later deadline");
        assert!(send(NodeWorker::send_forwarded));
    }

    /// Otherwise their callers would wait for as long as the round trips before them take.
    #[test]
    fn queued_settlements_time_out() {
        let names = Names::new("", b"");
        let charge = Charge::new("api".parse().unwrap(), "key", Limit::per_minute(9));
        let charges: CellCharges = [names.cell_charge(&charge).unwrap()].into_iter().collect();
        let key = names.reservation(1, &charges);
        let (responder, mut reply) = Responder::new();
        let settlements = vec![Settlement { key, charges, actual: 1, responder }];
        let mut queue = Queue { settlements, ..Queue::default() };
        assert!(queue.since().is_some());
        assert_eq!(queue.expire(Duration::ZERO), 1);
        assert_eq!(reply.try_recv().unwrap().unwrap_err(), StoreError::TimedOut);
        assert!(queue.since().is_none());
    }
}
