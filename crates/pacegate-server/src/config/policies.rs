//! Reads policies.

use std::{collections::HashMap, slice};

use pacegate::{
    Algorithm, Limit, PolicySet,
    policy::{
        FailureMode, Lease, Match, Missing, Mode, Paths, Policy, PolicyError, PolicyName, Tag,
    },
};
use pacegate_redis::Layout;
use serde_saphyr::Location;

use super::{
    file,
    hint::{among, shorten},
    layout::supported,
    matching::matching,
    place::{At, Form, Forms, NoMap},
    problem::Problems,
    text::share,
    written::{scalar_text, texts},
};

/// Limits with their positions in the file.
struct Limits {
    limits: Vec<Limit>,
    places: Vec<Location>,
}

/// A parsed policy before its checks, with the positions for their errors.
struct Draft<'a> {
    policy: Policy,
    written: &'a file::Policy,
    limits: Limits,
    overrides: Vec<Limits>,
    layout: &'a Layout,
}

/// Parses the policies of a file. Returns `None` if there is a problem.
pub(super) fn policies(
    written: &[At<file::Policy>],
    layout: &Layout,
    problems: &mut Problems<'_>,
) -> Option<PolicySet> {
    let mut names: HashMap<PolicyName, Location> = HashMap::new();
    let mut policies = Vec::with_capacity(written.len());
    for At { value: written, .. } in written {
        let Some(policy) = policy(written, layout, problems) else { continue };
        match names.get(&policy.name) {
            Some(first) => {
                let first = first.line();
                let name = policy.name;
                let message = format!(
                    "duplicate policy name `{name}`, first used on line {first}: choose another"
                );
                problems.add(written.name.place, message);
            }
            None => {
                names.insert(policy.name, written.name.place);
                policies.push(policy);
            }
        }
    }
    if !problems.is_empty() {
        return None;
    }
    PolicySet::new(policies).map_err(|error| problems.add(Location::UNKNOWN, error)).ok()
}

fn policy(written: &file::Policy, layout: &Layout, problems: &mut Problems<'_>) -> Option<Policy> {
    let name = name(&written.name, problems);
    let limits = own_limits(written, problems);
    let overrides = overrides(written, problems);
    let matching = written.matching.as_ref().map(|entries| matching(entries, problems));
    let per = written.per.as_ref().map(|per| attributes(per, problems));
    let failure = written.failure.as_ref().map(|failure| self::failure(failure, problems));
    let lease = written
        .lease
        .as_ref()
        .map(|lease| problems.take(lease.place, lease.value.parse::<Lease>()));
    let (name, limits, overrides) = (name?, limits?, overrides?);
    let mut policy = Policy::new(name, limits.limits.iter().copied());
    policy.domain = written.domain.clone().unwrap_or_default();
    policy.matching = matching.unwrap_or_else(|| Some(Match::any()))?;
    policy.paths = written.paths.map(Into::into).unwrap_or_default();
    policy.per = per.unwrap_or_else(|| Some(Vec::new()))?;
    policy.missing = written.missing.map(Into::into).unwrap_or_default();
    policy.mode = written.mode.map(Into::into).unwrap_or_default();
    policy.failure = failure.unwrap_or_else(|| Some(FailureMode::default()))?;
    policy.max_cost = written.max_cost.as_ref().map(|cost| cost.value);
    policy.tag = written.tag.as_ref().map(|tag| (&tag.value).into()).unwrap_or_default();
    policy.lease = match lease {
        Some(lease) => Some(lease?),
        None => None,
    };
    let (replacing, overrides): (Vec<_>, Vec<_>) = overrides.into_iter().unzip();
    Draft { policy, written, limits, overrides, layout }.checked(replacing, problems)
}

fn name(written: &At<String>, problems: &mut Problems<'_>) -> Option<PolicyName> {
    if written.value == RESERVED {
        let message =
            format!("the name `{RESERVED}` is reserved for inline limits: choose another");
        problems.add(written.place, message);
        return None;
    }
    problems.take(written.place, written.value.parse())
}

/// The policy name of inline limits.
const RESERVED: &str = "ad-hoc";

