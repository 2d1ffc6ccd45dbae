//! Failure modes: decisions while the store does not answer.

use std::{num::NonZeroU32, time::Duration};

use pacegate::{
    Charge, CheckError, Decision, KeyRef, ManualClock, Policy, PolicySet, Request, SharedLimiter,
    Source, StoreError,
    policy::FailureMode::{self, Closed, Open},
};

use crate::{
    limit,
    shared::{Double, policy},
};

/// Creates a limiter over a store that does not answer.
fn degraded(policies: impl IntoIterator<Item = Policy>) -> (SharedLimiter, Double, ManualClock) {
    let clock = ManualClock::new();
    let store = Double::new(&clock);
    store.fail(StoreError::TimedOut);
    let builder = SharedLimiter::builder(store.clone()).clock(clock.clone());
    let limiter = builder.policies(PolicySet::new(policies).unwrap()).build().unwrap();
    (limiter, store, clock)
}

fn local(numerator: u32, denominator: u32) -> FailureMode {
    FailureMode::Local { numerator, denominator: NonZeroU32::new(denominator).unwrap() }
}

fn check(limiter: &SharedLimiter, request: &Request<'_>) -> Decision {
    pollster::block_on(limiter.check_request(request)).unwrap()
}

fn ask(limiter: &SharedLimiter) -> Decision {
    check(limiter, &Request::new())
}

#[test]
fn open_admits_and_marks_the_decision_as_degraded() {
    let (limiter, _, _) = degraded([policy("api", "2/hour").failing(Open)]);
    for _ in 0..5 {
        let decision = ask(&limiter);
        assert!(decision.is_allowed() && decision.is_degraded());
        assert_eq!((decision.source(), decision.source().as_str()), (Source::Fallback, "fallback"));
        assert_eq!((decision.policy().unwrap().as_str(), decision.remaining()), ("api", 2));
    }
    assert!(format!("{:?}", ask(&limiter)).contains("degraded: true"));
}

#[test]
fn closed_denies_until_the_store_may_be_back() {
    let (limiter, store, _) = degraded([policy("api", "2/hour").failing(Closed)]);
    let decision = ask(&limiter);
    assert!(!decision.is_allowed() && decision.is_degraded());
    assert_eq!(decision.retry_after(), Some(FailureMode::RETRY_AFTER));
    assert_eq!((decision.remaining(), decision.limit()), (0, Some(limit("2/hour"))));
    store.recover();
    let decision = ask(&limiter);
    assert!(decision.is_allowed() && !decision.is_degraded());
    assert_eq!(decision.remaining(), 1, "the denied request was not charged");
}

#[test]
fn local_counts_a_share_in_memory_and_remembers_it() {
    let (limiter, store, clock) = degraded([policy("api", "8/minute").failing(local(1, 4))]);
    let answers = [(); 3].map(|()| ask(&limiter));
    assert_eq!(answers.map(|decision| decision.is_allowed()), [true, true, false]);
    assert_eq!(answers.map(|decision| decision.remaining()), [1, 0, 0]);
    assert_eq!(answers[2].retry_after(), Some(Duration::from_secs(60)));
    store.recover();
    assert_eq!(ask(&limiter).remaining(), 7, "local use was not charged to the store");
    store.fail(StoreError::Unavailable("lost again".into()));
    assert!(!ask(&limiter).is_allowed(), "the used part of the share is still used");
    clock.advance(Duration::from_secs(60));
    assert!(ask(&limiter).is_allowed());
}

#[test]
fn store_failures_use_the_failure_mode_and_unsupported_is_an_error() {
    let (limiter, store, _) = degraded([policy("api", "2/hour").failing(Open)]);
    for error in [
        StoreError::TimedOut,
        StoreError::Unavailable("away".into()),
        StoreError::Failed("a foreign value".into()),
    ] {
        store.fail(error);
        assert!(ask(&limiter).is_degraded());
    }
    store.fail(StoreError::Unsupported("custom algorithms".into()));
    let error = pollster::block_on(limiter.check_request(&Request::new())).unwrap_err();
    assert_eq!(error, CheckError::Store(StoreError::Unsupported("custom algorithms".into())));
    assert_eq!(limiter.stats().store_failures, 3);
}

