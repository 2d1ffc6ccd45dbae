//! Shared helpers.

use std::{future::Future, time::Duration};

use pacegate::{ManualClock, Store, Timestamp};
use pacegate_redis::{RedisStore, RedisStoreBuilder};
use pacegate_testkit::Subject;
use tokio::runtime::Runtime;

/// A deadline long enough for a busy machine, for tests that are not about time.
pub(crate) const PATIENT: Duration = Duration::from_secs(10);

/// A store with a manual clock.
pub(crate) struct Timed {
    pub(crate) store: RedisStore,
    pub(crate) clock: ManualClock,
    runtime: Runtime,
}

impl Timed {
    pub(crate) fn new(
        url: &str,
        change: impl FnOnce(RedisStoreBuilder) -> RedisStoreBuilder,
    ) -> Self {
        let clock = ManualClock::new();
        let runtime = runtime();
        let builder = RedisStore::builder(url).unwrap().deadline(PATIENT).clock(clock.clone());
        let store = runtime.block_on(change(builder).connect()).unwrap();
        Self { store, clock, runtime }
    }
}

impl Subject for Timed {
    fn store(&self) -> &dyn Store {
        &self.store
    }

    fn set_time(&self, now: Timestamp) {
        self.clock.set(now);
    }

    fn block_on<T: Send>(&self, future: impl Future<Output = T> + Send) -> T {
        self.runtime.block_on(future)
    }
}

pub(crate) fn runtime() -> Runtime {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap()
}

/// Returns true if long tests are enabled.
#[expect(clippy::disallowed_methods, reason = "an environment variable enables long tests")]
pub(crate) fn is_long() -> bool {
    std::env::var("PACEGATE_LONG").is_ok()
}

/// A runtime on which two tasks run in parallel.
pub(crate) fn two_threads() -> Runtime {
    let mut builder = tokio::runtime::Builder::new_multi_thread();
    builder.worker_threads(2).enable_all().build().unwrap()
}
