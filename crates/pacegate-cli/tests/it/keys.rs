//! API keys, on all listeners.

use std::{
    io::{Read, Write},
    net::TcpStream,
    time::Duration,
};

use pacegate_testkit::servers::{Client, Reply, eventually};
use tokio::time::Instant;

use crate::{
    clients::{Folder, Grpc, Http, command, connect},
    service::Service,
};

const POLICIES: &str = "
policies:
  - { name: free, per: [key], limit: 100/day }
  - { name: shop, domain: shop, per: [key], limit: 100/day }
";
const BOSS: &str = "the-key-of-the-boss";
const SHOP: &str = "the-key-of-the-shop";
const ROTATED: &str = "the-next-key-of-the-shop";
const EVERYWHERE: &str = "the-key-for-all-domains";

fn keys(with_shop: bool) -> String {
    let mut text = format!(
        "{POLICIES}keys:\n  - {{ name: boss, file: boss.key, scope: admin }}\n  \
         - {{ name: everywhere, env: TEST_KEY, inline: true }}\n"
    );
    if with_shop {
        text.push_str("  - { name: shop, file: shop.key, domains: [shop] }\n");
    }
    text
}

fn start() -> (Folder, Service) {
    let folder = Folder::with_config(&keys(true));
    folder.replace("boss.key", &format!("{BOSS}\n"));
    folder.replace("shop.key", SHOP);
    let args = ["--config", &folder.config()];
    let service = Service::start_with(&args, &[("TEST_KEY", EVERYWHERE)]);
    (folder, service)
}

fn resp(service: &Service) -> Client {
    Client::connect(&service.address("resp").to_string()).unwrap()
}

fn http(service: &Service) -> Http<TcpStream> {
    Http::connect(service.address("http")).unwrap()
}

fn said(client: &mut Client, words: &[&str]) -> String {
    match client.command(words).unwrap() {
        Reply::Array(items) => items[1].text(),
        other => other.text(),
    }
}

const FREE: [&str; 4] = ["PACEGATE.CHECK", "ATTR", "key", "k"];
const IN_SHOP: [&str; 6] = ["PACEGATE.CHECK", "DOMAIN", "shop", "ATTR", "key", "k"];
const RESET: [&str; 6] = ["PACEGATE.RESET", "DOMAIN", "shop", "ATTR", "key", "k"];
const CELL: [&str; 5] = ["CL.THROTTLE", "k", "10", "1", "60"];
const NOAUTH: &str = "NOAUTH Authentication required.";
const NOPERM: &str = "NOPERM the API key does not permit this";
const INLINE: &str = "NOPERM inline limits need an API key with `inline: true`: set it under `keys` in the \
                      configuration";
const WRONGPASS: &str = "WRONGPASS invalid username-password pair or user is disabled.";

#[test]
fn resp_requires_a_key() {
    let (_folder, service) = start();
    let mut client = resp(&service);
    let before: [&[&str]; 7] =
        [&FREE, &IN_SHOP, &RESET, &CELL, &["PING"], &["INFO"], &["SET", "a", "b"]];
    for words in before {
        assert_eq!(said(&mut client, words), NOAUTH, "{words:?}");
    }
    assert!(said(&mut client, &["HELLO", "3"]).starts_with("NOAUTH HELLO must be called"));
    let shorter = &BOSS[..BOSS.len() - 1];
    for words in [
        &["AUTH", "wrong"][..],
        &["AUTH", "boss", shorter],
        &["AUTH", ""],
        &["HELLO", "2", "AUTH", "boss", "wrong"],
    ] {
        assert_eq!(said(&mut resp(&service), words), WRONGPASS, "{words:?}");
    }
    assert_eq!(said(&mut client, &["AUTH", "wrong"]), WRONGPASS);
    assert_eq!(said(&mut client, &["PING"]), NOAUTH, "a wrong key gives no access");
    assert_eq!(said(&mut client, &["AUTH", BOSS]), "OK");
    assert_eq!(said(&mut client, &["PING"]), "PONG");
    assert_eq!(said(&mut client, &["AUTH", "wrong"]), WRONGPASS);
    assert_eq!(
        said(&mut client, &["PING"]),
        "PONG",
        "an authenticated connection stays authenticated, as with Redis"
    );
    assert_eq!(said(&mut client, &["RESET"]), "RESET");
    assert_eq!(said(&mut client, &["PING"]), NOAUTH);
}