#[test]
fn all_or_nothing_holds_without_the_store_too() {
    let (limiter, _, _) = degraded([
        policy("shared", "4/hour"),
        policy("user", "1/hour").per(["user"]),
        policy("free", "1/hour").failing(Open),
    ]);
    let [alice, bob] = ["alice", "bob"].map(|user| Request::new().with("user", user));
    assert!(check(&limiter, &alice).is_allowed());
    let denied = check(&limiter, &alice);
    assert_eq!((denied.is_allowed(), denied.policy().unwrap().as_str()), (false, "user"));
    assert_eq!(check(&limiter, &bob.clone().cost(0)).remaining(), 1);
    assert!(check(&limiter, &bob).is_allowed());
    let carol = Request::new().with("user", "carol");
    assert!(check(&limiter, &carol).is_allowed(), "the denied request took nothing from `shared`");
    assert!(check(&limiter, &Request::new().with("user", "dora")).is_allowed());
    let fifth = check(&limiter, &Request::new().with("user", "eve"));
    assert_eq!(fifth.policy().unwrap().as_str(), "shared");
}

#[test]
fn a_denial_by_a_closed_policy_charges_nothing() {
    let closed = policy("login", "9/hour").failing(Closed);
    let path = || pacegate::policy::Condition::equal("/login");
    let (limiter, _, _) = degraded([policy("all", "2/hour"), closed.matching("path", path())]);
    for _ in 0..5 {
        let denied = check(&limiter, &Request::new().with("path", "/login"));
        assert_eq!((denied.is_allowed(), denied.policy().unwrap().as_str()), (false, "login"));
    }
    assert_eq!(ask(&limiter).remaining(), 1);
}

#[test]
fn a_policy_in_shadow_mode_denies_in_no_failure_mode() {
    let shadow = |name, mode| policy(name, "1/hour").failing(mode).shadow();
    let (limiter, _, _) = degraded([shadow("closed", Closed), shadow("local", local(1, 1))]);
    let answers = [(); 2].map(|()| ask(&limiter));
    assert!(answers.iter().all(|decision| decision.is_allowed() && decision.is_degraded()));
    assert!(answers.iter().all(Decision::is_shadow_denied));
    let stats = limiter.stats().policies;
    assert_eq!((stats[0].allowed, stats[0].shadow_denied, stats[0].degraded), (0, 2, 2));
    assert_eq!((stats[1].allowed, stats[1].shadow_denied, stats[1].degraded), (1, 1, 2));
}

#[test]
fn a_cost_above_the_local_share_can_be_retried() {
    // A cost that fits the limit but not the share, and a share of zero.
    for (failure, cost) in [(local(1, 4), 3), (local(0, 1), 1)] {
        for algorithm in pacegate::Algorithm::BUILT_IN {
            let policy = policy("api", &format!("8/hour {algorithm}")).failing(failure);
            let (limiter, _, _) = degraded([policy]);
            let denied = check(&limiter, &Request::new().cost(cost));
            assert!(!denied.is_allowed(), "{algorithm}");
            assert_eq!(denied.retry_after(), Some(FailureMode::RETRY_AFTER), "{algorithm}");
        }
    }
}

#[test]
fn a_limit_of_0_denies_in_every_failure_mode() {
    for failure in [Open, Closed, local(1, 1)] {
        let (limiter, _, _) = degraded([policy("banned", "0/hour").failing(failure)]);
        let denied = ask(&limiter);
        assert_eq!((denied.is_allowed(), denied.retry_after()), (false, None), "{failure:?}");
    }
}

#[test]
fn degraded_decisions_are_also_counted_as_allowed_or_denied() {
    let (limiter, store, _) =
        degraded([policy("local", "1/hour"), policy("open", "1/hour").failing(Open)]);
    let _ = (ask(&limiter), ask(&limiter), check(&limiter, &Request::new().cost(0)));
    store.recover();
    let _ = ask(&limiter);
    let stats = limiter.stats();
    assert_eq!(stats.store_failures, 3);
    let [local, open] = &*stats.policies else { panic!("two policies") };
    assert_eq!((local.allowed, local.denied, local.degraded), (2, 1, 2));
    assert_eq!((open.allowed, open.denied, open.degraded), (2, 0, 1), "the other one was denied");
}

#[test]
fn a_request_without_a_policy_makes_no_store_call() {
    let (limiter, store, _) = degraded([policy("other", "1/hour").in_domain("edge")]);
    let decision = ask(&limiter);
    assert!(decision.is_allowed() && !decision.is_degraded());
    assert!(store.asked().is_empty());
}

