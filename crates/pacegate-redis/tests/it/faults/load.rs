//! Constant load, with the outcome and latency of each decision.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    thread::JoinHandle,
    time::{Duration, Instant},
};

use pacegate::SharedLimiter;
use pacegate_testkit::servers::eventually;
use parking_lot::Mutex;
use tokio::time::{MissedTickBehavior, interval};

use super::{DEADLINE, Limiters, SHARE, now};
use crate::kit::PATIENT;

/// Load that runs until it is stopped.
pub(super) struct Load {
    seen: Arc<Mutex<Vec<Seen>>>,
    going: Arc<AtomicBool>,
    tasks: Vec<tokio::task::JoinHandle<()>>,
    noise: Noise,
}

/// A decision.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen {
    pub(super) mode: Mode,
    pub(super) at: Instant,
    pub(super) took: Duration,
    pub(super) allowed: bool,
    pub(super) degraded: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    Closed,
    Open,
    Local,
    Windows,
}

/// All decisions.
pub(super) struct Log {
    pub(super) seen: Vec<Seen>,
    /// Pauses of the machine, and their durations.
    stalls: Vec<(Instant, Duration)>,
}

/// Tolerance beyond the deadline.
const LEEWAY: Duration = Duration::from_millis(5);

impl Load {
    pub(super) fn start(limiters: &Limiters) -> Self {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let going = Arc::new(AtomicBool::new(true));
        let modes = [
            (Mode::Closed, &limiters.closed),
            (Mode::Open, &limiters.open),
            (Mode::Local, &limiters.local),
            (Mode::Windows, &limiters.windows),
        ];
        let ask = |(mode, limiter): (Mode, &SharedLimiter)| {
            let (limiter, seen, going) = (limiter.clone(), seen.clone(), going.clone());
            limiters.runtime.spawn(ask(mode, limiter, seen, going))
        };
        let tasks = modes.into_iter().cycle().take(8).map(ask).collect();
        Self { seen, going: going.clone(), tasks, noise: Noise::start(going) }
    }

    /// Waits until the load has made decisions for this long.
    pub(super) fn run_for(&self, time: Duration) {
        let end = now() + time;
        let decided = || self.seen.lock().last().is_some_and(|seen| seen.at >= end);
        eventually(time + PATIENT, "the load makes decisions", decided);
    }

    pub(super) fn end(self, limiters: &Limiters) -> Log {
        self.going.store(false, SeqCst);
        for task in self.tasks {
            limiters.runtime.block_on(task).unwrap();
        }
        let stalls = self.noise.thread.join().unwrap();
        Log { seen: std::mem::take(&mut self.seen.lock()), stalls }
    }
}

async fn ask(
    mode: Mode,
    limiter: SharedLimiter,
    seen: Arc<Mutex<Vec<Seen>>>,
    going: Arc<AtomicBool>,
) {
    let mut ticks = interval(Duration::from_millis(2));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    while going.load(SeqCst) {
        ticks.tick().await;
        let at = now();
        let decision = limiter.check("busy").await.unwrap();
        let (allowed, degraded) = (decision.is_allowed(), decision.is_degraded());
        seen.lock().push(Seen { mode, at, took: at.elapsed(), allowed, degraded });
    }
}

/// Measures pauses of the machine: how late a task wakes up that does not use the store.
struct Noise {
    thread: JoinHandle<Vec<(Instant, Duration)>>,
}

impl Noise {
    fn start(going: Arc<AtomicBool>) -> Self {
        let work = async move {
            let mut stalls = Vec::new();
            let mut ticks = interval(Duration::from_millis(1));
            ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
            while going.load(SeqCst) {
                let due = ticks.tick().await.into_std();
                let late = now().saturating_duration_since(due);
                if late > Duration::from_millis(2) {
                    stalls.push((due, late));
                }
            }
            stalls
        };
        let thread = std::thread::spawn(|| crate::kit::runtime().block_on(work));
        Self { thread }
    }
}

impl Log {
    /// Returns by how much a decision exceeded its deadline, without the pauses of the machine.
    fn excess(&self, seen: &Seen) -> Duration {
        let end = seen.at + seen.took;
        let overlap = |&(due, late): &(Instant, Duration)| {
            (due + late).min(end).saturating_duration_since(due.max(seen.at))
        };
        let stalled: Duration = self.stalls.iter().map(overlap).sum();
        seen.took.saturating_sub(DEADLINE + LEEWAY + stalled)
    }

    /// Asserts that 99 % of the decisions kept the deadline within the tolerance, and all within half a second. Other
    /// programs may pause any thread for some milliseconds. A request that is lost, or waits for a connection, would
    /// take longer.
    pub(super) fn assert_timely(&self, what: &str) {
        let late = self.seen.iter().filter(|seen| !self.excess(seen).is_zero()).count();
        let worst = self.seen.iter().map(|seen| self.excess(seen)).max().unwrap_or_default();
        let mut took: Vec<Duration> = self.seen.iter().map(|seen| seen.took).collect();
        took.sort_unstable();
        let at = |percent: usize| took[(took.len() - 1) * percent / 100];
        let (all, stalls) = (self.seen.len(), self.stalls.len());
        println!(
            "{what}: {all} decisions, p50 {:?}, p99 {:?}, max {:?}; {late} late, by {worst:?} at most; {stalls} stalls",
            at(50),
            at(99),
            at(100)
        );
        assert!(late * 100 <= all, "{what}: {late} of {all} decisions were late");
        assert!(worst < Duration::from_millis(500), "{what}: one was late by {worst:?}");
    }

    /// Asserts the decisions of each failure mode. The whole fault is within one window of the local limit.
    pub(super) fn assert_modes_hold(&self) {
        let degraded =
            |mode| self.seen.iter().filter(move |seen| seen.mode == mode && seen.degraded);
        let admitted = |mode| degraded(mode).filter(|seen| seen.allowed).count();
        for mode in [Mode::Closed, Mode::Open, Mode::Local] {
            assert!(degraded(mode).count() > 2 * SHARE, "{mode:?} was hardly asked");
        }
        assert_eq!(admitted(Mode::Closed) + admitted(Mode::Windows), 0);
        assert_eq!(admitted(Mode::Open), degraded(Mode::Open).count());
        assert_eq!(admitted(Mode::Local), SHARE);
    }

    /// Asserts that no decision waits for the store during a known fault. Only cached denials may still come from it.
    pub(super) fn assert_nobody_waits(&self, from: Instant, to: Instant) {
        let seen = self.seen.iter().filter(|seen| from <= seen.at && seen.at < to);
        let mut took: Vec<Duration> = seen.clone().map(|seen| seen.took).collect();
        took.sort_unstable();
        let typical = took[took.len() * 9 / 10];
        assert!(typical < Duration::from_millis(1), "nine in ten took up to {typical:?}");
        let answered =
            |seen: &&Seen| !seen.degraded && (seen.allowed || seen.mode != Mode::Windows);
        assert_eq!(seen.filter(answered).count(), 0, "decisions by the store during the outage");
    }
}
