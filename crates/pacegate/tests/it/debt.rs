//! Charges that are recorded in full, even if they exceed a limit.

use std::time::Duration;

use pacegate::{
    Charge, Excess, Limit, Limiter, ManualClock, Policy, PolicySet, Request, SharedLimiter,
    StoreError, Timestamp, algorithm::State, policy::PolicyError,
};

use crate::{RATE_ALGORITHMS, limiter, shared::Double};

fn alice() -> Request<'static> {
    Request::new().with("key", "alice")
}

#[test]
fn debt_is_paid_back_before_the_next_request() {
    for text in
        ["10/minute", "10/minute sliding-window", "10/minute sliding-log", "10/minute burst 10"]
    {
        let (limiter, clock) = limiter(text);
        let spent = limiter.check_request(&alice().cost(17).spent()).unwrap();
        assert!(!spent.is_allowed(), "{text}");
        for cost in [1, 4, 10] {
            let denied = limiter.check_cost("alice", cost).unwrap();
            assert!(!denied.is_allowed(), "{text}");
            let wait = denied.retry_after().unwrap();
            clock.advance(wait - Duration::from_micros(1));
            assert!(!limiter.check_cost("alice", cost).unwrap().is_allowed(), "{text}: too early");
            clock.advance(Duration::from_micros(1));
            assert!(limiter.check_cost("alice", cost).unwrap().is_allowed(), "{text}: {cost}");
            limiter.reset("alice");
            let _ = limiter.check_request(&alice().cost(17).spent()).unwrap();
        }
    }
}

#[test]
fn a_fixed_window_carries_its_debt() {
    let (limiter, clock) = limiter("10/minute");
    let _ = limiter.check_request(&alice().cost(18).spent()).unwrap();
    assert_eq!(limiter.peek("alice").reset_after(), Duration::from_secs(120));
    clock.advance(Duration::from_secs(60));
    assert_eq!(limiter.peek("alice").remaining(), 2);
    limiter.refund("alice", 3);
    assert_eq!(limiter.peek("alice").remaining(), 5);
    clock.advance(Duration::from_secs(60));
    assert_eq!(limiter.peek("alice").remaining(), 10);
}

#[test]
fn debt_has_a_maximum() {
    let policy = |max| Policy::new("tokens", ["10/minute"]).per(["key"]).max_debt(max);
    for (max, windows) in [(0, 1), (5, 2), (25, 4)] {
        let clock = ManualClock::new();
        let builder = Limiter::builder().policies(PolicySet::new([policy(max)]).unwrap());
        let limiter = builder.clock(clock).build().unwrap();
        let decision = limiter.check_request(&alice().cost(u64::MAX).spent()).unwrap();
        assert!(!decision.is_allowed());
        assert_eq!(decision.reset_after(), Duration::from_secs(60 * windows), "{max}");
    }
}

#[test]
fn spent_units_are_recorded_by_every_limit() {
    let policies = [
        Policy::new("short", ["2/minute"]).per(["key"]),
        Policy::new("long", ["100/hour"]).per(["key"]),
        Policy::new("permits", ["1/30s concurrency"]).per(["key"]),
    ];
    let builder = Limiter::builder().policies(PolicySet::new(policies).unwrap());
    let limiter = builder.clock(ManualClock::new()).build().unwrap();
    let denied = limiter.check_request(&alice().cost(7).spent()).unwrap();
    assert_eq!((denied.is_allowed(), denied.policy().unwrap().as_str()), (false, "short"));
    let plan = limiter.charges().plan(&alice());
    let each = limiter.charges().check_batch(&plan.charges(0).unwrap()).unwrap().each;
    let remaining: Vec<_> = each.iter().map(|decision| decision.remaining()).collect();
    assert_eq!(remaining, [0, 93, 1]);
}

#[test]
fn a_denied_request_takes_nothing_but_its_recorded_charges() {
    let limiter = Limiter::builder().limit("1/second").clock(ManualClock::new()).build().unwrap();
    for algorithm in RATE_ALGORITHMS {
        let limit = |amount| Limit::per_hour(amount).with_algorithm(algorithm).unwrap();
        let policy = algorithm.name().parse().unwrap();
        let exact = Charge::new(policy, "exact", limit(5));
        let counted = Charge::new(policy, "counted", limit(2)).excess(Excess::Count);
        let check = |cost| {
            let charges = [exact.cost(cost), counted.cost(cost)];
            limiter.charges().check(&charges).unwrap().is_allowed()
        };
        assert_eq!([check(2), check(2), check(0)], [true, false, false], "{algorithm}");
        let left = limiter.charges().check(&[exact.cost(0)]).unwrap().remaining();
        assert_eq!(left, 3, "{algorithm}");
        limiter.charges().refund(&[counted.cost(2)]);
        assert!(limiter.charges().check(&[counted.cost(0)]).unwrap().is_allowed(), "{algorithm}");
        assert!(!limiter.charges().check(&[counted]).unwrap().is_allowed(), "{algorithm}: full");
    }
}

#[test]
fn permits_cannot_be_recorded_in_full() {
    let policy = Policy::new("jobs", ["3/minute concurrency"]).record_in_full();
    let error = PolicySet::new([policy]).unwrap_err();
    assert!(matches!(error, PolicyError::RecordAlgorithm { .. }), "{error}");
}

