//! RLaaS and Pacegate on the same counters, with RLaaS's config file.

use std::{fs, thread, time::Duration};

use pacegate::{Clock, SystemClock};
use pacegate_testkit::servers::{Client, Flavor, Server, eventually};

use crate::{
    clients::{Folder, Http},
    service::Service,
};

/// The answer of either side to a request.
#[derive(Debug, PartialEq, Eq)]
struct Told {
    allowed: bool,
    count: u64,
    ttl: u64,
}

/// Counts in the window of the server's clock; the first request sets the life of the key.
const FIXED_WINDOW: &str = "
    local name = KEYS[1] .. ':' .. math.floor(redis.call('TIME')[1] / ARGV[1])
    local count = redis.call('INCR', name)
    if count == 1 then redis.call('EXPIRE', name, ARGV[1]) end
    local allowed = count <= tonumber(ARGV[2])
    return {allowed and 1 or 0, count, redis.call('TTL', name)}";

/// With the caller's milliseconds: removes expired entries, counts the rest, adds the request if it fits, and always
/// sets the life. Returns the count before the request, and the window.
const SLIDING_WINDOW: &str = "
    local now, width = tonumber(ARGV[3]), ARGV[1] * 1000
    redis.call('ZREMRANGEBYSCORE', KEYS[1], 0, now - width)
    local count = redis.call('ZCARD', KEYS[1])
    local allowed = count < tonumber(ARGV[2])
    if allowed then redis.call('ZADD', KEYS[1], now, now .. '-' .. ARGV[4]) end
    redis.call('PEXPIRE', KEYS[1], 2 * width)
    return {allowed and 1 or 0, count, tonumber(ARGV[1])}";

/// Runs a request like RLaaS. The count includes the request.
fn theirs(client: &mut Client, script: &str, user: &str, [seconds, amount]: [u64; 2]) -> Told {
    let key = format!("rlaas:rate_limit:{user}");
    let micros = SystemClock::new().now().as_micros();
    let (millis, fraction) = ((micros / 1_000).to_string(), format!("0.{micros}"));
    let [seconds, amount] = [seconds, amount].map(|number| number.to_string());
    let words = ["EVAL", script, "1", &key, &seconds, &amount, &millis, &fraction];
    let reply = client.command(&words).unwrap();
    let [allowed, count, ttl] = [0, 1, 2].map(|place| reply.items()[place].int().cast_unsigned());
    let count = if script == SLIDING_WINDOW { count + allowed } else { count };
    Told { allowed: allowed == 1, count, ttl }
}

/// Sends a request of RLaaS to Pacegate.
fn ours(client: &mut Http, user: &str) -> Told {
    let path = format!("/check?userId={user}");
    let head =
        format!("GET {path} HTTP/1.1\r\nhost: localhost\r\naccept: application/json\r\n\r\n");
    let answer = client.send(&head).unwrap();
    let json = answer.json();
    let allowed = json["allowed"].as_bool().unwrap();
    assert_eq!(answer.status, if allowed { 200 } else { 429 }, "{answer:?}");
    assert_eq!(json.as_object().unwrap().len(), 3, "{answer:?}");
    let number = |name: &str| json[name].as_u64().unwrap();
    Told { allowed, count: number("currentCount"), ttl: number("ttl") }
}

/// Starts Pacegate with a file of RLaaS and a store.
fn start(server: &Server, algorithm: &str, [seconds, amount]: [u64; 2]) -> (Folder, Service) {
    let folder = Folder::with_config(&format!(
        "rate-limiter:\n  use-algo: {algorithm}\n  window-size: {seconds}\n  max-requests: {amount}\n\
         store: {{ url: '{}', deadline: 20s }}\n",
        server.url()
    ));
    let service = Service::start(&["--config", &folder.config()]);
    (folder, service)
}

/// Returns the server's time in seconds.
fn now(client: &mut Client) -> u64 {
    client.command(&["TIME"]).unwrap().items()[0].int().cast_unsigned()
}

/// Returns a window in seconds that does not end within the next minutes.
fn long_window(client: &mut Client) -> u64 {
    let now = now(client);
    (3_600..).step_by(600).find(|seconds| seconds - now % seconds > 300).unwrap()
}

