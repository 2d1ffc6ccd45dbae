//! Reservations. A key on the server shows that a reservation is open. It has the units of each charge and the time at
//! which they were charged. If a policy returns the units of unsettled reservations, its cells also have a sorted set
//! of them, from which every script that changes the cell first returns those that are due.
//!
//! In several slots of a cluster, each slot has such a key for its cells, so each is settled once, also if a settlement
//! that failed is repeated.

use std::{sync::Arc, time::Duration};

use futures_util::future::join_all;
use pacegate::{Charge, Excess, Outcomes, Reply, SettledCharges, StoreError};

use super::{
    Inner,
    compensating::{parts, select},
    gone, is_one_slot, outcomes_of,
};
use crate::{
    cell::{CellCharge, CellCharges},
    responder::Responder,
    settlement::Settlement,
};

impl Inner {
    pub(super) fn reserve(
        self: &Arc<Self>,
        charges: &[Charge<'_>],
        id: u128,
        ttl: Duration,
    ) -> Reply<'_, Outcomes> {
        let cells = match self.reservable_cells(charges, |_| Excess::Reject) {
            Ok(cells) => cells,
            Err(error) => return Reply::Ready(Err(error)),
        };
        let fingerprints = cells.iter().map(|cell| cell.fingerprint);
        if let Some(outcomes) = self.common.deny_cache.answer(fingerprints.zip(charges)) {
            self.common.totals.denied_locally.add(1);
            return Reply::Ready(Ok(outcomes.into()));
        }
        if self.session().is_opening() || self.is_spread(&cells) {
            let store = self.clone();
            return Reply::pending(async move {
                store.opened().await;
                let reservation = Some((id, ttl));
                if store.is_spread(&cells) {
                    let charged = store.charge_compensating(cells, reservation).await;
                    return charged.map(Outcomes::from);
                }
                let answer = store.charge_cells(cells, 1, reservation).await?;
                Ok(answer.outcomes.into_iter().collect())
            });
        }
        match self.send(cells, 1, None, Some((id, ttl))) {
            Ok(answer) => Reply::pending(outcomes_of(answer)),
            Err(error) => Reply::Ready(Err(error)),
        }
    }

    /// Runs as a separate task, so that local state is updated even if the caller stops waiting.
    pub(super) fn settle(
        self: &Arc<Self>,
        charges: &[Charge<'_>],
        id: u128,
        actual: u64,
    ) -> Reply<'_, Option<SettledCharges>> {
        let debt = |charge: &Charge<'_>| Excess::Debt { max: charge.max_debt }.under(&charge.limit);
        match self.reservable_cells(charges, debt) {
            Ok(cells) => {
                let settling = self.clone().settle_cells(cells, id, actual);
                Reply::pending(self.run_when_open(settling))
            }
            Err(error) => Reply::Ready(Err(error)),
        }
    }

    async fn settle_cells(
        self: Arc<Self>,
        cells: CellCharges,
        id: u128,
        actual: u64,
    ) -> Result<Option<SettledCharges>, StoreError> {
        let parts = match self.is_spread(&cells) {
            true => parts(&cells),
            false => vec![(0..cells.len()).collect()],
        };
        let settling = parts.iter().map(|part| self.settle_part(select(&cells, part), id, actual));
        let settled = join_all(settling).await;
        // Drop local state, because it may be from before the settlement.
        for cell in &cells {
            self.common.deny_cache.forget(cell.fingerprint);
        }
        let (mut all, mut is_open) = (vec![None; cells.len()], false);
        for (part, settled) in parts.iter().zip(settled) {
            if let Some(settled) = settled? {
                is_open = true;
                part.iter().zip(*settled).for_each(|(&place, settled)| all[place] = settled);
            }
        }
        Ok(is_open.then_some(all))
    }

    pub(super) async fn settle_part(
        &self,
        charges: CellCharges,
        id: u128,
        actual: u64,
    ) -> Result<Option<Box<SettledCharges>>, StoreError> {
        let worker = self.session().worker(&charges[0])?;
        let key = self.common.names.reservation(id, &charges);
        let (responder, reply) = Responder::new();
        worker.send_settlement(Settlement { key, charges, actual, responder })?;
        Ok(reply.await.unwrap_or_else(|_| Err(gone()))?.settled)
    }

    /// Returns the cells of a reservation, with this treatment of units that do not fit.
    fn reservable_cells(
        &self,
        charges: &[Charge<'_>],
        excess: impl Fn(&Charge<'_>) -> Excess,
    ) -> Result<CellCharges, StoreError> {
        let has_permits = charges.iter().any(|charge| charge.limit.algorithm().holds_permits());
        if self.common.layout.is_some() || has_permits || charges.is_empty() {
            return Err(StoreError::no_reservations());
        }
        let cells = charges.iter().map(|charge| {
            let cell = self.common.names.cell_charge(charge)?;
            Ok(CellCharge { excess: excess(charge), ..cell })
        });
        cells.collect()
    }

    fn is_spread(&self, cells: &CellCharges) -> bool {
        self.session().is_cluster() && !is_one_slot(cells)
    }
}
