use std::{
    fmt,
    io::{self, BufWriter, Write},
    process::ExitCode,
};

use tollgate::{CostError, Decision, Limit, Limiter};

use super::{Trouble, limiter};
use crate::json::JsonDecision;

/// Show how a limit behaves
///
/// Decides about a key whose budget is still untouched, once or several times in a row. The state lives
/// only for this run: nothing that any other program has charged counts, and nothing stays charged.
///
/// Exits with 0 if the last request was allowed, 1 if it was denied, 2 if nothing could be decided, for
/// example because the limit is not one.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(super) struct Args {
    /// Whose budget to charge: a user, an address, any text
    key: String,

    /// What the key may do, such as 5/minute; several must all have room
    #[arg(long = "limit", value_name = "LIMIT", required = true)]
    limits: Vec<String>,

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
    tollgate check --limit 5/minute alice --times 6

  A burst lets more through at once than the rate alone:
    tollgate check --limit '1/second burst 3' alice --times 4

  Two limits, of which the tighter one speaks:
    tollgate check --limit 10/second --limit 3/minute alice --times 4 --json";

/// A decision in words.
struct Words(Decision);

pub(super) fn run(args: &Args) -> Result<ExitCode, Trouble> {
    let limiter = limiter(&args.limits, None)?;
    let mut output = BufWriter::new(io::stdout().lock());
    let mut code = ExitCode::SUCCESS;
    for time in 1..=args.times {
        let decision = decide(&limiter, args)?;
        code = if decision.is_allowed() { ExitCode::SUCCESS } else { ExitCode::from(1) };
        match args.json {
            true => writeln!(output, "{}", JsonDecision(decision)),
            false => writeln!(output, "{time}: {}", Words(decision)),
        }
        .map_err(unwritable)?;
    }
    output.flush().map_err(unwritable)?;
    Ok(code)
}

fn decide(limiter: &Limiter, args: &Args) -> Result<Decision, Trouble> {
    limiter.check_cost(&args.key, args.cost).map_err(|error: CostError| {
        let hint = "ask for less at once, or give the limit a burst, as in '5/minute burst 20'";
        Trouble::new(error, "cannot use --cost", hint)
    })
}

fn unwritable(error: io::Error) -> Trouble {
    Trouble::new(error, "cannot print the decision", "check where standard output leads")
}

impl fmt::Display for Words {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(decision) = self;
        let Some(limit) = decision.limit() else {
            return f.write_str("allowed, without a limit");
        };
        match decision.is_allowed() {
            true => self.write_allowed(f, limit),
            false => self.write_denied(f, limit),
        }
    }
}

impl Words {
    fn write_allowed(&self, f: &mut fmt::Formatter<'_>, limit: Limit) -> fmt::Result {
        let (remaining, reset) = (self.0.remaining(), self.0.reset_after());
        write!(f, "allowed by {limit}, {remaining} remaining, all of it again in {reset:?}")
    }

    fn write_denied(&self, f: &mut fmt::Formatter<'_>, limit: Limit) -> fmt::Result {
        write!(f, "denied by {limit}, {} remaining, ", self.0.remaining())?;
        match self.0.retry_after() {
            Some(wait) => write!(f, "retry in {wait:?}"),
            None => f.write_str("for good"),
        }
    }
}
