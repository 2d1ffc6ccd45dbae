//! The HTTP listener: checks, reports and the dashboard.

mod block;
mod bodies;
mod browser;
mod check;
mod clear;
mod connection;
mod counters;
mod descriptors;
mod events;
mod live;
mod openapi;
mod page;
mod permit;
mod problem;
mod proxy;
mod report;
mod request;
mod reservations;
mod response;
mod routes;
#[cfg(test)]
mod tests;

use std::{
    fmt,
    future::{Future, poll_fn},
    pin::pin,
    sync::Arc,
    task::Poll,
};

use axum::{Router, extract::State};
use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, header, request::Parts};
use http_body_util::{BodyExt, Either, Full};
use hyper::body::{Body, Incoming};
use pacegate::{Clock, SystemClock, Timestamp};
use quanta::Instant;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    time::timeout,
};
use tower::ServiceExt;
use tracing::Instrument;

pub(crate) use self::{browser::names_local_host, check::check_bytes};
use self::{connection::CountedBody, problem::ProblemDetails, response::DEGRADED};
use crate::{
    active_config::{ActiveConfig, Revision},
    check::Check,
    config::{Bounds, Scope},
    listeners::ListenerId,
    metrics::{ListenerMetrics, Metrics},
    reload::Reload,
    service::{
        ADMIN_OFF, Access, Drain, Held, InFlight, Keys, Peer, Protocol, Quiet, Share, Watch, bearer,
    },
    trace,
};

/// The listener for HTTP/1.1 and HTTP/2.
#[derive(Debug)]
pub(crate) struct HttpService {
    shared: Arc<Shared>,
    router: Router,
}

/// Protocols to offer by ALPN.
pub(crate) const ALPN: &[&[u8]] = &[b"h2", b"http/1.1"];

/// Status codes, for [`ListenerMetrics`].
pub(crate) const CODES: [&str; 16] = [
    "200", "429", "204", "400", "401", "403", "404", "405", "408", "409", "413", "415", "422",
    "431", "503", "other",
];

/// State shared by all connections.
struct Shared {
    active: Arc<ActiveConfig>,
    metrics: Arc<Metrics>,
    listener: Arc<ListenerMetrics>,
    clock: Arc<dyn Clock>,
    reload: Reload,
    in_flight: Arc<InFlight>,
    /// Connections that broke the protocol.
    violations: Quiet,
}

/// A response with its whole body.
type HttpResponse = Response<Full<Bytes>>;

/// The result of a handler.
type HttpResult = Result<HttpResponse, ProblemDetails>;

/// The first argument of handlers.
type Context = State<Arc<Shared>>;

/// An [`HttpResponse`], or a response of the router.
type RoutedResponse = Response<Either<Full<Bytes>, axum::body::Body>>;

/// Memory that a header takes in addition to its name and value.
const HEADER_OVERHEAD: usize = 104;

impl HttpService {
    /// Creates the listener, which counts its requests in `listener`.
    pub(crate) fn new(
        active: Arc<ActiveConfig>,
        metrics: Arc<Metrics>,
        listener: Arc<ListenerMetrics>,
        reload: Reload,
    ) -> Self {
        let clock = Arc::new(SystemClock::new());
        let in_flight = InFlight::new(active.revision().settings.bounds.request_bytes);
        let violations = Quiet::default();
        Self::over(Shared { active, metrics, listener, clock, reload, in_flight, violations })
    }

    fn over(shared: Shared) -> Self {
        let shared = Arc::new(shared);
        let router = routes::router(shared.clone());
        Self { shared, router }
    }

    /// Replaces the clock, for tests.
    #[cfg(test)]
    fn with_clock(self, clock: impl Clock) -> Self {
        let Shared { active, metrics, listener, reload, .. } = &*self.shared;
        let (active, metrics) = (active.clone(), metrics.clone());
        let (listener, reload, clock) = (listener.clone(), reload.clone(), Arc::new(clock));
        let (in_flight, violations) = (self.shared.in_flight.clone(), Quiet::default());
        Self::over(Shared { active, metrics, listener, clock, reload, in_flight, violations })
    }
}

impl Protocol for HttpService {
    fn serve<I>(&self, io: I, peer: Peer, drain: Drain) -> impl Future<Output = ()> + Send
    where
        I: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        connection::serve(self.shared.clone(), self.router.clone(), io, peer, drain)
    }

    fn active(&self) -> &ActiveConfig {
        &self.shared.active
    }
}

