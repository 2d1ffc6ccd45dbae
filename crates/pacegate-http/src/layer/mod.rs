//! The tower layer.

mod future;
mod service;

use std::sync::Arc;

use bytes::Bytes;
use http::Response;
use tower_layer::Layer;

use crate::{Decide, RateLimitLayer};

pub use future::ResponseFuture;
pub use service::RateLimit;

impl<L: Decide> RateLimitLayer<L> {
    /// Converts the bodies of rejections by a closure, for services whose body type does not implement `From<Bytes>`.
    #[must_use]
    pub fn with_body<B>(
        self,
        convert: impl Fn(Bytes) -> B + Send + Sync + 'static,
    ) -> RateLimitLayer<L, B> {
        self.map_denials(move |response: Response<Bytes>, _| response.map(&convert))
    }

    /// Converts the bodies of rejections to those of tonic, for a layer of its `Server`:
    /// `Server::builder().layer(layer.for_tonic())`.
    #[cfg(feature = "tonic")]
    #[must_use]
    pub fn for_tonic(self) -> RateLimitLayer<L, tonic::body::Body> {
        self.with_body(|bytes| tonic::body::Body::new(http_body_util::Full::new(bytes)))
    }
}

impl<S, L: Decide, B> Layer<S> for RateLimitLayer<L, B> {
    type Service = RateLimit<S, L, B>;

    fn layer(&self, inner: S) -> Self::Service {
        RateLimit::new(inner, Arc::new(self.clone()))
    }
}
