//! `cargo xtask simulate-faults`: runs seeds, and reports those that break a promise.

use std::{
    io::{self, Write},
    ops::Range,
    process::ExitCode,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context, bail};
use pacegate_sim::{Outcome, simulate};

const USAGE: &str = "\
usage: cargo xtask simulate-faults [options]

  --seed N [--trace]  run one seed twice and compare; --trace prints everything that happened
  --seeds A..B        run these seeds
  --seconds N         run new seeds for N seconds [default: 10]";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match run(&args) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            drop(writeln!(io::stderr(), "error: {error:#}"));
            ExitCode::from(2)
        }
    }
}

/// Returns true if no seed broke a promise.
fn run(args: &[&str]) -> anyhow::Result<bool> {
    match *args {
        ["--seed", seed] => one(number(seed)?, false),
        ["--seed", seed, "--trace"] => one(number(seed)?, true),
        ["--seeds", seeds] => {
            let (first, end) = seeds.split_once("..").context("expected --seeds A..B")?;
            many(number(first)?..number(end)?, None)
        }
        ["--seconds", seconds] => explore(number(seconds)?),
        [] => explore(10),
        _ => bail!("unknown arguments `{}`\n\n{USAGE}", args.join(" ")),
    }
}

fn number(text: &str) -> anyhow::Result<u64> {
    text.parse().with_context(|| format!("invalid number `{text}`"))
}

/// Runs seeds that depend on the time of day.
fn explore(seconds: u64) -> anyhow::Result<bool> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?;
    let first = now.as_secs() * 1_000_000;
    many(first..u64::MAX, Some(Duration::from_secs(seconds)))
}

/// Runs one seed twice, and compares the traces.
fn one(seed: u64, with_lines: bool) -> anyhow::Result<bool> {
    let outcome = simulate(seed, with_lines)?;
    let again = simulate(seed, false)?;
    let mut out = io::stdout().lock();
    for line in &outcome.lines {
        writeln!(out, "{line}")?;
    }
    writeln!(out, "{}", summary(&outcome))?;
    if again.hash != outcome.hash {
        writeln!(out, "seed {seed}: a second run has another trace: {:016x}", again.hash)?;
    }
    Ok(outcome.violations.is_empty() && again.hash == outcome.hash)
}

/// Runs seeds until the time is over or one of them breaks a promise.
fn many(seeds: Range<u64>, limit: Option<Duration>) -> anyhow::Result<bool> {
    let (started, first) = (Instant::now(), seeds.start);
    let (mut decisions, mut faults, mut reported) = (0, 0, started);
    let mut out = io::stdout().lock();
    let mut last = first;
    for seed in seeds {
        if limit.is_some_and(|limit| started.elapsed() >= limit) {
            break;
        }
        let outcome = simulate(seed, false)?;
        (decisions, faults, last) = (decisions + outcome.decisions, faults + outcome.faults, seed);
        if !outcome.violations.is_empty() {
            writeln!(out, "{}", summary(&outcome))?;
            return Ok(false);
        }
        if reported.elapsed() > Duration::from_secs(10) {
            reported = Instant::now();
            writeln!(out, "seeds {first} to {seed}: {decisions} decisions, {faults} faults")?;
        }
    }
    let seconds = started.elapsed().as_secs_f64();
    let rate = decisions as f64 / seconds.max(0.001);
    writeln!(
        out,
        "seeds {first} to {last}: {decisions} decisions, {faults} faults, {rate:.0} decisions per second, no violation"
    )?;
    Ok(true)
}

/// Maximum number of violations that are printed for a seed.
const MAX_SHOWN: usize = 5;

fn summary(outcome: &Outcome) -> String {
    let Outcome { seed, hash, decisions, faults, violations, .. } = outcome;
    let mut text =
        format!("seed {seed}: trace {hash:016x}, {decisions} decisions, {faults} faults");
    for violation in violations.iter().take(MAX_SHOWN) {
        text.push_str("\n  ");
        text.push_str(violation);
    }
    text
}
