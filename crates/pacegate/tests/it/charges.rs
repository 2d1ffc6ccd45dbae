//! Explicit charges: `Limiter::charges`.

use std::time::Duration;

use pacegate::{
    Charge, CheckError, CostError, Counter, Decision, KeyBuf, KeyRef, Limiter, ManualClock, Policy,
    PolicyName, PolicySet, PolicyStats, Request, SharedLimiter,
    policy::{Condition, Match, PolicyError},
};
use proptest::prelude::*;

use crate::{limit, shared::policy};

fn limiter(policies: impl IntoIterator<Item = Policy>) -> (Limiter, ManualClock) {
    let clock = ManualClock::new();
    let policies = PolicySet::new(policies).unwrap();
    let limiter = Limiter::builder().policies(policies).clock(clock.clone()).build().unwrap();
    (limiter, clock)
}

fn charge(policy: &str, key: &'static [u8], text: &str) -> Charge<'static> {
    Charge::new(policy.parse().unwrap(), KeyRef::new(key), limit(text))
}

#[test]
fn check_batch_returns_a_decision_for_each_charge() {
    let (limiter, _) = limiter([policy("unused", "1/hour")]);
    let both = [charge("a", b"k", "3/hour"), charge("b", b"k", "1/hour")];
    let verdict = limiter.charges().check_batch(&both).unwrap();
    assert!(verdict.decision.is_allowed());
    assert_eq!(verdict.each.iter().map(Decision::remaining).collect::<Vec<_>>(), [2, 0]);
    let verdict = limiter.charges().check_batch(&both).unwrap();
    assert_eq!(verdict.decision.policy().unwrap().as_str(), "b");
    let each: Vec<_> = verdict.each.iter().map(|own| (own.is_allowed(), own.remaining())).collect();
    assert_eq!(
        each,
        [(true, 2), (false, 0)],
        "a charge that would have fit is reported as allowed and not charged"
    );
}

#[test]
fn charges_are_counted_under_their_policy_or_inline() {
    let (limiter, _) = limiter([policy("known", "2/hour").per(["user"])]);
    let known = charge("known", b"alice", "2/hour").counter(Counter::Policy);
    for _ in 0..3 {
        let _ = limiter.charges().check(&[known]).unwrap();
    }
    let mut decisions = Vec::new();
    let own = charge("inline", b"alice", "2/hour");
    limiter.charges().check_each(&[own, known, own, own, own.cost(0)], &mut decisions);
    let stats = limiter.stats();
    assert_eq!((stats.policies[0].allowed, stats.policies[0].denied), (2, 2));
    assert_eq!((stats.inline.allowed, stats.inline.denied), (2, 1), "a peek is not counted");
    assert_eq!(stats.inline.policy.as_str(), "inline");
    let request = Request::new().with("user", "alice");
    assert!(
        !limiter.check_request(&request).unwrap().is_allowed(),
        "charges and requests share a counter"
    );
}

#[test]
fn a_plan_contains_the_charges_of_a_request() {
    let by_user = policy("by-user", "5/hour").per(["user"]);
    let seen = policy("seen", "1/hour").shadow();
    let all = policy("all", "9/hour").max_cost(3);
    let (limiter, _) = limiter([by_user, seen, all]);
    let request = Request::new().with("user", "alice");
    let plan = limiter.charges().plan(&request);
    let charges = plan.charges(2).unwrap();
    let shown: Vec<_> = charges.iter().map(|c| (c.policy.as_str(), c.cost, c.enforced)).collect();
    assert_eq!(shown, [("by-user", 2, true), ("seen", 2, false), ("all", 2, true)]);
    let verdict = limiter.charges().check_batch(&charges).unwrap();
    assert!(verdict.decision.is_allowed() && verdict.decision.is_shadow_denied());
    assert!(!verdict.each[1].is_allowed());
    assert_eq!(limiter.check_request(&request).unwrap().remaining(), 2);
    let CostError { cost: 4, max: 3, .. } = plan.charges(4).unwrap_err() else {
        panic!("max_cost")
    };
    assert!(limiter.charges().plan(&Request::new().in_domain("else")).is_empty());
}

#[test]
fn lifted_limits_are_charged_on_demand() {
    let pro = || Match::any().and("plan", Condition::equal("pro"));
    let lifted = |name| policy(name, "5/hour").per(["user"]).exempting(pro());
    let (limiter, _) = limiter([lifted("a"), policy("b", "9/hour"), lifted("c")]);
    let shown = |request: &Request<'_>, cost: u64| -> Vec<_> {
        let is_meant = |policy: PolicyName, key: KeyRef<'_>| {
            (policy.as_str(), key) == ("c", KeyRef::new(b"x"))
        };
        let plan = limiter.charges().plan(request).with_lifted(is_meant);
        let charges = plan.charges(cost).unwrap();
        charges.iter().map(|charge| (charge.policy.as_str(), charge.cost)).collect()
    };
    let request = |user| Request::new().with("user", user).with("plan", "pro");
    assert_eq!(shown(&request("x"), 7), [("b", 7), ("c", 1)]);
    assert_eq!(shown(&request("x"), 0), [("b", 0), ("c", 0)]);
    assert_eq!(shown(&request("y"), 7), [("b", 7)]);
    let limited = Request::new().with("user", "x");
    assert_eq!(shown(&limited, 2), [("a", 2), ("b", 2), ("c", 2)], "once");
}

