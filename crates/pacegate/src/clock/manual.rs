use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll, Waker},
    time::Duration,
};

use parking_lot::Mutex;

use super::{Clock, Sleep, Timestamp};

/// A clock for tests that moves only when the test moves it.
///
/// Clones share one time, so a test keeps a clone and moves the limiter's clock with it. Tasks that wait on
/// the clock are woken when their instant is reached.
///
/// ```
/// # use std::time::Duration;
/// use pacegate::{Limiter, ManualClock};
///
/// let clock = ManualClock::new();
/// let limiter = Limiter::builder().limit("1/minute").clock(clock.clone()).build()?;
/// assert!(limiter.check("alice").is_allowed());
/// assert!(!limiter.check("alice").is_allowed());
/// clock.advance(Duration::from_secs(60));
/// assert!(limiter.check("alice").is_allowed());
/// # Ok::<(), pacegate::BuildError>(())
/// ```
///
/// A wait on this clock ends only when the test advances it. [`sleepers`](Self::sleepers) shows when a task waits, and
/// [`next_wake`](Self::next_wake) by how much to advance.
#[derive(Clone)]
pub struct ManualClock {
    shared: Arc<ManualTime>,
}

/// The time that all clones of a clock share.
struct ManualTime {
    now: AtomicU64,
    /// Total microseconds by which the clock was moved forward.
    elapsed: AtomicU64,
    /// Locked while the two values are compared or changed, so that no wake-up is lost in between.
    sleepers: Mutex<Vec<Sleeper>>,
    next_id: AtomicU64,
}

/// A task that waits for an instant.
struct Sleeper {
    id: u64,
    /// The value of `elapsed` at which to wake up.
    due: u64,
    waker: Waker,
}

impl ManualClock {
    /// Creates a clock at 1 January 2026, the start of a day, an hour and a minute.
    pub fn new() -> Self {
        Self::at(Timestamp::from_secs(1_767_225_600))
    }

    /// Creates a clock at `now`, for tests that depend on the position in a window.
    pub fn at(now: Timestamp) -> Self {
        let shared = ManualTime {
            now: AtomicU64::new(now.as_micros()),
            elapsed: AtomicU64::new(0),
            sleepers: Mutex::default(),
            next_id: AtomicU64::new(0),
        };
        Self { shared: Arc::new(shared) }
    }

    /// Moves the clock forward and wakes all tasks whose instant has passed.
    ///
    /// The tasks run when their executor polls them, not within this call.
    pub fn advance(&self, by: Duration) {
        self.shift(|now| now.after(by));
    }

    /// Sets the clock, back or forward, and wakes all tasks whose instant has passed.
    ///
    /// If it is set forward, the difference counts as elapsed time. If it is set back, no time elapses: tasks
    /// still wait as long as before.
    pub fn set(&self, now: Timestamp) {
        self.shift(|_| now);
    }

    /// Moves the clock and wakes the tasks that are due.
    fn shift(&self, to: impl FnOnce(Timestamp) -> Timestamp) {
        let due: Vec<_> = {
            let mut sleepers = self.shared.sleepers.lock();
            let before = self.now();
            let now = to(before);
            let passed = now.micros_since(before);
            self.shared.now.store(now.as_micros(), Ordering::SeqCst);
            let elapsed = self.shared.elapsed().saturating_add(passed);
            self.shared.elapsed.store(elapsed, Ordering::SeqCst);
            sleepers.extract_if(.., |sleeper| sleeper.due <= elapsed).collect()
        };
        for sleeper in due {
            sleeper.waker.wake();
        }
    }

    /// Returns the number of tasks that wait on this clock, so that a test can wait for a waiting task.
    pub fn sleepers(&self) -> usize {
        self.shared.sleepers.lock().len()
    }

    /// Returns the earliest instant that a task waits for, if the clock is not set back before.
    ///
    /// ```
    /// use std::time::Duration;
    /// use pacegate::{Clock, ManualClock};
    ///
    /// let clock = ManualClock::new();
    /// assert_eq!(clock.next_wake(), None, "no task waits");
    /// clock.advance(Duration::from_secs(1));
    /// assert_eq!(clock.elapsed(), Duration::from_secs(1));
    /// ```
    pub fn next_wake(&self) -> Option<Timestamp> {
        let sleepers = self.shared.sleepers.lock();
        let due = sleepers.iter().map(|sleeper| sleeper.due).min()?;
        Some(self.now().after(Duration::from_micros(due - self.shared.elapsed())))
    }
}

impl ManualTime {
    fn elapsed(&self) -> u64 {
        self.elapsed.load(Ordering::SeqCst)
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_micros(self.shared.now.load(Ordering::SeqCst))
    }

    fn elapsed(&self) -> Duration {
        Duration::from_micros(self.shared.elapsed())
    }

    fn sleep_until(&self, until: Timestamp) -> Sleep<'_> {
        let id = self.shared.next_id.fetch_add(1, Ordering::Relaxed);
        let sleepers = self.shared.sleepers.lock();
        let due = self.shared.elapsed().saturating_add(until.micros_since(self.now()));
        drop(sleepers);
        let place = SleeperGuard { clock: self, id, due };
        Box::pin(std::future::poll_fn(move |cx| place.poll(cx)))
    }
}

impl Default for ManualClock {
    fn default() -> Self {
        Self::new()
    }
}

impl fmt::Debug for ManualClock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ManualClock").field(&self.now()).finish()
    }
}

/// An entry in the list of sleepers. Dropping it removes it, so a cancelled wait leaves nothing behind.
struct SleeperGuard<'a> {
    clock: &'a ManualClock,
    id: u64,
    due: u64,
}

impl SleeperGuard<'_> {
    fn poll(&self, cx: &Context<'_>) -> Poll<()> {
        let mut sleepers = self.clock.shared.sleepers.lock();
        sleepers.retain(|sleeper| sleeper.id != self.id);
        if self.clock.shared.elapsed() >= self.due {
            return Poll::Ready(());
        }
        sleepers.push(Sleeper { id: self.id, due: self.due, waker: cx.waker().clone() });
        Poll::Pending
    }
}

impl Drop for SleeperGuard<'_> {
    fn drop(&mut self) {
        self.clock.shared.sleepers.lock().retain(|sleeper| sleeper.id != self.id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elapsed_time_never_goes_back() {
        let clock = ManualClock::at(Timestamp::from_secs(1_000));
        clock.advance(Duration::from_secs(10));
        clock.set(Timestamp::from_secs(500));
        assert_eq!((clock.now().as_micros(), clock.elapsed().as_secs()), (500_000_000, 10));
        clock.set(Timestamp::from_secs(520));
        assert_eq!(clock.elapsed(), Duration::from_secs(30));
    }

    #[test]
    fn clones_that_advance_at_the_same_time_all_do() {
        let clock = ManualClock::at(Timestamp::EPOCH);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    (0..250_000).for_each(|_| clock.advance(Duration::from_micros(1)));
                });
            }
        });
        assert_eq!(clock.now().as_micros(), 1_000_000);
        assert_eq!(clock.elapsed(), Duration::from_micros(1_000_000));
    }
}
