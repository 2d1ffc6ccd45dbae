//! Charges to counters of another limiter.

use std::sync::Arc;

use pacegate::{Charge, StoreError, algorithm::Outcome};

use super::{Inner, gone};
use crate::{
    lane::{Common, Lane},
    layout::{Act, Counters, Note, Spot},
    wire::Action,
};

impl Inner {
    pub(super) async fn charge_counters(
        &self,
        counters: &Counters,
        charges: &[Charge<'_>],
        id: Option<&[u8]>,
    ) -> Result<Vec<Outcome>, StoreError> {
        if id.is_some() {
            return Err(unsupported("takes no request ids: ask without one"));
        }
        let marker = &self.common.names.marker;
        let spots: Result<Vec<Spot>, _> =
            charges.iter().map(|charge| counters.spot(marker, charge)).collect();
        let spots = spots?;
        let pairs = || spots.iter().zip(charges);
        let claims = pairs().map(|(spot, charge)| spot.claim(charge.cost, charge.enforced));
        if let Some(outcomes) = self.common.denials.answer(claims) {
            self.common.counters.denied_locally.add(1);
            return Ok(outcomes);
        }
        let act = |(spot, charge): (Spot, &Charge<'_>)| (spot, Act::Charge(charge.cost));
        self.note(counters, spots.into_iter().zip(charges).map(act)).await
    }

    pub(super) async fn change_counter(
        self: Arc<Self>,
        counters: Arc<Counters>,
        spot: Spot,
        act: Act,
    ) -> Result<(), StoreError> {
        let mark = spot.mark;
        let noted = self.note(&counters, std::iter::once((spot, act))).await;
        self.common.denials.forget(mark);
        noted.map(drop)
    }

    /// Sends requests to the servers that have their counters: in order, and together where that is one server.
    async fn note(
        &self,
        counters: &Counters,
        acts: impl Iterator<Item = (Spot, Act)>,
    ) -> Result<Vec<Outcome>, StoreError> {
        let mut parts: Vec<(Arc<Lane>, Vec<Note>)> = Vec::new();
        let mut answers = Vec::new();
        for (spot, act) in acts {
            let (note, answered) = counters.note(spot, act);
            answers.push(answered);
            let lane = self.lane_of(|| note.slot(counters.rules()))?;
            match parts.iter_mut().find(|(other, _)| Arc::ptr_eq(other, &lane)) {
                Some((_, notes)) => notes.push(note),
                None => parts.push((lane, vec![note])),
            }
        }
        for (lane, notes) in parts {
            lane.note(notes)?;
        }
        let mut outcomes = Vec::with_capacity(answers.len());
        for answered in answers {
            outcomes.push(answered.await.unwrap_or_else(|_| Err(gone()))?);
        }
        Ok(outcomes)
    }
}

/// Which counter is to be changed, and how.
pub(super) fn change(
    common: &Common,
    counters: &Counters,
    charge: &Charge<'_>,
    action: Option<Action>,
) -> Result<(Spot, Act), StoreError> {
    let act = match action {
        Some(Action::Refund | Action::Return { .. }) => Act::Refund(charge.cost),
        Some(Action::Release | Action::Renew) => return Err(no_permits()),
        None => Act::Reset,
    };
    Ok((counters.spot(&common.names.marker, charge)?, act))
}

/// The names of keys are digests, from which the policy cannot be read.
pub(super) fn no_clear() -> StoreError {
    let reason = "keys on Redis are named by digests, which hide the policy: reset keys one by one, or \
                  rename the policy to start with full budgets";
    StoreError::Unsupported(reason.to_owned())
}

pub(super) fn no_permits() -> StoreError {
    unsupported("holds no permits: use Layout::native")
}

fn unsupported(what: &str) -> StoreError {
    StoreError::Unsupported(format!("a layout of another limiter {what}"))
}
