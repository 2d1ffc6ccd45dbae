//! The one handle: [`Limiter`] in this process, [`SharedLimiter`] over any store.

mod builder;
mod charges;
mod clear;
mod core;
mod failure;
mod join;
mod joined;
mod path;
mod permit;
mod shared;
mod shared_permit;
mod turnstile;
mod unanswered;
mod waiting;

use std::{ops::Range, sync::Arc};

use arrayvec::ArrayVec;

use crate::{
    Charge, CostError, Decision, Key, KeyRef, Limit, MemoryStore, PolicySet, Request, Stats,
    algorithm::Outcome,
    policy::{Planned, PolicyName},
    stats::Event,
    store::memory::{
        BATCH, Slot,
        identity::{Identity, Scope},
    },
};

pub use builder::{BuildError, LimiterBuilder, SharedLimiterBuilder};
pub use charges::{Plan, Verdict};
pub use permit::{Admission, Permit};
pub use shared::{CheckError, SharedLimiter};
pub use shared_permit::SharedPermit;
pub use waiting::WaitError;

use self::{
    core::Core,
    path::{Items, Path},
    turnstile::Turnstile,
};

/// Decides whether a request may pass now, with the state in this process.
///
/// Cheap to clone; clones share everything. Nothing here blocks, needs a runtime or fails: a denial is a value.
///
/// ```
/// use pacegate::Limiter;
///
/// let limiter = Limiter::memory("2/minute".parse()?);
/// assert!(limiter.check("alice").is_allowed());
/// assert!(limiter.check("alice").is_allowed());
/// assert!(!limiter.check("alice").is_allowed());
/// assert!(limiter.check("bob").is_allowed());
/// # Ok::<(), pacegate::ParseLimitError>(())
/// ```
///
/// To share budgets between processes, see [`SharedLimiter`].
#[derive(Clone, Debug)]
pub struct Limiter {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    core: Core,
    /// The targets of a set that is one plain policy by key: nothing to match.
    direct: Option<Range<usize>>,
    /// A direct set of one limit with a fixed-size state: nothing to fold either.
    single: Option<Single>,
}

#[derive(Clone, Copy, Debug)]
struct Single {
    name: PolicyName,
    limit: Limit,
    scope: Scope,
}

impl Limiter {
    /// A limiter that gives each key this limit, with the defaults: at most a million keys, the system's clock.
    pub fn memory(limit: Limit) -> Self {
        let policies = PolicySet::of_limit(limit);
        Self::new(Core::new(Path::new(policies), MemoryStore::default(), Turnstile::default()))
    }

    /// A limiter with several limits, policies, a clock or a bound of your choice.
    pub fn builder() -> LimiterBuilder {
        LimiterBuilder::default()
    }

    fn new(core: Core) -> Self {
        let direct = core.path.policies.direct();
        let single = match (core.path.policies.targets(), &*core.scopes, &direct) {
            ([target], [scope], Some(_)) if !target.limit.algorithm().keeps_log() => {
                Some(Single { name: target.name, limit: target.limit, scope: *scope })
            }
            _ => None,
        };
        Self { inner: Arc::new(Inner { core, direct, single }) }
    }

    /// Charges one unit to `key` if every limit has room, and to none of them otherwise.
    ///
    /// On a [concurrency](crate::Algorithm::Concurrency) limit this takes a unit that cannot be released: it ends with
    /// the period. Use `acquire` there.
    #[inline]
    pub fn check(&self, key: impl Key) -> Decision {
        key.with(|key| match &self.inner.single {
            Some(single) => self.inner.check_single(single, key),
            None => self.inner.check_key(key, 1).unwrap_or_else(|error| {
                unreachable!("one unit fits every limit: {error}");
            }),
        })
    }

    /// Charges `cost` units. An error is a cost that could never be admitted; nothing was charged then.
    pub fn check_cost(&self, key: impl Key, cost: u64) -> Result<Decision, CostError> {
        key.with(|key| self.inner.check_key(key, cost))
    }

