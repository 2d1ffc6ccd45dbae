//! The real engine in virtual time: what it decides about each request, and what that adds up to.

use std::{
    collections::HashMap,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll, Waker},
    time::Duration,
};

use pacegate::{
    Algorithm, Clock, KeyBuf, KeyRef, Limiter, Policy, PolicyName, PolicySet, Request, Store,
    Timestamp, algorithm::Outcome, policy::Mode,
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
    /// Whether there is one policy with one limit, and nothing to be weighed against it.
    single: bool,
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

/// What a client is told.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Answer {
    pub(crate) allowed: bool,
    /// Whether a policy in shadow mode would have denied it.
    pub(crate) shadow_denied: bool,
    /// Whether any policy has to do with it.
    pub(crate) covered: bool,
    retry_after: Option<Duration>,
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
    ) -> Result<Self, pacegate::BuildError> {
        let clock = VirtualClock::default();
        let tally = |policy| PolicyTally::new(policy, most_keys);
        let tallies = policies.policies().iter().map(tally).collect();
        let names = policies.policies().iter().map(|policy| policy.name);
        let places = names.zip(0..).collect();
        let single = is_single(policies.policies());
        let limiter = Limiter::builder()
            .policies(policies)
            .max_keys(MAX_LIVE_KEYS)
            .clock(clock.clone())
            .build()?;
        Ok(Self {
            name: name.into(),
            limiter,
            clock,
            single,
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
    pub(crate) fn decide(&mut self, request: &Request<'_>, at: u64) -> Answer {
        let answer = match self.single {
            true => self.decide_one(request, at),
            false => self.decide_all(request, at),
        };
        let bin = self.timeline.at(at);
        if answer.allowed {
            self.allowed += 1;
            bin.allowed += 1;
        } else {
            self.denied += 1;
            bin.denied += 1;
        }
        if answer.shadow_denied {
            self.shadow_denied += 1;
            bin.shadow_denied += 1;
        }
        self.unlimited += u64::from(!answer.covered);
        answer
    }

    /// The one limit there is, taken a step further on a state that is kept beside the tally of its key: what a store
    /// does, without looking it up a second time.
    fn decide_one(&mut self, request: &Request<'_>, at: u64) -> Answer {
        let Self { limiter, tallies, ceiling, .. } = self;
        let ([policy], [tally]) = (limiter.policies().policies(), &mut **tallies) else {
            return Answer::UNLIMITED;
        };
        let covered = limiter.policies().covers(policy.name, request);
        let (true, [limit]) = (covered, &*policy.limits) else {
            return Answer::UNLIMITED;
        };
        let value = policy.per.first().and_then(|attribute| policy.value(request, attribute));
        let mut absent = KeyBuf::empty();
        let key = match &value {
            Some(value) => KeyRef::new(value),
            None => {
                absent.push(None);
                absent.as_ref()
            }
        };
        let mut answer = Answer { covered: true, ..Answer::UNLIMITED };
        tally.count(key, at, limit, |state| {
            let outcome = limit.step(state, Timestamp::from_micros(at), 1);
            answer.allowed = outcome.is_admitted();
            answer.retry_after = outcome.retry_after();
            if answer.allowed { Event::Allowed } else { Event::Denied }
        });
        if answer.allowed {
            note(ceiling, 0, key, at);
        }
        answer
    }

    /// Everything else goes the way of the library: policies that cover it, keys, charges, and the memory store.
    fn decide_all(&mut self, request: &Request<'_>, at: u64) -> Answer {
        self.clock.0.store(at, Ordering::Relaxed);
        let Self { limiter, tallies, places, ceiling, .. } = self;
        let plan = limiter.plan(request);
        let charges = plan.charges(1).unwrap_or_else(|error| {
            unreachable!("one unit fits every limit: {error}");
        });
        // Not through the limiter, whose statistics are of real time.
        let mut asked = pin!(limiter.store().charge(&charges));
        let Poll::Ready(Ok(outcomes)) =
            asked.as_mut().poll(&mut Context::from_waker(Waker::noop()))
        else {
            unreachable!("memory answers at once");
        };
        let enforced = || charges.iter().zip(&outcomes).filter(|(charge, _)| charge.enforced);
        let denying = || enforced().map(|(_, outcome)| outcome).filter(|one| !one.is_admitted());
        let allowed = denying().next().is_none();
        // One that never ends outlasts all others.
        let for_good = denying().any(|outcome| outcome.retry_after().is_none());
        let retry_after = denying().filter_map(Outcome::retry_after).max().filter(|_| !for_good);
        let mut shadow_denied = false;
        let mut rest = charges.iter().zip(&outcomes).peekable();
        while let Some((first, own)) = rest.next() {
            let mut admitted = own.is_admitted();
            // The limits of a policy stand side by side.
            while let Some((_, own)) = rest.next_if(|(other, _)| other.policy == first.policy) {
                admitted &= own.is_admitted();
            }
            let event = match (admitted, first.enforced) {
                (true, _) if allowed => Event::Allowed,
                (true, _) => Event::Elsewhere,
                (false, true) => Event::Denied,
                (false, false) => Event::ShadowDenied,
            };
            shadow_denied |= event == Event::ShadowDenied;
            let Some(&place) = places.get(&first.policy) else { continue };
            tallies[place].count(first.key, at, &first.limit, |_| event);
            if event == Event::Allowed {
                note(ceiling, place, first.key, at);
            }
        }
        Answer { allowed, shadow_denied, covered: !plan.is_empty(), retry_after }
    }
}

impl Answer {
    const UNLIMITED: Self =
        Self { allowed: true, shadow_denied: false, covered: false, retry_after: None };

    /// What `Retry-After` says to whoever is denied, unless it is for good.
    pub(crate) fn retry_after_secs(&self) -> Option<u64> {
        let micros = u64::try_from(self.retry_after?.as_micros()).unwrap_or(u64::MAX);
        Some(micros.div_ceil(1_000_000).max(1))
    }
}

fn note(ceiling: &mut Option<Ceiling>, place: usize, key: KeyRef<'_>, at: u64) {
    if let Some(ceiling) = ceiling {
        ceiling.admitted(place, key, at);
    }
}

fn is_single(policies: &[Policy]) -> bool {
    let [Policy { per, limits, overrides, mode: Mode::Enforce, .. }] = policies else {
        return false;
    };
    match (&**per, &**limits, &**overrides) {
        ([_], [limit], []) => !limit.algorithm().keeps_log(),
        _ => false,
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
