//! Reservations: units that are charged in advance and settled later.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    thread,
    time::Duration,
};

use pacegate::{
    Algorithm, Charge, CheckError, Limit, Limiter, ManualClock, Policy, PolicySet, Request,
    ReservationId, SharedLimiter, StoreError, policy::FailureMode,
};

use crate::{RATE_ALGORITHMS, limit, limiter, shared::Double};

const TTL: Duration = Duration::from_secs(30);

fn alice() -> Request<'static> {
    Request::new().with("key", "alice")
}

#[test]
fn a_settlement_counts_once() {
    for algorithm in RATE_ALGORITHMS {
        let (limiter, _clock) = limiter(&format!("100/minute {algorithm}"));
        let reservation = limiter.reserve("alice", 60, TTL).unwrap().into_result().unwrap();
        assert_eq!(limiter.peek("alice").remaining(), 40, "{algorithm}");
        assert!(!limiter.reserve("alice", 60, TTL).unwrap().decision.is_allowed());
        assert_eq!(limiter.store().usage().reservations, 1, "a denial opens none");
        assert!(reservation.settle(25), "{algorithm}");
        assert_eq!(limiter.peek("alice").remaining(), 75, "{algorithm}");
        assert!(!reservation.settle(0) && !reservation.cancel(), "{algorithm}");
        assert_eq!(limiter.peek("alice").remaining(), 75, "{algorithm}");
        assert_eq!(limiter.store().usage().reservations, 0);
    }
}

#[test]
fn units_beyond_the_estimate_become_debt_of_each_limit() {
    let policies = [
        Policy::new("short", ["10/minute"]).per(["key"]),
        Policy::new("long", ["100/hour sliding-log"]).per(["key"]),
        Policy::new("permits", ["1/30s concurrency"]).per(["key"]),
    ];
    let builder = Limiter::builder().policies(PolicySet::new(policies).unwrap());
    let limiter = builder.clock(ManualClock::new()).build().unwrap();
    let reserved = limiter.reserve_request(&alice().cost(8), TTL).unwrap();
    assert!(reserved.into_result().unwrap().settle(15));
    let plan = limiter.charges().plan(&alice());
    let each = limiter.charges().check_batch(&plan.charges(0).unwrap()).unwrap().each;
    let remaining: Vec<_> = each.iter().map(|decision| decision.remaining()).collect();
    assert_eq!(remaining, [0, 85, 1], "concurrency limits are left out");
    assert_eq!(each[0].reset_after(), Duration::from_secs(120), "a debt of 5");
}

#[test]
fn a_late_settlement_changes_nothing() {
    let (limiter, clock) = limiter("100/hour");
    let reservation = limiter.reserve("alice", 60, TTL).unwrap().into_result().unwrap();
    clock.advance(TTL);
    assert!(!reservation.cancel());
    assert_eq!(limiter.peek("alice").remaining(), 40);
}

/// A window that has ended gets nothing back, and a bucket not what it has refilled.
#[test]
fn units_return_only_to_where_they_still_count() {
    let second = Duration::from_secs(1);
    for (text, waits) in [
        ("10/second", [(0, 10), (1, 4)]),
        ("10/second sliding-log", [(0, 10), (1, 4)]),
        ("10/second burst 100", [(0, 100), (1, 94)]),
        ("10/second sliding-window", [(0, 10), (2, 4)]),
    ] {
        for (seconds, remaining) in waits {
            let (limiter, clock) = limiter(text);
            let reservation = limiter.reserve("alice", 8, TTL).unwrap().into_result().unwrap();
            clock.advance(second * seconds);
            if seconds > 0 {
                assert!(limiter.check_cost("alice", 6).unwrap().is_allowed());
            }
            assert!(reservation.cancel());
            assert_eq!(limiter.peek("alice").remaining(), remaining, "{text}, {seconds}");
        }
    }
}

/// The tokens of a reservation refill earlier if another one returns its own.
#[test]
fn a_bucket_does_not_return_tokens_that_it_has_refilled() {
    let (limiter, clock) = limiter("10/10s burst 10");
    let reserve = || limiter.reserve("alice", 5, TTL).unwrap().into_result().unwrap();
    let (first, second) = (reserve(), reserve());
    assert!(first.cancel());
    clock.advance(Duration::from_secs(5));
    assert!(limiter.check_cost("alice", 5).unwrap().is_allowed());
    assert!(second.cancel());
    assert!(!limiter.check_cost("alice", 10).unwrap().is_allowed(), "15 at one instant");
    assert_eq!(limiter.peek("alice").remaining(), 5);
}

