use std::{
    fmt,
    future::{Ready, ready},
    rc::Rc,
    sync::Arc,
    task::{Context, Poll},
};

use actix_web::{
    HttpResponse,
    body::{EitherBody, MessageBody},
    dev::{Service, ServiceRequest, ServiceResponse, Transform},
};
use pacegate_http::{Asked, Decide, IntoDenial, Reply};

use crate::{
    ActixRules, Incoming, Rules,
    future::{ResponseFuture, Waiting},
};

/// Middleware for actix-web that rejects requests above their limits: `App::new().wrap(RateLimit::new(rules))`.
///
/// Handlers can read the [`Decision`](pacegate::Decision) of an admitted request from its extensions.
///
/// ```
/// use actix_web::{App, http::StatusCode, test, web};
/// use pacegate::{Limit, Limiter};
/// use pacegate_actix::{RateLimit, Rules, resolve::Everyone};
///
/// # #[actix_web::main]
/// # async fn main() {
/// let limit = RateLimit::new(Rules::new(Limiter::memory(Limit::per_minute(1))).by(Everyone));
/// let app = App::new().wrap(limit).route("/", web::get().to(|| async { "hello" }));
/// let app = test::init_service(app).await;
/// for expected in [StatusCode::OK, StatusCode::TOO_MANY_REQUESTS] {
///     let request = test::TestRequest::get().uri("/").to_request();
///     assert_eq!(test::call_service(&app, request).await.status(), expected);
/// }
/// # }
/// ```
///
/// Clones share the rules and the limiter. With `wrap` on a scope or a resource instead of the app, only its requests
/// are limited. actix-web runs the middleware that was added last first, so add this one before the one that
/// authenticates if it counts by user.
pub struct RateLimit<L> {
    rules: Arc<ActixRules<L>>,
}

/// The service that [`RateLimit`] creates around an inner service.
///
/// A [`Limiter`](pacegate::Limiter) decides before `call` returns, without an allocation. With a
/// [`SharedLimiter`](pacegate::SharedLimiter), the future holds the request until the store answers. If the future is
/// dropped before that, the request is not served, but may have been charged.
pub struct RateLimited<S, L> {
    inner: Rc<S>,
    rules: Arc<ActixRules<L>>,
}

impl<L: Decide> RateLimit<L> {
    /// Creates the middleware. Create the rules once, outside of the server's app factory, so that all workers share
    /// them.
    pub fn new<R>(rules: Rules<L, R>) -> Self
    where
        R: IntoDenial<Incoming, Response = HttpResponse> + 'static,
    {
        Self { rules: Arc::new(rules.map_denials(R::into_denial)) }
    }
}

impl<S, B, L> Transform<S, ServiceRequest> for RateLimit<L>
where
    S: Service<ServiceRequest, Response = ServiceResponse<B>> + 'static,
    B: MessageBody,
    L: Decide,
{
    type Response = ServiceResponse<EitherBody<B>>;
    type Error = S::Error;
    type Transform = RateLimited<S, L>;
    type InitError = ();
    type Future = Ready<Result<Self::Transform, ()>>;

    fn new_transform(&self, service: S) -> Self::Future {
        ready(Ok(RateLimited { inner: Rc::new(service), rules: Arc::clone(&self.rules) }))
    }
}

impl<S, B, L> Service<ServiceRequest> for RateLimited<S, L>
where
    S: Service<ServiceRequest, Response = ServiceResponse<B>>,
    B: MessageBody,
    L: Decide,
{
    type Response = ServiceResponse<EitherBody<B>>;
    type Error = S::Error;
    type Future = ResponseFuture<S, L, B>;

    fn poll_ready(&self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&self, request: ServiceRequest) -> Self::Future {
        let (service, rules) = (&self.inner, &self.rules);
        let (request, payload) = request.into_parts();
        let head = Incoming::new(request);
        let question = match rules.ask(&head) {
            Asked::Ask(question) => question,
            Asked::Skip => {
                let request = ServiceRequest::from_parts(head.into_request(), payload);
                return ResponseFuture::calling(service, rules, service.call(request), None);
            }
            Asked::Refuse(refusal) => {
                let response = rules.deny(&refusal, &head, None);
                return ResponseFuture::answered(service, rules, head, response);
            }
        };
        let reply = rules.decide(&question);
        let waiting = Waiting { head, payload, question };
        match reply {
            Reply::Now(answer) => waiting.decided(service, rules, answer),
            Reply::Later(deciding) => ResponseFuture::deciding(service, rules, deciding, waiting),
        }
    }
}

impl<L> Clone for RateLimit<L> {
    fn clone(&self) -> Self {
        Self { rules: Arc::clone(&self.rules) }
    }
}

impl<L> fmt::Debug for RateLimit<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RateLimit").field(&self.rules).finish()
    }
}

impl<S, L> fmt::Debug for RateLimited<S, L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RateLimited").field(&self.rules).finish()
    }
}
