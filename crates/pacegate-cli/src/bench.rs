use std::{
    fs,
    io::{self, IsTerminal},
    path::PathBuf,
    process::ExitCode,
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, anyhow, bail};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use pacegate::{Algorithm, Clock, Limit, SystemClock};
use serde_json::{Value, json};

use pacegate_tools::{
    bench::{
        BenchReport, Check, Costs, Dialect, KeyDistribution, Length, Load, LoadResult, Rate,
        Reading, Rule, Script, Target, TargetOptions, Windows, check,
    },
    parse_duration, parse_period,
};

use super::{CommandError, decider, print};

/// Measure a rate limiter and check its decisions
///
/// Sends requests to a server, either as fast as it responds (closed loop) or at a fixed rate
/// (--rate), and reports throughput and latency. At a fixed rate, latency counts from when a request
/// was due, so that a stalled server shows up in the latencies.
///
/// Then checks all decisions against the limit: how many units were certainly admitted beyond it, and
/// how many requests were certainly denied although there was room. Works with Pacegate, redis-cell,
/// throttlecrab, Envoy's rate limit service, and Lua scripts in Redis or Valkey.
///
/// If the dialect supports it, each request carries the limit. Otherwise --limit states the limit that
/// the server is configured with. Each run uses new keys.
///
/// Exit codes: 0 if the check found nothing wrong, 1 if requests were over-admitted or wrongly denied,
/// 2 if the measurement failed.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(super) struct Bench {
    /// Server address: http://HOST:PORT, resp://HOST:PORT (or redis://), or grpc://HOST:PORT
    url: String,

    #[command(flatten)]
    requests: RequestOptions,

    #[command(flatten)]
    load: LoadOptions,

    /// Number of requests to check; 0 disables the check. Each takes at least 24 bytes of memory
    #[arg(long, value_name = "N", default_value_t = 2_000_000, help_heading = "Checking")]
    #[arg(value_parser = clap::value_parser!(u64).range(..=100_000_000))]
    check: u64,

    /// Start of fixed windows
    #[arg(long, value_name = "START", default_value = "aligned", help_heading = "Checking")]
    windows: Windows,

    /// Maximum difference between the server's clock and this one
    #[arg(long, value_name = "TIME", default_value = "1ms", value_parser = parse_duration)]
    #[arg(help_heading = "Checking")]
    skew: Duration,

    /// Print one line of JSON, with times in seconds
    #[arg(long)]
    json: bool,
}

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Requests")]
struct RequestOptions {
    /// Protocol of the server [default: pacegate over HTTP, cl.throttle over RESP, rls over gRPC]
    #[arg(long, value_name = "NAME")]
    dialect: Option<Dialect>,

    /// Limit that the server enforces, such as '10/second burst 20' [default: 1000000/second]
    #[arg(long, value_name = "LIMIT")]
    limit: Option<String>,

    /// Burst of the limit
    #[arg(long, value_name = "N")]
    burst: Option<u64>,

    /// Algorithm of the limit
    #[arg(long, value_name = "NAME")]
    algorithm: Option<Algorithm>,

    /// Key distribution: hot, uniform:N or zipf:N,EXPONENT
    #[arg(long, value_name = "KEYS", default_value = "uniform:100000")]
    keys: KeyDistribution,

    /// Cost of a request, or several with weights: 1:90,10:10
    #[arg(long, value_name = "COSTS", default_value = "1")]
    cost: Costs,

    /// Use the server's policies, with the key as this attribute or descriptor entry
    #[arg(long, short = 'a', value_name = "NAME")]
    attribute: Option<String>,

    /// Domain of the policies
    #[arg(long, value_name = "NAME", default_value = "")]
    domain: String,

    /// Prefix of all keys, instead of a new one per run. Disables the check of denials, because keys may
    /// have been used before
    #[arg(long, value_name = "TEXT")]
    prefix: Option<String>,

    /// Lua script for the dialect script; its first key is the key to charge
    #[arg(long, value_name = "FILE")]
    script: Option<PathBuf>,

    /// Script argument; {cost}, {amount}, {burst}, {seconds}, {millis} and {key} are replaced
    #[arg(long = "arg", value_name = "TEXT", requires = "script")]
    args: Vec<String>,

    /// Meaning of the first integer in the script's reply
    #[arg(long, value_name = "MEANING", default_value = "one")]
    reply: Reading,

    /// File with the API key or password [default: the variable PACEGATE_KEY]
    #[arg(long, value_name = "FILE")]
    key_file: Option<PathBuf>,
}

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Load")]
struct LoadOptions {
    /// Number of connections
    #[arg(long, short = 'c', value_name = "N", default_value_t = 50)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=10_000))]
    connections: u64,

    /// Maximum number of requests in flight per connection
    #[arg(long, short = 'P', value_name = "N", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=10_000))]
    pipeline: u64,

    /// Number of threads
    #[arg(long, short = 't', value_name = "N", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=64))]
    threads: u64,

