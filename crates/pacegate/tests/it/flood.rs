//! More keys than there is room for.

use pacegate::{Charge, Limit, Limiter, ManualClock, PolicyName, Source};

/// Ten million new keys in a store for one million: memory stays within its bound, and no key that has used up its
/// limit gets it back.
#[test]
fn a_flood_of_keys_neither_grows_the_store_nor_resets_anyone() {
    const ROOM: usize = 1_000_000;
    let limiter = Limiter::builder().limit("3/day").max_keys(ROOM).clock(ManualClock::new());
    let limiter = limiter.build().unwrap();
    for victim in 0..200 {
        assert!(limiter.check_cost(("victim", victim), 3).unwrap().is_allowed());
    }
    let mut admitted = 0;
    for stranger in 0..10_000_000_u64 {
        admitted += u64::from(limiter.check(stranger.to_le_bytes()).is_allowed());
    }
    let usage = limiter.store().usage();
    assert_eq!(usage.keys, ROOM);
    assert!(usage.bytes <= 40 * ROOM, "{usage:?}");
    assert_eq!(usage.overflowed, 10_000_000 - (ROOM as u64 - 200));
    // One unit for each key that had room, and one shared budget of three for all other keys.
    assert_eq!(admitted, ROOM as u64 - 200 + 3);
    for victim in 0..200 {
        assert!(!limiter.check(("victim", victim)).is_allowed(), "victim {victim}");
    }
}

#[test]
fn keys_without_room_share_a_budget_and_report_overflow() {
    for text in ["2/hour", "2/hour token-bucket", "2/hour sliding-log", "2/hour concurrency"] {
        let clock = ManualClock::new();
        let limiter = Limiter::builder().limit(text).max_keys(1).clock(clock.clone());
        let limiter = limiter.build().unwrap();
        assert_eq!(limiter.check("first").source(), Source::Store, "{text}");
        let shared = ["a", "b", "c"].map(|key| limiter.check(key));
        assert_eq!(shared.map(|decision| decision.is_allowed()), [true, true, false], "{text}");
        assert!(shared.iter().all(|decision| decision.source() == Source::Overflow), "{text}");
        assert_eq!(limiter.check("first").remaining(), 0, "{text}: not charged by the other keys");
        assert_eq!(limiter.store().usage().overflowed, 3, "{text}");
        clock.advance(std::time::Duration::from_secs(7_300));
        limiter.store().reclaim();
        assert_eq!(limiter.check("later").source(), Source::Store, "{text}: there is room again");
    }
}

#[test]
fn a_permit_of_the_shared_budget_is_returned_there() {
    let limiter = Limiter::builder().limit("1/hour concurrency").max_keys(1).build().unwrap();
    let _own = limiter.acquire("first").into_result().unwrap();
    let shared = limiter.acquire("second").into_result().unwrap();
    assert!(limiter.acquire("third").permit.is_none());
    assert!(shared.renew());
    drop(shared);
    assert!(limiter.acquire("third").permit.is_some());
}

#[test]
fn later_calls_free_the_memory_of_expired_keys() {
    let clock = ManualClock::new();
    let limiter = Limiter::builder().limit("3/second").clock(clock.clone()).build().unwrap();
    for key in 0..200_000 {
        let _ = limiter.check(key);
    }
    let before = limiter.store().usage();
    clock.advance(std::time::Duration::from_secs(10));
    // Without a call to `reclaim`: the checks of one busy key sweep the cells, one at a time.
    for _ in 0..1_500_000 {
        let _ = limiter.check("busy");
    }
    let after = limiter.store().usage();
    assert_eq!(before.keys, 200_000);
    assert!(after.keys <= 1 && after.bytes < before.bytes / 100, "{before:?} {after:?}");
}

#[test]
fn logs_are_bounded_in_their_entries_too() {
    let limit = Limit::per_day(10_000).with_algorithm(pacegate::Algorithm::SlidingLog).unwrap();
    let clock = ManualClock::new();
    let limiter = Limiter::builder().limit(limit).max_keys(10).clock(clock.clone());
    let limiter = limiter.build().unwrap();
    for n in 0..1_000 {
        clock.advance(std::time::Duration::from_micros(1));
        let _ = limiter.check(n % 10);
    }
    let usage = limiter.store().usage();
    assert_eq!((usage.keys, usage.overflowed), (10, 1_000 - 80), "{usage:?}");
}

