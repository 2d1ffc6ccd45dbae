//! The program as its users meet it: spawned, spoken to and listened to.

#![allow(clippy::unwrap_used, reason = "a helper that cannot go on fails the test")]

mod check;
mod config;
mod config_hostile;
mod deploy;
mod doctor;
mod envoy;
mod explain;
mod help;
mod program;
mod resp;
mod service;
mod validate;
