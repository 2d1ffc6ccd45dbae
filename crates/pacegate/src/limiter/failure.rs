//! Deciding without the store, by what each policy says.

use smallvec::SmallVec;

use super::{
    core::Core,
    path::{Answered, Fit, Item},
    permit::Held,
};
use crate::{
    Decision, Limit, Source,
    algorithm::{NEVER, Outcome},
    policy::FailureMode,
    store::memory::Slot,
};

impl Core {
    /// Decides a request by the failure modes of its policies, all or nothing. Counts nothing yet.
    pub(super) fn fall_back(&self, fit: &Fit<'_>, permit: u128) -> Answered {
        let slots: SmallVec<[Slot<'_>; 8]> =
            fit.items.iter().map(|&item| self.slot(item, fit.cost, permit)).collect();
        let failure = |place: usize| self.failure(fit.items[place]);
        let (outcomes, now) = self.charge_shares(&slots, failure);
        let decision = self.path.fold(fit, &outcomes);
        Answered { decision: Decision { source: Source::Fallback, ..decision }, outcomes, now }
    }

    /// Renews a permit that was taken while the store was away. `false` if it is gone; what was admitted without being
    /// counted cannot be.
    pub(super) fn renew_share(&self, held: &Held) -> bool {
        let counted = held.items().filter(|item| self.failure(*item) != FailureMode::Open);
        self.renew_items(counted, held.id)
    }

    fn failure(&self, item: Item<'_>) -> FailureMode {
        self.path.policies.policies()[self.path.target(item).policy].failure
    }

    /// Charges memory in place of the store, all or nothing: of each slot what its failure mode leaves of its limit.
    pub(super) fn charge_shares(
        &self,
        slots: &[Slot<'_>],
        failure: impl Fn(usize) -> FailureMode,
    ) -> (Vec<Outcome>, u64) {
        let shares = slots.iter().enumerate().map(|(place, slot)| share(slot, failure(place)));
        let shares: SmallVec<[Option<Limit>; 8]> = shares.collect();
        let counted: SmallVec<[Slot<'_>; 8]> = slots
            .iter()
            .zip(&shares)
            .filter_map(|(slot, share)| Some(Slot { limit: share.as_ref()?, ..*slot }))
            .collect();
        let (charged, now) = self.memory.charge_all(&counted);
        let mut charged = charged.into_iter();
        let both = slots.iter().zip(&shares);
        let outcomes =
            both.map(|(slot, share)| outcome(slot.limit, share.and_then(|_| charged.next())));
        (outcomes.collect(), now)
    }
}

/// What is charged in memory in place of a limit; `None` if it admits without counting.
fn share(slot: &Slot<'_>, failure: FailureMode) -> Option<Limit> {
    let nothing = slot.limit.share(0, std::num::NonZeroU32::MIN);
    match failure {
        // What denies for good needs no store to do so.
        FailureMode::Open => (slot.limit.amount() == 0).then_some(nothing),
        FailureMode::Closed => Some(nothing),
        FailureMode::Local { numerator, denominator } => {
            let share = slot.limit.share(numerator, denominator);
            Some(if slot.cost > share.capacity() { nothing } else { share })
        }
    }
}

/// The answer for a limit, given what became of it in memory. Nothing is denied for good because the store is away.
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
