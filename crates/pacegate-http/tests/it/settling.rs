//! Charges that are corrected when the response is known.

use std::{
    convert::Infallible,
    future::{Future, ready},
    sync::Arc,
    task::{Context, Waker},
    time::Duration,
};

use http::{Response, StatusCode};
use http_body_util::Full;
use pacegate::{
    Charge, Clock, Counter, Limit, Limiter, ManualClock, MemoryStore, PolicySet, SharedLimiter,
    Store, Update,
    policy::{FailureMode, Policy},
};
use pacegate_http::{
    Adjustment, Decide, RateLimitLayer, ResolveExt,
    resolve::{Header, Method, Path},
};
use pollster::block_on;
use tower::{Layer, Service, service_fn, util::ServiceExt};

use crate::kit::{self, Answer, Asking, Remote, ask, get, statuses, with};

/// Answers with the status in the path, and a cost of 7.
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

/// As `settle_with` says.
#[test]
fn headers_tell_of_the_time_before() {
    let service = service(Limiter::memory(Limit::per_minute(9)), |_| Adjustment::Charge(3));
    let left = || ask(&service, get("/200")).headers()["x-ratelimit-remaining"].clone();
    assert_eq!([left(), left()], ["8", "4"]);
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

/// Additional units beyond the limit are debt, so that a later window pays them.
#[test]
fn additional_units_are_debt() {
    let clock = kit::clock();
    let limiter = Limiter::builder().limit("10/minute").clock(clock.clone()).build().unwrap();
    let service = service(limiter.clone(), |_| Adjustment::Charge(14));
    assert_eq!(statuses(&service, "/200", 2), [200, 429]);
    clock.advance(Duration::from_secs(60));
    assert_eq!(limiter.peek(()).remaining(), 5);
}

/// A store that fails at the correction keeps the charge, and the failure is counted.
#[test]
fn a_store_that_fails_at_the_correction_keeps_the_charge() {
    let store = Remote::default();
    let limits = PolicySet::of_limits(["3/hour".parse().unwrap()]).unwrap();
    let limiter = SharedLimiter::new(store.clone(), limits);
    let layer = RateLimitLayer::new(limiter.clone()).settle_with(refund_success);
    let handler = {
        let store = store.clone();
        move |request| {
            store.set_away(true);
            echo(request)
        }
    };
    let service = layer.layer(service_fn(handler));
    assert_eq!(statuses(&service, "/200", 1), [200], "the response is sent");
    assert_eq!(limiter.stats().store_failures, 1);
    store.set_away(false);
    assert_eq!(block_on(limiter.peek(())).unwrap().remaining(), 2);
}

/// A response closes its reservation, also if the charge stays.
#[test]
fn no_reservation_stays_open() {
    let store = Arc::new(MemoryStore::default());
    let limits = PolicySet::of_limits([Limit::per_hour(9)]).unwrap();
    let shared = service(SharedLimiter::new(Arc::clone(&store), limits.clone()), refund_success);
    assert_eq!(statuses(&shared, "/401", 1), [401]);
    assert_eq!(statuses(&shared, "/200", 1), [200]);
    assert_eq!(store.usage().reservations, 0);
}

/// In memory, a client that disconnects closes its reservation and keeps its charge. The next one finds room.
#[test]
fn disconnected_clients_leave_room_for_reservations() {
    let limiter = Limiter::builder().limit("9/hour").max_keys(1).build().unwrap();
    let layer = RateLimitLayer::new(limiter.clone()).settle_with(refund_success);
    let stuck = service_fn(|_: Asking| std::future::pending::<Result<Answer, Infallible>>());
    let stuck = layer.clone().layer(stuck);
    let begin = || {
        let mut call = Box::pin(stuck.clone().oneshot(get("/")));
        let mut cx = Context::from_waker(Waker::noop());
        assert!(call.as_mut().poll(&mut cx).is_pending());
        call
    };
    drop((begin(), begin()));
    assert_eq!(limiter.peek(()).remaining(), 7);
    let service = layer.layer(service_fn(echo));
    assert_eq!(statuses(&service, "/200", 1), [200]);
    assert_eq!(limiter.peek(()).remaining(), 7, "refunded");
    let _open = begin();
    assert_eq!(statuses(&service, "/200", 1), [200], "without room, the request is still decided");
    assert_eq!(limiter.peek(()).remaining(), 5, "but not corrected");
}

#[test]
fn requests_without_a_cost_are_charged_afterwards() {
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
        let limits = ["2/minute"];
        Policy::new(name, limits).per(per.iter().copied())
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

/// A request that is admitted while the store is down charges nothing there, so nothing may be refunded.
#[test]
fn degraded_decisions_are_not_refunded() {
    let three = || "3/hour".parse::<Limit>().unwrap();
    let policy = Policy::new("api", [three()]).failing(FailureMode::Open);
    let remote = Remote::default();
    let limiter = SharedLimiter::new(remote.clone(), PolicySet::new([policy]).unwrap());
    let chosen = RateLimitLayer::new(limiter.clone())
        .limits(move |_| [("chosen".parse().unwrap(), three())]);
    let named = RateLimitLayer::new(limiter.clone()).attribute("path", Path);
    for layer in [RateLimitLayer::new(limiter), chosen, named] {
        let store = remote.clone();
        // The store is back by the time that there is a response.
        let handler = move |request| {
            store.set_away(false);
            echo(request)
        };
        let service = layer.settle_with(refund_success).layer(service_fn(handler));
        block_on(reset(&remote, three()));
        assert_eq!(statuses(&service, "/401", 4), [401, 401, 401, 429]);
        for _ in 0..3 {
            remote.set_away(true);
            assert_eq!(statuses(&service, "/200", 1), [200]);
        }
        assert_eq!(statuses(&service, "/401", 1), [429]);
    }
}

/// Resets the counter of the policy for all clients.
async fn reset(store: &Remote, limit: Limit) {
    let key = pacegate::KeyBuf::empty();
    let charge = Charge::new("api".parse().unwrap(), key.as_ref(), limit).counter(Counter::Policy);
    store.update(&charge, Update::Reset).await.unwrap();
}

/// A policy in shadow mode that would have denied was not charged. What others took is given back.
#[test]
fn shadow_denials_are_not_refunded() {
    let policies = || {
        let policy = |name: &str, limit: &str| Policy::new(name, [limit]).per(["key"]);
        PolicySet::new([policy("real", "9/day"), policy("trial", "1/day").shadow()]).unwrap()
    };
    fn check<L: Decide>(
        limiter: L,
        by: fn(RateLimitLayer<L>) -> RateLimitLayer<L>,
        peek: impl Fn() -> pacegate::Decision,
    ) {
        let layer = by(RateLimitLayer::new(limiter)).settle_with(refund_success);
        let service = layer.layer(service_fn(echo));
        let status = |path| ask(&service, with(path, "x-user", "alice")).status().as_u16();
        assert_eq!([status("/401"), status("/200")], [401, 200]);
        assert!(peek().is_shadow_denied(), "its only unit is used");
        assert_eq!(peek().remaining(), 8);
    }
    fn user() -> Header {
        Header::from_static("x-user")
    }
    let pair = ("alice", "GET");
    let all = Limiter::builder().policies(policies()).build().unwrap();
    check(all.clone(), |layer| layer, || all.peek(()));
    check(all.clone(), |layer| layer.by(user()), || all.peek("alice"));
    check(all.clone(), |layer| layer.by(user().and(Method)), || all.peek(pair));
    let shared = SharedLimiter::new(MemoryStore::default(), policies());
    let by_pair = |layer: RateLimitLayer<_>| layer.by(user().and(Method));
    check(shared.clone(), |layer| layer, || block_on(shared.peek(())).unwrap());
    check(shared.clone(), |layer| layer.by(user()), || block_on(shared.peek("alice")).unwrap());
    check(shared.clone(), by_pair, || block_on(shared.peek(pair)).unwrap());
}

/// Answers 200 to `/fine`, and advances the clock by a second for `/slow`.
fn slow(
    clock: ManualClock,
) -> impl Service<Asking, Response = Answer, Error = Infallible, Future: Send> + Clone {
    service_fn(move |request: Asking| {
        let clock = clock.clone();
        async move {
            let status = if request.uri().path().starts_with("/fine") { 200 } else { 401 };
            if request.uri().path().ends_with("/slow") {
                clock.sleep_until(clock.now().after(Duration::from_secs(1))).await;
            }
            Ok(Response::builder().status(status).body(Full::default()).unwrap())
        }
    })
}

/// A charge of an ended window is not refunded: the refund would go to units that others have used since.
#[test]
fn charges_of_ended_windows_are_not_refunded() {
    type By<L> = fn(RateLimitLayer<L>, Limit) -> RateLimitLayer<L>;
    fn check<L: Decide>(limiter: impl Fn(&ManualClock) -> L, limit: &str, expected: [u16; 2]) {
        let chosen: Limit = limit.parse().unwrap();
        let by: [By<L>; 4] = [
            |layer, _| layer,
            |layer, _| layer.by(Method),
            |layer, _| layer.attribute("method", Method),
            |layer, limit| layer.limits(move |_| [("chosen".parse().unwrap(), limit)]),
        ];
        for (place, by) in by.into_iter().enumerate() {
            let clock = kit::clock();
            let layer = by(RateLimitLayer::new(limiter(&clock)), chosen);
            let layer = layer.settle_with(refund_success).clock(clock.clone());
            let service = layer.layer(slow(clock.clone()));
            let mut begun = Box::pin(service.clone().oneshot(get("/fine/slow")));
            let mut cx = Context::from_waker(Waker::noop());
            assert!(begun.as_mut().poll(&mut cx).is_pending());
            clock.advance(Duration::from_millis(999));
            // The window of the slow one is over.
            assert_eq!(statuses(&service, "/wrong", 1), [expected[0]], "{limit}, {place}");
            clock.advance(Duration::from_millis(1));
            assert!(begun.as_mut().poll(&mut cx).is_ready());
            assert_eq!(statuses(&service, "/wrong", 1), [expected[1]], "{limit}, {place}");
        }
    }
    for (limit, expected) in [
        ("1/second", [401, 429]),
        ("1/500ms sliding-log", [401, 429]),
        ("1/500ms burst 1", [401, 429]),
        ("1/300ms sliding-window", [401, 429]),
        ("1/minute", [429, 401]),
    ] {
        let policies = || PolicySet::of_limits([limit.parse().unwrap()]).unwrap();
        let memory = |clock: &ManualClock| {
            Limiter::builder().policies(policies()).clock(clock.clone()).build().unwrap()
        };
        let shared = |clock: &ManualClock| {
            SharedLimiter::new(MemoryStore::new(100, clock.clone()), policies())
        };
        check(memory, limit, expected);
        check(shared, limit, expected);
    }
}

#[test]
fn of_several_limits_those_that_still_count_are_given_back() {
    let clock = kit::clock();
    let policies = PolicySet::of_limits(["1/second".parse().unwrap(), "2/day".parse().unwrap()]);
    let limiter = Limiter::builder().policies(policies.unwrap()).clock(clock.clone());
    let layer = RateLimitLayer::new(limiter.build().unwrap()).settle_with(refund_success);
    let service = layer.clock(clock.clone()).layer(slow(clock.clone()));
    let mut begun = Box::pin(service.clone().oneshot(get("/fine/slow")));
    let mut cx = Context::from_waker(Waker::noop());
    assert!(begun.as_mut().poll(&mut cx).is_pending());
    clock.advance(Duration::from_secs(1));
    assert_eq!(statuses(&service, "/wrong", 1), [401]);
    assert!(begun.as_mut().poll(&mut cx).is_ready());
    assert_eq!(statuses(&service, "/wrong", 1), [429], "of the second");
    clock.advance(Duration::from_secs(1));
    assert_eq!(statuses(&service, "/wrong", 1), [401], "of the day one was given back");
    clock.advance(Duration::from_secs(1));
    assert_eq!(statuses(&service, "/wrong", 1), [429]);
}
