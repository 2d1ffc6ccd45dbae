//! Calls that wait, on a clock in our hands.

use std::{
    convert::Infallible,
    future::{Future, ready},
    pin::pin,
    sync::{Arc, Mutex},
    task::{Context, Poll, Waker},
    time::Duration,
};

use bytes::Bytes;
use futures_util::future::join_all;
use http::Response;
use http_body_util::{BodyExt, Full};
use pacegate::{
    Clock, CostError, Limiter, ManualClock, MemoryStore, SharedLimiter, Timestamp, WaitError,
};
use pacegate_http::{
    Adjustment, KeyParts, RateLimitLayer, ResolveExt, Usage,
    outgoing::{OutgoingError, StayWithinLayer, Wait, Waiting},
    resolve::{Everyone, Header},
};
use tower::{Layer, Service, service_fn};

use crate::kit::{self, Answer, Asking, get, with};

const SECOND: Duration = Duration::from_secs(1);

/// The upstream: returns configured responses and records the times of calls.
#[derive(Clone)]
struct Other {
    clock: ManualClock,
    calls: Arc<Mutex<Vec<Duration>>>,
    header: Option<(&'static str, &'static str)>,
}

impl Other {
    fn new(clock: &ManualClock, header: Option<(&'static str, &'static str)>) -> Self {
        Self { clock: clock.clone(), calls: Arc::default(), header }
    }

    fn service(
        &self,
    ) -> impl Service<Asking, Response = Answer, Error = Infallible, Future: Send> + Clone + use<>
    {
        let other = self.clone();
        let begun = other.clock.now();
        service_fn(move |_: Asking| {
            let since = Duration::from_micros(other.clock.now().micros_since(begun));
            other.calls.lock().unwrap().push(since);
            let mut answer = Response::builder().status(429);
            if let Some((name, value)) = other.header {
                answer = answer.header(name, value);
            }
            ready(Ok(answer.body(Full::default()).unwrap()))
        })
    }

    fn calls(&self) -> Vec<Duration> {
        self.calls.lock().unwrap().clone()
    }
}

fn limiter(limit: &str, clock: &ManualClock) -> Limiter {
    Limiter::builder().limit(limit).clock(clock.clone()).build().unwrap()
}

/// Polls to completion. Whenever no future makes progress, advances the clock to the next timer.
fn run<F: Future>(clock: &ManualClock, future: F) -> F::Output {
    let mut future = pin!(future);
    loop {
        match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(output) => return output,
            Poll::Pending => clock.set(clock.next_wake().expect("it waits for the clock")),
        }
    }
}

fn waits<L: Wait>(limiter: L, clock: &ManualClock) {
    let other = Other::new(clock, None);
    let layer = StayWithinLayer::new(limiter).within(SECOND).clock(clock.clone());
    let mut client = layer.layer(other.service());
    for _ in 0..3 {
        assert_eq!(run(clock, client.call(get("http://a.example/"))).unwrap().status(), 429);
    }
    assert_eq!(other.calls(), [Duration::ZERO, SECOND / 2, SECOND]);
    // Another host has a separate limit.
    run(clock, client.call(get("http://b.example/"))).unwrap();
    assert_eq!(other.calls()[3], SECOND);
}

#[test]
fn calls_wait_for_their_turn() {
    let clock = kit::clock();
    waits(limiter("2/second burst 1", &clock), &clock);
    let clock = kit::clock();
    let store = MemoryStore::new(100, clock.clone());
    let shared = SharedLimiter::builder(store).limit("2/second burst 1").clock(clock.clone());
    waits(shared.build().unwrap(), &clock);
}

