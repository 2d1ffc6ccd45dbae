//! Shutdown: requests that have arrived are answered first.

use std::{
    io::{Read, Write},
    net::TcpStream,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    thread::JoinHandle,
    time::Duration,
};

use pacegate_testkit::servers::{Client, Flavor, Server, eventually};
use tokio::time::Instant;

use crate::{
    clients::{Folder, Grpc, Http, command, connect},
    service::Service,
};

const WITHIN: Duration = Duration::from_secs(10);
const AMOUNT: u64 = 1_000_000_000;

/// Answers that clients have received so far.
#[derive(Default)]
struct Tally {
    allowed: AtomicU64,
    other: AtomicU64,
}

impl Tally {
    fn count(&self, allowed: bool) {
        let counter = if allowed { &self.allowed } else { &self.other };
        counter.fetch_add(1, Ordering::Relaxed);
    }
}

fn config(store: &str) -> Folder {
    Folder::with_config(&format!(
        "{store}policies:\n  - {{ name: api, per: [key], limit: {AMOUNT}/week, failure: closed }}\n  \
         - {{ name: envoy, domain: e, per: [key], limit: {AMOUNT}/week, failure: closed }}\n"
    ))
}

fn ask_http(service: &Service, tally: Arc<Tally>) -> impl FnOnce() + Send + 'static {
    let mut client = Http::connect(service.address("http")).unwrap();
    move || {
        while let Ok(answer) = client.check(None, r#"{"attributes": {"key": "k"}}"#) {
            tally.count(answer.status == 200 && answer.json()["degraded"] == false);
            if answer.is_last() {
                break;
            }
        }
    }
}

fn ask_grpc(service: &Service, tally: Arc<Tally>) -> impl FnOnce() + Send + 'static {
    let mut client = Grpc::connect(service.address("grpc")).unwrap();
    move || {
        while let Ok(told) = client.ask(None, "e", &[("key", "k")]) {
            tally.count(told.status == 0 && told.allowed);
        }
    }
}

/// Sends many commands at once, and counts the answers one by one.
fn ask_resp(service: &Service, tally: Arc<Tally>) -> impl FnOnce() + Send + 'static {
    let mut stream = connect(service.address("resp")).unwrap();
    let commands = command(&[b"PACEGATE.CHECK", b"ATTR", b"key", b"k"]).repeat(16);
    move || {
        while stream.write_all(&commands).is_ok() {
            if !read_answers(&mut stream, 16, &tally) {
                break;
            }
        }
    }
}

/// Returns `false` if the connection ended before this many answers arrived.
fn read_answers(stream: &mut TcpStream, count: usize, tally: &Tally) -> bool {
    let mut text = String::new();
    let mut buffer = [0; 16 * 1024];
    loop {
        // An answer ends with its last member.
        let whole = text.matches("$8\r\ndegraded\r\n:").count();
        let has_value = text.ends_with(":0\r\n") || text.ends_with(":1\r\n");
        let ended = whole == count && has_value;
        let read = if ended { 0 } else { stream.read(&mut buffer).unwrap_or(0) };
        if read == 0 {
            let allowed = text.matches("$7\r\nallowed\r\n:1\r\n").count();
            assert_eq!(
                whole,
                text.matches("$7\r\nallowed\r\n:").count(),
                "whole answers: {text:?}"
            );
            (0..allowed).for_each(|_| tally.count(true));
            (allowed..whole).for_each(|_| tally.count(false));
            return ended;
        }
        text.push_str(std::str::from_utf8(&buffer[..read]).unwrap());
    }
}

/// Stops a service while all listeners are busy, and returns the answers that its clients received.
fn end_under_load(service: Service) -> (u64, u64) {
    let tally = Arc::new(Tally::default());
    let mut clients: Vec<JoinHandle<()>> = Vec::new();
    for _ in 0..2 {
        clients.push(std::thread::spawn(ask_http(&service, tally.clone())));
        clients.push(std::thread::spawn(ask_grpc(&service, tally.clone())));
        clients.push(std::thread::spawn(ask_resp(&service, tally.clone())));
    }
    eventually(WITHIN, "there is some load", || tally.allowed.load(Ordering::Relaxed) > 300);
    let begun = Instant::now();
    service.signal("TERM");
    let (status, log) = service.wait();
    let took = begun.elapsed();
    assert_eq!(status.code(), Some(0), "{log}");
    assert!(took < Duration::from_secs(8), "it took {took:?} to end: {log}");
    assert!(!log.contains("did not drain in time"), "{log}");
    clients.into_iter().for_each(|client| client.join().unwrap());
    (tally.allowed.load(Ordering::Relaxed), tally.other.load(Ordering::Relaxed))
}

