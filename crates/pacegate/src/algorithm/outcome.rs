use std::time::Duration;

use super::{NEVER, micros};
use crate::clock::Timestamp;

/// The outcome of a charge for one key, as a store or a custom algorithm returns it.
///
/// A limiter combines the outcomes of a request into a [`Decision`](crate::Decision). Two outcomes are equal if they
/// differ only in the time at which they were decided, or in their debt.
///
/// ```
/// use std::time::Duration;
/// use pacegate::algorithm::Outcome;
///
/// let second = Duration::from_secs(1);
/// assert!(Outcome::admitted(4, second).is_admitted());
/// let denied = Outcome::denied(2, Some(second), second);
/// assert_eq!((denied.remaining(), denied.retry_after()), (2, Some(second)));
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Outcome {
    pub(crate) remaining: u64,
    /// In microseconds; 0 only if admitted, [`NEVER`] if waiting does not help.
    pub(crate) retry_after: u64,
    pub(crate) reset_after: u64,
    pub(crate) origin: Origin,
    /// The time of the decision by the clock of the store, in microseconds; 0 if the store uses the clock of this
    /// process.
    pub(crate) decided_at: u64,
    /// Units recorded beyond the capacity; only of a peek or a recorded excess that was denied.
    pub(crate) debt: u64,
}

/// The source of an outcome.
// As wide as the other fields: an outcome is copied in whole words, and a narrow store just before a wide
// load would stall the CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u64)]
#[non_exhaustive]
pub enum Origin {
    /// The state of the key.
    #[default]
    Store,
    /// The overflow budget, which keys without room share.
    Overflow,
    /// A cached denial that is still valid.
    DenyCache,
    /// Prefetched units, used without a call to the store.
    Lease,
}

impl PartialEq for Outcome {
    fn eq(&self, other: &Self) -> bool {
        let Self { remaining, retry_after, reset_after, origin, decided_at: _, debt: _ } = *self;
        (remaining, retry_after, reset_after, origin)
            == (other.remaining, other.retry_after, other.reset_after, other.origin)
    }
}

impl Eq for Outcome {}

impl Outcome {
    /// Creates an admission with the remaining units and the time until everything is available again, rounded up to
    /// the microsecond.
    pub fn admitted(remaining: u64, reset_after: Duration) -> Self {
        Self::taken(remaining, micros(reset_after))
    }

    /// Creates a denial. `retry_after` is the time until the same cost would be admitted; `None` if never.
    ///
    /// Times are rounded up to the microsecond, and `retry_after` is at least one. `remaining` may be above 0, if the
    /// cost was higher.
    pub fn denied(remaining: u64, retry_after: Option<Duration>, reset_after: Duration) -> Self {
        let retry_after = retry_after.map_or(NEVER, |wait| micros(wait).max(1));
        Self::refused(remaining, retry_after, micros(reset_after))
    }

    /// Returns true if the cost was admitted, or would be for a peek.
    #[inline]
    pub fn is_admitted(&self) -> bool {
        self.retry_after == 0
    }

    /// Returns `true` if this outcome, not `other`, decides a request to which both limits apply. See
    /// [`Decision::is_tighter_than`](crate::Decision::is_tighter_than).
    #[inline]
    pub(crate) fn is_tighter_than(&self, other: &Self) -> bool {
        match (self.is_admitted(), other.is_admitted()) {
            (true, true) => self.remaining < other.remaining,
            (false, false) => self.retry_after > other.retry_after,
            (admitted, _) => !admitted,
        }
    }

    /// Returns the units that would be admitted now, after this charge.
    pub fn remaining(&self) -> u64 {
        self.remaining
    }

    /// Returns the time until the same cost would be admitted; zero if it was, `None` if it never will be.
    pub fn retry_after(&self) -> Option<Duration> {
        (self.retry_after != NEVER).then(|| Duration::from_micros(self.retry_after))
    }

    /// Returns the time until everything is available again.
    pub fn reset_after(&self) -> Duration {
        Duration::from_micros(self.reset_after)
    }

    /// Returns the [debt](crate::Excess::Debt) in units: those that are recorded beyond the capacity. Known if a peek,
    /// or units that are already spent, were denied; otherwise 0.
    pub fn debt(&self) -> u64 {
        self.debt
    }

    /// Sets the debt in units.
    #[must_use]
    pub fn with_debt(self, debt: u64) -> Self {
        Self { debt, ..self }
    }

    /// Returns the source of the outcome.
    pub fn origin(&self) -> Origin {
        self.origin
    }

    /// Returns the instant of the decision by the clock of the store. `None` if the store uses the clock of this
    /// process.
    pub fn decided_at(&self) -> Option<Timestamp> {
        (self.decided_at > 0).then(|| Timestamp::from_micros(self.decided_at))
    }

    /// Sets the instant of the decision, for a store on another machine with a separate clock. Instants that clients
    /// see, such as `X-RateLimit-Reset`, are then computed from the clock of the store.
    #[must_use]
    pub fn with_decided_at(self, instant: Timestamp) -> Self {
        Self { decided_at: instant.as_micros(), ..self }
    }

    /// Sets the origin, for a store that answers some charges from a cache or a lease.
    #[must_use]
    pub fn with_origin(self, origin: Origin) -> Self {
        Self { origin, ..self }
    }

    /// Returns the outcome of any cost with an amount of 0.
    // Not a constant: that would be copied from memory, and all other outcomes of the function with it.
    #[inline]
    pub(super) const fn nothing() -> Self {
        Self::refused(0, NEVER, 0)
    }

    /// Creates an admission. `reset_after` is in microseconds.
    #[inline]
    pub(crate) const fn taken(remaining: u64, reset_after: u64) -> Self {
        let (origin, decided_at, debt) = (Origin::Store, 0, 0);
        Self { remaining, retry_after: 0, reset_after, origin, decided_at, debt }
    }

    /// Creates a denial. Times are in microseconds; `retry_after` must not be 0.
    #[inline]
    pub(crate) const fn refused(remaining: u64, retry_after: u64, reset_after: u64) -> Self {
        let (origin, decided_at, debt) = (Origin::Store, 0, 0);
        Self { remaining, retry_after, reset_after, origin, decided_at, debt }
    }
}
