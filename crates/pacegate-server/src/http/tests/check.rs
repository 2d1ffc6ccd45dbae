use super::*;

const ALICE: &str = r#"{"attributes":{"user":"alice"}}"#;

#[tokio::test]
async fn a_decision_comes_with_status_headers_and_body() {
    let server = Server::new();
    let first = server.check(ALICE).await;
    assert_eq!(first.status, 200);
    assert_eq!(
        first.body,
        concat!(
            r#"{"allowed":true,"policy":"api","limit":"3/minute","remaining":2,"retry_after":null,"#,
            r#""reset_after":60.0,"source":"store","shadow_denied":false,"degraded":false,"#,
            r#""revision":1}"#
        )
    );
    let expected = [
        ("connection", "close"),
        ("content-length", "171"),
        ("content-type", "application/json"),
        ("ratelimit", "\"api\";r=2;t=60"),
        ("ratelimit-policy", "\"api\";q=3;w=60"),
        ("x-ratelimit-limit", "3"),
        ("x-ratelimit-remaining", "2"),
        ("x-ratelimit-reset", "1767225660"),
    ];
    assert_eq!(first.sorted_headers(), expected);
}

#[tokio::test]
async fn a_denial_says_when_to_come_back() {
    let server = Server::new();
    for _ in 0..3 {
        assert_eq!(server.check(ALICE).await.status, 200);
    }
    server.clock.advance(Duration::from_micros(1_500_000));
    let denied = server.check(ALICE).await;
    assert_eq!(denied.status, 429);
    assert_eq!(
        denied.body,
        concat!(
            r#"{"allowed":false,"policy":"api","limit":"3/minute","remaining":0,"#,
            r#""retry_after":58.5,"reset_after":58.5,"source":"store","#,
            r#""shadow_denied":false,"degraded":false,"revision":1}"#
        )
    );
    for (name, value) in [
        ("retry-after", "59"),
        ("ratelimit", "\"api\";r=0;t=59"),
        ("x-ratelimit-reset", "1767225660"),
        ("content-type", "application/json"),
    ] {
        assert_eq!(denied.header(name), Some(value), "{name}");
    }
    // The retry time is exact: admitted then, and denied a microsecond earlier.
    server.clock.advance(Duration::from_micros(58_499_999));
    assert_eq!(server.check(ALICE).await.status, 429);
    assert_eq!(server.check(ALICE).await.header("retry-after"), Some("1"));
    server.clock.advance(Duration::from_micros(1));
    assert_eq!(server.check(ALICE).await.status, 200);
}

/// A clock that advances by a microsecond whenever it is read.
#[derive(Clone, Debug)]
struct Restless(ManualClock);

impl Clock for Restless {
    fn now(&self) -> pacegate::Timestamp {
        self.0.advance(Duration::from_micros(1));
        self.0.now()
    }
}

#[tokio::test]
async fn the_end_of_a_window_is_not_rounded_up_to_the_next_second() {
    let clock = ManualClock::new();
    let server = Server::at(clock.clone(), Restless(clock), Settings::new(policies()));
    assert_eq!(server.check(ALICE).await.header("x-ratelimit-reset"), Some("1767225660"));
    let seed = server.get("/check?userId=alice").await;
    assert_eq!(seed.header("x-ratelimit-reset"), Some("1767225660"));
}

#[tokio::test]
async fn all_limits_are_charged_or_none() {
    let server = Server::new();
    let login = r#"{"domain":"shop","attributes":{"path":"/login","ip":"203.0.113.7"},"cost":2}"#;
    let other = login.replace("/login", "/");
    assert_eq!(server.check(login).await.status, 200);
    for _ in 0..5 {
        let denied = server.check(login).await;
        assert_eq!((denied.status, &denied.json()["policy"]), (429, &"login".into()));
    }
    // The shop's bucket of 10 has given 2 and no more: 8 are left, and 4 requests of 2 use them up.
    for left in [6, 4, 2, 0] {
        assert_eq!(server.check(&other).await.json()["remaining"], left);
    }
    assert_eq!(server.check(&other).await.status, 429);
}

#[tokio::test]
async fn a_key_may_bring_its_own_limits() {
    let server = Server::new();
    let one = r#"{"key":"alice","limit":"2/hour"}"#;
    let two = r#"{"key":"alice","limit":["2/hour","1/minute sliding-log"],"cost":1}"#;
    assert_eq!(server.check(one).await.json()["policy"], "inline");
    let both = server.check(two).await;
    assert_eq!((both.status, &both.json()["limit"]), (200, &"2/hour".into()));
    assert_eq!(server.check(one).await.status, 429);
    let peek = r#"{"key":"bob","limit":"2/hour","cost":0}"#;
    for _ in 0..3 {
        assert_eq!(server.check(peek).await.json()["remaining"], 2);
    }
}

