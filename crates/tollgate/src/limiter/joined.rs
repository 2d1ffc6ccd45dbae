//! Charges of one request, put together as a store is to have them.

use smallvec::SmallVec;

use super::charges::fits;
use crate::{
    Charge,
    algorithm::{NEVER, Outcome},
};

/// Charges as a store gets them. Those that count on one state under one limit are one charge of their sum: it is the
/// sum that has to fit, and whose wait is told. What is enforced comes first, so that nothing else stands in its way.
pub(super) struct Joined<'a> {
    pub(super) charges: SmallVec<[Charge<'a>; 4]>,
    /// For each charge of the caller, which of these it is part of.
    places: SmallVec<[usize; 4]>,
    /// For each of these, whether it is one of several whose sum never fits.
    never: SmallVec<[bool; 4]>,
}

/// A charge of the sum of others, while it is told to each of them what became of it.
#[derive(Clone, Copy)]
struct Part {
    outcome: Outcome,
    /// The cost of those that have not been told yet.
    left: u64,
    /// If the sum is denied, what is free for those that would have been admitted by themselves.
    free: u64,
    /// Whether one of them has been told of a denial, as at least one is.
    denies: bool,
}

impl<'a> Joined<'a> {
    pub(super) fn of(charges: &[Charge<'a>]) -> Self {
        let mut joined =
            Self { charges: SmallVec::new(), places: SmallVec::new(), never: SmallVec::new() };
        joined.places.resize(charges.len(), 0);
        for enforced in [true, false] {
            for (place, charge) in charges.iter().enumerate() {
                if charge.enforced == enforced {
                    joined.places[place] = joined.add(charge);
                }
            }
        }
        joined
    }

    fn add(&mut self, charge: &Charge<'a>) -> usize {
        let same = self.charges.iter().position(|other| counts_with(other, charge));
        if let Some(place) = same {
            let sum = self.charges[place].cost.saturating_add(charge.cost);
            let joined = Charge { cost: sum, ..*charge };
            if fits(&joined) {
                self.charges[place] = joined;
                return place;
            }
            self.never[place] = true;
        }
        self.charges.push(*charge);
        self.never.push(same.is_some());
        self.charges.len() - 1
    }

    /// The outcomes for the charges of the caller, from those for the ones that fit.
    pub(super) fn spread(&self, charges: &[Charge<'_>], outcomes: Vec<Outcome>) -> Vec<Outcome> {
        let mut outcomes = outcomes.into_iter();
        let parts = self.charges.iter().zip(&self.never).map(|(charge, &never)| {
            let outcome = if fits(charge) { outcomes.next() } else { None };
            let mut outcome = outcome.unwrap_or(Outcome::refused(0, NEVER, 0));
            if never && !outcome.is_admitted() {
                outcome.retry_after = NEVER;
            }
            Part { outcome, left: charge.cost, free: outcome.remaining, denies: false }
        });
        let mut parts: SmallVec<[Part; 4]> = parts.collect();
        let admits =
            |(part, charge): (&Part, &Charge<'_>)| part.outcome.is_admitted() || !charge.enforced;
        let taken = parts.iter().zip(&self.charges).all(admits);
        let own = |(charge, &place): (&Charge<'_>, &usize)| parts[place].tell(charge.cost, taken);
        charges.iter().zip(&self.places).map(own).collect()
    }
}

impl Part {
    /// What becomes of the next one. `taken` tells whether anything was: else all that is free remains.
    fn tell(&mut self, cost: u64, taken: bool) -> Outcome {
        self.left = self.left.saturating_sub(cost);
        if self.outcome.is_admitted() {
            let later = if taken { self.left } else { 0 };
            return Outcome { remaining: self.outcome.remaining + later, ..self.outcome };
        }
        if cost > self.free || self.left == 0 && !self.denies {
            self.denies = true;
            return self.outcome;
        }
        self.free -= cost;
        Outcome { retry_after: 0, ..self.outcome }
    }
}

/// Whether two charges are on one state, and all the same but for their cost. One of nothing is only a question, and
/// asked by itself.
fn counts_with(one: &Charge<'_>, other: &Charge<'_>) -> bool {
    let same = |charge: &Charge<'_>| (charge.policy, charge.limit, charge.permit, charge.enforced);
    one.cost > 0 && other.cost > 0 && same(one) == same(other) && one.key == other.key
}
