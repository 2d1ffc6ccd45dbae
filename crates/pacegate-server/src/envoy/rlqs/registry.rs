//! The needs of all buckets of this server, and counters for metrics.

use std::{
    collections::HashMap,
    hash::{BuildHasher, RandomState},
    sync::atomic::{AtomicU64, Ordering},
};

use pacegate::Charge;
use parking_lot::Mutex;
use prometheus_client::metrics::counter::Counter;

use crate::service::Quiet;

/// The needs of the buckets of all streams, by limit and key.
#[derive(Debug, Default)]
pub(crate) struct QuotaRegistry {
    hasher: RandomState,
    /// The sum of needs for each counter, by the hash of policy and key. A collision only changes the shares.
    needs: Mutex<HashMap<u64, u64>>,
    /// Buckets of all streams.
    buckets: AtomicU64,
    /// Messages from Envoys.
    pub(crate) reports: Counter,
    /// Messages to Envoys.
    pub(crate) responses: Counter,
    /// Units assigned.
    pub(crate) units: Counter,
    /// Requests that Envoys reported as allowed, and as denied.
    pub(crate) allowed: Counter,
    pub(crate) denied: Counter,
    pub(super) warnings: QuotaWarnings,
}

/// Log lines that each report could repeat.
#[derive(Debug, Default)]
pub(super) struct QuotaWarnings {
    pub(super) unassigned: Quiet,
    pub(super) undeclared: Quiet,
    pub(super) uncovered: Quiet,
    pub(super) too_many: Quiet,
}

/// The needs of one bucket, which count until they are removed.
#[derive(Debug, Default)]
pub(super) struct RegisteredNeeds(Vec<(u64, u64)>);

/// The maximum number of buckets of all streams.
const MAX_BUCKETS: u64 = 100_000;

impl QuotaRegistry {
    /// Returns the number of buckets of connected Envoys.
    pub(crate) fn buckets(&self) -> u64 {
        self.buckets.load(Ordering::Relaxed)
    }

    /// Adds a bucket. Returns false if there are too many.
    pub(super) fn add_bucket(&self) -> bool {
        let is_full = self.buckets.fetch_add(1, Ordering::Relaxed) >= MAX_BUCKETS;
        if is_full {
            self.buckets.fetch_sub(1, Ordering::Relaxed);
        }
        !is_full
    }

    /// Removes a bucket and its needs.
    pub(super) fn remove_bucket(&self, needs: RegisteredNeeds) {
        self.buckets.fetch_sub(1, Ordering::Relaxed);
        self.replace(needs, Vec::new());
    }

    /// Replaces the needs of a bucket, and returns the sum over all buckets for each of its charges.
    pub(super) fn update(
        &self,
        needs: &mut RegisteredNeeds,
        new: impl Iterator<Item = (u64, u64)>,
    ) -> Vec<u64> {
        let new: Vec<_> = new.collect();
        let old = std::mem::replace(needs, RegisteredNeeds(new.clone()));
        self.replace(old, new)
    }

    fn replace(&self, old: RegisteredNeeds, new: Vec<(u64, u64)>) -> Vec<u64> {
        let mut needs = self.needs.lock();
        for (counter, need) in &new {
            let sum = needs.entry(*counter).or_default();
            *sum = sum.saturating_add(*need);
        }
        for (counter, need) in old.0 {
            if let Some(sum) = needs.get_mut(&counter) {
                *sum = sum.saturating_sub(need);
                if *sum == 0 {
                    needs.remove(&counter);
                }
            }
        }
        new.iter().map(|(counter, _)| needs.get(counter).copied().unwrap_or_default()).collect()
    }

    /// Returns the hash of the counter of a charge.
    pub(super) fn counter(&self, charge: &Charge<'_>) -> u64 {
        self.hasher.hash_one((charge.policy, charge.key, charge.limit.period()))
    }

    pub(super) fn count_report(&self, allowed: u64, denied: u64) {
        self.reports.inc();
        self.allowed.inc_by(allowed);
        self.denied.inc_by(denied);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn needs_are_summed_up_until_they_are_removed() {
        let registry = QuotaRegistry::default();
        let (mut one, mut other) = (RegisteredNeeds::default(), RegisteredNeeds::default());
        assert_eq!(registry.update(&mut one, [(1, 10), (2, 5)].into_iter()), [10, 5]);
        assert_eq!(registry.update(&mut other, [(1, 7)].into_iter()), [17]);
        assert_eq!(registry.update(&mut one, [(1, 3)].into_iter()), [10]);
        assert_eq!(registry.needs.lock().len(), 1);
        assert!(registry.add_bucket() && registry.add_bucket());
        registry.remove_bucket(one);
        registry.remove_bucket(other);
        assert!(registry.needs.lock().is_empty());
        assert_eq!(registry.buckets(), 0);
    }
}
