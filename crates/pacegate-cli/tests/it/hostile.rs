//! Hostile clients: slow, oversized, and many at once.

use std::{
    fs,
    io::{self, ErrorKind, Read, Write},
    net::TcpStream,
    time::Duration,
};

use pacegate_testkit::servers::{Client, Flavor, Server, eventually};
use rustix::process::{Resource, getrlimit, setrlimit};
use tokio::time::Instant;

use crate::{
    clients::{Folder, Grpc, Http, command, connect},
    service::Service,
};

const WITHIN: Duration = Duration::from_secs(10);
const BODY: &str = r#"{"attributes": {"key": "healthy"}}"#;
const POLICIES: &str = "policies:\n  - { name: api, per: [key], limit: 1000000/week }\n  \
                        - { name: e, domain: e, per: [key], limit: 1000000/week }\n";
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

/// Honest clients, one for each listener.
struct Healthy {
    http: Http,
    grpc: Grpc,
    resp: Client,
}

impl Healthy {
    fn connect(service: &Service) -> Self {
        Self {
            http: Http::connect(service.address("http")).unwrap(),
            grpc: Grpc::connect(service.address("grpc")).unwrap(),
            resp: Client::connect(&service.address("resp").to_string()).unwrap(),
        }
    }

    /// Checks that each gets an answer.
    fn ask(&mut self) {
        assert_eq!(self.http.check(None, BODY).unwrap().status, 200);
        assert!(self.grpc.ask(None, "e", &[("key", "healthy")]).unwrap().allowed);
        let words = ["PACEGATE.CHECK", "ATTR", "key", "healthy"];
        assert_eq!(self.resp.command(&words).unwrap().items()[1].int(), 1);
    }
}

fn start(bounds: &str) -> Service {
    let folder = Folder::with_config(&format!("bounds: {{ {bounds} }}\n{POLICIES}"));
    // The configuration is read at the start; the folder may then be deleted.
    Service::start(&["--config", &folder.config()])
}

/// Returns the resident memory of a process, in KiB.
fn resident(service: &Service) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", service.pid())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().strip_suffix(" kB").unwrap().parse().unwrap()
}

/// A frame of HTTP/2.
fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// The headers of a call, without and with its path written out.
fn head(path: &str) -> Vec<u8> {
    let length = u8::try_from(path.len()).unwrap();
    let kind = b"application/grpc";
    // POST, http, :path, :authority, content-type
    [&[0x83, 0x86, 0x44, length], path.as_bytes(), b"\x41\x01t", b"\x5f\x10", kind].concat()
}

/// Sends `first`, then `drop` repeatedly, until the service closes the connection. Returns the time and the answer.
fn until_cut(service: &Service, listener: &str, first: &[u8], drop: &[u8]) -> (Duration, Vec<u8>) {
    let mut stream = connect(service.address(listener)).unwrap();
    let begun = Instant::now();
    stream.write_all(first).unwrap();
    stream.set_nonblocking(true).unwrap();
    let mut said = Vec::new();
    eventually(WITHIN, "the connection is cut", || {
        let mut buffer = [0; 4096];
        let would_block = |error: &io::Error| error.kind() == ErrorKind::WouldBlock;
        let read = match stream.read(&mut buffer) {
            Ok(0) => return true,
            Ok(read) => read,
            Err(error) if would_block(&error) => 0,
            Err(_) => return true,
        };
        said.extend_from_slice(&buffer[..read]);
        stream.write_all(drop).is_err_and(|error| !would_block(&error))
    });
    (begun.elapsed(), said)
}

