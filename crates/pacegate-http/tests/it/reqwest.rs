//! Requests of reqwest to a server on the loopback address.

use std::{
    future::Future,
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use axum::{
    Json, Router,
    extract::RawQuery,
    response::{IntoResponse, Redirect},
    routing::{any, post},
};
use http::{Method, StatusCode};
use pacegate::{Clock, Limiter, ManualClock, WaitError};
use pacegate_http::{
    Adjustment, Usage,
    outgoing::{OutgoingError, StayWithinLayer},
    resolve::Everyone,
};
use reqwest::{Client, Response};
use serde_json::{Value, json};
use tokio::net::TcpListener;

use crate::kit;

/// An upstream that returns these responses, status and `Retry-After`, one for each call. The last one repeats.
struct Upstream {
    url: String,
    clock: ManualClock,
    /// The query and body of each call, and its time in seconds.
    calls: Arc<Mutex<Vec<(String, Value, u64)>>>,
}

impl Upstream {
    async fn start(responses: &'static [(u16, &'static str)]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}/", listener.local_addr().unwrap());
        let (clock, calls) = (kit::clock(), Arc::new(Mutex::new(Vec::new())));
        let (now, made) = (clock.clone(), Arc::clone(&calls));
        let answer = move |RawQuery(query): RawQuery, body: Option<Json<Value>>| {
            let mut made = made.lock().unwrap();
            let (status, retry) = *responses.get(made.len()).or(responses.last()).unwrap();
            let body = body.map_or(Value::Null, |Json(body)| body);
            made.push((query.unwrap_or_default(), body, now.elapsed().as_secs()));
            let status = StatusCode::from_u16(status).unwrap();
            let headers = (!retry.is_empty()).then_some([("retry-after", retry)]);
            async move { (status, headers.map_or_else(Default::default, http_headers), "body") }
        };
        let app = Router::new().route("/", any(answer));
        tokio::spawn(async move { axum::serve(listener, app).await });
        Self { url, clock, calls }
    }

    fn layer(&self, limit: &str) -> StayWithinLayer<Limiter> {
        let limiter = Limiter::builder().limit(limit).clock(self.clock.clone());
        StayWithinLayer::new(limiter.build().unwrap()).clock(self.clock.clone())
    }

    /// Waits for a future. Advances the clock as soon as something waits for it.
    async fn run<F: Future>(&self, future: F) -> F::Output {
        let advance = async {
            loop {
                if let Some(next) = self.clock.next_wake() {
                    self.clock.set(next);
                }
                tokio::task::yield_now().await;
            }
        };
        tokio::select! {
            output = future => output,
            () = advance => unreachable!("it runs forever"),
        }
    }

    async fn send(
        &self,
        layer: &StayWithinLayer<Limiter>,
        method: Method,
    ) -> Result<Response, OutgoingError<reqwest::Error>> {
        self.run(layer.send(Client::new().request(method, &self.url))).await
    }

    /// Returns the times of the calls, in seconds after the first.
    fn times(&self) -> Vec<u64> {
        let calls = self.calls.lock().unwrap();
        calls.iter().map(|(_, _, time)| time - calls[0].2).collect()
    }
}

fn http_headers<const N: usize>(pairs: [(&'static str, &'static str); N]) -> http::HeaderMap {
    pairs.into_iter().map(|(name, value)| (name.parse().unwrap(), value.parse().unwrap())).collect()
}

#[tokio::test]
async fn requests_keep_their_json_and_query_when_they_are_sent_again() {
    let upstream = Upstream::start(&[(429, "5"), (200, "")]).await;
    let request = Client::new().post(&upstream.url).query(&[("q", "a b")]).json(&json!({"n": 1}));
    let response = upstream.run(upstream.layer("10/second").send(request)).await.unwrap();
    assert_eq!((response.status().as_u16(), &*response.text().await.unwrap()), (200, "body"));
    let calls = upstream.calls.lock().unwrap();
    assert!(calls.iter().all(|(query, body, _)| query == "q=a+b" && *body == json!({"n": 1})));
    drop(calls);
    assert_eq!(upstream.times(), [0, 5]);
}

#[tokio::test]
async fn calls_wait_for_the_limiter() {
    let upstream = Upstream::start(&[(200, "")]).await;
    let layer = upstream.layer("1/3s burst 1").within(Duration::from_secs(6));
    for _ in 0..3 {
        upstream.send(&layer, Method::GET).await.unwrap();
    }
    assert_eq!(upstream.times(), [0, 3, 6]);
    let error = upstream.send(&layer.within(Duration::from_secs(1)), Method::GET).await;
    let needed = Some(Duration::from_secs(3));
    assert!(
        matches!(error, Err(OutgoingError::Wait(WaitError::TooLong { needed: n })) if n == needed)
    );
}

#[tokio::test]
async fn only_denials_are_sent_again() {
    for (status, retry, method, calls) in [
        (429, "2", Method::POST, 4),
        (503, "2", Method::GET, 4),
        (503, "2", Method::POST, 1),
        (500, "2", Method::GET, 1),
        (429, "", Method::GET, 1),
        (429, "0", Method::GET, 1),
    ] {
        let responses: &'static [_] = Box::leak(Box::new([(status, retry)]));
        let upstream = Upstream::start(responses).await;
        let layer = upstream.layer("100/second");
        let response = upstream.send(&layer, method.clone()).await.unwrap();
        assert_eq!(response.status(), status);
        let expected: Vec<_> = (0..calls).map(|call| 2 * call).collect();
        assert_eq!(upstream.times(), expected, "{status} {retry} {method}");
    }
}

