//! The libraries to compare. Each is set up as in its documentation, with its fastest options.

use std::{
    cell::RefCell,
    hash::{BuildHasher, Hasher},
    num::NonZeroU32,
    sync::atomic::{AtomicU64, Ordering},
    time::{Duration, SystemTime},
};

use governor::{
    Quota, RateLimiter,
    clock::QuantaClock,
    state::keyed::{DashMapStateStore, HashMapStateStore},
};
use pacegate::{Clock, Decision, Limit, Limiter, SystemClock};
use parking_lot::Mutex;
use throttlecrab::PeriodicStore;

/// A limiter with `amount` per period for each key.
pub trait Subject: Sync {
    fn name(&self) -> &'static str;

    /// Returns true if `key` is allowed.
    fn check(&self, key: &String) -> bool;

    /// Checks many keys, in one call if the library supports it. Returns the number of allowed keys.
    fn check_many(&self, keys: &[String]) -> usize {
        keys.iter().filter(|key| self.check(key)).count()
    }

    /// Removes expired keys and frees the memory, if the library supports it.
    fn reclaim(&self) {}

    /// Returns the number of checks that take a few hundred microseconds.
    fn slice(&self) -> usize {
        crate::speed::SLICE
    }

    fn has_batches(&self) -> bool {
        false
    }
}

pub type Make = fn(u32, Duration) -> Box<dyn Subject>;

/// The first variant of each library is its fastest.
pub const ALL: [Make; 8] = [
    |amount, period| Pacegate::make("pacegate", limit(amount, period)),
    |amount, period| {
        let bucket = limit(amount, period).with_algorithm(pacegate::Algorithm::TokenBucket);
        Pacegate::make("pacegate token-bucket", bucket.expect("valid limit"))
    },
    |amount, period| {
        Box::new(GovernorFold(RateLimiter::dashmap_with_hasher(
            quota(amount, period),
            Default::default(),
        )))
    },
    |amount, period| Box::new(GovernorDash(RateLimiter::dashmap(quota(amount, period)))),
    |amount, period| Box::new(GovernorMap(RateLimiter::hashmap(quota(amount, period)))),
    |amount, period| {
        let store = PeriodicStore::builder().capacity(1_000_000).build();
        let limiter = Mutex::new(throttlecrab::RateLimiter::new(store));
        Box::new(Throttlecrab { limiter, amount: amount.into(), period: period.as_secs() as i64 })
    },
    |amount, period| Limitador::make(amount, period),
    |amount, period| {
        Box::new(Pingora { rate: pingora_limits::rate::Rate::new(period), amount: amount as isize })
    },
];

pub fn limit(amount: u32, period: Duration) -> Limit {
    Limit::new(amount.into(), period).expect("valid limit")
}

fn quota(amount: u32, period: Duration) -> Quota {
    let amount = NonZeroU32::new(amount).expect("at least one");
    Quota::with_period(period / amount.get()).expect("not zero").allow_burst(amount)
}

struct Pacegate {
    name: &'static str,
    limiter: Limiter,
}

impl Pacegate {
    fn make(name: &'static str, limit: Limit) -> Box<dyn Subject> {
        Box::new(Self { name, limiter: Limiter::memory(limit) })
    }
}

impl Subject for Pacegate {
    fn name(&self) -> &'static str {
        self.name
    }

    fn check(&self, key: &String) -> bool {
        self.limiter.check(key).is_allowed()
    }

    fn check_many(&self, keys: &[String]) -> usize {
        thread_local!(static DECISIONS: RefCell<Vec<Decision>> = const { RefCell::new(Vec::new()) });
        DECISIONS.with_borrow_mut(|decisions| {
            decisions.clear();
            self.limiter.check_many_into(keys, decisions);
            decisions.iter().filter(|decision| decision.is_allowed()).count()
        })
    }

    fn reclaim(&self) {
        self.limiter.store().reclaim();
    }

    fn has_batches(&self) -> bool {
        true
    }
}

struct GovernorFold(
    RateLimiter<String, DashMapStateStore<String, foldhash::fast::RandomState>, QuantaClock>,
);
struct GovernorDash(RateLimiter<String, DashMapStateStore<String>, QuantaClock>);
struct GovernorMap(RateLimiter<String, HashMapStateStore<String>, QuantaClock>);

