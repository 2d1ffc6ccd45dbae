//! A bucket that refills at a constant rate, stored as a debt that drains.
//!
//! The debt is counted in tokens × period (in microseconds), so one token weighs `period` and every
//! microsecond drains `amount`: integers at any rate, without remainders and without drift. Because the debt
//! is in tokens, not in time, a changed amount applies from the next decision on without any conversion.

use super::{Outcome, State};
use crate::{Limit, clock::Timestamp};

/// Decides `cost` at `now`: admits it if the debt including the cost is at most the burst.
pub(crate) fn step(limit: &Limit, state: &mut State, now: u64, cost: u64) -> Outcome {
    let debt = debt_at(limit, *state, now);
    let token = u128::from(limit.period_micros());
    let full = u128::from(limit.capacity()) * token;
    let wanted = debt + u128::from(cost.max(1)) * token;
    if wanted > full {
        let remaining = divide(full.saturating_sub(debt), limit.period_micros());
        let retry_after = drain_time(limit, wanted - full);
        let reset_after = drain_time(limit, debt);
        return Outcome::refused(remaining, retry_after, reset_after);
    }
    let after = debt + u128::from(cost) * token;
    let reset_after = drain_time(limit, after);
    if cost > 0 {
        *state = State::new(Timestamp::from_micros(now), reset_after, after);
    }
    Outcome::taken(divide(full - after, limit.period_micros()), reset_after)
}

/// Returns the state with the debt reduced by up to `cost` tokens.
pub(crate) fn refund(limit: &Limit, state: State, now: u64, cost: u64) -> State {
    // Nothing drains and nothing can be charged: the debt is from a previous limit.
    if limit.amount() == 0 {
        return state;
    }
    let back = u128::from(cost) * u128::from(limit.period_micros());
    let debt = debt_at(limit, state, now).saturating_sub(back);
    State::new(Timestamp::from_micros(now), drain_time(limit, debt), debt)
}

/// Returns how long a debt matters. With an amount of 0, nothing drains.
pub(super) fn lifetime(limit: &Limit, debt: u128) -> u64 {
    if limit.amount() == 0 { super::NEVER } else { drain_time(limit, debt) }
}

/// Returns the remaining debt. It may exceed the burst, if that was larger at the time of the charge. Capping
/// it would forgive the rest, again and again if two limits share one state.
#[inline]
fn debt_at(limit: &Limit, state: State, now: u64) -> u128 {
    let passed = now - state.at().as_micros();
    let drained = u128::from(passed) * u128::from(limit.amount());
    state.payload().saturating_sub(drained)
}

/// Returns the microseconds until `debt` has drained, rounded up.
#[inline]
pub(super) fn drain_time(limit: &Limit, debt: u128) -> u64 {
    let whole = divide(debt, limit.amount());
    let drained = u128::from(whole) * u128::from(limit.amount());
    whole + u64::from(drained < debt)
}

/// Computes `dividend / divisor`, with a native division if the dividend fits into 64 bits.
#[inline]
fn divide(dividend: u128, divisor: u64) -> u64 {
    match u64::try_from(dividend) {
        Ok(dividend) => dividend / divisor,
        Err(_) => {
            let whole = u64::try_from(dividend / u128::from(divisor));
            whole.map_or(super::NEVER - 1, |whole| whole.min(super::NEVER - 1))
        }
    }
}
