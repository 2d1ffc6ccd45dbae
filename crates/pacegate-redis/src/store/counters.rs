//! Charges to counters in the layout of another rate limiter.

use std::sync::Arc;

use pacegate::{
    Charge, Excess, Key, KeyRef, Limit, Outcomes, PolicyName, Reply, StoreError, algorithm::Outcome,
};

use super::{Inner, RedisStore, gone};
use crate::{
    layout::{CounterKey, CounterOp, CounterRequest, Counting, LayoutState},
    wire::Action,
    worker::NodeWorker,
};

/// Maximum result of [`RedisStore::count`] for a window.
const MAX_COUNT: u64 = 1_000_000_000;
/// Maximum result of [`RedisStore::count`] for a log.
const MAX_LOGGED: u64 = 10_000;

impl RedisStore {
    /// Returns the count of a key in the [layout](crate::Layout) of another rate limiter. The count may exceed the
    /// limit, because some layouts also count denied requests. Maximum: a billion, or 10,000 for a log.
    ///
    /// Requests that the deny cache denies are not counted. To count them, turn the cache off with
    /// [`deny_cache(0)`](crate::RedisStoreBuilder::deny_cache).
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
        let Some(state) = &self.common.layout else { return Ok(()) };
        let rules = state.rules();
        if rules.counting() == Counting::Pair && self.session().is_cluster() {
            return Err(unsupported(
                "counts two windows per key, which does not work on a cluster: use a single server",
            ));
        }
        rules.supports(limits, leased)
    }

    pub(super) fn charge_counters<'a>(
        &'a self,
        state: &'a LayoutState,
        charges: &[Charge<'_>],
        id: Option<&[u8]>,
    ) -> Reply<'a, Outcomes> {
        if id.is_some() {
            return Reply::Ready(Err(unsupported("does not support request ids")));
        }
        if charges.iter().any(|charge| matches!(charge.excess, Excess::Debt { .. })) {
            return Reply::Ready(Err(unsupported("cannot record debt: use Layout::native")));
        }
        let fingerprinter = &self.common.names.fingerprinter;
        let keys: Result<Vec<_>, _> =
            charges.iter().map(|charge| state.key(fingerprinter, charge)).collect();
        let keys = match keys {
            Ok(keys) => keys,
            Err(error) => return Reply::Ready(Err(error)),
        };
        let pairs = keys.iter().map(|key| key.fingerprint).zip(charges);
        let is_recorded = charges.iter().any(|charge| charge.excess.is_recorded());
        if !is_recorded && let Some(outcomes) = self.common.deny_cache.answer(pairs) {
            self.common.totals.denied_locally.add(1);
            return Reply::Ready(Ok(outcomes.into()));
        }
        let ops = charges.iter().map(CounterOp::of);
        let requests: Vec<_> = keys.into_iter().zip(ops).collect();
        Reply::pending(async move {
            self.opened().await;
            self.send_counters(state, requests.into_iter()).await.map(Outcomes::from)
        })
    }

    async fn count(&self, key: KeyRef<'_>, limit: Limit) -> Result<u64, StoreError> {
        let Some(state) = &self.common.layout else {
            let problem = "count needs the layout of another limiter, not Layout::native";
            return Err(StoreError::Unsupported(problem.to_owned()));
        };
        let most = |amount| Limit::new(amount, limit.period())?.with_algorithm(limit.algorithm());
        let most = most(MAX_COUNT).or_else(|_| most(MAX_LOGGED)).unwrap_or(limit);
        let peek = Charge::new(PolicyName::DEFAULT, key, most).cost(0);
        let outcomes = self.charge_counters(state, &[peek], None).await?;
        let remaining = outcomes.first().map_or(0, Outcome::remaining);
        Ok(most.amount().saturating_sub(remaining))
    }

    pub(super) async fn update_counter(
        self: Arc<Self>,
        state: Arc<LayoutState>,
        key: CounterKey,
        op: CounterOp,
    ) -> Result<(), StoreError> {
        let fingerprint = key.fingerprint;
        let updated = self.send_counters(&state, std::iter::once((key, op))).await;
        self.common.deny_cache.forget(fingerprint);
        updated.map(drop)
    }

    /// Sends each request to the server of its counter. Requests for the same server are sent together, in order.
    async fn send_counters(
        &self,
        state: &LayoutState,
        ops: impl Iterator<Item = (CounterKey, CounterOp)>,
    ) -> Result<Vec<Outcome>, StoreError> {
        let mut parts: Vec<(Arc<NodeWorker>, Vec<CounterRequest>)> = Vec::new();
        let mut replies = Vec::new();
        for (key, op) in ops {
            let (request, reply) = state.request(key, op);
            replies.push(reply);
            let worker = self.session().worker_of(|| request.slot(state.rules()))?;
            match parts.iter_mut().find(|(other, _)| Arc::ptr_eq(other, &worker)) {
                Some((_, requests)) => requests.push(request),
                None => parts.push((worker, vec![request])),
            }
        }
        for (worker, requests) in parts {
            worker.send_counters(requests)?;
        }
        let mut outcomes = Vec::with_capacity(replies.len());
        for reply in replies {
            outcomes.extend(reply.await.unwrap_or_else(|_| Err(gone()))?.outcomes);
        }
        Ok(outcomes)
    }
}

/// Converts an action to the operation on a counter. Fails for actions on permits, which counters do not have.
pub(super) fn operation(charge: &Charge<'_>, action: Action) -> Result<CounterOp, StoreError> {
    match action {
        Action::Refund | Action::Return { .. } => Ok(CounterOp::Refund(charge.cost)),
        Action::Reset => Ok(CounterOp::Reset),
        Action::Release | Action::Renew | Action::Claim { .. } => Err(no_permits()),
    }
}

pub(super) fn no_clear() -> StoreError {
    let reason = "key names on Redis are digests, which hide the policy: reset keys one by one, or \
                  rename the policy to start with full budgets";
    StoreError::Unsupported(reason.to_owned())
}

pub(super) fn no_permits() -> StoreError {
    unsupported("has no permits: use Layout::native")
}

fn unsupported(problem: &str) -> StoreError {
    StoreError::Unsupported(format!("the configured layout {problem}"))
}
