//! Estimates that responses correct, compared with the reference model.

use std::{
    convert::Infallible,
    future::Future,
    mem,
    pin::Pin,
    sync::{Arc, Mutex},
    time::Duration,
};

use axum::{Router, body::Body, response::Response};
use futures_util::FutureExt;
use http::{Request, StatusCode, header};
use http_body_util::BodyExt;
use pacegate::{
    Clock, Limit, Limiter, ManualClock, MemoryStore, Policy, PolicySet, SharedLimiter,
    policy::FailureMode,
};
use pacegate_http::{Adjustment, Decide, RateLimitLayer, Usage};
use pacegate_testkit::{Model, Random, ReservedUnits};
use pollster::block_on;
use tokio::sync::oneshot;
use tower::{service_fn, util::ServiceExt};

use crate::kit::{self, Remote};

const LIMITS: [&str; 4] =
    ["100/minute", "100/minute sliding-window", "100/minute sliding-log", "100/minute burst 100"];

/// A service whose responses the test sends.
#[derive(Clone, Default)]
struct Upstream {
    /// The calls that were made since the last look.
    calls: Arc<Mutex<Vec<oneshot::Sender<u64>>>>,
}

/// A call that waits for its response.
struct Call {
    response: Pin<Box<dyn Future<Output = Result<Response, Infallible>>>>,
    reply: oneshot::Sender<u64>,
    reserved: ReservedUnits,
    estimate: u64,
}

impl Upstream {
    fn router(&self) -> Router {
        let calls = Arc::clone(&self.calls);
        Router::new().fallback_service(service_fn(move |_: Request<Body>| {
            let (reply, units) = oneshot::channel();
            calls.lock().unwrap().push(reply);
            async move { Ok::<_, Infallible>(answer(units.await.unwrap())) }
        }))
    }

    fn take(&self) -> oneshot::Sender<u64> {
        let mut calls = mem::take(&mut *self.calls.lock().unwrap());
        assert_eq!(calls.len(), 1);
        calls.remove(0)
    }
}

fn answer(units: u64) -> Response {
    Response::builder()
        .header(header::CONTENT_TYPE, "text/event-stream")
        .header("x-tokens", units)
        .body(Body::from(format!("data: {{\"usage\": {{\"total\": {units}}}}}\n\n")))
        .unwrap()
}

/// A layer whose requests name their estimate.
fn estimating<L: Decide>(limiter: L) -> RateLimitLayer<L> {
    RateLimitLayer::new(limiter)
        .cost(|head| head.headers["x-estimate"].to_str().unwrap().parse().unwrap())
}

fn by_header<L: Decide>(limiter: L, upstream: &Upstream) -> Router {
    let settle = |head: &http::response::Parts| Adjustment::from_header(&head.headers, "x-tokens");
    upstream.router().layer(estimating(limiter).settle_with(settle))
}

fn by_body<L: Decide>(limiter: L, upstream: &Upstream) -> Router {
    upstream.router().layer(estimating(limiter).settle_by(Usage::json("/usage/total")))
}

/// An app, its limit, and the units that are left.
struct Subject<'a> {
    name: String,
    limit: Limit,
    app: Router,
    upstream: Upstream,
    clock: ManualClock,
    left: Box<dyn Fn() -> u64 + 'a>,
}

