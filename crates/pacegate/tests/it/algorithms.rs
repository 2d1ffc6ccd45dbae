//! Expected decisions of each algorithm, step by step. The clock starts at the beginning of a day.

use std::time::Duration;

use crate::limiter;

/// Milliseconds since the start, cost, and the expected allowed, remaining, retry_after and reset_after in µs.
type Step = (u64, u64, bool, u64, Option<u64>, u64);

fn check(limit: &str, steps: &[Step]) {
    let (limiter, clock) = limiter(limit);
    let start = pacegate::Clock::now(&clock);
    for &(millis, cost, allowed, remaining, retry_after, reset_after) in steps {
        clock.set(start.after(Duration::from_millis(millis)));
        let decision = limiter.check_cost("key", cost).unwrap();
        let micros = |duration: Duration| duration.as_micros() as u64;
        assert_eq!(
            (
                decision.is_allowed(),
                decision.remaining(),
                decision.retry_after().map(micros),
                micros(decision.reset_after()),
            ),
            (allowed, remaining, retry_after, reset_after),
            "{limit}: cost {cost} at {millis} ms: {decision:?}"
        );
    }
}

#[test]
fn fixed_window() {
    check(
        "3/second",
        &[
            (0, 0, true, 3, None, 0),
            (0, 1, true, 2, None, 1_000_000),
            (400, 2, true, 0, None, 600_000),
            (400, 1, false, 0, Some(600_000), 600_000),
            (999, 1, false, 0, Some(1_000), 1_000),
            // Three at the end of one window and three at the start of the next: twice the amount in a moment.
            (1_000, 3, true, 0, None, 1_000_000),
            (1_500, 2, false, 0, Some(500_000), 500_000),
            (5_250, 1, true, 2, None, 750_000),
        ],
    );
}

#[test]
fn sliding_window() {
    check(
        "4/second sliding-window",
        &[
            (0, 4, true, 0, None, 2_000_000),
            (500, 1, false, 0, Some(750_000), 1_500_000),
            // The window of the four units has ended, but the previous window still has full weight.
            (1_000, 1, false, 0, Some(250_000), 1_000_000),
            (1_250, 1, true, 0, None, 1_750_000),
            (1_499, 1, false, 0, Some(1_000), 1_501_000),
            (1_500, 1, true, 0, None, 1_500_000),
            (2_000, 0, true, 2, None, 1_000_000),
            (3_000, 0, true, 4, None, 0),
        ],
    );
}

#[test]
fn sliding_log() {
    check(
        "3/second sliding-log",
        &[
            (0, 1, true, 2, None, 1_000_000),
            (300, 1, true, 1, None, 1_000_000),
            (900, 1, true, 0, None, 1_000_000),
            (900, 1, false, 0, Some(100_000), 1_000_000),
            (900, 2, false, 0, Some(400_000), 1_000_000),
            (900, 3, false, 0, Some(1_000_000), 1_000_000),
            (1_000, 1, true, 0, None, 1_000_000),
            (1_299, 1, false, 0, Some(1_000), 701_000),
            (1_300, 1, true, 0, None, 1_000_000),
            (2_300, 0, true, 3, None, 0),
        ],
    );
}

#[test]
fn token_bucket() {
    check(
        "10/second burst 5",
        &[
            (0, 5, true, 0, None, 500_000),
            (0, 1, false, 0, Some(100_000), 500_000),
            (0, 5, false, 0, Some(500_000), 500_000),
            (50, 1, false, 0, Some(50_000), 450_000),
            (100, 1, true, 0, None, 500_000),
            (399, 3, false, 2, Some(1_000), 201_000),
            (400, 3, true, 0, None, 500_000),
            (9_000, 0, true, 5, None, 0),
        ],
    );
}

#[test]
fn token_bucket_keeps_thirds() {
    // A third of a second is not a whole number of microseconds; nothing is lost to rounding.
    check(
        "3/second burst 1",
        &[
            (0, 1, true, 0, None, 333_334),
            (333, 1, false, 0, Some(334), 334),
            (334, 1, true, 0, None, 333_334),
            (667, 1, false, 0, Some(334), 334),
            (668, 1, true, 0, None, 333_334),
        ],
    );
}

#[test]
fn concurrency() {
    let (limiter, clock) = limiter("2/second concurrency");
    let (first, second) = (limiter.acquire("key"), limiter.acquire("key"));
    let denied = limiter.acquire("key");
    assert!(first.permit.is_some() && second.permit.is_some() && denied.permit.is_none());
    assert_eq!(denied.decision.retry_after(), Some(Duration::from_secs(1)));
    drop(second);
    let third = limiter.acquire("key").into_result().unwrap();
    assert!(limiter.acquire("key").into_result().is_err());

    // The first permit is renewed in time and stays valid; the third is not renewed and expires.
    clock.advance(Duration::from_millis(999));
    let first = first.into_result().unwrap();
    assert!(first.renew());
    clock.advance(Duration::from_millis(1));
    assert!(!third.renew(), "expired after a second");
    let fourth = limiter.acquire("key").into_result().unwrap();
    assert!(limiter.acquire("key").permit.is_none());
    // Dropping an expired permit does not release the permit that replaced it.
    drop(third);
    assert!(limiter.acquire("key").permit.is_none());
    drop((first, fourth));
    assert_eq!(limiter.peek("key").remaining(), 2);
}

/// `more_after` is exact: `remaining` grows then, and not a microsecond earlier.
#[test]
fn more_units_come_when_the_decision_says() {
    for text in ["5/second", "3/second burst 7", "10/second burst 10", "7/11s token-bucket"] {
        let (limiter, clock) = limiter(text);
        let random = &mut pacegate_testkit::Random::new(7);
        for step in 0..500 {
            clock.advance(Duration::from_micros(random.below(400_000)));
            let decision = limiter.check("key");
            let more = decision.more_after().unwrap();
            assert!(!more.is_zero(), "{text} {step}");
            clock.advance(more - Duration::from_micros(1));
            let before = limiter.peek("key");
            assert_eq!(before.remaining(), decision.remaining(), "{text} {step}");
            clock.advance(Duration::from_micros(1));
            let after = limiter.peek("key");
            assert!(after.remaining() > decision.remaining(), "{text} {step}");
        }
    }
}

#[test]
fn more_after_is_none_if_the_algorithm_does_not_know_it() {
    for (text, first, second) in [
        ("5/minute sliding-log", Some(60), None),
        ("5/minute sliding-window", Some(120), None),
        ("5/minute concurrency", Some(60), None),
    ] {
        let (limiter, _) = limiter(text);
        assert_eq!(limiter.peek("key").more_after(), Some(Duration::ZERO), "{text}");
        let more = || limiter.check("key").more_after().map(|more| more.as_secs());
        assert_eq!((more(), more()), (first, second), "{text}");
    }
}
