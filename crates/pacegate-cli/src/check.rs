use std::{
    io::{self, BufWriter, Write},
    process::ExitCode,
};

use anyhow::anyhow;
use pacegate::{Limit, PolicyName};
use pacegate_server::{LocalError, Units, parse_inline_limits};
use serde_json::Value;

use super::{
    CommandError,
    decider::{self, InlineLimits, RequestArgs},
    runtime,
};

/// Check one request: locally, with Redis, or with a server
///
/// A request is a key with inline limits (--limit), or attributes that are matched with policies.
/// Without --store, PACEGATE_STORE or --server, the counters are in memory: they start empty and are
/// lost when the command exits. Use --times to see when a limit denies.
///
/// Exit codes: 0 if the last request was allowed, 1 if it was denied, 2 on error, such as an invalid
/// limit.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(super) struct Check {
    /// Key to check: a user, an address or any other text
    #[arg(required_unless_present = "attributes", conflicts_with = "attributes")]
    key: Option<String>,

    /// Limit of the key, such as 5/minute; can be repeated: then all limits must allow it
    #[arg(long = "limit", value_name = "LIMIT", requires = "key")]
    limits: Vec<String>,

    #[command(flatten)]
    pub(super) request: RequestArgs,

    /// Units to charge; 0 checks without charging
    #[arg(long, value_name = "N", default_value_t = 1)]
    cost: u64,

    /// The units are already spent: record them in full, even if they exceed a limit
    #[arg(long)]
    spent: bool,

    /// Take as many units as there are, up to --cost
    #[arg(long, conflicts_with = "spent")]
    up_to: bool,

    /// Number of checks
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

  With two limits, the tightest is reported:
    pacegate check --limit 10/second --limit 3/minute alice --times 4 --json

  Run a job at most once per hour, on one of several machines:
    pacegate check --store redis://10.0.0.1:6379 --limit 1/hour nightly-report \\
      && run-the-report

  Check a request with a server:
    pacegate check --server http://127.0.0.1:8080 \\
      -a user=alice -a path=/api/export";

pub(super) fn run(args: &Check) -> Result<ExitCode, CommandError> {
    let limits = limits(args)?;
    runtime()?.block_on(decide(args, &limits))
}

async fn decide(args: &Check, limits: &[Limit]) -> Result<ExitCode, CommandError> {
    let decider = args.request.decider().await?;
    let inline = args.key.as_deref().map(|key| InlineLimits { key, limits });
    let units = Units { cost: args.cost, spent: args.spent, up_to: args.up_to };
    let mut output = BufWriter::new(io::stdout().lock());
    let mut code = ExitCode::SUCCESS;
    for time in 1..=args.times {
        let response = decider.decide(&args.request, inline, units).await.map_err(|error| {
            let hint = match error.downcast_ref() {
                Some(LocalError::Check(_)) => {
                    "use a smaller cost, or a limit with a burst such as '5/minute burst 20'"
                }
                _ => decider::hint(&error, "check that the server is running, and see its log"),
            };
            CommandError::new(error, "cannot decide", hint)
        })?;
        code = ExitCode::from(u8::from(response.value["allowed"] != true));
        match args.json {
            true => writeln!(output, "{}", response.text),
            false => writeln!(output, "{time}: {}", decision_text(&response.value)),
        }
        .map_err(unwritable)?;
    }
    output.flush().map_err(unwritable)?;
    Ok(code)
}

fn limits(args: &Check) -> Result<Vec<Limit>, CommandError> {
    let hint =
        "expected an amount per period: 10/second, '10/second burst 20', '5/30s sliding-log'";
    if args.key.is_some() && args.limits.is_empty() {
        let error = anyhow!("a key needs a limit");
        return Err(CommandError::new(error, "missing --limit", hint));
    }
    if args.key.is_none() && !args.request.has_policies() {
        let error = anyhow!("attributes need policies");
        let hint = "use --config FILE or --server URL";
        return Err(CommandError::new(error, "cannot check attributes", hint));
    }
    parse_inline_limits(args.limits.iter().map(String::as_str))
        .map_err(|error| CommandError::new(error, "invalid --limit", hint))
}

fn unwritable(error: io::Error) -> CommandError {
    CommandError::output(error, "cannot print the decision")
}

/// Formats a decision as text.
fn decision_text(answer: &Value) -> String {
    let Some(limit) = answer["limit"].as_str() else {
        let verb = if answer["allowed"] == true { "allowed" } else { "denied" };
        return format!("{verb}: no limit applies{}", shadow(answer));
    };
    let by = match answer["policy"].as_str() {
        Some(policy) if policy != PolicyName::INLINE.as_str() => {
            format!("{limit} of policy {policy}")
        }
        _ => limit.to_owned(),
    };
    let remaining = &answer["remaining"];
    let degraded = if answer["degraded"] == true { ", degraded" } else { "" };
    let rest = match (answer["allowed"] == true, decider::time(answer, "retry_after")) {
        (true, _) => {
            let reset = decider::time(answer, "reset_after").unwrap_or_default();
            format!("resets in {}", decider::short_time(reset))
        }
        (false, None) => "never admitted".to_owned(),
        (false, Some(wait)) => format!("retry in {}", decider::short_time(wait)),
    };
    let verb = if answer["allowed"] == true { "allowed" } else { "denied" };
    let granted = match answer["granted"].as_u64() {
        None => String::new(),
        Some(1) => ", 1 unit granted".to_owned(),
        Some(units) => format!(", {units} units granted"),
    };
    format!("{verb} by {by}{granted}, {remaining} remaining, {rest}{degraded}{}", shadow(answer))
}

fn shadow(answer: &Value) -> &'static str {
    if answer["shadow_denied"] == true { ", denied in shadow mode" } else { "" }
}
