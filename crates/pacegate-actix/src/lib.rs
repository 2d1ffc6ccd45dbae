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

/// Whose budget, at which cost, under which limits, who is let through unasked, and what is answered: what all
/// middleware of Pacegate shares, over the requests and responses of actix-web.
pub type Rules<L> = pacegate_http::Rules<L, Incoming, ResponseHead>;
