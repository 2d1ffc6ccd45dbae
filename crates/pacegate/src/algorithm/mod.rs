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
mod outcome;
mod packed;
pub(crate) mod sliding_window;
mod state;
pub(crate) mod token_bucket;

use std::{fmt, str::FromStr};

use crate::{Limit, clock::Timestamp};

pub use custom::{Custom, CustomAlgorithm};
pub use outcome::{Origin, Outcome};
pub use state::State;

pub(crate) use outcome::micros;

/// The algorithm of a limit. Parses from and prints as its [name](Algorithm::name).
///
/// Use the default, `fixed-window`, if a burst at a boundary is acceptable. Use `token-bucket` for a steady rate with a
/// burst, `sliding-log` for small limits that must hold in every period, such as login attempts, and `concurrency` for
/// work that runs for some time.
///
/// | algorithm | admits in any period | state |
/// |---|---|---|
/// | fixed-window | at most twice the amount, across a boundary | 16 bytes |
/// | sliding-window | less than twice the amount, and never a burst at a boundary | 16 bytes |
/// | sliding-log | at most the amount | 32 bytes per admitted instant |
/// | token-bucket | at most the burst plus the refill of the period | 16 bytes |
/// | concurrency | any number, if permits are released | 32 bytes per permit |
///
/// The text form is that of limits:
///
/// ```
/// use pacegate::{Algorithm, Limit};
///
/// let limit: Limit = "5/minute sliding-log".parse()?;
/// assert_eq!(limit.algorithm(), Algorithm::SlidingLog);
/// assert_eq!("token-bucket".parse(), Ok(Algorithm::TokenBucket));
/// # Ok::<(), pacegate::ParseLimitError>(())
/// ```
///
/// The page `docs/algorithms.md` of the repository compares them with pictures.
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

    /// The names of [`Algorithm::BUILT_IN`].
    pub const NAMES: [&'static str; Self::BUILT_IN.len()] = {
        let mut names = [""; Self::BUILT_IN.len()];
        let mut index = 0;
        while index < names.len() {
            names[index] = Self::BUILT_IN[index].facts().name;
            index += 1;
        }
        names
    };

    /// Returns the name used in limits, policies and documentation, such as `sliding-window`.
    pub fn name(self) -> &'static str {
        match self {
            Self::Custom(custom) => custom.name(),
            built_in => built_in.facts().name,
        }
    }

    /// Returns all names, for error messages.
    pub(crate) fn names() -> String {
        Self::NAMES.join(", ")
    }

    /// Returns a description of one line, for schemas and help texts. Empty for a custom algorithm.
    pub const fn summary(self) -> &'static str {
        self.facts().summary
    }

    /// Returns the number that stands for the algorithm in scripts and stored data. Numbers are never reused.
    /// `None` for a custom algorithm, which runs in this process only.
    ///
    /// ```
    /// use pacegate::Algorithm;
    ///
    /// let ids: Vec<_> = Algorithm::BUILT_IN.iter().filter_map(|algorithm| algorithm.id()).collect();
    /// assert_eq!(ids, [0, 1, 3, 2, 4]);
    /// ```
    pub const fn id(self) -> Option<u64> {
        self.facts().id
    }

    /// Returns the largest amount that a limit with this algorithm can have. [`Limit::with_algorithm`] rejects more.
    pub const fn max_amount(self) -> u64 {
        self.facts().max_amount
    }

    /// Returns true if the state is a list that grows with the amount, instead of a [`State`] of 16 bytes.
    #[inline]
    pub const fn keeps_log(self) -> bool {
        self.facts().keeps_log
    }

    /// Returns true if units are permits: the holder releases them, and they expire if it does not.
    #[inline]
    pub const fn holds_permits(self) -> bool {
        self.facts().holds_permits
    }

    /// Returns true if a limit can have a burst that differs from its amount.
    pub const fn has_burst(self) -> bool {
        self.facts().has_burst
    }

    /// Returns the number of windows in which a charge counts, or 0 if it does not count in windows. A window is
    /// one period long and aligned to the Unix epoch.
    pub const fn windows(self) -> u64 {
        self.facts().windows
    }

    /// Returns true if units can be charged before the request that spends them. All instants of a window are
    /// equivalent. In the other algorithms they are not: a token bucket refills from the charge on, whether or not
    /// the units have been spent.
    pub const fn can_be_leased(self) -> bool {
        self.facts().windows > 0
    }

    /// The table of facts. By value, so that a caller which needs one fact does not read memory.
    #[inline]
    const fn facts(self) -> Facts {
        match self {
            Self::FixedWindow => Facts {
                name: "fixed-window",
                summary: "Counts in windows aligned to the Unix epoch. The cheapest algorithm; admits up to twice \
                          the amount across a boundary.",
                id: Some(0),
                windows: 1,
                ..Facts::DEFAULT
            },
            Self::SlidingWindow => Facts {
                name: "sliding-window",
                summary: "Counts in two windows; the previous one is weighted by its overlap with the period that \
                          ends now.",
                id: Some(1),
                max_amount: sliding_window::MAX_AMOUNT,
                windows: 2,
                ..Facts::DEFAULT
            },
            Self::SlidingLog => Facts {
                name: "sliding-log",
                summary: "Stores the time of every admission: exact in every window. At most 10,000 units.",
                id: Some(3),
                max_amount: log::MAX_AMOUNT,
                keeps_log: true,
                ..Facts::DEFAULT
            },
            Self::TokenBucket => Facts {
                name: "token-bucket",
                summary: "Refills at a constant rate, up to the burst.",
                id: Some(2),
                has_burst: true,
                ..Facts::DEFAULT
            },
            Self::Concurrency => Facts {
                name: "concurrency",
                summary: "Limits the permits held at the same time. The period is the lifetime of a permit that is \
                          neither released nor renewed.",
                id: Some(4),
                max_amount: log::MAX_AMOUNT,
                keeps_log: true,
                holds_permits: true,
                ..Facts::DEFAULT
            },
            Self::Custom(_) => Facts { name: "custom", ..Facts::DEFAULT },
        }
    }
}

/// Facts about one algorithm. Other crates read them through methods of [`Algorithm`], so that a new algorithm needs no
/// change there.
struct Facts {
    name: &'static str,
    summary: &'static str,
    id: Option<u64>,
    max_amount: u64,
    keeps_log: bool,
    holds_permits: bool,
    has_burst: bool,
    windows: u64,
}

impl Facts {
    const DEFAULT: Self = Self {
        name: "",
        summary: "",
        id: None,
        max_amount: Limit::MAX_AMOUNT,
        keeps_log: false,
        holds_permits: false,
        has_burst: false,
        windows: 0,
    };
}

impl fmt::Display for Algorithm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Error of parsing an [`Algorithm`]: the name is unknown. The message lists the built-in names.
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
            (_, windows @ 1..) => (at - at % period).saturating_add(windows * period),
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
        // Custom algorithms get the state unchanged.
        Algorithm::Custom(_) => return,
        algorithm if algorithm.windows() > 0 => now - now % limit.period_micros(),
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
