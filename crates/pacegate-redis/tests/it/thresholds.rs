//! Threshold events: each is reported by one process.

use std::{
    collections::HashSet,
    sync::{Arc, Mutex},
    time::Duration,
};

use futures_util::future::join_all;
use pacegate::{
    Algorithm, Charge, Claim, Counter, Limit, Policy, PolicyName, PolicySet, SharedLimiter, Store,
    ThresholdEvent, Timestamp,
    policy::{Lease, Threshold},
};
use pacegate_redis::RedisStore;
use pacegate_testkit::{
    History, Op, Subject,
    servers::{Cluster, Flavor, Proxy, Server, eventually},
};
use tokio::task::yield_now;

use crate::kit::{PATIENT, Timed, two_threads};

type Events = Arc<Mutex<Vec<ThresholdEvent>>>;

const NOTIFY: [u8; 3] = [50, 80, 100];

fn policy(limit: Limit) -> Policy {
    Policy::new("plan", [limit]).per(["key"]).notify(NOTIFY)
}

fn limiter(store: &RedisStore, policy: Policy, events: &Events) -> SharedLimiter {
    let events = events.clone();
    SharedLimiter::builder(store.clone())
        .policies(PolicySet::new([policy]).unwrap())
        .on_threshold(move |event| events.lock().unwrap().push(event))
        .build()
        .unwrap()
}

/// Runs a history on the store.
async fn follow(subject: &Timed, history: &History, key: &str, events: &Events) {
    let mut limiter = limiter(&subject.store, policy(history.limit), events);
    let (mut limit, mut now) = (history.limit, history.start);
    subject.set_time(now);
    let policy_name: PolicyName = "plan".parse().unwrap();
    let mut reservations = Vec::new();
    for op in &history.ops {
        let charge = Charge::new(policy_name, key, limit).counter(Counter::Policy);
        let charges = limiter.charges();
        match *op {
            Op::Reserve(estimate, ttl) => {
                let charge = charge.cost(estimate.min(limit.capacity()));
                let reserved = charges.reserve(&[charge], Duration::from_micros(ttl)).await;
                reservations.push(reserved.unwrap().reservation);
            }
            Op::Settle(number, actual) => {
                if let Some(Some(reservation)) = reservations.get(number as usize) {
                    limiter.settle(reservation.id(), actual).await.unwrap();
                }
            }
            Op::Pass(micros) => {
                now = Timestamp::from_micros(now.as_micros() + micros);
                subject.set_time(now);
            }
            Op::Charge(cost, permit) => {
                let charge = charge.cost(cost.min(limit.capacity())).holding(permit.into());
                assert!(!charges.check(&[charge]).await.unwrap().is_degraded());
            }
            Op::UpTo(most) => {
                let charge = charge.cost(most.min(limit.capacity()));
                assert!(
                    !charges.check_up_to(&[charge], None).await.unwrap().decision.is_degraded()
                );
            }
            Op::Record(cost, excess) => {
                let charge = charge.cost(cost).excess(excess);
                assert!(!charges.check(&[charge]).await.unwrap().is_degraded());
            }
            Op::Refund(cost) => charges.refund(&[charge.cost(cost)]).await.unwrap(),
            Op::Reset => charges.reset(&[charge]).await.unwrap(),
            Op::SetLimit(other) => {
                limit = other;
                limiter = limiter.with_policies(PolicySet::new([policy(limit)]).unwrap());
            }
            Op::Release(permit) => {
                charges.release(&[charge.holding(permit.into())]).await.unwrap();
            }
            Op::Renew(permit) => {
                let _ = charges.renew(&[charge.holding(permit.into())]).await.unwrap();
            }
        }
    }
}

#[test]
fn crossings_are_those_of_the_model() {
    let server = Server::start(Flavor::Redis);
    let subject = Timed::new(&server.url(), |builder| builder);
    let thresholds = NOTIFY.map(|percent| Threshold::new(percent).unwrap());
    for algorithm in [Algorithm::FixedWindow, Algorithm::SlidingWindow, Algorithm::TokenBucket] {
        // At the instant 0, an outcome has no time: it stands for the clock of the process.
        let histories = (0..300).map(|seed| History::random(seed, algorithm));
        for history in histories.filter(|history| history.start > Timestamp::EPOCH) {
            let seed = history.seed;
            let mut expected = history.crossings(&thresholds, true);
            let events = Events::default();
            subject.block_on(async {
                follow(&subject, &history, &format!("{algorithm}-{seed}"), &events).await;
                let claimed = async {
                    while events.lock().unwrap().len() < expected.len() {
                        yield_now().await;
                    }
                };
                drop(tokio::time::timeout(PATIENT, claimed).await);
            });
            let found = events.lock().unwrap();
            let mut found: Vec<_> = found.iter().map(|event| (event.at, event.threshold)).collect();
            // Answers to claims may arrive in another order.
            found.sort_unstable();
            expected.sort_unstable();
            assert_eq!(found, expected, "{history:?}");
        }
    }
}

