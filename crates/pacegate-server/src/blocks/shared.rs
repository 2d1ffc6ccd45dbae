//! Blocks that all processes share through a Redis store.

use std::{
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    time::Duration,
};

use pacegate::{KeyBuf, PolicyName, StoreError, Timestamp};
use pacegate_redis::{Block, BlocksReply, RedisStore};
use tokio::{sync::Mutex, time::sleep};

use super::{BlockError, Blocks, Snapshot, is_of, later};
use crate::active_config::ActiveConfig;

/// The store with the blocks of all processes.
#[derive(Debug)]
pub(super) struct SharedBlocks {
    store: RedisStore,
    /// The version of the snapshot; 0 without blocks. Held during calls to the store, so that their answers are applied
    /// in order.
    version: Mutex<u64>,
    /// The time of the store minus that of this process, in microseconds. Written after each call to the store.
    offset: AtomicI64,
}

/// Interval between reads of the version. A block holds everywhere after this time and a round trip.
const READ_INTERVAL: Duration = Duration::from_millis(500);
/// The interval after an error that does not end by itself.
const ERROR_INTERVAL: Duration = Duration::from_secs(10);
/// Maximum number of blocks that are lifted at once.
const MAX_LIFTED: usize = 1_000;

impl SharedBlocks {
    pub(super) fn offset(&self) -> i64 {
        self.offset.load(Ordering::Relaxed)
    }

    /// Compares the time of the store with that of this process before and after a call. The offset changes only if it
    /// is certainly wrong, so that waits do not jitter. Then blocks end at most a round trip late, and never early.
    fn set_time(&self, store: Timestamp, [before, after]: [Timestamp; 2]) {
        let offset = |here: Timestamp| {
            store.as_micros().cast_signed().saturating_sub(here.as_micros().cast_signed())
        };
        let (lowest, highest) = (offset(after), offset(before));
        if !(lowest..=highest).contains(&self.offset()) {
            self.offset.store(lowest, Ordering::Relaxed);
        }
    }
}

impl Blocks {
    /// Creates a set of blocks that is shared through a store. Empty until the first [`Blocks::refresh`].
    pub(crate) fn shared(store: RedisStore) -> Self {
        let shared = SharedBlocks { store, version: Mutex::new(0), offset: AtomicI64::new(0) };
        Self { shared: Some(shared), ..Self::new() }
    }

    /// Reads the blocks of all processes, if they have changed. Does nothing without a shared store.
    pub(crate) async fn refresh(&self) -> Result<(), StoreError> {
        let Some(shared) = &self.shared else { return Ok(()) };
        self.read(shared, &mut *shared.version.lock().await).await
    }

    async fn read(&self, shared: &SharedBlocks, version: &mut u64) -> Result<(), StoreError> {
        let reply = self.timed(shared, shared.store.blocks(*version)).await?;
        if reply.version != *version {
            let mut snapshot = Snapshot::empty();
            for block in reply.blocks {
                let part = self.part(block.policy, block.key.as_ref());
                // The store has the same maximum.
                drop(snapshot.insert(part, block));
            }
            self.change(|current| *current = snapshot);
            *version = reply.version;
        }
        Ok(())
    }

    pub(super) async fn add_shared(
        &self,
        shared: &SharedBlocks,
        policy: PolicyName,
        key: KeyBuf,
        time: Duration,
    ) -> Result<Timestamp, BlockError> {
        let mut version = shared.version.lock().await;
        let added = shared.store.block(policy, key.as_ref(), time, Self::MAX);
        let reply = self.timed(shared, added).await?;
        if reply.changed == 0 {
            return Err(BlockError::TooMany);
        }
        let until = later(reply.now, time);
        // Expired blocks may still take the room of this one.
        self.expire();
        let inserted = self.insert(Block { policy, key, until });
        self.changed(shared, &reply, &mut version, inserted.is_ok()).await;
        Ok(until)
    }

    pub(super) async fn lift_shared(
        &self,
        shared: &SharedBlocks,
        is_meant: impl Fn(&Block) -> bool,
    ) -> Result<Vec<Block>, StoreError> {
        let mut version = shared.version.lock().await;
        self.read(shared, &mut version).await?;
        let meant: Vec<Block> = {
            let snapshot = self.snapshot.load();
            snapshot.all().filter(|block| is_meant(block)).take(MAX_LIFTED).cloned().collect()
        };
        if meant.is_empty() {
            return Ok(meant);
        }
        let reply = self.timed(shared, shared.store.unblock(&meant)).await?;
        let is_lifted = |block: &Block| {
            is_meant(block) && meant.iter().any(|one| is_of(one, block.policy, block.key.as_ref()))
        };
        self.change(|snapshot| snapshot.take(is_lifted));
        self.changed(shared, &reply, &mut version, true).await;
        Ok(meant)
    }

    /// Updates the version after a change. If another process has changed the blocks before, reads them all; after an
    /// error, the next refresh reads them.
    async fn changed(
        &self,
        shared: &SharedBlocks,
        reply: &BlocksReply,
        version: &mut u64,
        is_applied: bool,
    ) {
        if is_applied && reply.before == *version {
            *version = reply.version;
        } else {
            drop(self.read(shared, version).await);
        }
    }

    /// Waits for an answer of the store, and compares the clocks.
    async fn timed(
        &self,
        shared: &SharedBlocks,
        answer: impl Future<Output = Result<BlocksReply, StoreError>>,
    ) -> Result<BlocksReply, StoreError> {
        let before = self.local_time();
        let reply = answer.await?;
        shared.set_time(reply.now, [before, self.local_time()]);
        Ok(reply)
    }
}

/// Follows the blocks of other processes. Returns at once if the blocks are not shared, otherwise never.
pub(crate) async fn follow(active: Arc<ActiveConfig>) {
    let mut has_failed = false;
    while active.revision().engine.blocks.shared.is_some() {
        let engine = active.revision().engine.clone();
        let pause = match engine.blocks.refresh().await {
            Ok(()) => {
                has_failed = false;
                READ_INTERVAL
            }
            // Failures to connect are logged elsewhere.
            Err(StoreError::TimedOut | StoreError::Unavailable(_) | StoreError::Interrupted(_)) => {
                READ_INTERVAL
            }
            Err(error) => {
                if !has_failed {
                    tracing::warn!("cannot read the blocked keys: {error}; keeping the known ones");
                }
                has_failed = true;
                ERROR_INTERVAL
            }
        };
        sleep(pause).await;
    }
}
