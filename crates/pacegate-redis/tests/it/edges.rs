//! Rare cases.

use std::time::Duration;

use futures_util::FutureExt;
use pacegate::{
    Algorithm, Charge, Counter, KeyRef, Limit, ManualClock, MemoryStore, Policy, PolicySet, Reply,
    Request, SharedLimiter, Store, StoreError, Timestamp, Update, policy::Missing,
};
use pacegate_redis::{Layout, RedisStore};
use pacegate_testkit::{
    Subject,
    servers::{Cluster, Flavor, Proxy, Sentinels, Server, eventually},
};
use tokio::time::timeout;

use crate::kit::{PATIENT, Timed, runtime, two_threads};

const LONG: Duration = Duration::from_secs(1_000 * 3_600);

fn charge(limit: Limit) -> Charge<'static> {
    Charge::new("edges".parse().unwrap(), KeyRef::new(b"key"), limit).counter(Counter::Policy)
}

fn limit(amount: u64, algorithm: Algorithm) -> Limit {
    Limit::new(amount, LONG).unwrap().with_algorithm(algorithm).unwrap()
}

async fn connect(url: &str) -> RedisStore {
    RedisStore::builder(url).unwrap().deadline(PATIENT).connect().await.unwrap()
}

#[test]
fn a_store_without_a_runtime_is_unavailable() {
    let server = Server::start(Flavor::Redis);
    let runtime = two_threads();
    let store = runtime.block_on(connect(&server.url()));
    drop(runtime);
    let answer = pollster::block_on(store.charge(&[charge(Limit::per_hour(1))], None));
    let ended = |why: &str| why.ends_with(": the store, or its runtime, has shut down");
    assert!(matches!(&answer, Err(StoreError::Unavailable(why)) if ended(why)), "{answer:?}");
}

#[test]
fn a_store_that_is_dropped_leaves_no_task_behind() {
    let server = Server::start(Flavor::Redis);
    let cluster = Cluster::start(Flavor::Valkey, 3, 0);
    let sentinels = Sentinels::start(Flavor::Valkey);
    let runtime = two_threads();
    let nobody = ["redis", "redis+cluster"].map(|scheme| format!("{scheme}://127.0.0.1:1"));
    for url in [server.url(), cluster.url(), sentinels.url()].into_iter().chain(nobody) {
        let builder = RedisStore::builder(&url).unwrap();
        let store = runtime.block_on(async { builder.connect_later() });
        let charges = [charge(Limit::per_hour(1))];
        drop(runtime.block_on(store.charge(&charges, None)));
        assert!(runtime.metrics().num_alive_tasks() > 0);
        drop(store);
        let ended = || runtime.metrics().num_alive_tasks() == 0;
        eventually(Duration::from_secs(3), &format!("nothing is done for {url}"), ended);
    }
}

/// A lease of a quadrillion units is drawn quickly.
#[test]
fn a_lease_larger_than_the_limit() {
    let server = Server::start(Flavor::Redis);
    runtime().block_on(async {
        let store = RedisStore::connect(&server.url()).await.unwrap();
        let mut charge = charge(limit(Limit::MAX_AMOUNT, Algorithm::FixedWindow));
        charge.lease = u64::MAX;
        let mut ticks = tokio::time::interval(Duration::from_millis(1));
        let lease = async {
            while store.stats().lease_units_outstanding < Limit::MAX_AMOUNT / 2 {
                ticks.tick().await;
                drop(store.charge(&[charge], None).await);
            }
        };
        timeout(PATIENT, lease).await.unwrap();
    });
}

/// Units of a draw in progress are returned too.
#[test]
fn draws_in_progress_are_returned() {
    let server = Server::start(Flavor::Redis);
    two_threads().block_on(async {
        let store = connect(&server.url()).await;
        for algorithm in [Algorithm::FixedWindow, Algorithm::SlidingWindow] {
            for turn in 0..100_u64 {
                let key = turn.to_le_bytes();
                let mut unit = charge(limit(100, algorithm));
                (unit.key, unit.tag, unit.lease) = (KeyRef::new(&key), KeyRef::new(&key), 5);
                assert!(store.charge(&[unit], None).await.unwrap()[0].is_admitted());
                store.return_leases().await.unwrap();
                let left = store.charge(&[unit.cost(0)], None).await.unwrap()[0].remaining();
                assert_eq!(left, 99, "{algorithm}");
                assert_eq!(store.stats().lease_units_outstanding, 0);
            }
        }
    });
}

