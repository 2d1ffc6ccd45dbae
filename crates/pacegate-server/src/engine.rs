//! The limiter behind all listeners: in this process or over a store, with one set of calls.

use std::{slice, sync::Arc, time::Duration};

use pacegate::{
    Charge, CheckError, Decision, KeyRef, Limiter, Plan, PolicyName, PolicySet, Request,
    SharedLimiter, Stats, StoreError, Timestamp, Verdict,
};
use smallvec::SmallVec;
use tokio::time::{Instant, timeout_at};

use crate::blocks::Blocks;

/// Decides. In memory every call is ready at once; over a store it waits for that.
///
/// What is blocked is denied here, for every listener alike.
#[derive(Clone, Debug)]
pub(crate) struct Engine {
    limiter: Kind,
    blocks: Arc<Blocks>,
    /// When the caller needs an answer, whether or not the store has answered.
    deadline: Option<Instant>,
}

/// What to clear.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClearTarget<'a> {
    /// One policy, or [`PolicyName::AD_HOC`] for limits that came with requests.
    Policy(PolicyName),
    /// All policies of a domain.
    Domain(&'a str),
}

#[derive(Clone, Debug)]
enum Kind {
    /// State in this process.
    Memory(Limiter),
    /// State in a store that others share.
    Shared(SharedLimiter),
}

impl Engine {
    /// With the state in this process.
    pub(crate) fn memory(limiter: Limiter) -> Self {
        Self::over(Kind::Memory(limiter))
    }

    /// With the state in a store that others share.
    pub(crate) fn shared(limiter: SharedLimiter) -> Self {
        Self::over(Kind::Shared(limiter))
    }

    fn over(limiter: Kind) -> Self {
        Self { limiter, blocks: Arc::new(Blocks::new()), deadline: None }
    }

    /// The same engine for a caller that stops waiting at this instant: failure modes decide if the store has not
    /// answered by then.
    pub(crate) fn answering_by(&self, deadline: Instant) -> Self {
        Self { deadline: Some(deadline), ..self.clone() }
    }

    /// With another idea of the hour for its blocks, of which there are none then.
    #[cfg(test)]
    pub(crate) fn with_clock(self, clock: impl pacegate::Clock) -> Self {
        Self { blocks: Arc::new(Blocks::with_clock(Arc::new(clock))), ..self }
    }

    /// The keys that are denied by hand.
    pub(crate) fn blocks(&self) -> &Blocks {
        &self.blocks
    }

    /// The time as this process has it, which need not be that of a store.
    pub(crate) fn now(&self) -> Timestamp {
        self.blocks.now()
    }

    /// Whether decisions are waited for, so that it is better to ask for several at once.
    pub(crate) fn waits(&self) -> bool {
        matches!(self.limiter, Kind::Shared(_))
    }

    /// Charges a request to every policy that covers it, all or nothing.
    pub(crate) async fn check(&self, request: &Request<'_>) -> Result<Decision, CheckError> {
        if self.may_block(request) {
            let plan = self.plan(request);
            if let Some(verdict) = self.blocked(&plan.charges(request.units())?).await? {
                return Ok(verdict.decision);
            }
        }
        match &self.limiter {
            Kind::Memory(_) if request.id_bytes().is_some() => Err(no_ids()),
            Kind::Memory(limiter) => Ok(limiter.check_request(request)?),
            Kind::Shared(limiter) => limiter.check_request(request).await,
        }
    }

