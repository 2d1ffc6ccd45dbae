use std::{
    io::{self, BufWriter, ErrorKind, Read, Write},
    process::ExitCode,
};

use anyhow::{Context, bail, ensure};
use clap::builder::RangedU64ValueParser;
use tollgate::{Decision, Limiter, MemoryStore};

use super::{
    Trouble, limiter,
    lines::{Line, Lines},
    say,
};
use crate::json::{JsonDecision, JsonError};

/// Decide for each line of standard input
///
/// Each line is a key, or a key, a tab and a cost. A cost of 0 asks without charging anything. Each is
/// answered, in order, by one line of JSON on standard output: a decision, or an error, after which
/// the next line is read. Times are in seconds.
///
/// The state is in memory and ends with the program. At the end of the input, what was decided is
/// summed up on standard error.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(super) struct Args {
    /// What each key may do, such as 10/second; several must all have room
    #[arg(long = "limit", value_name = "LIMIT", default_value = "10/second")]
    limits: Vec<String>,

    /// How many keys to remember; new ones beyond that share one budget
    #[arg(long, value_name = "N", default_value_t = MemoryStore::DEFAULT_MAX_KEYS)]
    #[arg(value_parser = RangedU64ValueParser::<usize>::new().range(1..))]
    max_keys: usize,
}

const EXAMPLES: &str = "\
Examples:
  Type keys and see the decisions:
    tollgate serve --limit 2/minute

  Charge bob three units at once:
    printf 'alice\\nbob\\t3\\n' | tollgate serve --limit '10/second burst 20'

  Hold every address of an access log to two limits:
    cut -d' ' -f1 access.log | tollgate serve --limit 10/second --limit 100/minute";

pub(super) fn run(args: &Args) -> Result<ExitCode, Trouble> {
    let limiter = limiter(&args.limits, Some(args.max_keys))?;
    greet(args);
    match session(&limiter, io::stdin().lock(), BufWriter::new(io::stdout().lock())) {
        // Whoever read the answers has read enough, as `head` does.
        Err(error) if error.kind() == ErrorKind::BrokenPipe => {}
        done => done.map_err(|error| {
            let hint = "check where standard input and output lead";
            Trouble::new(error, "cannot go on deciding", hint)
        })?,
    }
    sum_up(&limiter);
    Ok(ExitCode::SUCCESS)
}

fn greet(args: &Args) {
    let limits = args.limits.join(" and ");
    say(format_args!("limiting each key to {limits}, in memory, for up to {} keys", args.max_keys));
    say("each line is a key, or a key, a tab and a cost; try one: alice");
}

fn session(limiter: &Limiter, input: impl Read, mut output: impl Write) -> io::Result<()> {
    let mut lines = Lines::new(input);
    while let Some(line) = lines.next()? {
        match decide(limiter, line) {
            Ok(decision) => writeln!(output, "{}", JsonDecision(decision))?,
            Err(error) => writeln!(output, "{}", JsonError(error))?,
        }
        if !lines.has_next() {
            output.flush()?;
        }
    }
    Ok(())
}

fn sum_up(limiter: &Limiter) {
    for policy in limiter.stats().policies {
        let (allowed, denied) = (policy.allowed, policy.denied);
        say(format_args!("policy {}: {allowed} allowed, {denied} denied", policy.policy));
    }
}

fn decide(limiter: &Limiter, line: Line<'_>) -> anyhow::Result<Decision> {
    let Line::Whole(line) = line else {
        bail!("the line is longer than {} bytes", Lines::<&[u8]>::MAX_LENGTH);
    };
    let (key, cost) = parse(line)?;
    ensure!(!key.is_empty(), "the line has no key: write a key, or a key, a tab and a cost");
    Ok(limiter.check_cost(key, cost)?)
}

/// The first tab ends the key, so that no key can be taken for another key and a cost.
fn parse(line: &[u8]) -> anyhow::Result<(&[u8], u64)> {
    let mut parts = line.splitn(2, |&byte| byte == b'\t');
    let key = parts.next().unwrap_or_default();
    Ok((key, parts.next().map_or(Ok(1), parse_cost)?))
}

fn parse_cost(cost: &[u8]) -> anyhow::Result<u64> {
    let text = String::from_utf8_lossy(cost);
    text.parse().with_context(|| {
        let start: String = text.chars().take(40).collect();
        format!("the cost `{start}` is not a whole number up to {}", u64::MAX)
    })
}
