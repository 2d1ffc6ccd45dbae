//! The correction of a charge at the end of a response.

use std::{fmt, sync::Arc};

use pacegate::{Clock, Decision};

use crate::{Adjustment, Decide, Question, Reply};

/// The charge of an admitted request, to be corrected once its response has ended. Dropping it keeps the charge.
pub struct Settlement<L> {
    pub(crate) limiter: L,
    pub(crate) question: Box<Question>,
    pub(crate) decision: Decision,
    pub(crate) clock: Arc<dyn Clock>,
}

impl<L: Decide> Settlement<L> {
    /// Corrects the charge to the units that the request has used: refunds the rest, or records more as debt.
    pub fn settle(mut self, used: u64) -> Reply<(), L::Settling> {
        self.question.settled = self.clock.now();
        self.limiter.settle(&self.question, &self.decision, Adjustment::Actual(used))
    }
}

impl<L> fmt::Debug for Settlement<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Settlement").field("cost", &self.question.cost).finish_non_exhaustive()
    }
}
