//! Matching policies to requests, and decisions under several policies.

use pacegate::{
    CostError, Limiter, ManualClock, Policy, PolicySet, Request, SharedLimiter,
    policy::{Condition, Lease, Match, Missing, Paths, PolicyError},
};
use pacegate_testkit::Random;

use crate::limit;

fn policy(name: &str, text: &str) -> Policy {
    Policy::new(name, [limit(text)])
}

fn limiter(policies: impl IntoIterator<Item = Policy>) -> Limiter {
    let set = PolicySet::new(policies).unwrap();
    Limiter::builder().policies(set).clock(ManualClock::new()).build().unwrap()
}

#[test]
fn a_request_is_charged_to_every_policy_that_covers_it_or_to_none() {
    let limiter = limiter([
        policy("per-ip", "3/minute").per(["ip"]),
        policy("per-user", "2/minute").per(["user"]).matching("user", Condition::Present),
        policy("all", "100/minute"),
    ]);
    let request = Request::new().with("ip", "1.2.3.4").with("user", "alice");
    let answers = [(); 3].map(|()| limiter.check_request(&request).unwrap());
    assert_eq!(answers.map(|decision| decision.is_allowed()), [true, true, false]);
    assert_eq!(answers[2].policy().unwrap().as_str(), "per-user");
    let anonymous = Request::new().with("ip", "1.2.3.4");
    let answers = [(); 2].map(|()| limiter.check_request(&anonymous).unwrap());
    assert_eq!(answers.map(|decision| decision.is_allowed()), [true, false]);
    assert_eq!(answers[1].policy().unwrap().as_str(), "per-ip");
    let used = limiter.stats().policies;
    let counts: Vec<_> = used.iter().map(|stats| (stats.allowed, stats.denied)).collect();
    assert_eq!(counts, [(3, 1), (2, 1), (3, 0)]);
}

#[test]
fn a_request_that_nothing_covers_is_unlimited() {
    let limiter = limiter([policy("other", "1/hour").in_domain("edge")]);
    let decision = limiter.check_request(&Request::new()).unwrap();
    assert!(decision.is_allowed() && decision.policy().is_none() && decision.limit().is_none());
    let edge = Request::new().in_domain("edge");
    assert!(limiter.check_request(&edge).unwrap().is_allowed());
    assert!(!limiter.check_request(&edge).unwrap().is_allowed());
}

#[test]
fn overrides_replace_the_limits_of_some_requests() {
    let plan = |name: &str| Match::any().and("plan", Condition::equal(name));
    let limiter = limiter([policy("api", "1/hour")
        .per(["user"])
        .overriding(plan("pro"), [limit("3/hour")])
        .overriding(plan("banned"), [limit("0/hour")])
        .exempting(plan("staff"))]);
    let take = |plan: &str, user: &str| {
        let request = Request::new().with("plan", plan).with("user", user);
        (0..5).filter(|_| limiter.check_request(&request).unwrap().is_allowed()).count()
    };
    assert_eq!(
        [take("free", "a"), take("pro", "b"), take("banned", "c"), take("staff", "d")],
        [1, 3, 0, 5]
    );
    assert_eq!(take("pro", "a"), 3, "an override has its own counter");
    assert_eq!(take("free", "a"), 0);
}

#[test]
fn shadow_policies_report_and_never_deny() {
    let limiter = limiter([
        policy("enforced", "3/hour").per(["user"]),
        policy("tried", "1/hour").per(["user"]).shadow(),
    ]);
    let request = Request::new().with("user", "alice");
    let answers = [(); 4].map(|()| limiter.check_request(&request).unwrap());
    let seen = answers.map(|decision| (decision.is_allowed(), decision.is_shadow_denied()));
    assert_eq!(seen, [(true, false), (true, true), (true, true), (false, true)]);
    assert!(answers.iter().all(|decision| decision.policy().unwrap().as_str() == "enforced"));
    let tried = limiter.stats().policies[1];
    assert_eq!((tried.allowed, tried.denied, tried.shadow_denied), (1, 0, 3));
    // A cost above the capacity of the shadow policy is not an error either.
    let large = limiter.check_request(&Request::new().with("user", "bob").cost(2)).unwrap();
    assert!(large.is_allowed() && large.is_shadow_denied());
}

