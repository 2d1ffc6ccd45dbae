//! All or nothing over several servers of a cluster, the weaker way: charge one after the other, and give back what was
//! charged if a later one denies. In between, others may be denied what is then given back.

use std::{sync::Arc, time::Duration};

use smallvec::SmallVec;
use tokio::time::timeout;
use tollgate::{StoreError, algorithm::Outcome};

use super::{Inner, Wants, gone};
use crate::{
    cell::{Kind, Want},
    wire::Action,
};

/// A want that was charged, and when by the server's time.
type Charged = (usize, u64);

impl Inner {
    /// The charge is a task of its own: what has to be given back is, also when nobody waits for the answer any more.
    pub(super) async fn charge_apart(
        self: Arc<Self>,
        wants: Wants,
    ) -> Result<Vec<Outcome>, StoreError> {
        let (deadline, runtime) = (self.common.deadline, self.runtime.clone());
        match timeout(deadline, runtime.spawn(self.charge_each_part(wants))).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) => Err(gone()),
            Err(_) => Err(StoreError::TimedOut),
        }
    }

    async fn charge_each_part(self: Arc<Self>, wants: Wants) -> Result<Vec<Outcome>, StoreError> {
        // What is not known of a request that is denied anyway: nothing is left.
        let mut outcomes = vec![Outcome::admitted(0, Duration::ZERO); wants.len()];
        let mut charged: Vec<Charged> = Vec::new();
        let mut denied = false;
        for group in groups(&wants) {
            let part: Wants = group.iter().map(|&place| wants[place]).collect();
            // Once denied, the others are only asked what they would say.
            let answer = match self.ask(part, u64::from(!denied), None).await {
                Ok(answer) => answer,
                Err(_) if denied => continue,
                Err(error) => {
                    self.give_back(&wants, &charged).await;
                    return Err(error);
                }
            };
            let admitted =
                |place: usize| answer.outcomes.get(place).is_some_and(Outcome::is_admitted);
            let fits =
                group.iter().enumerate().all(|(n, &place)| admitted(n) || !wants[place].enforced);
            if fits && !denied {
                let taken = group.iter().enumerate().filter(|(n, _)| admitted(*n));
                charged.extend(taken.map(|(_, &place)| (place, answer.now)));
            }
            denied |= !fits;
            for (&place, &outcome) in group.iter().zip(&answer.outcomes) {
                outcomes[place] = outcome;
            }
        }
        if denied {
            self.give_back(&wants, &charged).await;
            self.look_again(&wants, &charged, &mut outcomes).await;
        }
        Ok(outcomes)
    }

    /// As far as it can be: what cannot be given back stays charged, which admits less, never more. What was charged in
    /// a window that is over is not given back, for it would be taken from the next.
    async fn give_back(&self, wants: &[Want], charged: &[Charged]) {
        for &(place, now) in charged {
            let want = wants[place];
            let action = match want.kind {
                Kind::Concurrency => Action::Release,
                Kind::FixedWindow | Kind::SlidingWindow => Action::Return { part: 0, drawn: now },
                Kind::TokenBucket | Kind::SlidingLog => Action::Refund,
            };
            drop(self.amend(want, Some(action)).await);
        }
    }

    /// What was given back is reported untouched. That the request is denied stands, even if this cannot be told.
    async fn look_again(&self, wants: &[Want], charged: &[Charged], outcomes: &mut [Outcome]) {
        for &(place, _) in charged {
            if let Ok(answer) = self.ask(SmallVec::from_elem(wants[place], 1), 0, None).await {
                outcomes[place] = answer.outcomes[0];
            }
        }
    }
}

/// The places of wants that share a slot. Those on which nothing depends come last.
fn groups(wants: &[Want]) -> Vec<Vec<usize>> {
    let mut groups: Vec<(u16, Vec<usize>)> = Vec::new();
    for (place, want) in wants.iter().enumerate() {
        let slot = want.cell.slot();
        match groups.iter_mut().find(|(other, _)| *other == slot) {
            Some((_, group)) => group.push(place),
            None => groups.push((slot, vec![place])),
        }
    }
    groups.sort_by_key(|(_, group)| !group.iter().any(|&place| wants[place].enforced));
    groups.into_iter().map(|(_, group)| group).collect()
}
