#![doc = include_str!("../README.md")]

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
mod metrics;
mod reload;
mod resp;
mod server;
mod service;
mod source;
mod trace;

use std::process::ExitCode;

/// Runs the program: does what the command line says.
pub fn run() -> ExitCode {
    cli::run()
}
