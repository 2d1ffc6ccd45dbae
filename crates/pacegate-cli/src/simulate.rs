use std::{
    fs::File,
    io::{self, BufWriter, IsTerminal, Write},
    path::{Path, PathBuf},
    process::ExitCode,
    time::Duration,
};

use anyhow::anyhow;
use pacegate::{Algorithm, Limit, Policy, PolicyName, PolicySet};
use tokio::time::Instant;

use super::{CommandError, print};
use pacegate_server::{CHART_SCRIPT, Environment, load_config};
use pacegate_tools::{
    grouped, parse_period,
    simulate::{
        Format, Found, Generate, Goal, GoalError, Kind, Map, Page, Pattern, Place, Progress,
        Report, Search, Spec, Study, SuggestionReport, TextReport, Traffic, Variant, tryable,
    },
};

/// Replay traffic through limits and show the effect
///
/// Replays an access log, or synthetic traffic, through limits or policies in virtual time. The decisions
/// are exactly those that the server would make. Reports what each policy would have allowed and denied,
/// for which clients and when; compares limits, algorithms and config files; and searches for the limit
/// that meets a target.
///
/// Supported logs: common and combined format, JSON lines and CSV, optionally compressed with gzip or
/// zstd. Several logs are merged by time. Reads standard input without a file, or if the file is -.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(super) struct Simulate {
    /// Logs to replay; - is standard input
    #[arg(value_name = "LOG", conflicts_with = "patterns")]
    files: Vec<PathBuf>,

    #[command(flatten)]
    limits: LimitOptions,

    #[command(flatten)]
    logs: LogOptions,

    #[command(flatten)]
    patterns: PatternOptions,

    #[command(flatten)]
    report: ReportOptions,
}

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Limits")]
struct LimitOptions {
    /// Use the policies of this config file
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,

    /// Compare with the policies of this config file
    #[arg(long, value_name = "FILE", requires = "config", conflicts_with_all = INSTEAD)]
    against: Option<PathBuf>,

    /// Limit to try, such as 100/minute; can be repeated to compare several
    #[arg(long = "limit", value_name = "LIMIT", conflicts_with = "config")]
    limits: Vec<Limit>,

    /// Count separately per value of these attributes, separated by commas; '' counts all requests together
    #[arg(long, value_name = "ATTRIBUTES", default_value = "ip", conflicts_with = "config")]
    per: String,

    /// Algorithm to use; can be repeated to compare several
    #[arg(long = "algorithm", value_name = "NAME", conflicts_with = "config")]
    algorithms: Vec<Algorithm>,

    /// Search for the limit that meets a target: "touch at most 1% of clients" or "deny at most 0.1%"
    #[arg(long, value_name = "TARGET")]
    suggest: Option<String>,

    /// Policy whose limit to search for, if the config file has several
    #[arg(long, value_name = "NAME", requires = "suggest", requires = "config")]
    #[arg(conflicts_with_all = INSTEAD)]
    policy: Option<PolicyName>,

    /// Domain of the requests [default: that of the first policy]
    #[arg(long, value_name = "NAME", requires = "config", conflicts_with_all = INSTEAD)]
    domain: Option<String>,
}

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Logs")]
struct LogOptions {
    /// Format of the logs
    #[arg(long, value_enum, default_value_t)]
    format: Format,

    /// Fields of attributes, such as ip=client.addr,time=ts; CSV columns may be numbers
    #[arg(long = "map", value_name = "ATTRIBUTE=FIELD,...")]
    maps: Vec<Map>,

    /// Maximum time by which lines of one log may be out of order
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = parse_period)]
    window: Duration,
}

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Synthetic traffic")]
struct PatternOptions {
    /// Traffic pattern, such as "greedy clients=1000 rate=50/second for=1h"; can be repeated
    #[arg(long = "pattern", value_name = "PATTERN", long_help = PATTERNS)]
    patterns: Vec<Pattern>,

