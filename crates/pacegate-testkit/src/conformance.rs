use std::{future::Future, num::NonZeroU32, ops::Range, pin::pin, time::Duration};

use pacegate::{
    Algorithm, Charge, Counter, Excess, Key, Limit, Outcomes, Store, StoreError, Timestamp, Update,
    algorithm::Outcome, policy::Unsettled,
};

use crate::{History, Model, Op, Random, rates, several, up_to};

/// A store under test, with control over its clock.
pub trait Subject: Sync {
    /// Returns the store.
    fn store(&self) -> &dyn Store;

    /// Sets the time that the store uses.
    fn set_time(&self, now: Timestamp);

    /// Returns `true` if the store supports this change of a counter. Default: all of them.
    ///
    /// [`conformance`] leaves out a change that is not supported, and checks that the store rejects it with
    /// [`StoreError::Unsupported`]. A store declares the limits that it supports by [`Store::supports`].
    fn supports_update(&self, update: Update) -> bool {
        let _ = update;
        true
    }

    /// Returns `true` if the store can record charges that do not fit. Default: it can.
    fn supports_excess(&self) -> bool {
        true
    }

    /// Returns `true` if the store supports [`Store::charge_up_to`]. Default: it does.
    fn supports_up_to(&self) -> bool {
        true
    }

    /// Returns `true` if the store has reservations. Default: it has.
    fn supports_reservations(&self) -> bool {
        true
    }

    /// Runs a future of the store to completion. Override this if the store needs a runtime.
    fn block_on<T: Send>(&self, future: impl Future<Output = T> + Send) -> T {
        pollster::block_on(pin!(future))
    }
}

/// Checks that a store keeps the promises of [`Store`]: `histories` random histories per algorithm against
/// the [`Model`], and the rules for several keys.
///
/// A store may support a part only: algorithms that [`Store::supports`] rejects are left out, and so are changes that
/// [`Subject::supports_update`] excludes.
///
/// # Panics
///
/// Panics if it does not, with the seed of the history and the step that failed.
pub fn conformance(subject: &impl Subject, histories: u64) {
    let algorithms = algorithms(subject);
    for &algorithm in &algorithms {
        follow_histories(subject, algorithm, 0..histories);
    }
    if subject.store().supports(&["1/month".parse().expect("valid limit")], false).is_ok() {
        follow_calendar_histories(subject, 0..histories);
    }
    rejects_unsupported_updates(subject);
    all_or_nothing(subject, histories.min(500));
    if subject.supports_up_to() {
        up_to::all_limits_grant_the_same(subject, histories.min(500));
    }
    if subject.supports_reservations() && subject.supports_excess() {
        several::all_limits_are_reserved_together(subject, histories.min(500));
    }
    keys_are_apart(subject);
    rates::counters_are_apart(subject, histories.min(500));
    if algorithms.contains(&Algorithm::TokenBucket) {
        rates::two_limits_on_one_counter_admit_what_the_larger_does(subject, histories.min(500));
        rates::a_changed_limit_keeps_its_usage(subject, histories.min(500));
    }
    unenforced_charges_never_deny(subject);
    the_same_key_twice(subject);
    nothing_is_never_something(subject);
}

/// Runs the slowest part of [`conformance`]: the random histories of one algorithm with these seeds.
///
/// # Panics
///
/// Panics if the store and the model differ.
pub fn follow_histories(subject: &impl Subject, algorithm: Algorithm, seeds: Range<u64>) {
    for seed in seeds {
        follow_supported(subject, History::random(seed, algorithm));
    }
}

/// Runs random histories of limits with a calendar period, as [`follow_histories`] does.
///
/// # Panics
///
/// Panics if the store and the model differ.
pub fn follow_calendar_histories(subject: &impl Subject, seeds: Range<u64>) {
    for seed in seeds {
        follow_supported(subject, History::random_calendar(seed));
    }
}

/// Follows a history without the operations that the store does not support.
fn follow_supported(subject: &impl Subject, mut history: History) {
    history.ops.retain(|op| match op {
        Op::Refund(_) => subject.supports_update(Update::Refund),
        Op::Reset => subject.supports_update(Update::Reset),
        Op::Release(_) => subject.supports_update(Update::Release),
        Op::Renew(_) => subject.supports_update(Update::Renew),
        Op::Record(..) => subject.supports_excess(),
        Op::UpTo(_) => subject.supports_up_to(),
        Op::Reserve(..) | Op::Settle(..) => subject.supports_reservations(),
        Op::Pass(_) | Op::Charge(..) | Op::SetLimit(_) => true,
    });
    if history.seed.is_multiple_of(3) {
        history.unsettled = Unsettled::Return;
    }
    follow(subject, &history);
}

