use serde_json::{Value, json};

use super::*;

const ALICE: &str = r#"{"attributes":{"user":"alice"}}"#;
const STATE: &str = "/v1/state?attribute=user:alice";

#[tokio::test]
async fn a_peek_charges_nothing() {
    let server = Server::new();
    server.check(ALICE).await;
    for _ in 0..3 {
        let state = server.get(STATE).await;
        assert_eq!(state.status, 200);
        assert_eq!(
            state.json(),
            serde_json::json!({
                "allowed": true, "policy": "api", "limit": "3/minute", "remaining": 2,
                "retry_after": null, "reset_after": 60.0, "source": "store",
                "shadow_denied": false, "degraded": false, "revision": 1,
                "limits": [{
                    "allowed": true, "policy": "api", "limit": "3/minute", "remaining": 2,
                    "retry_after": null, "reset_after": 60.0, "source": "store",
                    "shadow_denied": false, "degraded": false,
                }],
            })
        );
        assert_eq!(state.header("cache-control"), Some("no-store"));
    }
    // A peek reports a denial with status 200.
    server.check(r#"{"key":"k+ä","limit":"1/hour"}"#).await;
    let denied = server.get("/v1/state?key=k%2B%C3%A4&limit=1/hour&limit=2/minute").await;
    let json = denied.json();
    assert_eq!((denied.status, &json["allowed"]), (200, &false.into()));
    let remaining: Vec<_> =
        json["limits"].as_array().unwrap().iter().map(|l| &l["remaining"]).collect();
    assert_eq!(remaining, [0, 2]);
}

#[tokio::test]
async fn queries_that_cannot_be_used_are_problems() {
    let server = Server::new();
    for (query, part) in [
        ("atribute=user:a", "unknown parameter `atribute`"),
        ("attribute=user", "expected NAME:VALUE"),
        ("attribute=user:a&attribute=user:b", "duplicate attribute `user`"),
        ("key=k", "`key` needs a `limit`"),
        ("key=k&key=l&limit=1/hour", "duplicate parameter `key`"),
        ("key=k&limit=often", "`often` is not a limit"),
        ("domain=d&key=k&limit=1/hour", "write either"),
        ("cost=1&attribute=user:a", "unknown parameter `cost`"),
    ] {
        for path in ["/v1/state", "/v1/explain"] {
            let reply = server.get(&format!("{path}?{query}")).await;
            assert_eq!(reply.status, 400, "{query}");
            reply.problem();
            assert!(reply.body.contains(part), "{query}: {}", reply.body);
        }
    }
}

#[tokio::test]
async fn a_reset_forgets_and_a_refund_gives_back() {
    let server = Server::new();
    for _ in 0..3 {
        server.check(ALICE).await;
    }
    let refund = server.post("/v1/refund", r#"{"attributes":{"user":"alice"},"cost":2}"#).await;
    assert_eq!((refund.status, &*refund.body), (200, r#"{"limits":1}"#));
    assert_eq!(server.check(ALICE).await.json()["remaining"], 1);
    let reset = server.send(&format!("DELETE {STATE}"), "", "").await;
    assert_eq!((reset.status, &*reset.body), (200, r#"{"limits":1}"#));
    assert_eq!(server.check(ALICE).await.json()["remaining"], 2);
    let nothing = server.send("DELETE /v1/state?attribute=x:y", "", "").await;
    assert_eq!((nothing.status, &*nothing.body), (200, r#"{"limits":0}"#));
    let id = server.post("/v1/refund", r#"{"attributes":{"user":"alice"},"id":"a"}"#).await;
    assert_eq!(id.problem(), "request");
    let cost = server.post("/v1/refund", r#"{"attributes":{"user":"alice"},"cost":4}"#).await;
    assert_eq!(cost.problem(), "cost");
}

#[tokio::test]
async fn permits_are_held_renewed_and_given_back() {
    let server = Server::new();
    let job = r#"{"domain":"jobs","attributes":{"queue":"q"}}"#;
    let with = |permit: &str| job.replace("}}", &format!("}},\"permit\":\"{permit}\"}}"));
    let mut permits = Vec::new();
    for remaining in [1, 0] {
        let reply = server.post("/v1/acquire", job).await;
        let json = reply.json();
        assert_eq!((reply.status, &json["remaining"]), (200, &remaining.into()));
        permits.push(json["permit"].as_str().unwrap().to_owned());
        assert!(reply.header("ratelimit").is_some());
    }
    assert_ne!(permits[0], permits[1]);
    assert_eq!(permits[0].len(), 32);
    let full = server.post("/v1/acquire", job).await;
    assert_eq!((full.status, &full.json()["permit"]), (429, &serde_json::Value::Null));

    server.clock.advance(Duration::from_secs(50));
    assert_eq!(server.post("/v1/renew", &with(&permits[0])).await.body, r#"{"limits":1}"#);
    server.clock.advance(Duration::from_secs(20));
    let lost = server.post("/v1/renew", &with(&permits[1])).await;
    assert_eq!((lost.status, lost.problem()), (409, "permit-lost".to_owned()));
    for _ in 0..2 {
        assert_eq!(server.post("/v1/release", &with(&permits[0])).await.status, 200);
    }
    assert_eq!(server.post("/v1/acquire", job).await.json()["remaining"], 1);

    assert_eq!(server.post("/v1/release", &with("0")).await.body, r#"{"limits":0}"#);
    assert_eq!(server.post("/v1/renew", &with("0")).await.problem(), "permit-lost");
    for permit in ["", "xyz", "+1", "111122223333444455556666777788889"] {
        let reply = server.post("/v1/release", &with(permit)).await;
        assert_eq!((reply.status, reply.problem()), (400, "request".to_owned()), "{permit}");
    }
    assert_eq!(server.post("/v1/release", job).await.problem(), "request");
    // Without a concurrency limit, `acquire` returns a decision without a permit.
    let plain = server.post("/v1/acquire", ALICE).await.json();
    assert_eq!((&plain["permit"], &plain["remaining"]), (&serde_json::Value::Null, &2.into()));
}

#[tokio::test]
async fn a_policy_or_a_domain_is_cleared() {
    let server = Server::new();
    let shop = r#"{"domain":"shop","attributes":{"ip":"::1","path":"/login"}}"#;
    let inline = r#"{"key":"k","limit":"1/hour"}"#;
    let status = async |body: &str| server.check(body).await.status;
    let clear = async |body: &str| {
        let reply = server.post("/v1/clear", body).await;
        (reply.status, reply.body)
    };
    let cleared = |keys: u64| (200, format!(r#"{{"keys":{keys}}}"#));
    assert_eq!([status(shop).await, status(shop).await, status(shop).await], [200, 200, 429]);
    assert_eq!([status(inline).await, status(inline).await], [200, 429]);
    assert_eq!(clear(r#"{"policy":"login"}"#).await, cleared(2));
    assert_eq!([status(shop).await, status(inline).await], [200, 429]);
    assert_eq!(clear(r#"{"domain":"shop"}"#).await, cleared(3));
    assert_eq!(clear(r#"{"policy":"inline"}"#).await, cleared(1));
    assert_eq!([status(shop).await, status(inline).await], [200, 200]);
    assert_eq!(clear(r#"{"domain":"nowhere"}"#).await, cleared(0));
    for body in ["{}", r#"{"policy":"login","domain":"shop"}"#, r#"{"key":"k"}"#, "[]"] {
        let reply = server.post("/v1/clear", body).await;
        assert_eq!((reply.status, reply.problem()), (400, "request".to_owned()), "{body}");
    }
}

/// A client must not choose for how long its inline limits take up memory.
#[tokio::test]
async fn an_inline_limit_that_keeps_state_for_too_long_is_rejected() {
    let server = Server::new();
    for limit in ["1/60d", "1/day burst 32", "1/3660d burst 5000"] {
        let reply = server.check(&format!(r#"{{"key":"k","limit":"{limit}"}}"#)).await;
        assert_eq!((reply.status, reply.problem()), (400, "limit".to_owned()), "{limit}");
        assert!(reply.body.contains("takes longer than 31 days to reset"), "{}", reply.body);
    }
    assert_eq!(server.active.revision().engine.stats().inline.allowed, 0);
}

#[tokio::test]
async fn spent_units_are_recorded_in_full() {
    let server = Server::new();
    let spent = r#"{"attributes":{"user":"alice"},"cost":5,"spent":true}"#;
    assert_eq!(server.check(spent).await.status, 429);
    let state = server.get(STATE).await.json();
    assert_eq!(
        (&state["allowed"], &state["reset_after"]),
        (&false.into(), &120.0.into()),
        "{state}"
    );
    let inline = r#"{"key":"k","limit":["3/hour", "9/hour burst 9"],"cost":5,"spent":true}"#;
    assert_eq!(server.check(inline).await.status, 429);
    let state = server.get("/v1/state?key=k&limit=3/hour&limit=9/hour+burst+9").await.json();
    let remaining = [0, 1].map(|place| &state["limits"][place]["remaining"]);
    assert_eq!(remaining, [0, 4]);
    assert_eq!(server.post("/v1/refund", spent).await.problem(), "request");
}

#[tokio::test]
async fn a_request_takes_up_to_its_cost() {
    let server = Server::new();
    let ask = async |body: &str| {
        let reply = server.check(body).await;
        let json = reply.json();
        (reply.status, json["granted"].clone(), json["remaining"].clone())
    };
    let two = r#"{"attributes":{"user":"alice"},"cost":2,"up_to":true}"#;
    assert_eq!(ask(two).await, (200, 2.into(), 1.into()));
    let nine = r#"{"attributes":{"user":"alice"},"cost":9,"up_to":true}"#;
    assert_eq!(ask(nine).await, (200, 1.into(), 0.into()), "more than the limit of 3");
    assert_eq!(ask(nine).await, (429, 0.into(), 0.into()));
    let inline = r#"{"key":"k","limit":["5/hour", "9/hour burst 9"],"cost":7,"up_to":true}"#;
    assert_eq!(ask(inline).await, (200, 5.into(), 0.into()));
    let state = server.get("/v1/state?key=k&limit=5/hour&limit=9/hour+burst+9").await.json();
    let remaining = [0, 1].map(|place| &state["limits"][place]["remaining"]);
    assert_eq!(remaining, [0, 4]);
    let bob = two.replace("alice", "bob");
    let batch = format!(r#"{{"requests":[{bob},{{"attributes":{{"user":"carol"}}}},{bob}]}}"#);
    let answers = server.post("/v1/check/batch", &batch).await.json()["answers"].clone();
    let granted = [0, 1, 2].map(|place| &answers[place]["granted"]);
    assert_eq!(granted, [&json!(2), &Value::Null, &json!(1)], "in order");
    server.post("/v1/block", r#"{"policy":"api","key":"dave"}"#).await;
    let dave = two.replace("alice", "dave");
    assert_eq!(ask(&dave).await, (429, 0.into(), 0.into()));
    for wrong in ["/v1/refund", "/v1/acquire"] {
        assert_eq!(server.post(wrong, two).await.problem(), "request", "{wrong}");
    }
    let both = r#"{"key":"k","limit":"5/hour","spent":true,"up_to":true}"#;
    assert_eq!(server.check(both).await.problem(), "request");
    let bytes = b"PACEGATE.CHECK UPTO 5 ATTR user eve\r\nPACEGATE.CHECK ATTR user eve\r\n\
                  PACEGATE.CHECK UPTO 2 SPENT 2 ATTR user eve\r\n";
    let answer = crate::resp::answer_all(server.active.clone(), bytes).await;
    let answer = String::from_utf8(answer).unwrap();
    assert!(answer.starts_with("*20\r\n$7\r\nallowed\r\n:1\r\n"), "{answer}");
    let denied = "$7\r\ngranted\r\n:3\r\n*18\r\n$7\r\nallowed\r\n:0\r\n";
    assert!(answer.contains(denied), "{answer}");
    assert!(answer.contains("\r\n-ERR "), "{answer}");
}
