//! Requests for as many units as there are.

use std::time::Duration;

use pacegate::{
    Limit, Limiter, ManualClock, MemoryStore, Policy, PolicySet, Request, SharedLimiter, Source,
    StoreError,
};

fn limiter(policies: impl IntoIterator<Item = Policy>) -> (Limiter, ManualClock) {
    let clock = ManualClock::new();
    let policies = PolicySet::new(policies).unwrap();
    let limiter = Limiter::builder().policies(policies).clock(clock.clone()).build().unwrap();
    (limiter, clock)
}

#[test]
fn all_limits_are_charged_what_the_tightest_has() {
    let own = Policy::new("own", ["10/minute", "25/hour sliding-log"]).per(["user"]);
    let all = Policy::new("all", ["30/minute burst 30"]);
    let (limiter, clock) = limiter([own, all]);
    let grant = |user, cost| {
        let request = Request::new().with("user", user).cost(cost);
        let grant = limiter.check_request_up_to(&request);
        (grant.units, grant.decision.policy().unwrap().as_str(), grant.decision.remaining())
    };
    assert_eq!(grant("alice", 7), (7, "own", 3));
    assert_eq!(grant("alice", u64::MAX), (3, "own", 0));
    assert_eq!(grant("alice", 5), (0, "own", 0));
    assert_eq!(grant("bob", 10), (10, "own", 0));
    assert_eq!(grant("carol", 9), (9, "own", 1));
    assert_eq!(grant("carol", 9), (1, "own", 0), "20 of the bucket were taken before");
    assert_eq!(grant("dave", 10), (0, "all", 0));
    clock.advance(Duration::from_secs(60));
    assert_eq!(grant("alice", 12), (10, "own", 0), "the limit of the minute");
    clock.advance(Duration::from_secs(60));
    assert_eq!(grant("alice", 12), (5, "own", 0), "the limit of the hour");
}

#[test]
fn a_denied_request_can_retry_for_one_unit() {
    let (limiter, clock) = limiter([Policy::new("api", ["6/minute burst 6"]).per(["key"])]);
    assert_eq!(limiter.check_up_to("alice", 6).units, 6);
    let none = limiter.check_up_to("alice", 4);
    assert_eq!(none.decision.retry_after(), Some(Duration::from_secs(10)));
    clock.advance(Duration::from_micros(9_999_999));
    assert_eq!(limiter.check_up_to("alice", 4).units, 0);
    clock.advance(Duration::from_micros(1));
    assert_eq!(limiter.check_up_to("alice", 4).units, 1);
    assert_eq!(limiter.check_up_to("bob", 0).units, 0, "a peek");
    assert!(limiter.check_up_to("bob", 0).decision.is_allowed());
}

#[test]
fn the_maximum_cost_bounds_the_grant() {
    let mut policy = Policy::new("api", ["10/minute"]).per(["key"]);
    policy.max_cost = Some(4);
    let (limiter, _) = limiter([policy]);
    for units in [4, 4, 2, 0] {
        assert_eq!(limiter.check_up_to("alice", 9).units, units);
    }
}

#[test]
fn limits_in_shadow_mode_do_not_reduce_the_grant() {
    let shadow = Policy::new("shadow", ["3/minute"]).shadow();
    let (limiter, _) = limiter([Policy::new("api", ["10/minute"]), shadow.clone()]);
    let request = Request::new().cost(2);
    let grant = limiter.check_request_up_to(&request);
    assert_eq!((grant.units, grant.decision.is_shadow_denied()), (2, false));
    let grant = limiter.check_request_up_to(&request);
    assert_eq!((grant.units, grant.decision.is_shadow_denied()), (2, true));
    let (limiter, _) = self::limiter([shadow]);
    let grant = limiter.check_request_up_to(&Request::new().cost(7));
    assert_eq!((grant.units, grant.decision.is_shadow_denied()), (7, true));
    let (limiter, _) = self::limiter([]);
    let grant = limiter.check_request_up_to(&Request::new().cost(7));
    assert_eq!((grant.units, grant.decision.source()), (7, Source::Unlimited));
}

#[test]
fn statistics_count_the_units_that_were_granted() {
    let (limiter, _) = limiter([Policy::new("api", ["10/minute"]).per(["key"])]);
    for _ in 0..3 {
        let _ = limiter.check_up_to("alice", 7);
    }
    let stats = limiter.stats();
    let api = &stats.policies[0];
    assert_eq!((api.allowed, api.denied), (2, 1));
    assert_eq!((api.allowed_units, api.denied_units), (10, 7));
}

#[test]
fn threads_are_granted_exactly_the_amount() {
    let limiter = Limiter::memory(Limit::per_day(10_000));
    let granted: u64 = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4_u64)
            .map(|thread| {
                let limiter = &limiter;
                scope.spawn(move || {
                    let grant = |n: u64| limiter.check_up_to("k", 1 + (n + thread) % 7).units;
                    (0..1_000).map(grant).sum::<u64>()
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum::<u64>()
    });
    assert_eq!(granted, 10_000);
}

#[test]
fn a_shared_limiter_grants_the_same() {
    pollster::block_on(async {
        let policies = PolicySet::new([Policy::new("api", ["10/day"]).per(["key"])]).unwrap();
        let limiter = SharedLimiter::new(MemoryStore::default(), policies);
        for units in [7, 3, 0] {
            assert_eq!(limiter.check_up_to("alice", 7).await.unwrap().units, units);
        }
        let request = Request::new().with("key", "alice").id("id").unwrap();
        let error = limiter.check_request_up_to(&request).await.unwrap_err();
        assert_eq!(error, StoreError::no_ids().into());
        let plan = limiter.charges().plan(&Request::new().with("key", "bob"));
        let charges = plan.charges(4).unwrap();
        assert_eq!(limiter.charges().check_up_to(&charges, None).await.unwrap().units, 4);
        let twice = [charges[0], charges[0]];
        assert!(limiter.charges().check_up_to(&twice, None).await.is_err());
    });
}
