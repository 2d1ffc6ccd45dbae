//! Many tasks in several processes charge one key: the admitted units are exact.

use std::{
    sync::mpsc::{RecvTimeoutError, channel},
    time::Duration,
};

use pacegate::{Algorithm, Charge, KeyRef, Limit, Store};
use pacegate_redis::RedisStore;
use pacegate_testkit::servers::{Client, Cluster, Flavor, Server};

use crate::{
    kit::{PATIENT, runtime},
    workers::{Cache, Costs, Placing, Round, SET_KEYS, Workers, charge, set_key, set_limit},
};

const AMOUNT: u64 = 100;
/// A period longer than any test.
const PERIOD: Duration = Duration::from_secs(1_000 * 3_600);

const LEASED: [Algorithm; 2] = [Algorithm::FixedWindow, Algorithm::SlidingWindow];

#[test]
fn one_key_of_redis_is_exact() {
    let server = Server::start(Flavor::Redis);
    one_key_is_exact(&server);
}

#[test]
fn one_key_of_valkey_is_exact() {
    let server = Server::start(Flavor::Valkey);
    one_key_is_exact(&server);
}

/// 485 rounds, each with a fresh key.
fn one_key_is_exact(server: &Server) {
    let mut contest = Contest::new(server);
    for algorithm in Algorithm::BUILT_IN {
        for cache in [Cache::On, Cache::Off] {
            contest.rounds(20, algorithm, Costs::One, cache);
            contest.rounds(10, algorithm, Costs::Mixed, cache);
        }
    }
    for algorithm in LEASED {
        contest.leased_rounds(20, algorithm, Costs::One);
        contest.leased_rounds(10, algorithm, Costs::Mixed);
    }
    while_flushing(server, || {
        for algorithm in Algorithm::BUILT_IN {
            contest.rounds(25, algorithm, Costs::Mixed, Cache::On);
        }
    });
    assert_eq!(contest.played, 485);
    // Otherwise one process took all units before the others started, without contention.
    assert!(contest.shared >= 250, "only {} rounds were shared", contest.shared);
    assert_ttls(server);
}

/// Flushes all scripts about every two milliseconds.
fn while_flushing(server: &Server, work: impl FnOnce()) {
    let (end, ended) = channel::<()>();
    let mut client = server.connect().unwrap();
    std::thread::scope(|scope| {
        let flushing = scope.spawn(move || {
            let mut flushes = 0;
            let pause = Duration::from_millis(2);
            while ended.recv_timeout(pause) == Err(RecvTimeoutError::Timeout) {
                assert!(!client.command(&["SCRIPT", "FLUSH"]).unwrap().is_error());
                flushes += 1;
            }
            flushes
        });
        work();
        drop(end);
        assert!(flushing.join().unwrap() > 50);
    });
}

struct Contest {
    workers: Workers,
    /// A store without deny cache and leases, for peeks.
    store: RedisStore,
    runtime: tokio::runtime::Runtime,
    played: u64,
    /// Rounds in which several processes were granted units.
    shared: u64,
}

impl Contest {
    fn new(server: &Server) -> Self {
        let runtime = runtime();
        let store = runtime.block_on(plain_store(&server.url()));
        let workers = Workers::start(&server.url(), &server.address());
        Self { workers, store, runtime, played: 0, shared: 0 }
    }

    fn rounds(&mut self, count: u64, algorithm: Algorithm, costs: Costs, cache: Cache) {
        for _ in 0..count {
            let granted = self.play(algorithm, costs, cache, 0).1;
            assert_eq!(granted, AMOUNT, "{algorithm}, {costs:?}, cache {cache:?}");
        }
    }

    /// While leases are held, fewer units may be admitted; returned units complete the total.
    fn leased_rounds(&mut self, count: u64, algorithm: Algorithm, costs: Costs) {
        for round in 0..count {
            let cache = if round % 2 == 0 { Cache::On } else { Cache::Off };
            let (key, granted) = self.play(algorithm, costs, cache, 5);
            assert!(granted <= AMOUNT, "{granted} by {algorithm}, {costs:?}, with leases");
            self.workers.return_leases();
            let limit = limit(algorithm);
            let look = charge(&self.store, (&key, limit), (0, 0));
            let rest = self.runtime.block_on(look).remaining();
            assert_eq!(granted + rest, AMOUNT, "{algorithm}, {costs:?}, after leases came back");
        }
    }

