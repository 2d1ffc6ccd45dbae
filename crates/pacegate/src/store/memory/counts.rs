//! Decisions that are counted in their shard. It is locked for the decision anyway, so this takes less time than
//! finding the counters of the thread.

use super::ShardClock;

/// The decisions in one shard that the statistics do not have yet.
///
/// Only one evaluator counts in a store, so all of them belong to its only limit.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ShardCounts {
    pub(crate) allowed: u32,
    pub(crate) denied: u32,
}

/// Periods are 2^17 microseconds long: about an eighth of a second.
const PERIOD_BITS: u32 = 17;

impl ShardCounts {
    #[inline]
    pub(super) fn count(&mut self, is_admitted: bool) {
        // Wrapping, because the sum is taken after every few decisions.
        if is_admitted {
            self.allowed = self.allowed.wrapping_add(1);
        } else {
            self.denied = self.denied.wrapping_add(1);
        }
    }

    pub(crate) fn total(&self) -> u32 {
        self.allowed.wrapping_add(self.denied)
    }
}

impl ShardClock {
    /// A period that no clock reaches, so that no shard is busy at first.
    pub(super) const NEVER_BUSY: u32 = u32::MAX;

    /// Returns `true` if a decision at `now` need only be counted.
    #[inline]
    pub(super) fn is_busy(&self, now: u64) -> bool {
        self.busy_period == period(now)
    }

    /// Lets decisions only be counted until the period of `now` ends.
    pub(super) fn set_busy(&mut self, now: u64) {
        self.busy_period = period(now);
    }

    /// Returns `true` if decisions were only counted within the last two periods.
    pub(super) fn was_busy(&self, now: u64) -> bool {
        period(now).wrapping_sub(self.busy_period) <= 1
    }
}

#[inline]
fn period(now: u64) -> u32 {
    (now >> PERIOD_BITS) as u32
}
