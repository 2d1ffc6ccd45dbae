//! The section `policies`.

use std::{
    collections::{BTreeSet, HashMap},
    slice,
};

use pacegate::{
    Algorithm, Limit, PolicySet,
    policy::{
        FailureMode, Lease, Match, Missing, Mode, Paths, Policy, PolicyError, PolicyName, Tag,
        Threshold, Unsettled,
    },
};
use pacegate_redis::Layout;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::Deserialize;
use serde_saphyr::Location;

use super::{
    choices::choices,
    hint::{among, shorten},
    layout::{check_debt, supported},
    matching::{ConditionSection, matching},
    problem::Problems,
    spanned::{At, Either, Entries, Form, Forms, Texts},
    text::share,
};
use crate::envoy::MIN_QUOTA_PERIOD;

/// A named rule: the requests that it covers, the attributes that they are counted by, and their limits.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Policy")]
pub(crate) struct PolicySection {
    /// Unique name: 1 to 64 of `A-Z a-z 0-9 _ . -`; not `inline`. It is part of the keys of counters: a renamed policy
    /// starts with new counters.
    #[schemars(example = "login-per-ip")]
    name: At<String>,

    /// The domain of the requests that the policy covers. Default: requests without a domain.
    #[schemars(extend("default" = ""))]
    domain: Option<String>,

    /// Conditions on the attributes of a request, all of which must hold. Default: every request of the domain.
    #[serde(rename = "match")]
    matching: Option<Entries<Form<ConditionSection>>>,

    /// The form in which `match` compares and `per` counts the attribute `path`.
    #[schemars(extend("default" = "normalized"))]
    paths: Option<PathsChoice>,

    /// The attribute to count by: each of its values has its own counter. With a list of attributes, each combination
    /// of values has its own counter. Default: one counter for all requests.
    #[schemars(example = &"user", example = ["tenant", "user"])]
    per: Option<Texts>,

    /// The treatment of a request without an attribute of `per`.
    #[schemars(extend("default" = "share"))]
    missing: Option<MissingChoice>,

    /// An amount per period, with an optional burst and algorithm. Several in a list are charged all or nothing.
    /// Periods are `second`, `minute`, `hour`, `day`, `week`, or a number of `us`, `ms`, `s`, `m`, `h`, `d`, `w`. Fixed
    /// windows also have calendar periods: `month`, `month anchor 17`, `year`, `week starting monday`, `day in
    /// Europe/Berlin`.
    #[schemars(example = "100/minute", example = "5/30s sliding-log", example = ["10/second burst 20", "1000/month"])]
    limit: Texts,

    /// The algorithm of all limits of this policy whose text does not name one.
    #[schemars(with = "Option<AlgorithmName>", extend("default" = "fixed-window"))]
    algorithm: Option<At<String>>,

    /// The burst, unless it is in the text of the limit. Makes the limit a `token-bucket`.
    #[schemars(range(min = 1))]
    burst: Option<At<u64>>,

    /// Maximum cost of one request. Default: as much as the limit can admit at once.
    #[schemars(range(min = 1))]
    max_cost: Option<At<u64>>,

    /// Records every charge in full, even if it exceeds a limit: for units that have already been spent, such as the
    /// `hits_addend` that Envoy sends at the end of a stream. Units beyond a limit are debt, which later requests wait
    /// for. Check with a cost of 0 before.
    #[serde(default)]
    record_in_full: bool,

    /// Maximum debt, in units beyond each limit. More is not recorded. Default: as much as the limit.
    max_debt: Option<u64>,

    /// The treatment of a reservation that is neither settled nor cancelled within its `ttl`.
    #[schemars(extend("default" = "keep"))]
    unsettled: Option<UnsettledChoice>,

    /// Other limits for some of the requests: the first that matches replaces `limit`. Each override has its own
    /// counters.
    #[serde(default)]
    overrides: Vec<OverrideSection>,

    /// Enforces the limits, or only counts and reports.
    #[schemars(extend("default" = "enforce"))]
    mode: Option<ModeChoice>,