#[test]
fn a_missing_attribute_shares_a_budget_or_skips_the_policy() {
    let request = Request::new();
    let shared = limiter([policy("per-user", "1/hour").per(["user"])]);
    assert!(shared.check_request(&request).unwrap().is_allowed());
    assert!(!shared.check_request(&request).unwrap().is_allowed());
    assert!(shared.check_request(&request.clone().with("user", "")).unwrap().is_allowed());
    let skipping = limiter([policy("per-user", "1/hour").per(["user"]).missing(Missing::Skip)]);
    assert!((0..3).all(|_| skipping.check_request(&request).unwrap().is_allowed()));
}

#[test]
fn a_policy_may_cap_the_cost_of_a_request() {
    let limiter = limiter([policy("export", "100/hour").max_cost(10)]);
    let error = limiter.check_request(&Request::new().cost(11)).unwrap_err();
    assert!(matches!(error, CostError { cost: 11, max: 10, .. }));
    assert!(limiter.check_request(&Request::new().cost(10)).unwrap().is_allowed());
}

#[test]
fn contradictory_policies_are_rejected() {
    let twice = PolicySet::new([policy("a", "1/s"), policy("a", "2/s")]).unwrap_err();
    assert_eq!(twice.to_string(), "two policies are named `a`: names must be unique");
    let none = PolicySet::new([Policy::new("a", <[pacegate::Limit; 0]>::default())]).unwrap_err();
    assert_eq!(none, PolicyError::NoLimit("a".parse().unwrap()));
    let nothing = PolicySet::new([policy("a", "1/s").max_cost(0)]).unwrap_err();
    assert_eq!(nothing, PolicyError::NoCost("a".parse().unwrap()));
    let same = Policy::new("a", [limit("1/s"), limit("2/s")]);
    assert_eq!(
        PolicySet::new([same]).unwrap_err().to_string(),
        "policy `a` has two limits of one algorithm and period, `1/second` and `2/second`"
    );
    let other = Policy::new("a", [limit("1/s"), limit("2/s token-bucket")]);
    assert!(PolicySet::new([other]).is_ok());
}

#[test]
fn the_first_invalid_text_of_a_policy_is_reported() {
    let api = Policy::new("api", ["9/s"]).overriding(Match::any(), ["5/s", "1/x", "2/y"]);
    let error = PolicySet::new([api.clone()]).unwrap_err().to_string();
    assert!(error.starts_with("policy `api`: `1/x` is not a limit: the period `x` is"), "{error}");
    assert_eq!(api.overrides[0].limits, [limit("5/s")]);
}

#[test]
fn invalid_leases_are_rejected() {
    let refused = |text: &str, lease| {
        PolicySet::new([policy("a", text).leased(lease)]).unwrap_err().to_string()
    };
    for lease in [Lease::Units(0), Lease::Percent(0), Lease::Percent(101)] {
        assert_eq!(
            refused("9/s", lease),
            format!("policy `a` has a lease of {lease}: write at least 1, or from 1% to 100%")
        );
    }
    for text in ["9/second sliding-log", "9/second concurrency", "9/second burst 20"] {
        assert_eq!(
            refused(text, Lease::Units(1)),
            format!(
                "policy `a` has a lease, but `{text}` does not support leases: \
                 leave the lease out, or use fixed-window or sliding-window"
            )
        );
    }
    let pro = Match::any().and("plan", Condition::equal("pro"));
    let replaced = policy("a", "9/s").overriding(pro, [limit("9/s sliding-log")]);
    assert!(PolicySet::new([replaced.leased(Lease::Units(1))]).is_err());
    assert!(
        PolicySet::new([policy("a", "9/s sliding-window").leased(Lease::Percent(100))]).is_ok()
    );
}