#[test]
fn both_sides_share_one_count_in_turn() {
    const AMOUNT: u64 = 20;
    for (flavor, algorithm, script) in [
        (Flavor::Redis, "fixed-window-algo", FIXED_WINDOW),
        (Flavor::Valkey, "sliding-window-algo", SLIDING_WINDOW),
    ] {
        let server = Server::start(flavor);
        let mut client = server.connect().unwrap();
        let limit = [long_window(&mut client), AMOUNT];
        let (_folder, service) = start(&server, algorithm, limit);
        let mut http = Http::connect(service.address("http")).unwrap();
        let first = now(&mut client);
        for count in 1..=AMOUNT {
            let is_theirs = count % 3 == 0;
            let before = now(&mut client);
            let told = match is_theirs {
                true => theirs(&mut client, script, "alice", limit),
                false => ours(&mut http, "alice"),
            };
            assert_eq!((told.allowed, told.count), (true, count), "{algorithm}: {told:?}");
            let after = now(&mut client);
            let expected = match (is_theirs, script == FIXED_WINDOW) {
                // RLaaS returns the window, or the life of the key, which starts with the first request.
                (true, true) => limit[0] - (after - first) - 1..=limit[0],
                (true, false) => limit[0]..=limit[0],
                // A window ends for all its requests at once; a log when its last one has left.
                (false, true) => limit[0] - after % limit[0]..=limit[0] - before % limit[0],
                (false, false) => limit[0]..=limit[0],
            };
            assert!(expected.contains(&told.ttl), "{algorithm}: {told:?}, not {expected:?}");
        }
        let denied = ours(&mut http, "alice");
        assert_eq!((denied.allowed, denied.count), (false, AMOUNT), "{algorithm}");
        assert!(!theirs(&mut client, script, "alice", limit).allowed, "{algorithm}");
        assert_eq!(ours(&mut http, "bob").count, 1);
        assert_eq!(theirs(&mut client, script, "bob", limit).count, 2, "{algorithm}");
    }
}

#[test]
fn clients_of_rlaas_get_its_text() {
    let server = Server::start(Flavor::Redis);
    let mut client = server.connect().unwrap();
    let (_folder, service) = start(&server, "fixed-window-algo", [long_window(&mut client), 1]);
    let mut http = Http::connect(service.address("http")).unwrap();
    let allowed = http.get("/check?userId=alice").unwrap();
    assert_eq!((allowed.status, &*allowed.body), (200, "User is allowed"));
    assert_eq!(allowed.header("content-type"), Some("text/plain;charset=utf-8"));
    let denied = http.get("/check?userId=alice").unwrap();
    assert_eq!(denied.status, 429);
    let seconds = denied.header("retry-after").unwrap();
    assert_eq!(denied.body, format!("User is not allowed...Try after {seconds} seconds."));
    assert_eq!(http.get("/check").unwrap().status, 400);
}

/// RLaaS accepts these users, and both sides use the same counters.
#[test]
fn empty_and_long_users_share_counters_with_rlaas() {
    let server = Server::start(Flavor::Valkey);
    let mut client = server.connect().unwrap();
    let limit = [long_window(&mut client), 9];
    let (_folder, service) = start(&server, "fixed-window-algo", limit);
    let mut http = Http::connect(service.address("http")).unwrap();
    for user in ["", &*"a".repeat(8_000), "long:sha256:00"] {
        assert_eq!(ours(&mut http, user).count, 1);
        assert_eq!(theirs(&mut client, FIXED_WINDOW, user, limit).count, 2);
        assert_eq!(ours(&mut http, user).count, 3);
    }
    assert_eq!(client.command(&["DBSIZE"]).unwrap().int(), 3);
}

/// RLaaS counts denied requests, and returns the count.
#[test]
fn denied_requests_are_counted_if_configured() {
    let server = Server::start(Flavor::Redis);
    let mut client = server.connect().unwrap();
    let limit = [long_window(&mut client), 2];
    let [seconds, amount] = limit;
    let folder = Folder::with_config(&format!(
        "rate-limiter: {{ use-algo: fixed-window-algo, window-size: {seconds}, max-requests: {amount} }}\n\
         store: {{ url: '{}', deadline: 20s, count_denied: true }}\n",
        server.url()
    ));
    let service = Service::start(&["--config", &folder.config()]);
    let mut http = Http::connect(service.address("http")).unwrap();
    for count in [1, 3, 5, 7] {
        let told = ours(&mut http, "alice");
        assert_eq!((told.allowed, told.count), (count <= amount, count));
        let told = theirs(&mut client, FIXED_WINDOW, "alice", limit);
        assert_eq!((told.allowed, told.count), (count < amount, count + 1));
    }
}

