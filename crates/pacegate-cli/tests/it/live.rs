//! Live statistics and blocked keys, on every listener.

use std::time::Duration;

use pacegate_testkit::servers::{Client, eventually};
use serde_json::json;

use crate::{
    clients::{Folder, Grpc, Http},
    service::Service,
};

const WITHIN: Duration = Duration::from_secs(20);

const CONFIG: &str = "
policies:
  - { name: per-user, domain: shop, per: [user], limit: 100/hour }
";

const ALICE: &str = r#"{"domain":"shop","attributes":{"user":"alice"}}"#;

#[test]
fn a_block_applies_to_every_listener_and_denials_are_shown() {
    let folder = Folder::with_config(CONFIG);
    let service = Service::start(&["--config", &folder.config()]);
    let mut http = Http::connect(service.address("http")).unwrap();
    let mut resp = Client::connect(&service.address("resp").to_string()).unwrap();
    let mut grpc = Grpc::connect(service.address("grpc")).unwrap();
    let mut asked = || {
        let check = ["PACEGATE.CHECK", "DOMAIN", "shop", "ATTR", "user", "alice"];
        [
            http.check(None, ALICE).unwrap().status == 200,
            resp.command(&check).unwrap().items()[1].int() == 1,
            grpc.ask(None, "shop", &[("user", "alice")]).unwrap().allowed,
        ]
    };
    assert_eq!(asked(), [true; 3]);
    let mut admin = Http::connect(service.address("http")).unwrap();
    let block = r#"{"policy":"per-user","key":"alice","seconds":600}"#;
    let blocked = admin.request("POST", "/v1/block", None, block).unwrap();
    assert_eq!(blocked.status, 200, "{blocked:?}");
    assert_eq!(asked(), [false; 3]);
    let lifted = admin.request("DELETE", "/v1/block?policy=per-user&key=alice", None, "").unwrap();
    assert_eq!(lifted.body, r#"{"limits":1}"#);
    assert_eq!(asked(), [true; 3]);
    let live = admin.get("/v1/live").unwrap().json();
    let policy = &live["policies"][0];
    assert_eq!((&policy["allowed"], &policy["denied"]), (&json!(6), &json!(3)));
    for (list, count) in [("busiest", 9), ("most_denied", 3)] {
        let alice = json!([{
            "policy": "per-user", "key": "alice", "count": count, "allowed": 6, "denied": 3,
            "exact": true,
        }]);
        assert_eq!(live[list], alice);
    }
    let listeners = live["listeners"].as_array().unwrap().iter();
    let names: Vec<_> = listeners.map(|listener| &listener["name"]).collect();
    assert_eq!(names, ["http", "grpc", "resp"]);
    // The seconds add up to all decisions.
    eventually(WITHIN, "the history has it all", || {
        let live = admin.get("/v1/live").unwrap().json();
        let history = &live["history"]["policies"]["per-user"];
        let sum = |name: &str| -> u64 {
            history[name].as_array().unwrap().iter().map(|count| count.as_u64().unwrap()).sum()
        };
        (sum("allowed"), sum("denied")) == (6, 3)
    });
}
