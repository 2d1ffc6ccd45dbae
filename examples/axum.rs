//! An API on axum, behind a proxy: 100 requests a minute per client, at most 5 of them logins.
//!
//! `cargo run -p pacegate-examples --bin axum` counts in memory. With `-- redis://127.0.0.1:6379`, all processes share
//! the counters in that Redis.

use std::{env, error::Error, net::SocketAddr};

use axum::{
    Extension, Router,
    routing::{get, post},
};
use pacegate::{
    Decision, Limiter, PolicySet, SharedLimiter,
    policy::{Condition, Policy},
};
use pacegate_http::{
    Decide, RateLimitLayer,
    resolve::{ClientAddress, MatchedRoute},
};
use pacegate_redis::RedisStore;
use tokio::net::TcpListener;

pub(crate) fn policies() -> Result<PolicySet, Box<dyn Error>> {
    let all = Policy::new("all", ["100/minute sliding-log"]).per(["ip"]);
    let login = Policy::new("login", ["5/minute sliding-log"])
        .matching("route", Condition::equal("/login"))
        .per(["ip"]);
    Ok(PolicySet::new([all, login])?)
}

pub(crate) fn app(limiter: impl Decide) -> Result<Router, Box<dyn Error>> {
    let layer = RateLimitLayer::new(limiter)
        .attribute("ip", ClientAddress::trusting(["127.0.0.0/8".parse()?]))
        .attribute("route", MatchedRoute)
        .skip(|head| head.uri.path() == "/health");
    let quota = |Extension(decision): Extension<Decision>| async move {
        format!("{} left", decision.remaining())
    };
    Ok(Router::new()
        .route("/health", get(|| async { "fine" }))
        .route("/login", post(|| async { "welcome" }))
        .route("/quota/{id}", get(quota))
        .layer(layer))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let app = match env::args().nth(1) {
        Some(url) => app(SharedLimiter::new(RedisStore::connect(&url).await?, policies()?))?,
        None => app(Limiter::builder().policies(policies()?).build()?)?,
    };
    let listener = TcpListener::bind("127.0.0.1:3000").await?;
    let service = app.into_make_service_with_connect_info::<SocketAddr>();
    Ok(axum::serve(listener, service).await?)
}
