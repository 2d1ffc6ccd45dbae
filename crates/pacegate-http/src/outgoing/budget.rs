//! Charges of calls that the bodies of their responses correct.

#[cfg(feature = "reqwest")]
mod reqwest;

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

use super::{OutgoingError, StayWithinLayer, Throttle, ThrottleFuture, Wait};
use crate::{MeteredBody, Usage};

/// A [`StayWithinLayer`] that corrects charges at the end of responses, see
/// [`settle_by`](StayWithinLayer::settle_by).
pub struct BudgetLayer<L> {
    pub(super) layer: StayWithinLayer<L>,
    pub(super) usage: Arc<Usage>,
}

/// The client of a [`BudgetLayer`].
pub struct Budget<S, L> {
    throttle: Throttle<S, L>,
    usage: Arc<Usage>,
}

pin_project! {
    /// The response future of [`Budget`].
    pub struct BudgetFuture<S, L, B>
    where
        S: Service<Request<B>>,
    {
        #[pin]
        call: ThrottleFuture<S, L, B>,
        usage: Arc<Usage>,
    }
}

impl<L: Wait> StayWithinLayer<L> {
    /// Corrects the charge at the end of the response by the units that its body reports: refunds the rest, or charges
    /// more, which later calls wait for.
    ///
    /// Estimate the cost with [`cost`](Self::cost). The body is passed on unchanged, each part as it arrives. A
    /// response that reports nothing, is compressed, or is not read to its end keeps the charge. To correct these by
    /// their head, use [`settle_with`](Self::settle_with): its adjustment applies unless it is
    /// [`Adjustment::Keep`](crate::Adjustment::Keep).
    ///
    /// ```
    /// use std::convert::Infallible;
    /// use axum::{body::{Body, to_bytes}, response::Response};
    /// use http::{Request, header::CONTENT_TYPE};
    /// use pacegate::{Limit, Limiter};
    /// use pacegate_http::{Usage, outgoing::StayWithinLayer};
    /// use tower::{Layer, ServiceExt, service_fn};
    ///
    /// # pollster::block_on(async {
    /// let limiter = Limiter::memory(Limit::per_minute(10_000));
    /// let layer = StayWithinLayer::new(limiter.clone())
    ///     .cost(|_| 4_000)
    ///     .settle_by(Usage::json("/usage/total_tokens"));
    /// let client = layer.layer(service_fn(|_: Request<Body>| async {
    ///     let response = Response::builder().header(CONTENT_TYPE, "application/json");
    ///     Ok::<_, Infallible>(response.body(Body::from(r#"{"usage": {"total_tokens": 300}}"#)).unwrap())
    /// }));
    /// let response = client.oneshot(Request::post("http://llm.example/chat").body(Body::empty())?).await?;
    /// to_bytes(Body::new(response.into_body()), 1 << 20).await?;
    /// assert_eq!(limiter.peek("llm.example").remaining(), 9_700);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    #[must_use]
    pub fn settle_by(self, usage: Usage) -> BudgetLayer<L> {
        let layer = self.set(|settings| settings.defers = true);
        BudgetLayer { layer, usage: Arc::new(usage) }
    }
}

impl<S, L: Wait> Layer<S> for BudgetLayer<L> {
    type Service = Budget<S, L>;

    fn layer(&self, inner: S) -> Self::Service {
        Budget { throttle: self.layer.layer(inner), usage: Arc::clone(&self.usage) }
    }
}

impl<S, L, ReqB, ResB> Service<Request<ReqB>> for Budget<S, L>
where
    S: Service<Request<ReqB>, Response = Response<ResB>> + Clone,
    ResB: Body<Data = Bytes>,
    L: Wait,
{
    type Response = Response<MeteredBody<ResB>>;
    type Error = OutgoingError<S::Error>;
    type Future = BudgetFuture<S, L, ReqB>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.throttle.poll_ready(cx)
    }

    fn call(&mut self, request: Request<ReqB>) -> Self::Future {
        BudgetFuture { call: self.throttle.call(request), usage: Arc::clone(&self.usage) }
    }
}

impl<S, L, ReqB, ResB> Future for BudgetFuture<S, L, ReqB>
where
    S: Service<Request<ReqB>, Response = Response<ResB>>,
    ResB: Body<Data = Bytes>,
    L: Wait,
{
    type Output = Result<Response<MeteredBody<ResB>>, OutgoingError<S::Error>>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let this = self.project();
        let (response, settlement) = ready!(this.call.poll_served(cx))?;
        Poll::Ready(Ok(MeteredBody::wrap(response, settlement, this.usage)))
    }
}

impl<L> Clone for BudgetLayer<L> {
    fn clone(&self) -> Self {
        Self { layer: self.layer.clone(), usage: Arc::clone(&self.usage) }
    }
}

impl<S: Clone, L> Clone for Budget<S, L> {
    fn clone(&self) -> Self {
        Self { throttle: self.throttle.clone(), usage: Arc::clone(&self.usage) }
    }
}

impl<L> fmt::Debug for BudgetLayer<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { layer, usage } = self;
        f.debug_struct("BudgetLayer").field("layer", layer).field("usage", usage).finish()
    }
}

impl<S: fmt::Debug, L> fmt::Debug for Budget<S, L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Budget").field("throttle", &self.throttle).finish_non_exhaustive()
    }
}

impl<S, L, B> fmt::Debug for BudgetFuture<S, L, B>
where
    S: Service<Request<B>>,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("BudgetFuture").finish_non_exhaustive()
    }
}
