//! Requests for as many units as there are, over several limits.

use std::time::Duration;

use pacegate::{Charge, Limit, Timestamp, algorithm::Outcome};

use crate::{
    Model, Random, Subject,
    conformance::{rate_algorithms, work},
};

/// Checks requests with several keys and algorithms against a model of each: all limits are charged the same number of
/// units, which is the highest that all enforced limits admit. A limit in shadow mode is charged if it has that many.
pub(crate) fn all_limits_grant_the_same(subject: &impl Subject, rounds: u64) {
    let policy = "up-to".parse().expect("valid policy name");
    for seed in 0..rounds {
        let random = &mut Random::new(seed);
        let algorithms = rate_algorithms(subject);
        let mut now = 1_767_225_600_000_000 + random.below(1_000_000);
        let period = Duration::from_secs(random.pick(&[5, 86_400]));
        let limits: Vec<(Limit, bool)> = (0..random.between(2, 6))
            .map(|place| {
                let algorithm = algorithms[place as usize % algorithms.len()];
                let limit = Limit::new(random.between(1, 30), period).expect("valid limit");
                let limit = limit.with_algorithm(algorithm).expect("valid limit");
                (limit, place == 0 || !random.one_in(4))
            })
            .collect();
        let keys: Vec<String> = (0..limits.len()).map(|n| format!("up-to-{seed}-{n}")).collect();
        let mut models: Vec<Model> = limits.iter().map(|(limit, _)| Model::new(*limit)).collect();
        for _ in 0..12 {
            now += random.below(2_000_000);
            subject.set_time(Timestamp::from_micros(now));
            let charges: Vec<_> = keys
                .iter()
                .zip(&limits)
                .map(|(key, &(limit, enforced))| {
                    let mut charge = Charge::new(policy, key.as_str(), limit).enforced(enforced);
                    // In one slot of a cluster.
                    charge.tag = "up-to".into();
                    charge
                })
                .collect();
            let enforced = limits.iter().filter(|(_, enforced)| *enforced);
            let highest = enforced.map(|(limit, _)| limit.capacity()).min().unwrap_or(1);
            let most = random.between(1, highest);
            let answer = async { subject.store().charge_up_to(&charges, most, None).await };
            let (units, outcomes) = work(subject.block_on(answer));
            let all_fit = |models: &[Model], cost| {
                models
                    .iter()
                    .zip(&limits)
                    .all(|(model, (_, enforced))| !enforced || model.fits(now, cost))
            };
            let expected = (1..=most).rev().find(|&cost| all_fit(&models, cost)).unwrap_or(0);
            assert_eq!(units, expected, "seed {seed}: up to {most}");
            for ((model, outcome), charge) in models.iter_mut().zip(&outcomes).zip(&charges) {
                let fits = model.fits(now, units.max(1));
                assert_eq!(outcome.is_admitted(), fits, "seed {seed} {}", charge.limit);
                let answer = model.charge(now, if fits { units } else { 0 }, 0);
                assert_eq!(outcome.remaining(), answer.remaining, "seed {seed} {}", charge.limit);
            }
            let is_denied = |(outcome, charge): (&Outcome, &Charge<'_>)| {
                charge.enforced && !outcome.is_admitted()
            };
            assert_eq!(outcomes.iter().zip(&charges).any(is_denied), units == 0, "seed {seed}");
        }
    }
}
