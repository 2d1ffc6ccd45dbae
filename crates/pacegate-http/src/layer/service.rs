use std::{
    mem,
    sync::Arc,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{Request, Response};
use tower_service::Service;

use super::future::{ResponseFuture, UndecidedRequest};
use crate::{Asked, Decide, RateLimitLayer, Reply};

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

impl<S, L, B> RateLimit<S, L, B> {
    pub(super) fn new(inner: S, rules: Arc<RateLimitLayer<L, B>>) -> Self {
        Self { inner, rules }
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
    type Future = ResponseFuture<S, L, B, ReqB, ResB>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<ReqB>) -> Self::Future {
        let rules = Arc::clone(&self.rules);
        let (head, body) = request.into_parts();
        let question = match rules.ask(&head) {
            Asked::Ask(question) => question,
            Asked::Skip => {
                let call = self.inner.call(Request::from_parts(head, body));
                return ResponseFuture::calling(rules, call, None);
            }
            Asked::Refuse(refusal) => {
                let response = rules.refuse(&refusal, &head, None).map(B::into);
                return ResponseFuture::answered(rules, response);
            }
        };
        match rules.decide(&question) {
            Reply::Now(answer) => {
                let waiting = UndecidedRequest { service: &mut self.inner, head, body, question };
                waiting.decided(rules, answer)
            }
            Reply::Later(deciding) => {
                // This instance is ready; a clone of it might not be.
                let clone = self.inner.clone();
                let service = mem::replace(&mut self.inner, clone);
                let waiting = UndecidedRequest { service, head, body, question };
                ResponseFuture::deciding(rules, deciding, waiting)
            }
        }
    }
}