    /// Tells whether one unit would be admitted, and what remains, without charging anything.
    pub fn peek(&self, key: impl Key) -> Decision {
        key.with(|key| {
            self.inner.check_key(key, 0).unwrap_or_else(|error| {
                unreachable!("nothing fits every limit: {error}");
            })
        })
    }

    /// Charges one unit to each key, one decision after the other, as [`Limiter::check`] would.
    ///
    /// Much faster than that for many keys: all are looked up together, so their cache misses overlap, and the clock is
    /// read once.
    pub fn check_many<K: Key>(&self, keys: &[K]) -> Vec<Decision> {
        let mut decisions = Vec::with_capacity(keys.len());
        self.check_many_into(keys, &mut decisions);
        decisions
    }

    /// [`Limiter::check_many`] for those who do it often: adds the decisions to a vector that can be used again.
    pub fn check_many_into<K: Key>(&self, keys: &[K], decisions: &mut Vec<Decision>) {
        match &self.inner.single {
            Some(single) => {
                // Now, and not under the locks.
                decisions.reserve(keys.len());
                for keys in keys.chunks(BATCH) {
                    self.inner.check_batch(single, keys, decisions);
                }
            }
            None => decisions.extend(keys.iter().map(|key| self.check(key))),
        }
    }

    /// Charges a request to every policy that covers it, all or nothing. Its [id](Request::id), if any, is ignored.
    pub fn check_request(&self, request: &Request<'_>) -> Result<Decision, CostError> {
        let plan = self.inner.core.path.policies.plan(request);
        self.inner.charge(items(&plan), request.units(), 0)
    }

    /// Charges several keys under several limits, all or nothing. [`Limiter::verdict`] tells more.
    ///
    /// ```
    /// use pacegate::{Charge, Limit, Limiter};
    ///
    /// let limiter = Limiter::memory(Limit::per_second(1));
    /// let charges = [
    ///     Charge::new("per-ip".parse()?, "203.0.113.7", Limit::per_minute(100)),
    ///     Charge::new("per-user".parse()?, "alice", "20/hour sliding-log".parse()?).cost(15),
    /// ];
    /// assert_eq!(limiter.check_all(&charges)?.remaining(), 5);
    /// let denied = limiter.check_all(&charges)?;
    /// assert_eq!(denied.policy(), Some("per-user".parse()?), "and the address is charged nothing");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn check_all(&self, charges: &[Charge<'_>]) -> Result<Decision, CostError> {
        Ok(self.verdict(charges)?.decision)
    }

    /// Gives back up to `cost` units, and no more than are used.
    pub fn refund(&self, key: impl Key, cost: u64) {
        key.with(|key| self.inner.each_slot(key, cost, |slot| self.inner.core.memory.refund(slot)));
    }

    /// Forgets what was charged to a key.
    pub fn reset(&self, key: impl Key) {
        key.with(|key| self.inner.each_slot(key, 0, |slot| self.inner.core.memory.reset(slot)));
    }

    /// The same limiter with another limit for each key, on the same state. See [`Limiter::with_policies`].
    pub fn with_limit(&self, limit: Limit) -> Self {
        self.with_policies(PolicySet::of_limit(limit))
    }

    /// A limiter with other policies on the same state and statistics.
    ///
    /// What has been used carries over to a policy of the same name whose algorithm and period are the same: a new
    /// amount or burst holds from the next decision on. A limit with another algorithm or period starts afresh. Over
    /// the change, no more is admitted than the bounds of the old and the new limit allow together. What a token
    /// bucket owes may be forgiven once it would have been paid at the old rate.
    ///
    /// Both limiters share the counters. If both are used, they admit together no more than a limit with the larger
    /// burst and the larger amount of the two would.
    pub fn with_policies(&self, policies: PolicySet) -> Self {
        Self::new(self.inner.core.succeeded_by(policies))
    }

    /// The policies in force.
    pub fn policies(&self) -> &PolicySet {
        &self.inner.core.path.policies
    }

    /// What has been decided so far.
    pub fn stats(&self) -> Stats {
        self.inner.core.stats()
    }

    /// Where the state is.
    pub fn store(&self) -> &MemoryStore {
        &self.inner.core.memory
    }
}

