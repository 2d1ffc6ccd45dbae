//! Corrects the statistics when a reservation ends: they counted its estimate.

use smallvec::SmallVec;

use super::evaluator::Evaluator;
use crate::{
    Counter, Limit, PolicyName,
    store::memory::reservations::{ChargeOrigin, ReservedCharge},
};

/// Counts the units of reservations, once for each policy and key: all limits of a policy have the same units.
pub(super) struct SettledUnits<'a> {
    evaluator: &'a Evaluator,
    /// The limit of each counter for which units are counted.
    counted: SmallVec<[(PolicyName, Counter, Limit); 2]>,
}

impl<'a> SettledUnits<'a> {
    pub(super) fn new(evaluator: &'a Evaluator) -> Self {
        Self { evaluator, counted: SmallVec::new() }
    }

    /// Counts a charge of `reserved` units, of which `actual` were used.
    pub(super) fn count(
        &mut self,
        (policy, counter): (PolicyName, Counter),
        limit: &Limit,
        reserved: u64,
        actual: u64,
    ) {
        let known = self.counted.iter().find(|known| (known.0, known.1) == (policy, counter));
        match known {
            Some((.., counted)) if counted != limit => return,
            Some(_) => {}
            None => self.counted.push((policy, counter, *limit)),
        }
        let index = self.evaluator.stats_index(policy);
        self.evaluator.meter.count_settled(index, reserved, actual);
    }

    /// Counts a charge in memory.
    pub(super) fn count_reserved(&mut self, reserved: &ReservedCharge, actual: u64) {
        let ChargeOrigin { policy, counter, is_recorded, .. } = reserved.origin;
        if let Some(single) = self.evaluator.single_of(reserved)
            && is_recorded
        {
            self.evaluator.meter.count_settled(single.stats_index, reserved.units, actual);
        } else if is_recorded {
            self.count((policy, counter), &reserved.limit, reserved.units, actual);
        }
    }
}
