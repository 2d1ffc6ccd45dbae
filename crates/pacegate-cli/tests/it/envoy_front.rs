//! A real Envoy with the rate limit filter, in front of a web server.

use std::{
    fs,
    sync::atomic::{AtomicBool, Ordering},
    thread,
    time::Duration,
};

use pacegate_testkit::servers::{Envoy, Flavor, Port, Server, eventually};

use crate::{
    clients::{Answer, Folder, Http},
    service::Service,
    upstream::{Tally, Upstream, crowd},
};

const REQUESTS: u64 = 10_000;
const AMOUNT: u64 = 1_234;
const WITHIN: Duration = Duration::from_secs(10);
const ALICE: &str = "GET /a HTTP/1.1\r\nhost: test\r\nx-user: alice\r\n\r\n";
const NOBODY: &str = "GET /a HTTP/1.1\r\nhost: test\r\n\r\n";

/// The programs between a client and the web server.
struct Front {
    upstream: Upstream,
    envoy: Envoy,
    service: Option<Service>,
    /// The port of the service, reserved while the service is down.
    port: Port,
    folder: Folder,
    args: Vec<String>,
    variables: Vec<(&'static str, String)>,
}

impl Front {
    /// Starts all of them. The files of the service are in `folder`.
    fn new(folder: Folder, args: &[&str], variables: Vec<(&'static str, String)>) -> Self {
        let (upstream, port) = (Upstream::start(), Port::reserve());
        let address = format!("127.0.0.1:{}", port.number());
        let args = args.iter().copied().chain(["--grpc", &address]).map(str::to_owned).collect();
        let envoy = Envoy::options(&upstream.address(), &address)
            .domain("edge")
            .descriptor(&[("user", "x-user")])
            .metadata("x-trace", "x-trace")
            // On a busy machine Envoy must not time out and let requests pass.
            .timeout(Duration::from_secs(20))
            .start();
        let mut front = Self { upstream, envoy, service: None, port, folder, args, variables };
        front.restart();
        front
    }

    /// Uses a file of envoyproxy/ratelimit, with the environment of its deployments.
    fn theirs() -> Self {
        let folder = rules();
        let root = folder.path("").to_str().unwrap().to_owned();
        let variables = vec![
            ("RUNTIME_ROOT", root),
            ("RUNTIME_SUBDIRECTORY", "ratelimit".to_owned()),
            ("LIMIT_RESPONSE_HEADERS_ENABLED", "true".to_owned()),
        ];
        Self::new(folder, &[], variables)
    }

    /// Uses the same file, with the store from a Pacegate file.
    fn theirs_on(server: &Server) -> Self {
        let folder = rules();
        folder.replace("pacegate.yaml", &store(server));
        let rules = folder.path("ratelimit/config").to_str().unwrap().to_owned();
        let config = folder.config();
        Self::new(folder, &["--config", &config, "--config", &rules], Vec::new())
    }

    /// Uses a Pacegate policy.
    fn ours(store: &str) -> Self {
        let policy = format!(
            "{{ name: api, domain: edge, per: [user], limit: {AMOUNT}/365d, failure: open }}"
        );
        let folder = Folder::with_config(&format!("{store}policies: [{policy}]\n"));
        let config = folder.config();
        Self::new(folder, &["--config", &config], Vec::new())
    }

    fn restart(&mut self) {
        let args: Vec<&str> = self.args.iter().map(String::as_str).collect();
        let variables: Vec<_> = self.variables.iter().map(|(name, it)| (*name, &**it)).collect();
        self.service = Some(Service::start_with(&args, &variables));
        let bound = self.service.as_ref().unwrap().address("grpc");
        assert_eq!(bound.port(), self.port.number());
    }

    fn ask(&self, request: &str) -> Answer {
        let address = self.envoy.address().parse().unwrap();
        Http::connect(address).unwrap().send(request).unwrap()
    }

    /// Floods it: exactly the amount passes, and each answer has the headers of the limit.
    fn flood(&self, look: impl Fn(&Answer) + Sync) {
        let tally = crowd(&self.envoy.address(), ALICE, REQUESTS, |answer| {
            let limit = answer.header("x-ratelimit-limit").unwrap_or_default();
            assert!(limit.starts_with(&format!("{AMOUNT}, {AMOUNT};w=31536000")), "{answer:?}");
            let remaining = answer.header("x-ratelimit-remaining").unwrap();
            let reset: u64 = answer.header("x-ratelimit-reset").unwrap().parse().unwrap();
            assert!((1..=31_536_000).contains(&reset), "{answer:?}");
            let is_limited = answer.header("x-envoy-ratelimited") == Some("true");
            assert_eq!(is_limited, answer.status == 429, "{answer:?}");
            assert!(!is_limited || remaining == "0", "{answer:?}");
            look(answer);
        });
        let expected = Tally { passed: AMOUNT, limited: REQUESTS - AMOUNT, other: 0 };
        assert_eq!(tally, expected, "{}", self.envoy.log());
        assert_eq!(self.upstream.served(), AMOUNT, "denied requests did not reach the web server");
        let other = self.ask(&ALICE.replace("alice", "bob"));
        assert_eq!((other.status, &*other.body), (200, "upstream"));
        let unasked = self.ask(NOBODY);
        assert_eq!((unasked.status, unasked.header("x-ratelimit-limit")), (200, None));
    }

    /// Stops the service under load: Envoy lets requests pass, without the headers. Then starts it again.
    fn outage(&mut self, signal: &str) {
        let service = self.service.take().unwrap();
        let is_over = AtomicBool::new(false);
        let load = || {
            let mut client = Http::connect(self.envoy.address().parse().unwrap()).unwrap();
            let mut tally = Tally::default();
            while !is_over.load(Ordering::SeqCst) {
                tally.add(&client.send(ALICE).unwrap());
            }
            tally
        };
        let other = thread::scope(|scope| {
            let clients = [scope.spawn(load), scope.spawn(load)];
            service.signal(signal);
            service.wait();
            let unlimited = self.ask(ALICE);
            is_over.store(true, Ordering::SeqCst);
            let tallies = clients.map(|client| client.join().unwrap());
            assert_eq!((unlimited.status, unlimited.header("x-ratelimit-limit")), (200, None));
            tallies.iter().map(|tally| tally.other).sum::<u64>()
        });
        assert_eq!(other, 0, "everything was answered with 200 or 429");
        self.restart();
    }

    /// Returns the first answer with headers of the service.
    fn limited_again(&self, request: &str) -> Answer {
        let mut answer = self.ask(request);
        eventually(WITHIN, "Envoy asks again", || {
            let is_limited = answer.header("x-ratelimit-limit").is_some();
            if !is_limited {
                answer = self.ask(request);
            }
            is_limited
        });
        answer
    }
}

/// A folder with a file of envoyproxy/ratelimit, at the path that its deployments use.
fn rules() -> Folder {
    let folder = Folder::new();
    fs::create_dir_all(folder.path("ratelimit/config")).unwrap();
    let rules = format!(
        "domain: edge\ndescriptors:\n  - key: user\n    rate_limit: {{ unit: year, requests_per_unit: {AMOUNT} }}\n"
    );
    folder.replace("ratelimit/config/edge.yaml", &rules);
    folder
}

/// A store with a deadline that a busy machine meets.
fn store(server: &Server) -> String {
    format!("store: {{ url: '{}', deadline: 20s }}\n", server.url())
}

#[test]
fn rules_of_envoyproxy_ratelimit_in_memory() {
    let mut front = Front::theirs();
    front.flood(|answer| {
        assert_eq!(answer.header("ratelimit-limit"), Some(&*AMOUNT.to_string()), "{answer:?}");
        assert_eq!(
            answer.header("ratelimit-remaining"),
            answer.header("x-ratelimit-remaining"),
            "{answer:?}"
        );
        assert!(answer.header("ratelimit-reset").is_some(), "{answer:?}");
    });
    for signal in ["KILL", "TERM"] {
        front.outage(signal);
        // The state in memory is lost.
        let answer = front.limited_again(ALICE);
        let left = (AMOUNT - 1).to_string();
        assert_eq!((answer.status, answer.header("x-ratelimit-remaining")), (200, Some(&*left)));
    }
}

/// Checks before each request without hits, and charges four tokens after it, as gateways for language models do.
#[test]
fn token_budgets_are_used_up() {
    let (upstream, port, folder) = (Upstream::start(), Port::reserve(), rules());
    folder.replace(
        "ratelimit/config/edge.yaml",
        "domain: edge\ndescriptors:\n  - key: user\n    rate_limit: { unit: year, requests_per_unit: 10 }\n",
    );
    let address = format!("127.0.0.1:{}", port.number());
    let action = "actions: [{ request_headers: { descriptor_key: user, header_name: x-user } }]";
    let envoy = Envoy::options(&upstream.address(), &address)
        .domain("edge")
        .rate_limits(&format!("{{ {action}, hits_addend: {{ number: 0 }} }}, "))
        .rate_limits(&format!(
            "{{ {action}, hits_addend: {{ number: 4 }}, apply_on_stream_done: true }}, "
        ))
        .timeout(Duration::from_secs(20))
        .deny_on_failure()
        .start();
    let root = folder.path("").to_str().unwrap().to_owned();
    let service = Service::start_with(
        &["--grpc", &address],
        &[("RUNTIME_ROOT", &root), ("RUNTIME_SUBDIRECTORY", "ratelimit")],
    );
    let peek = r#"{"domain": "edge", "descriptors":
        [{"entries": [{"key": "user", "value": "alice"}], "hitsAddend": 0}]}"#;
    for (status, left) in [(200, "6"), (200, "2"), (200, "over"), (429, "over")] {
        let mut client = Http::connect(envoy.address().parse().unwrap()).unwrap();
        assert_eq!(client.send(ALICE).unwrap().status, status, "{left}: {}", envoy.log());
        eventually(WITHIN, "the charge at the end of the request", || {
            let mut client = Http::connect(service.address("http")).unwrap();
            let answer = client.request("POST", "/json", None, peek).unwrap();
            match left {
                "over" => answer.status == 429,
                left => answer.body.contains(&format!("\"limitRemaining\":{left}")),
            }
        });
    }
    assert_eq!(upstream.served(), 3);
}

/// The same with policies, all or nothing: the tokens are recorded in full on each policy of a request.
#[test]
fn token_budgets_of_policies_are_recorded_in_full() {
    let (upstream, port) = (Upstream::start(), Port::reserve());
    let folder = Folder::with_config(
        "policies:\n\
         - { name: tokens, domain: edge, per: [user], limit: 10/365d, record_in_full: true }\n\
         - { name: all, domain: edge, limit: 100/365d, record_in_full: true }\n",
    );
    let address = format!("127.0.0.1:{}", port.number());
    let action = "actions: [{ request_headers: { descriptor_key: user, header_name: x-user } }]";
    let envoy = Envoy::options(&upstream.address(), &address)
        .domain("edge")
        .rate_limits(&format!("{{ {action}, hits_addend: {{ number: 0 }} }}, "))
        .rate_limits(&format!(
            "{{ {action}, hits_addend: {{ number: 4 }}, apply_on_stream_done: true }}, "
        ))
        .timeout(Duration::from_secs(20))
        .deny_on_failure()
        .start();
    let service = Service::start(&["--grpc", &address, "--config", &folder.config()]);
    let send = || {
        let mut client = Http::connect(envoy.address().parse().unwrap()).unwrap();
        client.send(ALICE).unwrap().status
    };
    for (tokens, all) in [(6, 96), (2, 92), (0, 88)] {
        assert_eq!(send(), 200, "{tokens}: {}", envoy.log());
        eventually(WITHIN, "the charge at the end of the request", || {
            let mut client = Http::connect(service.address("http")).unwrap();
            let mut left = |path: &str| client.request("GET", path, None, "").unwrap().body;
            left("/v1/state?policy=tokens&key=alice").contains(&format!("\"remaining\":{tokens},"))
                && left("/v1/state?policy=all&key=").contains(&format!("\"remaining\":{all},"))
        });
    }
    assert_eq!(send(), 429);
    assert_eq!(upstream.served(), 3);
}

#[test]
fn policies_in_memory() {
    Front::ours("").flood(|_| {});
}

#[test]
fn rules_of_envoyproxy_ratelimit_on_redis() {
    let server = Server::start(Flavor::Redis);
    Front::theirs_on(&server).flood(|_| {});
}

#[test]
fn policies_on_valkey() {
    let server = Server::start(Flavor::Valkey);
    let mut front = Front::ours(&store(&server));
    front.flood(|_| {});
    for signal in ["KILL", "TERM"] {
        front.outage(signal);
        // The store has kept the state.
        let answer = front.limited_again(ALICE);
        assert_eq!((answer.status, answer.header("x-ratelimit-remaining")), (429, Some("0")));
    }
    assert!(front.folder.path("pacegate.yaml").exists());
}

#[test]
fn a_long_header_does_not_bypass_a_limit() {
    let folder = Folder::with_config(
        "bounds: { request_bytes: 8KiB }\n\
         policies: [{ name: api, domain: edge, per: [user], limit: 1/365d }]\n",
    );
    let config = folder.config();
    let front = Front::new(folder, &["--config", &config], Vec::new());
    // The longest exceeds `request_bytes`.
    for (length, status) in [(2_000, 200), (2_000, 429), (2_001, 200), (20_000, 429), (5, 200)] {
        let answer = front.ask(&ALICE.replace("alice", &"x".repeat(length)));
        assert_eq!(answer.status, status, "{length}: {answer:?}");
        let is_limited = answer.header("x-envoy-ratelimited") == Some("true");
        assert_eq!(is_limited, status == 429, "{length}: {answer:?}");
    }
}

#[test]
fn long_metadata_does_not_bypass_a_limit() {
    let folder = Folder::with_config(
        "policies: [{ name: api, domain: edge, per: [user], limit: 1/365d }]\n",
    );
    let config = folder.config();
    let front = Front::new(folder, &["--config", &config], Vec::new());
    // More than `header_bytes`, and the longest that Envoy accepts from its clients.
    for (length, status) in [(5, 200), (5, 429), (20_000, 429), (59_000, 429)] {
        let trace = format!("x-user: alice\r\nx-trace: {}", "x".repeat(length));
        let answer = front.ask(&ALICE.replace("x-user: alice", &trace));
        assert_eq!(answer.status, status, "{length}: {answer:?}");
        assert!(answer.header("x-ratelimit-limit").is_some(), "{length}: {answer:?}");
    }
    let longer = format!("x-user: alice\r\nx-trace: {}", "x".repeat(70_000));
    assert_eq!(front.ask(&ALICE.replace("x-user: alice", &longer)).status, 431, "Envoy's own");
}
