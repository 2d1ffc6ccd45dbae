//! Step 1 of 4, resolve: the limits that apply to a request, each with its key and cost.

use smallvec::SmallVec;

use super::{
    merge::{MergedCharges, has_repeats},
    permit_id::new_permit_id,
};
use crate::{
    Algorithm, Charge, CostError, Counter, Excess, KeyRef, Limit, Outcomes, PolicyName,
    policy::{FailureMode, Unsettled},
    store::memory::{
        Slot,
        identity::{KeyHash, Scope},
    },
};

/// A limit with everything that is known about it before a request arrives.
#[derive(Clone, Copy, Debug)]
pub(super) struct BoundLimit {
    pub(super) policy: PolicyName,
    pub(super) counter: Counter,
    pub(super) limit: Limit,
    /// The hash seeds of its keys in memory.
    pub(super) scope: Scope,
    /// The highest cost that can ever be admitted.
    pub(super) max_cost: u64,
    /// The highest cost that the policy accepts: that of a charge which is recorded in full.
    pub(super) max_recorded: u64,
    /// The treatment of a cost that does not fit, as it applies [under](Excess::under) the limit.
    pub(super) excess: Excess,
    pub(super) max_debt: u64,
    pub(super) unsettled: Unsettled,
    pub(super) enforced: bool,
    pub(super) lease: u64,
    pub(super) failure: FailureMode,
    /// Index of the policy in the statistics.
    pub(super) stats_index: usize,
}

/// One limit to apply to one key. Refers to the limit, so that lists of charges are cheap to build.
#[derive(Clone, Copy, Debug)]
pub(super) struct ResolvedCharge<'a> {
    pub(super) limit: &'a BoundLimit,
    pub(super) key: KeyRef<'a>,
    pub(super) cost: u64,
    /// The id of the permit; 0 without one.
    pub(super) permit: u128,
    pub(super) excess: Excess,
    /// The tag of an explicit charge. `None`: the tag that the policy derives from the key.
    pub(super) tag: Option<&'a KeyRef<'a>>,
}

/// A list of charges. Up to four need no heap allocation.
pub(super) type ResolvedCharges<'a> = SmallVec<[ResolvedCharge<'a>; 4]>;

/// The charges of one request, none of which is too expensive to be ever admitted, unless in shadow mode.
#[derive(Debug)]
pub(super) struct Resolved<'a> {
    /// In the order of the caller.
    pub(super) charges: ResolvedCharges<'a>,
    /// The charges as the store gets them, if that differs.
    merged: Option<Box<MergedCharges<'a>>>,
}

impl BoundLimit {
    /// Returns an error if the cost can never be admitted, nor recorded.
    #[inline]
    pub(super) fn check_cost(&self, cost: u64, excess: Excess) -> Result<(), CostError> {
        let max = if excess.is_recorded() { self.max_recorded } else { self.max_cost };
        if cost <= max {
            return Ok(());
        }
        Err(CostError { cost, policy: self.policy, max })
    }

    /// Returns `true` if the units are permits, which their holders return.
    #[inline]
    pub(super) fn has_permits(&self) -> bool {
        self.limit.algorithm() == Algorithm::Concurrency
    }

    /// Returns `true` if units can be reserved.
    #[inline]
    pub(super) fn is_reservable(&self) -> bool {
        !self.has_permits() && self.limit.algorithm().id().is_some()
    }
}

