//! Batched requests get the same answers as single ones.

use std::time::Duration;

use futures_util::future::join_all;
use pacegate::{
    Algorithm, Charge, Clock, Counter, Excess, KeyRef, Limit, ManualClock, MemoryStore, Store,
    Timestamp, algorithm::Origin,
};
use pacegate_testkit::{
    Model, Random, Subject,
    servers::{Cluster, Flavor, Server},
};

use crate::kit::Timed;

/// One request: keys, each with its limit and cost.
type Ask = Vec<(String, Limit, u64, bool)>;

/// Generates requests for few keys: hot keys, mixed costs, several limits, peeks, charges that are not enforced.
fn requests(random: &mut Random, seed: u64) -> Vec<Ask> {
    let count = random.between(1, 60);
    (0..count).map(|_| request(random, seed)).collect()
}

fn request(random: &mut Random, seed: u64) -> Ask {
    let charges = if random.one_in(4) { random.between(2, 4) } else { 1 };
    // The amount may change from one request to the next.
    let amount = if random.one_in(10) { 7 } else { 20 };
    (0..charges)
        .map(|_| {
            let place = random.below(5);
            let algorithm = Algorithm::BUILT_IN[place as usize];
            let limit = Limit::new(amount, Duration::from_secs(60)).unwrap();
            let limit = limit.with_algorithm(algorithm).unwrap();
            let cost = random.pick(&[0, 1, 1, 1, 1, 2, 3, 5]);
            (format!("{seed}-{place}"), limit, cost, !random.one_in(5))
        })
        .collect()
}

fn charges(ask: &Ask, permit: u128) -> Vec<Charge<'_>> {
    ask.iter()
        .map(|(key, limit, cost, enforced)| {
            let policy = "batching".parse().unwrap();
            let mut charge = Charge::new(policy, KeyRef::new(key.as_bytes()), *limit).cost(*cost);
            charge.enforced = *enforced;
            // One tag for all, so that a cluster can decide them together too.
            charge.tag = KeyRef::new(b"together");
            if limit.algorithm() == Algorithm::Concurrency {
                charge.permit = permit;
            }
            charge
        })
        .collect()
}

fn follow(subject: &Timed, rounds: u64) {
    for seed in 0..rounds {
        let random = &mut Random::new(seed);
        let clock = ManualClock::at(Timestamp::from_secs(1_800_000_000));
        let memory = MemoryStore::new(1_000, clock.clone());
        let mut permit = 0;
        for _ in 0..4 {
            clock.advance(Duration::from_micros(random.below(30_000_000)));
            subject.set_time(clock.now());
            let asks = requests(random, seed);
            let asked: Vec<Vec<Charge<'_>>> = asks
                .iter()
                .map(|ask| {
                    permit += 1;
                    charges(ask, permit)
                })
                .collect();
            let expected: Vec<pacegate::Outcomes> = asked
                .iter()
                .map(|charges| subject.block_on(memory.charge(charges, None)).unwrap())
                .collect();
            let answers =
                subject.block_on(join_all(asked.iter().map(|c| subject.store.charge(c, None))));
            for (place, (answer, expected)) in answers.into_iter().zip(expected).enumerate() {
                let answer: pacegate::Outcomes =
                    answer.unwrap().iter().map(|o| o.with_origin(Origin::Store)).collect();
                assert_eq!(answer, expected, "seed {seed}, request {place}: {:?}", asks[place]);
            }
        }
    }
}

#[test]
fn batches_answer_like_single_requests() {
    for flavor in Flavor::ALL {
        let server = Server::start(flavor);
        let subject = Timed::new(&server.url(), |builder| builder.deny_cache(0));
        follow(&subject, 300);
        let stats = subject.store.stats();
        assert!(stats.requests > 5 * stats.calls, "they did travel together: {stats:?}");
        assert!(stats.requests > stats.keys, "and were combined: {stats:?}");
    }
}

#[test]
fn batches_answer_like_single_requests_on_a_cluster() {
    let cluster = Cluster::start(Flavor::Redis, 3, 0);
    let subject = Timed::new(&cluster.url(), |builder| builder.deny_cache(0));
    follow(&subject, 100);
}

/// Generates charges of one key: mixed costs and kinds of excess. The amount of a window changes between them.
fn recorded(random: &mut Random, algorithm: Algorithm) -> Vec<(Limit, u64, Excess)> {
    let count = random.between(2, 12);
    (0..count)
        .map(|_| {
            let keeps_rate = algorithm == Algorithm::TokenBucket;
            let amount = if keeps_rate { 20 } else { random.pick(&[20, 10, 10, 10, 7]) };
            let limit = Limit::new(amount, Duration::from_secs(60)).unwrap();
            let limit = limit.with_algorithm(algorithm).unwrap();
            let max = random.pick(&[0, 3, limit.capacity(), 1_000]);
            let excess =
                [Excess::Count, Excess::Debt { max }, Excess::Debt { max }, Excess::Reject];
            let excess = random.pick(&excess);
            let max_cost = if excess.is_recorded() { 30 } else { limit.capacity() };
            (limit, random.pick(&[0, 1, 1, 2, 5, max_cost]), excess)
        })
        .collect()
}