#[test]
fn slow_clients_are_disconnected() {
    let service = start("read_timeout: 200ms, idle_timeout: 1s");
    let body = b"POST /v1/check HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
                 content-length: 5000\r\n\r\n{";
    let call = frame(1, 4, 1, &head(crate::clients::ASK));
    let unfinished = [PREFACE, &frame(1, 0, 1, &head("/")[..4])].concat();
    let open_call = [PREFACE, &call, &frame(0, 0, 1, &[0, 0, 0, 40])].concat();
    let (soon, idle) = (Duration::from_secs(2), Duration::from_secs(5));
    for (listener, first, drop, most) in [
        ("http", &b"POST /v1/check HTTP/1.1\r\nx: "[..], &b"a"[..], soon),
        ("http", b"P", b"", soon),
        ("http", body, b" ", soon),
        ("http", body, b"", soon),
        ("http", PREFACE, b"", soon),
        ("http", &unfinished, b"", soon),
        ("resp", b"*2\r\n$4\r\nPING\r\n$5000\r\n", b"a", soon),
        ("resp", b"*2\r\n$4\r\nPING\r\n$5000\r\n", b"", soon),
        ("resp", b"PING ", b"a", soon),
        ("resp", b"PING\r\n", b"", idle),
        ("grpc", &PREFACE[..10], b"", soon),
        ("grpc", PREFACE, b"", idle),
        ("grpc", &unfinished, b"", idle),
        ("grpc", &open_call, b"", idle),
    ] {
        let (took, said) = until_cut(&service, listener, first, drop);
        let said = String::from_utf8_lossy(&said).into_owned();
        let shown = String::from_utf8_lossy(first);
        assert!(took >= Duration::from_millis(150), "{listener} {shown:?}: {took:?} {said}");
        assert!(took < most, "{listener} {shown:?}: {took:?} {said}");
        if first == body {
            assert!(said.starts_with("HTTP/1.1 408 "), "{said}");
        }
    }
}

#[test]
fn a_connection_with_requests_is_not_idle() {
    let service = start("read_timeout: 100ms, idle_timeout: 400ms");
    let mut stream = connect(service.address("resp")).unwrap();
    let begun = Instant::now();
    while begun.elapsed() < Duration::from_secs(1) {
        ping(&mut stream, b"PING\r\n");
    }
    ping(&mut stream, b"PING\r\nPI");
    ping(&mut stream, b"NG\r\n");
    assert!(until_eof(stream) >= Duration::from_millis(390));
}

#[test]
fn a_connection_is_idle_after_a_command_in_two_parts() {
    let service = start("read_timeout: 1h, idle_timeout: 100ms");
    let mut stream = connect(service.address("resp")).unwrap();
    ping(&mut stream, b"PING\r\nPI");
    ping(&mut stream, b"NG\r\n");
    assert!(until_eof(stream) < WITHIN);
}

fn ping(stream: &mut TcpStream, sent: &[u8]) {
    stream.write_all(sent).unwrap();
    let mut pong = [0; 7];
    stream.read_exact(&mut pong).unwrap();
    assert_eq!(&pong, b"+PONG\r\n");
}

fn until_eof(mut stream: TcpStream) -> Duration {
    stream.set_read_timeout(Some(WITHIN)).unwrap();
    let begun = Instant::now();
    assert_eq!(stream.read(&mut [0; 1]).unwrap(), 0);
    begun.elapsed()
}

#[test]
fn a_call_without_its_message_gets_a_status() {
    let service = start("read_timeout: 200ms, idle_timeout: 1s");
    let call = frame(1, 4, 1, &head(crate::clients::ASK));
    let first = [PREFACE, &call, &frame(0, 0, 1, &[0, 0, 0, 40])].concat();
    let mut stream = connect(service.address("grpc")).unwrap();
    stream.write_all(&first).unwrap();
    let mut kinds = Vec::new();
    let mut head = [0; 9];
    while stream.read_exact(&mut head).is_ok() {
        let length = usize::from(u16::from_be_bytes([head[1], head[2]]));
        stream.read_exact(&mut vec![0; length]).unwrap();
        if head[8] == 1 {
            kinds.push((head[3], head[4] & 1));
        }
    }
    // Headers that end the stream: a status and no message.
    assert!(kinds.contains(&(1, 1)), "{kinds:?}");
}

#[test]
fn oversized_requests_are_rejected() {
    let service = start("request_bytes: 4KiB, header_bytes: 8KiB");
    let mut healthy = Healthy::connect(&service);
    let large = "x".repeat(5000);
    let mut http = Http::connect(service.address("http")).unwrap();
    let refused = http.check(None, &format!(r#"{{"key": "{large}", "limit": "1/hour"}}"#));
    let refused = refused.unwrap();
    assert_eq!(refused.status, 413);
    assert_eq!(refused.json()["detail"], "the body exceeds 4096 bytes");
    let mut stream = connect(service.address("http")).unwrap();
    let header = "y".repeat(20_000);
    let request = format!("GET /healthz HTTP/1.1\r\nhost: localhost\r\nx: {header}\r\n\r\n");
    // The service closes the connection before it has read everything.
    drop(stream.write_all(request.as_bytes()));
    let answer = Http::over(stream).read().unwrap();
    assert_eq!(answer.status, 431);
    let mut resp = connect(service.address("resp")).unwrap();
    resp.write_all(&command(&[b"PING", large.as_bytes()])).unwrap();
    let mut said = String::new();
    resp.read_to_string(&mut said).unwrap();
    assert_eq!(said, "-ERR Protocol error: command too long\r\n");
    let mut grpc = Grpc::connect(service.address("grpc")).unwrap();
    // Envoy would let the request pass on an error.
    let denied = grpc.ask(None, "e", &[("key", &large)]).unwrap();
    assert_eq!((denied.status, denied.allowed), (0, false));
    assert!(grpc.ask(None, "e", &[("key", "k")]).unwrap().allowed, "the connection stays open");
    // The same applies to metadata, which a client of Envoy can make large.
    let key = "z".repeat(60_000);
    assert!(grpc.ask(Some(&key), "e", &[("key", "k")]).unwrap().allowed, "metadata");
    let key = "z".repeat(100_000);
    assert!(grpc.ask(Some(&key), "e", &[("key", "k")]).is_err(), "more metadata");
    healthy.ask();
}

#[test]
fn connections_have_a_cap() {
    let service = start("connections: 50");
    let mut healthy = Healthy::connect(&service);
    healthy.ask();
    for (listener, is_closed) in [("http", true), ("grpc", true), ("resp", true)] {
        let mut others: Vec<TcpStream> =
            (1..50).map(|_| connect(service.address(listener)).unwrap()).collect();
        let mut beyond = connect(service.address(listener)).unwrap();
        let read = beyond.read(&mut [0; 1]);
        assert_eq!(matches!(read, Ok(0) | Err(_)), is_closed, "{listener}: the 51st");
        healthy.ask();
        others.pop();
        eventually(WITHIN, "there is room for one", || {
            let mut stream = connect(service.address(listener)).unwrap();
            stream.set_read_timeout(Some(Duration::from_millis(50))).unwrap();
            let waits = [ErrorKind::WouldBlock, ErrorKind::TimedOut];
            stream.read(&mut [0; 1]).is_err_and(|error| waits.contains(&error.kind()))
        });
    }
    let log = service.log();
    for listener in ["http", "grpc", "resp"] {
        let line = format!("too many connections; closing new ones listener=\"{listener}\" max=50");
        assert_eq!(log.matches(&line).count(), 1, "{log}");
    }
    let metrics = healthy.http.get("/metrics").unwrap().body;
    let refused = r#"pacegate_connections_refused_total{listener="resp"} "#;
    let refused = metrics.lines().find_map(|line| line.strip_prefix(refused)).unwrap();
    assert!(refused.parse::<u64>().unwrap() >= 1, "{metrics}");
}

#[test]
fn idle_connections_cost_little_and_delay_no_other_client() {
    // Client and service each need an open file per connection, so the number is capped.
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = limit.maximum;
    setrlimit(Resource::Nofile, limit).unwrap();
    let room = usize::try_from(limit.maximum.unwrap_or(u64::MAX)).unwrap_or(usize::MAX);
    let count = 5_000.min(room.saturating_sub(1_000));
    let service = start("idle_timeout: 5m");
    let mut healthy = Healthy::connect(&service);
    healthy.ask();
    let before = resident(&service);
    let mut idle = Vec::new();
    for (number, listener) in (0..count).zip(["http", "grpc", "resp"].into_iter().cycle()) {
        idle.push(connect(service.address(listener)).unwrap());
        if number % 500 == 0 {
            healthy.ask();
        }
    }
    let open = || {
        let mut client = Http::connect(service.address("http")).unwrap();
        let metrics = client.get("/metrics").unwrap().body;
        let lines = metrics.lines().filter(|line| line.starts_with("pacegate_connections{"));
        lines.map(|line| line.rsplit(' ').next().unwrap().parse::<usize>().unwrap()).sum::<usize>()
    };
    eventually(WITHIN, "all are accepted", || open() >= count + 3);
    for _ in 0..50 {
        healthy.ask();
    }
    let grown = resident(&service).saturating_sub(before);
    assert!(grown < 16 * u64::try_from(count).unwrap(), "{grown} KiB for {count} connections");
    println!("{count} idle connections took {grown} KiB");
    drop(idle);
    eventually(WITHIN, "all are closed", || open() < 10);
    healthy.ask();
}

#[test]
fn reset_streams_do_not_affect_other_clients() {
    for listener in ["http", "grpc"] {
        let service = start("read_timeout: 2s");
        let mut healthy = Healthy::connect(&service);
        healthy.ask();
        let before = resident(&service);
        let mut sent = 0;
        for _ in 0..5 {
            let mut stream = connect(service.address(listener)).unwrap();
            stream.write_all(PREFACE).unwrap();
            for number in 0..10_000_u32 {
                let id = 2 * number + 1;
                let call = frame(1, 4, id, &head(crate::clients::ASK));
                let reset = frame(3, 0, id, &8_u32.to_be_bytes());
                if stream.write_all(&[call, reset].concat()).is_err() {
                    break;
                }
                sent += 1;
            }
            healthy.ask();
        }
        let grown = resident(&service).saturating_sub(before);
        assert!(grown < 30 * 1024, "{listener}: {grown} KiB after {sent} streams");
        println!("{listener}: {sent} streams were reset, which took {grown} KiB");
        healthy.ask();
    }
}

#[test]
fn endless_headers_and_pings_do_not_affect_other_clients() {
    for listener in ["http", "grpc"] {
        let service = start("read_timeout: 2s");
        let mut healthy = Healthy::connect(&service);
        healthy.ask();
        let before = resident(&service);
        let mut stream = connect(service.address(listener)).unwrap();
        stream.write_all(PREFACE).unwrap();
        stream.write_all(&frame(1, 0, 1, &head("/"))).unwrap();
        // A header of 16,000 bytes that is not indexed.
        let header = [&b"\0\x01x\x7f"[..], &[0x81, 0x7c], &vec![b'v'; 16_000]].concat();
        let more = frame(9, 0, 1, &header);
        let sent = (0..10_000).take_while(|_| stream.write_all(&more).is_ok()).count();
        assert!(sent < 10_000, "{listener}: the flood is ended");
        healthy.ask();
        let mut stream = connect(service.address(listener)).unwrap();
        stream.set_write_timeout(Some(Duration::from_millis(300))).unwrap();
        stream.write_all(PREFACE).unwrap();
        let pings = [frame(6, 0, 0, &[7; 8]), frame(4, 0, 0, &[])].concat().repeat(100);
        let sent = (0..1_000).take_while(|_| stream.write_all(&pings).is_ok()).count();
        let grown = resident(&service).saturating_sub(before);
        assert!(grown < 30 * 1024, "{listener}: {grown} KiB after {sent} hundred pings");
        healthy.ask();
    }
}

fn hostile_keys_are_one_key_everywhere(store: &str) {
    let policy = "policies: [{ name: e, domain: e, per: [key], limit: 5/week }]\n";
    let folder = Folder::with_config(&format!("{store}{policy}"));
    let service = Service::start(&["--config", &folder.config()]);
    let mut clients = Healthy::connect(&service);
    for key in [
        "a\r\n+OK\r\nset-cookie: x=1\r\n\r\n",
        "\0",
        "{x}",
        "}{",
        "<script>alert(1)</script>",
        "",
        "💥\u{202e}",
    ] {
        let body = serde_json::json!({"domain": "e", "attributes": {"key": key}}).to_string();
        let words = ["PACEGATE.CHECK", "DOMAIN", "e", "ATTR", "key", key];
        for round in [0, 3] {
            let answer = clients.http.check(None, &body).unwrap();
            assert_eq!(answer.json()["remaining"], 4 - round, "{key:?} {answer:?}");
            assert!(!answer.head.contains("set-cookie") && !answer.body.contains("script"));
            let told = clients.grpc.ask(None, "e", &[("key", key)]).unwrap();
            assert_eq!((told.allowed, told.remaining), (true, 3 - round), "{key:?}");
            let reply = clients.resp.command(&words).unwrap();
            let left = i64::from(2_u32.saturating_sub(round));
            let allowed = i64::from(round == 0);
            assert_eq!(
                (reply.items()[1].int(), reply.items()[7].int()),
                (allowed, left),
                "{key:?}"
            );
        }
    }
    for path in ["/metrics", "/v1/stats"] {
        let answer = clients.http.get(path).unwrap();
        let is_json = answer.head.contains("content-type: application/json\r\n");
        assert!(!answer.body.contains("<script>") || is_json, "{answer:?}");
        assert!(!answer.head.contains("text/html"), "{answer:?}");
    }
}

#[test]
fn hostile_keys_are_one_key_everywhere_in_memory() {
    hostile_keys_are_one_key_everywhere("");
}

#[test]
fn hostile_keys_are_one_key_everywhere_on_redis() {
    let server = Server::start(Flavor::Redis);
    hostile_keys_are_one_key_everywhere(&format!(
        "store: {{ url: '{}', deadline: 5s }}\n",
        server.url()
    ));
}
