//! The one place of the kit that reads a clock and pauses.

use std::{
    thread,
    time::{Duration, Instant},
};

/// How long the kit waits for a server before it gives up.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);

/// Waits until something is so, by asking every few milliseconds.
///
/// # Panics
///
/// If it is not so within `limit`; `what` says what was waited for.
pub fn eventually(limit: Duration, what: &str, is_so: impl FnMut() -> bool) {
    assert!(becomes_so(limit, is_so), "waited {limit:?} in vain until {what}");
}

/// Whether something is so within `limit`.
pub(super) fn becomes_so(limit: Duration, mut is_so: impl FnMut() -> bool) -> bool {
    let end = now() + limit;
    while !is_so() {
        if now() >= end {
            return false;
        }
        wait_until(now() + Duration::from_millis(5));
    }
    true
}

#[expect(clippy::disallowed_methods, reason = "real servers live in real time")]
pub(super) fn now() -> Instant {
    Instant::now()
}

#[expect(clippy::disallowed_methods, reason = "another process gives no other sign")]
pub(super) fn wait_until(due: Instant) {
    thread::sleep(due.saturating_duration_since(now()));
}
