//! The gRPC listener: unary calls over HTTP/2.

use std::{
    borrow::Cow,
    future::Future,
    io::Read,
    pin::{Pin, pin},
    sync::Arc,
    task::{Context, Poll},
    time::Duration,
};

use bytes::{Buf, BufMut, Bytes, BytesMut};
use http::{
    HeaderMap, HeaderName, HeaderValue, Method, Request, Response, StatusCode, Version, header,
};
use http_body_util::BodyExt;
use hyper::{
    body::{Body, Frame, Incoming},
    server::conn::http2::{Builder, Connection},
    service::service_fn,
};
use hyper_util::rt::{TokioIo, TokioTimer};
use prost::Message;
use quanta::Instant;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    time::timeout,
};
use tracing::Instrument;

use super::{
    decide::{EnvoyDecision, EnvoyError, decide, decide_before},
    preface,
    proto::{HealthCheckRequest, HealthCheckResponse, RateLimitRequest, ServingStatus},
    response,
};
use crate::{
    active_config::{ActiveConfig, Revision},
    config::Bounds,
    listeners::ListenerId,
    metrics::ListenerMetrics,
    service::{
        Access, Drain, INLINE_DENIED, InFlight, InlineExecutor, Keys, Peer, Protocol, Quiet, Share,
        TooMuch, Watch, describe, drive, is_violation,
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

/// A failed call.
#[derive(Debug, PartialEq, Eq)]
struct Failure {
    code: GrpcCode,
    message: Cow<'static, str>,
}

/// Status codes of gRPC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum GrpcCode {
    InvalidArgument = 3,
    DeadlineExceeded = 4,
    NotFound = 5,
    PermissionDenied = 7,
    ResourceExhausted = 8,
    Unimplemented = 12,
    Internal = 13,
    Unavailable = 14,
    Unauthenticated = 16,
}

/// A message, and whether a failure mode decided.
type CallResult = Result<(Bytes, bool), Failure>;

/// Resolves when something happens.
type Event = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A message with trailers, or an empty body.
struct Reply {
    message: Option<Bytes>,
    /// A later message, and the event before it.
    later: Option<(Event, Bytes)>,
    trailers: Option<HeaderMap>,
}

const SHOULD_RATE_LIMIT: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
const HEALTH_CHECK: &str = "/grpc.health.v1.Health/Check";
const HEALTH_WATCH: &str = "/grpc.health.v1.Health/Watch";
/// Service names for health checks.
const SERVICES: [&str; 3] = ["", "ratelimit", "envoy.service.ratelimit.v3.RateLimitService"];

const GRPC: HeaderValue = HeaderValue::from_static("application/grpc");
const STATUS: HeaderName = HeaderName::from_static("grpc-status");
const MESSAGE: HeaderName = HeaderName::from_static("grpc-message");
/// Initial metadata of a response that a failure mode decided because the store did not answer.
const DEGRADED: HeaderName = HeaderName::from_static("pacegate-degraded");
const TIMEOUT: HeaderName = HeaderName::from_static("grpc-timeout");
/// Length of the message prefix: the compression flag, and four bytes for the length.
const PREFIX: usize = 5;
/// Concurrent streams of a connection.
const MAX_STREAMS: u32 = 100;
/// HTTP/2 flow-control window: the minimum of the protocol.
const WINDOW_BYTES: u32 = 65_535;
/// HTTP/2 send buffer of a stream.
const SEND_BYTES: usize = 16 << 10;
/// Room for the default of Envoy's `max_request_headers_kb` (60), plus 32 bytes for each of up to 100 headers.
const MIN_METADATA_BYTES: usize = 80 << 10;
/// Maximum size of a health check, which needs no API key.
const MAX_HEALTH_BYTES: usize = 256;

impl Grpc {
    /// Creates the listener.
    pub(crate) fn new(active: Arc<ActiveConfig>, metrics: Arc<ListenerMetrics>) -> Self {
        let in_flight = InFlight::new(active.revision().settings.bounds.request_bytes);
        Self { active, metrics, in_flight, violations: Quiet::default() }
    }
}

impl Protocol for Grpc {
    async fn serve<I>(&self, io: I, peer: Peer, drain: Drain)
    where
        I: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let bounds = self.active.revision().settings.bounds;
        let begun = tokio::select! {
            begun = preface::read(io, bounds.read_timeout) => begun,
            () = drain.clone().grace_over() => return,
        };
        let Some(io) = begun else {
            tracing::debug!(%peer, "closed a connection without an HTTP/2 preface");
            return;
        };
        let watch = Watch::new(peer, self.in_flight.share(), true);
        let io = TokioIo::new(watch.watched(io));
        let (active, metrics, calls) = (self.active.clone(), self.metrics.clone(), watch.clone());
        let draining = drain.clone();
        let service = service_fn(move |request| {
            let (active, metrics, watch) = (active.clone(), metrics.clone(), calls.clone());
            let drain = draining.clone();
            // On the heap, and freed before the response is read: HTTP/2 keeps the stream until then.
            Box::pin(async move {
                let _open = watch.begin(Version::HTTP_2);
                let begun = Instant::now();
                let span = trace::request("grpc", request.headers());
                let respond = respond(&active, &watch, &drain, request);
                let response = match span.is_none() {
                    true => respond.await,
                    false => Box::pin(respond.instrument(span)).await,
                };
                if response.headers().contains_key(DEGRADED) {
                    metrics.count_degraded(1);
                }
                metrics.count(usize::from(response.body().is_failure()), begun.elapsed());
                Ok::<_, std::convert::Infallible>(response)
            })
        });
        let connection = builder(&bounds).serve_connection(io, service);
        let ended = drive(connection, Connection::graceful_shutdown, &watch, bounds, drain).await;
        if let Err(error) = ended {
            let (peer, is_violation) = (watch.peer(), is_violation(&error));
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
    active: &ActiveConfig,
    watch: &Watch,
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
        SHOULD_RATE_LIMIT => should_rate_limit(active, watch, request).await,
        HEALTH_CHECK => health_check(active, watch, request).await,
        HEALTH_WATCH => match asked_service(active, watch, request).await {
            Ok(service) => return health_watch(&service, drain),
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
                active.audit().rejected_key(ListenerId::Grpc, None);
            }
            failed(&failure)
        }
    };
    response.headers_mut().insert(header::CONTENT_TYPE, GRPC);
    response
}