impl Draft<'_> {
    /// Returns the policy with its overrides, or adds the problems that it has.
    fn checked(mut self, replacing: Vec<Match>, problems: &mut Problems<'_>) -> Option<Policy> {
        let before = problems.count();
        let own = std::mem::take(&mut self.policy.limits);
        if let Some(error) = self.refusal(&self.limits) {
            self.tell(&error, &self.limits, problems);
        } else {
            for limits in &self.overrides {
                if !limits.limits.is_empty()
                    && let Some(error) = self.refusal(limits)
                {
                    self.tell(&error, limits, problems);
                }
            }
        }
        if problems.count() == before {
            self.check_layout(problems);
        }
        if problems.count() > before {
            return None;
        }
        let mut policy = self.policy;
        policy.limits = own;
        for (matching, limits) in replacing.into_iter().zip(self.overrides) {
            policy = policy.overriding(matching, limits.limits);
        }
        Some(policy)
    }

    /// Adds a problem for each limit that the layout of the store cannot count.
    fn check_layout(&self, problems: &mut Problems<'_>) {
        let before = problems.count();
        for limits in std::iter::once(&self.limits).chain(&self.overrides) {
            for (limit, place) in limits.limits.iter().zip(&limits.places) {
                problems.take(*place, supported(self.layout, slice::from_ref(limit), false));
            }
            let place = limits.places.last().filter(|_| problems.count() == before);
            if let Some(place) = place {
                problems.take(*place, supported(self.layout, &limits.limits, false));
            }
        }
        if let Some(lease) = &self.written.lease {
            problems.take(lease.place, supported(self.layout, &[], true));
        }
    }

    /// Returns the error of this policy with these limits.
    fn refusal(&self, limits: &Limits) -> Option<PolicyError> {
        let mut policy = self.policy.clone();
        policy.limits.clone_from(&limits.limits);
        PolicySet::new([policy]).err()
    }

    fn tell(&self, error: &PolicyError, limits: &Limits, problems: &mut Problems<'_>) {
        let Self { written, .. } = self;
        let limit = |limit: &Limit| {
            let place = limits.limits.iter().rposition(|other| other == limit);
            place.and_then(|place| limits.places.get(place).copied())
        };
        let place = match error {
            PolicyError::NoCost(_) => written.max_cost.as_ref().map(|cost| cost.place),
            PolicyError::SameWindow { second, .. } => limit(second),
            PolicyError::TooManyLimits(_) => limits.places.last().copied(),
            PolicyError::LeaseSize { .. } | PolicyError::LeaseAlgorithm { .. } => {
                written.lease.as_ref().map(|lease| lease.place)
            }
            PolicyError::ForeignTag { .. } => written.tag.as_ref().map(|tag| tag.place),
            _ => None,
        };
        problems.add(place.unwrap_or(written.limit.place), error);
    }
}

fn own_limits(written: &file::Policy, problems: &mut Problems<'_>) -> Option<Limits> {
    let texts = texts(&written.limit, problems)?;
    if texts.is_empty() {
        problems.add(
            written.limit.place,
            "a policy has at least one limit: write one, such as `100/minute`",
        );
        return None;
    }
    if let (Some(burst), true) = (&written.burst, texts.len() > 1) {
        let message = "`burst` needs a single limit: with several, write it in one of them, as in `10/second burst 20`";
        problems.add(burst.place, message);
        return None;
    }
    limits(&texts, written.burst.as_ref(), written.algorithm.as_ref(), problems)
}

fn overrides(written: &file::Policy, problems: &mut Problems<'_>) -> Option<Vec<(Match, Limits)>> {
    let read: Vec<_> = written
        .overrides
        .iter()
        .map(|other| {
            let matching = matching(&other.matching.value, problems);
            let texts = texts(&other.limit, problems)?;
            let unlimited = matches!(&*texts, [At { value, .. }] if value == "unlimited");
            let texts = if unlimited { &[] } else { &*texts };
            let limits = limits(texts, None, written.algorithm.as_ref(), problems);
            Some((matching?, limits?))
        })
        .collect();
    read.into_iter().collect()
}

fn limits(
    texts: &[At<String>],
    burst: Option<&At<u64>>,
    algorithm: Option<&At<String>>,
    problems: &mut Problems<'_>,
) -> Option<Limits> {
    let algorithm = match algorithm {
        Some(name) => Some(parse_algorithm(name, problems)?),
        None => None,
    };
    let algorithm = algorithm.as_ref();
    let read: Vec<_> = texts.iter().map(|text| limit(text, burst, algorithm, problems)).collect();
    let limits: Option<Vec<_>> = read.into_iter().collect();
    Some(Limits { limits: limits?, places: texts.iter().map(|text| text.place).collect() })
}

