//! hyper without a framework: 10 requests a second per client, identified by its peer address.
//!
//! `cargo run -p pacegate-examples --bin hyper` counts in memory. With `-- redis://127.0.0.1:6379`, all processes share
//! the counters in that Redis.

use std::{convert::Infallible, env, error::Error};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper::{body::Incoming, server::conn::http1};
use hyper_util::{rt::TokioIo, service::TowerToHyperService};
use pacegate::{Limit, Limiter, SharedLimiter};
use pacegate_http::{Decide, PeerAddr, RateLimitLayer, resolve::PeerAddress};
use pacegate_redis::RedisStore;
use tokio::net::TcpListener;
use tower::{Layer, service_fn, util::MapRequest};

async fn hello(_: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    Ok(Response::new(Full::from("hello")))
}

pub(crate) async fn serve(
    listener: TcpListener,
    limiter: impl Decide,
) -> Result<(), Box<dyn Error>> {
    let limited = RateLimitLayer::new(limiter).by(PeerAddress::new()).layer(service_fn(hello));
    loop {
        let (stream, peer) = listener.accept().await?;
        let told = move |mut request: Request<Incoming>| {
            request.extensions_mut().insert(PeerAddr(peer));
            request
        };
        let service = TowerToHyperService::new(MapRequest::new(limited.clone(), told));
        tokio::spawn(http1::Builder::new().serve_connection(TokioIo::new(stream), service));
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let listener = TcpListener::bind("127.0.0.1:3000").await?;
    match env::args().nth(1) {
        Some(url) => {
            let store = RedisStore::connect(&url).await?;
            let limiter = SharedLimiter::builder(store).limit("10/second token-bucket");
            serve(listener, limiter.build()?).await
        }
        None => serve(listener, Limiter::memory(Limit::per_second(10))).await,
    }
}
