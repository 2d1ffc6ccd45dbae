//! Many independent decisions in memory at once: their keys are looked up together, so that cache misses overlap.

use arrayvec::ArrayVec;

use super::{
    combine::decide,
    evaluator::Evaluator,
    resolve::{BoundLimit, ResolvedCharge},
};
use crate::{
    Charge, CheckError, CostError, Decision, Key, KeyRef,
    stats::Event,
    store::memory::{BATCH, Slot, identity::Identity},
};

/// The charges of one batch: each is enforced, fits, and has a fixed-size state.
trait Batch {
    /// Returns the limit, the cost and the permit of a charge.
    fn charge(&self, place: usize) -> (&BoundLimit, u64, u128);

    /// Calls `read` with the key of a charge.
    fn with_key<R>(&self, place: usize, read: impl FnOnce(KeyRef<'_>) -> R) -> R;
}

/// Many keys under one limit, one unit each.
struct KeyBatch<'a, K> {
    limit: &'a BoundLimit,
    keys: &'a [K],
}

/// Explicit charges.
struct ChargeBatch<'a> {
    charges: &'a [Charge<'a>],
    limits: ArrayVec<BoundLimit, BATCH>,
    /// For each charge, the index of its limit.
    indices: ArrayVec<u8, BATCH>,
}

impl Evaluator {
    /// Charges one unit to each key, and adds the decisions to `decisions`.
    pub(super) fn check_many<K: Key>(&self, keys: &[K], decisions: &mut Vec<Decision>) {
        // Here, so that memory is not allocated while shards are locked.
        decisions.reserve(keys.len());
        let Some(limit) = self.single() else {
            return decisions.extend(keys.iter().map(|key| key.with(|key| self.check_unit(key))));
        };
        for keys in keys.chunks(BATCH) {
            let batch = KeyBatch { limit, keys };
            let ids = self.identities(&batch, keys.len());
            let memory = self.current_memory();
            if memory.is_faster_in_turn(&limit.scope, &ids) {
                let read = memory.read_clock();
                let check = |(key, &id): (&K, _)| {
                    key.with(|key| self.check_cell(memory, limit, (key, id), read))
                };
                decisions.extend(keys.iter().zip(&ids).map(check));
            } else {
                self.check_batch(&batch, &ids, |one| decisions.push(one));
            }
        }
    }

    /// Charges one unit to a key. One unit fits every limit.
    #[inline]
    pub(super) fn check_unit(&self, key: KeyRef<'_>) -> Decision {
        let checked = self.check_key(key, 1);
        checked.unwrap_or_else(|error| unreachable!("one unit fits every limit: {error}"))
    }

    /// Decides each charge separately, and adds the decisions to `decisions`.
    pub(super) fn check_each(
        &self,
        charges: &[Charge<'_>],
        decisions: &mut Vec<Result<Decision, CheckError>>,
    ) {
        decisions.reserve(charges.len());
        let mut rest = charges;
        while let Some(first) = rest.first() {
            let batch = rest.iter().take(BATCH).take_while(|charge| self.is_simple(charge)).count();
            if batch == 0 {
                decisions.push(self.check_charge(first).map_err(CheckError::from));
            } else {
                let batch = ChargeBatch::new(self, &rest[..batch]);
                let ids = self.identities(&batch, batch.charges.len());
                self.check_batch(&batch, &ids, |one| decisions.push(Ok(one)));
            }
            rest = &rest[batch.max(1)..];
        }
    }

    /// Returns `true` if a charge can be decided in a batch.
    #[inline]
    fn is_simple(&self, charge: &Charge<'_>) -> bool {
        let has_thresholds = || {
            let watch = self.thresholds.as_ref()?;
            Some(watch.has_thresholds(self.policies.index_of(charge.policy)?))
        };
        charge.enforced
            && charge.cost <= super::resolve::max_cost(&charge.limit, charge.max_cost)
            && !charge.limit.algorithm().keeps_log()
            && has_thresholds() != Some(true)
    }

    /// Decides one explicit charge.
    pub(super) fn check_charge(&self, charge: &Charge<'_>) -> Result<Decision, CostError> {
        let limit = self.bind_one(charge);
        self.check_charges(&[ResolvedCharge::of_charge(&limit, charge)])
    }

    /// Hashes the keys of a batch. The CPU can overlap that.
    #[inline]
    fn identities(&self, batch: &impl Batch, count: usize) -> ArrayVec<Identity, BATCH> {
        let identity = |place| {
            let (limit, ..) = batch.charge(place);
            batch.with_key(place, |key| self.memory.identity(&limit.scope, key))
        };
        (0..count).map(identity).collect()
    }

    /// Decides the charges of a batch independently, and passes each decision to `push` in order.
    fn check_batch(&self, batch: &impl Batch, ids: &[Identity], mut push: impl FnMut(Decision)) {
        let slot = |place: usize, id| {
            let (BoundLimit { scope, limit, excess, .. }, cost, permit) = batch.charge(place);
            Slot { scope, id, limit, cost, permit, enforced: true, excess: *excess }
        };
        let tally = self.meter.tally();
        self.current_memory().charge_each(ids, slot, |place, outcome, now| {
            let (limit, cost, _) = batch.charge(place);
            let decision = decide(limit, *outcome, false);
            let event = if decision.allowed { Event::Allowed } else { Event::Denied };
            if cost > 0
                && let Some(weight) = tally.add_cost(limit.stats_index, event, cost, now)
            {
                let seen = (limit.stats_index, event);
                batch.with_key(place, |key| self.meter.look(seen, key, now, weight));
            }
            push(decision);
        });
    }
}

impl<K: Key> Batch for KeyBatch<'_, K> {
    #[inline]
    fn charge(&self, _: usize) -> (&BoundLimit, u64, u128) {
        (self.limit, 1, 0)
    }

    #[inline]
    fn with_key<R>(&self, place: usize, read: impl FnOnce(KeyRef<'_>) -> R) -> R {
        self.keys[place].with(read)
    }
}

impl<'a> ChargeBatch<'a> {
    fn new(evaluator: &Evaluator, charges: &'a [Charge<'a>]) -> Self {
        let mut batch = Self { charges, limits: ArrayVec::new(), indices: ArrayVec::new() };
        for (place, charge) in charges.iter().enumerate() {
            // Charges of a batch are often to the same limit, and a lookup costs more than this comparison.
            let last = place.checked_sub(1).map(|last| &charges[last]);
            if !last.is_some_and(|last| last.has_same_limit(charge)) {
                batch.limits.push(evaluator.bind_one(charge));
            }
            batch.indices.push((batch.limits.len() - 1) as u8);
        }
        batch
    }
}

impl Batch for ChargeBatch<'_> {
    #[inline]
    fn charge(&self, place: usize) -> (&BoundLimit, u64, u128) {
        let Charge { cost, permit, .. } = self.charges[place];
        (&self.limits[self.indices[place] as usize], cost, permit)
    }

    #[inline]
    fn with_key<R>(&self, place: usize, read: impl FnOnce(KeyRef<'_>) -> R) -> R {
        read(self.charges[place].key)
    }
}
