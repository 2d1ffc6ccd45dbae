use std::{
    fmt,
    hash::{Hash, Hasher},
    ops::Deref,
};

use super::{Algorithm, Excess, Outcome, State};
use crate::{Limit, clock::Timestamp};

/// A custom algorithm, for stores in this process.
///
/// It runs under the lock of its key, so it must be fast and must not panic. It must follow the common rules:
/// a denial and a cost of 0 change nothing, and the lifetime passed to [`State::new`] is at least as long as
/// the state matters. If it sets [`State::EMPTY`], the key has a payload of 0 from then on, until it is
/// removed.
///
/// ```
/// use std::time::Duration;
/// use pacegate::{Algorithm, Limit, Limiter, Timestamp};
/// use pacegate::algorithm::{CustomAlgorithm, Outcome, State};
///
/// /// Admits the amount, and resets only after a period without admitted requests.
/// #[derive(Debug)]
/// struct Quiet;
///
/// impl CustomAlgorithm for Quiet {
///     fn name(&self) -> &'static str {
///         "quiet"
///     }
///
///     fn step(&self, limit: &Limit, state: &mut State, now: Timestamp, cost: u64) -> Outcome {
///         let over = state.at().after(limit.period());
///         let used = if now < over { state.payload() as u64 } else { 0 };
///         let free = limit.amount().saturating_sub(used);
///         if cost.max(1) > free {
///             let wait = Duration::from_micros(over.micros_since(now));
///             return Outcome::denied(free, Some(wait), wait);
///         }
///         if cost > 0 {
///             let life = limit.period().as_micros() as u64;
///             *state = State::new(now, life, u128::from(used + cost));
///         }
///         Outcome::admitted(free - cost, limit.period())
///     }
/// }
///
/// let limit = Limit::per_minute(2).with_algorithm(Algorithm::custom(&Quiet))?;
/// let limiter = Limiter::memory(limit);
/// let answers = [(); 3].map(|()| limiter.check("alice").is_allowed());
/// assert_eq!(answers, [true, true, false]);
/// # Ok::<(), pacegate::LimitError>(())
/// ```
pub trait CustomAlgorithm: fmt::Debug + Send + Sync {
    /// Returns a name that differs from those of the built-in algorithms. Together with the period, it
    /// identifies a state.
    fn name(&self) -> &'static str;

    /// Decides `cost` at `now`, and changes the state if units are taken. The cost is at most the capacity of
    /// the limit, and the amount is at least 1.
    fn step(&self, limit: &Limit, state: &mut State, now: Timestamp, cost: u64) -> Outcome;

    /// Refunds up to `cost` units. The default refunds nothing.
    fn refund(&self, limit: &Limit, state: State, now: Timestamp, cost: u64) -> State {
        let _ = (limit, now, cost);
        state
    }
}

/// Size of the two parts of a payload.
const HALF_BITS: u32 = 35;

/// Runs [`CustomAlgorithm::step`] and makes the resulting state storable.
pub(super) fn step(limit: &Limit, state: &mut State, now: u64, cost: u64) -> Outcome {
    let (now, known) = (Timestamp::from_micros(now), !state.is_empty());
    let outcome = of(limit).step(limit, state, now, cost);
    if known {
        *state = kept(*state, now);
    }
    outcome
}

/// Runs [`CustomAlgorithm::refund`] and makes the resulting state storable.
pub(super) fn refund(limit: &Limit, state: State, now: u64, cost: u64) -> State {
    let now = Timestamp::from_micros(now);
    kept(of(limit).refund(limit, state, now, cost), now)
}

/// Returns nothing: a custom algorithm does not know the units of one charge.
pub(super) fn return_units(_: &Limit, state: State, _: u64, _: u64, _: u64) -> State {
    state
}

/// Never called: a custom algorithm rejects a cost that does not fit, see [`Excess::under`].
pub(super) fn used(limit: &Limit, _: State, _: u64, _: Excess) -> u64 {
    unreachable!("{} rejects an excess", limit.algorithm())
}

/// Never called, like [`used`].
pub(super) fn add(limit: &Limit, _: State, _: u64, _: u64, _: Excess) -> State {
    unreachable!("{} rejects an excess", limit.algorithm())
}

/// Returns the lifetime and the payload in two opaque parts.
pub(super) fn to_words(_: &Limit, state: State) -> (u64, u64) {
    let high = (state.payload() >> HALF_BITS) as u64;
    (state.lifetime_bits() << HALF_BITS | high, low_half(state.payload() as u64))
}

/// Reverses [`to_words`]: returns the lifetime and the payload.
pub(super) fn from_words(_: &Limit, first: u64, second: u64) -> (u64, u128) {
    let payload = u128::from(low_half(first)) << HALF_BITS | u128::from(low_half(second));
    let bits = first >> HALF_BITS;
    (1 << bits.saturating_sub(1).min(62), payload.min(State::MAX_PAYLOAD))
}

fn low_half(word: u64) -> u64 {
    word & ((1 << HALF_BITS) - 1)
}

fn of(limit: &Limit) -> Custom {
    match limit.algorithm() {
        Algorithm::Custom(custom) => custom,
        other => unreachable!("{other} keeps a log, not a state"),
    }
}

/// Ensures that a used cell never contains an empty state, because the store would consider it free.
fn kept(state: State, now: Timestamp) -> State {
    if state.is_empty() { State::new(now, 0, 0) } else { state }
}

/// A [`CustomAlgorithm`] as a value; equal to another one with the same name.
#[derive(Clone, Copy, Debug)]
pub struct Custom(&'static dyn CustomAlgorithm);

impl super::Algorithm {
    /// Creates a custom algorithm, for [`Limit::with_algorithm`]. Two custom algorithms with the same name are equal.
    ///
    /// Custom algorithms run in this process only: a Redis store rejects them.
    pub const fn custom(algorithm: &'static dyn CustomAlgorithm) -> Self {
        Self::Custom(Custom(algorithm))
    }
}

impl Deref for Custom {
    type Target = dyn CustomAlgorithm;

    fn deref(&self) -> &Self::Target {
        self.0
    }
}

impl PartialEq for Custom {
    fn eq(&self, other: &Self) -> bool {
        self.name() == other.name()
    }
}

impl Eq for Custom {}

impl Hash for Custom {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.name().hash(state);
    }
}
