use std::{
    convert::Infallible,
    fmt,
    future::{Future, poll_fn},
    mem,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use http::{Request, Response};
use pin_project_lite::pin_project;
use tower_service::Service;

use super::{OutgoingError, Settings, Wait, requested_pause};
use crate::{KeyParts, Missing};

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
        #[pin]
        state: State<S, S::Future, Request<B>>,
    }
}

pin_project! {
    #[project = StateProjection]
    enum State<S, F, R> {
        /// Waits for the limiter.
        Waiting { turn: Turn, held: Option<(S, R)> },
        /// Waits for the response.
        Calling { #[pin] call: F },
        /// Fails, because the key is missing.
        Missing,
    }
}

/// The wait of a call until it may be made.
type Turn = Pin<Box<dyn Future<Output = Result<(), NotMade>> + Send>>;

/// The error of a call that was not made, which cannot be an error of the service.
type NotMade = OutgoingError<Infallible>;

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
        let mut key = KeyParts::new();
        // All calls are made by this program, so calls without a key may share a counter.
        key.set_lenient(true);
        let resolved = settings.by.resolve(&head, &mut key);
        let cost = settings.cost.as_ref().map_or(1, |cost| cost(&head));
        let request = Request::from_parts(head, body);
        match resolved {
            Ok(()) => {}
            Err(Missing::Share | Missing::Unspecified) => {
                key = KeyParts::new();
                key.push_missing();
            }
            Err(Missing::Skip) => {
                let state = State::Calling { call: self.inner.call(request) };
                return ThrottleFuture { settings, key: None, state };
            }
            Err(Missing::Reject | Missing::Misconfigured(_)) => {
                return ThrottleFuture { settings, key: None, state: State::Missing };
            }
        }
        // This instance is ready; a clone of it might not be.
        let clone = self.inner.clone();
        let held = Some((mem::replace(&mut self.inner, clone), request));
        let turn = Box::pin(turn(Arc::clone(&settings), key.clone(), cost));
        ThrottleFuture { settings, key: Some(key), state: State::Waiting { turn, held } }
    }
}

/// Waits until a pause has ended and the limiter admits the call. If a pause starts meanwhile, the call keeps its place
/// in the queue but is not charged: otherwise all calls that were charged during a pause would be made at its end.
async fn turn<L: Wait>(
    settings: Arc<Settings<L>>,
    key: KeyParts,
    cost: u64,
) -> Result<(), NotMade> {
    let clock = &settings.clock;
    // By elapsed time, because the wall clock may be set back.
    let deadline = clock.elapsed().saturating_add(settings.within);
    settings.pause(&key, deadline).await?;
    let left = deadline.saturating_sub(clock.elapsed());
    let mut room = settings.limiter.wait(key.clone(), cost, left);
    loop {
        let waited = poll_fn(|cx| match settings.pause_left(&key) {
            Some(_) => Poll::Ready(None),
            None => room.as_mut().poll(cx).map(Some),
        });
        let waited = waited.await.transpose().map_err(OutgoingError::Wait)?;
        // A pause that started during a request to the store: the call is already charged, and waits.
        settings.pause(&key, deadline).await?;
        if waited.is_some() {
            return Ok(());
        }
    }
}

impl<S, L, ReqB, ResB> Future for ThrottleFuture<S, L, ReqB>
where
    S: Service<Request<ReqB>, Response = Response<ResB>>,
    L: Wait,
{
    type Output = Result<Response<ResB>, OutgoingError<S::Error>>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        loop {
            let mut this = self.as_mut().project();
            match this.state.as_mut().project() {
                StateProjection::Waiting { turn, held } => {
                    ready!(turn.as_mut().poll(cx)).map_err(not_made)?;
                    let Some((mut service, request)) = held.take() else {
                        unreachable!("the request is held until the call")
                    };
                    let call = service.call(request);
                    this.state.set(State::Calling { call });
                }
                StateProjection::Calling { call } => {
                    let response = ready!(call.poll(cx)).map_err(OutgoingError::Service)?;
                    this.settings.learn(this.key.as_ref(), &response);
                    return Poll::Ready(Ok(response));
                }
                StateProjection::Missing => return Poll::Ready(Err(OutgoingError::Missing)),
            }
        }
    }
}

impl<L> Settings<L> {
    /// Waits until the pause of a key has ended. Fails at once if that is after `deadline`.
    async fn pause(&self, key: &KeyParts, deadline: Duration) -> Result<(), NotMade> {
        while let Some(pause) = self.pause_left(key) {
            if pause > deadline.saturating_sub(self.clock.elapsed()) {
                return Err(OutgoingError::Paused(pause));
            }
            self.clock.sleep_until(self.clock.now().after(pause)).await;
        }
        Ok(())
    }

    fn pause_left(&self, key: &KeyParts) -> Option<Duration> {
        self.pauses.as_ref()?.left(key, self.clock.elapsed())
    }

    fn learn<B>(&self, key: Option<&KeyParts>, response: &Response<B>) {
        let (Some(pauses), Some(key)) = (&self.pauses, key) else { return };
        let pause = requested_pause(response.status(), response.headers(), self.clock.now());
        if let Some(wait) = pause {
            pauses.pause(key, wait, self.clock.elapsed());
        }
    }
}

fn not_made<E>(error: NotMade) -> OutgoingError<E> {
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
