use std::{
    fs::File,
    io::{self, BufWriter, IsTerminal, Write},
    path::{Path, PathBuf},
    process::ExitCode,
};

use anyhow::anyhow;
use pacegate::{Algorithm, Limit, Policy, PolicyName, PolicySet};
use tokio::time::Instant;

use super::Trouble;
use crate::{
    config::{Environment, load},
    simulate::{
        Study, Traffic,
        pattern::{Generate, Kind, Pattern, span},
        replay::{Variant, tryable},
        report::{Page, Report, SuggestionReport, Words},
        suggest::{Found, Search, Target},
        traffic::{Format, Map, Place, Progress, Spec},
    },
    words::grouped,
};

/// See what limits would do to traffic
///
/// Replays an access log, or traffic that is described, through policies in virtual time. The decisions
/// are those of the service, to the request. Tells what each policy would have allowed and denied, to
/// whom, and when; compares limits, algorithms and files; and finds the limit for a target.
///
/// Logs are in the common or combined format, JSON lines or CSV; compressed by gzip or zstd or not.
/// Several are merged by time. Without any, or for -, standard input is read.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(super) struct Args {
    /// Logs to replay; - is standard input
    #[arg(value_name = "LOG", conflicts_with = "patterns")]
    files: Vec<PathBuf>,

    #[command(flatten)]
    tried: Tried,

    #[command(flatten)]
    reading: Reading,

    #[command(flatten)]
    described: Described,

    #[command(flatten)]
    telling: Telling,
}

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "What is tried")]
struct Tried {
    /// The policies of this file
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,

    /// Compare with the policies of this file
    #[arg(long, value_name = "FILE", requires = "config", conflicts_with_all = INSTEAD)]
    against: Option<PathBuf>,

    /// A limit, such as 100/minute; several are compared
    #[arg(long = "limit", value_name = "LIMIT", conflicts_with = "config")]
    limits: Vec<Limit>,

    /// Whose budget: attributes, with commas between them; nothing is one budget for all
    #[arg(long, value_name = "ATTRIBUTES", default_value = "ip", conflicts_with = "config")]
    per: String,

    /// Count by this algorithm; several are compared
    #[arg(long = "algorithm", value_name = "NAME", conflicts_with = "config")]
    algorithms: Vec<Algorithm>,

    /// Find the limit that does this, such as "deny at most 0.1%" or "no client above 20/second"
    #[arg(long, value_name = "TARGET")]
    suggest: Option<String>,

    /// The policy whose limit is looked for, if the file has several
    #[arg(long, value_name = "NAME", requires = "suggest", requires = "config")]
    #[arg(conflicts_with_all = INSTEAD)]
    policy: Option<PolicyName>,

    /// The domain of the requests; that of the first policy unless it is said
    #[arg(long, value_name = "NAME", requires = "config", conflicts_with_all = INSTEAD)]
    domain: Option<String>,
}

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Logs")]
struct Reading {
    /// What the logs look like
    #[arg(long, value_enum, default_value_t)]
    format: Format,

    /// The fields that attributes are in, such as ip=client.addr,time=ts; columns may be numbers
    #[arg(long = "map", value_name = "ATTRIBUTE=FIELD,...")]
    maps: Vec<Map>,

    /// How far lines of one log may be out of order
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = span)]
    window: u64,
}

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "Described traffic")]
struct Described {
    /// Traffic such as "greedy clients=1000 rate=50/second for=1h"; several come together
    #[arg(long = "pattern", value_name = "PATTERN", long_help = PATTERNS)]
    patterns: Vec<Pattern>,

    /// Write a log of so many lines instead, such as combined:10M
    #[arg(long, value_name = "FORMAT:LINES")]
    #[arg(conflicts_with_all = ["files", "config", "limits", "suggest", "html", "json"])]
    generate: Option<Generate>,

    /// Where to write it, instead of standard output
    #[arg(long, short, value_name = "FILE", requires = "generate")]
    output: Option<PathBuf>,

    /// The same number gives the same traffic
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
}

#[derive(Debug, clap::Args)]
#[command(next_help_heading = "What is told")]
struct Telling {
    /// How many keys to tell one by one
    #[arg(long, value_name = "N", default_value_t = 10)]
    top: usize,

    /// Keys of each policy that are told apart to the end; beyond them only those in use and those
    /// that stand out are
    #[arg(long, value_name = "N", default_value_t = 250_000)]
    keys: usize,

    /// Print the report as JSON
    #[arg(long)]
    json: bool,