#[test]
fn charges_have_the_failure_mode_of_their_policy_or_the_inline_one() {
    let (limiter, _, _) = degraded([policy("known", "2/hour").failing(Closed)]);
    let charge =
        |policy: &str| Charge::new(policy.parse().unwrap(), KeyRef::new(b"key"), limit("2/hour"));
    let ask = |limiter: &SharedLimiter, charges: &[Charge<'_>]| {
        let verdict = pollster::block_on(limiter.charges().check_batch(charges, None)).unwrap();
        assert!(verdict.decision.is_degraded());
        verdict.each.iter().map(Decision::is_allowed).collect::<Vec<_>>()
    };
    let both = [charge("own"), charge("known")];
    assert_eq!(ask(&limiter, &both), [true, false]);
    assert_eq!(ask(&limiter, &both[..1]), [true], "all or nothing: it was not charged before");
    assert_eq!(ask(&limiter, &both[..1]), [true]);
    assert_eq!(ask(&limiter, &both[..1]), [false]);
    let stats = limiter.stats();
    assert_eq!((stats.inline.allowed, stats.inline.denied, stats.inline.degraded), (2, 1, 3));
    assert_eq!((stats.policies[0].denied, stats.policies[0].degraded), (1, 1));

    let policies = limiter.policies().clone().inline_failure(Open);
    assert_eq!(ask(&limiter.with_policies(policies), &both[..1]), [true]);
    assert_eq!(pollster::block_on(limiter.refund("key", 1)), Err(StoreError::TimedOut));
    assert_eq!(limiter.stats().store_failures, 5);
}

/// Also if both charges use the same counter.
#[test]
fn a_charge_keeps_its_failure_mode_beside_another() {
    let (limiter, _, _) = degraded([policy("known", "2/hour")]);
    let charge = Charge::new("own".parse().unwrap(), KeyRef::new(b"key"), limit("2/hour"));
    let both = [charge.failing(Closed), charge.failing(Open)];
    let verdict = pollster::block_on(limiter.charges().check_batch(&both, None)).unwrap();
    assert!(!verdict.decision.is_allowed());
    assert_eq!(verdict.each.iter().map(Decision::is_allowed).collect::<Vec<_>>(), [false, true]);
}

#[test]
fn a_reset_also_clears_local_counters() {
    let (limiter, store, _) = degraded([policy("api", "1/hour").per(["key"])]);
    let ask = || pollster::block_on(limiter.check("alice")).unwrap().is_allowed();
    assert!(ask() && !ask());
    store.recover();
    pollster::block_on(limiter.reset("alice")).unwrap();
    store.fail(StoreError::TimedOut);
    assert!(ask());
}

/// Many threads use a store that repeatedly fails and recovers: neither the limit nor the share is exceeded.
#[test]
fn a_share_is_exact_while_the_store_flaps() {
    let (limiter, store, _) = degraded([policy("api", "400/hour").failing(local(1, 4))]);
    let admitted: u64 = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..4)
            .map(|n| {
                let (limiter, store) = (&limiter, &store);
                scope.spawn(move || {
                    let mut admitted = 0;
                    for turn in 0..500 {
                        match (turn + n) % 50 {
                            0 => store.recover(),
                            25 => store.fail(StoreError::TimedOut),
                            _ => {}
                        }
                        admitted += u64::from(ask(limiter).is_allowed());
                    }
                    admitted
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).sum()
    });
    // Takes the units that the threads have left.
    let rest = || (0..1_000).filter(|_| ask(&limiter).is_allowed()).count() as u64;
    store.recover();
    let rest_of_store = rest();
    store.fail(StoreError::TimedOut);
    assert_eq!(admitted + rest_of_store + rest(), 400 + 100);
}

#[test]
fn a_charge_may_override_the_failure_mode() {
    let (limiter, _, _) = degraded([policy("api", "2/hour").failing(Closed)]);
    let charge = Charge::new("api".parse().unwrap(), KeyRef::new(b"k"), limit("2/hour"));
    let admitted = |charge: Charge<'_>| {
        let ask = || pollster::block_on(limiter.charges().check(&[charge])).unwrap().is_allowed();
        (0..5).filter(|_| ask()).count()
    };
    let modes = [charge, charge.failing(Open), charge.failing(local(1, 2)), charge.failing(Closed)];
    assert_eq!(modes.map(admitted), [0, 5, 1, 0]);
}

