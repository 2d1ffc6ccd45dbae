use serde_json::json;

use super::*;
use crate::envoy::{EnvoyOptions, RuleFile, Rules};

const RULES: &str = "
domain: edge
descriptors:
  - key: user
    rate_limit: { name: per-user, unit: minute, requests_per_unit: 2 }
  - key: plan
    value: pro
    rate_limit: { unlimited: true }
";
const ALICE: &str =
    r#"{"domain": "edge", "descriptors": [{"entries": [{"key": "user", "value": "alice"}]}]}"#;

fn settings() -> Settings {
    settings_of(RULES)
}

fn settings_of(rules: &str) -> Settings {
    let file = RuleFile { file: "edge.yaml".into(), text: rules.to_owned() };
    let rules = Rules::parse(&[file], &EnvoyOptions::default()).unwrap();
    let mut settings = Settings::new(rules.beside(&policies()).unwrap());
    settings.rules = Arc::new(rules);
    settings
}

#[tokio::test]
async fn descriptors_are_answered_in_json() {
    let server = Server::with(settings());
    let limit = json!({"name": "per-user", "requestsPerUnit": 2, "unit": "MINUTE"});
    for remaining in [1, 0] {
        // Clients of envoyproxy/ratelimit may omit the content type.
        let reply = server.send("POST /json", "", ALICE).await;
        assert_eq!(reply.status, 200);
        assert_eq!(reply.header("content-type"), Some("application/json"));
        let mut status = json!({"code": "OK", "currentLimit": limit, "durationUntilReset": "60s"});
        if remaining > 0 {
            status["limitRemaining"] = remaining.into();
        }
        assert_eq!(reply.json(), json!({"overallCode": "OK", "statuses": [status]}));
    }
    let reply = server.post("/json", ALICE).await;
    assert_eq!(reply.status, 429);
    let status = json!({"code": "OVER_LIMIT", "currentLimit": limit, "durationUntilReset": "60s"});
    assert_eq!(reply.json(), json!({"overallCode": "OVER_LIMIT", "statuses": [status]}));
    // The denied hit was counted too.
    let back = ALICE.replace("]}]}", "], \"isNegativeHits\": true, \"hitsAddend\": \"2\"}]}");
    assert_eq!(server.post("/json", &back).await.json()["statuses"][0]["limitRemaining"], 1);
    assert_eq!(server.post("/json", ALICE).await.status, 200);
}

#[tokio::test]
async fn a_blocked_refund_does_not_change_other_descriptors() {
    let server = Server::with(settings());
    let block = r#"{"policy":"edge.user","key":"alice"}"#;
    assert_eq!(server.post("/v1/block", block).await.status, 200);
    let both = ALICE.replace(
        "]}]}",
        r#"], "isNegativeHits": true}, {"entries": [{"key": "user", "value": "bob"}]}]}"#,
    );
    for (code, left) in [("OK", json!(1)), ("OK", json!(null)), ("OVER_LIMIT", json!(null))] {
        let reply = server.post("/json", &both).await.json();
        let status = &reply["statuses"][1];
        assert_eq!(
            (&reply["overallCode"], &status["code"]),
            (&json!(code), &json!(code)),
            "{reply}"
        );
        assert_eq!(status["limitRemaining"], left, "{reply}");
    }
}

const NAMED: &str = "
domain: d
descriptors:
  - key: agent
    rate_limit: { unit: minute, requests_per_unit: 9 }
  - key: all
    value: x
    rate_limit: { unit: minute, requests_per_unit: 9 }
  - key: tenant
    descriptors:
      - key: path
        value: api
        descriptors:
          - key: user
            rate_limit: { unit: minute, requests_per_unit: 9 }
";

