use std::{
    io::{self, BufWriter, Write},
    process::ExitCode,
};

use anyhow::anyhow;
use pacegate::Limit;
use serde_json::Value;

use super::{
    Trouble,
    asking::{self, Asking, Own},
};
use crate::ad_hoc::{self, Limits};

/// Decide about one request: here, in Redis, or by asking a service
///
/// The request is a key with limits that are given here, or attributes that policies decide about.
/// Without --store, PACEGATE_STORE or --server the state lives only for this run: nothing that any
/// other program has charged counts, and nothing stays charged. With --times one sees how a limit
/// behaves.
///
/// Exits with 0 if the last request was allowed, 1 if it was denied, 2 if nothing could be decided, for
/// example because the limit is not one.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(super) struct Args {
    /// Whose budget to charge: a user, an address, any text
    #[arg(required_unless_present = "attributes", conflicts_with = "attributes")]
    key: Option<String>,

    /// What the key may do, such as 5/minute; several must all have room
    #[arg(long = "limit", value_name = "LIMIT", requires = "key")]
    limits: Vec<String>,

    #[command(flatten)]
    pub(super) asking: Asking,

    /// Units to charge each time; 0 asks without charging
    #[arg(long, value_name = "N", default_value_t = 1)]
    cost: u64,

    /// How many times to ask
    #[arg(long, value_name = "N", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    times: u64,

    /// Print each decision as one line of JSON, with times in seconds
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  The sixth request within a minute is denied:
    pacegate check --limit 5/minute alice --times 6

  A burst lets more through at once than the rate alone:
    pacegate check --limit '1/second burst 3' alice --times 4

  Two limits, of which the tighter one speaks:
    pacegate check --limit 10/second --limit 3/minute alice --times 4 --json

  Run a job at most once an hour, however many machines try:
    pacegate check --store redis://10.0.0.1:6379 --limit 1/hour nightly-report && run-the-report

  Ask a service about a request:
    pacegate check --server http://127.0.0.1:8080 -a user=alice -a path=/api/export";

pub(super) fn run(args: &Args) -> Result<ExitCode, Trouble> {
    let limits = limits(args)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| {
        Trouble::new(error, "cannot begin", "see whether the system is out of threads or files")
    })?;
    runtime.block_on(decide(args, &limits))
}

async fn decide(args: &Args, limits: &[Limit]) -> Result<ExitCode, Trouble> {
    let judge = args.asking.judge().await?;
    let own = args.key.as_deref().map(|key| Own { key, limits });
    let mut output = BufWriter::new(io::stdout().lock());
    let mut code = ExitCode::SUCCESS;
    for time in 1..=args.times {
        let answer = judge.decide(&args.asking, own, args.cost).await.map_err(|error| {
            let hint = if error.is::<pacegate::CheckError>() {
                "ask for less at once, or give the limit a burst, as in '5/minute burst 20'"
            } else if error.is::<asking::Undecided>() {
                asking::DOCTOR
            } else {
                "see whether the service runs, and whether its log says more"
            };
            Trouble::new(error, "cannot decide", hint)
        })?;
        code = ExitCode::from(u8::from(answer.value["allowed"] != true));
        match args.json {
            true => writeln!(output, "{}", answer.text),
            false => writeln!(output, "{time}: {}", words(&answer.value)),
        }
        .map_err(unwritable)?;
    }
    output.flush().map_err(unwritable)?;
    Ok(code)
}

fn limits(args: &Args) -> Result<Limits, Trouble> {
    let hint =
        "a limit is an amount per period: 10/second, '10/second burst 20', '5/30s sliding-log'";
    if args.key.is_some() && args.limits.is_empty() {
        let error = anyhow!("a key alone says nothing of its limit");
        return Err(Trouble::new(error, "cannot use KEY without --limit", hint));
    }
    if args.key.is_none() && !args.asking.has_policies() {
        let error = anyhow!("attributes need policies that decide about them");
        let hint = "name a file with --config, or a service with --server";
        return Err(Trouble::new(error, "cannot use --attribute", hint));
    }
    let mut limits = Limits::new();
    for text in &args.limits {
        ad_hoc::add(&mut limits, text)
            .map_err(|error| Trouble::new(error, "cannot use --limit", hint))?;
    }
    Ok(limits)
}

fn unwritable(error: io::Error) -> Trouble {
    Trouble::output(error, "cannot print the decision")
}

/// A decision in words.
fn words(answer: &Value) -> String {
    let Some(limit) = answer["limit"].as_str() else {
        let verb = if answer["allowed"] == true { "allowed" } else { "denied" };
        return format!("{verb}, without a limit{}", shadow(answer));
    };
    let by = match answer["policy"].as_str() {
        Some("ad-hoc") | None => limit.to_owned(),
        Some(policy) => format!("{limit} of policy {policy}"),
    };
    let remaining = &answer["remaining"];
    let degraded = if answer["degraded"] == true { ", without the store" } else { "" };
    let rest = match (answer["allowed"] == true, asking::time(answer, "retry_after")) {
        (true, _) => {
            let reset = asking::time(answer, "reset_after").unwrap_or_default();
            format!("all of it again in {reset:?}")
        }
        (false, None) => "for good".to_owned(),
        (false, Some(wait)) => format!("retry in {wait:?}"),
    };
    let verb = if answer["allowed"] == true { "allowed" } else { "denied" };
    format!("{verb} by {by}, {remaining} remaining, {rest}{degraded}{}", shadow(answer))
}

fn shadow(answer: &Value) -> &'static str {
    if answer["shadow_denied"] == true { ", which shadow mode would deny" } else { "" }
}
