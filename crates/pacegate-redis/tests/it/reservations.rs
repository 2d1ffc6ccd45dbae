//! Reservations of several limiters on one server.

use std::{
    sync::atomic::{AtomicU64, Ordering},
    time::Duration,
};

use futures_util::future::{join, join_all};
use pacegate::{
    Algorithm, Limit, ManualClock, Policy, PolicySet, Request, ReservationId, SharedLimiter,
    StoreError, Timestamp, policy::Missing,
};
use pacegate_redis::RedisStore;
use pacegate_testkit::{
    Random,
    servers::{Cluster, Flavor, Reply, Server},
};

use crate::kit::{PATIENT, runtime, two_threads};

const TTL: Duration = Duration::from_secs(600);
const CLIENTS: u64 = 1_000;

/// Creates a limiter over a separate store.
async fn limiter(url: &str, clock: &ManualClock, policies: &PolicySet) -> SharedLimiter {
    let builder = RedisStore::builder(url).unwrap().deadline(PATIENT).clock(clock.clone());
    SharedLimiter::new(builder.connect().await.unwrap(), policies.clone())
}

fn clock() -> ManualClock {
    ManualClock::at(Timestamp::from_secs(1_800_000_000))
}

fn one_policy(limit: Limit) -> PolicySet {
    PolicySet::new([Policy::new("tokens", [limit]).per(["key"])]).unwrap()
}

/// A client reserves from one limiter and settles through two others at once. One in ten never settles. Returns the
/// units that are used, and the number of settlements that counted.
async fn client(
    limiters: &[SharedLimiter],
    seed: u64,
    excess: u64,
    settled: &AtomicU64,
) -> Option<u64> {
    let random = &mut Random::new(seed);
    let estimate = random.between(1, 20);
    let place = random.below(3) as usize;
    let reserved = limiters[place].reserve("shared", estimate, TTL).await.unwrap();
    let reservation = reserved.reservation?;
    if seed.is_multiple_of(10) {
        settled.fetch_add(1, Ordering::SeqCst);
        return Some(estimate);
    }
    let actual = random.below(estimate + 1) + random.below(excess + 1);
    let id: ReservationId = reservation.id().to_string().parse().unwrap();
    let (first, second) = (&limiters[(place + 1) % 3], &limiters[(place + 2) % 3]);
    for answer in join_all([first.settle(&id, actual), second.settle(&id, actual)]).await {
        settled.fetch_add(u64::from(answer.unwrap()), Ordering::SeqCst);
    }
    Some(actual)
}

/// 1,000 clients on 3 limiters. With estimates that are never too low, the limit is kept; otherwise exactly the excess
/// is charged beyond it.
#[test]
fn concurrent_clients_use_exactly_what_they_settle() {
    for (flavor, algorithm, excess) in [
        (Flavor::Redis, Algorithm::FixedWindow, 0),
        (Flavor::Redis, Algorithm::FixedWindow, 30),
        (Flavor::Redis, Algorithm::SlidingWindow, 30),
        (Flavor::Redis, Algorithm::SlidingLog, 30),
        (Flavor::Valkey, Algorithm::TokenBucket, 30),
    ] {
        let server = Server::start(flavor);
        let (clock, settled) = (clock(), AtomicU64::new(0));
        let amount = 4_000;
        let limit = Limit::per_day(amount).with_algorithm(algorithm).unwrap();
        two_threads().block_on(async {
            let (url, policies) = (server.url(), one_policy(limit));
            let limiters = join_all([(); 3].map(|()| limiter(&url, &clock, &policies))).await;
            let clients = (0..CLIENTS).map(|seed| client(&limiters, seed, excess, &settled));
            let admitted: Vec<u64> = join_all(clients).await.into_iter().flatten().collect();
            let used: u64 = admitted.iter().sum();
            assert_eq!(
                settled.load(Ordering::SeqCst),
                admitted.len() as u64,
                "{algorithm}: each once"
            );
            let amount = u64::from(amount);
            assert!(excess > 0 || used <= amount, "{algorithm}: overshoot {used}");
            assert!(admitted.len() as u64 > CLIENTS / 4, "{algorithm}: {}", admitted.len());
            let peek = limiters[0].peek("shared").await.unwrap();
            assert_eq!(peek.remaining(), amount.saturating_sub(used), "{algorithm}: {used} used");
            if used > amount && algorithm == Algorithm::FixedWindow {
                clock.advance(Duration::from_secs(86_400));
                let next = limiters[1].peek("shared").await.unwrap().remaining();
                assert_eq!(next, amount - (used - amount), "exactly the excess is paid back");
            }
        });
    }
}

