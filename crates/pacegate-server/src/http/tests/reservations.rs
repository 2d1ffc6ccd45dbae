use serde_json::{Value, json};

use super::*;

const STATE: &str = "/v1/state?key=k&limit=100/hour&limit=150/day";

fn estimate(cost: u64) -> String {
    json!({ "key": "k", "limit": ["100/hour", "150/day"], "cost": cost, "ttl": 60 }).to_string()
}

async fn reserve(server: &Server, cost: u64) -> String {
    let reply = server.post("/v1/reserve", &estimate(cost)).await;
    assert_eq!(reply.status, 200, "{reply:?}");
    assert!(reply.header("ratelimit").is_some());
    reply.json()["reservation"].as_str().unwrap().to_owned()
}

async fn settle(server: &Server, reservation: &str, used: u64) -> Value {
    let body = json!({ "reservation": reservation, "used": used }).to_string();
    let reply = server.post("/v1/settle", &body).await;
    assert_eq!(reply.status, 200, "{reply:?}");
    reply.json()["settled"].clone()
}

async fn remaining(server: &Server) -> [Value; 2] {
    let state = server.get(STATE).await.json();
    [0, 1].map(|place| state["limits"][place]["remaining"].clone())
}

#[tokio::test]
async fn a_reservation_is_settled_once_with_the_units_that_were_used() {
    let server = Server::new();
    let first = reserve(&server, 80).await;
    let denied = server.post("/v1/reserve", &estimate(30)).await;
    assert_eq!((denied.status, &denied.json()["reservation"]), (429, &Value::Null));
    assert_eq!(remaining(&server).await, [20, 70]);
    assert_eq!(settle(&server, &first, 30).await, true);
    assert_eq!(settle(&server, &first, 10).await, false, "a repeated call changes nothing");
    assert_eq!(remaining(&server).await, [70, 120]);
    // More than was reserved: 90 more, of which 20 are debt.
    let second = reserve(&server, 10).await;
    assert_eq!(settle(&server, &second, 90).await, true);
    assert_eq!(remaining(&server).await, [0, 30]);
}

#[tokio::test]
async fn statistics_count_open_reservations() {
    let server = Server::new();
    let open = async || server.get("/v1/stats").await.json()["store"]["reservations"].clone();
    let reservation = reserve(&server, 80).await;
    assert_eq!(open().await, 1);
    settle(&server, &reservation, 30).await;
    assert_eq!(open().await, 0);
}

#[tokio::test]
async fn a_cancelled_reservation_returns_everything_and_an_expired_one_nothing() {
    let server = Server::new();
    let cancel = async |reservation: &str| {
        let body = json!({ "reservation": reservation }).to_string();
        server.post("/v1/cancel", &body).await.json()["settled"].clone()
    };
    let reservation = reserve(&server, 80).await;
    assert_eq!([cancel(&reservation).await, cancel(&reservation).await], [true, false]);
    assert_eq!(remaining(&server).await, [100, 150]);
    let expired = reserve(&server, 80).await;
    server.clock.advance(Duration::from_secs(60));
    assert_eq!(cancel(&expired).await, false);
    assert_eq!(remaining(&server).await, [20, 70]);
}

#[tokio::test]
async fn a_blocked_key_gets_no_reservation() {
    let server = Server::new();
    server.post("/v1/block", r#"{"policy":"api","key":"alice"}"#).await;
    let reply = server.post("/v1/reserve", r#"{"attributes":{"user":"alice"}}"#).await;
    let json = reply.json();
    assert_eq!((reply.status, &json["source"]), (429, &"blocked".into()));
    assert_eq!(json["reservation"], Value::Null);
}

#[tokio::test]
async fn invalid_reservations_are_problems() {
    let server = Server::new();
    let with = |more: &str| format!(r#"{{"attributes":{{"user":"alice"}},{more}}}"#);
    for (more, problem, part) in [
        (r#""ttl":0"#, "request", "invalid `ttl`: expected 1 to 604800 seconds"),
        (r#""ttl":604801"#, "request", "invalid `ttl`: expected 1 to 604800 seconds"),
        (r#""ttl":1.5"#, "request", "expected u64"),
        (r#""spent":true"#, "request", "`spent` is for checks only"),
        (r#""id":"a""#, "request", "`id` is for checks only"),
        (r#""permit":"1""#, "request", "unknown field `permit`"),
        (r#""cost":4"#, "cost", "cost"),
    ] {
        let reply = server.post("/v1/reserve", &with(more)).await;
        assert_eq!((reply.status, &*reply.problem()), (400, problem), "{more}: {}", reply.body);
        assert!(reply.body.contains(part), "{more}: {}", reply.body);
    }
    let long = "A".repeat(20_000);
    for reservation in ["", "x", "AQE", "ä", &long] {
        for path in ["/v1/settle", "/v1/cancel"] {
            let mut body = json!({ "reservation": reservation });
            if path == "/v1/settle" {
                body["used"] = 1.into();
            }
            let reply = server.post(path, &body.to_string()).await;
            assert_eq!((reply.status, &*reply.problem()), (400, "request"), "{path} {reservation}");
            assert!(reply.body.contains("invalid `reservation`"), "{}", reply.body);
        }
    }
    for body in ["{}", r#"{"reservation":"x"}"#, r#"{"reservation":"x","used":-1}"#, "[]"] {
        assert_eq!(server.post("/v1/settle", body).await.problem(), "request", "{body}");
    }
}
