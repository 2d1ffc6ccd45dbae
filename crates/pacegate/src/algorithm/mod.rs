//! The algorithms: pure integer steps, with time as an argument.
//!
//! A step takes a limit, a [`State`], the current time and a cost. It returns the [`Outcome`] and, if units
//! were taken, updates the state. It reads no clock, takes no lock and allocates nothing, so a store only has
//! to ensure that steps on a key do not run concurrently. The state contains its window. A store removes a
//! state after its lifetime only to free memory; that never ends a window.
//!
//! Common rules: a denied cost changes nothing; cost 0 checks whether one unit would be admitted; if the
//! clock has stepped back, the state is first moved back too, so that the wait is never longer than if
//! everything had been used just now.

mod custom;
pub(crate) mod fixed_window;
pub(crate) mod log;
pub(crate) mod sliding_window;
mod state;
pub(crate) mod token_bucket;
mod words;

use std::{fmt, str::FromStr, time::Duration};

use crate::{Limit, clock::Timestamp};

pub use custom::{Custom, CustomAlgorithm};
pub use state::State;

/// The algorithm of a limit.
///
/// | algorithm | admits in any period | state |
/// |---|---|---|
/// | fixed-window | at most twice the amount, across a boundary | 16 bytes |
/// | sliding-window | less than twice the amount, and never a burst at a boundary | 16 bytes |
/// | sliding-log | at most the amount | 32 bytes per admitted instant |
/// | token-bucket | at most the burst plus the refill of the period | 16 bytes |
/// | concurrency | any number, if permits are released | 32 bytes per permit |
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Algorithm {
    /// Counts in windows aligned to the Unix epoch. The cheapest algorithm, and the default.
    FixedWindow,
    /// Counts in two windows; the previous one is weighted by its overlap with the period that ends now.
    SlidingWindow,
    /// Stores the time of every admission: exact in every window. At most 10,000 units.
    SlidingLog,
    /// Refills at a constant rate up to the burst: exact at any rate, without drift.
    TokenBucket,
    /// Limits the permits held at the same time. The period is the lifetime of a permit that is neither
    /// released nor renewed.
    Concurrency,
    /// A custom algorithm.
    Custom(Custom),
}

/// The outcome of a charge for one key. Outcomes are equal if they differ only in when they were decided.
#[derive(Clone, Copy, Debug)]
pub struct Outcome {
    pub(crate) remaining: u64,
    /// In microseconds; 0 only if admitted, [`NEVER`] if waiting does not help.
    pub(crate) retry_after: u64,
    pub(crate) reset_after: u64,
    pub(crate) origin: Origin,
    /// When it was decided by the clock of the store, in microseconds; 0 if that is the clock of this process.
    pub(crate) decided_at: u64,
}

/// The source of an outcome.
// As wide as the other fields: an outcome is copied in whole words, and a narrow store just before a wide
// load would stall the CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u64)]
#[non_exhaustive]
pub enum Origin {
    /// The state of the key.
    #[default]
    Store,
    /// The overflow budget, which keys without room share.
    Overflow,
    /// A cached denial that is still valid.
    DenyCache,
    /// Prefetched units, used without a call to the store.
    Lease,
}

/// `retry_after` of a denial that waiting does not end.
pub(crate) const NEVER: u64 = u64::MAX;

impl Algorithm {
    /// All algorithms except custom ones.
    pub const BUILT_IN: [Self; 5] = [
        Self::FixedWindow,
        Self::SlidingWindow,
        Self::SlidingLog,
        Self::TokenBucket,
        Self::Concurrency,
    ];