/// Returns the remaining units of each limit of a request.
async fn remaining(limiter: &SharedLimiter, request: &Request<'_>) -> Vec<u64> {
    let plan = limiter.charges().plan(request);
    let each = limiter.charges().check_batch(&plan.charges(0).unwrap(), None).await;
    each.unwrap().each.iter().map(|decision| decision.remaining()).collect()
}

/// Each slot has a part of the reservation.
#[test]
fn limits_in_several_slots_are_reserved_together() {
    let cluster = Cluster::start(Flavor::Redis, 3, 0);
    runtime().block_on(async {
        let policies = [
            Policy::new("user", ["10/hour"]).per(["user"]),
            Policy::new("team", ["100/hour burst 100"]).per(["team"]),
            Policy::new("model", ["20/hour sliding-log"]).per(["model"]),
        ];
        let policies = PolicySet::new(policies).unwrap();
        let limiter = limiter(&cluster.url(), &clock(), &policies).await;
        for user in 0..8 {
            let (user, model) = (format!("user-{user}"), format!("model-{user}"));
            let request =
                Request::new().with("user", &user).with("team", &user).with("model", &model);
            let reserved = limiter.reserve_request(&request.clone().cost(8), TTL).await.unwrap();
            let reservation = reserved.into_result().unwrap();
            let denied = limiter.reserve_request(&request.clone().cost(3), TTL).await.unwrap();
            assert!(!denied.decision.is_allowed());
            assert_eq!(
                remaining(&limiter, &request).await,
                [2, 92, 12],
                "a denial charges nothing"
            );
            let id: ReservationId = reservation.id().to_string().parse().unwrap();
            assert!(limiter.settle(&id, 5).await.unwrap());
            assert!(!limiter.settle(&id, 0).await.unwrap());
            assert_eq!(remaining(&limiter, &request).await, [5, 95, 15]);
        }
    });
}

/// By the clock of the servers: some time passes between a charge and its return. A bucket refills a part of a token
/// meanwhile, but gets whole tokens back.
#[test]
fn a_denied_reservation_in_several_slots_takes_no_token() {
    let cluster = Cluster::start(Flavor::Redis, 3, 0);
    runtime().block_on(async {
        let policies = [
            Policy::new("team", ["10/hour burst 10"]).per(["team"]),
            Policy::new("user", ["1/day in UTC"]).per(["user"]),
        ];
        let builder = RedisStore::builder(&cluster.url()).unwrap().deadline(PATIENT);
        let store = builder.deny_cache(0).connect().await.unwrap();
        let limiter = SharedLimiter::new(store, PolicySet::new(policies).unwrap());
        for number in 0..8 {
            let (team, user) = (format!("team-{number}"), format!("user-{number}"));
            let by_user = Request::new().with("user", &user);
            assert!(limiter.check_request(&by_user).await.unwrap().is_allowed());
            let request = by_user.with("team", &team);
            for _ in 0..3 {
                let denied = limiter.reserve_request(&request, TTL).await.unwrap();
                assert!(!denied.decision.is_allowed());
            }
            assert_eq!(remaining(&limiter, &request).await, [10, 0], "{team}");
        }
    });
}

