//! The layer around a service, in memory and over a store.

use std::{
    convert::Infallible,
    future::{Ready, ready},
    sync::{
        Arc, RwLock,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::Full;
use pacegate::{
    CheckError, Decision, Limit, Limiter, MemoryStore, PolicySet, SharedLimiter,
    policy::{Condition, Paths, Policy},
};
use pacegate_http::{
    Adjustment, Decide, Headers, PeerAddr, Provided, Question, RateLimitLayer, Refusal, Reply,
    ResolveExt,
    resolve::{ClientAddress, ExactPath, Header, Method, Path, PeerAddress},
};
use tower::{Layer, Service, service_fn, util::ServiceExt};

use crate::kit::{self, Answer, Asking, ask, body, get, statuses, text, with};

fn per_minute(amount: u32) -> Limiter {
    Limiter::memory(Limit::per_minute(amount))
}

#[test]
fn admitted_requests_have_headers_and_their_decision() {
    let handler = |request: Asking| {
        let decision = *request.extensions().get::<Decision>().unwrap();
        assert!(decision.is_allowed());
        ready(Ok::<_, Infallible>(Response::new(Full::from(decision.remaining().to_string()))))
    };
    let clock = kit::clock();
    let limiter = Limiter::builder().limit("3/minute").clock(clock.clone()).build().unwrap();
    let layer = RateLimitLayer::new(limiter).by(Path).clock(clock);
    let answer = ask(&layer.layer(service_fn(handler)), get("/a"));
    assert_eq!(answer.status(), StatusCode::OK);
    // A window of a minute that ends at 1,700,000,040.
    assert_eq!(text(answer.headers(), "ratelimit"), "\"default\";r=2;t=40");
    assert_eq!(text(answer.headers(), "ratelimit-policy"), "\"default\";q=3;w=60");
    assert_eq!(text(answer.headers(), "x-ratelimit-limit"), "3");
    assert_eq!(text(answer.headers(), "x-ratelimit-remaining"), "2");
    assert_eq!(text(answer.headers(), "x-ratelimit-reset"), "1700000040");
    assert_eq!(answer.headers().get("retry-after"), None);
    assert_eq!(body(answer), "2");
}

#[test]
fn denied_requests_never_reach_the_service() {
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = calls.clone();
    let inner = service_fn(move |request| {
        counted.fetch_add(1, Relaxed);
        kit::fine(request)
    });
    let service = RateLimitLayer::new(per_minute(1)).by(Path).layer(inner);
    assert_eq!(statuses(&service, "/a", 3), [200, 429, 429]);
    assert_eq!(statuses(&service, "/b", 2), [200, 429]);
    assert_eq!(calls.load(Relaxed), 2);
    let denied = ask(&service, get("/a"));
    assert!(text(denied.headers(), "retry-after").parse::<u64>().unwrap() > 0);
    assert_eq!(text(denied.headers(), "content-type"), "application/problem+json");
    assert_eq!(text(denied.headers(), "cache-control"), "no-store");
    let problem: serde_json::Value = serde_json::from_str(&body(denied)).unwrap();
    let expected = serde_json::json!({
        "type": "https://iana.org/assignments/http-problem-types#quota-exceeded",
        "title": "The quota is used up for now",
        "status": 429,
        "violated-policies": ["default"],
    });
    assert_eq!(problem, expected);
}

#[test]
fn a_store_answers_the_same() {
    let policies = PolicySet::of_limits([Limit::per_minute(1)]).unwrap();
    let limiter = SharedLimiter::new(MemoryStore::default(), policies);
    let service = RateLimitLayer::new(limiter).by(Path).layer(service_fn(kit::fine));
    assert_eq!(statuses(&service, "/a", 2), [200, 429]);
    assert_eq!(statuses(&service, "/b", 1), [200]);
}

#[test]
fn a_request_that_is_dropped_before_it_is_polled_takes_nothing_from_a_store() {
    let policies = PolicySet::of_limits([Limit::per_minute(1)]).unwrap();
    let limiter = SharedLimiter::new(MemoryStore::default(), policies);
    let mut service = RateLimitLayer::new(limiter).by(Path).layer(service_fn(kit::fine));
    drop(service.call(get("/a")));
    assert_eq!(statuses(&service, "/a", 2), [200, 429]);
}

#[test]
fn the_service_that_is_called_is_the_one_that_was_ready() {
    /// Must be asked for readiness before each call; a clone starts afresh.
    #[derive(Default)]
    struct Strict(bool);
    impl Clone for Strict {
        fn clone(&self) -> Self {
            Self(false)
        }
    }
    impl Service<Asking> for Strict {
        type Response = Answer;
        type Error = Infallible;
        type Future = Ready<Result<Answer, Infallible>>;
        fn poll_ready(
            &mut self,
            _: &mut std::task::Context<'_>,
        ) -> std::task::Poll<Result<(), Infallible>> {
            self.0 = true;
            std::task::Poll::Ready(Ok(()))
        }
        fn call(&mut self, request: Asking) -> Self::Future {
            assert!(std::mem::take(&mut self.0), "called before it was ready");
            kit::fine(request)
        }
    }
    let policies = PolicySet::of_limits([Limit::per_minute(9)]).unwrap();
    let limiter = SharedLimiter::new(MemoryStore::default(), policies);
    let mut shared = RateLimitLayer::new(limiter).layer(Strict::default());
    let mut own = RateLimitLayer::new(per_minute(9)).layer(Strict::default());
    for _ in 0..3 {
        pollster::block_on(async {
            shared.ready().await.unwrap().call(get("/")).await.unwrap();
            own.ready().await.unwrap().call(get("/")).await.unwrap();
        });
    }
}

#[test]
fn key_cost_and_skip_are_separate_choices() {
    let layer = RateLimitLayer::new(per_minute(5))
        .by(Header::from_static("x-user"))
        .cost(|head| if head.uri.path() == "/export" { 5 } else { 1 })
        .skip(|head| head.uri.path() == "/health");
    let service = layer.layer(service_fn(kit::fine));
    let status = |path, user| ask(&service, with(path, "x-user", user)).status().as_u16();
    assert_eq!(status("/", "alice"), 200);
    assert_eq!(status("/export", "alice"), 429);
    assert_eq!(status("/export", "bob"), 200);
    assert_eq!(status("/", "bob"), 429);
    let skipped = ask(&service, with("/health", "x-user", "bob"));
    assert_eq!((skipped.status().as_u16(), skipped.headers().len()), (200, 0));
}

#[test]
fn missing_values_share_skip_or_reject() {
    let tenant = || Header::from_static("x-tenant");
    let unspecified = RateLimitLayer::new(per_minute(1)).by(tenant()).layer(service_fn(kit::fine));
    assert_eq!(statuses(&unspecified, "/", 2), [400, 400]);
    let limiter = per_minute(1);
    let share = RateLimitLayer::new(limiter.clone()).by(tenant().or_share());
    assert_eq!(statuses(&share.layer(service_fn(kit::fine)), "/", 2), [200, 429]);
    // A tenant without a name is another one than none.
    assert!(limiter.check("").is_allowed());
    let skip = RateLimitLayer::new(per_minute(1)).by(tenant().or_skip());
    assert_eq!(statuses(&skip.layer(service_fn(kit::fine)), "/", 2), [200, 200]);
    let reject = RateLimitLayer::new(per_minute(1)).attribute("tenant", tenant().or_reject());
    let rejected = ask(&reject.layer(service_fn(kit::fine)), get("/"));
    assert_eq!(rejected.status(), 400);
    assert!(body(rejected).contains("urn:pacegate:problem:missing"));
}

/// One budget for all clients would let one of them lock out the others.
#[test]
fn a_request_without_a_peer_address_is_not_counted_with_all_others() {
    let layers = [
        RateLimitLayer::new(per_minute(1)).by(PeerAddress::new()),
        RateLimitLayer::new(per_minute(1)).by(Method.and(PeerAddress::new())),
        RateLimitLayer::new(per_minute(1)).attribute("ip", PeerAddress::new()),
        RateLimitLayer::new(per_minute(1)).attribute("ip", ClientAddress::behind(1)),
    ];
    for layer in layers {
        let service = layer.layer(service_fn(kit::fine));
        assert_eq!(statuses(&service, "/", 2), [500, 500]);
        let told = body(ask(&service, get("/")));
        assert!(told.contains("urn:pacegate:problem:misconfigured"), "{told}");
        assert!(told.contains("enable the feature `axum`"), "{told}");
        let mut known = get("/");
        known.extensions_mut().insert(PeerAddr("203.0.113.7:4711".parse().unwrap()));
        known.headers_mut().insert("x-forwarded-for", "203.0.113.8".parse().unwrap());
        assert_eq!(ask(&service, known).status(), 200);
    }
    let shared = RateLimitLayer::new(per_minute(1)).by(PeerAddress::new().or_share());
    assert_eq!(statuses(&shared.layer(service_fn(kit::fine)), "/", 2), [200, 429]);
}

/// The permits would never be returned.
#[test]
fn a_limit_of_concurrency_is_not_for_a_layer() {
    let permits: Limit = "5/minute concurrency".parse().unwrap();
    let limiter = move || Limiter::builder().limit("9/hour").limit(permits).build().unwrap();
    let found = RateLimitLayer::new(per_minute(9)).limits(move |head| {
        let limit = if head.uri.path() == "/held" { permits } else { Limit::per_minute(9) };
        [("found".parse().unwrap(), limit)]
    });
    assert_eq!(statuses(&found.clone().layer(service_fn(kit::fine)), "/", 1), [200]);
    let answers = [
        ask(&RateLimitLayer::new(limiter()).layer(service_fn(kit::fine)), get("/")),
        ask(&RateLimitLayer::new(Provided(limiter)).layer(service_fn(kit::fine)), get("/")),
        ask(&found.layer(service_fn(kit::fine)), get("/held")),
        ask(
            &RateLimitLayer::new(SharedLimiter::from(limiter())).layer(service_fn(kit::fine)),
            get("/"),
        ),
    ];
    for answer in answers {
        assert_eq!(answer.status(), 500);
        let told = body(answer);
        assert!(told.contains("take them in the handler with `acquire`"), "{told}");
    }
}

#[test]
fn an_attribute_that_a_request_lacks_is_left_to_the_policies() {
    let by = |resolver: fn() -> Header| {
        let policy = Policy::new("by-user", [Limit::per_minute(1)]).per(["user"]);
        let policies = PolicySet::new([policy]).unwrap();
        let limiter = Limiter::builder().policies(policies).build().unwrap();
        RateLimitLayer::new(limiter).attribute("user", resolver().and(Method))
    };
    let service = by(|| Header::from_static("x-user")).layer(service_fn(kit::fine));
    assert_eq!(statuses(&service, "/", 2), [200, 429], "they share the budget of the method");
    assert_eq!(ask(&service, with("/", "x-user", "alice")).status(), 200);
}

#[test]
fn another_spelling_of_a_path_draws_on_the_same_budget() {
    let login = || {
        let limit = [Limit::per_minute(1)];
        Policy::new("login", limit).matching("path", Condition::equal("/login"))
    };
    let layer = |policy: Policy| {
        let limiter = Limiter::builder().policies(PolicySet::new([policy]).unwrap());
        RateLimitLayer::new(limiter.build().unwrap())
    };
    let spellings = ["/LOGIN", "/login/", "/login;x=1", "/x/..;/login", "//login?a", "/%6cogin"];
    for spelling in spellings {
        let by_key = RateLimitLayer::new(per_minute(1)).by(Path);
        let by_policy = layer(login()).attribute("path", Path);
        let raw = layer(login()).attribute("path", ExactPath);
        let exact = layer(login().paths(Paths::Exact)).attribute("path", ExactPath);
        for (layer, second) in [(by_key, 429), (by_policy, 429), (raw, 429), (exact, 200)] {
            let service = layer.layer(service_fn(kit::fine));
            assert_eq!(ask(&service, get("/login")).status(), 200);
            assert_eq!(ask(&service, get(spelling)).status(), second, "{spelling}");
        }
    }
}

#[test]
fn the_last_resolver_of_a_name_counts() {
    let header = Header::from_static;
    let layer = RateLimitLayer::new(per_minute(1)).by(header("x-a")).by(header("x-b"));
    let service = layer.layer(service_fn(kit::fine));
    let status = |a: &str, b: &str| {
        let mut request = with("/", "x-a", a);
        request.headers_mut().insert("x-b", b.parse().unwrap());
        ask(&service, request).status().as_u16()
    };
    assert_eq!([status("1", "1"), status("1", "2"), status("2", "2")], [200, 200, 429]);
}

#[test]
fn without_a_resolver_there_is_one_budget() {
    let service = RateLimitLayer::new(per_minute(2)).layer(service_fn(kit::fine));
    let found = [statuses(&service, "/a", 1), statuses(&service, "/b", 2)].concat();
    assert_eq!(found, [200, 200, 429]);
}

#[test]
fn several_policies_stand_or_fall_together() {
    let policy = |name: &str, limit: &str, per: &str| Policy::new(name, [limit]).per([per]);
    let login = policy("login", "1/minute", "user").matching("path", Condition::equal("/login"));
    let policies = PolicySet::new([policy("all", "3/minute", "user"), login]).unwrap();
    let limiter = Limiter::builder().policies(policies).build().unwrap();
    let layer = RateLimitLayer::new(limiter)
        .attribute("user", Header::from_static("x-user"))
        .attribute("path", Path);
    let service = layer.layer(service_fn(kit::fine));
    let ask = |path| ask(&service, with(path, "x-user", "alice"));
    assert_eq!(ask("/login").status(), 200);
    let denied = ask("/login");
    assert_eq!(text(denied.headers(), "ratelimit-policy"), "\"login\";q=1;w=60");
    assert_eq!(ask("/login").status(), 429);
    // Neither denial took anything from the other policy.
    assert_eq!([ask("/a").status(), ask("/a").status()], [200, 200]);
    assert_eq!(ask("/a").status(), 429);
}

#[test]
fn limits_can_be_chosen_by_request() {
    let layer =
        RateLimitLayer::new(per_minute(1)).by(Header::from_static("x-user")).limits(|head| {
            let gold = head.headers.get("x-plan").is_some_and(|plan| plan == "gold");
            gold.then(|| ("gold".parse().unwrap(), Limit::per_minute(2)))
        });
    let service = layer.layer(service_fn(kit::fine));
    let gold = || {
        let mut request = with("/", "x-user", "alice");
        request.headers_mut().insert("x-plan", "gold".parse().unwrap());
        ask(&service, request).status().as_u16()
    };
    assert_eq!([gold(), gold(), gold()], [200, 200, 429]);
    let plain = || ask(&service, with("/", "x-user", "alice")).status().as_u16();
    assert_eq!([plain(), plain()], [200, 429]);
}

#[test]
fn policies_can_be_provided_and_change() {
    let current = Arc::new(RwLock::new(per_minute(1)));
    let reader = current.clone();
    let limiter = Provided(move || reader.read().unwrap().clone());
    let service = RateLimitLayer::new(limiter).layer(service_fn(kit::fine));
    assert_eq!(statuses(&service, "/", 2), [200, 429]);
    let raised = current.read().unwrap().with_limit(Limit::per_minute(3));
    *current.write().unwrap() = raised;
    assert_eq!(statuses(&service, "/", 3), [200, 200, 429]);
}

/// Admits every second request, and needs nothing of Pacegate but its words.
#[derive(Clone, Default)]
struct EverySecond(Arc<AtomicUsize>);

impl Decide for EverySecond {
    type Deciding = Ready<Result<Decision, CheckError>>;

    fn decide(&self, _: &Question) -> Reply<Result<Decision, CheckError>, Self::Deciding> {
        let (name, limit) = ("second".parse().unwrap(), Limit::per_minute(30));
        let admitted = self.0.fetch_add(1, Relaxed).is_multiple_of(2);
        Reply::Later(ready(Ok(match admitted {
            true => Decision::admission(name, limit, 0, Duration::from_secs(1)),
            false => Decision::denial(name, limit, 0, Some(Duration::from_secs(2))),
        })))
    }
}

#[test]
fn a_limiter_of_ones_own_decides() {
    let service = RateLimitLayer::new(EverySecond::default()).layer(service_fn(kit::fine));
    assert_eq!(statuses(&service, "/", 3), [200, 429, 200]);
    assert_eq!(text(ask(&service, get("/")).headers(), "retry-after"), "2");
}

#[test]
fn a_refusal_of_ones_own() {
    let layer = RateLimitLayer::new(per_minute(1)).deny_with(|refusal, head| {
        let Refusal::Denied(decision) = refusal else { panic!("{refusal:?}") };
        let text = format!("{} {}", head.uri.path(), decision.policy().unwrap());
        Response::builder().status(503).body(Bytes::from(text)).unwrap()
    });
    let service = layer.layer(service_fn(kit::fine));
    assert_eq!(statuses(&service, "/a", 1), [200]);
    let denied = ask(&service, get("/a"));
    assert_eq!(denied.status(), 503);
    assert!(!text(denied.headers(), "retry-after").is_empty());
    assert_eq!(body(denied), "/a default");
}

#[test]
fn a_cost_that_never_fits_is_the_callers_mistake() {
    let layer = RateLimitLayer::new(per_minute(5)).cost(|_| 6);
    let refused = ask(&layer.layer(service_fn(kit::fine)), get("/"));
    assert_eq!(refused.status(), 400);
    assert_eq!(refused.headers().get("retry-after"), None);
    assert!(body(refused).contains("urn:pacegate:problem:cost"));
}

#[test]
fn the_headers_of_a_layer_further_in_stay() {
    let inner = RateLimitLayer::new(per_minute(1)).layer(service_fn(kit::fine));
    let outer = RateLimitLayer::new(per_minute(100)).headers(Headers::default()).layer(inner);
    assert_eq!(text(ask(&outer, get("/")).headers(), "x-ratelimit-limit"), "1");
    let denied = ask(&outer, get("/"));
    assert_eq!((denied.status().as_u16(), text(denied.headers(), "x-ratelimit-limit")), (429, "1"));
}

#[test]
fn headers_that_are_there_stay_line_by_line() {
    // What the service says, and what its responses say in the end, by these settings.
    let own: [&[(&str, &str)]; 4] = [
        &[
            ("ratelimit", "\"a\";r=1"),
            ("ratelimit", "\"b\";r=2"),
            ("ratelimit-policy", "\"a\";q=1"),
        ],
        &[("x-ratelimit-limit", "7"), ("x-ratelimit-limit", "8"), ("x-ratelimit-reset", "9")],
        &[
            ("ratelimit-policy", "\"a\";q=1"),
            ("ratelimit-policy", "\"b\";q=2"),
            ("x-ratelimit-limit", "7"),
        ],
        &[("x-ratelimit-limit", "7"), ("ratelimit", "\"a\";r=1")],
    ];
    for lines in own {
        let handler = move |_: Asking| {
            let answer = lines
                .iter()
                .fold(Response::builder(), |answer, (name, value)| answer.header(*name, *value));
            ready(Ok::<_, Infallible>(answer.body(Full::<Bytes>::default()).unwrap()))
        };
        let answer = ask(&RateLimitLayer::new(per_minute(5)).layer(service_fn(handler)), get("/"));
        let pairs =
            answer.headers().iter().map(|(name, value)| (name.as_str(), value.to_str().unwrap()));
        let mut told: Vec<_> = pairs.collect();
        let mut lines = lines.to_vec();
        told.sort_unstable();
        lines.sort_unstable();
        assert_eq!(told, lines);
    }
    let alone = |_: Asking| {
        let answer = Response::builder().header("ratelimit-policy", "\"a\";q=1");
        let answer = answer.header("ratelimit-policy", "\"b\";q=2");
        ready(Ok::<_, Infallible>(answer.body(Full::<Bytes>::default()).unwrap()))
    };
    let answer = ask(&RateLimitLayer::new(per_minute(5)).layer(service_fn(alone)), get("/"));
    let policies: Vec<_> = answer.headers().get_all("ratelimit-policy").iter().collect();
    assert_eq!(
        policies,
        ["\"default\";q=5;w=60"],
        "a policy header without a decision is replaced"
    );
    assert_eq!(text(answer.headers(), "x-ratelimit-limit"), "5");
}

#[test]
fn a_key_of_two_parts_is_one_in_a_domain_too() {
    fn check<L: Decide>(limiter: L) {
        let layer =
            RateLimitLayer::new(limiter).by(Header::from_static("x-user").or_share().and(Path));
        let layer = layer.domain("shop").settle_with(|answer| match answer.headers.get("x-free") {
            Some(_) => Adjustment::Refund,
            None => Adjustment::Keep,
        });
        let free = |request: Asking| {
            let mut answer = Response::new(Full::default());
            if request.headers().contains_key("x-free") {
                answer.headers_mut().insert("x-free", "yes".parse().unwrap());
            }
            ready(Ok::<_, Infallible>(answer))
        };
        let service = layer.layer(service_fn(free));
        let status = |mut request: Asking, free: bool| {
            if free {
                request.headers_mut().insert("x-free", "yes".parse().unwrap());
            }
            ask(&service, request).status().as_u16()
        };
        let of = |user: &str, path| with(path, "x-user", user);
        assert_eq!([status(of("alice", "/a"), true), status(of("alice", "/a"), false)], [200; 2]);
        assert_eq!([status(of("alice", "/b"), false), status(of("bob", "/a"), false)], [200; 2]);
        assert_eq!([status(of("alice", "/a"), false), status(of("bob", "/a"), false)], [429; 2]);
        assert_eq!([status(get("/a"), false), status(get("/b"), false)], [200; 2]);
        assert_eq!(status(get("/a"), false), 429);
    }
    let policies = || {
        let limits = ["1/day"];
        let policy = Policy::new("shop", limits).per(["key"]);
        PolicySet::new([policy.in_domain("shop")]).unwrap()
    };
    check(Limiter::builder().policies(policies()).build().unwrap());
    check(SharedLimiter::new(MemoryStore::default(), policies()));
}

/// As a custom limiter sees it.
#[test]
fn the_key_of_a_question_is_an_attribute_as_a_whole() {
    let two = || Header::from_static("x-user").and(Path);
    let attributes = |layer: RateLimitLayer<Limiter>| {
        let head = with("/a", "x-user", "alice").into_parts().0;
        let pacegate_http::Asked::Ask(question) = layer.ask(&head) else { panic!("it is asked") };
        assert_eq!(question.key().len(), 2, "and the key has its parts");
        let pairs = question.attributes().map(|(name, value)| (name.to_owned(), value.to_vec()));
        pairs.collect::<Vec<_>>()
    };
    let joined = b"\x01\x05\0\0\0alice\x02\0\0\0/a".to_vec();
    let layer = RateLimitLayer::new(per_minute(1)).by(two());
    assert_eq!(attributes(layer.clone()), [("key".to_owned(), joined.clone())]);
    assert_eq!(attributes(layer.domain("shop")), [("key".to_owned(), joined)]);
}

#[test]
fn errors_of_the_service_are_its_own() {
    let failing = |_: Request<Full<Bytes>>| ready(Err::<Answer, &str>("broken"));
    let service = RateLimitLayer::new(per_minute(1)).layer(service_fn(failing));
    let result = pollster::block_on(service.clone().oneshot(get("/")));
    assert_eq!(result.unwrap_err(), "broken");
    assert_eq!(pollster::block_on(service.oneshot(get("/"))).unwrap().status(), 429);
}

#[test]
fn bodies_of_other_kinds_are_made_by_a_closure() {
    #[derive(Debug, PartialEq)]
    struct Odd(usize);
    let odd = |_: Asking| ready(Ok::<_, Infallible>(Response::new(Odd(0))));
    let layer = RateLimitLayer::new(per_minute(1)).with_body(|bytes| Odd(bytes.len()));
    let service = layer.layer(service_fn(odd));
    let mut answers =
        (0..2).map(|_| pollster::block_on(service.clone().oneshot(get("/"))).unwrap());
    assert_eq!(*answers.next().unwrap().body(), Odd(0));
    assert!(answers.next().unwrap().body().0 > 100);
}
