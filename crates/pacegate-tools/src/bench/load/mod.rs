//! Sends requests to a target, as fast as it responds (closed loop) or at a fixed rate (open loop), and
//! records the outcomes.

mod connection;
mod record;
mod schedule;
mod worker;

use std::{
    io,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
        mpsc::{self, RecvTimeoutError},
    },
    thread,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use tokio::time::Instant;

use super::{
    cpu,
    keys::{Costs, Draw, KeyDistribution},
    target::Target,
};
pub(crate) use record::Record;
pub use schedule::Rate;
use worker::Worker;

/// The parameters of a run.
#[derive(Clone, Debug)]
pub struct Load {
    /// Distribution of the keys.
    pub keys: KeyDistribution,
    /// Costs of the requests.
    pub costs: Costs,
    /// Number of connections.
    pub connections: usize,
    /// Maximum number of requests in flight per connection.
    pub depth: usize,
    /// Number of threads.
    pub threads: usize,
    /// `None` means closed loop: each response triggers the next request.
    pub rate: Option<Rate>,
    /// End of the measurement.
    pub length: Length,
    /// Requests in this time are checked but not measured.
    pub warm_up: Duration,
    /// Number of requests to keep for the checker.
    pub keep: usize,
    /// Random seed of keys and costs.
    pub seed: u64,
    /// Process whose CPU time to report.
    pub pid: Option<u32>,
}

/// Length of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Length {
    /// Time after the warm-up.
    Time(Duration),
    /// Total number of requests.
    Requests(u64),
}

/// The result of a run.
#[derive(Debug)]
pub struct LoadResult {
    /// Counts, latencies and decisions.
    pub record: Record,
    /// The measured time.
    pub elapsed: Duration,
    /// CPU time in microseconds of the server and of this program.
    pub server_cpu: Option<u64>,
    pub(crate) own_cpu: Option<u64>,
}

/// Reasons why a run failed.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    #[error("cannot connect to {0}: {1}")]
    Connect(SocketAddr, io::Error),
    #[error("lost the connection to {0} and cannot reconnect: {1}")]
    Lost(SocketAddr, io::Error),
    #[error("cannot poll for responses: {0}")]
    Wait(io::Error),
    #[error("cannot start a thread: {0}")]
    Thread(io::Error),
    #[error("cannot read the CPU time of process {0}: {1}")]
    Cpu(u32, io::Error),
    #[error("a thread of the load generator failed")]
    Broken,
}

/// The clock of a run, in nanoseconds since its start.
#[derive(Clone, Copy, Debug)]
pub(super) struct Timer {
    began: Instant,
    /// Start time in microseconds since the Unix epoch.
    wall: u64,
    /// End of the warm-up: requests from here on are measured.
    warm: u64,
    /// Time to stop sending; `u64::MAX` if the run ends after a number of requests.
    end: u64,
}

/// Number of attempts to read both clocks at the same instant.
const TRIES: usize = 20;
/// Interval between progress reports.
const TICK: Duration = Duration::from_millis(100);

