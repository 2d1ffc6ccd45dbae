//! Fixed windows, aligned to the Unix epoch. The state is the start of the window and the units used in it.
//!
//! Each window admits at most the amount. Around the boundary of two windows, up to twice the amount can be admitted in
//! a short time.

use super::{Outcome, State};
use crate::{Limit, clock::Timestamp};

/// The current window: its start in microseconds since the epoch, and its used units.
struct Window {
    start: u64,
    used: u64,
}

/// Decides `cost` at `now`. After a denial, the client can retry when the window ends.
#[inline]
pub(crate) fn step(limit: &Limit, state: &mut State, now: u64, cost: u64) -> Outcome {
    let window = Window::at(limit, *state, now);
    let free = limit.amount().saturating_sub(window.used);
    let until_end = window.start + limit.period_micros() - now;
    if cost.max(1) > free {
        let reset_after = window.reset_after(until_end);
        return Outcome::refused(free, until_end, reset_after);
    }
    let next = Window { start: window.start, used: window.used + cost };
    if cost > 0 {
        *state = next.state(limit);
    }
    Outcome::taken(free - cost, next.reset_after(until_end))
}

/// Returns the state with up to `cost` fewer used units. Units of earlier windows are not refunded.
pub(crate) fn refund(limit: &Limit, state: State, now: u64, cost: u64) -> State {
    let window = Window::at(limit, state, now);
    Window { start: window.start, used: window.used.saturating_sub(cost) }.state(limit)
}

impl Window {
    /// Returns the window that contains `now`. The caller ensures that `now` is not before the start in `state`. Only
    /// the first charge of a window needs a division.
    #[inline]
    fn at(limit: &Limit, state: State, now: u64) -> Self {
        let (start, used) = (state.at().as_micros(), state.payload() as u64);
        let period = limit.period_micros();
        if now - start < period {
            Self { start, used }
        } else {
            Self { start: now - now % period, used: 0 }
        }
    }

    /// Returns the state to store. It expires at the end of the window.
    #[inline]
    fn state(&self, limit: &Limit) -> State {
        let at = Timestamp::from_micros(self.start);
        State::new(at, limit.period_micros(), u128::from(self.used))
    }

    /// Returns the microseconds until all units are free: the rest of the window, or 0 if none is used.
    #[inline]
    fn reset_after(&self, until_end: u64) -> u64 {
        if self.used > 0 { until_end } else { 0 }
    }
}
