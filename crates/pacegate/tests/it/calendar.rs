//! Calendar periods: windows against a recording, and decisions at their ends.

use std::time::Duration;

use pacegate::{Limit, Request, Timestamp};

use crate::{limit, limiter};

/// The days from 2020 to 2037, by an independent program: `calendar_days.py`.
const RECORDED: &str = include_str!("../data/calendar_days.txt");

/// Recorded days of a time zone, the first of which is 1 January 2020.
struct Days {
    zone: &'static str,
    /// The first second of each day, and of the day after the last.
    starts: Vec<u64>,
}

fn recorded() -> Vec<Days> {
    let lines = RECORDED.lines().filter(|line| !line.starts_with('#'));
    let read = |line: &'static str| {
        let mut words = line.split(' ');
        let zone = words.next().unwrap();
        let mut starts = vec![words.next().unwrap().parse().unwrap()];
        for run in words {
            let (count, length) = run.split_once('x').unwrap();
            for _ in 0..count.parse().unwrap() {
                starts.push(starts.last().unwrap() + length.parse::<u64>().unwrap());
            }
        }
        Days { zone, starts }
    };
    let days: Vec<Days> = lines.map(read).collect();
    assert_eq!(days.len(), 14);
    assert!(days.iter().all(|days| days.starts.len() == 18 * 365 + 5 + 1), "18 years");
    days
}

/// Year, month and day of each recorded day.
fn dates() -> Vec<(u64, u64, u64)> {
    (2020..=2037)
        .flat_map(|year| (1..=12).map(move |month| (year, month)))
        .flat_map(days_of)
        .collect()
}

fn days_of((year, month): (u64, u64)) -> Vec<(u64, u64, u64)> {
    (1..=length(year, month)).map(|day| (year, month, day)).collect()
}