async fn should_rate_limit(
    active: &ActiveConfig,
    watch: &Watch,
    request: Request<Incoming>,
) -> CallResult {
    let (mut head, body) = request.into_parts();
    // Checked before the body is read.
    known(Keys(&active.revision().settings.security.credentials), &head.headers)?;
    let deadline = head.headers.get(TIMEOUT).and_then(deadline);
    // Metadata may be large, and the message slow, so only the API key is kept.
    let key = head.headers.remove(header::AUTHORIZATION).map(|key| (header::AUTHORIZATION, key));
    head.headers = HeaderMap::from_iter(key);
    let bounds = active.revision().settings.bounds;
    let message = match receive(body, &bounds, bounds.request_bytes, watch.share()).await {
        Err(failure) if failure.code == GrpcCode::ResourceExhausted => {
            return Ok((deny_unread(active), false));
        }
        received => received?,
    };
    let request = RateLimitRequest::decode(message)
        .map_err(|_| Failure::new(GrpcCode::InvalidArgument, "invalid RateLimitRequest"))?;
    let revision = active.revision();
    let keys = Keys(&revision.settings.security.credentials);
    if keys.are_needed() {
        permit(&revision, &head.headers, &request)?;
    }
    let EnvoyDecision { response, is_degraded } = match deadline {
        Some(deadline) => decide_before(&revision, &request, deadline).await?,
        None => decide(&revision, &request).await?,
    };
    Ok((framed(&response), is_degraded))
}

/// Returns the deadline of a call: three quarters of its `grpc-timeout`, which leaves time for the response. Invalid
/// values are ignored.
fn deadline(timeout: &HeaderValue) -> Option<tokio::time::Instant> {
    let timeout = parse_timeout(timeout.to_str().ok()?)?;
    tokio::time::Instant::now().checked_add(timeout * 3 / 4)
}

