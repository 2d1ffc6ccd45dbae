//! Reservations that one script call settles.

use pacegate::StoreError;
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
    pub(crate) actual: u64,
    pub(crate) responder: Responder,
}

/// Maximum number of settlements in one script call.
const MAX_SETTLEMENTS: usize = 64;

/// Packs settlements into as few script calls as possible. In a cluster, each has keys of one slot.
pub(crate) fn pack(mut settlements: Vec<Settlement>, is_cluster: bool) -> Vec<Vec<Settlement>> {
    let mut batches: Vec<Vec<Settlement>> = Vec::new();
    if is_cluster {
        settlements.sort_by_key(|settlement| settlement.key.slot());
    }
    for settlement in settlements {
        match batches.last_mut() {
            Some(last)
                if last.len() < MAX_SETTLEMENTS
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
    command.arg(settlements.iter().map(|settlement| 1 + settlement.charges.len()).sum::<usize>());
    for settlement in settlements {
        command.arg(names.key(settlement.key));
        for charge in &settlement.charges {
            command.arg(names.key(charge.cell));
        }
    }
    command.arg(program);
    command
}

/// Answers every settlement.
pub(crate) fn finish(settlements: Vec<Settlement>, replies: &[i64]) {
    let missing = || StoreError::Failed("a settlement without an answer".to_owned());
    for (place, mut settlement) in settlements.into_iter().enumerate() {
        let answer = replies.get(place).map(|&open| u64::from(open > 0)).ok_or_else(missing);
        let answer = answer.map(|granted| Answer { granted, ..Answer::default() });
        settlement.responder.answer(answer);
    }
}
