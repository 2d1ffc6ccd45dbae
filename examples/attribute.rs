//! A shop with rate limits on its methods: ten items a minute per customer, and three reports an hour.
//!
//! `cargo run -p pacegate-examples --bin attribute` counts in memory. With `-- redis://127.0.0.1:6379`, all processes
//! share the counters in that Redis.

use std::{env, error::Error, sync::Arc};

use axum::extract::{Path, State};
use axum::{Router, http::StatusCode, response::IntoResponse, routing::get};
use pacegate::{Denied, MemoryStore, PolicySet, SharedLimiter, rate_limit};
use pacegate_redis::RedisStore;

struct Shop {
    limiter: SharedLimiter,
}

struct Busy(String);

impl Shop {
    #[rate_limit("10/minute sliding-log", key = user, cost = items, limiter = self.limiter, name = "orders")]
    async fn order(&self, user: &str, items: u32) -> Result<String, Busy> {
        Ok(format!("{items} for {user}"))
    }

    #[rate_limit("3/hour sliding-log", limiter = self.limiter, name = "reports", failure = "closed")]
    async fn report(&self) -> Result<String, Busy> {
        Ok("all is well".to_owned())
    }
}

impl From<Denied> for Busy {
    fn from(denied: Denied) -> Self {
        Self(denied.to_string())
    }
}

impl IntoResponse for Busy {
    fn into_response(self) -> axum::response::Response {
        (StatusCode::TOO_MANY_REQUESTS, self.0).into_response()
    }
}

pub(crate) fn app(limiter: SharedLimiter) -> Router {
    type Api = State<Arc<Shop>>;
    let order = async |shop: Api, Path((user, n)): Path<(String, u32)>| shop.order(&user, n).await;
    Router::new()
        .route("/order/{user}/{items}", get(order))
        .route("/report", get(async |shop: Api| shop.report().await))
        .with_state(Arc::new(Shop { limiter }))
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let limiter = match env::args().nth(1) {
        Some(url) => SharedLimiter::new(RedisStore::connect(&url).await?, PolicySet::new([])?),
        None => SharedLimiter::new(MemoryStore::default(), PolicySet::new([])?),
    };
    let listener = tokio::net::TcpListener::bind("127.0.0.1:3000").await?;
    Ok(axum::serve(listener, app(limiter)).await?)
}
