mod quota;

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use bytes::{BufMut, Bytes, BytesMut};
use http::{HeaderMap, HeaderValue, Method, Request, Response, StatusCode, header};
use http_body_util::{BodyExt, Full};
use hyper::{
    body::{Body, Frame, Incoming},
    client::conn::http2::{SendRequest, handshake},
};
use hyper_util::rt::{TokioExecutor, TokioIo};
use pacegate::{Limiter, PolicySet};
use prost::Message;
use sha2::{Digest, Sha256};
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream, ReadBuf, duplex},
    task::JoinHandle,
};

use super::{
    super::{
        file::RuleFile,
        options::EnvoyOptions,
        proto::{
            Code, Entry, RateLimitDescriptor, RateLimitOverride, RateLimitRequest,
            RateLimitResponse, Unit,
        },
        rules::Rules,
    },
    CODES, Grpc, bearer,
};
use crate::{
    active_config::{ActiveConfig, State},
    config::{Credential, Scope, Settings},
    engine::Engine,
    metrics::ListenerMetrics,
    service::{DrainSwitch, Protocol},
};

struct Server {
    active: Arc<ActiveConfig>,
    drain: DrainSwitch,
    connection: JoinHandle<()>,
}

type Client = SendRequest<Full<Bytes>>;

const ASK: &str = "/envoy.service.ratelimit.v3.RateLimitService/ShouldRateLimit";
const HEALTH: &str = "/grpc.health.v1.Health/Check";

fn settings() -> Settings {
    let text = "domain: d\ndescriptors: [{key: k, rate_limit: {unit: year, requests_per_unit: 1}}]";
    of_rules(text)
}

fn server(settings: Settings) -> (Server, DuplexStream) {
    serve(memory(settings))
}

fn serve(active: ActiveConfig) -> (Server, DuplexStream) {
    let (ours, theirs) = duplex(64 * 1024);
    (serve_on(ours, active), theirs)
}

fn serve_on(
    io: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
    active: ActiveConfig,
) -> Server {
    let active = Arc::new(active);
    let (drain, begun) = DrainSwitch::new();
    let grpc = Grpc::new(active.clone(), Arc::new(ListenerMetrics::new("grpc", &CODES)));
    let peer = std::net::SocketAddr::from(([127, 0, 0, 1], 1));
    let connection = tokio::spawn(async move { grpc.serve(io, peer.into(), begun).await });
    Server { active, drain, connection }
}

fn memory(settings: Settings) -> ActiveConfig {
    let limiter = Limiter::builder().policies(settings.policies.clone()).build().unwrap();
    let state = State::Memory(limiter.store().clone());
    ActiveConfig::new(Engine::memory(limiter), state, settings)
}

async fn connect(settings: Settings) -> (Server, Client) {
    handshaken(server(settings)).await
}

async fn handshaken((server, io): (Server, DuplexStream)) -> (Server, Client) {
    let (client, connection) = handshake(TokioExecutor::new(), TokioIo::new(io)).await.unwrap();
    tokio::spawn(connection);
    (server, client)
}

fn framed(message: &[u8]) -> Bytes {
    let mut data = BytesMut::new();
    data.put_u8(0);
    data.put_u32(message.len().try_into().unwrap());
    data.put_slice(message);
    data.freeze()
}

fn question(domain: &str) -> Bytes {
    let entry = Entry { key: "k".into(), value: "v".into() };
    let descriptor = RateLimitDescriptor { entries: vec![entry], ..Default::default() };
    let request = RateLimitRequest {
        domain: domain.to_owned().into(),
        descriptors: vec![descriptor],
        hits_addend: 0,
    };
    framed(&request.encode_to_vec())
}

async fn send(
    client: &mut Client,
    path: &str,
    body: Bytes,
    key: Option<&str>,
) -> Response<Incoming> {
    let mut request = Request::builder()
        .method(Method::POST)
        .uri(format!("http://pacegate{path}"))
        .header("content-type", "application/grpc")
        .header("te", "trailers");
    if let Some(key) = key {
        request = request.header("authorization", format!("Bearer {key}"));
    }
    client.send_request(request.body(Full::new(body)).unwrap()).await.unwrap()
}

