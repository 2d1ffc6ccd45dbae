//! `Limiter::stats`.

use std::time::Duration;

use pacegate::{
    Charge, KeyRef, Limit, Limiter, ManualClock, Policy, PolicySet, SharedLimiter,
    policy::Unsettled,
};

use crate::limiter;

#[test]
fn decisions_are_counted_and_busy_keys_named() {
    let (limiter, _) = limiter("5/hour");
    for _ in 0..20 {
        let _ = limiter.check("greedy");
    }
    for n in 0..7 {
        let _ = limiter.check(("<img src=x onerror=alert(1)>", n));
    }
    let _ = limiter.peek("greedy");
    let stats = limiter.stats();
    let own = stats.policies[0];
    assert_eq!((own.allowed, own.denied, own.shadow_denied), (12, 15, 0));
    assert_eq!((stats.busiest[0].key.as_str(), stats.busiest[0].count), ("greedy", 20));
    assert_eq!((stats.most_denied[0].key.as_str(), stats.most_denied[0].count), ("greedy", 15));
    assert_eq!(stats.busiest.len(), 8);
    assert_eq!(stats.busiest[1].key, "<img src=x onerror=alert(1)>, 0");
}

#[test]
fn counts_go_on_when_a_limit_changes() {
    let limiter = Limiter::memory(Limit::per_hour(1));
    let _ = (limiter.check("key"), limiter.check("key"));
    let raised = limiter.with_limit(Limit::per_hour(3));
    assert_eq!(raised.check("key").remaining(), 1, "one was used before");
    let own = raised.stats().policies[0];
    assert_eq!((own.allowed, own.denied), (2, 1));
}

#[test]
fn a_policy_denies_if_any_of_its_limits_does() {
    let limiter = Limiter::builder().limit("5/second").limit("1/hour");
    let limiter = limiter.clock(pacegate::ManualClock::new()).build().unwrap();
    let _ = (limiter.check("key"), limiter.check("key"));
    let own = limiter.stats().policies[0];
    assert_eq!((own.allowed, own.denied), (1, 1));
}

#[test]
fn batches_are_counted_as_one_by_one() {
    let (limiter, _) = limiter("3/hour");
    let _ = limiter.check_many(&["key"; 40]);
    let stats = limiter.stats();
    assert_eq!((stats.policies[0].allowed, stats.policies[0].denied), (3, 37));
    assert_eq!((stats.busiest[0].count, stats.most_denied[0].count), (40, 37));
}

#[test]
fn keys_and_costs_of_a_batch_are_counted() {
    let policy = Policy::new("p", ["10/hour"]).per(["user"]);
    let limiter = Limiter::builder().policies(PolicySet::new([policy]).unwrap()).build().unwrap();
    let limit = "10/hour".parse().unwrap();
    let charge = |key: &'static [u8], cost| {
        Charge::new("p".parse().unwrap(), KeyRef::new(key), limit).cost(cost)
    };
    // Equal keys that follow each other are decided under one lock.
    let charges = [
        charge(b"a", 3),
        charge(b"c", 0),
        charge(b"b", 2),
        charge(b"d", 1),
        charge(b"d", 4),
        charge(b"d", 9),
    ];
    limiter.charges().check_each(&charges, &mut Vec::new());
    let stats = limiter.stats();
    let own = stats.policies[0];
    assert_eq!((own.allowed, own.allowed_units), (4, 10));
    assert_eq!((own.denied, own.denied_units), (1, 9));
    let keys = stats.busiest.iter().map(|own| (own.key.as_str(), own.count));
    assert_eq!(keys.collect::<Vec<_>>(), [("d", 3), ("a", 1), ("b", 1)]);
    assert_eq!(stats.most_denied[0].key, "d");
}

/// Under heavy traffic, most decisions are only counted in the store.
#[test]
fn heavy_traffic_is_counted_exactly_and_its_keys_in_proportion() {
    const CHECKS: u64 = 50_000;
    let limiter = Limiter::memory(Limit::per_hour(60_000));
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                for n in 0..CHECKS {
                    let _ = limiter.check(if n % 5 == 0 { "one" } else { "four" });
                }
            });
        }
    });
    let stats = limiter.stats();
    let own = stats.policies[0];
    // `four` has 80,000 requests, of which its limit allows 60,000.
    assert_eq!((own.allowed, own.denied), (80_000, 20_000));
    assert_eq!((own.allowed_units, own.denied_units), (80_000, 20_000));
    let again = limiter.with_limit(Limit::per_hour(60_000)).stats().policies[0];
    assert_eq!((again.allowed, again.denied), (80_000, 20_000), "counted once");
    for (top, (key, share)) in stats.busiest.iter().zip([("four", 80_000_u64), ("one", 20_000)]) {
        assert_eq!(top.key, key);
        assert!(top.count.abs_diff(share) < share / 2, "{top:?}");
    }
}

