//! An evaluator that is created at its first use, so that a program can have many limiters, such as one per tenant.

use std::{ops::Deref, sync::OnceLock};

use super::{evaluator::Evaluator, wait_queue::WaitQueue};
use crate::{Limit, MemoryStore, PolicySet};

/// An evaluator, or the settings that it will have.
#[derive(Debug)]
pub(super) struct LazyEvaluator {
    evaluator: OnceLock<Evaluator>,
    /// The settings, until the evaluator exists.
    settings: SingleLimit,
}

/// One limit for each key, with the system's clock.
#[derive(Clone, Copy, Debug)]
pub(super) struct SingleLimit {
    limit: Limit,
    max_keys: usize,
    max_waiters: usize,
}

impl SingleLimit {
    /// Sets the bounds, or their defaults.
    pub(super) fn new(limit: Limit, max_keys: Option<usize>, max_waiters: Option<usize>) -> Self {
        let max_keys = max_keys.unwrap_or(MemoryStore::DEFAULT_MAX_KEYS);
        let max_waiters = max_waiters.unwrap_or(WaitQueue::DEFAULT_MAX_WAITERS);
        Self { limit, max_keys, max_waiters }
    }
}

impl LazyEvaluator {
    /// Creates the evaluator of one limit at its first use.
    pub(super) fn of_limit(settings: SingleLimit) -> Self {
        Self { evaluator: OnceLock::new(), settings }
    }

    #[cold]
    fn create(&self) -> &Evaluator {
        let SingleLimit { limit, max_keys, max_waiters } = self.settings;
        self.evaluator.get_or_init(|| {
            let (policies, store) = (PolicySet::of_limit(limit), MemoryStore::bounded(max_keys));
            Evaluator::new(policies, store, WaitQueue::new(max_waiters))
        })
    }
}

impl From<Evaluator> for LazyEvaluator {
    fn from(evaluator: Evaluator) -> Self {
        let settings = SingleLimit::new(Limit::per_second(0), None, None);
        Self { evaluator: evaluator.into(), settings }
    }
}

impl Deref for LazyEvaluator {
    type Target = Evaluator;

    #[inline]
    fn deref(&self) -> &Evaluator {
        match self.evaluator.get() {
            Some(evaluator) => evaluator,
            None => self.create(),
        }
    }
}
