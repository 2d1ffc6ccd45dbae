//! Clients without an API key and clients that do not read: their cost, and the latency of other clients meanwhile.

use std::{
    fs,
    io::{ErrorKind, Read, Write},
    net::TcpStream,
    time::Duration,
};

use bytes::Bytes;
use http_body_util::Full;
use hyper_util::rt::{TokioExecutor, TokioIo};
use pacegate_testkit::servers::{Client, eventually};
use tokio::time::Instant;

use crate::{
    clients::{ASK, Folder, Grpc, Http, command, connect},
    service::Service,
};

const WITHIN: Duration = Duration::from_secs(20);
const KEY: &str = "the-key-of-an-honest-client";
const POLICIES: &str = "policies:\n  - { name: api, per: [key], limit: 1000000/week }\n  \
                        - { name: e, domain: e, per: [key], limit: 1000000/week }\n";
const CHECK: &str = r#"{"attributes": {"key": "honest"}}"#;
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const MIB: u64 = 1 << 10;

/// Connections without a key, on each listener.
const HOSTILE: usize = 200;
/// The memory that they may use, in KiB.
const MAX_MEMORY: u64 = 64 * MIB;
/// Requests of an honest client in one run, and runs.
const REQUESTS: usize = 200;
const RUNS: usize = 5;
/// A hostile client acts before every tenth request: a build without optimisation needs milliseconds for its requests.
const ATTACK_EVERY: usize = 10;

/// Starts a service, which requires an API key if `keys` is set.
/// Keep the folder while the service runs: it watches the file.
fn start(bounds: &str, keys: bool) -> (Folder, Service) {
    let keys = if keys { "keys: [{ name: honest, env: TEST_KEY, scope: admin }]\n" } else { "" };
    let folder = Folder::with_config(&format!("bounds: {{ {bounds} }}\n{keys}{POLICIES}"));
    let service = Service::start_with(&["--config", &folder.config()], &[("TEST_KEY", KEY)]);
    (folder, service)
}

/// Returns the resident memory of a process, in KiB.
fn resident(service: &Service) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", service.pid())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().strip_suffix(" kB").unwrap().parse().unwrap()
}

/// Returns the CPU time of a process.
fn cpu(service: &Service) -> Duration {
    let stat = fs::read_to_string(format!("/proc/{}/stat", service.pid())).unwrap();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap().split_whitespace().collect();
    let ticks: u64 = fields[11..13].iter().map(|field| field.parse::<u64>().unwrap()).sum();
    Duration::from_millis(10 * ticks)
}

/// Returns the open connections of a listener.
fn open(service: &Service, listener: &str) -> u64 {
    let mut client = Http::connect(service.address("http")).unwrap();
    let metrics = client.request("GET", "/metrics", Some(KEY), "").unwrap().body;
    let name = format!("pacegate_connections{{listener=\"{listener}\"}} ");
    metrics.lines().find_map(|line| line.strip_prefix(&name)).unwrap().parse().unwrap()
}

/// Returns the answered requests of all listeners. The next call counts this one.
fn answered(service: &Service) -> u64 {
    let mut client = Http::connect(service.address("http")).unwrap();
    let metrics = client.request("GET", "/metrics", Some(KEY), "").unwrap().body;
    let counts = metrics.lines().filter(|line| line.starts_with("pacegate_requests_total{"));
    counts.map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap()).sum()
}

/// Encodes an HTTP/2 frame.
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const CONTINUATION: u8 = 9;
const END_STREAM: u8 = 1;
const END_HEADERS: u8 = 4;

/// The preface of a connection with a receive window of zero.
fn window_of_zero() -> Vec<u8> {
    [PREFACE, &frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 0])].concat()
}

/// Encodes the headers of a request without indexing.
fn head(method: u8, path: &str, kind: &str) -> Vec<u8> {
    let text = |text: &str| [&[u8::try_from(text.len()).unwrap()], text.as_bytes()].concat();
    // :scheme http, :path, :authority localhost, content-type
    [&[method, 0x86, 0x04][..], &text(path), b"\x01\x09localhost", b"\x0f\x10", &text(kind)]
        .concat()
}

const GET: u8 = 0x82;
const POST: u8 = 0x83;

