//! The program `tollgate`: rate limiting from the command line.

mod cli;
mod json;

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::run()
}