impl Subject<'_> {
    /// Makes a call. `None` if it is denied.
    fn call(&self, model: &mut Model, estimate: u64) -> Option<Call> {
        let request = Request::get("/").header("x-estimate", estimate).body(Body::empty()).unwrap();
        let mut response = Box::pin(self.app.clone().oneshot(request));
        let (_, reserved) = model.reserve(self.now(), estimate);
        let denied = response.as_mut().now_or_never().map(|it| it.unwrap().status());
        assert_eq!(denied.is_none(), reserved.is_some(), "{}: {denied:?}", self.name);
        if let Some(status) = denied {
            assert_eq!(status, StatusCode::TOO_MANY_REQUESTS);
        }
        let reserved = reserved?;
        Some(Call { response, reply: self.upstream.take(), reserved, estimate })
    }

    fn finish(&self, model: &mut Model, call: Call, used: u64) {
        call.reply.send(used).unwrap();
        let response = call.response.now_or_never().unwrap().unwrap();
        response.into_body().collect().now_or_never().unwrap().unwrap();
        model.settle(self.now(), &call.reserved, used, self.limit.capacity());
    }

    /// Plays a random history, and compares each answer with the model.
    fn play(&self, random: &mut Random) {
        let (mut model, mut open) = (Model::new(self.limit), Vec::<Call>::new());
        let period = self.limit.period().as_micros() as u64;
        for step in 0..40 {
            let which = random.below(open.len().max(1) as u64) as usize;
            match random.below(if open.is_empty() { 4 } else { 8 }) {
                0..2 => self.clock.advance(Duration::from_micros(random.below(period / 2))),
                2..4 => {
                    let estimate = random.between(1, self.limit.capacity());
                    open.extend(self.call(&mut model, estimate));
                }
                4..6 => {
                    let call = open.swap_remove(which);
                    let used = random.below(call.estimate + 1);
                    self.finish(&mut model, call, used);
                }
                6 => {
                    let call = open.swap_remove(which);
                    let used = call.estimate + random.below(50);
                    self.finish(&mut model, call, used);
                }
                // A client that disconnects keeps its charge.
                _ => drop(open.swap_remove(which)),
            }
            let expected = model.charge(self.now(), 0, 0).remaining;
            assert_eq!((self.left)(), expected, "{}, step {step}", self.name);
        }
    }

    fn now(&self) -> u64 {
        self.clock.now().as_micros()
    }
}

fn policies(limit: Limit) -> PolicySet {
    PolicySet::new([Policy::new("tokens", [limit]).failing(FailureMode::default())]).unwrap()
}

/// Plays histories with each algorithm, by the head and by the body of responses.
fn play<L: Decide>(create: impl Fn(PolicySet, &ManualClock) -> L, left: impl Fn(&L) -> u64) {
    for (number, text) in LIMITS.into_iter().enumerate() {
        for (by, layer) in [("header", by_header as fn(L, &Upstream) -> Router), ("body", by_body)]
        {
            let mut random = Random::new(number as u64);
            for history in 0..40 {
                let (limit, clock) = (text.parse::<Limit>().unwrap(), kit::clock());
                let (limiter, upstream) = (create(policies(limit), &clock), Upstream::default());
                let name = format!("{text} by {by}, history {history}");
                let app = layer(limiter.clone(), &upstream);
                let left = Box::new(|| left(&limiter));
                Subject { name, limit, app, upstream, clock, left }.play(&mut random);
            }
        }
    }
}

#[test]
fn memory_agrees_with_the_model() {
    let create = |policies, clock: &ManualClock| {
        Limiter::builder().policies(policies).clock(clock.clone()).build().unwrap()
    };
    play(create, |limiter| limiter.peek(()).remaining());
}

#[test]
fn a_store_agrees_with_the_model() {
    let create = |policies, clock: &ManualClock| {
        SharedLimiter::new(MemoryStore::new(100, clock.clone()), policies)
    };
    play(create, |limiter| block_on(limiter.peek(())).unwrap().remaining());
}

/// If the store is down, this process reserves and settles.
#[test]
fn local_mode_agrees_with_the_model() {
    let create = |policies, clock: &ManualClock| {
        let store = Remote::default();
        store.set_away(true);
        SharedLimiter::builder(store).policies(policies).clock(clock.clone()).build().unwrap()
    };
    play(create, |limiter| block_on(limiter.peek(())).unwrap().remaining());
}

/// Returned units are those of the call itself, not those of a later call, which would stop counting too early.
#[test]
fn a_call_without_tokens_leaves_the_charges_of_others() {
    let (clock, upstream) = (kit::clock(), Upstream::default());
    let limiter = Limiter::builder().limit("10000/minute sliding-log").clock(clock.clone());
    let limiter = limiter.build().unwrap();
    let app = by_header(limiter.clone(), &upstream);
    let call = || {
        let request = Request::get("/").header("x-estimate", 4_000).body(Body::empty()).unwrap();
        let mut response = Box::pin(app.clone().oneshot(request));
        assert!(response.as_mut().now_or_never().is_none());
        (response, upstream.take())
    };
    let (first, first_reply) = call();
    clock.advance(Duration::from_secs(50));
    let _second = call();
    clock.advance(Duration::from_secs(1));
    first_reply.send(0).unwrap();
    first.now_or_never().unwrap().unwrap();
    assert_eq!(limiter.peek(()).remaining(), 6_000);
    clock.advance(Duration::from_secs(10));
    assert_eq!(limiter.peek(()).remaining(), 6_000, "the second call still counts");
    clock.advance(Duration::from_secs(49));
    assert_eq!(limiter.peek(()).remaining(), 10_000);
}