    /// Generate a log with this many lines instead, such as combined:10M
    #[arg(long, value_name = "FORMAT:LINES")]
    #[arg(conflicts_with_all = ["files", "config", "limits", "suggest", "html", "json"])]
    generate: Option<Generate>,

    /// File for the generated log [default: standard output]
    #[arg(long, short, value_name = "FILE", requires = "generate")]
    output: Option<PathBuf>,

    /// Random seed of the traffic
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
}

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Report")]
struct ReportOptions {
    /// Number of keys to list
    #[arg(long, value_name = "N", default_value_t = 10)]
    top: usize,

    /// Keys per policy to track; if there are more, only active keys and those with the most requests or
    /// denials are kept
    #[arg(long, value_name = "N", default_value_t = 250_000)]
    keys: usize,

    /// Print the report as JSON
    #[arg(long)]
    json: bool,

    /// Write an HTML report with charts to this file
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

const PATTERNS: &str = "\
Traffic such as \"greedy clients=1000 rate=50/second for=1h\"; can be repeated

  steady       a constant rate: clients, rate, for
  diurnal      a rate that follows the time of day: clients, rate, for
  greedy       steady, plus one client that sends more: clients, rate, greedy, for
  bursts       each client sends many requests at once, then pauses: clients, size, every, for
  retry-storm  all clients start at once and retry when denied: clients, every, for,
               and obey=yes (wait for Retry-After) or obey=no with retry

The setting from, such as from=9h, delays the start.";

const EXAMPLES: &str = "\
Examples:
  Show the effect of a limit on yesterday's traffic:
    pacegate simulate access.log.1.gz --limit 100/minute --per ip

  Write an HTML report with charts:
    pacegate simulate access.log --limit 100/minute --html report.html

  Search for the tightest limit that affects at most 1% of clients:
    pacegate simulate access.log --suggest 'touch at most 1% of clients'

  Compare algorithms, or two config files:
    pacegate simulate access.log --limit 60/minute \\
      --algorithm fixed-window --algorithm sliding-log
    pacegate simulate access.log --config pacegate.yaml --against proposed.yaml

  Read JSON lines with different field names from standard input:
    zcat app.json.gz | \\
      pacegate simulate - --map ip=client.addr,time=ts --limit 10/second

  Simulate clients that ignore Retry-After, and generate a log:
    pacegate simulate --pattern 'retry-storm clients=500 obey=no for=10m' \\
      --limit 100/second --per ''
    pacegate simulate --generate combined:10M -o access.log";

/// Options that replace a config file. Options that require --config must also conflict with these: clap does
/// not enforce `requires` on an option that another option excludes.
const INSTEAD: [&str; 3] = ["limits", "per", "algorithms"];

/// 1 January 2026, in microseconds since the Unix epoch.
const START: u64 = 1_767_225_600_000_000;
const PERIOD_HINT: &str =
    "expected an amount per period: 10/second, '10/second burst 20', '5/30s sliding-log'";

pub(super) fn run(args: &Simulate) -> Result<ExitCode, CommandError> {
    if let Some(generate) = &args.patterns.generate {
        return write_log(args, generate);
    }
    let mut tried = args.limits.variants()?;
    let study = args.study(&tried)?;
    let mut watcher = Watcher::new(&study, args.limits.suggest.is_some());
    let suggestion = match &args.limits.suggest {
        Some(text) => Some(args.limits.suggest(text, &study, &mut tried, &mut watcher)?),
        None => None,
    };
    let build = |(name, policies): (String, Vec<Policy>)| {
        let policies = PolicySet::new(policies)?;
        study.variant(name, policies)
    };
    let variants: Result<Vec<Variant>, _> = tried.sets.into_iter().map(build).collect();
    let mut variants = variants.map_err(unplayable)?;
    let span = study.replay(&mut variants, &mut |requests| watcher.show(requests));
    let span = span.map_err(unplayable)?;
    watcher.end(span.seen.requests);
    let mut report = Report::new(source(args), &span, &variants, args.report.top);
    if let Some(suggestion) = suggestion {
        report.add_suggestion(suggestion, &variants);
    }
    report.notes.extend(tried.notes);
    show(&report, &args.report)?;
    Ok(ExitCode::SUCCESS)
}

/// The sets of policies to try, with their names.
struct Sets {
    sets: Vec<(String, Vec<Policy>)>,
    notes: Vec<String>,
}

impl LimitOptions {
    fn variants(&self) -> Result<Sets, CommandError> {
        let Some(config) = &self.config else { return self.limit_variants() };
        let files = std::iter::once(config).chain(&self.against);
        let mut tried = Sets { sets: Vec::new(), notes: Vec::new() };
        for file in files {
            let (policies, held) = read(file)?;
            for policy in held {
                tried.notes.push(format!(
                    "policy `{policy}` is skipped: it limits concurrency, and traffic does not show when \
                     a request ends"
                ));
            }
            tried.sets.push((file.display().to_string(), policies));
        }
        Ok(tried)
    }

