//! The permissions of each role, call by call: the tables of docs/security-model.md.

use pacegate_testkit::servers::{Client, Reply};

use crate::{
    clients::{Folder, Grpc, Http},
    service::Service,
};

const CONFIG: &str = "
policies:
  - { name: free, per: [key], limit: 100/day }
  - { name: jobs, domain: jobs, per: [queue], limit: 100/day concurrency }
keys:
  - { name: check, env: TEST_CHECK }
  - { name: inline, env: TEST_INLINE, inline: true }
  - { name: admin, env: TEST_ADMIN, scope: admin }
  - { name: both, env: TEST_BOTH, scope: admin, inline: true }
";
const RULES: &str = "
domain: edge
descriptors:
  - { key: key, rate_limit: { unit: day, requests_per_unit: 100 } }
";

/// No API key, a `check` key, `check` with inline limits, `admin`, `admin` with inline limits.
const ROLES: [Option<&str>; 5] = [
    None,
    Some("the-key-for-checks"),
    Some("the-key-for-inline-limits"),
    Some("the-key-of-an-admin"),
    Some("the-key-for-everything"),
];

const ANYBODY: [u16; 5] = [200; 5];
const ANY_KEY: [u16; 5] = [401, 200, 200, 200, 200];
const INLINE: [u16; 5] = [401, 403, 200, 403, 200];
const ADMIN: [u16; 5] = [401, 403, 403, 200, 200];
const ADMIN_AND_INLINE: [u16; 5] = [401, 403, 403, 403, 200];

fn start() -> (Folder, Service) {
    let folder = Folder::with_config(CONFIG);
    folder.replace("rules.yaml", RULES);
    let rules = folder.path("rules.yaml");
    let config = folder.config();
    let args = ["--config", &*config, "--config", rules.to_str().unwrap()];
    let names = ["TEST_CHECK", "TEST_INLINE", "TEST_ADMIN", "TEST_BOTH"];
    let keys: Vec<_> = names.into_iter().zip(ROLES.into_iter().flatten()).collect();
    let service = Service::start_with(&args, &keys);
    (folder, service)
}

const KEY: &str = r#"{"attributes": {"key": "k"}}"#;
const OWN: &str = r#"{"key": "k", "limit": "5/day"}"#;
const QUEUE: &str = r#"{"domain": "jobs", "attributes": {"queue": "q"}}"#;
const OWN_QUEUE: &str = r#"{"key": "q", "limit": "50/day concurrency"}"#;
const HELD: &str = r#"{"domain": "jobs", "attributes": {"queue": "q"}, "permit": "1"}"#;
const OWN_HELD: &str = r#"{"key": "q", "limit": "50/day concurrency", "permit": "1"}"#;
/// A reservation without a limit.
const SETTLE: &str = r#"{"reservation": "AQAAAAAAAAAAAAAAAAAAAAAA", "used": 1}"#;
const CANCEL: &str = r#"{"reservation": "AQAAAAAAAAAAAAAAAAAAAAAA"}"#;
const BLOCK: &str = r#"{"policy": "free", "key": "blocked"}"#;