/// Returns the message, and the status with its text.
async fn call(
    client: &mut Client,
    path: &str,
    body: Bytes,
    key: Option<&str>,
) -> (Bytes, u32, String) {
    let response = send(client, path, body, key).await;
    assert_eq!(response.status(), StatusCode::OK);
    assert_eq!(response.headers()["content-type"], "application/grpc");
    assert!(!response.headers().contains_key("content-length"));
    let headers = response.headers().clone();
    let body = response.into_body().collect().await.unwrap();
    let trailers = body.trailers().cloned().unwrap_or_default();
    // The status of a call that failed at once is in the headers, otherwise in the trailers.
    let message = body.to_bytes();
    let reply: &HeaderMap = if trailers.is_empty() { &headers } else { &trailers };
    let status = reply["grpc-status"].to_str().unwrap().parse().unwrap();
    let text = reply.get("grpc-message").map_or("", |text| text.to_str().unwrap());
    (message, status, text.to_owned())
}

async fn ask(client: &mut Client) -> Code {
    let (message, status, _) = call(client, ASK, question("d"), None).await;
    assert_eq!(status, 0);
    let response = RateLimitResponse::decode(message.slice(5..)).unwrap();
    assert_eq!(response.statuses.len(), 1);
    response.overall_code()
}

#[tokio::test]
async fn a_client_is_answered_with_trailers() {
    let (_server, mut client) = connect(settings()).await;
    assert_eq!(ask(&mut client).await, Code::Ok);
    assert_eq!(ask(&mut client).await, Code::OverLimit);
}

#[tokio::test]
async fn invalid_calls_have_a_status() {
    let mut settings = settings();
    settings.bounds.request_bytes = 100;
    let (_server, mut client) = connect(settings).await;
    for (path, body, status, text) in [
        ("/any.Service/Method", question("d"), 12, "unknown method"),
        ("/grpc.health.v1.Health/List", framed(b""), 12, "unknown method"),
        (ASK, framed(&[0xff]), 3, "invalid RateLimitRequest"),
        (ASK, framed(b""), 3, "the domain is empty"),
        (ASK, framed(b"\x0a\x01d"), 3, "expected at least one descriptor"),
        (
            ASK,
            Bytes::from_static(b"\x01\0\0\0\x01x"),
            12,
            "unknown compression: send messages with gzip or uncompressed",
        ),
        (ASK, Bytes::from_static(b"\0\0\0\0\x01"), 13, "expected exactly one message"),
        (ASK, Bytes::new(), 13, "the request has no message"),
        (HEALTH, framed(&[0; 101]), 8, "the request is too large"),
        (HEALTH, framed(b"\x0a\x01x"), 5, "unknown service"),
        (HEALTH, framed(&[0xff]), 3, "invalid HealthCheckRequest"),
    ] {
        let answer = call(&mut client, path, body, None).await;
        assert_eq!(answer, (Bytes::new(), status, text.to_owned()), "{path}");
    }
    let get = Request::get("http://pacegate/").body(Full::default()).unwrap();
    let response = client.send_request(get).await.unwrap();
    assert_eq!(response.status(), StatusCode::UNSUPPORTED_MEDIA_TYPE);
    assert_eq!(ask(&mut client).await, Code::Ok);
}

#[tokio::test]
async fn a_watch_reports_the_health_until_the_shutdown() {
    let (server, mut client) = connect(settings()).await;
    let watch = "/grpc.health.v1.Health/Watch";
    let mut known = send(&mut client, watch, framed(b""), None).await.into_body();
    let mut unknown = send(&mut client, watch, framed(b"\x0a\x01x"), None).await.into_body();
    let next = async |body: &mut Incoming| body.frame().await.unwrap().unwrap().into_data().ok();
    assert_eq!(next(&mut known).await, Some(framed(&[8, 1])), "serving");
    assert_eq!(next(&mut unknown).await, Some(framed(&[8, 3])), "unknown service");
    server.drain.turn();
    assert_eq!(next(&mut known).await, Some(framed(&[8, 2])), "not serving");
    let end = known.frame().await.unwrap().unwrap().into_trailers().unwrap();
    assert_eq!(end["grpc-status"], "0");
}

