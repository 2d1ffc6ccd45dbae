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

use super::{OutgoingError, Settings, Wait, told_to_wait};
use crate::{KeyParts, Missing};

/// A client whose calls wait until they are within a limit.
///
/// Dropping the future of a call that waits leaves the queue and charges nothing, unless the limiter's store was just
/// being asked.
pub struct Throttle<S, L> {
    inner: S,
    settings: Arc<Settings<L>>,
}

pin_project! {
    /// What [`Throttle`] returns.
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
        /// There is no room yet.
        Waiting { turn: Turn, held: Option<(S, R)> },
        /// The call is made.
        Calling { #[pin] call: F },
        /// It will not be.
        Missing,
    }
}

/// A turn that comes or does not.
type Turn = Pin<Box<dyn Future<Output = Result<(), NotMade>> + Send>>;

/// The service has not been called, so it has not failed.
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
        // All calls are this program's own, so those without a key may share a budget.
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
        // It is this one that is ready, and not a clone of it.
        let clone = self.inner.clone();
        let held = Some((mem::replace(&mut self.inner, clone), request));
        let turn = Box::pin(turn(Arc::clone(&settings), key.clone(), cost));
        ThrottleFuture { settings, key: Some(key), state: State::Waiting { turn, held } }
    }
}

/// Waits for the end of a pause, and then for room. A pause that begins meanwhile is waited for as well, at the place
/// in line that the call has: whoever were charged during a pause would all be let go at its end.
async fn turn<L: Wait>(
    settings: Arc<Settings<L>>,
    key: KeyParts,
    cost: u64,
) -> Result<(), NotMade> {
    let clock = &settings.clock;
    // By what has passed, and not by the clock: it may be set back meanwhile.
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
        // One that begins while a store is asked finds the call charged already.
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
                        unreachable!("it is held until now")
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
    /// Waits until calls with a key are wanted, if that is before `deadline`.
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
        let told = told_to_wait(response.status(), response.headers(), self.clock.now());
        if let Some(wait) = told {
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
