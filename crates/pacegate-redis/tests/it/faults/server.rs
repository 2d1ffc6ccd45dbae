//! A connected server that rejects commands.

use std::time::Duration;

use pacegate::{Algorithm, Charge, KeyRef, Limit, Store, StoreError, Update, algorithm::Outcome};
use pacegate_redis::RedisStore;
use pacegate_testkit::servers::{Flavor, Reply, Server, eventually};

use super::{Limiters, RETURN, now};
use crate::kit::{PATIENT, runtime};

/// Ten units in a window longer than any test.
fn ten(algorithm: Algorithm, key: &str) -> Charge<'_> {
    let limit = Limit::new(10, Duration::from_secs(1_000 * 3_600)).unwrap();
    let limit = limit.with_algorithm(algorithm).unwrap();
    let mut charge = Charge::new("ten".parse().unwrap(), KeyRef::new(key.as_bytes()), limit);
    if algorithm == Algorithm::Concurrency {
        static NEXT: std::sync::atomic::AtomicU64 = std::sync::atomic::AtomicU64::new(1);
        charge.permit = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed).into();
    }
    charge
}

async fn patient(url: &str) -> RedisStore {
    let builder = RedisStore::builder(url).unwrap().deadline(PATIENT).deny_cache(0);
    builder.connect().await.unwrap()
}

async fn one(store: &RedisStore, charge: Charge<'_>) -> Result<Outcome, StoreError> {
    store.charge(&[charge], None).await.map(|outcomes| outcomes[0])
}

/// Returns the keys of the store.
fn names(server: &Server) -> Vec<String> {
    let names = server.command(&["KEYS", "pg:*"]);
    let mut names: Vec<String> = names.items().iter().map(Reply::text).collect();
    names.sort();
    names
}

/// Foreign values stay unchanged and do not affect other requests of the same batch.
#[test]
fn foreign_values() {
    for flavor in Flavor::ALL {
        let server = Server::start(flavor);
        let runtime = runtime();
        let store = runtime.block_on(patient(&server.url()));
        for bad in Algorithm::BUILT_IN {
            let plants: [&[&str]; 4] = [
                &["SET", "", "somebody else's"],
                &["RPUSH", "", "somebody else's"],
                &["HSET", "", "somebody", "else"],
                &["ZADD", "", "1", "somebody else's"],
            ];
            // Permits are a sorted set too.
            let strange = |plant: &&&[&str]| bad != Algorithm::Concurrency || plant[0] != "ZADD";
            for plant in plants.iter().filter(strange) {
                server.command(&["FLUSHALL"]);
                let bad = ten(bad, "bad");
                runtime.block_on(one(&store, bad)).unwrap();
                let name = names(&server).remove(0);
                server.command(&["DEL", &name]);
                let words = plant.iter().map(|&word| if word.is_empty() { &name } else { word });
                assert!(!server.command(&words.collect::<Vec<_>>()).is_error());
                let planted = server.command(&["DUMP", &name]);
                runtime.block_on(beside(&store, bad));
                assert_eq!(server.command(&["DUMP", &name]), planted, "{plant:?} {bad:?}");
                assert_eq!(server.command(&["PTTL", &name]).int(), -1);
            }
        }
    }
}

