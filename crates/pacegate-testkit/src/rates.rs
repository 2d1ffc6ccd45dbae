//! Limits with different rates for one key.

use std::time::Duration;

use pacegate::{
    Algorithm, Charge, Counter, KeyRef, Limit, PolicyName, Timestamp, algorithm::Outcome,
};

use crate::{
    Model, Random, Subject,
    conformance::{charge_request, rate_algorithms},
};

const POLICY: &str = "rates";

/// An instant in microseconds, and the units that were admitted at it.
type Admitted = (u64, u64);

/// Charges one key under several counters in turn. Each counter must answer as its own model does, so that no rate
/// drains a debt that was charged at another rate.
pub(crate) fn counters_are_apart(subject: &impl Subject, rounds: u64) {
    for seed in 0..rounds {
        let random = &mut Random::new(seed);
        let algorithms = rate_algorithms(subject);
        let algorithm = algorithms[seed as usize % algorithms.len()];
        let period = Duration::from_millis(random.pick(&[1, 7, 250, 60_000]));
        let counters = [
            Counter::Policy,
            Counter::Override(1),
            Counter::Override(2),
            Counter::Limit,
            Counter::Limit,
        ];
        // Each amount once: charges with equal limits share a counter.
        let amounts = [1, 10, 3, 40, 2].map(|amount| amount + 100 * random.below(3));
        let mut lines: Vec<(Counter, Model)> = counters
            .into_iter()
            .zip(amounts)
            .map(|(counter, amount)| {
                (counter, Model::new(limit(random, algorithm, amount, period)))
            })
            .collect();
        let key = format!("apart-{seed}");
        let mut now = start(subject, random);
        for step in 0..60 {
            now += random.below(period.as_micros() as u64 / 3 + 1);
            subject.set_time(Timestamp::from_micros(now));
            let (counter, model) = &mut lines[random.below(5) as usize];
            let limit = model.limit();
            let cost = random.between(0, limit.capacity().min(4));
            let expected = model.charge(now, cost, 0);
            let outcome = charge(subject, &key, *counter, limit, cost);
            assert!(
                expected.is(&outcome),
                "seed {seed} step {step}: {cost} of {limit} on {counter:?}: \
                 expected {expected:?}, got {outcome:?}"
            );
        }
    }
}

/// Charges one counter under two limits in turn, as two processes do while a configuration is rolled out. Together
/// they admit no more in any span than the larger burst and the higher rate allow.
pub(crate) fn two_limits_on_one_counter_admit_what_the_larger_does(
    subject: &impl Subject,
    rounds: u64,
) {
    for seed in 0..rounds {
        let random = &mut Random::new(seed);
        let limits = two_buckets(random);
        let (key, mut now) = (format!("revisions-{seed}"), start(subject, random));
        let mut admitted = Vec::new();
        for _ in 0..80 {
            let limit = limits[random.below(2) as usize];
            let cost = random.between(1, limit.capacity());
            now = later(subject, random, now, limit.period());
            if charge(subject, &key, Counter::Policy, limit, cost).is_admitted() {
                admitted.push((now, cost));
            }
        }
        let burst = limits.iter().map(Limit::capacity).max().unwrap_or(0);
        let fastest = limits.into_iter().max_by_key(Limit::amount).expect("two limits");
        for (span, units) in spans(&admitted) {
            let bound = burst + refill(span, &fastest);
            assert!(units <= bound, "seed {seed}: {units} in {span} us of {limits:?}");
        }
    }
}

/// Changes the limit of a counter once. The old limit and the new one each admit no more in any span than their bound
/// allows, and usage before the change counts after it.
pub(crate) fn a_changed_limit_keeps_its_usage(subject: &impl Subject, rounds: u64) {
    for seed in 0..rounds {
        let random = &mut Random::new(seed);
        let [old, new] = two_buckets(random);
        let (key, mut now) = (format!("change-{seed}"), start(subject, random));
        let mut model = Model::new(old);
        for limit in [old, new] {
            model.set_limit(limit);
            let expected = model.charge(now, 0, 0);
            let outcome = charge(subject, &key, Counter::Policy, limit, 0);
            assert!(
                expected.is(&outcome),
                "seed {seed}: {old} to {new}: expected {expected:?}, got {outcome:?}"
            );
            let mut admitted = Vec::new();
            for _ in 0..40 {
                now = later(subject, random, now, limit.period());
                let cost = random.between(1, limit.capacity());
                model.charge(now, cost, 0);
                if charge(subject, &key, Counter::Policy, limit, cost).is_admitted() {
                    admitted.push((now, cost));
                }
            }
            for (span, units) in spans(&admitted) {
                let bound = limit.capacity() + refill(span, &limit);
                assert!(units <= bound, "seed {seed}: {units} in {span} us of {limit}");
            }
        }
    }
}

/// Lets some time pass.
fn later(subject: &impl Subject, random: &mut Random, now: u64, period: Duration) -> u64 {
    let most = period.as_micros() as u64 / random.pick(&[2, 20, 200]);
    let now = now + random.below(most + 1);
    subject.set_time(Timestamp::from_micros(now));
    now
}

/// The length of each span from one admission to another, and the units that were admitted in it.
fn spans(admitted: &[Admitted]) -> impl Iterator<Item = (u64, u64)> {
    (0..admitted.len()).flat_map(move |first| {
        let from = admitted[first].0;
        admitted[first..].iter().scan(0, move |units, (at, cost)| {
            *units += cost;
            Some((at - from, *units))
        })
    })
}

/// The whole tokens that a span refills.
fn refill(span: u64, limit: &Limit) -> u64 {
    (u128::from(span) * u128::from(limit.amount()) / limit.period().as_micros()) as u64
}

/// Two token buckets of one period.
fn two_buckets(random: &mut Random) -> [Limit; 2] {
    let period = Duration::from_millis(random.pick(&[10, 1_000, 60_000]));
    [(); 2].map(|()| {
        let amount = random.pick(&[1, 2, 10, 100, 6_000]);
        limit(random, Algorithm::TokenBucket, amount, period)
    })
}

fn limit(random: &mut Random, algorithm: Algorithm, amount: u64, period: Duration) -> Limit {
    let limit = Limit::new(amount, period).expect("a small limit");
    let limit = limit.with_algorithm(algorithm).expect("a small limit");
    match algorithm {
        Algorithm::TokenBucket => {
            let burst = random.pick(&[1, 2, 10, amount, 2 * amount]);
            limit.with_burst(burst).expect("a small burst")
        }
        _ => limit,
    }
}

/// Sets the clock to the start of a history, from far away: a store may ignore a small step back.
fn start(subject: &impl Subject, random: &mut Random) -> u64 {
    let now = 1_767_225_600_000_000 + random.below(120_000_000);
    let later = Timestamp::from_micros(now).after(Duration::from_secs(3_600));
    subject.set_time(later);
    let algorithm = rate_algorithms(subject)[0];
    let limit = Limit::per_second(1).with_algorithm(algorithm).expect("valid limit");
    charge(subject, "start", Counter::Policy, limit, 0);
    subject.set_time(Timestamp::from_micros(now));
    now
}

fn charge(subject: &impl Subject, key: &str, counter: Counter, limit: Limit, cost: u64) -> Outcome {
    let policy: PolicyName = POLICY.parse().expect("a name");
    let key = KeyRef::new(key.as_bytes());
    charge_request(subject, &[Charge::new(policy, key, limit).counter(counter).cost(cost)])[0]
}
