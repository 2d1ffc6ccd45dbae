//! All or nothing over several slots of a cluster, or for one key under several limits: charges one part after the
//! other, and returns the charged parts if a later one denies. Until then, other requests may be denied because of
//! units that are returned afterwards.

use std::{sync::Arc, time::Duration};

use futures_util::future::{join, join_all};
use pacegate::{Algorithm, StoreError, Timestamp, algorithm::Outcome};
use parking_lot::Mutex;
use tokio::{sync::oneshot, time::timeout};

use super::{Inner, gone};
use crate::{
    cell::{CellCharge, CellCharges},
    wire::Action,
};

/// The index of a charge that was taken, and the server's time.
type Charged = (usize, u64);

/// The results of a request so far.
#[derive(Debug)]
struct Progress {
    /// One for each charge.
    outcomes: Vec<Outcome>,
    denied: bool,
}

impl Inner {
    /// Opens the reservation in each part, if there is one. If a later part denies, it is cancelled in all of them.
    ///
    /// Runs as a separate task, so that units are returned even if the caller stops waiting. Once one part was denied,
    /// the request is denied, even if the outcomes of other parts do not arrive in time.
    pub(super) async fn charge_compensating(
        self: Arc<Self>,
        charges: CellCharges,
        reservation: Option<(u128, Duration)>,
    ) -> Result<Vec<Outcome>, StoreError> {
        let (deadline, runtime) = (self.common.deadline, self.runtime());
        // Dropped when the caller has the answer or stops waiting.
        let (caller, _waits) = oneshot::channel();
        // Unknown outcomes of a denied request report nothing left.
        let outcomes = vec![Outcome::admitted(0, Duration::ZERO); charges.len()];
        let progress = Arc::new(Mutex::new(Progress { outcomes, denied: false }));
        let charging = self.charge_parts((charges, reservation), progress.clone(), caller);
        let charging = runtime.spawn(charging);
        let failed = match timeout(deadline, charging).await {
            Ok(Ok(Ok(()))) => return Ok(progress.lock().outcomes.clone()),
            Ok(Ok(Err(error))) => return Err(error),
            Ok(Err(_)) => gone(),
            Err(_) => StoreError::TimedOut,
        };
        let progress = progress.lock();
        if progress.denied { Ok(progress.outcomes.clone()) } else { Err(failed) }
    }

    async fn charge_parts(
        self: Arc<Self>,
        (charges, reservation): (CellCharges, Option<(u128, Duration)>),
        progress: Arc<Mutex<Progress>>,
        caller: oneshot::Sender<()>,
    ) -> Result<(), StoreError> {
        let mut charged: Vec<Charged> = Vec::new();
        let is_permit = |place: usize| charges[place].holds_permits();
        let mut parts = parts(&charges).into_iter();
        for part in parts.by_ref() {
            let answered = match caller.is_closed() {
                true => Err(StoreError::TimedOut),
                false => self.charge_cells(select(&charges, &part), 1, reservation).await,
            };
            let answer = match answered {
                Ok(answer) => answer,
                Err(error) => {
                    if caller.is_closed() && may_have_run(&error) {
                        // The server may have taken these permits after the caller released them.
                        let permits = part.iter().filter(|&&place| is_permit(place));
                        charged.extend(permits.map(|&place| (place, 0)));
                    }
                    // The failure mode applies at once; the rest happens in the background.
                    let runtime = self.runtime();
                    runtime.spawn(async move {
                        self.compensate(&charges, &charged, reservation).await;
                    });
                    return Err(error);
                }
            };
            let admitted = |n: usize| answer.outcomes.get(n).is_some_and(Outcome::is_admitted);
            let fits = |(n, &place): (usize, &usize)| admitted(n) || !charges[place].enforced;
            let denied = !part.iter().enumerate().all(fits);
            progress.lock().record(&part, &answer.outcomes);
            if denied {
                progress.lock().deny(&charges, &charged);
                let rest: Vec<_> = parts.collect();
                let others = self.finish_denied(&charges, &rest, &progress);
                join(self.compensate(&charges, &charged, reservation), others).await;
                let charged: Vec<_> = charged.iter().map(|&(place, _)| vec![place]).collect();
                self.peek(&charges, &charged, &progress).await;
                return Ok(());
            }
            let is_recorded = |place: usize| charges[place].excess.is_recorded();
            let taken =
                part.iter().enumerate().filter(|&(n, &place)| admitted(n) && !is_recorded(place));
            charged.extend(taken.map(|(_, &place)| (place, answer.now)));
        }
        if caller.is_closed() {
            // The caller released its permits before the last of them was taken.
            charged.retain(|&(place, _)| is_permit(place));
            self.compensate(&charges, &charged, None).await;
        }
        Ok(())
    }

    /// Returns charged units as far as possible. Units that cannot be returned stay charged, which admits less, never
    /// more. Those of a window are returned to that window, if it still counts, and those of a log to the entry of the
    /// charge, so that a reservation that was made meanwhile keeps its own.
    ///
    /// A bucket gets all units back. The tokens that it refilled since would have come anyway, unless it was full.
    /// Withholding them would let denied requests use up a fast bucket.
    async fn compensate(
        &self,
        charges: &[CellCharge],
        charged: &[Charged],
        reservation: Option<(u128, Duration)>,
    ) {
        if let Some((id, _)) = reservation {
            let parts = parts(charges).into_iter();
            let each = parts.map(|part| self.cancel_part(charges, charged, part, id));
            return drop(join_all(each).await);
        }
        let each = charged.iter().map(|&(place, at)| self.return_charge(charges[place], at));
        join_all(each).await;
    }