/// Charges a bad key together with good ones, in one batch and in one request.
async fn beside(store: &RedisStore, bad: Charge<'_>) {
    let calls = store.stats().calls;
    let [a, b, c, d, e] = Algorithm::BUILT_IN.map(|algorithm| one(store, ten(algorithm, "good")));
    let both = [ten(Algorithm::FixedWindow, "good"), bad];
    let (wrong, a, b, c, d, e, both) =
        tokio::join!(one(store, bad), a, b, c, d, e, store.charge(&both, None));
    assert_eq!(store.stats().calls, calls + 1, "one batch");
    for good in [a, b, c, d, e] {
        assert_eq!(good.unwrap().remaining(), 9);
    }
    // Strings and logs are read differently: each alone, too.
    for algorithms in [[Algorithm::FixedWindow], [Algorithm::SlidingLog], [Algorithm::Concurrency]]
    {
        let good = one(store, ten(algorithms[0], "good"));
        let (wrong, good) = tokio::join!(one(store, bad), good);
        assert_eq!(good.unwrap().remaining(), 8);
        assert!(matches!(wrong, Err(StoreError::Failed(_))), "{wrong:?}");
    }
    assert_eq!(store.stats().calls, calls + 4, "each in one batch");
    assert!(matches!(wrong, Err(StoreError::Failed(_))), "{wrong:?}");
    assert!(matches!(both, Err(StoreError::Failed(_))), "{both:?}");
    let untouched = one(store, ten(Algorithm::FixedWindow, "good").cost(0)).await.unwrap();
    assert_eq!(untouched.remaining(), 8, "all or nothing");
    drop((store.update(&bad, Update::Refund).await, store.update(&bad, Update::Release).await));
    assert!(store.is_connected(), "a wrong value does not cause a reconnect");
}

/// If one key fails, the failure mode of its policy applies.
#[test]
fn a_foreign_value_under_each_mode() {
    let server = Server::start(Flavor::Redis);
    let limiters = Limiters::connect_patiently(&server.url());
    for limiter in [&limiters.closed, &limiters.open, &limiters.local] {
        assert!(limiters.check(limiter, "bad").is_allowed());
    }
    for name in names(&server) {
        server.command(&["SET", &name, "foreign"]);
    }
    for (limiter, allowed) in
        [(&limiters.closed, 0), (&limiters.open, 30), (&limiters.local, super::SHARE as u64)]
    {
        assert_eq!(limiters.spend(limiter, "bad", 30), (allowed, 30));
        assert!(limiters.check(limiter, "good").is_allowed());
    }
}

/// A server that is out of memory decides for existing keys, and creates no new ones.
#[test]
fn out_of_memory() {
    for flavor in Flavor::ALL {
        let server = Server::start(flavor);
        let runtime = runtime();
        let store = runtime.block_on(patient(&server.url()));
        let charge = |algorithm, key| runtime.block_on(one(&store, ten(algorithm, key)));
        for algorithm in Algorithm::BUILT_IN {
            assert_eq!(charge(algorithm, "old").unwrap().remaining(), 9);
        }
        server.command(&["CONFIG", "SET", "maxmemory", "1"]);
        assert!(server.command(&["SET", "a", "b"]).text().starts_with("OOM"));
        let closed = store.stats().closed;
        for algorithm in Algorithm::BUILT_IN {
            let fails = charge(algorithm, "new");
            assert!(matches!(fails, Err(StoreError::Failed(_))), "{algorithm}: {fails:?}");
            let old = ten(algorithm, "old");
            for left in (0..9).rev() {
                assert_eq!(charge(algorithm, "old").unwrap().remaining(), left, "{algorithm}");
            }
            assert!(!charge(algorithm, "old").unwrap().is_admitted());
            runtime.block_on(store.update(&old, Update::Refund)).unwrap();
            assert_eq!(charge(algorithm, "old").unwrap().remaining(), 0, "{algorithm}");
            let both = [old.cost(0), ten(algorithm, "new")];
            assert!(runtime.block_on(store.charge(&both, None)).is_err());
            let with_id = runtime.block_on(store.charge(&[old.cost(0)], Some(b"id"))).unwrap();
            assert!(!with_id[0].is_admitted(), "{algorithm}");
        }
        assert_eq!(names(&server).len(), Algorithm::BUILT_IN.len());
        assert_eq!(store.stats().closed, closed, "no connection was closed");
        server.command(&["CONFIG", "SET", "maxmemory", "0"]);
        for algorithm in Algorithm::BUILT_IN {
            assert_eq!(charge(algorithm, "new").unwrap().remaining(), 9);
        }
    }
}

