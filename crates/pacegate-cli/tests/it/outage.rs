//! Decisions while the store is unavailable.

use std::time::Duration;

use pacegate_testkit::servers::{Certificates, Client, Flavor, Proxy, Server, eventually};
use tokio::time::Instant;

use crate::{
    clients::{Folder, Grpc, Http},
    service::Service,
};

const WITHIN: Duration = Duration::from_secs(10);

/// An answer: allowed, remaining units, degraded.
type Said = (bool, u64, bool);

struct Clients {
    http: Http,
    grpc: Grpc,
    resp: Client,
}

fn start(server: &Server) -> (Folder, Service, Clients) {
    start_with(&server.url(), "100ms")
}

fn start_with(url: &str, deadline: &str) -> (Folder, Service, Clients) {
    let mut text = format!("store: {{ url: '{url}', deadline: {deadline} }}\npolicies:\n");
    for (name, failure) in [("open", "open"), ("closed", "closed"), ("local", "{ local: 1/2 }")] {
        let fields = format!("domain: {name}, per: [key], limit: 10/week, failure: {failure}");
        text.push_str(&format!("  - {{ name: {name}, {fields} }}\n"));
    }
    let folder = Folder::with_config(&text);
    let service = Service::start(&["--config", &folder.config()]);
    let clients = Clients {
        http: Http::connect(service.address("http")).unwrap(),
        grpc: Grpc::connect(service.address("grpc")).unwrap(),
        resp: Client::connect(&service.address("resp").to_string()).unwrap(),
    };
    (folder, service, clients)
}

