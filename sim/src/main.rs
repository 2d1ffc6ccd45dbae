//! `cargo xtask simulate-faults`: runs seeds, and reports those that break a promise.

#![expect(clippy::disallowed_methods, reason = "seeds and totals of a run depend on real time")]

mod totals;

use std::{
    hash::{DefaultHasher, Hasher},
    io::{self, Write},
    ops::Range,
    process::ExitCode,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use anyhow::{Context, bail};
use pacegate_sim::{Outcome, Run, simulate};
use totals::{Totals, cpu_seconds};

const USAGE: &str = "\
usage: cargo xtask simulate-faults [options]

  --seed N [--until MS] [--trace]  run one seed twice and compare; --until ends it early, --trace prints all events
  --seeds A..B                     run these seeds, and print a hash of all traces
  --seconds N                      run new seeds for N seconds [default: 10]
  --resume FILE [--seconds N]      run the seeds after those of FILE, and add the totals to it";

/// Seeds to run.
struct Plan {
    seeds: Range<u64>,
    limit: Option<Duration>,
    /// The file with the totals of earlier runs.
    file: Option<String>,
}

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
        ["--seed", seed, ref options @ ..] => {
            let (until, options) = match options {
                ["--until", millis, rest @ ..] => (Some(1_000 * number(millis)?), rest),
                rest => (None, rest),
            };
            let with_lines = match options {
                [] => false,
                ["--trace"] => true,
                _ => bail!("unknown options `{}`\n\n{USAGE}", options.join(" ")),
            };
            one(Run { seed: number(seed)?, until, with_lines })
        }
        ["--seeds", seeds] => {
            let (first, end) = seeds.split_once("..").context("expected --seeds A..B")?;
            many(Plan { seeds: number(first)?..number(end)?, limit: None, file: None })
        }
        ["--resume", file] => resume(file, None),
        ["--resume", file, "--seconds", seconds] => resume(file, Some(number(seconds)?)),
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
    many(Plan { seeds: first..u64::MAX, limit: Some(Duration::from_secs(seconds)), file: None })
}

/// Continues a long run.
fn resume(file: &str, seconds: Option<u64>) -> anyhow::Result<bool> {
    let first = totals::next_seed(file)?;
    let limit = seconds.map(Duration::from_secs);
    many(Plan { seeds: first..u64::MAX, limit, file: Some(file.to_owned()) })
}

/// Runs one seed twice, and compares the traces.
fn one(run: Run) -> anyhow::Result<bool> {
    let outcome = simulate(run)?;
    let again = simulate(Run { with_lines: false, ..run })?;
    let mut out = io::stdout().lock();
    for line in &outcome.lines {
        writeln!(out, "{line}")?;
    }
    writeln!(out, "{}", summary(&outcome))?;
    if again.hash != outcome.hash {
        let seed = run.seed;
        writeln!(out, "seed {seed}: a second run has another trace: {:016x}", again.hash)?;
    }
    Ok(outcome.violations.is_empty() && again.hash == outcome.hash)
}

/// Runs seeds until the time is over or one of them breaks a promise.
fn many(plan: Plan) -> anyhow::Result<bool> {
    let started = Instant::now();
    let mut totals = Totals::new(plan.seeds.start);
    let (mut hashes, mut reported) = (DefaultHasher::new(), started);
    let mut out = io::stdout().lock();
    for seed in plan.seeds {
        if plan.limit.is_some_and(|limit| started.elapsed() >= limit) {
            break;
        }
        let outcome = simulate(Run::of_seed(seed))?;
        hashes.write_u64(outcome.hash);
        totals.add(&outcome);
        if !outcome.violations.is_empty() {
            writeln!(out, "{}\n  after {:.1} CPU seconds", summary(&outcome), cpu_seconds())?;
            shorten(&outcome, &mut out)?;
            return Ok(false);
        }
        if reported.elapsed() > Duration::from_secs(10) {
            reported = Instant::now();
            writeln!(out, "{totals}")?;
            totals.save(plan.file.as_deref())?;
        }
    }
    totals.save(plan.file.as_deref())?;
    writeln!(out, "{totals}, no violation, hash of all traces {:016x}", hashes.finish())?;
    Ok(true)
}

/// Number of trace lines that are printed for the shortest prefix that fails.
const MAX_LINES: usize = 60;

/// Searches for the shortest prefix of a seed that still breaks a promise, and prints the end of its trace.
fn shorten(outcome: &Outcome, out: &mut impl Write) -> anyhow::Result<()> {
    let seed = outcome.seed;
    let fails = |millis: u64| -> anyhow::Result<bool> {
        let run = Run { seed, until: Some(1_000 * millis), with_lines: false };
        Ok(!simulate(run)?.violations.is_empty())
    };
    let (mut passing, mut failing) = (0, outcome.end / 1_000);
    while failing - passing > 1 {
        let middle = passing + (failing - passing) / 2;
        match fails(middle)? {
            true => failing = middle,
            false => passing = middle,
        }
    }
    let shortest = simulate(Run { seed, until: Some(1_000 * failing), with_lines: true })?;
    writeln!(out, "the shortest prefix that fails ends after {failing} ms:")?;
    let lines = &shortest.lines;
    for line in &lines[lines.len().saturating_sub(MAX_LINES)..] {
        writeln!(out, "{line}")?;
    }
    writeln!(out, "{}", summary(&shortest))?;
    let command = format!("cargo xtask simulate-faults --seed {seed} --until {failing} --trace");
    writeln!(out, "all {} events: {command}", lines.len())?;
    Ok(())
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
