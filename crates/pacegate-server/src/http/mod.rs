//! HTTP: decisions for every language, and what the people who run the service want to know.

mod answer;
mod ask;
mod block;
mod budget;
mod check;
mod connection;
mod descriptors;
mod live;
mod model;
mod openapi;
mod page;
mod permit;
mod problem;
mod proxy;
mod report;
mod routes;
#[cfg(test)]
mod tests;

use std::{
    fmt,
    future::{Future, poll_fn},
    net::{IpAddr, SocketAddr},
    pin::pin,
    sync::Arc,
    task::Poll,
};

use axum::Router;
use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, header};
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

pub(crate) use self::check::check_bytes;
use self::{connection::Watch, problem::Problem};
use crate::{
    config::{Bind, Bounds, Scope},
    gate::{Gate, Revision},
    metrics::{ListenerMetrics, Metrics},
    service::{Access, Drain, Keys, Protocol},
    trace,
};

/// Speaks HTTP/1.1 and HTTP/2 about what a gate decides.
#[derive(Debug)]
pub(crate) struct HttpService {
    shared: Arc<Shared>,
    router: Router,
}

/// Reads the configuration again, and tells its number or why it cannot be used. It may block.
pub(crate) type Reload = Arc<dyn Fn() -> Result<u64, String> + Send + Sync>;

/// The protocols to offer to clients that ask for one by TLS.
pub(crate) const ALPN: &[&[u8]] = &[b"h2", b"http/1.1"];

/// The codes that answers have, for [`ListenerMetrics`].
pub(crate) const CODES: [&str; 16] = [
    "200", "429", "204", "400", "401", "403", "404", "405", "408", "409", "413", "415", "422",
    "431", "503", "other",
];

/// What all connections have in common.
struct Shared {
    gate: Arc<Gate>,
    metrics: Arc<Metrics>,
    listener: Arc<ListenerMetrics>,
    clock: Arc<dyn Clock>,
    reload: Reload,
}

/// A response whose body is there in full.
type Answer = Response<Full<Bytes>>;

/// An [`Answer`], or what the router made.
type Answered = Response<Either<Full<Bytes>, axum::body::Body>>;

impl HttpService {
    /// Counts its requests in `listener`, which `metrics` may tell of.
    pub(crate) fn new(
        gate: Arc<Gate>,
        metrics: Arc<Metrics>,
        listener: Arc<ListenerMetrics>,
        reload: Reload,
    ) -> Self {
        let clock = Arc::new(SystemClock::new());
        Self::over(Shared { gate, metrics, listener, clock, reload })
    }

    fn over(shared: Shared) -> Self {
        let shared = Arc::new(shared);
        let router = routes::router(shared.clone());
        Self { shared, router }
    }

    /// With another idea of the hour, for tests.
    #[cfg(test)]
    fn with_clock(self, clock: impl Clock) -> Self {
        let Shared { gate, metrics, listener, reload, .. } = &*self.shared;
        let (gate, metrics) = (gate.clone(), metrics.clone());
        let (listener, reload, clock) = (listener.clone(), reload.clone(), Arc::new(clock));
        Self::over(Shared { gate, metrics, listener, clock, reload })
    }
}

impl Protocol for HttpService {
    fn serve<I>(&self, io: I, _: SocketAddr, drain: Drain) -> impl Future<Output = ()> + Send
    where
        I: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        connection::serve(self.shared.clone(), self.router.clone(), io, drain)
    }
}

/// Answers one request, and counts it.
async fn answer(
    shared: Arc<Shared>,
    router: Router,
    watch: Arc<Watch>,
    request: Request<Incoming>,
) -> Answered {
    let _open = watch.begin(request.version());
    let begun = Instant::now();
    let span = trace::request("http", request.headers());
    let dispatch = dispatch(&shared, router, request);
    let mut answer = match span.is_none() {
        true => dispatch.await,
        false => Box::pin(dispatch.instrument(span)).await,
    };
    if watch.is_closing() {
        answer.headers_mut().insert(header::CONNECTION, HeaderValue::from_static("close"));
    }
    shared.listener.count(code(answer.status()), begun.elapsed());
    answer
}

/// What is asked for most often does not go through the router.
async fn dispatch(shared: &Shared, router: Router, request: Request<Incoming>) -> Answered {
    let answer = match (request.method(), request.uri().path()) {
        (&Method::POST, "/v1/check") => {
            let (head, body) = request.into_parts();
            check::check(shared, &head, body).await
        }
        (_, "/v1/auth") => proxy::auth(shared, &request.into_parts().0).await,
        // On the heap, so that the way past it stays small.
        _ => {
            let asked = Box::pin(router.oneshot(request.map(axum::body::Body::new)));
            return asked.await.unwrap_or_else(|never| match never {}).map(Either::Right);
        }
    };
    answer.unwrap_or_else(Problem::into_answer).map(Either::Left)
}

fn code(status: StatusCode) -> usize {
    let status = status.as_str();
    CODES.iter().position(|code| *code == status).unwrap_or(CODES.len() - 1)
}

/// The head of a request, and its body of JSON.
async fn posted(
    shared: &Shared,
    request: axum::extract::Request,
) -> Result<(http::request::Parts, Bytes), Problem> {
    let (head, body) = request.into_parts();
    let body = read_json(&head.headers, body, &shared.bounds()).await?;
    Ok((head, body))
}

/// Reads a body of JSON to its end.
async fn read_json<B>(headers: &HeaderMap, body: B, bounds: &Bounds) -> Result<Bytes, Problem>
where
    B: Body<Data = Bytes> + Unpin,
{
    if !headers.get(header::CONTENT_TYPE).is_some_and(is_json) {
        return Err(Problem::content_type());
    }
    read_body(body, bounds).await
}