    fn limit_variants(&self) -> Result<Sets, CommandError> {
        let limits = match (&*self.limits, &self.suggest) {
            ([], None) => {
                let error = anyhow!("no limits given");
                let hint = "use --limit, --config or --suggest";
                return Err(CommandError::new(error, "cannot simulate", hint));
            }
            ([], Some(_)) => vec![self.period_of_target()],
            (limits, _) => limits.to_vec(),
        };
        let mut sets = Vec::new();
        for limit in limits {
            for algorithm in self.algorithms_of(&limit) {
                let limit = limit.with_algorithm(algorithm).map_err(|error| {
                    CommandError::new(error, "invalid --algorithm", PERIOD_HINT)
                })?;
                sets.push((limit.to_string(), vec![self.policy_of(limit)?]));
            }
        }
        Ok(Sets { sets, notes: Vec::new() })
    }

    fn algorithms_of(&self, limit: &Limit) -> Vec<Algorithm> {
        if self.algorithms.is_empty() { vec![limit.algorithm()] } else { self.algorithms.clone() }
    }

    /// Returns the period to search with if no limit is given.
    fn period_of_target(&self) -> Limit {
        match self.suggest.as_deref().map(str::parse) {
            Some(Ok(Goal::Above(limit))) => limit,
            _ => Limit::per_minute(1),
        }
    }

    fn policy_of(&self, limit: Limit) -> Result<Policy, CommandError> {
        let words = self.per.split(',').map(str::trim).filter(|word| !word.is_empty());
        let per: Vec<&str> = words.collect();
        let name = match &*per {
            [] => "all-together".to_owned(),
            per => format!("per-{}", per.join("-").replace('_', "-")),
        };
        let name = name.parse::<PolicyName>().map_err(|error| {
            CommandError::new(
                error,
                "invalid --per",
                "expected attributes such as ip or tenant,user",
            )
        })?;
        if limit.algorithm().holds_permits() {
            let error = anyhow!("traffic does not show when a request ends");
            let hint = "use an algorithm that counts requests";
            return Err(CommandError::new(error, "cannot simulate concurrency", hint));
        }
        Ok(Policy::new(name, [limit]).per(per))
    }

