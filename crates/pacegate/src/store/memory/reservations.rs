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
    charge::ChargedState,
    identity::{HashIsRandom, Identity, Scope},
    room::Room,
    share::Share,
};
use crate::{
    Algorithm, Counter, Excess, KeyBuf, Limit, Outcomes, PolicyName, StoreError,
    algorithm::{self, Origin, Outcome},
    policy::Unsettled,
};

/// One shard of the open reservations.
#[derive(Debug, Default)]
pub(super) struct Reservations {
    open: HashMap<u128, OpenReservation, HashIsRandom>,
    /// When each reservation expires whose units stay charged. Also has some that were settled before.
    due: Expiries,
    /// When each reservation expires of which units are returned. Also has some that were settled before.
    returned: Expiries,
}

/// Charges of reservations whose time to live is over, of which units are returned when their key is used.
pub(super) type DueCharges = HashMap<Identity, Vec<ReservedCharge>, HashIsRandom>;

/// The instants at which reservations expire, the first one on top.
type Expiries = BinaryHeap<Reverse<(u64, u128)>>;

#[derive(Debug)]
struct OpenReservation {
    expires: u64,
    /// The share whose room it takes.
    share: Share,
    charges: SmallVec<[ReservedCharge; 1]>,
}

/// Units of a reservation under one limit.
#[derive(Clone, Debug)]
pub(crate) struct ReservedCharge {
    pub(crate) scope: Scope,
    pub(crate) id: Identity,
    pub(crate) limit: Limit,
    pub(crate) origin: ChargeOrigin,
    pub(crate) units: u64,
    /// The state just after the charge. `None` if the units were taken from an overflow budget, which gets none back.
    charged: Option<ChargedState>,
}

/// The origin of a reserved charge.
#[derive(Clone, Debug)]
pub(crate) struct ChargeOrigin {
    pub(crate) policy: PolicyName,
    pub(crate) counter: Counter,
    /// `true` if the limit applies that the policy has when the reservation ends. Otherwise the limit never changes.
    pub(crate) follows_policy: bool,
    /// `true` if the statistics count the units.
    pub(crate) is_recorded: bool,
    /// The key, if threshold events may need it.
    pub(crate) key: Option<Box<KeyBuf>>,
    /// The treatment of the units if the reservation is not settled.
    pub(crate) unsettled: Unsettled,
}

/// The number of shards.
pub(super) const RESERVATION_SHARDS: usize = 16;

