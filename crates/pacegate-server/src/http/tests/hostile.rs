//! Malformed and hostile requests.

use super::*;

/// Invalid bodies of a check, and a part of the error.
const REFUSED: &[(&str, &str)] = &[
    ("", "EOF while parsing"),
    ("{", "EOF while parsing"),
    ("null", "expected an object"),
    ("[]", "expected an object"),
    ("[null,{},null,null,null,null]", "expected an object"),
    ("\"key\"", "expected an object"),
    ("{}{}", "trailing characters"),
    ("{\"key\":\"k\",\"limit\":\"1/hour\"} x", "trailing characters"),
    (r#"{"kee":"k"}"#, "unknown field `kee`, expected one of `domain`, `attributes`, `key`"),
    (r#"{"permit":"1"}"#, "unknown field `permit`"),
    (r#"{"key":"k","key":"l","limit":"1/hour"}"#, "duplicate field `key`"),
    (r#"{"limit":"1/hour","limit":"1/hour","key":"k"}"#, "duplicate field `limit`"),
    (r#"{"attributes":{"user":"a","user":"b"}}"#, "duplicate attribute `user`"),
    (r#"{"attributes":{"user":1}}"#, "invalid type: integer `1`, expected a string"),
    (r#"{"attributes":{"user":null}}"#, "invalid type: null, expected a string"),
    (r#"{"attributes":{"user":{"a":{}}}}"#, "invalid type: map, expected a string"),
    (r#"{"attributes":["user","alice"]}"#, "invalid type: sequence"),
    (r#"{"attributes":{},"cost":-1}"#, "integer `-1`"),
    (r#"{"attributes":{},"cost":1.5}"#, "floating point `1.5`"),
    (r#"{"attributes":{},"cost":1e3}"#, "floating point"),
    (r#"{"attributes":{},"cost":18446744073709551616}"#, "floating point"),
    (r#"{"attributes":{},"cost":"5"}"#, "invalid type: string"),
    (r#"{"attributes":{},"cost":true}"#, "invalid type: boolean"),
    (r#"{"attributes":{},"cost":NaN}"#, "expected value"),
    (r#"{"key":"k"}"#, "`key` needs a `limit`"),
    (r#"{"limit":"1/hour"}"#, "`limit` needs a `key`"),
    (r#"{"key":"k","limit":"1/hour","domain":"d"}"#, "write either `key` and `limit`"),
    (r#"{"key":"k","limit":"1/hour","attributes":{}}"#, "write either `key` and `limit`"),
    (r#"{"key":"k","limit":[]}"#, "at least one limit"),
    (r#"{"key":"k","limit":[["1/hour"]]}"#, "expected a limit, such as"),
    (r#"{"key":"k","limit":7}"#, "a limit, such as"),
    (r#"{"key":"k","limit":"lots"}"#, "`lots` is not a limit"),
    (r#"{"key":"k","limit":"1/fortnight"}"#, "the period `fortnight` is not one of"),
    (r#"{"key":"k","limit":"-1/hour"}"#, "is not a limit"),
    (r#"{"key":"k","limit":"1e9/hour"}"#, "is not a limit"),
    (r#"{"key":"k","limit":"99999999999999999999/hour"}"#, "is not a limit"),
    (r#"{"key":"k","limit":["1/hour","2/hour"]}"#, "have one algorithm and period"),
    (r#"{"key":"k","limit":"3/hour","cost":4}"#, "takes at most 3 at once"),
    (r#"{"key":"k","limit":"3/hour","cost":18446744073709551615}"#, "takes at most 3 at once"),
    (r#"{"attributes":{"user":"a"},"id":""}"#, "from 1 to 128 bytes"),
    (r#"{"key":"k","limit":"3/hour","id":""}"#, "from 1 to 128 bytes"),
    ("{\"key\":\"\x01\",\"limit\":\"1/hour\"}", "control character"),
    (r#"{"key":"\ud800","limit":"1/hour"}"#, "hex escape"),
];

#[tokio::test]
async fn bodies_that_cannot_be_used_are_problems() {
    let server = Server::new();
    for (body, part) in REFUSED {
        let reply = server.check(body).await;
        assert_eq!(reply.status, 400, "{body} {reply:?}");
        assert!(["request", "limit", "cost"].contains(&&*reply.problem()), "{body} {reply:?}");
        let detail = reply.json()["detail"].as_str().unwrap().to_owned();
        assert!(detail.contains(part), "{body}: {detail}");
    }
    assert_eq!(server.active.revision().engine.stats().inline.allowed, 0);
}

#[tokio::test]
async fn deep_and_long_bodies_are_refused_without_harm() {
    let server = Server::new();
    let deep = format!("{{\"attributes\":{}", "[".repeat(60_000));
    assert_eq!(server.check(&deep).await.problem(), "request");
    let deep = format!("{{\"x\":{}", "{\"a\":".repeat(10_000));
    assert_eq!(server.check(&deep).await.problem(), "request");
    let name = "x".repeat(60_000);
    let long = server.check(&format!("{{\"{name}\":1}}")).await;
    assert_eq!(long.problem(), "request");
    assert!(long.body.len() < 600, "{}", long.body.len());
    let many: Vec<String> = (0..33).map(|n| format!("\"a{n}\":\"v\"")).collect();
    let many = server.check(&format!("{{\"attributes\":{{{}}}}}", many.join(","))).await;
    assert_eq!(many.problem(), "bounds");
    let key = "k".repeat(1_025);
    for body in [
        format!(r#"{{"key":"{key}","limit":"1/hour"}}"#),
        format!(r#"{{"domain":"{key}"}}"#),
        format!(r#"{{"attributes":{{"{key}":""}}}}"#),
        format!(r#"{{"attributes":{{"a":"{key}"}}}}"#),
    ] {
        assert_eq!(server.check(&body).await.problem(), "bounds");
    }
    let limits = vec!["\"1/hour\""; 2_000].join(",");
    let limits = server.check(&format!(r#"{{"key":"k","limit":[{limits}]}}"#)).await;
    assert_eq!(limits.problem(), "limit");
    let limits: Vec<_> = (1..=17).map(|n| format!("\"1/{n}s\"")).collect();
    let limits = server.check(&format!(r#"{{"key":"k","limit":[{}]}}"#, limits.join(","))).await;
    assert_eq!(limits.problem(), "bounds");
}

#[tokio::test]
async fn hostile_keys_are_keys_like_any_other() {
    let server = Server::new();
    let keys = [
        r"a\r\nSet-Cookie: x=1\r\n\r\n",
        r"\u0000",
        "{}{{hash}}",
        "<script>alert(1)</script>",
        "',\\\"}]",
        "\u{202e}\u{feff}ä",
    ];
    for key in keys {
        let bodies = [
            format!(r#"{{"key":"{key}","limit":"1/hour"}}"#),
            format!(r#"{{"attributes":{{"user":"{key}"}},"cost":3}}"#),
        ];
        for body in bodies {
            let [first, second] = [server.check(&body).await, server.check(&body).await];
            assert_eq!((first.status, second.status), (200, 429), "{body} {first:?}");
            for reply in [first, second] {
                assert_eq!(reply.header("set-cookie"), None);
                assert!(!reply.body.contains("script"), "{reply:?}");
            }
        }
    }
    let stats = server.get("/v1/stats").await;
    let top = stats.json();
    assert!(top["busiest"].as_array().unwrap().len() >= keys.len());
    let metrics = server.get("/metrics").await;
    assert!(!metrics.body.contains("script") && !metrics.body.contains("Cookie"));
}

#[tokio::test]
async fn sizes_types_and_methods_have_their_own_answers() {
    let mut settings = Settings::new(policies());
    settings.bounds.request_bytes = 100;
    let server = Server::with(settings);
    let body = format!(r#"{{"key":"{}","limit":"1/hour"}}"#, "k".repeat(100));
    let large = server.check(&body).await;
    assert_eq!((large.status, large.problem()), (413, "too-large".to_owned()));
    let chunks =
        "40\r\n".to_owned() + &"x".repeat(64) + "\r\n40\r\n" + &"x".repeat(64) + "\r\n0\r\n\r\n";
    let head = "POST /v1/check HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
                Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n";
    let chunked = Reply::parse(&server.exchange((head.to_owned() + &chunks).as_bytes()).await);
    assert_eq!((chunked.status, chunked.problem()), (413, "too-large".to_owned()));

    let ok = r#"{"key":"k","limit":"9/hour"}"#;
    for (headers, status) in [
        ("", 415),
        ("Content-Type: text/plain\r\n", 415),
        ("Content-Type: application/jsonp\r\n", 415),
        ("Content-Type: application/x-www-form-urlencoded\r\n", 415),
        ("Content-Type: application/json; charset=utf-8\r\n", 200),
        ("Content-Type: Application/JSON\r\n", 200),
    ] {
        let reply = server.send("POST /v1/check", headers, ok).await;
        assert_eq!(reply.status, status, "{headers}");
        if status == 415 {
            assert_eq!(reply.problem(), "content-type");
        }
    }
    for (line, allow) in [
        ("GET /v1/check", "POST"),
        ("PUT /v1/check", "POST"),
        ("DELETE /v1/stats", "GET,HEAD"),
        ("POST /v1/state", "GET,HEAD,DELETE"),
        ("POST /check", "GET,HEAD"),
    ] {
        let reply = server.send(line, "", "").await;
        assert_eq!((reply.status, reply.problem()), (405, "method".to_owned()), "{line}");
        assert_eq!(reply.header("allow"), Some(allow), "{line}");
    }
    for path in
        ["/assets", "/v1", "/v1/check/", "/v1//check", "/%76%31/check", "/v1/check%00", "/../etc"]
    {
        let reply = server.get(path).await;
        assert_eq!((reply.status, reply.problem()), (404, "not-found".to_owned()), "{path}");
    }
}

#[tokio::test]
async fn other_protocols_close_the_connection() {
    let mut settings = Settings::new(policies());
    settings.bounds.header_bytes = 8_192;
    let server = Server::with(settings);
    for bytes in [
        &b"*1\r\n$4\r\nPING\r\n"[..],
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET / HTTP/9.9\r\n\r\n",
        b"GET /\0 HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nA\0: b\r\n\r\n",
    ] {
        let reply = String::from_utf8(server.exchange(bytes).await).unwrap();
        assert!(reply.is_empty() || reply.starts_with("HTTP/1.1 400 "), "{reply}");
    }
    let long = format!("GET / HTTP/1.1\r\nA: {}\r\n\r\n", "b".repeat(9_000));
    let reply = String::from_utf8(server.exchange(long.as_bytes()).await).unwrap();
    assert!(reply.starts_with("HTTP/1.1 431 "), "{reply}");
    let smuggled = "POST /v1/check HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n\
                    Content-Length: 4\r\nContent-Length: 5\r\n\r\n{}  ";
    let reply = String::from_utf8(server.exchange(smuggled.as_bytes()).await).unwrap();
    assert!(reply.starts_with("HTTP/1.1 400 "), "{reply}");
}

#[tokio::test]
async fn every_form_of_a_target_has_an_answer() {
    let server = Server::new();
    for (line, status) in [
        ("GET http://localhost/healthz", 200),
        ("GET http://localhost/v1/check", 405),
        ("GET http://localhost", 200),
        ("GET http://t/v1/check", 400),
        ("OPTIONS *", 404),
        ("CONNECT t:80", 400),
        ("GET /healthz?%ff=%00&&==", 200),
        ("GET /v1/state?%ff=%00", 400),
        ("GET /v1/state?attribute=user:%ff%00%0d%0a", 200),
        ("GET /check?userId=%ff%0d%0aX:%20y", 200),
        ("BREW /v1/check", 405),
    ] {
        let reply = server.send(line, "", "").await;
        assert_eq!(reply.status, status, "{line} {reply:?}");
    }
}
