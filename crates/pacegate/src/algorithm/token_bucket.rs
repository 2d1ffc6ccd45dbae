//! A token bucket, which refills at a constant rate. The state is the debt: the tokens missing from a full bucket.
//!
//! The debt is stored in a small unit: one token is `period` units (the period in microseconds), and `amount` units
//! drain in each microsecond. So every rate is an integer, and no rounding errors add up. The unit does not depend on
//! the amount, so a changed amount applies from the next decision on, without a conversion of the state.

use super::{Excess, Outcome, ReturnedTokens, State};
use crate::{Limit, clock::Timestamp};

/// Decides `cost` at `now`: admits it if the debt including the cost is at most the burst.
#[inline]
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
    // A limit of 0 neither charges nor drains. The debt is from an earlier limit and stays.
    if limit.amount() == 0 {
        return state;
    }
    let back = u128::from(cost) * u128::from(limit.period_micros());
    let debt = debt_at(limit, state, now).saturating_sub(back);
    State::new(Timestamp::from_micros(now), drain_time(limit, debt), debt)
}

/// Returns tokens that are [owed].
pub(super) fn return_units(limit: &Limit, state: State, now: u64, _: u64, tokens: u64) -> State {
    refund(limit, state, now, tokens)
}

/// Returns the tokens of an earlier charge that are still missing. `charged` is the state just after
/// that charge of `units`, and `since` the tokens that were returned to the bucket after it.
///
/// Only refilled and refunded tokens are gone, so at least the rest of the charge is still missing. And tokens are
/// refilled in the order in which they were taken, so those of the charge are the last of its debt; what others return
/// may have been ahead of them. The larger of both numbers is owed. It is exact if nothing was refilled, or if only
/// earlier charges returned tokens. Otherwise it may be too low, but never too high.
pub(super) fn owed(
    limit: &Limit,
    now: u64,
    mut charged: State,
    units: u64,
    since: ReturnedTokens,
) -> u64 {
    if charged.at().as_micros() > now {
        charged = charged.moved_to(Timestamp::from_micros(now));
    }
    let own = State::new(charged.at(), 0, u128::from(units) * u128::from(limit.period_micros()));
    let [missing, own] = [charged, own]
        .map(|state| divide(debt_at(limit, state, now), limit.period_micros()))
        .map(|tokens| tokens.saturating_sub(since.refunded));
    missing.saturating_sub(since.settled).max(own)
}

/// Returns the tokens missing from a full bucket, rounded up.
pub(super) fn used(limit: &Limit, state: State, now: u64, _: Excess) -> u64 {
    let token = u128::from(limit.period_micros());
    divide(debt_at(limit, state, now) + token - 1, limit.period_micros())
}

/// Returns the state with `tokens` more missing.
pub(super) fn add(limit: &Limit, state: State, now: u64, tokens: u64, _: Excess) -> State {
    let more = u128::from(tokens) * u128::from(limit.period_micros());
    let debt = (debt_at(limit, state, now) + more).min(State::MAX_PAYLOAD);
    State::new(Timestamp::from_micros(now), drain_time(limit, debt), debt)
}

/// Returns the whole tokens that are missing, and the rest of the debt.
pub(super) fn to_words(limit: &Limit, state: State) -> (u64, u64) {
    let period = u128::from(limit.period_micros());
    // No state that a step has created has a larger debt.
    let debt = state.payload().min(u128::from(Limit::MAX_AMOUNT) * period);
    ((debt / period) as u64, (debt % period) as u64)
}

/// Reverses [`to_words`]: returns the lifetime and the payload. A debt is stored until it has drained. An amount of 0
/// never drains.
pub(super) fn from_words(limit: &Limit, tokens: u64, rest: u64) -> (u64, u128) {
    let debt = u128::from(tokens) * u128::from(limit.period_micros());
    let debt = (debt + u128::from(rest)).min(State::MAX_PAYLOAD);
    (if limit.amount() == 0 { super::NEVER } else { drain_time(limit, debt) }, debt)
}

/// Returns the debt at `now`. It may exceed the burst if the burst was larger at the time of the charge. It is not
/// capped at the burst: that would refund the excess, repeatedly if two limits with different bursts share one state.
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
