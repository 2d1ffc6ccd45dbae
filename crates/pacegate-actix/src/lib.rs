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
pub type Rules<L> = pacegate_http::Rules<L, Incoming, ResponseHead>;
