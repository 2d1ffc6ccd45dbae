//! Reservations that are never settled.

use std::time::Duration;

use pacegate::{
    Algorithm, Limiter, ManualClock, MemoryStore, Policy, PolicySet, Request, SharedLimiter,
    StoreError,
    policy::{FailureMode, Unsettled},
};
use pacegate_testkit::Random;

use crate::{RATE_ALGORITHMS, shared::Double};

const TTL: Duration = Duration::from_secs(30);
const TICK: Duration = Duration::from_micros(1);

fn policy(name: &str, limit: &str) -> Policy {
    Policy::new(name, [limit]).per(["key"]).unsettled(Unsettled::Return)
}

fn limiter(policies: impl IntoIterator<Item = Policy>) -> (Limiter, ManualClock) {
    let clock = ManualClock::new();
    let policies = PolicySet::new(policies).unwrap();
    let builder = Limiter::builder().policies(policies).clock(clock.clone());
    (builder.build().unwrap(), clock)
}

#[test]
fn units_are_returned_at_the_end_of_the_ttl() {
    for algorithm in RATE_ALGORITHMS {
        let (limiter, clock) = limiter([policy("tokens", &format!("100/day {algorithm}"))]);
        let reservation = limiter.reserve("alice", 60, TTL).unwrap().into_result().unwrap();
        clock.advance(TTL - TICK);
        assert_eq!(limiter.peek("alice").remaining(), 40, "{algorithm}");
        clock.advance(TICK);
        // A part of one token was refilled.
        let returned = if algorithm == Algorithm::TokenBucket { 99 } else { 100 };
        assert_eq!(limiter.peek("alice").remaining(), returned, "{algorithm}");
        assert_eq!(limiter.store().usage().reservations, 0);
        assert!(!reservation.settle(10), "{algorithm}: it has ended");
        assert_eq!(limiter.peek("alice").remaining(), returned, "{algorithm}");
    }
}

/// The first call after the ttl may be the settlement itself.
#[test]
fn a_late_settlement_returns_the_estimate_only() {
    let (limiter, clock) = limiter([policy("tokens", "100/hour")]);
    let reservation = limiter.reserve("alice", 60, TTL).unwrap().into_result().unwrap();
    clock.advance(TTL);
    assert!(!reservation.settle(90));
    assert_eq!(limiter.peek("alice").remaining(), 100);
}

#[test]
fn a_settled_reservation_is_not_returned_again() {
    let (limiter, clock) = limiter([policy("tokens", "100/hour")]);
    let reservation = limiter.reserve("alice", 60, TTL).unwrap().into_result().unwrap();
    assert!(reservation.settle(25));
    clock.advance(TTL);
    assert_eq!(limiter.peek("alice").remaining(), 75);
}

#[test]
fn each_policy_of_a_reservation_keeps_or_returns_its_units() {
    let kept = policy("kept", "100/day sliding-log").unsettled(Unsettled::Keep);
    let (limiter, clock) = limiter([policy("returned", "100/hour"), kept]);
    let request = Request::new().with("key", "alice").cost(60);
    let _lost = limiter.reserve_request(&request, TTL).unwrap();
    clock.advance(TTL);
    let plan = limiter.charges().plan(&request);
    let each = limiter.charges().check_batch(&plan.charges(0).unwrap()).unwrap().each;
    assert_eq!((each[0].remaining(), each[1].remaining()), (100, 40));
}

#[test]
fn a_window_that_has_ended_gets_nothing_back() {
    let (limiter, clock) = limiter([policy("tokens", "10/10s")]);
    let _lost = limiter.reserve("alice", 8, TTL).unwrap();
    clock.advance(TTL - TICK);
    assert!(limiter.check_cost("alice", 6).unwrap().is_allowed());
    clock.advance(TICK);
    assert_eq!(limiter.peek("alice").remaining(), 10, "another window");
    let (limiter, clock) = self::limiter([policy("tokens", "10/20s")]);
    let _lost = limiter.reserve("alice", 8, TTL).unwrap();
    clock.advance(TTL - TICK);
    assert!(limiter.check_cost("alice", 6).unwrap().is_allowed());
    clock.advance(TICK);
    assert_eq!(limiter.peek("alice").remaining(), 4);
}

/// At the old rate, the bucket would still lack units of the reservation.
#[test]
fn the_current_limit_decides_how_much_still_counts() {
    let (limiter, clock) = limiter([policy("tokens", "1/minute burst 100")]);
    let _lost = limiter.reserve("alice", 100, TTL).unwrap();
    let faster = PolicySet::new([policy("tokens", "600/minute burst 100")]).unwrap();
    let limiter = limiter.with_policies(faster);
    clock.advance(TTL - TICK);
    assert!(limiter.check_cost("alice", 100).unwrap().is_allowed());
    clock.advance(TICK);
    assert_eq!(limiter.peek("alice").remaining(), 0, "all units were refilled before");
}