/// Also after a limit was lowered: more than its amount may be used then, without debt.
#[test]
fn recorded_charges_of_a_batch_agree_with_the_model() {
    let server = Server::start(Flavor::Redis);
    let subject = Timed::new(&server.url(), |builder| builder.deny_cache(0));
    let algorithms = Algorithm::BUILT_IN.into_iter().filter(|it| !it.holds_permits());
    for (algorithm, seed) in algorithms.flat_map(|it| (0..300).map(move |seed| (it, seed))) {
        let random = &mut Random::new(seed);
        let key = format!("recorded-{algorithm}-{seed}");
        let mut now = 1_800_000_000_000_000;
        let mut model = Model::new(recorded(random, algorithm)[0].0);
        for _ in 0..4 {
            now += random.below(30_000_000);
            subject.set_time(Timestamp::from_micros(now));
            let recorded = recorded(random, algorithm);
            let charge = |&(limit, cost, excess): &(Limit, u64, Excess)| {
                let charge = Charge::new("recorded".parse().unwrap(), key.as_str(), limit);
                [charge.counter(Counter::Policy).cost(cost).excess(excess)]
            };
            let charges: Vec<_> = recorded.iter().map(charge).collect();
            let answers = charges.iter().map(|charge| subject.store.charge(charge, None));
            let answers = subject.block_on(join_all(answers.collect::<Vec<_>>()));
            for (place, (answer, (limit, cost, excess))) in
                answers.into_iter().zip(&recorded).enumerate()
            {
                model.set_limit(*limit);
                let expected = model.record(now, *cost, *excess);
                let outcome = answer.unwrap()[0];
                assert!(
                    expected.is(&outcome),
                    "{key}, charge {place} of {recorded:?}: expected {expected:?}, got {outcome:?}"
                );
            }
        }
    }
}

/// A hot key costs the server one key in one call, for any number of requests.
#[test]
fn a_hot_key_costs_one_key() {
    let server = Server::start(Flavor::Redis);
    let subject = Timed::new(&server.url(), |builder| builder);
    let limit = Limit::per_day(600);
    let charge = [Charge::new("hot".parse().unwrap(), KeyRef::new(b"hot"), limit)];
    let answers =
        subject.block_on(join_all((0..1_000).map(|_| subject.store.charge(&charge, None))));
    let admitted: Vec<bool> = answers.into_iter().map(|a| a.unwrap()[0].is_admitted()).collect();
    assert!(admitted[..600].iter().all(|admitted| *admitted), "in order of arrival");
    assert!(!admitted[600..].iter().any(|admitted| *admitted));
    let stats = subject.store.stats();
    assert_eq!((stats.calls, stats.keys, stats.requests), (1, 1, 1_000));
}

/// Large queues are sent as two round trips, so that server and store work in parallel.
#[test]
fn many_keys_take_two_round_trips() {
    let server = Server::start(Flavor::Redis);
    let subject = Timed::new(&server.url(), |builder| builder);
    let keys: Vec<String> = (0..256).map(|number| format!("many-{number}")).collect();
    let charges = keys.iter().map(|key| {
        [Charge::new("many".parse().unwrap(), KeyRef::new(key.as_bytes()), Limit::per_day(2))]
    });
    let charges: Vec<_> = charges.collect();
    for remaining in [1, 0] {
        let before = subject.store.stats();
        let asked = join_all(charges.iter().map(|charge| subject.store.charge(charge, None)));
        for answer in subject.block_on(asked) {
            assert_eq!(answer.unwrap()[0].remaining(), remaining);
        }
        let after = subject.store.stats();
        assert_eq!((after.calls - before.calls, after.keys - before.keys), (4, 256));
        // The first time, the server does not know the script, and each is sent again.
        assert_eq!(after.trips - before.trips, 2 + 2 * remaining);
    }
}

/// An idle store sends at once: as many calls as requests, without a timer.
#[test]
fn single_requests_take_one_call_each() {
    let server = Server::start(Flavor::Redis);
    let subject = Timed::new(&server.url(), |builder| builder);
    let charge = [Charge::new("idle".parse().unwrap(), KeyRef::new(b"idle"), Limit::per_day(100))];
    for expected in (0..100).rev() {
        let outcome = subject.block_on(subject.store.charge(&charge, None)).unwrap()[0];
        assert_eq!(outcome.remaining(), expected);
    }
    let stats = subject.store.stats();
    assert_eq!((stats.trips, stats.calls, stats.requests), (101, 100, 100), "one loads the script");
}
