//! Tests of the public API.
#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]

mod agreement;
mod algorithms;
mod allocations;
mod bounds;
mod calendar;
mod charges;
mod clock_steps;
mod conformance;
mod contention;
mod costs;
mod debt;
mod extension;
mod failure;
mod flood;
mod policies;
mod rates;
mod reservations;
mod shared;
mod shares;
mod stats;
mod thresholds;
mod unsettled;
mod up_to;
mod waiting;

use pacegate::{Algorithm, Limit, Limiter, ManualClock};

/// Number of random histories per algorithm: ten thousand, or a million if `PACEGATE_LONG` is set.
#[expect(clippy::disallowed_methods, reason = "the test runner sets PACEGATE_LONG")]
fn histories() -> u64 {
    if std::env::var("PACEGATE_LONG").is_ok() { 1_000_000 } else { 10_000 }
}

const RATE_ALGORITHMS: [Algorithm; 4] = [
    Algorithm::FixedWindow,
    Algorithm::SlidingWindow,
    Algorithm::SlidingLog,
    Algorithm::TokenBucket,
];

fn limit(text: &str) -> Limit {
    text.parse().unwrap()
}

/// Creates a limiter with a manual clock.
fn limiter(text: &str) -> (Limiter, ManualClock) {
    let clock = ManualClock::new();
    let limiter = Limiter::builder().limit(text).clock(clock.clone()).build().unwrap();
    (limiter, clock)
}
