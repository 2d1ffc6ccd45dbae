//! An evaluator that is created at its first use, so that a program can have many limiters, such as one per tenant.

use std::{ops::Deref, sync::OnceLock};

use super::{evaluator::Evaluator, wait_queue::WaitQueue};
use crate::{Limit, MemoryStore, PolicySet};

/// An evaluator, or the limit that it will have.
#[derive(Debug)]
pub(super) struct LazyEvaluator {
    evaluator: OnceLock<Evaluator>,
    /// The only limit, until the evaluator exists.
    limit: Limit,
}

impl LazyEvaluator {
    /// Creates the evaluator of one limit at its first use, with the defaults.
    pub(super) fn of_limit(limit: Limit) -> Self {
        Self { evaluator: OnceLock::new(), limit }
    }

    #[cold]
    fn create(&self) -> &Evaluator {
        self.evaluator.get_or_init(|| {
            let policies = PolicySet::of_limit(self.limit);
            Evaluator::new(policies, MemoryStore::default(), WaitQueue::default())
        })
    }
}

impl From<Evaluator> for LazyEvaluator {
    fn from(evaluator: Evaluator) -> Self {
        Self { evaluator: evaluator.into(), limit: Limit::per_second(0) }
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