impl Load {
    /// Runs to the end. Regularly calls `progress` with the number of responses so far.
    pub fn run(
        &self,
        target: &Arc<Target>,
        mut progress: impl FnMut(u64, Duration),
    ) -> Result<LoadResult, LoadError> {
        let mut workers = self.workers(target)?;
        let timer = Timer::start(self);
        let done = Arc::new(AtomicU64::new(0));
        let (finished, results) = mpsc::channel();
        let mut watch = Watch::new(self.pid)?;
        if timer.is_warm() {
            watch.begin()?;
        }
        let (mut running, mut record) = (workers.len(), None::<Record>);
        for mut worker in workers.drain(..) {
            let (finished, done) = (finished.clone(), done.clone());
            let run = move || {
                // The receiver is gone only if another thread failed.
                drop(finished.send(worker.run(timer, &done)));
            };
            let thread = thread::Builder::new().name("load".to_owned()).spawn(run);
            thread.map_err(LoadError::Thread)?;
        }
        drop(finished);
        while running > 0 {
            match results.recv_timeout(timer.until_next(TICK)) {
                Ok(result) => {
                    running -= 1;
                    let one = result?;
                    match &mut record {
                        Some(all) => all.join(one),
                        None => record = Some(one),
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return Err(LoadError::Broken),
            }
            if timer.is_warm() {
                watch.begin()?;
            }
            progress(done.load(Ordering::Relaxed), timer.began.elapsed());
        }
        let record = record.ok_or(LoadError::Broken)?;
        let (server_cpu, own_cpu) = watch.end()?;
        let elapsed = timer.measured(&record);
        Ok(LoadResult { record, elapsed, server_cpu, own_cpu })
    }

    /// Creates the workers and opens all connections, before the first request is sent.
    fn workers(&self, target: &Arc<Target>) -> Result<Vec<Worker>, LoadError> {
        let draw = Draw::new(self.keys, &self.costs, self.seed);
        let threads = self.threads.clamp(1, self.connections);
        let share = |all: u64, which: u64| {
            let threads = threads as u64;
            all / threads + u64::from(which < all % threads)
        };
        let worker = |which: u64| {
            let connections = share(self.connections as u64, which) as usize;
            let mut load = self.clone();
            load.connections = connections;
            load.keep = share(self.keep as u64, which) as usize;
            if let Length::Requests(all) = self.length {
                load.length = Length::Requests(share(all, which));
            }
            Worker::new(load, (which, threads as u64), draw.other(which), target.clone())
        };
        (0..threads as u64).map(worker).collect()
    }
}

impl Timer {
    fn start(load: &Load) -> Self {
        let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX / 4);
        let warm = nanos(load.warm_up);
        let end = match load.length {
            Length::Time(time) => warm + nanos(time),
            Length::Requests(_) => u64::MAX,
        };
        let (began, wall) = begin();
        Self { began, wall, warm, end }
    }

    #[inline]
    pub(super) fn now(&self) -> u64 {
        self.began.elapsed().as_nanos() as u64
    }

    fn is_warm(&self) -> bool {
        self.now() >= self.warm
    }

    /// Returns `most`, or the time until the measurement begins if that is sooner.
    fn until_next(&self, most: Duration) -> Duration {
        match self.warm.saturating_sub(self.now()) {
            0 => most,
            left => most.min(Duration::from_nanos(left)),
        }
    }

    /// Returns the measured time: the whole time in which requests were sent, with or without responses.
    /// Responses after the end count in the latencies but do not extend the time.
    fn measured(&self, record: &Record) -> Duration {
        let end = if self.has_end() { self.end } else { record.last };
        Duration::from_nanos(end.saturating_sub(self.warm))
    }

    /// Returns true if the run ends at a time, not after a number of requests.
    pub(super) fn has_end(&self) -> bool {
        self.end != u64::MAX
    }
}

/// Returns one instant by both clocks. Takes the closest of several readings, in case the thread is preempted
/// in between.
#[expect(clippy::disallowed_methods, reason = "windows are aligned to the server's wall clock")]
fn begin() -> (Instant, u64) {
    let mut best = (Duration::MAX, Instant::now(), 0);
    for _ in 0..TRIES {
        let began = Instant::now();
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let took = began.elapsed();
        if took < best.0 {
            best = (took, began, wall.as_micros() as u64);
        }
    }
    (best.1, best.2)
}

/// CPU time from the end of the warm-up to the end of the run.
#[derive(Debug)]
struct Watch {
    pid: Option<u32>,
    began: Option<(Option<u64>, Option<u64>)>,
}

impl Watch {
    fn new(pid: Option<u32>) -> Result<Self, LoadError> {
        let watch = Self { pid, began: None };
        watch.read()?;
        Ok(watch)
    }

    fn read(&self) -> Result<(Option<u64>, Option<u64>), LoadError> {
        let server = match self.pid {
            Some(pid) => Some(cpu::micros(pid).map_err(|error| LoadError::Cpu(pid, error))?),
            None => None,
        };
        Ok((server, cpu::micros(std::process::id()).ok()))
    }

    fn begin(&mut self) -> Result<(), LoadError> {
        if self.began.is_none() {
            self.began = Some(self.read()?);
        }
        Ok(())
    }

    fn end(&self) -> Result<(Option<u64>, Option<u64>), LoadError> {
        let Some((server, own)) = self.began else { return Ok((None, None)) };
        let (server_now, own_now) = self.read()?;
        let since = |then: Option<u64>, now: Option<u64>| Some(now?.saturating_sub(then?));
        Ok((since(server, server_now), since(own, own_now)))
    }
}