impl Clients {
    fn by_http(&mut self, domain: &str) -> Said {
        let body = format!(r#"{{"domain": "{domain}", "attributes": {{"key": "k"}}}}"#);
        let answer = self.http.check(None, &body).unwrap();
        let decision = answer.json();
        assert_eq!(decision["allowed"] == true, answer.status == 200, "{answer:?}");
        let remaining = decision["remaining"].as_u64().unwrap_or(0);
        (answer.status == 200, remaining, decision["degraded"] == true)
    }

    fn by_resp(&mut self, domain: &str) -> Said {
        let words = ["PACEGATE.CHECK", "DOMAIN", domain, "ATTR", "key", "k"];
        let reply = self.resp.command(&words).unwrap();
        let number = |place: usize| u64::try_from(reply.items()[place].int()).unwrap();
        (number(1) == 1, number(7), number(17) == 1)
    }

    fn by_grpc(&mut self, domain: &str) -> bool {
        let told = self.grpc.ask(None, domain, &[("key", "k")]).unwrap();
        assert_eq!(told.status, 0);
        told.allowed
    }

    fn readiness(&mut self) -> String {
        let answer = self.http.get("/readyz").unwrap();
        assert_eq!(answer.status, 200);
        answer.body
    }
}

const READY: &str = r#"{"status":"ready","degraded":false}"#;
const DEGRADED: &str = r#"{"status":"ready","degraded":true,"store":{"servers":["#;
const MODES: &str = r#""failure_modes":[{"mode":"open","policies":["#;

#[test]
fn failure_modes_decide_while_the_store_is_unavailable() {
    for flavor in Flavor::ALL {
        let mut server = Server::start(flavor);
        let (_folder, service, mut clients) = start(&server);
        for domain in ["open", "closed", "local"] {
            assert_eq!(clients.by_http(domain), (true, 9, false));
            assert_eq!(clients.by_resp(domain), (true, 8, false));
            assert!(clients.by_grpc(domain));
        }
        assert_eq!(clients.readiness(), READY);
        server.kill();
        eventually(WITHIN, "the loss is noticed", || {
            clients.by_http("open");
            clients.readiness().starts_with(DEGRADED)
        });
        let (allowed, _, degraded) = clients.by_http("open");
        assert_eq!((allowed, degraded), (true, true));
        assert!(clients.by_grpc("open") && clients.by_resp("open").0);
        assert_eq!(clients.by_http("closed"), (false, 0, true));
        assert_eq!(clients.by_resp("closed"), (false, 0, true));
        assert!(!clients.by_grpc("closed"));
        // Half of ten, over all listeners.
        assert_eq!(clients.by_http("local"), (true, 4, true));
        assert_eq!(clients.by_resp("local"), (true, 3, true));
        assert!(clients.by_grpc("local"));
        assert_eq!(clients.by_resp("local"), (true, 1, true));
        assert_eq!(clients.by_http("local"), (true, 0, true));
        assert_eq!(clients.by_http("local"), (false, 0, true));
        assert!(!clients.by_grpc("local"));
        let health = clients.readiness();
        let address = format!("\"address\":\"127.0.0.1:{}\"", server.port());
        assert!(health.contains(&address) && health.contains(MODES), "{health}");
        let lost = "lost connection to the store: ";
        eventually(WITHIN, "the loss is logged", || service.log().contains(lost));
        let logged = service.log().lines().find(|logged| logged.contains(lost)).unwrap().to_owned();
        assert!(logged.contains(&format!("127.0.0.1:{}", server.port())), "{logged}");
        assert!(logged.contains("applying failure modes: open ("), "{logged}");
        let line = "decisions made by failure modes, without the store";
        eventually(WITHIN, "it is logged", || service.log().contains(line));
        let logged = service.log().lines().find(|logged| logged.contains(line)).unwrap().to_owned();
        assert!(logged.contains("decisions=") && logged.contains("reason="), "{logged}");
        let reasons = ["the store did not answer", "the store is unavailable: "];
        assert!(reasons.iter().any(|reason| logged.contains(reason)), "{logged}");
        server.restart();
        eventually(WITHIN, "the store is used again", || clients.readiness() == READY);
        // The server has no persistence.
        assert_eq!(clients.by_http("closed"), (true, 9, false));
        assert_eq!(clients.by_resp("local"), (true, 9, false));
        let again = "connected to the store again";
        eventually(WITHIN, "the reconnect is logged", || service.log().contains(again));
    }
}

#[test]
fn a_silent_store_delays_requests_only_briefly() {
    let server = Server::start(Flavor::Redis);
    let (_folder, _service, mut clients) = start(&server);
    assert_eq!(clients.by_http("closed"), (true, 9, false));
    server.pause();
    let begun = Instant::now();
    for _ in 0..100 {
        let (allowed, _, degraded) = clients.by_http("open");
        assert_eq!((allowed, degraded), (true, true));
    }
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    server.resume();
    eventually(WITHIN, "the store is used again", || !clients.by_resp("open").2);
}

/// Envoy stops waiting after 20 ms by default, and lets the request pass.
#[test]
fn a_call_is_answered_before_its_timeout_runs_out() {
    let server = Server::start(Flavor::Redis);
    let proxy = Proxy::start(server.address());
    let (_folder, _service, mut clients) = start_with(&proxy.url(), "60s");
    assert!(clients.by_grpc("closed"));
    proxy.set_delay(Duration::from_secs(60));
    clients.grpc.timeout = Some("100m");
    assert!(!clients.by_grpc("closed"));
    assert!(clients.by_grpc("open"));
    // Half of ten.
    let allowed = (0..10).filter(|_| clients.by_grpc("local")).count();
    assert_eq!(allowed, 5);
}

#[test]
fn a_service_starts_and_stops_without_its_store() {
    let mut server = Server::start(Flavor::Valkey);
    server.kill();
    let (_folder, service, mut clients) = start(&server);
    let readiness = clients.readiness();
    assert!(readiness.starts_with(DEGRADED), "{readiness}");
    assert!(readiness.contains("Connection refused") && readiness.contains(MODES), "{readiness}");
    assert_eq!(clients.by_http("closed"), (false, 0, true));
    assert!(service.log().contains("cannot use the store: "), "{}", service.log());
    server.restart();
    eventually(WITHIN, "the store is used", || !clients.by_resp("open").2);
    server.kill();
    let begun = Instant::now();
    service.signal("TERM");
    let (status, log) = service.wait();
    assert_eq!(status.code(), Some(0), "{log}");
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?} {log}", begun.elapsed());
}

