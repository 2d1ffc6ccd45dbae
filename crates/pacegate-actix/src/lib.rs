#![doc = include_str!("../README.md")]

mod bridge;
mod future;
mod incoming;
mod middleware;

use actix_web::dev::ResponseHead;

pub use future::ResponseFuture;
pub use incoming::Incoming;
pub use middleware::{RateLimit, RateLimited};
pub use pacegate_http::{
    Adjustment, Decide, HeaderStyle, Headers, Missing, Provided, Refusal, ResetStyle, Resolve,
    resolve,
};

/// A limiter with the rules of a middleware (key, cost, limits, skipped requests, rejections), for the requests and
/// responses of actix-web.
pub type Rules<L> = pacegate_http::Rules<L, Incoming, ResponseHead>;
