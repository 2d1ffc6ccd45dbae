#![doc = include_str!("../README.md")]
#![cfg_attr(
    not(feature = "cli"),
    allow(dead_code, unused_imports, reason = "the command line uses the rest")
)]

mod ad_hoc;
mod audit;
#[cfg(feature = "cli")]
mod bench;
mod blocks;
#[cfg(feature = "cli")]
mod cli;
mod client;
pub mod config;
mod engine;
mod envoy;
mod explain;
#[doc(hidden)]
pub mod fuzzing;
mod gate;
mod http;
mod json;
mod live;
mod metrics;
mod outage;
mod reload;
mod resp;
mod server;
mod service;
#[cfg(feature = "cli")]
mod simulate;
mod source;
mod stand_in;
#[cfg(feature = "cli")]
mod top;
mod trace;
#[cfg(feature = "cli")]
mod words;

/// Runs the program: does what the command line says.
#[cfg(feature = "cli")]
pub fn run() -> std::process::ExitCode {
    cli::run()
}
