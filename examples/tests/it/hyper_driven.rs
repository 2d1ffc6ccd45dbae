use http::{Request, StatusCode};
use http_body_util::Full;
use pacegate::{Limit, Limiter, PolicySet};
use pacegate_http::Decide;

use crate::{hyper_example::serve, kit};

async fn drive(limiter: impl Decide) {
    let (listener, address) = kit::listen().await;
    tokio::spawn(async move { serve(listener, limiter).await.map_err(drop) });
    let ask = || {
        let request = Request::get(format!("http://{address}/")).body(Full::default());
        kit::fetch(request.unwrap())
    };
    for left in [1, 0] {
        let (status, headers, body) = ask().await;
        assert_eq!((status, &*body), (StatusCode::OK, &b"hello"[..]));
        assert_eq!(headers["x-ratelimit-remaining"], left.to_string());
    }
    let (status, headers, _) = ask().await;
    assert_eq!(status, StatusCode::TOO_MANY_REQUESTS);
    assert!(headers.contains_key("retry-after"));
}

fn limit() -> Limit {
    "2/hour sliding-log".parse().unwrap()
}

#[tokio::test]
async fn in_memory() {
    drive(Limiter::memory(limit())).await;
}

#[tokio::test]
async fn on_redis() {
    let (limiter, _server) = kit::shared(PolicySet::of_limits([limit()]).unwrap()).await;
    drive(limiter).await;
}
