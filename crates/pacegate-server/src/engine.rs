//! The limiter behind all listeners, with blocks and with the deadlines of callers.

use std::{
    pin::{Pin, pin},
    slice,
    sync::Arc,
    time::Duration,
};

use pacegate::{
    BatchDecision, Charge, Charges, CheckError, Decision, Excess, Grant, Limiter, Plan, PolicyName,
    PolicySet, Request, ReservationId, Reserved, SharedLimiter, SharedReservation, Stats,
    StoreError, Timestamp,
};
use pacegate_redis::RedisStore;
use smallvec::SmallVec;
use tokio::time::{Instant, timeout_at};

use crate::{blocks::Blocks, live::Recent};

/// A limiter, in memory or over a store, that denies blocked keys for every listener.
#[derive(Clone, Debug)]
pub(crate) struct Engine {
    limiter: SharedLimiter,
    pub(crate) blocks: Arc<Blocks>,
    pub(crate) recent: Arc<Recent>,
    /// The time at which the caller needs an answer, even if the store has not answered.
    deadline: Option<Instant>,
}

/// The keys to clear.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClearTarget<'a> {
    /// Those of one policy, or of [`PolicyName::INLINE`] for inline limits.
    Policy(PolicyName),
    /// Those of all policies of a domain.
    Domain(&'a str),
}

impl Engine {
    /// Creates an engine with its counters in memory.
    pub(crate) fn memory(limiter: Limiter) -> Self {
        Self::shared(limiter.into())
    }

    /// Creates an engine with its counters on Redis, and with blocks that all processes share.
    pub(crate) fn redis(limiter: SharedLimiter, store: RedisStore) -> Self {
        Self { blocks: Arc::new(Blocks::shared(store)), ..Self::shared(limiter) }
    }

    /// Creates an engine with its counters in the store of the limiter.
    pub(crate) fn shared(limiter: SharedLimiter) -> Self {
        let (blocks, recent) = (Arc::new(Blocks::new()), Arc::new(Recent::new()));
        Self { limiter, blocks, recent, deadline: None }
    }