    /// Write a report with charts to this file
    #[arg(long, value_name = "FILE")]
    html: Option<PathBuf>,
}

const PATTERNS: &str = "\
Traffic such as \"greedy clients=1000 rate=50/second for=1h\"; several come together

  steady       requests at one rate: clients, rate, for
  diurnal      a rate that rises and falls with the day: clients, rate, for
  greedy       steady, and one client that asks for more: clients, rate, greedy, for
  bursts       each client sends many at once, then none: clients, size, every, for
  retry-storm  all clients come at once; who is denied tries again: clients, every, for,
               and obey=yes (as Retry-After says) or obey=no with retry

With from, as in from=9h, it begins later than the others.";

const EXAMPLES: &str = "\
Examples:
  What would a limit have done to yesterday's traffic?
    pacegate simulate access.log.1.gz --limit 100/minute --per ip

  With charts, for a colleague:
    pacegate simulate access.log --limit 100/minute --html report.html

  Which limit denies hardly anybody?
    pacegate simulate access.log --limit 100/minute --suggest 'deny at most 0.1%'

  Compare algorithms, or a file with the one that is to replace it:
    pacegate simulate access.log --limit 60/minute --algorithm fixed-window --algorithm sliding-log
    pacegate simulate access.log --config pacegate.yaml --against proposed.yaml

  JSON lines with fields of other names, from standard input:
    zcat app.json.gz | pacegate simulate - --map ip=client.addr,time=ts --limit 10/second

  Clients that ignore Retry-After, and a log to try things on:
    pacegate simulate --pattern 'retry-storm clients=500 obey=no for=10m' --limit 100/second --per ''
    pacegate simulate --generate combined:10M -o access.log";

/// What is given instead of a file. What needs a file must exclude these as well: an option that is required and
/// excluded by another counts as not required.
const INSTEAD: [&str; 3] = ["limits", "per", "algorithms"];

/// 1 January 2026.
const START: u64 = 1_767_225_600_000_000;
const PERIOD_HINT: &str =
    "a limit is an amount per period: 10/second, '10/second burst 20', '5/30s sliding-log'";

pub(super) fn run(args: &Args) -> Result<ExitCode, Trouble> {
    if let Some(generate) = &args.described.generate {
        return write_log(args, generate);
    }
    let mut tried = args.tried.variants()?;
    let study = args.study(&tried)?;
    let mut watcher = Watcher::new(&study, args.tried.suggest.is_some());
    let suggestion = match &args.tried.suggest {
        Some(text) => Some(args.tried.suggest(text, &study, &mut tried, &mut watcher)?),
        None => None,
    };
    let build = |(name, policies): (String, Vec<Policy>)| {
        let policies = PolicySet::new(policies)?;
        study.variant(name, policies)
    };
    let variants: Result<Vec<Variant>, _> = tried.sets.into_iter().map(build).collect();
    let mut variants = variants.map_err(unplayable)?;
    let span = study.replay(&mut variants, &mut |requests| watcher.tell(requests));
    let span = span.map_err(unplayable)?;
    watcher.end(span.seen.requests);
    let mut report = Report::new(source(args), &span, &variants, args.telling.top);
    report.suggestion = suggestion;
    report.notes.extend(tried.notes);
    tell(&report, &args.telling)?;
    Ok(ExitCode::SUCCESS)
}

/// What is tried, each under its name.
struct Sets {
    sets: Vec<(String, Vec<Policy>)>,
    notes: Vec<String>,
}

impl Tried {
    fn variants(&self) -> Result<Sets, Trouble> {
        let Some(config) = &self.config else { return self.limit_variants() };
        let files = std::iter::once(config).chain(&self.against);
        let mut tried = Sets { sets: Vec::new(), notes: Vec::new() };
        for file in files {
            let (policies, held) = read(file)?;
            for policy in held {
                tried.notes.push(format!(
                    "policy `{policy}` counts permits, which are returned when the work is done; \
                     traffic does not tell when, so it is left out"
                ));
            }
            tried.sets.push((file.display().to_string(), policies));
        }
        Ok(tried)
    }

    fn limit_variants(&self) -> Result<Sets, Trouble> {
        let limits = match (&*self.limits, &self.suggest) {
            ([], None) => {
                let error = anyhow!("there is nothing to try");
                let hint =
                    "give a limit with --limit, policies with --config, or a target with --suggest";
                return Err(Trouble::new(error, "cannot simulate", hint));
            }
            ([], Some(_)) => vec![self.period_of_target()],
            (limits, _) => limits.to_vec(),
        };
        let mut sets = Vec::new();
        for limit in limits {
            for algorithm in self.algorithms_of(&limit) {
                let limit = limit
                    .with_algorithm(algorithm)
                    .map_err(|error| Trouble::new(error, "cannot use --algorithm", PERIOD_HINT))?;
                sets.push((limit.to_string(), vec![self.policy_of(limit)?]));
            }
        }
        Ok(Sets { sets, notes: Vec::new() })
    }

