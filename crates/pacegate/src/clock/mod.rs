//! Time: whole microseconds everywhere, always passed as an argument.
//!
//! Only this module reads a clock. Stores read a [`Clock`] once per decision, so with a [`ManualClock`] every
//! decision of the library, including waiting, is deterministic and can be tested exactly.

mod manual;
mod system;

use std::{
    fmt,
    future::Future,
    pin::Pin,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

pub use manual::ManualClock;
pub use system::SystemClock;
pub(crate) use system::{Disciplined, disciplined};

/// An instant, in whole microseconds since the Unix epoch.
///
/// Pacegate uses microseconds in memory and in Redis, so that both make the same decisions for the same
/// history. Instants later than [`Timestamp::MAX`] (the year 2255) are reduced to that instant.
///
/// ```
/// use std::time::{Duration, SystemTime};
/// use pacegate::Timestamp;
///
/// let start = Timestamp::from_secs(60);
/// assert_eq!(start.after(Duration::from_millis(1_500)).as_secs_ceil(), 62);
/// assert!(Timestamp::from(SystemTime::now()) > start);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(u64);

/// A source of time for a store.
///
/// Most programs use the default, [`SystemClock`], and tests use [`ManualClock`]. Implement it for a platform without a
/// system clock, such as WebAssembly, or to replay recorded traffic.
///
/// It may step in either direction. After a step back, the wait is never longer than if everything had been used just
/// now; a step forward admits at most one additional burst per key.
///
/// ```
/// use pacegate::{Clock, Limiter, Timestamp};
///
/// /// Time in milliseconds from the host of a WebAssembly module.
/// #[derive(Debug)]
/// struct HostClock;
///
/// fn host_millis() -> u64 {
///     1_767_225_600_000 // for example, `Date.now()`
/// }
///
/// impl Clock for HostClock {
///     fn now(&self) -> Timestamp {
///         Timestamp::from_micros(host_millis() * 1_000)
///     }
/// }
///
/// let limiter = Limiter::builder().limit("10/second").clock(HostClock).build()?;
/// assert!(limiter.check("alice").is_allowed());
/// # Ok::<(), pacegate::BuildError>(())
/// ```
///
/// To use the calls that wait, implement [`sleep_until`](Self::sleep_until) with timers of the host too.
pub trait Clock: fmt::Debug + Send + Sync + 'static {
    /// Returns the current time.
    ///
    /// Called at least once for each decision, from any thread, so it must be fast and must not block.
    fn now(&self) -> Timestamp;

    /// Returns the time elapsed since some fixed instant, for waiting.
    ///
    /// A clock that may step must exclude its steps here. The default is [`Clock::now`], which is correct for
    /// a clock that never steps.
    fn elapsed(&self) -> Duration {
        Duration::from_micros(self.now().as_micros())
    }

    /// Completes after the time between [`Clock::now`] and `until` has elapsed.
    ///
    /// A step of the clock in the meantime does not change that. So the clock may not have reached `until`
    /// yet; callers have to check again if it matters. The default waits on a real timer.
    fn sleep_until(&self, until: Timestamp) -> Sleep<'_> {
        match until.micros_since(self.now()) {
            0 => Box::pin(std::future::ready(())),
            left => Box::pin(futures_timer::Delay::new(Duration::from_micros(left))),
        }
    }
}

/// The future that [`Clock::sleep_until`] returns. Dropping it cancels the timer.
pub type Sleep<'a> = Pin<Box<dyn Future<Output = ()> + Send + 'a>>;

impl Timestamp {
    /// Midnight of 1 January 1970, UTC.
    pub const EPOCH: Self = Self(0);

    /// The last instant that a store can represent: 2^53 - 1 microseconds after the epoch, in the year 2255.
    pub const MAX: Self = Self((1 << 53) - 1);

    /// Creates an instant from microseconds since the Unix epoch, at most [`Timestamp::MAX`].
    #[inline]
    pub const fn from_micros(micros: u64) -> Self {
        if micros > Self::MAX.0 { Self::MAX } else { Self(micros) }
    }

    /// Creates an instant from whole seconds since the Unix epoch, at most [`Timestamp::MAX`].
    pub const fn from_secs(secs: u64) -> Self {
        match secs.checked_mul(1_000_000) {
            Some(micros) => Self::from_micros(micros),
            None => Self::MAX,
        }
    }

    /// Returns the microseconds since the Unix epoch.
    #[inline]
    pub const fn as_micros(self) -> u64 {
        self.0
    }

    /// Returns the whole seconds since the Unix epoch, rounded up, as for `X-RateLimit-Reset`.
    pub const fn as_secs_ceil(self) -> u64 {
        self.0.div_ceil(1_000_000)
    }

    /// Returns the instant `duration` later, rounded up to the microsecond and at most [`Timestamp::MAX`].
    ///
    /// ```
    /// use std::time::Duration;
    /// use pacegate::Timestamp;
    ///
    /// let later = Timestamp::from_secs(60).after(Duration::from_nanos(1));
    /// assert_eq!(later.as_micros(), 60_000_001);
    /// ```
    #[must_use]
    pub fn after(self, duration: Duration) -> Self {
        let part = u64::from(duration.subsec_nanos().div_ceil(1_000));
        let micros = duration.as_secs().saturating_mul(1_000_000).saturating_add(part);
        Self::from_micros(self.0.saturating_add(micros))
    }

    /// Returns the microseconds from `earlier` to `self`; 0 if `earlier` is not earlier.
    #[inline]
    pub const fn micros_since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

/// Rounds up to the microsecond. A time before 1970 becomes [`Timestamp::EPOCH`].
impl From<SystemTime> for Timestamp {
    fn from(time: SystemTime) -> Self {
        Self::EPOCH.after(time.duration_since(UNIX_EPOCH).unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU64, Ordering};

    use super::*;

    /// Shows the year 2020 once, and one hour less from then on.
    #[derive(Debug)]
    struct SteppingBack(AtomicU64);

    const YEAR_2020: u64 = 1_577_836_800;

    impl Clock for SteppingBack {
        fn now(&self) -> Timestamp {
            let steps = self.0.fetch_add(1, Ordering::SeqCst);
            assert!(steps < 2, "`sleep_until` must read the clock only once");
            Timestamp::from_secs(YEAR_2020 - 3_600 * steps)
        }
    }

    #[test]
    fn a_sleeper_does_not_wait_for_a_clock_that_steps_back() {
        let clock = SteppingBack(AtomicU64::new(0));
        let until = Timestamp::from_secs(YEAR_2020).after(Duration::from_millis(2));
        pollster::block_on(clock.sleep_until(until));
        assert_eq!(clock.now(), Timestamp::from_secs(YEAR_2020 - 3_600));
    }
}
