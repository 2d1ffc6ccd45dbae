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
    debt: Option<Debt>,
}

/// The units beyond the amount are carried into the next window. There are such units then.
#[derive(Clone, Copy)]
struct Debt {
    /// Used units that are not carried: excess that was only counted, or that is from a higher limit.
    uncarried: u64,
}

/// The bits of the used units in the payload.
const USED_BITS: u32 = 50;
/// The bit of the payload that is set if there is debt. The [packed](Debt::pack) debt follows.
const DEBT: u64 = 1 << USED_BITS;
/// The number of significant bits of uncarried units that are kept.
const UNCARRIED_BITS: u32 = 12;
/// Stores whose states are three integers multiply the packed debt by this number: see [`to_words`].
const DEBT_WORD: u64 = 1 << 35;

const _: () = assert!(Limit::MAX_AMOUNT < DEBT);

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
    let next = Window { used: window.used + cost, debt: None, ..window };
    if cost > 0 {
        *state = next.state(limit);
    }
    Outcome::taken(free - cost, next.reset_after(limit, now))
}

/// Decides a cost above 0 as [`step`] does, if the state is of the current window and has no debt. The caller ensures
/// that `now` is not before the start in `state`.
#[inline(always)]
pub(super) fn step_in_window(
    limit: &Limit,
    state: &mut State,
    now: u64,
    cost: u64,
) -> Option<Outcome> {
    // 0 for a calendar period.
    let period = limit.packed_period().fixed_micros();
    let passed = now - state.at().as_micros();
    let used = state.payload() as u64;
    if passed >= period || used & DEBT != 0 {
        return None;
    }
    let (free, left) = (limit.amount().saturating_sub(used), period - passed);
    if cost > free {
        return (limit.amount() > 0).then(|| Outcome::refused(free, left, left));
    }
    // The window stays the same, and so does the rest of the state.
    state.add_to_payload(cost);
    Some(Outcome::taken(free - cost, left))
}

