//! Keys that an operator has blocked: they are denied regardless of their limits. Decisions use a snapshot in memory.
//! With a Redis store, all processes share the blocks through it.

mod named;
mod shared;

use std::{
    collections::HashMap,
    hash::{BuildHasher, RandomState},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use arc_swap::ArcSwap;
use pacegate::{Clock, KeyBuf, KeyRef, PolicyName, StoreError, SystemClock, Timestamp};
use pacegate_redis::Block;
use parking_lot::Mutex;

use self::shared::SharedBlocks;
pub(crate) use self::{
    named::{BlockTimeError, NameError, NamedKey, block_time, find, find_name, is_named},
    shared::follow,
};

/// The blocked keys of each policy, with their expiry.
#[derive(Debug)]
pub(crate) struct Blocks {
    /// The number of blocks. While it is 0, decisions read nothing else.
    count: AtomicUsize,
    /// Read by every decision, rarely changed.
    snapshot: ArcSwap<Snapshot>,
    changes: Mutex<()>,
    hasher: RandomState,
    clock: Arc<dyn Clock>,
    /// `None`: the blocks belong to this process.
    shared: Option<SharedBlocks>,
}

/// A snapshot of all blocks.
#[derive(Clone, Debug)]
struct Snapshot {
    /// The number of blocks of each policy. Policies without blocks are absent.
    policies: HashMap<PolicyName, usize>,
    /// The blocks, partitioned by hash, so that a change copies one partition only.
    parts: Box<[Arc<Vec<Block>>]>,
}

/// The reason why a key was not blocked.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum BlockError {
    #[error(
        "{} keys are blocked already: unblock some, or write a policy that covers them",
        Blocks::MAX
    )]
    TooMany,
    #[error(transparent)]
    Store(#[from] StoreError),
}

impl Blocks {
    /// The maximum number of blocks.
    pub(crate) const MAX: usize = 10_000;

    const PARTS: usize = 256;

    /// Creates an empty set of blocks with the system clock.
    pub(crate) fn new() -> Self {
        Self::with_clock(Arc::new(SystemClock::new()))
    }

    /// Returns the time by the clock of this process.
    pub(crate) fn local_time(&self) -> Timestamp {
        self.clock.now()
    }

    /// Returns the time that ends of blocks refer to: that of the store, or of this process.
    pub(crate) fn now(&self) -> Timestamp {
        let offset = self.shared.as_ref().map_or(0, SharedBlocks::offset);
        let now = self.clock.now().as_micros().saturating_add_signed(offset);
        Timestamp::from_micros(now)
    }

    /// Creates an empty set of blocks with this clock.
    pub(crate) fn with_clock(clock: Arc<dyn Clock>) -> Self {
        Self {
            count: AtomicUsize::new(0),
            snapshot: ArcSwap::from_pointee(Snapshot::empty()),
            changes: Mutex::new(()),
            hasher: RandomState::new(),
            clock,
            shared: None,
        }
    }

    /// Returns true if any key is blocked. Expired blocks count until they are removed.
    #[inline]
    pub(crate) fn any(&self) -> bool {
        self.count.load(Ordering::Relaxed) > 0
    }

    /// Returns true if a policy that `is_meant` may have blocks. Always true if more than a few policies have blocks.
    pub(crate) fn any_of(&self, is_meant: impl FnMut(PolicyName) -> bool) -> bool {
        /// For more policies than this, matching the request is faster than calling `is_meant` for each.
        const FEW: usize = 4;
        if !self.any() {
            return false;
        }
        let snapshot = self.snapshot.load();
        snapshot.policies.len() > FEW || snapshot.policies.keys().copied().any(is_meant)
    }

    /// Returns the time until a block ends; `None` if the key is not blocked.
    pub(crate) fn wait(&self, policy: PolicyName, key: KeyRef<'_>) -> Option<Duration> {
        if !self.any() {
            return None;
        }
        let snapshot = self.snapshot.load();
        if !snapshot.policies.contains_key(&policy) {
            return None;
        }
        let part = &snapshot.parts[self.part(policy, key)];
        let until = part.iter().find(|block| is_of(block, policy, key))?.until;
        let left = until.micros_since(self.now());
        (left > 0).then(|| Duration::from_micros(left))
    }