/// Returns the algorithms that the store supports, at least one of which limits a rate.
fn algorithms(subject: &impl Subject) -> Vec<Algorithm> {
    let is_supported = |algorithm: &Algorithm| {
        let limit = Limit::per_day(3).with_algorithm(*algorithm).expect("valid limit");
        match subject.store().supports(&[limit], false) {
            Ok(()) => true,
            Err(StoreError::Unsupported(_)) => false,
            Err(error) => panic!("`supports` must return an unsupported limit as such: {error}"),
        }
    };
    Algorithm::BUILT_IN.into_iter().filter(is_supported).collect()
}

/// Returns the algorithms for rates that the store supports.
pub(crate) fn rate_algorithms(subject: &impl Subject) -> Vec<Algorithm> {
    let mut algorithms = algorithms(subject);
    algorithms.retain(|algorithm| !algorithm.holds_permits());
    assert!(!algorithms.is_empty(), "the store supports no algorithm for rates");
    algorithms
}

/// Returns a limit per day with the first algorithm that the store supports.
fn per_day(subject: &impl Subject, amount: u32) -> Limit {
    let algorithm = rate_algorithms(subject)[0];
    Limit::per_day(amount).with_algorithm(algorithm).expect("valid limit")
}

/// Checks that a change which the store does not support is an error of the caller, not a failure.
fn rejects_unsupported_updates(subject: &impl Subject) {
    subject.set_time(Timestamp::from_secs(1_767_225_600));
    let policy = "unsupported".parse().expect("valid policy name");
    for update in [Update::Refund, Update::Reset, Update::Release, Update::Renew] {
        let permits = matches!(update, Update::Release | Update::Renew);
        if subject.supports_update(update) || permits {
            continue;
        }
        let charge = Charge::new(policy, "key", per_day(subject, 1));
        let answer = subject.block_on(async { subject.store().update(&charge, update).await });
        assert!(matches!(answer, Err(StoreError::Unsupported(_))), "{update:?}: {answer:?}");
    }
}

/// Runs a history on the store and compares every outcome with the model.
fn follow(subject: &impl Subject, history: &History) {
    let name = format!("history-{}-{}", history.limit, history.seed);
    let (mut limit, mut now) = (history.limit, history.start);
    let (mut expected, mut reserved) = (history.answers().into_iter(), 0);
    // A store may ignore a step back of less than a millisecond, as a difference between CPU clocks. So the
    // clock jumps far before it goes to the start of each history.
    subject.set_time(now.after(Duration::from_secs(3_600)));
    let call = |limit: Limit, op: Op, id| call(subject, (&name, history.unsettled), limit, op, id);
    call(limit, Op::Charge(0, 0), 0);
    subject.set_time(now);
    for (step, op) in history.ops.iter().enumerate() {
        match *op {
            Op::Pass(micros) => {
                now = now.after(Duration::from_micros(micros));
                subject.set_time(now);
            }
            Op::SetLimit(other) => limit = other,
            Op::Settle(number, actual) => {
                let id = reservation_id(history, number);
                let settled = settle(subject, (&name, history.unsettled), limit, (id, actual));
                let expected = expected.next().expect("a model result for every settlement");
                assert_eq!(
                    settled, expected.admitted,
                    "seed {} step {step} of {history:?} ({op:?} at {now:?} under {limit})",
                    history.seed
                );
            }
            Op::Charge(..) | Op::Record(..) | Op::Reserve(..) | Op::UpTo(_) => {
                let id = reservation_id(history, reserved);
                reserved += u64::from(matches!(op, Op::Reserve(..)));
                let capacity = limit.capacity();
                let possible = match *op {
                    Op::Reserve(estimate, ttl) => Op::Reserve(estimate.min(capacity), ttl),
                    Op::Charge(cost, permit) => Op::Charge(cost.min(capacity), permit),
                    Op::UpTo(most) => Op::UpTo(most.min(capacity)),
                    other => other,
                };
                let answer = call(limit, possible, id);
                let expected = expected.next().expect("a model result for every charge");
                assert!(
                    answer.is_some_and(|(units, outcome)| {
                        expected.is(&outcome) && units == expected.granted
                    }),
                    "seed {} step {step} of {:?} ({op:?} at {now:?} under {limit}): \
                     expected {expected:?}, got {answer:?}",
                    history.seed,
                    history,
                );
            }
            Op::Refund(_) | Op::Reset | Op::Release(_) | Op::Renew(_) => {
                call(limit, *op, 0);
            }
        }
    }
}

