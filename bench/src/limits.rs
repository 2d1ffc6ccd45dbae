//! Limits that are chosen per call, several limits, policies, reservations, and the cost of a limiter without keys:
//! each compared with a plain check of one limit.

use std::{
    collections::HashMap,
    hint::black_box,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::{Duration, Instant},
};

use parking_lot::Mutex;

use pacegate::{Charge, Limit, Limiter, Policy, PolicyName, PolicySet, Request, policy::Condition};

use crate::{
    memory::live_bytes,
    report::Row,
    row,
    speed::{Candidate, HOUR, PLENTY, measure, ratio},
    subjects::{ALL, limit},
    traffic::{Keys, key},
};

/// Targets of issue 19, relative to a plain check.
const MAX_CHECK_WITH: f64 = 2.0;
const MAX_THREE_LIMITS: f64 = 3.5;
const MAX_CHECK_REQUEST: f64 = 4.0;
/// Target of issue 18: `reserve` and `settle`, relative to a plain check.
const MAX_RESERVATION: f64 = 2.5;
/// Target of issue 19: the heap bytes of a limiter without keys.
const MAX_EMPTY_BYTES: f64 = 1_024.0;

/// The number of different limits of `check_with`, as of the plans of accounts.
const PLANS: usize = 16;

/// The number of policies that get all requests in the common case.
const COMMON: usize = 10;

/// A limiter with one limit, and others that decide the same keys.
struct Limiters {
    plain: Limiter,
    three: Limiter,
    plans: Vec<Limit>,
}

/// Measures limits per call: one key under one limit that the call passes, and under three limits.
pub fn limits(rounds: usize) -> Vec<Row> {
    let mut rows = Vec::new();
    for (name, keys) in [("hot key", Keys::One), ("10k uniform", Keys::Uniform(10_000))] {
        for threads in [1, 2] {
            let case = format!("limits, {name} {threads}t");
            eprintln!("{case}, {rounds} rounds");
            let limiters = Limiters::new();
            rows.extend(compare(&case, &limiters.candidates(), &keys, threads, rounds));
        }
    }
    rows
}

impl Limiters {
    fn new() -> Self {
        let amount = u64::from(PLENTY);
        let three = [(1, "second"), (2, "minute"), (3, "hour")];
        let three = three.into_iter().fold(Limiter::builder(), |builder, (times, unit)| {
            builder.limit(&*format!("{}/{unit}", times * amount))
        });
        Self {
            plain: Limiter::memory(limit(PLENTY, HOUR)),
            three: three.build().expect("valid limits"),
            plans: (0..PLANS as u32).map(|plan| limit(PLENTY + plan, HOUR)).collect(),
        }
    }

    fn candidates(&self) -> Vec<Candidate<'_>> {
        let Self { plain, three, plans } = self;
        let with_one = |key: &str| plain.check_with(key, plans[0]).is_allowed();
        let with_many = |key: &str| plain.check_with(key, plans[number(key) % PLANS]).is_allowed();
        let charge = |key: &str| {
            let charge = Charge::new(PolicyName::INLINE, key, plans[0]);
            plain.charges().check(&[charge]).is_ok_and(|decision| decision.is_allowed())
        };
        vec![
            each("check", None, |key| plain.check(key).is_allowed()),
            each("check_with, one limit", Some(MAX_CHECK_WITH), with_one),
            each("check_with, 16 limits", Some(MAX_CHECK_WITH), with_many),
            each("one charge", None, charge),
            each("three limits", Some(MAX_THREE_LIMITS), |key| three.check(key).is_allowed()),
        ]
    }
}

/// The numbers of policies.
pub const POLICY_COUNTS: [usize; 3] = [1, 100, 10_000];

/// Policies that select by path and count by user.
pub struct Policies {
    pub count: usize,
    limiter: Limiter,
    paths: Vec<String>,
}