#[test]
fn keys_after_heavy_traffic_are_named_with_their_own_requests() {
    let (limiter, clock) = limiter("5/hour");
    for _ in 0..1_000 {
        let _ = limiter.check("busy");
    }
    clock.advance(Duration::from_secs(1));
    for _ in 0..3 {
        let _ = limiter.check("quiet");
    }
    let stats = limiter.stats();
    let quiet = stats.busiest.iter().find(|top| top.key == "quiet");
    assert_eq!(quiet.map(|top| (top.count, top.allowed)), Some((3, 3)));
    assert_eq!((stats.policies[0].allowed, stats.policies[0].denied), (8, 995));
}

#[test]
fn busy_keys_go_on_being_named_when_a_limit_changes() {
    let (limiter, _) = limiter("1/hour");
    let _ = (limiter.check("key"), limiter.check("key"));
    let stats = limiter.with_limit(Limit::per_hour(3)).stats();
    assert_eq!((stats.busiest[0].key.as_str(), stats.busiest[0].count), ("key", 2));
    assert_eq!((stats.most_denied[0].key.as_str(), stats.most_denied[0].count), ("key", 1));
}

#[test]
fn long_keys_are_cut_off() {
    let long = "a".repeat(300);
    let (one, _) = limiter("1/hour");
    let _ = one.check(&long);
    assert_eq!(one.stats().busiest[0].key, long[..256]);
    let (pair, _) = limiter("1/hour");
    let _ = pair.check((&long, "b"));
    assert_eq!(pair.stats().busiest[0].key, long[..256]);
}

/// Counts older than a minute appear in neither list, also for a key with a recent denial.
#[test]
fn counts_older_than_a_minute_are_left_out_of_the_top_keys() {
    let (limiter, clock) = limiter("2/minute");
    let later = || clock.advance(std::time::Duration::from_secs(30));
    let _ = limiter.check_cost("key", 2).unwrap();
    later();
    let _ = limiter.check("key");
    let denied = &limiter.stats().most_denied[0];
    assert_eq!((denied.allowed, denied.denied), (1, 1));
    later();
    let stats = limiter.stats();
    let told = [&stats.busiest[0], &stats.most_denied[0]].map(|top| (top.allowed, top.denied));
    assert_eq!(told, [(0, 1), (0, 1)]);
}

/// The keys of a limiter may be personal data, and a limiter may be printed into a log.
#[test]
fn debug_output_of_a_limiter_is_short_and_has_no_keys() {
    let (limiter, _) = limiter("1/hour");
    for key in 0..1_000 {
        let _ = limiter.check(format!("alice-{key}"));
    }
    let shared = SharedLimiter::from(limiter.clone());
    assert_eq!(format!("{limiter:?}"), "Limiter { policies: 1 }");
    assert_eq!(format!("{limiter:#?}"), "Limiter { policies: 1 }");
    assert_eq!(format!("{shared:?}"), "SharedLimiter { policies: 1, store: memory }");
}

/// The estimate is counted when units are reserved, and corrected once per policy when they are settled.
#[test]
fn units_follow_the_settlement_of_a_reservation() {
    let policy = Policy::new("tokens", ["100/hour", "1000/day"]).per(["key"]);
    let policy = policy.unsettled(Unsettled::Return);
    let clock = ManualClock::new();
    let builder = Limiter::builder().policies(PolicySet::new([policy]).unwrap());
    let limiter = builder.clock(clock.clone()).build().unwrap();
    let units = || {
        let policy = limiter.stats().policies[0];
        (policy.allowed_units, policy.returned_units)
    };
    let reserve = |cost| {
        let ttl = Duration::from_secs(60);
        limiter.reserve("alice", cost, ttl).unwrap().into_result().unwrap()
    };
    let (less, more, _lost) = (reserve(40), reserve(10), reserve(5));
    assert_eq!(units(), (55, 0));
    assert!(less.settle(15));
    assert_eq!(units(), (55, 25));
    assert!(more.settle(30));
    assert!(!more.settle(30));
    assert_eq!(units(), (75, 25));
    clock.advance(Duration::from_secs(60));
    let _ = limiter.peek("alice");
    assert_eq!(units(), (75, 30), "45 units were used");
}
