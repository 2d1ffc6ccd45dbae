//! Traces, as a collector receives them.

use std::{
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    sync::mpsc,
};

use crate::service::Service;

const PARENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

/// A collector that accepts every export.
fn collector() -> (String, mpsc::Receiver<Vec<u8>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (sender, receiver) = mpsc::channel();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let request = read_request(&mut stream);
            stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n").unwrap();
            if sender.send(request).is_err() {
                return;
            }
        }
    });
    (url, receiver)
}

fn read_request(stream: &mut TcpStream) -> Vec<u8> {
    let mut request = Vec::new();
    let mut byte = [0];
    while !request.ends_with(b"\r\n\r\n") {
        stream.read_exact(&mut byte).unwrap();
        request.push(byte[0]);
    }
    let head = String::from_utf8(request.clone()).unwrap().to_lowercase();
    let length = head.split("content-length: ").nth(1).unwrap().split('\r').next().unwrap();
    let mut body = vec![0; length.parse().unwrap()];
    stream.read_exact(&mut body).unwrap();
    request.extend(body);
    request
}

fn check(service: &Service, key: &str, headers: &str) {
    let mut stream = TcpStream::connect(service.address("http")).unwrap();
    let body = format!(r#"{{"attributes":{{"key":"{key}"}}}}"#);
    let length = body.len();
    let request = format!(
        "POST /v1/check HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{headers}\
         content-type: application/json\r\ncontent-length: {length}\r\n\r\n{body}"
    );
    stream.write_all(request.as_bytes()).unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 OK"), "{answer}");
}

fn contains(haystack: &[u8], needle: &[u8]) -> bool {
    haystack.windows(needle.len()).any(|window| window == needle)
}

#[test]
fn a_request_is_a_child_of_its_callers_span() {
    let (url, posted) = collector();
    let service = Service::start(&["--traces", &url, "--trace-one-in", "4000000000"]);
    check(&service, "marked-key", &format!("traceparent: {PARENT}\r\n"));
    service.signal("TERM");
    let (status, log) = service.wait();
    assert!(status.success(), "{log}");
    let request = posted.recv().unwrap();
    assert!(request.starts_with(b"POST /v1/traces HTTP/1.1\r\n"));
    let trace = [0x0a, 0xf7, 0x65, 0x19, 0x16, 0xcd, 0x43, 0xdd, 0x84, 0x48, 0xeb, 0x21, 0x1c];
    assert!(contains(&request, &trace), "the caller's trace");
    for told in [&b"pacegate"[..], b"check", b"listener", b"http", b"policy", b"default"] {
        assert!(contains(&request, told), "{}", String::from_utf8_lossy(told));
    }
    assert!(!contains(&request, b"marked-key"), "traces contain no keys");
    assert!(!log.contains("marked-key"));
}

#[test]
fn requests_without_a_trace_are_sampled() {
    let (url, posted) = collector();
    let service = Service::start(&["--traces", &url, "--trace-one-in", "4000000000"]);
    check(&service, "k", "");
    service.signal("TERM");
    assert!(service.wait().0.success());
    assert!(posted.try_recv().is_err());
}
