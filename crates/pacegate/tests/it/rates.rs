//! Two rates for one key: requests at one rate never drain the debt of requests at the other.

use std::time::Duration;

use pacegate::{
    Charge, Clock, Decision, KeyRef, Limit, Limiter, ManualClock, Policy, PolicySet, Request,
    policy::{Condition, Match},
};
use pacegate_testkit::{Model, Random};

use crate::limit;

const SLOW: &str = "10/minute burst 10";
const FAST: &str = "6000/minute burst 6000";

fn path(glob: &str) -> Match {
    Match::any().and("path", Condition::Glob(glob.parse().unwrap()))
}

fn site(overrides: impl IntoIterator<Item = (Match, Limit)>) -> PolicySet {
    let policy = Policy::new("site", [limit(SLOW)]).per(["ip"]);
    let policy = overrides
        .into_iter()
        .fold(policy, |policy, (matching, limit)| policy.overriding(matching, [limit]));
    PolicySet::new([policy]).unwrap()
}

fn limiter(policies: PolicySet) -> (Limiter, ManualClock) {
    let clock = ManualClock::new();
    let limiter = Limiter::builder().policies(policies).clock(clock.clone()).build().unwrap();
    (limiter, clock)
}

fn ask(limiter: &Limiter, path: &str) -> Decision {
    let request = Request::new().with("ip", "203.0.113.7").with("path", path);
    limiter.check_request(&request).unwrap()
}

fn take(limiter: &Limiter, path: &str) -> usize {
    (0..7_000).take_while(|_| ask(limiter, path).is_allowed()).count()
}

/// Regression test: 909 exports were admitted when policy and override shared a state.
#[test]
fn an_override_does_not_drain_its_policy() {
    let (limiter, clock) = limiter(site([(path("/static/**"), limit(FAST))]));
    let mut exports = take(&limiter, "/export");
    for _ in 0..100 {
        clock.advance(Duration::from_millis(100));
        assert!(ask(&limiter, "/static/x").is_allowed());
        exports += take(&limiter, "/export");
    }
    assert_eq!(exports, 11, "the burst, and one in 6 s");
}

/// The policy and each override answer as if the others did not exist, for any order of requests.
#[test]
fn policy_and_overrides_each_answer_as_their_own_model() {
    for seed in 0..300 {
        let random = &mut Random::new(seed);
        let mut bucket = || {
            let amount = random.pick(&[1, 3, 10, 60, 6_000]);
            let burst = random.pick(&[1, 2, 10, 300]);
            Limit::per_minute(amount).with_burst(burst).unwrap()
        };
        let (fast, other) = (bucket(), bucket());
        let (limiter, clock) = limiter(site([(path("/a/**"), fast), (path("/b/**"), other)]));
        let mut models = [limit(SLOW), fast, other].map(Model::new);
        for _ in 0..100 {
            clock.advance(Duration::from_millis(random.below(3_000)));
            let place = random.below(3) as usize;
            let decision = ask(&limiter, ["/export", "/a/x", "/b/x"][place]);
            let expected = models[place].charge(clock.now().as_micros(), 1, 0);
            let wait = expected.retry_after.filter(|&wait| wait > 0).map(Duration::from_micros);
            assert_eq!(
                (decision.is_allowed(), decision.remaining(), decision.retry_after()),
                (expected.admitted, expected.remaining, wait),
                "seed {seed}, limit {place}"
            );
        }
    }
}

/// The counter of an override is named by the policy and its `match`.
#[test]
fn usage_of_an_override_carries_over_to_another_amount() {
    let (before, _) = limiter(site([(path("/static/**"), limit("100/minute burst 100"))]));
    assert_eq!(take(&before, "/static/x"), 100);
    let changed = |limit| before.with_policies(site([(path("/static/**"), limit)]));
    assert_eq!(take(&changed(limit("100/minute burst 130")), "/static/x"), 30);
    assert_eq!(take(&changed(limit("10/minute burst 130")), "/static/x"), 0);
    let moved = site([
        (path("/images/**"), limit("5/minute burst 5")),
        (path("/static/**"), limit("100/minute burst 140")),
    ]);
    assert_eq!(
        take(&before.with_policies(moved), "/static/x"),
        10,
        "its position in the list does not matter"
    );
    let renamed = site([(path("/static/*"), limit("3/minute burst 3"))]);
    assert_eq!(
        take(&before.with_policies(renamed), "/static/x"),
        3,
        "another match, another counter"
    );
    assert_eq!(take(&before, "/export"), 10, "the counter of the policy is unchanged");
}

#[test]
fn a_reset_of_a_key_reaches_the_counters_of_its_overrides() {
    let (limiter, _) = limiter(site([(path("/static/**"), limit("3/minute burst 3"))]));
    let plan = limiter.charges().plan_for_all("site".parse().unwrap(), KeyRef::new(b"203.0.113.7"));
    for _ in 0..2 {
        assert_eq!((take(&limiter, "/export"), take(&limiter, "/static/x")), (10, 3));
        limiter.charges().reset(&plan.charges(0).unwrap());
    }
}

/// Covers single charges, batches, and all-or-nothing checks.
#[test]
fn charges_with_other_amounts_count_apart() {
    type Check = fn(&Limiter, &Charge<'_>) -> bool;
    let one: Check = |limiter, charge| limiter.charges().check(&[*charge]).unwrap().is_allowed();
    let batch: Check = |limiter, charge| {
        let mut decisions = Vec::new();
        limiter.charges().check_each(&[*charge, charge.cost(0)], &mut decisions);
        decisions[0].as_ref().unwrap().is_allowed()
    };
    for check in [one, batch] {
        let (limiter, clock) = limiter(site([]));
        // The policy exists, but explicit charges with its limit or another do not use the policy's counter.
        let [slow, fast] =
            [SLOW, FAST].map(|text| Charge::new("site".parse().unwrap(), "k", limit(text)));
        let mut admitted = 0;
        for _ in 0..=100 {
            assert!(check(&limiter, &fast));
            admitted += (0..200).take_while(|_| check(&limiter, &slow)).count();
            clock.advance(Duration::from_millis(100));
        }
        assert_eq!(admitted, 11);
        let both = [slow, fast].map(|charge| charge.cost(0));
        let verdict = limiter.charges().check_batch(&both).unwrap();
        assert_eq!(verdict.each[0].remaining(), 0);
        assert!(verdict.each[1].remaining() > 5_900, "{verdict:?}");
    }
}

/// A limiter and the one that replaces it share their counters. Used in turn, they admit as much as the larger limit.
#[test]
fn two_limiters_on_one_state_together_admit_the_larger_limit() {
    let clock = ManualClock::new();
    let slow = Limiter::builder().limit(SLOW).clock(clock.clone()).build().unwrap();
    let fast = slow.with_limit(limit(FAST));
    let start = clock.now();
    let mut admitted = 0;
    for _ in 0..1_000 {
        for limiter in [&slow, &fast] {
            admitted += (0..7_000).take_while(|_| limiter.check("k").is_allowed()).count();
        }
        clock.advance(Duration::from_millis(30));
        let passed = clock.now().micros_since(start);
        assert!(admitted as u64 <= 6_000 + passed / 10_000, "{admitted} in {passed} us");
    }
}