/// Three processes charge 10,000 keys until they are denied.
#[test]
fn three_replicas_report_each_of_30_000_events_once() {
    const KEYS: usize = 10_000;
    let server = Server::start(Flavor::Redis);
    let runtime = two_threads();
    let replicas: Vec<(SharedLimiter, Events)> = (0..3)
        .map(|_| {
            let events = Events::default();
            let builder = RedisStore::builder(&server.url()).unwrap().deadline(PATIENT);
            let store = runtime.block_on(builder.connect()).unwrap();
            (limiter(&store, policy("6/day".parse().unwrap()), &events), events)
        })
        .collect();
    runtime.block_on(async {
        for keys in (0..KEYS).collect::<Vec<_>>().chunks(500) {
            let checks = keys.iter().flat_map(|key| {
                let replicas = replicas.iter().chain(&replicas).chain(&replicas);
                replicas.map(async move |(limiter, _)| limiter.check(key.to_string()).await)
            });
            let decisions = join_all(checks).await;
            let allowed = decisions.iter().filter(|one| one.as_ref().unwrap().is_allowed());
            assert_eq!(allowed.count(), 6 * keys.len());
        }
    });
    let all = || replicas.iter().flat_map(|(_, events)| events.lock().unwrap().clone());
    let expected = KEYS * NOTIFY.len();
    eventually(PATIENT, "all events are reported", || all().count() >= expected);
    let different: HashSet<_> = all().map(|event| (event.key, event.threshold)).collect();
    assert_eq!((all().count(), different.len()), (expected, expected));
    for (limiter, events) in &replicas {
        assert_eq!(limiter.stats().dropped_events, 0);
        assert!(!events.lock().unwrap().is_empty(), "every replica reports some events");
    }
}

#[test]
fn a_claim_has_one_owner_until_it_ends() {
    for flavor in Flavor::ALL {
        let server = Server::start(flavor);
        claim_as_owners(&Timed::new(&server.url(), |builder| builder));
    }
    let cluster = Cluster::start(Flavor::Redis, 3, 0);
    claim_as_owners(&Timed::new(&cluster.url(), |builder| builder));
}

fn claim_as_owners(subject: &Timed) {
    let minute = Duration::from_secs(60);
    let claim = |key: &str, event, owner, at| {
        let charge = Charge::new("plan".parse().unwrap(), key, Limit::per_minute(10));
        let claim = Claim::new([event, 80], owner, Timestamp::from_secs(at), minute);
        subject.block_on(async { subject.store.claim(&charge, claim).await }).unwrap()
    };
    assert!(claim("a", 1, u128::MAX, 100));
    assert!(claim("a", 1, u128::MAX, 101), "the same owner, as after a lost answer");
    assert!(!claim("a", 1, 5, 101) && !claim("a", 1, 5, 159));
    assert!(claim("a", 2, 5, 101) && claim("b", 1, 5, 101), "another event, another key");
    assert!(claim("a", 1, 5, 160) && !claim("a", 1, u128::MAX, 161), "the first has ended");
}

/// The claims of events that were detected before an outage are sent again.
#[test]
fn an_outage_delays_events_but_loses_none() {
    let server = Server::start(Flavor::Redis);
    let proxy = Proxy::start(server.address());
    let runtime = two_threads();
    let builder = RedisStore::builder(&proxy.url()).unwrap().deadline(Duration::from_millis(100));
    let store = runtime.block_on(builder.connect()).unwrap();
    let events = Events::default();
    let limiter = limiter(&store, policy("2/day".parse().unwrap()), &events);
    runtime.block_on(async {
        for key in 0..50 {
            let _ = limiter.check_cost(key, 2).await.unwrap();
            if key == 20 {
                proxy.refuse(true);
            }
        }
    });
    proxy.refuse(false);
    // Charges whose answer was lost are reported by the next charge.
    let is_complete = || {
        let denied = runtime.block_on(join_all((0..50).map(|key| limiter.check(key))));
        let is_known = denied.iter().all(|one| !one.as_ref().unwrap().is_degraded());
        let events = events.lock().unwrap();
        let full = events.iter().filter(|event| event.threshold == Threshold::FULL);
        is_known && full.map(|event| &event.key).collect::<HashSet<_>>().len() == 50
    };
    eventually(2 * PATIENT, "all keys are reported", is_complete);
}

#[test]
fn leased_units_reach_thresholds_too() {
    let server = Server::start(Flavor::Redis);
    let runtime = two_threads();
    let events = Events::default();
    let builder = RedisStore::builder(&server.url()).unwrap().deadline(PATIENT);
    let store = runtime.block_on(builder.connect()).unwrap();
    let policy = policy("1000/day".parse().unwrap()).leased(Lease::Units(50));
    let limiter = limiter(&store, policy, &events);
    runtime.block_on(async { while limiter.check("alice").await.unwrap().is_allowed() {} });
    eventually(PATIENT, "all thresholds are reported", || events.lock().unwrap().len() >= 3);
    let mut found: Vec<_> =
        events.lock().unwrap().iter().map(|one| one.threshold.percent()).collect();
    found.sort_unstable();
    assert_eq!(found, NOTIFY);
    assert!(store.stats().leased > 500);
}