/// Reads the frames of a stream up to its end: kind, flags and payload.
fn read_stream(stream: &mut TcpStream, id: u32) -> Vec<(u8, u8, Vec<u8>)> {
    let mut frames = Vec::new();
    let mut head = [0; 9];
    while frames.last().is_none_or(|(kind, flags, _)| *kind != 3 && flags & END_STREAM == 0) {
        stream.read_exact(&mut head).unwrap();
        let mut payload = vec![0; usize::from(u16::from_be_bytes([head[1], head[2]]))];
        stream.read_exact(&mut payload).unwrap();
        if head[5..] == id.to_be_bytes() {
            frames.push((head[3], head[4], payload));
        }
    }
    frames
}

#[test]
fn a_body_is_not_read_before_the_key() {
    // A service that reads the body first would not answer before the client times out.
    let (_folder, service) = start("read_timeout: 1h", true);
    for path in ["/v1/check", "/v1/check/batch", "/v1/refund", "/v1/acquire", "/v1/block", "/json"]
    {
        let mut stream = connect(service.address("http")).unwrap();
        let request = format!(
            "POST {path} HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
             content-length: 60000\r\n\r\n"
        );
        stream.write_all(request.as_bytes()).unwrap();
        assert_eq!(Http::over(stream).read().unwrap().status, 401, "{path}");
        let mut stream = connect(service.address("http")).unwrap();
        stream.write_all(&window_of_zero()[..24]).unwrap();
        stream.write_all(&frame(SETTINGS, 0, 0, &[])).unwrap();
        let request = head(POST, path, "application/json");
        stream.write_all(&frame(HEADERS, END_HEADERS, 1, &request)).unwrap();
        let answer = read_stream(&mut stream, 1);
        let body = answer.iter().find(|(kind, ..)| *kind == DATA).unwrap();
        assert!(String::from_utf8_lossy(&body.2).contains("unauthorized"), "{path}: {answer:?}");
    }
    let mut stream = connect(service.address("grpc")).unwrap();
    stream.write_all(&[PREFACE, &frame(SETTINGS, 0, 0, &[])].concat()).unwrap();
    let call = head(POST, ASK, "application/grpc");
    stream.write_all(&frame(HEADERS, END_HEADERS, 1, &call)).unwrap();
    let answer = read_stream(&mut stream, 1);
    assert_eq!((answer[0].0, answer[0].1 & END_STREAM), (HEADERS, END_STREAM), "{answer:?}");
}

#[test]
fn commands_are_short_before_authentication() {
    let (_folder, service) = start("", true);
    let mut stream = connect(service.address("resp")).unwrap();
    stream.write_all(b"*2\r\n$4\r\nAUTH\r\n$60000\r\n").unwrap();
    let mut said = String::new();
    stream.read_to_string(&mut said).unwrap();
    assert_eq!(said, "-ERR Protocol error: command too long\r\n");
    let mut client = Client::connect(&service.address("resp").to_string()).unwrap();
    assert_eq!(client.command(&["AUTH", KEY]).unwrap().text(), "OK");
    let long = "x".repeat(60_000);
    assert_eq!(client.command(&["ECHO", &long]).unwrap().text(), long);
}

/// A worker reads 512 bytes in 10 ms from all clients that send many requests without a key.
#[test]
fn requests_without_a_key_are_read_slowly() {
    const READ: usize = 512;
    let folder = Folder::with_config(&format!(
        "keys: [{{ name: honest, env: TEST_KEY, scope: admin }}]\n{POLICIES}"
    ));
    let args = ["--config", &folder.config(), "--workers", "1"];
    let service = Service::start_with(&args, &[("TEST_KEY", KEY)]);
    let padding = "x".repeat(200);
    let get = format!("GET /v1/stats HTTP/1.1\r\nhost: localhost\r\nx: {padding}\r\n\r\n");
    for (listener, request, rejection) in [
        ("http", get.into_bytes(), &b"HTTP/1.1 401 "[..]),
        ("resp", command(&[b"ECHO", padding.as_bytes()]), b"-NOAUTH "),
    ] {
        let mut stream = connect(service.address(listener)).unwrap();
        send(&mut stream, &request.repeat(1_000));
        stream.set_nonblocking(false).unwrap();
        let (begun, mut answers, mut part) = (Instant::now(), Vec::new(), [0; 4_096]);
        while begun.elapsed() < Duration::from_secs(2) {
            let length = stream.read(&mut part).unwrap();
            assert!(length > 0, "{listener}: the connection was closed");
            answers.extend_from_slice(&part[..length]);
        }
        let rejected = answers.windows(rejection.len()).filter(|bytes| *bytes == rejection).count();
        let reads = usize::try_from(begun.elapsed().as_millis() / 10).unwrap();
        // The first requests of each second are read at once.
        let most = (reads + reads / 5 + 10) * READ / request.len();
        println!("{listener}: {rejected} requests without a key were read, at most {most}");
        assert!((10..=most).contains(&rejected), "{listener}: {rejected}, at most {most}");
    }
}

