//! `pacegate simulate`: replays traffic through policies in virtual time, with the real engine.
//!
//! A [`Study`] holds the source of the traffic. It replays the traffic as often as needed and lets each
//! [`Variant`] decide every request. A report presents the results.

mod pattern;
mod replay;
mod report;
mod suggest;
mod tally;
mod traffic;

pub use self::{
    pattern::{CountError, Generate, GenerateError, Kind, Pattern, PatternError, SettingError},
    replay::{Variant, tryable},
    report::{Page, Report, SuggestionReport, TextReport},
    suggest::{Found, Goal, GoalError, Search},
    traffic::{Format, Map, MapError, Place, Progress, Spec},
};

use pacegate::{
    BuildError, PolicySet, Request,
    policy::{Match, PolicyError},
};

use self::{
    pattern::Crowd,
    tally::window::Window,
    traffic::{Attributes, COST, Seen, parse_cost},
};

/// A source of traffic and the settings of its replay.
#[derive(Debug)]
pub struct Study {
    /// The source of requests.
    pub traffic: Traffic,
    /// Domain of all requests.
    pub domain: String,
    /// Number of keys per policy that are always kept; see `--keys`.
    pub most_keys: usize,
    /// Number of log bytes read.
    pub progress: Progress,
}

/// The source of requests.
#[derive(Clone, Debug)]
pub enum Traffic {
    /// Logs.
    Logs(Spec),
    /// Patterns, with their start time in microseconds since the Unix epoch and a random seed.
    Patterns(Vec<Pattern>, u64, u64),
}

/// Statistics about the traffic.
#[derive(Clone, Debug)]
pub struct TrafficSummary {
    /// Counts of lines and requests.
    pub seen: Seen,
    pub(crate) first: u64,
    pub(crate) last: u64,
    /// The most requests within any one second and any one minute.
    pub(crate) peak_second: Peak,
    pub(crate) peak_minute: Peak,
    /// True if all timestamps are whole seconds.
    pub whole_seconds: bool,
    /// Attributes that a policy uses and no request has.
    pub missing: Vec<String>,
    /// Attributes that `--map` names and no policy uses.
    pub unused: Vec<String>,
}

/// The maximum number of events within any one period.
#[derive(Clone, Debug)]
pub(crate) struct Peak {
    window: Window,
    pub(crate) most: u32,
}

