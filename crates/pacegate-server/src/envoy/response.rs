//! The response to Envoy: a status for each descriptor, headers and metadata.

use std::collections::BTreeMap;

use bytes::Bytes;
use pacegate::{Algorithm, Decision};

use super::{
    decide::DescriptorResult,
    limits::Bound,
    metadata,
    options::{EnvoyOptions, HeaderNames, ResponseHeader},
    proto::{
        Code, DescriptorStatus, Duration, HeaderValue, ListValue, RateLimit, RateLimitRequest,
        RateLimitResponse, Struct, Value, ValueKind,
    },
    resolve::{DescriptorLimits, ResolvedDescriptor},
};
use crate::engine::Engine;

/// Creates the response from the results of all descriptors: whether they are independent, and whether they deny.
pub(super) fn response(
    engine: &Engine,
    options: &EnvoyOptions,
    request: &RateLimitRequest,
    resolved: &[ResolvedDescriptor<'_>],
    results: &[DescriptorResult],
    (is_independent, is_over): (bool, bool),
) -> RateLimitResponse {
    let both = || resolved.iter().zip(results);
    let statuses: Vec<_> =
        both().map(|(resolved, result)| status(engine, resolved, result)).collect();
    let names = options.response_headers.as_ref();
    RateLimitResponse {
        overall_code: code(is_over),
        response_headers_to_add: names
            .map_or_else(Vec::new, |names| headers(names, is_independent, resolved, &statuses)),
        dynamic_metadata: match options.dynamic_metadata {
            true => Some(metadata::of_request(request, resolved, results)),
            false => extended_limits(both()),
        },
        statuses,
    }
}

/// Creates a denial without limits, for a request that exceeds the bounds.
pub(super) fn denial(descriptors: usize, shadow: bool) -> RateLimitResponse {
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

fn status(
    engine: &Engine,
    resolved: &ResolvedDescriptor<'_>,
    result: &DescriptorResult,
) -> DescriptorStatus {
    let is_unlimited = match &resolved.limits {
        DescriptorLimits::Unlimited => true,
        DescriptorLimits::Rule(rule, _) => rule.is_unlimited(),
        _ => false,
    };
    let code = code(result.is_blocked || (result.is_over && !resolved.is_shadow()));
    let Some((place, decision)) = result.tightest else {
        let limit_remaining = if is_unlimited { u32::MAX } else { 0 };
        return DescriptorStatus { code, limit_remaining, ..DescriptorStatus::default() };
    };
    DescriptorStatus {
        code,
        current_limit: current_limit(resolved, place, &decision),
        limit_remaining: clamp(result.remaining),
        duration_until_reset: Some(reset(engine, &decision)),
    }
}

/// Returns the limit that decided, rounded to a unit of Envoy.
fn current_limit(
    resolved: &ResolvedDescriptor<'_>,
    place: usize,
    decision: &Decision,
) -> Option<RateLimit> {
    let bound = bound(resolved, place, decision)?;
    let name = match &resolved.limits {
        DescriptorLimits::Rule(rule, _) => rule.name.clone(),
        DescriptorLimits::Native(_) => name(decision),
        _ => Bytes::new(),
    };
    let (requests_per_unit, unit) = (clamp(bound.limit.amount()), bound.unit.into());
    Some(RateLimit { requests_per_unit, unit, name })
}

fn bound(resolved: &ResolvedDescriptor<'_>, place: usize, decision: &Decision) -> Option<Bound> {
    match &resolved.limits {
        DescriptorLimits::Rule(rule, _) => rule.bounds.get(place).copied(),
        DescriptorLimits::Override(bound, ..) => Some(*bound),
        DescriptorLimits::Native(_) => decision.limit().map(Bound::new),
        DescriptorLimits::None | DescriptorLimits::Unlimited => None,
    }
}

fn name(decision: &Decision) -> Bytes {
    let name = decision.policy().map_or("", |policy| policy.as_str());
    Bytes::from_static(name.as_bytes())
}

/// Returns the seconds until the reset, rounded up. A fixed window ends even if it is unused.
fn reset(engine: &Engine, decision: &Decision) -> Duration {
    let window = decision.limit().filter(|limit| limit.algorithm() == Algorithm::FixedWindow);
    let now = engine.now();
    let micros = match (decision.reset_after().as_micros(), window.and_then(|it| it.window_at(now)))
    {
        (0, Some(window)) => window.end().micros_since(now).into(),
        (used, _) => used,
    };
    let seconds = i64::try_from(micros.div_ceil(1_000_000)).unwrap_or(i64::MAX);
    Duration { seconds, nanos: 0 }
}

fn clamp(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}

/// Returns the headers of a descriptor: one that denies, otherwise the first one with the fewest units left. Of several
/// that deny, the last one if they are independent, as in envoyproxy/ratelimit, otherwise the one that denies longest.
fn headers(
    names: &HeaderNames,
    is_independent: bool,
    resolved: &[ResolvedDescriptor<'_>],
    statuses: &[DescriptorStatus],
) -> Vec<HeaderValue> {
    let limited = || statuses.iter().filter(|status| status.current_limit.is_some());
    let reset = |status: &DescriptorStatus| {
        status.duration_until_reset.as_ref().map_or(0, |reset| reset.seconds)
    };
    let denying = resolved.iter().zip(statuses).filter(|(resolved, status)| {
        status.code == i32::from(Code::OverLimit)
            && status.current_limit.is_some()
            && !resolved.is_quota
    });
    let denying = denying
        .map(|(_, status)| status)
        .max_by_key(|status| if is_independent { 0 } else { reset(status) });
    let Some(status) = denying.or_else(|| limited().min_by_key(|it| it.limit_remaining)) else {
        return Vec::new();
    };
    let limit = status.current_limit.as_ref().map_or(0, |limit| limit.requests_per_unit);
    let reset = reset(status);
    let header = |key: &ResponseHeader, value: String| {
        let key = key.as_str().to_owned();
        HeaderValue { key, value }
    };
    vec![
        header(&names.limit, limit.to_string()),
        header(&names.remaining, status.limit_remaining.to_string()),
        header(&names.reset, reset.to_string()),
    ]
}

/// Returns metadata for limits that Envoy's units cannot express.
fn extended_limits<'a>(
    results: impl Iterator<Item = (&'a ResolvedDescriptor<'a>, &'a DescriptorResult)>,
) -> Option<Struct> {
    let mut limits = Vec::new();
    for (number, (resolved, result)) in (0_u32..).zip(results) {
        let Some((place, decision)) = result.tightest else { continue };
        let bound = bound(resolved, place, &decision).filter(|bound| bound.is_extension);
        let Some(bound) = bound else { continue };
        let fields = BTreeMap::from([
            ("descriptor".to_owned(), ValueKind::Number(f64::from(number)).into()),
            ("limit".to_owned(), text(Some(bound.limit))),
            ("policy".to_owned(), text(decision.policy())),
        ]);
        limits.push(ValueKind::Struct(Struct { fields }).into());
    }
    let is_empty = limits.is_empty();
    let list = ValueKind::ListValue(ListValue { values: limits });
    (!is_empty).then(|| Struct { fields: BTreeMap::from([("limits".to_owned(), list.into())]) })
}

fn text(value: Option<impl ToString>) -> Value {
    ValueKind::Text(value.map(|value| value.to_string()).unwrap_or_default()).into()
}