/// Marks the units of charges as already spent. Concurrency limits do not apply to such units.
pub(super) fn spent(charges: ResolvedCharges<'_>) -> ResolvedCharges<'_> {
    charges.into_iter().filter_map(ResolvedCharge::spent).collect()
}

/// Returns the highest cost that a limit can ever admit, given the maximum cost of its policy.
pub(super) fn max_cost(limit: &Limit, of_policy: u64) -> u64 {
    let capacity = if limit.amount() == 0 { u64::MAX } else { limit.capacity() };
    of_policy.min(capacity)
}

impl<'a> ResolvedCharge<'a> {
    #[inline]
    pub(super) fn new(limit: &'a BoundLimit, key: KeyRef<'a>, cost: u64, permit: u128) -> Self {
        let permit = if limit.has_permits() { permit } else { 0 };
        Self { limit, key, cost, permit, excess: limit.excess, tag: None }
    }

    /// Binds an explicit charge to its limit.
    pub(super) fn of_charge(limit: &'a BoundLimit, charge: &'a Charge<'a>) -> Self {
        let Charge { key, cost, permit, ref tag, .. } = *charge;
        Self { limit, key, cost, permit, excess: limit.excess, tag: Some(tag) }
    }

    /// Returns `true` if both are recorded as one event.
    #[inline]
    pub(super) fn has_same_policy_and_key(&self, other: &Self) -> bool {
        let (one, two) = (self.limit.policy, other.limit.policy);
        (std::ptr::eq(one.as_str(), two.as_str()) || one == two)
            && (self.key.is_same(other.key) || self.key == other.key)
    }

    /// Returns the charge for the store in memory, with the hash of its key.
    #[inline]
    pub(super) fn slot(&self, hash: KeyHash) -> Slot<'a> {
        let limit = self.limit;
        Slot {
            scope: &limit.scope,
            id: hash.in_scope(&limit.scope),
            limit: &limit.limit,
            cost: self.cost,
            permit: self.permit,
            enforced: limit.enforced,
            excess: self.excess,
        }
    }

    /// Marks the units as already spent. `None` if the limit does not apply to such units.
    pub(super) fn spent(self) -> Option<Self> {
        let excess = Excess::Debt { max: self.limit.max_debt }.under(&self.limit.limit);
        (!self.limit.has_permits()).then_some(Self { excess, ..self })
    }

    /// Makes this the charge of a reservation. It never exceeds the limit, and charges at least one unit: an open
    /// reservation that takes none would be bounded by no limit.
    #[inline]
    pub(super) fn reserved(self) -> Self {
        Self { excess: Excess::Reject, cost: self.cost.max(1), ..self }
    }

    /// Returns an error if the cost can never be admitted, nor recorded.
    #[inline]
    pub(super) fn check_cost(&self) -> Result<(), CostError> {
        self.limit.check_cost(self.cost, self.excess)
    }

    /// Returns `true` if the limit could take this many units at once. An amount of 0 denies any cost.
    pub(super) fn can_take(&self, units: u64) -> bool {
        let limit = &self.limit.limit;
        self.excess.is_recorded() || limit.amount() == 0 || units <= limit.capacity()
    }
}

impl<'a> Resolved<'a> {
    /// Checks the costs. Set `may_repeat` if two charges may share a counter, as explicit charges can.
    ///
    /// Enforced charges come first in what the store gets, so that a charge in shadow mode never takes their place.
    #[inline]
    pub(super) fn new(charges: ResolvedCharges<'a>, may_repeat: bool) -> Result<Self, CostError> {
        let mut fits = true;
        for charge in &charges {
            match charge.check_cost() {
                Err(error) if charge.limit.enforced => return Err(error),
                checked => fits &= checked.is_ok(),
            }
        }
        let in_order = charges.is_sorted_by_key(|charge| !charge.limit.enforced);
        let is_final = fits && in_order && !(may_repeat && has_repeats(&charges));
        let merged = (!is_final).then(|| Box::new(MergedCharges::new(&charges)));
        Ok(Self { charges, merged })
    }

    /// Returns the charges that the store gets.
    #[inline]
    pub(super) fn sent(&self) -> &[ResolvedCharge<'a>] {
        self.merged.as_ref().map_or(&self.charges, |merged| &merged.charges)
    }

    /// Turns the outcomes of the charges that were [sent](Self::sent) into those of the charges of the caller.
    #[inline]
    pub(super) fn split_outcomes(&self, outcomes: Outcomes) -> Outcomes {
        match &self.merged {
            None => outcomes,
            Some(merged) => merged.split_outcomes(&self.charges, &outcomes),
        }
    }

    /// Sets the id of all permits of a request, which are released together.
    pub(super) fn set_permit(&mut self, id: u128) {
        for charge in self.sent_mut().iter_mut().filter(|charge| charge.limit.has_permits()) {
            charge.permit = id;
        }
    }

    /// Sets a new id for each permit without one, because a store identifies permits by their ids.
    pub(super) fn fill_permits(&mut self) {
        for charge in self.sent_mut() {
            if charge.limit.has_permits() && charge.permit == 0 {
                charge.permit = new_permit_id();
            }
        }
    }

    /// Returns `true` unless this is a peek.
    pub(super) fn takes_units(&self) -> bool {
        self.charges.iter().any(|charge| charge.cost > 0)
    }

    fn sent_mut(&mut self) -> &mut [ResolvedCharge<'a>] {
        match &mut self.merged {
            Some(merged) => &mut merged.charges,
            None => &mut self.charges,
        }
    }
}