/// Reasons why traffic cannot be replayed.
#[derive(Debug, thiserror::Error)]
#[expect(missing_docs, reason = "the message of each variant documents it")]
pub enum SimulateError {
    #[error(transparent)]
    Traffic(#[from] traffic::TrafficError),
    #[error(transparent)]
    Policy(#[from] PolicyError),
    #[error(transparent)]
    Build(#[from] BuildError),
    #[error("cannot write the report: {0}")]
    Print(serde_json::Error),
    /// The traffic comes from a pipe, and several passes are needed.
    #[error("{0} can be read only once, but --suggest needs several passes: use a file")]
    Again(String),
}

/// Number of requests between progress reports.
const TELL_EVERY: u64 = 1 << 16;
const SECOND: u64 = 1_000_000;

impl Study {
    /// Creates a variant with policies to try.
    pub fn variant(&self, name: String, policies: PolicySet) -> Result<Variant, SimulateError> {
        Ok(Variant::new(name, policies, self.most_keys)?)
    }

    /// Returns the name of a source that can be read only once, if there is one.
    pub fn read_once(&self) -> Option<String> {
        match &self.traffic {
            Traffic::Logs(spec) => {
                let place = spec.places.iter().find(|place| place.is_read_once());
                place.map(traffic::Place::name)
            }
            Traffic::Patterns(..) => None,
        }
    }

    /// Lets all variants decide all requests. Regularly calls `watch` with the number of requests so far.
    pub fn replay(
        &self,
        variants: &mut [Variant],
        watch: &mut dyn FnMut(u64),
    ) -> Result<TrafficSummary, SimulateError> {
        match &self.traffic {
            Traffic::Logs(spec) => self.replay_logs(spec, variants, watch),
            Traffic::Patterns(patterns, start, seed) => {
                let mut first: Option<TrafficSummary> = None;
                // Clients react to decisions, so each variant gets separate clients. The report shows the
                // first one's traffic.
                for variant in variants {
                    let crowd = Crowd::new(patterns, *start, *seed);
                    let span = self.replay_crowd(crowd, variant, watch);
                    match &mut first {
                        Some(first) => first.lack(span.missing),
                        None => first = Some(span),
                    }
                }
                Ok(first.unwrap_or_else(TrafficSummary::new))
            }
        }
    }

    fn replay_logs(
        &self,
        spec: &Spec,
        variants: &mut [Variant],
        watch: &mut dyn FnMut(u64),
    ) -> Result<TrafficSummary, SimulateError> {
        let mut attributes = looked_at(variants);
        let used = attributes.0.len();
        let cost = attributes.0.iter().position(|name| name == COST).unwrap_or(used);
        if cost == used {
            attributes.0.push(COST.to_owned());
        }
        let mut span = TrafficSummary::new();
        let mut requests = 0_u64;
        span.seen = spec.read(&attributes, &self.progress, |entry| {
            let mut request = Request::new().in_domain(&self.domain);
            for (place, name) in attributes.0[..used].iter().enumerate() {
                if let Some(value) = entry.value(place) {
                    request = request.with(name, value);
                }
            }
            if let Some(cost) = entry.value(cost).and_then(parse_cost) {
                request = request.cost(cost);
            }
            span.note(entry.at);
            for variant in &mut *variants {
                variant.decide(&request, entry.at);
            }
            requests += 1;
            if requests.is_multiple_of(TELL_EVERY) {
                watch(requests);
            }
            true
        })?;
        span.unused = spec.map.unused(&attributes);
        let missing = attributes.0.into_iter().take(used).zip(&span.seen.with);
        span.missing = missing.filter(|(_, with)| **with == 0).map(|(name, _)| name).collect();
        Ok(span)
    }

    fn replay_crowd(
        &self,
        mut crowd: Crowd,
        variant: &mut Variant,
        watch: &mut dyn FnMut(u64),
    ) -> TrafficSummary {
        let mut span = TrafficSummary::new();
        while let Some(visit) = crowd.visit() {
            let request = Request::new()
                .in_domain(&self.domain)
                .with("ip", &visit.ip)
                .with("user", &visit.user)
                .with("method", visit.method)
                .with("path", path_of(&visit.path))
                .with("user_agent", visit.user_agent);
            span.note(visit.at);
            let answer = variant.decide(&request, visit.at);
            crowd.answer(&visit, Some(&answer));
            span.seen.requests += 1;
            if span.seen.requests.is_multiple_of(TELL_EVERY) {
                watch(span.seen.requests);
            }
        }
        let known = ["ip", "user", "method", "path", "user_agent"];
        let names = looked_at(std::slice::from_ref(variant)).0;
        span.missing = names.into_iter().filter(|name| !known.contains(&&**name)).collect();
        span
    }
}

impl TrafficSummary {
    fn new() -> Self {
        Self {
            seen: Seen::default(),
            first: 0,
            last: 0,
            peak_second: Peak::new(SECOND),
            peak_minute: Peak::new(60 * SECOND),
            whole_seconds: true,
            missing: Vec::new(),
            unused: Vec::new(),
        }
    }

    /// Adds attributes that no request has.
    fn lack(&mut self, missing: Vec<String>) {
        let unknown = missing.into_iter().filter(|name| !self.missing.contains(name));
        let unknown: Vec<String> = unknown.collect();
        self.missing.extend(unknown);
    }

    fn note(&mut self, at: u64) {
        if self.first == 0 {
            self.first = at;
        }
        self.last = at;
        self.whole_seconds &= at.is_multiple_of(SECOND);
        self.peak_second.note(at);
        self.peak_minute.note(at);
    }
}

impl Peak {
    fn new(period: u64) -> Self {
        Self { window: Window::new(period), most: 0 }
    }

    fn note(&mut self, at: u64) {
        self.most = self.most.max(self.window.add(at, true).asked);
    }
}

/// Returns all attributes that the policies of these variants use, without duplicates.
fn looked_at(variants: &[Variant]) -> Attributes {
    fn of(matching: &Match) -> impl Iterator<Item = &str> {
        matching.conditions().map(|(attribute, _)| attribute)
    }
    let mut names = Vec::new();
    for policy in variants.iter().flat_map(Variant::policies) {
        let overrides = policy.overrides.iter().flat_map(|other| of(&other.matching));
        let per = policy.per.iter().map(String::as_str);
        for name in per.chain(of(&policy.matching)).chain(overrides) {
            if !names.iter().any(|known| known == name) {
                names.push(name.to_owned());
            }
        }
    }
    Attributes(names)
}

fn path_of(uri: &str) -> &str {
    uri.split_once('?').map_or(uri, |(path, _)| path)
}
