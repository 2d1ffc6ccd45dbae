//! Estimates of the server's time.

use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

use pacegate::{Clock, Timestamp};
use tokio::time::Instant;

use crate::environment::Environment;

/// The clock that decides.
#[derive(Clone, Debug)]
pub(crate) enum Time {
    /// The server's clock. Between its answers, it is estimated by the clocks of this host.
    Server(Arc<dyn Environment>),
    /// A clock of the caller, passed to the scripts: for tests.
    Given(Arc<dyn Clock>),
}

/// An estimate of one server's time, for the windows of calendar periods.
///
/// A wrong estimate costs a round trip, but decides nothing: the scripts check the window.
#[derive(Debug)]
pub(crate) struct TimeEstimate {
    host: Arc<dyn Environment>,
    /// Microseconds by which the server's clock is ahead of that of this host. Changes only after an estimate was
    /// wrong.
    ahead: AtomicI64,
}

impl TimeEstimate {
    pub(crate) fn new(host: Arc<dyn Environment>) -> Self {
        Self { host, ahead: AtomicI64::new(0) }
    }

    pub(crate) fn now(&self) -> Timestamp {
        let micros = self.host.now().as_micros();
        let ahead = self.ahead.load(Ordering::Relaxed);
        Timestamp::from_micros(micros.saturating_add_signed(ahead))
    }

    /// Corrects the estimate: the server's clock has just shown this time.
    pub(crate) fn correct(&self, server: Timestamp) {
        let [server, local] = [server, self.host.now()].map(|time| time.as_micros().cast_signed());
        self.ahead.store(server - local, Ordering::Relaxed);
    }
}

/// The end of a round trip, and its duration in nanoseconds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RoundTrip {
    ended: Instant,
    /// The end by the wall clock, which continues while the machine is suspended.
    wall: Timestamp,
    took: u64,
}

/// Milliseconds that keys live longer than needed. Correctness does not depend on it.
const SLACK: u64 = 1_000;
/// The same with a clock of the caller, which may stand still while the server's clock runs.
const LONG_SLACK: u64 = 600_000;

/// Maximum of configured durations, so that they can be added to any instant and passed to any script.
pub(crate) const MAX_DURATION: Duration = Duration::from_secs(366 * 86_400);

/// Clocks drift apart by at most one part in this many.
const DRIFT: u64 = 1_000;

impl Time {
    /// Returns the time for the scripts, where 0 means the server's time and other values are the time plus one; and
    /// the slack.
    pub(crate) fn script_time(&self) -> (u64, u64) {
        match self {
            Self::Server(_) => (0, SLACK),
            Self::Given(clock) => (clock.now().as_micros() + 1, LONG_SLACK),
        }
    }

    /// Returns the earliest and the latest time that the server's clock can show now, if it showed `seen` during
    /// `trip`, which ended `age` nanoseconds ago.
    pub(crate) fn bounds(&self, seen: u64, trip: RoundTrip, age: u64) -> (Timestamp, Timestamp) {
        match self {
            Self::Server(host) => {
                let most = age.max(trip.age_by(host.now()));
                let (least, most) = (age, most.saturating_add(trip.took));
                let earliest = (least - least.div_ceil(DRIFT)) / 1_000;
                let latest = most.saturating_add(most.div_ceil(DRIFT)).div_ceil(1_000);
                let after = |micros| Timestamp::from_micros(seen.saturating_add(micros));
                (after(earliest), after(latest))
            }
            Self::Given(clock) => (clock.now(), clock.now()),
        }
    }

    /// Returns the round trip of a command that was sent and received at these instants.
    pub(crate) fn round_trip(&self, sent: Instant, received: Instant) -> RoundTrip {
        let wall = match self {
            Self::Server(host) => host.now(),
            Self::Given(clock) => clock.now(),
        };
        RoundTrip { ended: received, wall, took: nanos(received.duration_since(sent)) }
    }
}

impl RoundTrip {
    /// Returns the age by the wall clock. That may have been set since, so it is used for the upper bound only.
    fn age_by(&self, wall: Timestamp) -> u64 {
        wall.micros_since(self.wall).saturating_mul(1_000)
    }

    /// Returns the nanoseconds since its end.
    pub(crate) fn age(&self, now: Instant) -> u64 {
        nanos(now.duration_since(self.ended))
    }
}

/// Returns a duration in nanoseconds, saturating after some centuries.
pub(crate) fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Returns a duration below `limit`, chosen by a random number.
pub(crate) fn jitter(limit: Duration, random: u64) -> Duration {
    let range = u64::try_from(limit.as_micros()).unwrap_or(u64::MAX).max(1);
    Duration::from_micros(random % range)
}

#[cfg(test)]
mod tests {
    use pacegate::SystemClock;

    use super::*;
    use crate::environment::OperatingSystem;

    const SEEN: u64 = 1_000_000;

    fn server_time() -> Time {
        Time::Server(Arc::new(OperatingSystem))
    }

    /// Returns the earliest and the latest time, in microseconds since `SEEN`.
    fn bounds(took: u64, age: u64) -> (u64, u64) {
        // No time has passed by the wall clock.
        let trip = RoundTrip { ended: Instant::now(), wall: Timestamp::MAX, took };
        let (earliest, latest) = server_time().bounds(SEEN, trip, age);
        (earliest.as_micros() - SEEN, latest.as_micros() - SEEN)
    }

    /// Each bound is rounded away from the other, with a drift of a thousandth, rounded up.
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

    /// After a suspension the wall clock is ahead of the monotonic clock; the server may be as far ahead.
    #[test]
    fn the_time_of_a_suspended_machine_counts() {
        let now = Instant::now();
        let hour = 3_600_000_000;
        let wall = Timestamp::from_micros(SystemClock::new().now().as_micros() - hour);
        let trip = RoundTrip { wall, ..server_time().round_trip(now, now) };
        let (earliest, latest) = server_time().bounds(SEEN, trip, trip.age(now));
        assert_eq!(earliest.as_micros(), SEEN);
        assert!(latest.as_micros() >= SEEN + hour, "{latest:?}");
    }

    #[test]
    fn a_round_trip_in_the_future_has_no_age() {
        let now = Instant::now();
        let trip = server_time().round_trip(now, now + Duration::from_millis(7));
        assert_eq!((trip.took, trip.age(now)), (7_000_000, 0));
        assert_eq!(trip.age(now + Duration::from_secs(1)), 993_000_000);
    }
}