/// Returns the used units, as another service on the same store sees them.
fn used(service: &Service) -> u64 {
    let mut client = Client::connect(&service.address("resp").to_string()).unwrap();
    let mut used = |words: &[&str]| {
        let reply = client.command(words).unwrap();
        assert_eq!(reply.items()[17].int(), 0, "not degraded: {reply:?}");
        AMOUNT - u64::try_from(reply.items()[7].int()).unwrap()
    };
    used(&["PACEGATE.PEEK", "ATTR", "key", "k"])
        + used(&["PACEGATE.PEEK", "DOMAIN", "e", "ATTR", "key", "k"])
}

#[test]
fn on_sigterm_every_charge_is_answered() {
    let server = Server::start(Flavor::Redis);
    let folder = config(&format!("store: {{ url: '{}', deadline: 10s }}\n", server.url()));
    let args = ["--config", &folder.config()];
    let witness = Service::start(&args);
    let mut answered = 0;
    for round in 0..12 {
        let (allowed, other) = end_under_load(Service::start(&args));
        assert_eq!(other, 0, "round {round}");
        answered += allowed;
        assert_eq!(used(&witness), answered, "round {round}");
    }
}

#[test]
fn leased_units_are_returned_on_sigterm() {
    let server = Server::start(Flavor::Valkey);
    let store = format!("store: {{ url: '{}', deadline: 10s }}\n", server.url());
    let policy = format!("{{ name: api, per: [key], limit: {AMOUNT}/week, lease: 5000 }}");
    let other = format!("{{ name: e, domain: e, per: [key], limit: {AMOUNT}/week }}");
    let folder = Folder::with_config(&format!("{store}policies: [{policy}, {other}]\n"));
    let args = ["--config", &folder.config()];
    let (allowed, other) = end_under_load(Service::start(&args));
    assert_eq!((used(&Service::start(&args)), other), (allowed, 0));
}

#[test]
fn on_sigterm_a_service_with_a_memory_store_answers_every_charge() {
    let folder = config("");
    for round in 0..8 {
        let (_, other) = end_under_load(Service::start(&["--config", &folder.config()]));
        assert_eq!(other, 0, "round {round}");
    }
}

#[test]
fn open_requests_are_answered_and_new_connections_are_refused() {
    let folder = config("");
    let service = Service::start(&["--config", &folder.config()]);
    let addresses = ["http", "grpc", "resp"].map(|name| service.address(name));
    let body = r#"{"attributes": {"key": "k"}}"#;
    let (first, rest) = body.split_at(10);
    let mut stream = connect(addresses[0]).unwrap();
    let length = body.len();
    let head = format!(
        "POST /v1/check HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
         content-length: {length}\r\n\r\n{first}"
    );
    stream.write_all(head.as_bytes()).unwrap();
    // Once another connection was answered, the first has been accepted.
    Http::connect(addresses[0]).unwrap().check(None, body).unwrap();
    service.signal("TERM");
    for address in addresses {
        eventually(WITHIN, "it refuses", || TcpStream::connect(address).is_err());
    }
    stream.write_all(rest.as_bytes()).unwrap();
    let answer = Http::over(stream).read().unwrap();
    assert_eq!((answer.status, answer.is_last()), (200, true), "{answer:?}");
    assert_eq!(service.wait().0.code(), Some(0));
}

