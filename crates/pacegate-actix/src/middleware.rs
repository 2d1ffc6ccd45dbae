use std::{
    fmt,
    future::{Ready, ready},
    marker::PhantomData,
    rc::Rc,
    sync::Arc,
    task::{Context, Poll},
};

use actix_web::{
    HttpMessage as _, HttpResponse,
    body::{EitherBody, MessageBody},
    dev::{Payload, ResponseHead, Service, ServiceRequest, ServiceResponse, Transform},
};
use pacegate::{Decision, Timestamp};
use pacegate_http::{
    Decide, Exchange, ExchangeRules, IntoDenial, Question, Refusal, ResponseFuture, Settlement,
};

use crate::{ActixRules, Incoming, Rules, bridge};

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

/// The adapter for services of actix-web.
#[derive(Debug)]
pub struct ActixExchange<S, L, B>(PhantomData<(S, L, B)>);

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
    type Future = ResponseFuture<ActixExchange<S, L, B>>;

    fn poll_ready(&self, cx: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&self, request: ServiceRequest) -> Self::Future {
        let (request, payload) = request.into_parts();
        let mut service = Rc::clone(&self.inner);
        ResponseFuture::new(&self.rules, &mut service, Incoming::new(request), payload)
    }
}

impl<S, L, B> Exchange for ActixExchange<S, L, B>
where
    S: Service<ServiceRequest, Response = ServiceResponse<B>>,
    L: Decide,
    B: MessageBody,
{
    type Limiter = L;
    type Service = Rc<S>;
    type Head = Incoming;
    type Body = Payload;
    type Call = S::Future;
    type Served = ServiceResponse<B>;
    type Error = S::Error;
    type Answer = ResponseHead;
    type Denial = HttpResponse;
    type Response = ServiceResponse<EitherBody<B>>;

    fn call(
        service: &mut Rc<S>,
        head: Incoming,
        payload: Payload,
        decision: Option<Decision>,
    ) -> S::Future {
        if let Some(decision) = decision {
            head.extensions_mut().insert(decision);
        }
        service.call(ServiceRequest::from_parts(head.into_request(), payload))
    }

    fn keep(service: &mut Rc<S>) -> Rc<S> {
        Rc::clone(service)
    }

    fn deny(
        rules: &ExchangeRules<Self>,
        refusal: &Refusal,
        head: Incoming,
        question: Option<&Question>,
    ) -> Self::Response {
        let mut response = rules.deny(refusal, &head, question);
        if let (Refusal::Denied(decision), Some(question)) = (refusal, question) {
            let headers = response.headers_mut();
            rules.each_header(decision, question.asked(), |name, value| {
                bridge::insert(headers, &name, value);
            });
        }
        ServiceResponse::new(head.into_request(), response.map_into_right_body())
    }

    fn add_headers(
        rules: &ExchangeRules<Self>,
        decision: &Decision,
        asked: Timestamp,
        response: &mut ServiceResponse<B>,
    ) {
        let headers = response.headers_mut();
        if !rules.has_headers(|name| bridge::contains(headers, name)) {
            rules.each_header(decision, asked, |name, value| bridge::insert(headers, &name, value));
        }
    }

    fn read_head<T>(
        response: ServiceResponse<B>,
        read: impl FnOnce(&ResponseHead) -> T,
    ) -> (ServiceResponse<B>, T) {
        let result = read(response.response().head());
        (response, result)
    }

    fn respond(response: ServiceResponse<B>, _: Option<Settlement>) -> Self::Response {
        response.map_into_left_body()
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
