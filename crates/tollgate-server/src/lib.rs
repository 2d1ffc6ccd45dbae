#![doc = include_str!("../README.md")]

mod cli;
pub mod config;
#[doc(hidden)]
pub mod fuzzing;
mod json;

use std::process::ExitCode;

/// Runs the program: does what the command line says.
pub fn run() -> ExitCode {
    cli::run()
}