/// Reads a body to its end.
async fn read_body<B>(body: B, bounds: &Bounds) -> Result<Bytes, Problem>
where
    B: Body<Data = Bytes> + Unpin,
{
    let mut reading = pin!(collect(body, bounds.request_bytes));
    // What has come together with the head needs no timer.
    match poll_fn(|cx| Poll::Ready(reading.as_mut().poll(cx))).await {
        Poll::Ready(done) => done,
        Poll::Pending => {
            timeout(bounds.read_timeout, reading).await.unwrap_or_else(|_| Err(Problem::slow()))
        }
    }
}

fn is_json(content_type: &HeaderValue) -> bool {
    const JSON: &[u8] = b"application/json";
    let bytes = content_type.as_bytes();
    let Some((start, rest)) = bytes.split_at_checked(JSON.len()) else { return false };
    start.eq_ignore_ascii_case(JSON) && matches!(rest.first(), None | Some(b';' | b' '))
}

/// A body of at most so many bytes. One that comes in one piece is not copied.
async fn collect<B>(mut body: B, most: usize) -> Result<Bytes, Problem>
where
    B: Body<Data = Bytes> + Unpin,
{
    let said = body.size_hint().lower();
    if usize::try_from(said).map_or(true, |said| said > most) {
        return Err(Problem::too_large(most));
    }
    let mut first = Bytes::new();
    let mut all = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|_| Problem::request("the body ended early"))?;
        let Ok(data) = frame.into_data() else { continue };
        if first.len().max(all.len()) + data.len() > most {
            return Err(Problem::too_large(most));
        }
        if first.is_empty() && all.is_empty() {
            first = data;
            continue;
        }
        if all.is_empty() {
            all.extend_from_slice(&first);
        }
        all.extend_from_slice(&data);
    }
    Ok(if all.is_empty() { first } else { all.freeze() })
}

impl Shared {
    fn now(&self) -> Timestamp {
        self.clock.now()
    }

    fn bounds(&self) -> Bounds {
        self.gate.revision().settings.bounds
    }
}

impl Revision {
    /// What whoever sent these headers may do.
    fn access(&self, headers: &HeaderMap) -> Result<Access<'_>, Problem> {
        let keys = Keys(&self.settings.security.credentials);
        if !keys.are_needed() {
            return keys.access(None).ok_or_else(Problem::unauthorized);
        }
        let key = headers.get(header::AUTHORIZATION).and_then(bearer);
        keys.access(key).ok_or_else(Problem::unauthorized)
    }

    /// What they may do in a domain, which must be this at least.
    fn access_to(
        &self,
        headers: &HeaderMap,
        scope: Scope,
        domain: &str,
    ) -> Result<Access<'_>, Problem> {
        let access = self.access(headers)?;
        self.check_host(headers, scope)?;
        if !access.allows(scope, domain) {
            return Err(Problem::forbidden(match scope {
                Scope::Check => "it is not for this domain",
                Scope::Admin => "it takes one with the scope `admin` for this domain",
            }));
        }
        Ok(access)
    }

    /// What they may do everywhere, which must be this at least.
    fn access_everywhere(&self, headers: &HeaderMap, scope: Scope) -> Result<Access<'_>, Problem> {
        let access = self.access(headers)?;
        self.check_host(headers, scope)?;
        if !access.allows_everywhere(scope) {
            return Err(Problem::forbidden(match scope {
                Scope::Check => "it takes one for all domains",
                Scope::Admin => "it takes one with the scope `admin` for all domains",
            }));
        }
        Ok(access)
    }
}

impl Revision {
    /// A page of somebody else can have its own name lead to this machine, and would then be let in by any browser on
    /// it. So where nothing but the loopback keeps others out, what takes the scope `admin` is not for such names.
    fn check_host(&self, headers: &HeaderMap, scope: Scope) -> Result<(), Problem> {
        let security = &self.settings.security;
        let is_loopback = match self.settings.http {
            Bind::At(address) => address.ip().to_canonical().is_loopback(),
            Bind::Off => true,
        };
        let is_open = is_loopback && security.credentials.is_empty();
        if !is_open || scope != Scope::Admin {
            return Ok(());
        }
        if headers.get(header::HOST).is_some_and(|host| !is_local(host.as_bytes())) {
            return Err(Problem::host());
        }
        // Without its name, such a page can still send what takes no look at the answer, such as a form.
        match headers.get("sec-fetch-site").map(HeaderValue::as_bytes) {
            None | Some(b"same-origin" | b"none") => Ok(()),
            Some(_) => Err(Problem::cross_site()),
        }
    }
}

/// Whether a `Host` is an address or `localhost`, with or without a port: nothing that a name server has a say in.
fn is_local(host: &[u8]) -> bool {
    let Ok(authority) = http::uri::Authority::try_from(host) else { return host.is_empty() };
    let name = authority.host().trim_start_matches('[').trim_end_matches(']');
    let name = name.strip_suffix('.').unwrap_or(name).to_ascii_lowercase();
    name == "localhost" || name.ends_with(".localhost") || name.parse::<IpAddr>().is_ok()
}

/// The key in `Bearer KEY`.
fn bearer(value: &HeaderValue) -> Option<&[u8]> {
    let (scheme, key) = value.as_bytes().split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"bearer ").then_some(key)
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The gate's settings may hold a password.
        f.debug_struct("Shared").finish_non_exhaustive()
    }
}
