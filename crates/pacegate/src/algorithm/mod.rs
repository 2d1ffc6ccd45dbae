//! The algorithms: pure integer steps, with time as an argument.
//!
//! A step takes a limit, a [`State`], the current time and a cost. It returns the [`Outcome`] and, if units
//! were taken, updates the state. It reads no clock, takes no lock and allocates nothing, so a store only has
//! to ensure that steps on a key do not run concurrently. The state contains its window. A store removes a
//! state after its lifetime only to free memory; that never ends a window.
//!
//! Common rules: a denied cost changes nothing, unless its [`Excess`] is recorded; cost 0 checks whether one
//! unit would be admitted; if the clock has stepped back, the state is first moved back too, so that the wait
//! is never longer than if everything had been used just now.

/// Calls a function of the algorithm of a limit. The module of each algorithm with a [`State`] has the same functions:
/// `step`, `refund`, `return_units`, `used`, `add`, `to_words` and `from_words`.
macro_rules! dispatch {
    ($limit:expr, $function:ident($($argument:expr),+)) => {
        match $limit.algorithm() {
            $crate::Algorithm::FixedWindow => $crate::algorithm::fixed_window::$function($($argument),+),
            $crate::Algorithm::TokenBucket => $crate::algorithm::token_bucket::$function($($argument),+),
            $crate::Algorithm::SlidingWindow => $crate::algorithm::sliding_window::$function($($argument),+),
            // Algorithms with a log have no state, and panic there.
            _ => $crate::algorithm::custom::$function($($argument),+),
        }
    };
}

mod custom;
mod excess;
pub(crate) mod fixed_window;
pub(crate) mod log;
mod outcome;
mod packed;
pub(crate) mod sliding_window;
mod state;
pub(crate) mod token_bucket;
mod window;

use crate::{Limit, clock::Timestamp};

pub use custom::{Custom, CustomAlgorithm};
pub use excess::Excess;
pub use outcome::{Origin, Outcome};
pub use state::State;
pub use window::TimeWindow;

pub(crate) use crate::limit::micros;
pub use crate::limit::{Algorithm, UnknownAlgorithm};
pub(crate) use excess::charge;

/// `retry_after` of a denial that waiting does not end.
pub(crate) const NEVER: u64 = u64::MAX;

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
    ///
    /// ```
    /// use pacegate::{Limit, Timestamp, algorithm::State};
    ///
    /// let (limit, mut state) = (Limit::per_minute(2), State::EMPTY);
    /// let now = Timestamp::from_secs(60);
    /// assert_eq!(limit.step(&mut state, now, 2).remaining(), 0);
    /// assert!(!limit.step(&mut state, now, 1).is_admitted());
    /// assert!(limit.step(&mut state, Timestamp::from_secs(120), 1).is_admitted());
    /// ```
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

/// Times that follow from the algorithm, for callers that have a limit but not its state.
impl Limit {
    /// Returns the first instant at which units charged at `charged` no longer count, regardless of other charges.
    /// [`Timestamp::MAX`] for a custom algorithm, whose states are unknown.
    ///
    /// ```
    /// use pacegate::{Limit, Timestamp};
    ///
    /// let charged = Timestamp::from_micros(90_000_000);
    /// let window = Limit::per_minute(10);
    /// assert_eq!(window.counts_until(charged), Timestamp::from_micros(120_000_000));
    /// let bucket = Limit::per_minute(10).with_burst(5)?;
    /// assert_eq!(bucket.counts_until(charged), Timestamp::from_micros(120_000_000));
    /// # Ok::<(), pacegate::LimitError>(())
    /// ```
    pub fn counts_until(&self, charged: Timestamp) -> Timestamp {
        let (at, period) = (charged.as_micros(), self.period_micros());
        let until = match (self.algorithm(), self.algorithm().windows()) {
            _ if self.amount() == 0 => at,
            (Algorithm::Custom(_), _) => return Timestamp::MAX,
            (_, windows @ 1..) => window::start_of(self, window::window(self, at).number + windows),
            (algorithm, _) if algorithm.has_burst() => {
                let debt = u128::from(self.capacity()) * u128::from(period);
                at.saturating_add(token_bucket::drain_time(self, debt))
            }
            _ => at.saturating_add(period),
        };
        Timestamp::from_micros(until)
    }

    /// Returns the microseconds until one more unit is available, if `used` units are in use and become free within
    /// `reset_after`. `None` if that depends on when each of them was charged.
    pub(crate) fn next_unit_after(&self, used: u64, reset_after: u64) -> Option<u64> {
        match self.algorithm() {
            _ if used == 0 => Some(0),
            Algorithm::Custom(_) => None,
            algorithm if algorithm.has_burst() => {
                // All but the next unit drain in this time.
                let rest = u128::from(used - 1) * u128::from(self.period_micros());
                let rest = rest / u128::from(self.amount().max(1));
                Some(reset_after.saturating_sub(u64::try_from(rest).unwrap_or(u64::MAX)))
            }
            algorithm if algorithm.windows() == 1 || used == 1 => Some(reset_after),
            _ => None,
        }
    }
}