    /// Which limits apply to a request, to be decided: a block holds also where an override lifts the limit.
    pub(crate) fn plan(&self, request: &Request<'_>) -> Plan<'_> {
        let plan = self.plan_counted(request);
        match self.blocks.any() {
            true => plan.with_lifted(|policy, key| self.blocks.wait(policy, key).is_some()),
            false => plan,
        }
    }

    /// Which limits a request was counted by, for giving back.
    pub(crate) fn plan_counted(&self, request: &Request<'_>) -> Plan<'_> {
        match &self.limiter {
            Kind::Memory(limiter) => limiter.plan(request),
            Kind::Shared(limiter) => limiter.plan(request),
        }
    }

    /// Which limits a policy has for a key, without those of overrides, of which nothing is known then.
    pub(crate) fn plan_for(&self, policy: PolicyName, key: KeyRef<'_>) -> Plan<'_> {
        match &self.limiter {
            Kind::Memory(limiter) => limiter.plan_for(policy, key),
            Kind::Shared(limiter) => limiter.plan_for(policy, key),
        }
    }

    /// Everywhere that a policy may have counted a key.
    pub(crate) fn plan_for_all(&self, policy: PolicyName, key: KeyRef<'_>) -> Plan<'_> {
        match &self.limiter {
            Kind::Memory(limiter) => limiter.plan_for_all(policy, key),
            Kind::Shared(limiter) => limiter.plan_for_all(policy, key),
        }
    }

    /// Decides charges, all or nothing. With an id it counts once, however often it is asked, if the store can.
    pub(crate) async fn verdict(
        &self,
        charges: &[Charge<'_>],
        id: Option<&[u8]>,
    ) -> Result<Verdict, CheckError> {
        if self.blocks.any()
            && let Some(verdict) = self.blocked(charges).await?
        {
            return Ok(verdict);
        }
        self.unblocked(charges, id).await
    }

    async fn unblocked(
        &self,
        charges: &[Charge<'_>],
        id: Option<&[u8]>,
    ) -> Result<Verdict, CheckError> {
        let limiter = match (&self.limiter, id) {
            (Kind::Memory(_), Some(_)) => return Err(no_ids()),
            (Kind::Memory(limiter), None) => return Ok(limiter.verdict(charges)?),
            (Kind::Shared(limiter), _) => limiter,
        };
        let answer = match id {
            Some(id) => self.in_time(limiter.verdict_once(id, charges)).await,
            None => self.in_time(limiter.verdict(charges)).await,
        };
        let late = || Ok(limiter.verdict_without_store(charges, &StoreError::TimedOut)?);
        answer.unwrap_or_else(late)
    }

    /// The answer of the store; `None` if it has not come by the deadline.
    async fn in_time<T>(&self, answer: impl Future<Output = T>) -> Option<T> {
        match self.deadline {
            None => Some(answer.await),
            Some(deadline) => timeout_at(deadline, answer).await.ok(),
        }
    }

    /// Decides charges, each by itself, and adds the decisions to `decisions`.
    pub(crate) async fn check_each(
        &self,
        charges: &[Charge<'_>],
        decisions: &mut Vec<Result<Decision, CheckError>>,
    ) {
        if !self.blocks.any() {
            return self.check_unblocked(charges, decisions).await;
        }
        let mut rest = charges;
        while !rest.is_empty() {
            let free = rest.iter().take_while(|charge| self.wait(charge).is_none()).count();
            self.check_unblocked(&rest[..free], decisions).await;
            rest = &rest[free..];
            if let Some((first, others)) = rest.split_first() {
                decisions.push(Ok(self.refuse(first, self.wait(first))));
                rest = others;
            }
        }
    }

    async fn check_unblocked(
        &self,
        charges: &[Charge<'_>],
        decisions: &mut Vec<Result<Decision, CheckError>>,
    ) {
        match &self.limiter {
            Kind::Memory(limiter) => limiter.check_each(charges, decisions),
            Kind::Shared(limiter) => {
                let before = decisions.len();
                if self.in_time(limiter.check_each(charges, decisions)).await.is_none() {
                    decisions.truncate(before);
                    let late = |charge| {
                        let late = StoreError::TimedOut;
                        Ok(limiter.verdict_without_store(slice::from_ref(charge), &late)?.decision)
                    };
                    decisions.extend(charges.iter().map(late));
                }
            }
        }
    }

    /// Denies charges of which one at least is blocked. The others take nothing, and tell how they stand.
    async fn blocked(&self, charges: &[Charge<'_>]) -> Result<Option<Verdict>, CheckError> {
        let waits: SmallVec<[_; 4]> = charges.iter().map(|charge| self.wait(charge)).collect();
        if waits.iter().all(Option::is_none) {
            return Ok(None);
        }
        let free = charges.iter().zip(&waits).filter(|(_, wait)| wait.is_none());
        let free: SmallVec<[_; 4]> = free.map(|(charge, _)| charge.cost(0)).collect();
        let mut verdict = self.unblocked(&free, None).await?;
        let mut others = std::mem::take(&mut verdict.each).into_iter();
        let mut last = None;
        for (charge, wait) in charges.iter().zip(waits) {
            if wait.is_none() {
                verdict.each.extend(others.next());
                continue;
            }
            // The limits of a policy stand side by side, and are counted once.
            let subject = Some((charge.policy, charge.key));
            let counted = if last == subject { charge.cost(0) } else { *charge };
            last = subject;
            let denial = self.refuse(&counted, wait);
            if !is_longer(&verdict.decision, &denial) {
                verdict.decision = denial;
            }
            verdict.each.push(denial);
        }
        Ok(Some(verdict))
    }

    /// Whether a policy that has blocks covers a request, as far as that is soon told.
    fn may_block(&self, request: &Request<'_>) -> bool {
        self.blocks.any_of(|name| self.policies().covers(name, request))
    }

    fn wait(&self, charge: &Charge<'_>) -> Option<Duration> {
        self.blocks.wait(charge.policy, charge.key)
    }

    fn refuse(&self, charge: &Charge<'_>, wait: Option<Duration>) -> Decision {
        // A block that has ended since is over with the tick that comes.
        let wait = wait.unwrap_or(Duration::from_micros(1));
        match &self.limiter {
            Kind::Memory(limiter) => limiter.refuse(charge, Some(wait)),
            Kind::Shared(limiter) => limiter.refuse(charge, Some(wait)),
        }
    }

    /// Gives back up to the cost of each charge, and no more than is used.
    pub(crate) async fn refund(&self, charges: &[Charge<'_>]) -> Result<(), StoreError> {
        match &self.limiter {
            Kind::Memory(limiter) => limiter.refund_all(charges),
            Kind::Shared(limiter) => {
                self.in_time(limiter.refund_all(charges)).await.ok_or(StoreError::TimedOut)??;
            }
        }
        Ok(())
    }

    /// Forgets what was charged to the keys of charges.
    pub(crate) async fn reset(&self, charges: &[Charge<'_>]) -> Result<(), StoreError> {
        match &self.limiter {
            Kind::Memory(limiter) => limiter.reset_all(charges),
            Kind::Shared(limiter) => limiter.reset_all(charges).await?,
        }
        Ok(())
    }

    /// Forgets all keys of a policy or a domain, and returns how many there were.
    pub(crate) async fn clear(&self, target: ClearTarget<'_>) -> Result<u64, StoreError> {
        match (&self.limiter, target) {
            (Kind::Memory(limiter), ClearTarget::Policy(policy)) => {
                Ok(limiter.clear_policy(policy))
            }
            (Kind::Memory(limiter), ClearTarget::Domain(domain)) => {
                Ok(limiter.clear_domain(domain))
            }
            (Kind::Shared(limiter), ClearTarget::Policy(policy)) => {
                limiter.clear_policy(policy).await
            }
            (Kind::Shared(limiter), ClearTarget::Domain(domain)) => {
                limiter.clear_domain(domain).await
            }
        }
    }

    /// Returns the permits of charges.
    pub(crate) async fn release(&self, charges: &[Charge<'_>]) -> Result<(), StoreError> {
        match &self.limiter {
            Kind::Memory(limiter) => limiter.release_all(charges),
            Kind::Shared(limiter) => limiter.release_all(charges).await?,
        }
        Ok(())
    }

    /// Starts the life of the permits of charges anew. `false` if any was gone.
    pub(crate) async fn renew(&self, charges: &[Charge<'_>]) -> Result<bool, StoreError> {
        match &self.limiter {
            Kind::Memory(limiter) => Ok(limiter.renew_all(charges)),
            Kind::Shared(limiter) => limiter.renew_all(charges).await,
        }
    }

    /// The policies in force.
    pub(crate) fn policies(&self) -> &PolicySet {
        match &self.limiter {
            Kind::Memory(limiter) => limiter.policies(),
            Kind::Shared(limiter) => limiter.policies(),
        }
    }

    /// What has been decided so far, by this process.
    pub(crate) fn stats(&self) -> Stats {
        match &self.limiter {
            Kind::Memory(limiter) => limiter.stats(),
            Kind::Shared(limiter) => limiter.stats(),
        }
    }

    /// Other policies on the same state, statistics and blocks.
    pub(crate) fn with_policies(&self, policies: PolicySet) -> Self {
        let limiter = match &self.limiter {
            Kind::Memory(limiter) => Kind::Memory(limiter.with_policies(policies)),
            Kind::Shared(limiter) => Kind::Shared(limiter.with_policies(policies)),
        };
        Self { limiter, blocks: self.blocks.clone(), deadline: None }
    }
}

/// Whether the first denies, and for longer than the second.
fn is_longer(one: &Decision, other: &Decision) -> bool {
    let wait = |decision: &Decision| decision.retry_after().unwrap_or(Duration::MAX);
    !one.is_allowed() && wait(one) > wait(other)
}

fn no_ids() -> CheckError {
    let text = "the memory store takes no request ids: leave the id out, or use a Redis store";
    CheckError::Store(StoreError::Unsupported(text.to_owned()))
}

#[cfg(test)]
mod tests {
    use pacegate::{Limit, MemoryStore, Policy};

    use super::*;

    #[tokio::test]
    async fn blocks_deny_over_a_store_without_asking_it() {
        let policy = Policy::new(PolicyName::DEFAULT, [Limit::per_hour(2)]).per(["key"]);
        let store = MemoryStore::default();
        let policies = PolicySet::new([policy]).unwrap();
        let engine = Engine::shared(SharedLimiter::new(store.clone(), policies));
        let key = |key: &'static str| KeyRef::new(key.as_bytes());
        let hour = Duration::from_secs(3_600);
        engine.blocks().add(PolicyName::DEFAULT, key("a").to_buf(), hour).unwrap();
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
        assert_eq!(engine.blocks().lift(|_| true).len(), 1);
        assert_eq!(engine.check(&request).await.unwrap().remaining(), 1);
    }
}
