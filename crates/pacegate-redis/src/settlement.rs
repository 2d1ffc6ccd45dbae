//! Reservations that one script call settles.

use std::{collections::HashSet, time::Duration};

use pacegate::{SettledCharge, SettledCharges, StoreError, Timestamp, algorithm::Outcome};

use crate::{
    cell::{CellCharges, CellId, Names},
    responder::{Answer, Responder},
};

/// A reservation to settle. On a cluster, all of its cells are in one slot.
#[derive(Debug)]
pub(crate) struct Settlement {
    /// The Redis key that shows that the reservation is open.
    pub(crate) key: CellId,
    /// With the treatment of units beyond the reserved ones.
    pub(crate) charges: CellCharges,
    /// The units that were used.
    pub(crate) actual: u64,
    pub(crate) responder: Responder,
}

/// Maximum number of settlements in one script call.
const MAX_SETTLEMENTS: usize = 64;

impl Settlement {
    fn keeps_log(&self) -> bool {
        self.charges.iter().any(|charge| charge.limit.algorithm().keeps_log())
    }
}

/// Packs settlements into as few script calls as possible. In a cluster, each has keys of one slot. A settlement with a
/// log is alone: it may have to rewrite thousands of entries, and would block the server for too long together with
/// others.
pub(crate) fn pack(mut settlements: Vec<Settlement>, is_cluster: bool) -> Vec<Vec<Settlement>> {
    let mut batches: Vec<Vec<Settlement>> = Vec::new();
    if is_cluster {
        settlements.sort_by_key(|settlement| settlement.key.slot());
    }
    for settlement in settlements {
        match batches.last_mut() {
            Some(last)
                if last.len() < MAX_SETTLEMENTS
                    && !settlement.keeps_log()
                    && !last[0].keeps_log()
                    && (!is_cluster || last[0].key.slot() == settlement.key.slot()) =>
            {
                last.push(settlement);
            }
            _ => batches.push(vec![settlement]),
        }
    }
    batches
}

/// Returns whether `settle_simple.lua` can settle these: each reservation has one cell, all of which are different, and
/// no cell is a log, has a calendar period or returns unsettled reservations.
pub(crate) fn is_simple(settlements: &[Settlement]) -> bool {
    let mut cells = HashSet::with_hasher(foldhash::fast::RandomState::default());
    settlements.iter().all(|settlement| match settlement.charges.as_slice() {
        [charge] => {
            !settlement.keeps_log()
                && charge.limit.calendar().is_none()
                && !charge.returns
                && cells.insert(charge.cell)
        }
        _ => false,
    })
}

/// Returns the keys of `settle.lua`.
pub(crate) fn keys(settlements: &[Settlement], names: &Names) -> Vec<Vec<u8>> {
    let mut keys = Vec::new();
    for Settlement { key, charges, .. } in settlements {
        keys.push(names.key(*key));
        keys.extend(charges.iter().map(|charge| names.key(charge.cell)));
        let returning = charges.iter().filter(|charge| charge.returns);
        keys.extend(returning.map(|charge| names.due(charge.cell)));
    }
    keys
}

/// Returns the keys of `settle_simple.lua`.
pub(crate) fn simple_keys(settlements: &[Settlement], names: &Names) -> Vec<Vec<u8>> {
    let reservations = settlements.iter().map(|settlement| settlement.key);
    let cells = settlements.iter().map(|settlement| settlement.charges[0].cell);
    reservations.chain(cells).map(|id| names.key(id)).collect()
}

/// Answers every settlement.
pub(crate) fn finish(settlements: Vec<Settlement>, reply: &[i64]) {
    let mut numbers = reply.iter().copied();
    let now = numbers.next().and_then(|now| u64::try_from(now).ok());
    for mut settlement in settlements {
        let answer = now.and_then(|now| settled(&settlement, now, &mut numbers));
        let missing = || StoreError::Failed("a settlement without an answer".to_owned());
        settlement.responder.answer(answer.ok_or_else(missing));
    }
}

/// Reads the answer to one settlement.
fn settled(
    settlement: &Settlement,
    now: u64,
    numbers: &mut impl Iterator<Item = i64>,
) -> Option<Answer> {
    let is_open = numbers.next()? > 0;
    let mut charges = SettledCharges::new();
    for _ in &settlement.charges {
        let (units, free) = (numbers.next()?, numbers.next()?);
        let reserved = u64::try_from(units).ok()?.checked_sub(1);
        charges.push(reserved.map(|reserved| {
            let beyond = settlement.actual.saturating_sub(reserved);
            SettledCharge::new(reserved, outcome(beyond, free, now))
        }));
    }
    let settled = is_open.then(|| Box::new(charges));
    Some(Answer { now, settled, ..Answer::default() })
}

/// Returns the outcome of a charge of the units beyond the reserved ones, if there were any. Its waiting times are
/// unknown.
fn outcome(beyond: u64, free: i64, now: u64) -> Option<Outcome> {
    let free = u64::try_from(free).unwrap_or(0);
    let outcome = match free.checked_sub(beyond) {
        _ if beyond == 0 => return None,
        Some(rest) => Outcome::admitted(rest, Duration::ZERO),
        None => Outcome::denied(0, Some(Duration::ZERO), Duration::ZERO),
    };
    Some(outcome.with_decided_at(Timestamp::from_micros(now)))
}

#[cfg(test)]
mod tests {
    use pacegate::Charge;

    use super::*;

    #[test]
    fn a_settlement_with_a_log_is_alone() {
        let names = Names::new("", b"");
        let settlement = |text: &str| {
            let charge = Charge::new("api".parse().unwrap(), "key", text.parse().unwrap());
            let charges: CellCharges = [names.cell_charge(&charge).unwrap()].into_iter().collect();
            let (key, responder) = (names.reservation(1, &charges), Responder::new().0);
            Settlement { key, charges, actual: 1, responder }
        };
        let texts = ["1/day", "1/hour", "1/day sliding-log", "1/day sliding-log", "1/day"];
        let packed = pack(texts.map(settlement).into(), false);
        assert_eq!(packed.iter().map(Vec::len).collect::<Vec<_>>(), [2, 1, 1, 1]);
        let many = (0..130).map(|_| settlement("1/day")).collect();
        assert_eq!(pack(many, true).iter().map(Vec::len).collect::<Vec<_>>(), [64, 64, 2]);
    }
}
