//! Blocks that several servers share through Redis.

use std::time::Duration;

use pacegate_testkit::servers::{Cluster, Flavor, Server, eventually};
use serde_json::{Value, json};

use crate::{
    clients::{Folder, Http},
    service::Service,
};

/// The documented time after which a block holds on all servers, and some for a busy machine.
const WITHIN: Duration = Duration::from_secs(5);

const POLICIES: &str = "
policies:
  - { name: login, match: { path: /login }, per: [ip], limit: 1000000/365d, failure: open }
  - { name: tokens, match: { path: /chat }, per: [user], limit: 100/365d }
";

/// A server and a connection to it.
struct Replica {
    service: Service,
    http: Http,
}

impl Replica {
    fn start(folder: &Folder) -> Self {
        let service = Service::start(&["--config", &folder.config()]);
        let http = Http::connect(service.address("http")).unwrap();
        Self { service, http }
    }

    fn post(&mut self, path: &str, body: &Value) -> (u16, Value) {
        let answer = self.http.request("POST", path, None, &body.to_string()).unwrap();
        (answer.status, answer.json())
    }

    fn log_in(&mut self, ip: &str) -> (u16, Value) {
        self.post("/v1/check", &json!({ "attributes": { "path": "/login", "ip": ip } }))
    }

    fn is_blocked(&mut self, ip: &str) -> bool {
        let (status, decision) = self.log_in(ip);
        assert_eq!(status == 429, decision["source"] == "blocked", "{decision}");
        status == 429
    }

    fn block(&mut self, ip: &str, seconds: u64) -> (u16, Value) {
        let body = json!({ "policy": "login", "key": ip, "seconds": seconds });
        self.post("/v1/block", &body)
    }

    fn unblock(&mut self, ip: &str) -> (u16, Value) {
        let path = format!("/v1/block?policy=login&key={ip}");
        let answer = self.http.request("DELETE", &path, None, "").unwrap();
        (answer.status, answer.json())
    }

    /// Returns the blocked keys with their ends.
    fn blocks(&mut self) -> Value {
        self.http.get("/v1/live").unwrap().json()["blocked"].clone()
    }
}

fn config(url: &str) -> Folder {
    Folder::with_config(&format!("store: {{ url: '{url}', deadline: 5s }}\n{POLICIES}"))
}

fn blocks_are_shared(url: &str) {
    let folder = config(url);
    let [mut one, mut other] = [(), ()].map(|()| Replica::start(&folder));
    let (status, block) = one.block("192.0.2.1", 3_600);
    assert_eq!(status, 200, "{block}");
    assert!(one.is_blocked("192.0.2.1"), "at once");
    eventually(WITHIN, "it holds on the other server", || other.is_blocked("192.0.2.1"));
    assert!(!other.is_blocked("192.0.2.2"));
    assert_eq!((one.blocks(), other.blocks()), (json!([block]), json!([block])), "equal ends");
    // A server that starts later knows it from its first request on.
    let mut third = Replica::start(&folder);
    assert!(third.is_blocked("192.0.2.1"));
    // It can be removed on any server, also by one that does not know it yet.
    assert_eq!(one.block("192.0.2.3", 3_600).0, 200);
    assert_eq!(third.unblock("192.0.2.3"), (200, json!({ "limits": 1 })));
    assert!(!third.is_blocked("192.0.2.3"));
    assert_eq!(other.unblock("192.0.2.1"), (200, json!({ "limits": 1 })));
    assert_eq!(other.unblock("192.0.2.1"), (200, json!({ "limits": 0 })));
    for replica in [&mut one, &mut third] {
        eventually(WITHIN, "it is removed everywhere", || replica.blocks() == json!([]));
        assert!(!replica.is_blocked("192.0.2.1"));
    }
    // It ends at the same time everywhere.
    assert_eq!(other.block("192.0.2.4", 2).0, 200);
    for replica in [&mut one, &mut other, &mut third] {
        eventually(WITHIN, "it holds", || replica.is_blocked("192.0.2.4"));
    }
    for replica in [&mut one, &mut other, &mut third] {
        eventually(WITHIN, "it ends", || !replica.is_blocked("192.0.2.4"));
    }
}

#[test]
fn blocks_are_shared_on_redis_and_valkey() {
    for flavor in Flavor::ALL {
        blocks_are_shared(&Server::start(flavor).url());
    }
}

#[test]
fn blocks_are_shared_on_a_cluster() {
    blocks_are_shared(&Cluster::start(Flavor::Valkey, 3, 0).url());
}

