//! Everything that can be said of the engine from outside.
#![allow(clippy::unwrap_used, reason = "tests tell by panicking")]

mod agreement;
mod algorithms;
mod bounds;
mod charges;
mod clock_steps;
mod conformance;
mod contention;
mod costs;
mod extension;
mod failure;
mod flood;
mod policies;
mod rates;
mod shared;
mod shares;
mod stats;
mod waiting;

use pacegate::{Algorithm, Limit, Limiter, ManualClock};

/// So many histories per algorithm: ten thousand, or a million where `PACEGATE_LONG` is set.
#[expect(
    clippy::disallowed_methods,
    reason = "tests are told by their runner how long they may take"
)]
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

/// A limiter on a clock that stands still.
fn limiter(text: &str) -> (Limiter, ManualClock) {
    let clock = ManualClock::new();
    let limiter = Limiter::builder().limit(text).clock(clock.clone()).build().unwrap();
    (limiter, clock)
}
