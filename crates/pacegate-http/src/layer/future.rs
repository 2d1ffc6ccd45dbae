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

use super::body::MakeBody;
use crate::{Decide, Question, Reply, Rules};

pin_project! {
    /// The response future of [`RateLimit`](super::RateLimit). It completes with a response of the inner service or
    /// with a rejection, and fails only if the inner service fails.
    pub struct ResponseFuture<S, L, M, ReqB, ResB>
    where
        S: Service<Request<ReqB>>,
        L: Decide,
    {
        rules: Arc<Rules<L>>,
        make: M,
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

impl<S, L, M, ReqB, ResB> ResponseFuture<S, L, M, ReqB, ResB>
where
    S: Service<Request<ReqB>>,
    L: Decide,
{
    pub(super) fn deciding(
        rules: Arc<Rules<L>>,
        make: M,
        deciding: L::Deciding,
        waiting: UndecidedRequest<S, ReqB>,
    ) -> Self {
        Self { rules, make, state: State::Deciding { deciding, waiting: Some(Box::new(waiting)) } }
    }

    pub(super) fn calling(
        rules: Arc<Rules<L>>,
        make: M,
        call: S::Future,
        charged: Option<Charged>,
    ) -> Self {
        Self { rules, make, state: State::Calling { call, charged } }
    }

    pub(super) fn answered(rules: Arc<Rules<L>>, make: M, response: Response<ResB>) -> Self {
        Self { rules, make, state: State::Answered { response: Some(response) } }
    }
}

impl<W, B> UndecidedRequest<W, B> {
    /// Calls the inner service if the request is admitted. Otherwise builds the rejection.
    pub(super) fn decided<S, L, M, ResB>(
        mut self,
        rules: Arc<Rules<L>>,
        make: M,
        answer: Result<Decision, CheckError>,
    ) -> ResponseFuture<S, L, M, B, ResB>
    where
        W: BorrowMut<S>,
        S: Service<Request<B>, Response = Response<ResB>>,
        L: Decide,
        M: MakeBody<ResB>,
    {
        match rules.admit(answer) {
            Ok(decision) => {
                self.head.extensions.insert(decision);
                let request = Request::from_parts(self.head, self.body);
                let call = self.service.borrow_mut().call(request);
                let asked = self.question.asked();
                let question = rules.settles().then(|| Box::new(self.question));
                let charged = Charged { decision, asked, question };
                ResponseFuture::calling(rules, make, call, Some(charged))
            }
            Err(refusal) => {
                let response = rules.refuse(&refusal, &self.head, Some(&self.question));
                let response = response.map(|body| make.make(body));
                ResponseFuture::answered(rules, make, response)
            }
        }
    }
}

impl<S, L, M, ReqB, ResB> Future for ResponseFuture<S, L, M, ReqB, ResB>
where
    S: Service<Request<ReqB>, Response = Response<ResB>>,
    L: Decide,
    M: MakeBody<ResB>,
{
    type Output = Result<Response<ResB>, S::Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        loop {
            let mut this = self.as_mut().project();
            match this.state.as_mut().project() {
                StateProjection::Deciding { deciding, waiting } => {
                    let answer = ready!(deciding.poll(cx));
                    let Some(waiting) = waiting.take() else { unreachable!("decided once") };
                    let (rules, make) = (Arc::clone(this.rules), this.make.clone());
                    let next: Self = waiting.decided(rules, make, answer);
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
fn settle<L: Decide, B>(
    rules: &Rules<L>,
    mut response: Response<B>,
    charged: Option<Charged>,
) -> (Response<B>, Option<L::Settling>) {
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

impl<S, L, M, ReqB, ResB> fmt::Debug for ResponseFuture<S, L, M, ReqB, ResB>
where
    S: Service<Request<ReqB>>,
    L: Decide,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}
