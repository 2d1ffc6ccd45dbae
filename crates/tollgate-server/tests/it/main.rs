//! The program as its users meet it: spawned, spoken to and listened to.

#![allow(clippy::unwrap_used, reason = "a helper that cannot go on fails the test")]

mod check;
mod clients;
mod config;
mod config_hostile;
mod deploy;
mod doctor;
mod drain;
mod envoy;
mod explain;
mod guides;
mod help;
mod keys;
mod program;
mod reload;
mod resp;
mod service;
mod validate;
