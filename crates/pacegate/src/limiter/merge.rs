//! Merges the charges of one request that share a counter, and splits their outcome.

use std::collections::HashMap;

use smallvec::SmallVec;

use super::resolve::{ResolvedCharge, ResolvedCharges};
use crate::{
    Counter, Excess, KeyRef, Limit, Outcomes, PolicyName,
    algorithm::{NEVER, Outcome},
    policy::FailureMode,
};

/// Charges as a store gets them: enforced charges first, charges to one counter under one limit as one charge of their
/// sum, and no charge whose cost can never be admitted.
#[derive(Debug)]
pub(super) struct MergedCharges<'a> {
    pub(super) charges: ResolvedCharges<'a>,
    /// For each charge of the caller, the index of its merged charge; `None` if it can never be admitted.
    indices: SmallVec<[Option<usize>; 4]>,
    /// For each merged charge, `true` if it is one of several whose sum can never be admitted.
    exceeds: SmallVec<[bool; 4]>,
}

/// Everything but the cost: charges that agree in it are merged.
type MergeKey<'a> = (PolicyName, Counter, KeyRef<'a>, Limit, u128, bool, FailureMode, Excess);

/// An index of the merged charges, for lists that are too long to search.
type MergeIndex<'a> = Option<HashMap<MergeKey<'a>, usize>>;

const MAX_SEARCHED: usize = 16;

/// The outcome of a merged charge while it is split among its parts.
#[derive(Clone, Copy)]
struct Split {
    outcome: Outcome,
    /// The cost of the parts that have no outcome yet.
    left: u64,
    /// If the sum was denied, the units for parts that would have been admitted by themselves.
    free: u64,
    /// `true` once a part was denied. If the sum is denied, at least one part is.
    has_denied: bool,
}

/// Returns `true` if two charges may have to be merged.
#[inline]
pub(super) fn has_repeats(charges: &[ResolvedCharge<'_>]) -> bool {
    if charges.len() > MAX_SEARCHED {
        return true;
    }
    charges.iter().enumerate().any(|(place, charge)| {
        charges[..place].iter().any(|other| merge_key(other) == merge_key(charge))
    })
}

impl<'a> MergedCharges<'a> {
    pub(super) fn new(charges: &[ResolvedCharge<'a>]) -> Self {
        let mut merged = Self {
            charges: SmallVec::new(),
            indices: SmallVec::from_elem(None, charges.len()),
            exceeds: SmallVec::new(),
        };
        let mut index = (charges.len() > MAX_SEARCHED).then(HashMap::new);
        for enforced in [true, false] {
            for (place, charge) in charges.iter().enumerate() {
                if charge.limit.enforced == enforced {
                    merged.indices[place] = merged.add(charge, &mut index);
                }
            }
        }
        merged
    }

    fn add(&mut self, charge: &ResolvedCharge<'a>, index: &mut MergeIndex<'a>) -> Option<usize> {
        let key = merge_key(charge);
        let is_same = |other: &ResolvedCharge<'a>| other.cost > 0 && merge_key(other) == key;
        let same = match index {
            // A peek takes nothing, and is answered separately.
            _ if charge.cost == 0 => None,
            Some(index) => index.get(&key).copied(),
            None => self.charges.iter().position(is_same),
        };
        let fits = charge.check_cost().is_ok();
        if let Some(place) = same {
            let sum = self.charges[place].cost.saturating_add(charge.cost);
            if fits && charge.can_take(sum) {
                self.charges[place].cost = sum;
                return Some(place);
            }
            self.exceeds[place] = true;
        }
        if !fits {
            return None;
        }
        let place = self.charges.len();
        self.charges.push(*charge);
        self.exceeds.push(same.is_some());
        if let Some(index) = index.as_mut().filter(|_| charge.cost > 0) {
            index.entry(key).or_insert(place);
        }
        Some(place)
    }

    /// Returns one outcome for each charge of the caller, given one for each merged charge.
    pub(super) fn split_outcomes(
        &self,
        charges: &[ResolvedCharge<'_>],
        outcomes: &[Outcome],
    ) -> Outcomes {
        let merged = self.charges.iter().zip(outcomes).zip(&self.exceeds);
        let splits = merged.map(|((charge, &outcome), &exceeds)| {
            let mut outcome = outcome;
            if exceeds && !outcome.is_admitted() {
                outcome.retry_after = NEVER;
            }
            Split { outcome, left: charge.cost, free: outcome.remaining, has_denied: false }
        });
        let mut splits: SmallVec<[Split; 4]> = splits.collect();
        let taken = self
            .charges
            .iter()
            .zip(&splits)
            .all(|(charge, split)| split.outcome.is_admitted() || !charge.limit.enforced);
        let parts = charges.iter().zip(&self.indices);
        let outcome = |(charge, index): (&ResolvedCharge<'_>, &Option<usize>)| match *index {
            Some(place) => splits[place].next(charge.cost, taken),
            None => Outcome::refused(0, NEVER, 0),
        };
        parts.map(outcome).collect()
    }
}

impl Split {
    /// Returns the outcome of the next part. If nothing was `taken`, all that is free remains.
    fn next(&mut self, cost: u64, taken: bool) -> Outcome {
        self.left = self.left.saturating_sub(cost);
        if self.outcome.is_admitted() {
            let later = if taken { self.left } else { 0 };
            return Outcome { remaining: self.outcome.remaining + later, ..self.outcome };
        }
        if cost > self.free || self.left == 0 && !self.has_denied {
            self.has_denied = true;
            return self.outcome;
        }
        self.free -= cost;
        Outcome { retry_after: 0, ..self.outcome }
    }
}

fn merge_key<'a>(charge: &ResolvedCharge<'a>) -> MergeKey<'a> {
    let limit = charge.limit;
    let of_limit = (limit.policy, limit.counter, limit.limit, limit.enforced, limit.failure);
    let (policy, counter, limit, enforced, failure) = of_limit;
    (policy, counter, charge.key, limit, charge.permit, enforced, failure, charge.excess)
}