    /// Requests per second, independent of the responses (open loop)
    #[arg(long, short = 'r', value_name = "N")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=100_000_000))]
    rate: Option<u64>,

    /// Send this many requests at once, then wait until --every has passed
    #[arg(long, value_name = "N", requires = "every", conflicts_with = "rate")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=1_000_000))]
    bursts: Option<u64>,

    /// Time between bursts
    #[arg(long, value_name = "TIME", requires = "bursts", value_parser = parse_period)]
    every: Option<Duration>,

    /// Length of the measurement
    #[arg(long, short = 'd', value_name = "TIME", default_value = "10s", value_parser = parse_period)]
    #[arg(conflicts_with = "requests")]
    duration: Duration,

    /// Number of requests to send, instead of a duration
    #[arg(long, short = 'n', value_name = "N")]
    #[arg(value_parser = clap::value_parser!(u64).range(1..))]
    requests: Option<u64>,

    /// Warm-up time before the measurement [default: 1s]
    #[arg(long, value_name = "TIME", value_parser = parse_duration, conflicts_with = "requests")]
    warm_up: Option<Duration>,

    /// Report the CPU time of the server process with this id, if it runs on this machine
    #[arg(long, value_name = "PID")]
    pid: Option<u32>,

    /// Random seed for keys and costs
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
}

const EXAMPLES: &str = "\
Examples:
  Measure throughput and latency over HTTP, and over RESP with 16 in flight:
    pacegate bench http://127.0.0.1:8080
    pacegate bench resp://127.0.0.1:6380 --pipeline 16 --pid $(pidof pacegate)

  Measure latency at 20,000 requests per second, a tenth of which cost 10:
    pacegate bench http://127.0.0.1:8080 --rate 20000 --cost 1:90,10:10

  Check that exactly 10 of 30 simultaneous requests are admitted:
    pacegate bench resp://127.0.0.1:6380 --limit '10/minute burst 10' \\
      --keys hot -c 30 -n 30

  Check throttlecrab with bursts of 30, and a Lua script in Redis:
    pacegate bench resp://127.0.0.1:6381 --dialect throttle \\
      --limit '10/second burst 10' --keys hot --bursts 30 --every 2s -n 90
    pacegate bench redis://127.0.0.1:6379 --dialect script \\
      --script limiter.lua --arg '{seconds}' --arg '{amount}' \\
      --limit 10/minute --windows anchored --keys hot -n 30

  Check Envoy's rate limit service, with 100/minute per `user` in domain edge:
    pacegate bench grpc://127.0.0.1:8081 --domain edge -a user \\
      --limit 100/minute --keys zipf:10000,1";

pub(super) fn run(args: &Bench) -> Result<ExitCode, CommandError> {
    let api_key = decider::api_key(args.requests.key_file.as_deref())?;
    let (target, limit) = target(args, api_key.as_deref()).map_err(|error| {
        let hint = "see pacegate bench --help for examples of each kind of server";
        CommandError::new(error, "cannot measure", hint)
    })?;
    let load = load(args);
    let ran = with_progress(&load, &Arc::new(target)).map_err(|error| {
        let hint = "check that the server is running at this address, and see its log";
        CommandError::new(error, "cannot measure", hint)
    })?;
    let report = report(args, limit, ran);
    let text = if args.json { format!("{}\n", report.json()) } else { report.to_string() };
    print(text, "cannot print the report")?;
    Ok(ExitCode::from(u8::from(!report.is_clean())))
}

/// Returns the server and the limit that it has to enforce.
fn target(args: &Bench, api_key: Option<&str>) -> anyhow::Result<(Target, Limit)> {
    let requests = &args.requests;
    let dialect = requests.dialect.or_else(|| Dialect::of(&args.url));
    let limit = limit(args, dialect)?;
    let costs: Vec<u32> = requests.cost.all();
    if u64::from(requests.cost.most()) > limit.capacity() {
        bail!("a cost of {} exceeds the capacity of {limit}", requests.cost.most());
    }
    let fresh = format!("bench-{:x}-", SystemClock::new().now().as_micros());
    let prefix = requests.prefix.as_ref().unwrap_or(&fresh);
    let target = Target::new(&TargetOptions {
        url: &args.url,
        dialect,
        limit,
        attribute: requests.attribute.as_deref(),
        domain: &requests.domain,
        script: script(requests)?,
        reading: requests.reply,
        prefix,
        costs: &costs,
        api_key,
    })?;
    Ok((target, limit))
}

