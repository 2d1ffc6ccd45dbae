//! Reservations that one script call settles.

use std::time::Duration;

use pacegate::{SettledCharge, SettledCharges, StoreError, Timestamp, algorithm::Outcome};
use redis::Cmd;

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
    /// The units that were used. `None` if the time to live is over: then those cells are returned that record an
    /// excess.
    pub(crate) actual: Option<u64>,
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

/// Adds the keys and the program to a script call.
pub(crate) fn command(
    settlements: &[Settlement],
    mut command: Cmd,
    names: &Names,
    program: Vec<u8>,
) -> Cmd {
    let mut keys = Vec::new();
    for Settlement { key, charges, .. } in settlements {
        keys.push(names.key(*key));
        keys.extend(charges.iter().map(|charge| names.key(charge.cell)));
        keys.extend(names.returns(charges));
    }
    command.arg(keys.len()).arg(keys);
    command.arg(program);
    command
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
            let beyond = settlement.actual.map_or(0, |actual| actual.saturating_sub(reserved));
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
            Settlement { key, charges, actual: Some(1), responder }
        };
        let texts = ["1/day", "1/hour", "1/day sliding-log", "1/day sliding-log", "1/day"];
        let packed = pack(texts.map(settlement).into(), false);
        assert_eq!(packed.iter().map(Vec::len).collect::<Vec<_>>(), [2, 1, 1, 1]);
        let many = (0..130).map(|_| settlement("1/day")).collect();
        assert_eq!(pack(many, true).iter().map(Vec::len).collect::<Vec<_>>(), [64, 64, 2]);
    }
}