    /// Searches for the limit and replaces the given one with it.
    fn suggest(
        &self,
        text: &str,
        study: &Study,
        tried: &mut Sets,
        watcher: &mut Watcher,
    ) -> Result<SuggestionReport, CommandError> {
        let unusable = |error: anyhow::Error| {
            let hint = "--suggest works with one policy and one algorithm at a time";
            CommandError::new(error, "cannot use --suggest", hint)
        };
        let target: Goal = text.parse().map_err(|error: GoalError| unusable(error.into()))?;
        let [(name, policies)] = &mut *tried.sets else {
            return Err(unusable(anyhow!("cannot be combined with a comparison")));
        };
        let place = match self.policy {
            Some(name) => policies.iter().position(|policy| policy.name == name),
            None => (policies.len() == 1).then_some(0),
        };
        let place = place.ok_or_else(|| unusable(self.unnamed(policies)))?;
        let like = policies[place].limits.first().copied();
        let like = like.ok_or_else(|| unusable(anyhow!("the policy has no limit")))?;
        if let Some(place) = study.read_once() {
            return Err(unplayable(pacegate_tools::simulate::SimulateError::Again(place)));
        }
        let search = Search { study, policies, place, like, target };
        let found = search.run(&mut |requests| watcher.show(requests)).map_err(unplayable)?;
        let report = SuggestionReport::new((target, text), &policies[place], &like, &found);
        if let (Found::Limit(found), Some(first)) = (found, policies[place].limits.first_mut()) {
            *first = found.limit;
            if self.config.is_none() {
                *name = found.limit.to_string();
            }
        }
        Ok(report)
    }
}

impl LimitOptions {
    /// Explains why the policy is ambiguous.
    fn unnamed(&self, policies: &[Policy]) -> anyhow::Error {
        let names: Vec<String> = policies.iter().map(|policy| policy.name.to_string()).collect();
        let names = names.join(", ");
        match self.policy {
            Some(name) => anyhow!("unknown policy `{name}`: expected one of {names}"),
            None => anyhow!("choose a policy with --policy: one of {names}"),
        }
    }
}

impl Simulate {
    fn study(&self, tried: &Sets) -> Result<Study, CommandError> {
        let policies = || tried.sets.iter().flat_map(|(_, policies)| policies);
        let first = policies().next().map(|policy| policy.domain.clone());
        let domain = self.limits.domain.clone().or(first).unwrap_or_default();
        Ok(Study {
            traffic: self.traffic()?,
            domain,
            most_keys: self.report.keys,
            progress: Progress::default(),
        })
    }

    fn traffic(&self) -> Result<Traffic, CommandError> {
        if !self.patterns.patterns.is_empty() {
            let lasting = |pattern: &Pattern| Pattern {
                length: Some(pattern.usual_length()),
                ..pattern.clone()
            };
            let patterns = self.patterns.patterns.iter().map(lasting).collect();
            return Ok(Traffic::Patterns(patterns, START, self.patterns.seed));
        }
        if self.files.is_empty() && io::stdin().is_terminal() {
            let error = anyhow!("no traffic given");
            let hint = "name a log, or use --pattern";
            return Err(CommandError::new(error, "cannot simulate", hint));
        }
        let mut places: Vec<Place> = self.files.iter().map(|file| (&**file).into()).collect();
        if places.is_empty() {
            places.push(Place::Input);
        }
        if places.iter().filter(|place| **place == Place::Input).count() > 1 {
            let error = anyhow!("standard input is given twice");
            return Err(CommandError::new(error, "cannot simulate", "give - once"));
        }
        let mut map = Map::default();
        self.logs.maps.iter().cloned().for_each(|other| map.extend(other));
        let LogOptions { format, window, .. } = self.logs;
        Ok(Traffic::Logs(Spec { places, format, map, window }))
    }
}

/// Reads the policies of a file; returns those that can be simulated, and the names of those that cannot.
fn read(file: &Path) -> Result<(Vec<Policy>, Vec<PolicyName>), CommandError> {
    let hint = "check the file with `pacegate validate`";
    let settings = load_config(file, &Environment::process().without_secrets())
        .map_err(|error| CommandError::new(anyhow!("{error}"), "cannot use the policies", hint))?;
    if !settings.written_rules().is_empty() {
        let what = "its rules match descriptors, which logs do not have";
        let error = anyhow!("{} is an envoyproxy/ratelimit file: {what}", file.display());
        let hint = "write a policy with the same limit that uses attributes of the log";
        return Err(CommandError::new(error, "cannot simulate", hint));
    }
    let (policies, held) = tryable(&settings.effective_policies());
    if policies.is_empty() {
        let error = anyhow!("{} has no policy that can be simulated", file.display());
        return Err(CommandError::new(error, "cannot simulate", "add one under `policies`"));
    }
    Ok((policies, held))
}

fn write_log(args: &Simulate, generate: &Generate) -> Result<ExitCode, CommandError> {
    let unwritable = |error: io::Error| {
        CommandError::new(
            error,
            "cannot write the log",
            "check free disk space and file permissions",
        )
    };
    let output: Box<dyn Write> = match &args.patterns.output {
        Some(path) => Box::new(File::create(path).map_err(unwritable)?),
        None => Box::new(io::stdout().lock()),
    };
    let mut patterns = args.patterns.patterns.clone();
    if patterns.is_empty() {
        // The generated log covers one day, regardless of its number of lines.
        let rate = (generate.lines.max(1), 86_400_000_000);
        let clients = (generate.lines / 100).clamp(10, 100_000);
        patterns.push(Pattern { rate, clients, ..Pattern::new(Kind::Diurnal) });
    }
    let output = BufWriter::with_capacity(1 << 20, output);
    match generate.write(&patterns, START, args.patterns.seed, output) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(unwritable(error)),
        _ => Ok(ExitCode::SUCCESS),
    }
}

