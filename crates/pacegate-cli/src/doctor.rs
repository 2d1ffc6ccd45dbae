use std::{
    io::{self, Write},
    process::ExitCode,
    time::Duration,
};

use anyhow::{Context, anyhow};
use pacegate_redis::{
    RedisUrl,
    doctor::{self, Level, Options, Report},
};
use pacegate_tools::doctor::{ReportText, report_json};

use super::Trouble;

/// Check Redis or Valkey servers for use as a store
///
/// Examines every server that the address leads to: a single server, each master of a cluster, or the
/// sentinels and their master. Checks version, memory, eviction, persistence, role, replicas, clock,
/// latency and permissions, and runs the scripts on temporary keys. Each finding includes advice.
///
/// Exit codes: 0 if there is no problem, 1 if there is a problem (with --strict: or a warning), 2 if no
/// server could be reached or the address is invalid.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(super) struct Args {
    /// Server address: redis://, rediss://, redis+cluster://, redis+sentinel:// or redis+unix://
    ///
    /// All users of this machine can see the command line. Use PACEGATE_STORE for an address with a password.
    #[arg(env = "PACEGATE_STORE", hide_env_values = true)]
    url: String,

    /// Deadline of the limiter's calls to the server
    #[arg(long, value_name = "TIME", default_value = "100ms", value_parser = parse_duration)]
    deadline: Duration,

    /// Prefix of the limiter's keys
    #[arg(long, value_name = "TEXT", default_value = "pg:")]
    prefix: String,

    /// Print one line of JSON
    #[arg(long)]
    json: bool,

    /// Also exit with 1 for warnings, for start-up scripts
    #[arg(long)]
    strict: bool,
}

const EXAMPLES: &str = "\
Examples:
  Check a single server:
    pacegate doctor redis://127.0.0.1:6379

  Check a cluster with the limiter's user and deadline:
    pacegate doctor --deadline 10ms \\
      redis+cluster://pacegate:PASSWORD@10.0.0.1:6379,10.0.0.2:6379

  Fail on warnings too, and save the report:
    pacegate doctor redis+sentinel://10.0.0.1:26379/mymaster \\
      --strict --json > doctor.json";

pub(super) fn run(args: &Args) -> Result<ExitCode, Trouble> {
    let url: RedisUrl = args.url.parse().map_err(|error| {
        let hint = "see pacegate doctor --help for examples of addresses";
        Trouble::new(error, "invalid address", hint)
    })?;
    let options = Options::default().deadline(args.deadline).prefix(&*args.prefix);
    let report = examine(&url, &options).map_err(|error| {
        Trouble::new(error, "cannot start", "check the limits for threads and open files")
    })?;
    let url = url.to_string();
    let mut output = anstream::stdout().lock();
    match args.json {
        true => writeln!(output, "{}", report_json(&url, &report)),
        false => write!(output, "{}", ReportText { url: &url, report: &report }),
    }
    .and_then(|()| output.flush())
    .map_err(|error| Trouble::output(error, "cannot print the report"))?;
    Ok(exit_code(&report, args.strict))
}

fn examine(url: &RedisUrl, options: &Options) -> io::Result<Report> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    Ok(runtime.block_on(doctor::examine(url, options)))
}

fn exit_code(report: &Report, strict: bool) -> ExitCode {
    let worst_allowed = if strict { Level::Notice } else { Level::Warning };
    if !report.is_reached() {
        ExitCode::from(super::TROUBLE)
    } else if report.worst() > worst_allowed {
        ExitCode::from(1)
    } else {
        ExitCode::SUCCESS
    }
}

/// Parses a number with a unit, such as `20ms`.
fn parse_duration(text: &str) -> anyhow::Result<Duration> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let number: u64 =
        number.parse().context("expected a whole number with a unit, such as 20ms")?;
    let duration = match unit {
        "us" => Duration::from_micros(number),
        "ms" => Duration::from_millis(number),
        "s" => Duration::from_secs(number),
        _ => {
            return Err(anyhow!("unknown unit `{unit}`: expected us, ms or s, such as 20ms"));
        }
    };
    if duration.is_zero() {
        return Err(anyhow!("must be greater than zero, such as 20ms"));
    }
    Ok(duration)
}
