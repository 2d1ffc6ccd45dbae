//! The lock of a shard. It is held for tens of nanoseconds, or for a few microseconds if a log is long. On its
//! common path, the code that holds it neither blocks nor allocates.

#[cfg(not(pacegate_loom))]
use std::{hint::spin_loop, thread, time::Duration};

#[cfg(pacegate_loom)]
use loom::sync::Mutex;
#[cfg(pacegate_loom)]
pub(super) use loom::sync::MutexGuard as Guard;
#[cfg(not(pacegate_loom))]
use spin::mutex::SpinMutex as Mutex;
#[cfg(not(pacegate_loom))]
pub(super) use spin::mutex::SpinMutexGuard as Guard;

/// A spin lock. It locks with one atomic exchange and unlocks with a plain store, which takes 9 ns. A parking mutex
/// needs two exchanges, which take 16 ns. The difference is a quarter of the time of a decision.
///
/// If the lock is taken, a thread first spins with increasing delays, then yields the CPU, then sleeps. So it leaves
/// the CPU to a holder that the scheduler has suspended.
///
/// The model checker loom uses its own mutex instead.
#[derive(Debug)]
pub(super) struct Lock<T>(Mutex<T>);

impl<T> Lock<T> {
    pub(super) fn new(value: T) -> Self {
        Self(Mutex::new(value))
    }
}

#[cfg(not(pacegate_loom))]
impl<T> Lock<T> {
    /// Number of rounds that spin. Each takes twice as long as the one before.
    const SPINS: u32 = 4;
    /// Spin hints in the first round: about ten times as long as the lock is usually held. An earlier retry would take
    /// the cache line away from the holder and slow it down.
    const FIRST_SPIN: u32 = 16;
    /// The round from which on the thread sleeps. Rounds between `SPINS` and this one yield the CPU.
    const YIELDS: u32 = 64;

    #[inline]
    pub(super) fn lock(&self) -> Guard<'_, T> {
        match self.0.try_lock() {
            Some(guard) => guard,
            None => self.wait(),
        }
    }

    pub(super) fn try_lock(&self) -> Option<Guard<'_, T>> {
        self.0.try_lock()
    }

    #[cold]
    #[expect(clippy::disallowed_methods, reason = "the last resort, so that a holder can run")]
    fn wait(&self) -> Guard<'_, T> {
        let mut round = 0;
        loop {
            if round < Self::SPINS {
                (0..Self::FIRST_SPIN << round).for_each(|_| spin_loop());
            } else if round < Self::YIELDS {
                thread::yield_now();
            } else {
                thread::sleep(Duration::from_micros(50));
            }
            round = Self::YIELDS.min(round + 1);
            // A plain read leaves the cache line with the holder, so try to lock only if it finds the lock free.
            if !self.0.is_locked()
                && let Some(guard) = self.0.try_lock()
            {
                return guard;
            }
        }
    }
}

#[cfg(pacegate_loom)]
impl<T> Lock<T> {
    pub(super) fn lock(&self) -> Guard<'_, T> {
        self.0.lock().expect("no thread panics in the model")
    }

    pub(super) fn try_lock(&self) -> Option<Guard<'_, T>> {
        self.0.try_lock().ok()
    }
}
