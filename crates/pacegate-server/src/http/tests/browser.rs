//! Requests that pages of other sites can make a browser send.

use http::{Request, Version};
use http_body_util::Full;
use hyper::client::conn::http2::handshake;
use hyper_util::rt::{TokioExecutor, TokioIo};

use super::*;
use crate::{config::Bind, listeners::ListenerId};

/// One request for each kind of path: reads, checks, administration.
const ALL: [&str; 8] = [
    "GET /v1/policies",
    "GET /v1/live",
    "GET /metrics",
    "GET /check?userId=u",
    "POST /json",
    "POST /v1/check",
    "POST /v1/reload",
    "DELETE /v1/state?key=a&limit=1/s",
];

/// Sends a request with only these headers. Returns the status and the kind of problem.
async fn ask(server: &Server, line: &str, headers: &str) -> (u16, String) {
    let head = format!("{line} HTTP/1.1\r\nConnection: close\r\n{headers}\r\n");
    let reply = Reply::parse(&server.exchange(head.as_bytes()).await);
    let is_problem = reply.header("content-type") == Some("application/problem+json");
    (reply.status, if is_problem { reply.problem() } else { String::new() })
}

fn is(status: u16, problem: &str) -> (u16, String) {
    (status, problem.to_owned())
}

#[tokio::test]
async fn unknown_hosts_get_nothing_from_a_loopback_without_keys() {
    let server = Server::new();
    for host in ["localhost", "LOCALHOST:8080", "a.localhost", "127.0.0.1:80", "[::1]:8080"] {
        let answer = ask(&server, "GET /v1/live", &format!("Host: {host}\r\n")).await;
        assert_eq!(answer, is(200, ""), "{host}");
    }
    let hosts = ["evil.example", "127.0.0.1.evil.example:80", "0.0.0.0:8080", "[::]", "10.0.0.7"];
    for host in hosts {
        for line in ALL.into_iter().chain(["GET /", "GET /assets/api.js", "GET /v1/auth"]) {
            let answer = ask(&server, line, &format!("Host: {host}\r\n")).await;
            assert_eq!(answer, is(403, "host"), "{line} {host}");
        }
        // Load balancers probe by any name.
        assert_eq!(ask(&server, "GET /healthz", &format!("Host: {host}\r\n")).await.0, 200);
    }
    assert_eq!(server.active.revision().number, 1, "nothing was reloaded");
}

#[tokio::test]
async fn a_request_names_one_host() {
    let mut settings = Settings::new(policies());
    settings.security.credentials = vec![credential("boss", "boss", Scope::Admin, &[])];
    for server in [Server::new(), Server::with(settings)] {
        for headers in [
            "",
            "Host: localhost\r\nHost: localhost\r\n",
            "Host: localhost\r\nHost: evil.example\r\n",
            "Host: x:y:z\r\n",
            "Host: \r\n",
        ] {
            assert_eq!(
                ask(&server, "GET /v1/policies", headers).await,
                is(400, "host"),
                "{headers}"
            );
        }
        let line = "GET http://evil.example/v1/policies";
        assert_eq!(ask(&server, line, "Host: localhost\r\n").await, is(400, "host"));
        assert_eq!(ask(&server, "GET /healthz", "").await.0, 200, "a probe without a host");
    }
}

#[tokio::test]
async fn pages_of_other_sites_get_nothing_without_keys() {
    let server = Server::new();
    let own = "Host: 127.0.0.1:8080\r\n";
    for from_elsewhere in [
        "Origin: http://evil.example\r\n",
        "Origin: https://127.0.0.1:8080.evil.example\r\n",
        "Origin: http://127.0.0.1:3000\r\n",
        "Origin: http://localhost:8080\r\n",
        "Origin: null\r\n",
        "Origin: http://127.0.0.1:8080\r\nOrigin: http://evil.example\r\n",
        "Sec-Fetch-Site: cross-site\r\n",
        "Sec-Fetch-Site: same-site\r\n",
        "Sec-Fetch-Site: \r\n",
        "Sec-Fetch-Site: none\r\nSec-Fetch-Site: cross-site\r\n",
        "Sec-Fetch-Site: same-origin\r\nOrigin: http://evil.example\r\n",
    ] {
        for line in ALL.into_iter().chain(["OPTIONS /v1/reload", "GET /assets/api.js"]) {
            let answer = ask(&server, line, &format!("{own}{from_elsewhere}")).await;
            assert_eq!(answer, is(403, "cross-site"), "{line} {from_elsewhere}");
        }
        // A link may lead to the page, which holds no data.
        assert_eq!(ask(&server, "GET /", &format!("{own}{from_elsewhere}")).await.0, 200);
    }
    assert_eq!(server.active.revision().number, 1, "nothing was reloaded");
    for from_here in [
        "",
        "Origin: http://127.0.0.1:8080\r\n",
        "Sec-Fetch-Site: same-origin\r\nOrigin: http://127.0.0.1:8080\r\n",
        "Sec-Fetch-Site: none\r\n",
    ] {
        let reload = ask(&server, "POST /v1/reload", &format!("{own}{from_here}")).await;
        assert_eq!(reload, is(200, ""), "{from_here}");
    }
}