    /// Blocks a key for `time` from now, and returns the end. Replaces an earlier block of the key.
    ///
    /// If the store fails, the snapshot does not change.
    pub(crate) async fn add(
        &self,
        policy: PolicyName,
        key: KeyBuf,
        time: Duration,
    ) -> Result<Timestamp, BlockError> {
        if let Some(shared) = &self.shared {
            return self.add_shared(shared, policy, key, time).await;
        }
        if self.count.load(Ordering::Relaxed) >= Self::MAX {
            self.expire();
        }
        let until = later(self.now(), time);
        self.insert(Block { policy, key, until })?;
        Ok(until)
    }

    /// Adds a block to the snapshot, or replaces that of the key.
    fn insert(&self, block: Block) -> Result<(), BlockError> {
        let part = self.part(block.policy, block.key.as_ref());
        self.change(|snapshot| snapshot.insert(part, block))
    }

    /// Removes the blocks that `is_meant` selects. Returns the unexpired ones.
    ///
    /// If the store fails, the snapshot does not change.
    pub(crate) async fn lift(
        &self,
        is_meant: impl Fn(&Block) -> bool,
    ) -> Result<Vec<Block>, StoreError> {
        let mut lifted = match &self.shared {
            Some(shared) => self.lift_shared(shared, is_meant).await?,
            None => self.change(|snapshot| snapshot.take(is_meant)),
        };
        let now = self.now();
        lifted.retain(|block| block.until > now);
        Ok(lifted)
    }

    /// Removes expired blocks, to free memory. Decisions ignore expired blocks anyway.
    pub(crate) fn expire(&self) {
        let now = self.now();
        let is_over = |block: &Block| block.until <= now;
        if self.any() && self.snapshot.load().all().any(is_over) {
            self.change(|snapshot| snapshot.take(is_over));
        }
    }

    /// Returns up to `max` blocks, sorted by descending end, and the number of all blocks.
    pub(crate) fn list(&self, max: usize) -> (Vec<Block>, usize) {
        self.expire();
        let snapshot = self.snapshot.load();
        let mut all: Vec<_> = snapshot.all().collect();
        all.sort_unstable_by(|one, other| {
            let keys = || one.key.as_ref().parts().cmp(other.key.as_ref().parts());
            let longest = other.until.cmp(&one.until);
            longest.then_with(|| one.policy.cmp(&other.policy)).then_with(keys)
        });
        (all.iter().take(max).copied().cloned().collect(), all.len())
    }

    /// Returns the partition of a key. The hash is seeded, so clients cannot choose their partition.
    fn part(&self, policy: PolicyName, key: KeyRef<'_>) -> usize {
        let [part, ..] = self.hasher.hash_one((policy, key)).to_le_bytes();
        part.into()
    }

    fn change<T>(&self, how: impl FnOnce(&mut Snapshot) -> T) -> T {
        let _alone = self.changes.lock();
        let mut snapshot = Snapshot::clone(&self.snapshot.load());
        let done = how(&mut snapshot);
        self.count.store(snapshot.policies.values().sum(), Ordering::Relaxed);
        self.snapshot.store(Arc::new(snapshot));
        done
    }
}

impl Snapshot {
    fn empty() -> Self {
        Self { policies: HashMap::new(), parts: vec![Arc::default(); Blocks::PARTS].into() }
    }

    fn all(&self) -> impl Iterator<Item = &Block> {
        self.parts.iter().flat_map(|part| part.iter())
    }

    /// Adds a block to its partition, or replaces that of the key.
    fn insert(&mut self, part: usize, block: Block) -> Result<(), BlockError> {
        let count: usize = self.policies.values().sum();
        let part = &mut self.parts[part];
        let known = part.iter().position(|one| is_of(one, block.policy, block.key.as_ref()));
        match known {
            Some(known) => Arc::make_mut(part)[known].until = block.until,
            None if count >= Blocks::MAX => return Err(BlockError::TooMany),
            None => {
                *self.policies.entry(block.policy).or_default() += 1;
                Arc::make_mut(part).push(block);
            }
        }
        Ok(())
    }

    /// Removes and returns the blocks that `is_meant` selects.
    fn take(&mut self, is_meant: impl Fn(&Block) -> bool) -> Vec<Block> {
        let mut taken = Vec::new();
        for part in &mut self.parts {
            if part.iter().any(&is_meant) {
                taken.extend(Arc::make_mut(part).extract_if(.., |block| is_meant(block)));
            }
        }
        for block in &taken {
            if let Some(count) = self.policies.get_mut(&block.policy) {
                *count -= 1;
            }
        }
        self.policies.retain(|_, count| *count > 0);
        taken
    }
}

fn is_of(block: &Block, policy: PolicyName, key: KeyRef<'_>) -> bool {
    block.policy == policy && block.key.as_ref() == key
}