#[test]
fn a_tag_outside_the_key_is_rejected() {
    let error = PolicySet::new([policy("a", "1/s").per(["ip"]).tagged_by("user")]).unwrap_err();
    assert_eq!(
        error.to_string(),
        "policy `a` is tagged by `user`, which is not in its key: add it to `per`"
    );
    assert!(PolicySet::new([policy("a", "1/s").per(["ip", "user"]).tagged_by("user")]).is_ok());
}

#[test]
fn policies_that_may_meet_on_different_servers_are_named() {
    let at = |path: &str| Condition::equal(path);
    let set = PolicySet::new([
        policy("ip", "1/s").per(["ip"]),
        policy("ip-long", "9/h").per(["ip"]),
        policy("ip-path", "1/s").per(["path", "ip"]).tagged_by("ip"),
        policy("user", "1/s").per(["user"]),
        policy("all", "1/s").tagged("global"),
        policy("all-long", "1/h").tagged("global"),
        policy("login", "1/s").matching("path", at("/login")).tagged("login"),
        policy("logout", "1/s").matching("path", at("/logout")).tagged("logout"),
        policy("edge", "1/s").in_domain("edge"),
    ])
    .unwrap();
    let split: Vec<_> =
        set.split_tags().iter().map(|(a, b)| (a.to_string(), b.to_string())).collect();
    let has = |a: &str, b: &str| split.contains(&(a.to_owned(), b.to_owned()));
    for (a, b) in [("ip", "ip-long"), ("ip", "ip-path"), ("all", "all-long"), ("login", "logout")] {
        assert!(!has(a, b), "{a} {b}");
    }
    for (a, b) in [("ip", "user"), ("ip-path", "user"), ("user", "all"), ("user", "login")] {
        assert!(has(a, b), "{a} {b}");
    }
    assert!(!split.iter().any(|(a, b)| a == "edge" || b == "edge"));
}

/// The index finds the same policies as a comparison with every policy.
#[test]
fn the_index_agrees_with_a_scan() {
    let paths =
        ["/", "/api", "/api/", "/api/users", "/API/users/7", "/login", "api", "/a/b/c/d", "/a/b;v"];
    let globs = ["/api/**", "/api/*", "**", "/login", "*", "/api/users/?", "/a/b/**", "a**"];
    for seed in 0..2_000 {
        let random = &mut Random::new(seed);
        let policies: Vec<_> = (0..random.between(1, 12))
            .map(|n| {
                let mut one = policy(&format!("p{n}"), "1/s");
                if random.one_in(2) {
                    let glob = random.pick(&globs).parse().unwrap();
                    one = one.matching("path", Condition::Glob(glob));
                }
                if random.one_in(3) {
                    let values = vec!["GET".into(), random.pick(&["POST", "GET", "PUT"]).into()];
                    one = one.matching("method", Condition::OneOf(values));
                }
                if random.one_in(5) {
                    one = one.matching("user", Condition::Absent);
                }
                one.in_domain(random.pick(&["", "", "edge"])).paths(random.pick(&[
                    Paths::Normalized,
                    Paths::CaseSensitive,
                    Paths::Exact,
                ]))
            })
            .collect();
        let set = PolicySet::new(policies.clone()).unwrap();
        for _ in 0..20 {
            let mut request = Request::new().in_domain(random.pick(&["", "edge", "none"]));
            if !random.one_in(4) {
                request = request.with("path", random.pick(&paths));
            }
            if !random.one_in(3) {
                request = request.with("method", random.pick(&["GET", "POST", "PUT"]));
            }
            if random.one_in(3) {
                request = request.with("user", "x");
            }
            let found: Vec<_> = set.covering(&request).map(|(policy, _)| policy.name).collect();
            let scan = policies.iter().filter(|policy| set.covers(policy.name, &request));
            assert_eq!(found, scan.map(|policy| policy.name).collect::<Vec<_>>(), "seed {seed}");
        }
    }
}

