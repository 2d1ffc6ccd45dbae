//! What functions with `#[rate_limit]` do, and what the compiler says of those that cannot be.
#![allow(clippy::unwrap_used, reason = "tests tell by panicking")]

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

/// A limiter on a clock that stands still. Its own limit is for nobody.
fn limiter() -> (Limiter, ManualClock) {
    let clock = ManualClock::new();
    let limiter = Limiter::builder().limit("0/second").clock(clock.clone()).build().unwrap();
    (limiter, clock)
}

/// How many of `calls` calls were not denied.
fn admitted<T>(calls: u32, mut call: impl FnMut() -> Result<T, Denied>) -> u32 {
    (0..calls).filter(|_| call().is_ok()).count() as u32
}
