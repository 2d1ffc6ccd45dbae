//! Estimates the number of distinct keys when not all of them are kept.

use std::hash::{BuildHasher, RandomState};

/// A HyperLogLog: estimates the number of distinct elements within about 2 percent, in 16 KiB.
#[derive(Clone, Debug)]
pub(super) struct Distinct {
    /// For each hash prefix: the largest number of leading zeros in the rest of a hash, plus one.
    places: Vec<u8>,
    hasher: RandomState,
}

const BITS: u32 = 14;

impl Default for Distinct {
    fn default() -> Self {
        Self { places: vec![0; 1 << BITS], hasher: RandomState::new() }
    }
}

impl Distinct {
    pub(super) fn add(&mut self, key: &[u8]) {
        let hash = self.hasher.hash_one(key);
        let place = usize::try_from(hash >> (64 - BITS)).unwrap_or_default();
        let rank = (hash << BITS | 1 << (BITS - 1)).leading_zeros() + 1;
        let rank = u8::try_from(rank).unwrap_or(u8::MAX);
        self.places[place] = self.places[place].max(rank);
    }

    #[expect(
        clippy::float_arithmetic,
        reason = "an estimate for the report; no decision depends on it"
    )]
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "as above")]
    pub(super) fn estimate(&self) -> u64 {
        let count = f64::from(1_u32 << BITS);
        let sum: f64 = self.places.iter().map(|rank| (-f64::from(*rank)).exp2()).sum();
        let estimate = 0.7213 / (1.0 + 1.079 / count) * count * count / sum;
        let empty = self.places.iter().filter(|rank| **rank == 0).count();
        let empty = f64::from(u32::try_from(empty).unwrap_or_default());
        if estimate <= 2.5 * count && empty > 0.0 {
            return (count * (count / empty).ln()).round() as u64;
        }
        estimate.round() as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn estimates_are_close() {
        let mut distinct = Distinct::default();
        let mut next = 0_u64;
        for count in [0, 10, 1_000, 30_000, 300_000] {
            while next < count {
                distinct.add(&next.to_le_bytes());
                distinct.add(&next.to_le_bytes());
                next += 1;
            }
            let estimate = distinct.estimate();
            assert!(estimate.abs_diff(count) <= count / 25, "{estimate} for {count}");
        }
    }
}