    /// Returns the name used in limits, policies and documentation.
    pub fn name(self) -> &'static str {
        match self {
            Self::FixedWindow => "fixed-window",
            Self::SlidingWindow => "sliding-window",
            Self::SlidingLog => "sliding-log",
            Self::TokenBucket => "token-bucket",
            Self::Concurrency => "concurrency",
            Self::Custom(custom) => custom.name(),
        }
    }

    /// Returns all names, for error messages.
    pub(crate) fn names() -> String {
        Self::BUILT_IN.map(Self::name).join(", ")
    }

    /// Returns true if the state is a list that grows with the amount, instead of a [`State`] of 16 bytes.
    #[inline]
    pub const fn keeps_log(self) -> bool {
        matches!(self, Self::SlidingLog | Self::Concurrency)
    }

    /// Whether units can be charged ahead of the request that spends them. A window does not distinguish between
    /// instants within it. All others do: a charge to a token bucket drains from that instant on, spent or not.
    pub const fn can_be_leased(self) -> bool {
        matches!(self, Self::FixedWindow | Self::SlidingWindow)
    }

    pub(crate) const fn max_amount(self) -> u64 {
        match self {
            Self::SlidingWindow => sliding_window::MAX_AMOUNT,
            Self::SlidingLog | Self::Concurrency => log::MAX_AMOUNT,
            Self::FixedWindow | Self::TokenBucket | Self::Custom(_) => Limit::MAX_AMOUNT,
        }
    }
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The name of an unknown algorithm was parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no such algorithm: write {}", Algorithm::names())]
pub struct UnknownAlgorithm;

impl FromStr for Algorithm {
    type Err = UnknownAlgorithm;

    fn from_str(name: &str) -> Result<Self, UnknownAlgorithm> {
        let named = |algorithm: &Self| algorithm.name() == name;
        Self::BUILT_IN.into_iter().find(named).ok_or(UnknownAlgorithm)
    }
}

impl PartialEq for Outcome {
    fn eq(&self, other: &Self) -> bool {
        let Self { remaining, retry_after, reset_after, origin, decided_at: _ } = *self;
        (remaining, retry_after, reset_after, origin)
            == (other.remaining, other.retry_after, other.reset_after, other.origin)
    }
}

impl Eq for Outcome {}

impl Outcome {
    /// Creates an admission with the remaining units and the time until everything is available again.
    pub fn admitted(remaining: u64, reset_after: Duration) -> Self {
        Self::taken(remaining, micros(reset_after))
    }

    /// Creates a denial. `retry_after` is the time until the same cost would be admitted; `None` if never.
    pub fn denied(remaining: u64, retry_after: Option<Duration>, reset_after: Duration) -> Self {
        let retry_after = retry_after.map_or(NEVER, |wait| micros(wait).max(1));
        Self::refused(remaining, retry_after, micros(reset_after))
    }

    /// Returns true if the cost was admitted, or would be for a peek.
    #[inline]
    pub fn is_admitted(&self) -> bool {
        self.retry_after == 0
    }

    /// Returns the units that would be admitted now.
    pub fn remaining(&self) -> u64 {
        self.remaining
    }

    /// Returns the time until the same cost would be admitted; zero if it was, `None` if it never will be.
    pub fn retry_after(&self) -> Option<Duration> {
        (self.retry_after != NEVER).then(|| Duration::from_micros(self.retry_after))
    }

    /// Returns the time until everything is available again.
    pub fn reset_after(&self) -> Duration {
        Duration::from_micros(self.reset_after)
    }

    /// Returns the source of the outcome.
    pub fn origin(&self) -> Origin {
        self.origin
    }

    /// When this was decided, by the clock of the store. `None` for a store that goes by the clock of this process.
    pub fn decided_at(&self) -> Option<Timestamp> {
        (self.decided_at > 0).then(|| Timestamp::from_micros(self.decided_at))
    }

    /// The same answer, decided at this instant by the clock of the store: for stores on another machine. Instants that
    /// clients see, such as `X-RateLimit-Reset`, then come from the clock that counted.
    #[must_use]
    pub fn with_decided_at(self, instant: Timestamp) -> Self {
        Self { decided_at: instant.as_micros(), ..self }
    }

    /// The same answer from elsewhere: for stores that do not always ask the state itself.
    #[must_use]
    pub fn with_origin(self, origin: Origin) -> Self {
        Self { origin, ..self }
    }