/// Parses up to eight digits and a unit, such as `20m` for 20 ms.
fn parse_timeout(text: &str) -> Option<Duration> {
    let (digits, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
    let is_number = (1..=8).contains(&digits.len()) && digits.bytes().all(|b| b.is_ascii_digit());
    let number: u64 = digits.parse().ok().filter(|_| is_number)?;
    match unit {
        "H" => Some(Duration::from_secs(3_600 * number)),
        "M" => Some(Duration::from_secs(60 * number)),
        "S" => Some(Duration::from_secs(number)),
        "m" => Some(Duration::from_millis(number)),
        "u" => Some(Duration::from_micros(number)),
        "n" => Some(Duration::from_nanos(number)),
        _ => None,
    }
}

/// Denies a request that is too large: Envoy would let it pass on an error, and clients can influence its size.
fn deny_unread(active: &ActiveConfig) -> Bytes {
    framed(&response::denial(0, active.revision().settings.shadow))
}

fn permit(
    revision: &Revision,
    headers: &HeaderMap,
    request: &RateLimitRequest,
) -> Result<(), Failure> {
    let access = known(Keys(&revision.settings.security.credentials), headers)?;
    let domain = std::str::from_utf8(&request.domain).map_err(|_| EnvoyError::NotText)?;
    if !access.allows(request.scope(), domain) {
        let message = "the API key does not permit this in this domain";
        return Err(Failure::new(GrpcCode::PermissionDenied, message));
    }
    if request.is_inline(revision) && !access.allows_inline() {
        return Err(Failure::new(GrpcCode::PermissionDenied, INLINE_DENIED));
    }
    Ok(())
}

fn known<'a>(keys: Keys<'a>, headers: &HeaderMap) -> Result<Access<'a>, Failure> {
    keys.access(bearer(headers)).ok_or(Failure::new(
        GrpcCode::Unauthenticated,
        "missing or unknown API key: send `authorization: Bearer KEY`",
    ))
}

fn bearer(headers: &HeaderMap) -> Option<&[u8]> {
    let value = headers.get(header::AUTHORIZATION)?.as_bytes();
    let (scheme, key) = value.split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"Bearer ").then_some(key)
}

/// Returns the service of a health check.
async fn asked_service(
    active: &ActiveConfig,
    watch: &Watch,
    request: Request<Incoming>,
) -> Result<String, Failure> {
    let bounds = active.revision().settings.bounds;
    let max = MAX_HEALTH_BYTES.min(bounds.request_bytes);
    let message = receive(request.into_body(), &bounds, max, watch.share()).await?;
    let question = HealthCheckRequest::decode(message)
        .map_err(|_| Failure::new(GrpcCode::InvalidArgument, "invalid HealthCheckRequest"))?;
    Ok(question.service)
}

async fn health_check(
    active: &ActiveConfig,
    watch: &Watch,
    request: Request<Incoming>,
) -> CallResult {
    let service = asked_service(active, watch, request).await?;
    if !SERVICES.contains(&&*service) {
        return Err(Failure::new(GrpcCode::NotFound, "unknown service"));
    }
    let health = match active.is_draining() || active.lacks_rules() {
        true => ServingStatus::NotServing,
        false => ServingStatus::Serving,
    };
    Ok((health_message(health), false))
}

/// Sends the health now, and again when the server shuts down.
fn health_watch(service: &str, drain: &Drain) -> Response<Reply> {
    let health = match SERVICES.contains(&service) {
        true => ServingStatus::Serving,
        false => ServingStatus::ServiceUnknown,
    };
    let mut drain = drain.clone();
    let begun = Box::pin(async move { drain.begun().await });
    let mut reply = Reply::message(health_message(health));
    reply.later = Some((begun, health_message(ServingStatus::NotServing)));
    let mut response = Response::new(reply);
    response.headers_mut().insert(header::CONTENT_TYPE, GRPC);
    response
}

fn health_message(status: ServingStatus) -> Bytes {
    framed(&HealthCheckResponse { status: status.into() })
}

/// Reads the message of a call, of at most `max` bytes. A message that has already arrived needs no timer.
async fn receive(
    body: Incoming,
    bounds: &Bounds,
    max: usize,
    share: Option<&Arc<Share>>,
) -> Result<Bytes, Failure> {
    let mut reading = pin!(gather(body, max, share));
    let once = std::future::poll_fn(|context| Poll::Ready(reading.as_mut().poll(context))).await;
    let gathered = match once {
        Poll::Ready(gathered) => gathered,
        Poll::Pending => within(bounds.read_timeout, reading).await?,
    };
    unframed(gathered?, max)
}

