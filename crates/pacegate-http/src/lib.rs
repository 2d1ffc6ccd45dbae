#![doc = include_str!("../README.md")]

mod decide;
mod grpc;
mod head;
pub mod headers;
mod layer;
pub mod outgoing;
pub mod problem;
mod refusal;
pub mod resolve;
mod rules;

pub use decide::{Adjustment, Decide, Provided, Question, Reply};
pub use head::{Head, PeerAddr};
pub use headers::{HeaderStyle, Headers, ResetStyle};
pub use layer::{IntoBody, MakeBody, RateLimit, ResponseFuture, WithBody};
pub use resolve::{KeyParts, Missing, Resolve, ResolveExt};
pub use rules::{Asked, RateLimitLayer, Refusal, Rules};
