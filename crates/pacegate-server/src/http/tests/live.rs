use pacegate::policy::{Match, Mode};
use serde_json::{Value, json};

use super::*;
use crate::{config::Descriptors, live};

const ALICE: &str = r#"{"attributes":{"user":"alice"}}"#;

fn of<'a>(live: &'a Value, policy: &str) -> &'a Value {
    let all = live["policies"].as_array().unwrap().iter();
    all.into_iter().find(|one| one["name"] == policy).unwrap()
}

#[tokio::test]
async fn decisions_are_counted_by_policy_second_and_key() {
    let server = Server::new();
    let start = server.clock.now().as_micros() / 1_000_000;
    for _ in 0..5 {
        server.check(ALICE).await;
    }
    live::record_second(&server.active, start + 1);
    server.check(r#"{"attributes":{"user":"bob"}}"#).await;
    server.check(r#"{"key":"k","limit":"9/hour"}"#).await;
    live::record_second(&server.active, start + 3);
    let live = server.get("/v1/live").await.json();
    assert_eq!(live["now"], json!(start as f64));
    assert_eq!((&live["version"], &live["revision"]), (&json!("0.1.0"), &json!(1)));
    assert_eq!((&live["reloads_refused"], &live["reload_complaint"]), (&json!(0), &json!(null)));
    assert_eq!(live["keys_configured"], false);
    let names: Vec<_> = live["policies"].as_array().unwrap().iter().map(|p| &p["name"]).collect();
    assert_eq!(names, ["api", "login", "shop", "jobs", "seed", "inline"]);
    assert_eq!(live["policies_total"], 5);
    let api = of(&live, "api");
    let counts = ["allowed", "denied", "shadow_denied", "degraded", "used"].map(|name| &api[name]);
    assert_eq!(counts, [&json!(4), &json!(2), &json!(0), &json!(0), &json!(1.0)]);
    assert_eq!((&api["per"], &api["limits"][0]["limit"]), (&json!(["user"]), &json!("3/minute")));
    assert_eq!(of(&live, "login")["used"], Value::Null);
    let history = &live["history"];
    assert_eq!(history["from"], start + 1);
    assert_eq!((&history["step"], &history["length"]), (&json!(1), &json!(3)));
    let none = json!([0, 0, 0]);
    assert_eq!(
        history["policies"]["api"],
        json!({
            "allowed": [3, 0, 1], "denied": [2, 0, 0], "shadow_denied": none,
            "allowed_units": [3, 0, 1], "denied_units": [2, 0, 0], "shadow_denied_units": none,
            "degraded": none,
        })
    );
    assert_eq!(history["policies"]["inline"]["allowed"], json!([0, 0, 1]));
    assert_eq!(history["policies"]["jobs"]["allowed"], none);
    let key = |policy: &str, key: &str, counts: [u64; 3]| {
        let [count, allowed, denied] = counts;
        json!({
            "policy": policy, "key": key, "count": count, "allowed": allowed, "denied": denied,
            "exact": true,
        })
    };
    let (alice, alice_denied) = (key("api", "alice", [5, 3, 2]), key("api", "alice", [2, 3, 2]));
    let traffic = [alice, key("api", "bob", [1, 1, 0]), key("inline", "k", [1, 1, 0])];
    assert_eq!(live["busiest"], json!(traffic));
    assert_eq!(live["most_denied"], json!([alice_denied]));
    assert_eq!((&live["blocked"], &live["blocked_total"]), (&json!([]), &json!(0)));
    assert_eq!(live["store"]["kind"], "memory");
    assert_eq!((&live["store"]["reachable"], &live["store"]["keys"]), (&json!(true), &json!(3)));
    let http = &live["listeners"][0];
    let counts = ["name", "connections", "requests"].map(|name| &http[name]);
    assert_eq!(counts, [&json!("http"), &json!(0), &json!(7)]);
    let stats = server.get("/v1/stats").await.json();
    for latency in [&http["latency"], &stats["listeners"][0]["latency"]] {
        for percentile in ["p50", "p99"] {
            assert!(latency[percentile].as_f64().is_some_and(|time| time > 0.0), "{latency}");
            let seconds = &history["latency"][percentile];
            assert!(seconds[0].as_f64().is_some_and(|time| time > 0.0), "{history}");
            assert_eq!((&seconds[1], seconds.as_array().unwrap().len()), (&Value::Null, 3));
        }
    }
}

#[tokio::test]
async fn since_returns_the_rest_of_the_history() {
    let server = Server::new();
    for second in [100, 101, 102] {
        server.check(ALICE).await;
        live::record_second(&server.active, second);
    }
    let rest = server.get("/v1/live?since=101").await.json();
    assert_eq!((&rest["history"]["from"], &rest["history"]["length"]), (&json!(102), &json!(1)));
    assert_eq!(rest["history"]["policies"]["api"]["allowed"], json!([1]));
    let none = server.get("/v1/live?since=102").await.json();
    assert_eq!((&none["history"]["from"], &none["history"]["length"]), (&json!(103), &json!(0)));
    let hour = server.get("/v1/live?step=15&since=90").await.json();
    let history = ["from", "step", "length"].map(|name| &hour["history"][name]);
    assert_eq!(history, [&json!(105), &json!(15), &json!(1)]);
    assert_eq!(hour["history"]["policies"]["api"]["allowed"], json!([3]));
    let day = server.get("/v1/live?since=0&step=300").await.json();
    assert_eq!((&day["history"]["from"], &day["history"]["step"]), (&json!(300), &json!(300)));
    for wrong in ["since=x", "since=-1", "until=3", "since=1&since=2", "step=2", "step=x"] {
        assert_eq!(server.get(&format!("/v1/live?{wrong}")).await.problem(), "request");
    }
}

#[tokio::test]
async fn hostile_keys_are_shown_and_are_not_taken_for_others() {
    let server = Server::new();
    let long = "x".repeat(1_000);
    for user in ["<img src=x onerror=alert(1)>", "\\u001b[2J\\u0000", &long] {
        server.check(&format!(r#"{{"attributes":{{"user":"{user}"}}}}"#)).await;
    }
    let live = server.get("/v1/live").await.json();
    let mut keys: Vec<_> = live["busiest"]
        .as_array()
        .unwrap()
        .iter()
        .map(|top| (top["key"].as_str().unwrap(), top["exact"] == true))
        .collect();
    keys.sort_unstable();
    let cut = format!("{}…", "x".repeat(200));
    assert_eq!(
        keys,
        [("\u{1b}[2J\0", true), ("<img src=x onerror=alert(1)>", true), (&*cut, false)]
    );
}

#[tokio::test]
async fn usage_is_measured_once_a_second_for_all_clients() {
    let server = Server::new();
    let used = async || of(&server.get("/v1/live").await.json(), "api")["used"].clone();
    server.check(ALICE).await;
    assert_eq!(used().await, json!(1.0 / 3.0));
    server.check(ALICE).await;
    assert_eq!(used().await, json!(1.0 / 3.0));
    server.clock.advance(Duration::from_secs(1));
    assert_eq!(used().await, json!(2.0 / 3.0));
    // After a reload, usage is measured again at once.
    assert_eq!(server.post("/v1/reload", "").await.status, 200);
    server.check(ALICE).await;
    assert_eq!(used().await, json!(1.0));
}

#[tokio::test]
async fn usage_is_not_measured_while_the_store_is_unreachable() {
    let mut settings = Settings::new(policies());
    let (url, prefix) = ("redis://127.0.0.1:1".to_owned(), "t:".to_owned());
    settings.store = StoreSettings::Redis { url, prefix, deadline: Duration::from_millis(50) };
    let clock = ManualClock::new();
    let server = Server::over(clock.clone(), clock, ActiveConfig::open(settings).unwrap());
    server.check(ALICE).await;
    let failures = || server.active.revision().engine.stats().store_failures;
    let before = failures();
    let live = server.get("/v1/live").await.json();
    assert_eq!(live["busiest"][0]["key"], "alice");
    assert_eq!((&of(&live, "api")["used"], failures()), (&Value::Null, before));
    let store = &live["store"];
    assert_eq!((&store["reachable"], &store["breaker"]), (&json!(false), &json!("open")));
    let outage = store["outage"].as_str().unwrap();
    for part in ["127.0.0.1:1", "applying failure modes: local (api, login, shop, jobs, seed)"] {
        assert!(outage.contains(part), "{part} in {outage}");
    }
}

#[tokio::test]
async fn a_block_does_not_fill_a_budget() {
    let server = Server::new();
    server.check(r#"{"attributes":{"user":"bob"}}"#).await;
    for user in ["alice", "carol"] {
        let block = json!({ "policy": "api", "key": user }).to_string();
        assert_eq!(server.post("/v1/block", &block).await.status, 200);
        server.check(&json!({ "attributes": { "user": user } }).to_string()).await;
    }
    let live = server.get("/v1/live").await.json();
    assert_eq!(live["busiest"].as_array().unwrap().len(), 3);
    assert_eq!(of(&live, "api")["used"], json!(1.0 / 3.0));
}

#[tokio::test]
async fn the_usage_of_policies_with_overrides_is_that_of_recent_decisions() {
    let pro = Match::any().and("plan", Condition::equal("pro"));
    let policy = policies().policies()[0].clone().overriding(pro, ["10/10s"]);
    let server = Server::with(Settings::new(PolicySet::new([policy]).unwrap()));
    let used = async || {
        server.clock.advance(Duration::from_secs(1));
        of(&server.get("/v1/live").await.json(), "api")["used"].clone()
    };
    assert_eq!(used().await, Value::Null);
    let bob = r#"{"attributes":{"user":"bob","plan":"pro"},"cost":8}"#;
    assert_eq!(server.check(bob).await.status, 200);
    assert_eq!(used().await, json!(0.8));
    // The window ends, and the key is still one of the busiest.
    server.clock.advance(Duration::from_secs(10));
    assert_eq!(used().await, json!(0.0));
    assert_eq!(server.check(ALICE).await.status, 200);
    assert_eq!(used().await, json!(1.0 / 3.0));
    server.clock.advance(Duration::from_secs(60));
    assert_eq!(used().await, Value::Null);
}

#[tokio::test]
async fn a_policy_with_overrides_that_never_decides_has_its_own_usage() {
    let pro = Match::any().and("plan", Condition::equal("pro"));
    let wide =
        Policy::new("wide", ["1000/hour"]).per(["user"]).overriding(pro, ["100/hour", "50/minute"]);
    let tight = Policy::new("tight", ["5/minute"]).per(["user"]);
    let server = Server::with(Settings::new(PolicySet::new([wide, tight]).unwrap()));
    let bob = r#"{"attributes":{"user":"bob","plan":"pro"},"cost":5}"#;
    let reply = server.check(bob).await;
    assert_eq!((reply.status, &reply.json()["policy"]), (200, &json!("tight")));
    let live = server.get("/v1/live").await.json();
    assert_eq!(of(&live, "tight")["used"], json!(1.0));
    assert_eq!(of(&live, "wide")["used"], json!(0.1), "5 of 50 in the minute");
}

#[tokio::test]
async fn debt_is_usage_above_the_limit() {
    let tokens = Policy::new("tokens", ["100/day"]).per(["user"]);
    let server = Server::with(Settings::new(PolicySet::new([tokens]).unwrap()));
    let spent = r#"{"attributes":{"user":"alice"},"cost":140,"spent":true}"#;
    assert_eq!(server.check(spent).await.status, 429);
    let live = server.get("/v1/live").await.json();
    assert_eq!(of(&live, "tokens")["used"], json!(1.4));
}

#[tokio::test]
async fn recent_decisions_of_a_key_are_returned() {
    let server = Server::new();
    let start = server.clock.now().as_micros() / 1_000_000;
    for _ in 0..4 {
        server.check(ALICE).await;
        server.clock.advance(Duration::from_secs(1));
    }
    server.check(r#"{"attributes":{"user":"bob"}}"#).await;
    server.get("/v1/state?policy=api&key=alice").await;
    let reply = server.get("/v1/decisions?policy=api&key=alice").await.json();
    let decisions = reply["decisions"].as_array().unwrap();
    let found = |name: &str| decisions.iter().map(|one| one[name].clone()).collect::<Vec<_>>();
    assert_eq!(found("allowed"), [false, true, true, true]);
    assert_eq!(found("remaining"), [0, 0, 1, 2]);
    assert_eq!(found("at"), [3, 2, 1, 0].map(|later| json!((start + later) as f64)));
    assert_eq!((&decisions[0]["cost"], &decisions[0]["limit"]), (&json!(1), &json!("3/minute")));
    let inline = server.check(r#"{"key":"k","limit":"9/hour","cost":2}"#).await;
    assert_eq!(inline.status, 200);
    let reply = server.get("/v1/decisions?policy=inline&key=k").await.json();
    assert_eq!(reply["decisions"][0]["cost"], 2);
    let none = server.get("/v1/decisions?policy=api&key=carol").await;
    assert_eq!(none.body, r#"{"decisions":[]}"#);
    for wrong in ["", "policy=api", "policy=no&key=a", "policy=api&key=a&x=y"] {
        let reply = server.get(&format!("/v1/decisions?{wrong}")).await;
        assert_eq!((reply.status, reply.problem()), (400, "request".to_owned()), "{wrong}");
    }
}

#[tokio::test]
async fn a_blocked_key_is_denied_until_the_block_is_over() {
    let server = Server::new();
    let start = server.clock.now().as_micros() / 1_000_000;
    let block = r#"{"policy":"api","key":"alice","seconds":90}"#;
    let reply = server.post("/v1/block", block).await;
    assert_eq!(reply.status, 200);
    let blocked = json!({ "policy": "api", "key": "alice", "until": start + 90 });
    assert_eq!(reply.json(), blocked);
    server.clock.advance(Duration::from_millis(500));
    let denied = server.check(ALICE).await;
    assert_eq!((denied.status, denied.header("retry-after")), (429, Some("90")));
    let json = denied.json();
    for (name, value) in [
        ("allowed", json!(false)),
        ("policy", json!("api")),
        ("limit", json!("3/minute")),
        ("remaining", json!(0)),
        ("retry_after", json!(89.5)),
        ("source", json!("blocked")),
    ] {
        assert_eq!(json[name], value, "{name}");
    }
    assert_eq!(server.check(r#"{"attributes":{"user":"bob"}}"#).await.status, 200);
    let batch = format!(r#"{{"requests":[{ALICE},{{"attributes":{{"user":"bob"}}}},{ALICE}]}}"#);
    let batch = server.post("/v1/check/batch", &batch).await.json();
    let allowed = [0, 1, 2].map(|place| batch["answers"][place]["allowed"] == true);
    assert_eq!(allowed, [false, true, false]);
    let reply = server.post("/v1/explain", ALICE).await.json();
    assert_eq!(reply["policies"][0]["limits"][0]["source"], "blocked");
    assert_eq!((&reply["allowed"], &reply["policy"]), (&json!(false), &json!("api")));
    // Denials by a block are counted and charge nothing. A peek is not counted.
    let live = server.get("/v1/live").await.json();
    assert_eq!((&of(&live, "api")["allowed"], &of(&live, "api")["denied"]), (&json!(2), &json!(3)));
    assert_eq!(live["most_denied"][0]["denied"], 3);
    assert_eq!((&live["blocked"], &live["blocked_total"]), (&json!([blocked]), &json!(1)));
    server.clock.advance(Duration::from_millis(89_499));
    assert_eq!(server.check(ALICE).await.status, 429);
    server.clock.advance(Duration::from_millis(1));
    assert_eq!(server.check(ALICE).await.json()["remaining"], 2);
    assert_eq!(server.get("/v1/live").await.json()["blocked_total"], 0);
}

#[tokio::test]
async fn one_block_denies_all_that_a_request_would_take() {
    let server = Server::new();
    let login = r#"{"domain":"shop","attributes":{"path":"/login","ip":"::1"}}"#;
    assert_eq!(server.post("/v1/block", r#"{"policy":"login","key":"::1"}"#).await.status, 200);
    for _ in 0..2 {
        let denied = server.check(login).await.json();
        assert_eq!((&denied["policy"], &denied["retry_after"]), (&json!("login"), &json!(3600.0)));
    }
    let live = server.get("/v1/live").await.json();
    let counts = |name: &str| {
        let policy = of(&live, name);
        (policy["allowed"].as_u64().unwrap(), policy["denied"].as_u64().unwrap())
    };
    assert_eq!((counts("login"), counts("shop")), ((0, 2), (0, 0)));
    let state = server.get("/v1/state?domain=shop&attribute=path:/login&attribute=ip:::1").await;
    let limits = state.json()["limits"].clone();
    let reply: Vec<_> = (0..3).map(|n| (&limits[n]["source"], &limits[n]["remaining"])).collect();
    let (by_hand, here) = (json!("blocked"), json!("store"));
    assert_eq!(reply, [(&by_hand, &json!(0)), (&by_hand, &json!(0)), (&here, &json!(10))]);
    let lifted = server.send("DELETE /v1/block?policy=login&key=::1", "", "").await;
    assert_eq!((lifted.status, &*lifted.body), (200, r#"{"limits":1}"#));
    let again = server.send("DELETE /v1/block?policy=login&key=::1", "", "").await;
    assert_eq!(again.body, r#"{"limits":0}"#);
    assert_eq!(server.check(login).await.json()["remaining"], 1);
}

#[tokio::test]
async fn a_block_is_removed_by_its_text_after_its_policy_changed() {
    let server = Server::new();
    let set = |per: Option<&[&str]>| {
        let api = Policy::new("api", ["3/minute"]);
        let api = per.map(|per| api.per(per.iter().copied()));
        let others = policies().policies()[1..].to_vec();
        server
            .active
            .replace(Settings::new(PolicySet::new(others.into_iter().chain(api)).unwrap()));
    };
    set(Some(&["user", "ip"]));
    let request = r#"{"attributes":{"user":"alice","ip":"::1"}}"#;
    for (then, unknown) in [(None, 400), (Some(&["user"][..]), 200), (Some(&[]), 400)] {
        let block = r#"{"policy":"api","key":"alice, ::1"}"#;
        assert_eq!(server.post("/v1/block", block).await.status, 200);
        assert_eq!(server.check(request).await.status, 429);
        set(then);
        let shown = server.get("/v1/live").await.json()["blocked"][0]["key"].clone();
        assert_eq!(shown, "alice, ::1");
        let delete = "DELETE /v1/block?policy=api&key=alice,%20::1";
        let lifted = server.send(delete, "", "").await;
        assert_eq!((lifted.status, &*lifted.body), (200, r#"{"limits":1}"#), "{then:?}");
        assert_eq!(server.send(delete, "", "").await.status, unknown, "{then:?}");
        set(Some(&["user", "ip"]));
        assert_ne!(server.check(request).await.status, 429, "{then:?}");
        server.clock.advance(Duration::from_secs(60));
    }
}

#[tokio::test]
async fn a_block_of_a_removed_policy_needs_admin_everywhere() {
    let mut settings = Settings::new(policies());
    settings.security.credentials = vec![
        credential("shop", "shop", Scope::Admin, &["shop"]),
        credential("boss", "boss", Scope::Admin, &[]),
    ];
    let server = Server::with(settings.clone());
    let delete = async |key: &str| {
        let headers = format!("Authorization: Bearer {key}\r\n");
        server.send("DELETE /v1/block?policy=api&key=alice", &headers, "").await.status
    };
    let hour = Duration::from_secs(3_600);
    let key = pacegate::KeyRef::new(b"alice").to_buf();
    let revision = server.active.revision();
    revision.engine.blocks.add("api".parse().unwrap(), key, hour).await.unwrap();
    settings.policies = PolicySet::new(policies().policies()[1..].to_vec()).unwrap();
    server.active.replace(settings);
    assert_eq!(delete("nobody").await, 401);
    assert_eq!(delete("shop").await, 403);
    assert_eq!(revision.engine.blocks.list(0).1, 1);
    assert_eq!(delete("boss").await, 200);
    assert_eq!(revision.engine.blocks.list(0).1, 0);
}

#[tokio::test]
async fn a_block_denies_in_shadow_mode_and_after_a_reload() {
    let server = Server::with(Settings::new(policies().in_mode(Mode::Shadow)));
    server.post("/v1/block", r#"{"policy":"api","key":"alice"}"#).await;
    assert_eq!(server.check(ALICE).await.status, 429);
    assert_eq!(server.post("/v1/reload", "").await.status, 200);
    assert_eq!(server.check(ALICE).await.status, 429);
}

#[tokio::test]
async fn all_listeners_deny_blocked_keys() {
    let server = Server::new();
    for block in [r#"{"policy":"api","key":"alice"}"#, r#"{"policy":"inline","key":"k"}"#] {
        assert_eq!(server.post("/v1/block", block).await.status, 200);
    }
    let bytes = b"PACEGATE.CHECK ATTR user alice\r\nCL.THROTTLE j 1 9 60\r\n\
                  CL.THROTTLE k 1 9 60\r\nCL.THROTTLE j 1 9 60\r\n";
    let answer = crate::resp::answer_all(server.active.clone(), bytes).await;
    let answer = String::from_utf8(answer).unwrap();
    assert!(answer.starts_with("*18\r\n$7\r\nallowed\r\n:0\r\n"), "{answer}");
    assert!(answer.contains("$6\r\nsource\r\n$7\r\nblocked\r\n"), "{answer}");
    let five = |numbers: [i64; 5]| {
        numbers.iter().fold("*5\r\n".to_owned(), |text, n| text + &format!(":{n}\r\n"))
    };
    let own = [five([0, 2, 1, -1, 7]), five([1, 2, 0, 3600, 3600]), five([0, 2, 0, -1, 14])];
    assert!(answer.ends_with(&own.concat()), "{answer}");

    server.post("/v1/block", r#"{"policy":"shop","key":"10.0.0.1"}"#).await;
    for (descriptors, mode) in [
        (Descriptors::Together, Mode::Enforce),
        (Descriptors::Independent, Mode::Enforce),
        (Descriptors::Together, Mode::Shadow),
        (Descriptors::Independent, Mode::Shadow),
    ] {
        let mut settings = Settings::new(policies().in_mode(mode));
        settings.descriptors = Some(descriptors);
        server.active.replace(settings);
        for (ip, status, code) in [("10.0.0.1", 429, "OVER_LIMIT"), ("10.0.0.2", 200, "OK")] {
            let entries = json!([{ "key": "ip", "value": ip }]);
            let ask = json!({ "domain": "shop", "descriptors": [{ "entries": entries }] });
            let reply = server.post("/json", &ask.to_string()).await;
            assert_eq!(reply.status, status, "{descriptors:?} {mode:?} {reply:?}");
            assert_eq!(reply.json()["overallCode"], code, "{descriptors:?} {mode:?}");
            assert_eq!(reply.json()["statuses"][0]["code"], code, "{descriptors:?} {mode:?}");
        }
    }
}

#[tokio::test]
async fn a_block_holds_where_an_override_lifts_the_limit() {
    let any = Policy::new("any", ["9/minute"]).in_domain("d");
    let lifted = Policy::new("lifted", ["3/minute"])
        .in_domain("d")
        .per(["user"])
        .exempting(Match::any().and("plan", Condition::equal("pro")));
    for (policies, count) in [(vec![lifted.clone()], 1), (vec![any, lifted], 2)] {
        let server = Server::with(Settings::new(PolicySet::new(policies).unwrap()));
        let pro = r#"{"domain":"d","attributes":{"user":"x","plan":"pro"},"cost":5}"#;
        let other = r#"{"domain":"d","attributes":{"user":"y","plan":"pro"},"cost":2}"#;
        let batch = format!(r#"{{"requests":[{pro},{other}]}}"#);
        let entry = |key: &str, value: &str| json!({ "key": key, "value": value });
        let entries = [entry("user", "x"), entry("plan", "pro")];
        let envoy = json!({ "domain": "d", "descriptors": [{ "entries": entries }] }).to_string();
        let state = "/v1/state?domain=d&attribute=user:x&attribute=plan:pro";
        assert_eq!(server.check(pro).await.status, 200);
        assert_eq!(server.post("/v1/block", r#"{"policy":"lifted","key":"x"}"#).await.status, 200);
        let reply = server.check(pro).await;
        assert_eq!((reply.status, &reply.json()["source"]), (429, &json!("blocked")));
        assert_eq!(reply.json()["policy"], "lifted");
        assert_eq!(server.check(other).await.status, 200);
        let reply = server.post("/v1/check/batch", &batch).await.json();
        let answers = reply["answers"].as_array().unwrap().iter();
        assert_eq!(answers.map(|one| &one["allowed"]).collect::<Vec<_>>(), [false, true]);
        assert_eq!(server.post("/v1/acquire", pro).await.status, 429);
        assert_eq!(server.get(state).await.json()["source"], "blocked");
        assert_eq!(server.post("/json", &envoy).await.status, 429);
        let resp = b"PACEGATE.CHECK DOMAIN d ATTR user x plan pro\r\n";
        let answer = crate::resp::answer_all(server.active.clone(), resp).await;
        assert!(answer.starts_with(b"*18\r\n$7\r\nallowed\r\n:0\r\n"));
        let reply = server
            .post("/v1/explain", r#"{"domain":"d","attributes":{"user":"x","plan":"pro"}}"#)
            .await
            .json();
        assert_eq!((&reply["allowed"], &reply["policy"]), (&json!(false), &json!("lifted")));
        assert_eq!(reply["policies"][count - 1]["limits"][0]["source"], "blocked");
        let given = server.post("/v1/refund", pro).await;
        assert_eq!(given.json(), json!({ "limits": count - 1 }), "where nothing was counted");
        let lift = server.send("DELETE /v1/block?policy=lifted&key=x", "", "").await;
        assert_eq!(lift.json(), json!({ "limits": 1 }));
        assert_eq!(
            server.check(r#"{"domain":"d","attributes":{"user":"x","plan":"pro"}}"#).await.status,
            200
        );
        let plain = server.check(r#"{"domain":"d","attributes":{"user":"x"},"cost":3}"#).await;
        assert_eq!(plain.status, 200, "the block took nothing of the limit");
    }
}

#[tokio::test]
async fn a_block_can_end_at_an_instant() {
    let server = Server::new();
    server.clock.advance(Duration::from_millis(1_500));
    let now = server.clock.now().as_micros() / 1_000_000;
    let until = |until: u64| json!({ "policy": "api", "key": "alice", "until": until }).to_string();
    let reply = server.post("/v1/block", &until(now + 10)).await;
    assert_eq!((reply.status, reply.json()["until"].as_u64()), (200, Some(now + 10)));
    server.clock.advance(Duration::from_micros(9_499_999));
    assert_eq!(server.check(ALICE).await.json()["source"], "blocked");
    server.clock.advance(Duration::from_micros(1));
    assert_eq!(server.check(ALICE).await.status, 200);
    for wrong in [until(now), until(now + 11 + 30 * 86_400), until(u64::MAX)] {
        let reply = server.post("/v1/block", &wrong).await;
        assert_eq!((reply.status, reply.problem()), (400, "request".to_owned()), "{wrong}");
    }
    let both = r#"{"policy":"api","key":"a","seconds":5,"until":5}"#;
    assert_eq!(server.post("/v1/block", both).await.status, 400);
}

#[tokio::test]
async fn invalid_blocks_are_rejected() {
    let server = Server::new();
    for wrong in [
        r#"{"policy":"none","key":"a"}"#,
        r#"{"policy":"api"}"#,
        r#"{"policy":"api","key":"a","seconds":0}"#,
        r#"{"policy":"api","key":"a","seconds":2592001}"#,
        r#"{"policy":"api","key":"a","second":1}"#,
        "[]",
    ] {
        let reply = server.post("/v1/block", wrong).await;
        assert_eq!((reply.status, reply.problem()), (400, "request".to_owned()), "{wrong}");
    }
    let month = r#"{"policy":"api","key":"a","seconds":2592000}"#;
    assert_eq!(server.post("/v1/block", month).await.status, 200);
    for (length, status) in [(200, 200), (201, 400), (9_000, 400)] {
        let long = format!(r#"{{"policy":"api","key":"{}"}}"#, "ä".repeat(length));
        let reply = server.post("/v1/block", &long).await;
        assert_eq!(reply.status, status, "{length}");
        assert!(status == 200 || reply.problem() == "bounds", "{reply:?}");
    }
    for wrong in ["", "policy=api", "key=a", "policy=api&key=a&key=b", "policy=api&key=a&x=y"] {
        let reply = server.send(&format!("DELETE /v1/block?{wrong}"), "", "").await;
        assert_eq!((reply.status, reply.problem()), (400, "request".to_owned()), "{wrong}");
    }
    let blocks = server.active.revision().engine.blocks.list(0).1;
    for n in blocks..crate::blocks::Blocks::MAX {
        let key = pacegate::KeyRef::new(&n.to_le_bytes()).to_buf();
        let revision = server.active.revision();
        let policy = "api".parse().unwrap();
        revision.engine.blocks.add(policy, key, Duration::from_secs(1)).await.unwrap();
    }
    let full = server.post("/v1/block", r#"{"policy":"api","key":"one more"}"#).await;
    assert_eq!((full.status, full.problem()), (409, "too-many-blocks".to_owned()));
    let live = server.get("/v1/live").await.json();
    assert_eq!(live["blocked"].as_array().unwrap().len(), 100);
    assert_eq!(live["blocked_total"], 10_000);
}

#[tokio::test]
async fn a_shown_key_can_be_peeked_and_reset() {
    let server = Server::new();
    let ip = r#"{"domain":"shop","attributes":{"path":"/login","ip":"::1"}}"#;
    server.check(ip).await;
    let state = server.get("/v1/state?policy=login&key=::1").await.json();
    let limits: Vec<_> = (0..2).map(|n| state["limits"][n]["remaining"].clone()).collect();
    assert_eq!((limits, &state["remaining"]), (vec![json!(1), json!(2)], &json!(1)));
    let other = server.get("/v1/state?policy=login&key=::2").await.json();
    assert_eq!(other["remaining"], 2);
    let reset = server.send("DELETE /v1/state?policy=login&key=::1", "", "").await;
    assert_eq!((reset.status, &*reset.body), (200, r#"{"limits":2}"#));
    assert_eq!(server.get("/v1/state?policy=login&key=::1").await.json()["remaining"], 2);
    // Only the counters of this policy were reset.
    assert_eq!(server.get("/v1/state?policy=shop&key=::1").await.json()["remaining"], 9);
    for wrong in ["policy=inline&key=k", "policy=login", "policy=no&key=a", "policy=login&limit=a"]
    {
        let reply = server.get(&format!("/v1/state?{wrong}")).await;
        assert_eq!((reply.status, reply.problem()), (400, "request".to_owned()), "{wrong}");
    }
}
