//! The bounds of reservations, for all listeners.

use std::time::Duration;

use pacegate::{ReservationId, ReservationIdError};

/// The time for which a reservation is open, in seconds.
pub(crate) const DEFAULT_TTL: u64 = 300;
/// The longest time, in seconds: seven days.
pub(crate) const MAX_TTL: u64 = 7 * 24 * 3_600;

/// A time to live that is not accepted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected 1 to {MAX_TTL} seconds (7 days)")]
pub(crate) struct TtlError;

/// Returns the time for which a reservation is open.
pub(crate) fn ttl(seconds: Option<u64>) -> Result<Duration, TtlError> {
    match seconds.unwrap_or(DEFAULT_TTL) {
        seconds @ 1..=MAX_TTL => Ok(Duration::from_secs(seconds)),
        _ => Err(TtlError),
    }
}

/// Parses the id of a reservation.
pub(crate) fn parse_id(text: &str) -> Result<ReservationId, ReservationIdError> {
    text.parse()
}
