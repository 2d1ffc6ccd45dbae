//! The gRPC listener: one file for each service.

mod health;
pub(super) mod message;
mod preface;
mod quota;
mod ratelimit;
mod reply;
#[cfg(test)]
mod tests;

use std::{pin::pin, sync::Arc};

use http::{
    HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, Version, header,
};
use hyper::{
    body::Incoming,
    server::conn::http2::{Builder, Connection},
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use quanta::Instant;
use tokio::io::{AsyncRead, AsyncWrite};
use tracing::Instrument;

use self::{
    preface::PREFACE,
    reply::{Failure, GrpcCode, Reply, failed},
};
use crate::{
    active_config::ActiveConfig,
    config::Bounds,
    listeners::ListenerId,
    metrics::ListenerMetrics,
    service::{
        Access, Drain, InFlight, InlineExecutor, Keys, Peer, Protocol, Quiet, Watch, bearer,
        describe, is_violation, run_connection,
    },
    trace,
};

/// The gRPC listener for Envoy.
#[derive(Debug)]
pub(crate) struct Grpc {
    active: Arc<ActiveConfig>,
    metrics: Arc<ListenerMetrics>,
    in_flight: Arc<InFlight>,
    /// Connections that broke the protocol.
    violations: Quiet,
}

/// Outcomes of calls, for [`ListenerMetrics`].
pub(crate) const CODES: [&str; 2] = ["ok", "error"];

const SHOULD_RATE_LIMIT: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
const STREAM_QUOTAS: &str =
    "/envoy.service.rate_limit_quota.v3.RateLimitQuotaService/StreamRateLimitQuotas";
const HEALTH_CHECK: &str = "/grpc.health.v1.Health/Check";
const HEALTH_WATCH: &str = "/grpc.health.v1.Health/Watch";

const GRPC: HeaderValue = HeaderValue::from_static("application/grpc");
/// Initial metadata of a response that a failure mode decided because the store did not answer.
const DEGRADED: HeaderName = HeaderName::from_static("pacegate-degraded");
/// Concurrent streams of a connection.
const MAX_STREAMS: u32 = 100;
/// HTTP/2 flow-control window: the minimum of the protocol.
const WINDOW_BYTES: u32 = 65_535;
/// HTTP/2 send buffer of a stream.
const SEND_BYTES: usize = 16 << 10;
/// Room for the default of Envoy's `max_request_headers_kb` (60), plus 32 bytes for each of up to 100 headers.
const MIN_METADATA_BYTES: usize = 80 << 10;

impl Grpc {
    /// Creates the listener.
    pub(crate) fn new(active: Arc<ActiveConfig>, metrics: Arc<ListenerMetrics>) -> Self {
        let in_flight = InFlight::new(active.revision().settings.bounds.request_bytes);
        Self { active, metrics, in_flight, violations: Quiet::default() }
    }
}

impl Protocol for Grpc {
    async fn serve<I>(&self, mut io: I, peer: Peer, drain: Drain)
    where
        I: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let bounds = self.active.revision().settings.bounds;
        let has_preface = tokio::select! {
            has_preface = preface::read(&mut io, bounds.read_timeout) => has_preface,
            () = drain.clone().grace_over() => return,
        };
        if !has_preface {
            tracing::debug!(%peer, "closed a connection without an HTTP/2 preface");
            return;
        }
        let watch = Watch::new(peer, self.in_flight.share(), true);
        let io = TokioIo::new(watch.watched(io).after(PREFACE));
        let (active, metrics, calls) = (self.active.clone(), self.metrics.clone(), watch.clone());
        let draining = drain.clone();
        let service = service_fn(move |request| {
            let (active, metrics, watch) = (active.clone(), metrics.clone(), calls.clone());
            let drain = draining.clone();
            // On the heap, and freed before the response is read: HTTP/2 keeps the stream until then.
            Box::pin(async move {
                let _open = watch.begin(Version::HTTP_2);
                let begun = Instant::now();
                let is_decision = request.uri().path() == SHOULD_RATE_LIMIT;
                let span = trace::request("grpc", request.headers());
                // Pinned: a future that moves takes its size twice.
                let respond = pin!(respond(&active, &watch, &drain, request));
                let response = match span.is_none() {
                    true => respond.await,
                    false => respond.instrument(span).await,
                };
                if response.headers().contains_key(DEGRADED) {
                    metrics.count_degraded(1);
                }
                let code = usize::from(response.body().is_failure());
                match is_decision {
                    true => metrics.count(code, begun.elapsed()),
                    false => metrics.count_other(code, begun.elapsed()),
                }
                Ok::<_, std::convert::Infallible>(response)
            })
        });
        let connection = builder(&bounds).serve_connection(io, service);
        let ended =
            run_connection(connection, Connection::graceful_shutdown, &watch, bounds, drain).await;
        if let Err(error) = ended {
            let (peer, is_violation) = (&watch.peer, is_violation(&error));
            let error = describe(&error);
            tracing::debug!(%peer, %error, "a gRPC connection ended early");
            if let Some(events) = is_violation.then(|| self.violations.events()).flatten() {
                tracing::warn!(%peer, %error, events, "closed a gRPC connection that broke the protocol");
            }
        }
    }

    fn active(&self) -> &ActiveConfig {
        &self.active
    }
}

