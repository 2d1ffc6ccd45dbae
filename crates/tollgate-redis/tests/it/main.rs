//! Tests of the store on real servers.
#![allow(clippy::unwrap_used, reason = "tests tell by panicking")]
#![allow(clippy::print_stdout, reason = "what was measured is shown if asked for")]

mod conformance;
mod contention;
mod denials;
mod edges;
mod faults;
mod kit;
mod workers;
