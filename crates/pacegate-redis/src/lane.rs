//! Lanes: the way to one server.
//!
//! Requests line up while trips to the server are under way and leave together when one is back: batches form by
//! themselves under load, and an idle lane sends at once. One task drives each lane. It also is the circuit breaker:
//! when the server is lost or late it closes the lane, and from then on requests are refused in microseconds; only the
//! driver goes on asking, and opens the lane again when the server answers within the deadline.

mod drive;

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use pacegate::StoreError;
use parking_lot::Mutex;
use redis::Pipeline;
use tokio::{
    sync::Notify,
    time::{Instant, sleep, timeout, timeout_at},
};

use drive::{Driver, drive};

use crate::{
    batch::{Ask, Batch},
    cell::Names,
    cluster::{self, Cluster},
    denials::Denials,
    job::{Amend, Job, Next, Redirect, Work},
    layout::{self, Note},
    link::Wire,
    resolver::Resolver,
    stats::Counters,
    time::{Time, Trip},
    wire::{MAX_REPEATS, Settings},
};

/// What all lanes of a store share.
#[derive(Debug)]
pub(crate) struct Common {
    pub(crate) names: Names,
    pub(crate) deadline: Duration,
    pub(crate) time: Time,
    pub(crate) once: Duration,
    pub(crate) denials: Denials,
    pub(crate) counters: Counters,
    /// Where keys are those of another limiter.
    pub(crate) layout: Option<Arc<layout::Counters>>,
}

/// The way to one server.
#[derive(Debug)]
pub(crate) struct Lane {
    pub(crate) common: Arc<Common>,
    resolver: Resolver,
    queue: Mutex<Queue>,
    /// Something happened that the driver should look at.
    wake: Notify,
    /// Whether requests are taken. Changed under the lock of the queue only.
    open: AtomicBool,
    /// Round trip of the last answer, in microseconds.
    round_trip: AtomicU64,
    /// Why it is closed.
    trouble: Mutex<String>,
    /// The cluster that the server is part of.
    cluster: std::sync::Weak<Cluster>,
}

#[derive(Debug, Default)]
struct Queue {
    asks: Vec<Ask>,
    amends: Vec<Amend>,
    notes: Vec<Note>,
    /// Jobs that were sent here by another lane.
    jobs: Vec<Job>,
    /// It does not open any more.
    ended: bool,
    /// The server may be elsewhere: it does not open before the driver has looked.
    moved: bool,
}

/// As many requests may wait for one server.
const MAX_WAITING: usize = 65_536;
/// What cannot be sent on yet is looked at again after this.
const SOON: Duration = Duration::from_millis(1);
const ON_ITS_WAY: &str = "the slot is on its way to another server";

impl Lane {
    pub(crate) fn new(
        common: Arc<Common>,
        resolver: Resolver,
        cluster: std::sync::Weak<Cluster>,
    ) -> Arc<Self> {
        Arc::new(Self {
            common,
            resolver,
            queue: Mutex::default(),
            wake: Notify::new(),
            open: AtomicBool::new(false),
            round_trip: AtomicU64::new(0),
            trouble: Mutex::new("not connected yet".to_owned()),
            cluster,
        })
    }

    /// Starts the task that drives the lane. It ends with [`Lane::end`].
    pub(crate) fn start(self: &Arc<Self>) {
        tokio::spawn(drive(Driver(self.clone())));
    }

    pub(crate) fn is_open(&self) -> bool {
        self.open.load(Ordering::Acquire)
    }

    pub(crate) fn round_trip(&self) -> Duration {
        Duration::from_micros(self.round_trip.load(Ordering::Relaxed))
    }

    pub(crate) fn trouble(&self) -> String {
        self.trouble.lock().clone()
    }

    pub(crate) fn resolver(&self) -> &Resolver {
        &self.resolver
    }

    pub(crate) fn ask(&self, ask: Ask) -> Result<(), StoreError> {
        self.push(|queue| queue.asks.push(ask))
    }

    pub(crate) fn amend(&self, amend: Amend) -> Result<(), StoreError> {
        self.push(|queue| queue.amends.push(amend))
    }

