#![doc = include_str!("../README.md")]

mod cli;
pub mod config;
mod engine;
mod explain;
mod gate;
mod http;
mod json;
mod metrics;
mod service;

use std::process::ExitCode;

/// Runs the program: does what the command line says.
pub fn run() -> ExitCode {
    cli::run()
}
