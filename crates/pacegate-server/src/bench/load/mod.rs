//! Asks a target, as fast as it answers or at a rate, and keeps what came of it.

mod connection;
mod pace;
mod record;
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
    keys::{Costs, Draw, Keys},
    target::Target,
};
pub(crate) use pace::Rate;
pub(crate) use record::Record;
use worker::Worker;

/// How a target is asked.
#[derive(Clone, Debug)]
pub(crate) struct Load {
    pub(crate) keys: Keys,
    pub(crate) costs: Costs,
    pub(crate) connections: usize,
    /// Requests that may be on the way on one connection.
    pub(crate) depth: usize,
    pub(crate) threads: usize,
    /// `None` asks again when answered.
    pub(crate) rate: Option<Rate>,
    pub(crate) length: Length,
    /// What is asked in this time is checked, and not measured.
    pub(crate) warm_up: Duration,
    /// Requests kept for the checker.
    pub(crate) keep: usize,
    pub(crate) seed: u64,
    /// Whose processor time to tell.
    pub(crate) pid: Option<u32>,
}

/// How long to ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Length {
    /// After the warm-up.
    Time(Duration),
    /// All in all.
    Requests(u64),
}

/// What a run came to.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) record: Record,
    /// The time that was measured.
    pub(crate) elapsed: Duration,
    /// Microseconds of processors that the server and this program used meanwhile.
    pub(crate) server_cpu: Option<u64>,
    pub(crate) own_cpu: Option<u64>,
}

/// Why a run ended early.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LoadError {
    #[error("cannot connect to {0}: {1}")]
    Connect(SocketAddr, io::Error),
    #[error("lost the connection to {0}, and cannot connect again: {1}")]
    Lost(SocketAddr, io::Error),
    #[error("cannot wait for answers: {0}")]
    Wait(io::Error),
    #[error("cannot start a thread: {0}")]
    Thread(io::Error),
    #[error("cannot tell the processor time of process {0}: {1}")]
    Cpu(u32, io::Error),
    #[error("a thread of the load generator failed")]
    Broken,
}

/// The time of a run: nanoseconds since it began.
#[derive(Clone, Copy, Debug)]
pub(super) struct Timer {
    began: Instant,
    /// Microseconds since the epoch when it began.
    wall: u64,
    /// From when on is measured.
    warm: u64,
    /// When asking ends; all of time if that depends on the requests.
    end: u64,
}

/// How often the clocks are read to find how they stand to each other.
const TRIES: usize = 20;
/// How often progress is told.
const TICK: Duration = Duration::from_millis(100);

impl Load {
    /// Asks until it is over. What has been answered so far is told now and then.
    pub(crate) fn run(
        &self,
        target: &Arc<Target>,
        mut progress: impl FnMut(u64, Duration),
    ) -> Result<Ran, LoadError> {
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
        Ok(Ran { record, elapsed, server_cpu, own_cpu })
    }

    /// All connections are there before the first request is sent.
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

    /// So long, or until the measurement begins.
    fn until_next(&self, most: Duration) -> Duration {
        match self.warm.saturating_sub(self.now()) {
            0 => most,
            left => most.min(Duration::from_nanos(left)),
        }
    }

    /// All of the time in which was asked, whether or not answers came. Those that come after the end are part of the
    /// latencies, but not of the time.
    fn measured(&self, record: &Record) -> Duration {
        let end = if self.has_end() { self.end } else { record.last };
        Duration::from_nanos(end.saturating_sub(self.warm))
    }

    /// Whether it ends by the clock.
    pub(super) fn has_end(&self) -> bool {
        self.end != u64::MAX
    }
}

/// One instant by both clocks. A thread that is put aside between the two readings reads them again.
#[expect(clippy::disallowed_methods, reason = "windows begin by the wall clock of the server")]
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

/// Processor time, from the warm-up to the end.
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