fn parse_algorithm(name: &At<String>, problems: &mut Problems<'_>) -> Option<At<Algorithm>> {
    let algorithm = name.value.parse().ok();
    if algorithm.is_none() {
        let choices = among(&name.value, &Algorithm::NAMES);
        let message = format!("`{}` is not an algorithm: {choices}", shorten(&name.value));
        problems.add(name.place, message);
    }
    Some(name.with(algorithm?))
}

/// Parses a limit. Its burst and algorithm may be in its text or in separate fields, but not in both.
fn limit(
    text: &At<String>,
    burst: Option<&At<u64>>,
    algorithm: Option<&At<Algorithm>>,
    problems: &mut Problems<'_>,
) -> Option<Limit> {
    let mut limit: Limit = problems.take(text.place, text.value.parse())?;
    let mut words = text.value.split_whitespace();
    if let Some(burst) = burst {
        if text.value.split_whitespace().any(|word| word == "burst") {
            problems.add(burst.place, "the limit already has a burst: remove one of them");
            return None;
        }
        limit = problems.take(burst.place, limit.with_burst(burst.value))?;
    }
    let Some(algorithm) = algorithm else { return Some(limit) };
    if words.any(|word| word.parse::<Algorithm>().is_ok()) {
        let message = format!(
            "the limit `{}` already names an algorithm: remove one of them",
            shorten(&text.value)
        );
        problems.add(algorithm.place, message);
        return None;
    }
    problems.take(algorithm.place, limit.with_algorithm(algorithm.value))
}

fn attributes(per: &At<Form<NoMap>>, problems: &mut Problems<'_>) -> Option<Vec<String>> {
    let mut attributes: Vec<String> = Vec::new();
    for At { value, place, .. } in texts(per, problems)? {
        let problem = if value.is_empty() {
            "empty attribute name: write one, such as `user`".to_owned()
        } else if attributes.iter().any(|other| **other == *value) {
            format!("`{}` is in the list already: leave one of them out", shorten(&value))
        } else {
            attributes.push(value);
            continue;
        };
        problems.add(place, problem);
        return None;
    }
    Some(attributes)
}

/// Reads a failure mode.
pub(super) fn failure(
    written: &At<Form<file::Failure>>,
    problems: &mut Problems<'_>,
) -> Option<FailureMode> {
    let name = match &written.value {
        Form::Map(share_of) => {
            let local = &share_of.local;
            let (numerator, denominator) = problems.take(local.place, share(&local.value))?;
            return Some(FailureMode::Local { numerator, denominator });
        }
        Form::One(scalar) => scalar_text(scalar, written.origin, problems),
        Form::List(_) => {
            problems.add(written.place, format_args!("expected {}", file::Failure::EXPECTED));
            return None;
        }
    };
    match &*name {
        "open" => Some(FailureMode::Open),
        "closed" => Some(FailureMode::Closed),
        "local" => Some(FailureMode::default()),
        other => {
            let choices = among(other, &["open", "closed", "local", "{local: 1/3}"]);
            problems.add(
                written.place,
                format!("`{}` is not a failure mode: {choices}", shorten(other)),
            );
            None
        }
    }
}

impl From<file::Mode> for Mode {
    fn from(written: file::Mode) -> Self {
        match written {
            file::Mode::Enforce => Self::Enforce,
            file::Mode::Shadow => Self::Shadow,
        }
    }
}

impl From<file::Paths> for Paths {
    fn from(written: file::Paths) -> Self {
        match written {
            file::Paths::Normalized => Self::Normalized,
            file::Paths::CaseSensitive => Self::CaseSensitive,
            file::Paths::Exact => Self::Exact,
        }
    }
}

impl From<file::Missing> for Missing {
    fn from(written: file::Missing) -> Self {
        match written {
            file::Missing::Share => Self::Share,
            file::Missing::Skip => Self::Skip,
        }
    }
}

impl From<&file::Tag> for Tag {
    fn from(written: &file::Tag) -> Self {
        match written {
            file::Tag::Key => Self::Key,
            file::Tag::Attribute(attribute) => Self::Attribute(attribute.value.clone()),
            file::Tag::Name(name) => Self::Name(name.value.clone()),
        }
    }
}
