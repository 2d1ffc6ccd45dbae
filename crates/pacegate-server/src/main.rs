//! The program `pacegate`.

use std::process::ExitCode;

fn main() -> ExitCode {
    pacegate_server::run()
}