#[test]
fn a_policy_that_never_matches_is_charged_by_name_only() {
    let mut never = policy("named", "1/hour");
    never.matching = Match::never();
    let (limiter, _) = limiter([never]);
    assert!(limiter.charges().plan(&Request::new()).is_empty());
    assert!(limiter.charges().plan(&Request::new().with("", "")).is_empty());
    assert!(limiter.policies().get("named".parse().unwrap()).is_some());
    let own = charge("named", b"k", "1/hour");
    assert!(limiter.charges().check(&[own]).unwrap().is_allowed());
    assert!(!limiter.charges().check(&[own]).unwrap().is_allowed());
    assert_eq!(limiter.stats().policies[0].denied, 1);
}

#[test]
fn the_inline_name_is_reserved() {
    let error = PolicySet::new([policy("inline", "1/hour")]).unwrap_err();
    assert_eq!(error, PolicyError::ReservedName(PolicyName::INLINE));
}

#[test]
fn charges_can_be_refunded() {
    let (limiter, _) = limiter([policy("unused", "1/hour")]);
    let shared = SharedLimiter::from(limiter.clone());
    let own = [charge("a", b"k", "2/hour").cost(2)];
    for round in 0..2 {
        assert!(limiter.charges().check(&own).unwrap().is_allowed());
        assert!(!limiter.charges().check(&own).unwrap().is_allowed());
        match round {
            0 => limiter.charges().refund(&own),
            _ => limiter.charges().reset(&own),
        }
    }
    for round in 0..2 {
        assert!(limiter.charges().check(&own).unwrap().is_allowed());
        match round {
            0 => pollster::block_on(shared.charges().refund(&own)).unwrap(),
            _ => pollster::block_on(shared.charges().reset(&own)).unwrap(),
        }
    }
}

#[test]
fn permits_are_held_by_their_ids() {
    let (limiter, _) = limiter([policy("unused", "1/hour")]);
    let shared = SharedLimiter::from(limiter.clone());
    let permits = [limiter.charges().new_permit_id(), limiter.charges().new_permit_id()];
    assert_ne!(permits[0], permits[1]);
    let [first, second] =
        permits.map(|permit| [charge("jobs", b"k", "1/30s concurrency").holding(permit)]);
    assert!(limiter.charges().check(&first).unwrap().is_allowed());
    assert!(!limiter.charges().check(&second).unwrap().is_allowed());
    assert!(limiter.charges().renew(&first) && !limiter.charges().renew(&second));
    limiter.charges().release(&second);
    assert!(!limiter.charges().check(&second).unwrap().is_allowed(), "it was not held");
    limiter.charges().release(&first);
    assert!(pollster::block_on(shared.charges().check(&second)).unwrap().is_allowed());
    assert_eq!(pollster::block_on(shared.charges().renew(&second)), Ok(true));
    pollster::block_on(shared.charges().release(&second)).unwrap();
    assert_eq!(pollster::block_on(shared.charges().renew(&second)), Ok(false));
}

const LIMITS: [&str; 6] = [
    "3/minute",
    "5/minute",
    "2/minute sliding-window",
    "4/minute burst 6 token-bucket",
    "3/minute sliding-log",
    "0/minute",
];