/// Requests of a team that another slot denies are charged and returned while reservations of the team are made and
/// cancelled. Each returns its own units.
#[test]
fn a_denied_request_does_not_return_the_units_of_a_reservation() {
    let cluster = Cluster::start(Flavor::Redis, 3, 0);
    runtime().block_on(async {
        let policies = [
            Policy::new("team", ["1000/hour sliding-log"]).per(["team"]).missing(Missing::Skip),
            Policy::new("user", ["1/day in UTC"]).per(["user"]).missing(Missing::Skip),
        ];
        let builder = RedisStore::builder(&cluster.url()).unwrap().deadline(PATIENT);
        let store = builder.deny_cache(0).connect().await.unwrap();
        let limiter = SharedLimiter::new(store, PolicySet::new(policies).unwrap());
        for number in 0..8 {
            let (team, user) = (format!("team-{number}"), format!("user-{number}"));
            let (by_team, by_user) =
                (Request::new().with("team", &team), Request::new().with("user", &user));
            assert!(limiter.check_request(&by_user).await.unwrap().is_allowed());
            let both = by_user.with("team", &team);
            let denials = join_all((0..40).map(async |_| {
                assert!(!limiter.check_request(&both).await.unwrap().is_allowed());
            }));
            let reservations = join_all((0..4).map(async |_| {
                for _ in 0..10 {
                    let reserved = limiter.reserve_request(&by_team, TTL).await.unwrap();
                    assert!(reserved.into_result().unwrap().cancel().await.unwrap());
                }
            }));
            join(denials, reservations).await;
            assert_eq!(remaining(&limiter, &both).await, [1_000, 0], "{team}");
        }
    });
}

#[test]
fn a_settlement_ends_a_cached_denial() {
    let server = Server::start(Flavor::Redis);
    runtime().block_on(async {
        let policies = one_policy(Limit::per_hour(10));
        let limiter = limiter(&server.url(), &clock(), &policies).await;
        let reserved = limiter.reserve("alice", 10, TTL).await.unwrap();
        for _ in 0..2 {
            assert!(!limiter.check("alice").await.unwrap().is_allowed());
        }
        let denied = limiter.reserve("alice", 1, TTL).await.unwrap();
        assert!(denied.reservation.is_none());
        assert!(reserved.into_result().unwrap().settle(7).await.unwrap());
        assert_eq!(limiter.check("alice").await.unwrap().remaining(), 2);
    });
}

/// While the server hangs, a settlement fails, and its failure mode decides a reservation. The settlement may run
/// later; repeated, it counts once.
#[test]
fn a_settlement_that_timed_out_can_be_repeated() {
    for flavor in Flavor::ALL {
        let server = Server::start(flavor);
        runtime().block_on(async {
            let policies = one_policy(Limit::per_hour(100));
            let builder = RedisStore::builder(&server.url()).unwrap();
            let store = builder.deadline(Duration::from_millis(200)).connect().await.unwrap();
            let limiter = SharedLimiter::new(store, policies);
            let reserved = limiter.reserve("alice", 60, TTL).await.unwrap();
            let reservation = reserved.into_result().unwrap();
            server.pause();
            let error = reservation.settle(25).await.unwrap_err();
            assert!(matches!(error, StoreError::TimedOut | StoreError::Interrupted(_)), "{error}");
            let local = limiter.reserve("alice", 30, TTL).await.unwrap();
            assert!(local.decision.is_degraded() && local.decision.is_allowed());
            server.resume();
            while reservation.settle(25).await.is_err() {
                tokio::task::yield_now().await;
            }
            assert!(!reservation.settle(25).await.unwrap());
            assert!(local.into_result().unwrap().settle(1).await.unwrap(), "in this process");
            let remaining = limiter.peek("alice").await.unwrap().remaining();
            assert!(remaining == 75 || remaining == 45, "{remaining}");
        });
    }
}

/// Reservations of one key are decided in few calls, and so are their settlements.
#[test]
fn reservations_are_sent_in_batches() {
    let server = Server::start(Flavor::Redis);
    runtime().block_on(async {
        let store = RedisStore::builder(&server.url()).unwrap().deadline(PATIENT);
        let store = store.connect().await.unwrap();
        let limiter = SharedLimiter::new(store.clone(), one_policy(Limit::per_day(600)));
        let reserved = join_all((0..1_000).map(|_| limiter.reserve("hot", 1, TTL))).await;
        let reservations: Vec<_> =
            reserved.into_iter().filter_map(|reserved| reserved.unwrap().reservation).collect();
        assert_eq!(reservations.len(), 600);
        let trips = store.stats().trips;
        assert!(trips < 20, "{trips}");
        let settled = join_all(reservations.iter().map(|reservation| reservation.cancel())).await;
        assert!(settled.into_iter().all(|settled| settled.unwrap()));
        assert_eq!(limiter.peek("hot").await.unwrap().remaining(), 600);
        assert!(store.stats().trips < trips + 20, "{:?}", store.stats());
        let keys = server.command(&["DBSIZE"]);
        assert!(matches!(keys, Reply::Int(0)), "an unused counter is not stored: {keys:?}");
    });
}