    /// The failure mode, which applies when the store does not answer.
    #[schemars(
        extend("default" = "local"),
        example = &"closed",
        example = serde_json::json!({"local": "1/3"})
    )]
    failure: Option<At<Form<FailureSection>>>,

    /// Units that this process may charge ahead in Redis or Valkey and spend without a round trip: a number, or a part
    /// of the limit. For fixed and sliding windows. Leases never admit more than the limit, but a request may be denied
    /// while another process holds unspent units.
    #[schemars(with = "Option<Either<u64, String>>", example = 50, example = "5%")]
    lease: Option<At<String>>,

    /// Reports a key when its used units reach one of these parts of a limit, once per window: in the log, in the
    /// metrics, on the dashboard, and to the webhook of `notifications`. `100%` is also reached by a denial.
    #[schemars(example = &"80%", example = ["80%", "100%"])]
    notify: Option<Texts>,

    /// Lets Envoy's `rate_limit_quota` filter use the policy: Envoy gets units in advance and decides without a call
    /// for each request. Needs fixed windows of at least 10 seconds; excludes `lease` and the shadow mode. Other
    /// clients can use the policy too.
    #[schemars(with = "Option<bool>", extend("default" = false))]
    envoy_quota: Option<At<bool>>,

    /// The hash tag of the keys of this policy on a cluster. Policies of one request with the same tag are charged in
    /// one step.
    #[schemars(extend("default" = "key"))]
    tag: Option<At<TagSection>>,
}

/// Other limits for some requests of a policy, with their own counters. Their keys contain the policy's name and
/// `match`: a new `limit` with the same algorithm and period keeps its usage.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Override")]
pub(crate) struct OverrideSection {
    /// The requests of the policy that the override applies to.
    #[serde(rename = "match")]
    matching: Entries<Form<ConditionSection>>,

    /// Their limits, or `unlimited`.
    #[schemars(example = "1000/minute", example = &"unlimited")]
    limit: Texts,
}

choices! {
    /// The mode of a policy.
    #[schemars(rename = "Mode")]
    ModeChoice => Mode {
        /// Requests over the limit are denied.
        Enforce => Mode::Enforce,
        /// Requests over the limit are counted and reported, and pass.
        Shadow => Mode::Shadow,
    }
}

choices! {
    /// The form in which the attribute `path` is compared and counted.
    #[schemars(rename = "Paths")]
    PathsChoice => Paths {
        /// In one spelling: decoded, without query, path parameters, dot segments, repeated and trailing slashes, and
        /// in lower case. Patterns get the same spelling.
        Normalized => Paths::Normalized,
        /// The same, but upper and lower case differ.
        CaseSensitive => Paths::CaseSensitive,
        /// As it was sent.
        Exact => Paths::Exact,
    }
}

choices! {
    /// The treatment of a request without an attribute of `per`.
    #[schemars(rename = "Missing")]
    MissingChoice => Missing {
        /// All such requests share one counter, so that a client gains nothing by leaving the attribute out.
        Share => Missing::Share,
        /// The policy does not cover the request.
        Skip => Missing::Skip,
    }
}

choices! {
    /// The treatment of a reservation that is neither settled nor cancelled within its `ttl`.
    #[schemars(rename = "Unsettled")]
    UnsettledChoice => Unsettled {
        /// The estimate stays charged until its window ends, because its units were probably spent.
        Keep => Unsettled::Keep,
        /// The estimate is returned before the next decision for the key, as far as it still counts.
        Return => Unsettled::Return,
    }
}

/// `local` with a share.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(rename = "Failure")]
pub(crate) struct FailureSection {
    /// Count in the memory of this process, at this part of the limit: `1/3` if three processes share the load.
    #[schemars(example = "1/3")]
    local: At<String>,
}

/// The failure mode, which applies when the store does not answer.
#[derive(JsonSchema)]
#[schemars(rename_all = "kebab-case")]
#[expect(dead_code, reason = "only its schema is used; `Form` parses the value")]
pub(crate) enum FailureName {
    /// Let requests pass, and count nothing.
    Open,
    /// Deny requests, with a `Retry-After` of one second.
    Closed,
    /// Count in the memory of this process, at the full limit.
    Local,
}

/// The hash tag of the keys of a policy on a cluster.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[schemars(rename = "Tag")]
pub(crate) enum TagSection {
    /// The key: spreads the keys over all servers.
    Key,
    /// The value of this attribute, one of those in `per`.
    Attribute(At<String>),
    /// This name, which other policies may share: all of their counters are on one server.
    Name(At<String>),
}

/// The schema of an algorithm's name.
pub(crate) enum AlgorithmName {}

impl JsonSchema for AlgorithmName {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "Algorithm".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let variants = Algorithm::BUILT_IN.map(|algorithm| {
            json_schema!({
                "description": algorithm.summary(),
                "type": "string",
                "const": algorithm.name(),
            })
        });
        json_schema!({ "description": "The algorithm of a limit.", "oneOf": variants })
    }
}