impl Policies {
    pub fn new(count: usize) -> Self {
        let paths: Vec<_> = (0..count).map(|n| format!("/service-{n}/orders")).collect();
        let policies = paths.iter().enumerate().map(|(n, path)| {
            let policy = Policy::new(format!("service-{n}"), [limit(PLENTY, HOUR)]);
            policy.matching("path", Condition::equal(path)).per(["user"])
        });
        let policies = PolicySet::new(policies).expect("valid policies");
        let limiter = Limiter::builder().policies(policies).build().expect("valid limiter");
        Self { count, limiter, paths }
    }

    /// Checks requests with three attributes. Most requests are for a few policies, as is common.
    pub fn candidate(&self, name: &str, bar: Option<f64>) -> Candidate<'_> {
        self.candidate_for(name, bar, COMMON)
    }

    /// Checks requests for the first `used` policies.
    fn candidate_for(&self, name: &str, bar: Option<f64>, used: usize) -> Candidate<'_> {
        let paths = &self.paths[..self.count.min(used)];
        each(name, bar, move |key: &str| {
            let path = &paths[number(key) % paths.len()];
            let request = Request::new().with("user", key).with("method", "GET");
            let checked = self.limiter.check_request(&request.with("path", path));
            checked.is_ok_and(|decision| decision.is_allowed())
        })
    }
}

/// Measures `check_request` with three attributes, of which one selects a policy and one is the key.
pub fn policies(rounds: usize) -> Vec<Row> {
    let plain = Limiter::memory(limit(PLENTY, HOUR));
    let keys = Keys::Uniform(10_000);
    let sets = [1, 10, 10_000].map(Policies::new);
    let mut candidates = vec![each("check", None, |key| plain.check(key).is_allowed())];
    let name = |set: &Policies| format!("check_request, {} policies", set.count);
    let common = sets.iter().map(|set| set.candidate(&name(set), Some(MAX_CHECK_REQUEST)));
    candidates.extend(common);
    // If each request is for another policy, the time is that of loading the policy from memory.
    let all = format!("{}, all used", name(&sets[2]));
    candidates.push(sets[2].candidate_for(&all, None, usize::MAX));
    let mut rows = Vec::new();
    for threads in [1, 2] {
        let case = format!("policies, 10k uniform {threads}t");
        eprintln!("{case}, {rounds} rounds");
        rows.extend(compare(&case, &candidates, &keys, threads, rounds));
    }
    rows
}

/// Measures `reserve` followed by `settle`: the time is that of one call, the mean of both.
pub fn reservations(rounds: usize) -> Vec<Row> {
    let plain = Limiter::memory(limit(PLENTY, HOUR));
    let bucket = limit(PLENTY, HOUR).with_algorithm(pacegate::Algorithm::TokenBucket);
    let bucket = Limiter::memory(bucket.expect("valid limit"));
    let mut rows = Vec::new();
    for (name, keys) in [("hot key", Keys::One), ("10k uniform", Keys::Uniform(10_000))] {
        for threads in [1, 2] {
            let case = format!("reservations, {name} {threads}t");
            eprintln!("{case}, {rounds} rounds");
            let [floor, guarded_floor] = reservation_floors(&plain);
            let candidates = [
                each("check", None, |key| plain.check(key).is_allowed()),
                reserving("reserve or settle", &plain),
                reserving("reserve or settle, token-bucket", &bucket),
                floor,
                guarded_floor,
            ];
            rows.extend(compare(&case, &candidates, &keys, threads, rounds));
        }
    }
    rows
}

/// Reserves and settles for every second key, so that there is one call per key.
fn reserving<'a>(name: &str, limiter: &'a Limiter) -> Candidate<'a> {
    let check = move |keys: &[String]| {
        for key in keys.iter().step_by(2) {
            let reserved = limiter.reserve(key, 2, Duration::from_secs(60)).expect("room");
            let reservation = reserved.into_result().expect("plenty of units");
            black_box(reservation.settle(1));
        }
    };
    Candidate { bar: Some(MAX_RESERVATION), ..Candidate::new(name, check) }
}

/// The minimum for `reserve` and `settle`: each is a check, and the first adds an entry to a table under a lock, which
/// the second removes. The second floor also has what a [`Reservation`](pacegate::Reservation) needs: an id that nobody
/// can guess, and a reference to its limiter, so that it can be settled anywhere.
fn reservation_floors(limiter: &Limiter) -> [Candidate<'_>; 2] {
    let entry = reservation_floor("floor: a check and an entry", limiter, |_| None, |next| next);
    let (name, id) = ("floor with an id and a guard", |_| limiter.charges().new_permit_id());
    [entry, reservation_floor(name, limiter, |limiter| Some(limiter.clone()), id)]
}

