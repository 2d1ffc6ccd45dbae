//! Charges to counters of another limiter.

use std::sync::Arc;

use pacegate::{
    Charge, Key, KeyRef, Limit, Outcomes, PolicyName, Reply, StoreError, algorithm::Outcome,
};

use super::{Inner, RedisStore, gone};
use crate::{
    lane::{Common, Lane},
    layout::{Act, Counters, Counting, Note, Spot},
    wire::Action,
};

/// The largest count that [`Inner::count`] returns, for a window and for a log.
const MAX_COUNT: u64 = 1_000_000_000;
const MAX_LOGGED: u64 = 10_000;

impl RedisStore {
    /// Reads the counter of a key in a [layout](crate::Layout) of another limiter. Where the layout counts denied
    /// requests, it may be above the limit. At most a billion, and 10,000 in a log.
    ///
    /// Denials that the deny cache answers are not counted: turn it off with
    /// [`deny_cache(0)`](crate::RedisStoreBuilder::deny_cache) if all should be.
    ///
    /// # Errors
    ///
    /// [`StoreError::Unsupported`] with the native layout, and for a limit that the layout cannot count.
    pub async fn count(&self, key: impl Key, limit: Limit) -> Result<u64, StoreError> {
        let key = key.with(|key| key.to_buf());
        self.inner.count(key.as_ref(), limit).await
    }
}

impl Inner {
    pub(super) fn supports(&self, limits: &[Limit], leased: bool) -> Result<(), StoreError> {
        let Some(counters) = &self.common.layout else { return Ok(()) };
        let rules = counters.rules();
        if rules.counting() == Counting::Pair && self.session().is_cluster() {
            return Err(two_slots());
        }
        rules.supports(limits, leased)
    }

    pub(super) fn charge_counters<'a>(
        &'a self,
        counters: &'a Counters,
        charges: &[Charge<'_>],
        id: Option<&[u8]>,
    ) -> Reply<'a, Outcomes> {
        if id.is_some() {
            return Reply::Ready(Err(unsupported("takes no request ids: ask without one")));
        }
        let marker = &self.common.names.marker;
        let spots: Result<Vec<Spot>, _> =
            charges.iter().map(|charge| counters.spot(marker, charge)).collect();
        let spots = match spots {
            Ok(spots) => spots,
            Err(error) => return Reply::Ready(Err(error)),
        };
        let pairs = || spots.iter().zip(charges);
        let claims = pairs().map(|(spot, charge)| spot.claim(charge.cost, charge.enforced));
        if let Some(outcomes) = self.common.denials.answer(claims) {
            self.common.counters.denied_locally.add(1);
            return Reply::Ready(Ok(outcomes.into()));
        }
        let act = |(spot, charge): (Spot, &Charge<'_>)| (spot, Act::Charge(charge.cost));
        let acts: Vec<_> = spots.into_iter().zip(charges).map(act).collect();
        Reply::pending(async move {
            self.opened().await;
            self.note(counters, acts.into_iter()).await.map(Outcomes::from)
        })
    }

    /// What a counter holds, up to the largest amount of its algorithm.
    async fn count(&self, key: KeyRef<'_>, limit: Limit) -> Result<u64, StoreError> {
        let Some(counters) = &self.common.layout else {
            return Err(StoreError::Unsupported(
                "only the layouts of other limiters count".to_owned(),
            ));
        };
        let most = |amount| Limit::new(amount, limit.period())?.with_algorithm(limit.algorithm());
        let most = most(MAX_COUNT).or_else(|_| most(MAX_LOGGED)).unwrap_or(limit);
        let peek = Charge::new(PolicyName::DEFAULT, key, most).cost(0);
        let outcomes = self.charge_counters(counters, &[peek], None).await?;
        let remaining = outcomes.first().map_or(0, Outcome::remaining);
        Ok(most.amount().saturating_sub(remaining))
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
            let lane = self.session().lane_of(|| note.slot(counters.rules()))?;
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

fn two_slots() -> StoreError {
    unsupported("that counts two windows of a key cannot be used on a cluster: use a single server")
}

fn unsupported(what: &str) -> StoreError {
    StoreError::Unsupported(format!("a layout of another limiter {what}"))
}
