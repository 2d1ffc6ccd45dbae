//! The lock around a shard: held for tens of nanoseconds (for a long log, a few microseconds), by code that neither
//! blocks nor allocates on its common path.

#[cfg(not(pacegate_loom))]
pub(super) use spinning::{Guard, Lock};

#[cfg(pacegate_loom)]
pub(super) use model::{Guard, Lock};

/// A spin lock takes one atomic exchange to lock and a plain store to unlock, where a parking mutex takes two
/// exchanges: 9 against 16 ns, a quarter of a whole decision. What makes spinning fit for user space is the ladder
/// below: whoever does not get the lock at once backs off, then yields the processor, then sleeps, so a holder that
/// the scheduler has put aside is waited for, not fought.
#[cfg(not(pacegate_loom))]
mod spinning {
    use std::{hint::spin_loop, thread, time::Duration};

    use spin::mutex::{SpinMutex, SpinMutexGuard};

    #[derive(Debug)]
    pub(in super::super) struct Lock<T>(SpinMutex<T>);

    pub(in super::super) type Guard<'a, T> = SpinMutexGuard<'a, T>;

    /// Rounds of spinning, each twice as long as the one before. The first is some ten times longer than the lock is
    /// held: to look again sooner would take the cache line away from the holder, and both would only trade it.
    const SPINS: u32 = 4;
    const FIRST_SPIN: u32 = 16;
    const YIELDS: u32 = 64;

    impl<T> Lock<T> {
        pub(in super::super) fn new(value: T) -> Self {
            Self(SpinMutex::new(value))
        }

        #[inline]
        pub(in super::super) fn lock(&self) -> Guard<'_, T> {
            match self.0.try_lock() {
                Some(guard) => guard,
                None => self.wait(),
            }
        }

        pub(in super::super) fn try_lock(&self) -> Option<Guard<'_, T>> {
            self.0.try_lock()
        }

        #[cold]
        #[expect(clippy::disallowed_methods, reason = "the last resort, so that a holder can run")]
        fn wait(&self) -> Guard<'_, T> {
            let mut round = 0;
            loop {
                match round {
                    0..SPINS => (0..FIRST_SPIN << round).for_each(|_| spin_loop()),
                    SPINS..YIELDS => thread::yield_now(),
                    _ => thread::sleep(Duration::from_micros(50)),
                }
                round = YIELDS.min(round + 1);
                // Looking first keeps the line shared while somebody else holds the lock.
                if !self.0.is_locked()
                    && let Some(guard) = self.0.try_lock()
                {
                    return guard;
                }
            }
        }
    }
}

/// The same lock under the model checker.
#[cfg(pacegate_loom)]
mod model {
    use loom::sync::{Mutex, MutexGuard};

    #[derive(Debug)]
    pub(in super::super) struct Lock<T>(Mutex<T>);

    pub(in super::super) type Guard<'a, T> = MutexGuard<'a, T>;

    impl<T> Lock<T> {
        pub(in super::super) fn new(value: T) -> Self {
            Self(Mutex::new(value))
        }

        pub(in super::super) fn lock(&self) -> Guard<'_, T> {
            self.0.lock().expect("no thread panics in the model")
        }

        pub(in super::super) fn try_lock(&self) -> Option<Guard<'_, T>> {
            self.0.try_lock().ok()
        }
    }
}