/// Several new keys in one request are several charges to the shared budget.
#[test]
fn a_request_of_many_new_keys_is_charged_for_each_of_them() {
    for text in ["10/hour", "10/hour sliding-log"] {
        let limiter = Limiter::builder().limit(text).max_keys(1).clock(ManualClock::new());
        let limiter = limiter.build().unwrap();
        let _ = limiter.check("first");
        let admitted = (0..10)
            .filter(|round| {
                let names: Vec<_> = (0..4).map(|n| format!("{round}-{n}")).collect();
                let keys = names.iter().map(|name| pacegate::KeyRef::new(name.as_bytes()));
                let charge = |key| Charge::new(PolicyName::DEFAULT, key, crate::limit(text));
                let charges: Vec<_> = keys.map(charge).collect();
                limiter.charges().check(&charges).unwrap().is_allowed()
            })
            .count();
        assert_eq!(admitted, 2, "{text}: two requests of four keys fit into ten");
    }
}

/// A key that was charged to the shared budget does not get its own in addition when there is room again.
#[test]
fn a_key_does_not_get_a_second_budget_after_the_shared_one() {
    for text in ["10/hour", "10/hour token-bucket", "10/hour sliding-window", "10/hour sliding-log"]
    {
        let clock = ManualClock::new();
        let limiter = Limiter::builder().limit(text).max_keys(1).clock(clock.clone());
        let limiter = limiter.build().unwrap();
        let take = |key: &str| (0..50).filter(|_| limiter.check(key).is_allowed()).count();
        assert_eq!((take("first"), take("second")), (10, 10), "{text}");
        limiter.reset("first");
        assert_eq!(
            take("second"),
            0,
            "{text}: there is room, but the use of the shared budget still counts"
        );
        clock.advance(std::time::Duration::from_secs(10_000));
        assert_eq!(
            limiter.check("second").source(),
            Source::Store,
            "{text}: the shared use has expired"
        );
    }
}

/// If there is no room for the instants of a log, its key is denied and does not get the shared budget.
#[test]
fn a_log_without_room_for_instants_never_exceeds_its_amount() {
    let clock = ManualClock::new();
    let limiter = Limiter::builder().limit("10/hour sliding-log").max_keys(1).clock(clock.clone());
    let limiter = limiter.build().unwrap();
    let admitted = (0..100).filter(|_| {
        clock.advance(std::time::Duration::from_micros(1));
        limiter.check("key").is_allowed()
    });
    assert_eq!(admitted.count(), 8, "room for eight instants");
}

#[test]
fn a_peek_without_room_shows_the_shared_budget() {
    for text in ["3/hour", "3/hour sliding-log"] {
        let limiter = Limiter::builder().limit(text).max_keys(1).clock(ManualClock::new());
        let limiter = limiter.build().unwrap();
        let _ = (limiter.check("first"), limiter.check_cost("second", 3).unwrap());
        let peek = limiter.peek("third");
        assert_eq!((peek.is_allowed(), peek.source()), (false, Source::Overflow), "{text}");
        assert_eq!(limiter.store().usage().overflowed, 1, "{text}: a peek does not count");
    }
}

/// Keys that still count are kept, to the microsecond; expired keys are dropped.
#[test]
fn reclaiming_drops_only_expired_keys() {
    let second = std::time::Duration::from_secs(1);
    for text in
        ["1/second", "1/second sliding-window", "1/second token-bucket", "1/second sliding-log"]
    {
        let (limiter, clock) = crate::limiter(text);
        assert!(limiter.check("key").is_allowed(), "{text}");
        clock.advance(second - std::time::Duration::from_micros(1));
        limiter.store().reclaim();
        assert!(!limiter.check("key").is_allowed(), "{text}: still counts");
        assert_eq!(limiter.store().usage().keys, 1, "{text}");
        clock.advance(4 * second);
        limiter.store().reclaim();
        assert_eq!(limiter.store().usage().keys, 0, "{text}: expired");
    }
}

