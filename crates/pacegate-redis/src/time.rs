//! What time it is at the server, as far as it is known here.

use std::{
    hash::{BuildHasher, RandomState},
    sync::Arc,
    time::Duration,
};

use pacegate::{Clock, SystemClock, Timestamp};
use tokio::time::Instant;

/// Whose time decides.
#[derive(Clone, Debug)]
pub(crate) enum Time {
    /// The server's own.
    Server,
    /// That of a clock here, which the scripts are told: for tests.
    Given(Arc<dyn Clock>),
}

/// When an answer came, and how long after its question had left, in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Trip {
    ended: Instant,
    /// The same by the wall clock, which goes on while the machine is suspended.
    wall: Timestamp,
    took: u64,
}

/// Milliseconds that a key outlives its use: nothing depends on them.
const SLACK: u64 = 1_000;
/// The same where a clock of ours stands still while the server's goes on.
const LONG_SLACK: u64 = 600_000;

/// Longer settings mean no more than this one, which can be added to any instant and told to any script.
pub(crate) const LONGEST: Duration = Duration::from_secs(366 * 86_400);

/// No clock runs faster or slower than another by more than one part in so many.
const DRIFT: u64 = 1_000;

impl Time {
    /// The word for the scripts, where 0 is the server's time and all others are one too many; and the slack.
    pub(crate) fn given(&self) -> (u64, u64) {
        match self {
            Self::Server => (0, SLACK),
            Self::Given(clock) => (clock.now().as_micros() + 1, LONG_SLACK),
        }
    }

    /// Between which instants the server's clock stands now, if it stood at `seen` some time during `trip`, which is
    /// `age` nanoseconds ago.
    pub(crate) fn bounds(&self, seen: u64, trip: Trip, age: u64) -> (Timestamp, Timestamp) {
        match self {
            Self::Server => {
                let most = age.max(trip.age_by(SystemClock::new().now()));
                let (least, most) = (age, most.saturating_add(trip.took));
                let earliest = (least - least.div_ceil(DRIFT)) / 1_000;
                let latest = most.saturating_add(most.div_ceil(DRIFT)).div_ceil(1_000);
                let after = |micros| Timestamp::from_micros(seen.saturating_add(micros));
                (after(earliest), after(latest))
            }
            Self::Given(clock) => (clock.now(), clock.now()),
        }
    }
}

impl Trip {
    pub(crate) fn new(sent: Instant, received: Instant) -> Self {
        let (wall, took) = (SystemClock::new().now(), nanos(received.duration_since(sent)));
        Self { ended: received, wall, took }
    }

    /// [`Trip::age`] by the wall clock. That may have been set meanwhile, so it only makes what is known older.
    fn age_by(&self, wall: Timestamp) -> u64 {
        wall.micros_since(self.wall).saturating_mul(1_000)
    }

    /// Nanoseconds since the answer came.
    pub(crate) fn age(&self, now: Instant) -> u64 {
        nanos(now.duration_since(self.ended))
    }
}

/// All of them, up to some centuries.
pub(crate) fn nanos(time: Duration) -> u64 {
    time.as_secs().saturating_mul(1_000_000_000).saturating_add(u64::from(time.subsec_nanos()))
}

/// Any time up to `most`.
pub(crate) fn jitter(most: Duration) -> Duration {
    let range = u64::try_from(most.as_micros()).unwrap_or(u64::MAX).max(1);
    Duration::from_micros(RandomState::new().hash_one(range) % range)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEEN: u64 = 1_000_000;

    /// Microseconds since `SEEN`, at the earliest and at the latest.
    fn bounds(took: u64, age: u64) -> (u64, u64) {
        // No time has passed by the wall clock.
        let trip = Trip { ended: Instant::now(), wall: Timestamp::MAX, took };
        let (earliest, latest) = Time::Server.bounds(SEEN, trip, age);
        (earliest.as_micros() - SEEN, latest.as_micros() - SEEN)
    }

    /// Each bound is rounded away from the other, and drifts by a thousandth that is rounded up.
    #[test]
    fn bounds_are_never_too_close() {
        assert_eq!(bounds(0, 0), (0, 0));
        assert_eq!(bounds(0, 1), (0, 1));
        assert_eq!(bounds(0, 1_001), (0, 2));
        assert_eq!(bounds(0, 1_002), (1, 2));
        assert_eq!(bounds(1_999, 0), (0, 3));
        assert_eq!(bounds(500_000, 2_000_000), (1_998, 2_503));
        assert_eq!(bounds(u64::MAX, 0), (0, Timestamp::MAX.as_micros() - SEEN));
    }

    /// A machine that was suspended has a wall clock that is ahead of its other clock: the server may be that far on.
    #[test]
    fn the_time_of_a_suspended_machine_counts() {
        let now = Instant::now();
        let hour = 3_600_000_000;
        let wall = Timestamp::from_micros(SystemClock::new().now().as_micros() - hour);
        let trip = Trip { wall, ..Trip::new(now, now) };
        let (earliest, latest) = Time::Server.bounds(SEEN, trip, trip.age(now));
        assert_eq!(earliest.as_micros(), SEEN);
        assert!(latest.as_micros() >= SEEN + hour, "{latest:?}");
    }

    #[test]
    fn an_answer_from_the_future_has_no_age() {
        let now = Instant::now();
        let trip = Trip::new(now, now + Duration::from_millis(7));
        assert_eq!((trip.took, trip.age(now)), (7_000_000, 0));
        assert_eq!(trip.age(now + Duration::from_secs(1)), 993_000_000);
    }
}
