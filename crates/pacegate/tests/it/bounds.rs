//! Upper bounds that hold for any traffic, and exact waits and rates.

use std::time::Duration;

use pacegate::{Algorithm, Clock, Limit, Limiter, ManualClock};
use pacegate_testkit::Random;

use crate::{RATE_ALGORITHMS, limiter};

fn small_limit(random: &mut Random, algorithm: Algorithm) -> Limit {
    let period = Duration::from_millis(random.pick(&[1, 2, 5, 10]));
    let limit = Limit::new(random.pick(&[1, 2, 3, 5, 7, 10, 30]), period).unwrap();
    limit.with_algorithm(algorithm).unwrap()
}

fn on_a_clock(limit: Limit) -> (Limiter, ManualClock) {
    let clock = ManualClock::new();
    let limiter = Limiter::builder().limit(limit).clock(clock.clone()).build().unwrap();
    (limiter, clock)
}

/// A request is denied one microsecond before `retry_after` and admitted at it, for every denial and every cost.
#[test]
fn retry_after_is_exact_both_ways() {
    for algorithm in RATE_ALGORITHMS {
        let mut denials = 0;
        for seed in 0.. {
            if denials >= 100_000 {
                break;
            }
            let random = &mut Random::new(seed);
            let (limiter, clock) = on_a_clock(small_limit(random, algorithm));
            let capacity = limiter.policies().policies()[0].limits[0].capacity();
            for _ in 0..200 {
                clock.advance(Duration::from_micros(random.below(3_000)));
                let cost = random.between(1, capacity);
                let decision = limiter.check_cost("key", cost).unwrap();
                let Some(wait) = decision.retry_after() else { continue };
                denials += 1;
                let denied_at = clock.now();
                clock.set(denied_at.after(wait - Duration::from_micros(1)));
                let early = limiter.check_cost("key", cost).unwrap();
                assert!(!early.is_allowed(), "{algorithm}, seed {seed}: admitted too early");
                assert_eq!(early.retry_after(), Some(Duration::from_micros(1)));
                clock.set(denied_at.after(wait));
                let late = limiter.check_cost("key", cost).unwrap();
                assert!(late.is_allowed(), "{algorithm}, seed {seed}: still denied");
            }
        }
    }
}

/// Checks the maximum that each algorithm admits in any half-open period, under traffic that takes all it can get.
#[test]
fn no_period_admits_more_than_the_bound() {
    for algorithm in RATE_ALGORITHMS {
        for seed in 0..crate::histories() / 10 {
            let random = &mut Random::new(seed);
            let limit = small_limit(random, algorithm);
            let (limiter, clock) = on_a_clock(limit);
            let (amount, period) = (limit.amount(), limit.period().as_micros() as u64);
            let bound = match algorithm {
                Algorithm::FixedWindow => 2 * amount,
                Algorithm::SlidingWindow => amount + amount * (period - 1) / period,
                Algorithm::SlidingLog => amount,
                _ => 2 * amount - 1,
            };
            let mut admitted: Vec<(u64, u64)> = Vec::new();
            for _ in 0..120 {
                let now = clock.now().as_micros();
                let cost = limiter.peek("key").remaining().min(random.between(1, amount));
                if cost > 0 && limiter.check_cost("key", cost).unwrap().is_allowed() {
                    admitted.push((now, cost));
                }
                let to_end = period - now % period;
                let wait = random.pick(&[1, to_end, to_end - 1, period / 7 + 1, period - 1]);
                clock.advance(Duration::from_micros(wait));
            }
            for &(start, _) in &admitted {
                let within = |at: u64| (start..start + period).contains(&at);
                let sum: u64 =
                    admitted.iter().filter(|(at, _)| within(*at)).map(|(_, cost)| cost).sum();
                assert!(sum <= bound, "{algorithm}, seed {seed}: {sum} in a period of {limit}");
            }
        }
    }
}

/// After an idle time of any length, at most the burst is admitted at once.
#[test]
fn a_burst_after_silence_is_at_most_the_burst() {
    for text in ["10/second burst 10", "10/second burst 3", "7/second", "7/second sliding-window"] {
        let (limiter, clock) = limiter(text);
        let capacity = limiter.policies().policies()[0].limits[0].capacity();
        for step in 0..1_000 {
            clock.advance(Duration::from_micros(step * 3_000));
            let burst = (0..100).filter(|_| limiter.check("key").is_allowed()).count() as u64;
            assert!(burst <= capacity, "{text}: {burst} after {} ms", step * 3);
        }
    }
}