/// Configures HTTP/2, with pings to detect dead clients.
fn builder(bounds: &Bounds) -> Builder<InlineExecutor> {
    let mut builder = Builder::new(InlineExecutor);
    builder
        .timer(TokioTimer::new())
        .auto_date_header(false)
        .max_concurrent_streams(MAX_STREAMS)
        .initial_stream_window_size(WINDOW_BYTES)
        .initial_connection_window_size(WINDOW_BYTES)
        .max_header_list_size(metadata_bytes(bounds))
        .max_send_buf_size(SEND_BYTES)
        .keep_alive_interval(bounds.idle_timeout)
        .keep_alive_timeout(bounds.read_timeout);
    builder
}

/// Returns the maximum size of metadata. More is an HTTP/2 error before the call arrives, and Envoy lets requests pass
/// on errors. So the minimum is what Envoy accepts from its own clients by default.
fn metadata_bytes(bounds: &Bounds) -> u32 {
    u32::try_from(bounds.header_bytes.max(MIN_METADATA_BYTES)).unwrap_or(u32::MAX)
}

async fn respond(
    active: &Arc<ActiveConfig>,
    watch: &Arc<Watch>,
    drain: &Drain,
    request: Request<Incoming>,
) -> Response<Reply> {
    if !watch.is_authenticated() {
        match known(Keys(&active.revision().settings.security.credentials), request.headers()) {
            Ok(_) => watch.authenticate(),
            Err(_) => watch.suspect(),
        }
    }
    let is_grpc = request
        .headers()
        .get(header::CONTENT_TYPE)
        .is_some_and(|kind| kind.as_bytes().starts_with(GRPC.as_bytes()));
    if request.method() != Method::POST || !is_grpc {
        let mut response = Response::new(Reply::EMPTY);
        *response.status_mut() = StatusCode::UNSUPPORTED_MEDIA_TYPE;
        return response;
    }
    let answered = match request.uri().path() {
        SHOULD_RATE_LIMIT => ratelimit::should_rate_limit(active, watch, request).await,
        STREAM_QUOTAS => match quota::stream(active, watch, drain, request) {
            Ok(reply) => return reply,
            Err(failure) => Err(failure),
        },
        // Rare calls are on the heap, so that the future of a decision is small.
        HEALTH_CHECK => Box::pin(health::check(active, watch, request)).await,
        HEALTH_WATCH => match Box::pin(health::asked_service(active, watch, request)).await {
            Ok(service) => return health::watch(active, &service, watch, drain),
            Err(failure) => Err(failure),
        },
        _ => Err(Failure::new(GrpcCode::Unimplemented, "unknown method")),
    };
    let mut response = match answered {
        Ok((message, is_degraded)) => {
            let unread = watch.share().map(|share| share.answer(message.len()));
            let mut response = Response::new(Reply::message(match unread {
                None => message,
                Some(unread) => unread.keep(message),
            }));
            if is_degraded {
                response.headers_mut().insert(DEGRADED, HeaderValue::from_static("true"));
            }
            response
        }
        Err(failure) => {
            if failure.code == GrpcCode::Unauthenticated {
                active.audit.rejected_key(ListenerId::Grpc, None);
            }
            failed(&failure)
        }
    };
    response.headers_mut().insert(header::CONTENT_TYPE, GRPC);
    response
}

fn known<'a>(keys: Keys<'a>, headers: &HeaderMap) -> Result<Access<'a>, Failure> {
    keys.access(bearer(headers)).ok_or(Failure::new(
        GrpcCode::Unauthenticated,
        "missing or unknown API key: send `authorization: Bearer KEY`",
    ))
}