#[test]
fn a_permit_of_a_policy_that_fails_open_is_not_lost() {
    let slots = |name, mode| policy(name, "5/minute concurrency").failing(mode);
    let (limiter, store, clock) = degraded([slots("open", Open), slots("local", local(1, 1))]);
    let acquire = || pollster::block_on(limiter.acquire_request(&Request::new())).unwrap();
    let permit = acquire().into_result().unwrap();
    assert_eq!(pollster::block_on(permit.renew()), Ok(true));
    store.recover();
    assert_eq!(pollster::block_on(permit.renew()), Ok(true), "it is still held locally");
    clock.advance(Duration::from_secs(60));
    assert_eq!(pollster::block_on(permit.renew()), Ok(false), "the local permit has expired");
}

#[test]
fn charges_that_fail_open_keep_their_permits_while_the_store_is_unavailable() {
    let (limiter, store, _) = degraded([policy("open", "5/minute concurrency").failing(Open)]);
    let permit = limiter.charges().new_permit_id();
    let held = Charge::new("open".parse().unwrap(), KeyRef::new(b"k"), limit("1/30s concurrency"));
    let held = held.holding(permit);
    let renew = |charge: Charge<'_>| pollster::block_on(limiter.charges().renew(&[charge]));
    assert!(pollster::block_on(limiter.charges().check(&[held])).unwrap().is_allowed());
    assert_eq!(renew(held), Ok(true));
    assert_eq!(renew(held.failing(Closed)), Err(StoreError::TimedOut));
    store.fail(StoreError::Unsupported("permits".into()));
    assert_eq!(renew(held), Err(StoreError::Unsupported("permits".into())));
    store.recover();
    assert_eq!(renew(held), Ok(false), "the store never granted this permit");
}

/// A limit in shadow mode that would have denied holds no permit, and `renew` does not report it as lost.
#[test]
fn a_limit_in_shadow_mode_loses_no_permit() {
    let tried = policy("tried", "1/minute concurrency").failing(Closed).shadow();
    let policies = || PolicySet::new([policy("real", "5/minute concurrency"), tried.clone()]);
    let own = pacegate::Limiter::builder().policies(policies().unwrap()).build().unwrap();
    let permits = [(); 2].map(|()| own.acquire_request(&Request::new()).unwrap().permit.unwrap());
    assert!(permits[0].renew() && permits[1].renew());

    let (limiter, store, clock) = degraded(policies().unwrap().policies().iter().cloned());
    let acquire = || pollster::block_on(limiter.acquire_request(&Request::new())).unwrap();
    let away = acquire().into_result().unwrap();
    assert_eq!(pollster::block_on(away.renew()), Ok(true));
    store.recover();
    let held = [(); 2].map(|()| acquire().into_result().unwrap());
    for permit in &held {
        assert_eq!(pollster::block_on(permit.renew()), Ok(true));
    }
    clock.advance(Duration::from_secs(60));
    assert_eq!(
        pollster::block_on(held[1].renew()),
        Ok(false),
        "the permit of the enforced limit has expired"
    );
}

#[test]
fn charges_in_shadow_mode_lose_no_permit() {
    let (limiter, store, _) = degraded([policy("api", "5/minute")]);
    store.recover();
    let own = pacegate::Limiter::memory(limit("1/second"));
    let charge = Charge::new("api".parse().unwrap(), KeyRef::new(b"k"), limit("1/30s concurrency"));
    for (permit, enforced, kept) in [(1, true, true), (2, false, true), (3, true, false)] {
        let charge = charge.enforced(enforced).holding(permit);
        let _ = own.charges().check(&[charge]).unwrap();
        let _ = pollster::block_on(limiter.charges().check(&[charge])).unwrap();
        assert_eq!(own.charges().renew(&[charge]), kept, "{permit}");
        assert_eq!(pollster::block_on(limiter.charges().renew(&[charge])), Ok(kept), "{permit}");
    }
}

/// If one policy denies a request, a policy that would have admitted it counts it neither as allowed nor as denied.
#[test]
fn a_degraded_denial_is_counted_only_for_the_policy_that_denied() {
    let (limiter, _, _) = degraded([
        policy("open", "9/hour").failing(Open),
        policy("closed", "9/hour").failing(Closed),
    ]);
    assert!(!ask(&limiter).is_allowed());
    let [open, closed] = &*limiter.stats().policies else { panic!("two policies") };
    assert_eq!((open.allowed, open.denied, open.degraded), (0, 0, 0));
    assert_eq!((closed.allowed, closed.denied, closed.degraded), (0, 1, 1));
}