fn source(args: &Simulate) -> String {
    match (&*args.files, &*args.patterns.patterns) {
        ([], []) => "standard input".to_owned(),
        ([], patterns) => {
            let patterns: Vec<String> =
                patterns.iter().map(|pattern| pattern.text.clone()).collect();
            patterns.join("; ")
        }
        (files, _) => {
            let names: Vec<String> = files.iter().map(|file| file.display().to_string()).collect();
            names.join(", ")
        }
    }
}

fn show(report: &Report, options: &ReportOptions) -> Result<(), CommandError> {
    let unwritable = |error: io::Error| {
        CommandError::new(
            error,
            "cannot write the report",
            "check the output path and its permissions",
        )
    };
    if let Some(path) = &options.html {
        let page = Page::new(report, CHART_SCRIPT).map_err(unplayable)?;
        let file = File::create(path).map_err(unwritable)?;
        let mut output = BufWriter::new(file);
        write!(output, "{page}").and_then(|()| output.flush()).map_err(unwritable)?;
    }
    let text = match options.json {
        true => serde_json::to_string(report).map_err(unplayable)? + "\n",
        false => TextReport(report).to_string(),
    };
    print(text, "cannot print the report")
}

fn unplayable(error: impl Into<anyhow::Error>) -> CommandError {
    let hint = "see `pacegate simulate --help` for formats, maps and examples";
    CommandError::new(error, "cannot simulate", hint)
}

/// Shows progress on a terminal.
struct Watcher {
    bar: indicatif::ProgressBar,
    progress: Progress,
    started: Instant,
    /// Total number of bytes to read, if known.
    length: Option<u64>,
}

impl Watcher {
    fn new(study: &Study, several: bool) -> Self {
        let lengths = match &study.traffic {
            Traffic::Logs(spec) => spec.places.iter().map(Place::length).sum::<Option<u64>>(),
            Traffic::Patterns(..) => None,
        };
        let length = lengths.filter(|_| !several);
        let bar = match length {
            Some(length) => indicatif::ProgressBar::new(length),
            None => indicatif::ProgressBar::new_spinner(),
        };
        let template =
            if length.is_some() { "{bar:30} {percent:>3}%  {msg}" } else { "{spinner} {msg}" };
        if let Ok(style) = indicatif::ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        Self { bar, progress: study.progress.clone(), started: Instant::now(), length }
    }

    fn show(&mut self, requests: u64) {
        if self.length.is_some() {
            self.bar.set_position(self.progress.bytes());
        } else {
            self.bar.tick();
        }
        self.bar.set_message(self.rate(requests));
    }

    fn end(&self, requests: u64) {
        self.bar.finish_and_clear();
        if io::stderr().is_terminal() && self.started.elapsed().as_secs() >= 1 {
            super::print_error(self.rate(requests));
        }
    }

    fn rate(&self, requests: u64) -> String {
        let millis = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX).max(1);
        let rate = u128::from(requests) * 1_000 / u128::from(millis);
        let rate = grouped(u64::try_from(rate).unwrap_or(u64::MAX));
        format!("{} requests, {rate} per second", grouped(requests))
    }
}
