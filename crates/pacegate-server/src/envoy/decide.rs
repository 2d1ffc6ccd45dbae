//! Decides a request of Envoy.

use futures_util::future::{join, join_all};
use pacegate::{Charge, CheckError, Decision, Source, StoreError};
use prost::Message;
use smallvec::SmallVec;
use tokio::time::Instant;

use super::{
    proto::{RateLimitRequest, RateLimitResponse},
    resolve::{self, DescriptorCharges, DescriptorLimits, RequestCharges, ResolvedDescriptor},
    response,
};
use crate::{
    active_config::{ActiveConfig, Revision},
    engine::Engine,
};

/// Why a request was not decided. A denial is not an error.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum EnvoyError {
    #[error("the domain is empty")]
    EmptyDomain,
    #[error("expected at least one descriptor")]
    NoDescriptors,
    #[error("unknown unit in the limit of a descriptor")]
    Unit,
    #[error("a domain or key is not UTF-8")]
    NotText,
    #[error("no config server has sent a valid configuration yet")]
    NoConfiguration,
    #[error(transparent)]
    Check(#[from] CheckError),
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// The result for one descriptor.
#[derive(Clone, Copy, Debug)]
pub(super) struct DescriptorResult {
    /// The tightest of its limits: its index, and its decision.
    pub(super) tightest: Option<(usize, Decision)>,
    /// The units left of the tightest limit.
    pub(super) remaining: u64,
    /// True if the cost exceeds the units left.
    pub(super) is_over: bool,
    /// True if the key is blocked, so that nothing was charged.
    pub(super) is_blocked: bool,
    /// True if a failure mode decided because the store did not answer.
    pub(super) is_degraded: bool,
}

/// The response to a request.
#[derive(Debug)]
pub(crate) struct EnvoyDecision {
    pub(crate) response: RateLimitResponse,
    /// True if a failure mode decided any descriptor.
    pub(crate) is_degraded: bool,
}

/// Decides a request.
pub(crate) async fn decide(
    revision: &Revision,
    request: &RateLimitRequest,
) -> Result<EnvoyDecision, EnvoyError> {
    decide_by(&revision.engine, revision, request).await
}

/// Decides a request before a deadline.
pub(super) async fn decide_before(
    revision: &Revision,
    request: &RateLimitRequest,
    deadline: Instant,
) -> Result<EnvoyDecision, EnvoyError> {
    decide_by(&revision.engine.answering_by(deadline), revision, request).await
}

async fn decide_by(
    engine: &Engine,
    revision: &Revision,
    request: &RateLimitRequest,
) -> Result<EnvoyDecision, EnvoyError> {
    let decided = decide_with(engine, revision, request).await;
    match &decided {
        Ok(decision) if decision.is_degraded => revision.hits.count_degraded(),
        Ok(_) => {}
        Err(error) => revision.hits.count_error(error),
    }
    decided
}

async fn decide_with(
    engine: &Engine,
    revision: &Revision,
    request: &RateLimitRequest,
) -> Result<EnvoyDecision, EnvoyError> {
    let settings = &*revision.settings;
    resolve::check(request)?;
    if settings.rules.is_pending {
        return Err(EnvoyError::NoConfiguration);
    }
    if resolve::exceeds_bounds(request, &settings.bounds) {
        tracing::debug!(
            descriptors = request.descriptors.len(),
            "denied a request that exceeds the bounds"
        );
        let response = response::denial(request.descriptors.len(), settings.shadow);
        return Ok(EnvoyDecision { response, is_degraded: false });
    }
    let is_independent = settings.counts_independently(&request.domain);
    let resolved = resolve::resolve(revision, request, is_independent)?;
    let mut planned = RequestCharges::new(&resolved, is_independent);
    // Rare branches are on the heap, so that the future of a decision is small.
    if resolved.iter().any(|resolved| resolved.refund) {
        Box::pin(refund(engine, &resolved, &mut planned)).await?;
    }
    let results = if is_independent {
        independent(engine, &resolved, &planned).await?
    } else {
        Box::pin(all_or_nothing(engine, &resolved, &mut planned, settings.shadow)).await?
    };
    let is_over = is_over(&resolved, &results);
    let is_blocked = results.iter().any(|result| result.is_blocked);
    if is_over && !is_blocked && !settings.shadow && !is_independent {
        Box::pin(refund_allowed_quotas(engine, &resolved, &planned, &results)).await?;
    }
    if let Some(stats) = &settings.envoy.statistics {
        revision.hits.record(stats, request, &resolved, &planned, &results);
        if is_over && settings.shadow {
            revision.hits.count_global_shadow();
        }
        if settings.rules.domain(&request.domain).is_none() {
            revision.hits.count_unknown_domain(&request.domain, request.descriptors.len());
        }
    }
    let denies = is_blocked || (is_over && !settings.shadow);
    let is_degraded = results.iter().any(|result| result.is_degraded);
    let facts = (is_independent, denies);
    let response = response::response(engine, &settings.envoy, request, &resolved, &results, facts);
    Ok(EnvoyDecision { response, is_degraded })
}

/// Refunds descriptors with negative hits, and turns their charges into peeks.
async fn refund(
    engine: &Engine,
    resolved: &[ResolvedDescriptor<'_>],
    planned: &mut RequestCharges<'_>,
) -> Result<(), StoreError> {
    for (resolved, part) in resolved.iter().zip(&planned.parts) {
        let charges = &mut planned.charges[part.range.clone()];
        if !resolved.refund || charges.is_empty() {
            continue;
        }
        if resolved.cost > 0 {
            engine.refund(charges).await?;
        }
        charges.iter_mut().for_each(|charge| (charge.cost, charge.enforced) = (0, false));
    }
    Ok(())
}

/// Charges all descriptors, or none. Charges that are recorded in full always count.
async fn all_or_nothing(
    engine: &Engine,
    resolved: &[ResolvedDescriptor<'_>],
    planned: &mut RequestCharges<'_>,
    shadow: bool,
) -> Result<SmallVec<[DescriptorResult; 4]>, CheckError> {
    let several_quotas = resolved.iter().filter(|resolved| resolved.is_quota).count() > 1;
    let denies = |resolved: &ResolvedDescriptor<'_>| {
        !(shadow || resolved.is_shadow() || (resolved.is_quota && several_quotas))
    };
    let mut is_blocked = false;
    for (resolved, part) in resolved.iter().zip(&planned.parts) {
        is_blocked |= part.is_too_large && denies(resolved);
        // Policies have their own mode.
        if !matches!(resolved.limits, DescriptorLimits::Native(_)) {
            let enforced = denies(resolved) && !part.is_too_large;
            planned.charges[part.range.clone()].iter_mut().for_each(|it| it.enforced = enforced);
        }
    }
    if is_blocked {
        resolve::peek(&mut planned.charges);
    }
    if planned.charges.is_empty() {
        return Ok(results(resolved, planned, &[]));
    }
    let decisions = decide_charges(engine, resolved, planned).await?;
    Ok(results(resolved, planned, &decisions))
}

/// Decides the charges together, but those of refunds separately: a blocked key of a refund denies no other descriptor.
async fn decide_charges(
    engine: &Engine,
    resolved: &[ResolvedDescriptor<'_>],
    planned: &RequestCharges<'_>,
) -> Result<Vec<Decision>, CheckError> {
    if resolved.iter().all(|resolved| !resolved.refund) {
        return Ok(engine.check_batch(&planned.charges, None).await?.each);
    }
    let both = || resolved.iter().zip(&planned.parts);
    let decide = async |refund: bool| {
        let parts = both().filter(|(resolved, _)| resolved.refund == refund);
        let charges = parts.flat_map(|(_, part)| &planned.charges[part.range.clone()]);
        let charges: SmallVec<[Charge<'_>; 4]> = charges.copied().collect();
        let each = match charges.is_empty() {
            true => Vec::new(),
            false => engine.check_batch(&charges, None).await?.each,
        };
        Ok::<_, CheckError>(each.into_iter())
    };
    let (mut peeked, mut charged) = (decide(true).await?, decide(false).await?);
    let mut decisions = Vec::with_capacity(planned.charges.len());
    for (resolved, part) in both() {
        let own = if resolved.refund { &mut peeked } else { &mut charged };
        decisions.extend(own.take(part.range.len()));
    }
    Ok(decisions)
}

/// Charges each descriptor independently, as envoyproxy/ratelimit does.
async fn independent(
    engine: &Engine,
    resolved: &[ResolvedDescriptor<'_>],
    planned: &RequestCharges<'_>,
) -> Result<SmallVec<[DescriptorResult; 4]>, CheckError> {
    // A descriptor with a single enforced limit needs no combined decision.
    let is_plain = planned.charges.iter().all(|charge| charge.enforced)
        && planned.parts.iter().all(|part| part.range.len() <= 1)
        && !(0..planned.parts.len()).any(|place| shares_counter(planned, place));
    let decisions = match is_plain {
        true => {
            let mut answers = Vec::new();
            engine.check_each(&planned.charges, &mut answers).await;
            answers.into_iter().collect::<Result<_, _>>()?
        }
        false => Box::pin(decide_parts(engine, planned)).await?,
    };
    Ok(results(resolved, planned, &decisions))
}

/// Decides all descriptors at once, except that those with the same counter are decided in their order. Returns the
/// decisions in the order of the charges.
async fn decide_parts(
    engine: &Engine,
    planned: &RequestCharges<'_>,
) -> Result<Vec<Decision>, CheckError> {
    let decide = async |place: usize| {
        let decided = match &planned.charges[planned.parts[place].range.clone()] {
            [] => Ok(Vec::new()),
            charges => engine.check_batch(charges, None).await.map(|batch| batch.each),
        };
        (place, decided)
    };
    let (in_order, at_once): (Vec<_>, Vec<_>) =
        (0..planned.parts.len()).partition(|&place| shares_counter(planned, place));
    let in_order = async {
        let mut decided = Vec::new();
        for place in in_order {
            decided.push(decide(place).await);
        }
        decided
    };
    let (mut decided, others) = join(in_order, join_all(at_once.into_iter().map(&decide))).await;
    decided.extend(others);
    decided.sort_unstable_by_key(|(place, _)| *place);
    let mut decisions = Vec::with_capacity(planned.charges.len());
    for (_, decided) in decided {
        decisions.extend(decided?);
    }
    Ok(decisions)
}

/// Returns whether a descriptor may have a counter in common with another one.
fn shares_counter(planned: &RequestCharges<'_>, place: usize) -> bool {
    let is_same = |one: &Charge<'_>, other: &Charge<'_>| {
        (one.policy, one.key) == (other.policy, other.key)
            && one.limit.period() == other.limit.period()
    };
    let range = &planned.parts[place].range;
    let (before, rest) = planned.charges.split_at(range.start);
    let (own, after) = rest.split_at(range.len());
    own.iter().any(|one| before.iter().chain(after).any(|other| is_same(one, other)))
}

/// Refunds the charges if all quotas are exceeded: the store cannot decide that several quotas deny only together.
/// Charges that are recorded in full stay.
async fn refund_allowed_quotas(
    engine: &Engine,
    resolved: &[ResolvedDescriptor<'_>],
    planned: &RequestCharges<'_>,
    results: &[DescriptorResult],
) -> Result<(), StoreError> {
    let others = resolved.iter().zip(results).filter(|(resolved, _)| !resolved.is_quota);
    let denied_otherwise =
        others.into_iter().any(|(resolved, result)| result.is_over && !resolved.is_shadow());
    if denied_otherwise || resolved.iter().filter(|resolved| resolved.is_quota).count() < 2 {
        return Ok(());
    }
    for ((resolved, part), result) in resolved.iter().zip(&planned.parts).zip(results) {
        if !result.is_over && !resolved.refund && !part.is_too_large {
            let charges = planned.charges[part.range.clone()].iter();
            let charges = charges.filter(|charge| !resolve::is_recorded(charge)).copied();
            engine.refund(&charges.collect::<SmallVec<[Charge<'_>; 4]>>()).await?;
        }
    }
    Ok(())
}

/// Returns whether a descriptor is over its limit, or all quotas are.
fn is_over(resolved: &[ResolvedDescriptor<'_>], results: &[DescriptorResult]) -> bool {
    let both = || resolved.iter().zip(results);
    let alone = both()
        .any(|(resolved, result)| result.is_over && !resolved.is_quota && !resolved.is_shadow());
    // A quota in shadow mode is never exceeded, and one without a rule neither.
    let mut quotas = both().filter(|(resolved, _)| resolved.is_quota).peekable();
    alone
        || (quotas.peek().is_some()
            && quotas.all(|(resolved, result)| result.is_over && !resolved.is_shadow()))
}

fn results(
    resolved: &[ResolvedDescriptor<'_>],
    planned: &RequestCharges<'_>,
    decisions: &[Decision],
) -> SmallVec<[DescriptorResult; 4]> {
    let result = |(resolved, part): (&ResolvedDescriptor<'_>, &DescriptorCharges)| {
        let charges = planned.charges[part.range.clone()].iter();
        let own = decisions.get(part.range.clone()).unwrap_or_default();
        let mut result = DescriptorResult {
            tightest: None,
            remaining: 0,
            is_over: part.is_too_large,
            is_blocked: false,
            is_degraded: own.iter().any(Decision::is_degraded),
        };
        let mut has_counted = false;
        for (place, (charge, decision)) in charges.zip(own).enumerate() {
            let cost = if resolved.refund { 0 } else { resolved.cost };
            let is_over =
                !decision.is_allowed() || (charge.cost < cost && decision.remaining() < cost);
            let is_blocked = decision.source() == Source::Blocked;
            // A policy in shadow mode is charged but never denies, and is reported only without another.
            let counts = charge.enforced
                || is_blocked
                || !matches!(resolved.limits, DescriptorLimits::Native(_));
            result.is_blocked |= is_blocked && !resolved.refund;
            result.is_over |= is_over && counts;
            let replaces = result.tightest.is_none_or(|(_, other)| {
                counts && !has_counted || counts == has_counted && decision.is_tighter_than(&other)
            });
            if replaces {
                result.tightest = Some((place, *decision));
                // Counted hits have used up what was free before.
                let is_used_up = is_over && charge.excess.is_recorded();
                result.remaining = if is_used_up { 0 } else { decision.remaining() };
                has_counted = counts;
            }
        }
        result
    };
    resolved.iter().zip(&planned.parts).map(result).collect()
}

/// Decides arbitrary bytes as a message and as JSON, for fuzzing.
pub(crate) async fn decide_bytes(active: &ActiveConfig, bytes: &[u8]) {
    let revision = active.revision();
    if let Ok(request) = RateLimitRequest::decode(bytes) {
        // Only panics and hangs matter here.
        let _ = decide(&revision, &request).await;
    }
    if let Ok(request) = serde_json::from_slice::<RateLimitRequest>(bytes) {
        let _ = decide(&revision, &request)
            .await
            .map(|decision| serde_json::to_vec(&decision.response));
    }
}
