//! Tests of the test kit's Envoy, nginx and Python.

use std::{
    io::{Read, Write},
    net::{TcpListener, TcpStream},
    process::Command,
    thread,
    time::Duration,
};

use pacegate_testkit::servers::{Envoy, Nginx, eventually, python};

const LIMIT: Duration = Duration::from_secs(10);

#[test]
fn nginx_serves_its_configuration_and_ends_with_its_handle() {
    let nginx = Nginx::start(|port| {
        format!("server {{ listen 127.0.0.1:{port}; location /a {{ return 200 \"here\\n\"; }} }}")
    });
    assert!(get(&nginx.address(), "/a", "").ends_with("\r\n\r\nhere\n"));
    assert_eq!(status(&get(&nginx.address(), "/b", "")), "404");
    eventually(LIMIT, "the missing file is in the log", || nginx.log().contains("/b"));
    assert_ends(nginx.address(), nginx);
}

#[test]
#[should_panic(expected = "unknown directive \"nonsense\"")]
fn nginx_reports_invalid_configuration() {
    Nginx::start(|_| "nonsense on;".to_owned());
}

/// Like the server's nginx integration: a 403 of the service becomes a 429 with its headers.
#[test]
fn nginx_checks_requests_with_the_service() {
    let guard = Nginx::start(|port| {
        format!(
            "server {{ listen 127.0.0.1:{port}; location / {{ add_header x-left 3 always; \
             if ($http_x_user = alice) {{ return 204; }} return 403; }} \
             location /behind {{ return 200 \"behind\"; }} }}"
        )
    });
    let at = guard.address();
    let nginx = Nginx::start(|port| {
        let ask = format!("internal; proxy_pass http://{at}/; proxy_pass_request_body off;");
        format!(
            "server {{ listen 127.0.0.1:{port}; location = /ask {{ {ask} }} \
             location / {{ auth_request /ask; auth_request_set $left $upstream_http_x_left; \
             add_header x-left $left always; error_page 403 = @limited; \
             proxy_pass http://{at}/behind; }} \
             location @limited {{ add_header x-left $left always; return 429; }} }}"
        )
    });
    for (user, code) in [("alice", "200"), ("bob", "429")] {
        let answer = get(&nginx.address(), "/", &format!("x-user: {user}\r\n"));
        assert_eq!(status(&answer), code, "{answer}\n{}", nginx.log());
        assert!(answer.contains("x-left: 3\r\n"), "{answer}");
    }
}

#[test]
fn envoy_sends_descriptors_and_forwards_allowed_requests() {
    let upstream = Nginx::start(|port| {
        format!(
            "server {{ listen 127.0.0.1:{port}; location / {{ return 200 \"upstream\\n\"; }} }}"
        )
    });
    let service = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = service.local_addr().unwrap().to_string();
    let envoy = Envoy::options(&upstream.address(), &address)
        .domain("edge")
        .descriptor(&[("user", "x-user"), ("plan", "x-plan")])
        .timeout(Duration::from_secs(2))
        .start();

    assert_eq!(status(&get(&envoy.admin(), "/ready", "")), "200");
    let unasked = get(&envoy.address(), "/", "x-user: alice\r\n");
    assert!(
        unasked.ends_with("upstream\n"),
        "no x-plan, so no descriptor: {unasked}\n{}",
        envoy.log()
    );

    let asking = thread::scope(|scope| {
        let asking = scope.spawn(|| get(&envoy.address(), "/", "x-user: alice\r\nx-plan: pro\r\n"));
        let mut asked = Vec::new();
        let (mut stream, _) = service.accept().unwrap();
        let entries = b"\x0a\x0d\x0a\x04user\x12\x05alice\x0a\x0b\x0a\x04plan\x12\x03pro";
        let request = [b"\x0a\x04edge\x12\x1c", &entries[..]].concat();
        while !asked.windows(request.len()).any(|part| part == request) {
            let mut bytes = [0; 4096];
            let read = stream.read(&mut bytes).unwrap();
            assert!(read > 0, "unexpected request: {}", asked.escape_ascii());
            asked.extend(&bytes[..read]);
        }
        drop(stream);
        asking.join().unwrap()
    });
    assert!(asking.ends_with("upstream\n"), "requests pass if the service fails: {asking}");
    assert_ends(envoy.address(), envoy);
}

#[test]
fn envoy_denies_on_failure_if_configured() {
    let upstream =
        Nginx::start(|port| format!("server {{ listen 127.0.0.1:{port}; return 204; }}"));
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let options = Envoy::options(&upstream.address(), &nobody).descriptor(&[("user", "x-user")]);
    let (open, closed) = (options.start(), options.deny_on_failure().start());
    assert_eq!(status(&get(&open.address(), "/", "x-user: alice\r\n")), "204");
    assert_eq!(status(&get(&closed.address(), "/", "x-user: alice\r\n")), "500");
}

#[test]
fn python_has_the_client_libraries() {
    let run = |script: &str| {
        let output = Command::new(python()).args(["-c", script]).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).unwrap()
    };
    assert_eq!(run("import redis, schemathesis; print(redis.__name__)"), "redis\n");
}

/// Sends one request and returns the whole response.
fn get(address: &str, path: &str, headers: &str) -> String {
    let request =
        format!("GET {path} HTTP/1.1\r\nhost: test\r\n{headers}connection: close\r\n\r\n");
    let mut answer = String::new();
    let done = TcpStream::connect(address).and_then(|mut stream| {
        stream.write_all(request.as_bytes())?;
        stream.read_to_string(&mut answer)
    });
    assert!(done.is_ok(), "{done:?} after {answer}");
    answer
}

fn status(answer: &str) -> &str {
    answer.split(' ').nth(1).unwrap_or_default()
}

fn assert_ends<T>(address: String, handle: T) {
    assert!(TcpStream::connect(&address).is_ok());
    drop(handle);
    assert!(TcpStream::connect(&address).is_err(), "the port is closed");
}