/// Handles one request, and counts it.
async fn handle(
    shared: Arc<Shared>,
    router: Router,
    watch: Arc<Watch>,
    mut request: Request<Incoming>,
) -> Response<CountedBody<Either<Full<Bytes>, axum::body::Body>>> {
    let _open = watch.begin(request.version());
    let begun = Instant::now();
    let decides = routes::decides(request.uri().path());
    if !watch.is_authenticated() {
        match shared.active.revision().access(request.headers()) {
            Ok(_) => watch.authenticate(),
            Err(_) => watch.suspect(),
        }
    }
    let share = watch.share();
    let has_room = match share {
        None => true,
        Some(share) => {
            let (bytes, timeout) = (|| size(request.headers()), shared.bounds().read_timeout);
            let has_room = share.wait_for_room(bytes, timeout).await.is_ok();
            request.extensions_mut().insert(share.clone());
            has_room
        }
    };
    let mut response = match has_room {
        false => ProblemDetails::busy().into_http().map(Either::Left),
        true => {
            let span = trace::request("http", request.headers());
            let dispatch = dispatch(&shared, router, request);
            match span.is_none() {
                true => dispatch.await,
                false => Box::pin(dispatch.instrument(span)).await,
            }
        }
    };
    if watch.is_last() {
        response.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    if response.status() == StatusCode::UNAUTHORIZED {
        shared.active.audit.rejected_key(ListenerId::Http, None);
    }
    if response.headers().contains_key(DEGRADED) {
        shared.listener.count_degraded(1);
    }
    match decides {
        true => shared.listener.count(code(response.status()), begun.elapsed()),
        false => shared.listener.count_other(code(response.status()), begun.elapsed()),
    }
    CountedBody::wrap(response, share)
}

/// Returns the memory that headers take.
fn size(headers: &HeaderMap) -> usize {
    let headers = headers.iter();
    headers.map(|(name, value)| name.as_str().len() + value.len() + HEADER_OVERHEAD).sum()
}

/// Calls the handler. The most frequent endpoints bypass the router.
async fn dispatch(shared: &Shared, router: Router, request: Request<Incoming>) -> RoutedResponse {
    if let Err(problem) = browser::check(&shared.active.revision().settings, &request) {
        return problem.into_http().map(Either::Left);
    }
    let result = match (request.method(), request.uri().path()) {
        (&Method::POST, "/v1/check") => {
            let (head, body) = request.into_parts();
            check::check(shared, &head, body).await
        }
        (_, "/v1/auth") => proxy::auth(shared, &request.into_parts().0).await,
        // On the heap, so that this future stays small for the other endpoints.
        _ => {
            let routed = Box::pin(router.oneshot(request.map(axum::body::Body::new)));
            return routed.await.unwrap_or_else(|never| match never {}).map(Either::Right);
        }
    };
    result.unwrap_or_else(ProblemDetails::into_http).map(Either::Left)
}

fn code(status: StatusCode) -> usize {
    let status = status.as_str();
    CODES.iter().position(|code| *code == status).unwrap_or(CODES.len() - 1)
}

/// Reads a request with a JSON body.
async fn read_request(
    shared: &Shared,
    request: axum::extract::Request,
) -> Result<(Parts, Bytes), ProblemDetails> {
    let (head, body) = request.into_parts();
    let body = read_json(shared, &head, body).await?;
    Ok((head, body))
}

/// Reads a JSON body, if the API key is known or none is needed.
async fn read_json<B>(shared: &Shared, head: &Parts, body: B) -> Result<Bytes, ProblemDetails>
where
    B: Body<Data = Bytes> + Unpin,
{
    // Checked first: without an API key, clients get no other error.
    shared.active.revision().access(&head.headers)?;
    if !head.headers.get(header::CONTENT_TYPE).is_some_and(is_json) {
        return Err(ProblemDetails::content_type());
    }
    receive(shared, head, body).await
}

/// Reads a body of any type, if the API key is known or none is needed.
async fn read_body<B>(shared: &Shared, head: &Parts, body: B) -> Result<Bytes, ProblemDetails>
where
    B: Body<Data = Bytes> + Unpin,
{
    shared.active.revision().access(&head.headers)?;
    receive(shared, head, body).await
}

async fn receive<B>(shared: &Shared, head: &Parts, body: B) -> Result<Bytes, ProblemDetails>
where
    B: Body<Data = Bytes> + Unpin,
{
    let bounds = shared.bounds();
    let share = head.extensions.get::<Arc<Share>>();
    let mut reading = pin!(collect(body, bounds.request_bytes, share));
    // A body that arrived with the head needs no timer.
    match poll_fn(|cx| Poll::Ready(reading.as_mut().poll(cx))).await {
        Poll::Ready(done) => done,
        Poll::Pending => {
            let _held = share.map(|share| share.hold(size(&head.headers))).transpose()?;
            timeout(bounds.read_timeout, reading)
                .await
                .unwrap_or_else(|_| Err(ProblemDetails::slow()))
        }
    }
}

fn is_json(content_type: &HeaderValue) -> bool {
    const JSON: &[u8] = b"application/json";
    let bytes = content_type.as_bytes();
    let Some((start, rest)) = bytes.split_at_checked(JSON.len()) else { return false };
    start.eq_ignore_ascii_case(JSON) && matches!(rest.first(), None | Some(b';' | b' '))
}

/// Reads a body of at most `max` bytes, which count towards `share` until dropped. Does not copy a single frame.
async fn collect<B>(
    mut body: B,
    max: usize,
    share: Option<&Arc<Share>>,
) -> Result<Bytes, ProblemDetails>
where
    B: Body<Data = Bytes> + Unpin,
{
    let announced = body.size_hint().lower();
    if usize::try_from(announced).map_or(true, |bytes| bytes > max) {
        return Err(ProblemDetails::too_large(max));
    }
    let mut all = BytesMut::new();
    let mut held = share.map(|share| share.hold(0)).transpose()?;
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|_| ProblemDetails::request("the body is incomplete"))?;
        let Ok(data) = frame.into_data() else { continue };
        if all.len() + data.len() > max {
            return Err(ProblemDetails::too_large(max));
        }
        if let Some(held) = &mut held {
            held.grow(data.len())?;
        }
        if all.is_empty() && body.is_end_stream() {
            return Ok(keep(held, data));
        }
        all.extend_from_slice(&data);
    }
    Ok(keep(held, all.freeze()))
}