fn needing_rules(mut settings: Settings) -> Settings {
    settings.envoy.needs_rules = true;
    settings
}

/// `HEALTHY_WITH_AT_LEAST_ONE_CONFIG_LOADED`.
#[tokio::test]
async fn a_watch_reports_that_rules_are_loaded_and_gone() {
    let without_rules = needing_rules(Settings::new(PolicySet::new([]).unwrap()));
    let with_rules = needing_rules(settings());
    let (server, mut client) = connect(without_rules.clone()).await;
    let watch = send(&mut client, "/grpc.health.v1.Health/Watch", framed(b""), None).await;
    let mut watch = watch.into_body();
    let mut next = async || watch.frame().await.unwrap().unwrap().into_data().unwrap();
    assert_eq!(next().await, framed(&[8, 2]), "not serving");
    // A reload without a change of the health is not reported.
    server.active.replace(without_rules.clone());
    server.active.replace(with_rules.clone());
    assert_eq!(next().await, framed(&[8, 1]), "serving");
    let (message, ..) = call(&mut client, HEALTH, framed(b""), None).await;
    assert_eq!(&message[5..], [8, 1]);
    server.active.replace(with_rules);
    server.active.replace(without_rules);
    assert_eq!(next().await, framed(&[8, 2]), "not serving");
    let (message, ..) = call(&mut client, HEALTH, framed(b""), None).await;
    assert_eq!(&message[5..], [8, 2]);
}

#[tokio::test]
async fn a_connection_with_a_watch_is_not_idle() {
    let mut settings = settings();
    let short = Duration::from_millis(20);
    (settings.bounds.idle_timeout, settings.bounds.read_timeout) = (short, short);
    let (watching, mut client) = connect(settings.clone()).await;
    let watch = send(&mut client, "/grpc.health.v1.Health/Watch", framed(b""), None).await;
    let (idle, mut other) = connect(settings).await;
    assert_eq!(ask(&mut other).await, Code::Ok);
    idle.connection.await.unwrap();
    assert!(!watching.connection.is_finished());
    assert_eq!(ask(&mut client).await, Code::Ok);
    // Without the watch, the connection is idle again.
    drop(watch);
    watching.connection.await.unwrap();
}

/// The failures of envoyproxy/ratelimit have the code `UNKNOWN`.
#[tokio::test]
async fn failures_have_the_code_of_envoyproxy_ratelimit_in_its_place() {
    for (is_ratelimit, expected) in [(false, 3), (true, 2)] {
        let mut settings = settings();
        settings.ratelimit = is_ratelimit.then(|| "/data".into());
        let (_server, mut client) = connect(settings).await;
        let (_, status, text) = call(&mut client, ASK, question(""), None).await;
        assert_eq!((status, &*text), (expected, "the domain is empty"));
    }
}

fn of_rules(text: &str) -> Settings {
    let source = RuleFile { file: "rules.yaml".into(), text: text.to_owned() };
    let rules = Rules::parse(&[source], &EnvoyOptions::default()).unwrap();
    let mut settings = Settings::new(rules.beside(&PolicySet::new([]).unwrap()).unwrap());
    settings.rules = Arc::new(rules);
    settings
}

/// Returns the code and the number of statuses for these descriptors.
async fn answer(client: &mut Client, descriptors: Vec<RateLimitDescriptor>) -> (Code, usize) {
    let request = RateLimitRequest { domain: "d".into(), descriptors, hits_addend: 0 };
    let (message, status, text) = call(client, ASK, framed(&request.encode_to_vec()), None).await;
    assert_eq!((status, &*text), (0, ""));
    let response = RateLimitResponse::decode(message.slice(5..)).unwrap();
    (response.overall_code(), response.statuses.len())
}