macro_rules! governor {
    ($type:ty, $name:literal) => {
        impl Subject for $type {
            fn name(&self) -> &'static str {
                $name
            }

            fn check(&self, key: &String) -> bool {
                self.0.check_key(key).is_ok()
            }

            fn reclaim(&self) {
                self.0.retain_recent();
                self.0.shrink_to_fit();
            }
        }
    };
}

governor!(GovernorFold, "governor foldhash");
governor!(GovernorDash, "governor");
governor!(GovernorMap, "governor hashmap");

struct Throttlecrab {
    limiter: Mutex<throttlecrab::RateLimiter<PeriodicStore>>,
    amount: i64,
    period: i64,
}

impl Subject for Throttlecrab {
    fn name(&self) -> &'static str {
        "throttlecrab"
    }

    fn check(&self, key: &String) -> bool {
        let now = SystemTime::now();
        let mut limiter = self.limiter.lock();
        limiter
            .rate_limit(key, self.amount, self.amount, self.period, 1, now)
            .is_ok_and(|(allowed, _)| allowed)
    }
}

struct Limitador {
    limiter: limitador::RateLimiter,
    namespace: limitador::limit::Namespace,
}

impl Limitador {
    fn make(amount: u32, period: Duration) -> Box<dyn Subject> {
        let limiter = limitador::RateLimiter::new(2_000_000);
        let variable = "user".try_into().expect("a variable");
        limiter.add_limit(limitador::limit::Limit::new(
            "bench",
            amount.into(),
            period.as_secs(),
            Vec::<limitador::limit::Predicate>::new(),
            vec![variable],
        ));
        Box::new(Self { limiter, namespace: "bench".into() })
    }
}

impl Subject for Limitador {
    fn name(&self) -> &'static str {
        "limitador"
    }

    fn check(&self, key: &String) -> bool {
        let values = std::collections::HashMap::from([("user".to_owned(), key.clone())]);
        let checked =
            self.limiter.check_rate_limited_and_update(&self.namespace, &values.into(), 1);
        checked.is_ok_and(|result| !result.limited)
    }

    fn slice(&self) -> usize {
        64
    }
}

/// An estimator: many keys share its counters, so it may deny requests within the limit.
struct Pingora {
    rate: pingora_limits::rate::Rate,
    amount: isize,
}

impl Subject for Pingora {
    fn name(&self) -> &'static str {
        "pingora-limits (estimate)"
    }

    fn check(&self, key: &String) -> bool {
        self.rate.observe(key, 1) <= self.amount
    }
}

/// The least that a check can do: read the clock, hash the key to 64 bits, and change one word with one atomic
/// exchange, in a table that never grows and never removes a key.
pub struct Floor {
    hasher: foldhash::fast::RandomState,
    /// The hash of a key, or 0, and its state: the window in the high half, the used units in the low half.
    cells: Box<[[AtomicU64; 2]]>,
}

impl Floor {
    /// The length of a window, as a power of two in microseconds: about an hour.
    const WINDOW_BITS: u32 = 32;

    pub fn new(keys: u64) -> Self {
        let cells = (0..(2 * keys).next_power_of_two()).map(|_| Default::default()).collect();
        Self { hasher: Default::default(), cells }
    }

    /// Returns the state of a key, which is added if it is new.
    fn state(&self, hash: u64) -> &AtomicU64 {
        let mut place = hash as usize;
        loop {
            let [id, state] = &self.cells[place & (self.cells.len() - 1)];
            let found = match id.load(Ordering::Relaxed) {
                0 => id
                    .compare_exchange(0, hash, Ordering::Relaxed, Ordering::Relaxed)
                    .map_or_else(|other| other, |_| hash),
                found => found,
            };
            if found == hash {
                return state;
            }
            place += 1;
        }
    }
}

impl Subject for Floor {
    fn name(&self) -> &'static str {
        "floor"
    }

    fn check(&self, key: &String) -> bool {
        let window = SystemClock::new().now().as_micros() >> Self::WINDOW_BITS;
        let mut hasher = self.hasher.build_hasher();
        hasher.write(key.as_bytes());
        let state = self.state(hasher.finish() | 1);
        let mut old = state.load(Ordering::Relaxed);
        loop {
            let used = if old >> 32 == window { old & u64::from(u32::MAX) } else { 0 };
            if used >= u64::from(crate::speed::PLENTY) {
                return false;
            }
            let new = window << 32 | (used + 1);
            match state.compare_exchange_weak(old, new, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return true,
                Err(other) => old = other,
            }
        }
    }
}
