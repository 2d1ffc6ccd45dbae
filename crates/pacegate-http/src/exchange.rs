//! The path of a request through a middleware, the same for all frameworks.

use std::{
    fmt,
    future::Future,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use pacegate::{CheckError, Decision, Timestamp};
use pin_project_lite::pin_project;

use crate::{
    Adjustment, Asked, Decide, Estimated, Head, Question, Refusal, Reply, Reserving, Rules,
    Settlement, Settling,
};

/// The adapter of a framework: the types and functions that [`ResponseFuture`] needs.
pub trait Exchange: Sized {
    /// The limiter.
    type Limiter: Decide;
    /// The inner service.
    type Service;
    /// The head of a request.
    type Head: Head + 'static;
    /// The body of a request.
    type Body;
    /// The future of the inner service.
    type Call: Future<Output = Result<Self::Served, Self::Error>>;
    /// The response of the inner service.
    type Served;
    /// The error of the inner service.
    type Error;
    /// The head of a response, for [`Rules::settle_with`].
    type Answer: 'static;
    /// The response to a request that is not served, see [`Rules::deny_with`].
    type Denial: 'static;
    /// The response of the middleware.
    type Response;

    /// Calls the inner service. An admitted request gets its decision as an extension.
    fn call(
        service: &mut Self::Service,
        head: Self::Head,
        body: Self::Body,
        decision: Option<Decision>,
    ) -> Self::Call;

    /// Returns a handle of the inner service that can be called later.
    fn keep(service: &mut Self::Service) -> Self::Service;

    /// Returns the response to a request that is not served. `question` is `None` if the limiter was not asked.
    fn deny(
        rules: &ExchangeRules<Self>,
        refusal: &Refusal,
        head: Self::Head,
        question: Option<&Question>,
    ) -> Self::Response;

    /// Adds the rate limit headers to a response, unless it has some. `asked` is the time of the question.
    fn add_headers(
        rules: &ExchangeRules<Self>,
        decision: &Decision,
        asked: Timestamp,
        response: &mut Self::Served,
    );

    /// Passes the head of a response to `read`.
    fn read_head<T>(
        response: Self::Served,
        read: impl FnOnce(&Self::Answer) -> T,
    ) -> (Self::Served, T);

    /// Converts a response of the inner service to one of the middleware. With a settlement, its charge may be
    /// corrected at its end; dropping the settlement keeps the charge.
    fn respond(response: Self::Served, settlement: Option<Settlement>) -> Self::Response;
}

/// The rules for the types of a framework.
pub type ExchangeRules<X> = Rules<
    <X as Exchange>::Limiter,
    <X as Exchange>::Head,
    <X as Exchange>::Answer,
    <X as Exchange>::Denial,
>;

type Deciding<X> = <<X as Exchange>::Limiter as Decide>::Deciding;
type StateOf<X> =
    State<Deciding<X>, Box<UndecidedRequest<X>>, <X as Exchange>::Call, <X as Exchange>::Response>;

pin_project! {
    /// The response future of a middleware. It completes with a response of the inner service or with a rejection, and
    /// fails only if the inner service fails.
    pub struct ResponseFuture<X>
    where
        X: Exchange,
    {
        rules: Arc<ExchangeRules<X>>,
        #[pin]
        state: StateOf<X>,
    }
}

pin_project! {
    #[project = StateProjection]
    enum State<D, W, F, R> {
        /// Waits for the decision.
        Deciding { #[pin] deciding: D, waiting: Option<W> },
        /// Waits for the decision about an estimate.
        Reserving { reserving: Reserving, waiting: Option<W> },
        /// Waits for the inner service.
        Calling { #[pin] call: F, charged: Option<Charged> },
        /// Waits until the charge is corrected.
        Settling { settling: Settling, response: Option<R> },
        /// Has a response.
        Answered { response: Option<R> },
    }
}

/// A request that waits for its decision.
struct UndecidedRequest<X: Exchange> {
    service: X::Service,
    head: X::Head,
    body: X::Body,
    question: Question,
}

/// The charge of an admitted request, while the inner service handles it.
struct Charged {
    decision: Decision,
    asked: Timestamp,
    /// Present if the charge may be corrected after the response.
    settlement: Option<Settlement>,
}

impl<X: Exchange> ResponseFuture<X> {
    /// Starts to decide. If the limiter decides without waiting, calls the inner service or rejects the request.
    #[inline]
    pub fn new(
        rules: &Arc<ExchangeRules<X>>,
        service: &mut X::Service,
        head: X::Head,
        body: X::Body,
    ) -> Self {
        let state = match rules.ask(&head) {
            Asked::Skip => {
                State::Calling { call: X::call(service, head, body, None), charged: None }
            }
            Asked::Refuse(refusal) => {
                State::Answered { response: Some(X::deny(rules, &refusal, head, None)) }
            }
            Asked::Ask(question) if rules.settles() => match rules.reserve(&question) {
                Reply::Now(answer) => {
                    reserved::<X>(rules, service, (head, body), &question, answer)
                }
                Reply::Later(reserving) => {
                    let waiting = UndecidedRequest::keep(service, head, body, question);
                    State::Reserving { reserving, waiting }
                }
            },
            Asked::Ask(question) => match rules.decide(&question) {
                Reply::Now(answer) => {
                    decided::<X>(rules, service, (head, body), &question, (answer, None))
                }
                Reply::Later(deciding) => {
                    let waiting = UndecidedRequest::keep(service, head, body, question);
                    State::Deciding { deciding, waiting }
                }
            },
        };
        Self { rules: Arc::clone(rules), state }
    }
}

impl<X: Exchange> UndecidedRequest<X> {
    fn keep(
        service: &mut X::Service,
        head: X::Head,
        body: X::Body,
        question: Question,
    ) -> Option<Box<Self>> {
        Some(Box::new(Self { service: X::keep(service), head, body, question }))
    }
}

/// [`decided`], for a request whose cost is an estimate.
fn reserved<X: Exchange>(
    rules: &ExchangeRules<X>,
    service: &mut X::Service,
    request: (X::Head, X::Body),
    question: &Question,
    answer: Result<Estimated, CheckError>,
) -> StateOf<X> {
    let (answer, reservation) = match answer {
        Ok(Estimated { decision, reservation }) => (Ok(decision), reservation),
        Err(error) => (Err(error), None),
    };
    let cost = question.cost();
    let settlement = reservation.map(|reservation| Settlement { reservation, cost });
    decided::<X>(rules, service, request, question, (answer, settlement))
}

/// Calls the inner service if the request is admitted. Otherwise rejects it.
#[inline]
fn decided<X: Exchange>(
    rules: &ExchangeRules<X>,
    service: &mut X::Service,
    (head, body): (X::Head, X::Body),
    question: &Question,
    (answer, settlement): (Result<Decision, CheckError>, Option<Settlement>),
) -> StateOf<X> {
    match rules.admit(answer) {
        Ok(decision) => {
            let call = X::call(service, head, body, Some(decision));
            let asked = question.asked();
            State::Calling { call, charged: Some(Charged { decision, asked, settlement }) }
        }
        Err(refusal) => {
            let response = X::deny(rules, &refusal, head, Some(question));
            State::Answered { response: Some(response) }
        }
    }
}

/// Adds headers to a response and corrects the charge. Returns a future if the correction is still in progress.
fn settle<X: Exchange>(
    rules: &ExchangeRules<X>,
    mut response: X::Served,
    charged: Option<Charged>,
) -> (X::Response, Option<Settling>) {
    let Some(Charged { decision, asked, settlement }) = charged else {
        return (X::respond(response, None), None);
    };
    X::add_headers(rules, &decision, asked, &mut response);
    let Some(settlement) = settlement else { return (X::respond(response, None), None) };
    let (response, adjustment) = X::read_head(response, |head| rules.adjustment(head));
    if adjustment == Adjustment::Keep && rules.defers() {
        return (X::respond(response, Some(settlement)), None);
    }
    match settlement.adjust(adjustment) {
        Reply::Now(()) => (X::respond(response, None), None),
        Reply::Later(settling) => (X::respond(response, None), Some(settling)),
    }
}

impl<X: Exchange> Future for ResponseFuture<X> {
    type Output = Result<X::Response, X::Error>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        loop {
            let mut this = self.as_mut().project();
            match this.state.as_mut().project() {
                StateProjection::Deciding { deciding, waiting } => {
                    let answer = (ready!(deciding.poll(cx)), None);
                    let UndecidedRequest { mut service, head, body, question } = *taken(waiting);
                    let next =
                        decided::<X>(this.rules, &mut service, (head, body), &question, answer);
                    this.state.set(next);
                }
                StateProjection::Reserving { reserving, waiting } => {
                    let answer = ready!(reserving.as_mut().poll(cx));
                    let UndecidedRequest { mut service, head, body, question } = *taken(waiting);
                    let next =
                        reserved::<X>(this.rules, &mut service, (head, body), &question, answer);
                    this.state.set(next);
                }
                StateProjection::Calling { call, charged } => {
                    let response = ready!(call.poll(cx))?;
                    let (response, settling) = settle::<X>(this.rules, response, charged.take());
                    this.state.set(match settling {
                        Some(settling) => State::Settling { settling, response: Some(response) },
                        None => return Poll::Ready(Ok(response)),
                    });
                }
                StateProjection::Settling { settling, response } => {
                    ready!(settling.as_mut().poll(cx));
                    return Poll::Ready(Ok(taken(response)));
                }
                StateProjection::Answered { response } => {
                    return Poll::Ready(Ok(taken(response)));
                }
            }
        }
    }
}

fn taken<T>(value: &mut Option<T>) -> T {
    let Some(value) = value.take() else { panic!("polled after it has completed") };
    value
}

impl<X: Exchange> fmt::Debug for ResponseFuture<X> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ResponseFuture").finish_non_exhaustive()
    }
}
