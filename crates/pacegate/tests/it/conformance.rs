//! The memory store against the model.

use pacegate::{ManualClock, MemoryStore, Store, Timestamp};
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
