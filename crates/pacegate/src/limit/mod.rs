//! [`Limit`]: an amount per period, valid by construction. Its algorithm, its text, and the rule for policy names.
//!
//! `pacegate-macros` compiles these files too, through a symbolic link: it validates limits in the compiler, and cannot
//! depend on this crate, which depends on it. So they use nothing else of this crate but `algorithm::Custom`.

mod algorithm;
mod calendar;
mod name;
mod period;
mod text;

use std::time::Duration;

pub use algorithm::{Algorithm, UnknownAlgorithm};
pub use calendar::Calendar;
#[cfg(feature = "calendar")]
pub(crate) use calendar::CalendarUnit;
pub use name::PolicyNameError;
pub(crate) use name::{INLINE_NAME, check_name};
pub(crate) use period::Period;
pub use text::ParseLimitError;

/// An amount per period, counted by an [`Algorithm`].
///
/// Can be parsed from and formatted as text: `100/minute`, `10/second burst 20`, `5/30s`, `1/500us`,
/// `3/250ms sliding-log`. Every existing limit is valid, so code that uses one need not check it again.
///
/// ```
/// use pacegate::{Algorithm, Limit};
///
/// let limit: Limit = "10/second burst 20".parse()?;
/// assert_eq!(limit, Limit::per_second(10).with_burst(20)?);
/// assert_eq!(limit.algorithm(), Algorithm::TokenBucket);
/// assert_eq!(limit.to_string(), "10/second burst 20");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Parts of a limit
///
/// - The amount: units per period. An amount of 0 denies everything, permanently: no `retry_after` is reported.
/// - The period: from a microsecond to 3,660 days, or a [calendar period](Calendar), such as a month. For a concurrency
///   limit, the lifetime of a permit.
/// - The [algorithm](Algorithm). Default: `fixed-window`, or `token-bucket` if there is a burst.
/// - The burst of a token bucket: the units that can be admitted at one instant. Default: the amount.
///
/// `Limit` is `Copy`. A counter belongs to the algorithm and the period, so a changed amount or burst of a policy keeps
/// its usage, and a changed period starts unused.
///
/// For limits that are known when you write the program, use [`Limit::per_minute`] and the like, which cannot fail.
/// For limits from a configuration, parse text.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Limit {
    amount: u64,
    period: Period,
    /// The burst, or 0 if there is none and the amount counts instead.
    burst: u64,
    algorithm: Algorithm,
}

/// Error of creating a [`Limit`]: its amount, period or burst is out of range, or they do not fit together.
///
/// For text, this error is wrapped in a [`ParseLimitError`].
///
/// ```
/// use pacegate::{Algorithm, Limit, LimitError};
///
/// let error = Limit::per_day(50_000).with_algorithm(Algorithm::SlidingLog).unwrap_err();
/// assert!(matches!(error, LimitError::AmountTooLarge { max: 10_000, .. }));
/// assert_eq!(
///     error.to_string(),
///     "the amount 50000 is too large: at most 10000 with sliding-log"
/// );
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LimitError {
    /// More than the algorithm can count, or than fits into a header field.
    #[error("the amount {amount} is too large: at most {max} with {algorithm}")]
    AmountTooLarge {
        /// The given amount.
        amount: u64,
        /// The maximum of the algorithm.
        max: u64,
        /// The given algorithm.
        algorithm: Algorithm,
    },
    /// A period of zero, or a longer one than ten years.
    #[error("the period {0:?} is out of range: expected more than 0 and at most 3660d")]
    Period(Duration),
    /// A burst of 0, or a burst with an amount of 0.
    #[error("a burst must be at least 1, on an amount of at least 1")]
    EmptyBurst,
    /// Only fixed windows count calendar periods.
    #[error(
        "{0} cannot count calendar periods: use fixed-window without a burst, or a fixed length, such as `30d`"
    )]
    Calendar(Algorithm),
    /// Only the token bucket has a burst.
    #[error("{0} has no burst: leave it out, or use token-bucket")]
    BurstWithout(Algorithm),
    /// The exact arithmetic of the token bucket would not fit into its state.
    #[error(
        "a burst of {burst} over {period:?} is too large for token-bucket: \
         use a shorter period, a smaller burst, or fixed-window"
    )]
    BurstTooLarge {
        /// The given burst.
        burst: u64,
        /// The given period.
        period: Duration,
    },
}