    /// The outcome of any cost with an amount of 0.
    const NOTHING: Self = Self::refused(0, NEVER, 0);

    #[inline]
    pub(crate) const fn taken(remaining: u64, reset_after: u64) -> Self {
        Self { remaining, retry_after: 0, reset_after, origin: Origin::Store, decided_at: 0 }
    }

    #[inline]
    pub(crate) const fn refused(remaining: u64, retry_after: u64, reset_after: u64) -> Self {
        Self { remaining, retry_after, reset_after, origin: Origin::Store, decided_at: 0 }
    }
}

/// The step and the refund, for stores that keep a [`State`] per key. Callers must have exclusive access to
/// the key.
impl Limit {
    /// Decides `cost` at `now`, and updates the state if units are taken. Otherwise the state changes only if
    /// the clock has stepped back: then it is moved back to `now`.
    ///
    /// A cost above the capacity is always denied.
    ///
    /// # Panics
    ///
    /// Panics if the algorithm [keeps a log](Algorithm::keeps_log): its state is not a [`State`].
    pub fn step(&self, state: &mut State, now: Timestamp, cost: u64) -> Outcome {
        if cost > self.capacity() {
            return Outcome { retry_after: NEVER, ..step(self, state, now.as_micros(), 0) };
        }
        step(self, state, now.as_micros(), cost)
    }

    /// Refunds up to `cost` units, but no more than are used.
    ///
    /// # Panics
    ///
    /// Panics if the algorithm [keeps a log](Algorithm::keeps_log).
    #[must_use = "returns the new state"]
    pub fn refund(&self, state: State, now: Timestamp, cost: u64) -> State {
        refund(self, state, now.as_micros(), cost)
    }
}

/// Runs one step of any algorithm whose state is a [`State`]. The cost is at most the capacity, unless the
/// amount is 0. The state changes only if units are taken.
#[inline]
pub(crate) fn step(limit: &Limit, state: &mut State, now: u64, cost: u64) -> Outcome {
    if limit.amount() == 0 {
        return Outcome::NOTHING;
    }
    if state.at().as_micros() > now {
        rebase(limit, state, now);
    }
    match limit.algorithm() {
        // Inlined: this is the common case, and so short that a call would double its time.
        Algorithm::FixedWindow => fixed_window::step(limit, state, now, cost),
        Algorithm::TokenBucket => token_bucket::step(limit, state, now, cost),
        Algorithm::SlidingWindow => sliding_window::step(limit, state, now, cost),
        Algorithm::Custom(custom) => custom::step(custom, limit, state, now, cost),
        Algorithm::SlidingLog | Algorithm::Concurrency => {
            unreachable!("{} keeps a log, not a state", limit.algorithm())
        }
    }
}

/// After the clock has stepped back, moves a state back to the latest valid instant. Keeps the used units.
#[cold]
pub(crate) fn rebase(limit: &Limit, state: &mut State, now: u64) {
    let at = match limit.algorithm() {
        Algorithm::FixedWindow | Algorithm::SlidingWindow => now - now % limit.period_micros(),
        Algorithm::TokenBucket | Algorithm::SlidingLog | Algorithm::Concurrency => now,
        // Custom algorithms get the state unchanged.
        Algorithm::Custom(_) => return,
    };
    *state = state.moved_to(Timestamp::from_micros(at));
}

/// Returns the microseconds until the last of `costs` could be admitted, if they are charged in this order,
/// each as early as possible.
pub(crate) fn earliest(
    limit: &Limit,
    mut state: State,
    now: u64,
    costs: impl Iterator<Item = u64>,
) -> u64 {
    soonest(now, costs, |at, cost| step(limit, &mut state, at, cost))
}

/// Charges costs one by one and waits after each denial; implements [`earliest`] for any state.
fn soonest(
    now: u64,
    costs: impl Iterator<Item = u64>,
    mut charge: impl FnMut(u64, u64) -> Outcome,
) -> u64 {
    let mut at = now;
    for cost in costs {
        let outcome = charge(at, cost);
        if !outcome.is_admitted() {
            let Some(later) = at.checked_add(outcome.retry_after) else { return NEVER };
            at = later;
            charge(at, cost);
        }
    }
    at - now
}