fn keep(held: Option<Held>, bytes: Bytes) -> Bytes {
    match held {
        None => bytes,
        Some(held) => held.keep(bytes),
    }
}

impl Shared {
    fn now(&self) -> Timestamp {
        self.clock.now()
    }

    fn bounds(&self) -> Bounds {
        self.active.revision().settings.bounds
    }
}

impl Revision {
    /// Returns the permissions of the API key in these headers.
    fn access(&self, headers: &HeaderMap) -> Result<Access<'_>, ProblemDetails> {
        let keys = Keys(&self.settings.security.credentials);
        if !keys.are_needed() {
            return keys.access(None).ok_or_else(ProblemDetails::unauthorized);
        }
        keys.access(bearer(headers)).ok_or_else(ProblemDetails::unauthorized)
    }

    /// Rejects administration where it is off.
    fn check_admin(&self, scope: Scope) -> Result<(), ProblemDetails> {
        match scope == Scope::Admin && self.settings.is_admin_off(ListenerId::Http) {
            true => Err(ProblemDetails::forbidden(ADMIN_OFF)),
            false => Ok(()),
        }
    }

    /// Returns the permissions of the API key, which must include this scope in a domain.
    fn access_to(
        &self,
        headers: &HeaderMap,
        scope: Scope,
        domain: &str,
    ) -> Result<Access<'_>, ProblemDetails> {
        self.check_admin(scope)?;
        let access = self.access(headers)?;
        permit(&access, scope, domain, false)?;
        Ok(access)
    }

    /// Returns the permissions of the API key, which must cover the domain of a check, and inline limits if it has any.
    fn access_for(
        &self,
        headers: &HeaderMap,
        scope: Scope,
        check: &Check<'_>,
    ) -> Result<Access<'_>, ProblemDetails> {
        self.check_admin(scope)?;
        let access = self.access(headers)?;
        permit(&access, scope, check.domain(), check.is_inline())?;
        Ok(access)
    }

    /// Returns the permissions of the API key, which must include this scope in all domains.
    fn access_everywhere(
        &self,
        headers: &HeaderMap,
        scope: Scope,
    ) -> Result<Access<'_>, ProblemDetails> {
        self.check_admin(scope)?;
        let access = self.access(headers)?;
        if !access.allows_everywhere(scope) {
            return Err(ProblemDetails::forbidden(match scope {
                Scope::Check => "an API key for all domains is required",
                Scope::Admin => "an API key with the scope `admin` for all domains is required",
            }));
        }
        Ok(access)
    }
}

/// Checks the permissions of an API key: this scope in a domain, and inline limits if needed.
fn permit(
    access: &Access<'_>,
    scope: Scope,
    domain: &str,
    is_inline: bool,
) -> Result<(), ProblemDetails> {
    if !access.allows(scope, domain) {
        return Err(ProblemDetails::forbidden(match scope {
            Scope::Check => "the API key does not cover this domain",
            Scope::Admin => "an API key with the scope `admin` for this domain is required",
        }));
    }
    match is_inline && !access.allows_inline() {
        true => Err(ProblemDetails::inline()),
        false => Ok(()),
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The configuration may contain a password.
        f.debug_struct("Shared").finish_non_exhaustive()
    }
}
