use std::{
    collections::VecDeque,
    sync::atomic::{AtomicUsize, Ordering},
};

use pacegate::{Charge, Decision, KeyBuf, KeyRef, PolicyName, Timestamp};
use parking_lot::Mutex;

/// A sample of the recent decisions: the first ones of each second, bounded in number and size.
#[derive(Debug)]
pub(crate) struct Recent {
    /// The decisions that can still be recorded in this second. While it is 0, decisions read nothing else.
    left: AtomicUsize,
    /// Oldest first. A thread that finds it locked records nothing.
    decisions: Mutex<VecDeque<RecentDecision>>,
}

/// A decision about a request with a key.
#[derive(Clone, Debug)]
pub(crate) struct RecentDecision {
    pub(crate) at: Timestamp,
    /// A policy that covers the request. Another policy may have decided.
    pub(crate) policy: PolicyName,
    pub(crate) key: KeyBuf,
    pub(crate) cost: u64,
    pub(crate) decision: Decision,
}

impl Recent {
    /// Decisions to record per second. With [`MAX_DECISIONS`], at least half a minute is kept.
    const PER_SECOND: usize = 256;

    /// Longer keys are not recorded. Together with [`MAX_DECISIONS`], this bounds the memory to a few megabytes.
    const MAX_KEY_BYTES: usize = 256;

    pub(crate) fn new() -> Self {
        Self { left: AtomicUsize::new(Self::PER_SECOND), decisions: Mutex::default() }
    }

    /// Starts a new second.
    pub(crate) fn refill(&self) {
        self.left.store(Self::PER_SECOND, Ordering::Relaxed);
    }

    /// Returns true if a decision would be recorded now.
    pub(crate) fn is_open(&self) -> bool {
        self.left.load(Ordering::Relaxed) > 0
    }

    /// Records a decision. Ignores peeks.
    pub(crate) fn record(&self, at: Timestamp, charge: &Charge<'_>, decision: Decision) {
        let (policy, key, cost) = (charge.policy, charge.key, charge.cost);
        let mut bytes = 0;
        key.feed(|part| bytes += part.len());
        if cost == 0 || bytes > Self::MAX_KEY_BYTES {
            return;
        }
        let Some(mut decisions) = self.decisions.try_lock() else { return };
        let left = self.left.load(Ordering::Relaxed);
        // Only the holder of the lock decrements it; a concurrent refill may be lost, until the next second.
        self.left.store(left.saturating_sub(1), Ordering::Relaxed);
        if decisions.len() == MAX_DECISIONS {
            decisions.pop_front();
        }
        decisions.push_back(RecentDecision { at, policy, key: key.to_buf(), cost, decision });
    }

    /// Returns the last decisions about a key, newest first.
    pub(crate) fn of(
        &self,
        policy: PolicyName,
        key: KeyRef<'_>,
        max: usize,
    ) -> Vec<RecentDecision> {
        let decisions = self.decisions.lock();
        let own = decisions.iter().rev();
        let own = own.filter(|one| one.policy == policy && one.key.as_ref() == key);
        own.take(max).cloned().collect()
    }

    /// Calls a function with each decision, newest first.
    pub(crate) fn for_each(&self, visit: impl FnMut(&RecentDecision)) {
        self.decisions.lock().iter().rev().for_each(visit);
    }
}

const MAX_DECISIONS: usize = 8_192;

#[cfg(test)]
mod tests {
    use pacegate::{Limit, Limiter};

    use super::*;

    fn record(recent: &Recent, key: &[u8], cost: u64) {
        let charge = Charge::new(PolicyName::DEFAULT, KeyRef::new(key), Limit::per_hour(1));
        let decision = Limiter::memory(Limit::per_hour(1)).check("any");
        recent.record(Timestamp::from_secs(cost), &charge.cost(cost), decision);
    }

    #[test]
    fn a_bounded_number_of_decisions_is_recorded() {
        let recent = Recent::new();
        for second in 0..40 {
            for cost in 0..=Recent::PER_SECOND as u64 {
                record(&recent, if cost % 2 == 0 { b"even" } else { b"odd" }, cost);
            }
            assert!(!recent.is_open(), "{second}");
            recent.refill();
        }
        let mut all = 0;
        recent.for_each(|_| all += 1);
        assert_eq!(all, MAX_DECISIONS);
        let odd = recent.of(PolicyName::DEFAULT, KeyRef::new(b"odd"), 3);
        assert_eq!(odd.iter().map(|one| one.cost).collect::<Vec<_>>(), [255, 253, 251]);
        record(&recent, &[b'x'; Recent::MAX_KEY_BYTES + 1], 1);
        record(&recent, b"peek", 0);
        for key in [&[b'x'; Recent::MAX_KEY_BYTES + 1][..], b"peek"] {
            assert!(recent.of(PolicyName::DEFAULT, KeyRef::new(key), 1).is_empty());
        }
    }
}
