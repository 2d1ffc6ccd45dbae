//! Decides by failure modes, if the store does not answer.

use std::{convert::Infallible, time::Duration};

use smallvec::SmallVec;

use super::{
    evaluator::{Evaluation, Evaluator},
    reservation_id::Place,
    resolve::{BoundLimit, Resolved, ResolvedCharge},
};
use crate::{
    Excess, Limit, Outcomes,
    algorithm::{NEVER, Outcome},
    policy::FailureMode,
    store::memory::{Slot, reservations::ChargeOrigin},
};

impl Evaluator {
    /// Decides a request by the failure modes of its limits, all or nothing. Records nothing.
    pub(super) fn evaluate_fallback(&self, resolved: &Resolved<'_>) -> Evaluation {
        let charge =
            |slots: &[Slot<'_>]| Ok::<_, Infallible>(self.current_memory().charge_all(slots));
        let Ok(evaluation) = self.fall_back(resolved, charge);
        evaluation
    }

    /// Reserves by the failure modes of the limits, in memory. Debt is at most one share. Also returns the place of the
    /// reservation. If there is no room for it, the estimate stays charged.
    pub(super) fn reserve_fallback(
        &self,
        resolved: &Resolved<'_>,
        reservation: (u128, Duration),
    ) -> (Evaluation, Place) {
        let mut place = Place::Nowhere;
        let charge = |slots: &[Slot<'_>]| {
            if slots.is_empty() {
                return Ok::<_, Infallible>(self.memory.charge_all(slots));
            }
            place = Place::Process;
            let charges: SmallVec<[&ResolvedCharge<'_>; 4]> = counted(resolved).collect();
            let origin = |place: usize| {
                let BoundLimit { policy, counter, unsettled, .. } = *charges[place].limit;
                let (follows_policy, is_recorded, key) = (false, true, None);
                ChargeOrigin { policy, counter, follows_policy, is_recorded, key, unsettled }
            };
            let reserved = self.current_memory().reserve_slots(slots, origin, reservation);
            Ok(reserved.unwrap_or_else(|_| self.memory.charge_all(slots)))
        };
        let Ok(evaluation) = self.fall_back(resolved, charge);
        (evaluation, place)
    }

    /// Decides a request by failure modes. `charge` charges those limits that are counted in memory, all or nothing.
    pub(super) fn fall_back<E>(
        &self,
        resolved: &Resolved<'_>,
        charge: impl FnOnce(&[Slot<'_>]) -> Result<(Outcomes, u64), E>,
    ) -> Result<Evaluation, E> {
        let sent = resolved.sent();
        let shares: SmallVec<[Option<Limit>; 4]> = sent.iter().map(local_share).collect();
        let counted = sent.iter().zip(&shares).filter_map(|(charge, share)| {
            let (limit, slot) = (share.as_ref()?, self.slot(charge));
            Some(Slot { limit, excess: local_excess(slot.excess, limit), ..slot })
        });
        let counted: SmallVec<[Slot<'_>; 4]> = counted.collect();
        let (charged, now) = charge(&counted)?;
        let mut charged = charged.iter();
        let outcomes = sent.iter().zip(&shares).map(|(charge, share)| {
            let charged = share.and_then(|_| charged.next());
            outcome(&charge.limit.limit, charged.copied())
        });
        Ok(self.conclude(resolved, outcomes.collect(), now, true))
    }
}

/// Returns the charges that are counted in memory.
fn counted<'r, 'a>(
    resolved: &'r Resolved<'a>,
) -> impl Iterator<Item = &'r ResolvedCharge<'a>> + use<'r, 'a> {
    resolved.sent().iter().filter(|charge| local_share(charge).is_some())
}

/// Returns the limit to apply in memory instead of a limit in the store; `None` to admit without counting.
fn local_share(charge: &ResolvedCharge<'_>) -> Option<Limit> {
    let limit = &charge.limit.limit;
    let nothing = limit.share(0, std::num::NonZeroU32::MIN);
    match charge.limit.failure {
        // An amount of 0 denies everything, with or without a store.
        FailureMode::Open => (limit.amount() == 0).then_some(nothing),
        FailureMode::Closed => Some(nothing),
        FailureMode::Local { numerator, denominator } => {
            let share = limit.share(numerator, denominator);
            let is_too_large = charge.cost > share.capacity() && !charge.excess.is_recorded();
            Some(if is_too_large { nothing } else { share })
        }
    }
}

/// Returns the treatment of an excess by a share: at most one share is recorded as debt. `closed` records nothing.
fn local_excess(excess: Excess, share: &Limit) -> Excess {
    match excess {
        _ if share.amount() == 0 => Excess::Reject,
        Excess::Debt { max } => Excess::Debt { max: max.min(share.capacity()) }.under(share),
        other => other.under(share),
    }
}

/// Returns the outcome for a limit, given that of its share. A failure of the store never denies permanently.
fn outcome(limit: &Limit, charged: Option<Outcome>) -> Outcome {
    match charged {
        None => Outcome::taken(limit.capacity(), 0),
        Some(outcome) if outcome.retry_after == NEVER && limit.amount() > 0 => {
            let retry_after = FailureMode::RETRY_AFTER.as_micros() as u64;
            Outcome::refused(outcome.remaining, retry_after, retry_after)
        }
        Some(outcome) => outcome,
    }
}