/// Nor after a refund or a reset, which return tokens too.
#[test]
fn refunds_and_resets_count_as_returned_to_a_bucket() {
    for reset in [false, true] {
        let (limiter, _clock) = limiter("10/10s burst 10");
        let reservation = limiter.reserve("alice", 5, TTL).unwrap().into_result().unwrap();
        if reset {
            limiter.reset("alice");
        } else {
            limiter.refund("alice", 5);
        }
        assert!(limiter.check_cost("alice", 5).unwrap().is_allowed());
        let later = limiter.reserve("alice", 3, TTL).unwrap().into_result().unwrap();
        assert!(reservation.cancel());
        assert_eq!(limiter.peek("alice").remaining(), 2, "reset: {reset}");
        assert!(later.cancel());
        assert_eq!(limiter.peek("alice").remaining(), 5, "reset: {reset}");
    }
}

#[test]
fn a_limit_in_shadow_mode_without_room_is_not_part_of_a_reservation() {
    let policies = [
        Policy::new("enforced", ["100/minute"]).per(["key"]),
        Policy::new("shadow", ["10/minute"]).per(["key"]).shadow(),
    ];
    let builder = Limiter::builder().policies(PolicySet::new(policies).unwrap());
    let limiter = builder.clock(ManualClock::new()).build().unwrap();
    assert!(limiter.check_request(&alice().cost(8)).unwrap().is_allowed());
    let reserved = limiter.reserve_request(&alice().cost(6), TTL).unwrap();
    assert!(reserved.into_result().unwrap().cancel());
    let plan = limiter.charges().plan(&alice());
    let each = limiter.charges().check_batch(&plan.charges(0).unwrap()).unwrap().each;
    assert_eq!((each[0].remaining(), each[1].remaining()), (92, 2));
}

/// With the old limit, its excess would be forgotten.
#[test]
fn the_current_limit_applies_to_a_settlement() {
    let (limiter, _clock) = limiter("10/minute");
    let reservation = limiter.reserve("alice", 5, TTL).unwrap().into_result().unwrap();
    let raised = limiter.with_limit(Limit::per_minute(20));
    assert!(raised.check_cost("alice", 10).unwrap().is_allowed());
    assert!(raised.settle(reservation.id(), 7));
    assert_eq!(raised.peek("alice").remaining(), 3);
}

#[test]
fn estimates_that_cannot_be_reserved_are_errors() {
    let (limiter, _clock) = limiter("10/minute");
    assert!(matches!(limiter.reserve("alice", 11, TTL), Err(CheckError::Cost(_))));
    let free = limiter.reserve("alice", 0, TTL).unwrap().into_result().unwrap();
    assert_eq!(limiter.peek("alice").remaining(), 9, "an estimate of 0 counts as 1");
    assert!(free.settle(4));
    assert_eq!(limiter.peek("alice").remaining(), 6);
    let charge = Charge::new("twice".parse().unwrap(), "alice", limit("10/minute"));
    let twice = limiter.charges().reserve(&[charge.cost(3), charge.cost(4)], TTL).unwrap();
    assert_eq!(twice.decision.remaining(), 3, "equal charges are merged");
    let shadow = limiter.charges().reserve(&[charge, charge.enforced(false)], TTL);
    assert!(matches!(shadow, Err(CheckError::Store(StoreError::Unsupported(_)))));
}

#[test]
fn the_number_of_open_reservations_is_bounded() {
    let clock = ManualClock::new();
    let builder = Limiter::builder().limit("1000/hour").max_keys(20).clock(clock.clone());
    let limiter = builder.build().unwrap();
    let reserve = || limiter.reserve("alice", 1, TTL);
    let first = reserve().unwrap().into_result().unwrap();
    assert!((1..20).all(|_| reserve().unwrap().decision.is_allowed()));
    let error = reserve().unwrap_err().to_string();
    assert!(error.contains("too many open reservations"), "{error}");
    assert_eq!(limiter.peek("alice").remaining(), 980, "and nothing is charged");
    assert!(first.cancel() && reserve().is_ok());
    clock.advance(TTL);
    assert!((0..20).all(|_| reserve().unwrap().decision.is_allowed()), "the others have expired");
}

