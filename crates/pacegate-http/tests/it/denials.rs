//! Custom responses to denied requests, and closures as keys.

use axum::{
    Json, Router,
    body::{Body, to_bytes},
    response::IntoResponse,
    routing::get,
};
use http::{Request, StatusCode, header::CONTENT_LANGUAGE};
use pacegate::{Limit, Limiter, PolicySet, policy::Policy};
use pacegate_http::{RateLimitLayer, Refusal};
use tower::{Layer, service_fn, util::ServiceExt};

use crate::kit::{self, statuses, with};

fn limiter() -> Limiter {
    Limiter::memory(Limit::per_minute(1))
}

/// Returns status, retry time, content language and body of the second response of an app.
fn second(app: Router) -> (u16, bool, Option<String>, String) {
    let request = || Request::get("/a").body(Body::empty()).unwrap();
    let ask = || pollster::block_on(app.clone().oneshot(request())).unwrap();
    assert_eq!(ask().status(), 200);
    let denied = ask();
    let (head, body) = denied.into_parts();
    let language = head.headers.get(CONTENT_LANGUAGE);
    let language = language.map(|value| value.to_str().unwrap().to_owned());
    let body = pollster::block_on(to_bytes(body, 1_000)).unwrap();
    let retry = head.headers.contains_key("retry-after");
    (head.status.as_u16(), retry, language, String::from_utf8(body.to_vec()).unwrap())
}

fn app() -> Router {
    Router::new().route("/{any}", get(|| async { "served" }))
}

#[test]
fn axum_responses_are_denials() {
    let status = |refusal: &Refusal| match refusal {
        Refusal::Denied(_) => StatusCode::SERVICE_UNAVAILABLE,
        _ => StatusCode::BAD_REQUEST,
    };
    let layer = RateLimitLayer::new(limiter()).deny_with(move |refusal, _| status(refusal));
    assert_eq!(second(app().layer(layer)), (503, true, None, String::new()));

    let layer = RateLimitLayer::new(limiter())
        .deny_with(move |refusal, head| (status(refusal), Json(head.uri.path().to_owned())));
    assert_eq!(second(app().layer(layer)), (503, true, None, "\"/a\"".to_owned()));

    let layer = RateLimitLayer::new(limiter())
        .deny_with(move |refusal, _| (status(refusal), [(CONTENT_LANGUAGE, "en")], "slow down"));
    let expected = (503, true, Some("en".to_owned()), "slow down".to_owned());
    assert_eq!(second(app().layer(layer)), expected);

    let layer =
        RateLimitLayer::new(limiter()).deny_with(|_, _| "unusual but possible".into_response());
    assert_eq!(second(app().layer(layer)), (200, true, None, "unusual but possible".to_owned()));
}

#[test]
fn the_arguments_of_key_closures_are_inferred() {
    let layer = RateLimitLayer::new(limiter()).key(|head| Some(head.uri.path().len() as u64));
    let service = layer.layer(service_fn(kit::fine));
    assert_eq!(statuses(&service, "/a", 2), [200, 429]);
    assert_eq!(statuses(&service, "/b", 1), [429]);
    assert_eq!(statuses(&service, "/long", 2), [200, 429]);
}

#[test]
fn the_arguments_of_attribute_closures_are_inferred() {
    let policies = PolicySet::new([Policy::new("plan", ["1/minute"]).per(["plan"])]).unwrap();
    let limiter = Limiter::builder().policies(policies).build().unwrap();
    let layer = RateLimitLayer::new(limiter)
        .attribute_with("plan", |head| Some(head.headers.get("x-plan")?.as_bytes().to_vec()));
    let service = layer.layer(service_fn(kit::fine));
    let status = |plan| kit::ask(&service, with("/", "x-plan", plan)).status().as_u16();
    assert_eq!(["free", "free", "paid"].map(status), [200, 429, 200]);
}