#[test]
fn a_call_that_cannot_be_in_time_fails_at_once() {
    let clock = kit::clock();
    let other = Other::new(&clock, None);
    let layer = StayWithinLayer::new(limiter("1/minute burst 1", &clock)).within(SECOND);
    let mut client = layer.clock(clock.clone()).layer(other.service());
    run(&clock, client.call(get("http://a.example/"))).unwrap();
    let error = run(&clock, client.call(get("http://a.example/"))).unwrap_err();
    let needed = Some(Duration::from_secs(60));
    assert_eq!(error, OutgoingError::Wait(WaitError::TooLong { needed }));
    assert_eq!(other.calls().len(), 1);
}

#[test]
fn pauses_of_the_upstream_are_obeyed() {
    for (header, value, wait) in [
        ("retry-after", "3", 3),
        ("ratelimit", "\"api\";r=0;t=4", 4),
        ("ratelimit", "limit=9, remaining=0, reset=5", 5),
        ("ratelimit", "\"api\";r=1;t=4", 0),
        ("x-other", "3", 0),
    ] {
        let clock = kit::clock();
        let other = Other::new(&clock, Some((header, value)));
        let layer = StayWithinLayer::new(limiter("100/second", &clock)).clock(clock.clone());
        let mut client = layer.layer(other.service());
        run(&clock, client.call(get("http://a.example/"))).unwrap();
        run(&clock, client.call(get("http://b.example/"))).unwrap();
        run(&clock, client.call(get("http://a.example/"))).unwrap();
        let expected = [Duration::ZERO, Duration::ZERO, Duration::from_secs(wait)];
        assert_eq!(other.calls(), expected, "{header}: {value}");
    }
}

#[test]
fn a_pause_longer_than_the_wait_is_an_error() {
    let clock = kit::clock();
    let other = Other::new(&clock, Some(("retry-after", "60")));
    let layer = StayWithinLayer::new(limiter("100/second", &clock)).within(SECOND);
    let mut client = layer.clock(clock.clone()).layer(other.service());
    run(&clock, client.call(get("http://a.example/"))).unwrap();
    clock.advance(SECOND);
    let error = run(&clock, client.call(get("http://a.example/"))).unwrap_err();
    assert_eq!(error, OutgoingError::Paused(Duration::from_secs(59)));
    assert!(error.to_string().contains("59s"), "{error}");
}

#[test]
fn a_clock_that_is_set_back_does_not_extend_a_pause() {
    let clock = kit::clock();
    let other = Other::new(&clock, Some(("retry-after", "3")));
    let layer = StayWithinLayer::new(limiter("100/second", &clock)).within(5 * SECOND);
    let mut client = layer.clock(clock.clone()).layer(other.service());
    run(&clock, client.call(get("http://a.example/"))).unwrap();
    clock.advance(SECOND);
    clock.set(Timestamp::from_micros(clock.now().as_micros() - 3_600_000_000));
    let before = clock.elapsed();
    run(&clock, client.call(get("http://a.example/"))).unwrap();
    assert_eq!(clock.elapsed() - before, 2 * SECOND);
}

#[test]
fn after_a_pause_the_limit_holds_as_before() {
    let clock = kit::clock();
    let calls: Arc<Mutex<Vec<(usize, Duration)>>> = Arc::default();
    let service = service_fn({
        let (clock, calls) = (clock.clone(), Arc::clone(&calls));
        move |request: Asking| {
            let place = request.uri().path()[1..].parse().unwrap();
            calls.lock().unwrap().push((place, clock.elapsed()));
            let (clock, until) = (clock.clone(), clock.now().after(SECOND / 2));
            async move {
                clock.sleep_until(until).await;
                let answer = Response::builder().status(if place == 0 { 429 } else { 200 });
                let answer = if place == 0 { answer.header("retry-after", "3") } else { answer };
                Ok::<_, Infallible>(answer.body(Full::<Bytes>::default()).unwrap())
            }
        }
    });
    let layer = StayWithinLayer::new(limiter("1/second burst 1", &clock)).clock(clock.clone());
    let mut client = layer.layer(service);
    let begun = clock.elapsed();
    let futures: Vec<_> =
        (0..6).map(|place| client.call(get(&format!("http://a.example/{place}")))).collect();
    run(&clock, join_all(futures)).into_iter().for_each(|answer| drop(answer.unwrap()));
    let calls: Vec<_> = calls.lock().unwrap().iter().map(|&(n, at)| (n, at - begun)).collect();
    // The pause begins with the answer to the first, while the others wait in line.
    let millis = [0, 3_500, 4_500, 5_500, 6_500, 7_500].map(Duration::from_millis);
    assert_eq!(calls, millis.into_iter().enumerate().collect::<Vec<_>>());
}