#[test]
fn resp_enforces_scopes_and_domains() {
    let (_folder, service) = start();
    // AUTH with a password, AUTH with user and password, HELLO.
    let (mut boss, mut shop, mut everywhere) = (resp(&service), resp(&service), resp(&service));
    assert_eq!(said(&mut boss, &["AUTH", BOSS]), "OK");
    assert_eq!(said(&mut shop, &["AUTH", "anything", SHOP]), "OK");
    assert_eq!(said(&mut everywhere, &["HELLO", "2", "AUTH", "default", EVERYWHERE]), "pacegate");
    let all: [&[&str]; 4] = [&FREE, &IN_SHOP, &CELL, &RESET];
    for (client, answers) in [
        (&mut boss, ["1", "1", INLINE, "OK"]),
        (&mut shop, [NOPERM, "1", NOPERM, NOPERM]),
        (&mut everywhere, ["1", "1", "0", NOPERM]),
    ] {
        for (words, answer) in all.iter().zip(answers) {
            let reply = client.command(words).unwrap();
            let said = match &reply {
                Reply::Array(items) if words[0] == "CL.THROTTLE" => items[0].text(),
                Reply::Array(items) => items[1].text(),
                other => other.text(),
            };
            assert_eq!(said, answer, "{words:?}");
        }
    }
}

/// Sends guesses on one connection, and returns all answers.
fn guess(service: &Service, guesses: usize) -> String {
    let mut stream = connect(service.address("resp")).unwrap();
    let commands: Vec<u8> = (0..guesses)
        .flat_map(|guess| command(&[b"AUTH", format!("guess-{guess}").as_bytes()]))
        .collect();
    stream.write_all(&commands).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    answer
}

#[test]
fn a_resp_connection_ends_after_three_wrong_keys() {
    let (_folder, service) = start();
    let mut boss = resp(&service);
    assert_eq!(said(&mut boss, &["AUTH", BOSS]), "OK");
    assert_eq!(guess(&service, 100), format!("-{WRONGPASS}\r\n").repeat(3));
    assert_eq!(said(&mut boss, &["PING"]), "PONG");
    let log = service.log();
    assert_eq!(log.matches("rejected API keys").count(), 1, "{log}");
    assert!(log.contains("listener=\"resp\"") && log.contains("127.0.0.1"), "{log}");
    assert!(!log.contains("guess-"), "{log}");
}

#[test]
fn guesses_are_limited_per_address_and_logged() {
    let (_folder, service) = start();
    let mut boss = resp(&service);
    assert_eq!(said(&mut boss, &["AUTH", BOSS]), "OK");
    let begun = Instant::now();
    let answers: String = (0..300).map(|_| guess(&service, 3)).collect();
    let seconds = begun.elapsed().as_secs() as usize + 1;
    let compared = answers.matches(WRONGPASS).count();
    assert!((20..=20 + 10 * seconds).contains(&compared), "{compared} in {seconds} s");
    let refused = "-ERR too many wrong API keys from this address: retry in 1 s\r\n";
    assert!(answers.matches(refused).count() >= 300 - compared, "{answers}");
    assert_eq!(
        said(&mut boss, &["PING"]),
        "PONG",
        "an authenticated connection stays authenticated"
    );
    let lines = service.log().matches("rejected API keys").count();
    assert!((1..=1 + seconds / 10).contains(&lines), "{lines} lines in {seconds} s");
}

#[test]
fn wrong_keys_are_logged_by_every_listener() {
    let (_folder, service) = start();
    let body = r#"{"attributes": {"key": "k"}}"#;
    for _ in 0..3 {
        assert_eq!(http(&service).check(Some("wrong-key-9917"), body).unwrap().status, 401);
        let mut grpc = Grpc::connect(service.address("grpc")).unwrap();
        assert_eq!(grpc.ask(Some("wrong-key-9917"), "shop", &[("key", "k")]).unwrap().status, 16);
    }
    let log = service.log();
    for listener in ["http", "grpc"] {
        let line = format!("rejected API keys listener=\"{listener}\" rejected=1");
        assert_eq!(log.matches(&line).count(), 1, "{log}");
    }
    assert!(!log.contains("wrong-key-9917"), "{log}");
}

