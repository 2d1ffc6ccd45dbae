//! A client of a rate-limited API: 20 calls a second per host, and fewer if the API's rate limit headers require it.
//!
//! `cargo run -p pacegate-examples --bin outgoing -- http://127.0.0.1:3000/ 50` makes 50 calls. With
//! `redis://127.0.0.1:6379` as a third argument, all processes share the limit.

use std::{env, error::Error, io::Write, time::Duration};

use bytes::Bytes;
use http::{Request, StatusCode, Uri};
use http_body_util::Full;
use hyper_util::{client::legacy::Client, rt::TokioExecutor};
use pacegate::{Limiter, SharedLimiter};
use pacegate_http::outgoing::{StayWithinLayer, Wait};
use pacegate_redis::RedisStore;
use tower::{Layer, Service, util::ServiceExt};

/// Makes calls, each as soon as the limit allows it, and returns their statuses.
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
    let uri =
        words.next().ok_or("missing URL: expected one such as http://127.0.0.1:3000/")?.parse()?;
    let times = words.next().ok_or("missing number of calls: expected one such as 50")?.parse()?;
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
