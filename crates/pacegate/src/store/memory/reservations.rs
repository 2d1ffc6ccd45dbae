//! Open reservations: units that were charged in advance and may be returned.
//!
//! A reservation is known only to the holder of its id, so it can be stored after its units were charged. Whoever
//! removes it changes the counters: that makes a settlement count once.

use std::{
    cmp::Reverse,
    collections::{BinaryHeap, HashMap},
    time::Duration,
};

use smallvec::SmallVec;

use super::{
    MemoryStore, Ordering, Shards, Slot,
    identity::{Identity, Scope},
};
use crate::{
    Counter, Excess, Limit, Outcomes, PolicyName, StoreError,
    algorithm::{self, Origin, State},
};

/// One shard of the open reservations.
#[derive(Debug, Default)]
pub(super) struct Reservations {
    open: HashMap<u128, OpenReservation, foldhash::fast::RandomState>,
    /// When each reservation expires. Also has some that were settled before.
    due: BinaryHeap<Reverse<(u64, u128)>>,
}

#[derive(Debug)]
struct OpenReservation {
    expires: u64,
    charges: SmallVec<[ReservedCharge; 1]>,
}

/// Units of a reservation under one limit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ReservedCharge {
    scope: Scope,
    pub(crate) id: Identity,
    pub(crate) limit: Limit,
    /// The policy and its counter, to find the current limit. `None`: the limit never changes.
    pub(crate) counter: Option<(PolicyName, Counter)>,
    units: u64,
    /// The state just after the charge. `None` if the units were taken from an overflow budget, which gets none back.
    charged: Option<State>,
}

/// The number of shards.
pub(super) const RESERVATION_SHARDS: usize = 16;

impl MemoryStore {
    /// Charges slots, all or nothing. If they are admitted, stores them as reservation `id`. `counter` returns the
    /// counter of a slot, if its limit may change.
    pub(crate) fn reserve_slots(
        &self,
        slots: &[Slot<'_>],
        counter: impl Fn(usize) -> Option<(PolicyName, Counter)>,
        (id, ttl): (u128, Duration),
    ) -> Result<(Outcomes, u64), StoreError> {
        let inner = self.shards();
        if !inner.room_for_reservation() {
            let problem =
                "too many open reservations: settle them, shorten their ttl, or raise max_keys";
            return Err(StoreError::Unavailable(problem.to_owned()));
        }
        let (outcomes, states, now) = self.charge_and_read(slots);
        let fits =
            slots.iter().zip(&*outcomes).all(|(slot, it)| it.is_admitted() || !slot.enforced);
        if !fits {
            inner.reserved.fetch_sub(1, Ordering::Relaxed);
            return Ok((outcomes, now));
        }
        let pairs = slots.iter().zip(&*outcomes).zip(states).enumerate();
        let taken = pairs.filter(|(_, ((_, outcome), _))| outcome.is_admitted());
        let charges = taken.map(|(place, ((slot, outcome), state))| {
            let charged = (outcome.origin != Origin::Overflow).then_some(state);
            let (counter, units) = (counter(place), slot.cost);
            let Slot { scope: &scope, id, limit: &limit, .. } = *slot;
            ReservedCharge { scope, id, limit, counter, units, charged }
        });
        let expires = now.saturating_add(algorithm::micros(ttl));
        let reservation = OpenReservation { expires, charges: charges.collect() };
        let expired = inner.reservations_of(id).lock().insert(id, reservation, now);
        if expired > 0 {
            inner.reserved.fetch_sub(expired, Ordering::Relaxed);
        }
        Ok((outcomes, now))
    }

    /// Ends reservation `id`: returns the units that were not used, or records those beyond the reserved ones as debt,
    /// to each limit independently. `current_limit` returns the limit that applies now, and its maximum debt. `each` is
    /// called for each counter. Returns `false` if the reservation is not open.
    pub(crate) fn settle_reservation(
        &self,
        id: u128,
        actual: u64,
        current_limit: impl Fn(&ReservedCharge) -> (Limit, u64),
        mut each: impl FnMut(Identity),
    ) -> bool {
        let inner = self.shards();
        let Some(reservation) = inner.reservations_of(id).lock().remove(id) else { return false };
        inner.reserved.fetch_sub(1, Ordering::Relaxed);
        if reservation.expires <= inner.time.now() {
            return false;
        }
        for charge in &reservation.charges {
            self.settle_charge(charge, current_limit(charge), actual);
            each(charge.id);
        }
        true
    }

    fn settle_charge(&self, charge: &ReservedCharge, (limit, max): (Limit, u64), actual: u64) {
        let slot = Slot {
            scope: &charge.scope,
            id: charge.id,
            limit: &limit,
            cost: actual.abs_diff(charge.units),
            permit: 0,
            enforced: true,
            excess: Excess::Debt { max }.under(&limit),
        };
        match charge.charged {
            _ if slot.cost == 0 => {}
            _ if actual > charge.units => drop(self.charge_all(&[slot])),
            Some(charged) => self.return_units(&slot, charged),
            None => {}
        }
    }

    /// Returns up to the cost of the slot to where it was charged.
    fn return_units(&self, slot: &Slot<'_>, charged: State) {
        let inner = self.shards();
        if slot.limit.algorithm().keeps_log() {
            let mut logs = inner.logs_of(slot.id).lock();
            let now = logs.shard_clock.advance(&inner.time, inner.time.now());
            let units = (charged.at().as_micros(), slot.cost);
            let freed = logs.return_units(slot.id, slot.limit, now, units);
            inner.entries.give_back(slot.share(), freed);
            return;
        }
        let mut table = inner.cells_of(slot.id).lock();
        let now = table.shard_clock.advance(&inner.time, inner.time.now());
        if let Some(place) = table.find(slot.id) {
            let state = table.state_mut(place);
            *state = algorithm::return_units(slot.limit, *state, now, charged, slot.cost);
        }
    }
}

impl ReservedCharge {
    /// Returns the limit at the time of the charge, and its capacity as the maximum debt.
    pub(crate) fn unchanged_limit(&self) -> (Limit, u64) {
        (self.limit, self.limit.capacity())
    }
}

impl Shards {
    /// Takes room for a reservation.
    #[inline]
    fn room_for_reservation(&self) -> bool {
        let open = self.reserved.fetch_add(1, Ordering::Relaxed);
        open < self.keys.max() || self.expire_reservations()
    }