/// A request is charged to a short sliding window, denied by another slot, and returned, often after the window has
/// ended. The units would count in the next window too.
#[test]
fn a_denied_request_returns_its_units_to_the_previous_window() {
    let cluster = Cluster::start(Flavor::Redis, 3, 0);
    runtime().block_on(async {
        let policies = [
            Policy::new("team", ["1000/5ms sliding-window"]).per(["team"]).missing(Missing::Skip),
            Policy::new("user", ["1/day in UTC"]).per(["user"]).missing(Missing::Skip),
        ];
        let builder = RedisStore::builder(&cluster.url()).unwrap().deadline(PATIENT);
        let store = builder.deny_cache(0).connect().await.unwrap();
        let limiter = SharedLimiter::new(store, PolicySet::new(policies).unwrap());
        for number in 0..8 {
            let (team, user) = (format!("team-{number}"), format!("user-{number}"));
            let by_user = Request::new().with("user", &user);
            assert!(limiter.check_request(&by_user).await.unwrap().is_allowed());
            let (by_team, both) =
                (Request::new().with("team", &team), by_user.clone().with("team", &team));
            for _ in 0..100 {
                assert!(!limiter.check_request(&both).await.unwrap().is_allowed());
                assert_eq!(limiter.peek_request(&by_team).await.unwrap().remaining(), 1_000);
            }
        }
    });
}

/// Leases are returned concurrently: a process that shuts down has little time.
#[test]
fn many_leases_are_returned_in_few_round_trips() {
    const KEYS: u64 = 2_000;
    let server = Server::start(Flavor::Redis);
    let runtime = two_threads();
    let store = runtime.block_on(connect(&server.url()));
    let take = |key: u64, lease: u64| {
        let (store, key) = (store.clone(), key.to_le_bytes());
        async move {
            let mut unit = charge(limit(100, Algorithm::FixedWindow));
            (unit.key, unit.tag, unit.lease) = (KeyRef::new(&key), KeyRef::new(&key), lease);
            store.charge(&[unit], None).await.unwrap()[0].remaining()
        }
    };
    for key in 0..KEYS {
        runtime.block_on(take(key, 5));
    }
    let drawn = || store.stats().lease_units_outstanding == 5 * KEYS;
    eventually(PATIENT, "all leases are drawn", drawn);
    let before = store.stats().trips;
    runtime.block_on(store.return_leases()).unwrap();
    let trips = store.stats().trips - before;
    assert!(trips <= KEYS / 20, "{trips} trips for {KEYS} leases");
    for key in [0, KEYS / 2, KEYS - 1] {
        assert_eq!(runtime.block_on(take(key, 0)), 98);
    }
}

/// A reset or refund whose caller stops waiting still takes effect, on the server and locally.
#[test]
fn cancelled_updates_take_effect() {
    let server = Server::start(Flavor::Redis);
    let runtime = two_threads();
    let builder = RedisStore::builder(&server.url()).unwrap().deadline(PATIENT);
    let store = runtime.block_on(builder.deny_cache_for(LONG).connect()).unwrap();
    let mut leased = charge(limit(10, Algorithm::FixedWindow));
    leased.lease = 5;
    runtime.block_on(store.charge(&[leased], None)).unwrap();
    let outstanding = || store.stats().lease_units_outstanding;
    eventually(PATIENT, "a lease is drawn", || outstanding() == 5);
    let give_up = |change: Reply<'_, bool>| {
        server.pause();
        let answered = change.now_or_never();
        server.resume();
        assert!(answered.is_none(), "{answered:?}");
    };
    give_up(store.update(&leased, Update::Reset));
    eventually(PATIENT, "the lease is forgotten", || outstanding() == 0);
    let unit = charge(limit(10, Algorithm::SlidingWindow));
    let admitted = |cost| runtime.block_on(store.charge(&[unit.cost(cost)], None)).unwrap()[0];
    for update in [Update::Reset, Update::Refund] {
        assert!(admitted(10).is_admitted());
        assert!(!admitted(10).is_admitted());
        assert_eq!(store.stats().deny_cache_entries, 1);
        give_up(store.update(&unit, update));
        eventually(PATIENT, "the denial is forgotten", || store.stats().deny_cache_entries == 0);
        assert!(admitted(1).is_admitted());
        runtime.block_on(store.update(&unit, Update::Reset)).unwrap();
    }
}