#[test]
fn a_replica_is_not_written_to() {
    for flavor in Flavor::ALL {
        let master = Server::start(flavor);
        let replica = Server::options(flavor).replica_of(&master).start();
        let limiters = Limiters::connect_later(&replica.url());
        let load = limiters.load();
        let begun = now();
        load.run_for(Duration::from_millis(500));
        assert!(limiters.trouble().contains("the server is a replica"), "{}", limiters.trouble());
        let log = load.end(&limiters);
        log.assert_timely("a replica");
        log.assert_modes_hold();
        log.assert_nobody_waits(begun, now());
        replica.command(&["REPLICAOF", "NO", "ONE"]);
        limiters.wait_until_back();
        limiters.assert_exact();
    }
}

#[test]
fn a_master_that_becomes_a_replica() {
    for flavor in Flavor::ALL {
        let (other, server) = (Server::start(flavor), Server::start(flavor));
        let limiters = Limiters::connect(&server.url());
        let load = limiters.load();
        load.run_for(Duration::from_millis(200));
        server.command(&["REPLICAOF", "127.0.0.1", &other.port().to_string()]);
        limiters.wait_until_degraded();
        let known = now();
        load.run_for(Duration::from_millis(500));
        let ending = now();
        server.command(&["REPLICAOF", "NO", "ONE"]);
        limiters.wait_until_back();
        let log = load.end(&limiters);
        log.assert_timely("demoted");
        log.assert_modes_hold();
        log.assert_nobody_waits(known, ending);
        limiters.assert_exact();
        limiters.assert_window_exact(&server);
    }
}

/// A user without permissions does not cause constant reconnects.
#[test]
fn a_user_without_rights() {
    for flavor in Flavor::ALL {
        for missing in ["-ping", "-evalsha", "-evalsha -ping"] {
            let rights = format!("guest on >secret ~* &* +@all {missing}");
            let server = Server::options(flavor).acl(&rights).start();
            let limiters = Limiters::connect_later(&server.url().replace("//", "//guest:secret@"));
            let received = || -> u64 {
                server.info("total_connections_received").unwrap().trim().parse().unwrap()
            };
            let (load, before) = (limiters.load(), received());
            load.run_for(Duration::from_secs(1));
            assert!(limiters.is_degraded());
            let connections = received() - before;
            println!("{flavor}, {missing}: {connections} connections in a second");
            assert!(connections < 15, "{connections} connections in a second");
            let log = load.end(&limiters);
            log.assert_timely("no rights");
            log.assert_modes_hold();
        }
    }
}

/// A server that still loads its data rejects commands. The store retries at intervals, not constantly.
#[test]
fn a_server_that_loads_its_data() {
    for flavor in Flavor::ALL {
        let mut server = Server::options(flavor)
            .arg("key-load-delay", "500")
            .arg("loading-process-events-interval-bytes", "1024")
            .start();
        let mut client = server.connect().unwrap();
        for number in 0..4_000 {
            client.command(&["SET", &format!("filler:{number}"), &"x".repeat(100)]).unwrap();
        }
        server.command(&["SAVE"]);
        let limiters = Limiters::connect(&server.url());
        let load = limiters.load();
        let loading = std::thread::scope(|scope| {
            let restarting = scope.spawn(|| server.restart());
            let mut troubles = std::collections::BTreeSet::new();
            eventually(5 * RETURN, "it is loaded", || {
                troubles.insert(limiters.trouble());
                restarting.is_finished()
            });
            troubles
        });
        assert!(loading.iter().any(|trouble| trouble.contains("oading")), "{loading:?}");
        let back = limiters.wait_until_back();
        let log = load.end(&limiters);
        log.assert_timely("loading");
        let connections: u64 =
            server.info("total_connections_received").unwrap().trim().parse().unwrap();
        println!("{flavor}: back {back:?} after loading; {connections} connections");
        limiters.assert_exact();
    }
}