#[test]
fn nothing_is_learned_if_so_chosen() {
    let clock = kit::clock();
    let other = Other::new(&clock, Some(("retry-after", "60")));
    let layer = StayWithinLayer::new(limiter("100/second", &clock)).ignore_responses();
    let mut client = layer.clock(clock.clone()).layer(other.service());
    for _ in 0..3 {
        run(&clock, client.call(get("http://a.example/"))).unwrap();
    }
    assert_eq!(other.calls(), [Duration::ZERO; 3]);
}

#[test]
fn keys_and_costs_are_choices() {
    let clock = kit::clock();
    let other = Other::new(&clock, None);
    let layer = StayWithinLayer::new(limiter("1/second burst 5", &clock))
        .by(Header::from_static("x-account").or_reject())
        .cost(|head| if head.method == http::Method::GET { 5 } else { 9 })
        .clock(clock.clone());
    let mut client = layer.layer(other.service());
    let mut call = |request| run(&clock, client.call(request));
    call(with("/", "x-account", "a")).unwrap();
    call(with("/", "x-account", "b")).unwrap();
    call(with("/", "x-account", "a")).unwrap();
    assert_eq!(other.calls(), [Duration::ZERO, Duration::ZERO, 5 * SECOND]);
    assert_eq!(call(get("/")).unwrap_err(), OutgoingError::Missing);
    let mut dear = with("/", "x-account", "c");
    *dear.method_mut() = http::Method::POST;
    let error = call(dear).unwrap_err();
    assert!(matches!(error, OutgoingError::Wait(WaitError::Cost(CostError { cost: 9, .. }))));
}

/// Returns the number of calls in a minute that the layer makes to a service with our headers: admitted and denied
/// ones.
fn obeying_our_own_headers(limit: &str) -> (u64, u64) {
    let clock = kit::clock();
    let service = RateLimitLayer::new(limiter(limit, &clock)).by(Everyone).clock(clock.clone());
    let layer = StayWithinLayer::new(limiter("1000000/second", &clock)).within(90 * SECOND);
    let mut client = layer.clock(clock.clone()).layer(service.layer(service_fn(kit::fine)));
    let end = clock.elapsed() + 60 * SECOND;
    let (mut admitted, mut denied) = (0, 0);
    loop {
        let answer = run(&clock, client.call(get("http://a.example/"))).unwrap();
        if clock.elapsed() >= end {
            return (admitted, denied);
        }
        match answer.status().as_u16() {
            200 => admitted += 1,
            429 => denied += 1,
            other => panic!("{other}"),
        }
    }
}

/// A minute begins 20 s after the clock does.
#[test]
fn clients_that_obey_our_headers_use_the_whole_limit() {
    for (limit, admitted, denied) in [
        // The burst, and one for each second after the first.
        ("1/second burst 20", 79, 0),
        ("10/second burst 10", 600, 0),
        ("30/minute burst 30", 59, 0),
        ("20/second", 1_200, 0),
        ("20/minute", 40, 0),
        // They do not say when there is more, so a denial does.
        ("20/minute sliding-log", 20, 1),
    ] {
        assert_eq!(obeying_our_own_headers(limit), (admitted, denied), "{limit}");
    }
}

