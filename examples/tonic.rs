//! A gRPC service on tonic: 10 calls a minute per client. Denied calls fail with `RESOURCE_EXHAUSTED` and details.
//!
//! `cargo run -p pacegate-examples --bin tonic` counts in memory. With `-- redis://127.0.0.1:6379`, all processes share
//! the counters in that Redis.

use std::{env, error::Error};

use pacegate::{Limit, Limiter, SharedLimiter};
use pacegate_http::{Decide, RateLimitLayer, resolve::PeerAddress};
use pacegate_redis::RedisStore;
use tokio::net::TcpListener;
use tonic::transport::server::{Server, TcpIncoming};

pub(crate) async fn serve(
    listener: TcpListener,
    limiter: impl Decide,
) -> Result<(), Box<dyn Error>> {
    let layer = RateLimitLayer::new(limiter).by(PeerAddress::new()).for_tonic();
    let (_, health) = tonic_health::server::health_reporter();
    let server = Server::builder().layer(layer).add_service(health);
    Ok(server.serve_with_incoming(TcpIncoming::from(listener)).await?)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let listener = TcpListener::bind("127.0.0.1:3000").await?;
    match env::args().nth(1) {
        Some(url) => {
            let store = RedisStore::connect(&url).await?;
            let limiter = SharedLimiter::builder(store).limit("10/minute");
            serve(listener, limiter.build()?).await
        }
        None => serve(listener, Limiter::memory(Limit::per_minute(10))).await,
    }
}