#[tokio::test]
async fn a_rule_knows_how_many_values_name_a_key() {
    let server = Server::with(settings_of(NAMED));
    let agent = "Mozilla/5.0 (KHTML, like Gecko)";
    let below = "d.tenant.path-api.user";
    let entry = |key: &str, value: &str| json!({ "key": key, "value": value });
    for (policy, key, entries) in [
        ("d.agent", agent, json!([entry("agent", agent)])),
        ("d.agent", "", json!([{ "key": "agent" }])),
        ("d.all-x", "", json!([entry("all", "x")])),
        (below, "t, u", json!([entry("tenant", "t"), entry("path", "api"), entry("user", "u")])),
    ] {
        let ask = json!({ "domain": "d", "descriptors": [{ "entries": entries }] }).to_string();
        let block = json!({ "policy": policy, "key": key }).to_string();
        assert_eq!(server.post("/json", &ask).await.status, 200, "{policy}");
        let live = server.get("/v1/live").await.json();
        let mut top = live["busiest"].as_array().unwrap().iter();
        let is_shown = |top: &&serde_json::Value| top["policy"] == policy && top["key"] == key;
        assert_eq!(top.find(is_shown).unwrap()["exact"], true, "{policy} {key}");
        assert_eq!(server.post("/v1/block", &block).await.status, 200, "{policy}");
        assert_eq!(server.post("/json", &ask).await.status, 429, "{policy} {key}");
    }
    for (policy, key, per) in [
        ("d.all-x", "x", "invalid `key`: this policy has a single counter"),
        (below, "t", "invalid `key`: expected the values of `tenant, user`"),
        (below, "t, api, u", "invalid `key`: expected the values of `tenant, user`"),
    ] {
        let block = json!({ "policy": policy, "key": key }).to_string();
        let reply = server.post("/v1/block", &block).await;
        assert_eq!(reply.status, 400, "{policy} {key}");
        assert!(reply.json()["detail"].as_str().unwrap().starts_with(per), "{reply:?}");
    }
}

#[tokio::test]
async fn a_policy_in_shadow_mode_does_not_speak_for_those_that_deny() {
    let policy = |name: &str, limit: &str| Policy::new(name, [limit]).in_domain("s");
    for independent in [false, true] {
        let tried = policy("tried", "1/minute").shadow();
        let set = PolicySet::new([tried, policy("own", "2/minute"), policy("idle", "9/minute")]);
        let mut settings = Settings::new(set.unwrap());
        if independent {
            settings.descriptors = Some(crate::config::Descriptors::Independent);
        }
        let server = Server::with(settings);
        let ask = r#"{"domain": "s", "descriptors": [{"entries": [{"key": "k"}]}]}"#;
        for (code, left) in [("OK", json!(1)), ("OK", json!(null)), ("OVER_LIMIT", json!(null))] {
            let reply = server.post("/json", ask).await.json();
            let status = &reply["statuses"][0];
            let limit = json!({ "name": "own", "requestsPerUnit": 2, "unit": "MINUTE" });
            assert_eq!((&status["code"], &status["currentLimit"]), (&json!(code), &limit));
            assert_eq!(status["limitRemaining"], left, "{reply}");
        }
    }
    let server = Server::with(Settings::new(
        PolicySet::new([policy("tried", "1/minute").shadow(), policy("also", "5/minute").shadow()])
            .unwrap(),
    ));
    for _ in 0..2 {
        let ask = r#"{"domain": "s", "descriptors": [{"entries": [{"key": "k"}]}]}"#;
        let reply = server.post("/json", ask).await.json();
        assert_eq!(reply["statuses"][0]["currentLimit"]["name"], "tried");
        assert_eq!(reply["overallCode"], "OK");
    }
}

#[tokio::test]
async fn rules_are_marked_in_the_list_of_policies() {
    let server = Server::with(settings());
    let reply = server.get("/v1/policies").await.json();
    let all = reply["policies"].as_array().unwrap();
    let rules: Vec<_> = all.iter().filter(|policy| policy["envoy"] == true).collect();
    let names: Vec<_> = rules.iter().map(|policy| &policy["name"]).collect();
    assert_eq!(names, ["edge.user"]);
    assert_eq!((&rules[0]["match"], &rules[0]["per"]), (&json!([]), &json!(["user"])));
    assert_eq!((&all[0]["envoy"], &all[0]["match"][0]["is"]), (&json!(false), &json!("present")));
}