#[test]
fn a_shared_limiter_decides_as_the_limiter_does() {
    let set = || {
        PolicySet::new([
            policy("per-ip", "3/minute").per(["ip"]),
            policy("per-user", "2/minute").per(["user"]).shadow(),
        ])
        .unwrap()
    };
    let own = Limiter::builder().policies(set()).clock(ManualClock::new()).build().unwrap();
    let shared = SharedLimiter::new(pacegate::MemoryStore::new(100, ManualClock::new()), set());
    for n in 0..20 {
        let ip = format!("10.0.0.{}", n % 4);
        let request = Request::new().with("ip", &ip).with("user", "alice").cost(n % 3);
        let answer = pollster::block_on(shared.check_request(&request)).unwrap();
        assert_eq!(answer, own.check_request(&request).unwrap());
    }
    let counts = |stats: pacegate::Stats| stats.policies;
    assert_eq!(counts(shared.stats()), counts(own.stats()));
}

#[test]
fn tuple_keys_keep_their_form_under_any_policies() {
    let limiter = limiter([policy("a", "1/hour").per(["key"]), policy("b", "9/hour")]);
    let spelt = pacegate::Key::with(&("x", "y"), |key| {
        // A single key whose bytes are the encoding of the pair is a different key.
        key.parts().flatten().fold(Vec::new(), |mut bytes, part| {
            bytes.extend((part.len() as u32).to_le_bytes());
            bytes.extend(part);
            bytes
        })
    });
    assert!(limiter.check(("x", "y")).is_allowed());
    assert!(limiter.check(&spelt).is_allowed());
    assert!(!limiter.check(("x", "y")).is_allowed());
    assert_eq!(limiter.stats().most_denied[0].key, "x, y");
}

#[test]
fn check_all_reports_shadow_denials_in_any_order() {
    let limiter = limiter([policy("unused", "1/hour")]);
    let charge = |enforced: bool| {
        let mut charge = pacegate::Charge::new(
            "mixed".parse().unwrap(),
            pacegate::KeyRef::new(if enforced { b"yes" } else { b"no!" }),
            limit(if enforced { "9/hour" } else { "0/hour" }),
        );
        charge.enforced = enforced;
        charge
    };
    for order in [[true, false], [false, true]] {
        let decision = limiter.charges().check(&order.map(charge)).unwrap();
        assert!(decision.is_allowed() && decision.is_shadow_denied());
        let shared = SharedLimiter::from(limiter.clone());
        let decision = pollster::block_on(shared.charges().check(&order.map(charge))).unwrap();
        assert!(decision.is_allowed() && decision.is_shadow_denied());
    }
    let mut too_much = charge(false).cost(2);
    too_much.limit = limit("1/hour");
    let too_much = [charge(true), too_much];
    assert!(limiter.charges().check(&too_much).unwrap().is_shadow_denied(), "never an error");
}

#[test]
fn a_request_acquires_permits_of_the_policies_that_cover_it() {
    let limiter = limiter([
        policy("jobs", "1/minute concurrency")
            .per(["user"])
            .matching("kind", Condition::equal("job")),
        policy("all", "100/minute"),
    ]);
    let job = Request::new().with("kind", "job").with("user", "alice");
    let first = limiter.acquire_request(&job).unwrap();
    assert!(first.permit.is_some());
    assert!(limiter.acquire_request(&job).unwrap().permit.is_none());
    let other = Request::new().with("user", "alice");
    assert!(limiter.acquire_request(&other).unwrap().permit.is_some(), "holds nothing");
    drop(first);
    assert!(limiter.acquire_request(&job).unwrap().permit.is_some());
}

#[test]
fn a_cost_that_a_shadow_policy_never_takes_is_counted() {
    let limiter = limiter([policy("enforced", "3/hour"), policy("tried", "1/hour").shadow()]);
    assert!(limiter.check_request(&Request::new().cost(2)).unwrap().is_shadow_denied());
    let tried = limiter.stats().policies[1];
    assert_eq!((tried.allowed, tried.denied, tried.shadow_denied), (0, 0, 1));
}

