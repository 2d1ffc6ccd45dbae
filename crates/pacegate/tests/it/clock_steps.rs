//! Clock steps: a step back denies for at most a short time; a step forward admits at most one extra burst.

use std::time::Duration;

use pacegate::{Algorithm, Clock, Limit, Limiter, ManualClock};

const STEPS: [u64; 3] = [100, 10_000, 3_600_000];

fn used_up(algorithm: Algorithm) -> (Limiter, ManualClock) {
    let clock = ManualClock::new();
    clock.advance(Duration::from_millis(86_400_437));
    let limit = Limit::per_second(10).with_algorithm(algorithm).unwrap();
    let limiter = Limiter::builder().limit(limit).clock(clock.clone()).build().unwrap();
    assert_eq!(take(&limiter), 10, "{algorithm}");
    (limiter, clock)
}

fn take(limiter: &Limiter) -> usize {
    (0..50).filter(|_| limiter.check("key").is_allowed()).count()
}

#[test]
fn a_step_back_locks_out_for_a_period_at_most() {
    for algorithm in Algorithm::BUILT_IN {
        for millis in STEPS {
            let (limiter, clock) = used_up(algorithm);
            clock.set(pacegate::Timestamp::from_micros(clock.now().as_micros() - millis * 1_000));
            let denied = limiter.check("key");
            assert!(!denied.is_allowed(), "{algorithm}, {millis} ms back: used units stay used");
            // The sliding window needs up to two periods: one as the current window and one as the previous.
            let most = if algorithm == Algorithm::SlidingWindow { 2 } else { 1 };
            let wait = denied.retry_after().unwrap();
            assert!(wait <= Duration::from_secs(most), "{algorithm}, {millis} ms back: {wait:?}");
            clock.advance(wait);
            assert!(limiter.check("key").is_allowed(), "{algorithm}, {millis} ms back");
        }
    }
}

#[test]
fn a_step_forward_admits_one_burst_more() {
    for algorithm in Algorithm::BUILT_IN {
        for millis in STEPS {
            let (limiter, clock) = used_up(algorithm);
            let before = clock.now();
            clock.advance(Duration::from_millis(millis));
            let ahead = take(&limiter);
            clock.set(before);
            let back = take(&limiter);
            assert!(ahead <= 10 && back == 0, "{algorithm}, {millis} ms: {ahead} and {back}");
        }
    }
}

/// The clocks of two CPUs may differ slightly. That is not a step, and no time is counted twice.
#[test]
fn a_wavering_clock_admits_nothing_extra() {
    let clock = ManualClock::new();
    let limit = "1000/second burst 10";
    let limiter = Limiter::builder().limit(limit).clock(clock.clone()).build().unwrap();
    let mut admitted = take(&limiter);
    for _ in 0..1_000 {
        clock.advance(Duration::from_micros(500));
        admitted += take(&limiter);
        clock.set(pacegate::Timestamp::from_micros(clock.now().as_micros() - 499));
        admitted += take(&limiter);
    }
    // A net advance of 1 µs in each of a thousand rounds: the latest time seen is 1.5 ms after the start.
    assert_eq!(admitted, 10 + 1);
}

/// The same if the clock goes back after each charge: the instant of the charge does not move back with it.
#[test]
fn a_clock_that_wavers_after_a_charge_admits_nothing_extra() {
    let (limiter, clock) = crate::limiter("1000/second burst 10");
    let mut admitted = take(&limiter);
    for _ in 0..1_000 {
        clock.advance(Duration::from_micros(1_000));
        admitted += take(&limiter);
        clock.set(pacegate::Timestamp::from_micros(clock.now().as_micros() - 999));
        admitted += take(&limiter);
    }
    // The latest instant shown is 1,999 µs after the first: time for one token.
    assert_eq!(admitted, 10 + 1);
}

/// A request over several keys is decided at one instant, and the time of none of its shards falls behind it.
#[test]
fn a_wavering_clock_admits_nothing_extra_for_requests_of_several_keys() {
    let (limiter, clock) = crate::limiter("1/second");
    let policy = pacegate::PolicyName::DEFAULT;
    let back = || clock.set(pacegate::Timestamp::from_micros(clock.now().as_micros() - 500));
    for n in 0..64 {
        clock.advance(Duration::from_secs(1));
        let names = ["ahead", "other"].map(|name| format!("{name}-{n}"));
        let charge = |place: usize, burst: u64| {
            let limit = Limit::per_second(1_000).with_burst(burst).unwrap();
            pacegate::Charge::new(policy, pacegate::KeyRef::new(names[place].as_bytes()), limit)
        };
        let (ahead, other) = (charge(0, 2), charge(1, 1));
        let allowed = |charges: &[pacegate::Charge<'_>]| {
            limiter.charges().check(charges).unwrap().is_allowed()
        };
        assert!(allowed(&[ahead]));
        back();
        assert!(allowed(&[ahead, other]));
        assert!(!allowed(&[other]));
        // A millisecond after the wavering clock's instant, but half of one after the charge.
        clock.advance(Duration::from_micros(1_000));
        assert!(!allowed(&[other]), "round {n}");
        clock.advance(Duration::from_micros(500));
        assert!(allowed(&[other]), "round {n}");
    }
}

#[test]
fn a_refund_after_a_step_back_counts_once() {
    for algorithm in crate::RATE_ALGORITHMS {
        for millis in STEPS {
            let (limiter, clock) = used_up(algorithm);
            clock.set(pacegate::Timestamp::from_micros(clock.now().as_micros() - millis * 1_000));
            limiter.refund("key", 3);
            assert_eq!(limiter.peek("key").remaining(), 3, "{algorithm}, {millis} ms back");
        }
    }
}

/// The same for the shared budget of keys without room: each charge uses the time of the key's shard.
#[test]
fn a_wavering_clock_admits_nothing_extra_for_keys_without_room() {
    for _ in 0..8 {
        let clock = ManualClock::new();
        let limiter = Limiter::builder().limit("10000/second burst 10").max_keys(1);
        let limiter = limiter.clock(clock.clone()).build().unwrap();
        let _ = limiter.check("resident");
        let take = |key| (0..50).filter(|_| limiter.check(key).is_allowed()).count();
        let mut admitted = take("a");
        for _ in 0..1_000 {
            clock.advance(Duration::from_micros(900));
            admitted += take("a");
            clock.set(pacegate::Timestamp::from_micros(clock.now().as_micros() - 899));
            admitted += take("b");
        }
        // A burst of ten, plus the refill of 1,899 µs.
        assert!(admitted <= 28, "{admitted}");
    }
}
