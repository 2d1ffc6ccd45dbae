use std::{
    mem,
    sync::Arc,
    task::{Context, Poll},
};

use http::{Request, Response};
use tower_service::Service;

use super::{
    body::{IntoBody, MakeBody},
    future::{ResponseFuture, UndecidedRequest},
};
use crate::{Asked, Decide, Reply, Rules};

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
#[derive(Clone, Debug)]
pub struct RateLimit<S, L, M = IntoBody> {
    inner: S,
    rules: Arc<Rules<L>>,
    make: M,
}

impl<S, L, M> RateLimit<S, L, M> {
    pub(super) fn new(inner: S, rules: Arc<Rules<L>>, make: M) -> Self {
        Self { inner, rules, make }
    }
}

impl<S, L, M, ReqB, ResB> Service<Request<ReqB>> for RateLimit<S, L, M>
where
    S: Service<Request<ReqB>, Response = Response<ResB>> + Clone,
    L: Decide,
    M: MakeBody<ResB>,
{
    type Response = Response<ResB>;
    type Error = S::Error;
    type Future = ResponseFuture<S, L, M, ReqB, ResB>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: Request<ReqB>) -> Self::Future {
        let (rules, make) = (Arc::clone(&self.rules), self.make.clone());
        let (head, body) = request.into_parts();
        let question = match rules.ask(&head) {
            Asked::Ask(question) => question,
            Asked::Skip => {
                let call = self.inner.call(Request::from_parts(head, body));
                return ResponseFuture::calling(rules, make, call, None);
            }
            Asked::Refuse(refusal) => {
                let response = rules.refuse(&refusal, &head, None).map(|body| make.make(body));
                return ResponseFuture::answered(rules, make, response);
            }
        };
        match rules.decide(&question) {
            Reply::Now(answer) => {
                let waiting = UndecidedRequest { service: &mut self.inner, head, body, question };
                waiting.decided(rules, make, answer)
            }
            Reply::Later(deciding) => {
                // This instance is ready; a clone of it might not be.
                let clone = self.inner.clone();
                let service = mem::replace(&mut self.inner, clone);
                let waiting = UndecidedRequest { service, head, body, question };
                ResponseFuture::deciding(rules, make, deciding, waiting)
            }
        }
    }
}
