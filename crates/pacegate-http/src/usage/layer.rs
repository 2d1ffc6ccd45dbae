use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use pin_project_lite::pin_project;
use tower_layer::Layer;
use tower_service::Service;

use super::{MeteredBody, Usage};
use crate::{Decide, Exchange, RateLimitLayer, ResponseFuture, TowerExchange, UnsettledResponse};

/// A tower layer that corrects charges at the end of responses, see
/// [`RateLimitLayer::settle_by`](crate::Rules::settle_by).
pub struct MeteredLayer<L, B = Bytes> {
    pub(super) rules: Arc<RateLimitLayer<L, B>>,
    pub(super) usage: Arc<Usage>,
}

/// The service of a [`MeteredLayer`].
#[derive(Debug)]
pub struct Metered<S, L, B = Bytes> {
    inner: S,
    layer: MeteredLayer<L, B>,
}

/// The adapter of [`Metered`]: that of the tower layer, with an uncorrected charge beside each response.
pub type MeteredExchange<S, L, B, ReqB, ResB> =
    TowerExchange<S, L, B, ReqB, ResB, UnsettledResponse<ResB>>;

pin_project! {
    /// The response future of [`Metered`].
    pub struct MeteredFuture<X>
    where
        X: Exchange,
    {
        #[pin]
        response: ResponseFuture<X>,
        usage: Arc<Usage>,
    }
}

impl<S, L: Decide, B> Layer<S> for MeteredLayer<L, B> {
    type Service = Metered<S, L, B>;

    fn layer(&self, inner: S) -> Self::Service {
        Metered { inner, layer: self.clone() }
    }
}

impl<S, L, B, ReqB, ResB> Service<Request<ReqB>> for Metered<S, L, B>
where
    S: Service<Request<ReqB>, Response = Response<ResB>> + Clone,
    L: Decide,
    B: Into<ResB> + 'static,
    ResB: Body<Data = Bytes>,
{
    type Response = Response<MeteredBody<ResB>>;
    type Error = S::Error;
    type Future = MeteredFuture<MeteredExchange<S, L, B, ReqB, ResB>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<ReqB>) -> Self::Future {
        let (head, body) = request.into_parts();
        let response = ResponseFuture::new(&self.layer.rules, &mut self.inner, head, body);
        MeteredFuture { response, usage: Arc::clone(&self.layer.usage) }
    }
}

impl<X, ResB> Future for MeteredFuture<X>
where
    X: Exchange<Response = UnsettledResponse<ResB>>,
    ResB: Body<Data = Bytes>,
{
    type Output = Result<Response<MeteredBody<ResB>>, X::Error>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let UnsettledResponse { response, settlement } = ready!(this.response.poll(cx))?;
        Poll::Ready(Ok(MeteredBody::wrap(response, settlement, this.usage)))
    }
}

impl<L, B> Clone for MeteredLayer<L, B> {
    fn clone(&self) -> Self {
        Self { rules: Arc::clone(&self.rules), usage: Arc::clone(&self.usage) }
    }
}

impl<S: Clone, L, B> Clone for Metered<S, L, B> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), layer: self.layer.clone() }
    }
}

impl<L, B> fmt::Debug for MeteredLayer<L, B> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let usage = &self.usage;
        f.debug_struct("MeteredLayer").field("usage", usage).finish_non_exhaustive()
    }
}

impl<X: Exchange> fmt::Debug for MeteredFuture<X> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MeteredFuture").finish_non_exhaustive()
    }
}