/// Runs one step of any algorithm whose state is a [`State`]. The cost is at most the capacity, unless the
/// amount is 0. The state changes only if units are taken.
#[inline]
pub(crate) fn step(limit: &Limit, state: &mut State, now: u64, cost: u64) -> Outcome {
    if limit.amount() == 0 {
        return Outcome::nothing();
    }
    if state.at().as_micros() > now {
        rebase(limit, state, now);
    }
    let outcome = dispatch!(limit, step(limit, state, now, cost));
    if cost == 0 && !outcome.is_admitted() {
        return Outcome { debt: debt(limit, *state, now), ..outcome };
    }
    outcome
}

/// Decides the most frequent cases of [`charge`] in the same way: a cost above 0 in the current window, or of a bucket,
/// whose excess is rejected. Otherwise changes nothing, and returns `None`.
///
/// Short enough to be inlined, so that the outcome stays in registers.
#[inline(always)]
pub(crate) fn step_often(
    limit: &Limit,
    state: &mut State,
    now: u64,
    cost: u64,
    excess: Excess,
) -> Option<Outcome> {
    if cost == 0 || excess.is_recorded() || state.at().as_micros() > now {
        return None;
    }
    match limit.algorithm() {
        Algorithm::FixedWindow => fixed_window::step_in_window(limit, state, now, cost),
        Algorithm::TokenBucket if limit.amount() > 0 => {
            Some(token_bucket::step(limit, state, now, cost))
        }
        _ => None,
    }
}

/// Returns the debt of a state. Excess that a fixed window only counted is no debt.
#[cold]
fn debt(limit: &Limit, state: State, now: u64) -> u64 {
    if matches!(limit.algorithm(), Algorithm::Custom(_)) {
        return 0;
    }
    let used = dispatch!(limit, used(limit, state, now, Excess::Debt { max: 0 }));
    used.saturating_sub(limit.capacity())
}

/// After the clock has stepped back, moves a state back to the latest valid instant. Keeps the used units.
#[cold]
pub(crate) fn rebase(limit: &Limit, state: &mut State, now: u64) {
    let at = match limit.algorithm() {
        // Custom algorithms get the state unchanged.
        Algorithm::Custom(_) => return,
        algorithm if algorithm.windows() > 0 => window::window(limit, now).start,
        _ => now,
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
    dispatch!(limit, refund(limit, state, now, cost))
}

/// Returns up to `units` of a charge at `charged_at` to where they were charged, as far as they still count, and no
/// more than are used. Of a bucket, at most those that are [owed](owed_units).
pub(crate) fn return_units(
    limit: &Limit,
    mut state: State,
    now: u64,
    charged_at: u64,
    units: u64,
) -> State {
    if state.at().as_micros() > now {
        rebase(limit, &mut state, now);
    }
    dispatch!(limit, return_units(limit, state, now, charged_at, units))
}

/// Tokens that were returned to a bucket.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ReturnedTokens {
    /// By the settlement of reservations.
    pub(crate) settled: u64,
    /// By refunds.
    pub(crate) refunded: u64,
}

/// Returns the units of an earlier charge of `units` that a bucket has not refilled yet. `charged` is the state just
/// after that charge, and `since` the tokens that were returned after it.
pub(crate) fn owed_units(
    limit: &Limit,
    now: u64,
    charged: State,
    units: u64,
    since: ReturnedTokens,
) -> u64 {
    if limit.amount() == 0 { 0 } else { token_bucket::owed(limit, now, charged, units, since) }
}

#[cfg(test)]
pub(super) mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::*;

    pub(super) fn limits() -> impl Strategy<Value = Limit> {
        let amount = prop_oneof![0..4_u64, 1..10_000_u64, Just(Limit::MAX_AMOUNT), any::<u64>()];
        let micros = prop_oneof![1..5_000_u64, 1..100_000_000_u64, Just(3_660 * 86_400_000_000)];
        let algorithm = prop_oneof![
            Just(Algorithm::FixedWindow),
            Just(Algorithm::SlidingWindow),
            Just(Algorithm::TokenBucket),
        ];
        (amount, micros, algorithm).prop_filter_map("a limit", |(amount, micros, algorithm)| {
            let limit = Limit::new(amount, Duration::from_micros(micros)).ok()?;
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

        /// The short way decides as the other one does, or not at all.
        #[test]
        fn frequent_cases_are_decided_alike(
            limit in limits(),
            excess in prop_oneof![Just(Excess::Reject), Just(Excess::Count), Just(Excess::Debt { max: 1_000 })],
            later in prop_oneof![0..3_u64, 0..10_000_000_u64],
            back in prop_oneof![4 => Just(0_u64), 1 => 1..5_000_u64],
            shares in (0..=5_u64, 0..=4_u64),
        ) {
            let units = |share| (u128::from(limit.capacity()) * u128::from(share) / 4) as u64;
            let (mut state, at) = (State::EMPTY, 1_767_000_000_000_000);
            let before = if excess.under(&limit) == Excess::Reject { shares.0.min(4) } else { shares.0 };
            charge(&limit, &mut state, at, units(before), excess.under(&limit));
            let (now, cost) = (at + later - back, units(shares.1));
            let (mut one, mut other) = (state, state);
            match step_often(&limit, &mut one, now, cost, excess.under(&limit)) {
                Some(outcome) => {
                    let charged = charge(&limit, &mut other, now, cost, excess.under(&limit));
                    prop_assert_eq!(outcome, charged.0);
                    prop_assert_eq!(one, other);
                }
                None => prop_assert_eq!(one, state),
            }
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
