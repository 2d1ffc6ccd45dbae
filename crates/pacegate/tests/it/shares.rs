//! Several tenants in one store: a flood of one leaves the others their share.

use std::{
    future::Future,
    task::{Context, Poll, Waker},
    time::Duration,
};

use pacegate::{
    Algorithm, Charge, Decision, Limit, Limiter, ManualClock, MemoryStore, Outcomes, Policy,
    PolicyName, PolicySet, Reply, Request, SharedLimiter, Source, Store, StoreError, Update,
};

const ROOM: usize = 1_200;
/// Keys guaranteed to each of three shares: a sixth of [`ROOM`].
const GUARANTEED: usize = 200;

fn policies(text: &str) -> PolicySet {
    let policy = |name: &str| Policy::new(name, [crate::limit(text)]).in_domain(name).per(["user"]);
    PolicySet::new(["shop", "bank"].map(policy)).unwrap()
}

/// Creates a limiter with two domains and a limit per user, in a store for [`ROOM`] keys.
fn two_domains(text: &str) -> Limiter {
    let limiter = Limiter::builder().policies(policies(text)).max_keys(ROOM);
    limiter.clock(ManualClock::new()).build().unwrap()
}

fn ask(limiter: &Limiter, domain: &str, user: &str) -> Decision {
    limiter.check_request(&Request::new().in_domain(domain).with("user", user)).unwrap()
}

/// Charges one unit under a limit that comes with the request.
fn ask_inline(limiter: &Limiter, key: &str, limit: Limit) -> Decision {
    limiter.charges().check(&[Charge::new(PolicyName::INLINE, key, limit)]).unwrap()
}

/// Sends requests of `users` new users of a domain.
fn flood(limiter: &Limiter, domain: &str, users: usize) {
    for user in 0..users {
        let _ = ask(limiter, domain, &format!("stranger {user}"));
    }
}

/// Sends different inline limits, so that each one without room has a separate overflow budget.
fn flood_inline(limiter: &Limiter, algorithm: Algorithm, limits: usize) {
    for n in 0..limits as u64 {
        let limit = Limit::new(1, Duration::from_secs(1_000_000 + n)).unwrap();
        let _ = ask_inline(limiter, &n.to_string(), limit.with_algorithm(algorithm).unwrap());
    }
}

/// Returns the number of new users of a domain that get their own counter.
fn with_own_counter(limiter: &Limiter, domain: &str) -> usize {
    let own =
        |user: &usize| ask(limiter, domain, &format!("client {user}")).source() == Source::Store;
    (0..2 * ROOM).take_while(own).count()
}

#[test]
fn a_domain_that_is_flooded_leaves_the_others_their_room() {
    for text in ["2/day", "2/day token-bucket", "2/day sliding-window", "2/day sliding-log"] {
        let limiter = two_domains(text);
        flood(&limiter, "shop", 3 * ROOM);
        let client = [(); 3].map(|()| ask(&limiter, "bank", "client"));
        assert_eq!(client.map(|one| one.is_allowed()), [true, true, false], "{text}");
        assert!(client.iter().all(|one| one.source() == Source::Store), "{text}");
        assert_eq!(1 + with_own_counter(&limiter, "bank"), ROOM / 4, "{text}: half of a half");
        assert_eq!(limiter.store().usage().keys, ROOM, "{text}");
    }
}

/// Inline limits that fill the store, and then their overflow budgets.
#[test]
fn inline_limits_leave_domains_their_room_and_their_overflow_budgets() {
    for text in ["2/day", "2/day sliding-log"] {
        let limiter = two_domains(text);
        flood_inline(&limiter, crate::limit(text).algorithm(), ROOM + 5_000);
        let inline = ask_inline(&limiter, "one more", crate::limit("1/99d"));
        let room_for_logs_only = crate::limit(text).algorithm().keeps_log();
        assert_eq!(
            inline.is_allowed(),
            room_for_logs_only,
            "{text}: all 4096 overflow budgets of this kind are in use"
        );
        assert_eq!(with_own_counter(&limiter, "bank"), GUARANTEED, "{text}");
        // One user has taken one of the two units of the overflow budget already.
        let shared = ["a", "b"].map(|user| ask(&limiter, "bank", user));
        assert_eq!(shared.map(|one| one.is_allowed()), [true, false], "{text}");
        assert!(shared.iter().all(|one| one.source() == Source::Overflow), "{text}");
        assert_eq!(with_own_counter(&limiter, "shop"), GUARANTEED, "{text}");
        assert_eq!(limiter.store().usage().keys, ROOM, "{text}");
    }
}

