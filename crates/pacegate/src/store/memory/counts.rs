//! Decisions that are counted in their shard. It is locked for the decision anyway, so this takes less time than
//! finding the counters of the thread.

/// The decisions in one shard that the statistics do not have yet.
///
/// Only one evaluator counts in a store, so all of them belong to its only limit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ShardCounts {
    pub(crate) allowed: u32,
    pub(crate) denied: u32,
    /// The number of the period in which decisions need only be counted, because there is too much traffic to record
    /// every key.
    busy_period: u32,
}

/// Periods are 2^17 microseconds long: about an eighth of a second.
const PERIOD_BITS: u32 = 17;

impl Default for ShardCounts {
    fn default() -> Self {
        // A period that no clock reaches, so that no shard is busy at first.
        Self { allowed: 0, denied: 0, busy_period: u32::MAX }
    }
}

impl ShardCounts {
    /// Returns `true` if a decision at `now` need only be counted.
    #[inline]
    pub(super) fn is_busy(&self, now: u64) -> bool {
        self.busy_period == Self::period(now)
    }

    #[inline]
    pub(super) fn count(&mut self, is_admitted: bool) {
        // Wrapping, because the sum is taken after every few decisions.
        if is_admitted {
            self.allowed = self.allowed.wrapping_add(1);
        } else {
            self.denied = self.denied.wrapping_add(1);
        }
    }

    /// Lets decisions only be counted until the period of `now` ends.
    pub(super) fn set_busy(&mut self, now: u64) {
        self.busy_period = Self::period(now);
    }

    /// Returns the counts, and starts again at 0.
    pub(super) fn take(&mut self) -> Self {
        let taken = *self;
        (self.allowed, self.denied) = (0, 0);
        taken
    }

    /// Returns `true` if decisions were counted within the last two periods.
    pub(crate) fn is_recent(&self, now: u64) -> bool {
        Self::period(now).wrapping_sub(self.busy_period) <= 1
    }

    pub(crate) fn total(&self) -> u32 {
        self.allowed.wrapping_add(self.denied)
    }

    #[inline]
    fn period(now: u64) -> u32 {
        (now >> PERIOD_BITS) as u32
    }
}