#[test]
fn ids_that_were_made_up_settle_nothing() {
    let (limiter, _clock) = limiter("10/minute");
    let reservation = limiter.reserve("alice", 5, TTL).unwrap().into_result().unwrap();
    let text = reservation.id().to_string();
    let last = if text.ends_with('A') { "Q" } else { "A" };
    let changed: ReservationId = format!("{}{last}", &text[..text.len() - 1]).parse().unwrap();
    assert!(!limiter.cancel(&changed));
    for wrong in ["", "AQ", "not an id", &text[1..], &format!("{text}AAAA")] {
        assert!(wrong.parse::<ReservationId>().is_err(), "{wrong}");
    }
    assert!(limiter.cancel(&text.parse().unwrap()));
}

/// 8 threads reserve and settle; each settlement is attempted by two of them.
#[test]
fn concurrent_settlements_return_exactly_the_difference() {
    for algorithm in RATE_ALGORITHMS {
        let (limiter, _clock) = limiter(&format!("10000/day {algorithm}"));
        let (used, settled) = (AtomicU64::new(0), AtomicU64::new(0));
        thread::scope(|scope| {
            for thread in 0..8 {
                let (limiter, used, settled) = (&limiter, &used, &settled);
                scope.spawn(move || {
                    for round in 0..100 {
                        let reserved = limiter.reserve("alice", 10, TTL).unwrap();
                        let reservation = reserved.into_result().unwrap();
                        let actual = (thread + round) % 11;
                        used.fetch_add(actual, Ordering::SeqCst);
                        thread::scope(|scope| {
                            scope.spawn(|| {
                                settled.fetch_add(
                                    u64::from(reservation.settle(actual)),
                                    Ordering::SeqCst,
                                )
                            });
                            settled
                                .fetch_add(u64::from(reservation.settle(actual)), Ordering::SeqCst);
                        });
                    }
                });
            }
        });
        assert_eq!(settled.into_inner(), 800, "{algorithm}");
        assert_eq!(limiter.peek("alice").remaining(), 10_000 - used.into_inner(), "{algorithm}");
    }
}

#[test]
fn a_settlement_wakes_a_waiting_caller() {
    let (limiter, _clock) = limiter("10/day");
    let reservation = limiter.reserve("alice", 10, TTL).unwrap().into_result().unwrap();
    let mut waiting = std::pin::pin!(limiter.until_ready("alice", pacegate::Wait::forever()));
    let mut poll = || {
        let cx = &mut std::task::Context::from_waker(std::task::Waker::noop());
        waiting.as_mut().poll(cx).is_ready()
    };
    assert!(!poll());
    assert!(reservation.settle(9));
    assert!(poll());
}

/// Creates a limiter over a store that can fail, with this failure mode.
fn shared(mode: FailureMode) -> (SharedLimiter, Double) {
    let clock = ManualClock::new();
    let store = Double::new(&clock);
    let policy = Policy::new("api", ["10/minute"]).per(["key"]).failing(mode);
    let builder = SharedLimiter::builder(store.clone()).clock(clock);
    (builder.policies(PolicySet::new([policy]).unwrap()).build().unwrap(), store)
}

#[test]
fn every_process_on_a_store_can_settle() {
    pollster::block_on(async {
        let (limiter, store) = shared(FailureMode::Closed);
        let other = SharedLimiter::new(store.clone(), limiter.policies().clone());
        let reserved = limiter.reserve("alice", 6, TTL).await.unwrap();
        let text = reserved.into_result().unwrap().id().to_string();
        let id: ReservationId = text.parse().unwrap();
        assert!(other.settle(&id, 2).await.unwrap());
        assert!(!limiter.settle(&id, 2).await.unwrap());
        assert_eq!(limiter.peek("alice").await.unwrap().remaining(), 8);
        let without = other.with_policies(PolicySet::new([]).unwrap());
        assert!(matches!(without.settle(&id, 2).await, Err(StoreError::Unsupported(_))));
    });
}