    /// Returns the key and the granted units.
    fn play(
        &mut self,
        algorithm: Algorithm,
        costs: Costs,
        cache: Cache,
        lease: u64,
    ) -> (String, u64) {
        self.played += 1;
        let key = format!("round-{}", self.played);
        let limit = limit(algorithm);
        let granted = self.workers.charge(Round { key: &key, limit, costs, cache, lease });
        self.shared += u64::from(granted.iter().filter(|&&units| units > 0).count() > 1);
        (key, granted.iter().sum())
    }
}

#[test]
fn sets_of_keys_on_one_server() {
    for flavor in Flavor::ALL {
        let server = Server::start(flavor);
        sets_of_keys(&server.url(), &server, Placing::Together);
        assert_ttls(&server);
    }
}

#[test]
fn sets_of_keys_on_a_cluster() {
    for flavor in Flavor::ALL {
        let cluster = Cluster::start(flavor, 3, 0);
        let meeting = Server::start(flavor);
        sets_of_keys(&cluster.url(), &meeting, Placing::Together);
        sets_of_keys(&cluster.url(), &meeting, Placing::Apart);
        cluster.nodes().iter().for_each(assert_ttls);
    }
}

/// A request charges three keys or none: in the end exactly the admitted units are charged.
fn sets_of_keys(url: &str, meeting: &Server, placing: Placing) {
    let runtime = runtime();
    let store = runtime.block_on(plain_store(url));
    meeting.command(&["FLUSHALL"]);
    let mut workers = Workers::start(url, &meeting.address());
    for algorithm in Algorithm::BUILT_IN {
        let (name, limit) = (format!("{placing:?}-{algorithm}"), limit(algorithm));
        let granted = workers.charge_sets(&name, limit, placing);
        for place in 0..SET_KEYS {
            let used = runtime.block_on(used(&store, (&name, limit, placing), place));
            assert_eq!(used, granted[place as usize], "key {place} of {name}");
        }
        let (denied, all) = (granted[SET_KEYS as usize], 64 * 12);
        assert!(0 < denied && denied < all, "{denied} of {all} requests were denied in {name}");
    }
}

/// Returns the units charged to the nth key of a set.
async fn used(
    store: &RedisStore,
    (name, limit, placing): (&str, Limit, Placing),
    place: u64,
) -> u64 {
    let (key, limit) = (set_key(name, place), set_limit(limit, place));
    let policy = "sets".parse().unwrap();
    let mut charge = Charge::new(policy, KeyRef::new(key.as_bytes()), limit).cost(0);
    if placing == Placing::Together {
        charge.tag = KeyRef::new(name.as_bytes());
    }
    limit.amount() - store.charge(&[charge], None).await.unwrap()[0].remaining()
}

fn limit(algorithm: Algorithm) -> Limit {
    Limit::new(AMOUNT, PERIOD).unwrap().with_algorithm(algorithm).unwrap()
}

async fn plain_store(url: &str) -> RedisStore {
    let builder = RedisStore::builder(url).unwrap().deadline(PATIENT).deny_cache(0);
    builder.connect().await.unwrap()
}

/// Asserts that every key expires, after at most two periods and a second.
fn assert_ttls(server: &Server) {
    let mut client = server.connect().unwrap();
    let keys = keys(&mut client);
    assert!(!keys.is_empty());
    let longest = i64::try_from((2 * PERIOD + Duration::from_secs(1)).as_millis()).unwrap();
    for key in keys {
        let left = client.command(&["PTTL", &key]).unwrap().int();
        assert!((1..=longest).contains(&left), "{key} has {left} ms left");
    }
}

fn keys(client: &mut Client) -> Vec<String> {
    let (mut keys, mut cursor) = (Vec::new(), "0".to_owned());
    loop {
        let reply = client.command(&["SCAN", &cursor, "MATCH", "pg:*", "COUNT", "1000"]).unwrap();
        keys.extend(reply.items()[1].items().iter().map(|key| key.text()));
        cursor = reply.items()[0].text();
        if cursor == "0" {
            return keys;
        }
    }
}