impl PolicySection {
    /// Returns the position of `envoy_quota` if it is set.
    fn envoy_quota_location(&self) -> Option<Location> {
        self.envoy_quota.as_ref().filter(|quota| quota.value).map(|quota| quota.location)
    }
}

impl Forms for FailureSection {
    const EXPECTED: &'static str =
        "`open`, `closed`, `local`, or `local` with a share, as in `{local: 1/3}`";
    type AnyForm = Either<FailureName, Self>;
}

/// Limits with their positions in the file.
struct LocatedLimits {
    limits: Vec<Limit>,
    locations: Vec<Location>,
}

/// A parsed policy before its checks, with the positions for their errors.
struct Draft<'a> {
    policy: Policy,
    section: &'a PolicySection,
    limits: LocatedLimits,
    overrides: Vec<LocatedLimits>,
    layout: &'a Layout,
}

/// Parses the policies of a file. Returns `None` if there is a problem.
pub(super) fn policies(
    sections: &[At<PolicySection>],
    layout: &Layout,
    problems: &mut Problems<'_>,
) -> Option<PolicySet> {
    let mut names: HashMap<PolicyName, Location> = HashMap::new();
    let mut policies = Vec::with_capacity(sections.len());
    for At { value: section, .. } in sections {
        let Some(policy) = policy(section, layout, problems) else { continue };
        match names.get(&policy.name) {
            Some(first) => {
                let first = first.line();
                let name = policy.name;
                let message = format!(
                    "duplicate policy name `{name}`, first used on line {first}: choose another"
                );
                problems.add(section.name.location, message);
            }
            None => {
                names.insert(policy.name, section.name.location);
                policies.push(policy);
            }
        }
    }
    if !problems.is_empty() {
        return None;
    }
    PolicySet::new(policies).map_err(|error| problems.add(Location::UNKNOWN, error)).ok()
}

/// Returns the names of the policies with `envoy_quota`.
pub(super) fn envoy_quotas(sections: &[At<PolicySection>]) -> BTreeSet<PolicyName> {
    let quotas = sections.iter().filter(|section| section.value.envoy_quota_location().is_some());
    quotas.filter_map(|section| section.value.name.value.parse().ok()).collect()
}

fn policy(section: &PolicySection, layout: &Layout, problems: &mut Problems<'_>) -> Option<Policy> {
    let name = name(&section.name, problems);
    let limits = own_limits(section, problems);
    let overrides = overrides(section, problems);
    let matching = section.matching.as_ref().map(|entries| matching(entries, problems));
    let per = section.per.as_ref().map(|per| attributes(per, problems));
    let failure = section.failure.as_ref().map(|failure| self::failure(failure, problems));
    let lease = section
        .lease
        .as_ref()
        .map(|lease| problems.take(lease.location, lease.value.parse::<Lease>()));
    let notify = section.notify.as_ref().map(|notify| thresholds(notify, problems));
    problems.take(section.name.location, check_debt(layout, section.record_in_full));
    let (name, limits, overrides) = (name?, limits?, overrides?);
    let mut policy = Policy::new(name, limits.limits.iter().copied());
    policy.domain = section.domain.clone().unwrap_or_default();
    policy.matching = matching.unwrap_or_else(|| Some(Match::any()))?;
    policy.paths = section.paths.map(Into::into).unwrap_or_default();
    policy.per = per.unwrap_or_else(|| Some(Vec::new()))?;
    policy.missing = section.missing.map(Into::into).unwrap_or_default();
    policy.mode = section.mode.map(Into::into).unwrap_or_default();
    policy.failure = failure.unwrap_or_else(|| Some(FailureMode::default()))?;
    policy.max_cost = section.max_cost.as_ref().map(|cost| cost.value);
    policy.record_in_full = section.record_in_full;
    policy.max_debt = section.max_debt;
    policy.unsettled = section.unsettled.map(Into::into).unwrap_or_default();
    policy.notify = notify.unwrap_or_else(|| Some(Vec::new()))?;
    policy.tag = section.tag.as_ref().map(|tag| (&tag.value).into()).unwrap_or_default();
    policy.lease = match lease {
        Some(lease) => Some(lease?),
        None => None,
    };
    let (replacing, overrides): (Vec<_>, Vec<_>) = overrides.into_iter().unzip();
    Draft { policy, section, limits, overrides, layout }.checked(replacing, problems)
}