#[test]
fn the_first_override_that_matches_a_request_applies() {
    let limiter = limiter([policy("api", "1/hour")
        .overriding(Match::any().and("plan", Condition::equal("pro")), [limit("3/hour")])
        .overriding(Match::any().and("plan", Condition::Present), [limit("2/hour")])]);
    let request = Request::new().with("plan", "pro");
    assert_eq!(limiter.check_request(&request).unwrap().limit(), Some(limit("3/hour")));
    let other = Request::new().with("plan", "free");
    assert_eq!(limiter.check_request(&other).unwrap().limit(), Some(limit("2/hour")));
}

/// A policy counts a request once, also if the cost exceeds several of its limits.
#[test]
fn a_shadow_policy_counts_a_request_once() {
    for (limits, shown) in [(["1/hour", "3/day"], "none fits"), (["1/hour", "9/day"], "one fits")] {
        let tried = Policy::new("tried", limits.map(limit)).shadow();
        let limiter = limiter([policy("enforced", "9/hour"), tried]);
        assert!(limiter.check_request(&Request::new().cost(5)).unwrap().is_shadow_denied());
        let tried = limiter.stats().policies[1];
        assert_eq!((tried.allowed, tried.denied, tried.shadow_denied), (0, 0, 1), "{shown}");
    }
}

#[test]
fn a_policy_that_skips_a_request_does_not_cover_it() {
    let by_user = policy("by-user", "1/hour").per(["user"]).missing(Missing::Skip);
    let set = PolicySet::new([by_user, policy("all", "9/hour").per(["user"])]).unwrap();
    let covering = |request: &Request<'_>| -> Vec<_> {
        set.covering(request).map(|(policy, _)| policy.name.as_str()).collect()
    };
    assert_eq!(covering(&Request::new()), ["all"]);
    assert_eq!(covering(&Request::new().with("user", "alice")), ["by-user", "all"]);
}

/// Other spellings of `/login`, as servers accept them.
const LOGINS: [&str; 9] = [
    "/login",
    "/login/",
    "/LOGIN",
    "/login;x=1",
    "/x/..;/login",
    "//login",
    "/./login",
    "/%6cogin?next=/",
    "/x%2f..%2flogin",
];

#[test]
fn another_spelling_of_a_path_does_not_bypass_a_policy() {
    let conditions = [
        Condition::equal("/login"),
        Condition::equal("/Login/"),
        Condition::Glob("/log*".parse().unwrap()),
    ];
    for condition in conditions {
        let limiter = limiter([policy("login", "9/hour").matching("path", condition.clone())]);
        for (used, path) in LOGINS.into_iter().enumerate() {
            let decision = limiter.check_request(&Request::new().with("path", path)).unwrap();
            assert_eq!(decision.remaining(), 8 - used as u64, "{condition:?} {path}");
        }
        let other = Request::new().with("path", "/logout/login");
        assert_eq!(limiter.check_request(&other).unwrap().policy(), None);
    }
}

#[test]
fn spellings_of_a_path_have_one_budget() {
    let limiter = limiter([policy("all", "9/hour").per(["ip", "path"])]);
    for (used, path) in LOGINS.into_iter().enumerate() {
        let request = Request::new().with("ip", "203.0.113.7").with("path", path);
        assert_eq!(limiter.check_request(&request).unwrap().remaining(), 8 - used as u64, "{path}");
    }
    let other = Request::new().with("ip", "203.0.113.7").with("path", "/");
    assert_eq!(limiter.check_request(&other).unwrap().remaining(), 8);
}