    fn algorithms_of(&self, limit: &Limit) -> Vec<Algorithm> {
        if self.algorithms.is_empty() { vec![limit.algorithm()] } else { self.algorithms.clone() }
    }

    /// What a suggestion is about if no limit says it.
    fn period_of_target(&self) -> Limit {
        match self.suggest.as_deref().map(str::parse) {
            Some(Ok(Target::Above(limit))) => limit,
            _ => Limit::per_minute(1),
        }
    }

    fn policy_of(&self, limit: Limit) -> Result<Policy, Trouble> {
        let words = self.per.split(',').map(str::trim).filter(|word| !word.is_empty());
        let per: Vec<&str> = words.collect();
        let name = match &*per {
            [] => "all-together".to_owned(),
            per => format!("per-{}", per.join("-").replace('_', "-")),
        };
        let name = name.parse().map_err(|error| {
            Trouble::new(error, "cannot use --per", "write attributes such as ip or tenant,user")
        })?;
        if limit.algorithm() == Algorithm::Concurrency {
            let error = anyhow!("traffic does not tell when a permit is returned");
            let hint = "use one of the algorithms that count requests";
            return Err(Trouble::new(error, "cannot simulate concurrency", hint));
        }
        Ok(Policy::new(name, [limit]).per(per))
    }

