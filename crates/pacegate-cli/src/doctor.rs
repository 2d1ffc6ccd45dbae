use std::{process::ExitCode, time::Duration};

use pacegate_redis::{
    RedisUrl,
    doctor::{self, Level, Options, Report},
};
use pacegate_tools::{
    doctor::{ReportText, report_json},
    parse_period,
};

use super::{CommandError, print, runtime};

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
pub(super) struct Doctor {
    /// Server address: redis://, rediss://, redis+cluster://, redis+sentinel:// or redis+unix://
    ///
    /// All users of this machine can see the command line. Use PACEGATE_STORE for an address with a password.
    #[arg(env = "PACEGATE_STORE", hide_env_values = true)]
    url: String,

    /// Deadline of the limiter's calls to the server
    #[arg(long, value_name = "TIME", default_value = "100ms", value_parser = parse_deadline)]
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

/// Maximum value of `--deadline`.
const MAX_DEADLINE: Duration = Duration::from_secs(60);

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

pub(super) fn run(args: &Doctor) -> Result<ExitCode, CommandError> {
    let url: RedisUrl = args.url.parse().map_err(|error| {
        let hint = "see pacegate doctor --help for examples of addresses";
        CommandError::new(error, "invalid address", hint)
    })?;
    let options = Options::default().deadline(args.deadline).prefix(&*args.prefix);
    let report = runtime()?.block_on(doctor::examine(&url, &options));
    let url = url.to_string();
    let text = match args.json {
        true => format!("{}\n", report_json(&url, &report)),
        false => ReportText { url: &url, report: &report }.to_string(),
    };
    print(text, "cannot print the report")?;
    Ok(exit_code(&report, args.strict))
}

fn exit_code(report: &Report, strict: bool) -> ExitCode {
    let worst_allowed = if strict { Level::Notice } else { Level::Warning };
    if !report.is_reached() {
        ExitCode::from(super::EXIT_ERROR)
    } else if report.worst() > worst_allowed {
        ExitCode::from(1)
    } else {
        ExitCode::SUCCESS
    }
}

fn parse_deadline(text: &str) -> anyhow::Result<Duration> {
    let deadline = parse_period(text)?;
    anyhow::ensure!(deadline <= MAX_DEADLINE, "expected a time of at most 60s, such as 20ms");
    Ok(deadline)
}