fn length(year: u64, month: u64) -> u64 {
    match month {
        2 if year.is_multiple_of(4) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// Checks that the windows of a limit start at these seconds.
fn assert_windows(text: &str, starts: &[u64]) {
    let limit = limit(text);
    let first = limit.window_at(Timestamp::from_secs(starts[0])).unwrap().number();
    for (pair, number) in starts.windows(2).zip(first..) {
        let [start, end] = [pair[0], pair[1]].map(Timestamp::from_secs);
        let middle = Timestamp::from_secs(pair[0].midpoint(pair[1]));
        for at in [start, middle, Timestamp::from_micros(end.as_micros() - 1)] {
            let window = limit.window_at(at).unwrap();
            let found = (window.start(), window.end(), window.number());
            assert_eq!(found, (start, end, number), "{text} at {at:?}");
        }
    }
}

#[test]
fn windows_equal_an_independent_computation() {
    let dates = dates();
    for Days { zone, starts } in recorded() {
        assert_windows(&format!("1/day in {zone}"), &starts);
        let dated = || starts.iter().copied().zip(&dates);
        let starting = |is_first: &dyn Fn(u64, u64, u64) -> bool| -> Vec<u64> {
            let first = |(_, date): &(u64, &(u64, u64, u64))| is_first(date.0, date.1, date.2);
            dated().filter(first).map(|(start, _)| start).collect()
        };
        for anchor in [1, 2, 17, 28, 29, 30, 31] {
            let months = starting(&|year, month, day| day == anchor.min(length(year, month)));
            assert_windows(&format!("1/month anchor {anchor} in {zone}"), &months);
        }
        let years = starting(&|_, month, day| (month, day) == (1, 1));
        assert_windows(&format!("1/year in {zone}"), &years);
        // 1 January 2020 was a Wednesday.
        let weekdays =
            ["wednesday", "thursday", "friday", "saturday", "sunday", "monday", "tuesday"];
        for (place, weekday) in weekdays.into_iter().enumerate() {
            let weeks: Vec<u64> = starts.iter().copied().skip(place).step_by(7).collect();
            assert_windows(&format!("1/week starting {weekday} in {zone}"), &weeks);
        }
    }
}

/// The window that contains a second since 1970, in seconds.
fn window(text: &str, at: u64) -> (u64, u64) {
    let window = limit(text).window_at(Timestamp::from_secs(at)).unwrap();
    (window.start().as_micros() / 1_000_000, window.end().as_micros() / 1_000_000)
}

#[test]
fn a_midnight_may_be_skipped_repeated_or_missing() {
    // 21 March 2020 in Tehran began at 01:00.
    assert_eq!(
        window("1/day in Asia/Tehran", 1_584_735_600),
        (1_584_736_200 - 86_400, 1_584_736_200)
    );
    assert_eq!(window("1/day in Asia/Tehran", 1_584_736_200), (1_584_736_200, 1_584_819_000));
    // On 29 October 2006, a minute after midnight, the clocks of St. John's went back to 23:01. The day had begun.
    let midnight = 1_162_089_000;
    for at in [midnight, midnight + 59, midnight + 60, midnight + 3_599, midnight + 3_600] {
        assert_eq!(window("1/day in America/St_Johns", at).0, midnight, "{at}");
    }
    // Samoa had no 30 December 2011: the day has a number, but no instant.
    let limit = limit("1/day in Pacific/Apia");
    let [before, after] =
        [1_325_239_199, 1_325_239_200].map(|at| limit.window_at(Timestamp::from_secs(at)).unwrap());
    assert_eq!(before.end(), after.start());
    assert_eq!(after.number() - before.number(), 2);
}

#[test]
fn windows_before_the_epoch_and_after_the_last_instant() {
    let new_york = limit("1/year in America/New_York").window_at(Timestamp::EPOCH).unwrap();
    assert_eq!(
        (new_york.start(), new_york.end()),
        (Timestamp::EPOCH, Timestamp::from_secs(5 * 3_600))
    );
    for text in ["1/day in Asia/Tokyo", "1/week starting friday", "1/month anchor 31", "1/year"] {
        let window = limit(text).window_at(Timestamp::MAX).unwrap();
        assert!(window.start() < window.end(), "{text}");
    }
}

/// 1 January 2026, 00:00 UTC.
const START: u64 = 1_767_225_600;

#[test]
fn the_amount_is_free_again_when_the_month_ends() {
    let (limiter, clock) = limiter("2/month");
    clock.set(Timestamp::from_secs(START + 86_400));
    assert_eq!(limiter.check("alice").reset_after(), Duration::from_secs(30 * 86_400));
    assert!(limiter.check("alice").is_allowed());
    for days in [30, 28, 31] {
        let denied = limiter.check("alice");
        let wait = denied.retry_after().unwrap();
        assert_eq!((wait, denied.reset_after()), (Duration::from_secs(days * 86_400), wait));
        clock.advance(wait - Duration::from_micros(1));
        assert!(!limiter.check("alice").is_allowed(), "one tick too early");
        clock.advance(Duration::from_micros(1));
        assert!(limiter.check("alice").is_allowed() && limiter.check("alice").is_allowed());
    }
}

#[test]
fn debt_is_carried_over_months_of_different_lengths() {
    let (limiter, clock) = limiter("10/month");
    clock.set(Timestamp::from_secs(START));
    let spent = Request::new().with("key", "alice").cost(20).spent();
    assert!(!limiter.check_request(&spent).unwrap().is_allowed());
    let denied = limiter.check("alice");
    // 20 of 10 are used: January and February pay.
    assert_eq!(denied.retry_after(), Some(Duration::from_secs((31 + 28) * 86_400)));
    clock.advance(Duration::from_secs(31 * 86_400));
    assert_eq!(limiter.peek("alice").remaining(), 0);
    limiter.refund("alice", 3);
    assert_eq!(limiter.peek("alice").remaining(), 3);
    clock.advance(Duration::from_secs(28 * 86_400));
    assert_eq!(limiter.peek("alice").remaining(), 10);
}

#[test]
fn a_clock_that_steps_back_keeps_the_usage() {
    let (limiter, clock) = limiter("3/day in Europe/Berlin");
    clock.set(Timestamp::from_secs(START + 3 * 86_400));
    assert!(limiter.check("alice").is_allowed());
    clock.set(Timestamp::from_secs(START));
    let peek = limiter.peek("alice");
    assert_eq!((peek.remaining(), peek.reset_after()), (2, Duration::from_secs(23 * 3_600)));
}

#[test]
fn each_calendar_has_a_separate_counter() {
    let policies = ["1/month", "1/month anchor 2", "1/month in Asia/Tokyo", "1/31d", "1/year"];
    let charges: Vec<Limit> = policies.map(limit).to_vec();
    let store = pacegate::MemoryStore::new(100, pacegate::ManualClock::new());
    for limit in &charges {
        let charge =
            pacegate::Charge::new("api".parse().unwrap(), pacegate::KeyRef::new(b"alice"), *limit);
        let charge = [charge.counter(pacegate::Counter::Policy)];
        let admitted = || {
            let outcomes =
                pollster::block_on(async { pacegate::Store::charge(&store, &charge, None).await });
            outcomes.unwrap()[0].is_admitted()
        };
        assert!(admitted() && !admitted(), "{limit}");
    }
}
