//! Simulates servers, Redis, the network and clocks in one process. One seed determines everything.

#![allow(clippy::expect_used, reason = "a simulator reports its own mistakes by panicking")]

pub mod clock;
mod environment;
mod faults;
pub mod history;
mod host;
pub mod ledger;
pub mod network;
mod oracle;
mod panics;
pub mod redis;
pub mod scenario;
mod servers;
pub mod trace;
mod workload;
mod world;

pub use environment::SimulatedEnvironment;
pub use world::{Outcome, Run, simulate};
