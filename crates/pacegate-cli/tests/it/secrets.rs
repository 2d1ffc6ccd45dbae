//! Output contains no secrets and no keys of users.

use std::{io::Write, time::Duration};

use pacegate_testkit::servers::{Client, Flavor, Server, eventually};

use crate::{
    clients::{Folder, Grpc, Http, command, connect},
    program::run,
    service::Service,
};

const WITHIN: Duration = Duration::from_secs(10);
const API_KEY: &str = "secret-api-key-5170";
const WRONG_KEY: &str = "secret-wrong-key-8811";
const PASSWORD: &str = "secret-password-2236";
const USER: &str = "user-marker-4417";
const MARKERS: [&str; 4] = [API_KEY, WRONG_KEY, PASSWORD, USER];

/// Sends the name of a user over every protocol, in valid and invalid requests.
fn traffic(service: &Service) -> Vec<String> {
    let mut told = Vec::new();
    let mut http = Http::connect(service.address("http")).unwrap();
    for key in [API_KEY, WRONG_KEY] {
        for (method, path, body) in [
            ("POST", "/v1/check".to_owned(), format!(r#"{{"attributes": {{"key": "{USER}"}}}}"#)),
            ("POST", "/v1/check".to_owned(), format!(r#"{{"key": "{USER}", "limit": "1/hour"}}"#)),
            ("POST", "/v1/check".to_owned(), format!(r#"{{"key": "{USER}", "limit": "never"}}"#)),
            ("POST", "/v1/check".to_owned(), format!(r#"{{"key": "{USER}"#)),
            ("GET", format!("/v1/state?key={USER}&limit=1/hour"), String::new()),
            ("GET", format!("/nowhere/{USER}"), String::new()),
            ("GET", "/metrics".to_owned(), String::new()),
            ("GET", "/v1/policies".to_owned(), String::new()),
        ] {
            let answer = http.request(method, &path, Some(key), &body).unwrap();
            told.push(format!("{}{}", answer.head, answer.body));
        }
    }
    let mut grpc = Grpc::connect(service.address("grpc")).unwrap();
    for key in [API_KEY, WRONG_KEY] {
        grpc.ask(Some(key), "e", &[("key", USER)]).unwrap();
        grpc.ask(Some(key), USER, &[]).unwrap();
    }
    let mut resp = Client::connect(&service.address("resp").to_string()).unwrap();
    for words in [
        &["AUTH", WRONG_KEY][..],
        &["AUTH", API_KEY],
        &["HELLO", "2", "AUTH", USER, API_KEY],
        &["CLIENT", "SETNAME", USER],
        &["PACEGATE.CHECK", "ATTR", "key", USER],
        &["PACEGATE.CHECK", "KEY", USER, "LIMIT", "never"],
        &["CL.THROTTLE", USER, "1", "1", "60"],
        &["CL.THROTTLE", USER, "1", "1", "0"],
        &["INFO"],
    ] {
        told.push(format!("{:?}", resp.command(words).unwrap()));
    }
    for bytes in [command(&[b"PING", USER.as_bytes(), &[b'x'; 70_000]]), USER.as_bytes().to_vec()] {
        // The service may close the connection before it has read everything.
        drop(connect(service.address("resp")).unwrap().write_all(&bytes));
        drop(connect(service.address("http")).unwrap().write_all(&bytes));
        drop(connect(service.address("grpc")).unwrap().write_all(&bytes));
    }
    told
}

#[test]
fn output_contains_no_secrets_and_no_keys() {
    for format in ["text", "json"] {
        let mut server = Server::options(Flavor::Redis).password(PASSWORD).start();
        let folder = Folder::with_config(
            "store: { url_env: TEST_STORE, deadline: 5s }\nkeys: [{ name: boss, env: TEST_KEY, scope: admin }]\n\
             policies: [{ name: api, per: [key], limit: 5/week }, { name: e, domain: e, per: [key], limit: 5/week }]\n",
        );
        let config = folder.config();
        let args = ["--config", &*config, "--log", "trace", "--log-format", format];
        let url = server.url();
        assert!(url.contains(PASSWORD));
        let service = Service::start_with(&args, &[("TEST_STORE", &url), ("TEST_KEY", API_KEY)]);
        let mut told = traffic(&service);
        server.kill();
        told.extend(traffic(&service));
        server.restart();
        // Errors about a file with a misplaced secret do not repeat it.
        folder.replace(
            "pacegate.yaml",
            &format!(
                "store: redis://:{PASSWORD}@127.0.0.1:1\nkeys: [{{ name: k, key: {API_KEY} }}]\n"
            ),
        );
        let stay = || service.log().matches("reload failed; keeping").count();
        eventually(WITHIN, "it is logged", || stay() == 1);
        let rules = "domain: e\ndescriptors: [{ key: key }]\n";
        folder.replace(
            "pacegate.yaml",
            &format!("{rules}store: redis://:{}{PASSWORD}@127.0.0.1:1\n", "x".repeat(100)),
        );
        eventually(WITHIN, "it is logged", || stay() == 2);
        told.push(service.greeting.join("\n"));
        service.signal("TERM");
        let (status, log) = service.wait();
        assert_eq!(status.code(), Some(0));
        assert!(log.contains("shutting down") && log.len() > 1_000, "something is logged: {log}");
        for marker in MARKERS {
            let lines: Vec<&str> = log.lines().filter(|line| line.contains(marker)).collect();
            assert_eq!(lines, [""; 0], "{format}");
            let answers: Vec<&String> = told.iter().filter(|text| text.contains(marker)).collect();
            assert_eq!(answers, [""; 0], "{format}");
        }
    }
}

/// Returns the command line of a process, which all users can read.
fn command_line(service: &Service) -> String {
    let words = std::fs::read(format!("/proc/{}/cmdline", service.pid())).unwrap();
    String::from_utf8_lossy(&words).into_owned()
}

#[test]
fn the_address_of_the_store_can_come_from_a_file() {
    let server = Server::options(Flavor::Redis).password(PASSWORD).start();
    let visible = "the password in --store is visible to all users of this machine";
    let folder = Folder::new();
    folder.replace("url", &format!("{}\n", server.url()));
    let path = folder.path("url");
    let path = path.to_str().unwrap();
    let start = |args: &[&str], variables: &[(&str, &str)]| {
        let service = Service::start_with(args, variables);
        let mut http = Http::connect(service.address("http")).unwrap();
        let body = format!(r#"{{"attributes": {{"key": "{USER}"}}}}"#);
        assert_eq!(http.check(None, &body).unwrap().json()["degraded"], false);
        assert!(!service.greeting.concat().contains(PASSWORD));
        service
    };
    for service in [
        start(&["--store-file", path], &[]),
        start(&[], &[("PACEGATE_STORE_FILE", path)]),
        start(&[], &[("PACEGATE_STORE", &server.url())]),
    ] {
        assert!(!command_line(&service).contains(PASSWORD));
        assert!(!service.log().contains(visible), "{}", service.log());
    }
    let service = start(&["--store", &server.url()], &[]);
    assert!(command_line(&service).contains(PASSWORD));
    assert!(service.log().contains(visible), "{}", service.log());
    assert!(!service.log().contains(PASSWORD));
    let both = run(&["serve", "--store-file", path, "--store", "memory"], b"");
    assert!(both.stderr.contains("cannot be used with"), "{}", both.stderr);
    let absent = run(&["serve", "--store-file", "/nowhere/url"], b"");
    assert!(absent.stderr.contains("cannot read `/nowhere/url`"), "{}", absent.stderr);
}
