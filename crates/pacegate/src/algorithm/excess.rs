//! Charges that are recorded even if they exceed the limit.

use super::{Algorithm, Outcome, State, fixed_window, step};
use crate::{Limit, clock::Timestamp};

/// Decides what happens to a charge that does not fit its limit.
///
/// Concurrency limits and custom algorithms always reject.
///
/// ```
/// use pacegate::{Excess, Limit, Timestamp, algorithm::State};
///
/// let (limit, mut state) = (Limit::per_minute(10), State::EMPTY);
/// let now = Timestamp::from_secs(60);
/// let (outcome, taken) = limit.charge(&mut state, now, 15, Excess::Debt { max: 10 });
/// assert!(!outcome.is_admitted());
/// assert_eq!(taken, 15);
/// let later = limit.step(&mut state, Timestamp::from_secs(120), 0);
/// assert_eq!(later.remaining(), 5, "the debt of 5 is carried into the next window");
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Excess {
    /// The charge is denied and takes nothing.
    #[default]
    Reject,
    /// The charge is denied, but counted in full. Fixed windows do not carry the excess into the next window, and count
    /// nothing while they have debt.
    ///
    /// A cost of 0 is admitted until the counter exceeds the limit. The outcome of a denial has the units that were
    /// free before. envoyproxy/ratelimit counts like this.
    Count,
    /// The charge is denied, but recorded in full: its units have already been spent. Later requests wait until the
    /// debt is paid back: fixed windows carry it into later windows, buckets refill, and other algorithms forget it
    /// after their period.
    Debt {
        /// The maximum debt, in units beyond the capacity. Units above it are not recorded.
        max: u64,
    },
}

impl Excess {
    /// Returns `true` if units are recorded even if they do not fit.
    #[inline]
    pub fn is_recorded(self) -> bool {
        self != Self::Reject
    }

    /// Returns how a limit treats the excess: some algorithms always reject, and a counter has a maximum.
    #[must_use]
    pub fn under(self, limit: &Limit) -> Self {
        let algorithm = limit.algorithm();
        let can_record = algorithm.id().is_some() && !algorithm.holds_permits();
        match self {
            _ if !can_record => Self::Reject,
            Self::Count if limit.amount() == 0 && algorithm != Algorithm::FixedWindow => {
                Self::Reject
            }
            Self::Debt { .. } if limit.amount() == 0 => Self::Reject,
            Self::Debt { max } => Self::Debt { max: max.min(limit.max_excess()) },
            other => other,
        }
    }

    /// Returns the units that may be recorded beyond the capacity of a limit.
    fn max_units(self, limit: &Limit) -> u64 {
        match self {
            Self::Reject => 0,
            Self::Count => limit.max_excess(),
            Self::Debt { max } => max.min(limit.max_excess()),
        }
    }
}

impl Limit {
    /// Decides `cost` as [`Limit::step`] does, but treats a cost that does not fit by `excess`. Returns the outcome and
    /// the units taken.
    ///
    /// If recorded units exceed the limit, the outcome is a denial, and `retry_after` is the time until one more unit
    /// is available.
    ///
    /// # Panics
    ///
    /// Panics if the algorithm [keeps a log](Algorithm::keeps_log).
    pub fn charge(
        &self,
        state: &mut State,
        now: Timestamp,
        cost: u64,
        excess: Excess,
    ) -> (Outcome, u64) {
        match excess.under(self) {
            Excess::Reject => {
                let outcome = self.step(state, now, cost);
                (outcome, if outcome.is_admitted() { cost } else { 0 })
            }
            excess => record(self, state, now.as_micros(), cost, excess),
        }
    }

    /// Returns the units that a counter can hold beyond the capacity.
    pub fn max_excess(&self) -> u64 {
        let mut most = self.algorithm().max_amount();
        if self.algorithm().has_burst() {
            let tokens = crate::limit::MAX_DEBT / u128::from(self.period_micros());
            most = most.min(u64::try_from(tokens).unwrap_or(u64::MAX));
        }
        most.saturating_sub(self.capacity())
    }
}

/// Decides `cost` at `now`, and treats a cost that does not fit by `excess`. Returns the outcome and the units taken.
#[inline]
pub(crate) fn charge(
    limit: &Limit,
    state: &mut State,
    now: u64,
    cost: u64,
    excess: Excess,
) -> (Outcome, u64) {
    if excess.is_recorded() {
        let (outcome, units) = record(limit, state, now, cost, excess);
        return (outcome, units);
    }
    let outcome = step(limit, state, now, cost);
    (outcome, if outcome.is_admitted() { cost } else { 0 })
}

/// [`charge`], for an excess that is recorded [under](Excess::under) this limit.
#[cold]
fn record(limit: &Limit, state: &mut State, now: u64, cost: u64, excess: Excess) -> (Outcome, u64) {
    if cost <= limit.capacity() {
        let outcome = step(limit, state, now, cost);
        if outcome.is_admitted() {
            return (outcome, cost);
        }
    }
    if state.at().as_micros() > now {
        super::rebase(limit, state, now);
    }
    let used = dispatch!(limit, used(limit, *state, now, excess));
    if excess == Excess::Count && cost == 0 && used <= limit.capacity() {
        return (Outcome::taken(0, step(limit, state, now, 0).reset_after), 0);
    }
    let units = match excess {
        Excess::Count if fixed_window::has_debt(limit, *state, now) => 0,
        _ => units(limit, used, cost, excess),
    };
    if units > 0 {
        *state = dispatch!(limit, add(limit, *state, now, units, excess));
    }
    let outcome = step(limit, state, now, 0);
    (Outcome { remaining: free_before(limit, used, excess), ..outcome }, units)
}

/// Returns the remaining units that a denial reports: none, or if the excess is only counted, those that were free.
pub(super) fn free_before(limit: &Limit, used: u64, excess: Excess) -> u64 {
    if excess == Excess::Count { limit.capacity().saturating_sub(used) } else { 0 }
}

/// Returns the units to record of `cost`, if `used` units are in use.
pub(super) fn units(limit: &Limit, used: u64, cost: u64, excess: Excess) -> u64 {
    cost.min((limit.capacity() + excess.max_units(limit)).saturating_sub(used))
}
