//! Costs of every size, peeks, refunds, resets, and limits at their extremes.

use std::time::Duration;

use pacegate::{Algorithm, Charge, CostError, KeyRef, Limit, Limiter};

use crate::{RATE_ALGORITHMS, limit, limiter};

#[test]
fn a_cost_that_never_fits_is_an_error_and_changes_nothing() {
    for text in
        ["10/second", "10/second sliding-window", "10/second sliding-log", "5/second burst 10"]
    {
        let (limiter, _) = limiter(text);
        for cost in [11, 1 << 31, 1 << 32, 1 << 63, u64::MAX] {
            let error = limiter.check_cost("key", cost).unwrap_err();
            let CostError { cost: said, max, .. } = error;
            assert_eq!((said, max), (cost, 10), "{text}");
        }
        assert_eq!(limiter.peek("key").remaining(), 10, "{text}");
        assert_eq!(limiter.store().usage().keys, 0, "{text}: no key was created");
        assert!(limiter.check_cost("key", 10).unwrap().is_allowed(), "{text}");
    }
    let error = limiter("5/second burst 10").0.check_cost("key", 11).unwrap_err().to_string();
    assert_eq!(
        error,
        "a cost of 11 can never be admitted: policy `default` takes at most 10 at once"
    );
}

#[test]
fn peeks_and_denials_leave_no_trace() {
    for algorithm in RATE_ALGORITHMS {
        let limit = Limit::per_minute(5).with_algorithm(algorithm).unwrap();
        let limiter = Limiter::builder().limit(limit).clock(pacegate::ManualClock::new());
        let limiter = limiter.build().unwrap();
        for _ in 0..3 {
            assert_eq!(limiter.peek("key").remaining(), 5);
        }
        assert_eq!(limiter.store().usage().keys, 0, "{algorithm}: a peek creates no key");
        assert!(limiter.check_cost("key", 5).unwrap().is_allowed());
        let before = limiter.peek("key");
        for cost in (1..=5).cycle().take(1_000) {
            assert!(!limiter.check_cost("key", cost).unwrap().is_allowed());
        }
        assert_eq!(limiter.peek("key"), before, "{algorithm}: denials are free");
    }
}

#[test]
fn refunds_are_clamped_and_resets_forget() {
    for algorithm in RATE_ALGORITHMS {
        let (limiter, _) = limiter(&format!("5/minute {algorithm}"));
        let _ = limiter.check_cost("key", 4).unwrap();
        limiter.refund("key", 3);
        assert_eq!(limiter.peek("key").remaining(), 4, "{algorithm}");
        limiter.refund("key", u64::MAX);
        assert_eq!(
            limiter.peek("key").remaining(),
            5,
            "{algorithm}: a refund is capped at the used units"
        );
        limiter.refund("stranger", 3);
        assert_eq!(limiter.peek("stranger").remaining(), 5, "{algorithm}");
        let _ = limiter.check_cost("key", 5).unwrap();
        limiter.reset("key");
        assert_eq!(limiter.peek("key").remaining(), 5, "{algorithm}");
        assert!(limiter.check_cost("key", 5).unwrap().is_allowed(), "{algorithm}");
    }
}

#[test]
fn limits_at_their_extremes_neither_panic_nor_wrap() {
    let ten_years = Duration::from_secs(3_660 * 86_400);
    let bucket = |limit: Limit| limit.with_algorithm(Algorithm::TokenBucket).unwrap();
    let sliding = |limit: Limit| limit.with_algorithm(Algorithm::SlidingWindow).unwrap();
    let most = Limit::MAX_AMOUNT;
    for limit in [
        Limit::new(most, Duration::from_millis(1)).unwrap(),
        Limit::new(most, ten_years).unwrap(),
        Limit::new(1, ten_years).unwrap(),
        bucket(Limit::new(500_000_000_000, Duration::from_millis(1)).unwrap()),
        bucket(Limit::new(1, ten_years).unwrap()),
        Limit::new(1, ten_years).unwrap().with_burst(1_800_000).unwrap(),
        sliding(Limit::new(10_000_000_000, ten_years).unwrap()),
        sliding(Limit::new(10_000_000_000, Duration::from_millis(1)).unwrap()),
    ] {
        for start in
            [0, 1, pacegate::Timestamp::MAX.as_micros() / 2, pacegate::Timestamp::MAX.as_micros()]
        {
            let clock = pacegate::ManualClock::at(pacegate::Timestamp::from_micros(start));
            let limiter = Limiter::builder().limit(limit).clock(clock.clone()).build().unwrap();
            for cost in [1, limit.capacity() / 2, limit.capacity()] {
                let _ = limiter.check_cost("key", cost).unwrap();
                let decision = limiter.check_cost("key", limit.capacity()).unwrap();
                assert!(decision.remaining() <= limit.capacity(), "{limit}");
                clock.advance(limit.period() / 3);
            }
            limiter.refund("key", u64::MAX);
            assert_eq!(limiter.peek("key").remaining(), limit.capacity(), "{limit} at {start}");
        }
    }
}

