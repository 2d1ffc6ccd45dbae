//! Clocks that follow virtual time, with a skew, a drift and steps.

use std::{pin::Pin, sync::Arc, time::Duration};

use pacegate::{Clock, Timestamp};
use parking_lot::Mutex;
use tokio::time::{Instant, sleep};

/// Virtual time: microseconds since the start of a simulation.
#[derive(Clone, Copy, Debug)]
pub struct VirtualTime {
    start: Instant,
}

/// The wall clock of one machine.
#[derive(Clone, Debug)]
pub struct MachineClock {
    time: VirtualTime,
    /// The time that it showed at the start.
    base: u64,
    /// It gains this many microseconds per second.
    drift: i64,
    steps: Arc<Mutex<Vec<Step>>>,
}

/// A step of a clock, in microseconds.
#[derive(Clone, Copy, Debug)]
struct Step {
    /// Virtual time.
    at: u64,
    by: i64,
}

impl VirtualTime {
    /// Starts at the current instant of Tokio's clock.
    pub fn start() -> Self {
        Self { start: Instant::now() }
    }

    /// Returns the microseconds since the start.
    pub fn now(&self) -> u64 {
        u64::try_from(self.start.elapsed().as_micros()).unwrap_or(u64::MAX)
    }
}

impl MachineClock {
    /// Creates a clock that shows `base` at the start, and gains `drift` microseconds per second.
    pub fn new(time: VirtualTime, base: u64, drift: i64) -> Self {
        Self { time, base, drift, steps: Arc::default() }
    }

    /// Sets the clock forward, or back if `by` is negative.
    pub fn step(&self, by: i64) {
        self.steps.lock().push(Step { at: self.time.now(), by });
    }

    /// Returns the virtual times of the steps so far.
    pub fn steps(&self) -> Vec<u64> {
        self.steps.lock().iter().map(|step| step.at).collect()
    }

    /// Returns the time that it showed, in microseconds since 1970, at a virtual time.
    pub fn at(&self, virtual_time: u64) -> u64 {
        let steps = self.steps.lock();
        let stepped: i64 =
            steps.iter().filter(|step| step.at <= virtual_time).map(|step| step.by).sum();
        let drifted = virtual_time as i64 * self.drift / 1_000_000;
        (self.base + virtual_time).saturating_add_signed(stepped + drifted)
    }
}

impl Clock for MachineClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_micros(self.at(self.time.now()))
    }

    fn elapsed(&self) -> Duration {
        Duration::from_micros(self.time.now())
    }

    fn sleep_until(&self, until: Timestamp) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(sleep(Duration::from_micros(until.micros_since(self.now()))))
    }
}