/// Units drawn in a window are not spent in the next one.
#[test]
fn leases_expire_on_time() {
    let server = Server::start(Flavor::Redis);
    let mut client = server.connect().unwrap();
    let period = Duration::from_millis(100);
    let mut window = || {
        let time = client.command(&["TIME"]).unwrap();
        let [seconds, micros] = [0, 1].map(|place| time.items()[place].int());
        (seconds * 1_000_000 + micros) / period.as_micros() as i64
    };
    let runtime = two_threads();
    let store = runtime.block_on(connect(&server.url()));
    let spend = |unit: Charge<'_>| -> u64 {
        let asked = (0..30).map(|_| runtime.block_on(store.charge(&[unit], None)).unwrap()[0]);
        asked.map(|outcome| u64::from(outcome.is_admitted())).sum()
    };
    let mut clean = 0;
    for turn in 0..16 {
        let algorithm =
            [Algorithm::FixedWindow, Algorithm::SlidingWindow][usize::from(turn % 2 == 1)];
        let limit = Limit::new(10, period).unwrap().with_algorithm(algorithm).unwrap();
        let mut unit = charge(limit);
        unit.lease = 5;
        assert!(runtime.block_on(store.charge(&[unit], None)).is_ok());
        let drawn = || store.stats().lease_units_outstanding > 0;
        let last = window();
        eventually(PATIENT, "something is drawn", || drawn() || window() > last);
        eventually(PATIENT, "two windows have passed", || window() > last + 1);
        let first = window();
        let granted = spend(unit);
        // This many windows may have ended since.
        let windows = (window() - first) as u64;
        assert!(granted <= 10 * (1 + windows), "{granted} in {windows} windows by {algorithm}");
        clean += u64::from(windows == 0);
    }
    assert!(clean > 3, "{clean} of 16 turns took less than a window");
}

/// Leased tokens would expire in every process, while the bucket refills once.
#[test]
fn token_buckets_are_not_leased() {
    let server = Server::start(Flavor::Redis);
    runtime().block_on(async {
        let store = connect(&server.url()).await;
        let mut unit = charge(limit(100, Algorithm::TokenBucket));
        unit.lease = 50;
        for left in (0..100).rev() {
            let outcome = store.charge(&[unit], None).await.unwrap()[0];
            assert_eq!((outcome.is_admitted(), outcome.remaining()), (true, left));
        }
        assert_eq!((store.stats().leased, store.stats().lease_units_outstanding), (0, 0));
    });
}

/// Three processes with a lease deny nothing while the traffic is below the limit by at least the units that they hold:
/// twice as many in a sliding window, where unspent units of one window count in the next.
#[test]
fn leases_deny_no_traffic_below_the_limit() {
    const LEASE: u64 = 10;
    let server = Server::start(Flavor::Redis);
    for (algorithm, held) in [(Algorithm::FixedWindow, 3), (Algorithm::SlidingWindow, 6)] {
        let stores = [0; 3].map(|_| Timed::new(&server.url(), |builder| builder));
        let limit = Limit::per_minute(100).with_algorithm(algorithm).unwrap();
        let mut unit = charge(limit);
        unit.lease = LEASE;
        let (start, mut turn) = (Timestamp::from_secs(1_767_225_600), 0);
        for window in 0..20 {
            let requests = 100 - held * LEASE;
            for request in 0..requests {
                let passed = 60_000 * window + 60_000 * request / requests;
                let at = start.after(Duration::from_millis(passed));
                stores.iter().for_each(|store| store.set_time(at));
                turn += 1;
                let asked = &stores[(turn / 7 % 3) as usize];
                let outcome = asked.block_on(asked.store.charge(&[unit], None)).unwrap()[0];
                assert!(outcome.is_admitted(), "{algorithm}: {request} of window {window}");
                // The draw follows the request that caused it, and the peek follows the draw.
                asked.block_on(asked.store.charge(&[unit.cost(0)], None)).unwrap();
            }
        }
        let leased: u64 = stores.iter().map(|store| store.store.stats().leased).sum();
        assert!(leased > 500, "{leased} were paid from leases");
    }
}

