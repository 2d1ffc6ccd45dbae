//! Helpers for the tests.

use std::{net::SocketAddr, time::Duration};

use bytes::Bytes;
use http::{HeaderMap, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper_util::{client::legacy::Client, rt::TokioExecutor};
use pacegate::{PolicySet, SharedLimiter};
use pacegate_redis::RedisStore;
use pacegate_testkit::servers::{Flavor, Server};
use tokio::net::TcpListener;

/// Listens on a free port.
pub(crate) async fn listen() -> (TcpListener, SocketAddr) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    (listener, address)
}

/// Starts a Redis server, which stops when it is dropped, and returns a limiter on it. The deadline is long, because
/// the machine may be busy.
pub(crate) async fn shared(policies: PolicySet) -> (SharedLimiter, Server) {
    let server = Server::start(Flavor::Redis);
    let store = RedisStore::builder(&server.url()).unwrap().deadline(Duration::from_secs(10));
    (SharedLimiter::new(store.connect().await.unwrap(), policies), server)
}

/// Sends a request and reads the whole response.
pub(crate) async fn fetch(request: Request<Full<Bytes>>) -> (StatusCode, HeaderMap, Bytes) {
    let client = Client::builder(TokioExecutor::new()).build_http();
    let (head, body) = client.request(request).await.unwrap().into_parts();
    (head.status, head.headers, body.collect().await.unwrap().to_bytes())
}
