//! Keys that somebody denies by hand, whatever their limits say. Held by this process, and only as long as it runs.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use parking_lot::RwLock;
use tollgate::{Clock, KeyBuf, KeyRef, PolicyName, SystemClock, Timestamp};

/// Which keys of which policies are blocked, and until when.
#[derive(Debug)]
pub(crate) struct Blocks {
    /// How many there are: all that a decision looks at while there are none.
    count: AtomicUsize,
    held: RwLock<HashMap<(PolicyName, KeyBuf), Timestamp>>,
    clock: Arc<dyn Clock>,
}

/// One of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Block {
    pub(crate) policy: PolicyName,
    pub(crate) key: KeyBuf,
    pub(crate) until: Timestamp,
}

/// There is no room for another.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{} keys are blocked already: lift some, or write a policy that covers them", Blocks::MOST)]
pub(crate) struct TooManyBlocks;

impl Blocks {
    /// The most there are at one time.
    pub(crate) const MOST: usize = 10_000;

    /// None, with the system's clock.
    pub(crate) fn new() -> Self {
        Self::with_clock(Arc::new(SystemClock::new()))
    }

    /// None, with another clock.
    pub(crate) fn with_clock(clock: Arc<dyn Clock>) -> Self {
        Self { count: AtomicUsize::new(0), held: RwLock::default(), clock }
    }

    /// Whether there may be any.
    #[inline]
    pub(crate) fn any(&self) -> bool {
        self.count.load(Ordering::Relaxed) > 0
    }

    /// How long a key is still blocked; `None` if it is not.
    pub(crate) fn wait(&self, policy: PolicyName, key: KeyRef<'_>) -> Option<Duration> {
        if !self.any() {
            return None;
        }
        let until = *self.held.read().get(&(policy, key.to_buf()))?;
        let left = until.micros_since(self.clock.now());
        (left > 0).then(|| Duration::from_micros(left))
    }

    /// Blocks a key for so long, or for another time if it is blocked already, and tells until when.
    pub(crate) fn add(
        &self,
        policy: PolicyName,
        key: KeyBuf,
        time: Duration,
    ) -> Result<Timestamp, TooManyBlocks> {
        self.expire();
        let time = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        let until = Timestamp::from_micros(self.clock.now().as_micros().saturating_add(time));
        let mut held = self.held.write();
        if held.len() >= Self::MOST && !held.contains_key(&(policy, key.clone())) {
            return Err(TooManyBlocks);
        }
        held.insert((policy, key), until);
        self.count.store(held.len(), Ordering::Relaxed);
        Ok(until)
    }

    /// Lifts a block. `false` if there was none.
    pub(crate) fn remove(&self, policy: PolicyName, key: KeyBuf) -> bool {
        let now = self.clock.now();
        let mut held = self.held.write();
        let until = held.remove(&(policy, key));
        self.count.store(held.len(), Ordering::Relaxed);
        until.is_some_and(|until| until > now)
    }

    /// Forgets those that are over. Who decides does not depend on it.
    pub(crate) fn expire(&self) {
        if !self.any() {
            return;
        }
        let now = self.clock.now();
        let mut held = self.held.write();
        held.retain(|_, until| *until > now);
        self.count.store(held.len(), Ordering::Relaxed);
    }

    /// The first `most` of them, those that last longest first, and how many there are.
    pub(crate) fn list(&self, most: usize) -> (Vec<Block>, usize) {
        self.expire();
        let held = self.held.read();
        let mut all: Vec<_> = held.iter().map(|(name, until)| (*until, name)).collect();
        all.sort_unstable_by(|(until, (policy, key)), (other_until, (other_policy, other))| {
            let keys = key.as_ref().parts().cmp(other.as_ref().parts());
            other_until.cmp(until).then(policy.cmp(other_policy)).then(keys)
        });
        let block = |&(until, (policy, key)): &(Timestamp, &(PolicyName, KeyBuf))| Block {
            policy: *policy,
            key: key.clone(),
            until,
        };
        (all.iter().take(most).map(block).collect(), all.len())
    }
}

#[cfg(test)]
mod tests {
    use tollgate::ManualClock;

    use super::*;

    fn key(text: &str) -> KeyBuf {
        KeyRef::new(text.as_bytes()).to_buf()
    }

    #[test]
    fn a_block_holds_for_its_time_to_the_tick() {
        let clock = ManualClock::new();
        let blocks = Blocks::with_clock(Arc::new(clock.clone()));
        let name = PolicyName::DEFAULT;
        assert!(!blocks.any());
        let until = blocks.add(name, key("a"), Duration::from_secs(60)).unwrap();
        assert_eq!(until.micros_since(clock.now()), 60_000_000);
        assert_eq!(blocks.wait(name, KeyRef::new(b"a")), Some(Duration::from_secs(60)));
        assert_eq!(blocks.wait(name, KeyRef::new(b"b")), None);
        assert_eq!(blocks.wait(PolicyName::AD_HOC, KeyRef::new(b"a")), None);
        clock.advance(Duration::from_micros(59_999_999));
        assert_eq!(blocks.wait(name, KeyRef::new(b"a")), Some(Duration::from_micros(1)));
        clock.advance(Duration::from_micros(1));
        assert_eq!(blocks.wait(name, KeyRef::new(b"a")), None);
        assert!(blocks.any());
        blocks.expire();
        assert!(!blocks.any());
    }

    #[test]
    fn blocks_are_lifted_and_prolonged() {
        let blocks = Blocks::with_clock(Arc::new(ManualClock::new()));
        let name = PolicyName::DEFAULT;
        for seconds in [60, 90] {
            blocks.add(name, key("a"), Duration::from_secs(seconds)).unwrap();
        }
        assert_eq!(blocks.wait(name, KeyRef::new(b"a")), Some(Duration::from_secs(90)));
        assert!(blocks.remove(name, key("a")));
        assert!(!blocks.remove(name, key("a")));
        assert!(!blocks.any());
    }

    #[test]
    fn there_is_room_for_so_many_and_again_when_they_are_over() {
        let clock = ManualClock::new();
        let blocks = Blocks::with_clock(Arc::new(clock.clone()));
        let name = PolicyName::DEFAULT;
        for n in 0..Blocks::MOST {
            blocks.add(name, key(&n.to_string()), Duration::from_secs(60)).unwrap();
        }
        let minute = Duration::from_secs(60);
        assert_eq!(blocks.add(name, key("one more"), minute), Err(TooManyBlocks));
        assert!(blocks.add(name, key("0"), Duration::from_secs(90)).is_ok());
        let (first, all) = blocks.list(2);
        let first: Vec<_> = first.into_iter().map(|block| block.key).collect();
        assert_eq!((first, all), (vec![key("0"), key("1")], Blocks::MOST));
        clock.advance(minute);
        assert!(blocks.add(name, key("one more"), minute).is_ok());
        assert_eq!(blocks.list(0).1, 2);
    }
}
