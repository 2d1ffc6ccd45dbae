//! Functions with `#[rate_limit]`, and the compiler's errors for invalid ones.
#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

mod blocks;
mod boxed;
mod calls;
mod failure;
mod installed;
mod names;
mod permits;
mod shapes;
mod ui;

use pacegate::{Denied, Limiter, ManualClock};

/// Creates a limiter on a stopped clock. No test uses its limit.
fn limiter() -> (Limiter, ManualClock) {
    let clock = ManualClock::new();
    let limiter = Limiter::builder().limit("0/second").clock(clock.clone()).build().unwrap();
    (limiter, clock)
}

/// Returns the number of admitted calls.
fn admitted<T>(calls: u32, mut call: impl FnMut() -> Result<T, Denied>) -> u32 {
    (0..calls).filter(|_| call().is_ok()).count() as u32
}
