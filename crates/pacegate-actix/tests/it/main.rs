//! The middleware around handlers of actix-web. What it shares with others is tested with them.
#![allow(clippy::unwrap_used, reason = "tests tell by panicking")]

mod kit;
mod middleware;
mod requests;
mod shared;
