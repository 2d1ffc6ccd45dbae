//! Keeps within somebody else's limit: 20 calls a second to a host, and fewer where its responses say so.
//!
//! `cargo run -p pacegate-examples --bin outgoing -- http://127.0.0.1:3000/ 50` makes 50 calls; with the address of a
//! Redis or Valkey after that, all processes that are started so stay within the limit together.

use std::{env, error::Error, io::Write, time::Duration};

use bytes::Bytes;
use http::{Request, StatusCode, Uri};
use http_body_util::Full;
use hyper_util::{client::legacy::Client, rt::TokioExecutor};
use pacegate::{Limiter, SharedLimiter};
use pacegate_http::outgoing::{StayWithinLayer, Wait};
use pacegate_redis::RedisStore;
use tower::{Layer, Service, util::ServiceExt};

/// The statuses of so many calls, each made when it is within the limit.
pub(crate) async fn call(
    limiter: impl Wait,
    uri: &Uri,
    times: usize,
) -> Result<Vec<StatusCode>, Box<dyn Error>> {
    let client = Client::builder(TokioExecutor::new()).build_http::<Full<Bytes>>();
    let mut client = StayWithinLayer::new(limiter).within(Duration::from_secs(20)).layer(client);
    let mut statuses = Vec::new();
    for _ in 0..times {
        let request = Request::get(uri).body(Full::default())?;
        statuses.push(client.ready().await?.call(request).await?.status());
    }
    Ok(statuses)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut words = env::args().skip(1);
    let uri = words.next().ok_or("say where, as in http://127.0.0.1:3000/")?.parse()?;
    let times = words.next().ok_or("say how often, as in 50")?.parse()?;
    let limit = "20/second burst 1";
    let statuses = match words.next() {
        Some(url) => {
            let store = RedisStore::connect(&url).await?;
            call(SharedLimiter::builder(store).limit(limit).build()?, &uri, times).await?
        }
        None => call(Limiter::builder().limit(limit).build()?, &uri, times).await?,
    };
    Ok(writeln!(std::io::stdout(), "{statuses:?}")?)
}
