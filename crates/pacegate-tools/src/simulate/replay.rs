//! Runs the real engine in virtual time and counts its decisions.

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
    Clock, KeyBuf, KeyRef, Limiter, Policy, PolicyName, PolicySet, Request, Store, Timestamp,
    algorithm::Outcome, policy::Mode,
};

use super::{
    suggest::Ceiling,
    tally::{Event, OutcomeCounts, PolicyTally, Timeline},
};

/// A set of policies to try on traffic, and the results.
#[derive(Debug)]
pub struct Variant {
    /// Display name: a file or a limit.
    pub name: String,
    limiter: Limiter,
    clock: VirtualClock,
    /// True if there is exactly one policy with one limit, which allows a fast path.
    single: bool,
    places: HashMap<PolicyName, usize, foldhash::fast::RandomState>,
    /// One per policy, in the same order.
    pub tallies: Vec<PolicyTally>,
    /// All requests together.
    pub timeline: Timeline,
    /// Requests that shadow mode allowed count as allowed, too.
    pub(crate) counts: OutcomeCounts,
    /// Requests that no policy covers; they count as allowed.
    pub unlimited: u64,
    /// Checks the peak rate of admitted requests, if a target needs it.
    pub ceiling: Option<Ceiling>,
}

/// The decision as a client sees it.
#[derive(Clone, Copy, Debug)]
pub struct ClientDecision {
    pub allowed: bool,
    /// True if a policy in shadow mode would have denied the request.
    pub shadow_denied: bool,
    /// True if any policy covers the request.
    pub covered: bool,
    retry_after: Option<Duration>,
}

/// A clock that shows the timestamp of the current request.
#[derive(Clone, Debug, Default)]
struct VirtualClock(Arc<AtomicU64>);

/// Maximum number of live keys in the engine's store.
const MAX_LIVE_KEYS: usize = 1 << 27;

impl Clock for VirtualClock {
    #[inline]
    fn now(&self) -> Timestamp {
        Timestamp::from_micros(self.0.load(Ordering::Relaxed))
    }
}

impl Variant {
    /// Creates a variant. `most_keys` is the number of keys per policy that are always kept.
    pub fn new(
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
            counts: OutcomeCounts::default(),
            unlimited: 0,
            ceiling: None,
        })
    }

    /// Returns the policies.
    pub fn policies(&self) -> &[Policy] {
        self.limiter.policies().policies()
    }

    /// Returns the number of requests replayed.
    pub fn requests(&self) -> u64 {
        self.counts.allowed + self.counts.denied
    }

    /// Returns the number of charges of keys for which the engine's store had no room.
    pub fn overflowed(&self) -> u64 {
        self.limiter.store().usage().overflowed
    }

    /// Decides a request. `at` must not be earlier than that of the last request.
    pub fn decide(&mut self, request: &Request<'_>, at: u64) -> ClientDecision {
        let answer = match self.single {
            true => self.decide_one(request, at),
            false => self.decide_all(request, at),
        };
        for counts in [&mut self.counts, &mut self.timeline.at(at).counts] {
            counts.allowed += u64::from(answer.allowed);
            counts.denied += u64::from(!answer.allowed);
            counts.shadow_denied += u64::from(answer.shadow_denied);
        }
        self.unlimited += u64::from(!answer.covered);
        answer
    }

    /// Fast path for a single limit: runs the algorithm on a state that is stored next to the key's tally,
    /// which saves a second lookup.
    fn decide_one(&mut self, request: &Request<'_>, at: u64) -> ClientDecision {
        let Self { limiter, tallies, ceiling, .. } = self;
        let ([policy], [tally]) = (limiter.policies().policies(), &mut **tallies) else {
            return ClientDecision::UNLIMITED;
        };
        let covered = limiter.policies().covers(policy.name, request);
        let (true, [limit]) = (covered, &*policy.limits) else {
            return ClientDecision::UNLIMITED;
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
        let mut answer = ClientDecision { covered: true, ..ClientDecision::UNLIMITED };
        tally.count(key, at, limit, |state| {
            let outcome = limit.step(state, Timestamp::from_micros(at), request.units());
            answer.allowed = outcome.is_admitted();
            answer.retry_after = outcome.retry_after();
            if answer.allowed { Event::Allowed } else { Event::Denied }
        });
        if answer.allowed {
            note(ceiling, 0, key, at);
        }
        answer
    }

    /// General path through the library: matching policies, keys, charges and the memory store.
    fn decide_all(&mut self, request: &Request<'_>, at: u64) -> ClientDecision {
        self.clock.0.store(at, Ordering::Relaxed);
        let Self { limiter, tallies, places, ceiling, .. } = self;
        let plan = limiter.charges().plan(request);
        let charges = match plan.charges(request.units()) {
            Ok(charges) => charges,
            Err(error) => {
                // The server answers with an error, whatever the other policies decide.
                let peeks = plan.charges(0).unwrap_or_default();
                for charges in peeks.chunk_by(|one, other| one.policy == other.policy) {
                    let first = &charges[0];
                    let event = match first.policy == error.policy {
                        true => Event::Denied,
                        false => Event::Elsewhere,
                    };
                    if let Some(&place) = places.get(&first.policy) {
                        tallies[place].count(first.key, at, &first.limit, |_| event);
                    }
                }
                return ClientDecision {
                    allowed: false,
                    covered: true,
                    ..ClientDecision::UNLIMITED
                };
            }
        };
        // Bypass the limiter: its statistics use real time.
        let mut asked = pin!(limiter.store().charge(&charges, None));
        let Poll::Ready(Ok(outcomes)) =
            asked.as_mut().poll(&mut Context::from_waker(Waker::noop()))
        else {
            unreachable!("the memory store never waits");
        };
        let enforced = || charges.iter().zip(&outcomes).filter(|(charge, _)| charge.enforced);
        let denying = || enforced().map(|(_, outcome)| outcome).filter(|one| !one.is_admitted());
        let allowed = denying().next().is_none();
        // A denial without a retry time takes precedence.
        let for_good = denying().any(|outcome| outcome.retry_after().is_none());
        let retry_after = denying().filter_map(Outcome::retry_after).max().filter(|_| !for_good);
        let mut shadow_denied = false;
        let mut rest = charges.iter().zip(&outcomes).peekable();
        while let Some((first, own)) = rest.next() {
            let mut admitted = own.is_admitted();
            // The limits of a policy are consecutive.
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
        ClientDecision { allowed, shadow_denied, covered: !plan.is_empty(), retry_after }
    }
}

impl ClientDecision {
    const UNLIMITED: Self =
        Self { allowed: true, shadow_denied: false, covered: false, retry_after: None };

    /// Returns the `Retry-After` value of a denial, or `None` if retrying never helps.
    pub fn retry_after_secs(&self) -> Option<u64> {
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

/// Splits off the policies that cannot be simulated: concurrency limits need to know when permits are
/// returned, which traffic does not show.
pub fn tryable(policies: &PolicySet) -> (Vec<Policy>, Vec<PolicyName>) {
    let holds = |policy: &Policy| {
        let others = policy.overrides.iter().flat_map(|other| &other.limits);
        let mut limits = policy.limits.iter().chain(others);
        limits.any(|limit| limit.algorithm().holds_permits())
    };
    let (held, rest) = policies.policies().iter().cloned().partition::<Vec<_>, _>(holds);
    (rest, held.into_iter().map(|policy| policy.name).collect())
}
