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

/// See whether Redis or Valkey is fit to hold limits
///
/// Looks at every server that the address leads to: one, each master of a cluster, or the sentinels
/// and their master. It asks for version, memory, eviction, persistence, role, replicas, clock,
/// round trips and rights, and tries the scripts on scratch keys that it removes. Each finding says
/// what to do.
///
/// Exits with 0 if all is well, 1 if there is a problem (with --strict: or a warning), 2 if no server
/// could be reached or the address is not one.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(super) struct Args {
    /// Where the servers are: redis://, rediss://, redis+cluster://, redis+sentinel://, redis+unix://
    url: String,

    /// How long a call of the limiter may take
    #[arg(long, value_name = "TIME", default_value = "20ms", value_parser = parse_duration)]
    deadline: Duration,

    /// What the names of the limiter's keys begin with
    #[arg(long, value_name = "TEXT", default_value = "pg:")]
    prefix: String,

    /// Print one line of JSON
    #[arg(long)]
    json: bool,

    /// Exit with 1 for warnings, too: for start-up scripts
    #[arg(long)]
    strict: bool,
}

const EXAMPLES: &str = "\
Examples:
  One server:
    pacegate doctor redis://127.0.0.1:6379

  A cluster, as the user that the limiter is going to be, and with its deadline:
    pacegate doctor redis+cluster://pacegate:PASSWORD@10.0.0.1:6379,10.0.0.2:6379 --deadline 10ms

  Refuse to start unless all is well, and keep what was found:
    pacegate doctor redis+sentinel://10.0.0.1:26379/mymaster --strict --json > doctor.json";

/// A report in words, with colours that whoever prints it may take out again.
struct Words<'a> {
    url: &'a str,
    report: &'a Report,
}

pub(super) fn run(args: &Args) -> Result<ExitCode, Trouble> {
    let url: RedisUrl = args.url.parse().map_err(|error| {
        let hint = "pacegate doctor --help shows addresses of all kinds";
        Trouble::new(error, "cannot use the address", hint)
    })?;
    let options = Options::default().deadline(args.deadline).prefix(&*args.prefix);
    let report = examine(&url, &options).map_err(|error| {
        Trouble::new(error, "cannot begin", "see whether the system is out of threads or files")
    })?;
    let url = url.to_string();
    let mut output = anstream::stdout().lock();
    match args.json {
        true => writeln!(output, "{}", JsonReport { url: &url, report: &report }),
        false => write!(output, "{}", Words { url: &url, report: &report }),
    }
    .and_then(|()| output.flush())
    .map_err(|error| Trouble::output(error, "cannot print the findings"))?;
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

/// A number and a unit, such as `20ms`.
fn parse_duration(text: &str) -> anyhow::Result<Duration> {
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let number: u64 = number.parse().context("write a whole number and a unit, such as 20ms")?;
    let duration = match unit {
        "us" => Duration::from_micros(number),
        "ms" => Duration::from_millis(number),
        "s" => Duration::from_secs(number),
        _ => {
            return Err(anyhow!(
                "the unit `{unit}` is not one of us, ms, s: write for example 20ms"
            ));
        }
    };
    if duration.is_zero() {
        return Err(anyhow!("nobody can answer in no time: write for example 20ms"));
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