/// The tokens of a reservation refill earlier if another one returns its own. Each process sees what others returned.
#[test]
fn a_bucket_does_not_return_tokens_that_it_has_refilled() {
    for flavor in Flavor::ALL {
        let server = Server::start(flavor);
        runtime().block_on(async {
            let (clock, policies) = (clock(), one_policy("10/10s burst 10".parse().unwrap()));
            let first = limiter(&server.url(), &clock, &policies).await;
            let second = limiter(&server.url(), &clock, &policies).await;
            let reserved = first.reserve("alice", 5, TTL).await.unwrap();
            let other = second.reserve("alice", 5, TTL).await.unwrap();
            assert!(reserved.into_result().unwrap().cancel().await.unwrap());
            clock.advance(Duration::from_secs(5));
            assert!(first.check_cost("alice", 5).await.unwrap().is_allowed());
            assert!(other.into_result().unwrap().cancel().await.unwrap());
            assert_eq!(first.peek("alice").await.unwrap().remaining(), 5);
            first.refund("alice", 5).await.unwrap();
            let reserved = first.reserve("alice", 4, TTL).await.unwrap();
            second.reset("alice").await.unwrap();
            assert!(first.check_cost("alice", 4).await.unwrap().is_allowed());
            assert!(reserved.into_result().unwrap().cancel().await.unwrap());
            assert_eq!(first.peek("alice").await.unwrap().remaining(), 6, "it was reset");
        });
    }
}

/// Two limits on one key are reserved in one round trip, and settled in another.
#[test]
fn each_call_is_one_round_trip() {
    let server = Server::start(Flavor::Redis);
    runtime().block_on(async {
        let store = RedisStore::builder(&server.url()).unwrap().deadline(PATIENT);
        let store = store.connect().await.unwrap();
        let limits: [Limit; 2] =
            ["10/minute burst 10", "100/day"].map(|text| text.parse().unwrap());
        let policies = PolicySet::new([Policy::new("tokens", limits).per(["key"])]).unwrap();
        let limiter = SharedLimiter::new(store.clone(), policies);
        // The scripts are now loaded on the server.
        let reserved = limiter.reserve("alice", 1, TTL).await.unwrap();
        assert!(reserved.into_result().unwrap().cancel().await.unwrap());
        for actual in [0, 3, 9] {
            let before = store.stats().trips;
            let reserved = limiter.reserve("alice", 3, TTL).await.unwrap();
            assert_eq!(store.stats().trips, before + 1);
            assert!(reserved.into_result().unwrap().settle(actual).await.unwrap());
            assert_eq!(store.stats().trips, before + 2);
        }
    });
}

/// Entries before or after the returned one are rewritten, in portions.
#[test]
fn a_long_log_gets_units_back_anywhere() {
    const SIZE: u64 = 2_500;
    let server = Server::start(Flavor::Redis);
    runtime().block_on(async {
        let clock = clock();
        let limit = format!("{SIZE}/day sliding-log").parse().unwrap();
        let limiter = limiter(&server.url(), &clock, &one_policy(limit)).await;
        let ttl = Duration::from_secs(100_000);
        let mut reservations = Vec::new();
        for _ in 0..SIZE / 2 {
            let reserved = limiter.reserve("alice", 2, ttl).await.unwrap();
            reservations.push(reserved.into_result().unwrap());
            clock.advance(Duration::from_secs(1));
        }
        // The units that are left of each second.
        let mut left = vec![2; reservations.len()];
        for (place, actual) in [(1_200, 0), (100, 1), (0, 0), (1_249, 1), (700, 0), (300, 0)] {
            assert!(reservations[place].settle(actual).await.unwrap());
            left[place] = actual;
            let used: u64 = left.iter().sum();
            assert_eq!(limiter.peek("alice").await.unwrap().remaining(), SIZE - used, "{place}");
        }
        clock.advance(Duration::from_secs(86_400 - SIZE / 2));
        for second in (0..left.len()).step_by(50) {
            let used: u64 = left[second + 1..].iter().sum();
            assert_eq!(limiter.peek("alice").await.unwrap().remaining(), SIZE - used, "{second}");
            clock.advance(Duration::from_secs(50));
        }
    });
}
