//! The period of a limit, in one word.

use super::Calendar;

/// A fixed length in microseconds, or a calendar period. In one word, so that a limit stays small.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Period(u64);

/// The bit that marks a calendar period. Fixed lengths have fewer bits.
const CALENDAR: u64 = 1 << 63;

pub(super) const DAY: u64 = 86_400_000_000;

impl Period {
    pub(super) const fn fixed(micros: u64) -> Self {
        Self(micros)
    }

    pub(super) const fn of(calendar: Calendar) -> Self {
        Self(CALENDAR | calendar.to_bits() as u64)
    }

    /// Returns the calendar period, or `None` for a fixed length.
    pub(super) const fn calendar(self) -> Option<Calendar> {
        if self.0 & CALENDAR == 0 { None } else { Some(Calendar::from_bits(self.0 as u32)) }
    }

    /// Returns the fixed length, or 0 for a calendar period.
    #[inline]
    pub(crate) const fn fixed_micros(self) -> u64 {
        if self.0 & CALENDAR == 0 { self.0 } else { 0 }
    }

    /// Returns the fixed length, or the nominal length of a calendar period.
    #[inline]
    pub(crate) const fn micros(self) -> u64 {
        match self.calendar() {
            None => self.0,
            Some(calendar) => calendar.nominal_days() * DAY,
        }
    }

    /// Returns a length that no window exceeds. A window of a calendar period is longer than usual if the time zone
    /// changes its offset.
    pub(crate) const fn max_micros(self) -> u64 {
        match self.calendar() {
            None => self.0,
            Some(calendar) => (calendar.nominal_days() + 1) * DAY,
        }
    }

    /// Returns a number that differs between all periods, in this process only.
    #[inline]
    pub(crate) const fn to_bits(self) -> u64 {
        self.0
    }
}
