use std::{net::SocketAddr, time::Duration};

use axum::{Router, routing::get};
use http::{StatusCode, Uri};
use pacegate::{Limit, Limiter, PolicySet};
use pacegate_http::{RateLimitLayer, outgoing::Wait};
use tokio::time::Instant;

use crate::{kit, outgoing_example::call};

/// Starts a server whose limit the client does not know: a burst of 4 calls, then one per second.
async fn strict() -> Uri {
    let (listener, address) = kit::listen().await;
    let limit: Limit = "1/second burst 4 token-bucket".parse().unwrap();
    let layer = RateLimitLayer::new(Limiter::memory(limit));
    let app = Router::new().route("/", get(|| async { "fine" })).layer(layer);
    let service = app.into_make_service_with_connect_info::<SocketAddr>();
    tokio::spawn(async move { axum::serve(listener, service).await.unwrap() });
    format!("http://{address}/").parse().unwrap()
}

async fn drive(limiter: impl Wait) {
    let uri = strict().await;
    let begun = Instant::now();
    let statuses = call(limiter, &uri, 6).await.unwrap();
    // The headers of the fourth response report 0 remaining, so the client delays the next calls. None is denied.
    assert_eq!(statuses, [StatusCode::OK; 6]);
    let taken = begun.elapsed();
    assert!(
        taken >= Duration::from_secs(2),
        "the last two calls did not wait a second each: {taken:?}"
    );
}

fn limit() -> Limit {
    "20/second burst 1".parse().unwrap()
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
