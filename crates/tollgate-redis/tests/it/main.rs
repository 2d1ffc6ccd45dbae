//! Tests of the store on real servers.
#![allow(clippy::unwrap_used, reason = "tests tell by panicking")]

mod conformance;
mod contention;
mod kit;
mod workers;