/// Under full load a token bucket admits exactly the burst plus the refill, to the token.
#[test]
fn the_long_run_rate_is_exact() {
    for (amount, seconds) in [(3, 300_000), (7, 100_000), (59, 20_000), (997, 1_000), (999_983, 1)]
    {
        let limit = Limit::per_second(amount).with_algorithm(Algorithm::TokenBucket).unwrap();
        let (limiter, clock) = on_a_clock(limit);
        let start = clock.now();
        let end = start.after(Duration::from_secs(seconds));
        let mut admitted = 0_u64;
        loop {
            let decision = limiter.check("key");
            match decision.retry_after() {
                None => admitted += 1,
                Some(wait) if clock.now().after(wait) <= end => clock.advance(wait),
                Some(_) => break,
            }
        }
        let passed = u128::from(end.micros_since(start));
        let refilled = (passed * u128::from(amount) / 1_000_000) as u64;
        assert_eq!(admitted, u64::from(amount) + refilled, "{amount} per second");
    }
}

/// Raising, lowering and replacing a limit never admits more than the old and the new amount together.
#[test]
fn a_changed_limit_admits_at_most_old_and_new() {
    for algorithm in RATE_ALGORITHMS {
        for seed in 0..2_000 {
            let random = &mut Random::new(seed);
            let old = small_limit(random, algorithm);
            let period = Duration::from_millis(if random.one_in(3) { 20 } else { 0 });
            let period = if period.is_zero() { old.period() } else { period };
            let new = Limit::new(random.between(1, 30), period).unwrap();
            let new = new.with_algorithm(algorithm).unwrap();
            let (limiter, clock) = on_a_clock(old);
            // At the start of both windows, so that no boundary falls between.
            let take =
                |limiter: &Limiter| (0..200).filter(|_| limiter.check("key").is_allowed()).count();
            clock.advance(Duration::from_micros(random.below(900)));
            let before = take(&limiter);
            let after = take(&limiter.with_limit(new));
            assert!((before + after) as u64 <= old.amount() + new.amount(), "{algorithm} {seed}");
            if period == old.period() {
                let carried = new.amount().saturating_sub(old.amount());
                assert_eq!(after as u64, carried, "{algorithm}, seed {seed}: {old} to {new}");
            }
        }
    }
}

/// An event of a bucket: its instant, and the tokens that it took, less those that were returned to it. Refunds are
/// negative.
type Event = (u64, i128);

/// Runs random checks, reservations, settlements and refunds on one bucket.
fn bucket_events(random: &mut Random, limit: Limit) -> Vec<Event> {
    let (limiter, clock) = on_a_clock(limit);
    let (mut events, mut open): (Vec<Event>, Vec<(usize, _)>) = (Vec::new(), Vec::new());
    let free = || limiter.peek("key").remaining();
    for _ in 0..60 {
        let now = clock.now().as_micros();
        let token = limit.period().as_micros() as u64 / limit.amount() + 1;
        let cost = random.between(1, limit.capacity());
        match random.below(8) {
            0..2 => clock.advance(Duration::from_micros(random.below(2 * token * cost))),
            2 if limiter.check_cost("key", cost).unwrap().is_allowed() => {
                events.push((now, i128::from(cost)));
            }
            3 if random.one_in(3) => {
                // One token less than those that are certainly missing: only whole tokens are returned then.
                let before = free();
                let cost = cost.min((limit.capacity() - before).saturating_sub(1));
                limiter.refund("key", cost);
                events.push((now, -i128::from(free() - before)));
            }
            4..6 => {
                let ttl = Duration::from_secs(3_600);
                if let Some(reserved) = limiter.reserve("key", cost, ttl).unwrap().reservation {
                    open.push((events.len(), reserved));
                    events.push((now, i128::from(cost)));
                }
            }
            6..8 if !open.is_empty() => {
                let (charge, reserved) = open.swap_remove(random.below(open.len() as u64) as usize);
                let before = free();
                let actual = random.below(events[charge].1 as u64 + 1);
                assert!(reserved.settle(random.pick(&[0, actual])));
                events[charge].1 -= i128::from(free() - before);
            }
            _ => {}
        }
    }
    events
}

/// However reservations are settled, the tokens that are taken and not returned stay below the bound of the bucket, in
/// every interval. What a reservation returns counts as if it had never been taken.
#[test]
fn returned_tokens_were_never_taken() {
    for seed in 0..crate::histories() {
        let random = &mut Random::new(seed);
        let limit = small_limit(random, Algorithm::TokenBucket);
        let burst = random.pick(&[limit.amount(), 1, 2 * limit.amount() + 1]);
        let limit = limit.with_burst(burst).unwrap();
        let (amount, period) = (i128::from(limit.amount()), limit.period().as_micros() as i128);
        let events = bucket_events(random, limit);
        for (first, &(start, _)) in events.iter().enumerate() {
            let mut sum = 0;
            for &(at, tokens) in &events[first..] {
                sum += tokens;
                let refilled = i128::from(at - start) * amount;
                let bound = i128::from(burst) * period + refilled;
                assert!(
                    sum * period <= bound,
                    "seed {seed}: {sum} of {limit} from {start} to {at}"
                );
            }
        }
    }
}
