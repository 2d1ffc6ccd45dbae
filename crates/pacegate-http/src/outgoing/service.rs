use std::{
    fmt,
    future::Future,
    mem,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use http::{Request, Response};
use pin_project_lite::pin_project;
use tower_service::Service;

use super::{
    OutgoingError, Wait,
    settings::{NotMade, Settings},
};
use crate::{KeyParts, Reply, Settlement, Settling};

/// A client whose calls wait until a limit admits them.
///
/// Dropping the future of a waiting call removes it from the queue and charges nothing, unless a request to the store
/// was in flight.
pub struct Throttle<S, L> {
    inner: S,
    settings: Arc<Settings<L>>,
}

pin_project! {
    /// The response future of [`Throttle`].
    pub struct ThrottleFuture<S, L, B>
    where
        S: Service<Request<B>>,
    {
        settings: Arc<Settings<L>>,
        key: Option<KeyParts>,
        // The charge of the call, if it can be corrected.
        settlement: Option<Settlement>,
        #[pin]
        state: State<S, S::Future, Request<B>, S::Response>,
    }
}

pin_project! {
    #[project = StateProjection]
    enum State<S, F, R, T> {
        /// Waits for the limiter.
        Waiting { turn: Turn, held: Option<(S, R)> },
        /// Waits for the response.
        Calling { #[pin] call: F },
        /// Waits until the charge is corrected.
        Settling { settling: Settling, response: Option<T> },
        /// Fails, because the key is missing.
        Missing,
    }
}

/// The wait of a call until it may be made.
type Turn = Pin<Box<dyn Future<Output = Result<Option<Settlement>, NotMade>> + Send>>;

/// A response, and the charge of its call if the body corrects it.
pub(super) type Served<B> = (Response<B>, Option<Settlement>);

impl<S, L> Throttle<S, L> {
    pub(super) fn new(inner: S, settings: Arc<Settings<L>>) -> Self {
        Self { inner, settings }
    }
}

impl<S, L, ReqB, ResB> Service<Request<ReqB>> for Throttle<S, L>
where
    S: Service<Request<ReqB>, Response = Response<ResB>> + Clone,
    L: Wait,
{
    type Response = Response<ResB>;
    type Error = OutgoingError<S::Error>;
    type Future = ThrottleFuture<S, L, ReqB>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(cx).map_err(OutgoingError::Service)
    }

    fn call(&mut self, request: Request<ReqB>) -> Self::Future {
        let settings = Arc::clone(&self.settings);
        let (head, body) = request.into_parts();
        let resolved = settings.resolve(&head);
        let request = Request::from_parts(head, body);
        let (key, cost) = match resolved {
            Ok(Some(resolved)) => resolved,
            Ok(None) => {
                let state = State::Calling { call: self.inner.call(request) };
                return ThrottleFuture { settings, key: None, settlement: None, state };
            }
            Err(_) => {
                let state = State::Missing;
                return ThrottleFuture { settings, key: None, settlement: None, state };
            }
        };
        // This instance is ready; a clone of it might not be.
        let clone = self.inner.clone();
        let held = Some((mem::replace(&mut self.inner, clone), request));
        let turn = {
            let (settings, key) = (Arc::clone(&settings), key.clone());
            Box::pin(async move { settings.turn(&key, cost, settings.deadline()).await })
        };
        let state = State::Waiting { turn, held };
        ThrottleFuture { settings, key: Some(key), settlement: None, state }
    }
}

impl<S, L, ReqB, ResB> Future for ThrottleFuture<S, L, ReqB>
where
    S: Service<Request<ReqB>, Response = Response<ResB>>,
    L: Wait,
{
    type Output = Result<Response<ResB>, OutgoingError<S::Error>>;

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.poll_served(cx).map_ok(|(response, _)| response)
    }
}

impl<S, L, ReqB, ResB> ThrottleFuture<S, L, ReqB>
where
    S: Service<Request<ReqB>, Response = Response<ResB>>,
    L: Wait,
{
    pub(super) fn poll_served(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Served<ResB>, OutgoingError<S::Error>>> {
        loop {
            let mut this = self.as_mut().project();
            match this.state.as_mut().project() {
                StateProjection::Waiting { turn, held } => {
                    *this.settlement = ready!(turn.as_mut().poll(cx)).map_err(not_made)?;
                    let Some((mut service, request)) = held.take() else {
                        unreachable!("the request is held until the call")
                    };
                    let call = service.call(request);
                    this.state.set(State::Calling { call });
                }
                StateProjection::Calling { call } => {
                    let response = ready!(call.poll(cx)).map_err(OutgoingError::Service)?;
                    if let Some(key) = this.key {
                        this.settings.learn(key, response.status(), response.headers());
                    }
                    let (head, body) = response.into_parts();
                    let adjustment = this.settings.adjustment(&head);
                    let response = Response::from_parts(head, body);
                    let settling = match (adjustment, this.settlement.take()) {
                        (Some(adjustment), Some(settlement)) => settlement.adjust(adjustment),
                        (_, settlement) => return Poll::Ready(Ok((response, settlement))),
                    };
                    let Reply::Later(settling) = settling else {
                        return Poll::Ready(Ok((response, None)));
                    };
                    this.state.set(State::Settling { settling, response: Some(response) });
                }
                StateProjection::Settling { settling, response } => {
                    ready!(settling.as_mut().poll(cx));
                    let Some(response) = response.take() else {
                        panic!("polled after it has completed")
                    };
                    return Poll::Ready(Ok((response, None)));
                }
                StateProjection::Missing => return Poll::Ready(Err(OutgoingError::Missing)),
            }
        }
    }
}

pub(super) fn not_made<E>(error: NotMade) -> OutgoingError<E> {
    match error {
        OutgoingError::Service(never) => match never {},
        OutgoingError::Wait(error) => OutgoingError::Wait(error),
        OutgoingError::Paused(left) => OutgoingError::Paused(left),
        OutgoingError::Missing => OutgoingError::Missing,
    }
}

impl<S: Clone, L> Clone for Throttle<S, L> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone(), settings: Arc::clone(&self.settings) }
    }
}

impl<S: fmt::Debug, L> fmt::Debug for Throttle<S, L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Throttle").field("inner", &self.inner).finish_non_exhaustive()
    }
}

impl<S, L, B> fmt::Debug for ThrottleFuture<S, L, B>
where
    S: Service<Request<B>>,
{
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ThrottleFuture").finish_non_exhaustive()
    }
}
