//! The middleware around handlers of actix-web. `pacegate-http` tests the shared parts.
#![allow(clippy::unwrap_used, reason = "a panic fails the test")]

mod kit;
mod middleware;
mod requests;
mod shared;
