//! Reservations that are never settled.

use std::time::Duration;

use pacegate::{
    ManualClock, Policy, PolicySet, Request, ReservationId, SharedLimiter, Timestamp,
    policy::Unsettled,
};
use pacegate_redis::RedisStore;
use pacegate_testkit::servers::{Cluster, Flavor, Server};

use crate::kit::{PATIENT, runtime};

const TTL: Duration = Duration::from_secs(60);

fn clock() -> ManualClock {
    ManualClock::at(Timestamp::from_secs(1_800_000_000))
}

fn policy(name: &str, limit: &str) -> Policy {
    Policy::new(name, [limit]).per(["key"]).unsettled(Unsettled::Return)
}

/// Creates a limiter over a separate store. Both have the same clock.
async fn limiter(
    url: &str,
    clock: &ManualClock,
    policies: impl IntoIterator<Item = Policy>,
) -> SharedLimiter {
    let builder = RedisStore::builder(url).unwrap().deadline(PATIENT).clock(clock.clone());
    let store = builder.connect().await.unwrap();
    let builder = SharedLimiter::builder(store).policies(PolicySet::new(policies).unwrap());
    builder.clock(clock.clone()).build().unwrap()
}

async fn remaining(limiter: &SharedLimiter, request: &Request<'_>) -> Vec<u64> {
    let plan = limiter.charges().plan(request);
    let each = limiter.charges().check_batch(&plan.charges(0).unwrap(), None).await;
    each.unwrap().each.iter().map(|decision| decision.remaining()).collect()
}

/// Advances the clock to the end of the ttl, and waits for the returned units.
async fn until_returned(
    clock: &ManualClock,
    limiter: &SharedLimiter,
    request: &Request<'_>,
    expected: &[u64],
) {
    while clock.sleepers() == 0 {
        tokio::task::yield_now().await;
    }
    clock.advance(TTL + Duration::from_secs(1));
    while remaining(limiter, request).await != expected {
        tokio::task::yield_now().await;
    }
}

fn alice() -> Request<'static> {
    Request::new().with("key", "alice").with("team", "blue")
}

#[test]
fn units_are_returned_after_the_ttl() {
    for flavor in Flavor::ALL {
        let server = Server::start(flavor);
        runtime().block_on(async {
            let policies = || {
                [
                    policy("window", "100/day"),
                    policy("month", "100/month in Europe/Berlin"),
                    policy("sliding", "100/day sliding-window"),
                    policy("log", "100/day sliding-log"),
                    policy("bucket", "100/day burst 100"),
                    policy("kept", "100/day").unsettled(Unsettled::Keep),
                ]
            };
            let clock = clock();
            let first = limiter(&server.url(), &clock, policies()).await;
            let second = limiter(&server.url(), &clock, policies()).await;
            let lost = first.reserve_request(&alice().cost(60), TTL).await.unwrap();
            assert_eq!(remaining(&second, &alice()).await, [40; 6]);
            let id = lost.into_result().unwrap().id().to_string();
            // The bucket has refilled a part of one token.
            let expected = [100, 100, 100, 100, 99, 40];
            until_returned(&clock, &second, &alice(), &expected).await;
            let id: ReservationId = id.parse().unwrap();
            assert!(!second.settle(&id, 90).await.unwrap(), "it has ended");
            assert_eq!(remaining(&second, &alice()).await, expected);
        });
    }
}

/// Neither does a settlement that is too late prevent the return.
#[test]
fn a_settled_reservation_is_not_returned_again() {
    let server = Server::start(Flavor::Redis);
    runtime().block_on(async {
        let clock = clock();
        let first = limiter(&server.url(), &clock, [policy("tokens", "100/day")]).await;
        let second = limiter(&server.url(), &clock, [policy("tokens", "100/day")]).await;
        let settled = first.reserve("alice", 30, TTL).await.unwrap().into_result().unwrap();
        let late = first.reserve("alice", 20, TTL).await.unwrap().into_result().unwrap();
        let id: ReservationId = settled.id().to_string().parse().unwrap();
        assert!(second.settle(&id, 10).await.unwrap());
        let id: ReservationId = late.id().to_string().parse().unwrap();
        while clock.sleepers() == 0 {
            tokio::task::yield_now().await;
        }
        // The margin for clocks that differ is not over yet.
        clock.advance(TTL);
        assert!(!second.settle(&id, 50).await.unwrap());
        assert_eq!(remaining(&second, &alice()).await, [70]);
        until_returned(&clock, &second, &alice(), &[90]).await;
    });
}

#[test]
fn units_of_a_dropped_limiter_stay_charged() {
    let server = Server::start(Flavor::Redis);
    runtime().block_on(async {
        let clock = clock();
        let first = limiter(&server.url(), &clock, [policy("tokens", "100/day")]).await;
        let second = limiter(&server.url(), &clock, [policy("tokens", "100/day")]).await;
        drop(first.reserve("alice", 30, TTL).await.unwrap());
        drop(first);
        let lost = second.reserve("alice", 20, TTL).await.unwrap();
        let second = second.with_policies(PolicySet::new([policy("tokens", "200/day")]).unwrap());
        until_returned(&clock, &second, &alice(), &[170]).await;
        drop(lost);
    });
}

#[test]
fn units_in_several_slots_are_returned() {
    let cluster = Cluster::start(Flavor::Redis, 3, 0);
    runtime().block_on(async {
        let clock = clock();
        let team = Policy::new("team", ["100/day burst 100"]).per(["team"]);
        let policies = [
            policy("tokens", "100/day"),
            team.unsettled(Unsettled::Return),
            policy("log", "50/day sliding-log"),
        ];
        let limiter = limiter(&cluster.url(), &clock, policies).await;
        let _lost = limiter.reserve_request(&alice().cost(20), TTL).await.unwrap();
        assert_eq!(remaining(&limiter, &alice()).await, [80, 80, 30]);
        until_returned(&clock, &limiter, &alice(), &[100, 99, 50]).await;
    });
}

/// The store is called again until it answers.
#[test]
fn a_return_is_repeated_if_the_server_hangs() {
    let server = Server::start(Flavor::Redis);
    runtime().block_on(async {
        let builder = RedisStore::builder(&server.url()).unwrap();
        let store = builder.deadline(Duration::from_millis(200)).connect().await.unwrap();
        let policies = PolicySet::new([policy("tokens", "100/day")]).unwrap();
        let limiter = SharedLimiter::new(store, policies);
        let ttl = Duration::from_secs(1);
        let _lost = limiter.reserve("alice", 60, ttl).await.unwrap();
        server.pause();
        while limiter.stats().store_failures == 0 {
            tokio::task::yield_now().await;
        }
        server.resume();
        loop {
            let peek = limiter.peek("alice").await.unwrap();
            if !peek.is_degraded() && peek.remaining() == 100 {
                break;
            }
            tokio::task::yield_now().await;
        }
    });
}