#[test]
fn known_blocks_hold_while_redis_is_down() {
    // With persistence, so that the blocks survive.
    let mut server = Server::options(Flavor::Redis)
        .arg("appendonly", "yes")
        .arg("appendfsync", "always")
        .start();
    let folder = config(&server.url());
    let [mut one, mut other] = [(), ()].map(|()| Replica::start(&folder));
    assert_eq!(one.block("192.0.2.1", 3_600).0, 200);
    eventually(WITHIN, "it holds on the other server", || other.is_blocked("192.0.2.1"));
    server.kill();
    eventually(WITHIN, "the loss is noticed", || other.log_in("192.0.2.9").1["degraded"] == true);
    assert!(one.is_blocked("192.0.2.1") && other.is_blocked("192.0.2.1"));
    for (status, problem) in [one.block("192.0.2.2", 60), one.unblock("192.0.2.1")] {
        assert_eq!(status, 503, "{problem}");
        let detail = problem["detail"].as_str().unwrap();
        assert!(detail.contains("the store is unreachable: nothing was changed"), "{detail}");
    }
    assert!(!one.is_blocked("192.0.2.2") && one.is_blocked("192.0.2.1"));
    // A server that starts meanwhile learns the blocks once Redis is back.
    let mut third = Replica::start(&folder);
    assert!(!third.is_blocked("192.0.2.1"));
    server.restart();
    eventually(WITHIN, "the follower recovers", || third.is_blocked("192.0.2.1"));
    eventually(WITHIN, "blocks can be changed", || one.block("192.0.2.2", 3_600).0 == 200);
    for replica in [&mut other, &mut third] {
        eventually(WITHIN, "it holds everywhere", || replica.is_blocked("192.0.2.2"));
    }
}

#[test]
fn the_number_of_blocks_is_bounded_over_all_servers() {
    let server = Server::start(Flavor::Redis);
    let folder = config(&server.url());
    let [mut one, mut other] = [(), ()].map(|()| Replica::start(&folder));
    assert_eq!(one.block("192.0.2.1", 3_600).0, 200);
    // Fill up the rest directly, because 10,000 calls take long.
    let script = "redis.call('ZADD', KEYS[1], -3e15, '') for n = 2, 10000 do \
                  redis.call('ZADD', KEYS[1], 4e15 + n, '\\5login\\0filler' .. n) end";
    assert!(!server.command(&["EVAL", script, "1", "pg:{blocks}"]).is_error());
    let (status, problem) = other.block("192.0.2.2", 60);
    assert_eq!((status, &problem["type"]), (409, &json!("urn:pacegate:problem:too-many-blocks")));
    assert!(!other.is_blocked("192.0.2.2"));
    // A known one can be prolonged, and after one is removed there is room. The change reads all of them.
    assert_eq!(other.block("192.0.2.1", 7_200).0, 200);
    assert!(other.is_blocked("filler77"));
    assert_eq!(other.unblock("filler77"), (200, json!({ "limits": 1 })));
    assert_eq!(one.block("192.0.2.2", 60).0, 200);
    eventually(WITHIN, "all are known", || other.is_blocked("192.0.2.2"));
    let live = other.http.get("/v1/live").unwrap().json();
    assert_eq!(live["blocked_total"], 10_000);
    drop(one.service);
}

#[test]
fn spent_units_of_a_blocked_key_are_recorded() {
    let server = Server::start(Flavor::Valkey);
    let memory = Folder::with_config(POLICIES);
    for folder in [config(&server.url()), memory] {
        let mut replica = Replica::start(&folder);
        let body = json!({ "policy": "tokens", "key": "alice" });
        assert_eq!(replica.post("/v1/block", &body).0, 200);
        let chat = json!({ "path": "/chat", "user": "alice" });
        let spent = json!({ "attributes": chat, "cost": 130, "spent": true });
        let (status, decision) = replica.post("/v1/check", &spent);
        assert_eq!((status, &decision["source"]), (429, &json!("blocked")));
        let plain = json!({ "attributes": chat, "cost": 7 });
        assert_eq!(replica.post("/v1/check", &plain).0, 429);
        let batch = json!({ "requests": [spent, plain] });
        assert_eq!(replica.post("/v1/check/batch", &batch).0, 200);
        let answer = replica.http.request("DELETE", "/v1/block?policy=tokens&key=alice", None, "");
        assert_eq!(answer.unwrap().status, 200);
        let (status, decision) = replica.post("/v1/check", &plain);
        assert_eq!((status, &decision["remaining"]), (429, &json!(0)), "{decision}");
        assert_ne!(decision["source"], "blocked", "{decision}");
        let live = replica.http.get("/v1/live").unwrap().json();
        let tokens = &live["policies"][1];
        // 130 and then 70 of 130, because the debt is at most one limit; the others are plain denials.
        assert_eq!(tokens["denied"], 5, "each request is counted once: {tokens}");
    }
}

#[test]
fn the_command_check_applies_shared_blocks() {
    let server = Server::start(Flavor::Redis);
    let folder = config(&server.url());
    let mut replica = Replica::start(&folder);
    let attributes = ["-a", "path=/login", "-a", "ip=192.0.2.1"];
    let check = || {
        let output = std::process::Command::new(env!("CARGO_BIN_EXE_pacegate"))
            .args(["check", "--config", &folder.config()])
            .args(attributes)
            .output();
        output.unwrap().status.code()
    };
    assert_eq!(check(), Some(0));
    assert_eq!(replica.block("192.0.2.1", 3_600).0, 200);
    assert_eq!(check(), Some(1));
}
