//! The memory store against the model.

use pacegate::{
    Charge, Limit, ManualClock, MemoryStore, Outcomes, Reply, Store, StoreError, Timestamp, Update,
};
use pacegate_testkit::{Subject, conformance};

struct Memory {
    store: MemoryStore,
    clock: ManualClock,
}

impl Memory {
    fn new() -> Self {
        let clock = ManualClock::new();
        Self { store: MemoryStore::new(10_000_000, clock.clone()), clock }
    }
}

impl Subject for Memory {
    fn store(&self) -> &dyn Store {
        &self.store
    }

    fn set_time(&self, now: Timestamp) {
        self.clock.set(now);
    }
}

#[test]
fn the_memory_store_conforms() {
    conformance(&Memory::new(), crate::histories());
}

/// A store with neither permits nor refunds nor sliding logs, as one on a simple database would be.
#[derive(Debug)]
struct Partial {
    memory: MemoryStore,
    clock: ManualClock,
    /// The error for a refund.
    refund: StoreError,
}

impl Partial {
    fn new(refund: StoreError) -> Self {
        let clock = ManualClock::new();
        Self { memory: MemoryStore::new(1_000_000, clock.clone()), clock, refund }
    }
}

impl Store for Partial {
    fn charge(&self, charges: &[Charge<'_>], id: Option<&[u8]>) -> Reply<'_, Outcomes> {
        let keeps_log = |charge: &Charge<'_>| charge.limit.algorithm().keeps_log();
        assert!(!charges.iter().any(keeps_log), "only supported limits are charged");
        self.memory.charge(charges, id)
    }

    fn update(&self, charge: &Charge<'_>, update: Update) -> Reply<'_, bool> {
        match update {
            Update::Reset => self.memory.update(charge, update),
            _ => Reply::Ready(Err(self.refund.clone())),
        }
    }

    fn supports(&self, limits: &[Limit], _: bool) -> Result<(), StoreError> {
        match limits.iter().find(|limit| limit.algorithm().keeps_log()) {
            Some(limit) => Err(StoreError::Unsupported(format!("it keeps no logs: {limit}"))),
            None => Ok(()),
        }
    }
}

impl Subject for Partial {
    fn store(&self) -> &dyn Store {
        self
    }

    fn set_time(&self, now: Timestamp) {
        self.clock.set(now);
    }

    fn supports_update(&self, update: Update) -> bool {
        update == Update::Reset
    }

    fn supports_up_to(&self) -> bool {
        false
    }

    fn supports_reservations(&self) -> bool {
        false
    }
}

#[test]
fn a_store_that_supports_a_part_conforms_in_that_part() {
    let store = Partial::new(StoreError::Unsupported("it cannot refund".to_owned()));
    assert!(store.supports(&[crate::limit("1/s sliding-log")], false).is_err());
    conformance(&store, 300);
}

#[test]
#[should_panic = "Refund"]
fn an_unsupported_refund_must_be_reported_as_such() {
    conformance(&Partial::new(StoreError::TimedOut), 1);
}