impl Limit {
    /// The maximum amount and burst: the largest integer in a structured header field (RFC 9651).
    ///
    /// Some algorithms have a lower maximum, see [`Algorithm::max_amount`].
    pub const MAX_AMOUNT: u64 = 999_999_999_999_999;

    /// Creates a limit of `amount` per second, as a fixed window. An amount of 0 denies everything.
    ///
    /// Windows start at whole seconds, so up to twice the amount can pass within one second across a boundary. For a
    /// steady rate, add a [burst](Self::with_burst).
    pub const fn per_second(amount: u32) -> Self {
        Self::small(amount, 1_000_000)
    }

    /// Creates a limit of `amount` per minute, as a fixed window. An amount of 0 denies everything.
    pub const fn per_minute(amount: u32) -> Self {
        Self::small(amount, 60_000_000)
    }

    /// Creates a limit of `amount` per hour, as a fixed window. An amount of 0 denies everything.
    ///
    /// Windows start at whole hours UTC. All clients get their units back at the same instant, so expect a peak there.
    pub const fn per_hour(amount: u32) -> Self {
        Self::small(amount, 3_600_000_000)
    }

    /// Creates a limit of `amount` per day of 24 hours, as a fixed window. An amount of 0 denies everything.
    ///
    /// The window starts at midnight UTC. For the days of a time zone, parse a limit such as `5/day in Europe/Berlin`.
    pub const fn per_day(amount: u32) -> Self {
        Self::small(amount, 86_400_000_000)
    }

    /// Creates a limit of `amount` per calendar month of UTC, as a fixed window. An amount of 0 denies everything.
    ///
    /// For other [calendar periods](Calendar), parse a limit such as `1000/month anchor 17 in Europe/Berlin`.
    #[cfg(feature = "calendar")]
    pub const fn per_month(amount: u32) -> Self {
        Self { period: Period::of(Calendar::MONTH), ..Self::per_day(amount) }
    }

    /// Creates a limit of `amount` per `period`, as a fixed window.
    ///
    /// Windows are aligned to the Unix epoch: `5/30s` counts from second 0 and from second 30 of each minute.
    ///
    /// Time is counted in microseconds. A finer period is rounded up to a whole microsecond, which never admits more.
    ///
    /// # Errors
    ///
    /// [`LimitError`] if the amount is above [`Limit::MAX_AMOUNT`], or the period is zero or longer than 3,660 days.
    ///
    /// ```
    /// use std::time::Duration;
    /// use pacegate::Limit;
    ///
    /// let limit = Limit::new(5, Duration::from_nanos(333_333_333))?;
    /// assert_eq!(limit.to_string(), "5/333334us");
    /// # Ok::<(), pacegate::LimitError>(())
    /// ```
    pub fn new(amount: u64, period: Duration) -> Result<Self, LimitError> {
        Self::with_period(amount, period.try_into()?)
    }

    fn with_period(amount: u64, period: Period) -> Result<Self, LimitError> {
        Self { amount, period, burst: 0, algorithm: Algorithm::FixedWindow }.validated()
    }

    /// Creates a limit of one unit every `interval`: a token bucket with a burst of 1, so that two units are never
    /// closer together.
    ///
    /// The rate is exact to the nanosecond: where the interval is not a whole number of microseconds, the limit is
    /// a multiple of it. Only intervals above three days are rounded up to a whole microsecond.
    ///
    /// # Errors
    ///
    /// [`LimitError::Period`] if the interval is zero or longer than 3,660 days.
    ///
    /// ```
    /// use std::time::Duration;
    /// use pacegate::Limit;
    ///
    /// assert_eq!(Limit::every(Duration::from_micros(500))?, "1/500us burst 1".parse()?);
    /// assert_eq!(Limit::every(Duration::from_nanos(1_500))?, "2/3us burst 1".parse()?);
    /// let third = Limit::every(Duration::from_nanos(333_333_333))?.with_burst(5)?;
    /// assert_eq!(third.to_string(), "1000/333333333us burst 5");
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn every(interval: Duration) -> Result<Self, LimitError> {
        // The smallest number of intervals that is a whole number of microseconds.
        let nanos = interval.subsec_nanos() % 1_000;
        let amount = [1_u32, 2, 4, 5, 8, 10, 20, 25, 40, 50, 100, 125, 200, 250, 500, 1_000]
            .into_iter()
            .find(|amount| (nanos * amount).is_multiple_of(1_000))
            .unwrap_or(1);
        let exact = interval.checked_mul(amount).filter(|period| *period <= MAX_PERIOD);
        let limit = match exact {
            Some(period) => Self::new(amount.into(), period),
            None => Self::new(1, interval),
        };
        limit?.with_burst(1)
    }

