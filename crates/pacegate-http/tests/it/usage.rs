//! Charges that are corrected by the body of the response.

use std::{convert::Infallible, io};

use axum::{Router, body::Body, response::Response};
use bytes::Bytes;
use futures_util::{FutureExt, Stream, StreamExt, stream};
use http::{Request, StatusCode, header};
use http_body_util::BodyExt;
use pacegate::{Limit, Limiter, MemoryStore, PolicySet, SharedLimiter};
use pacegate_http::{Adjustment, Decide, MeteredLayer, RateLimitLayer, Usage};
use pollster::block_on;
use tower::util::ServiceExt;

const JSON: &str = r#"{"text": "hello", "usage": {"total_tokens": 300}}"#;
const EVENTS: [&str; 3] = [
    "data: {\"text\": \"hel\", \"usage\": null}\n\ndata: {\"te",
    "xt\": \"lo\", \"usage\": null}\n\ndata: {\"usage\": {\"total_to",
    "kens\": 300}}\n\ndata: [DONE]\n\n",
];

fn limiter() -> Limiter {
    Limiter::memory("10000/365d".parse::<Limit>().unwrap())
}

/// A layer that charges 4,000 units first.
fn estimating<L: Decide>(limiter: L) -> RateLimitLayer<L> {
    RateLimitLayer::new(limiter).cost(|_| 4_000)
}

fn metered<L: Decide>(limiter: L) -> MeteredLayer<L> {
    estimating(limiter).settle_by(Usage::json("/usage/total_tokens"))
}

fn answer(kind: &str, body: impl Into<Body>) -> Response {
    Response::builder().header(header::CONTENT_TYPE, kind).body(body.into()).unwrap()
}

fn json(body: impl Into<Body>) -> Response {
    answer("application/json", body)
}

fn plain() -> Response {
    json(JSON)
}

fn parts() -> impl Stream<Item = Result<Bytes, Infallible>> {
    stream::iter(EVENTS.map(|part| Ok(Bytes::from_static(part.as_bytes()))))
}

fn events() -> Response {
    answer("text/event-stream", Body::from_stream(parts()))
}

fn app<L: Decide>(layer: MeteredLayer<L>, answer: fn() -> Response) -> Router {
    Router::new().fallback(async move || answer()).layer(layer)
}

fn ask(app: &Router) -> Response {
    block_on(app.clone().oneshot(Request::new(Body::empty()))).unwrap()
}

fn read(response: Response) -> String {
    let bytes = block_on(response.into_body().collect()).unwrap().to_bytes();
    String::from_utf8(bytes.into()).unwrap()
}

#[test]
fn the_body_reports_the_units() {
    for (answer, body) in [(plain as fn() -> Response, JSON.to_owned()), (events, EVENTS.concat())]
    {
        let limiter = limiter();
        assert_eq!(read(ask(&app(metered(limiter.clone()), answer))), body);
        assert_eq!(limiter.peek(()).remaining(), 9_700);
    }
}

#[test]
fn a_charge_in_a_store_is_corrected_before_the_body_ends() {
    for answer in [plain as fn() -> Response, events] {
        let limits = ["10000/365d".parse::<Limit>().unwrap()];
        let policies = PolicySet::of_limits(limits).unwrap();
        let limiter = SharedLimiter::new(MemoryStore::default(), policies);
        read(ask(&app(metered(limiter.clone()), answer)));
        assert_eq!(block_on(limiter.peek(())).unwrap().remaining(), 9_700);
    }
}

#[test]
fn units_beyond_the_estimate_are_debt() {
    let limiter = limiter();
    let app = app(metered(limiter.clone()), || json(r#"{"usage": {"total_tokens": 15000}}"#));
    assert_eq!(ask(&app).status(), StatusCode::OK);
    assert_eq!(limiter.peek(()).remaining(), 6_000, "until the body is read");
    read(ask(&app));
    assert_eq!(limiter.peek(()).remaining(), 0);
    assert_eq!(ask(&app).status(), StatusCode::TOO_MANY_REQUESTS);
}

/// The first events arrive although the stream does not end.
#[test]
fn a_stream_is_not_held_back() {
    let endless = || {
        let parts = parts().chain(stream::pending());
        answer("text/event-stream", Body::from_stream(parts))
    };
    let limiter = limiter();
    let mut body = ask(&app(metered(limiter.clone()), endless)).into_body();
    for part in EVENTS {
        let frame = body.frame().now_or_never().unwrap().unwrap().unwrap();
        assert_eq!(frame.into_data().unwrap(), part);
    }
    assert!(body.frame().now_or_never().is_none());
    drop(body);
    assert_eq!(limiter.peek(()).remaining(), 6_000, "an unfinished stream keeps its charge");
}

/// A server stops reading once it has as many bytes as the response has announced.
#[test]
fn a_body_of_known_length_is_settled_with_its_last_byte() {
    let limiter = limiter();
    let mut body = ask(&app(metered(limiter.clone()), plain)).into_body();
    assert_eq!(block_on(body.frame()).unwrap().unwrap().into_data().unwrap(), JSON);
    assert_eq!(limiter.peek(()).remaining(), 9_700);
}

#[test]
fn responses_without_a_usage_keep_the_charge() {
    let compressed = || {
        let mut response = json(JSON);
        response.headers_mut().insert(header::CONTENT_ENCODING, "gzip".parse().unwrap());
        response
    };
    let failing = || {
        let parts = [Ok(Bytes::from_static(JSON.as_bytes())), Err(io::Error::other("lost"))];
        json(Body::from_stream(stream::iter(parts)))
    };
    let answers: [fn() -> Response; 5] =
        [|| json("{}"), || json("{"), || answer("text/plain", JSON), compressed, failing];
    for answer in answers {
        let limiter = limiter();
        let _ = block_on(ask(&app(metered(limiter.clone()), answer)).into_body().collect());
        assert_eq!(limiter.peek(()).remaining(), 6_000);
    }
}

#[test]
fn the_head_can_decide_before_the_body() {
    let limiter = limiter();
    let layer = estimating(limiter.clone()).settle_with(|head| match head.status {
        StatusCode::OK => Adjustment::from_header(&head.headers, "x-tokens"),
        _ => Adjustment::Refund,
    });
    let layer = layer.settle_by(Usage::json("/usage/total_tokens"));
    let failed =
        app(layer.clone(), || Response::builder().status(503).body(Body::from(JSON)).unwrap());
    assert_eq!(ask(&failed).status(), 503);
    assert_eq!(limiter.peek(()).remaining(), 10_000);
    let by_header = app(layer.clone(), || {
        let mut response = json(JSON);
        response.headers_mut().insert("x-tokens", "20".parse().unwrap());
        response
    });
    read(ask(&by_header));
    assert_eq!(limiter.peek(()).remaining(), 9_980);
    read(ask(&app(layer, plain)));
    assert_eq!(limiter.peek(()).remaining(), 9_680);
}

#[test]
fn denials_are_not_metered() {
    let limiter = limiter();
    limiter.check_cost((), 9_000).unwrap();
    let response = ask(&app(metered(limiter.clone()), plain));
    assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
    assert!(read(response).contains("\"status\":429"));
    assert_eq!(limiter.peek(()).remaining(), 1_000);
}