#[tokio::test]
async fn without_a_policy_there_are_no_rate_limit_headers() {
    let reply = Server::new().check(r#"{"attributes":{"nobody":"asks"}}"#).await;
    assert_eq!(reply.status, 200);
    let names: Vec<_> = reply.headers.iter().map(|(name, _)| name.as_str()).collect();
    assert!(!names.iter().any(|name| name.contains("ratelimit")), "{names:?}");
    assert_eq!(reply.json()["remaining"], serde_json::Value::Null);
    assert_eq!(reply.json()["source"], "unlimited");
}

#[tokio::test]
async fn headers_are_a_setting() {
    let mut settings = Settings::new(policies());
    settings.headers.standard = HeaderStyle::Off;
    settings.headers.legacy = None;
    let none = Server::with(settings.clone());
    for status in [200, 200, 200, 429] {
        let reply = none.check(ALICE).await;
        assert_eq!(reply.status, status);
        assert!(reply.headers.iter().all(|(name, _)| !name.contains("ratelimit")), "{reply:?}");
        assert_eq!(reply.header("retry-after").is_some(), status == 429);
    }
    settings.headers.legacy = Some(ResetStyle::Delta);
    let delta = Server::with(settings).check(ALICE).await;
    assert_eq!(delta.header("x-ratelimit-reset"), Some("60"));
    assert_eq!(delta.header("ratelimit"), None);
}

#[tokio::test]
async fn every_kind_of_limit_has_headers() {
    let server = Server::new();
    for (limit, policy, state, capacity) in [
        ("5/250ms", "\"inline\";q=5;pacegate-ms=250", "\"inline\";r=4;t=1", "5"),
        ("5/1500ms", "\"inline\";q=5;pacegate-ms=1500", "\"inline\";r=4;t=2", "5"),
        ("10/second burst 20", "\"inline\";q=10;w=1", "\"inline\";r=19;t=1", "20"),
        (
            "5/minute concurrency",
            "\"inline\";q=5;qu=\"concurrent-requests\"",
            "\"inline\";r=4;t=60",
            "5",
        ),
        (
            "999999999999999/day",
            "\"inline\";q=999999999999999;w=86400",
            "\"inline\";r=999999999999998;t=86400",
            "999999999999999",
        ),
    ] {
        let reply = server.check(&format!(r#"{{"key":"k","limit":"{limit}"}}"#)).await;
        assert_eq!(reply.header("ratelimit-policy"), Some(policy), "{limit}");
        assert_eq!(reply.header("ratelimit"), Some(state), "{limit}");
        assert_eq!(reply.header("x-ratelimit-limit"), Some(capacity), "{limit}");
    }
    let never = server.check(r#"{"key":"k","limit":"0/minute"}"#).await;
    assert_eq!((never.status, never.header("retry-after")), (429, None));
    assert_eq!(never.header("ratelimit"), Some("\"inline\";r=0"));
}

#[tokio::test]
async fn headers_parse_as_structured_fields() {
    let server = Server::new();
    let mut seed = 7_u64;
    for _ in 0..300 {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let amount = (seed >> 33) % 10_u64.pow((seed >> 20) as u32 % 4 + 1);
        let period = 1 + (seed >> 40) % 100_000;
        let algorithm =
            ["", " sliding-log", " token-bucket", " concurrency"][(seed >> 60) as usize % 4];
        let body = format!(r#"{{"key":"k{seed}","limit":"{amount}/{period}ms{algorithm}"}}"#);
        let reply = server.check(&body).await;
        assert!([200, 429].contains(&reply.status), "{body} {reply:?}");
        for name in ["ratelimit", "ratelimit-policy"] {
            let (item, parameters) = structured(reply.header(name).unwrap());
            assert_eq!(item, "inline");
            let number = if name == "ratelimit" { "r" } else { "q" };
            let expected = if name == "ratelimit" {
                reply.json()["remaining"].to_string()
            } else {
                amount.to_string()
            };
            assert_eq!(parameters[0], (number.to_owned(), expected), "{body}");
        }
    }
}

/// A list of one item: a string, and parameters that are integers or strings.
fn structured(text: &str) -> (String, Vec<(String, String)>) {
    let rest = text.strip_prefix('"').unwrap();
    let (item, rest) = rest.split_once('"').unwrap();
    assert!(item.bytes().all(|byte| (b' '..=b'~').contains(&byte) && byte != b'\\'));
    let mut parameters = Vec::new();
    for parameter in rest.split(';').skip(1) {
        let (name, value) = parameter.split_once('=').unwrap();
        assert!(name.starts_with(|c: char| c.is_ascii_lowercase()), "{text}");
        assert!(name.bytes().all(|b| b.is_ascii_lowercase() || b"_-.*".contains(&b)), "{text}");
        let is_integer = value.len() <= 15 && value.bytes().all(|byte| byte.is_ascii_digit());
        let is_string = value.len() > 1 && value.starts_with('"') && value.ends_with('"');
        assert!(is_integer || is_string, "{text}");
        parameters.push((name.to_owned(), value.to_owned()));
    }
    (item.to_owned(), parameters)
}

#[tokio::test]
async fn a_batch_is_decided_one_by_one_in_order() {
    let server = Server::new();
    let reply = server
        .post(
            "/v1/check/batch",
            r#"{"requests":[
                {"attributes":{"user":"a"},"cost":2},
                {"attributes":{"user":"a"},"cost":2},
                {"attributes":{"user":"a"}},
                {"attributes":{"user":"b"},"cost":4},
                {"key":"k"},
                {"key":"k","limit":"1/hour"},
                {"key":"k","limit":"1/hour"},
                {"domain":"shop","attributes":{"path":"/login","ip":"::1"}},
                {"attributes":{}}
            ]}"#,
        )
        .await;
    assert_eq!(reply.status, 200);
    let json = reply.json();
    let answers: Vec<String> = json["answers"]
        .as_array()
        .unwrap()
        .iter()
        .map(|answer| match answer.get("error") {
            Some(error) => error["type"].as_str().unwrap().rsplit(':').next().unwrap().to_owned(),
            None => format!("{} {}", answer["allowed"], answer["remaining"]),
        })
        .collect();
    let expected = [
        "true 1",
        "false 1",
        "true 0",
        "cost",
        "request",
        "true 0",
        "false 0",
        "true 1",
        "true null",
    ];
    assert_eq!(answers, expected);
    // Each request has a single limit, so the batch is decided in one store call.
    let plain = server
        .post(
            "/v1/check/batch",
            r#"{"requests":[{"key":"p","limit":"1/hour"},{"key":"p","limit":"1/hour"},{"key":1}]}"#,
        )
        .await;
    assert_eq!(plain.problem(), "request");
    let plain = r#"{"requests":[{"key":"p","limit":"1/hour"},{"limit":"1/hour"},{"key":"p","limit":"1/hour"}]}"#;
    let plain = server.post("/v1/check/batch", plain).await.json();
    let [first, second, third] = &plain["answers"].as_array().unwrap()[..] else { panic!() };
    assert_eq!((&first["allowed"], &third["allowed"]), (&true.into(), &false.into()));
    assert_eq!(second["error"]["status"], 400);
    let empty = server.post("/v1/check/batch", r#"{"requests":[]}"#).await;
    assert_eq!((empty.status, &*empty.body), (200, r#"{"answers":[]}"#));
}

#[tokio::test]
async fn a_batch_is_bounded() {
    let mut settings = Settings::new(policies());
    settings.bounds.batch = 2;
    let server = Server::with(settings);
    let one = r#"{"key":"k","limit":"9/hour"}"#;
    let two = format!(r#"{{"requests":[{one},{one}]}}"#);
    assert_eq!(server.post("/v1/check/batch", &two).await.status, 200);
    let three = format!(r#"{{"requests":[{one},{one},{one}]}}"#);
    let refused = server.post("/v1/check/batch", &three).await;
    assert_eq!((refused.status, refused.problem()), (400, "request".to_owned()));
    assert!(refused.body.contains("3 requests exceed the maximum of 2"), "{}", refused.body);
}

#[tokio::test]
async fn an_id_needs_a_store_that_takes_it() {
    let reply = Server::new().check(r#"{"attributes":{"user":"a"},"id":"r1"}"#).await;
    assert_eq!((reply.status, reply.problem()), (400, "unsupported".to_owned()));
}

/// Regression: all 50 requests passed, because the answer was repeated without a bound.
#[tokio::test]
async fn an_id_for_every_request_passes_four_more_than_the_limit() {
    let server = servers::Server::start(servers::Flavor::Redis);
    let server = Server::over_redis(&server, Settings::new(policies())).await;
    let mut admitted = 0;
    for _ in 0..50 {
        let reply = server.check(r#"{"attributes":{"user":"alice"},"id":"r1"}"#).await;
        assert_eq!(reply.json()["degraded"], false, "{reply:?}");
        admitted += usize::from(reply.status == 200);
    }
    assert_eq!(admitted, 3 + 4);
    let other = server.check(r#"{"attributes":{"user":"bob"},"id":"r1"}"#).await;
    assert_eq!((other.status, &other.json()["remaining"]), (200, &2.into()), "another request");
}

#[tokio::test]
async fn a_reload_is_seen_in_the_next_decision() {
    let server = Server::new();
    assert_eq!(server.check(ALICE).await.json()["revision"], 1);
    let reload = server.send("POST /v1/reload", "", "").await;
    assert_eq!((reload.status, &*reload.body), (200, r#"{"revision":2}"#));
    let next = server.check(ALICE).await.json();
    assert_eq!((&next["revision"], &next["remaining"]), (&2.into(), &1.into()));
}