#[test]
fn undecidable_requests_are_rejected() {
    let cluster = Cluster::start(Flavor::Redis, 3, 0);
    runtime().block_on(async {
        let store = connect(&cluster.url()).await;
        let two =
            [charge(limit(2, Algorithm::FixedWindow)), charge(limit(3, Algorithm::FixedWindow))];
        let answer = store.charge(&two, Some(b"id")).await;
        assert!(matches!(answer, Err(StoreError::Unsupported(_))), "two amounts: {answer:?}");
        let other = Charge::new("edges".parse().unwrap(), KeyRef::new(b"other"), two[0].limit);
        let answer = store.charge(&[two[0], other], Some(b"id")).await;
        assert!(matches!(answer, Err(StoreError::Unsupported(_))), "two slots: {answer:?}");
        let left = store.charge(&[two[0].cost(0)], None).await.unwrap()[0].remaining();
        assert_eq!(left, 2, "nothing was charged");
    });
}

/// While the amount is 0, refunds, denials and clock steps change the state as in memory.
#[test]
fn a_limit_of_zero_keeps_the_state() {
    let server = Server::start(Flavor::Redis);
    let subject = Timed::new(&server.url(), |builder| builder.deny_cache(0));
    let (start, hour) = (Timestamp::from_secs(1_800_000_000), Duration::from_secs(3_600));
    for algorithm in Algorithm::BUILT_IN {
        let clock = ManualClock::at(start);
        let memory = MemoryStore::new(100, clock.clone());
        let set_time = |now: Timestamp| {
            clock.set(now);
            subject.set_time(now);
        };
        let (ten, nothing) = (limit(10, algorithm), limit(0, algorithm));
        let ask = |store: &dyn Store, charges: &[Charge<'_>]| {
            subject.block_on(store.charge(charges, None)).unwrap()
        };
        let mut answers: [Vec<pacegate::Outcomes>; 2] = Default::default();
        for (store, answers) in
            [&memory as &dyn Store, &subject.store].into_iter().zip(&mut answers)
        {
            set_time(start.after(hour));
            let mut eight = charge(ten).cost(8);
            eight.permit = u128::from(algorithm == Algorithm::Concurrency);
            answers.push(ask(store, &[eight]));
            subject.block_on(store.update(&charge(nothing).cost(1), Update::Refund)).unwrap();
            set_time(start);
            // A single charge and two charges use different scripts.
            answers.push(ask(store, &[charge(nothing)]));
            answers.push(ask(store, &[charge(nothing), charge(nothing)]));
            set_time(start.after(hour));
            answers.push(ask(store, &[charge(ten).cost(0)]));
        }
        assert_eq!(answers[1], answers[0], "{algorithm}");
    }
}

/// A request with an id is counted once, even if its answer is lost several times.
#[test]
fn requests_with_ids_are_counted_once() {
    for flavor in Flavor::ALL {
        let server = Server::start(flavor);
        let proxy = Proxy::start(server.address());
        runtime().block_on(async {
            let store = connect(&proxy.url()).await;
            let unit = charge(limit(1_000_000, Algorithm::FixedWindow));
            let (mut lost, mut ticks) = (0, tokio::time::interval(Duration::from_millis(1)));
            for id in 0..200_u64 {
                if id % 2 == 0 {
                    proxy.cut_replies_after(id / 4);
                }
                while store.charge(&[unit], Some(&id.to_le_bytes())).await.is_err() {
                    lost += 1;
                    ticks.tick().await;
                }
            }
            let used =
                1_000_000 - store.charge(&[unit.cost(0)], None).await.unwrap()[0].remaining();
            assert!(lost > 20, "{lost} answers were lost");
            assert_eq!(used, 200);
        });
    }
}

