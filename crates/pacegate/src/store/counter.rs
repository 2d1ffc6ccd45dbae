use crate::Limit;

/// The counter that a charge uses, among those of one policy and key.
///
/// A token bucket drains at the rate of the limit that is charged. If a client could choose between two rates on one
/// counter, requests at the high rate would drain the debt of requests at the low one. So limits share a counter only
/// if one replaces the other, as after a change of the configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Counter {
    /// The counter of the policy's limits. If the amount or the burst changes, usage carries over.
    Policy,
    /// The counter of one override, named by the [digest](crate::policy::Match::digest) of its `match`. If the amount
    /// or the burst changes, usage carries over.
    Override(u64),
    /// The counter of this amount and burst. A different amount or burst has a different counter.
    Limit,
}

impl Counter {
    /// Returns the last part of the counter's name, after policy, algorithm, period and key. It is the same in every
    /// process, and different for different counters. All zeros for [`Counter::Policy`].
    #[inline]
    pub fn to_words(self, limit: &Limit) -> [u64; 3] {
        match self {
            Self::Policy => [0; 3],
            Self::Override(digest) => [1, digest, 0],
            Self::Limit => [2, limit.amount(), limit.capacity()],
        }
    }
}