/// The store has room for eight instants at a time; room freed by release, refund, reset or expiry can be used again.
#[test]
fn freed_instants_make_room() {
    let step = std::time::Duration::from_millis(500);
    type Round = (&'static str, &'static str, fn(&Limiter, &ManualClock));
    let rounds: [Round; 4] = [
        ("release", "1/hour concurrency", |limiter, _| {
            drop(limiter.acquire("key").into_result().unwrap());
        }),
        ("refund", "1/hour sliding-log", |limiter, _| {
            assert!(limiter.check("key").is_allowed());
            limiter.refund("key", 1);
        }),
        ("reset", "1/hour sliding-log", |limiter, _| {
            assert!(limiter.check("key").is_allowed());
            limiter.reset("key");
        }),
        ("expiry", "1/second sliding-log", |limiter, clock| {
            assert!(limiter.check("key").is_allowed());
            clock.advance(std::time::Duration::from_secs(4));
            limiter.store().reclaim();
        }),
    ];
    for (name, text, round) in rounds {
        let clock = ManualClock::new();
        let limiter = Limiter::builder().limit(text).max_keys(1).clock(clock.clone());
        let limiter = limiter.build().unwrap();
        for _ in 0..20 {
            round(&limiter, &clock);
        }
        assert_eq!(limiter.store().usage().overflowed, 0, "{name}");
    }
    // A renewal drops expired permits and frees their room too.
    let clock = ManualClock::new();
    let limiter = Limiter::builder().limit("2/second concurrency").max_keys(1).clock(clock.clone());
    let limiter = limiter.build().unwrap();
    for _ in 0..20 {
        let over = limiter.acquire("key").into_result().unwrap();
        clock.advance(step);
        let renewed = limiter.acquire("key").into_result().unwrap();
        clock.advance(step);
        assert!(renewed.renew());
        drop((over, renewed));
    }
    assert_eq!(limiter.store().usage().overflowed, 0, "renewal");
}

/// A request that is denied leaves no key, no instant and nothing on the shared budget behind.
#[test]
fn a_denied_request_frees_its_room() {
    for text in ["3/hour", "3/hour sliding-log"] {
        let limiter = Limiter::builder().limit(text).max_keys(1).clock(ManualClock::new());
        let limiter = limiter.build().unwrap();
        let deny = |key: &'static str| {
            let key = pacegate::KeyRef::new(key.as_bytes());
            let never = Charge::new("never".parse().unwrap(), key, crate::limit("0/hour"));
            let charges = [Charge::new(PolicyName::DEFAULT, key, crate::limit(text)), never];
            assert!(
                (0..20).all(|_| !limiter.charges().check(&charges).unwrap().is_allowed()),
                "{text}"
            );
        };
        deny("first");
        assert_eq!(limiter.store().usage().keys, 0, "{text}");
        let first = limiter.check("first");
        assert_eq!((first.remaining(), first.source()), (2, Source::Store), "{text}");
        deny("second");
        let second = limiter.peek("second");
        assert_eq!((second.remaining(), second.source()), (3, Source::Overflow), "{text}");
    }
}

/// A new key that finds no room removes expired cells from its own shard, also if no sweep has run.
#[test]
fn a_key_without_room_replaces_an_expired_one() {
    let clock = ManualClock::new();
    let limiter = Limiter::builder().limit("1/second").max_keys(1).clock(clock.clone());
    let limiter = limiter.build().unwrap();
    let _ = limiter.check("first");
    clock.advance(std::time::Duration::from_secs(10));
    assert_eq!(limiter.store().usage().keys, 1);
    // Peeks create no cells. At least one of 400 keys is in the shard of the first.
    for key in 0..400 {
        let _ = limiter.peek(key);
    }
    assert_eq!(limiter.store().usage().keys, 0);
}

/// At most 4,096 policies have a shared budget at a time; the next is denied until another budget expires.
#[test]
fn shared_budgets_are_bounded_too() {
    for text in ["1/hour", "1/hour sliding-log"] {
        let clock = ManualClock::new();
        let limiter = Limiter::builder().limit("1/day").max_keys(1).clock(clock.clone());
        let limiter = limiter.build().unwrap();
        let _ = limiter.check("first");
        let ask = |n: usize| {
            let policy = format!("p{n}").parse().unwrap();
            let charge = Charge::new(policy, pacegate::KeyRef::new(b"key"), crate::limit(text));
            limiter.charges().check(&[charge]).unwrap()
        };
        assert!((0..4_096).all(|n| ask(n).is_allowed()), "{text}");
        let denied = ask(4_096);
        assert_eq!((denied.is_allowed(), denied.source()), (false, Source::Overflow), "{text}");
        clock.advance(std::time::Duration::from_secs(3 * 3_600));
        assert!(ask(4_096).is_allowed(), "{text}: the other budgets have expired");
    }
}