#[test]
fn an_amount_of_0_denies_for_good() {
    let (limiter, _) = limiter("0/second");
    let denied = limiter.check("key");
    assert!(!denied.is_allowed() && denied.retry_after().is_none());
    assert!(!limiter.check_cost("key", 1 << 63).unwrap().is_allowed());
    let text = denied.into_result().unwrap_err().to_string();
    assert_eq!(text, "denied by policy `default` (0/second), permanently");
}

#[test]
fn a_limit_lowered_to_0_can_be_refunded() {
    for algorithm in Algorithm::BUILT_IN {
        let (limiter, _) = limiter(&format!("3/hour {algorithm}"));
        let _ = limiter.check_cost("key", 2).unwrap();
        limiter.with_limit(limit(&format!("0/hour {algorithm}"))).refund("key", 1);
        assert!(limiter.check("key").is_allowed(), "{algorithm}");
    }
}

#[test]
fn several_limits_are_charged_together_or_not_at_all() {
    let clock = pacegate::ManualClock::new();
    let limiter = Limiter::builder()
        .limit("5/second")
        .limit("8/minute sliding-log")
        .limit("20/hour token-bucket")
        .clock(clock.clone())
        .build()
        .unwrap();
    assert_eq!(limiter.check_cost("key", 5).unwrap().limit(), Some(limit("5/second")));
    clock.advance(Duration::from_secs(1));
    let denied = limiter.check_cost("key", 4).unwrap();
    assert_eq!(denied.limit(), Some(limit("8/minute sliding-log")));
    assert_eq!(denied.retry_after(), Some(Duration::from_secs(59)));
    // The first and the third limit were not charged for the denied four.
    assert_eq!(limiter.check_cost("key", 3).unwrap().remaining(), 0);
    clock.advance(Duration::from_secs(60));
    assert_eq!(limiter.check_cost("key", 5).unwrap().remaining(), 0);
    assert!(limiter.check_cost("key", 9).is_err(), "above the capacity of the smallest limit");
}

#[test]
fn check_all_charges_different_keys_and_limits() {
    let (limiter, _) = limiter("1/second");
    let charge = |name: &str, key: &'static str, text: &str| {
        Charge::new(name.parse().unwrap(), KeyRef::new(key.as_bytes()), limit(text))
    };
    let both = [charge("ip", "1.2.3.4", "3/hour"), charge("user", "alice", "2/hour burst 2")];
    let answers = [(); 3].map(|()| limiter.charges().check(&both).unwrap());
    assert_eq!(answers.map(|decision| decision.is_allowed()), [true, true, false]);
    assert_eq!(answers[2].policy().unwrap().as_str(), "user");
    let other = [charge("ip", "1.2.3.4", "3/hour"), charge("user", "bob", "2/hour burst 2")];
    assert!(
        limiter.charges().check(&other).unwrap().is_allowed(),
        "the denied request cost nothing"
    );
    assert_eq!(limiter.charges().check(&other).unwrap().policy().unwrap().as_str(), "ip");
    let error = limiter.charges().check(&[charge("ip", "x", "3/hour").cost(4)]).unwrap_err();
    assert_eq!((error.cost, error.max), (4, 3));
}

#[test]
fn many_keys_at_once_decide_as_one_by_one() {
    let texts = ["3/minute", "3/minute sliding-window", "3/minute sliding-log", "2/minute burst 3"];
    for text in texts {
        for is_sorted in [false, true] {
            let (one_by_one, _) = limiter(text);
            let (at_once, _) = limiter(text);
            let mut keys: Vec<String> = (0..500).map(|n| format!("key-{}", n * n % 90)).collect();
            if is_sorted {
                // Equal keys follow each other, and share a lock.
                keys.sort();
            }
            let expected: Vec<_> = keys.iter().map(|key| one_by_one.check(key)).collect();
            let mut decisions = at_once.check_many(&keys[..100]);
            at_once.check_many_into(&keys[100..], &mut decisions);
            assert_eq!(decisions, expected, "{text}, sorted: {is_sorted}");
        }
    }
}

#[test]
fn of_two_denials_the_longer_wait_is_reported() {
    for texts in [["1/second", "1/hour sliding-log"], ["1/hour sliding-log", "1/second"]] {
        let limiter = Limiter::builder().limit(texts[0]).limit(texts[1]);
        let limiter = limiter.clock(pacegate::ManualClock::new()).build().unwrap();
        assert!(limiter.check("key").is_allowed());
        let denied = limiter.check("key");
        assert_eq!(denied.limit(), Some(limit("1/hour sliding-log")), "{texts:?}");
        assert_eq!(denied.retry_after(), Some(Duration::from_secs(3_600)), "{texts:?}");
    }
}

#[test]
fn retry_after_in_seconds_is_never_early() {
    let (limiter, clock) = limiter("1/10s");
    assert_eq!(limiter.check("key").retry_after_secs(), None);
    for (millis, secs) in [(0, 10), (1, 10), (999, 9), (500, 9), (8_499, 1)] {
        clock.advance(Duration::from_millis(millis));
        assert_eq!(limiter.check("key").retry_after_secs(), Some(secs), "{millis}");
    }
    assert_eq!(crate::limiter("0/second").0.check("key").retry_after_secs(), None);
}
