//! The program as its users meet it: spawned, spoken to and listened to.

#![allow(clippy::unwrap_used, reason = "a helper that cannot go on fails the test")]

mod certificates;
mod check;
mod clients;
mod config;
mod config_hostile;
mod deploy;
mod doctor;
mod drain;
mod envoy;
mod explain;
mod exposure;
mod guides;
mod help;
mod keys;
mod program;
mod reload;
mod reload_load;
mod resp;
mod service;
mod together;
mod traces;
mod validate;
