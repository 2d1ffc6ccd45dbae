use super::*;

#[tokio::test]
async fn rlaas_gets_the_answers_it_knows() {
    let server = Server::new();
    server.clock.advance(Duration::from_micros(14_500_000));
    for _ in 1..=5 {
        let reply = server.get("/check?userId=alice").await;
        assert_eq!((reply.status, &*reply.body), (200, "User is allowed"));
        assert_eq!(reply.header("content-type"), Some("text/plain;charset=UTF-8"));
        assert_eq!(reply.header("x-ratelimit-limit"), Some("5"));
        assert_eq!(reply.header("x-ratelimit-reset"), Some("1767225660"));
    }
    let denied = server.get("/check?userId=alice&other=x").await;
    assert_eq!(denied.status, 429);
    assert_eq!(denied.body, "User is not allowed...Try after 46 seconds.");
    assert_eq!(denied.header("retry-after"), Some("46"));
    for path in ["/check", "/check?userid=alice"] {
        let reply = server.get(path).await;
        assert_eq!(reply.status, 400, "{path}");
        reply.problem();
    }
}

#[tokio::test]
async fn clients_of_rlaas_that_accept_json_get_it() {
    let server = Server::new();
    server.clock.advance(Duration::from_secs(15));
    let accept = "Accept: application/json\r\n";
    let ask = async || server.send("GET /check?userId=alice", accept, "").await;
    for count in 1..=5 {
        let reply = ask().await;
        assert_eq!(reply.status, 200);
        assert_eq!(reply.body, format!(r#"{{"allowed":true,"currentCount":{count},"ttl":45}}"#));
    }
    let denied = ask().await;
    assert_eq!(denied.status, 429);
    assert_eq!(denied.header("content-type"), Some("application/json"));
    assert_eq!(denied.body, r#"{"allowed":false,"currentCount":5,"ttl":45}"#);
}

#[tokio::test]
async fn users_of_rlaas_may_have_an_empty_or_a_long_name() {
    let server = Server::new();
    let long = "a".repeat(8_000);
    for name in ["", &*long, &long[1..]] {
        for expected in [200, 200, 200, 200, 200, 429] {
            let reply = server.get(&format!("/check?userId={name}")).await;
            assert_eq!(reply.status, expected, "{}", name.len());
        }
    }
}

#[tokio::test]
async fn a_denial_as_problem_details_has_the_key() {
    let mut settings = Settings::new(policies());
    settings.problem_details = true;
    let server = Server::with(settings);
    let check = r#"{"attributes":{"user":"al\"ice"}}"#;
    for _ in 0..3 {
        let reply = server.check(check).await;
        assert_eq!(reply.header("content-type"), Some("application/json"));
    }
    let denied = server.check(check).await;
    assert_eq!(denied.status, 429);
    assert_eq!(denied.header("content-type"), Some("application/problem+json"));
    assert_eq!(
        denied.body,
        concat!(
            r#"{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","#,
            r#""title":"Quota exceeded","status":429,"key":"al\"ice","window":60.0,"#,
            r#""allowed":false,"policy":"api","limit":"3/minute","remaining":0,"#,
            r#""retry_after":60.0,"reset_after":60.0,"source":"store","#,
            r#""shadow_denied":false,"degraded":false,"revision":1}"#
        )
    );
    let inline = r#"{"key":"bob","limit":"0/1500ms"}"#;
    let inline = server.check(inline).await.json();
    assert_eq!((&inline["key"], &inline["window"]), (&"bob".into(), &1.5.into()));
    let headers = "X-Forwarded-Uri: /login\r\nX-Forwarded-For: 203.0.113.7\r\n";
    for _ in 0..2 {
        assert_eq!(server.send(&shop("&deny=429"), headers, "").await.body, "");
    }
    let denied = server.send(&shop("&deny=429"), headers, "").await;
    assert_eq!((denied.status, &denied.json()["key"]), (429, &"203.0.113.7".into()));
    assert_eq!(denied.header("cache-control"), Some("no-store"));
}

fn shop(query: &str) -> String {
    format!("GET /v1/auth?domain=shop{query}")
}

#[tokio::test]
async fn nginx_is_told_403_with_all_the_headers() {
    let server = Server::new();
    let headers = "X-Original-URI: //%6Cogin?next=/\r\nX-Original-Method: POST\r\n\
                   X-Real-IP: ::ffff:203.0.113.7\r\n";
    for remaining in [1, 0] {
        let reply = server.send(&shop(""), headers, "").await;
        assert_eq!((reply.status, &*reply.body), (200, ""));
        let state = format!("\"login\";r={remaining};t=60");
        assert_eq!(reply.header("ratelimit"), Some(&*state));
        assert_eq!(reply.header("cache-control"), Some("no-store"));
    }
    let denied = server.send(&shop(""), headers, "").await;
    assert_eq!((denied.status, &*denied.body), (403, ""));
    assert_eq!(denied.header("retry-after"), Some("60"));
    assert_eq!(denied.header("ratelimit-policy"), Some("\"login\";q=2;w=60"));
    // The same counter as over the API: IPv4-mapped addresses are counted as IPv4.
    let check = r#"{"domain":"shop","attributes":{"path":"/login","ip":"203.0.113.7"}}"#;
    assert_eq!(server.check(check).await.status, 429);
    // Headers of another kind of proxy are ignored.
    let spoofed = format!("{headers}X-Forwarded-Uri: /free\r\nX-Forwarded-For: 9.9.9.9\r\n");
    assert_eq!(server.send(&shop(""), &spoofed, "").await.status, 403);
    let spoofed = format!("{headers}X-Pacegate-Path: /free\r\nX-Pacegate-Ip: 9.9.9.9\r\n");
    assert_eq!(server.send(&shop(""), &spoofed, "").await.status, 403);
}

#[tokio::test]
async fn another_spelling_of_a_path_is_counted_too() {
    let spellings = ["/login/", "/LOGIN", "/login;x=1", "/x/..;/login", "/login%2f", "/./login?a"];
    for spelling in spellings {
        let server = Server::new();
        let headers = |uri: &str| format!("X-Original-URI: {uri}\r\nX-Real-IP: 203.0.113.7\r\n");
        for uri in ["/login", "/login"] {
            assert_eq!(server.send(&shop(""), &headers(uri), "").await.status, 200);
        }
        assert_eq!(server.send(&shop(""), &headers(spelling), "").await.status, 403, "{spelling}");
        let attributes = format!(r#"{{"path":"{spelling}","ip":"203.0.113.7"}}"#);
        let check = format!(r#"{{"domain":"shop","attributes":{attributes}}}"#);
        assert_eq!(server.check(&check).await.status, 429, "{spelling}");
    }
}

#[tokio::test]
async fn traefik_and_caddy_are_told_429() {
    let server = Server::new();
    let headers = "X-Forwarded-Uri: /login\r\nX-Forwarded-Method: POST\r\n\
                   X-Forwarded-For: 6.6.6.6, 203.0.113.7\r\n";
    for status in [200, 200, 429] {
        let reply = server.send(&shop("&deny=429"), headers, "").await;
        assert_eq!((reply.status, &*reply.body), (status, ""));
        assert_eq!(reply.header("retry-after").is_some(), status == 429);
    }
    let elsewhere = headers.replace("203.0.113.7", "203.0.113.8");
    assert_eq!(server.send(&shop("&deny=429"), &elsewhere, "").await.status, 200);
}

#[tokio::test]
async fn other_headers_are_attributes_by_their_name() {
    let server = Server::new();
    for status in [200, 200, 200, 403] {
        let headers = "X-Pacegate-User: alice\r\nX-Original-URI: /\r\n";
        assert_eq!(server.send("POST /v1/auth", headers, "").await.status, status);
    }
    let check = server.check(r#"{"attributes":{"user":"alice"}}"#).await;
    assert_eq!(check.status, 429);
    for (line, headers) in [("GET /v1/auth?deny=500", ""), ("GET /v1/auth?dney=429", "")] {
        assert_eq!(server.send(line, headers, "").await.problem(), "request");
    }
    let many: String = (0..33).map(|n| format!("X-Pacegate-{n}: x\r\n")).collect();
    assert_eq!(server.send("GET /v1/auth", &many, "").await.problem(), "bounds");
}

#[tokio::test]
async fn long_values_are_counted_like_any_other() {
    let server = Server::new();
    let user = |length| format!("X-Pacegate-User: {}\r\n", "u".repeat(length));
    for (length, status) in [(1_025, 200), (1_025, 200), (1_025, 200), (1_025, 403), (1_026, 200)] {
        let reply = server.send("GET /v1/auth", &user(length), "").await;
        assert_eq!((reply.status, &*reply.body), (status, ""), "{length}");
    }
    // No policy counts by the path, so a long one is only matched.
    let uri = format!("X-Original-URI: /{}\r\n", "p".repeat(2_000));
    let reply = server.send(&shop(""), &format!("{uri}X-Real-IP: 203.0.113.7\r\n"), "").await;
    assert_eq!((reply.status, reply.header("ratelimit")), (200, Some("\"shop\";r=9;t=1")));
    let free = server.send("GET /v1/auth", &uri, "").await;
    assert_eq!((free.status, free.header("ratelimit")), (200, None));
}

#[tokio::test]
async fn an_address_has_one_form() {
    let server = Server::new();
    let login = "X-Original-URI: /login\r\nX-Real-IP: ";
    for (ip, status) in [
        ("203.0.113.7", 200),
        ("203.0.113.7:5555", 200),
        ("64:ff9b::203.0.113.7", 403),
        ("::ffff:203.0.113.7", 403),
        ("2001:db8:0:1::1", 200),
        ("[2001:db8:0:1:ffff::2]:9", 200),
        ("2001:db8:0:1:1:2:3:4", 403),
        ("2001:db8:0:2::1", 200),
    ] {
        let reply = server.send(&shop(""), &format!("{login}{ip}\r\n"), "").await;
        assert_eq!(reply.status, status, "{ip}");
    }
    let check = r#"{"domain":"shop","attributes":{"path":"/login","ip":"2001:db8:0:1::"}}"#;
    assert_eq!(server.check(check).await.status, 429);
}