/// The instants of logs are bounded, too, and divided in the same way.
#[test]
fn a_domain_with_long_logs_leaves_the_others_room_for_theirs() {
    let clock = ManualClock::new();
    let limiter = Limiter::builder().policies(policies("10000/day sliding-log")).max_keys(10);
    let limiter = limiter.clock(clock.clone()).build().unwrap();
    let ask = |domain: &str| {
        clock.advance(Duration::from_micros(1));
        ask(&limiter, domain, "alice").is_allowed()
    };
    assert_eq!((0..1_000).filter(|_| ask("shop")).count(), 60, "three quarters of 80");
    assert_eq!((0..1_000).filter(|_| ask("bank")).count(), 20);
}

/// A flood in one share leaves the counters of another unchanged, and a key that returns keeps its usage.
#[test]
fn a_flood_resets_no_counter_of_any_domain() {
    let limiter = two_domains("1/day");
    for user in 0..100 {
        assert!(ask(&limiter, "bank", &format!("victim {user}")).is_allowed());
    }
    flood(&limiter, "shop", 3 * ROOM);
    flood_inline(&limiter, Algorithm::FixedWindow, 3 * ROOM);
    flood(&limiter, "bank", 3 * ROOM);
    for user in 0..100 {
        let again = ask(&limiter, "bank", &format!("victim {user}"));
        assert_eq!((again.is_allowed(), again.source()), (false, Source::Store), "victim {user}");
    }
}

#[test]
fn shares_report_the_keys_of_each_domain() {
    let limiter = two_domains("1/day");
    let shares = |limiter: &Limiter| -> Vec<_> {
        let shares = limiter.store().shares().into_iter();
        shares.map(|one| (one.domain.unwrap_or("-".into()), one.keys, one.guaranteed)).collect()
    };
    let share = |name: &str, keys, guaranteed| (name.to_owned(), keys, guaranteed);
    flood(&limiter, "bank", 7);
    assert_eq!(shares(&limiter), [share("bank", 7, 300), share("shop", 0, 300)]);
    flood_inline(&limiter, Algorithm::TokenBucket, 5);
    let expected = [share("-", 5, 200), share("bank", 7, 200), share("shop", 0, 200)];
    assert_eq!(shares(&limiter), expected);
    let plain = Limiter::builder().limit("1/day").max_keys(10).build().unwrap();
    assert_eq!(shares(&plain), [share("", 0, 5)]);
    assert!(
        (0..10).all(|key| plain.check(key).source() == Source::Store),
        "a single domain may use all room"
    );
}

#[test]
fn clearing_a_policy_forgets_its_keys_and_no_others() {
    for text in ["1/day", "1/day sliding-log"] {
        let limiter = two_domains(text);
        let denied = |domain: &str| !ask(&limiter, domain, "alice").is_allowed();
        let hour = crate::limit("1/hour");
        for _ in 0..2 {
            let _ = (ask(&limiter, "shop", "alice"), ask(&limiter, "bank", "alice"));
            let _ = ask_inline(&limiter, "alice", hour);
        }
        assert_eq!(limiter.clear_policy("shop".parse().unwrap()), 1, "{text}");
        assert!(!denied("shop") && denied("bank"), "{text}");
        assert!(!ask_inline(&limiter, "alice", hour).is_allowed(), "{text}");
        assert_eq!(limiter.clear_policy(PolicyName::INLINE), 1, "{text}");
        assert!(denied("shop") && denied("bank"), "{text}");
        assert!(ask_inline(&limiter, "alice", hour).is_allowed(), "{text}");
        assert_eq!(limiter.clear_domain("bank"), 1, "{text}");
        assert!(denied("shop") && !denied("bank"), "{text}");
        assert_eq!(limiter.clear_policy("unheard-of".parse().unwrap()), 0, "{text}");
        assert_eq!(limiter.clear_domain("nowhere"), 0, "{text}");
    }
}

