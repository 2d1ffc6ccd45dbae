use serde_json::{Value, json};

use super::*;

/// A budget has a window and thresholds.
#[tokio::test]
async fn a_calendar_period_shows_its_window() {
    let limits = ["100/month anchor 17 in Europe/Berlin", "10/minute"];
    let policy = Policy::new("tokens", limits).per(["user"]);
    let policy = policy.notify([80, 100]);
    let server = Server::with(Settings::new(PolicySet::new([policy]).unwrap()));
    // 18 October 2026 at noon, in summer time. The window ends in winter time.
    server.clock.set(pacegate::Timestamp::from_secs(1_792_317_600));
    let window = json!({ "start": 1_792_188_000, "end": 1_794_870_000 });
    let explained =
        server.post("/v1/explain", r#"{"attributes":{"user":"alice"}}"#).await.json()["policies"]
            [0]
        .clone();
    assert_eq!(explained["notify"], json!(["80%", "100%"]));
    let state = server.get("/v1/state?policy=tokens&key=alice").await.json();
    for limits in [&explained["limits"], &state["limits"]] {
        assert_eq!((&limits[0]["window"], &limits[1]["window"]), (&window, &Value::Null));
    }
}

#[tokio::test]
async fn an_explanation_has_unmet_conditions_and_limits() {
    let server = Server::new();
    let login = r#"{"domain":"shop","attributes":{"path":"/login","ip":"::1"}}"#;
    server.check(login).await;
    let state = |policy: &str, limit: &str, remaining: u64, reset: f64| {
        json!({
            "policy": policy, "limit": limit, "allowed": true, "remaining": remaining, "retry_after": null,
            "reset_after": reset, "source": "store", "shadow_denied": false, "degraded": false,
        })
    };
    let expected = json!({
        "domain": "shop", "revision": 1, "allowed": true, "policy": "login", "omitted": 0,
        "policies": [
            {
                "policy": "login", "covers": true, "unmet": null, "override": null, "mode": "enforce",
                "key": ["::1"],
                "limits": [state("login", "2/minute", 1, 60.0), state("login", "3/hour", 2, 3600.0)],
            },
            {
                "policy": "shop", "covers": true, "unmet": null, "override": null, "mode": "enforce",
                "key": ["::1"], "limits": [state("shop", "5/second burst 10", 9, 0.2)],
            },
        ],
    });
    for _ in 0..2 {
        assert_eq!(server.post("/v1/explain", login).await.json(), expected);
        let query = "/v1/explain?domain=shop&attribute=path:/login&attribute=ip:::1";
        assert_eq!(server.get(query).await.json(), expected);
    }
    let script = r#"{"domain":"shop","attributes":{"path":"<b>\"/x\r\n"}}"#;
    let other = server.post("/v1/explain", script).await;
    assert_eq!(
        other.json()["policies"][0],
        json!({
            "policy": "login", "covers": false, "override": null, "mode": "enforce", "key": null,
            "limits": [],
            "unmet": {
                "condition": { "attribute": "path", "is": "one-of", "values": ["/login"] },
                "value": "/<b>\"/x\r\n",
            },
        })
    );
    assert_eq!(other.json()["policies"][1]["key"], json!([null]));
    let key = server.post("/v1/explain", r#"{"key":"k","limit":"1/hour"}"#).await;
    assert_eq!(key.problem(), "request");
}

#[tokio::test]
async fn policies_are_listed_in_full() {
    let json = Server::new().get("/v1/policies").await.json();
    assert_eq!(json["policies"].as_array().unwrap().len(), 5);
    assert_eq!(
        json["policies"][2],
        json!({
            "name": "shop", "domain": "shop", "envoy": false, "match": [], "per": ["ip"],
            "missing": "share",
            "limits": [{
                "limit": "5/second burst 10", "amount": 5, "period": 1.0, "capacity": 10,
                "algorithm": "token-bucket",
            }],
            "overrides": [], "mode": "enforce", "failure": "local", "max_cost": null,
        })
    );
    let condition = &json["policies"][1]["match"][0];
    assert_eq!(*condition, json!({ "attribute": "path", "is": "one-of", "values": ["/login"] }));
}

#[tokio::test]
async fn statistics_and_metrics_count_the_same_once() {
    let server = Server::new();
    for _ in 0..5 {
        server.check(r#"{"attributes":{"user":"alice"}}"#).await;
    }
    server.check("nonsense").await;
    let stats = server.get("/v1/stats").await.json();
    assert_eq!(
        stats["policies"][0],
        json!({
            "policy": "api", "allowed": 3, "denied": 2, "shadow_denied": 0, "degraded": 0,
            "allowed_units": 3, "denied_units": 2, "shadow_denied_units": 0,
            "returned_units": 0,
        })
    );
    assert_eq!(
        stats["busiest"][0],
        json!({
            "policy": "api", "key": "alice", "count": 5, "allowed": 3, "denied": 2, "exact": true,
        })
    );
    assert_eq!(stats["most_denied"][0]["count"], 2);
    assert_eq!((&stats["store"]["kind"], &stats["store"]["keys"]), (&json!("memory"), &json!(1)));
    assert_eq!(stats["reload_complaint"], Value::Null);
    let metrics = server.get("/metrics").await;
    let kind = "application/openmetrics-text; version=1.0.0; charset=utf-8";
    assert_eq!((metrics.status, metrics.header("content-type")), (200, Some(kind)));
    for line in [
        "pacegate_decisions_total{policy=\"api\",outcome=\"allowed\"} 3",
        "pacegate_decisions_total{policy=\"api\",outcome=\"denied\"} 2",
        "pacegate_requests_total{listener=\"http\",code=\"200\"} 4",
        "pacegate_requests_total{listener=\"http\",code=\"429\"} 2",
        "pacegate_requests_total{listener=\"http\",code=\"400\"} 1",
        "pacegate_request_duration_seconds_count{listener=\"http\"} 7",
        "# EOF",
    ] {
        assert!(metrics.body.lines().any(|other| other == line), "{line}\n{}", metrics.body);
    }
    assert!(!metrics.body.contains("alice"));
}

#[tokio::test]
async fn health_and_readiness_part_when_the_service_drains() {
    let server = Server::new();
    let ready = server.get("/readyz").await;
    assert_eq!((ready.status, &*ready.body), (200, r#"{"status":"ready","degraded":false}"#));
    server.active.drain();
    let ready = server.get("/readyz").await;
    assert_eq!((ready.status, ready.problem()), (503, "draining".to_owned()));
    let alive = server.get("/healthz").await;
    assert_eq!((alive.status, &*alive.body), (200, r#"{"status":"alive"}"#));
    let head = server.send("HEAD /healthz", "", "").await;
    assert_eq!((head.status, &*head.body), (200, ""));
}

#[tokio::test]
async fn a_refused_reload_says_why() {
    let mut settings = Settings::new(policies());
    settings.shadow = true;
    let server = Server::with(settings);
    let reply = server.send("POST /v1/reload", "", "").await;
    assert_eq!((reply.status, reply.problem()), (422, "reload".to_owned()));
    assert!(reply.body.contains("the new configuration has no policies"));
    assert_eq!(server.active.revision().number, 1);
}

#[tokio::test]
async fn without_its_store_the_service_decides_and_says_so() {
    let mut settings = Settings::new(policies());
    let (url, prefix) = ("redis://127.0.0.1:1".to_owned(), "t:".to_owned());
    settings.store = StoreSettings::Redis { url, prefix, deadline: Duration::from_millis(50) };
    let clock = ManualClock::new();
    let server = Server::over(clock.clone(), clock, ActiveConfig::open(settings).unwrap());
    let ready = server.get("/readyz").await;
    let health = ready.json();
    assert_eq!((ready.status, &health["degraded"]), (200, &json!(true)));
    assert_eq!(health["store"]["servers"][0]["address"], "127.0.0.1:1");
    assert_eq!(health["store"]["failure_modes"][0]["mode"], "local");
    let alice = r#"{"attributes":{"user":"alice"}}"#;
    for (status, remaining) in [(200, 2), (200, 1), (200, 0), (429, 0)] {
        let reply = server.check(alice).await;
        let json = reply.json();
        assert_eq!((reply.status, &json["remaining"]), (status, &remaining.into()), "{reply:?}");
        assert_eq!((&json["source"], &json["degraded"]), (&"fallback".into(), &true.into()));
    }
    for (line, body) in [
        ("POST /v1/refund", alice),
        ("DELETE /v1/state?attribute=user:alice", ""),
        ("POST /v1/release", r#"{"domain":"jobs","attributes":{"queue":"q"},"permit":"1"}"#),
    ] {
        let reply = server.send(line, "Content-Type: application/json\r\n", body).await;
        assert_eq!((reply.status, reply.problem()), (503, "unavailable".to_owned()), "{line}");
        assert_eq!(reply.header("retry-after"), Some("1"));
        assert!(!reply.body.contains("127.0.0.1"), "{reply:?}");
    }
    for body in [r#"{"policy":"api"}"#, r#"{"domain":"shop"}"#] {
        let reply = server.post("/v1/clear", body).await;
        assert_eq!((reply.status, reply.problem()), (400, "unsupported".to_owned()), "{body}");
        assert!(reply.body.contains("key names on Redis are digests"), "{}", reply.body);
    }
    let stats = server.get("/v1/stats").await.json();
    assert_eq!(stats["policies"][0]["degraded"], 4);
    assert_eq!(stats["store"]["kind"], "redis");
    let metrics = server.get("/metrics").await.body;
    for line in [
        "pacegate_degraded_total{policy=\"api\"} 4",
        "pacegate_redis_servers{state=\"in_trouble\"} 1",
        "pacegate_redis_calls_total 0",
    ] {
        assert!(metrics.lines().any(|other| other == line), "{line}\n{metrics}");
    }
}

/// Captures the log until the guard is dropped.
#[derive(Clone, Default)]
struct Log(Arc<std::sync::Mutex<Vec<u8>>>);

impl std::io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn admin_actions_are_audited_without_keys() {
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt().json().with_writer(move || writer.clone()).finish();
    // With a single subscriber, the first thread at a log line would decide for all threads whether it is enabled.
    let _another = tracing::Dispatch::new(tracing::subscriber::NoSubscriber::default());
    let _guard = tracing::subscriber::set_default(subscriber);
    let mut settings = Settings::new(policies());
    settings.security.credentials = vec![credential("boss", "s3cret", Scope::Admin, &[])];
    let server = Server::with(settings);
    let headers = "Content-Type: application/json\r\nAuthorization: Bearer s3cret\r\n";
    for (line, body) in [
        ("DELETE /v1/state?attribute=user:alice", ""),
        ("POST /v1/refund", r#"{"attributes":{"user":"alice"}}"#),
        ("POST /v1/reload", ""),
        ("DELETE /v1/state?policy=api&key=alice", ""),
        ("POST /v1/block", r#"{"policy":"api","key":"alice"}"#),
        ("DELETE /v1/block?policy=api&key=alice", ""),
        ("POST /v1/check", r#"{"attributes":{"user":"alice"}}"#),
        ("POST /v1/clear", r#"{"policy":"api"}"#),
        ("POST /v1/clear", r#"{"domain":"shop"}"#),
    ] {
        assert_eq!(server.send(line, headers, body).await.status, 200);
    }
    let text = String::from_utf8(log.0.lock().unwrap().clone()).unwrap();
    assert!(!text.contains("alice") && !text.contains("s3cret"), "{text}");
    let lines: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let audits: Vec<_> = lines.iter().filter(|line| line["target"] == "audit").collect();
    let fields = |name: &str| -> Vec<Value> {
        audits.iter().map(|line| line["fields"][name].clone()).collect()
    };
    let actions = ["reset", "refund", "reload", "reset", "block", "unblock", "clear", "clear"];
    assert_eq!(fields("action"), actions);
    assert_eq!(fields("credential"), ["boss"; 8]);
    let marks = fields("key");
    assert!([1, 3, 4, 5].iter().all(|&place| marks[place] == marks[0]), "{marks:?}");
    assert_eq!(marks[0].as_str().unwrap().len(), 8);
    assert_eq!(audits[0]["fields"]["policies"], "api");
    assert_eq!(
        (&audits[6]["fields"]["policies"], &audits[6]["fields"]["cleared"]),
        (&json!("api"), &json!(1))
    );
    assert_eq!(
        (&audits[7]["fields"]["domain"], &audits[7]["fields"]["cleared"]),
        (&json!("shop"), &json!(0))
    );
}

/// Statuses without a key, with a wrong one, with one for another domain, for the shop, for all domains, and with an
/// admin's for the shop and for all.
const ACCESS: &[(&str, &str, [u16; 7])] = &[
    ("POST /v1/check", SHOP, [401, 401, 403, 200, 200, 200, 200]),
    ("POST /v1/check", INLINE, [401, 401, 403, 403, 200, 403, 200]),
    ("POST /v1/check/batch", BATCH, [401, 401, 200, 200, 200, 200, 200]),
    ("GET /v1/state?domain=shop", "", [401, 401, 403, 200, 200, 200, 200]),
    ("DELETE /v1/state?domain=shop", "", [401, 401, 403, 403, 403, 200, 200]),
    ("DELETE /v1/state?key=k&limit=1/hour", "", [401, 401, 403, 403, 403, 403, 200]),
    ("POST /v1/refund", SHOP, [401, 401, 403, 403, 403, 200, 200]),
    ("POST /v1/acquire", SHOP, [401, 401, 403, 200, 200, 200, 200]),
    ("POST /v1/release", HELD, [401, 401, 403, 200, 200, 200, 200]),
    ("POST /v1/renew", HELD, [401, 401, 403, 409, 409, 409, 409]),
    ("POST /v1/reserve", SHOP, [401, 401, 403, 200, 200, 200, 200]),
    ("POST /v1/reserve", INLINE, [401, 401, 403, 403, 200, 403, 200]),
    ("POST /v1/settle", SETTLE, [401, 401, 200, 200, 200, 200, 200]),
    ("POST /v1/cancel", CANCEL, [401, 401, 200, 200, 200, 200, 200]),
    ("GET /v1/explain?domain=shop", "", [401, 401, 403, 200, 200, 200, 200]),
    ("POST /v1/explain", SHOP, [401, 401, 403, 200, 200, 200, 200]),
    ("GET /v1/policies", "", [401, 401, 200, 200, 200, 200, 200]),
    ("GET /v1/stats", "", [401, 401, 403, 403, 403, 403, 200]),
    ("GET /v1/state?policy=shop&key=k", "", [401, 401, 403, 200, 200, 200, 200]),
    ("DELETE /v1/state?policy=shop&key=k", "", [401, 401, 403, 403, 403, 200, 200]),
    ("GET /v1/state?policy=none&key=k", "", [401, 401, 403, 403, 400, 403, 400]),
    ("GET /v1/live", "", [401, 401, 403, 403, 403, 403, 200]),
    ("GET /v1/events", "", [401, 401, 403, 403, 403, 403, 200]),
    ("GET /v1/decisions?policy=shop&key=k", "", [401, 401, 403, 403, 403, 200, 200]),
    ("POST /v1/block", BLOCK, [401, 401, 403, 403, 403, 200, 200]),
    ("DELETE /v1/block?policy=shop&key=k", "", [401, 401, 403, 403, 403, 200, 200]),
    ("POST /v1/block", "{}", [401, 401, 400, 400, 400, 400, 400]),
    ("POST /v1/clear", CLEAR, [401, 401, 403, 403, 403, 200, 200]),
    ("POST /v1/clear", r#"{"domain":"shop"}"#, [401, 401, 403, 403, 403, 200, 200]),
    ("POST /v1/clear", r#"{"domain":""}"#, [401, 401, 403, 403, 403, 403, 200]),
    ("POST /v1/clear", r#"{"policy":"inline"}"#, [401, 401, 403, 403, 403, 403, 200]),
    ("POST /v1/clear", r#"{"policy":"none"}"#, [401, 401, 403, 403, 400, 403, 400]),
    ("POST /v1/clear", "{}", [401, 401, 400, 400, 400, 400, 400]),
    ("POST /v1/reload", "", [401, 401, 403, 403, 403, 403, 200]),
    ("GET /v1/auth?domain=shop", "", [401, 401, 403, 200, 200, 200, 200]),
    ("GET /check?userId=a", "", [401, 401, 403, 403, 200, 403, 200]),
    ("POST /json", ENVOY, [401, 401, 403, 200, 200, 200, 200]),
    ("GET /healthz", "", [200; 7]),
    ("GET /readyz", "", [200; 7]),
    ("GET /healthcheck", "", [200; 7]),
    ("GET /metrics", "", [401, 401, 403, 403, 200, 403, 200]),
    ("GET /openapi.json", "", [401, 401, 200, 200, 200, 200, 200]),
];

const SHOP: &str = r#"{"domain":"shop","attributes":{}}"#;
const CLEAR: &str = r#"{"policy":"shop"}"#;
const BLOCK: &str = r#"{"policy":"shop","key":"k"}"#;
const ENVOY: &str = r#"{"domain":"shop","descriptors":[{"entries":[{"key":"a"}],"hitsAddend":0}]}"#;
const INLINE: &str = r#"{"key":"k","limit":"9/hour"}"#;
const BATCH: &str = r#"{"requests":[{"domain":"shop"}]}"#;
/// A reservation without a limit.
const SETTLE: &str = r#"{"reservation":"AQAAAAAAAAAAAAAAAAAAAAAA","used":1}"#;
const CANCEL: &str = r#"{"reservation":"AQAAAAAAAAAAAAAAAAAAAAAA"}"#;
const HELD: &str = r#"{"domain":"shop","attributes":{},"permit":"1"}"#;

/// Requests that name a policy. `NAME` is replaced by its name.
const BY_NAME: [(&str, &str); 6] = [
    ("POST /v1/clear", r#"{"policy":"NAME"}"#),
    ("GET /v1/state?policy=NAME&key=k,%20l", ""),
    ("DELETE /v1/state?policy=NAME&key=k,%20l", ""),
    ("POST /v1/block", r#"{"policy":"NAME","key":"k, l"}"#),
    ("POST /v1/block", r#"{"policy":"NAME","key":"k"}"#),
    ("DELETE /v1/block?policy=NAME&key=k,%20l", ""),
];

#[tokio::test]
async fn policies_of_other_domains_are_hidden() {
    let limit = || ["5/hour"];
    let policy = |name: &str, domain: &str| {
        Policy::new(name, limit()).in_domain(domain).per(["card", "pin"])
    };
    let set = PolicySet::new([policy("secret", "bank"), policy("own", "shop")]).unwrap();
    let mut settings = Settings::new(set);
    settings.security.credentials = vec![
        credential("shop", "shop", Scope::Check, &["shop"]),
        credential("boss-of-shop", "boss-of-shop", Scope::Admin, &["shop"]),
    ];
    let server = Server::with(settings);
    for key in ["shop", "boss-of-shop"] {
        let headers = format!("Content-Type: application/json\r\nAuthorization: Bearer {key}\r\n");
        for (line, body) in BY_NAME {
            let ask = async |name: &str| {
                let (line, body) = (line.replace("NAME", name), body.replace("NAME", name));
                server.send(&line, &headers, &body).await
            };
            let (secret, none, inline) =
                (ask("secret").await, ask("none").await, ask("inline").await);
            assert_eq!((secret.status, secret.problem()), (403, "forbidden".to_owned()));
            assert_eq!((&secret.body, &inline.body), (&none.body, &none.body), "{line} {key}");
            assert_ne!(ask("own").await.body, none.body, "{line} {key}");
        }
    }
}

#[tokio::test]
async fn every_path_asks_for_the_right_key() {
    let mut settings = Settings::new(policies());
    settings.security.credentials = vec![
        credential("other", "other", Scope::Check, &["jobs"]),
        credential("shop", "shop", Scope::Check, &["shop"]),
        Credential { inline: true, ..credential("all", "all", Scope::Check, &[]) },
        credential("boss-of-shop", "boss-of-shop", Scope::Admin, &["shop"]),
        Credential { inline: true, ..credential("boss", "boss", Scope::Admin, &[]) },
    ];
    let server = Server::with(settings);
    let keys =
        ["", "Bearer no", "Bearer other", "Bearer shop", "bearer all", "Bearer boss-of-shop"];
    let keys: Vec<_> = keys.into_iter().chain(["BEARER boss"]).collect();
    for (line, body, statuses) in ACCESS {
        for (key, status) in keys.iter().zip(statuses) {
            let headers = match key.is_empty() {
                true => "Content-Type: application/json\r\n".to_owned(),
                false => format!("Content-Type: application/json\r\nAuthorization: {key}\r\n"),
            };
            let reply = server.send(line, &headers, body).await;
            assert_eq!(reply.status, *status, "{line} {key:?} {reply:?}");
            let scheme = (*status == 401).then_some("Bearer realm=\"pacegate\"");
            assert_eq!(reply.header("www-authenticate"), scheme, "{line} {key:?}");
            if [401, 403].contains(status) {
                let kind = if *status == 401 { "unauthorized" } else { "forbidden" };
                assert_eq!(reply.problem(), kind);
            }
        }
    }
    let paths: Vec<_> =
        super::super::routes::routes().into_iter().map(|route| route.path).collect();
    for path in paths {
        let asked =
            |(line, ..): &&(&str, &str, [u16; 7])| line.split([' ', '?']).nth(1) == Some(path);
        assert!(ACCESS.iter().any(|row| asked(&row)), "no request for {path}");
    }
    // A batch reports missing permissions per request, and the list of policies is filtered.
    let headers = "Content-Type: application/json\r\nAuthorization: Bearer other\r\n";
    let batch = server.send("POST /v1/check/batch", headers, BATCH).await.json();
    assert_eq!(batch["answers"][0]["error"]["status"], 403);
    let policies = server.send("GET /v1/policies", headers, "").await.json();
    let names: Vec<_> =
        policies["policies"].as_array().unwrap().iter().map(|p| &p["name"]).collect();
    assert_eq!(names, ["jobs"]);
}