#[test]
fn a_folder_includes_itself_with_or_without_a_slash() {
    let glob = Condition::Glob("/api/**".parse().unwrap());
    let set = PolicySet::new([policy("api", "1/hour").matching("path", glob)]).unwrap();
    for (path, covered) in
        [("/api", true), ("/api/", true), ("/API/x", true), ("/x/../api", true), ("/apix", false)]
    {
        assert_eq!(
            set.covering(&Request::new().with("path", path)).count(),
            usize::from(covered),
            "{path}"
        );
    }
}

#[test]
fn a_policy_can_compare_paths_exactly_or_by_case() {
    let set = |paths: Paths| {
        let at = Condition::equal("/Login");
        PolicySet::new([policy("login", "1/hour").matching("path", at).paths(paths)]).unwrap()
    };
    for (path, exact, cased) in
        [("/Login", 1, 1), ("/Login/", 0, 1), ("/login", 0, 0), ("/%4Cogin", 0, 1)]
    {
        let request = Request::new().with("path", path);
        assert_eq!(set(Paths::Exact).covering(&request).count(), exact, "{path}");
        assert_eq!(set(Paths::CaseSensitive).covering(&request).count(), cased, "{path}");
        assert_eq!(set(Paths::Normalized).covering(&request).count(), 1, "{path}");
    }
    let exact = limiter([policy("all", "1/hour").per(["path"]).paths(Paths::Exact)]);
    for path in LOGINS {
        let request = Request::new().with("path", path);
        assert!(exact.check_request(&request).unwrap().is_allowed(), "{path}");
    }
}

#[test]
fn only_the_path_is_normalized() {
    let set = PolicySet::new([policy("a", "1/hour").matching("route", Condition::equal("/Login"))]);
    let set = set.unwrap();
    assert_eq!(set.covering(&Request::new().with("route", "/login")).count(), 0);
    assert_eq!(set.covering(&Request::new().with("route", "/Login")).count(), 1);
}

#[test]
fn overrides_compare_paths_in_the_form_of_their_policy() {
    let lifted = Match::any().and("path", Condition::Glob("/Static/**".parse().unwrap()));
    let limiter = limiter([policy("all", "1/hour").exempting(lifted)]);
    let check = |path: &str| {
        limiter.check_request(&Request::new().with("path", path)).unwrap().limit().is_some()
    };
    assert!(!check("/static/a.js") && !check("/x/../STATIC"));
    assert!(check("/static/../login"), "is not below /static");
    assert!(check("/static/..;/login"));
}

/// A value that is too long to compare is still limited.
#[test]
fn a_long_path_does_not_bypass_a_policy() {
    let glob = |text: &str| Condition::Glob(text.parse().unwrap());
    let limiter = limiter([
        policy("search", "1/hour")
            .matching("path", glob("/search/*/results"))
            .exempting(Match::any().and("path", glob("**.js"))),
        policy("elsewhere", "1/hour").matching("path", glob("/files/**")),
    ]);
    for (length, covered) in [(1, false), (4_000, false), (60_000, true)] {
        let path = format!("/search/{}", "x".repeat(length));
        let decision = limiter.check_request(&Request::new().with("path", &path)).unwrap();
        assert_eq!(decision.policy().map(|name| name.as_str()), covered.then_some("search"));
        assert!(decision.is_allowed());
    }
    let path = format!("/search/{}.js", "y".repeat(60_000));
    let decision = limiter.check_request(&Request::new().with("path", &path)).unwrap();
    assert!(
        !decision.is_allowed(),
        "an override does not match if the path is too long to compare"
    );
}

#[test]
fn a_pattern_that_is_too_long_once_normalized_is_rejected() {
    let pattern = format!("{}*", "%".repeat(100));
    let condition = Condition::Glob(pattern.parse().unwrap());
    let error = PolicySet::new([policy("a", "1/s").matching("path", condition.clone())]);
    assert_eq!(
        error.unwrap_err().to_string(),
        "policy `a` has a pattern for `path` that is too long: a pattern has at most 127 characters"
    );
    let exact = policy("a", "1/s").matching("path", condition).paths(Paths::Exact);
    assert!(PolicySet::new([exact]).is_ok());
}
