//! Deciding without the store, by what each policy says.

use smallvec::SmallVec;

use super::{
    core::Core,
    path::{Answered, Fit, Item},
};
use crate::{
    Decision, Limit, Source,
    algorithm::{NEVER, Outcome},
    policy::FailureMode,
    store::memory::Slot,
};

impl Core {
    /// Decides a request by the failure modes of its policies, all or nothing. Counts nothing yet.
    pub(super) fn fall_back(&self, fit: &Fit<'_>, permit: u64) -> Answered {
        let limits: SmallVec<[Option<Limit>; 8]> =
            fit.items.iter().map(|&item| self.fallback(item, fit.cost)).collect();
        let both = || fit.items.iter().zip(&limits);
        let slots: SmallVec<[Slot<'_>; 8]> = both()
            .filter_map(|(&item, limit)| {
                Some(Slot { limit: limit.as_ref()?, ..self.slot(item, fit.cost, permit) })
            })
            .collect();
        let (charged, now) = self.memory.charge_all(&slots);
        let mut charged = charged.into_iter();
        let outcomes: Vec<_> = both()
            .map(|(&item, limit)| {
                let charged = limit.and_then(|_| charged.next());
                outcome(&self.path.target(item).limit, charged)
            })
            .collect();
        let decision = self.path.fold(fit, &outcomes);
        Answered { decision: Decision { source: Source::Fallback, ..decision }, outcomes, now }
    }

    /// What is charged in memory in place of a limit; `None` if it admits without counting.
    fn fallback(&self, item: Item<'_>, cost: u64) -> Option<Limit> {
        let target = self.path.target(item);
        let nothing = target.limit.share(0, std::num::NonZeroU32::MIN);
        match self.path.policies.policies()[target.policy].failure {
            // What denies for good needs no store to do so.
            FailureMode::Open => (target.limit.amount() == 0).then_some(nothing),
            FailureMode::Closed => Some(nothing),
            FailureMode::Local { numerator, denominator } => {
                let share = target.limit.share(numerator, denominator);
                Some(if cost > share.capacity() { nothing } else { share })
            }
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