    /// Finds the limit, and puts it in the place of what was given.
    fn suggest(
        &self,
        text: &str,
        study: &Study,
        tried: &mut Sets,
        watcher: &mut Watcher,
    ) -> Result<SuggestionReport, Trouble> {
        let unusable = |error: String| {
            let hint = "it is looked for in one policy at a time, and for one algorithm";
            Trouble::new(anyhow!(error), "cannot use --suggest", hint)
        };
        let target: Target = text.parse().map_err(unusable)?;
        let [(name, policies)] = &mut *tried.sets else {
            return Err(unusable("several things are to be compared".to_owned()));
        };
        let place = match self.policy {
            Some(name) => policies.iter().position(|policy| policy.name == name),
            None => (policies.len() == 1).then_some(0),
        };
        let place = place.ok_or_else(|| unusable(self.unnamed(policies)))?;
        let like = policies[place].limits.first().copied();
        let like = like.ok_or_else(|| unusable("the policy has no limit".to_owned()))?;
        if let Some(place) = study.read_once() {
            return Err(unplayable(crate::simulate::Trouble::Again(place)));
        }
        let search = Search { study, policies, place, like, target };
        let found = search.run(&mut |requests| watcher.tell(requests)).map_err(unplayable)?;
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

impl Tried {
    /// Why it is not known which policy is meant.
    fn unnamed(&self, policies: &[Policy]) -> String {
        let names: Vec<String> = policies.iter().map(|policy| policy.name.to_string()).collect();
        let names = names.join(", ");
        match self.policy {
            Some(name) => format!("there is no policy `{name}`: there are {names}"),
            None => format!("say which policy with --policy: there are {names}"),
        }
    }
}

impl Args {
    fn study(&self, tried: &Sets) -> Result<Study, Trouble> {
        let policies = || tried.sets.iter().flat_map(|(_, policies)| policies);
        let first = policies().next().map(|policy| policy.domain.clone());
        let domain = self.tried.domain.clone().or(first).unwrap_or_default();
        Ok(Study {
            traffic: self.traffic()?,
            domain,
            most_keys: self.telling.keys,
            progress: Progress::default(),
        })
    }

    fn traffic(&self) -> Result<Traffic, Trouble> {
        if !self.described.patterns.is_empty() {
            let lasting = |pattern: &Pattern| Pattern {
                length: Some(pattern.usual_length()),
                ..pattern.clone()
            };
            let patterns = self.described.patterns.iter().map(lasting).collect();
            return Ok(Traffic::Patterns(patterns, START, self.described.seed));
        }
        if self.files.is_empty() && io::stdin().is_terminal() {
            let error = anyhow!("there is no traffic");
            let hint = "name a log, or describe traffic with --pattern";
            return Err(Trouble::new(error, "cannot simulate", hint));
        }
        let mut places: Vec<Place> = self.files.iter().map(|file| (&**file).into()).collect();
        if places.is_empty() {
            places.push(Place::Input);
        }
        if places.iter().filter(|place| **place == Place::Input).count() > 1 {
            let error = anyhow!("standard input can be read only once, and is named twice");
            return Err(Trouble::new(error, "cannot simulate", "write - once"));
        }
        let mut map = Map::default();
        self.reading.maps.iter().cloned().for_each(|other| map.extend(other));
        let Reading { format, window, .. } = self.reading;
        Ok(Traffic::Logs(Spec { places, format, map, window }))
    }
}

/// The policies of a file that can be tried, and the names of those that cannot.
fn read(file: &Path) -> Result<(Vec<Policy>, Vec<PolicyName>), Trouble> {
    let hint = "see what `pacegate validate` says of the file";
    let settings = load(file, &Environment::process().without_secrets())
        .map_err(|error| Trouble::new(anyhow!("{error}"), "cannot use the policies", hint))?;
    if !settings.rules.written().is_empty() {
        let what = "its rules decide about descriptors, and a log has none";
        let error = anyhow!("{} is of envoyproxy/ratelimit: {what}", file.display());
        let hint = "write a policy with the same limit, per attributes that the log has";
        return Err(Trouble::new(error, "cannot simulate", hint));
    }
    let (policies, held) = tryable(&settings.effective_policies());
    if policies.is_empty() {
        let error = anyhow!("{} has no policy that can be tried", file.display());
        return Err(Trouble::new(error, "cannot simulate", "write one under `policies`"));
    }
    Ok((policies, held))
}

fn write_log(args: &Args, generate: &Generate) -> Result<ExitCode, Trouble> {
    let unwritable = |error: io::Error| {
        Trouble::new(error, "cannot write the log", "see whether there is room, and leave to write")
    };
    let output: Box<dyn Write> = match &args.described.output {
        Some(path) => Box::new(File::create(path).map_err(unwritable)?),
        None => Box::new(io::stdout().lock()),
    };
    let mut patterns = args.described.patterns.clone();
    if patterns.is_empty() {
        // A day, whatever the number of lines.
        let rate = (generate.lines.max(1), 86_400_000_000);
        let clients = (generate.lines / 100).clamp(10, 100_000);
        patterns.push(Pattern { rate, clients, ..Pattern::new(Kind::Diurnal) });
    }
    let output = BufWriter::with_capacity(1 << 20, output);
    let written = generate.write(&patterns, START, args.described.seed, output);
    match written {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(ExitCode::SUCCESS),
        Err(error) => Err(unwritable(error)),
        Ok(_) => Ok(ExitCode::SUCCESS),
    }
}

fn source(args: &Args) -> String {
    match (&*args.files, &*args.described.patterns) {
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

fn tell(report: &Report, telling: &Telling) -> Result<(), Trouble> {
    let unwritable = |error: io::Error| {
        Trouble::new(error, "cannot write the report", "check where it leads, and leave to write")
    };
    if let Some(path) = &telling.html {
        let page = Page::new(report).map_err(unplayable)?;
        let file = File::create(path).map_err(unwritable)?;
        let mut output = BufWriter::new(file);
        write!(output, "{page}").and_then(|()| output.flush()).map_err(unwritable)?;
    }
    let mut output = BufWriter::new(anstream::stdout().lock());
    let written = match telling.json {
        true => serde_json::to_string(report)
            .map_err(io::Error::other)
            .and_then(|text| writeln!(output, "{text}")),
        false => write!(output, "{}", Words(report)),
    };
    match written.and_then(|()| output.flush()) {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => Err(unwritable(error)),
        _ => Ok(()),
    }
}

fn unplayable(error: impl Into<anyhow::Error>) -> Trouble {
    let hint = "see `pacegate simulate --help` for formats, maps and examples";
    Trouble::new(error, "cannot simulate", hint)
}

/// Shows how far it is to whoever watches.
struct Watcher {
    bar: indicatif::ProgressBar,
    progress: Progress,
    started: Instant,
    /// Bytes to read.
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

    fn tell(&mut self, requests: u64) {
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
            super::say(self.rate(requests));
        }
    }

    fn rate(&self, requests: u64) -> String {
        let millis = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX).max(1);
        let rate = u128::from(requests) * 1_000 / u128::from(millis);
        let rate = grouped(u64::try_from(rate).unwrap_or(u64::MAX));
        format!("{} requests, {rate} per second", grouped(requests))
    }
}
