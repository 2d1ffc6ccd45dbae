use std::{
    collections::VecDeque,
    sync::atomic::{AtomicUsize, Ordering},
};

use pacegate::{Charge, ChargeBuf, Decision, KeyBuf, KeyRef, PolicyName, Timestamp};
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
    /// The charges to the policy, if it has overrides: its limits depend on the request.
    pub(crate) charges: Box<[ChargeBuf]>,
}

impl Recent {
    /// Decisions to record per second. With [`MAX_DECISIONS`], at least half a minute is kept.
    const PER_SECOND: usize = 256;

    /// Longer keys are not recorded. Together with [`MAX_DECISIONS`], this bounds the memory to a few megabytes.
    const MAX_KEY_BYTES: usize = 256;

    /// Further charges of a decision are not kept.
    const MAX_CHARGES: usize = 4;

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

    /// Records a decision about the charges to one key of a policy. Ignores peeks. `with_charges`: keeps them too.
    pub(crate) fn record(
        &self,
        at: Timestamp,
        charges: &[Charge<'_>],
        decision: Decision,
        with_charges: bool,
    ) {
        let Some(charge) = charges.first() else { return };
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
        let kept = charges.iter().take(if with_charges { Self::MAX_CHARGES } else { 0 });
        let charges = kept.map(ChargeBuf::from).collect();
        decisions.push_back(RecentDecision {
            at,
            policy,
            key: key.to_buf(),
            cost,
            decision,
            charges,
        });
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
}

const MAX_DECISIONS: usize = 8_192;

#[cfg(test)]
mod tests {
    use pacegate::{Limit, Limiter};

    use super::*;

    fn record(recent: &Recent, key: &[u8], cost: u64) {
        let charge = Charge::new(PolicyName::DEFAULT, KeyRef::new(key), Limit::per_hour(1));
        let decision = Limiter::memory(Limit::per_hour(1)).check("any");
        recent.record(Timestamp::from_secs(cost), &[charge.cost(cost)], decision, true);
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
        assert_eq!(recent.decisions.lock().len(), MAX_DECISIONS);
        let odd = recent.of(PolicyName::DEFAULT, KeyRef::new(b"odd"), 3);
        assert_eq!(odd.iter().map(|one| one.cost).collect::<Vec<_>>(), [255, 253, 251]);
        record(&recent, &[b'x'; Recent::MAX_KEY_BYTES + 1], 1);
        record(&recent, b"peek", 0);
        for key in [&[b'x'; Recent::MAX_KEY_BYTES + 1][..], b"peek"] {
            assert!(recent.of(PolicyName::DEFAULT, KeyRef::new(key), 1).is_empty());
        }
    }
}
