//! The only place in the test kit that reads a clock and sleeps.

use std::{
    thread,
    time::{Duration, Instant},
};

/// Maximum time that the test kit waits for a server.
pub(super) const SERVER_TIMEOUT: Duration = Duration::from_secs(10);

/// Waits until a condition is true, by polling every few milliseconds.
///
/// # Panics
///
/// Panics if it is not true within `limit`; `what` describes the condition.
pub fn eventually(limit: Duration, what: &str, condition: impl FnMut() -> bool) {
    assert!(poll_until(limit, condition), "timed out after {limit:?} waiting until {what}");
}

/// Returns true if the condition becomes true within `limit`.
pub(super) fn poll_until(limit: Duration, mut condition: impl FnMut() -> bool) -> bool {
    let end = now() + limit;
    while !condition() {
        if now() >= end {
            return false;
        }
        wait_until(now() + Duration::from_millis(5));
    }
    true
}

#[expect(clippy::disallowed_methods, reason = "real servers use real time")]
pub(super) fn now() -> Instant {
    Instant::now()
}

#[expect(clippy::disallowed_methods, reason = "other processes can only be polled")]
pub(super) fn wait_until(due: Instant) {
    thread::sleep(due.saturating_duration_since(now()));
}
