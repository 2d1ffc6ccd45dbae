//! Helpers of several tests.

use std::{
    convert::Infallible,
    fmt,
    future::{Ready, ready},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderMap, Request, Response};
use http_body_util::{BodyExt, Full};
use pacegate::{
    Charge, ManualClock, MemoryStore, Outcomes, Reply, SettledCharges, Store, StoreError,
    Timestamp, Update,
};
use tower::{Service, util::ServiceExt};

pub(crate) type Asking = Request<Full<Bytes>>;
pub(crate) type Answer = Response<Full<Bytes>>;

/// Answers 200 with nothing.
pub(crate) fn fine(_: Asking) -> Ready<Result<Answer, Infallible>> {
    ready(Ok(Response::new(Full::default())))
}

/// Asks a service once, and waits for the answer.
pub(crate) fn ask<S>(service: &S, request: Asking) -> Answer
where
    S: Service<Asking, Response = Answer> + Clone,
    S::Error: fmt::Debug,
{
    pollster::block_on(service.clone().oneshot(request)).unwrap()
}

/// Returns the statuses of `times` requests for a path, one after the other.
pub(crate) fn statuses<S>(service: &S, path: &str, times: usize) -> Vec<u16>
where
    S: Service<Asking, Response = Answer> + Clone,
    S::Error: fmt::Debug,
{
    (0..times).map(|_| ask(service, get(path)).status().as_u16()).collect()
}

/// A request of nothing for a path.
pub(crate) fn get(path: &str) -> Asking {
    Request::get(path).body(Full::default()).unwrap()
}

/// The same with a header.
pub(crate) fn with(path: &str, name: &'static str, value: &str) -> Asking {
    let mut request = get(path);
    request.headers_mut().insert(name, value.parse().unwrap());
    request
}

/// A header as text; empty if it is not there.
pub(crate) fn text<'a>(headers: &'a HeaderMap, name: &str) -> &'a str {
    headers.get(name).map_or("", |value| value.to_str().unwrap())
}

pub(crate) fn body(answer: Answer) -> String {
    let bytes = pollster::block_on(answer.into_body().collect()).unwrap().to_bytes();
    String::from_utf8(bytes.into()).unwrap()
}

/// An instant that is not the start of any window, and a clock there.
pub(crate) fn clock() -> ManualClock {
    ManualClock::at(Timestamp::from_micros(1_700_000_000_250_001))
}

/// A store in memory that can be unreachable.
#[derive(Clone, Debug, Default)]
pub(crate) struct Remote {
    store: Arc<MemoryStore>,
    /// True while the store is unreachable.
    away: Arc<AtomicBool>,
}

impl Remote {
    pub(crate) fn set_away(&self, away: bool) {
        self.away.store(away, Relaxed);
    }

    fn answer<'a, T>(&self, answer: impl FnOnce() -> Reply<'a, T>) -> Reply<'a, T> {
        match self.away.load(Relaxed) {
            true => Reply::Ready(Err(StoreError::TimedOut)),
            false => answer(),
        }
    }
}

impl Store for Remote {
    fn charge(&self, charges: &[Charge<'_>], id: Option<&[u8]>) -> Reply<'_, Outcomes> {
        self.answer(|| self.store.charge(charges, id))
    }

    fn update(&self, charge: &Charge<'_>, update: Update) -> Reply<'_, bool> {
        self.answer(|| self.store.update(charge, update))
    }

    fn reserve(&self, charges: &[Charge<'_>], id: u128, ttl: Duration) -> Reply<'_, Outcomes> {
        self.answer(|| self.store.reserve(charges, id, ttl))
    }

    fn settle(
        &self,
        charges: &[Charge<'_>],
        id: u128,
        actual: u64,
    ) -> Reply<'_, Option<SettledCharges>> {
        self.answer(|| self.store.settle(charges, id, actual))
    }
}
