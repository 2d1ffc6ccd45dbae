//! Dates of HTTP, in the three forms that RFC 9110 wants to be understood.

use pacegate::Timestamp;

const MONTHS: [&str; 12] =
    ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

/// `Sun, 06 Nov 1994 08:49:37 GMT`, `Sunday, 06-Nov-94 08:49:37 GMT` or `Sun Nov  6 08:49:37 1994`.
pub(super) fn parse(text: &str) -> Option<Timestamp> {
    let words = text.split([' ', ',', '-']).filter(|word| !word.is_empty());
    let (day, month, year, time) = match words.collect::<Vec<_>>()[..] {
        [_, day, month, year, time, "GMT"] => (day, month, year, time),
        [_, month, day, time, year] => (day, month, year, time),
        _ => return None,
    };
    let month = MONTHS.iter().position(|name| *name == month)? as u64 + 1;
    let day = number(day, 2).filter(|day| (1..=31).contains(day))?;
    let year = match (year.len(), number(year, 4)?) {
        // Two digits, of which the sooner century is meant.
        (2, year @ 70..) => 1_900 + year,
        (2, year) => 2_000 + year,
        (_, year) => year,
    };
    let [hour, minute, second] = time.split(':').collect::<Vec<_>>()[..] else { return None };
    let hour = number(hour, 2).filter(|hour| *hour < 24)?;
    let minute = number(minute, 2).filter(|minute| *minute < 60)?;
    let second = number(second, 2).filter(|second| *second <= 60)?;
    let days = days_before(year, month)? + day - 1;
    Some(Timestamp::from_secs(days * 86_400 + hour * 3_600 + minute * 60 + second))
}

/// Days from the epoch to the first of a month. March begins the year here, so that leap days end it.
fn days_before(year: u64, month: u64) -> Option<u64> {
    let (year, month) =
        if month > 2 { (year, month - 3) } else { (year.checked_sub(1)?, month + 9) };
    let days = 365 * year + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5;
    days.checked_sub(719_468)
}

/// From 1 to `most` digits.
fn number(text: &str, most: usize) -> Option<u64> {
    let fits = (1..=most).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_digit());
    fits.then(|| text.parse().ok())?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_three_forms_are_the_same_instant() {
        for text in [
            "Sun, 06 Nov 1994 08:49:37 GMT",
            "Sunday, 06-Nov-94 08:49:37 GMT",
            "Sun Nov  6 08:49:37 1994",
        ] {
            assert_eq!(parse(text), Some(Timestamp::from_secs(784_111_777)), "{text}");
        }
    }

    #[test]
    fn days_are_counted_over_leap_years() {
        for (text, secs) in [
            ("Thu, 01 Jan 1970 00:00:00 GMT", 0),
            ("Tue, 29 Feb 2000 00:00:00 GMT", 951_782_400),
            ("Wed, 01 Mar 2000 00:00:00 GMT", 951_868_800),
            ("Sat, 31 Dec 2022 23:59:59 GMT", 1_672_531_199),
            ("Mon, 01 Mar 2100 00:00:00 GMT", 4_107_542_400),
        ] {
            assert_eq!(parse(text), Some(Timestamp::from_secs(secs)), "{text}");
        }
    }

    #[test]
    fn anything_else_is_no_date() {
        for text in [
            "",
            "tomorrow",
            "Sun, 06 Nov 1994 08:49:37",
            "Sun, 06 Foo 1994 08:49:37 GMT",
            "Sun, 32 Nov 1994 08:49:37 GMT",
            "Sun, 06 Nov 1994 24:00:00 GMT",
            "Sun, 06 Nov 1994 8 GMT",
            "Sun, 06 Nov 1969 08:49:37 GMT",
            "Sun, 06 Nov 99999 08:49:37 GMT",
        ] {
            assert_eq!(parse(text), None, "{text}");
        }
    }
}