    /// Removes all expired reservations. Returns `false`, and the room that was taken, if that is not enough.
    #[cold]
    fn expire_reservations(&self) -> bool {
        let now = self.time.now();
        let shards = self.reservations.iter();
        let expired: usize = shards.map(|shard| shard.0.lock().expire(now, usize::MAX)).sum();
        let before = self.reserved.fetch_sub(expired, Ordering::Relaxed);
        let has_room = before - expired <= self.keys.max();
        if !has_room {
            self.reserved.fetch_sub(1, Ordering::Relaxed);
        }
        has_room
    }

    fn reservations_of(&self, id: u128) -> &super::Lock<Reservations> {
        &self.reservations[id as usize % RESERVATION_SHARDS].0
    }
}

impl Reservations {
    /// Adds a reservation, and removes a few expired ones. Returns the number of the latter.
    fn insert(&mut self, id: u128, reservation: OpenReservation, now: u64) -> usize {
        let expired = self.expire(now, 4);
        if self.due.len() >= 64 && self.due.len() > 2 * self.open.len() {
            let open = &self.open;
            self.due.retain(|Reverse((_, id))| open.contains_key(id));
        }
        self.due.push(Reverse((reservation.expires, id)));
        self.open.insert(id, reservation);
        expired
    }

    fn remove(&mut self, id: u128) -> Option<OpenReservation> {
        self.open.remove(&id)
    }

    /// Removes up to `max` expired reservations, and returns their number.
    fn expire(&mut self, now: u64, max: usize) -> usize {
        let mut expired = 0;
        while let Some(&Reverse((due, id))) = self.due.peek()
            && due <= now
            && expired < max
        {
            self.due.pop();
            expired += usize::from(self.open.remove(&id).is_some());
        }
        expired
    }
}
