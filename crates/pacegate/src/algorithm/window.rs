//! The windows of a period: aligned to the Unix epoch, or to a calendar.

#[cfg(feature = "calendar")]
mod calendar;

use super::NEVER;
use crate::{Limit, clock::Timestamp};

/// One window of a limit, see [`Limit::window_at`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TimeWindow {
    pub(super) number: u64,
    pub(super) start: u64,
    pub(super) end: u64,
}

impl TimeWindow {
    /// Returns the number of the window. The next window of the limit has the next number.
    ///
    /// Windows of a fixed length are numbered from the Unix epoch, calendar periods from 1900.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Returns the first instant of the window. If it started before the Unix epoch, this is the epoch.
    pub fn start(&self) -> Timestamp {
        Timestamp::from_micros(self.start)
    }

    /// Returns the first instant after the window, at which the next one starts.
    pub fn end(&self) -> Timestamp {
        Timestamp::from_micros(self.end)
    }
}

impl Limit {
    /// Returns the window that contains `at`, or `None` if the algorithm does not count in windows.
    ///
    /// ```
    /// use pacegate::{Limit, Timestamp};
    ///
    /// let window = Limit::per_minute(10).window_at(Timestamp::from_secs(90)).unwrap();
    /// assert_eq!((window.start(), window.end()), (Timestamp::from_secs(60), Timestamp::from_secs(120)));
    /// ```
    pub fn window_at(&self, at: Timestamp) -> Option<TimeWindow> {
        (self.algorithm().windows() > 0).then(|| window(self, at.as_micros()))
    }

    /// Returns a length in microseconds that no window of the limit exceeds.
    #[inline]
    pub fn max_window_micros(&self) -> u64 {
        self.packed_period().max_micros()
    }
}

/// Returns the window that contains `now`.
#[inline]
pub(super) fn window(limit: &Limit, now: u64) -> TimeWindow {
    #[cfg(feature = "calendar")]
    if let Some(calendar) = limit.calendar() {
        return calendar::window(calendar, now);
    }
    let period = limit.period_micros();
    let number = now / period;
    TimeWindow { number, start: number * period, end: (number + 1) * period }
}

/// Returns the start of the window with this number, or nearly [`NEVER`] if that is too large.
pub(super) fn start_of(limit: &Limit, number: u64) -> u64 {
    #[cfg(feature = "calendar")]
    if let Some(calendar) = limit.calendar() {
        return calendar::start_of(calendar, number);
    }
    number.saturating_mul(limit.period_micros()).min(NEVER / 4)
}
