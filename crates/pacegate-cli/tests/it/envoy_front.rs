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

/// Everything that stands between a client and the web server.
struct Front {
    upstream: Upstream,
    envoy: Envoy,
    service: Option<Service>,
    /// Stays the service's own while that is down.
    port: Port,
    folder: Folder,
    args: Vec<String>,
    variables: Vec<(&'static str, String)>,
}

impl Front {
    /// With files and options for the service, which are in `folder`.
    fn new(folder: Folder, args: &[&str], variables: Vec<(&'static str, String)>) -> Self {
        let (upstream, port) = (Upstream::start(), Port::reserve());
        let address = format!("127.0.0.1:{}", port.number());
        let args = args.iter().copied().chain(["--grpc", &address]).map(str::to_owned).collect();
        let envoy = Envoy::options(&upstream.address(), &address)
            .domain("edge")
            .descriptor(&[("user", "x-user")])
            .metadata("x-trace", "x-trace")
            // A machine with much to do is no reason to let requests pass.
            .timeout(Duration::from_secs(20))
            .start();
        let mut front = Self { upstream, envoy, service: None, port, folder, args, variables };
        front.restart();
        front
    }

    /// By a file of envoyproxy/ratelimit's, as its deployments have it.
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

    /// By the same file, with the store that a file of ours names.
    fn theirs_on(server: &Server) -> Self {
        let folder = rules();
        folder.replace("pacegate.yaml", &store(server));
        let rules = folder.path("ratelimit/config").to_str().unwrap().to_owned();
        let config = folder.config();
        Self::new(folder, &["--config", &config, "--config", &rules], Vec::new())
    }

    /// By a policy of ours.
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

    /// Floods it: exactly the amount passes, and each answer tells of the limit.
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
        assert_eq!(self.upstream.served(), AMOUNT, "what was limited went no further");
        let other = self.ask(&ALICE.replace("alice", "bob"));
        assert_eq!((other.status, &*other.body), (200, "upstream"));
        let unasked = self.ask(NOBODY);
        assert_eq!((unasked.status, unasked.header("x-ratelimit-limit")), (200, None));
    }

    /// Ends the service under load: nobody notices but by headers that are missing. Then starts it again.
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

    /// The first answer that the service has a part in again.
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

/// A folder with a file of envoyproxy/ratelimit's, where its deployments look for it.
fn rules() -> Folder {
    let folder = Folder::new();
    fs::create_dir_all(folder.path("ratelimit/config")).unwrap();
    let rules = format!(
        "domain: edge\ndescriptors:\n  - key: user\n    rate_limit: {{ unit: year, requests_per_unit: {AMOUNT} }}\n"
    );
    folder.replace("ratelimit/config/edge.yaml", &rules);
    folder
}

/// A store that is waited for, however busy the machine is.
fn store(server: &Server) -> String {
    format!("store: {{ url: '{}', deadline: 20s }}\n", server.url())
}

#[test]
fn by_their_file_in_memory() {
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
        // What was in memory is gone.
        let answer = front.limited_again(ALICE);
        let left = (AMOUNT - 1).to_string();
        assert_eq!((answer.status, answer.header("x-ratelimit-remaining")), (200, Some(&*left)));
    }
}

#[test]
fn by_our_policy_in_memory() {
    Front::ours("").flood(|_| {});
}

#[test]
fn by_their_file_on_redis() {
    let server = Server::start(Flavor::Redis);
    Front::theirs_on(&server).flood(|_| {});
}

#[test]
fn by_our_policy_on_redis() {
    let server = Server::start(Flavor::Valkey);
    let mut front = Front::ours(&store(&server));
    front.flood(|_| {});
    for signal in ["KILL", "TERM"] {
        front.outage(signal);
        // The store has kept it.
        let answer = front.limited_again(ALICE);
        assert_eq!((answer.status, answer.header("x-ratelimit-remaining")), (429, Some("0")));
    }
    assert!(front.folder.path("pacegate.yaml").exists());
}

#[test]
fn a_long_header_is_no_way_around_a_limit() {
    let folder = Folder::with_config(
        "bounds: { request_bytes: 8KiB }\n\
         policies: [{ name: api, domain: edge, per: [user], limit: 1/365d }]\n",
    );
    let config = folder.config();
    let front = Front::new(folder, &["--config", &config], Vec::new());
    // The longest is more than is read at all.
    for (length, status) in [(2_000, 200), (2_000, 429), (2_001, 200), (20_000, 429), (5, 200)] {
        let answer = front.ask(&ALICE.replace("alice", &"x".repeat(length)));
        assert_eq!(answer.status, status, "{length}: {answer:?}");
        let is_limited = answer.header("x-envoy-ratelimited") == Some("true");
        assert_eq!(is_limited, status == 429, "{length}: {answer:?}");
    }
}

#[test]
fn long_metadata_is_no_way_around_a_limit() {
    let folder = Folder::with_config(
        "policies: [{ name: api, domain: edge, per: [user], limit: 1/365d }]\n",
    );
    let config = folder.config();
    let front = Front::new(folder, &["--config", &config], Vec::new());
    // More than `header_bytes`, and the most that Envoy takes from its clients.
    for (length, status) in [(5, 200), (5, 429), (20_000, 429), (59_000, 429)] {
        let trace = format!("x-user: alice\r\nx-trace: {}", "x".repeat(length));
        let answer = front.ask(&ALICE.replace("x-user: alice", &trace));
        assert_eq!(answer.status, status, "{length}: {answer:?}");
        assert!(answer.header("x-ratelimit-limit").is_some(), "{length}: {answer:?}");
    }
    let longer = format!("x-user: alice\r\nx-trace: {}", "x".repeat(70_000));
    assert_eq!(front.ask(&ALICE.replace("x-user: alice", &longer)).status, 431, "Envoy's own");
}
