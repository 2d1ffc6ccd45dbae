//! Requests for as many units as there are.

use futures_util::future::join_all;
use pacegate::{
    Charge, CheckError, Excess, Limit, Policy, PolicySet, Request, SharedLimiter, Store,
    StoreError, policy::FailureMode,
};
use pacegate_redis::RedisStore;
use pacegate_testkit::servers::{Cluster, Flavor, Server};

use crate::kit::{PATIENT, runtime, two_threads};

async fn connect(url: &str) -> RedisStore {
    RedisStore::builder(url).unwrap().deadline(PATIENT).connect().await.unwrap()
}

/// Requests of one batch are decided in their order, together with plain charges of the same key.
#[test]
fn a_batch_decides_in_order() {
    let server = Server::start(Flavor::Redis);
    for limit in ["10/week", "10/week sliding-window", "10/week burst 10", "10/week sliding-log"] {
        let limit: Limit = limit.parse().unwrap();
        runtime().block_on(async {
            let store = connect(&server.url()).await;
            let charge = Charge::new("batch".parse().unwrap(), "k", limit);
            // Nothing is sent before the first await, so all leave in one batch.
            let four = store.charge_up_to(&[charge], 4, None);
            let one = store.charge(&[charge], None);
            let three = store.charge(&[charge.cost(3)], None);
            let (rest, none) =
                (store.charge_up_to(&[charge], 9, None), store.charge_up_to(&[charge], 2, None));
            let spent = store.charge(&[charge.excess(Excess::Debt { max: 5 })], None);
            let (units, outcomes) = four.await.unwrap();
            assert_eq!((units, outcomes[0].remaining()), (4, 6), "{limit}");
            assert_eq!(one.await.unwrap()[0].remaining(), 5, "{limit}");
            assert_eq!(three.await.unwrap()[0].remaining(), 2, "{limit}");
            let (units, outcomes) = rest.await.unwrap();
            assert_eq!((units, outcomes[0].remaining()), (2, 0), "{limit}");
            assert!(outcomes[0].is_admitted(), "{limit}");
            let (units, outcomes) = none.await.unwrap();
            assert_eq!(units, 0, "{limit}");
            assert!(!outcomes[0].is_admitted() && outcomes[0].retry_after().is_some(), "{limit}");
            assert!(!spent.await.unwrap()[0].is_admitted(), "{limit}");
            // The denial is cached.
            let before = store.stats();
            assert_eq!(store.charge_up_to(&[charge], 5, None).await.unwrap().0, 0, "{limit}");
            let after = store.stats();
            assert_eq!(after.denied_locally, before.denied_locally + 1, "{limit}");
        });
    }
}

#[test]
fn many_clients_are_granted_exactly_the_amount() {
    let server = Server::start(Flavor::Valkey);
    let policies = || {
        let small = Policy::new("small", ["700/week"]).per(["user"]);
        let large = Policy::new("large", ["900/week sliding-log"]);
        PolicySet::new([small, large]).unwrap()
    };
    two_threads().block_on(async {
        let limiters = join_all((0..3).map(async |_| {
            SharedLimiter::builder(connect(&server.url()).await)
                .policies(policies())
                .build()
                .unwrap()
        }))
        .await;
        let ask = async |n: usize| {
            let user = if n.is_multiple_of(2) { "alice" } else { "bob" };
            let request = Request::new().with("user", user).cost(1 + n as u64 % 13);
            let grant = limiters[n % 3].check_request_up_to(&request).await.unwrap();
            assert!(!grant.decision.is_degraded());
            (user, grant.units)
        };
        let grants = join_all((0..400).map(ask)).await;
        let of = |name: &str| {
            grants.iter().filter(|(user, _)| *user == name).map(|(_, units)| units).sum::<u64>()
        };
        let (alice, bob) = (of("alice"), of("bob"));
        assert_eq!(alice + bob, 900, "all of the limit that both share");
        assert!(alice <= 700 && bob <= 700);
    });
}

#[test]
fn a_request_with_an_id_is_granted_once() {
    let server = Server::start(Flavor::Redis);
    runtime().block_on(async {
        let store = connect(&server.url()).await;
        let [one, two] =
            ["a", "b"].map(|key| Charge::new("once".parse().unwrap(), key, Limit::per_day(10)));
        for _ in 0..2 {
            let (units, _) = store.charge_up_to(&[one, two], 7, Some(b"id")).await.unwrap();
            assert_eq!(units, 7);
        }
        let (units, _) = store.charge_up_to(&[one, two], 6, Some(b"id")).await.unwrap();
        assert_eq!(units, 3, "another request");
    });
}

#[test]
fn failure_modes_grant_without_a_server() {
    runtime().block_on(async {
        let store = || RedisStore::builder("redis://127.0.0.1:1").unwrap().connect_later();
        for (failure, units) in [
            (FailureMode::Open, [9, 9]),
            (FailureMode::Closed, [0, 0]),
            ("local 1/2".parse().unwrap(), [5, 0]),
        ] {
            let policy = Policy::new("p", ["10/week"]).per(["key"]).failing(failure);
            let policies = PolicySet::new([policy]).unwrap();
            let limiter = SharedLimiter::builder(store()).policies(policies).build().unwrap();
            for expected in units {
                let grant = limiter.check_up_to("alice", 9).await.unwrap();
                assert_eq!(grant.units, expected, "{failure}");
                assert!(grant.decision.is_degraded());
                assert_eq!(grant.decision.is_allowed(), expected > 0);
            }
        }
    });
}

#[test]
fn unsupported_requests_are_errors() {
    let cluster = Cluster::start(Flavor::Redis, 3, 0);
    two_threads().block_on(async {
        let store = connect(&cluster.url()).await;
        let charge = |key| Charge::new("p".parse().unwrap(), key, Limit::per_day(9));
        let slots = store.charge_up_to(&[charge("a"), charge("b")], 5, None).await;
        let is_slot = |why: &str| why.contains("one slot");
        assert!(matches!(&slots, Err(StoreError::Unsupported(why)) if is_slot(why)), "{slots:?}");
        assert_eq!(store.charge_up_to(&[charge("a")], 5, None).await.unwrap().0, 5);
        let limiter = SharedLimiter::builder(store).limit("5/minute concurrency").build().unwrap();
        let permits = limiter.check_up_to("alice", 2).await;
        assert!(matches!(permits, Err(CheckError::Store(StoreError::Unsupported(_)))));
    });
}
