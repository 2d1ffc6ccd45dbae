//! Model checks of the store: loom runs every interleaving of a few threads.
//!
//! `RUSTFLAGS="--cfg pacegate_loom" cargo test --release -p pacegate --lib loom`

use loom::thread;

use super::{MemoryStore, Slot, identity::Scope};
use crate::{Algorithm, Counter, KeyRef, Limit, ManualClock, PolicyName, Timestamp};

const MONDAY: Timestamp = Timestamp::from_secs(1_767_225_600);

/// Creates a store that knows the scope of `limit`, as the store of a limiter does.
fn store(max_keys: usize, clock: &ManualClock, limit: &Limit) -> MemoryStore {
    let store = MemoryStore::new(max_keys, clock.clone());
    scope(&store, limit);
    store
}

fn scope(store: &MemoryStore, limit: &Limit) -> Scope {
    store.scope(PolicyName::DEFAULT, Counter::Policy, limit)
}

/// Charges one unit to each of some keys, all or nothing.
fn charge(store: &MemoryStore, limit: &Limit, keys: &[&str]) -> bool {
    let scope = scope(store, limit);
    let slots: Vec<_> = keys
        .iter()
        .map(|key| Slot {
            scope: &scope,
            id: store.identity(&scope, KeyRef::new(key.as_bytes())),
            limit,
            cost: 1,
            permit: 0,
            enforced: true,
            excess: crate::Excess::Reject,
        })
        .collect();
    if let [slot] = &*slots
        && !limit.algorithm().keeps_log()
    {
        return store.charge_cell(slot).0.is_admitted();
    }
    store.charge_all(&slots).0.iter().all(crate::algorithm::Outcome::is_admitted)
}

#[test]
fn loom_one_key_is_charged_once_per_unit() {
    for algorithm in [Algorithm::FixedWindow, Algorithm::SlidingLog] {
        loom::model(move || {
            let limit = Limit::per_day(2).with_algorithm(algorithm).unwrap();
            let store = store(100, &ManualClock::at(MONDAY), &limit);
            let threads: Vec<_> = (0..3)
                .map(|_| {
                    let store = store.clone();
                    thread::spawn(move || usize::from(charge(&store, &limit, &["key"])))
                })
                .collect();
            let admitted: usize = threads.into_iter().map(|thread| thread.join().unwrap()).sum();
            assert_eq!(admitted, 2);
        });
    }
}

#[test]
fn loom_an_expired_key_is_swept_or_charged_but_never_both() {
    loom::model(|| {
        let (limit, clock) = (Limit::per_second(1), ManualClock::at(MONDAY));
        let store = store(100, &clock, &limit);
        assert!(charge(&store, &limit, &["key"]));
        clock.set(Timestamp::from_secs(1_767_225_600 + 10));
        let (charger, sweeper) = (store.clone(), store.clone());
        let charger = thread::spawn(move || charge(&charger, &limit, &["key"]));
        let sweeper = thread::spawn(move || sweeper.reclaim());
        assert!(charger.join().unwrap(), "a new window");
        sweeper.join().unwrap();
        assert!(!charge(&store, &limit, &["key"]), "the sweep has not taken the new charge away");
        assert_eq!(store.usage().keys, 1);
    });
}

#[test]
fn loom_pairs_in_both_orders_neither_deadlock_nor_half_charge() {
    loom::model(|| {
        let limit = Limit::per_day(1);
        let store = store(100, &ManualClock::at(MONDAY), &limit);
        let threads = [["a", "b"], ["b", "a"]].map(|keys| {
            let store = store.clone();
            thread::spawn(move || usize::from(charge(&store, &limit, &keys)))
        });
        let admitted: usize = threads.into_iter().map(|thread| thread.join().unwrap()).sum();
        assert_eq!(admitted, 1);
        assert!(!charge(&store, &limit, &["a"]) && !charge(&store, &limit, &["b"]));
    });
}

#[test]
fn loom_room_is_never_given_twice() {
    loom::model(|| {
        let limit = Limit::per_day(5);
        let store = store(1, &ManualClock::at(MONDAY), &limit);
        let threads = ["a", "b"].map(|key| {
            let store = store.clone();
            thread::spawn(move || assert!(charge(&store, &limit, &[key])))
        });
        for thread in threads {
            thread.join().unwrap();
        }
        let usage = store.usage();
        assert_eq!((usage.keys, usage.overflowed), (1, 1));
    });
}
