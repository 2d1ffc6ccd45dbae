//! Charges of one request, put together as a store is to have them.

use std::collections::HashMap;

use smallvec::SmallVec;

use super::charges::fits;
use crate::{
    Charge, Counter, KeyRef, Limit, PolicyName,
    algorithm::{NEVER, Outcome},
    policy::FailureMode,
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

/// What charges have in common that differ in their cost alone.
type Place<'a> = (PolicyName, Counter, KeyRef<'a>, Limit, u128, bool, Option<FailureMode>);

/// Where each of them is, if there are so many that looking at all would take long.
type Index<'a> = Option<HashMap<Place<'a>, usize>>;

const FEW: usize = 16;

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
        let mut index = (charges.len() > FEW).then(HashMap::new);
        for enforced in [true, false] {
            for (place, charge) in charges.iter().enumerate() {
                if charge.enforced == enforced {
                    joined.places[place] = joined.add(charge, &mut index);
                }
            }
        }
        joined
    }

    fn add(&mut self, charge: &Charge<'a>, index: &mut Index<'a>) -> usize {
        let own = place_of(charge);
        let is_same = |other: &Charge<'a>| other.cost > 0 && place_of(other) == own;
        let same = match index {
            // A charge of nothing is only a question, and asked by itself.
            _ if charge.cost == 0 => None,
            Some(index) => index.get(&own).copied(),
            None => self.charges.iter().position(is_same),
        };
        if let Some(place) = same {
            let sum = self.charges[place].cost.saturating_add(charge.cost);
            let joined = Charge { cost: sum, ..*charge };
            if fits(&joined) {
                self.charges[place] = joined;
                return place;
            }
            self.never[place] = true;
        }
        let place = self.charges.len();
        self.charges.push(*charge);
        self.never.push(same.is_some());
        if let Some(index) = index.as_mut().filter(|_| charge.cost > 0) {
            index.entry(own).or_insert(place);
        }
        place
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

fn place_of<'a>(charge: &Charge<'a>) -> Place<'a> {
    let Charge { policy, counter, key, limit, permit, enforced, failure, .. } = *charge;
    (policy, counter, key, limit, permit, enforced, failure)
}