/// Returns the id of a history's reservation.
fn reservation_id(history: &History, number: u64) -> u128 {
    let algorithm = history.limit.algorithm().id().unwrap_or(0);
    u128::from(history.seed) << 64 | u128::from(algorithm << 32 | number)
}

/// Settles a reservation of one key. Returns `false` if it is not open.
fn settle(
    subject: &impl Subject,
    (key, unsettled): (&str, Unsettled),
    limit: Limit,
    (id, actual): (u128, u64),
) -> bool {
    key.with(|key| {
        let policy = "conformance".parse().expect("a name");
        let charge = Charge::new(policy, key, limit).counter(Counter::Policy);
        let charge = [charge.unsettled(unsettled)];
        let settled = subject.block_on(async { subject.store().settle(&charge, id, actual).await });
        work(settled).is_some()
    })
}

/// Makes the call of an operation for one key; `id` is that of a reservation. Charges return an outcome, and
/// [`Op::UpTo`] also the number of units, which is 0 for other charges.
fn call(
    subject: &impl Subject,
    (key, unsettled): (&str, Unsettled),
    limit: Limit,
    op: Op,
    id: u128,
) -> Option<(u64, Outcome)> {
    let store = subject.store();
    let first = |outcomes: Outcomes| outcomes.first().map(|outcome| (0, *outcome));
    key.with(|key| {
        let policy = "conformance".parse().expect("a name");
        let charge = Charge::new(policy, key, limit).counter(Counter::Policy);
        let mut charge = charge.unsettled(unsettled);
        subject.block_on(async {
            match op {
                Op::Charge(cost, permit) => {
                    (charge.cost, charge.permit) = (cost, permit_id(permit));
                    return first(work(store.charge(&[charge], None).await));
                }
                Op::UpTo(most) => {
                    let (units, outcomes) = work(store.charge_up_to(&[charge], most, None).await);
                    return outcomes.first().map(|outcome| (units, *outcome));
                }
                Op::Record(cost, excess) => {
                    let charge = charge.cost(cost).excess(excess);
                    return first(work(store.charge(&[charge], None).await));
                }
                Op::Reserve(estimate, ttl) => {
                    let ttl = Duration::from_micros(ttl);
                    return first(work(store.reserve(&[charge.cost(estimate)], id, ttl).await));
                }
                Op::Refund(cost) => {
                    work(store.update(&charge.cost(cost), Update::Refund).await);
                }
                Op::Reset => {
                    work(store.update(&charge, Update::Reset).await);
                }
                Op::Release(permit) => {
                    charge.permit = permit_id(permit);
                    work(store.update(&charge, Update::Release).await);
                }
                Op::Renew(permit) => {
                    charge.permit = permit_id(permit);
                    work(store.update(&charge, Update::Renew).await);
                }
                Op::Pass(_) | Op::SetLimit(_) | Op::Settle(..) => {}
            }
            None
        })
    })
}