fn limit(args: &Bench, dialect: Option<Dialect>) -> anyhow::Result<Limit> {
    let requests = &args.requests;
    let declared = requests.attribute.is_some()
        || matches!(dialect, Some(Dialect::Rls | Dialect::Script | Dialect::Incr));
    let text = match &requests.limit {
        Some(text) => text,
        None if declared && args.check > 0 && dialect != Some(Dialect::Incr) => {
            bail!(
                "--limit is required to check decisions: state the server's limit, or use --check 0"
            );
        }
        None => "1000000/second",
    };
    let mut limit: Limit = text.parse().context("invalid --limit")?;
    if dialect.is_some_and(Dialect::is_bucket) && limit.algorithm() == Algorithm::FixedWindow {
        limit = limit.with_algorithm(Algorithm::TokenBucket)?;
    }
    if let Some(algorithm) = requests.algorithm {
        limit = limit.with_algorithm(algorithm).context("invalid --algorithm")?;
    }
    if let Some(burst) = requests.burst {
        limit = limit.with_burst(burst).context("invalid --burst")?;
    }
    if limit.algorithm().holds_permits() {
        bail!("{} limits are not supported: bench does not release permits", limit.algorithm());
    }
    Ok(limit)
}

fn script(requests: &RequestOptions) -> anyhow::Result<Option<Script>> {
    let Some(file) = &requests.script else { return Ok(None) };
    let text =
        fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    Ok(Some(Script { text, args: requests.args.clone() }))
}

fn load(args: &Bench) -> Load {
    let load = &args.load;
    let (length, warm_up) = match load.requests {
        Some(requests) => (Length::Requests(requests), Duration::ZERO),
        None => (Length::Time(load.duration), Duration::from_secs(1)),
    };
    Load {
        keys: args.requests.keys,
        costs: args.requests.cost.clone(),
        connections: load.connections as usize,
        depth: load.pipeline as usize,
        threads: load.threads as usize,
        rate: rate(load),
        length,
        warm_up: load.warm_up.unwrap_or(warm_up),
        keep: args.check as usize,
        seed: load.seed,
        pid: load.pid,
    }
}

fn rate(load: &LoadOptions) -> Option<Rate> {
    let second = Duration::from_secs(1);
    let steady = load.rate.map(|requests| Rate { requests, time: second, at_once: 1 });
    let bursts = load.bursts.zip(load.every);
    let bursts = bursts.map(|(size, time)| Rate { requests: size, time, at_once: size });
    steady.or(bursts)
}

/// Runs the load, with a progress bar if standard error is a terminal.
fn with_progress(load: &Load, target: &Arc<Target>) -> anyhow::Result<LoadResult> {
    let all = match load.length {
        Length::Time(time) => (load.warm_up + time).as_millis() as u64,
        Length::Requests(requests) => requests,
    };
    let shown = match io::stderr().is_terminal() {
        true => ProgressDrawTarget::stderr(),
        false => ProgressDrawTarget::hidden(),
    };
    let bar = ProgressBar::with_draw_target(Some(all), shown);
    if let Ok(style) = ProgressStyle::with_template("{bar:40} {msg}") {
        bar.set_style(style);
    }
    let mut before = (0, Duration::ZERO);
    let ran = load.run(target, |done, time| {
        bar.set_position(match load.length {
            Length::Time(_) => time.as_millis() as u64,
            Length::Requests(_) => done,
        });
        let millis = (time - before.1).as_millis() as u64;
        if let Some(rate) = ((done - before.0) * 1_000).checked_div(millis).filter(|_| millis > 50)
        {
            bar.set_message(format!("{done} requests, {rate} per second"));
            before = (done, time);
        }
    });
    bar.finish_and_clear();
    let ran = ran?;
    if ran.record.allowed + ran.record.denied == 0 {
        let said = ran.record.first_failure.as_deref().unwrap_or("no response");
        return Err(anyhow!("the server made no decision: {said}"));
    }
    Ok(ran)
}

fn report(args: &Bench, limit: Limit, mut ran: LoadResult) -> BenchReport {
    let check = (args.check > 0).then(|| {
        let skew = u64::try_from(args.skew.as_micros()).unwrap_or(u64::MAX / 4);
        let used = args.requests.prefix.is_some();
        let rule = Rule { limit, windows: args.windows, skew, used };
        let history = &mut ran.record.history;
        let complete = history.full_from().is_none();
        Check { result: check(&rule, history), complete, denials: !used }
    });
    BenchReport { asked: asked(args, limit), ran, check }
}

/// Returns the parameters of the run, for the report.
fn asked(args: &Bench, limit: Limit) -> Vec<(&'static str, Value)> {
    let (requests, load) = (&args.requests, &args.load);
    let dialect = requests.dialect.or_else(|| Dialect::of(&args.url)).map_or("", Dialect::name);
    let server = args.url.rsplit('@').next().unwrap_or_default();
    let keys = match requests.keys {
        KeyDistribution::Hot => "hot".to_owned(),
        KeyDistribution::Uniform(count) => format!("uniform:{count}"),
        KeyDistribution::Zipf(count, exponent) => format!("zipf:{count},{exponent}"),
    };
    vec![
        ("server", json!(server)),
        ("dialect", json!(dialect)),
        ("limit", json!(limit.to_string())),
        ("keys", json!(keys)),
        ("connections", json!(load.connections)),
        ("pipeline", json!(load.pipeline)),
        ("rate", json!(load.rate)),
        ("bursts", json!(load.bursts)),
        ("every", json!(load.every.map(|time| time.as_secs_f64()))),
    ]
}
