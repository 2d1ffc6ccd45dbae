//! The number of tokens that were returned to a bucket, for the reservations that are open on it.
//!
//! What a reservation may return depends on what others returned since. Only keys with reservations are counted, so
//! that plain checks and the 16 bytes of a state stay as they are. A count ends with the cell of its key. The bucket is
//! full then, so that its reservations may return nothing.

use std::collections::HashMap;

use super::identity::{HashIsRandom, Identity};
use crate::algorithm::ReturnedTokens;

/// The counts of one shard.
#[derive(Debug, Default)]
pub(super) struct ReturnCounts {
    counts: HashMap<Identity, ReturnMark, HashIsRandom>,
    /// The number of the last count, so that a later count of the same key is a different one.
    last: u64,
}

/// A count at an instant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ReturnMark {
    number: u64,
    /// The maximum means that there were too many to count.
    tokens: ReturnedTokens,
}

impl ReturnCounts {
    pub(super) fn mark(&mut self, id: Identity) -> ReturnMark {
        *self.counts.entry(id).or_insert_with(|| {
            self.last += 1;
            ReturnMark { number: self.last, tokens: ReturnedTokens::default() }
        })
    }

    /// Counts the tokens that `owed` returns. It gets those that were returned since `mark`. `None` if that is not
    /// known.
    pub(super) fn settle(
        &mut self,
        id: Identity,
        mark: ReturnMark,
        owed: impl FnOnce(ReturnedTokens) -> u64,
    ) -> Option<u64> {
        let count = self.counts.get_mut(&id).filter(|count| count.number == mark.number)?;
        let ReturnedTokens { settled, refunded } = count.tokens;
        if settled == u64::MAX || refunded == u64::MAX {
            return None;
        }
        let units = owed(ReturnedTokens {
            settled: settled.checked_sub(mark.tokens.settled)?,
            refunded: refunded.checked_sub(mark.tokens.refunded)?,
        });
        count.tokens.settled = settled.saturating_add(units);
        Some(units)
    }

    pub(super) fn add(&mut self, id: Identity, more: ReturnedTokens) {
        if let Some(ReturnMark { tokens, .. }) = self.counts.get_mut(&id) {
            tokens.settled = tokens.settled.saturating_add(more.settled);
            tokens.refunded = tokens.refunded.saturating_add(more.refunded);
        }
    }

    /// Ends the count of a key.
    pub(super) fn forget(&mut self, id: Identity) {
        self.counts.remove(&id);
    }
}
