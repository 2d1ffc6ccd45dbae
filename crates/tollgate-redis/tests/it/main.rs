//! Tests of the store on real servers.
#![allow(clippy::unwrap_used, reason = "tests tell by panicking")]

#![allow(clippy::unwrap_used, reason = "a helper that cannot go on fails the test")]

mod acl;
mod batching;
mod conformance;
mod connections;
mod doctor;
mod kit;
mod layouts;
mod others;