#[tokio::test]
async fn retries_can_be_turned_off() {
    let upstream = Upstream::start(&[(429, "2")]).await;
    let layer = upstream.layer("100/second").retries(0);
    assert_eq!(upstream.send(&layer, Method::GET).await.unwrap().status(), 429);
    assert_eq!(upstream.send(&layer, Method::GET).await.unwrap().status(), 429);
    assert_eq!(upstream.times(), [0, 2], "the second call waits for the pause");
    let layer = upstream.layer("100/second").ignore_responses();
    assert_eq!(upstream.send(&layer, Method::GET).await.unwrap().status(), 429);
    assert_eq!(upstream.times(), [0, 2, 2]);
}

#[tokio::test]
async fn a_pause_beyond_the_deadline_returns_the_denial() {
    let upstream = Upstream::start(&[(429, "4")]).await;
    let layer = upstream.layer("100/second").within(Duration::from_secs(10));
    let response = upstream.send(&layer, Method::GET).await.unwrap();
    assert_eq!((response.status().as_u16(), upstream.times()), (429, vec![0, 4, 8]));
    let layer = layer.within(Duration::from_secs(3));
    let error = upstream.send(&layer, Method::GET).await.unwrap_err();
    assert!(matches!(error, OutgoingError::Paused(_)), "{error}");
    assert_eq!(upstream.times().len(), 3);
}

#[tokio::test]
async fn a_denial_behind_a_redirect_is_returned() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/orders", listener.local_addr().unwrap());
    let (orders, clock) = (Arc::new(Mutex::new(0)), kit::clock());
    let count = Arc::clone(&orders);
    let create = move || {
        *count.lock().unwrap() += 1;
        async { Redirect::to("/orders/1") }
    };
    let denied = || async { (StatusCode::TOO_MANY_REQUESTS, [("retry-after", "1")]) };
    let app = Router::new().route("/orders", post(create)).route("/orders/1", any(denied));
    tokio::spawn(async move { axum::serve(listener, app).await });
    let limiter = Limiter::builder().limit("10/second").clock(clock.clone()).build().unwrap();
    let layer = StayWithinLayer::new(limiter).clock(clock);
    for sent in 1..=2 {
        let response = layer.send(Client::new().post(&url)).await.unwrap();
        assert_eq!(response.status(), StatusCode::TOO_MANY_REQUESTS);
        assert_eq!(*orders.lock().unwrap(), sent, "each order is sent once, without a pause");
    }
}

#[tokio::test]
async fn a_stream_is_not_sent_again() {
    let upstream = Upstream::start(&[(429, "4")]).await;
    let body = reqwest::Body::wrap(http_body_util::Full::new(bytes::Bytes::from_static(b"{}")));
    let request = Client::new().post(&upstream.url).body(body);
    let response = upstream.run(upstream.layer("100/second").send(request)).await.unwrap();
    assert_eq!((response.status().as_u16(), upstream.times()), (429, vec![0]));
}

#[tokio::test]
async fn errors_of_reqwest_are_returned() {
    let upstream = Upstream::start(&[(200, "")]).await;
    let layer = upstream.layer("1/hour").key(|head| Some(head.uri.path().to_owned()));
    let error = layer.send(Client::new().get("no url")).await.unwrap_err();
    assert!(matches!(&error, OutgoingError::Service(error) if error.is_builder()), "{error}");
    upstream.send(&layer, Method::GET).await.unwrap();
}

/// A language model that denies the first call, and streams the usage of the others.
async fn language_model() -> String {
    let calls = Arc::new(AtomicUsize::new(0));
    let chat = move || {
        let is_first = calls.fetch_add(1, Relaxed) == 0;
        async move {
            match is_first {
                true => (StatusCode::TOO_MANY_REQUESTS, [("retry-after", "1")]).into_response(),
                false => {
                    let kind = [("content-type", "text/event-stream"), ("x-tokens", "300")];
                    (kind, "data: {\"usage\": {\"total\": 300}}\n\ndata: [DONE]\n\n")
                        .into_response()
                }
            }
        }
    };
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/chat", listener.local_addr().unwrap());
    tokio::spawn(async { axum::serve(listener, Router::new().route("/chat", post(chat))).await });
    url
}

#[tokio::test]
async fn responses_correct_the_estimates_of_requests() {
    let upstream = Upstream::start(&[(200, "")]).await;
    let limiter = Limiter::builder().limit("10000/hour").clock(upstream.clock.clone());
    let limiter = limiter.build().unwrap();
    let layer = StayWithinLayer::new(limiter.clone()).clock(upstream.clock.clone());
    let layer = layer.by(Everyone).cost(|_| 4_000);
    let left = || limiter.peek(()).remaining();

    let by_body = layer.clone().settle_by(Usage::json("/usage/total"));
    let url = language_model().await;
    let response = upstream.run(by_body.send(Client::new().post(&url))).await.unwrap();
    assert_eq!((response.url().as_str(), left()), (&*url, 6_000), "the denied attempt is free");
    assert!(response.text().await.unwrap().ends_with("data: [DONE]\n\n"));
    assert_eq!(left(), 9_700);

    let by_header = layer.settle_with(|head| Adjustment::from_header(&head.headers, "x-tokens"));
    by_header.send(Client::new().post(&url)).await.unwrap();
    assert_eq!(left(), 9_400);
    assert_eq!(limiter.store().usage().reservations, 0);
}
