//! Many independent decisions in memory at once. Their keys are hashed first, and their memory is
//! [prefetched](MemoryStore::prefetch), so that cache misses overlap.

use arrayvec::ArrayVec;

use super::{
    evaluator::Evaluator,
    resolve::{BoundLimit, ResolvedCharge},
};
use crate::{
    Charge, CheckError, CostError, Decision, Key, KeyRef, MemoryStore,
    store::memory::{BATCH, Slot, identity::Identity},
};

/// The charges of one batch: each is enforced, fits, and has a fixed-size state.
trait Batch {
    /// Returns the limit, the cost and the permit of a charge.
    fn charge(&self, place: usize) -> (&BoundLimit, u64, u128);

    /// Calls `read` with the key of a charge.
    fn with_key<R>(&self, place: usize, read: impl FnOnce(KeyRef<'_>) -> R) -> R;

    /// Decides the charge at an index, whose key was hashed, and records the decision. `memory` is that of the
    /// evaluator, and `read_at` its clock before.
    fn check(
        &self,
        charge: (usize, Identity),
        evaluator: &Evaluator,
        memory: &MemoryStore,
        read_at: u64,
    ) -> Decision;

    /// Returns a charge whose key was hashed.
    #[inline]
    fn slot(&self, place: usize, id: Identity) -> Slot<'_> {
        let (BoundLimit { scope, limit, excess, .. }, cost, permit) = self.charge(place);
        Slot { scope, id, limit, cost, permit, enforced: true, excess: *excess }
    }
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
        decisions.reserve(keys.len());
        let Some(limit) = self.single() else {
            return decisions.extend(keys.iter().map(|key| key.with(|key| self.check_unit(key))));
        };
        for keys in keys.chunks(BATCH) {
            self.check_batch(&KeyBatch { limit, keys }, keys.len(), |one| decisions.push(one));
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
                let charges = ChargeBatch::new(self, &rest[..batch]);
                self.check_batch(&charges, batch, |one| decisions.push(Ok(one)));
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

    /// Decides the charges of a batch independently, and passes each decision to `push` in order. The clock is read
    /// once.
    #[inline]
    fn check_batch(&self, batch: &impl Batch, count: usize, mut push: impl FnMut(Decision)) {
        let memory = self.current_memory();
        let read_at = memory.read_clock();
        let identity = |place| {
            let (limit, ..) = batch.charge(place);
            let id = batch.with_key(place, |key| memory.identity(&limit.scope, key));
            memory.prefetch(id);
            id
        };
        let ids: ArrayVec<Identity, BATCH> = (0..count).map(identity).collect();
        let mut place = 0;
        while let Some(&id) = ids.get(place) {
            let run = memory.run_length(&ids[place..]);
            if run == 1 {
                push(batch.check((place, id), self, memory, read_at));
            } else {
                self.check_run(
                    batch,
                    (place, &ids[place..place + run]),
                    memory,
                    read_at,
                    &mut push,
                );
            }
            place += run;
        }
    }

    /// Decides the charges to some keys of one shard, of which `first` is the first.
    fn check_run(
        &self,
        batch: &impl Batch,
        (first, ids): (usize, &[Identity]),
        memory: &MemoryStore,
        read_at: u64,
        mut push: impl FnMut(Decision),
    ) {
        let slots = ids.iter().enumerate().map(|(index, &id)| batch.slot(first + index, id));
        let tally = self.meter.tally();
        memory.charge_run(slots, read_at, |index, outcome, now| {
            let (limit, cost, _) = batch.charge(first + index);
            batch.with_key(first + index, |key| {
                push(self.record_single(tally, limit, (key, cost), outcome, now));
            });
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

    #[inline]
    fn check(
        &self,
        (place, id): (usize, Identity),
        evaluator: &Evaluator,
        memory: &MemoryStore,
        read_at: u64,
    ) -> Decision {
        self.with_key(place, |key| evaluator.check_cell(memory, self.limit, (key, id), read_at))
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

    #[inline]
    fn check(
        &self,
        (place, id): (usize, Identity),
        evaluator: &Evaluator,
        memory: &MemoryStore,
        read_at: u64,
    ) -> Decision {
        let (limit, cost, _) = self.charge(place);
        let charge = (cost, limit.excess);
        let (outcome, now) = match memory.charge_often(id, &limit.limit, charge, read_at, false) {
            Ok(charged) => charged,
            Err(locked) => locked.charge(&self.slot(place, id)),
        };
        let charged = (self.charges[place].key, cost);
        evaluator.record_single(evaluator.meter.tally(), limit, charged, outcome, now)
    }
}
