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
///
/// All settings are those of [`pacegate_http::Rules`]; closures get an [`Incoming`] and a `ResponseHead`.
///
/// ```
/// use pacegate::{Limit, Limiter};
/// use pacegate_actix::{Adjustment, Rules, resolve::PeerAddress};
///
/// let rules = Rules::new(Limiter::memory(Limit::per_minute(5)))
///     .by(PeerAddress::new())
///     .skip(|request| request.path() == "/health")
///     .settle_with(|response| match response.status.is_success() {
///         true => Adjustment::Refund, // count only failed logins
///         false => Adjustment::Keep,
///     });
/// # let _ = rules;
/// ```
pub type Rules<L, R = http::Response<Bytes>> = pacegate_http::Rules<L, Incoming, ResponseHead, R>;

/// Rules that answer denied requests with responses of actix-web.
pub(crate) type ActixRules<L> = Rules<L, HttpResponse>;
