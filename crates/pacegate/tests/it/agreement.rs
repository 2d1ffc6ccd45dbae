//! A request and the explicit charges of its plan get the same decision, and take the same units.

use pacegate::{
    CheckError, Decision, Limiter, ManualClock, Policy, PolicySet, Request, SharedLimiter, Stats,
    policy::Mode,
};
use proptest::prelude::*;

use crate::limit;

const LIMITS: [&str; 6] = [
    "3/minute",
    "5/minute sliding-window",
    "4/minute burst 6 token-bucket",
    "3/hour sliding-log",
    "2/minute concurrency",
    "0/second",
];

fn policies() -> impl Strategy<Value = PolicySet> {
    let policy = (
        prop::sample::subsequence(&LIMITS[..], 1..=3),
        prop::bool::ANY,
        prop::option::of(1..6_u64),
    );
    prop::collection::vec(policy, 1..=3).prop_map(|policies| {
        let policies = policies.into_iter().enumerate().map(|(n, (limits, shadow, max_cost))| {
            let name = format!("p{n}");
            let mut policy = Policy::new(name, limits.into_iter().map(limit)).per(["user"]);
            policy.mode = if shadow { Mode::Shadow } else { Mode::Enforce };
            policy.max_cost = max_cost;
            policy
        });
        PolicySet::new(policies).unwrap()
    })
}

type Check = fn(&Limiter, &Request<'_>) -> Result<Decision, CheckError>;

/// All ways to charge a request.
const CHECKS: [(&str, Check); 4] = [
    ("request", |limiter, request| Ok(limiter.check_request(request)?)),
    ("explicit charges", |limiter, request| {
        let charges = limiter.charges();
        Ok(charges.check(&charges.plan(request).charges(request.units())?)?)
    }),
    ("request, shared", |limiter, request| {
        pollster::block_on(SharedLimiter::from(limiter.clone()).check_request(request))
    }),
    ("explicit charges, shared", |limiter, request| {
        let limiter = SharedLimiter::from(limiter.clone());
        let plan = limiter.charges().plan(request);
        let charges = plan.charges(request.units())?;
        pollster::block_on(limiter.charges().check(&charges))
    }),
];

fn counts(stats: &Stats) -> Vec<(u64, u64, u64, u64)> {
    let policies = stats.policies.iter();
    policies.map(|p| (p.allowed, p.denied, p.shadow_denied, p.allowed_units)).collect()
}

proptest! {
    #[test]
    fn requests_and_explicit_charges_agree(
        policies in policies(),
        requests in prop::collection::vec((0..2_usize, 0..6_u64, 0..30_000_000_u64), 1..30),
    ) {
        let clock = ManualClock::new();
        let limiters = CHECKS.map(|_| {
            let limiter = Limiter::builder().policies(policies.clone()).clock(clock.clone());
            limiter.build().unwrap()
        });
        for (user, cost, micros) in requests {
            clock.advance(std::time::Duration::from_micros(micros));
            let request = Request::new().with("user", ["alice", "bob"][user]).cost(cost);
            let expected = CHECKS[0].1(&limiters[0], &request);
            for (limiter, (name, check)) in limiters.iter().zip(CHECKS).skip(1) {
                prop_assert_eq!(&check(limiter, &request), &expected, "{}", name);
            }
        }
        for (limiter, (name, _)) in limiters.iter().zip(CHECKS) {
            prop_assert_eq!(counts(&limiter.stats()), counts(&limiters[0].stats()), "{}", name);
        }
    }
}

/// The case in which they disagreed: a policy in shadow mode whose maximum cost is exceeded.
#[test]
fn cost_above_the_maximum_of_a_shadow_policy_is_a_shadow_denial() {
    for (name, check) in CHECKS {
        let mut policy = Policy::new("shadow", [limit("10/minute")]).per(["user"]);
        (policy.mode, policy.max_cost) = (Mode::Shadow, Some(3));
        let limiter = Limiter::builder().policies(PolicySet::new([policy]).unwrap());
        let limiter = limiter.build().unwrap();
        let request = Request::new().with("user", "alice");
        let decision = check(&limiter, &request.clone().cost(4)).unwrap();
        assert!(decision.is_allowed() && decision.is_shadow_denied(), "{name}");
        assert!(!check(&limiter, &request.clone().cost(3)).unwrap().is_shadow_denied(), "{name}");
        let charges = limiter.charges();
        let each = charges.check_batch(&charges.plan(&request).charges(0).unwrap()).unwrap().each;
        assert_eq!(each[0].remaining(), 7, "{name}: only the cost of 3 was taken");
        let stats = limiter.stats().policies[0];
        assert_eq!((stats.allowed, stats.denied, stats.shadow_denied), (1, 0, 1), "{name}");
    }
}
