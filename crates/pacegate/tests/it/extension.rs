//! Custom algorithms and keys.

use std::{cell::Cell, time::Duration};

use pacegate::{
    Algorithm, Charge, Key, KeyRef, Limit, Limiter, Timestamp,
    algorithm::{CustomAlgorithm, Outcome, State},
};

/// Admits the limit's amount in total, until a refund.
#[derive(Debug)]
struct Tickets;

impl CustomAlgorithm for Tickets {
    fn name(&self) -> &'static str {
        "tickets"
    }

    fn step(&self, limit: &Limit, state: &mut State, now: Timestamp, cost: u64) -> Outcome {
        let free = limit.amount().saturating_sub(state.payload() as u64);
        if cost.max(1) > free {
            return Outcome::denied(free, None, limit.period());
        }
        if cost > 0 {
            *state = State::new(now, u64::MAX, state.payload() + u128::from(cost));
        }
        Outcome::admitted(free - cost, limit.period())
    }

    fn refund(&self, _: &Limit, _: State, _: Timestamp, _: u64) -> State {
        State::EMPTY
    }
}

/// Emptying the state of some keys leaves the other keys in the same table intact.
#[test]
fn a_custom_state_may_become_empty() {
    let limit = Limit::per_day(1).with_algorithm(Algorithm::custom(&Tickets)).unwrap();
    let limiter = Limiter::memory(limit);
    for key in 0..30_000 {
        assert!(limiter.check(key).is_allowed());
    }
    for key in (0..30_000).step_by(3) {
        limiter.refund(key, 1);
    }
    for key in 0..30_000 {
        assert_eq!(limiter.check(key).is_allowed(), key % 3 == 0, "key {key}");
    }
}

/// Writes states that have already expired.
#[derive(Debug)]
struct Forgetful;

impl CustomAlgorithm for Forgetful {
    fn name(&self) -> &'static str {
        "forgetful"
    }

    fn step(&self, limit: &Limit, state: &mut State, _: Timestamp, cost: u64) -> Outcome {
        if cost > 0 {
            *state = State::new(Timestamp::EPOCH, 0, 1);
        }
        Outcome::admitted(limit.amount(), Duration::ZERO)
    }
}

/// A denied request removes the cells it created, and counts none twice if some have been reclaimed meanwhile.
#[test]
fn room_is_freed_once() {
    let forgetful = Limit::per_day(1).with_algorithm(Algorithm::custom(&Forgetful)).unwrap();
    let limiter = Limiter::builder().limit(forgetful).max_keys(1_000).build().unwrap();
    let keys: Vec<_> = (0..500).map(|key: u32| key.to_le_bytes()).collect();
    let never = Charge::new("never".parse().unwrap(), KeyRef::new(b"k"), Limit::per_day(0));
    let own = keys.iter().map(|key| Charge::new("p".parse().unwrap(), KeyRef::new(key), forgetful));
    let charges: Vec<_> = own.chain([never]).collect();
    assert!(!limiter.charges().check(&charges).unwrap().is_allowed());
    assert_eq!(limiter.store().usage().keys, 0);
}

/// The limiter holds no lock while it reads a key, so `Key::with` may call the limiter.
#[test]
fn a_key_may_call_the_limiter_while_it_is_read() {
    struct Nosy<'a>(&'a Limiter, Cell<u32>);

    impl Key for Nosy<'_> {
        fn with<R>(&self, read: impl FnOnce(KeyRef<'_>) -> R) -> R {
            self.1.set(self.1.get() + 1);
            let _ = self.0.check("key");
            read(KeyRef::new(b"key"))
        }
    }

    let limiter = Limiter::memory(Limit::per_day(1_000_000));
    let keys: Vec<_> = (0..40).map(|_| Nosy(&limiter, Cell::new(0))).collect();
    assert_eq!(limiter.check_many(&keys).len(), 40);
    assert!(limiter.check(&keys[0]).is_allowed());
    let reads: u32 = keys.iter().map(|key| key.1.get()).sum();
    assert_eq!(limiter.stats().policies[0].allowed, 41 + u64::from(reads));
}

/// Admits every request and stores no state.
#[derive(Debug)]
struct Free;

impl CustomAlgorithm for Free {
    fn name(&self) -> &'static str {
        "free"
    }

    fn step(&self, _: &Limit, _: &mut State, _: Timestamp, _: u64) -> Outcome {
        Outcome::admitted(1, Duration::ZERO)
    }
}

#[test]
fn an_algorithm_without_state_leaves_other_counters_alone() {
    let free = Limit::per_day(1).with_algorithm(Algorithm::custom(&Free)).unwrap();
    let limiter = Limiter::memory(Limit::per_day(1));
    for key in 0..50_000_u32 {
        assert!(limiter.check(key).is_allowed());
    }
    for key in 0..50_000_u32 {
        let name = (key % 10_000).to_le_bytes();
        let charge = Charge::new("free".parse().unwrap(), KeyRef::new(&name), free);
        assert!(limiter.charges().check(&[charge]).unwrap().is_allowed());
    }
    assert_eq!((0..50_000_u32).filter(|key| limiter.check(*key).is_allowed()).count(), 0);
    assert_eq!(limiter.store().usage().keys, 50_000);
}
