//! Tests the CLI with unexpected servers and invalid addresses.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{SocketAddr, TcpListener},
    sync::mpsc::{self, Receiver},
    thread,
};

use crate::program::{Finished, run};

/// A server that gives every request the same response.
struct Stranger {
    address: SocketAddr,
    /// The first line of each request.
    asked: Receiver<String>,
}

impl Stranger {
    fn new(status: &'static str, body: &'static str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let (sender, asked) = mpsc::channel();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = BufReader::new(stream.unwrap());
                sender.send(request(&mut stream)).unwrap();
                let head = format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n\r\n", body.len());
                stream.get_mut().write_all(format!("{head}{body}").as_bytes()).unwrap();
            }
        });
        Self { address, asked }
    }

    fn url(&self) -> String {
        format!("http://{}", self.address)
    }
}

/// Reads a whole request and returns its first line.
fn request(stream: &mut impl BufRead) -> String {
    let (mut first, mut length) = (String::new(), 0);
    loop {
        let mut line = String::new();
        stream.read_line(&mut line).unwrap();
        if let Some(number) = line.strip_prefix("content-length: ") {
            length = number.trim().parse().unwrap();
        }
        if line.trim().is_empty() {
            stream.take(length).read_to_end(&mut Vec::new()).unwrap();
            return first;
        }
        if first.is_empty() {
            line.trim().clone_into(&mut first);
        }
    }
}

fn check(server: &str) -> Finished {
    run(&["check", "--server", server, "-a", "user=alice"], b"")
}

fn explain(server: &str) -> Finished {
    run(&["explain", "--server", server, "-a", "user=alice"], b"")
}

fn trouble(finished: &Finished, said: &str) {
    assert_eq!((finished.code, &*finished.stdout), (Some(2), ""), "{finished:?}");
    assert!(finished.stderr.contains(said), "{}", finished.stderr);
}

#[test]
fn unexpected_responses_exit_with_2() {
    for (status, body) in [
        ("200 OK", r#"{"status":"ok"}"#),
        ("200 OK", r#"{"allowed":"yes"}"#),
        ("200 OK", "[]"),
        ("429 Too Many Requests", r#"{"message":"slow down"}"#),
    ] {
        let stranger = Stranger::new(status, body);
        let said = format!("unexpected response with status {status}");
        trouble(&check(&stranger.url()), &said);
        if status == "200 OK" {
            trouble(&explain(&stranger.url()), &said);
            for how in ["--once", "--json"] {
                trouble(&run(&["top", how, &stranger.url()], b""), &said);
            }
        }
    }
}

#[test]
fn invalid_times_are_ignored() {
    let body =
        r#"{"allowed":true,"limit":"1/day","remaining":1,"reset_after":-1.5,"retry_after":1e300}"#;
    let told = check(&Stranger::new("200 OK", body).url());
    let words = "1: allowed by 1/day, 1 remaining, resets in 0s\n";
    assert_eq!((told.code, &*told.stdout), (Some(0), words), "{}", told.stderr);
    let body = r#"{"allowed":false,"policies":[{"policy":"a","limits":[{"limit":"1/day","allowed":false,
        "retry_after":1e300}]}],"policy":"a"}"#;
    let told = explain(&Stranger::new("200 OK", body).url());
    assert_eq!(told.code, Some(1), "{}", told.stderr);
    assert!(told.stdout.ends_with("1/day: always denies\ndenied by a\n"), "{}", told.stdout);
}

#[test]
fn a_server_in_a_subdirectory_of_a_proxy_works() {
    let stranger = Stranger::new("200 OK", r#"{"allowed":true,"policies":[],"policy":null}"#);
    for folder in ["/limits", "/limits/"] {
        let server = stranger.url() + folder;
        assert_eq!(check(&server).code, Some(0));
        assert_eq!(stranger.asked.recv().unwrap(), "POST /limits/v1/check HTTP/1.1");
        assert_eq!(explain(&server).code, Some(0));
        assert_eq!(stranger.asked.recv().unwrap(), "POST /limits/v1/explain HTTP/1.1");
        assert_eq!(run(&["top", "--once", &server], b"").code, Some(0));
        assert_eq!(stranger.asked.recv().unwrap(), "GET /limits/v1/live?since=0 HTTP/1.1");
    }
    for end in ["/?key=1", "?key=1"] {
        trouble(&check(&(stranger.url() + end)), "invalid server address `");
    }
}

#[test]
fn invalid_ports_are_rejected() {
    for port in ["99999", "", "080808"] {
        let server = format!("http://127.0.0.1:{port}");
        trouble(&check(&server), &format!("invalid server address `{server}`"));
    }
}

#[test]
fn passwords_in_addresses_are_not_printed() {
    for server in ["http://me:hunter2@127.0.0.1:1", "me:hunter2@[::1", "http://me:hunter2@h:x/?"] {
        let told = check(server);
        trouble(
            &told,
            "error: invalid --server: the address must not contain a user or a password",
        );
        assert!(!told.stderr.contains("hunter2"), "{}", told.stderr);
    }
}
