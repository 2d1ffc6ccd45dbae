//! The tower layer.

use std::{
    marker::PhantomData,
    mem,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{Request, Response, request, response};
use pacegate::{Decision, Timestamp};
use tower_layer::Layer;
use tower_service::Service;

use crate::{
    Decide, Exchange, ExchangeRules, Question, RateLimitLayer, Refusal, ResponseFuture, Settlement,
};

/// A service that serves only requests within their limits. An admitted request has its
/// [`Decision`](pacegate::Decision) in its extensions.
///
/// The service is ready when the inner service is. A [`Limiter`](pacegate::Limiter) decides before `call` returns.
/// With a [`SharedLimiter`](pacegate::SharedLimiter), the future holds the request and a clone of the inner service
/// until the store answers. If the future is dropped before that, the request is dropped, but may have been charged.
///
/// ```
/// use axum::{Extension, Router, routing::get};
/// use pacegate::{Decision, Limit, Limiter};
/// use pacegate_http::RateLimitLayer;
///
/// async fn quota(Extension(decision): Extension<Decision>) -> String {
///     format!("{} left", decision.remaining())
/// }
///
/// let layer = RateLimitLayer::new(Limiter::memory(Limit::per_minute(100)));
/// let app: Router = Router::new().route("/quota", get(quota)).layer(layer);
/// # let _ = app;
/// ```
#[derive(Debug)]
pub struct RateLimit<S, L, B = Bytes> {
    inner: S,
    rules: Arc<RateLimitLayer<L, B>>,
}

/// The adapter for services of [`http::Request`], with `R` as the response of the middleware.
#[derive(Debug)]
pub struct TowerExchange<S, L, B, ReqB, ResB, R = Response<ResB>>(
    PhantomData<(S, L, B, ReqB, ResB, R)>,
);

/// A response, and its charge if that is corrected at the end of the response.
#[derive(Debug)]
pub struct UnsettledResponse<B> {
    /// The response of the inner service.
    pub response: Response<B>,
    /// The charge. If it is dropped, the estimate stays charged.
    pub settlement: Option<Settlement>,
}

/// Keeps the charge.
impl<B> From<UnsettledResponse<B>> for Response<B> {
    fn from(unsettled: UnsettledResponse<B>) -> Self {
        unsettled.response
    }
}

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
        RateLimit { inner, rules: Arc::new(self.clone()) }
    }
}

impl<S: Clone, L, B> Clone for RateLimit<S, L, B> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), rules: Arc::clone(&self.rules) }
    }
}

impl<S, L, B, ReqB, ResB> Service<Request<ReqB>> for RateLimit<S, L, B>
where
    S: Service<Request<ReqB>, Response = Response<ResB>> + Clone,
    L: Decide,
    B: Into<ResB> + 'static,
{
    type Response = Response<ResB>;
    type Error = S::Error;
    type Future = ResponseFuture<TowerExchange<S, L, B, ReqB, ResB>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<ReqB>) -> Self::Future {
        let (head, body) = request.into_parts();
        ResponseFuture::new(&self.rules, &mut self.inner, head, body)
    }
}

impl<S, L, B, ReqB, ResB, R> Exchange for TowerExchange<S, L, B, ReqB, ResB, R>
where
    S: Service<Request<ReqB>, Response = Response<ResB>> + Clone,
    L: Decide,
    B: Into<ResB> + 'static,
    R: From<UnsettledResponse<ResB>>,
{
    type Limiter = L;
    type Service = S;
    type Head = request::Parts;
    type Body = ReqB;
    type Call = S::Future;
    type Served = Response<ResB>;
    type Error = S::Error;
    type Answer = response::Parts;
    type Denial = Response<B>;
    type Response = R;

    fn call(
        service: &mut S,
        mut head: request::Parts,
        body: ReqB,
        decision: Option<Decision>,
    ) -> S::Future {
        if let Some(decision) = decision {
            head.extensions.insert(decision);
        }
        service.call(Request::from_parts(head, body))
    }

    fn keep(service: &mut S) -> S {
        // This instance is ready; a clone of it might not be.
        let clone = service.clone();
        mem::replace(service, clone)
    }

    fn deny(
        rules: &ExchangeRules<Self>,
        refusal: &Refusal,
        head: request::Parts,
        question: Option<&Question>,
    ) -> R {
        Self::respond(rules.refuse(refusal, &head, question).map(B::into), None)
    }

    fn add_headers(
        rules: &ExchangeRules<Self>,
        decision: &Decision,
        asked: Timestamp,
        response: &mut Response<ResB>,
    ) {
        rules.write_headers(decision, asked, response.headers_mut());
    }

    fn read_head<T>(
        response: Response<ResB>,
        read: impl FnOnce(&response::Parts) -> T,
    ) -> (Response<ResB>, T) {
        let (head, body) = response.into_parts();
        let result = read(&head);
        (Response::from_parts(head, body), result)
    }

    fn respond(response: Response<ResB>, settlement: Option<Settlement>) -> R {
        UnsettledResponse { response, settlement }.into()
    }
}