    /// Requests for counters of another limiter, to travel in this order in one trip.
    pub(crate) fn note(&self, notes: Vec<Note>) -> Result<(), StoreError> {
        self.push(|queue| queue.notes.extend(notes))
    }

    fn send(&self, job: Job) {
        let mut job = Some(job);
        if let Err(error) = self.push(|queue| queue.jobs.extend(job.take())) {
            let problem = error.to_string();
            if let Some(job) = job {
                job.fail(|| StoreError::Unavailable(problem.clone()));
            }
        }
    }

    fn push(&self, add: impl FnOnce(&mut Queue)) -> Result<(), StoreError> {
        let mut queue = self.queue.lock();
        if !self.is_open() {
            return Err(StoreError::Unavailable(self.trouble()));
        }
        if queue.asks.len() + queue.amends.len() + queue.notes.len() >= MAX_WAITING {
            return Err(StoreError::Unavailable(format!("{MAX_WAITING} requests wait already")));
        }
        let was_empty = queue.is_empty();
        add(&mut queue);
        drop(queue);
        if was_empty {
            self.wake.notify_one();
        }
        Ok(())
    }

    /// Lets the driver look where the server is now.
    pub(crate) fn look_again(&self, reason: &str) {
        self.queue.lock().moved = true;
        self.close(reason);
        self.wake.notify_one();
    }

    /// Closes it for good.
    pub(crate) fn end(&self) {
        self.queue.lock().ended = true;
        self.close("the store, or its runtime, has ended");
        self.wake.notify_one();
    }

    fn has_ended(&self) -> bool {
        self.queue.lock().ended
    }

    /// Whether the driver has to begin anew.
    fn is_over(&self) -> bool {
        let queue = self.queue.lock();
        queue.ended || queue.moved
    }

    /// Takes requests from now on, unless it is over.
    fn open(&self) -> bool {
        let queue = self.queue.lock();
        let may = !queue.ended && !queue.moved;
        self.open.store(may, Ordering::Release);
        may
    }

    /// Refuses everything from now on, and everything that waits.
    fn close(&self, reason: &str) {
        reason.clone_into(&mut self.trouble.lock());
        let mut queue = self.queue.lock();
        if self.open.swap(false, Ordering::AcqRel) {
            self.common.counters.closed.add(1);
        }
        let rest = queue.take();
        drop(queue);
        self.refuse(rest);
        if let Some(cluster) = self.cluster.upgrade() {
            cluster.refresh_soon();
        }
    }

    fn refuse(&self, rest: Queue) {
        let trouble = self.trouble();
        let error = || StoreError::Unavailable(trouble.clone());
        for mut ask in rest.asks {
            ask.waiter.answer(Err(error()));
        }
        for mut amend in rest.amends {
            amend.waiter.answer(Err(error()));
        }
        for mut note in rest.notes {
            note.waiter.answer(Err(error()));
        }
        rest.jobs.into_iter().for_each(|job| job.fail(error));
    }

    fn settings(&self) -> Settings {
        let once = u64::try_from(self.common.once.as_millis()).unwrap_or(u64::MAX);
        let (now, slack) = self.common.time.given();
        Settings { now, slack, once, repeats: MAX_REPEATS, create: true }
    }

    /// Everything that waits, as jobs.
    fn take(&self) -> Vec<Job> {
        let waiting = self.queue.lock().take();
        let mut jobs: Vec<Job> = waiting.jobs.into_iter().filter_map(Job::awaited).collect();
        jobs.extend(self.batches(waiting.asks).into_iter().map(|b| Job::new(Work::Batch(b))));
        jobs.extend(waiting.amends.into_iter().map(|amend| Job::new(Work::Amend(amend))));
        if let Some(counters) = &self.common.layout {
            let tallies = layout::gather(counters, waiting.notes);
            jobs.extend(tallies.into_iter().map(|tally| Job::new(Work::Tally(tally))));
        }
        jobs
    }

