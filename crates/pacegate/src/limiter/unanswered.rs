//! Permits of charges whose answer never reached the caller.

use std::sync::Arc;

use smallvec::SmallVec;

use super::shared::Inner;
use crate::{Charge, ChargeBuf};

/// Permits that the store is being asked for. Dropping this returns them: the caller stopped waiting for the answer, so
/// has none of them, but the store may have taken them.
#[derive(Debug)]
pub(super) struct Unanswered {
    inner: Arc<Inner>,
    permits: SmallVec<[ChargeBuf; 1]>,
}

impl Unanswered {
    /// `None` if no charge takes a permit.
    pub(super) fn of(inner: &Arc<Inner>, charges: &[Charge<'_>]) -> Option<Self> {
        let takes = |charge: &&Charge<'_>| charge.permit != 0 && charge.cost > 0;
        let permits: SmallVec<_> = charges.iter().filter(takes).map(ChargeBuf::from).collect();
        (!permits.is_empty()).then(|| Self { inner: inner.clone(), permits })
    }

    /// The store has answered: the caller knows which permits it holds.
    pub(super) fn answered(mut self) {
        self.permits.clear();
    }
}

impl Drop for Unanswered {
    fn drop(&mut self) {
        if self.permits.is_empty() {
            return;
        }
        let (inner, permits) = (self.inner.clone(), std::mem::take(&mut self.permits));
        self.inner.store.detach(Box::pin(async move {
            for permit in &permits {
                let charge = permit.as_charge();
                // A failure is counted, and the store retries.
                if inner.heard(inner.store.release(&charge).await).is_ok() {
                    inner.nudge(&charge);
                }
            }
        }));
    }
}
