//! The deny cache answers as the server would.

use std::time::Duration;

use pacegate::{
    Algorithm, Charge, Counter, Excess, KeyRef, Limit, Policy, PolicySet, Request, SharedLimiter,
    Source, Store, Timestamp,
    algorithm::{Origin, Outcome},
    policy::Lease,
};
use pacegate_redis::RedisStore;
use pacegate_testkit::{
    Subject,
    servers::{Flavor, Server},
};
use tokio::time::Instant;

use crate::kit::{PATIENT, Timed, runtime};

/// Short periods, so that denials end often.
const PERIOD: Duration = Duration::from_millis(40);
const DENIALS: u64 = 1_000;

#[test]
fn a_cached_denial_never_contradicts_the_server() {
    for flavor in Flavor::ALL {
        let server = Server::start(flavor);
        runtime().block_on(async {
            let store = |entries| {
                let builder = RedisStore::builder(&server.url()).unwrap().deadline(PATIENT);
                builder.deny_cache(entries).connect()
            };
            let (cached, plain) = (store(100).await.unwrap(), store(0).await.unwrap());
            for algorithm in [
                Algorithm::FixedWindow,
                Algorithm::SlidingWindow,
                Algorithm::TokenBucket,
                Algorithm::SlidingLog,
            ] {
                compare(&cached, &plain, algorithm).await;
            }
        });
    }
}

/// The clock of this process is months ahead of the server's.
#[test]
fn resets_use_the_servers_clock() {
    let server = Server::start(Flavor::Redis);
    let timed = Timed::new(&server.url(), |builder| builder);
    let now = Timestamp::from_secs(1_767_225_600).after(Duration::from_millis(250));
    timed.set_time(now);
    let reset = |limit: &str, lease: Option<Lease>, source: Source| {
        let policy = Policy::new("api", [limit]);
        let mut policy = policy.per([Request::KEY]);
        policy.lease = lease;
        let limiter = SharedLimiter::new(timed.store.clone(), PolicySet::new([policy]).unwrap());
        let decisions = (0..100).map(|_| timed.block_on(limiter.check(limit)).unwrap());
        let decision = decisions.into_iter().find(|decision| decision.source() == source);
        decision.unwrap().reset_at().unwrap().micros_since(Timestamp::from_secs(1_767_225_600))
    };
    let minute = 60_000_000;
    assert_eq!(reset("9/minute", None, Source::Store), minute);
    assert_eq!(reset("9/minute", None, Source::DenyCache), minute);
    assert_eq!(reset("99/minute", Some(Lease::Units(5)), Source::Lease), minute);
    assert_eq!(reset("9/minute sliding-log", None, Source::Store), minute + 250_000);
    assert_eq!(reset("9/minute sliding-log", None, Source::DenyCache), minute + 250_000);
    assert_eq!(reset("1/minute token-bucket", None, Source::DenyCache), minute + 250_000);
}

/// envoyproxy/ratelimit counts the hits that exceed a limit, but with its local cache not those after them.
#[test]
fn counted_denials_are_cached_only_if_the_store_is_told_to() {
    let server = Server::start(Flavor::Redis);
    let answers = [false, true].map(|is_cached| {
        let prefix = format!("{is_cached}:");
        let timed = Timed::new(&server.url(), |builder| {
            builder.prefix(prefix).cache_counted_denials(is_cached)
        });
        timed.set_time(Timestamp::from_secs(1_767_225_660));
        let charge = |limit, cost| {
            let charge = Charge::new("hits".parse().unwrap(), KeyRef::new(b"key"), limit);
            charge.counter(Counter::Policy).cost(cost).excess(Excess::Count)
        };
        let ask = |limit, cost| timed.block_on(one(&timed.store, charge(limit, cost)));
        let outcomes = [8, 4, 1, 500, 0, 2].map(|cost| ask(Limit::per_hour(10), cost));
        let raised = ask(Limit::per_hour(1_000), 1);
        assert!(raised.is_admitted(), "a raised limit takes effect");
        let used = 1_000 - raised.remaining() - 1;
        assert_eq!(used, if is_cached { 8 + 4 } else { 8 + 4 + 1 + 500 + 2 });
        let origins = outcomes.map(|outcome| outcome.origin() == Origin::DenyCache);
        assert_eq!(origins, [false, false, is_cached, is_cached, false, is_cached]);
        let debt = charge(Limit::per_hour(10), 1).excess(Excess::Debt { max: 10_000 });
        assert_eq!(timed.block_on(one(&timed.store, debt)).origin(), Origin::Store);
        outcomes.map(|it| (it.is_admitted(), it.remaining(), it.retry_after(), it.reset_after()))
    });
    assert_eq!(answers[0], answers[1]);
}

/// Charges one store until its deny cache answers, and then at once the other, which asks the server.
async fn compare(cached: &RedisStore, plain: &RedisStore, algorithm: Algorithm) {
    let limit = Limit::new(10, PERIOD).unwrap().with_algorithm(algorithm).unwrap();
    let key = KeyRef::new(b"denied");
    let charge = |cost| Charge::new("denials".parse().unwrap(), key, limit).cost(cost);
    let (mut denials, mut ended) = (0, 0);
    // The duration of the round trip behind the cached state, and whether no other request was admitted since.
    let (mut trip, mut latest) = (Duration::ZERO, true);
    for turn in 0.. {
        // For logs, only those without any free units are cached.
        let cost = if algorithm == Algorithm::SlidingLog { 1 } else { 1 + turn % 3 };
        let asked = Instant::now();
        let denied = one(cached, charge(cost)).await;
        if denied.origin() != Origin::DenyCache {
            (trip, latest) = (asked.elapsed(), true);
            continue;
        }
        let truth = one(plain, charge(cost)).await;
        let (wait, passed) = (denied.retry_after().unwrap(), asked.elapsed());
        // The retry time is computed from the earliest time of the server, the denial from the latest.
        let unsure = cached.stats().servers[0].round_trip;
        assert!(wait > unsure, "{algorithm}: denied for {wait:?}, known to {unsure:?}");
        if truth.is_admitted() {
            // It ended between the two requests. The server's time is known to within a round trip.
            (ended, latest) = (ended + 1, false);
            let most = passed + trip;
            assert!(wait <= most, "{algorithm}: denied for {wait:?}, admitted within {most:?}");
        } else if latest {
            let left = truth.retry_after().unwrap();
            assert!(
                left <= wait,
                "{algorithm}: retry after {wait:?}, but the server requires {left:?}"
            );
        }
        denials += 1;
        if denials == DENIALS {
            break;
        }
    }
    println!("{algorithm}: {ended} of {denials} denials ended before the server was asked");
}

async fn one(store: &RedisStore, charge: Charge<'_>) -> Outcome {
    store.charge(&[charge], None).await.unwrap()[0]
}