    /// In a cluster, what is in one slot travels together; otherwise all.
    fn batches(&self, mut asks: Vec<Ask>) -> Vec<Batch> {
        // Nobody waits for these any more, and nothing was sent.
        asks.retain(Ask::is_awaited);
        if self.cluster.strong_count() == 0 {
            return Batch::of(asks);
        }
        let mut slots: HashMap<u16, Vec<Ask>, foldhash::fast::RandomState> = HashMap::default();
        for ask in asks {
            slots.entry(ask.wants[0].cell.slot()).or_default().push(ask);
        }
        slots.into_values().flat_map(Batch::of).collect()
    }

    /// Sends jobs until all are answered or sent elsewhere. `Err`: the connection is of no more use.
    async fn trip(self: &Arc<Self>, wire: &Wire, mut jobs: Vec<Job>) -> Result<(), Trouble> {
        while !jobs.is_empty() {
            let sent = Instant::now();
            let commands = self.commands(wire, &jobs);
            let replies = self.replies(wire.run(&commands), sent, &mut jobs).await;
            let replies = match replies {
                Some(Ok(replies)) => replies,
                Some(Err(error)) => {
                    let reason = format!("the connection broke before the answer came: {error}");
                    let interrupted = || StoreError::Interrupted(reason.clone());
                    jobs.into_iter().for_each(|job| job.fail(interrupted));
                    return Err(Trouble::Lost(format!("the connection broke: {error}")));
                }
                None => return Err(Trouble::Late),
            };
            let took = sent.elapsed();
            self.round_trip.store(took.as_micros() as u64, Ordering::Relaxed);
            self.common.counters.trips.add(1);
            jobs = self.finish(jobs, replies, sent)?;
        }
        Ok(())
    }

    /// What the server answers, if it does within the deadline. Those who have waited before for a trip to end may be
    /// out of time earlier: that is no fault of the server, and the others wait on.
    async fn replies<T>(
        &self,
        run: impl Future<Output = T>,
        sent: Instant,
        jobs: &mut [Job],
    ) -> Option<T> {
        let mut run = std::pin::pin!(run);
        let deadline = self.common.deadline;
        loop {
            let since = jobs.iter().filter_map(Job::since).min().unwrap_or(sent);
            if let Ok(replies) = timeout_at(since.min(sent) + deadline, &mut run).await {
                return Some(replies);
            }
            let expired: usize = jobs.iter_mut().map(|job| job.expire(deadline)).sum();
            self.common.counters.timed_out.add(expired as u64);
            if sent.elapsed() >= deadline {
                return None;
            }
        }
    }

    fn commands(&self, wire: &Wire, jobs: &[Job]) -> Pipeline {
        let settings = self.settings();
        let mut commands = Pipeline::with_capacity(jobs.len());
        for job in jobs {
            if job.asking {
                commands.add_command(redis::cmd("ASKING"));
            }
            commands.add_command(job.command(&self.common.names, &wire.scripts, settings));
        }
        commands
    }

    /// Reads the replies. What did not run is returned, or sent elsewhere.
    fn finish(
        self: &Arc<Self>,
        jobs: Vec<Job>,
        replies: Vec<redis::Value>,
        sent: Instant,
    ) -> Result<Vec<Job>, Trouble> {
        let trip = Trip::new(sent, Instant::now());
        let mut replies = replies.into_iter();
        let (mut again, mut refused) = (Vec::new(), None);
        for job in jobs {
            if job.asking {
                replies.next();
            }
            let reply = replies.next().unwrap_or(redis::Value::Nil);
            let denials = &self.common.denials;
            let learn = |mark, known| denials.learn(mark, known, trip);
            let (requests, cells) = job.size();
            match job.finish(reply, sent, learn) {
                Next::Done => self.common.counters.batched(requests, cells),
                Next::Again(job) => again.extend(job.awaited()),
                Next::Renamed(job) => again.extend(job.awaited().and_then(|job| self.pass_on(job))),
                Next::Elsewhere(job, redirect) => {
                    if let Some(job) = job.awaited() {
                        self.redirect(job, redirect);
                    }
                }
                Next::Refused(job, reason) => {
                    job.fail(|| StoreError::Unavailable(reason.clone()));
                    refused = Some(reason);
                }
            }
        }
        match refused {
            Some(reason) => {
                again
                    .into_iter()
                    .for_each(|job| job.fail(|| StoreError::Unavailable(reason.clone())));
                Err(Trouble::Lost(reason))
            }
            None => Ok(again),
        }
    }