#[tokio::test]
async fn a_form_cannot_charge_or_reload_by_the_unspecified_address() {
    // A browser sends no `Sec-Fetch-Site` there, and names the page's origin with a POST only.
    let server = Server::new();
    let form = "Host: 0.0.0.0:8080\r\nOrigin: http://evil.example\r\n";
    assert_eq!(ask(&server, "POST /v1/reload", form).await, is(403, "host"));
    assert_eq!(
        ask(&server, "GET /check?userId=u", "Host: 0.0.0.0:8080\r\n").await,
        is(403, "host")
    );
    let mut settings = Settings::new(policies());
    settings.listen[ListenerId::Http] = Bind::At("10.0.0.7:8080".parse().unwrap());
    let exposed = Server::with(settings);
    let form = "Host: 10.0.0.7:8080\r\nOrigin: http://evil.example\r\n";
    assert_eq!(ask(&exposed, "POST /json", form).await, is(403, "cross-site"));
    assert_eq!(ask(&exposed, "POST /v1/reload", form).await, is(403, "cross-site"));
}

#[tokio::test]
async fn a_proxy_may_forward_browser_headers() {
    let server = Server::new();
    let browser = "Host: localhost\r\nSec-Fetch-Site: cross-site\r\nOrigin: http://a.example\r\n";
    for described in ["X-Original-URI: /", "X-Forwarded-Uri: /", "X-Forwarded-For: 203.0.113.7"] {
        let headers = format!("{browser}{described}\r\n");
        assert_eq!(ask(&server, "GET /v1/auth", &headers).await.0, 200, "{described}");
        assert_eq!(ask(&server, "GET /v1/live", &headers).await, is(403, "cross-site"));
    }
    assert_eq!(ask(&server, "GET /v1/auth", browser).await, is(403, "cross-site"));
}

#[tokio::test]
async fn configured_hosts_are_known_and_then_no_others() {
    let mut settings = Settings::new(policies());
    settings.hosts = vec!["limits.example".to_owned()];
    for http in ["127.0.0.1:8080", "10.0.0.7:8080"] {
        settings.listen[ListenerId::Http] = Bind::At(http.parse().unwrap());
        let server = Server::with(settings.clone());
        for (host, status) in [
            ("limits.example", 200),
            ("Limits.Example:8080", 200),
            ("localhost", 200),
            ("a.limits.example", 403),
            ("evil.example", 403),
        ] {
            let answer = ask(&server, "GET /v1/policies", &format!("Host: {host}\r\n")).await;
            assert_eq!(answer.0, status, "{http} {host}");
        }
        let page = "Host: limits.example\r\nOrigin: https://limits.example\r\n";
        assert_eq!(ask(&server, "GET /v1/policies", page).await.0, 200, "behind a proxy with TLS");
    }
}

#[tokio::test]
async fn with_keys_or_beyond_the_loopback_any_host_will_do() {
    // With API keys or on other addresses, any host is accepted: a page has no API key.
    let mut settings = Settings::new(policies());
    settings.security.credentials = vec![credential("boss", "boss", Scope::Admin, &[])];
    let keyed = Server::with(settings);
    let head = "GET /v1/live HTTP/1.1\r\nAuthorization: Bearer boss\r\nHost: pacegate.example\r\n\
                Connection: close\r\n\r\n";
    let live = Reply::parse(&keyed.exchange(head.as_bytes()).await).json();
    assert_eq!(live["keys_configured"], true);
    let mut settings = Settings::new(policies());
    settings.listen[ListenerId::Http] = Bind::At("10.0.0.7:8080".parse().unwrap());
    assert_eq!(ask(&Server::with(settings), "GET /v1/live", "Host: pacegate\r\n").await.0, 200);
}

#[tokio::test]
async fn http_2_is_held_to_the_same_rules() {
    let server = Server::new();
    let (mut client, connection) =
        handshake(TokioExecutor::new(), TokioIo::new(server.connect())).await.unwrap();
    tokio::spawn(connection);
    let mut ask = async |authority: &str, headers: &[(&str, &str)]| {
        let uri = format!("http://{authority}/v1/policies");
        let mut request = Request::get(uri).version(Version::HTTP_2);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let request = request.body(Full::new(bytes::Bytes::new())).unwrap();
        client.send_request(request).await.unwrap().status().as_u16()
    };
    assert_eq!(ask("localhost:8080", &[]).await, 200);
    assert_eq!(ask("localhost:8080", &[("host", "localhost:8080")]).await, 200);
    assert_eq!(ask("localhost:8080", &[("origin", "http://localhost:8080")]).await, 200);
    assert_eq!(ask("evil.example", &[]).await, 403);
    assert_eq!(ask("0.0.0.0:8080", &[]).await, 403);
    assert_eq!(ask("evil.example", &[("host", "localhost")]).await, 400);
    assert_eq!(ask("localhost", &[("host", "evil.example")]).await, 400);
    assert_eq!(ask("localhost", &[("origin", "http://evil.example")]).await, 403);
    assert_eq!(ask("localhost", &[("sec-fetch-site", "cross-site")]).await, 403);
}