impl MemoryStore {
    /// Charges slots, all or nothing. If they are admitted, stores them as reservation `id`. `origin` returns the
    /// origin of a slot. There is at least one slot. If no charge was taken, because all limits are in shadow mode and
    /// have no room, nothing is stored.
    pub(crate) fn reserve_slots(
        &self,
        slots: &[Slot<'_>],
        origin: impl Fn(usize) -> ChargeOrigin,
        (id, ttl): (u128, Duration),
    ) -> Result<(Outcomes, u64), StoreError> {
        if let [slot] = slots
            && slot.enforced
            && !slot.limit.algorithm().keeps_log()
        {
            let (outcome, now) = self.reserve_slot(slot, || origin(0), (id, ttl))?;
            return Ok((Outcomes::from_iter([outcome]), now));
        }
        let inner = self.shards();
        let share = slots.first().map_or(Share::INLINE, Slot::share);
        inner.take_room(share)?;
        let (outcomes, states, now) = self.charge_and_read(slots);
        let fits =
            slots.iter().zip(&*outcomes).all(|(slot, it)| it.is_admitted() || !slot.enforced);
        let pairs = slots.iter().zip(&*outcomes).zip(states).enumerate();
        let taken = pairs.filter(|(_, ((_, outcome), _))| fits && outcome.is_admitted());
        let charges: SmallVec<[ReservedCharge; 1]> = taken
            .map(|(place, ((slot, outcome), state))| {
                ReservedCharge::new(slot, outcome, state, origin(place))
            })
            .collect();
        if charges.is_empty() {
            inner.reserved.give_back(share, 1);
        } else {
            let expires = now.saturating_add(algorithm::micros(ttl));
            inner.open_reservation(id, OpenReservation { expires, share, charges }, now);
        }
        Ok((outcomes, now))
    }

    /// [`MemoryStore::reserve_slots`] for one enforced slot with a fixed-size state.
    #[inline]
    pub(crate) fn reserve_slot(
        &self,
        slot: &Slot<'_>,
        origin: impl FnOnce() -> ChargeOrigin,
        (id, ttl): (u128, Duration),
    ) -> Result<(Outcome, u64), StoreError> {
        let (inner, share) = (self.shards(), slot.share());
        inner.take_room(share)?;
        let (outcome, state, now) = self.charge_and_read_cell(slot);
        if outcome.is_admitted() {
            let expires = now.saturating_add(algorithm::micros(ttl));
            let charge = ReservedCharge::new(slot, &outcome, state, origin());
            let charges = SmallVec::from_buf([charge]);
            inner.open_reservation(id, OpenReservation { expires, share, charges }, now);
        } else {
            inner.reserved.give_back(share, 1);
        }
        Ok((outcome, now))
    }

    /// Ends reservation `id`: returns the units that were not used, or records those beyond the reserved ones as debt,
    /// to each limit independently. `current_limit` returns the limit that applies now, and its maximum debt. `each` is
    /// called for each counter, with the outcome of the charge beyond the reserved units, if there was one, and its
    /// instant. Returns `false` if the reservation is not open.
    pub(crate) fn settle_reservation(
        &self,
        id: u128,
        actual: u64,
        current_limit: impl Fn(&ReservedCharge) -> (Limit, u64),
        mut each: impl FnMut(&ReservedCharge, Limit, Option<(Outcome, u64)>),
    ) -> bool {
        let inner = self.shards();
        let Some(reservation) = inner.reservations_of(id).lock().remove(id) else { return false };
        inner.reserved.give_back(reservation.share, 1);
        let now = inner.time.now();
        if reservation.expires <= now {
            self.return_charges(&reservation, now, current_limit, |charge| {
                each(charge, charge.limit, None);
            });
            return false;
        }
        for charge in &reservation.charges {
            let (limit, max_debt) = current_limit(charge);
            let outcome = self.settle_charge(charge, (limit, max_debt), actual, now);
            each(charge, limit, outcome);
        }
        true
    }

    /// Returns `true` if units of reservations are [returned](Unsettled::Return) once their time to live is over.
    #[inline]
    pub(crate) fn has_returns(&self) -> bool {
        self.shards().next_return.load(Ordering::Relaxed) < u64::MAX
    }

    /// Returns the units of reservations whose time to live is over, if they are [returned](Unsettled::Return).
    /// `current_limit` returns the limit that applies now, and its maximum debt. `each` is called for each counter that
    /// was changed.
    pub(crate) fn return_unsettled(
        &self,
        current_limit: impl Fn(&ReservedCharge) -> (Limit, u64),
        mut each: impl FnMut(&ReservedCharge),
    ) {
        let now = self.now();
        for reservation in self.shards().take_due() {
            self.return_charges(&reservation, now, &current_limit, &mut each);
        }
    }

    /// Returns the units of reservations whose time to live is over to these slots, under their limits. Those of other
    /// keys wait for a call with these keys, because their limits may have changed.
    pub(super) fn return_unsettled_to(&self, slots: &[Slot<'_>]) {
        let inner = self.shards();
        if self.has_returns() {
            let due = inner.take_due().into_iter().flat_map(|reservation| reservation.charges);
            for charge in due.filter(ReservedCharge::is_returned) {
                inner.add_due(charge);
            }
        }
        if inner.due_charges.load(Ordering::Relaxed) == 0 {
            return;
        }
        for slot in slots {
            for charge in inner.remove_due(slot.id) {
                self.settle_charge(&charge, (*slot.limit, 0), 0, inner.time.now());
            }
        }
    }

    /// Returns the units of those charges of an unsettled reservation that are returned.
    fn return_charges(
        &self,
        reservation: &OpenReservation,
        now: u64,
        current_limit: impl Fn(&ReservedCharge) -> (Limit, u64),
        mut each: impl FnMut(&ReservedCharge),
    ) {
        for charge in reservation.charges.iter().filter(|charge| charge.is_returned()) {
            self.settle_charge(charge, current_limit(charge), 0, now);
            each(charge);
        }
    }

    /// Returns the outcome of a charge beyond the reserved units, and its instant. `now` was read just before.
    #[inline]
    fn settle_charge(
        &self,
        charge: &ReservedCharge,
        (limit, max): (Limit, u64),
        actual: u64,
        now: u64,
    ) -> Option<(Outcome, u64)> {
        let slot = Slot {
            scope: &charge.scope,
            id: charge.id,
            limit: &limit,
            cost: actual.abs_diff(charge.units),
            permit: 0,
            enforced: true,
            excess: Excess::Reject,
        };
        if actual > charge.units {
            let excess = Excess::Debt { max }.under(&limit);
            let (outcomes, now) = self.charge_all(&[Slot { excess, ..slot }]);
            return outcomes.first().map(|outcome| (*outcome, now));
        }
        if let Some(charged) = charge.charged.filter(|_| slot.cost > 0) {
            self.return_units(&slot, charge.units, charged, now);
        }
        None
    }

    /// Returns up to the cost of the slot to where `reserved` units were charged.
    #[inline]
    fn return_units(&self, slot: &Slot<'_>, reserved: u64, charged: ChargedState, now: u64) {
        let inner = self.shards();
        let charged_at = charged.state.at().as_micros();
        if slot.limit.algorithm().keeps_log() {
            let mut logs = inner.logs_of(slot.id).lock();
            let now = logs.shard_clock.advance(&inner.time, now);
            let freed = logs.return_units(slot.id, slot.limit, now, (charged_at, slot.cost));
            inner.entries.give_back(slot.share(), freed);
            return;
        }
        let mut table = inner.cells_of(slot.id).lock();
        let now = table.shard_clock.advance(&inner.time, now);
        let Some(place) = table.find(slot.id) else { return };
        let mut units = slot.cost;
        if slot.limit.algorithm() == Algorithm::TokenBucket {
            units = table.settle_tokens(slot.id, charged.mark, |since| {
                units.min(algorithm::owed_units(slot.limit, now, charged.state, reserved, since))
            });
        }
        let state = table.state_mut(place);
        *state = algorithm::return_units(slot.limit, *state, now, charged_at, units);
    }
}

impl OpenReservation {
    /// Returns `true` if units are returned at the end of the time to live.
    fn is_returned(&self) -> bool {
        self.charges.iter().any(ReservedCharge::is_returned)
    }
}

impl ReservedCharge {
    #[inline]
    fn new(slot: &Slot<'_>, outcome: &Outcome, state: ChargedState, origin: ChargeOrigin) -> Self {
        let Slot { scope: &scope, id, limit: &limit, cost: units, .. } = *slot;
        let charged = (outcome.origin != Origin::Overflow).then_some(state);
        Self { scope, id, limit, origin, units, charged }
    }

    fn is_returned(&self) -> bool {
        self.origin.unsettled == Unsettled::Return
    }

    /// Returns the limit at the time of the charge, and its capacity as the maximum debt.
    pub(crate) fn unchanged_limit(&self) -> (Limit, u64) {
        (self.limit, self.limit.capacity())
    }
}

impl Shards {
    /// Removes all reservations whose time to live is over and of which units are returned.
    fn take_due(&self) -> Vec<OpenReservation> {
        let (now, mut due) = (self.time.now(), Vec::new());
        if self.next_return.load(Ordering::Relaxed) > now {
            return due;
        }
        // Set first: a reservation that is added meanwhile lowers it again.
        self.next_return.store(u64::MAX, Ordering::Relaxed);
        for shard in &self.reservations {
            let next = shard.0.lock().take_returned(now, &mut due);
            self.next_return.fetch_min(next, Ordering::Relaxed);
        }
        due.iter().for_each(|reservation| self.reserved.give_back(reservation.share, 1));
        due.sort_by_key(|reservation| reservation.expires);
        due
    }

    /// Keeps units until their key is used. If there are too many, all of them stay charged.
    fn add_due(&self, charge: ReservedCharge) {
        let mut due = self.due.lock();
        if self.due_charges.load(Ordering::Relaxed) >= self.reserved.max() as u64 {
            due.clear();
            self.due_charges.store(0, Ordering::Relaxed);
        }
        due.entry(charge.id).or_default().push(charge);
        self.due_charges.fetch_add(1, Ordering::Relaxed);
    }

    fn remove_due(&self, id: Identity) -> Vec<ReservedCharge> {
        let mut due = self.due.lock();
        let charges = due.remove(&id).unwrap_or_default();
        self.due_charges.fetch_sub(charges.len() as u64, Ordering::Relaxed);
        charges
    }

    /// Takes room for a reservation, which is that of a share as for keys.
    #[inline]
    fn take_room(&self, share: Share) -> Result<(), StoreError> {
        if self.reserved.take(share, 1) || self.expire_reservations(share) {
            return Ok(());
        }
        let problem =
            "too many open reservations: settle them, shorten their ttl, or raise max_keys";
        Err(StoreError::Unavailable(problem.to_owned()))
    }

    #[inline]
    fn open_reservation(&self, id: u128, reservation: OpenReservation, now: u64) {
        let returned = reservation.is_returned().then_some(reservation.expires);
        self.reservations_of(id).lock().insert(id, reservation, now, &self.reserved);
        if let Some(expires) = returned {
            self.next_return.fetch_min(expires, Ordering::Relaxed);
        }
    }

    /// Removes all expired reservations, and takes room again.
    #[cold]
    fn expire_reservations(&self, share: Share) -> bool {
        let now = self.time.now();
        for shard in &self.reservations {
            shard.0.lock().expire(now, usize::MAX, &self.reserved);
        }
        self.reserved.take(share, 1)
    }

    #[inline]
    fn reservations_of(&self, id: u128) -> &super::Lock<Reservations> {
        &self.reservations[id as usize % RESERVATION_SHARDS].0
    }
}

impl Reservations {
    /// Adds a reservation, and removes a few expired ones.
    fn insert(&mut self, id: u128, reservation: OpenReservation, now: u64, room: &Room) {
        self.expire(now, 4, room);
        let expiries = match reservation.is_returned() {
            true => &mut self.returned,
            false => &mut self.due,
        };
        if expiries.len() >= 64 && expiries.len() > 2 * self.open.len() {
            expiries.retain(|Reverse((_, id))| self.open.contains_key(id));
        }
        expiries.push(Reverse((reservation.expires, id)));
        self.open.insert(id, reservation);
    }

    /// Moves the expired reservations of which units are returned to `expired`. Returns the instant at which the next
    /// one expires; `u64::MAX` if there is none.
    fn take_returned(&mut self, now: u64, expired: &mut Vec<OpenReservation>) -> u64 {
        while let Some(&Reverse((due, id))) = self.returned.peek() {
            if due > now {
                return due;
            }
            self.returned.pop();
            expired.extend(self.open.remove(&id));
        }
        u64::MAX
    }

    #[inline]
    fn remove(&mut self, id: u128) -> Option<OpenReservation> {
        self.open.remove(&id)
    }

    /// Removes up to `max` expired reservations whose units stay charged, and returns their room.
    fn expire(&mut self, now: u64, max: usize, room: &Room) {
        let mut expired = 0;
        while let Some(&Reverse((due, id))) = self.due.peek()
            && due <= now
            && expired < max
        {
            self.due.pop();
            if let Some(reservation) = self.open.remove(&id) {
                room.give_back(reservation.share, 1);
                expired += 1;
            }
        }
    }
}