fn descriptor(entries: &[(&'static str, String)]) -> RateLimitDescriptor {
    let entry = |(key, value): &(&'static str, String)| Entry {
        key: Bytes::from_static(key.as_bytes()),
        value: value.clone().into(),
    };
    RateLimitDescriptor { entries: entries.iter().map(entry).collect(), ..Default::default() }
}

#[tokio::test]
async fn a_long_value_is_counted_like_any_other() {
    let rules = "domain: d\ndescriptors:\n\
                 - {key: k, rate_limit: {unit: year, requests_per_unit: 1}}\n\
                 - {key: k, value: v*w, rate_limit: {unit: year, requests_per_unit: 2}}";
    let (_server, mut client) = connect(of_rules(rules)).await;
    let (one, other) = ("x".repeat(2_000), "x".repeat(2_001));
    let matched = format!("v{one}w");
    for (value, code) in [
        (&one, Code::Ok),
        (&one, Code::OverLimit),
        (&other, Code::Ok),
        (&matched, Code::Ok),
        (&matched, Code::Ok),
        (&matched, Code::OverLimit),
    ] {
        let asked = vec![descriptor(&[("k", value.clone())])];
        assert_eq!(answer(&mut client, asked).await, (code, 1), "{}", value.len());
    }
    for code in [Code::Ok, Code::OverLimit] {
        let limit = Some(RateLimitOverride { requests_per_unit: 1, unit: Unit::Year.into() });
        let own = RateLimitDescriptor { limit, ..descriptor(&[("any", one.clone())]) };
        assert_eq!(answer(&mut client, vec![own]).await, (code, 1));
    }
}

#[tokio::test]
async fn too_much_is_denied_and_no_error() {
    let (_server, mut client) = connect(settings()).await;
    let free = || descriptor(&[("free", "x".into())]);
    let most = vec![("free", "x".to_owned()); 32];
    assert_eq!(answer(&mut client, vec![free(); 32]).await, (Code::Ok, 32));
    assert_eq!(answer(&mut client, vec![free(); 33]).await, (Code::OverLimit, 33));
    assert_eq!(answer(&mut client, vec![descriptor(&most)]).await, (Code::Ok, 1));
    let more = descriptor(&[most, vec![("free", "x".into())]].concat());
    assert_eq!(answer(&mut client, vec![free(), more]).await, (Code::OverLimit, 2));
    let large = || vec![descriptor(&[("free", "x".repeat(65_536))])];
    assert_eq!(answer(&mut client, large()).await, (Code::OverLimit, 0));
    let mut shadow = settings();
    shadow.shadow = true;
    let (_server, mut client) = connect(shadow).await;
    assert_eq!(answer(&mut client, vec![free(); 33]).await, (Code::Ok, 33));
    assert_eq!(answer(&mut client, large()).await, (Code::Ok, 0));
}

#[tokio::test]
async fn a_message_may_come_in_many_frames() {
    let (_server, mut client) = connect(settings()).await;
    let entry = Entry { key: "k".into(), value: vec![b'x'; 1000].into() };
    let descriptor = RateLimitDescriptor { entries: vec![entry], ..Default::default() };
    let request =
        RateLimitRequest { domain: "d".into(), descriptors: vec![descriptor; 32], hits_addend: 0 };
    let (message, status, text) =
        call(&mut client, ASK, framed(&request.encode_to_vec()), None).await;
    assert_eq!((status, &*text), (0, ""));
    let response = RateLimitResponse::decode(message.slice(5..)).unwrap();
    assert_eq!((response.statuses.len(), response.overall_code()), (32, Code::OverLimit));
}

#[tokio::test]
async fn health_ends_with_the_drain() {
    let (server, mut client) = connect(settings()).await;
    for service in ["", "ratelimit", "envoy.service.ratelimit.v3.RateLimitService"] {
        let mut body = Vec::new();
        prost::encoding::string::encode(1, &service.to_owned(), &mut body);
        let (message, status, _) = call(&mut client, HEALTH, framed(&body), None).await;
        assert_eq!((&message[5..], status), (&[8, 1][..], 0), "{service}");
    }
    server.active.drain();
    let (message, _, _) = call(&mut client, HEALTH, framed(b""), None).await;
    assert_eq!(&message[5..], [8, 2]);
    assert_eq!(ask(&mut client).await, Code::Ok);
    server.drain.turn();
    server.connection.await.unwrap();
}

#[tokio::test]
async fn credentials_open_their_domains() {
    let mut settings = settings();
    settings.security.credentials = vec![Credential {
        name: "edge".into(),
        sha256: Sha256::digest("secret").into(),
        scope: Scope::Check,
        domains: Some(vec!["d".into()]),
        inline: false,
    }];
    let (_server, mut client) = connect(settings).await;
    let mut ask = async |body: Bytes, key| call(&mut client, ASK, body, key).await.1;
    assert_eq!(ask(question("d"), None).await, 16);
    assert_eq!(ask(question("d"), Some("wrong")).await, 16);
    assert_eq!(ask(question("e"), Some("secret")).await, 7);
    let back = RateLimitDescriptor { is_negative_hits: true, ..Default::default() };
    let back = RateLimitRequest { domain: "d".into(), descriptors: vec![back], hits_addend: 0 };
    assert_eq!(ask(framed(&back.encode_to_vec()), Some("secret")).await, 7);
    assert_eq!(ask(question("d"), Some("secret")).await, 0);
    let large = framed(&[0; 65_537]);
    assert_eq!(ask(large.clone(), Some("wrong")).await, 16);
    assert_eq!(ask(large, Some("secret")).await, 0);
}

#[tokio::test]
async fn other_protocols_are_hung_up_on() {
    let (server, mut io) = server(settings());
    io.write_all(b"GET / HTTP/1.1\r\nHost: pacegate\r\n\r\n").await.unwrap();
    let mut read = Vec::new();
    io.read_to_end(&mut read).await.unwrap();
    assert_eq!(read, b"");
    server.connection.await.unwrap();
}

#[tokio::test]
async fn silence_is_not_waited_for() {
    let mut settings = settings();
    settings.bounds.read_timeout = Duration::from_millis(20);
    let (server, io) = server(settings);
    server.connection.await.unwrap();
    drop(io);
}

/// A body that starts a message and never ends.
struct Stalled(Option<Bytes>);

impl Body for Stalled {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Self::Error>>> {
        match self.0.take() {
            Some(data) => Poll::Ready(Some(Ok(Frame::data(data)))),
            None => Poll::Pending,
        }
    }
}

#[tokio::test]
async fn a_message_has_to_arrive_in_time() {
    let mut settings = settings();
    settings.bounds.read_timeout = Duration::from_millis(20);
    let (_server, io) = server(settings);
    let (mut client, connection) = handshake(TokioExecutor::new(), TokioIo::new(io)).await.unwrap();
    tokio::spawn(connection);
    let request = Request::post(format!("http://pacegate{ASK}"))
        .header("content-type", "application/grpc")
        .body(Stalled(Some(question("d").slice(..7))))
        .unwrap();
    let response = client.send_request(request).await.unwrap();
    assert_eq!(response.headers()["grpc-status"], "4");
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

/// A stream that counts its writes.
struct CountedWrites(DuplexStream, Arc<AtomicUsize>);

impl AsyncRead for CountedWrites {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buf)
    }
}

impl AsyncWrite for CountedWrites {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &[u8],
    ) -> Poll<std::io::Result<usize>> {
        self.1.fetch_add(1, Ordering::Relaxed);
        Pin::new(&mut self.0).poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

#[tokio::test]
async fn requests_that_arrive_together_are_answered_in_one_write() {
    let (ours, theirs) = duplex(64 * 1024);
    let writes = Arc::<AtomicUsize>::default();
    let server = serve_on(CountedWrites(ours, writes.clone()), memory(settings()));
    let (_server, mut client) = handshaken((server, theirs)).await;
    send(&mut client, "/unknown", Bytes::new(), None).await;
    let before = writes.load(Ordering::Relaxed);
    let asked = (0..16).map(|_| {
        let mut client = client.clone();
        async move { send(&mut client, "/unknown", Bytes::new(), None).await }
    });
    futures_util::future::join_all(asked).await;
    assert_eq!(writes.load(Ordering::Relaxed) - before, 1);
}