fn reservation_floor<'a>(
    name: &str,
    limiter: &'a Limiter,
    guard: impl Fn(&Limiter) -> Option<Limiter> + Sync + 'a,
    id: impl Fn(u128) -> u128 + Sync + 'a,
) -> Candidate<'a> {
    let open = Mutex::new(HashMap::<u128, [u64; 4], foldhash::fast::FixedState>::default());
    let next = AtomicU64::new(0);
    Candidate::new(name, move |keys: &[String]| {
        for key in keys.iter().step_by(2) {
            let id = id(u128::from(next.fetch_add(1, Relaxed)));
            let reserved = limiter.check(key);
            open.lock().insert(id, [reserved.remaining(); 4]);
            let guard = black_box(guard(limiter));
            black_box(open.lock().remove(&id));
            black_box(limiter.check(key));
            drop(guard);
        }
    })
}

/// Measures limiters without keys: heap bytes, and nanoseconds to create and drop one.
pub fn empty_limiter(rounds: usize) -> Vec<Row> {
    let built = || {
        let builder = Limiter::builder().limit(limit(PLENTY, HOUR)).max_keys(10_000);
        builder.build().expect("valid limit")
    };
    let memory = || Limiter::memory(limit(PLENTY, HOUR));
    let bar = Some(MAX_EMPTY_BYTES);
    let mut rows = empty("pacegate", bar, rounds, memory);
    rows.extend(empty("pacegate, builder", bar, rounds, built));
    // The fastest variant of governor.
    rows.extend(empty(ALL[2](PLENTY, HOUR).name(), None, rounds, || ALL[2](PLENTY, HOUR)));
    rows
}

fn empty<T>(name: &str, bar: Option<f64>, rounds: usize, make: impl Fn() -> T) -> Vec<Row> {
    const COUNT: usize = 200;
    let case = "empty limiter";
    let before = live_bytes();
    let limiters: Vec<T> = (0..COUNT).map(|_| make()).collect();
    let held = live_bytes() - before - COUNT * size_of::<T>();
    drop(limiters);
    let bytes = Row { bar, ..row(case, name, "bytes", vec![held as f64 / COUNT as f64]) };
    let times = (0..rounds).map(|_| {
        let start = Instant::now();
        (0..COUNT).for_each(|_| drop(black_box(make())));
        start.elapsed().as_nanos() as f64 / COUNT as f64
    });
    vec![bytes, row(case, name, "ns to create and drop", times.collect())]
}

/// Creates a candidate that checks keys one by one.
fn each<'a>(
    name: &str,
    bar: Option<f64>,
    check: impl Fn(&str) -> bool + Sync + 'a,
) -> Candidate<'a> {
    let check = move |keys: &[String]| {
        keys.iter().for_each(|key| {
            black_box(check(key));
        });
    };
    Candidate { bar, ..Candidate::new(name, check) }
}

/// Measures candidates and compares each with the first.
fn compare(
    case: &str,
    candidates: &[Candidate<'_>],
    keys: &Keys,
    threads: usize,
    rounds: usize,
) -> Vec<Row> {
    let all: Vec<_> = (0..keys.count()).map(key).collect();
    candidates.iter().for_each(|candidate| (candidate.check)(&all));
    let times = measure(candidates, keys, threads, rounds);
    let rows = candidates.iter().zip(&times).flat_map(|(candidate, own)| {
        let metric = "time, relative to a plain check";
        [
            row(case, &candidate.name, "ns per check", own.clone()),
            ratio(case, &candidate.name, metric, own, &times[0], candidate.bar),
        ]
    });
    rows.collect()
}

/// Returns the last four digits of a key.
fn number(key: &str) -> usize {
    key.bytes().skip(key.len() - 4).fold(0, |number, digit| 10 * number + usize::from(digit - b'0'))
}
