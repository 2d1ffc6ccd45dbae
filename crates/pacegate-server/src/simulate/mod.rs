//! Traffic replayed through policies in virtual time, with the real engine.
//!
//! A [`Study`] knows where traffic comes from. It goes through it as often as it is asked to and lets each [`Variant`]
//! decide about every request; a [`report`] tells what came of it.

pub(crate) mod pattern;
pub(crate) mod replay;
pub(crate) mod report;
pub(crate) mod suggest;
pub(crate) mod tally;
pub(crate) mod traffic;

use pacegate::{
    BuildError, PolicySet, Request,
    policy::{Match, PolicyError},
};

use self::{
    pattern::{Crowd, Pattern},
    replay::Variant,
    traffic::{Attributes, Progress, Seen, Spec},
};

/// Traffic, and how it is looked at.
#[derive(Debug)]
pub(crate) struct Study {
    pub(crate) traffic: Traffic,
    /// The domain that all requests are of.
    pub(crate) domain: String,
    /// Keys of each policy that are told apart to the end.
    pub(crate) most_keys: usize,
    /// How far logs were read.
    pub(crate) progress: Progress,
}

/// Where requests come from.
#[derive(Clone, Debug)]
pub(crate) enum Traffic {
    /// Logs.
    Logs(Spec),
    /// Patterns, from an instant on, with a seed.
    Patterns(Vec<Pattern>, u64, u64),
}

/// What the traffic was like.
#[derive(Clone, Debug, Default)]
pub(crate) struct Span {
    pub(crate) seen: Seen,
    pub(crate) first: u64,
    pub(crate) last: u64,
    /// The most requests in a second and a minute by the clock.
    pub(crate) peak_second: Peak,
    pub(crate) peak_minute: Peak,
    /// Whether all instants are whole seconds.
    pub(crate) whole_seconds: bool,
    /// Attributes that policies look at and no request has.
    pub(crate) missing: Vec<String>,
    /// Attributes that have a field by the map, and that no policy looks at.
    pub(crate) unused: Vec<String>,
}

/// The most that happened within any one of equal steps of time.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Peak {
    step: u64,
    count: u64,
    pub(crate) most: u64,
}

/// Why traffic cannot be replayed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Trouble {
    #[error(transparent)]
    Traffic(#[from] traffic::Trouble),
    #[error(transparent)]
    Policy(#[from] PolicyError),
    #[error(transparent)]
    Build(#[from] BuildError),
    #[error("cannot write the report: {0}")]
    Print(serde_json::Error),
    /// What comes through a pipe is gone once it is read.
    #[error("{0} can be read only once, and this has to go through the traffic several times")]
    Again(String),
}

/// How often to tell how far it is.
const TELL_EVERY: u64 = 1 << 16;
const SECOND: u64 = 1_000_000;

impl Study {
    /// Policies to be tried.
    pub(crate) fn variant(&self, name: String, policies: PolicySet) -> Result<Variant, Trouble> {
        Ok(Variant::new(name, policies, self.most_keys)?)
    }

    /// What of the traffic cannot be gone through more than once, if anything.
    pub(crate) fn read_once(&self) -> Option<String> {
        match &self.traffic {
            Traffic::Logs(spec) => {
                let place = spec.places.iter().find(|place| place.is_read_once());
                place.map(traffic::Place::name)
            }
            Traffic::Patterns(..) => None,
        }
    }

    /// Lets all variants decide about all requests. `watch` is told now and then how many there were.
    pub(crate) fn replay(
        &self,
        variants: &mut [Variant],
        watch: &mut dyn FnMut(u64),
    ) -> Result<Span, Trouble> {
        match &self.traffic {
            Traffic::Logs(spec) => self.replay_logs(spec, variants, watch),
            Traffic::Patterns(patterns, start, seed) => {
                let mut first: Option<Span> = None;
                // Clients act on what they are told, so each variant has a crowd of its own. The first is told of.
                for variant in variants {
                    let crowd = Crowd::new(patterns, *start, *seed);
                    let span = self.replay_crowd(crowd, variant, watch);
                    match &mut first {
                        Some(first) => first.lack(span.missing),
                        None => first = Some(span),
                    }
                }
                Ok(first.unwrap_or_default())
            }
        }
    }

    fn replay_logs(
        &self,
        spec: &Spec,
        variants: &mut [Variant],
        watch: &mut dyn FnMut(u64),
    ) -> Result<Span, Trouble> {
        let attributes = looked_at(variants);
        let mut span = Span::new();
        let mut requests = 0_u64;
        span.seen = spec.read(&attributes, &self.progress, |entry| {
            let mut request = Request::new().in_domain(&self.domain);
            for (place, name) in attributes.0.iter().enumerate() {
                if let Some(value) = entry.value(place) {
                    request = request.with(name, value);
                }
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
        let missing = attributes.0.into_iter().zip(&span.seen.with);
        span.missing = missing.filter(|(_, with)| **with == 0).map(|(name, _)| name).collect();
        Ok(span)
    }

    fn replay_crowd(
        &self,
        mut crowd: Crowd,
        variant: &mut Variant,
        watch: &mut dyn FnMut(u64),
    ) -> Span {
        let mut span = Span::new();
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

impl Span {
    fn new() -> Self {
        let peak = |step| Peak { step, ..Peak::default() };
        let (peak_second, peak_minute) = (peak(0), peak(0));
        Self { peak_second, peak_minute, whole_seconds: true, ..Self::default() }
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
        self.peak_second.note(at / SECOND);
        self.peak_minute.note(at / (60 * SECOND));
    }
}

impl Peak {
    fn note(&mut self, step: u64) {
        self.count = if step == self.step { self.count + 1 } else { 1 };
        self.step = step;
        self.most = self.most.max(self.count);
    }
}

/// All attributes that the policies of these variants look at, each once.
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