/// A stored answer describes the past and must not affect other requests.
#[test]
fn a_stored_denial_does_not_deny_other_requests() {
    let server = Server::start(Flavor::Redis);
    runtime().block_on(async {
        let store = connect(&server.url()).await;
        let one = charge(Limit::new(1, Duration::from_millis(200)).unwrap());
        let mut ticks = tokio::time::interval(Duration::from_millis(1));
        let mut id = 0_u64;
        loop {
            id += 1;
            let denied = store.charge(&[one], Some(&id.to_le_bytes())).await.unwrap()[0];
            if !denied.is_admitted() {
                break;
            }
        }
        // Through another store, so that this one learns nothing.
        let other = connect(&server.url()).await;
        while store.stats().calls > 0
            && !other.charge(&[one.cost(0)], None).await.unwrap()[0].is_admitted()
        {
            ticks.tick().await;
        }
        let again = store.charge(&[one], Some(&id.to_le_bytes())).await.unwrap()[0];
        assert!(!again.is_admitted(), "the same answer");
        assert!(store.charge(&[one], None).await.unwrap()[0].is_admitted(), "a new window");
    });
}

/// Very long durations overflow neither here nor on the server.
#[test]
fn durations_of_any_length() {
    let server = Server::start(Flavor::Redis);
    let layout = Layout::template("any:{key}:{window}").unwrap();
    runtime().block_on(async {
        for forever in [Duration::MAX, Duration::from_secs(u64::MAX / 1_000)] {
            let builder = || RedisStore::builder(&server.url()).unwrap().deadline(forever);
            let store = builder().remember_ids_for(forever).connect().await.unwrap();
            let unit = charge(limit(10, Algorithm::FixedWindow));
            for _ in 0..3 {
                let once = store.charge(&[unit], Some(b"id")).await.unwrap()[0];
                assert_eq!(once.remaining(), 9, "{forever:?}");
            }
            assert_eq!(store.charge(&[unit.cost(0)], None).await.unwrap()[0].remaining(), 9);
            let store =
                builder().layout(layout.clone().ttl_slack(forever)).connect().await.unwrap();
            assert_eq!(store.charge(&[unit], None).await.unwrap()[0].remaining(), 9);
            let names = server.command(&["KEYS", "*"]);
            for name in names.items() {
                assert!(server.command(&["PTTL", &name.text()]).int() > 0, "{name:?}");
            }
            server.command(&["FLUSHALL"]);
        }
    });
}

/// A request that is cancelled before its batch is sent again is dropped: its permit may have been released by then.
#[test]
fn a_batch_is_sent_again_without_cancelled_requests() {
    let server = Server::start(Flavor::Redis);
    let proxy = Proxy::start(server.address());
    let runtime = two_threads();
    runtime.block_on(async {
        let store = connect(&proxy.url()).await;
        let builder = SharedLimiter::builder(store.clone());
        let limiter = builder.limit("2/hour concurrency").build().unwrap();
        // The server then knows the script that releases permits, but not the one that acquires them.
        store.update(&charge(limit(2, Algorithm::Concurrency)), Update::Release).await.unwrap();
        proxy.set_delay(Duration::from_millis(200));
        let trips = store.stats().trips;
        let (gone, stays) = (limiter.acquire("key"), limiter.acquire("key"));
        let (mut gone, mut stays) = (Box::pin(gone), Box::pin(stays));
        let gives_up = std::future::poll_fn(|cx| {
            assert!(gone.as_mut().poll(cx).is_pending() && stays.as_mut().poll(cx).is_pending());
            std::task::Poll::Ready(())
        });
        gives_up.await;
        let mut ticks = tokio::time::interval(Duration::from_millis(1));
        while scripts_asked(&server) == 0 {
            ticks.tick().await;
        }
        drop(gone);
        let held = stays.await.unwrap().into_result().unwrap();
        proxy.set_delay(Duration::ZERO);
        assert!(store.stats().trips >= trips + 2, "it was sent again");
        let second = limiter.acquire("key").await.unwrap();
        assert!(second.permit.is_some(), "{:?}", second.decision);
        assert!(limiter.acquire("key").await.unwrap().permit.is_none());
        drop((held, second));
    });
}

/// Returns the number of calls of unknown scripts since the first.
fn scripts_asked(server: &Server) -> u64 {
    let failed = server.info("errorstat_NOSCRIPT").unwrap_or_default();
    let count = failed.trim().strip_prefix("count=").map_or(0, |count| count.parse().unwrap());
    u64::saturating_sub(count, 1)
}
