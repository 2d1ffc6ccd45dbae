//! Fixed windows, aligned to the Unix epoch or to a calendar. The state is the start of the window and the units used
//! in it.
//!
//! Each window admits at most the amount. Around the boundary of two windows, up to twice the amount can be admitted in
//! a short time. Units that were recorded as debt beyond the amount count in the next windows, until they are paid
//! back.

use super::{
    Algorithm, Excess, NEVER, Outcome, State,
    window::{start_of, window},
};
use crate::{Limit, clock::Timestamp};

/// The current window: its start and end in microseconds since the epoch, and its used units.
struct Window {
    start: u64,
    end: u64,
    used: u64,
    /// `true` if the units beyond the amount are carried into the next window. There are such units then.
    has_debt: bool,
}

/// The bit of the payload that is set if there is debt. Units have fewer bits.
const DEBT: u64 = 1 << 60;

/// Decides `cost` at `now`. After a denial, the client can retry when the window ends, or when its debt is paid.
///
/// Inlined: this is the common case, and so short that a call would double its time.
#[inline]
pub(crate) fn step(limit: &Limit, state: &mut State, now: u64, cost: u64) -> Outcome {
    let window = Window::at(limit, *state, now);
    let free = limit.amount().saturating_sub(window.used);
    if cost.max(1) > free {
        let reset_after = window.reset_after(limit, now);
        let retry_after = window.retry_after(limit, now, cost.max(1));
        return Outcome::refused(free, retry_after, reset_after);
    }
    let next = Window { used: window.used + cost, has_debt: false, ..window };
    if cost > 0 {
        *state = next.state(limit);
    }
    Outcome::taken(free - cost, next.reset_after(limit, now))
}

/// Returns the state with up to `cost` fewer used units. Units of earlier windows are not refunded, except debt.
pub(crate) fn refund(limit: &Limit, state: State, now: u64, cost: u64) -> State {
    let window = Window::at(limit, state, now);
    let used = window.used.saturating_sub(cost);
    Window { used, has_debt: window.has_debt && used > limit.amount(), ..window }.state(limit)
}

/// Returns units of an earlier charge, unless its window is over.
pub(super) fn return_units(
    limit: &Limit,
    state: State,
    now: u64,
    charged_at: u64,
    units: u64,
) -> State {
    let is_over = charged_at < Window::at(limit, state, now).start;
    if is_over { state } else { refund(limit, state, now, units) }
}

/// Returns the used units before a charge with this excess. Debt does not include excess that was only counted, or that
/// is from a higher limit.
pub(super) fn used(limit: &Limit, state: State, now: u64, excess: Excess) -> u64 {
    let window = Window::at(limit, state, now);
    match excess {
        Excess::Debt { .. } if !window.owes(limit) => window.used.min(limit.amount()),
        _ => window.used,
    }
}

/// Returns `true` if this is a fixed window with debt.
pub(super) fn has_debt(limit: &Limit, state: State, now: u64) -> bool {
    limit.algorithm() == Algorithm::FixedWindow && Window::at(limit, state, now).owes(limit)
}

/// Returns the state with `units` more, which exceed the amount.
pub(super) fn add(limit: &Limit, state: State, now: u64, units: u64, excess: Excess) -> State {
    let window = Window::at(limit, state, now);
    let is_debt = matches!(excess, Excess::Debt { .. });
    let used = used(limit, state, now, excess) + units;
    let has_debt = (window.owes(limit) || is_debt) && used > limit.amount();
    Window { used, has_debt, ..window }.state(limit)
}

/// Returns the used units, and 1 if there is debt.
pub(super) fn to_words(_: &Limit, state: State) -> (u64, u64) {
    let (used, has_debt) = unpack(state.payload());
    (used.min(Limit::MAX_AMOUNT), u64::from(has_debt))
}

/// Reverses [`to_words`]: returns the lifetime and the payload.
pub(super) fn from_words(limit: &Limit, used: u64, has_debt: u64) -> (u64, u128) {
    let (used, has_debt) = (used.min(Limit::MAX_AMOUNT), has_debt > 0);
    (lifetime(limit, used, has_debt), pack(used, has_debt))
}

impl Window {
    /// Returns the window that contains `now`. The caller ensures that `now` is not before the start in `state`. Only
    /// the first charge of a window needs a division.
    #[inline]
    fn at(limit: &Limit, state: State, now: u64) -> Self {
        let (start, (used, has_debt)) = (state.at().as_micros(), unpack(state.payload()));
        // 0 for a calendar period.
        let period = limit.packed_period().fixed_micros();
        if now - start < period {
            return Self { start, end: start + period, used, has_debt };
        }
        let current = window(limit, now);
        let (used, has_debt) = match has_debt {
            _ if current.start <= start => (used, has_debt),
            true => rest(limit, used, current.number - window(limit, start).number),
            false => (0, false),
        };
        Self { start: current.start.max(start), end: current.end, used, has_debt }
    }

    /// Returns `true` if there is debt under this limit, which may be higher than that of the last charge.
    fn owes(&self, limit: &Limit) -> bool {
        self.has_debt && self.used > limit.amount()
    }

    /// Returns the state to store. It expires at the end of the window, or when the debt is paid.
    #[inline]
    fn state(&self, limit: &Limit) -> State {
        let at = Timestamp::from_micros(self.start);
        State::new(at, lifetime(limit, self.used, self.has_debt), pack(self.used, self.has_debt))
    }

    /// Returns the microseconds until `cost` fits, if it does not fit now.
    #[inline]
    fn retry_after(&self, limit: &Limit, now: u64, cost: u64) -> u64 {
        if !self.has_debt {
            return self.end - now;
        }
        let windows = (self.used + cost - limit.amount()).div_ceil(limit.amount());
        self.end_after(limit, windows - 1) - now
    }

    /// Returns the microseconds until all units are free: the rest of the window, and those that pay the debt. 0 if
    /// none is used.
    #[inline]
    fn reset_after(&self, limit: &Limit, now: u64) -> u64 {
        match self.used {
            0 => 0,
            used if self.has_debt => self.end_after(limit, used.div_ceil(limit.amount()) - 1) - now,
            _ => self.end - now,
        }
    }

    /// Returns the end of the window that is this many windows later.
    #[cold]
    fn end_after(&self, limit: &Limit, windows: u64) -> u64 {
        start_of(limit, window(limit, self.end).number.saturating_add(windows))
    }
}

/// Returns the units that are left of `used` after this many windows, and `true` if there is debt among them.
#[cold]
fn rest(limit: &Limit, used: u64, windows: u64) -> (u64, bool) {
    let used = used.saturating_sub(windows.saturating_mul(limit.amount()));
    (used, used > limit.amount())
}

/// Returns a time in microseconds from the start of the window, after which its units no longer count.
#[inline]
fn lifetime(limit: &Limit, used: u64, has_debt: bool) -> u64 {
    let longest = limit.max_window_micros();
    match has_debt {
        true => used.div_ceil(limit.amount().max(1)).max(1).saturating_mul(longest).min(NEVER / 4),
        false => longest,
    }
}

/// Packs the used units and `true` if there is debt. Reversed by [`unpack`].
#[inline]
fn pack(used: u64, has_debt: bool) -> u128 {
    u128::from(used & (DEBT - 1) | if has_debt { DEBT } else { 0 })
}

/// Returns the used units, and `true` if there is debt.
#[inline]
fn unpack(payload: u128) -> (u64, bool) {
    let payload = payload as u64;
    (payload & (DEBT - 1), payload & DEBT != 0)
}
