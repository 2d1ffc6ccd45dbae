//! Reservations over several limits.

use std::time::Duration;

use pacegate::{Charge, Limit, PolicyName, Timestamp, policy::Unsettled};

use crate::{
    Model, Random, ReservedUnits, Subject,
    conformance::{rate_algorithms, work},
};

/// An open reservation: its end, and the units of each limit that was charged.
struct Open {
    id: u128,
    expires: u64,
    reserved: Vec<Option<ReservedUnits>>,
}

/// Several limits, each with a separate key and model. Limits that are not enforced never deny.
struct Limits {
    policy: PolicyName,
    keys: Vec<String>,
    limits: Vec<(Limit, bool)>,
    models: Vec<Model>,
    unsettled: Vec<Unsettled>,
}

/// Checks reservations and settlements over several limits at once against a model of each: all limits are charged or
/// none, and a settlement changes each of them independently, and once.
pub(crate) fn all_limits_are_reserved_together(subject: &impl Subject, rounds: u64) {
    for seed in 0..rounds {
        let random = &mut Random::new(seed);
        let mut limits = Limits::random(subject, seed, random);
        let mut now = 1_767_225_600_000_000 + random.below(1_000_000);
        let mut open: Vec<Open> = Vec::new();
        for step in 0..24 {
            now += random.below(2_000_000);
            subject.set_time(Timestamp::from_micros(now));
            let at = format!("seed {seed}, step {step}");
            limits.return_due(now, &mut open);
            match random.below(4) {
                0 if !open.is_empty() => {
                    // Some are settled twice.
                    let place = random.below(open.len() as u64) as usize;
                    limits.settle(subject, now, &mut open[place], random.below(40), &at);
                }
                1 => limits.charge(subject, now, random, &at),
                _ => {
                    let id = u128::from(seed) << 64 | step;
                    open.extend(limits.reserve(subject, now, id, random, &at));
                }
            }
            limits.assert_remaining(subject, now, &at);
        }
    }
}

impl Limits {
    fn random(subject: &impl Subject, seed: u64, random: &mut Random) -> Self {
        let algorithms = rate_algorithms(subject);
        let period = Duration::from_secs(random.pick(&[5, 86_400]));
        let limits: Vec<(Limit, bool)> = (0..random.between(2, 5))
            .map(|place| {
                let algorithm = algorithms[place as usize % algorithms.len()];
                let limit = Limit::new(random.between(5, 30), period).expect("valid limit");
                let limit = limit.with_algorithm(algorithm).expect("valid limit");
                (limit, place == 0 || !random.one_in(4))
            })
            .collect();
        Self {
            policy: "several".parse().expect("valid policy name"),
            keys: (0..limits.len()).map(|n| format!("several-{seed}-{n}")).collect(),
            models: limits.iter().map(|(limit, _)| Model::new(*limit)).collect(),
            unsettled: limits
                .iter()
                .map(|_| random.pick(&[Unsettled::Keep, Unsettled::Return]))
                .collect(),
            limits,
        }
    }