/// The log and `/readyz` name the address, the cause and the failure modes after the first failed connection.
#[test]
fn a_store_that_cannot_be_used_is_reported_with_its_cause() {
    let guarded = Server::options(Flavor::Redis).password("right").start();
    let (own, other) = (Certificates::new(), Certificates::new());
    let encrypted = Server::options(Flavor::Redis).tls(&own).start();
    let (guarded, tls) =
        [&guarded, &encrypted].map(|server| format!("127.0.0.1:{}", server.port())).into();
    for (url, address, cause) in [
        (format!("redis://:hunter2@{guarded}"), &*guarded, "WRONGPASS"),
        (format!("rediss://{tls}?ca={}", other.ca().display()), &*tls, "certificate"),
        ("redis://host.invalid:6379".to_owned(), "host.invalid:6379", "cannot connect: "),
    ] {
        let (_folder, service, mut clients) = start_with(&url, "100ms");
        let shown = format!(r#"{{"address":"{address}","error":""#);
        eventually(WITHIN, cause, || clients.readiness().contains(&shown));
        let health = clients.readiness();
        assert!(health.contains(cause) && health.contains(MODES), "{health}");
        let modes = "applying failure modes: open (open), closed (closed), local 1/2 (local)";
        eventually(WITHIN, cause, || {
            let log = service.log();
            let mut lines = log.lines().filter(|line| line.contains("cannot use the store: "));
            lines.any(|line| [address, cause, modes].iter().all(|part| line.contains(part)))
        });
        assert!(!health.contains("hunter2") && !service.log().contains("hunter2"), "{health}");
    }
}

/// Returns the number of degraded answers of each listener, from the metrics.
fn counted(http: &mut Http) -> [u64; 3] {
    let metrics = http.get("/metrics").unwrap().body;
    ["http", "grpc", "resp"].map(|listener| {
        let name = format!("pacegate_degraded_answers_total{{listener=\"{listener}\"}} ");
        let line = metrics.lines().find_map(|line| line.strip_prefix(&name));
        line.unwrap_or_else(|| panic!("{name}: {metrics}")).parse().unwrap()
    })
}

#[test]
fn every_listener_reports_degraded_answers() {
    for flavor in Flavor::ALL {
        let mut server = Server::start(flavor);
        let (_folder, _service, mut clients) = start(&server);
        let descriptors = r#"{"domain": "local", "descriptors": [{"entries": [{"key": "key"}]}]}"#;
        let mut ask = |is_degraded: bool| {
            let Clients { http, grpc, resp } = &mut clients;
            let marked = is_degraded.then_some("true");
            for (method, path, body) in [
                ("POST", "/v1/check", r#"{"domain": "local", "attributes": {"key": "k"}}"#),
                ("POST", "/v1/check/batch", r#"{"requests": [{"key": "k", "limit": "9/day"}]}"#),
                ("POST", "/v1/acquire", r#"{"domain": "local", "attributes": {"key": "k"}}"#),
                ("GET", "/v1/state?domain=local&attribute=key:k", ""),
                ("GET", "/v1/auth?domain=local", ""),
                ("POST", "/json", descriptors),
            ] {
                let answer = http.request(method, path, None, body).unwrap();
                assert_eq!(answer.header("pacegate-degraded"), marked, "{path} {answer:?}");
            }
            for domain in ["open", "closed", "local"] {
                let answer = grpc.ask(None, domain, &[("key", "k")]).unwrap();
                assert_eq!((answer.status, answer.degraded), (0, is_degraded), "{domain}");
            }
            // The integers of redis-cell and throttlecrab do not change.
            for name in ["CL.THROTTLE", "THROTTLE"] {
                let reply = resp.command(&[name, "k", "9", "9", "60"]).unwrap();
                assert_eq!(reply.items().len(), 5, "{reply:?}");
            }
            for name in ["PACEGATE.CHECK", "PACEGATE.PEEK"] {
                let words = [name, "DOMAIN", "local", "ATTR", "key", "k"];
                assert_eq!(resp.command(&words).unwrap().items()[17].int() == 1, is_degraded);
            }
            counted(http)
        };
        assert_eq!(ask(false), [0, 0, 0]);
        server.kill();
        assert_eq!(ask(true), [6, 3, 4]);
    }
}