fn name(written: &At<String>, problems: &mut Problems<'_>) -> Option<PolicyName> {
    if written.value == PolicyName::INLINE.as_str() {
        let message = "the name `inline` is reserved for inline limits: choose another";
        problems.add(written.location, message);
        return None;
    }
    problems.take(written.location, written.value.parse())
}

impl Draft<'_> {
    /// Returns the policy with its overrides, or adds the problems that it has.
    fn checked(mut self, replacing: Vec<Match>, problems: &mut Problems<'_>) -> Option<Policy> {
        let before = problems.count();
        let own = std::mem::take(&mut self.policy.limits);
        if let Some(error) = self.error_with(&self.limits) {
            self.report(&error, &self.limits, problems);
        } else {
            for limits in &self.overrides {
                if !limits.limits.is_empty()
                    && let Some(error) = self.error_with(limits)
                {
                    self.report(&error, limits, problems);
                }
            }
        }
        if problems.count() == before {
            self.check_layout(problems);
            self.check_envoy_quota(problems);
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
            for (limit, location) in limits.limits.iter().zip(&limits.locations) {
                problems.take(*location, supported(self.layout, slice::from_ref(limit), false));
            }
            let location = limits.locations.last().filter(|_| problems.count() == before);
            if let Some(location) = location {
                problems.take(*location, supported(self.layout, &limits.limits, false));
            }
        }
        if let Some(lease) = &self.section.lease {
            problems.take(lease.location, supported(self.layout, &[], true));
        }
    }

    /// Adds a problem if assignments of units to Envoy could not keep the limits.
    fn check_envoy_quota(&self, problems: &mut Problems<'_>) {
        let Some(quota) = self.section.envoy_quota_location() else { return };
        if self.policy.lease.is_some() {
            problems.add(quota, "`envoy_quota` excludes `lease`: remove one of them");
        }
        if *self.layout != Layout::native() {
            let message = "`envoy_quota` needs the layout `native`: others count denied charges";
            problems.add(quota, message);
        }
        if self.policy.mode == Mode::Shadow {
            problems.add(quota, "`envoy_quota` needs `mode: enforce`: Envoy can only deny");
        }
        for limits in std::iter::once(&self.limits).chain(&self.overrides) {
            for (limit, location) in limits.limits.iter().zip(&limits.locations) {
                let is_window =
                    limit.algorithm() == Algorithm::FixedWindow && limit.calendar().is_none();
                if !is_window || limit.period() < MIN_QUOTA_PERIOD {
                    let message = format!(
                        "`envoy_quota` cannot keep the limit `{limit}`: use a fixed window of at least 10s"
                    );
                    problems.add(*location, message);
                }
            }
        }
    }

    /// Returns the error of this policy with these limits.
    fn error_with(&self, limits: &LocatedLimits) -> Option<PolicyError> {
        let mut policy = self.policy.clone();
        policy.limits.clone_from(&limits.limits);
        PolicySet::new([policy]).err()
    }

    fn report(&self, error: &PolicyError, limits: &LocatedLimits, problems: &mut Problems<'_>) {
        let Self { section, .. } = self;
        let limit = |limit: &Limit| {
            let index = limits.limits.iter().rposition(|other| other == limit);
            index.and_then(|index| limits.locations.get(index).copied())
        };
        let location = match error {
            PolicyError::NoCost(_) => section.max_cost.as_ref().map(|cost| cost.location),
            PolicyError::SameWindow { second, .. } => limit(second),
            PolicyError::TooManyLimits(_) => limits.locations.last().copied(),
            PolicyError::LeaseSize { .. } | PolicyError::LeaseAlgorithm { .. } => {
                section.lease.as_ref().map(|lease| lease.location)
            }
            PolicyError::ForeignTag { .. } => section.tag.as_ref().map(|tag| tag.location),
            _ => None,
        };
        problems.add(location.unwrap_or(section.limit.location), error);
    }
}

fn own_limits(section: &PolicySection, problems: &mut Problems<'_>) -> Option<LocatedLimits> {
    let texts = section.limit.texts(problems)?;
    if texts.is_empty() {
        problems.add(
            section.limit.location,
            "a policy has at least one limit: write one, such as `100/minute`",
        );
        return None;
    }
    if let (Some(burst), true) = (&section.burst, texts.len() > 1) {
        let message = "`burst` needs a single limit: with several, write it in one of them, as in `10/second burst 20`";
        problems.add(burst.location, message);
        return None;
    }
    limits(&texts, section.burst.as_ref(), section.algorithm.as_ref(), problems)
}

