//! Tests of the store on real servers.
#![allow(clippy::unwrap_used, reason = "tests fail by panicking")]
#![allow(clippy::print_stdout, reason = "measurements are printed with --nocapture")]

mod acl;
mod batching;
mod blocks;
mod calendar;
mod conformance;
mod connections;
mod contention;
mod deny_cache;
mod doctor;
mod edges;
mod faults;
mod kit;
mod layouts;
mod others;
mod reservations;
mod thresholds;
mod unsettled;
mod up_to;
mod workers;
