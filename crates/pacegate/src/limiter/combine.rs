//! Step 3 of 4, combine: from the outcomes of the charges to one decision, and to the events that are recorded.

use super::resolve::{BoundLimit, ResolvedCharge};
use crate::{Decision, Source, algorithm::Outcome, stats::Event};

/// Returns the decision of one limit by itself. `degraded`: the store did not answer, and failure modes decided.
#[inline]
pub(super) fn decide(limit: &BoundLimit, outcome: Outcome, degraded: bool) -> Decision {
    let decision = Decision::of(limit.policy, limit.limit, outcome);
    if degraded { Decision { source: Source::Fallback, ..decision } } else { decision }
}

/// Returns the decision for a request: that of the tightest enforced limit. Limits in shadow mode never deny.
#[inline]
pub(super) fn combine(
    charges: &[ResolvedCharge<'_>],
    outcomes: &[Outcome],
    degraded: bool,
) -> Decision {
    let mut tightest: Option<(&BoundLimit, &Outcome)> = None;
    let mut shadow_denied = false;
    for (charge, outcome) in charges.iter().zip(outcomes) {
        if !charge.limit.enforced {
            shadow_denied |= !outcome.is_admitted();
        } else if tightest.is_none_or(|(_, other)| outcome.is_tighter_than(other)) {
            tightest = Some((charge.limit, outcome));
        }
    }
    let mut decision = match tightest {
        Some((limit, outcome)) => decide(limit, *outcome, degraded),
        None => Decision::UNLIMITED,
    };
    if degraded && !charges.is_empty() {
        decision.source = Source::Fallback;
    }
    Decision { shadow_denied, ..decision }
}

/// Returns what to record for the charges of one policy and key, if the request as a whole was `allowed` or not.
///
/// A policy that would have admitted a request that another policy denied has neither allowed nor denied it.
#[inline]
pub(super) fn event(
    charges: &[ResolvedCharge<'_>],
    outcomes: &[Outcome],
    allowed: bool,
) -> Option<Event> {
    let denied = |enforced: bool| {
        let mut pairs = charges.iter().zip(outcomes);
        pairs.any(|(charge, outcome)| charge.limit.enforced == enforced && !outcome.is_admitted())
    };
    match (denied(true), denied(false)) {
        _ if charges.iter().all(|charge| charge.cost == 0) => None,
        (true, _) => Some(Event::Denied),
        (_, true) => Some(Event::ShadowDenied),
        _ => allowed.then_some(Event::Allowed),
    }
}