proptest! {
    /// A batch is answered as if its charges had come one by one.
    #[test]
    fn each_charge_of_a_batch_is_decided_in_turn(
        history in prop::collection::vec((0..6_usize, 0..3_usize, 0..4_u64, any::<bool>()), 1..80),
    ) {
        let (batch, batch_clock) = limiter([policy("unused", "1/hour")]);
        let (single, _) = limiter([policy("unused", "1/hour")]);
        batch_clock.advance(std::time::Duration::ZERO);
        let keys: [&'static [u8]; 3] = [b"a", b"b", b"c"];
        let charges: Vec<_> = history
            .iter()
            .map(|&(which, key, cost, enforced)| {
                charge("p", keys[key], LIMITS[which]).cost(cost).enforced(enforced)
            })
            .collect();
        let mut together = Vec::new();
        batch.charges().check_each(&charges, &mut together);
        let shared = SharedLimiter::from(limiter([policy("unused", "1/hour")]).0);
        let mut over_store = Vec::new();
        pollster::block_on(shared.charges().check_each(&charges, &mut over_store));
        for ((charge, decision), shared) in charges.iter().zip(together).zip(over_store) {
            prop_assert_eq!(&decision, &single.charges().check(&[*charge]).map_err(CheckError::from));
            prop_assert_eq!(decision.ok(), shared.ok());
        }
    }
}

#[test]
fn a_refund_releases_no_permits() {
    let limiter = Limiter::builder().limit("100/minute").limit("2/minute concurrency");
    let limiter = limiter.build().unwrap();
    let held = limiter.acquire("a").into_result().unwrap();
    assert!(limiter.check("a").is_allowed(), "without a permit, so it can be refunded");
    assert!(limiter.acquire("a").permit.is_none());
    limiter.refund("a", 2);
    let second = limiter.acquire("a");
    assert!(second.permit.is_some() && limiter.acquire("a").permit.is_none());
    assert!(held.renew());
}

/// A permit may be charged more than once, and is then returned and renewed as a whole.
#[test]
fn a_permit_that_was_charged_twice_is_returned_as_a_whole() {
    let clock = ManualClock::new();
    let limiter = Limiter::builder().limit("1/second").max_keys(4).clock(clock.clone());
    let limiter = limiter.build().unwrap();
    for round in 0..100 {
        let held =
            charge("p", b"k", "4/minute concurrency").holding(limiter.charges().new_permit_id());
        for _ in 0..2 {
            assert!(limiter.charges().check(&[held]).unwrap().is_allowed(), "round {round}");
        }
        clock.advance(Duration::from_secs(40));
        assert!(limiter.charges().renew(&[held]));
        clock.advance(Duration::from_secs(40));
        let peek = charge("p", b"k", "4/minute concurrency").cost(0);
        assert_eq!(limiter.charges().check(&[peek]).unwrap().remaining(), 2, "both are renewed");
        limiter.charges().release(&[held]);
        assert_eq!(limiter.charges().check(&[peek]).unwrap().remaining(), 4);
    }
}

/// Two charges to one key in a request fit if their sum does, and `retry_after` is the wait for the sum.
#[test]
fn a_key_that_is_charged_twice_is_charged_the_sum() {
    for text in
        ["10/second burst 10", "10/second sliding-window", "10/second sliding-log", "10/second"]
    {
        let (limiter, clock) = limiter([policy("unused", "1/hour")]);
        let one = |cost| charge("p", b"k", text).cost(cost);
        let verdict = limiter.charges().check_batch(&[one(6), one(4)]).unwrap();
        assert!(verdict.decision.is_allowed(), "{text}");
        assert_eq!(verdict.each.iter().map(Decision::remaining).collect::<Vec<_>>(), [4, 0]);
        let denied = limiter.charges().check(&[one(3), one(3)]).unwrap();
        let wait = denied.retry_after().unwrap();
        clock.advance(wait - Duration::from_micros(1));
        assert!(!limiter.charges().check(&[one(3), one(3)]).unwrap().is_allowed(), "{text}");
        clock.advance(Duration::from_micros(1));
        assert!(limiter.charges().check(&[one(3), one(3)]).unwrap().is_allowed(), "{text}");
        clock.advance(Duration::from_secs(3));
        let verdict = limiter.charges().check_batch(&[one(6), one(6)]).unwrap();
        let each = verdict.each.iter().map(|own| (own.is_allowed(), own.remaining()));
        assert_eq!(each.collect::<Vec<_>>(), [(true, 10), (false, 4)], "{text}");
        assert_eq!((verdict.decision.is_allowed(), verdict.decision.retry_after()), (false, None));
        // Another key denies: this one is not charged.
        let other = charge("q", b"k", "0/hour");
        let verdict = limiter.charges().check_batch(&[one(3), one(3), other]).unwrap();
        let each = verdict.each.iter().map(|own| (own.is_allowed(), own.remaining()));
        assert_eq!(each.collect::<Vec<_>>(), [(true, 10), (true, 10), (false, 0)], "{text}");
    }
}

#[test]
fn a_shadow_charge_does_not_block_an_enforced_charge_to_its_key() {
    let (limiter, _) = limiter([policy("unused", "1/hour")]);
    let enforced = charge("p", b"k", "1/minute");
    let verdict = limiter.charges().check_batch(&[enforced.enforced(false), enforced]).unwrap();
    assert!(verdict.decision.is_allowed() && verdict.decision.is_shadow_denied());
    assert_eq!(verdict.each.iter().map(Decision::is_allowed).collect::<Vec<_>>(), [false, true]);
}

#[test]
fn many_charges_are_joined_like_few() {
    let (limiter, _) = limiter([policy("unused", "1/hour")]);
    let keys: Vec<[u8; 2]> = (0..300_u16).map(u16::to_le_bytes).collect();
    let charge = |key: &'static [u8]| charge("p", key, "10/hour").cost(2);
    let keys: Vec<&'static [u8]> = keys.into_iter().map(|key| &*key.to_vec().leak()).collect();
    let twice: Vec<_> = keys.iter().chain(&keys).map(|key| charge(key)).collect();
    let verdict = limiter.charges().check_batch(&twice).unwrap();
    assert!(verdict.decision.is_allowed());
    let remaining: Vec<_> = verdict.each.iter().map(Decision::remaining).collect();
    assert_eq!((&remaining[..300], &remaining[300..]), (&[8; 300][..], &[6; 300][..]));
}

/// If an enforced charge denies, the request counts as denied, also next to shadow charges and peeks, in any order.
#[test]
fn the_denying_charge_determines_the_count() {
    let enforced = charge("p", b"k", "1/minute");
    let shadow = enforced.enforced(false);
    for (order, counted) in [
        ([shadow, enforced], (1, 1, 0)),
        ([enforced, shadow], (1, 1, 0)),
        ([enforced.cost(0), enforced], (1, 1, 0)),
        ([enforced, enforced.cost(0)], (1, 1, 0)),
    ] {
        let (limiter, _) = limiter([policy("unused", "1/hour")]);
        assert!(limiter.charges().check(&[enforced]).unwrap().is_allowed());
        assert!(!limiter.charges().check(&order).unwrap().is_allowed());
        let PolicyStats { allowed, denied, shadow_denied, .. } = limiter.stats().inline;
        assert_eq!((allowed, denied, shadow_denied), counted, "{order:?}");
    }
}

/// The plan includes the counter of each override, except overrides that cannot apply to the key.
#[test]
fn a_key_is_planned_for_each_counter_that_a_policy_may_have_for_it() {
    let by = |attribute: &str, value: &str| Match::any().and(attribute, Condition::equal(value));
    let api = policy("api", "5/hour")
        .per(["user"])
        .overriding(by("user", "bob"), [limit("7/hour")])
        .overriding(by("user", "alice"), [limit("6/hour")])
        .overriding(by("plan", "pro"), [limit("50/hour"), limit("90/day")])
        .overriding(by("plan", "pro"), [limit("60/hour")])
        .exempting(by("plan", "staff"));
    let (limiter, _) = limiter([api]);
    let plan = limiter.charges().plan_for_all("api".parse().unwrap(), KeyRef::new(b"alice"));
    let limits: Vec<_> = plan.charges(1).unwrap().iter().map(|charge| charge.limit).collect();
    assert_eq!(limits, ["5/hour", "6/hour", "50/hour", "90/day"].map(limit));
    let plan = limiter.charges().plan_for("api".parse().unwrap(), KeyRef::new(b"alice"));
    assert_eq!(plan.charges(1).unwrap().len(), 1);
}

/// The key of several attributes is compared part by part, and a missing one matches no value.
#[test]
fn overrides_of_other_parts_of_a_key_are_left_out() {
    let by = |attribute: &str, value: &str| Match::any().and(attribute, Condition::equal(value));
    let api = policy("api", "5/hour")
        .per(["user", "route"])
        .overriding(by("user", "alice"), [limit("6/hour")])
        .overriding(by("route", "alice"), [limit("7/hour")])
        .overriding(by("route", "export"), [limit("8/hour")]);
    let (limiter, _) = limiter([api]);
    let planned = |parts: [Option<&str>; 2]| -> Vec<_> {
        let mut key = KeyBuf::empty();
        parts.iter().for_each(|part| key.push(part.map(str::as_bytes)));
        let plan = limiter.charges().plan_for_all("api".parse().unwrap(), key.as_ref());
        plan.charges(1).unwrap().iter().map(|charge| charge.limit.amount()).collect()
    };
    assert_eq!(planned([Some("alice"), Some("export")]), [5, 6, 8]);
    assert_eq!(planned([Some("bob"), Some("alice")]), [5, 7]);
    assert_eq!(planned([Some("alice"), None]), [5, 6]);
}