    /// Sets the burst: the number of units that can be admitted at one instant. The limit becomes a token
    /// bucket, the only algorithm with a burst.
    ///
    /// The burst may be smaller or larger than the amount. Without this call, a token bucket has a burst of the amount.
    /// A small burst spreads requests evenly; a large one lets a client that was idle for some time send many at once.
    /// The burst is also the highest cost of one request, see [`Limit::capacity`].
    ///
    /// # Errors
    ///
    /// [`LimitError`] if the burst or the amount is 0, if the burst is too large, or if an algorithm without bursts was
    /// set before.
    ///
    /// ```
    /// use pacegate::Limit;
    ///
    /// let limit = Limit::per_second(10).with_burst(20)?;
    /// assert_eq!((limit.amount(), limit.capacity()), (10, 20));
    /// # Ok::<(), pacegate::LimitError>(())
    /// ```
    pub fn with_burst(self, burst: u64) -> Result<Self, LimitError> {
        let algorithm = match self.algorithm {
            // The default algorithm, which was not chosen explicitly.
            Algorithm::FixedWindow => Algorithm::TokenBucket,
            other if other.has_burst() => other,
            other => return Err(LimitError::BurstWithout(other)),
        };
        if burst == 0 || self.amount == 0 {
            return Err(LimitError::EmptyBurst);
        }
        Self { burst, algorithm, ..self }.validated()
    }

    /// Sets the algorithm. Default: [`Algorithm::FixedWindow`].
    ///
    /// # Errors
    ///
    /// [`LimitError`] if the limit has a burst and the algorithm does not support one, or if the amount is above
    /// [`Algorithm::max_amount`]: 10,000 for a sliding log and for a concurrency limit.
    ///
    /// ```
    /// use pacegate::{Algorithm, Limit};
    ///
    /// let limit = Limit::per_minute(100).with_algorithm(Algorithm::SlidingLog)?;
    /// assert_eq!(limit.to_string(), "100/minute sliding-log");
    /// # Ok::<(), pacegate::LimitError>(())
    /// ```
    pub fn with_algorithm(self, algorithm: Algorithm) -> Result<Self, LimitError> {
        if self.burst != 0 && !algorithm.has_burst() {
            return Err(LimitError::BurstWithout(algorithm));
        }
        Self { algorithm, ..self }.validated()
    }

    /// Sets the amount. The burst stays.
    ///
    /// # Errors
    ///
    /// [`LimitError`] if the algorithm cannot count the amount, or if it is 0 and there is a burst.
    pub fn with_amount(self, amount: u64) -> Result<Self, LimitError> {
        if self.burst != 0 && amount == 0 {
            return Err(LimitError::EmptyBurst);
        }
        Self { amount, ..self }.validated()
    }

    /// Returns a limit with `numerator / denominator` of the amount and the burst, at most all of it.
    ///
    /// Used as the limit of one of several instances while the shared store is unreachable. The result is rounded up,
    /// so it is zero only if the numerator is 0; the shares of all instances together may exceed the limit by less than
    /// one unit for each instance.
    ///
    /// ```
    /// use std::num::NonZeroU32;
    /// use pacegate::Limit;
    ///
    /// let three = NonZeroU32::new(3).unwrap();
    /// assert_eq!(Limit::per_minute(100).share(1, three), Limit::per_minute(34));
    /// assert_eq!(Limit::per_minute(100).share(5, three), Limit::per_minute(100));
    /// ```
    #[must_use]
    pub fn share(self, numerator: u32, denominator: std::num::NonZeroU32) -> Self {
        let part = |whole: u64| {
            let scaled = u128::from(whole) * u128::from(numerator);
            let part = scaled.div_ceil(u128::from(denominator.get()));
            u64::try_from(part).map_or(whole, |part| part.min(whole))
        };
        Self { amount: part(self.amount), burst: part(self.burst), ..self }
    }

    /// Returns the units per period. For a concurrency limit: the maximum number of permits held at the same time.
    #[inline]
    pub const fn amount(&self) -> u64 {
        self.amount
    }

    /// Returns the period, in whole microseconds. For a concurrency limit: the lifetime of a permit that is not
    /// renewed.
    ///
    /// For a [calendar period](Self::calendar), this is a nominal length of 1, 7, 31 or 366 days. Use
    /// [`Limit::window_at`] for the length of a window.
    pub const fn period(&self) -> Duration {
        Duration::from_micros(self.period.micros())
    }

