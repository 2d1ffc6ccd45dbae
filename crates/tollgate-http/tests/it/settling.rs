//! Charges that are corrected when the response is known.

use std::{convert::Infallible, future::ready};

use http::{Response, StatusCode};
use http_body_util::Full;
use tollgate::{Limit, Limiter, MemoryStore, PolicySet, SharedLimiter, policy::Policy};
use tollgate_http::{Adjustment, Decide, RateLimitLayer, resolve::Header};
use tower::{Layer, Service, service_fn};

use crate::kit::{Answer, Asking, ask, get, statuses, with};

/// Answers with the status in the path, and 7 as what it cost.
fn echo(request: Asking) -> std::future::Ready<Result<Answer, Infallible>> {
    let status = request.uri().path()[1..].parse::<u16>().unwrap();
    let answer = Response::builder().status(status).header("x-cost", "7").body(Full::default());
    ready(Ok(answer.unwrap()))
}

fn service<L: Decide>(
    limiter: L,
    settle: impl Fn(&http::response::Parts) -> Adjustment + Send + Sync + 'static,
) -> impl Service<Asking, Response = Answer, Error = Infallible> + Clone {
    RateLimitLayer::new(limiter).settle_with(settle).layer(service_fn(echo))
}

fn shared(limit: Limit) -> SharedLimiter {
    SharedLimiter::new(MemoryStore::default(), PolicySet::of_limits([limit]).unwrap())
}

/// Only what failed counts, as for logins.
fn refund_success(answer: &http::response::Parts) -> Adjustment {
    if answer.status.is_success() { Adjustment::Refund } else { Adjustment::Keep }
}

#[test]
fn a_refund_gives_the_charge_back() {
    let limit = Limit::per_minute(2);
    let memory = service(Limiter::memory(limit), refund_success);
    let store = service(shared(limit), refund_success);
    assert_eq!(statuses(&memory, "/200", 5), [200; 5]);
    assert_eq!(statuses(&memory, "/401", 3), [401, 401, 429]);
    assert_eq!(statuses(&store, "/200", 5), [200; 5]);
    assert_eq!(statuses(&store, "/401", 3), [401, 401, 429]);
}

#[test]
fn a_part_can_be_given_back() {
    let limiter = Limiter::memory(Limit::per_minute(10));
    let layer = RateLimitLayer::new(limiter.clone()).cost(|_| 5);
    let service = layer.settle_with(|_| Adjustment::RefundUnits(3)).layer(service_fn(echo));
    assert_eq!(statuses(&service, "/200", 1), [200]);
    assert_eq!(limiter.peek(()).remaining(), 8);
    let greedy = RateLimitLayer::new(limiter.clone());
    let greedy = greedy.settle_with(|_| Adjustment::RefundUnits(99)).layer(service_fn(echo));
    assert_eq!(statuses(&greedy, "/200", 1), [200]);
    assert_eq!(limiter.peek(()).remaining(), 8);
}

#[test]
fn more_can_be_charged_as_far_as_there_is_more() {
    let by_header = |answer: &http::response::Parts| {
        let cost = answer.headers.get("x-cost").and_then(|cost| cost.to_str().ok()?.parse().ok());
        cost.map_or(Adjustment::Keep, Adjustment::Charge)
    };
    let limiter = Limiter::memory(Limit::per_minute(10));
    let own = service(limiter.clone(), by_header);
    assert_eq!(statuses(&own, "/200", 1), [200]);
    assert_eq!(limiter.peek(()).remaining(), 2);
    // One for the request, and the one that is left of the seven.
    assert_eq!(statuses(&own, "/200", 2), [200, 429]);
    let store = service(shared(Limit::per_minute(10)), by_header);
    assert_eq!(statuses(&store, "/200", 3), [200, 200, 429]);
    let small = service(Limiter::memory(Limit::per_minute(3)), |_| Adjustment::Charge(100));
    assert_eq!(statuses(&small, "/200", 2), [200, 429]);
}

#[test]
fn what_costs_nothing_before_is_charged_after() {
    let layer = RateLimitLayer::new(Limiter::memory(Limit::per_minute(1))).cost(|_| 0);
    let charged = layer.settle_with(|answer| match answer.status {
        StatusCode::UNAUTHORIZED => Adjustment::Charge(1),
        _ => Adjustment::Keep,
    });
    let service = charged.layer(service_fn(echo));
    assert_eq!(statuses(&service, "/200", 3), [200; 3]);
    assert_eq!(statuses(&service, "/401", 2), [401, 429]);
}

#[test]
fn refunds_reach_every_policy_of_a_request() {
    let policy = |name: &str, per: &[&str]| {
        let limits = ["2/minute".parse().unwrap()];
        Policy::new(name.parse().unwrap(), limits).per(per.iter().copied())
    };
    let policies = || PolicySet::new([policy("all", &[]), policy("each", &["user"])]).unwrap();
    fn check<L: Decide>(limiter: L) {
        let layer = RateLimitLayer::new(limiter);
        let layer = layer.attribute("user", Header::from_static("x-user"));
        let service = layer.settle_with(refund_success).layer(service_fn(echo));
        let status = |path| ask(&service, with(path, "x-user", "alice")).status().as_u16();
        assert_eq!([status("/200"), status("/200"), status("/200")], [200; 3]);
        assert_eq!([status("/401"), status("/401"), status("/401")], [401, 401, 429]);
        assert_eq!(ask(&service, get("/200")).status(), 429);
    }
    check(Limiter::builder().policies(policies()).build().unwrap());
    check(SharedLimiter::new(MemoryStore::default(), policies()));
}