    /// Cancels a reservation in one part. The settlement of a bucket returns only tokens that it has not refilled yet.
    /// So a part with a bucket is settled as used, and its units are returned like those of any denied request.
    async fn cancel_part(
        &self,
        charges: &[CellCharge],
        charged: &[Charged],
        part: Vec<usize>,
        id: u128,
    ) {
        let own = || charged.iter().filter(|(place, _)| part.contains(place));
        let Some(&(first, _)) = own().next() else { return };
        let cost = charges[first].cost;
        let is_bucket = |place: &usize| charges[*place].limit.algorithm().has_burst();
        let is_returned =
            part.iter().any(is_bucket) && part.iter().all(|&place| charges[place].cost == cost);
        let used = if is_returned { cost } else { 0 };
        let settled = self.settle_part(select(charges, &part), id, used).await;
        if is_returned && matches!(settled, Ok(Some(_))) {
            join_all(own().map(|&(place, at)| self.return_charge(charges[place], at))).await;
        }
    }

    /// Returns the units of a charge, which the server took at this time.
    async fn return_charge(&self, charge: CellCharge, charged_at: u64) {
        let action = match charge.limit.algorithm() {
            // A failed release is retried.
            algorithm if algorithm.holds_permits() => return drop(self.release(charge).await),
            Algorithm::TokenBucket => Action::Refund,
            _ => Action::Return { charged_at },
        };
        drop(self.update(charge, action).await);
    }

    /// Charges those of the other parts of a denied request whose excess is recorded, and peeks at the rest.
    async fn finish_denied(
        &self,
        charges: &[CellCharge],
        parts: &[Vec<usize>],
        progress: &Mutex<Progress>,
    ) {
        let is_recorded = |place: &usize| charges[*place].excess.is_recorded();
        let each = parts.iter().map(async |part| {
            let (recorded, others): (Vec<_>, Vec<_>) =
                part.iter().partition(|place| is_recorded(place));
            if !recorded.is_empty()
                && let Ok(answer) = self.charge_cells(select(charges, &recorded), 1, None).await
            {
                progress.lock().record(&recorded, &answer.outcomes);
            }
            if !others.is_empty() {
                self.peek(charges, &[others], progress).await;
            }
        });
        join_all(each).await;
    }

    /// Peeks at each part of a denied request, to complete its outcomes. Errors are ignored.
    async fn peek(&self, charges: &[CellCharge], parts: &[Vec<usize>], progress: &Mutex<Progress>) {
        let each = parts.iter().map(async |part| {
            if let Ok(answer) = self.charge_cells(select(charges, part), 0, None).await {
                progress.lock().record(part, &answer.outcomes);
            }
        });
        join_all(each).await;
    }
}

impl Progress {
    fn record(&mut self, part: &[usize], outcomes: &[Outcome]) {
        for (&place, &outcome) in part.iter().zip(outcomes) {
            self.outcomes[place] = outcome;
        }
    }

    /// Sets the outcomes of charged parts to those after the units are returned.
    fn deny(&mut self, charges: &[CellCharge], charged: &[Charged]) {
        self.denied = true;
        for &(place, _) in charged {
            let (charge, outcome) = (&charges[place], self.outcomes[place]);
            let remaining = outcome.remaining().saturating_add(charge.cost);
            let remaining = remaining.min(charge.limit.capacity());
            let untouched = Outcome::admitted(remaining, outcome.reset_after());
            let decided_at = outcome.decided_at().unwrap_or(Timestamp::EPOCH);
            self.outcomes[place] = untouched.with_decided_at(decided_at);
        }
    }
}

fn may_have_run(error: &StoreError) -> bool {
    use StoreError::{Failed, Interrupted, TimedOut};
    matches!(error, TimedOut | Interrupted(_) | Failed(_))
}

pub(super) fn select(charges: &[CellCharge], part: &[usize]) -> CellCharges {
    part.iter().map(|&place| charges[place]).collect()
}

/// Groups charges by slot. No part has one cell under different limits, because a batch decides a cell by one limit.
/// Parts without enforced charges come last.
pub(super) fn parts(charges: &[CellCharge]) -> Vec<Vec<usize>> {
    let mut parts: Vec<(u16, Vec<usize>)> = Vec::new();
    for (place, charge) in charges.iter().enumerate() {
        let slot = charge.cell.slot();
        let agrees = |&other: &usize| {
            charges[other].cell != charge.cell || charges[other].limit == charge.limit
        };
        let fits =
            |(other, part): &&mut (u16, Vec<usize>)| *other == slot && part.iter().all(agrees);
        match parts.iter_mut().find(fits) {
            Some((_, part)) => part.push(place),
            None => parts.push((slot, vec![place])),
        }
    }
    parts.sort_by_key(|(_, part)| !part.iter().any(|&place| charges[place].enforced));
    parts.into_iter().map(|(_, part)| part).collect()
}