    /// Returns the calls for explicit charges, without blocks and deadlines.
    pub(crate) fn charges(&self) -> Charges<'_, SharedLimiter> {
        self.limiter.charges()
    }

    /// Returns an engine for a caller that stops waiting at this instant. If the store has not answered by then,
    /// failure modes decide.
    pub(crate) fn answering_by(&self, deadline: Instant) -> Self {
        Self { deadline: Some(deadline), ..self.clone() }
    }

    /// Returns an engine without blocks, with this clock for new ones.
    #[cfg(test)]
    pub(crate) fn with_clock(self, clock: impl pacegate::Clock) -> Self {
        Self { blocks: Arc::new(Blocks::with_clock(Arc::new(clock))), ..self }
    }

    /// Returns the time by the clock of this process, which may differ from that of the store.
    pub(crate) fn now(&self) -> Timestamp {
        self.blocks.local_time()
    }

    /// Returns `true` if decisions wait for a store, so that several should be requested at once.
    pub(crate) fn waits(&self) -> bool {
        !self.limiter.is_local()
    }

    /// Charges a request to every policy that covers it, all or nothing.
    pub(crate) async fn check(&self, request: &Request<'_>) -> Result<Decision, CheckError> {
        let decision = self.check_request(request).await?;
        if self.recent.is_open()
            && let Ok(mut charges) = self.plan(request).charges(planned_cost(request))
        {
            if request.is_spent() {
                charges.iter_mut().for_each(|charge| charge.cost = request.units());
            }
            self.record(&charges, decision);
        }
        Ok(decision)
    }

    async fn check_request(&self, request: &Request<'_>) -> Result<Decision, CheckError> {
        if self.may_block(request) {
            let plan = self.plan(request);
            let mut charges = plan.charges(planned_cost(request))?;
            if request.is_spent() && charges.iter().any(|charge| self.wait(charge).is_some()) {
                // The limiter records the units and counts the request, so the denial is not counted again.
                self.limiter.check_request(request).await?;
                charges.iter_mut().for_each(|charge| charge.cost = 0);
            }
            if let Some(batch) = self.blocked(&charges, request.id_bytes()).await? {
                return Ok(batch.decision);
            }
        }
        self.limiter.check_request(request).await
    }

    /// Records the decision for each policy and key of a request.
    fn record(&self, charges: &[Charge<'_>], decision: Decision) {
        let now = self.now();
        // The limits of a policy are adjacent, and recorded once.
        for same in charges.chunk_by(|a, b| (a.policy, a.key) == (b.policy, b.key)) {
            let policy = self.policies().get(same[0].policy);
            let has_overrides = policy.is_some_and(|policy| !policy.overrides.is_empty());
            self.recent.record(now, same, decision, has_overrides);
        }
    }

    /// Returns the limits to decide a request by: a block applies even if an override lifts the limit.
    pub(crate) fn plan(&self, request: &Request<'_>) -> Plan<'_> {
        let plan = self.charges().plan(request);
        match self.blocks.any() {
            true => plan.with_lifted(|policy, key| self.blocks.wait(policy, key).is_some()),
            false => plan,
        }
    }

    /// Decides charges, all or nothing. With an id they count once, even if repeated, if the store supports ids.
    pub(crate) async fn check_batch(
        &self,
        charges: &[Charge<'_>],
        id: Option<&[u8]>,
    ) -> Result<BatchDecision, CheckError> {
        let batch = match self.blocked(charges, id).await? {
            Some(batch) => batch,
            None => self.unblocked(charges, id).await?,
        };
        if self.recent.is_open() {
            self.record(charges, batch.decision);
        }
        Ok(batch)
    }

    /// Charges as many units as all limits have, up to the cost of the charges.
    pub(crate) async fn check_up_to(
        &self,
        charges: &[Charge<'_>],
        id: Option<&[u8]>,
    ) -> Result<Grant, CheckError> {
        // Units that are not granted are not spent.
        let charges: Vec<_> = charges.iter().map(|charge| charge.excess(Excess::Reject)).collect();
        let grant = match self.blocked(&charges, id).await? {
            Some(batch) => Grant { units: 0, decision: batch.decision },
            None => self.charges().check_up_to(&charges, id).await?,
        };
        if self.recent.is_open() {
            self.record(&charges, grant.decision);
        }
        Ok(grant)
    }

    async fn unblocked(
        &self,
        charges: &[Charge<'_>],
        id: Option<&[u8]>,
    ) -> Result<BatchDecision, CheckError> {
        match self.in_time(pin!(self.charges().check_batch(charges, id))).await {
            Some(answer) => answer,
            None => Ok(self.charges().check_without_store(charges, &StoreError::TimedOut)?),
        }
    }

    /// Returns the answer of the store; `None` if there was none by the deadline. Takes a pinned future, because one
    /// that moves takes its size twice.
    async fn in_time<T>(&self, answer: Pin<&mut impl Future<Output = T>>) -> Option<T> {
        match self.deadline {
            None => Some(answer.await),
            Some(deadline) => timeout_at(deadline, answer).await.ok(),
        }
    }

    /// Decides each charge separately, and adds the decisions to `decisions`.
    pub(crate) async fn check_each(
        &self,
        charges: &[Charge<'_>],
        decisions: &mut Vec<Result<Decision, CheckError>>,
    ) {
        let before = decisions.len();
        match self.blocks.any() {
            true => Box::pin(self.check_some_blocked(charges, decisions)).await,
            false => self.check_unblocked(charges, decisions).await,
        }
        for (charge, decision) in charges.iter().zip(&decisions[before..]) {
            if !self.recent.is_open() {
                break;
            }
            if let Ok(decision) = decision {
                self.record(slice::from_ref(charge), *decision);
            }
        }
    }

    async fn check_some_blocked(
        &self,
        charges: &[Charge<'_>],
        decisions: &mut Vec<Result<Decision, CheckError>>,
    ) {
        let mut rest = charges;
        while !rest.is_empty() {
            let free = rest.iter().take_while(|charge| self.wait(charge).is_none()).count();
            self.check_unblocked(&rest[..free], decisions).await;
            rest = &rest[free..];
            if let Some((first, others)) = rest.split_first() {
                decisions.push(self.check_blocked(first).await);
                rest = others;
            }
        }
    }

    /// Denies a blocked charge, and records units that have already been spent.
    async fn check_blocked(&self, charge: &Charge<'_>) -> Result<Decision, CheckError> {
        let charges = slice::from_ref(charge);
        match self.blocked(charges, None).await? {
            Some(batch) => Ok(batch.decision),
            // The block has just ended.
            None => Ok(self.unblocked(charges, None).await?.decision),
        }
    }

    async fn check_unblocked(
        &self,
        charges: &[Charge<'_>],
        decisions: &mut Vec<Result<Decision, CheckError>>,
    ) {
        let before = decisions.len();
        let checks = self.charges().check_each(charges, decisions);
        if self.in_time(pin!(checks)).await.is_none() {
            decisions.truncate(before);
            decisions.extend(charges.iter().map(|charge| {
                let charge = slice::from_ref(charge);
                let late = self.charges().check_without_store(charge, &StoreError::TimedOut)?;
                Ok(late.decision)
            }));
        }
    }

    /// Denies charges of which at least one is blocked, and returns `None` if none is. The others are peeked, and take
    /// nothing. Units that have already been spent are recorded.
    async fn blocked(
        &self,
        charges: &[Charge<'_>],
        id: Option<&[u8]>,
    ) -> Result<Option<BatchDecision>, CheckError> {
        if !self.blocks.any() {
            return Ok(None);
        }
        let waits: SmallVec<[_; 4]> = charges.iter().map(|charge| self.wait(charge)).collect();
        if waits.iter().all(Option::is_none) {
            return Ok(None);
        }
        let sent: SmallVec<[_; 4]> = charges
            .iter()
            .zip(&waits)
            .filter(|(charge, wait)| wait.is_none() || is_spent(charge))
            .map(|(charge, _)| if is_spent(charge) { *charge } else { charge.cost(0) })
            .collect();
        let mut batch = self.unblocked(&sent, id).await?;
        let mut others = std::mem::take(&mut batch.each).into_iter();
        let mut last = None;
        for (charge, wait) in charges.iter().zip(waits) {
            let other = (wait.is_none() || is_spent(charge)).then(|| others.next()).flatten();
            let Some(wait) = wait else {
                batch.each.extend(other);
                continue;
            };
            // The limits of a policy are adjacent, and recorded once. The limiter has counted spent units.
            let subject = Some((charge.policy, charge.key));
            let is_counted = last == subject || is_spent(charge);
            let counted = if is_counted { charge.cost(0) } else { *charge };
            last = subject;
            let denial = self.charges().deny(&counted, Some(wait));
            if !is_longer(&batch.decision, &denial) {
                batch.decision = denial;
            }
            batch.each.push(denial);
        }
        Ok(Some(batch))
    }

    /// Returns `false` if no policy with blocks applies to a request, as far as can be determined quickly.
    fn may_block(&self, request: &Request<'_>) -> bool {
        self.blocks.any_of(|name| self.policies().covers(name, request))
    }

    fn wait(&self, charge: &Charge<'_>) -> Option<Duration> {
        self.blocks.wait(charge.policy, charge.key)
    }

    /// Reserves the costs of charges, all or nothing.
    pub(crate) async fn reserve(
        &self,
        charges: &[Charge<'_>],
        ttl: Duration,
    ) -> Result<Reserved<SharedReservation>, CheckError> {
        let blocked = match self.blocks.any() {
            true => {
                // An estimate is not spent yet, so it is not recorded.
                let charges = charges.iter().map(|charge| charge.excess(Excess::Reject));
                self.blocked(&charges.collect::<SmallVec<[_; 4]>>(), None).await?
            }
            false => None,
        };
        let reserved = match blocked {
            Some(batch) => Reserved { decision: batch.decision, reservation: None },
            None => self.charges().reserve(charges, ttl).await?,
        };
        if self.recent.is_open() {
            self.record(charges, reserved.decision);
        }
        Ok(reserved)
    }

    /// Ends a reservation. Returns `false` if it was not open.
    pub(crate) async fn settle(&self, id: &ReservationId, used: u64) -> Result<bool, StoreError> {
        self.limiter.settle(id, used).await
    }

    /// Returns up to the cost of each charge, and no more than is used.
    pub(crate) async fn refund(&self, charges: &[Charge<'_>]) -> Result<(), StoreError> {
        let refund = pin!(self.charges().refund(charges));
        self.in_time(refund).await.unwrap_or(Err(StoreError::TimedOut))
    }

    /// Removes all keys of a policy or a domain, and returns their number.
    pub(crate) async fn clear(&self, target: ClearTarget<'_>) -> Result<u64, StoreError> {
        match target {
            ClearTarget::Policy(policy) => self.limiter.clear_policy(policy).await,
            ClearTarget::Domain(domain) => self.limiter.clear_domain(domain).await,
        }
    }

    /// Returns the policies.
    pub(crate) fn policies(&self) -> &PolicySet {
        self.limiter.policies()
    }

    /// Returns the statistics of this process.
    pub(crate) fn stats(&self) -> Stats {
        self.limiter.stats()
    }

    /// Returns an engine with other policies on the same counters, statistics and blocks.
    pub(crate) fn with_policies(&self, policies: PolicySet) -> Self {
        let limiter = self.limiter.with_policies(policies);
        Self { limiter, deadline: None, ..self.clone() }
    }
}

/// Returns `true` if the units are recorded even if they exceed the limit, because they have already been spent.
fn is_spent(charge: &Charge<'_>) -> bool {
    charge.cost > 0 && matches!(charge.excess.under(&charge.limit), Excess::Debt { .. })
}

/// Returns the cost to plan a request with: at most 1 if it is already spent, because it may exceed a limit.
fn planned_cost(request: &Request<'_>) -> u64 {
    let units = request.units();
    if request.is_spent() { units.min(1) } else { units }
}

/// Returns `true` if the first decision denies for longer than the second.
fn is_longer(one: &Decision, other: &Decision) -> bool {
    let wait = |decision: &Decision| decision.retry_after().unwrap_or(Duration::MAX);
    !one.is_allowed() && wait(one) > wait(other)
}

#[cfg(test)]
mod tests {
    use pacegate::{KeyRef, Limit, MemoryStore, Policy};

    use super::*;

    #[tokio::test]
    async fn blocks_deny_over_a_store_without_asking_it() {
        let policy = Policy::new(PolicyName::DEFAULT, [Limit::per_hour(2)]).per(["key"]);
        let store = MemoryStore::default();
        let policies = PolicySet::new([policy]).unwrap();
        let engine = Engine::shared(SharedLimiter::new(store.clone(), policies));
        let key = |key: &'static str| KeyRef::new(key.as_bytes());
        let hour = Duration::from_secs(3_600);
        engine.blocks.add(PolicyName::DEFAULT, key("a").to_buf(), hour).await.unwrap();
        let request = Request::new().with("key", "a");
        assert_eq!(engine.check(&request).await.unwrap().source(), pacegate::Source::Blocked);
        let charge = |name| Charge::new(PolicyName::DEFAULT, key(name), Limit::per_hour(2));
        let mut decisions = Vec::new();
        engine.check_each(&[charge("a"), charge("b"), charge("a")], &mut decisions).await;
        let allowed = decisions.iter().map(|one| one.as_ref().unwrap().is_allowed());
        assert_eq!(allowed.collect::<Vec<_>>(), [false, true, false]);
        let stats = engine.stats();
        assert_eq!((stats.policies[0].allowed, stats.policies[0].denied), (1, 3));
        assert_eq!(store.usage().keys, 1, "of b alone");
        assert_eq!(engine.blocks.lift(|_| true).await.unwrap().len(), 1);
        assert_eq!(engine.check(&request).await.unwrap().remaining(), 1);
    }
}