fn later(now: Timestamp, time: Duration) -> Timestamp {
    let time = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
    Timestamp::from_micros(now.as_micros().saturating_add(time))
}

#[cfg(test)]
mod tests {
    use pacegate::ManualClock;

    use super::*;

    fn key(text: &str) -> KeyBuf {
        KeyRef::new(text.as_bytes()).to_buf()
    }

    #[tokio::test]
    async fn a_block_holds_for_its_time_to_the_tick() {
        let clock = ManualClock::new();
        let blocks = Blocks::with_clock(Arc::new(clock.clone()));
        let name = PolicyName::DEFAULT;
        assert!(!blocks.any());
        let until = blocks.add(name, key("a"), Duration::from_secs(60)).await.unwrap();
        assert_eq!(until.micros_since(clock.now()), 60_000_000);
        assert_eq!(blocks.wait(name, KeyRef::new(b"a")), Some(Duration::from_secs(60)));
        assert_eq!(blocks.wait(name, KeyRef::new(b"b")), None);
        assert_eq!(blocks.wait(PolicyName::INLINE, KeyRef::new(b"a")), None);
        clock.advance(Duration::from_micros(59_999_999));
        assert_eq!(blocks.wait(name, KeyRef::new(b"a")), Some(Duration::from_micros(1)));
        clock.advance(Duration::from_micros(1));
        assert_eq!(blocks.wait(name, KeyRef::new(b"a")), None);
        assert!(blocks.any());
        blocks.expire();
        assert!(!blocks.any());
    }

    #[tokio::test]
    async fn blocks_are_lifted_and_prolonged() {
        let blocks = Blocks::with_clock(Arc::new(ManualClock::new()));
        let name = PolicyName::DEFAULT;
        for seconds in [60, 90] {
            blocks.add(name, key("a"), Duration::from_secs(seconds)).await.unwrap();
        }
        assert_eq!(blocks.wait(name, KeyRef::new(b"a")), Some(Duration::from_secs(90)));
        blocks.add(name, key("b"), Duration::from_secs(90)).await.unwrap();
        let lift = async || blocks.lift(|block| block.key == key("a")).await.unwrap().len();
        assert_eq!((lift().await, lift().await), (1, 0));
        assert_eq!(blocks.wait(name, KeyRef::new(b"a")), None);
        assert_eq!(blocks.wait(name, KeyRef::new(b"b")), Some(Duration::from_secs(90)));
        assert_eq!(blocks.lift(|_| true).await.unwrap().len(), 1);
        assert!(!blocks.any());
    }

    #[tokio::test]
    async fn blocks_are_counted_per_policy() {
        let clock = ManualClock::new();
        let blocks = Blocks::with_clock(Arc::new(clock.clone()));
        let name = |name: &str| name.parse::<PolicyName>().unwrap();
        assert!(!blocks.any_of(|_| true));
        for seconds in [60, 90] {
            blocks
                .add(name("a"), key(&seconds.to_string()), Duration::from_secs(seconds))
                .await
                .unwrap();
            blocks.add(name("a"), key("a"), Duration::from_secs(seconds)).await.unwrap();
        }
        assert!(blocks.any_of(|policy| policy == name("a")));
        assert!(!blocks.any_of(|policy| policy == name("b")));
        for seconds in [60, 29] {
            assert!(blocks.any_of(|policy| policy == name("a")));
            clock.advance(Duration::from_secs(seconds));
            blocks.expire();
        }
        clock.advance(Duration::from_secs(1));
        blocks.expire();
        assert!(!blocks.any_of(|_| true));
    }

    #[tokio::test]
    async fn expired_blocks_make_room_for_new_ones() {
        let clock = ManualClock::new();
        let blocks = Blocks::with_clock(Arc::new(clock.clone()));
        let name = PolicyName::DEFAULT;
        for n in 0..Blocks::MAX {
            blocks.add(name, key(&n.to_string()), Duration::from_secs(60)).await.unwrap();
        }
        let minute = Duration::from_secs(60);
        assert_eq!(blocks.add(name, key("one more"), minute).await, Err(BlockError::TooMany));
        assert!(blocks.add(name, key("0"), Duration::from_secs(90)).await.is_ok());
        let (first, all) = blocks.list(2);
        let first: Vec<_> = first.into_iter().map(|block| block.key).collect();
        assert_eq!((first, all), (vec![key("0"), key("1")], Blocks::MAX));
        clock.advance(minute);
        assert!(blocks.add(name, key("one more"), minute).await.is_ok());
        assert_eq!(blocks.list(0).1, 2);
    }
}
