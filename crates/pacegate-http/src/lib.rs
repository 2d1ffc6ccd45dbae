#![doc = include_str!("../README.md")]

mod decide;
mod denial;
mod exchange;
mod grpc;
mod head;
pub mod headers;
mod layer;
pub mod outgoing;
pub mod problem;
mod refusal;
pub mod resolve;
mod rules;
mod settlement;
#[cfg(feature = "usage")]
mod usage;

pub use decide::{Adjustment, Decide, Estimated, Provided, Question, Reply, Reserving};
pub use denial::IntoDenial;
pub use exchange::{Exchange, ExchangeRules, ResponseFuture};
pub use head::{Head, PeerAddr};
pub use headers::{HeaderStyle, Headers, ResetStyle};
pub use layer::{RateLimit, TowerExchange, UnsettledResponse};
pub use resolve::{KeyParts, Missing, Resolve, ResolveExt};
pub use rules::{Asked, RateLimitLayer, Refusal, Rules};
pub use settlement::{Settle, Settlement, Settling};
#[cfg(feature = "usage")]
pub use usage::{Metered, MeteredBody, MeteredExchange, MeteredFuture, MeteredLayer, Usage};