/// An upstream whose calls cost 300 tokens, in a header and in a stream of events. A call to `/busy` is denied.
fn model(request: Asking) -> std::future::Ready<Result<axum::response::Response, Infallible>> {
    let is_busy = request.uri().path() == "/busy";
    let parts = ["data: {\"usage\": null}\n\ndata: {\"usage\": {\"to", "tal\": 300}}\n\n"];
    let parts = parts.map(|part| Ok::<_, Infallible>(Bytes::from_static(part.as_bytes())));
    let response = Response::builder()
        .status(if is_busy { 503 } else { 200 })
        .header("content-type", "text/event-stream")
        .header("x-tokens", "300")
        .body(axum::body::Body::from_stream(futures_util::stream::iter(parts)));
    ready(Ok(response.unwrap()))
}

/// Plays the same calls by the head and by the body of responses. Returns the units that are left.
fn spend<L: Wait>(limiter: L, clock: &ManualClock, left: impl Fn() -> u64) {
    let layer = || {
        StayWithinLayer::new(limiter.clone())
            .by(Everyone)
            .clock(clock.clone())
            .within(61 * SECOND)
            .cost(|_| 4_000)
    };
    let by_header = |head: &http::response::Parts| match head.status.is_success() {
        true => Adjustment::from_header(&head.headers, "x-tokens"),
        false => Adjustment::Refund,
    };
    let mut client = layer().settle_with(by_header).layer(service_fn(model));
    run(clock, client.call(get("http://a.example/"))).unwrap();
    assert_eq!(left(), 9_700);
    run(clock, client.call(get("http://a.example/busy"))).unwrap();
    assert_eq!(left(), 9_700);

    let refund_failures = |head: &http::response::Parts| match head.status.is_success() {
        true => Adjustment::Keep,
        false => Adjustment::Refund,
    };
    let layer = layer().settle_with(refund_failures).settle_by(Usage::json("/usage/total"));
    let mut client = layer.layer(service_fn(model));
    run(clock, client.call(get("http://a.example/busy"))).unwrap();
    assert_eq!(left(), 9_700);
    let response = run(clock, client.call(get("http://a.example/"))).unwrap();
    assert_eq!(left(), 5_700, "until the body is read");
    run(clock, response.into_body().collect()).unwrap();
    assert_eq!(left(), 9_400);
    drop(run(clock, client.call(get("http://a.example/"))).unwrap());
    assert_eq!(left(), 5_400, "an unread body keeps the charge");
    drop(run(clock, client.call(get("http://a.example/"))).unwrap());
    assert_eq!(left(), 1_400);
    // Waits for the next window.
    let response = run(clock, client.call(get("http://a.example/"))).unwrap();
    run(clock, response.into_body().collect()).unwrap();
    assert_eq!(left(), 9_700);
}

#[test]
fn responses_correct_the_estimates_of_calls() {
    let clock = kit::clock();
    let memory = limiter("10000/minute", &clock);
    spend(memory.clone(), &clock, || memory.peek(()).remaining());
    assert_eq!(memory.store().usage().reservations, 0);
    let clock = kit::clock();
    let store = MemoryStore::new(100, clock.clone());
    let shared = SharedLimiter::builder(store).limit("10000/minute").clock(clock.clone());
    let shared = shared.build().unwrap();
    spend(shared.clone(), &clock, || pollster::block_on(shared.peek(())).unwrap().remaining());
}

/// A custom limiter without reservations keeps its charges.
#[test]
fn custom_limiters_keep_their_charges() {
    #[derive(Clone)]
    struct Custom(Limiter);
    impl Wait for Custom {
        fn wait(&self, key: KeyParts, cost: u64, within: Duration) -> Waiting {
            Wait::wait(&self.0, key, cost, within)
        }
    }
    let clock = kit::clock();
    let limiter = limiter("10/minute", &clock);
    let layer = StayWithinLayer::new(Custom(limiter.clone())).by(Everyone);
    let layer = layer.settle_with(|_| Adjustment::Refund);
    run(&clock, layer.layer(service_fn(model)).call(get("http://a.example/"))).unwrap();
    assert_eq!(limiter.peek(()).remaining(), 9);
}