    fn charges(&self, cost: u64) -> Vec<Charge<'_>> {
        let pairs = self.keys.iter().zip(&self.limits).zip(&self.unsettled);
        pairs
            .map(|((key, &(limit, enforced)), unsettled)| {
                let charge = Charge::new(self.policy, key.as_str(), limit).cost(cost);
                let mut charge = charge.unsettled(*unsettled);
                // In one slot of a cluster.
                charge.tag = "several".into();
                charge.enforced(enforced)
            })
            .collect()
    }

    /// Ends the reservations that are due, in the order in which they expired.
    fn return_due(&mut self, now: u64, open: &mut [Open]) {
        let mut due: Vec<&mut Open> = open.iter_mut().filter(|open| open.expires <= now).collect();
        due.sort_by_key(|open| open.expires);
        for open in due {
            let reserved = open.reserved.iter_mut().map(Option::take);
            for ((model, reserved), unsettled) in
                self.models.iter_mut().zip(reserved).zip(&self.unsettled)
            {
                if let Some(reserved) = reserved.filter(|_| *unsettled == Unsettled::Return) {
                    model.settle(now, &reserved, 0, 0);
                }
            }
        }
    }

    /// Returns a cost that each limit can admit.
    fn cost(&self, random: &mut Random) -> u64 {
        let capacities = self.limits.iter().map(|(limit, _)| limit.capacity());
        random.between(1, capacities.min().unwrap_or(1).min(12))
    }

    /// Returns `true` for each limit that takes the cost: none, if an enforced one has no room for it.
    fn taken(&self, now: u64, cost: u64) -> Vec<bool> {
        let fits: Vec<bool> = self.models.iter().map(|model| model.fits(now, cost)).collect();
        let all = fits.iter().zip(&self.limits).all(|(fits, (_, enforced))| *fits || !enforced);
        fits.into_iter().map(|fits| fits && all).collect()
    }

    fn charge(&mut self, subject: &impl Subject, now: u64, random: &mut Random, at: &str) {
        let cost = self.cost(random);
        let charges = self.charges(cost);
        let answer = async { subject.store().charge(&charges, None).await };
        let outcomes = work(subject.block_on(answer));
        for (model, outcome) in self.models.iter().zip(&outcomes) {
            assert_eq!(outcome.is_admitted(), model.fits(now, cost), "{at}: {}", model.limit());
        }
        let taken = self.taken(now, cost);
        for (model, _) in self.models.iter_mut().zip(taken).filter(|(_, taken)| *taken) {
            model.take(now, cost, 0);
        }
    }

    fn reserve(
        &mut self,
        subject: &impl Subject,
        now: u64,
        id: u128,
        random: &mut Random,
        at: &str,
    ) -> Option<Open> {
        let (cost, ttl) = (self.cost(random), random.between(1, 8_000_000));
        let charges = self.charges(cost);
        let ttl_time = Duration::from_micros(ttl);
        let answer = async { subject.store().reserve(&charges, id, ttl_time).await };
        let outcomes = work(subject.block_on(answer));
        for (model, outcome) in self.models.iter().zip(&outcomes) {
            assert_eq!(outcome.is_admitted(), model.fits(now, cost), "{at}: {}", model.limit());
        }
        let taken = self.taken(now, cost);
        let pairs = self.models.iter_mut().zip(&taken);
        let reserved: Vec<_> = pairs
            .map(|(model, taken)| taken.then(|| model.reserve(now, cost).1).flatten())
            .collect();
        let is_open = reserved.iter().any(Option::is_some);
        is_open.then_some(Open { id, expires: now + ttl, reserved })
    }

    fn settle(&mut self, subject: &impl Subject, now: u64, open: &mut Open, actual: u64, at: &str) {
        let charges = self.charges(0);
        let answer = async { subject.store().settle(&charges, open.id, actual).await };
        let settled = work(subject.block_on(answer));
        let is_open = now < open.expires && open.reserved.iter().any(Option::is_some);
        assert_eq!(settled.is_some(), is_open, "{at}: settled");
        let reserved = open.reserved.iter_mut().map(Option::take);
        for ((model, reserved), place) in self.models.iter_mut().zip(reserved).zip(0..) {
            let answer = settled.as_ref().and_then(|settled| settled[place]);
            assert_eq!(answer.is_some(), is_open && reserved.is_some(), "{at}: limit {place}");
            if let Some(reserved) = reserved.filter(|_| is_open) {
                let max_debt = model.limit().capacity();
                model.settle(now, &reserved, actual, max_debt);
            }
        }
    }

    /// Compares the remaining units of each limit.
    fn assert_remaining(&mut self, subject: &impl Subject, now: u64, at: &str) {
        let charges = self.charges(0);
        for (place, charge) in charges.iter().enumerate() {
            let peek = async { subject.store().charge(std::slice::from_ref(charge), None).await };
            let outcomes = work(subject.block_on(peek));
            let expected = self.models[place].clone().charge(now, 0, 0);
            let found = (outcomes[0].remaining(), outcomes[0].is_admitted());
            assert_eq!(found, (expected.remaining, expected.admitted), "{at}: {}", charge.limit);
        }
    }
}
