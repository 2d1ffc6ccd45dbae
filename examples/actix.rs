//! An API on actix-web: 10 requests a minute per user. An upload costs 3, and a response with status 404 is refunded.
//!
//! `cargo run -p pacegate-examples --bin actix` counts in memory. With `-- redis://127.0.0.1:6379`, all processes share
//! the counters in that Redis.

use std::{env, error::Error, io, net::TcpListener};

use actix_web::{
    App, HttpServer,
    dev::Server,
    http::Method,
    web::{ReqData, get, post},
};
use pacegate::{Decision, Limiter, PolicySet, SharedLimiter};
use pacegate_actix::{
    Adjustment, Decide, RateLimit, Rules,
    resolve::{Header, PeerAddress, ResolveExt},
};
use pacegate_redis::RedisStore;

pub(crate) fn policies() -> Result<PolicySet, Box<dyn Error>> {
    Ok(PolicySet::of_limits(["10/minute sliding-log".parse()?])?)
}

pub(crate) fn server(listener: TcpListener, limiter: impl Decide) -> io::Result<Server> {
    let rules = Rules::new(limiter)
        .by(Header::from_static("x-user").or(PeerAddress::new()))
        .cost(|head| if head.method() == Method::POST { 3 } else { 1 })
        .skip(|head| head.path() == "/health")
        .settle_with(|response| match response.status.as_u16() {
            404 => Adjustment::Refund,
            _ => Adjustment::Keep,
        });
    let limit = RateLimit::new(rules);
    let quota = async |decision: ReqData<Decision>| format!("{} left", decision.remaining());
    let app = move || {
        App::new()
            .route("/health", get().to(|| async { "fine" }))
            .route("/quota", get().to(quota))
            .route("/upload", post().to(|| async { "thanks" }))
            .wrap(limit.clone())
    };
    Ok(HttpServer::new(app).workers(2).listen(listener)?.run())
}

#[actix_web::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let listener = TcpListener::bind("127.0.0.1:3000")?;
    let server = match env::args().nth(1) {
        Some(url) => {
            let store = RedisStore::connect(&url).await?;
            server(listener, SharedLimiter::new(store, policies()?))?
        }
        None => server(listener, Limiter::builder().policies(policies()?).build()?)?,
    };
    Ok(server.await?)
}