#[test]
fn a_wait_records_only_the_attempt_that_is_admitted() {
    let policies = PolicySet::new([Policy::new("api", ["2/minute"]).per(["key"]).record_in_full()]);
    let builder = Limiter::builder().policies(policies.unwrap()).clock(ManualClock::new());
    let limiter = builder.build().unwrap();
    assert!(limiter.check_cost("alice", 2).unwrap().is_allowed());
    let waited = pollster::block_on(limiter.until_ready("alice", Duration::ZERO));
    assert!(waited.is_err());
    assert_eq!(limiter.peek("alice").reset_after(), Duration::from_secs(60), "no debt");
}

#[test]
fn only_local_counting_records_during_an_outage() {
    use pacegate::policy::FailureMode::{Closed, Open};
    let policy = |name: &str| Policy::new(name, ["4/minute"]).per(["key"]);
    for (policy, allowed) in [
        (policy("open").failing(Open), true),
        (policy("closed").failing(Closed), false),
        (policy("local"), false),
    ] {
        let clock = ManualClock::new();
        let (store, is_local) = (Double::new(&clock), policy.name.as_str() == "local");
        store.fail(StoreError::TimedOut);
        let builder = SharedLimiter::builder(store).clock(clock);
        let limiter = builder.policies(PolicySet::new([policy]).unwrap()).build().unwrap();
        let decision = pollster::block_on(limiter.check_request(&alice().cost(6).spent())).unwrap();
        assert_eq!((decision.is_allowed(), decision.is_degraded()), (allowed, true));
        if is_local {
            assert_eq!(decision.reset_after(), Duration::from_secs(120));
        }
    }
}

#[test]
fn excess_that_is_only_counted_never_becomes_debt() {
    let (limit, mut state) = (Limit::per_minute(10), State::EMPTY);
    let now = Timestamp::from_secs(60);
    assert_eq!(limit.charge(&mut state, now, 15, Excess::Debt { max: 10 }).1, 15);
    let (outcome, taken) = limit.charge(&mut state, now, 100, Excess::Count);
    assert_eq!((outcome.is_admitted(), outcome.remaining(), taken), (false, 0, 0));
    assert_eq!(limit.step(&mut state, Timestamp::from_secs(120), 0).remaining(), 5);
}

/// Hosts have different limits during a reload, and callers may choose a limit per call.
#[test]
fn debt_under_a_lower_limit_keeps_the_units_of_a_higher_one() {
    let (high, low, mut state) = (Limit::per_minute(26), Limit::per_minute(20), State::EMPTY);
    let now = Timestamp::from_secs(60);
    assert!(high.step(&mut state, now, 26).is_admitted());
    assert_eq!(low.charge(&mut state, now, 2, Excess::Debt { max: 20 }).1, 2);
    assert!(!high.step(&mut state, now, 1).is_admitted(), "28 of 26 are used");
    let outcome = low.step(&mut state, now, 20);
    assert_eq!(outcome.retry_after(), Some(Duration::from_secs(120)), "the next window owes 2");
    let next = low.step(&mut state, Timestamp::from_secs(120), 0);
    assert_eq!(next.remaining(), 18, "the 6 units above the lower limit are not carried");
}

/// More than 4,095 units that are not carried are rounded down, so that rather too much is carried.
#[test]
fn large_uncarried_units_are_rounded_down() {
    let limit = Limit::per_minute(10);
    for counted in [1, 4_095, 4_097, 1_000_001, Limit::MAX_AMOUNT - 50] {
        let (mut state, now) = (State::EMPTY, Timestamp::from_secs(60));
        assert_eq!(limit.charge(&mut state, now, 10 + counted, Excess::Count).1, 10 + counted);
        assert_eq!(limit.charge(&mut state, now, 3, Excess::Debt { max: 10 }).1, 3);
        let state = State::from_words(&limit, state.to_words(&limit));
        let rest = limit.refund(state, Timestamp::from_secs(120), 0).to_words(&limit)[1];
        let most = 3 + if counted < 4_096 { 0 } else { counted / 2_048 };
        assert!((3..=most).contains(&rest), "{rest} of {counted} are carried");
    }
}

/// A peek shows the units beyond the capacity, until they are paid.
#[test]
fn a_peek_shows_the_debt() {
    for algorithm in RATE_ALGORITHMS {
        let (limiter, clock) = limiter(&format!("100/hour {algorithm}"));
        let request = Request::new().with("key", "alice");
        let _ = limiter.check_request(&request.clone().cost(100)).unwrap();
        assert_eq!(limiter.peek("alice").debt(), 0, "{algorithm}: full");
        let spent = limiter.check_request(&request.clone().cost(30).spent()).unwrap();
        assert_eq!(spent.debt(), 30, "{algorithm}");
        let peek = limiter.peek("alice");
        assert_eq!((peek.debt(), peek.remaining()), (30, 0), "{algorithm}");
        clock.advance(peek.reset_after());
        assert_eq!(limiter.peek("alice").debt(), 0, "{algorithm}: paid");
    }
}