/// After the call there is room again, and new keys inherit nothing from the overflow budget.
#[test]
fn clearing_makes_room_and_forgets_overflow_budgets() {
    for text in ["1/day", "1/day token-bucket", "1/day sliding-log"] {
        let limiter = two_domains(text);
        flood(&limiter, "shop", 3 * ROOM);
        let stranger = ask(&limiter, "shop", "late");
        assert_eq!((stranger.is_allowed(), stranger.source()), (false, Source::Overflow), "{text}");
        assert_eq!(limiter.clear_domain("shop"), ROOM as u64 * 3 / 4, "{text}");
        assert_eq!(limiter.store().usage().keys, 0, "{text}");
        let late = ask(&limiter, "shop", "late");
        assert_eq!((late.is_allowed(), late.source()), (true, Source::Store), "{text}");
        assert_eq!(with_own_counter(&limiter, "shop"), ROOM * 3 / 4 - 1, "{text}");
    }
}

/// A removed policy leaves its keys behind; a policy that moves to another domain keeps its keys.
#[test]
fn clearing_a_domain_includes_removed_policies() {
    let limiter = two_domains("1/day");
    flood(&limiter, "shop", 10);
    assert!(ask(&limiter, "bank", "alice").is_allowed());
    let moved = Policy::new("bank", [crate::limit("1/day")]).in_domain("vault");
    let limiter = limiter.with_policies(PolicySet::new([moved.per(["user"])]).unwrap());
    assert!(!ask(&limiter, "vault", "alice").is_allowed(), "it is still the same counter");
    assert_eq!(limiter.clear_domain("shop"), 10);
    assert_eq!((limiter.clear_domain("bank"), limiter.clear_domain("vault")), (0, 1));
    assert!(ask(&limiter, "vault", "alice").is_allowed());
}

#[test]
fn a_request_that_waits_for_a_cleared_key_is_admitted() {
    let (limiter, _) = crate::limiter("1/day");
    assert!(limiter.check("alice").is_allowed());
    let mut waiting = std::pin::pin!(limiter.until_ready("alice", Duration::from_secs(172_800)));
    let mut context = Context::from_waker(Waker::noop());
    assert!(waiting.as_mut().poll(&mut context).is_pending());
    assert_eq!(limiter.clear_domain(""), 1);
    let Poll::Ready(Ok(decision)) = waiting.poll(&mut context) else { panic!("it still waits") };
    assert!(decision.is_allowed());
}

/// A store that implements only the required methods.
#[derive(Debug)]
struct Plain(MemoryStore);

impl Store for Plain {
    fn charge(&self, charges: &[Charge<'_>], id: Option<&[u8]>) -> Reply<'_, Outcomes> {
        self.0.charge(charges, id)
    }

    fn update(&self, charge: &Charge<'_>, update: Update) -> Reply<'_, bool> {
        self.0.update(charge, update)
    }
}

#[test]
fn a_shared_limiter_clears_if_its_store_supports_it() {
    pollster::block_on(async {
        let request = Request::new().in_domain("shop").with("user", "alice");
        let limiter = SharedLimiter::new(MemoryStore::default(), policies("1/day"));
        assert!(limiter.check_request(&request).await.unwrap().is_allowed());
        assert!(!limiter.check_request(&request).await.unwrap().is_allowed());
        assert_eq!(limiter.clear_policy("bank".parse().unwrap()).await, Ok(0));
        assert_eq!(limiter.clear_domain("shop").await, Ok(1));
        assert!(limiter.check_request(&request).await.unwrap().is_allowed());
        let limiter = SharedLimiter::new(Plain(MemoryStore::default()), policies("1/day"));
        assert!(limiter.check_request(&request).await.unwrap().is_allowed());
        let error = limiter.clear_domain("shop").await.unwrap_err();
        assert!(matches!(error, StoreError::Unsupported(_)), "{error}");
        assert!(!limiter.check_request(&request).await.unwrap().is_allowed());
        assert_eq!(limiter.stats().store_failures, 0, "an unsupported call is not a failure");
    });
}