#[test]
fn units_of_a_failed_store_are_returned_in_this_process() {
    let clock = ManualClock::new();
    let double = Double::new(&clock);
    double.fail(StoreError::TimedOut);
    let tokens = policy("tokens", "100/hour").failing(FailureMode::default());
    let kept = policy("kept", "100/hour").failing(FailureMode::Open).unsettled(Unsettled::Keep);
    let builder = SharedLimiter::builder(double).clock(clock.clone());
    let builder = builder.policies(PolicySet::new([kept, tokens]).unwrap());
    let limiter = builder.build().unwrap();
    pollster::block_on(async {
        let lost = limiter.reserve("alice", 60, TTL).await.unwrap();
        assert!(lost.decision.is_degraded());
        assert_eq!(limiter.peek("alice").await.unwrap().remaining(), 40);
        clock.advance(TTL);
        assert_eq!(limiter.peek("alice").await.unwrap().remaining(), 100);
    });
}

#[test]
fn a_store_in_memory_returns_units_by_itself() {
    let clock = ManualClock::new();
    let store = MemoryStore::new(100, clock.clone());
    let policies = PolicySet::new([policy("tokens", "100/hour")]).unwrap();
    let limiter = SharedLimiter::new(store, policies);
    pollster::block_on(async {
        let _lost = limiter.reserve("alice", 60, TTL).await.unwrap();
        clock.advance(TTL - TICK);
        assert_eq!(limiter.peek("alice").await.unwrap().remaining(), 40);
        clock.advance(TICK);
        assert_eq!(limiter.peek("alice").await.unwrap().remaining(), 100);
    });
}

/// Limiters that share a store in memory know the current limits, the store does not. At the old rate, the bucket would
/// still lack units of the reservation.
#[test]
fn a_shared_store_in_memory_returns_units_under_the_limit_of_the_next_call() {
    let clock = ManualClock::new();
    let store = MemoryStore::new(100, clock.clone());
    let policies = |limit| PolicySet::new([policy("tokens", limit)]).unwrap();
    let limiter = SharedLimiter::new(store, policies("1/minute burst 100"));
    pollster::block_on(async {
        for key in ["alice", "bob"] {
            let _lost = limiter.reserve(key, 100, TTL).await.unwrap();
        }
        let faster = limiter.with_policies(policies("600/minute burst 100"));
        clock.advance(TTL - TICK);
        assert!(faster.check_cost("alice", 100).await.unwrap().is_allowed());
        clock.advance(TICK);
        // The first call after the ttl is for another key, and at the old rate.
        assert_eq!(limiter.peek("carol").await.unwrap().remaining(), 100);
        assert_eq!(faster.peek("alice").await.unwrap().remaining(), 0, "all were refilled before");
        assert_eq!(
            limiter.peek("bob").await.unwrap().remaining(),
            99,
            "a part of one was refilled"
        );
    });
}

/// An unsettled reservation has the same effect as one that is cancelled at that instant.
#[test]
fn a_return_equals_a_cancellation_at_the_end_of_the_ttl() {
    let limits = ["20/7s", "20/7s sliding-window", "20/7s sliding-log", "20/7s burst 30"];
    for seed in 0..2_000 {
        let random = &mut Random::new(seed);
        let text = limits[random.below(4) as usize];
        let (limiter, clock) = limiter([policy("tokens", text)]);
        let (control, other_clock) = self::limiter([policy("tokens", text)]);
        // The reservations to cancel, with the seconds until then.
        let mut open = Vec::new();
        for _ in 0..30 {
            clock.advance(Duration::from_secs(1));
            other_clock.advance(Duration::from_secs(1));
            // In the order in which the limiter returns them.
            open.retain_mut(|(left, reservation): &mut (u64, pacegate::Reservation)| {
                *left -= 1;
                *left > 0 || !reservation.cancel()
            });
            assert_eq!(limiter.peek("alice"), control.peek("alice"), "{text}, seed {seed}");
            let (cost, ttl) = (random.between(1, 8), random.between(1, 9));
            // One at a time: the order of returns at one instant is not specified.
            if open.iter().any(|(left, _)| *left == ttl) || random.below(3) == 0 {
                let decision = limiter.check_cost("alice", cost).unwrap();
                assert_eq!(decision, control.check_cost("alice", cost).unwrap(), "{text}, {seed}");
                continue;
            }
            let reserved = limiter.reserve("alice", cost, Duration::from_secs(ttl)).unwrap();
            let same = control.reserve("alice", cost, Duration::from_secs(3_600)).unwrap();
            assert_eq!(reserved.decision, same.decision, "{text}, seed {seed}");
            open.extend(same.reservation.map(|reservation| (ttl, reservation)));
        }
    }
}