    /// Returns the calendar period, or `None` if the period has a fixed length.
    pub const fn calendar(&self) -> Option<Calendar> {
        self.period.calendar()
    }

    /// Returns the number of units that can be admitted at one instant: the burst, or the amount if it has none.
    ///
    /// It is also the maximum cost of one request: a higher cost is a [`CostError`](crate::CostError).
    #[inline]
    pub const fn capacity(&self) -> u64 {
        if self.burst == 0 { self.amount } else { self.burst }
    }

    /// Returns the burst, if it was set. A token bucket without a burst uses its amount, see [`Limit::capacity`].
    pub fn burst(&self) -> Option<u64> {
        (self.burst != 0).then_some(self.burst)
    }

    /// Returns the algorithm that counts this limit.
    #[inline]
    pub const fn algorithm(&self) -> Algorithm {
        self.algorithm
    }

    /// Returns true if both limits use the same counter of a policy: only the amount and the burst may differ.
    #[inline]
    pub fn counts_like(&self, other: &Self) -> bool {
        self.period == other.period && self.algorithm == other.algorithm
    }

    /// Returns the period in microseconds: at least 1. For a calendar period, its nominal length.
    #[inline]
    pub(crate) const fn period_micros(&self) -> u64 {
        self.period.micros()
    }

    /// Returns the period in one word.
    #[inline]
    pub(crate) const fn packed_period(&self) -> Period {
        self.period
    }

    /// Creates a limit without validation: every u32 is within the bounds of the fixed window.
    const fn small(amount: u32, period_micros: u64) -> Self {
        let (amount, period) = (amount as u64, Period::fixed(period_micros));
        Self { amount, period, burst: 0, algorithm: Algorithm::FixedWindow }
    }

    /// Checks that the algorithm can count the amount and the burst.
    fn validated(self) -> Result<Self, LimitError> {
        if self.calendar().is_some() && self.algorithm != Algorithm::FixedWindow {
            return Err(LimitError::Calendar(self.algorithm));
        }
        let max = self.algorithm.max_amount();
        let amount = self.amount.max(self.burst);
        if amount > max {
            return Err(LimitError::AmountTooLarge { amount, max, algorithm: self.algorithm });
        }
        let debt = u128::from(self.capacity()) * u128::from(self.period_micros());
        if self.algorithm.has_burst() && debt > MAX_DEBT {
            let period = self.period();
            return Err(LimitError::BurstTooLarge { burst: self.capacity(), period });
        }
        Ok(self)
    }
}

impl std::fmt::Debug for Limit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Limit({self})")
    }
}

/// The largest product of capacity and period of a token bucket: 69 bits, which the payload of a state has.
pub(crate) const MAX_DEBT: u128 = (1 << 69) - 1;

/// Converts to microseconds, rounded up and below `u64::MAX`, which means never.
pub(crate) fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos().div_ceil(1_000)).unwrap_or(u64::MAX).min(u64::MAX - 1)
}

/// Ten years: long enough for any limit, short enough that no instant overflows.
const MAX_PERIOD: Duration = Duration::from_secs(3_660 * 86_400);

/// Rounds up to a whole microsecond. Fails if the period is zero or above [`MAX_PERIOD`].
impl TryFrom<Duration> for Period {
    type Error = LimitError;