#[tokio::test]
async fn policies_of_ours_answer_in_domains_of_theirs() {
    let server = Server::with(settings());
    let login = r#"{"domain": "shop", "descriptors": [{"entries": [
        {"key": "path", "value": "/login"}, {"key": "ip", "value": "203.0.113.7"}]}]}"#;
    for status in [200, 200, 429] {
        assert_eq!(server.post("/json", login).await.status, status);
    }
    let check = r#"{"domain":"shop","attributes":{"path":"/login","ip":"203.0.113.7"}}"#;
    assert_eq!(server.check(check).await.status, 429);
}

#[tokio::test]
async fn long_values_count_by_policies_of_ours_too() {
    let server = Server::with(settings());
    let login = |ip: &str| {
        json!({"domain": "shop", "descriptors": [{"entries": [
            {"key": "path", "value": "/login"}, {"key": "ip", "value": ip}]}]})
        .to_string()
    };
    let (one, other) = ("1".repeat(1_025), "1".repeat(1_026));
    for (ip, status) in [(&one, 200), (&one, 200), (&one, 429), (&other, 200)] {
        assert_eq!(server.post("/json", &login(ip)).await.status, status);
    }
    let keys = server.get("/v1/stats").await.body;
    assert!(!keys.contains("11111111"), "{keys}");
    let many = json!({"domain": "edge", "descriptors": vec![json!({"entries": []}); 33]});
    let reply = server.post("/json", &many.to_string()).await;
    assert_eq!(reply.status, 429);
    assert_eq!(reply.json()["statuses"].as_array().unwrap().len(), 33);
}