/// Returns the state with up to `cost` fewer used units. Units of earlier windows are not refunded, except debt.
pub(crate) fn refund(limit: &Limit, state: State, now: u64, cost: u64) -> State {
    let window = Window::at(limit, state, now);
    Window { used: window.used.saturating_sub(cost), ..window }
        .without_paid_debt(limit)
        .state(limit)
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

/// Returns the used units before a charge with this excess. If it becomes debt, those are the units that are carried,
/// and at least so many that the counter does not overflow.
pub(super) fn used(limit: &Limit, state: State, now: u64, excess: Excess) -> u64 {
    let window = Window::at(limit, state, now);
    let Excess::Debt { max } = excess else { return window.used };
    let spare = Limit::MAX_AMOUNT - limit.amount() - max;
    window.carried(limit).max(window.used.saturating_sub(spare))
}

/// Returns `true` if this is a fixed window with debt.
pub(super) fn has_debt(limit: &Limit, state: State, now: u64) -> bool {
    limit.algorithm() == Algorithm::FixedWindow && Window::at(limit, state, now).owes(limit)
}

/// Returns the state with `units` more, which exceed the amount.
pub(super) fn add(limit: &Limit, state: State, now: u64, units: u64, excess: Excess) -> State {
    let window = Window::at(limit, state, now);
    let debt = match excess {
        Excess::Debt { .. } => Some(Debt { uncarried: window.used - window.carried(limit) }),
        // There is no debt under this limit, because nothing is counted while there is.
        _ => None,
    };
    Window { used: window.used + units, debt, ..window }.without_paid_debt(limit).state(limit)
}

/// Returns the used units; and 1 plus the packed debt times [`DEBT_WORD`], or 0 without debt. The Lua scripts store the
/// number of the window instead of the 1 if the period is one of a calendar.
pub(super) fn to_words(_: &Limit, state: State) -> (u64, u64) {
    let (used, debt) = unpack(state.payload());
    (used.min(Limit::MAX_AMOUNT), debt.map_or(0, |debt| 1 + debt.pack() * DEBT_WORD))
}

/// Reverses [`to_words`]: returns the lifetime and the payload.
pub(super) fn from_words(limit: &Limit, used: u64, debt: u64) -> (u64, u128) {
    let used = used.min(Limit::MAX_AMOUNT);
    let debt = (debt > 0).then(|| Debt::unpack(debt / DEBT_WORD));
    (lifetime(limit, used, debt), pack(used, debt))
}

impl Debt {
    /// Returns the uncarried units as a number of 18 bits: the [`UNCARRIED_BITS`] highest bits of the units, and how
    /// often they were halved for that. Rounded down, so that rather too much is carried than too little.
    fn pack(self) -> u64 {
        let halvings = (64 - self.uncarried.leading_zeros()).saturating_sub(UNCARRIED_BITS);
        u64::from(halvings) << UNCARRIED_BITS | self.uncarried >> halvings
    }

    /// Reverses [`Debt::pack`].
    fn unpack(packed: u64) -> Self {
        let halvings = (packed >> UNCARRIED_BITS).min(u64::from(USED_BITS - UNCARRIED_BITS));
        Self { uncarried: (packed & ((1 << UNCARRIED_BITS) - 1)) << halvings }
    }
}

impl Window {
    /// Returns the window that contains `now`. The caller ensures that `now` is not before the start in `state`. Only
    /// the first charge of a window needs a division.
    #[inline]
    fn at(limit: &Limit, state: State, now: u64) -> Self {
        let (start, (used, debt)) = (state.at().as_micros(), unpack(state.payload()));
        // 0 for a calendar period.
        let period = limit.packed_period().fixed_micros();
        if now - start < period {
            return Self { start, end: start + period, used, debt };
        }
        let current = window(limit, now);
        let (used, debt) = match debt {
            _ if current.start <= start => (used, debt),
            Some(debt) => {
                let windows = current.number - window(limit, start).number;
                rest(limit, used.saturating_sub(debt.uncarried), windows)
            }
            None => (0, None),
        };
        Self { start: current.start.max(start), end: current.end, used, debt }
    }

    /// Returns `true` if there is debt under this limit, which may be higher than that of the last charge.
    fn owes(&self, limit: &Limit) -> bool {
        self.debt.is_some_and(|debt| self.used.saturating_sub(debt.uncarried) > limit.amount())
    }

    /// Returns the used units that the amounts of this and of later windows pay for.
    fn carried(&self, limit: &Limit) -> u64 {
        match self.debt {
            Some(debt) if self.owes(limit) => self.used - debt.uncarried,
            _ => self.used.min(limit.amount()),
        }
    }

    fn without_paid_debt(self, limit: &Limit) -> Self {
        Self { debt: self.debt.filter(|_| self.owes(limit)), ..self }
    }

    /// Returns the state to store. It expires at the end of the window, or when the debt is paid.
    #[inline]
    fn state(&self, limit: &Limit) -> State {
        let at = Timestamp::from_micros(self.start);
        State::new(at, lifetime(limit, self.used, self.debt), pack(self.used, self.debt))
    }

    /// Returns the microseconds until `cost` fits, if it does not fit now.
    #[inline]
    fn retry_after(&self, limit: &Limit, now: u64, cost: u64) -> u64 {
        if self.debt.is_none() {
            return self.end - now;
        }
        let windows = (self.carried(limit) + cost).saturating_sub(limit.amount());
        self.end_after(limit, windows.div_ceil(limit.amount()).max(1) - 1) - now
    }

    /// Returns the microseconds until all units are free: the rest of the window, and those that pay the debt. 0 if
    /// none is used.
    #[inline]
    fn reset_after(&self, limit: &Limit, now: u64) -> u64 {
        if self.used == 0 {
            return 0;
        }
        if self.debt.is_none() {
            return self.end - now;
        }
        self.end_after(limit, self.carried(limit).div_ceil(limit.amount()).max(1) - 1) - now
    }

    /// Returns the end of the window that is this many windows later.
    #[cold]
    fn end_after(&self, limit: &Limit, windows: u64) -> u64 {
        start_of(limit, window(limit, self.end).number.saturating_add(windows))
    }
}

/// Returns the units that are left of `carried` after this many windows, and the debt among them.
#[cold]
fn rest(limit: &Limit, carried: u64, windows: u64) -> (u64, Option<Debt>) {
    let used = carried.saturating_sub(windows.saturating_mul(limit.amount()));
    (used, (used > limit.amount()).then_some(Debt { uncarried: 0 }))
}

/// Returns a time in microseconds from the start of the window, after which its units no longer count.
#[inline]
fn lifetime(limit: &Limit, used: u64, debt: Option<Debt>) -> u64 {
    let longest = limit.max_window_micros();
    let Some(debt) = debt else { return longest };
    let windows = used.saturating_sub(debt.uncarried).div_ceil(limit.amount().max(1)).max(1);
    windows.saturating_mul(longest).min(NEVER / 4)
}

/// Packs the used units and the debt. Reversed by [`unpack`].
#[inline]
fn pack(used: u64, debt: Option<Debt>) -> u128 {
    let used = u128::from(used & (DEBT - 1));
    match debt {
        Some(debt) => used | u128::from(DEBT) | u128::from(debt.pack()) << (USED_BITS + 1),
        None => used,
    }
}

/// Returns the used units and the debt.
#[inline]
fn unpack(payload: u128) -> (u64, Option<Debt>) {
    let low = payload as u64;
    let has_debt = low & DEBT != 0;
    (low & (DEBT - 1), has_debt.then(|| Debt::unpack((payload >> (USED_BITS + 1)) as u64)))
}
