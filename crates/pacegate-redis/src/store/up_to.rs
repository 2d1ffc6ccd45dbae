//! Charges that take as many units as there are.

use std::sync::Arc;

use pacegate::{Charge, Outcomes, Reply, StoreError};

use super::{Inner, gone, has_cell_with_two_limits, is_one_slot};
use crate::{cell::CellCharges, responder};

impl Inner {
    /// Charges up to `most` units to all cells. Leases are not used: their units are charged already.
    pub(super) fn charge_up_to(
        self: &Arc<Self>,
        charges: &[Charge<'_>],
        most: u64,
        id: Option<&[u8]>,
    ) -> Reply<'_, (u64, Outcomes)> {
        if self.common.layout.is_some() {
            return unsupported("the layout grants no part of the units: check a cost instead");
        }
        let names = &self.common.names;
        let fingerprints: Vec<_> =
            charges.iter().map(|charge| names.fingerprinter.of(charge)).collect();
        if has_cell_with_two_limits(charges, &fingerprints) {
            return unsupported("check_up_to needs a separate key for each limit");
        }
        let known = || self.common.deny_cache.answer(fingerprints.iter().copied().zip(charges));
        if let Some(outcomes) = id.is_none().then(known).flatten() {
            self.common.totals.denied_locally.add(1);
            return Reply::Ready(Ok((0, outcomes.into())));
        }
        let cells = charges.iter().zip(&fingerprints);
        let cells = cells.map(|(charge, fingerprint)| names.cell_charge_with(charge, *fingerprint));
        let cells = match cells.collect::<Result<CellCharges, _>>() {
            Ok(cells) => cells,
            Err(error) => return Reply::Ready(Err(error)),
        };
        if self.session().is_cluster() && !is_one_slot(&cells) {
            return unsupported("check_up_to needs all keys in one slot: give its policies a tag");
        }
        if self.session().is_opening() {
            let (store, id) = (self.clone(), id.map(<[u8]>::to_vec));
            return Reply::pending(async move {
                store.opened().await;
                granted(store.send(cells, most, id.as_deref(), None)?).await
            });
        }
        match self.send(cells, most, id, None) {
            Ok(answer) => Reply::pending(granted(answer)),
            Err(error) => Reply::Ready(Err(error)),
        }
    }
}

async fn granted(answer: responder::Reply) -> Result<(u64, Outcomes), StoreError> {
    let answer = answer.await.unwrap_or_else(|_| Err(gone()))?;
    Ok((answer.granted, answer.outcomes.into_iter().collect()))
}

fn unsupported(problem: &str) -> Reply<'static, (u64, Outcomes)> {
    Reply::Ready(Err(StoreError::Unsupported(problem.to_owned())))
}