async fn within<T>(time: Duration, work: impl Future<Output = T>) -> Result<T, Failure> {
    let late = |_| Failure::new(GrpcCode::DeadlineExceeded, "timed out while reading the request");
    timeout(time, work).await.map_err(late)
}

/// Reads a body, which counts towards `share` until dropped. Does not copy a single frame.
async fn gather(
    mut body: Incoming,
    max: usize,
    share: Option<&Arc<Share>>,
) -> Result<Bytes, Failure> {
    let mut all = BytesMut::new();
    let mut held = share.map(|share| share.hold(0)).transpose()?;
    while let Some(frame) = body.frame().await {
        let frame =
            frame.map_err(|_| Failure::new(GrpcCode::Internal, "the request is incomplete"))?;
        let Ok(data) = frame.into_data() else { continue };
        if all.len() + data.len() > max.saturating_add(PREFIX) {
            return Err(Failure::new(GrpcCode::ResourceExhausted, "the request is too large"));
        }
        let is_whole = body.is_end_stream();
        if all.is_empty() && is_whole {
            return Ok(data);
        }
        if let Some(held) = &mut held {
            held.grow(data.len())?;
        }
        all.extend_from_slice(&data);
        if is_whole {
            break;
        }
    }
    let all = all.freeze();
    Ok(match held {
        None => all,
        Some(held) => held.keep(all),
    })
}

/// Removes the prefix of a message, and decompresses it to at most `max` bytes.
fn unframed(mut data: Bytes, max: usize) -> Result<Bytes, Failure> {
    if data.len() < PREFIX {
        return Err(Failure::new(GrpcCode::Internal, "the request has no message"));
    }
    let is_compressed = data.get_u8() != 0;
    let length = data.get_u32();
    if usize::try_from(length) != Ok(data.len()) {
        return Err(Failure::new(GrpcCode::Internal, "expected exactly one message"));
    }
    if is_compressed { decompress(&data, max) } else { Ok(data) }
}

/// Decompresses a message. Gzip is the only compression that gRPC clients commonly use.
fn decompress(data: &[u8], max: usize) -> Result<Bytes, Failure> {
    let mut message = Vec::new();
    let bound = u64::try_from(max).unwrap_or(u64::MAX).saturating_add(1);
    let read = flate2::read::GzDecoder::new(data).take(bound).read_to_end(&mut message);
    match read {
        Ok(length) if length <= max => Ok(message.into()),
        Ok(_) => Err(Failure::new(GrpcCode::ResourceExhausted, "the request is too large")),
        Err(_) => {
            let message = "unknown compression: send messages with gzip or uncompressed";
            Err(Failure::new(GrpcCode::Unimplemented, message))
        }
    }
}

fn framed(message: &impl Message) -> Bytes {
    let length = message.encoded_len();
    let mut data = BytesMut::with_capacity(PREFIX + length);
    data.put_u8(0);
    data.put_u32(u32::try_from(length).unwrap_or(u32::MAX));
    // Encoding into a growing buffer cannot fail.
    let _ = message.encode(&mut data);
    data.freeze()
}

/// Creates a trailers-only response.
fn failed(failure: &Failure) -> Response<Reply> {
    let mut response = Response::new(Reply::EMPTY);
    let headers = response.headers_mut();
    headers.insert(STATUS, HeaderValue::from(failure.code as u16));
    if let Ok(message) = HeaderValue::from_str(&escape(&failure.message)) {
        headers.insert(MESSAGE, message);
    }
    response
}

/// Percent-encodes a message as gRPC requires.
fn escape(message: &str) -> String {
    let mut escaped = String::with_capacity(message.len());
    for byte in message.bytes() {
        match byte {
            b'%' | ..b' ' | 0x7f.. => escaped.push_str(&format!("%{byte:02X}")),
            _ => escaped.push(char::from(byte)),
        }
    }
    escaped
}

impl Failure {
    const fn new(code: GrpcCode, message: &'static str) -> Self {
        Self { code, message: Cow::Borrowed(message) }
    }
}

impl From<TooMuch> for Failure {
    fn from(_: TooMuch) -> Self {
        Self::new(GrpcCode::ResourceExhausted, "too many requests in flight on this connection")
    }
}

