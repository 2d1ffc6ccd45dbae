//! What time it is at the server, as far as it is known here.

use std::{
    hash::{BuildHasher, RandomState},
    sync::Arc,
    time::Duration,
};

use tokio::time::Instant;
use tollgate::{Clock, Timestamp};

/// Whose time decides.
#[derive(Clone, Debug)]
pub(crate) enum Time {
    /// The server's own.
    Server,
    /// That of a clock here, which the scripts are told: for tests.
    Given(Arc<dyn Clock>),
}

/// When a question left and when its answer came.
pub(crate) type Trip = (Instant, Instant);

/// Milliseconds that a key outlives its use: nothing depends on them.
const SLACK: u64 = 1_000;
/// The same where a clock of ours stands still while the server's goes on.
const LONG_SLACK: u64 = 600_000;

/// No clock runs faster or slower than another by more than one part in so many.
const DRIFT: u32 = 1_000;

impl Time {
    /// The word for the scripts, where 0 is the server's time and all others are one too many; and the slack.
    pub(crate) fn given(&self) -> (u64, u64) {
        match self {
            Self::Server => (0, SLACK),
            Self::Given(clock) => (clock.now().as_micros() + 1, LONG_SLACK),
        }
    }

    /// Between which instants the server's clock stands now, if it stood at `seen` some time during `trip`.
    pub(crate) fn bounds(&self, seen: u64, trip: Trip, now: Instant) -> (Timestamp, Timestamp) {
        match self {
            Self::Server => {
                let seen = Timestamp::from_micros(seen);
                let (least, most) = (now.duration_since(trip.1), now.duration_since(trip.0));
                (seen.after(least - least / DRIFT), seen.after(most + most / DRIFT))
            }
            Self::Given(clock) => (clock.now(), clock.now()),
        }
    }
}

/// Any time up to `most`.
pub(crate) fn jitter(most: Duration) -> Duration {
    let range = u64::try_from(most.as_micros()).unwrap_or(u64::MAX).max(1);
    Duration::from_micros(RandomState::new().hash_one(range) % range)
}
