#![doc = include_str!("../README.md")]

mod cli;
pub mod config;
mod engine;
#[allow(dead_code, unused_imports, reason = "the listener that serves it comes with the service")]
mod envoy;
mod gate;
mod json;
mod reload;
mod resp;
mod server;
mod service;
mod source;

use std::process::ExitCode;

/// Runs the program: does what the command line says.
pub fn run() -> ExitCode {
    cli::run()
}
