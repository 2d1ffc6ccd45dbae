//! `cargo xtask simulate-faults`: runs the simulator in `sim/`.

use crate::command::cargo;

/// Runs the simulator with these options.
pub(crate) fn run(options: &[&str]) -> anyhow::Result<()> {
    let words = "run --quiet --profile simulation --package pacegate-sim --";
    let words: Vec<&str> = words.split(' ').chain(options.iter().copied()).collect();
    cargo(&words, &[])
}