#[test]
fn pacegate_settings_work_in_a_file_of_rlaas() {
    let server = Server::start(Flavor::Redis);
    let folder = Folder::with_config(&format!(
        "spring: {{ application: {{ name: rlaas }} }}\n\
         rate-limiter:\n  use-algo: ${{ALGO:fixed-window-algo}}\n  window-size: ${{WINDOW:3600}}\n  \
         max-requests: ${{MAX_REQUESTS:5}}\n\
         store: {{ url: '{}', deadline: 20s }}\nfailure: closed\n\
         headers: {{ standard: draft-6, legacy: off }}\nkeys: [{{ name: a, env: RLAAS_KEY }}]\n",
        server.url()
    ));
    let variables = [("RLAAS_KEY", "a-key-of-16-bytes"), ("MAX_REQUESTS", "20000")];
    let service = Service::start_with(&["--config", &folder.config()], &variables);
    let mut http = Http::connect(service.address("http")).unwrap();
    assert_eq!(http.get("/check?userId=alice").unwrap().status, 401);
    let answer = http.request("GET", "/check?userId=alice", Some("a-key-of-16-bytes"), "").unwrap();
    assert_eq!((answer.status, answer.header("ratelimit-limit")), (200, Some("20000")));
    assert_eq!(answer.header("x-ratelimit-limit"), None);
    drop(server);
    let closed = "the failure mode of the file decides";
    eventually(Duration::from_secs(20), closed, || {
        http.request("GET", "/check?userId=bob", Some("a-key-of-16-bytes"), "").unwrap().status
            == 429
    });
}

#[test]
fn the_suggested_request_charges_nothing() {
    let server = Server::start(Flavor::Redis);
    let (_folder, service) = start(&server, "fixed-window-algo", [3_600, 5]);
    let example = service.greeting.iter().find_map(|line| line.strip_prefix("try: curl ")).unwrap();
    let (_, path) = example.trim_matches('\'').split_once("//").unwrap().1.split_once('/').unwrap();
    let mut http = Http::connect(service.address("http")).unwrap();
    let answer = http.get(&format!("/{path}")).unwrap();
    assert_eq!((answer.status, &answer.json()["remaining"]), (200, &5.into()), "{example}");
    // Nor does a request without a user, which RLaaS rejects.
    let without = http.check(None, r#"{"attributes":{"key":"alice"}}"#).unwrap();
    assert_eq!(&without.json()["source"], "unlimited");
    assert_eq!(server.command(&["DBSIZE"]).int(), 0);
}

#[test]
fn another_algorithm_needs_a_restart() {
    for (before, after) in
        [("fixed-window-algo", "sliding-window-algo"), ("sliding-window-algo", "fixed-window-algo")]
    {
        let server = Server::start(Flavor::Valkey);
        let (folder, service) = start(&server, before, [3_600, 5]);
        let mut http = Http::connect(service.address("http")).unwrap();
        assert_eq!(ours(&mut http, "alice").count, 1);
        let text = fs::read_to_string(folder.config()).unwrap();
        folder.replace("pacegate.yaml", &text.replace(before, after));
        let refused = "The layout of the store changes only with a restart";
        eventually(Duration::from_secs(20), refused, || service.log().contains(refused));
        let reload = http.request("POST", "/v1/reload", None, "").unwrap();
        assert_eq!(reload.status, 422);
        assert_eq!(ours(&mut http, "alice").count, 2, "the last good configuration stays");
        folder.replace("pacegate.yaml", &text.replace("max-requests: 5", "max-requests: 7"));
        let taken = "other limits of the same algorithm are taken";
        eventually(Duration::from_secs(20), taken, || {
            let told = ours(&mut http, "bob");
            told.allowed && told.count > 5
        });
    }
}

#[test]
fn both_sides_together_admit_the_limit() {
    // One side alone sends fewer requests.
    const AMOUNT: u64 = 400;
    let server = Server::start(Flavor::Redis);
    let limit = [long_window(&mut server.connect().unwrap()), AMOUNT];
    let (_folder, service) = start(&server, "fixed-window-algo", limit);
    let by_theirs = || {
        let mut client = server.connect().unwrap();
        let ask = |_: &u32| theirs(&mut client, FIXED_WINDOW, "alice", limit).allowed;
        (0..100).filter(ask).count()
    };
    let by_ours = || {
        let mut client = Http::connect(service.address("http")).unwrap();
        (0..100).filter(|_: &u32| ours(&mut client, "alice").allowed).count()
    };
    let (theirs, ours) = thread::scope(|scope| {
        let theirs = [(); 3].map(|()| scope.spawn(by_theirs));
        let ours = [(); 3].map(|()| scope.spawn(by_ours));
        let sum = |threads: [thread::ScopedJoinHandle<'_, usize>; 3]| {
            threads.into_iter().map(|thread| thread.join().unwrap()).sum::<usize>()
        };
        (sum(theirs), sum(ours))
    });
    assert_eq!(u64::try_from(theirs + ours).unwrap(), AMOUNT, "{theirs} by theirs, {ours} by ours");
}