    /// Sends a job whose key has changed to the server that has the key; gives it back if that is this one.
    fn pass_on(&self, job: Job) -> Option<Job> {
        let Some(cluster) = self.cluster.upgrade() else { return Some(job) };
        if self.is_late(&job) {
            job.fail(|| StoreError::TimedOut);
            return None;
        }
        match job.slot().and_then(|slot| cluster.of_slot(slot)) {
            Some(lane) if std::ptr::eq(&*lane, self) => return Some(job),
            Some(lane) => lane.send(job),
            None => job.fail(|| StoreError::Unavailable(cluster::NO_SERVER.to_owned())),
        }
        None
    }

    /// Sends a job on to the server that a cluster says has its slot.
    fn redirect(self: &Arc<Self>, mut job: Job, redirect: Redirect) {
        self.common.counters.redirects.add(1);
        let Some(cluster) = self.cluster.upgrade() else {
            let reason = "the server is part of a cluster: write redis+cluster:// in its address";
            return job.fail(|| StoreError::Unavailable(reason.to_owned()));
        };
        if self.is_late(&job) {
            return job.fail(|| StoreError::Unavailable(ON_ITS_WAY.to_owned()));
        }
        let (address, for_good) = match &redirect {
            Redirect::Moved(address) => (address, true),
            Redirect::Ask(address) => (address, false),
            Redirect::TryAgain => return self.clone().try_again(job),
        };
        let from = self.resolver.address();
        let Some(address) = from.and_then(|from| cluster::parse(address, from)) else {
            return job.fail(|| StoreError::Unavailable(cluster::NO_SERVER.to_owned()));
        };
        job.asking = !for_good;
        let lane = match for_good {
            true => cluster.moved(job.slot(), &address),
            false => cluster.lane(&address),
        };
        if lane.is_open() {
            lane.send(job);
        } else {
            tokio::spawn(lane.send_soon(job));
        }
    }

    /// Some keys of a slot that moves are here and some are not. Requests for one key can be served nevertheless, if
    /// they come by themselves; others have to wait.
    fn try_again(self: Arc<Self>, mut job: Job) {
        job.asking = false;
        let cluster = self.cluster.upgrade();
        let owner = job.slot().and_then(|slot| cluster?.of_slot(slot)).unwrap_or(self);
        let parts = job.split();
        let whole = parts.len() == 1;
        for part in parts {
            match whole {
                true => drop(tokio::spawn(owner.clone().send_soon(part))),
                false => owner.send(part),
            }
        }
    }

    /// Sends a job after a while, when the lane is open.
    async fn send_soon(self: Arc<Self>, job: Job) {
        sleep(SOON).await;
        while !self.is_open() && !self.is_late(&job) {
            sleep(SOON).await;
        }
        if self.is_late(&job) {
            return job.fail(|| StoreError::Unavailable(ON_ITS_WAY.to_owned()));
        }
        self.send(job);
    }

    /// Whether nobody waits for a job any more, or not for as long as it takes.
    fn is_late(&self, job: &Job) -> bool {
        let time = self.common.deadline.saturating_sub(SOON);
        job.since().is_none_or(|since| since.elapsed() > time)
    }

    /// Waits, unless it is over before.
    async fn pause(&self, time: Duration) {
        let over = async {
            while !self.is_over() {
                self.wake.notified().await;
            }
        };
        drop(timeout(time, over).await);
    }
}

impl Queue {
    fn is_empty(&self) -> bool {
        self.asks.is_empty()
            && self.amends.is_empty()
            && self.notes.is_empty()
            && self.jobs.is_empty()
    }

    /// All that waits.
    fn take(&mut self) -> Self {
        let Self { ended, moved, .. } = *self;
        // As many will probably come again.
        let asks = Vec::with_capacity(self.asks.len());
        std::mem::replace(self, Self { ended, moved, asks, ..Self::default() })
    }
}

/// Why a trip came to nothing.
#[derive(Debug)]
enum Trouble {
    /// The connection is gone, or the server is not what it was.
    Lost(String),
    /// No answer within the deadline. It may come yet.
    Late,
}