#[test]
fn unfinished_bodies_are_bounded() {
    const CONNECTIONS: u64 = 12;
    let (_folder, service) = start("read_timeout: 1h", false);
    Http::connect(service.address("http")).unwrap().check(None, CHECK).unwrap();
    let before = resident(&service);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let address = service.address("http");
    let (refused, kept) = runtime.block_on(async {
        let mut answers = tokio::task::JoinSet::new();
        for _ in 0..CONNECTIONS {
            let io = tokio::net::TcpStream::connect(address).await.unwrap();
            let connected =
                hyper::client::conn::http2::handshake(TokioExecutor::new(), TokioIo::new(io));
            let (client, connection) = connected.await.unwrap();
            tokio::spawn(connection);
            for _ in 0..100 {
                // The declared length is longer than the body.
                let body = Full::new(Bytes::from(vec![b' '; 60_000]));
                let request = http::Request::post("http://localhost/v1/check")
                    .header("content-type", "application/json")
                    .header("content-length", "60001")
                    .body(Unended(body))
                    .unwrap();
                let mut client = client.clone();
                answers.spawn(async move { client.send_request(request).await });
            }
        }
        let mut refused = 0;
        // A connection holds as many as fit into 1 MiB.
        while refused < 1_200 - CONNECTIONS * 17 {
            let answer = tokio::time::timeout(WITHIN, answers.join_next()).await;
            let answer = answer.expect("the rest is refused").unwrap().unwrap().unwrap();
            assert_eq!(answer.status(), 503);
            refused += 1;
        }
        let kept = resident(&service);
        (refused, kept)
    });
    let grown = kept.saturating_sub(before);
    println!("{refused} of 1200 bodies were refused; the others took {grown} KiB");
    assert!(grown < 40 * MIB, "{grown} KiB");
    drop(runtime);
    assert_eq!(Http::connect(address).unwrap().check(None, CHECK).unwrap().status, 200);
}

/// A body that never ends.
struct Unended(Full<Bytes>);

impl hyper::body::Body for Unended {
    type Data = Bytes;
    type Error = std::convert::Infallible;

