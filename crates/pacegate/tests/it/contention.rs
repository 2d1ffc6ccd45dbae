//! Many threads at once: exactly the amount, every round.

use std::{
    sync::{
        Barrier,
        atomic::{AtomicUsize, Ordering},
    },
    thread,
};

use pacegate::{Algorithm, Charge, KeyRef, Limit, Limiter, PolicyName};

const THREADS: usize = 64;
const ROUNDS: usize = 1_000;

/// Calls `work` in 64 threads for each round, all threads starting a round together. `finish` runs after each round.
fn rounds(
    rounds: usize,
    work: impl Fn(usize, usize) -> usize + Sync,
    finish: impl Fn(usize, usize) + Sync,
) {
    let (barrier, sum) = (Barrier::new(THREADS), AtomicUsize::new(0));
    thread::scope(|scope| {
        for me in 0..THREADS {
            let (barrier, sum, work, finish) = (&barrier, &sum, &work, &finish);
            scope.spawn(move || {
                for round in 0..rounds {
                    barrier.wait();
                    sum.fetch_add(work(round, me), Ordering::SeqCst);
                    if barrier.wait().is_leader() {
                        finish(round, sum.swap(0, Ordering::SeqCst));
                    }
                }
            });
        }
    });
}

#[test]
fn one_key_admits_exactly_the_amount() {
    for algorithm in Algorithm::BUILT_IN {
        // A period of a day, so that neither a window boundary nor a refill falls into the test, except at midnight.
        let limit = Limit::per_day(100).with_algorithm(algorithm).unwrap();
        let limiter = Limiter::builder().limit(limit).clock(pacegate::ManualClock::new());
        let limiter = limiter.build().unwrap();
        rounds(
            ROUNDS,
            |round, _| (0..4).filter(|_| limiter.check(round).is_allowed()).count(),
            |round, admitted| assert_eq!(admitted, 100, "{algorithm}, round {round}"),
        );
    }
}

#[test]
fn batches_admit_exactly_the_amount() {
    let limiter = Limiter::memory(Limit::per_day(50));
    rounds(
        200,
        |round, me| {
            let mut keys: Vec<_> = (0..8).map(|n| (round, (n * 7 + me) % 8)).collect();
            // Keys that follow each other in one shard share its lock.
            keys.extend([(round, 8); 8]);
            limiter.check_many(&keys).iter().filter(|decision| decision.is_allowed()).count()
        },
        |round, admitted| assert_eq!(admitted, 9 * 50, "round {round}"),
    );
}

/// Requests over overlapping pairs of keys, taken in both orders: no deadlock, no partial charge, and in the end
/// nothing more would fit.
#[test]
fn overlapping_sets_are_all_or_nothing() {
    const KEYS: usize = 8;
    const AMOUNT: u32 = 40;
    let limiter = Limiter::builder().limit("1/second").clock(pacegate::ManualClock::new());
    let limiter = limiter.build().unwrap();
    let policy: PolicyName = "pairs".parse().unwrap();
    let name = |round: usize, key: usize| format!("{round}-{key}");
    let limit_of = |key: usize| {
        let algorithms = [Algorithm::FixedWindow, Algorithm::SlidingLog, Algorithm::TokenBucket];
        Limit::per_day(AMOUNT).with_algorithm(algorithms[key % 3]).unwrap()
    };
    let ask = |round: usize, keys: [usize; 2], cost: u64| {
        let names = keys.map(|key| name(round, key));
        let charge = |place: usize| {
            let key = KeyRef::new(names[place].as_bytes());
            Charge::new(policy, key, limit_of(keys[place])).cost(cost)
        };
        limiter.charges().check(&[charge(0), charge(1)]).unwrap()
    };
    let taken: [AtomicUsize; KEYS] = Default::default();
    rounds(
        ROUNDS,
        |round, me| {
            for turn in 0..4 {
                let first = (me + turn) % KEYS;
                let second = (first + 1 + me % 3) % KEYS;
                if ask(round, [first, second], 1).is_allowed() {
                    taken[first].fetch_add(1, Ordering::SeqCst);
                    taken[second].fetch_add(1, Ordering::SeqCst);
                }
            }
            0
        },
        |round, _| {
            for (key, taken) in taken.iter().enumerate() {
                let used = taken.swap(0, Ordering::SeqCst);
                let key_of = name(round, key);
                let peek =
                    Charge::new(policy, KeyRef::new(key_of.as_bytes()), limit_of(key)).cost(0);
                let left = limiter.charges().check(&[peek]).unwrap().remaining() as usize;
                assert_eq!(used + left, AMOUNT as usize, "round {round}, key {key}");
            }
        },
    );
}

/// Keys expire and are swept while they are charged: every window still admits exactly the amount.
#[test]
fn sweeping_never_loses_a_live_counter() {
    let clock = pacegate::ManualClock::new();
    let limiter = Limiter::builder().limit("10/second").clock(clock.clone()).max_keys(16_384);
    let limiter = limiter.build().unwrap();
    rounds(
        300,
        |round, me| {
            // Thousands of keys that expire in the next round keep the sweep busy.
            for filler in 0..20 {
                let _ = limiter.check(("filler", round, me, filler));
            }
            (0..2).filter(|_| limiter.check("key").is_allowed()).count()
        },
        |round, admitted| {
            assert_eq!(admitted, 10, "round {round}");
            clock.advance(std::time::Duration::from_secs(1));
        },
    );
    let usage = limiter.store().usage();
    assert_eq!(usage.overflowed, 0, "{usage:?}");
}
