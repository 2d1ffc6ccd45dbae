//! Debt, statistics of reservations, and blocks over RESP.

use pacegate::policy::Unsettled;
use serde_json::{Value, json};

use super::*;
use crate::resp::answer_all;

fn tokens() -> Settings {
    let policy = Policy::new("tokens", ["100/hour", "150/day sliding-log"]).per(["user"]);
    Settings::new(PolicySet::new([policy]).unwrap())
}

async fn reserve(server: &Server, cost: u64) -> String {
    let body = json!({ "attributes": { "user": "alice" }, "cost": cost, "ttl": 60 });
    let reply = server.post("/v1/reserve", &body.to_string()).await;
    reply.json()["reservation"].as_str().unwrap().to_owned()
}

async fn settle(server: &Server, reservation: &str, used: u64) {
    let body = json!({ "reservation": reservation, "used": used }).to_string();
    assert_eq!(server.post("/v1/settle", &body).await.json()["settled"], true);
}

/// In memory and on Redis.
#[tokio::test]
async fn the_debt_of_each_limit_is_shown() {
    let redis = servers::Server::start(servers::Flavor::Redis);
    for server in [Server::with(tokens()), Server::over_redis(&redis, tokens()).await] {
        let state = "/v1/state?attribute=user:alice";
        let debts = |limits: &Value| [0, 1].map(|place: usize| limits[place]["debt"].clone());
        let reservation = reserve(&server, 90).await;
        assert_eq!(debts(&server.get(state).await.json()["limits"]), [Value::Null, Value::Null]);
        settle(&server, &reservation, 170).await;
        let reply = server.get(state).await.json();
        assert_eq!(debts(&reply["limits"]), [70, 20], "{reply}");
        assert_eq!(reply["limits"][0]["remaining"], 0);
        let body = r#"{"attributes":{"user":"alice"}}"#;
        let reply = server.post("/v1/explain", body).await.json();
        assert_eq!(debts(&reply["policies"][0]["limits"]), [70, 20], "{reply}");
        // The next window pays it.
        server.clock.advance(Duration::from_secs(3_600));
        let reply = server.get(state).await.json();
        assert_eq!(debts(&reply["limits"]), [Value::Null, json!(20)], "{reply}");
    }
}

#[tokio::test]
async fn statistics_follow_a_settlement() {
    let redis = servers::Server::start(servers::Flavor::Redis);
    for server in [Server::with(tokens()), Server::over_redis(&redis, tokens()).await] {
        let less = reserve(&server, 40).await;
        settle(&server, &less, 15).await;
        let more = reserve(&server, 10).await;
        settle(&server, &more, 30).await;
        let counts = server.get("/v1/stats").await.json()["policies"][0].clone();
        // 45 units were used: 70 - 25.
        let units = [&counts["allowed_units"], &counts["returned_units"], &counts["allowed"]];
        assert_eq!(units, [70, 25, 2], "once for both limits of the policy");
        let metrics = server.get("/metrics").await.body;
        let line = "pacegate_returned_units_total{policy=\"tokens\"} 25";
        assert!(metrics.contains(line), "{metrics}");
    }
}

#[tokio::test]
async fn the_estimate_of_an_unsettled_reservation_is_returned() {
    let policy = Policy::new("tokens", ["100/hour"]).per(["user"]).unsettled(Unsettled::Return);
    let server = Server::with(Settings::new(PolicySet::new([policy]).unwrap()));
    let remaining = async || {
        let state = server.get("/v1/state?attribute=user:alice").await.json();
        state["remaining"].clone()
    };
    reserve(&server, 80).await;
    server.clock.advance(Duration::from_millis(59_999));
    assert_eq!(remaining().await, 20);
    server.clock.advance(Duration::from_millis(1));
    assert_eq!(remaining().await, 100);
    assert_eq!(server.get("/v1/policies").await.json()["policies"][0]["unsettled"], "return");
}

#[tokio::test]
async fn keys_are_blocked_over_resp() {
    let server = Server::new();
    let send = async |command: &str| {
        let answer = answer_all(server.active.clone(), format!("{command}\r\n").as_bytes()).await;
        String::from_utf8(answer).unwrap().trim_end().to_owned()
    };
    let alice = r#"{"attributes":{"user":"alice"}}"#;
    let now = server.clock.now().as_micros() / 1_000_000;
    assert_eq!(send("PACEGATE.BLOCK api alice SECONDS 60").await, format!(":{}", now + 60));
    assert_eq!(server.check(alice).await.json()["source"], "blocked");
    assert_eq!(send("pacegate.unblock api alice").await, ":1");
    assert_eq!(send("PACEGATE.UNBLOCK api alice").await, ":0");
    assert_eq!(server.check(alice).await.status, 200);
    assert_eq!(send("PACEGATE.BLOCK api alice").await, format!(":{}", now + 3_600));
    let until = now + 10;
    assert_eq!(send(&format!("PACEGATE.BLOCK api alice UNTIL {until}")).await, format!(":{until}"));
    server.clock.advance(Duration::from_secs(10));
    assert_eq!(server.check(alice).await.status, 200);
    for (command, error) in [
        ("PACEGATE.BLOCK api", "syntax error: expected PACEGATE.BLOCK policy key"),
        ("PACEGATE.BLOCK api alice SECONDS", "syntax error: expected PACEGATE.BLOCK policy key"),
        ("PACEGATE.BLOCK api alice FOR 5", "syntax error: expected PACEGATE.BLOCK policy key"),
        (
            "PACEGATE.BLOCK api alice SECONDS 0",
            "invalid `seconds`: expected 1 to 2592000 (30 days)",
        ),
        ("PACEGATE.BLOCK api alice UNTIL 5", "invalid `until`: expected a Unix time in seconds"),
        ("PACEGATE.BLOCK none alice", "unknown policy"),
        ("PACEGATE.UNBLOCK none alice", "unknown policy"),
        ("PACEGATE.UNBLOCK api", "syntax error: expected PACEGATE.UNBLOCK policy key"),
    ] {
        let answer = send(command).await;
        assert!(answer.starts_with(&format!("-ERR {error}")), "{command}: {answer}");
    }
}
