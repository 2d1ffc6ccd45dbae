#![doc = include_str!("../README.md")]

mod bridge;
mod incoming;
mod middleware;

use actix_web::{HttpResponse, dev::ResponseHead};
use bytes::Bytes;

pub use incoming::Incoming;
pub use middleware::{ActixExchange, RateLimit, RateLimited};
pub use pacegate_http::{
    Adjustment, Decide, HeaderStyle, Headers, IntoDenial, Missing, Provided, Refusal, ResetStyle,
    Resolve, ResponseFuture, resolve,
};

/// A limiter with the rules of a middleware (key, cost, limits, skipped requests, rejections), for the requests and
/// responses of actix-web. `R` is the response to a request that is not served.
pub type Rules<L, R = http::Response<Bytes>> = pacegate_http::Rules<L, Incoming, ResponseHead, R>;

/// Rules that answer denied requests with responses of actix-web.
pub(crate) type ActixRules<L> = Rules<L, HttpResponse>;
