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
const TICK: Duration = Duration::from_micros(1);

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
            clock.advance(TTL - TICK);
            assert_eq!(remaining(&second, &alice()).await, [40; 6]);
            clock.advance(TICK);
            // The bucket has refilled a part of one token.
            let expected = [100, 100, 100, 100, 99, 40];
            assert_eq!(remaining(&second, &alice()).await, expected);
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
        // Its configuration has changed since.
        let keeping = policy("tokens", "100/day").unsettled(Unsettled::Keep);
        let second = limiter(&server.url(), &clock, [keeping]).await;
        let settled = first.reserve("alice", 30, TTL).await.unwrap().into_result().unwrap();
        let late = first.reserve("alice", 20, TTL).await.unwrap().into_result().unwrap();
        let id: ReservationId = settled.id().to_string().parse().unwrap();
        assert!(second.settle(&id, 10).await.unwrap());
        let id: ReservationId = late.id().to_string().parse().unwrap();
        clock.advance(TTL);
        assert_eq!(remaining(&second, &alice()).await, [70], "it keeps units");
        assert!(!second.settle(&id, 50).await.unwrap());
        assert_eq!(remaining(&first, &alice()).await, [90]);
    });
}

/// The units come back although no process knows the reservation.
#[test]
fn units_of_a_dropped_limiter_are_returned() {
    let server = Server::start(Flavor::Redis);
    runtime().block_on(async {
        let clock = clock();
        for text in ["100/day", "100/day sliding-log", "100/day burst 100"] {
            let first = limiter(&server.url(), &clock, [policy("tokens", text)]).await;
            let second = limiter(&server.url(), &clock, [policy("tokens", text)]).await;
            drop(first.reserve("alice", 30, TTL).await.unwrap());
            drop(first);
            assert!(second.check_cost("alice", 70).await.unwrap().is_allowed());
            assert!(!second.check("alice").await.unwrap().is_allowed(), "{text}");
            clock.advance(TTL);
            // At once, although the denial was for longer.
            let third = second.with_policies(PolicySet::new([policy("tokens", text)]).unwrap());
            assert!(third.check_cost("alice", 29).await.unwrap().is_allowed(), "{text}");
            assert!(!third.check_cost("alice", 2).await.unwrap().is_allowed(), "{text}");
        }
    });
}

/// A limit that denies after others were charged cancels the reservation there. Its units are not returned again.
#[test]
fn a_reservation_that_is_denied_in_another_slot_returns_units_once() {
    let cluster = Cluster::start(Flavor::Redis, 3, 0);
    runtime().block_on(async {
        let clock = clock();
        let team = Policy::new("team", ["10/day"]).per(["team"]).unsettled(Unsettled::Return);
        let policies = [policy("tokens", "100/day"), policy("bucket", "100/day burst 100"), team];
        let limiter = limiter(&cluster.url(), &clock, policies).await;
        let spent = Request::new().with("key", "alice").with("team", "red").cost(5);
        assert!(limiter.check_request(&spent).await.unwrap().is_allowed());
        for _ in 0..3 {
            let other = Request::new().with("key", "bob").with("team", "blue").cost(10);
            let _ = limiter.check_request(&other).await.unwrap();
            let denied = limiter.reserve_request(&alice().cost(10), TTL).await.unwrap();
            assert!(!denied.decision.is_allowed());
        }
        assert_eq!(remaining(&limiter, &alice()).await, [95, 95, 0]);
        clock.advance(TTL);
        assert_eq!(remaining(&limiter, &alice()).await, [95, 95, 0]);
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
        clock.advance(TTL);
        assert_eq!(remaining(&limiter, &alice()).await, [100, 99, 50]);
    });
}

/// Each call returns at most 1,000 reservations, or 32 of a log, so that it does not block the server for long.
#[test]
fn many_reservations_are_returned_by_several_calls() {
    let server = Server::start(Flavor::Redis);
    runtime().block_on(async {
        let clock = clock();
        for (text, most) in [("5000/day", 1_000), ("5000/day sliding-log", 32)] {
            let limiter = limiter(&server.url(), &clock, [policy("tokens", text)]).await;
            let reserving = (0..most + 10).map(|_| limiter.reserve("alice", 1, TTL));
            let reserved = futures_util::future::join_all(reserving).await;
            assert!(
                reserved.iter().all(|reserved| reserved.as_ref().unwrap().decision.is_allowed())
            );
            clock.advance(TTL);
            assert_eq!(remaining(&limiter, &alice()).await, [5_000 - 10], "{text}");
            assert_eq!(remaining(&limiter, &alice()).await, [5_000], "{text}");
        }
    });
}