    fn poll_frame(
        mut self: std::pin::Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Result<hyper::body::Frame<Bytes>, Self::Error>>> {
        match std::pin::Pin::new(&mut self.0).poll_frame(cx) {
            std::task::Poll::Ready(None) => std::task::Poll::Pending,
            polled => polled,
        }
    }
}

/// Requests for a batch of 1,024 decisions, one on each of `streams`.
fn batches(streams: u32) -> Vec<u8> {
    let body = format!(r#"{{"requests":[{}]}}"#, vec!["{}"; 1_024].join(","));
    let mut bytes = window_of_zero();
    for id in (1..).step_by(2).take(usize::try_from(streams).unwrap()) {
        let request = head(POST, "/v1/check/batch", "application/json");
        bytes.extend(frame(HEADERS, END_HEADERS, id, &request));
        bytes.extend(frame(DATA, END_STREAM, id, body.as_bytes()));
    }
    bytes
}

#[test]
fn unread_answers_are_bounded() {
    let (_folder, service) = start("read_timeout: 1h, write_timeout: 1h", false);
    let mut honest = Http::connect(service.address("http")).unwrap();
    honest.check(None, CHECK).unwrap();
    let before = resident(&service);
    // As many requests as fit into the window of a connection.
    let bytes = batches(20);
    let hostile: Vec<TcpStream> = (0..40)
        .map(|_| {
            let mut stream = connect(service.address("http")).unwrap();
            stream.write_all(&bytes).unwrap();
            stream
        })
        .collect();
    let decided = |honest: &mut Http| {
        let metrics = honest.get("/metrics").unwrap().body;
        let name = "pacegate_requests_total{listener=\"http\",code=\"200\"} ";
        metrics.lines().find_map(|line| line.strip_prefix(name)).unwrap().parse::<u64>().unwrap()
    };
    // Wait until the service stops answering.
    let mut last = 0;
    eventually(WITHIN, "the service stops answering", || {
        let (before, now) = (last, decided(&mut honest));
        last = now;
        now == before + 1 && now > 100
    });
    let grown = resident(&service).saturating_sub(before);
    println!("40 connections with 20 unread batches each took {grown} KiB");
    assert!(grown < MAX_MEMORY, "{grown} KiB");
    assert_eq!(honest.check(None, CHECK).unwrap().status, 200);
    drop(hostile);
}

/// A request for the dashboard, which needs no key.
fn page(id: u32) -> Vec<u8> {
    frame(HEADERS, END_HEADERS | END_STREAM, id, &head(GET, "/", "x"))
}

/// A call that needs no key.
fn health(id: u32) -> Vec<u8> {
    let call = head(POST, "/grpc.health.v1.Health/Check", "application/grpc");
    [frame(HEADERS, END_HEADERS, id, &call), frame(DATA, END_STREAM, id, &[0; 5])].concat()
}

#[test]
fn a_client_that_reads_no_answers_is_disconnected() {
    let (_folder, service) = start("write_timeout: 300ms, idle_timeout: 5m", false);
    // The HTTP/2 window is full; the client sends another request from time to time.
    for (listener, request) in [("http", page as fn(u32) -> Vec<u8>), ("grpc", health)] {
        let mut stream = connect(service.address(listener)).unwrap();
        stream.write_all(&window_of_zero()).unwrap();
        stream.set_read_timeout(Some(Duration::from_millis(100))).unwrap();
        let mut ids = (1..).step_by(2).take(90);
        eventually(WITHIN, "the connection is cut", || {
            let is_sent = ids.next().is_none_or(|id| stream.write_all(&request(id)).is_ok());
            let read = stream.read(&mut [0; 4_096]);
            let waits = [ErrorKind::WouldBlock, ErrorKind::TimedOut];
            let is_open = read.is_ok_and(|read| read > 0)
                || stream.read(&mut [0; 1]).is_err_and(|error| waits.contains(&error.kind()));
            !is_sent || !is_open
        });
    }
    // The TCP window is full.
    let ping = command(&[b"ECHO", &[b'x'; 10_000]]);
    let request = b"GET / HTTP/1.1\r\nhost: localhost\r\n\r\n".to_vec();
    let get = [PREFACE, &frame(SETTINGS, 0, 0, &[])].concat();
    let pings = [get, frame(6, 0, 0, &[7; 8]).repeat(100_000)].concat();
    for (listener, bytes) in
        [("resp", ping.repeat(2_000)), ("http", request.repeat(20_000)), ("grpc", pings)]
    {
        let mut stream = connect(service.address(listener)).unwrap();
        // The service stops reading when it cannot write, and then closes the connection.
        let written = stream.write_all(&bytes.repeat(10));
        let error = written.expect_err("more than both sides hold");
        let ends = [ErrorKind::ConnectionReset, ErrorKind::BrokenPipe];
        assert!(ends.contains(&error.kind()), "{listener}: {error}");
    }
}

#[test]
fn idle_grpc_connections_are_closed() {
    let (_folder, service) = start("idle_timeout: 300ms, read_timeout: 300ms", false);
    let mut client = Grpc::connect(service.address("grpc")).unwrap();
    assert!(client.ask(None, "e", &[("key", "k")]).unwrap().allowed);
    // The client answers pings.
    eventually(WITHIN, "the connection is closed", || open(&service, "grpc") == 0);
    assert!(client.ask(None, "e", &[("key", "k")]).is_err());
}

#[test]
fn an_address_gets_half_of_the_connections_before_authentication() {
    let (_folder, service) = start("connections: 20", true);
    let is_closed = |stream: &mut TcpStream| {
        stream.set_read_timeout(Some(Duration::from_millis(200))).unwrap();
        let waits = [ErrorKind::WouldBlock, ErrorKind::TimedOut];
        !stream.read(&mut [0; 1]).is_err_and(|error| waits.contains(&error.kind()))
    };
    let mut http: Vec<Http> = Vec::new();
    let mut grpc: Vec<Grpc> = Vec::new();
    let mut resp: Vec<Client> = Vec::new();
    for _ in 0..8 {
        http.push(Http::connect(service.address("http")).unwrap());
        assert_eq!(http.last_mut().unwrap().check(Some(KEY), CHECK).unwrap().status, 200);
        grpc.push(Grpc::connect(service.address("grpc")).unwrap());
        let asked = grpc.last_mut().unwrap().ask(Some(KEY), "e", &[("key", "k")]);
        assert!(asked.unwrap().allowed);
        resp.push(Client::connect(&service.address("resp").to_string()).unwrap());
        assert_eq!(resp.last_mut().unwrap().command(&["AUTH", KEY]).unwrap().text(), "OK");
    }
    for listener in ["http", "grpc", "resp"] {
        let mut silent: Vec<TcpStream> =
            (0..10).map(|_| connect(service.address(listener)).unwrap()).collect();
        let mut beyond = connect(service.address(listener)).unwrap();
        assert!(is_closed(&mut beyond), "{listener}: the eleventh without a key");
        assert!(!silent.iter_mut().any(is_closed), "{listener}: ten without a key");
        silent.pop();
        eventually(WITHIN, "there is room for one", || {
            !is_closed(&mut connect(service.address(listener)).unwrap())
        });
        let log = service.log();
        let line = format!(
            "too many unauthenticated connections from one address; closing new ones listener=\"{listener}\""
        );
        assert_eq!(log.matches(&line).count(), 1, "{log}");
    }
    assert_eq!(http[0].check(Some(KEY), CHECK).unwrap().status, 200);
    assert!(grpc[0].ask(Some(KEY), "e", &[("key", "k")]).unwrap().allowed);
}

#[test]
fn resets_do_not_flood_the_log() {
    let (_folder, service) = start("", true);
    let begun = Instant::now();
    for listener in ["http", "grpc"] {
        for round in 0..50_u8 {
            let mut stream = connect(service.address(listener)).unwrap();
            let mut bytes = [PREFACE, &frame(SETTINGS, 0, 0, &[])].concat();
            for id in (1..).step_by(2).take(30) {
                bytes.extend(frame(HEADERS, END_HEADERS, id, &head(POST, ASK, "application/grpc")));
                bytes.extend(frame(3, 0, id, &8_u32.to_be_bytes()));
            }
            // Then a frame that the protocol does not allow.
            bytes.extend(frame(DATA, 0, 0, &[round]));
            // The connection may have been closed already.
            drop(stream.write_all(&bytes));
            drop(stream.read_to_end(&mut Vec::new()));
        }
    }
    let log = service.log();
    // One line in ten seconds for each listener and kind of event.
    let most = 2 * (1 + begun.elapsed().as_secs() / 10);
    for event in ["that broke the protocol", "rejected API keys"] {
        let lines = log.lines().filter(|line| line.contains(event)).count();
        assert!((1..=most).contains(&u64::try_from(lines).unwrap()), "{lines} lines:\n{log}");
    }
    let others = log.lines().filter(|line| line.contains("WARN"));
    let others =
        others.filter(|line| !line.contains("broke the protocol") && !line.contains("API keys"));
    assert_eq!(others.count(), 0, "{log}");
}

/// An honest client of one protocol.
trait Honest {
    fn ask(&mut self);
}

impl Honest for Http {
    fn ask(&mut self) {
        assert_eq!(self.check(Some(KEY), CHECK).unwrap().status, 200);
    }
}

impl Honest for Grpc {
    fn ask(&mut self) {
        assert!(self.ask(Some(KEY), "e", &[("key", "honest")]).unwrap().allowed);
    }
}

impl Honest for Client {
    fn ask(&mut self) {
        let reply = self.command(&["PACEGATE.CHECK", "ATTR", "key", "honest"]).unwrap();
        assert_eq!(reply.items()[1].int(), 1);
    }
}

/// A client with one HTTP/2 connection.
struct Http2 {
    runtime: tokio::runtime::Runtime,
    client: hyper::client::conn::http2::SendRequest<Full<Bytes>>,
}

impl Http2 {
    fn connect(service: &Service) -> Self {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
        let (runtime, address) = (runtime.unwrap(), service.address("http"));
        let client = runtime.block_on(async {
            let stream = tokio::net::TcpStream::connect(address).await.unwrap();
            stream.set_nodelay(true).unwrap();
            let io = TokioIo::new(stream);
            let connected = hyper::client::conn::http2::handshake(TokioExecutor::new(), io);
            let (client, connection) = connected.await.unwrap();
            tokio::spawn(connection);
            client
        });
        Self { runtime, client }
    }
}

impl Honest for Http2 {
    fn ask(&mut self) {
        let request = http::Request::post("http://localhost/v1/check")
            .header("content-type", "application/json")
            .header("authorization", format!("Bearer {KEY}"))
            .body(Full::new(Bytes::from_static(CHECK.as_bytes())))
            .unwrap();
        let asked = self.client.send_request(request);
        let answer = self.runtime.block_on(async { tokio::time::timeout(WITHIN, asked).await });
        assert_eq!(answer.unwrap().unwrap().status(), 200);
    }
}

/// The bytes that hostile clients send first, one client after the other, and the bytes that each sends repeatedly.
struct Attack {
    first: Vec<Vec<u8>>,
    /// One element per round.
    then: Vec<Vec<u8>>,
}

/// HTTP/2 on either listener: requests with bodies, requests whose answers are not read, and headers without end.
fn http2_attack(path: &str, kind: &str, open: impl Fn(u32) -> Vec<u8>) -> Attack {
    let request = |id, flags| frame(HEADERS, END_HEADERS | flags, id, &head(POST, path, kind));
    let ids = || (1..).step_by(2).take(100);
    let bodies = ids().flat_map(|id| [request(id, 0), frame(DATA, 0, id, &[b' '; 30])].concat());
    let bodies = [window_of_zero(), bodies.collect()].concat();
    let unread = [window_of_zero(), ids().flat_map(open).collect()].concat();
    // Values of 1,000 bytes that are not indexed.
    let header = [&b"\0\x01x\x7f\xe9\x06"[..], &[b'v'; 1_000]].concat();
    let headers = [window_of_zero(), frame(HEADERS, 0, 1, &head(POST, path, kind))].concat();
    let headers = [headers, frame(CONTINUATION, 0, 1, &header.repeat(15))].concat();
    let round = |round: u32| (201 + 40 * round..).step_by(2).take(20);
    let then = (0..6).map(|number| round(number).flat_map(|id| request(id, END_STREAM)).collect());
    let then = then.collect();
    Attack { first: vec![bodies, unread, headers], then }
}

/// Returns the p99 latency of honest clients, as the median of several runs. Each client has its own service, and
/// `attack` runs before each round. The clients run side by side, so a busy machine delays all of them equally.
fn p99(honest: [&mut dyn Honest; 2], mut attack: impl FnMut()) -> [Duration; 2] {
    let mut runs = [(); 2].map(|()| Vec::new());
    for _ in 0..RUNS {
        let mut times = [(); 2].map(|()| Vec::new());
        for _ in 0..REQUESTS {
            attack();
            for (place, times) in times.iter_mut().enumerate() {
                let begun = Instant::now();
                honest[place].ask();
                times.push(begun.elapsed());
            }
        }
        for (times, runs) in times.iter_mut().zip(&mut runs) {
            times.sort_unstable();
            runs.push(times[REQUESTS * 99 / 100 - 1]);
        }
    }
    runs.map(|mut runs| {
        runs.sort_unstable();
        runs[RUNS / 2]
    })
}

/// Writes until the socket would block. Reads no answers.
fn send(stream: &mut TcpStream, bytes: &[u8]) {
    stream.set_nonblocking(true).unwrap();
    let mut rest = bytes;
    while let Ok(sent) = stream.write(rest) {
        if sent == 0 || sent == rest.len() {
            break;
        }
        rest = &rest[sent..];
    }
}

/// Attacks a listener with connections that show no key, and checks their memory and the latency of an honest client.
fn withstand(
    name: &str,
    listener: &str,
    honest: fn(&Service) -> Box<dyn Honest>,
    attack: &Attack,
) -> String {
    let [(_folder, other), (_other_folder, service)] = [(); 2].map(|()| start("", true));
    let mut honest = [&other, &service].map(honest);
    // Memory is measured after the first answer.
    honest.iter_mut().for_each(|honest| honest.ask());
    let (before, cpu_before) = (resident(&service), cpu(&service));
    let mut hostile: Vec<TcpStream> = (0..HOSTILE)
        .map(|place| {
            let mut stream = connect(service.address(listener)).unwrap();
            send(&mut stream, &attack.first[place % attack.first.len()]);
            stream
        })
        .collect();
    let mut largest = 0;
    // Wait until the service has read all their requests.
    let (mut last, mut rounds) = (0, 0);
    eventually(3 * WITHIN, "the service has answered them", || {
        largest = largest.max(resident(&service));
        let now = answered(&service);
        rounds = if now == last + 1 { rounds + 1 } else { 0 };
        last = now;
        rounds > 15
    });
    let mut place = 0_usize;
    let [on_quiet, on_attacked] = &mut honest;
    let mut act = || {
        place += 1;
        if !place.is_multiple_of(ATTACK_EVERY) {
            return;
        }
        // Closed connections are replaced.
        let place = place / ATTACK_EVERY;
        let stream = &mut hostile[place % HOSTILE];
        let then = &attack.then[place / HOSTILE % attack.then.len()];
        if stream.write(then).is_err_and(|error| error.kind() != ErrorKind::WouldBlock) {
            *stream = connect(service.address(listener)).unwrap();
            send(stream, &attack.first[place % attack.first.len()]);
        }
        if place.is_multiple_of(20) {
            largest = largest.max(resident(&service));
        }
    };
    let [quiet, loud] = p99([&mut **on_quiet, &mut **on_attacked], &mut act);
    let grown = largest.saturating_sub(before);
    let each = grown / u64::try_from(HOSTILE).unwrap();
    let spent = cpu(&service) - cpu_before;
    let figures = format!(
        "{name}: {HOSTILE} connections without a key took {grown} KiB, {each} KiB each; \
         honest p99 {loud:?}, {quiet:?} on another service; {spent:?} of processor time"
    );
    let most = (2 * quiet).max(quiet + Duration::from_millis(10));
    assert!(grown < MAX_MEMORY && loud <= most, "{figures}");
    figures
}

#[test]
fn keyless_connections_cost_little_on_each_listener() {
    let pipelined = b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n".repeat(200);
    let endless =
        [&b"POST /v1/check HTTP/1.1\r\nhost: localhost\r\nx: "[..], &[b'x'; 15_000]].concat();
    let body = b"POST /v1/check HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
                 content-length: 60000\r\n\r\n{";
    let body = [&body[..], &[b' '; 50_000]].concat();
    let http = Attack { first: vec![pipelined, endless, body], then: vec![vec![b'x'; 100]] };
    println!("{}", withstand("HTTP/1.1", "http", |service| Box::new(http1(service)), &http));
    let http2 = http2_attack("/v1/check/batch", "application/json", page);
    println!(
        "{}",
        withstand("HTTP/2", "http", |service| Box::new(Http2::connect(service)), &http2)
    );
    let grpc = http2_attack(ASK, "application/grpc", health);
    println!("{}", withstand("gRPC", "grpc", |service| Box::new(grpc_of(service)), &grpc));
    let pings = b"PING\r\n".repeat(1_000);
    let endless = [&b"*2\r\n$4\r\nAUTH\r\n$60000\r\n"[..], &[b'x'; 50_000]].concat();
    let auth = command(&[b"AUTH", b"wrong"]).repeat(100);
    let resp = Attack { first: vec![pings, endless, auth], then: vec![b"PING\r\n".repeat(20)] };
    println!("{}", withstand("RESP", "resp", |service| Box::new(resp_of(service)), &resp));
}

fn http1(service: &Service) -> Http {
    Http::connect(service.address("http")).unwrap()
}

fn grpc_of(service: &Service) -> Grpc {
    Grpc::connect(service.address("grpc")).unwrap()
}

fn resp_of(service: &Service) -> Client {
    let mut client = Client::connect(&service.address("resp").to_string()).unwrap();
    assert_eq!(client.command(&["AUTH", KEY]).unwrap().text(), "OK");
    client
}
