//! The real engine in virtual time: what it decides about each request, and what that adds up to.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use tollgate::{
    Algorithm, Clock, Decision, KeyRef, Limiter, Policy, PolicyName, PolicySet, Request, Source,
    Timestamp, policy::Mode,
};

use super::{
    suggest::Ceiling,
    tally::{Event, PolicyTally, Timeline},
};

/// Policies that are tried on traffic, and what came of it.
#[derive(Debug)]
pub(crate) struct Variant {
    /// What to call it: a file, or a limit.
    pub(crate) name: String,
    limiter: Limiter,
    clock: VirtualClock,
    places: HashMap<PolicyName, usize, foldhash::fast::RandomState>,
    /// One for each policy, in their order.
    pub(crate) tallies: Vec<PolicyTally>,
    /// Of all requests together.
    pub(crate) timeline: Timeline,
    pub(crate) allowed: u64,
    pub(crate) denied: u64,
    pub(crate) shadow_denied: u64,
    /// Requests that no policy covers; they are among those that are allowed.
    pub(crate) unlimited: u64,
    /// Whether anybody was admitted too much, if somebody wants to know.
    pub(crate) ceiling: Option<Ceiling>,
}

/// A clock that shows what the traffic says.
#[derive(Clone, Debug, Default)]
struct VirtualClock(Arc<AtomicU64>);

/// Live keys that the engine has room for.
const MAX_LIVE_KEYS: usize = 1 << 27;

impl Clock for VirtualClock {
    #[inline]
    fn now(&self) -> Timestamp {
        Timestamp::from_micros(self.0.load(Ordering::Relaxed))
    }
}

impl Variant {
    /// `most_keys` is how many keys of each policy are told apart to the end.
    pub(crate) fn new(
        name: impl Into<String>,
        policies: PolicySet,
        most_keys: usize,
    ) -> Result<Self, tollgate::BuildError> {
        let clock = VirtualClock::default();
        let tally = |policy| PolicyTally::new(policy, most_keys);
        let tallies = policies.policies().iter().map(tally).collect();
        let names = policies.policies().iter().map(|policy| policy.name);
        let places = names.zip(0..).collect();
        let limiter = Limiter::builder()
            .policies(policies)
            .max_keys(MAX_LIVE_KEYS)
            .clock(clock.clone())
            .build()?;
        Ok(Self {
            name: name.into(),
            limiter,
            clock,
            places,
            tallies,
            timeline: Timeline::default(),
            allowed: 0,
            denied: 0,
            shadow_denied: 0,
            unlimited: 0,
            ceiling: None,
        })
    }

    pub(crate) fn policies(&self) -> &[Policy] {
        self.limiter.policies().policies()
    }

    pub(crate) fn requests(&self) -> u64 {
        self.allowed + self.denied
    }

    /// Keys that had no room of their own in the engine.
    pub(crate) fn overflowed(&self) -> u64 {
        self.limiter.store().usage().overflowed
    }

    /// Decides about a request at an instant that is not before the last.
    pub(crate) fn decide(&mut self, request: &Request<'_>, at: u64) -> Decision {
        self.clock.0.store(at, Ordering::Relaxed);
        let decision = match self.single(request) {
            Some(key) => self.decide_one(request, KeyRef::new(key), at),
            None => self.decide_all(request, at),
        };
        self.unlimited += u64::from(decision.source() == Source::Unlimited);
        let bin = self.timeline.at(at);
        if decision.is_allowed() {
            self.allowed += 1;
            bin.allowed += 1;
        } else {
            self.denied += 1;
            bin.denied += 1;
        }
        if decision.is_shadow_denied() {
            self.shadow_denied += 1;
            bin.shadow_denied += 1;
        }
        decision
    }

    /// The key of a request for which there is one limit at most, so that the decision says it all.
    fn single<'a>(&self, request: &Request<'a>) -> Option<&'a [u8]> {
        let [Policy { per, limits, overrides, mode: Mode::Enforce, .. }] = self.policies() else {
            return None;
        };
        match (&**per, &**limits, &**overrides) {
            ([attribute], [_], []) => request.attribute(attribute),
            _ => None,
        }
    }

    fn decide_one(&mut self, request: &Request<'_>, key: KeyRef<'_>, at: u64) -> Decision {
        let decision = match self.limiter.check_request(request) {
            Ok(decision) => decision,
            // One unit fits every limit.
            Err(error) => unreachable!("{error}"),
        };
        if let Some(limit) = decision.limit() {
            let event = if decision.is_allowed() { Event::Allowed } else { Event::Denied };
            self.tallies[0].count(key, at, &limit, event);
            note(&mut self.ceiling, 0, key, at, event);
        }
        decision
    }

    fn decide_all(&mut self, request: &Request<'_>, at: u64) -> Decision {
        let Self { limiter, tallies, places, ceiling, .. } = self;
        let plan = limiter.plan(request);
        let decided = plan.charges(1).and_then(|charges| Ok((limiter.verdict(&charges)?, charges)));
        let (verdict, charges) = match decided {
            Ok(decided) => decided,
            Err(error) => unreachable!("{error}"),
        };
        let mut rest = charges.iter().zip(&verdict.each).peekable();
        while let Some((first, own)) = rest.next() {
            let mut admitted = own.is_allowed();
            // The limits of a policy stand side by side.
            while let Some((_, own)) = rest.next_if(|(other, _)| other.policy == first.policy) {
                admitted &= own.is_allowed();
            }
            let event = match (admitted, first.enforced) {
                (true, _) if verdict.decision.is_allowed() => Event::Allowed,
                (true, _) => Event::Elsewhere,
                (false, true) => Event::Denied,
                (false, false) => Event::ShadowDenied,
            };
            if let Some(&place) = places.get(&first.policy) {
                tallies[place].count(first.key, at, &first.limit, event);
                note(ceiling, place, first.key, at, event);
            }
        }
        verdict.decision
    }
}

fn note(ceiling: &mut Option<Ceiling>, place: usize, key: KeyRef<'_>, at: u64, event: Event) {
    if let Some(ceiling) = ceiling
        && event == Event::Allowed
    {
        ceiling.admitted(place, key, at);
    }
}

/// The policies that can be tried on traffic: permits are returned when the work is done, which traffic does not tell.
pub(crate) fn tryable(policies: &PolicySet) -> (Vec<Policy>, Vec<PolicyName>) {
    let holds = |policy: &Policy| {
        let others = policy.overrides.iter().flat_map(|other| &other.limits);
        let mut limits = policy.limits.iter().chain(others);
        limits.any(|limit| limit.algorithm() == Algorithm::Concurrency)
    };
    let (held, rest) = policies.policies().iter().cloned().partition::<Vec<_>, _>(holds);
    (rest, held.into_iter().map(|policy| policy.name).collect())
}
