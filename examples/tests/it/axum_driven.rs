use std::net::SocketAddr;

use http::{Method, Request, StatusCode};
use http_body_util::Full;
use pacegate::Limiter;
use pacegate_http::Decide;

use crate::{
    axum_example::{app, policies},
    kit,
};

async fn drive(limiter: impl Decide) {
    let (listener, address) = kit::listen().await;
    let service = app(limiter).unwrap().into_make_service_with_connect_info::<SocketAddr>();
    tokio::spawn(async move { axum::serve(listener, service).await.unwrap() });
    let ask = |method: Method, path: &str, forwarded: &str| {
        let request = Request::builder().method(method).uri(format!("http://{address}{path}"));
        let request = request.header("x-forwarded-for", forwarded);
        kit::fetch(request.body(Full::default()).unwrap())
    };
    for spoofed in 0..5 {
        let forwarded = format!("6.6.6.{spoofed}, 203.0.113.7");
        let (status, headers, body) = ask(Method::POST, "/login", &forwarded).await;
        assert_eq!((status, &*body), (StatusCode::OK, &b"welcome"[..]));
        let left = headers["ratelimit"].to_str().unwrap().split(";t=").next().unwrap();
        assert_eq!(left, format!("\"login\";r={}", 4 - spoofed), "{headers:?}");
    }
    let (status, headers, body) = ask(Method::POST, "/login", "6.6.6.6, 203.0.113.7").await;
    assert_eq!(status, StatusCode::TOO_MANY_REQUESTS);
    assert_eq!(headers["content-type"], "application/problem+json");
    assert_eq!(headers["ratelimit-policy"], "\"login\";q=5;w=60");
    let retry: u64 = headers["retry-after"].to_str().unwrap().parse().unwrap();
    assert!((1..=60).contains(&retry), "{retry}");
    assert!(body.ends_with(b"\"violated-policies\":[\"login\"]}"), "{body:?}");
    // The denied login was not charged to the other policy, and other clients are not affected.
    let (_, _, body) = ask(Method::GET, "/quota/7", "203.0.113.7").await;
    assert_eq!(body, "94 left");
    assert_eq!(ask(Method::POST, "/login", "203.0.113.8").await.0, StatusCode::OK);
    let (status, headers, _) = ask(Method::GET, "/health", "203.0.113.7").await;
    assert_eq!((status, headers.get("ratelimit")), (StatusCode::OK, None));
}

#[tokio::test]
async fn in_memory() {
    drive(Limiter::builder().policies(policies().unwrap()).build().unwrap()).await;
}

#[tokio::test]
async fn on_redis() {
    let (limiter, _server) = kit::shared(policies().unwrap()).await;
    drive(limiter).await;
}
