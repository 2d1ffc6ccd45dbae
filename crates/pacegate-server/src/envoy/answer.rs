//! What Envoy is told: a status for each descriptor, and besides that headers and metadata.

use std::collections::BTreeMap;

use bytes::Bytes;
use pacegate::{Algorithm, Decision};

use super::{
    ask::{Asked, Limits},
    decide::Finding,
    limits::Bound,
    proto::{
        Code, DescriptorStatus, Duration, HeaderValue, Kind, List, RateLimit, RateLimitResponse,
        Struct, Value,
    },
    rules::{HeaderNames, Options},
};
use crate::engine::Engine;

/// The answer, given what became of each descriptor.
pub(super) fn response(
    engine: &Engine,
    options: &Options,
    asked: &[Asked<'_>],
    findings: &[Finding],
    is_over: bool,
) -> RateLimitResponse {
    let both = || asked.iter().zip(findings);
    let statuses: Vec<_> = both().map(|(asked, finding)| status(engine, asked, finding)).collect();
    let names = options.headers.as_ref();
    RateLimitResponse {
        overall_code: code(is_over),
        response_headers_to_add: names.map_or_else(Vec::new, |names| headers(names, &statuses)),
        dynamic_metadata: metadata(both()),
        statuses,
    }
}

/// The answer to more than is looked at: as many statuses, none with a limit.
pub(super) fn refusal(descriptors: usize, shadow: bool) -> RateLimitResponse {
    let status = DescriptorStatus { code: code(true), ..DescriptorStatus::default() };
    RateLimitResponse {
        overall_code: code(!shadow),
        statuses: vec![status; descriptors],
        ..RateLimitResponse::default()
    }
}

fn code(is_over: bool) -> i32 {
    if is_over { Code::OverLimit } else { Code::Ok }.into()
}

fn status(engine: &Engine, asked: &Asked<'_>, finding: &Finding) -> DescriptorStatus {
    let is_unlimited = match &asked.limits {
        Limits::Unlimited => true,
        Limits::Rule(rule, _) => rule.is_unlimited(),
        _ => false,
    };
    let code = code(finding.is_blocked || (finding.is_over && !asked.is_shadow()));
    let Some((place, decision)) = finding.spoken else {
        let limit_remaining = if is_unlimited { u32::MAX } else { 0 };
        return DescriptorStatus { code, limit_remaining, ..DescriptorStatus::default() };
    };
    DescriptorStatus {
        code,
        current_limit: current_limit(asked, place, &decision),
        limit_remaining: clamp(decision.remaining()),
        duration_until_reset: Some(reset(engine, &decision)),
    }
}

/// The limit that spoke, as far as Envoy's units can say it.
fn current_limit(asked: &Asked<'_>, place: usize, decision: &Decision) -> Option<RateLimit> {
    let bound = bound(asked, place, decision)?;
    let name = match &asked.limits {
        Limits::Rule(rule, _) => rule.name.clone(),
        Limits::Native(_) => name(decision),
        _ => Bytes::new(),
    };
    let (requests_per_unit, unit) = (clamp(bound.limit.amount()), bound.unit.into());
    Some(RateLimit { requests_per_unit, unit, name })
}

fn bound(asked: &Asked<'_>, place: usize, decision: &Decision) -> Option<Bound> {
    match &asked.limits {
        Limits::Rule(rule, _) => rule.bounds.get(place).copied(),
        Limits::Override(bound, _) => Some(*bound),
        Limits::Native(_) => decision.limit().map(Bound::new),
        Limits::None | Limits::Unlimited => None,
    }
}

fn name(decision: &Decision) -> Bytes {
    let name = decision.policy().map_or("", |policy| policy.as_str());
    Bytes::from_static(name.as_bytes())
}

/// Whole seconds, rounded up, as theirs are. A fixed window ends also if nothing of it is used, or can be.
fn reset(engine: &Engine, decision: &Decision) -> Duration {
    let window = decision.limit().filter(|limit| limit.algorithm() == Algorithm::FixedWindow);
    let micros = match (decision.reset_after().as_micros(), window) {
        (0, Some(limit)) => {
            let period = limit.period().as_micros().max(1);
            period - u128::from(engine.now().as_micros()) % period
        }
        (used, _) => used,
    };
    let seconds = i64::try_from(micros.div_ceil(1_000_000)).unwrap_or(i64::MAX);
    Duration { seconds, nanos: 0 }
}

fn clamp(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

/// About the descriptor that is over its limit, of several the one that is so for longest, or else the one with the
/// least remaining.
fn headers(names: &HeaderNames, statuses: &[DescriptorStatus]) -> Vec<HeaderValue> {
    let limited = statuses.iter().filter(|status| status.current_limit.is_some());
    let reset = |status: &DescriptorStatus| {
        status.duration_until_reset.as_ref().map_or(0, |reset| reset.seconds)
    };
    let by_need = |status: &&DescriptorStatus| match status.code == i32::from(Code::OverLimit) {
        true => (0, -reset(status)),
        false => (1, status.limit_remaining.into()),
    };
    let Some(status) = limited.min_by_key(by_need) else { return Vec::new() };
    let limit = status.current_limit.as_ref().map_or(0, |limit| limit.requests_per_unit);
    let reset = reset(status);
    let header = |key: &String, value: String| HeaderValue { key: key.clone(), value };
    vec![
        header(&names.limit, limit.to_string()),
        header(&names.remaining, status.limit_remaining.to_string()),
        header(&names.reset, reset.to_string()),
    ]
}

/// What units and names cannot say: the true limit where it is one of our extensions, and what the file adds.
fn metadata<'a>(findings: impl Iterator<Item = (&'a Asked<'a>, &'a Finding)>) -> Option<Struct> {
    let mut limits = Vec::new();
    for (number, (asked, finding)) in (0_u32..).zip(findings) {
        let Some((place, decision)) = finding.spoken else { continue };
        let extra = asked.rule().and_then(|rule| rule.metadata.as_ref());
        let bound = bound(asked, place, &decision).filter(|bound| bound.is_extension);
        if extra.is_none() && bound.is_none() {
            continue;
        }
        let mut fields = BTreeMap::from([
            ("descriptor".to_owned(), Kind::Number(f64::from(number)).into()),
            ("limit".to_owned(), text(decision.limit())),
            ("policy".to_owned(), text(decision.policy())),
        ]);
        if let Some(extra) = extra {
            fields.insert("metadata".to_owned(), Kind::Struct(extra.clone()).into());
        }
        limits.push(Kind::Struct(Struct { fields }).into());
    }
    let list = Kind::List(List { values: limits });
    let is_empty = matches!(&list, Kind::List(list) if list.values.is_empty());
    (!is_empty).then(|| Struct { fields: BTreeMap::from([("limits".to_owned(), list.into())]) })
}

fn text(value: Option<impl ToString>) -> Value {
    Kind::Text(value.map(|value| value.to_string()).unwrap_or_default()).into()
}
