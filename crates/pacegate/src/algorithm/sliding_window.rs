//! Two aligned windows: the units of the current one, plus those of the previous one, weighted by its overlap
//! with the period that ends now. Compared in integers: `previous × (period − elapsed) + current × period`.

use super::{Excess, Outcome, State};
use crate::{Algorithm, Limit, clock::Timestamp};

/// Both counts fit into the payload.
const MAX_AMOUNT: u64 = Algorithm::SlidingWindow.max_amount();

/// The bits of each count in the payload: enough for [`MAX_AMOUNT`].
const COUNT_BITS: u32 = 34;
const COUNT_MASK: u128 = (1 << COUNT_BITS) - 1;

/// The start of the current window in microseconds since the epoch, and the used units of both windows.
struct Windows {
    start: u64,
    current: u64,
    previous: u64,
}

/// Decides `cost` at `now`. A denied cost can be admitted when the weight of the previous window is low enough.
pub(crate) fn step(limit: &Limit, state: &mut State, now: u64, cost: u64) -> Outcome {
    let windows = Windows::at(limit, *state, now);
    let elapsed = now - windows.start;
    let free = windows.free(limit, elapsed);
    if cost.max(1) > free {
        let retry_after = windows.retry_after(limit, elapsed, cost.max(1));
        let reset_after = windows.reset_after(limit, elapsed);
        return Outcome::refused(free, retry_after, reset_after);
    }
    let next = Windows { current: windows.current + cost, ..windows };
    if cost > 0 {
        *state = next.state(limit);
    }
    Outcome::taken(free - cost, next.reset_after(limit, elapsed))
}

/// Refunds from the current window first: refunded units were most likely charged a moment ago.
pub(crate) fn refund(limit: &Limit, state: State, now: u64, cost: u64) -> State {
    let windows = Windows::at(limit, state, now);
    let from_current = cost.min(windows.current);
    let from_previous = (cost - from_current).min(windows.previous);
    let next = Windows {
        start: windows.start,
        current: windows.current - from_current,
        previous: windows.previous - from_previous,
    };
    next.state(limit)
}

/// Returns units to the window in which they were charged, unless it no longer counts.
pub(super) fn return_units(
    limit: &Limit,
    state: State,
    now: u64,
    charged_at: u64,
    units: u64,
) -> State {
    let mut windows = Windows::at(limit, state, now);
    if charged_at >= windows.start {
        windows.current = windows.current.saturating_sub(units);
    } else if charged_at + limit.period_micros() >= windows.start {
        windows.previous = windows.previous.saturating_sub(units);
    }
    windows.state(limit)
}

/// Returns the used units, rounded up.
pub(super) fn used(limit: &Limit, state: State, now: u64, _: Excess) -> u64 {
    let windows = Windows::at(limit, state, now);
    windows.used(limit, now - windows.start)
}

/// Returns the state with `units` more in the current window.
pub(super) fn add(limit: &Limit, state: State, now: u64, units: u64, _: Excess) -> State {
    let windows = Windows::at(limit, state, now);
    Windows { current: windows.current + units, ..windows }.state(limit)
}

/// Returns the counts of the current and the previous window.
pub(super) fn to_words(_: &Limit, state: State) -> (u64, u64) {
    unpack(state.payload())
}

/// Reverses [`to_words`]: returns the lifetime and the payload.
pub(super) fn from_words(limit: &Limit, current: u64, previous: u64) -> (u64, u128) {
    (2 * limit.period_micros(), pack(current.min(MAX_AMOUNT), previous.min(MAX_AMOUNT)))
}

impl Windows {
    /// Returns the windows at `now`, which is not before the state.
    fn at(limit: &Limit, state: State, now: u64) -> Self {
        let (start, payload) = (state.at().as_micros(), state.payload());
        let (current, previous) = unpack(payload);
        let period = limit.period_micros();
        match now - start {
            passed if passed < period => Self { start, current, previous },
            passed if passed < 2 * period => {
                Self { start: start + period, current: 0, previous: current }
            }
            _ => Self { start: now - now % period, current: 0, previous: 0 },
        }
    }

    /// Returns the state to store. It lives for two periods, because the current window counts in the next one too.
    fn state(&self, limit: &Limit) -> State {
        let payload = pack(self.current, self.previous);
        State::new(Timestamp::from_micros(self.start), 2 * limit.period_micros(), payload)
    }

    /// Returns the whole free units.
    fn free(&self, limit: &Limit, elapsed: u64) -> u64 {
        limit.amount().saturating_sub(self.used(limit, elapsed))
    }

    /// Returns the units of the current window, plus the weighted ones of the previous window, rounded up.
    fn used(&self, limit: &Limit, elapsed: u64) -> u64 {
        let weight = u128::from(limit.period_micros() - elapsed);
        let overlap = u128::from(self.previous) * weight;
        self.current + overlap.div_ceil(u128::from(limit.period_micros())) as u64
    }

    /// Returns the time until the previous window has faded enough: in the current window, or else in the
    /// next one, where the current window has become the previous one.
    fn retry_after(&self, limit: &Limit, elapsed: u64, cost: u64) -> u64 {
        let period = limit.period_micros();
        if let Some(room) = limit.amount().checked_sub(self.current + cost) {
            let at = fades_at(period, room, self.previous);
            if at < period {
                return at - elapsed;
            }
        }
        period - elapsed + fades_at(period, limit.amount() - cost, self.current)
    }

    /// Returns the microseconds until neither window counts.
    fn reset_after(&self, limit: &Limit, elapsed: u64) -> u64 {
        let period = limit.period_micros();
        match (self.current, self.previous) {
            (0, 0) => 0,
            (0, _) => period - elapsed,
            _ => 2 * period - elapsed,
        }
    }
}

/// Packs the counts of the current and the previous window, each at most [`MAX_AMOUNT`], into a payload.
fn pack(current: u64, previous: u64) -> u128 {
    u128::from(previous) << COUNT_BITS | u128::from(current)
}

/// Reverses [`pack`].
fn unpack(payload: u128) -> (u64, u64) {
    ((payload & COUNT_MASK) as u64, (payload >> COUNT_BITS) as u64)
}

/// Returns the first elapsed time at which `count`, fading over `period`, weighs at most `room`.
fn fades_at(period: u64, room: u64, count: u64) -> u64 {
    if count <= room {
        return 0;
    }
    let keeps = u128::from(room) * u128::from(period) / u128::from(count);
    period - keeps as u64
}
