//! Reloads under load: no request is lost, and each decision uses one revision.

use std::{
    io::{Read, Write},
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::Duration,
};

use pacegate_testkit::servers::{Client, eventually};

use crate::{
    clients::{Folder, Grpc, Http, command, connect},
    service::Service,
};

const AMOUNT: u64 = 1_000_000_000;
/// Commands in one pipeline.
const PIPELINE: usize = 8;
/// Names with values in the answer to a command: `allowed`, `policy`, `limit` and others.
const MEMBERS: usize = 9;

/// Answered charges of each policy.
#[derive(Clone, Copy, Default)]
struct Answered {
    odd: u64,
    even: u64,
}

impl Answered {
    fn count(&mut self, policy: &str) {
        match policy {
            "odd" => self.odd += 1,
            "even" => self.even += 1,
            other => panic!("no policy is called {other}"),
        }
    }
}

/// The configuration of a revision. Its policy is `odd` or `even`, like its number. That for Envoy never changes.
fn settings(number: u64) -> String {
    let name = if number % 2 == 1 { "odd" } else { "even" };
    format!(
        "policies:\n  - {{ name: {name}, per: [key], limit: {AMOUNT}/week }}\n  \
         - {{ name: envoy, domain: e, per: [key], limit: {AMOUNT}/week }}\n"
    )
}

fn by_http(address: SocketAddr, over: &AtomicBool) -> Answered {
    let mut client = Http::connect(address).unwrap();
    let mut answered = Answered::default();
    while !over.load(Ordering::Relaxed) {
        let answer = client.check(None, r#"{"attributes": {"key": "k"}}"#).unwrap();
        let decision = answer.json();
        let (policy, revision) = (decision["policy"].as_str(), decision["revision"].as_u64());
        let name = if revision.unwrap() % 2 == 1 { "odd" } else { "even" };
        assert_eq!((answer.status, policy), (200, Some(name)), "{answer:?}");
        assert!(answer.head.contains(&format!("\r\nratelimit: \"{name}\";")), "{answer:?}");
        answered.count(name);
    }
    answered
}

fn by_resp(address: SocketAddr, over: &AtomicBool) -> Answered {
    let mut stream = connect(address).unwrap();
    let commands = command(&[b"PACEGATE.CHECK", b"ATTR", b"key", b"k"]).repeat(PIPELINE);
    let mut answered = Answered::default();
    while !over.load(Ordering::Relaxed) {
        stream.write_all(&commands).unwrap();
        let mut answers = Vec::new();
        let mut buffer = [0; 4096];
        let is_whole = |bytes: &[u8]| {
            let ends = bytes.windows(8).filter(|bytes| bytes == b"degraded").count();
            ends == PIPELINE && (bytes.ends_with(b":0\r\n") || bytes.ends_with(b":1\r\n"))
        };
        while !is_whole(&answers) {
            let read = stream.read(&mut buffer).unwrap();
            assert_ne!(read, 0, "the connection stays open");
            answers.extend_from_slice(&buffer[..read]);
        }
        let text = String::from_utf8(answers).unwrap();
        for answer in text.split(&format!("*{}\r\n", 2 * MEMBERS)).skip(1) {
            let words: Vec<&str> = answer.split("\r\n").collect();
            assert_eq!(words[1..3], ["allowed", ":1"], "{answer:?}");
            answered.count(words[6]);
        }
    }
    answered
}

fn by_grpc(address: SocketAddr, over: &AtomicBool) -> u64 {
    let mut client = Grpc::connect(address).unwrap();
    let mut answered = 0;
    while !over.load(Ordering::Relaxed) {
        let told = client.ask(None, "e", &[("key", "k")]).unwrap();
        assert_eq!((told.status, told.allowed), (0, true));
        answered += 1;
    }
    answered
}

fn revision(client: &mut Client) -> u64 {
    let info = client.command(&["INFO"]).unwrap().text();
    let line = info.lines().find_map(|line| line.strip_prefix("config_revision:"));
    line.unwrap().parse().unwrap()
}

fn used(client: &mut Client, words: &[&str]) -> u64 {
    AMOUNT - u64::try_from(client.command(words).unwrap().items()[7].int()).unwrap()
}

fn reload_under_load(reloads: u64) {
    let folder = Folder::with_config(&settings(1));
    let service = Service::start(&["--config", &folder.config(), "--log", "warn"]);
    let over = Arc::new(AtomicBool::new(false));
    let [http, grpc, resp] = ["http", "grpc", "resp"].map(|name| service.address(name));
    let spawn = |ask: fn(SocketAddr, &AtomicBool) -> Answered, address| {
        let over = over.clone();
        thread::spawn(move || ask(address, &over))
    };
    let clients =
        [spawn(by_http, http), spawn(by_http, http), spawn(by_resp, resp), spawn(by_resp, resp)];
    let ending = over.clone();
    let envoy = thread::spawn(move || by_grpc(grpc, &ending));
    let mut client = Client::connect(&resp.to_string()).unwrap();
    for number in 2..=reloads + 1 {
        folder.replace("pacegate.yaml", &settings(number));
        let what = format!("revision {number}");
        eventually(Duration::from_secs(10), &what, || revision(&mut client) == number);
        assert!(clients.iter().all(|client| !client.is_finished()), "a client has failed");
    }
    over.store(true, Ordering::Relaxed);
    let mut all = Answered::default();
    for answered in clients.map(|client| client.join().unwrap()) {
        all = Answered { odd: all.odd + answered.odd, even: all.even + answered.even };
        assert!(answered.odd > 0 && answered.even > 0);
    }
    let by_envoy = envoy.join().unwrap();
    let peek = ["PACEGATE.PEEK", "ATTR", "key", "k"];
    let (now, before) =
        if reloads.is_multiple_of(2) { (all.odd, all.even) } else { (all.even, all.odd) };
    assert_eq!(used(&mut client, &peek), now, "each answer is one charge");
    let in_envoy = ["PACEGATE.PEEK", "DOMAIN", "e", "ATTR", "key", "k"];
    assert_eq!(used(&mut client, &in_envoy), by_envoy, "through all revisions");
    folder.replace("pacegate.yaml", &settings(reloads + 2));
    eventually(Duration::from_secs(10), "the last", || revision(&mut client) == reloads + 2);
    assert_eq!(used(&mut client, &peek), before, "each answer is one charge");
    assert_eq!(service.log(), "");
}

#[test]
fn no_request_is_lost_and_each_decision_uses_one_revision() {
    // A thousand reloads take about a minute.
    let is_long = std::env::var_os("PACEGATE_LONG").is_some();
    reload_under_load(if is_long { 1_000 } else { 200 });
}