#[test]
fn http_calls_by_role() {
    let (_folder, service) = start();
    let descriptor = |more: &str| {
        format!(
            r#"{{"domain": "edge", "descriptors": [{{"entries": [{{"key": "key", "value": "v"}}]{more}}}]}}"#
        )
    };
    let plain = descriptor("");
    let own = descriptor(r#", "limit": {"requestsPerUnit": 9, "unit": "DAY"}"#);
    let back = descriptor(r#", "isNegativeHits": true"#);
    let mut client = Http::connect(service.address("http")).unwrap();
    for (method, path, body, statuses) in [
        ("POST", "/v1/check", KEY, ANY_KEY),
        ("POST", "/v1/check", OWN, INLINE),
        ("POST", "/v1/check/batch", r#"{"requests": []}"#, ANY_KEY),
        ("GET", "/v1/state?attribute=key:k", "", ANY_KEY),
        ("GET", "/v1/state?key=k&limit=5/day", "", INLINE),
        ("DELETE", "/v1/state?attribute=key:k", "", ADMIN),
        ("DELETE", "/v1/state?key=k&limit=5/day", "", ADMIN_AND_INLINE),
        ("POST", "/v1/refund", KEY, ADMIN),
        ("POST", "/v1/refund", OWN, ADMIN_AND_INLINE),
        ("POST", "/v1/acquire", QUEUE, ANY_KEY),
        ("POST", "/v1/acquire", OWN_QUEUE, INLINE),
        ("POST", "/v1/release", HELD, ANY_KEY),
        ("POST", "/v1/release", OWN_HELD, INLINE),
        ("POST", "/v1/renew", HELD, [401, 409, 409, 409, 409]),
        ("POST", "/v1/renew", OWN_HELD, [401, 403, 409, 403, 409]),
        ("POST", "/v1/reserve", KEY, ANY_KEY),
        ("POST", "/v1/reserve", OWN, INLINE),
        ("POST", "/v1/settle", SETTLE, ANY_KEY),
        ("POST", "/v1/cancel", CANCEL, ANY_KEY),
        ("GET", "/v1/explain?attribute=key:k", "", ANY_KEY),
        ("GET", "/v1/policies", "", ANY_KEY),
        ("GET", "/v1/auth", "", ANY_KEY),
        ("GET", "/check?userId=u", "", ANY_KEY),
        ("POST", "/json", &plain, ANY_KEY),
        ("POST", "/json", &own, INLINE),
        ("POST", "/json", &back, ADMIN),
        ("GET", "/v1/stats", "", ADMIN),
        ("GET", "/v1/live", "", ADMIN),
        ("GET", "/v1/decisions?policy=free&key=k", "", ADMIN),
        ("POST", "/v1/block", BLOCK, ADMIN),
        ("DELETE", "/v1/block?policy=free&key=blocked", "", ADMIN),
        ("POST", "/v1/clear", r#"{"policy": "free"}"#, ADMIN),
        ("POST", "/v1/clear", r#"{"domain": "jobs"}"#, ADMIN),
        ("POST", "/v1/clear", r#"{"policy": "inline"}"#, ADMIN),
        ("POST", "/v1/reload", "", ADMIN),
        ("GET", "/metrics", "", ANY_KEY),
        ("GET", "/openapi.json", "", ANY_KEY),
        ("GET", "/healthz", "", ANYBODY),
        ("GET", "/readyz", "", ANYBODY),
        ("GET", "/healthcheck", "", ANYBODY),
        ("GET", "/", "", ANYBODY),
    ] {
        let mut ask = |key| client.request(method, path, key, body).unwrap().status;
        assert_eq!(ROLES.map(&mut ask), statuses, "{method} {path} {body}");
    }
    let denied = client.request("POST", "/v1/check", ROLES[3], OWN).unwrap();
    assert!(
        denied.body.contains("inline limits need an API key with `inline: true`"),
        "{denied:?}"
    );
    let batch = format!(r#"{{"requests": [{KEY}, {OWN}]}}"#);
    let inline = |role: usize| {
        let answer = service_batch(&service, ROLES[role], &batch);
        (answer["answers"][0]["allowed"].clone(), answer["answers"][1]["error"]["type"].clone())
    };
    assert_eq!(inline(1), (true.into(), "urn:pacegate:problem:inline".into()));
    assert_eq!(inline(2), (true.into(), serde_json::Value::Null));
}

fn service_batch(service: &Service, key: Option<&str>, body: &str) -> serde_json::Value {
    let mut client = Http::connect(service.address("http")).unwrap();
    client.request("POST", "/v1/check/batch", key, body).unwrap().json()
}

#[test]
fn grpc_calls_by_role() {
    let (_folder, service) = start();
    let mut client = Grpc::connect(service.address("grpc")).unwrap();
    let entry = [("key", "v")];
    assert_eq!(ROLES.map(|key| client.ask(key, "edge", &entry).unwrap().status), [16, 0, 0, 0, 0]);
    let own = ROLES.map(|key| client.ask_with_limit(key, "edge", &entry, 9).unwrap().status);
    assert_eq!(own, [16, 7, 0, 7, 0]);
    // Policies ignore the limit of a descriptor.
    let ignored = ROLES.map(|key| client.ask_with_limit(key, "jobs", &entry, 9).unwrap().status);
    assert_eq!(ignored, [16, 0, 0, 0, 0]);
    let back = ROLES.map(|key| client.give_back(key, "edge", &entry).unwrap().status);
    assert_eq!(back, [16, 7, 7, 0, 0]);
}

const NOAUTH: &str = "NOAUTH";
const NOPERM: &str = "NOPERM the API key does not permit this";
const NO_INLINE: &str = "NOPERM inline limits need an API key with `inline: true`: set it under `keys` in the \
                         configuration";

#[test]
fn resp_commands_by_role() {
    let (_folder, service) = start();
    let mut clients = ROLES.map(|key| {
        let mut client = Client::connect(&service.address("resp").to_string()).unwrap();
        if let Some(key) = key {
            assert_eq!(client.command(&["AUTH", key]).unwrap(), Reply::Simple("OK".to_owned()));
        }
        client
    });
    let anybody = ["", "", "", "", ""];
    let any_key = [NOAUTH, "", "", "", ""];
    let inline = [NOAUTH, NO_INLINE, "", NO_INLINE, ""];
    let admin = [NOAUTH, NOPERM, NOPERM, "", ""];
    let admin_and_inline = [NOAUTH, NOPERM, NOPERM, NO_INLINE, ""];
    let commands: [(&str, [&str; 5]); 24] = [
        ("PACEGATE.CHECK ATTR key k", any_key),
        ("PACEGATE.CHECK KEY k LIMIT 5/day", inline),
        ("PACEGATE.PEEK ATTR key k", any_key),
        ("PACEGATE.PEEK KEY k LIMIT 5/day", inline),
        ("PACEGATE.EXPLAIN ATTR key k", any_key),
        ("PACEGATE.RESERVE ATTR key k", any_key),
        ("PACEGATE.RESERVE TTL 9 KEY k LIMIT 5/day", inline),
        ("PACEGATE.SETTLE AQAAAAAAAAAAAAAAAAAAAAAA 1", any_key),
        ("PACEGATE.CANCEL AQAAAAAAAAAAAAAAAAAAAAAA", any_key),
        ("PACEGATE.RESET ATTR key k", admin),
        ("PACEGATE.RESET KEY k LIMIT 5/day", admin_and_inline),
        ("PACEGATE.REFUND ATTR key k", admin),
        ("PACEGATE.REFUND KEY k LIMIT 5/day", admin_and_inline),
        ("PACEGATE.CLEAR POLICY free", admin),
        ("PACEGATE.CLEAR DOMAIN jobs", admin),
        ("PACEGATE.BLOCK free blocked SECONDS 9", admin),
        ("PACEGATE.UNBLOCK free blocked", admin),
        ("CL.THROTTLE k 9 5 60", inline),
        // A repeated command takes a shorter path in the parser.
        ("CL.THROTTLE k 9 5 60", inline),
        ("THROTTLE k 9 5 60", inline),
        ("PING", any_key),
        ("INFO", any_key),
        ("COMMAND COUNT", any_key),
        ("QUIT", anybody),
    ];
    for (command, expected) in commands {
        let words: Vec<&str> = command.split(' ').collect();
        for (client, expected) in clients.iter_mut().zip(expected) {
            match (client.command(&words).unwrap(), expected) {
                (Reply::Error(error), "") => panic!("{command}: {error}"),
                (Reply::Error(error), _) => {
                    assert!(error.starts_with(expected), "{command}: {error}");
                }
                (reply, _) => assert_eq!(expected, "", "{command}: {reply:?}"),
            }
        }
    }
}

#[test]
fn inline_limits_work_without_api_keys() {
    let service = Service::start(&[]);
    let mut http = Http::connect(service.address("http")).unwrap();
    assert_eq!(http.check(None, OWN).unwrap().status, 200);
    let mut resp = Client::connect(&service.address("resp").to_string()).unwrap();
    assert!(matches!(
        resp.command(&["CL.THROTTLE", "k", "9", "5", "60"]).unwrap(),
        Reply::Array(_)
    ));
}