#[test]
fn failure_modes_decide_if_the_store_fails() {
    pollster::block_on(async {
        for (mode, allowed) in [("open", true), ("closed", false), ("local", true)] {
            let (limiter, store) = shared(mode.parse().unwrap());
            store.fail(StoreError::TimedOut);
            let reserved = limiter.reserve("alice", 6, TTL).await.unwrap();
            assert_eq!(reserved.decision.is_allowed(), allowed, "{mode}");
            assert!(reserved.decision.is_degraded(), "{mode}");
            let Some(reservation) = reserved.reservation else { continue };
            let before = limiter.peek("alice").await.unwrap().remaining();
            assert_eq!(before, if mode == "local" { 4 } else { 10 }, "{mode}");
            let (elsewhere, _) = shared(mode.parse().unwrap());
            let is_charged = mode == "local";
            assert_eq!(elsewhere.settle(reservation.id(), 1).await.unwrap(), !is_charged, "{mode}");
            store.recover();
            assert!(reservation.settle(1).await.unwrap(), "{mode}: in this process");
            assert_eq!(limiter.peek("alice").await.unwrap().remaining(), 10, "{mode}: the store");
            store.fail(StoreError::TimedOut);
            let after = limiter.peek("alice").await.unwrap().remaining();
            assert_eq!(after, if mode == "local" { 9 } else { 10 }, "{mode}");
        }
    });
}

/// A failure of the store must not become an error because this process has no room for the reservation.
#[test]
fn failure_modes_decide_without_room_for_a_reservation() {
    pollster::block_on(async {
        for mode in ["open", "local"] {
            let clock = ManualClock::new();
            let policy = Policy::new("api", ["100/minute"]).per(["key"]);
            let store = Double::new(&clock);
            let policies = PolicySet::new([policy.failing(mode.parse().unwrap())]).unwrap();
            let builder = SharedLimiter::builder(store.clone()).clock(clock).max_keys(2);
            let limiter = builder.policies(policies).build().unwrap();
            store.fail(StoreError::TimedOut);
            let mut settled = Vec::new();
            let mut reservations = Vec::new();
            for _ in 0..4 {
                let reserved = limiter.reserve("alice", 5, TTL).await.unwrap();
                reservations.push(reserved.into_result().unwrap());
            }
            for reservation in reservations {
                settled.push(reservation.settle(1).await.unwrap());
            }
            let left = limiter.peek("alice").await.unwrap().remaining();
            if mode == "open" {
                assert_eq!((settled, left), (vec![true; 4], 100), "nothing was charged");
            } else {
                assert_eq!((settled, left), (vec![true, true, false, false], 88));
            }
        }
    });
}

/// One domain cannot use up the room of another with reservations.
#[test]
fn each_domain_has_a_share_of_the_open_reservations() {
    let policy = |name: &str, domain: &str| {
        Policy::new(name, ["1000000/hour"]).per(["key"]).in_domain(domain)
    };
    let policies = PolicySet::new([policy("a", "greedy"), policy("b", "other")]).unwrap();
    let builder = Limiter::builder().policies(policies).max_keys(40).clock(ManualClock::new());
    let limiter = builder.build().unwrap();
    let reserve = |domain: &'static str| {
        let request = alice().in_domain(domain);
        std::iter::repeat_with(|| limiter.reserve_request(&request, TTL).is_ok())
            .take_while(|is_reserved| *is_reserved)
            .count()
    };
    assert_eq!(reserve("greedy"), 30, "its guarantee of 10, and the 20 for all");
    assert_eq!(reserve("other"), 10, "its guarantee");
}

/// The caller can retry until the ttl is over.
#[test]
fn a_settlement_during_an_outage_is_an_error_and_can_be_repeated() {
    pollster::block_on(async {
        let (limiter, store) = shared("local".parse().unwrap());
        let reserved = limiter.reserve("alice", 6, TTL).await.unwrap();
        let reservation = reserved.into_result().unwrap();
        store.fail(StoreError::Unavailable("down".to_owned()));
        assert!(matches!(reservation.settle(1).await, Err(StoreError::Unavailable(_))));
        store.recover();
        assert_eq!(limiter.peek("alice").await.unwrap().remaining(), 4);
        assert!(reservation.settle(1).await.unwrap());
        assert_eq!(limiter.peek("alice").await.unwrap().remaining(), 9);
    });
}

#[test]
fn custom_algorithms_and_requests_without_limits() {
    let (limiter, _clock) = limiter("10/minute");
    let free = limiter.with_policies(PolicySet::new([]).unwrap());
    let reserved = free.reserve("alice", 1_000_000, TTL).unwrap();
    assert!(reserved.decision.is_allowed() && reserved.into_result().unwrap().settle(5));
    assert_eq!(free.store().usage().reservations, 0);
    let permits = limit("1/30s").with_algorithm(Algorithm::Concurrency).unwrap();
    let charge = Charge::new("permits".parse().unwrap(), "alice", permits);
    assert!(limiter.charges().reserve(&[charge], TTL).unwrap().decision.is_allowed(), "left out");
}