#[test]
fn every_pipelined_request_that_arrived_is_answered() {
    let server = Server::start(Flavor::Redis);
    let folder = config(&format!("store: {{ url: '{}', deadline: 10s }}\n", server.url()));
    let args = ["--config", &folder.config()];
    let witness = Service::start(&args);
    let service = Service::start(&args);
    let body = r#"{"attributes": {"key": "k"}}"#;
    let request = format!(
        "POST /v1/check HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    );
    let mut stream = connect(service.address("http")).unwrap();
    stream.write_all(request.repeat(200).as_bytes()).unwrap();
    service.signal("TERM");
    let mut client = Http::over(stream);
    for place in 0..200 {
        let answer = client.read().unwrap_or_else(|error| panic!("{place}: {error}"));
        assert_eq!((answer.status, answer.is_last()), (200, place == 199), "{place}: {answer:?}");
    }
    assert_eq!(service.wait().0.code(), Some(0));
    assert_eq!(used(&witness), 200);
}

/// Returns the time that an idle connection stays open after SIGTERM. It can still be used for this long.
fn kept(service: &Service, mut idle: TcpStream) -> Duration {
    let begun = Instant::now();
    service.signal("TERM");
    let mut rest = Vec::new();
    idle.read_to_end(&mut rest).unwrap();
    begun.elapsed()
}

#[test]
fn idle_connections_are_closed_as_the_operations_page_says() {
    let folder = config("");
    for (listener, begins, least) in [
        ("http", &b"GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n"[..], 250),
        ("resp", b"PING\r\n", 20),
    ] {
        let service = Service::start(&["--config", &folder.config()]);
        let mut idle = connect(service.address(listener)).unwrap();
        idle.write_all(begins).unwrap();
        let mut answer = [0; 1_024];
        assert!(idle.read(&mut answer).unwrap() > 0);
        let took = kept(&service, idle);
        println!("{listener}: an idle connection was closed {took:?} after SIGTERM");
        assert!(took >= Duration::from_millis(least), "{listener}: {took:?}");
        assert_eq!(service.wait().0.code(), Some(0));
    }
    let service = Service::start(&["--config", &folder.config()]);
    let mut client = Grpc::connect(service.address("grpc")).unwrap();
    assert!(client.ask(None, "e", &[("key", "k")]).unwrap().allowed);
    let begun = Instant::now();
    service.signal("TERM");
    assert_eq!(service.wait().0.code(), Some(0));
    println!("grpc: the service ended {:?} after SIGTERM", begun.elapsed());
}

#[test]
fn idle_connections_do_not_delay_the_shutdown() {
    let folder = config("");
    let service = Service::start(&["--config", &folder.config()]);
    let silent: Vec<TcpStream> = ["http", "grpc", "resp"]
        .into_iter()
        .flat_map(|name| {
            (0..20).map(|_| connect(service.address(name)).unwrap()).collect::<Vec<_>>()
        })
        .collect();
    let mut http = Http::connect(service.address("http")).unwrap();
    assert_eq!(http.check(None, r#"{"attributes": {"key": "k"}}"#).unwrap().status, 200);
    let mut grpc = Grpc::connect(service.address("grpc")).unwrap();
    assert!(grpc.ask(None, "e", &[("key", "k")]).unwrap().allowed);
    let mut resp = Client::connect(&service.address("resp").to_string()).unwrap();
    assert_eq!(resp.command(&["PING"]).unwrap().text(), "PONG");
    let begun = Instant::now();
    service.signal("TERM");
    let (status, log) = service.wait();
    assert_eq!(status.code(), Some(0), "{log}");
    assert!(begun.elapsed() < Duration::from_secs(4), "{:?} {log}", begun.elapsed());
    assert!(!log.contains("did not drain in time"), "{log}");
    drop(silent);
}

#[test]
fn connections_are_closed_after_the_drain_timeout() {
    let folder = config("bounds: { drain_timeout: 300ms, read_timeout: 1m }\n");
    let service = Service::start(&["--config", &folder.config()]);
    let mut stream = connect(service.address("http")).unwrap();
    let head = "POST /v1/check HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
                content-length: 100\r\n\r\n{";
    stream.write_all(head.as_bytes()).unwrap();
    let body = r#"{"attributes": {"key": "k"}}"#;
    Http::connect(service.address("http")).unwrap().check(None, body).unwrap();
    let begun = Instant::now();
    service.signal("TERM");
    let (status, log) = service.wait();
    assert_eq!(status.code(), Some(0), "{log}");
    assert!(begun.elapsed() < Duration::from_secs(4), "{:?} {log}", begun.elapsed());
    assert!(log.contains("closed connections that did not drain in time"), "{log}");
}