/// Shared budgets hold at most 32,768 instants. `usage` reports their memory, and expiry frees it.
#[test]
fn shared_logs_are_bounded_too() {
    let clock = ManualClock::new();
    let limiter = Limiter::builder().limit("1/day").max_keys(1).clock(clock.clone());
    let limiter = limiter.build().unwrap();
    let _ = limiter.check("first");
    let before = limiter.store().usage().bytes;
    let take = || {
        let asked = (0..50_000).filter(|n| {
            clock.advance(std::time::Duration::from_micros(1));
            let policy = format!("p{}", n / 10_000).parse().unwrap();
            let charge = Charge::new(policy, "key", crate::limit("10000/hour sliding-log"));
            let decision = limiter.charges().check(&[charge]).unwrap();
            assert_eq!(decision.source(), Source::Overflow);
            decision.is_allowed()
        });
        asked.count()
    };
    for _ in 0..2 {
        assert_eq!(take(), 32_768, "all of three policies and part of a fourth");
        let bytes = limiter.store().usage().bytes - before;
        assert!((32_768 * 32..2 * 32_768 * 32).contains(&bytes), "{bytes}");
        clock.advance(std::time::Duration::from_secs(3_600));
        limiter.store().reclaim();
        assert_eq!(limiter.store().usage().bytes, before);
    }
}

/// A request that is denied because there is no room takes none.
#[test]
fn a_log_denied_for_lack_of_room_gets_room_when_its_instants_expire() {
    let clock = ManualClock::new();
    let limiter =
        Limiter::builder().limit("10/second sliding-log").max_keys(1).clock(clock.clone());
    let limiter = limiter.build().unwrap();
    for round in 0..3 {
        let admitted = (0..100).filter(|_| {
            clock.advance(std::time::Duration::from_micros(1));
            limiter.check("key").is_allowed()
        });
        assert_eq!(admitted.count(), 8, "round {round}");
        clock.advance(std::time::Duration::from_secs(10));
    }
}

/// A steady stream of new keys does not keep a shared budget alive: as soon as there is room, each key gets a counter.
#[test]
fn a_flood_that_is_over_leaves_nothing_behind() {
    for text in ["1/second", "1/second token-bucket", "1/second sliding-log"] {
        let clock = ManualClock::new();
        let limiter = Limiter::builder().limit(text).max_keys(100).clock(clock.clone());
        let limiter = limiter.build().unwrap();
        for key in 0..150 {
            let _ = limiter.check(("flood", key));
        }
        for later in 0..200 {
            clock.advance(std::time::Duration::from_millis(500));
            limiter.store().reclaim();
            let decision = limiter.check(("later", later));
            let settled = later >= 10;
            assert!(!settled || decision.source() == Source::Store, "{text}: {later}");
            assert!(!settled || decision.is_allowed(), "{text}: {later}");
        }
    }
}

/// A permit of the shared budget that its key has inherited is returned in both places.
#[test]
fn an_inherited_permit_is_returned_everywhere() {
    let limiter = Limiter::builder().limit("2/hour concurrency").max_keys(1);
    let limiter = limiter.clock(ManualClock::new()).build().unwrap();
    let _ = limiter.check("first");
    let shared = limiter.acquire("second").into_result().unwrap();
    limiter.reset("first");
    let own = limiter.acquire("second").into_result().unwrap();
    assert!(
        limiter.acquire("second").permit.is_none(),
        "one permit of the shared budget and one of the key"
    );
    assert!(shared.renew());
    drop(shared);
    assert_eq!(limiter.peek("second").remaining(), 1);
    let others = [(); 3].map(|()| limiter.acquire("third"));
    let admitted = others.iter().filter(|other| other.permit.is_some()).count();
    assert_eq!(admitted, 2, "nothing is left on the shared budget");
    drop(own);
}

/// Keys whose permits have all been returned make room for others.
#[test]
fn returned_permits_leave_room() {
    let clock = ManualClock::new();
    let limiter = Limiter::builder().limit("2/minute concurrency").max_keys(100);
    let limiter = limiter.clock(clock.clone()).build().unwrap();
    let held: Vec<_> = (0..100).map(|key| limiter.acquire(key).into_result().unwrap()).collect();
    drop(held);
    clock.advance(std::time::Duration::from_secs(60));
    // There are hundreds of shards, and a key finds at first only the room in its own.
    let shared = |key: &u32| limiter.acquire(*key).decision.source() == Source::Overflow;
    let sharing = (1_000..101_000).filter(shared).count();
    assert!(sharing < 10_000, "{sharing} of 100000");
}
