//! RLaaS and Pacegate on the same counters, by the file of the former.

use std::thread;

use pacegate_testkit::servers::{Client, Flavor, Server};

use crate::{
    clients::{Folder, Http},
    service::Service,
};

/// What either side says of a request.
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

/// Drops what has left, counts the rest, and adds the request if there is room.
const SLIDING_WINDOW: &str = "
    local time = redis.call('TIME')
    local now = time[1] * 1000 + math.floor(time[2] / 1000)
    redis.call('ZREMRANGEBYSCORE', KEYS[1], 0, now - ARGV[1] * 1000)
    local count = redis.call('ZCARD', KEYS[1])
    if count >= tonumber(ARGV[2]) then return {0, count, redis.call('TTL', KEYS[1])} end
    redis.call('ZADD', KEYS[1], now, 'theirs-' .. time[1] .. '-' .. time[2])
    redis.call('EXPIRE', KEYS[1], ARGV[1])
    return {1, count + 1, redis.call('TTL', KEYS[1])}";

/// Asks as theirs does.
fn theirs(client: &mut Client, script: &str, user: &str, [seconds, amount]: [u64; 2]) -> Told {
    let key = format!("rlaas:rate_limit:{user}");
    let words = ["EVAL", script, "1", &key, &seconds.to_string(), &amount.to_string()];
    let reply = client.command(&words).unwrap();
    let [allowed, count, ttl] = [0, 1, 2].map(|place| reply.items()[place].int());
    Told { allowed: allowed == 1, count: count.cast_unsigned(), ttl: ttl.cast_unsigned() }
}

/// Asks Pacegate as theirs is asked.
fn ours(client: &mut Http, user: &str) -> Told {
    let answer = client.get(&format!("/check?userId={user}")).unwrap();
    let json = answer.json();
    let allowed = json["allowed"].as_bool().unwrap();
    assert_eq!(answer.status, if allowed { 200 } else { 429 }, "{answer:?}");
    assert_eq!(json.as_object().unwrap().len(), 3, "{answer:?}");
    let number = |name: &str| json[name].as_u64().unwrap();
    Told { allowed, count: number("currentCount"), ttl: number("ttl") }
}

/// The seed's file, with where the counters are.
fn start(server: &Server, algorithm: &str, [seconds, amount]: [u64; 2]) -> (Folder, Service) {
    let folder = Folder::with_config(&format!(
        "rate-limiter:\n  use-algo: {algorithm}\n  window-size: {seconds}\n  max-requests: {amount}\n\
         store: {{ url: '{}', deadline: 20s }}\n",
        server.url()
    ));
    let service = Service::start(&["--config", &folder.config()]);
    (folder, service)
}

/// The server's seconds.
fn now(client: &mut Client) -> u64 {
    client.command(&["TIME"]).unwrap().items()[0].int().cast_unsigned()
}

/// A number of seconds such that no window of it ends within the next minutes.
fn long_window(client: &mut Client) -> u64 {
    let now = now(client);
    (3_600..).step_by(600).find(|seconds| seconds - now % seconds > 300).unwrap()
}

#[test]
fn in_turns_both_sides_see_one_count() {
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
                // Theirs tells the life of the key, which begins with the first request, or anew.
                (true, _) => limit[0] - (after - first) - 1..=limit[0],
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
fn at_the_same_time_both_sides_admit_the_limit() {
    // Neither side could use it up alone.
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
