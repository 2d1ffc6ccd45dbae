//! Tests of the store on real servers.
#![allow(clippy::unwrap_used, reason = "tests tell by panicking")]

mod acl;
mod batching;
mod conformance;
mod connections;
mod contention;
mod doctor;
mod kit;
mod layouts;
mod others;
mod workers;