    fn try_from(period: Duration) -> Result<Self, LimitError> {
        if period.is_zero() || period > MAX_PERIOD {
            return Err(LimitError::Period(period));
        }
        Ok(Self::fixed(micros(period)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn per_second_has_a_period_of_one_second() {
        assert_eq!(Limit::per_second(60), Limit::new(60, Duration::from_secs(1)).unwrap());
        assert_eq!(Limit::per_day(3).period(), Duration::from_secs(86_400));
    }

    #[test]
    fn a_calendar_period_takes_no_room() {
        // In pacegate-macros, which compiles this file too, an algorithm takes a single byte, padded to eight.
        let algorithm = size_of::<Algorithm>().next_multiple_of(size_of::<u64>());
        assert_eq!(size_of::<Limit>(), algorithm + 3 * size_of::<u64>());
        let limit: Limit = "7/month anchor 31 in Pacific/Apia".parse().unwrap();
        assert_eq!(limit.period(), Duration::from_secs(31 * 86_400));
        assert_eq!(limit.calendar().map(Calendar::zone), Some("Pacific/Apia"));
        assert_eq!(limit.with_amount(8).unwrap().to_string(), "8/month anchor 31 in Pacific/Apia");
        assert!(!limit.counts_like(&"7/month anchor 31".parse().unwrap()));
        assert_eq!(Limit::per_month(7), "7/month".parse().unwrap());
    }

    #[test]
    fn impossible_limits_cannot_be_built() {
        let second = Duration::from_secs(1);
        assert!(matches!(
            Limit::new(Limit::MAX_AMOUNT + 1, second),
            Err(LimitError::AmountTooLarge { .. })
        ));
        assert_eq!(Limit::new(1, Duration::ZERO), Err(LimitError::Period(Duration::ZERO)));
        assert!(Limit::new(1, MAX_PERIOD).is_ok());
        assert!(Limit::new(1, MAX_PERIOD + second).is_err());
        assert!(Limit::new(1, Duration::MAX).is_err());
        assert_eq!(Limit::per_second(1).with_burst(0), Err(LimitError::EmptyBurst));
        assert_eq!(Limit::per_second(0).with_burst(1), Err(LimitError::EmptyBurst));
        let log = Limit::per_second(1).with_algorithm(Algorithm::SlidingLog).unwrap();
        assert_eq!(log.with_burst(2), Err(LimitError::BurstWithout(Algorithm::SlidingLog)));
        let bucket = Limit::per_second(1).with_burst(5).unwrap();
        assert_eq!(
            bucket.with_algorithm(Algorithm::FixedWindow),
            Err(LimitError::BurstWithout(Algorithm::FixedWindow))
        );
        assert!(Limit::per_second(10_000).with_algorithm(Algorithm::SlidingLog).is_ok());
        assert!(Limit::per_second(10_001).with_algorithm(Algorithm::SlidingLog).is_err());
        let day = Limit::per_day(1).with_burst(7_000_000_000);
        assert!(matches!(day, Err(LimitError::BurstTooLarge { .. })), "{day:?}");
    }

    #[test]
    fn a_period_is_rounded_up_to_a_microsecond() {
        for (nanos, micros) in [(1, 1), (999, 1), (1_000, 1), (1_001, 2), (333_333_333, 333_334)] {
            let limit = Limit::new(1, Duration::from_nanos(nanos)).unwrap();
            assert_eq!(limit.period(), Duration::from_micros(micros), "{nanos}");
            assert_eq!(limit.to_string().parse(), Ok(limit));
        }
    }

    #[test]
    fn one_unit_every_interval_is_exact() {
        for nanos in [1, 500, 999, 1_000, 1_500, 123_456_789, 333_333_333, 86_400_000_000_001] {
            let limit = Limit::every(Duration::from_nanos(nanos)).unwrap();
            let period = u128::from(nanos) * u128::from(limit.amount());
            assert_eq!((limit.period().as_nanos(), limit.capacity()), (period, 1), "{nanos}");
        }
        let month = Duration::new(30 * 86_400, 1);
        let rounded = Limit::every(month).unwrap();
        assert_eq!(rounded.period(), Duration::from_micros(30 * 86_400_000_000 + 1));
        assert!(Limit::every(Duration::ZERO).is_err() && Limit::every(Duration::MAX).is_err());
    }

    #[test]
    fn a_burst_as_large_as_the_amount_is_kept() {
        let limit = Limit::per_second(10).with_burst(10).unwrap();
        assert_eq!((limit.burst(), limit.capacity()), (Some(10), 10));
        assert_eq!(limit.to_string().parse(), Ok(limit));
        let bucket = Limit::per_second(10).with_algorithm(Algorithm::TokenBucket).unwrap();
        assert_eq!((bucket.burst(), bucket.capacity()), (None, 10));
        assert_eq!(
            limit.with_algorithm(Algorithm::FixedWindow),
            Err(LimitError::BurstWithout(Algorithm::FixedWindow))
        );
    }

    #[test]
    fn a_share_is_rounded_up() {
        let three = std::num::NonZeroU32::new(3).unwrap();
        assert_eq!(Limit::per_second(100).share(1, three).amount(), 34);
        assert_eq!(Limit::per_second(1).share(1, three).amount(), 1);
        assert_eq!(Limit::per_second(0).share(1, three).amount(), 0);
        assert_eq!(Limit::per_second(5).share(9, three).amount(), 5);
    }
}
