//! Two rates never drain one counter: overrides and inline limits count separately.

use std::time::Duration;

use pacegate::{
    Policy, PolicySet,
    policy::{Condition, Match},
};
use pacegate_testkit::servers::{self, Flavor};

use super::Server;
use crate::config::Settings;

const SLOW: &str = "10/minute burst 10";
const FAST: &str = "6000/minute burst 6000";

fn exports_and_static_files(fast: &str) -> PolicySet {
    let files = Match::any().and("path", Condition::Glob("/static/**".parse().unwrap()));
    let policy = Policy::new("site", [SLOW]).per(["ip"]).overriding(files, [fast]);
    PolicySet::new([policy]).unwrap()
}

/// Sends `fast` once every 100 ms for 10 s, and `slow` as often as it is admitted. Returns how often that was.
async fn alternate(server: &Server, slow: &str, fast: &str) -> usize {
    let mut admitted = 0;
    for step in 0..=100 {
        if step > 0 {
            server.clock.advance(Duration::from_millis(100));
        }
        assert_eq!(server.check(fast).await.status, 200, "{fast} after {step} steps");
        while server.check(slow).await.status == 200 {
            admitted += 1;
        }
    }
    admitted
}

fn request(path: &str) -> String {
    format!(r#"{{"attributes": {{"ip": "203.0.113.7", "path": "{path}"}}}}"#)
}

fn inline(limit: &str) -> String {
    format!(r#"{{"key": "alice", "limit": "{limit}"}}"#)
}

async fn nothing_is_drained_by_another_rate(server: Server) {
    // The burst, and one token in 6 s.
    let exports = alternate(&server, &request("/export"), &request("/static/x")).await;
    assert_eq!(exports, 11, "exports");
    assert_eq!(alternate(&server, &inline(SLOW), &inline(FAST)).await, 11, "inline limits");
}

#[tokio::test]
async fn an_override_does_not_drain_its_policy_in_memory() {
    let server = Server::with(Settings::new(exports_and_static_files(FAST)));
    nothing_is_drained_by_another_rate(server).await;
}

#[tokio::test]
async fn an_override_does_not_drain_its_policy_on_redis() {
    for flavor in Flavor::ALL {
        let server = servers::Server::start(flavor);
        let settings = Settings::new(exports_and_static_files(FAST));
        nothing_is_drained_by_another_rate(Server::over_redis(&server, settings).await).await;
    }
}

/// A reload with another amount keeps the usage of an override.
#[tokio::test]
async fn a_reload_keeps_the_usage_of_an_override() {
    let server = Server::with(Settings::new(exports_and_static_files("5/minute burst 5")));
    let file = request("/static/x");
    assert_eq!(admitted(&server, &file, 9).await, 5);
    let raised = Settings::new(exports_and_static_files("5/minute burst 8"));
    server.active.replace(raised);
    assert_eq!(admitted(&server, &file, 9).await, 3);
    assert_eq!(admitted(&server, &request("/export"), 20).await, 10, "the policy's own");
}

/// A reset by policy and key reaches the counters of overrides.
#[tokio::test]
async fn a_reset_by_name_reaches_the_counters_of_overrides() {
    let server = Server::with(Settings::new(exports_and_static_files("5/minute burst 5")));
    for _ in 0..2 {
        assert_eq!(admitted(&server, &request("/static/x"), 9).await, 5);
        assert_eq!(admitted(&server, &request("/export"), 20).await, 10);
        let reset = server.send("DELETE /v1/state?policy=site&key=203.0.113.7", "", "").await;
        assert_eq!((reset.status, &*reset.body), (200, r#"{"limits":2}"#));
    }
}

async fn admitted(server: &Server, body: &str, times: usize) -> usize {
    let mut admitted = 0;
    for _ in 0..times {
        admitted += usize::from(server.check(body).await.status == 200);
    }
    admitted
}