#[test]
fn releases_are_audited() {
    let (_folder, service) = start();
    let mut client = http(&service);
    let own = r#"{"key": "reports", "limit": "5/day concurrency"}"#;
    let held = client.request("POST", "/v1/acquire", Some(EVERYWHERE), own).unwrap().json();
    let permit = held["permit"].as_str().unwrap();
    assert_eq!(permit.len(), 32);
    let body = own.replace('}', &format!(r#", "permit": "{permit}"}}"#));
    let answer = client.request("POST", "/v1/release", Some(EVERYWHERE), &body).unwrap();
    assert_eq!(answer.status, 200, "{answer:?}");
    let log = service.log();
    assert!(log.contains("action=\"release\" credential=\"everywhere\""), "{log}");
    assert!(!log.contains("reports") && !log.contains(permit), "{log}");
}

#[test]
fn http_answers_401_and_403() {
    let (_folder, service) = start();
    let mut client = http(&service);
    let free = r#"{"attributes": {"key": "k"}}"#;
    let in_shop = r#"{"domain": "shop", "attributes": {"key": "k"}}"#;
    let inline = r#"{"key": "k", "limit": "5/day"}"#;
    for (key, body, status) in [
        (None, free, 401),
        (Some("wrong"), free, 401),
        (Some(""), free, 401),
        (Some(BOSS), free, 200),
        (Some(BOSS), in_shop, 200),
        (Some(SHOP), in_shop, 200),
        (Some(SHOP), free, 403),
        (Some(SHOP), inline, 403),
        (Some(BOSS), inline, 403),
        (Some(EVERYWHERE), inline, 200),
        (Some(EVERYWHERE), in_shop, 200),
    ] {
        let answer = client.check(key, body).unwrap();
        assert_eq!(answer.status, status, "{key:?} {body} {answer:?}");
        let kind = if status == 200 { "application/json" } else { "application/problem+json" };
        assert!(answer.head.contains(&format!("content-type: {kind}\r\n")), "{answer:?}");
        assert_eq!(answer.head.contains("www-authenticate: bearer"), status == 401, "{answer:?}");
    }
    let counted = client.check(Some(BOSS), in_shop).unwrap().json();
    assert_eq!(counted["remaining"], 96, "only authorized requests were charged");
}

#[test]
fn grpc_reads_the_key_from_metadata() {
    let (_folder, service) = start();
    let mut client = Grpc::connect(service.address("grpc")).unwrap();
    let entry = [("key", "k")];
    for (key, domain, status) in [
        (None, "shop", 16),
        (Some("wrong"), "shop", 16),
        (Some(SHOP), "shop", 0),
        (Some(SHOP), "other", 7),
        (Some(EVERYWHERE), "other", 0),
        (Some(BOSS), "shop", 0),
    ] {
        let told = client.ask(key, domain, &entry).unwrap();
        assert_eq!(told.status, status, "{key:?} {domain}");
    }
    assert_eq!(client.give_back(Some(SHOP), "shop", &entry).unwrap().status, 7);
    assert_eq!(client.give_back(Some(BOSS), "shop", &entry).unwrap().status, 0);
    let told = client.ask(Some(SHOP), "shop", &entry).unwrap();
    assert_eq!((told.allowed, told.remaining), (true, 98));
}

#[test]
fn a_removed_key_stops_working_on_open_connections() {
    let (folder, service) = start();
    let (mut in_resp, mut in_http) = (resp(&service), http(&service));
    let mut in_grpc = Grpc::connect(service.address("grpc")).unwrap();
    let body = r#"{"domain": "shop", "attributes": {"key": "k"}}"#;
    assert_eq!(said(&mut in_resp, &["AUTH", SHOP]), "OK");
    assert_eq!(said(&mut in_resp, &IN_SHOP), "1");
    assert_eq!(in_http.check(Some(SHOP), body).unwrap().status, 200);
    assert_eq!(in_grpc.ask(Some(SHOP), "shop", &[("key", "k")]).unwrap().status, 0);
    folder.replace("pacegate.yaml", &keys(false));
    let within = Duration::from_secs(5);
    eventually(within, "the key is unknown", || said(&mut in_resp, &IN_SHOP) == NOAUTH);
    assert_eq!(in_http.check(Some(SHOP), body).unwrap().status, 401);
    assert_eq!(in_grpc.ask(Some(SHOP), "shop", &[("key", "k")]).unwrap().status, 16);
    assert_eq!(in_http.check(Some(BOSS), body).unwrap().status, 200, "others still work");
}

#[test]
fn a_key_file_is_read_again_when_it_changes() {
    let (folder, service) = start();
    let mut client = http(&service);
    let body = r#"{"domain": "shop", "attributes": {"key": "k"}}"#;
    assert_eq!(client.check(Some(SHOP), body).unwrap().status, 200);
    folder.replace("shop.key", ROTATED);
    let mut is_taken = |key| client.check(Some(key), body).unwrap().status == 200;
    eventually(Duration::from_secs(5), "the new key works", || is_taken(ROTATED));
    assert!(!is_taken(SHOP));
}