#[tokio::test]
async fn invalid_requests_are_problems() {
    let server = Server::with(settings());
    for body in ["", "{", "[]", r#"{"domain": "edge"}"#, r#"{"descriptors": [{}]}"#, r#"{"a": 1}"#]
    {
        let reply = server.post("/json", body).await;
        assert_eq!((reply.status, &*reply.problem()), (400, "request"), "{body}");
    }
    let large = ALICE.replace("alice", &"a".repeat(70_000));
    assert_eq!(server.post("/json", &large).await.status, 413);
}

#[tokio::test]
async fn keys_are_for_domains_here_too() {
    let mut settings = settings();
    settings.security.credentials = vec![
        credential("edge", "one", Scope::Check, &["edge"]),
        credential("boss", "two", Scope::Admin, &["edge"]),
        credential("shop", "three", Scope::Admin, &["shop"]),
    ];
    let server = Server::with(settings);
    let back = ALICE.replace("]}]}", "], \"isNegativeHits\": true}]}");
    for (key, body, status) in [
        ("one", ALICE, 200),
        ("two", ALICE, 200),
        ("three", ALICE, 403),
        ("four", ALICE, 401),
        ("four", "{", 401),
        ("one", "{", 400),
        ("one", &back, 403),
        ("two", &back, 200),
    ] {
        let headers = format!("Authorization: Bearer {key}\r\n");
        let reply = server.send("POST /json", &headers, body).await;
        assert_eq!(reply.status, status, "{key} {body}");
    }
}

/// The client chooses the limit of a descriptor, so each amount has its counter under all or nothing.
#[tokio::test]
async fn limits_of_descriptors_count_separately() {
    let together = Some(crate::config::Descriptors::Together);
    let server = Server::with(Settings { descriptors: together, ..settings() });
    let ask = |amount: u32| {
        let entry = r#"{"key": "user", "value": "alice"}"#;
        let limit = format!(r#"{{"requests_per_unit": {amount}, "unit": "HOUR"}}"#);
        format!(
            r#"{{"domain": "edge", "descriptors": [{{"entries": [{entry}], "limit": {limit}}}]}}"#
        )
    };
    for (amount, expected) in [(3, 3), (100, 20), (3, 0), (5, 5)] {
        let mut allowed = 0;
        for _ in 0..20 {
            allowed += usize::from(server.post("/json", &ask(amount)).await.status == 200);
        }
        assert_eq!(allowed, expected, "{amount} an hour");
    }
}

/// Tokens are known only at the end of a stream: Envoy checks with 0 hits, and adds them afterwards.
#[tokio::test]
async fn hits_added_afterwards_are_recorded_in_full() {
    let tokens = |name: &str| {
        let policy = pacegate::Policy::new(name, ["10/hour"]).in_domain("llm");
        policy.per(["user"]).record_in_full()
    };
    let day = pacegate::Policy::new("day", ["100/day"]).in_domain("llm").per(["user"]);
    let policies = PolicySet::new([tokens("tokens").max_debt(5), day]).unwrap();
    let server = Server::with(Settings::new(policies));
    let ask = |hits: u32| {
        let entry = json!({ "key": "user", "value": "alice" });
        let descriptor = json!({ "entries": [entry], "hitsAddend": hits.to_string() });
        json!({ "domain": "llm", "descriptors": [descriptor] }).to_string()
    };
    let mut statuses = Vec::new();
    for _ in 0..4 {
        statuses.push(server.post("/json", &ask(0)).await.status);
        server.post("/json", &ask(4)).await;
    }
    assert_eq!(statuses, [200, 200, 200, 429]);
    // 10 units and a debt of 5. The other policy counts what was admitted.
    let state = server.get("/v1/state?domain=llm&attribute=user:alice").await.json();
    assert_eq!(state["limits"][0]["remaining"], 0, "{state}");
    let reset = state["limits"][0]["reset_after"].as_f64().unwrap();
    assert!((3_600.0..=7_200.0).contains(&reset), "the debt takes another hour: {state}");
}

/// A limit of requests that is below the hits denies, but does not keep the tokens from being recorded.
#[tokio::test]
async fn a_smaller_limit_does_not_prevent_recording_in_full() {
    use crate::config::Descriptors::{Independent, Together};
    let policy = |name: &str, limit: &str| {
        pacegate::Policy::new(name, [limit]).in_domain("llm").per(["user"])
    };
    let entry = |key: &str, value: &str| json!({ "entries": [{ "key": key, "value": value }] });
    for (descriptors, requests_left) in [(Together, 60), (Independent, 0)] {
        let tokens = policy("tokens", "10000/hour").record_in_full();
        let other = pacegate::Policy::new("other", ["60/minute"]).in_domain("llm").per(["path"]);
        let policies = [tokens, policy("requests", "60/minute"), other];
        let settings = Settings::new(PolicySet::new(policies).unwrap());
        let server = Server::with(Settings { descriptors: Some(descriptors), ..settings });
        let left = async || {
            let state = server.get("/v1/state?domain=llm&attribute=user:alice").await.json();
            [0, 1].map(|place| state["limits"][place]["remaining"].as_u64().unwrap())
        };
        let one = [entry("user", "alice")];
        let ask = json!({ "domain": "llm", "hitsAddend": 1200, "descriptors": one });
        assert_eq!(server.post("/json", &ask.to_string()).await.status, 429);
        assert_eq!(left().await, [8_800, requests_left], "{descriptors:?}");
        let two = [entry("user", "alice"), entry("path", "/")];
        let ask = json!({ "domain": "llm", "hitsAddend": 12_000, "descriptors": two });
        assert_eq!(server.post("/json", &ask.to_string()).await.status, 429);
        assert_eq!(left().await, [0, requests_left], "{descriptors:?}");
        let state = server.get("/v1/state?domain=llm&attribute=user:alice").await.json();
        let reset = state["limits"][0]["reset_after"].as_f64().unwrap();
        assert!(reset > 3_600.0, "debt, not only counted: {state}");
    }
}