/// Charges one request.
pub(crate) fn charge_request(subject: &impl Subject, charges: &[Charge<'_>]) -> Outcomes {
    work(subject.block_on(async { subject.store().charge(charges, None).await }))
}

pub(crate) fn work<T>(answer: Result<T, StoreError>) -> T {
    answer.unwrap_or_else(|error| panic!("the store failed: {error}"))
}

/// Checks requests with several keys and algorithms against a model of each: all are charged or none is, except those
/// whose excess is recorded, which are always charged. The order of the charges does not matter.
fn all_or_nothing(subject: &impl Subject, rounds: u64) {
    let day = Duration::from_secs(86_400);
    for seed in 0..rounds {
        let random = &mut Random::new(seed);
        let algorithms = rate_algorithms(subject);
        let mut now = 1_767_225_600_000_000 + random.below(1_000_000);
        let limits: Vec<Limit> = (0..random.between(2, 8))
            .map(|place| {
                let algorithm = algorithms[place as usize % algorithms.len()];
                let limit = Limit::new(random.between(1, 6), day).expect("valid limit");
                limit.with_algorithm(algorithm).expect("valid limit")
            })
            .collect();
        let excess: Vec<Excess> = limits
            .iter()
            .map(|limit| match random.below(6) {
                0 if subject.supports_excess() => Excess::Count,
                1 if subject.supports_excess() => Excess::Debt { max: limit.capacity() },
                _ => Excess::Reject,
            })
            .collect();
        let mut models: Vec<Model> = limits.iter().map(|&limit| Model::new(limit)).collect();
        for _ in 0..12 {
            now += random.below(2_000_000);
            subject.set_time(Timestamp::from_micros(now));
            let mut order: Vec<usize> = (0..limits.len()).collect();
            let swap = random.below(order.len() as u64) as usize;
            order.swap(0, swap);
            let cost = random.between(1, limits.iter().map(Limit::capacity).min().unwrap_or(1));
            let charges = Vec::from_iter(limits.iter().copied().zip(excess.iter().copied()));
            let outcomes = charge_all(subject, seed, &order, &charges, cost);
            let fits = models.iter().all(|model| model.fits(now, cost));
            assert_eq!(outcomes.iter().all(Outcome::is_admitted), fits, "seed {seed}");
            for (&place, outcome) in order.iter().zip(&outcomes) {
                let own = models[place].fits(now, cost);
                assert_eq!(
                    outcome.is_admitted(),
                    own,
                    "seed {seed}: each outcome is about its own limit"
                );
                let model = &mut models[place];
                let answer = match excess[place] {
                    Excess::Reject => model.charge(now, if fits { cost } else { 0 }, 0),
                    excess => model.record(now, cost, excess),
                };
                assert_eq!(outcome.remaining(), answer.remaining, "seed {seed}");
            }
        }
    }
}

fn charge_all(
    subject: &impl Subject,
    seed: u64,
    order: &[usize],
    charges: &[(Limit, Excess)],
    cost: u64,
) -> Outcomes {
    let keys: Vec<String> = order.iter().map(|place| format!("all-{seed}-{place}")).collect();
    let policy = "conformance".parse().expect("valid policy name");
    let charges: Vec<_> = keys
        .iter()
        .zip(order)
        .map(|(key, &place)| {
            let key = pacegate::KeyRef::new(key.as_bytes());
            let (limit, excess) = charges[place];
            Charge::new(policy, key, limit).cost(cost).excess(excess)
        })
        .collect();
    charge_request(subject, &charges)
}

/// Checks that the policy, the algorithm, the period and every part of the key distinguish states. On the counter of a
/// policy, the amount does not.
fn keys_are_apart(subject: &impl Subject) {
    subject.set_time(Timestamp::from_secs(1_767_225_600));
    let one = per_day(subject, 1);
    let hour = Limit::per_hour(1).with_algorithm(one.algorithm()).expect("valid limit");
    assert!(admits(subject, "apart", "k", one));
    assert!(!admits(subject, "apart", "k", one), "the same again");
    assert!(admits(subject, "apart", "k", per_day(subject, 2)), "the amount");
    assert!(admits(subject, "apart", "k", hour), "the period");
    for &algorithm in &rate_algorithms(subject)[1..] {
        let other = one.with_algorithm(algorithm).expect("valid limit");
        assert!(admits(subject, "apart", "k", other), "the algorithm");
    }
    assert!(admits(subject, "other", "k", one), "the policy");
    assert!(admits(subject, "apart", ("k", ""), one), "an empty part");
    assert!(admits(subject, "apart", ("", "k"), one), "the order of parts");
    assert!(admits(subject, "apart", "k\0", one), "a zero byte");
    assert!(admits(subject, "apart", "{k}:\r\n", one), "hostile text");
    assert!(admits(subject, "apart", b"\xff\xfe", one), "no text at all");
}

fn admits(subject: &impl Subject, policy: &str, key: impl Key, limit: Limit) -> bool {
    key.with(|key| {
        let charge = Charge::new(policy.parse().expect("a name"), key, limit);
        let charge = [charge.counter(Counter::Policy)];
        charge_request(subject, &charge)[0].is_admitted()
    })
}

/// Checks that a charge without enforcement is taken if it fits and the request is admitted, and never
/// denies.
fn unenforced_charges_never_deny(subject: &impl Subject) {
    subject.set_time(Timestamp::from_secs(1_767_225_600));
    let policy = "shadow".parse().expect("valid policy name");
    let (two, one) = (per_day(subject, 2), per_day(subject, 1));
    let admitted: Vec<[bool; 2]> = (0..3)
        .map(|_| {
            let enforced = Charge::new(policy, pacegate::KeyRef::new(b"enforced"), two);
            let mut shadow = Charge::new(policy, pacegate::KeyRef::new(b"shadow"), one);
            shadow.enforced = false;
            let charges = [enforced, shadow];
            let outcomes = charge_request(subject, &charges);
            [outcomes[0].is_admitted(), outcomes[1].is_admitted()]
        })
        .collect();
    assert_eq!(admitted, [[true, true], [true, false], [false, false]]);
    let left = call_peek(subject, "shadow", b"enforced", two);
    assert_eq!(left.remaining(), 0);
}

/// Returns the id of a history's permit. Ids differ in their upper half only, which a store must not cut off.
fn permit_id(permit: u64) -> u128 {
    u128::from(permit) << 64
}

/// Checks that two charges of one key in a request count as two.
fn the_same_key_twice(subject: &impl Subject) {
    subject.set_time(Timestamp::from_secs(1_767_225_600));
    let policy = "twice".parse().expect("valid policy name");
    for algorithm in algorithms(subject) {
        let limit = Limit::per_day(3).with_algorithm(algorithm).expect("valid limit");
        let key = algorithm.name().as_bytes();
        let mut charge = Charge::new(policy, pacegate::KeyRef::new(key), limit);
        let ask = |charge| {
            let outcomes = charge_request(subject, &[charge, charge]);
            outcomes.iter().all(Outcome::is_admitted)
        };
        charge.permit = u128::from(algorithm == Algorithm::Concurrency);
        assert!(ask(charge), "{algorithm}: 2 of 3");
        assert!(!ask(charge), "{algorithm}: 4 of 3");
        assert_eq!(call_peek(subject, "twice", key, limit).remaining(), 1, "{algorithm}");
    }
}

/// Checks that an amount of 0 always denies, that peeks and denials leave no trace, and that a share of a
/// limit is a limit.
fn nothing_is_never_something(subject: &impl Subject) {
    subject.set_time(Timestamp::from_secs(1_767_225_600));
    for algorithm in algorithms(subject) {
        let none = Limit::per_day(0).with_algorithm(algorithm).expect("valid limit");
        let key = format!("nothing-{algorithm}");
        let (_, outcome) =
            call(subject, (&key, Unsettled::Keep), none, Op::Charge(1, 1), 0).expect("an outcome");
        assert!(!outcome.is_admitted(), "{algorithm}");
        assert_eq!((outcome.remaining(), outcome.retry_after()), (0, None), "{algorithm}");

        let four = Limit::per_day(4).with_algorithm(algorithm).expect("valid limit");
        let half = four.share(1, NonZeroU32::new(2).expect("not zero"));
        for _ in 0..3 {
            let (_, peek) = call(subject, (&key, Unsettled::Keep), four, Op::Charge(0, 0), 0)
                .expect("an outcome");
            assert_eq!((peek.is_admitted(), peek.remaining()), (true, 4), "{algorithm}");
            assert_eq!(peek.reset_after(), Duration::ZERO, "{algorithm}");
        }
        let takes = |cost, permit| {
            call(subject, (&key, Unsettled::Keep), half, Op::Charge(cost, permit), 0)
                .is_some_and(|(_, o)| o.is_admitted())
        };
        assert!(takes(2, 1), "{algorithm}");
        let before = call(subject, (&key, Unsettled::Keep), half, Op::Charge(0, 0), 0);
        for _ in 0..3 {
            assert!(!takes(1, 2), "{algorithm}");
        }
        assert_eq!(
            call(subject, (&key, Unsettled::Keep), half, Op::Charge(0, 0), 0),
            before,
            "{algorithm}"
        );
    }
}

fn call_peek(subject: &impl Subject, policy: &str, key: &[u8], limit: Limit) -> Outcome {
    let policy = policy.parse().expect("valid policy name");
    let peek = [Charge::new(policy, pacegate::KeyRef::new(key), limit).cost(0)];
    charge_request(subject, &peek)[0]
}
