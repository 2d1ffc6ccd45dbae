//! The tower layer.

mod body;
mod future;
mod service;

use std::sync::Arc;

use http::{request, response};
use tower_layer::Layer;

use crate::{Decide, Rules};

pub use body::{IntoBody, MakeBody};
pub use future::ResponseFuture;
pub use service::RateLimit;

/// A [`RateLimitLayer`](crate::RateLimitLayer) that creates the bodies of refusals by a closure, see
/// [`Rules::with_body`].
#[derive(Clone, Debug)]
pub struct WithBody<L, M> {
    rules: Rules<L>,
    make: M,
}

impl<L> Rules<L, request::Parts, response::Parts> {
    /// Creates the bodies of refusals by a closure, for services whose bodies do not implement `From<Bytes>`.
    ///
    /// The server of tonic needs it: `.with_body(|bytes| tonic::body::Body::new(Full::new(bytes)))`.
    pub fn with_body<M>(self, make: M) -> WithBody<L, M> {
        WithBody { rules: self, make }
    }
}

impl<S, L: Decide> Layer<S> for Rules<L, request::Parts, response::Parts> {
    type Service = RateLimit<S, L>;

    fn layer(&self, inner: S) -> Self::Service {
        RateLimit::new(inner, Arc::new(self.clone()), IntoBody)
    }
}

impl<S, L: Decide, M: Clone> Layer<S> for WithBody<L, M> {
    type Service = RateLimit<S, L, M>;

    fn layer(&self, inner: S) -> Self::Service {
        RateLimit::new(inner, Arc::new(self.rules.clone()), self.make.clone())
    }
}