impl From<EnvoyError> for Failure {
    fn from(error: EnvoyError) -> Self {
        let code = match &error {
            EnvoyError::Check(_) | EnvoyError::Store(_) | EnvoyError::NoConfiguration => {
                GrpcCode::Unavailable
            }
            EnvoyError::EmptyDomain
            | EnvoyError::NoDescriptors
            | EnvoyError::Unit
            | EnvoyError::NotText => GrpcCode::InvalidArgument,
        };
        Self { code, message: Cow::Owned(error.to_string()) }
    }
}

impl Reply {
    const EMPTY: Self = Self { message: None, later: None, trailers: None };

    fn message(message: Bytes) -> Self {
        let mut trailers = HeaderMap::with_capacity(1);
        trailers.insert(STATUS, HeaderValue::from_static("0"));
        Self { message: Some(message), later: None, trailers: Some(trailers) }
    }

    fn is_failure(&self) -> bool {
        self.message.is_none()
    }
}

impl Body for Reply {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        if self.message.is_none()
            && let Some((event, _)) = &mut self.later
        {
            std::task::ready!(event.as_mut().poll(context));
            self.message = self.later.take().map(|(_, message)| message);
        }
        let message = self.message.take().map(Frame::data);
        let frame = message.or_else(|| self.trailers.take().map(Frame::trailers));
        Poll::Ready(frame.map(Ok))
    }

    fn is_end_stream(&self) -> bool {
        self.message.is_none() && self.trailers.is_none()
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[test]
    fn messages_are_prefixed_with_their_length() {
        let message = HealthCheckResponse { status: ServingStatus::Serving.into() };
        assert_eq!(&*framed(&message), [0, 0, 0, 0, 2, 8, 1]);
        assert_eq!(unframed(framed(&message), 9).unwrap(), &[8, 1][..]);
    }

    #[test]
    fn invalid_frames_are_rejected() {
        for (data, code) in [
            (&[][..], GrpcCode::Internal),
            (&[0, 0, 0, 0], GrpcCode::Internal),
            (&[1, 0, 0, 0, 1, 7], GrpcCode::Unimplemented),
            (&[0, 0, 0, 0, 1], GrpcCode::Internal),
            (&[0, 0, 0, 0, 0, 7], GrpcCode::Internal),
            (&[0, 255, 255, 255, 255, 7], GrpcCode::Internal),
        ] {
            assert_eq!(unframed(Bytes::from_static(data), 9).unwrap_err().code, code, "{data:?}");
        }
    }

    #[test]
    fn gzip_is_decompressed_up_to_the_maximum() {
        let compressed = |length: usize| {
            let mut encoder =
                flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::best());
            encoder.write_all(&vec![b'x'; length]).unwrap();
            let data = encoder.finish().unwrap();
            let length = u32::try_from(data.len()).unwrap().to_be_bytes();
            Bytes::from([&[1][..], &length, &data].concat())
        };
        assert_eq!(unframed(compressed(100), 100).unwrap(), vec![b'x'; 100]);
        // A small message that would fill memory.
        let failure = unframed(compressed(1 << 20), 100).unwrap_err();
        assert_eq!(failure.code, GrpcCode::ResourceExhausted);
    }

    #[test]
    fn timeouts_have_a_number_and_a_unit() {
        for (text, micros) in [
            ("20m", Some(20_000)),
            ("1S", Some(1_000_000)),
            ("99999999H", Some(99_999_999 * 3_600_000_000)),
            ("2M", Some(120_000_000)),
            ("0u", Some(0)),
            ("7000n", Some(7)),
            ("", None),
            ("m", None),
            ("20", None),
            ("20s", None),
            ("+2m", None),
            ("100000000m", None),
            ("2ä", None),
        ] {
            assert_eq!(parse_timeout(text), micros.map(Duration::from_micros), "{text}");
        }
    }

    #[test]
    fn messages_of_failures_are_ascii() {
        assert_eq!(escape("100% of ä\r\n"), "100%25 of %C3%A4%0D%0A");
    }

    #[test]
    fn a_key_comes_after_its_scheme() {
        for (value, key) in [
            ("Bearer abc", Some(&b"abc"[..])),
            ("bearer abc", Some(b"abc")),
            ("Basic abcd", None),
            ("Bear", None),
        ] {
            let value = HeaderValue::from_static(value);
            let headers = HeaderMap::from_iter([(header::AUTHORIZATION, value)]);
            assert_eq!(bearer(&headers), key);
        }
        assert_eq!(bearer(&HeaderMap::new()), None);
    }
}
