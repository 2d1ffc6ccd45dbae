use std::{
    fmt,
    io::{self, Write},
    process::ExitCode,
    time::Duration,
};

use anstyle::{AnsiColor, Style};
use anyhow::{Context, anyhow};
use pacegate_redis::{
    RedisUrl,
    doctor::{self, Finding, Level, Options, Report},
};

use super::Trouble;
use crate::json::JsonReport;

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

/// Displays a report as text. The colours can be stripped when printing.
struct Words<'a> {
    url: &'a str,
    report: &'a Report,
}

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
        true => writeln!(output, "{}", JsonReport { url: &url, report: &report }),
        false => write!(output, "{}", Words { url: &url, report: &report }),
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

impl fmt::Display for Words<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let bold = Style::new().bold();
        if !self.report.setup.is_empty() {
            writeln!(f, "{bold}{}{bold:#}", self.url)?;
            write_findings(f, &self.report.setup)?;
        }
        for server in &self.report.servers {
            let name = server.name.as_ref().map(|name| format!(", {name}")).unwrap_or_default();
            writeln!(f, "{bold}{}, {}{name}{bold:#}", server.address, server.part)?;
            write_findings(f, &server.findings)?;
        }
        self.sum_up(f)
    }
}

impl Words<'_> {
    fn sum_up(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let levels = [Level::Problem, Level::Warning, Level::Notice];
        let counted = levels.map(|level| {
            let count = self.report.findings().filter(|finding| finding.level == level).count();
            let plural = if count == 1 { "" } else { "s" };
            format!("{count} {level}{plural} ({})", mark(level).0)
        });
        writeln!(f, "{}", counted.join(", "))
    }
}

fn write_findings(f: &mut fmt::Formatter<'_>, findings: &[Finding]) -> fmt::Result {
    for Finding { level, subject, text, advice, .. } in findings {
        let (mark, style) = mark(*level);
        writeln!(f, "  {style}{mark} {subject:<12}{style:#}{text}")?;
        if let Some(advice) = advice {
            writeln!(f, "    {:<12}→ {advice}", "")?;
        }
    }
    writeln!(f)
}

fn mark(level: Level) -> (char, Style) {
    let color = |color: AnsiColor| Style::new().fg_color(Some(color.into()));
    match level {
        Level::Good => ('✓', color(AnsiColor::Green)),
        Level::Notice => ('·', color(AnsiColor::Cyan)),
        Level::Warning => ('!', color(AnsiColor::Yellow).bold()),
        Level::Problem => ('✗', color(AnsiColor::Red).bold()),
    }
}