/// Refunds units, but no more than are used.
pub(crate) fn refund(limit: &Limit, mut state: State, now: u64, cost: u64) -> State {
    if state.at().as_micros() > now {
        rebase(limit, &mut state, now);
    }
    match limit.algorithm() {
        Algorithm::FixedWindow => fixed_window::refund(limit, state, now, cost),
        Algorithm::TokenBucket => token_bucket::refund(limit, state, now, cost),
        Algorithm::SlidingWindow => sliding_window::refund(limit, state, now, cost),
        Algorithm::Custom(custom) => {
            let now = Timestamp::from_micros(now);
            custom::kept(custom.refund(limit, state, now, cost), now)
        }
        Algorithm::SlidingLog | Algorithm::Concurrency => {
            unreachable!("{} keeps a log, not a state", limit.algorithm())
        }
    }
}

/// Converts to microseconds, rounded up and below [`NEVER`].
pub(crate) fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos().div_ceil(1_000)).unwrap_or(NEVER).min(NEVER - 1)
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;

    use super::*;

    pub(super) fn limits() -> impl Strategy<Value = Limit> {
        let amount = prop_oneof![0..4_u64, 1..10_000_u64, Just(Limit::MAX_AMOUNT), any::<u64>()];
        let millis = prop_oneof![1..5_u64, 1..100_000_u64, Just(3_660 * 86_400_000)];
        let algorithm = prop_oneof![
            Just(Algorithm::FixedWindow),
            Just(Algorithm::SlidingWindow),
            Just(Algorithm::TokenBucket),
        ];
        (amount, millis, algorithm).prop_filter_map("a limit", |(amount, millis, algorithm)| {
            let limit = Limit::new(amount, Duration::from_millis(millis)).ok()?;
            limit.with_algorithm(algorithm).ok()
        })
    }

    pub(super) fn states() -> impl Strategy<Value = State> {
        let at = prop_oneof![any::<u64>(), 1_767_000_000_000_000..1_768_000_000_000_000_u64];
        let payload = prop_oneof![0..1_000_u128, 0..u128::from(Limit::MAX_AMOUNT)];
        (at, any::<u64>(), payload).prop_map(|(at, lifetime, payload)| {
            State::new(Timestamp::from_micros(at), lifetime, payload)
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(20_000))]

        /// Any state, time and cost: nothing overflows, and a step that takes no units changes nothing.
        #[test]
        fn a_step_that_takes_nothing_changes_no_bit(
            limit in limits(),
            state in prop_oneof![Just(State::EMPTY), states()],
            later in prop_oneof![0..3_u64, 0..10_000_000_u64, any::<u64>()],
            share in 0..=4_u64,
        ) {
            let now = state.at().as_micros().saturating_add(later).min(Timestamp::MAX.as_micros());
            let cost = (u128::from(limit.capacity()) * u128::from(share) / 4) as u64;
            let mut after = state;
            let outcome = step(&limit, &mut after, now, cost);
            if cost == 0 || !outcome.is_admitted() {
                prop_assert_eq!(after, state);
            }
            prop_assert!(outcome.remaining <= limit.capacity());
            prop_assert!(outcome.retry_after > 0 || outcome.is_admitted());
            let mut after = state;
            let too_much = limit.step(&mut after, Timestamp::from_micros(now), limit.capacity() + 1);
            prop_assert_eq!((after, too_much.retry_after), (state, NEVER));
        }

        /// A state from the future counts in full, but no longer than if it were from now.
        #[test]
        fn a_rebased_state_is_from_now(limit in limits(), state in states(), now in 0..1_u64 << 52) {
            let mut rebased = state;
            rebase(&limit, &mut rebased, now);
            prop_assert_eq!(rebased.payload(), state.payload());
            prop_assert!(now - rebased.at().as_micros() < limit.period_micros());
        }
    }
}
