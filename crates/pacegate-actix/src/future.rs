use std::{
    fmt,
    future::Future,
    pin::Pin,
    rc::Rc,
    sync::Arc,
    task::{Context, Poll, ready},
};

use actix_web::{
    HttpMessage as _, HttpResponse,
    body::{EitherBody, MessageBody},
    dev::{Payload, Service, ServiceRequest, ServiceResponse},
    http::header::HeaderMap,
};
use pacegate::{CheckError, Decision};
use pacegate_http::{Decide, Question, Refusal, Reply};
use pin_project_lite::pin_project;

use crate::{ActixRules, Incoming, bridge};

pin_project! {
    /// The response future of [`RateLimited`](crate::RateLimited). It completes with a response of the inner service or
    /// with a rejection, and fails only if the inner service fails.
    pub struct ResponseFuture<S, L, B>
    where
        S: Service<ServiceRequest>,
        L: Decide,
    {
        service: Rc<S>,
        rules: Arc<ActixRules<L>>,
        #[pin]
        state: State<S::Future, L::Deciding, L::Settling, B>,
    }
}

pin_project! {
    #[project = StateProjection]
    enum State<F, D, T, B> {
        /// Waits for the decision.
        Deciding { #[pin] deciding: D, waiting: Option<Waiting> },
        /// Waits for the inner service.
        Calling { #[pin] call: F, charged: Option<(Decision, Question)> },
        /// Waits until the charge is corrected.
        Settling { #[pin] settling: T, response: Option<ServiceResponse<EitherBody<B>>> },
        /// Has a response.
        Answered { response: Option<ServiceResponse<EitherBody<B>>> },
    }
}

/// A request that waits for its decision.
pub(crate) struct Waiting {
    pub(crate) head: Incoming,
    pub(crate) payload: Payload,
    pub(crate) question: Question,
}

impl<S, L, B> ResponseFuture<S, L, B>
where
    S: Service<ServiceRequest>,
    L: Decide,
{
    pub(crate) fn deciding(
        service: &Rc<S>,
        rules: &Arc<ActixRules<L>>,
        deciding: L::Deciding,
        waiting: Waiting,
    ) -> Self {
        Self::new(service, rules, State::Deciding { deciding, waiting: Some(waiting) })
    }

    pub(crate) fn calling(
        service: &Rc<S>,
        rules: &Arc<ActixRules<L>>,
        call: S::Future,
        charged: Option<(Decision, Question)>,
    ) -> Self {
        Self::new(service, rules, State::Calling { call, charged })
    }

    pub(crate) fn answered(
        service: &Rc<S>,
        rules: &Arc<ActixRules<L>>,
        head: Incoming,
        response: HttpResponse,
    ) -> Self {
        let response = response.map_into_right_body();
        let response = Some(ServiceResponse::new(head.into_request(), response));
        Self::new(service, rules, State::Answered { response })
    }

    fn new(
        service: &Rc<S>,
        rules: &Arc<ActixRules<L>>,
        state: State<S::Future, L::Deciding, L::Settling, B>,
    ) -> Self {
        Self { service: Rc::clone(service), rules: Arc::clone(rules), state }
    }
}

impl Waiting {
    /// Serves the request, or refuses it.
    pub(crate) fn decided<S, L, B>(
        self,
        service: &Rc<S>,
        rules: &Arc<ActixRules<L>>,
        answer: Result<Decision, CheckError>,
    ) -> ResponseFuture<S, L, B>
    where
        S: Service<ServiceRequest, Response = ServiceResponse<B>>,
        L: Decide,
    {
        let Self { head, payload, question } = self;
        match rules.admit(answer) {
            Ok(decision) => {
                head.extensions_mut().insert(decision);
                let request = ServiceRequest::from_parts(head.into_request(), payload);
                let call = service.call(request);
                ResponseFuture::calling(service, rules, call, Some((decision, question)))
            }
            Err(refusal) => {
                let mut response = rules.deny(&refusal, &head, Some(&question));
                if let Refusal::Denied(decision) = &refusal {
                    write_headers(rules, decision, &question, response.headers_mut());
                }
                ResponseFuture::answered(service, rules, head, response)
            }
        }
    }
}

impl<S, L, B> Future for ResponseFuture<S, L, B>
where
    S: Service<ServiceRequest, Response = ServiceResponse<B>>,
    L: Decide,
    B: MessageBody,
{
    type Output = Result<ServiceResponse<EitherBody<B>>, S::Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        loop {
            let mut this = self.as_mut().project();
            match this.state.as_mut().project() {
                StateProjection::Deciding { deciding, waiting } => {
                    let answer = ready!(deciding.poll(cx));
                    let Some(waiting) = waiting.take() else {
                        unreachable!("the request waits until the decision")
                    };
                    let next: Self = waiting.decided(this.service, this.rules, answer);
                    this.state.set(next.state);
                }
                StateProjection::Calling { call, charged } => {
                    let response = ready!(call.poll(cx))?;
                    let (response, settling) = settle(this.rules, response, charged.take());
                    let response = response.map_into_left_body();
                    this.state.set(match settling {
                        Some(settling) => State::Settling { settling, response: Some(response) },
                        None => return Poll::Ready(Ok(response)),
                    });
                }
                StateProjection::Settling { settling, response } => {
                    ready!(settling.poll(cx));
                    return Poll::Ready(Ok(taken(response)));
                }
                StateProjection::Answered { response } => {
                    return Poll::Ready(Ok(taken(response)));
                }
            }
        }
    }
}

/// Adds headers to a response and starts to correct the charge. The future, if any, completes the correction.
fn settle<L: Decide, B>(
    rules: &ActixRules<L>,
    mut response: ServiceResponse<B>,
    charged: Option<(Decision, Question)>,
) -> (ServiceResponse<B>, Option<L::Settling>) {
    let Some((decision, question)) = charged else { return (response, None) };
    let headers = response.headers_mut();
    if !rules.has_headers(|name| headers.contains_key(name.as_str())) {
        write_headers(rules, &decision, &question, headers);
    }
    if !rules.settles() {
        return (response, None);
    }
    let settling = match rules.settle(&question, &decision, response.response().head()) {
        Reply::Now(()) => None,
        Reply::Later(settling) => Some(settling),
    };
    (response, settling)
}

fn write_headers<L: Decide>(
    rules: &ActixRules<L>,
    decision: &Decision,
    question: &Question,
    headers: &mut HeaderMap,
) {
    rules.each_header(decision, question, |name, value| bridge::insert(headers, name, value));
}

fn taken<B>(response: &mut Option<ServiceResponse<B>>) -> ServiceResponse<B> {
    let Some(response) = response.take() else { panic!("polled after it has completed") };
    response
}

impl<S, L, B> fmt::Debug for ResponseFuture<S, L, B>
where
    S: Service<ServiceRequest>,
    L: Decide,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}