impl Inner {
    #[inline]
    fn check_single(&self, single: &Single, key: KeyRef<'_>) -> Decision {
        let slot = single.slot(self.core.memory.identity(&single.scope, key));
        let (outcome, now) = self.core.memory.charge_cell(&slot);
        self.answer_single(single, key, outcome, now)
    }

    fn check_batch<K: Key>(&self, single: &Single, keys: &[K], decisions: &mut Vec<Decision>) {
        let mut ids = ArrayVec::<_, BATCH>::new();
        for key in keys {
            key.with(|key| ids.push(self.core.memory.identity(&single.scope, key)));
        }
        let tally = self.core.path.meter.tally();
        let mut looks = ArrayVec::<_, BATCH>::new();
        let slot = |_, id| single.slot(id);
        self.core.memory.charge_each(&ids, slot, |place, outcome, now| {
            if let Some(weight) = tally.add(0, event(outcome), now) {
                looks.push((place, event(outcome), now, weight));
            }
            decisions.push(Decision::of(single.name, single.limit, outcome));
        });
        // Only now that the locks are free again: what a key does to be read is not ours to know.
        for (place, event, now, weight) in looks {
            keys[place].with(|key| self.core.path.meter.look((0, event), key, now, weight));
        }
    }

    #[inline]
    fn answer_single(
        &self,
        single: &Single,
        key: KeyRef<'_>,
        outcome: Outcome,
        now: u64,
    ) -> Decision {
        self.core.path.meter.count(0, event(outcome), key, now);
        Decision::of(single.name, single.limit, outcome)
    }

    fn check_key(&self, key: KeyRef<'_>, cost: u64) -> Result<Decision, CostError> {
        self.with_items(key, |items| self.charge(items, cost, 0))
    }

    /// The limits that apply to a request that is only a key.
    fn with_items<R>(&self, key: KeyRef<'_>, then: impl FnOnce(Items<'_>) -> R) -> R {
        match &self.direct {
            Some(direct) => then(direct.clone().map(|target| (target, key)).collect()),
            None => {
                let plan = self.core.path.plan_key(key);
                then(items(&plan))
            }
        }
    }

    fn charge(&self, items: Items<'_>, cost: u64, permit: u128) -> Result<Decision, CostError> {
        let fit = self.core.path.fit(items, cost)?;
        let answered = self.core.ask(&fit, permit);
        self.core.path.count(&fit, &answered);
        Ok(answered.decision)
    }

    /// Gives something back to each limit of a key, and lets whoever waits for it look again.
    fn each_slot(&self, key: KeyRef<'_>, cost: u64, mut give_back: impl FnMut(&Slot<'_>)) {
        self.with_items(key, |items| {
            items.iter().for_each(|&item| give_back(&self.core.slot(item, cost, 0)));
            self.core.nudge(self.core.queue_of(&items));
        });
    }
}

impl Single {
    #[inline]
    fn slot(&self, id: Identity) -> Slot<'_> {
        Slot { scope: &self.scope, id, limit: &self.limit, cost: 1, permit: 0, enforced: true }
    }
}

fn event(outcome: Outcome) -> Event {
    if outcome.is_admitted() { Event::Allowed } else { Event::Denied }
}

fn items(plan: &[Planned]) -> Items<'_> {
    plan.iter()
        .flat_map(|planned| planned.targets.clone().map(|target| (target, planned.key.as_ref())))
        .collect()
}