fn overrides(
    section: &PolicySection,
    problems: &mut Problems<'_>,
) -> Option<Vec<(Match, LocatedLimits)>> {
    let read: Vec<_> = section
        .overrides
        .iter()
        .map(|other| {
            let matching = matching(&other.matching, problems);
            let texts = other.limit.texts(problems)?;
            let unlimited = matches!(&*texts, [At { value, .. }] if value == "unlimited");
            let texts = if unlimited { &[] } else { &*texts };
            let limits = limits(texts, None, section.algorithm.as_ref(), problems);
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
) -> Option<LocatedLimits> {
    let algorithm = match algorithm {
        Some(name) => Some(parse_algorithm(name, problems)?),
        None => None,
    };
    let algorithm = algorithm.as_ref();
    let read: Vec<_> = texts.iter().map(|text| limit(text, burst, algorithm, problems)).collect();
    let limits: Option<Vec<_>> = read.into_iter().collect();
    Some(LocatedLimits {
        limits: limits?,
        locations: texts.iter().map(|text| text.location).collect(),
    })
}

fn parse_algorithm(name: &At<String>, problems: &mut Problems<'_>) -> Option<At<Algorithm>> {
    let algorithm = name.value.parse().ok();
    if algorithm.is_none() {
        let choices = among(&name.value, &Algorithm::NAMES);
        let message = format!("`{}` is not an algorithm: {choices}", shorten(&name.value));
        problems.add(name.location, message);
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
    let mut limit: Limit = problems.take(text.location, text.value.parse())?;
    let mut words = text.value.split_whitespace();
    if let Some(burst) = burst {
        if text.value.split_whitespace().any(|word| word == "burst") {
            problems.add(burst.location, "the limit already has a burst: remove one of them");
            return None;
        }
        limit = problems.take(burst.location, limit.with_burst(burst.value))?;
    }
    let Some(algorithm) = algorithm else { return Some(limit) };
    if words.any(|word| word.parse::<Algorithm>().is_ok()) {
        let message = format!(
            "the limit `{}` already names an algorithm: remove one of them",
            shorten(&text.value)
        );
        problems.add(algorithm.location, message);
        return None;
    }
    problems.take(algorithm.location, limit.with_algorithm(algorithm.value))
}

fn attributes(per: &Texts, problems: &mut Problems<'_>) -> Option<Vec<String>> {
    let mut attributes: Vec<String> = Vec::new();
    for At { value, location, .. } in per.texts(problems)? {
        let problem = if value.is_empty() {
            "empty attribute name: write one, such as `user`".to_owned()
        } else if attributes.iter().any(|other| **other == *value) {
            format!("duplicate attribute `{}`: remove one of them", shorten(&value))
        } else {
            attributes.push(value);
            continue;
        };
        problems.add(location, problem);
        return None;
    }
    Some(attributes)
}

fn thresholds(notify: &Texts, problems: &mut Problems<'_>) -> Option<Vec<Threshold>> {
    let texts = notify.texts(problems)?;
    let read = texts.iter().map(|text| {
        let threshold = text.value.parse::<Threshold>().map_err(|error| {
            // A number without its sign is the likely mistake.
            match format!("{}%", text.value).parse::<Threshold>() {
                Ok(meant) => format!("invalid threshold `{}`: write `{meant}`", text.value),
                Err(_) => error.to_string(),
            }
        });
        problems.take(text.location, threshold)
    });
    let mut read = read.collect::<Vec<_>>().into_iter().collect::<Option<Vec<_>>>()?;
    read.sort_unstable();
    read.dedup();
    Some(read)
}

/// Reads a failure mode.
pub(super) fn failure(
    written: &At<Form<FailureSection>>,
    problems: &mut Problems<'_>,
) -> Option<FailureMode> {
    let name = match &written.value {
        Form::Map(section) => {
            return problems.take(section.local.location, share(&section.local.value));
        }
        Form::One(scalar) => written.scalar_text(scalar, problems),
        Form::List(_) => {
            problems.expected::<FailureSection>(written.location);
            return None;
        }
    };
    let mode = name.parse().map_err(|_| {
        let choices = among(&name, &["open", "closed", "local", "{local: 1/3}"]);
        format!("`{}` is not a failure mode: {choices}", shorten(&name))
    });
    problems.take(written.location, mode)
}

impl From<&TagSection> for Tag {
    fn from(section: &TagSection) -> Self {
        match section {
            TagSection::Key => Self::Key,
            TagSection::Attribute(attribute) => Self::Attribute(attribute.value.clone()),
            TagSection::Name(name) => Self::Name(name.value.clone()),
        }
    }
}
