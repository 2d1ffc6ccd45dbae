use std::{
    borrow::BorrowMut,
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use http::{Request, Response, request::Parts};
use pacegate::{CheckError, Decision, Timestamp};
use pin_project_lite::pin_project;
use tower_service::Service;

use crate::{Decide, Question, RateLimitLayer, Reply};

pin_project! {
    /// The response future of [`RateLimit`](super::RateLimit). It completes with a response of the inner service or
    /// with a rejection, and fails only if the inner service fails.
    pub struct ResponseFuture<S, L, B, ReqB, ResB>
    where
        S: Service<Request<ReqB>>,
        L: Decide,
    {
        rules: Arc<RateLimitLayer<L, B>>,
        #[pin]
        state: State<S, S::Future, L::Deciding, L::Settling, ReqB, ResB>,
    }
}

pin_project! {
    #[project = StateProjection]
    enum State<S, F, D, T, ReqB, ResB> {
        /// Waits for the decision.
        Deciding { #[pin] deciding: D, waiting: Option<Box<UndecidedRequest<S, ReqB>>> },
        /// Waits for the inner service.
        Calling { #[pin] call: F, charged: Option<Charged> },
        /// Waits until the charge is corrected.
        Settling { #[pin] settling: T, response: Option<Response<ResB>> },
        /// Has a response.
        Answered { response: Option<Response<ResB>> },
    }
}

/// A request that waits for its decision.
pub(super) struct UndecidedRequest<S, B> {
    pub(super) service: S,
    pub(super) head: Parts,
    pub(super) body: B,
    pub(super) question: Question,
}

/// The charge of an admitted request, while the inner service handles it.
pub(super) struct Charged {
    decision: Decision,
    asked: Timestamp,
    /// Present if the charge may be corrected after the response.
    question: Option<Box<Question>>,
}

impl<S, L, B, ReqB, ResB> ResponseFuture<S, L, B, ReqB, ResB>
where
    S: Service<Request<ReqB>>,
    L: Decide,
{
    pub(super) fn deciding(
        rules: Arc<RateLimitLayer<L, B>>,
        deciding: L::Deciding,
        waiting: UndecidedRequest<S, ReqB>,
    ) -> Self {
        Self { rules, state: State::Deciding { deciding, waiting: Some(Box::new(waiting)) } }
    }

    pub(super) fn calling(
        rules: Arc<RateLimitLayer<L, B>>,
        call: S::Future,
        charged: Option<Charged>,
    ) -> Self {
        Self { rules, state: State::Calling { call, charged } }
    }

    pub(super) fn answered(rules: Arc<RateLimitLayer<L, B>>, response: Response<ResB>) -> Self {
        Self { rules, state: State::Answered { response: Some(response) } }
    }
}

impl<W, ReqB> UndecidedRequest<W, ReqB> {
    /// Calls the inner service if the request is admitted. Otherwise builds the rejection.
    pub(super) fn decided<S, L, B, ResB>(
        mut self,
        rules: Arc<RateLimitLayer<L, B>>,
        answer: Result<Decision, CheckError>,
    ) -> ResponseFuture<S, L, B, ReqB, ResB>
    where
        W: BorrowMut<S>,
        S: Service<Request<ReqB>, Response = Response<ResB>>,
        L: Decide,
        B: Into<ResB> + 'static,
    {
        match rules.admit(answer) {
            Ok(decision) => {
                self.head.extensions.insert(decision);
                let request = Request::from_parts(self.head, self.body);
                let call = self.service.borrow_mut().call(request);
                let asked = self.question.asked();
                let question = rules.settles().then(|| Box::new(self.question));
                let charged = Charged { decision, asked, question };
                ResponseFuture::calling(rules, call, Some(charged))
            }
            Err(refusal) => {
                let response = rules.refuse(&refusal, &self.head, Some(&self.question));
                let response = response.map(B::into);
                ResponseFuture::answered(rules, response)
            }
        }
    }
}

impl<S, L, B, ReqB, ResB> Future for ResponseFuture<S, L, B, ReqB, ResB>
where
    S: Service<Request<ReqB>, Response = Response<ResB>>,
    L: Decide,
    B: Into<ResB> + 'static,
{
    type Output = Result<Response<ResB>, S::Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        loop {
            let mut this = self.as_mut().project();
            match this.state.as_mut().project() {
                StateProjection::Deciding { deciding, waiting } => {
                    let answer = ready!(deciding.poll(cx));
                    let Some(waiting) = waiting.take() else { unreachable!("decided once") };
                    let next: Self = waiting.decided(Arc::clone(this.rules), answer);
                    this.state.set(next.state);
                }
                StateProjection::Calling { call, charged } => {
                    let response = ready!(call.poll(cx))?;
                    let (response, settling) = settle(this.rules, response, charged.take());
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

/// Adds headers to a response and corrects the charge. Returns a future if the correction is still in progress.
fn settle<L: Decide, B: 'static, ResB>(
    rules: &RateLimitLayer<L, B>,
    mut response: Response<ResB>,
    charged: Option<Charged>,
) -> (Response<ResB>, Option<L::Settling>) {
    let Some(Charged { decision, asked, question }) = charged else { return (response, None) };
    rules.write_headers(&decision, asked, response.headers_mut());
    let Some(question) = question else { return (response, None) };
    let (head, body) = response.into_parts();
    let settling = match rules.settle(&question, &decision, &head) {
        Reply::Now(()) => None,
        Reply::Later(settling) => Some(settling),
    };
    (Response::from_parts(head, body), settling)
}

fn taken<B>(response: &mut Option<Response<B>>) -> Response<B> {
    let Some(response) = response.take() else { panic!("polled after it has completed") };
    response
}

impl<S, L, B, ReqB, ResB> fmt::Debug for ResponseFuture<S, L, B, ReqB, ResB>
where
    S: Service<Request<ReqB>>,
    L: Decide,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}
