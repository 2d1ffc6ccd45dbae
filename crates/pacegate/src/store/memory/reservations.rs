//! Open reservations: units that were charged in advance and may be returned.
//!
//! A reservation is stored in the shard that its number names. [`MemoryStore::number_near`] names the shard of a key,
//! so that the only limit of a reservation is charged and settled under one lock. Otherwise the reservation is stored
//! after its units were charged, and its id is returned after that. Only the call that removes a reservation changes
//! the counters, so that a settlement counts once.

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
    lock::Lock,
    returns::ReturnCounts,
    room::Room,
    share::Share,
    table::Table,
};
use crate::{
    Algorithm, Counter, Excess, KeyBuf, Limit, Outcomes, PolicyName, StoreError,
    algorithm::{self, Origin, Outcome},
    policy::Unsettled,
};

/// The reservations of one shard.
#[derive(Debug, Default)]
pub(super) struct Reservations {
    /// In boxes: a record has 200 bytes, which would be copied into the table and out of it.
    open: HashMap<u128, Box<OpenReservation>, HashIsRandom>,
    /// When each reservation expires whose units stay charged. Also has some that were settled before.
    expiries: Expiries,
    /// Room that settled reservations of a share left for its next ones. To take and return it each time would take
    /// longer, because all threads share the counters of a [`Room`].
    spare: Option<(Share, usize)>,
    /// Tokens that were returned to the buckets of this shard.
    pub(super) returns: ReturnCounts,
}

/// When each reservation expires of which units are returned.
#[derive(Debug, Default)]
pub(super) struct ReturnTimes {
    /// Also has some that were settled before.
    expiries: Expiries,
    /// The length at which entries of settled reservations are removed.
    max: usize,
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

/// The maximum spare room of a shard.
const MAX_SPARE: usize = 16;

/// The number of instants in [`Expiries`] up to which those of settled reservations may stay.
const FEW_EXPIRIES: usize = 16;

impl MemoryStore {
    /// Returns a number for a reservation of a key, which differs from `random` in the bits that name the shard.
    #[inline]
    pub(crate) fn number_near(&self, id: Identity, random: u128) -> u128 {
        let shards = self.shards().cells.len();
        random & !(shards as u128 - 1) | id.shard(shards) as u128
    }

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
            && id == self.number_near(slot.id, id)
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
            let reservation = Box::new(OpenReservation { expires, share, charges });
            let returned = reservation.is_returned();
            inner.shard_of(id).lock().reservations().insert(id, reservation, now, &inner.reserved);
            inner.add_return_time(returned, expires, id);
        }
        Ok((outcomes, now))
    }

    /// [`MemoryStore::reserve_slots`] for one enforced slot with a fixed-size state, and a number
    /// [near](Self::number_near) its key.
    #[inline]
    pub(crate) fn reserve_slot(
        &self,
        slot: &Slot<'_>,
        origin: impl FnOnce() -> ChargeOrigin,
        (id, ttl): (u128, Duration),
    ) -> Result<(Outcome, u64), StoreError> {
        let (inner, share) = (self.shards(), slot.share());
        let read = inner.time.now();
        let mut table = inner.shard_of(id).lock();
        if !table.reservations().take_room(share, &inner.reserved) {
            drop(table);
            inner.make_room(share)?;
            table = inner.shard_of(id).lock();
        }
        let now = table.shard_clock.advance(&inner.time, read);
        let sweep = table.shard_clock.sweep_is_due();
        let (outcome, state) = inner.charge_and_read_cell(&mut table, slot, now);
        let expires = now.saturating_add(algorithm::micros(ttl));
        let mut returned = false;
        let reservations = table.reservations();
        if outcome.is_admitted() {
            let charges =
                SmallVec::from_buf([ReservedCharge::new(slot, &outcome, state, origin())]);
            let reservation = Box::new(OpenReservation { expires, share, charges });
            returned = reservation.is_returned();
            reservations.insert(id, reservation, now, &inner.reserved);
        } else {
            reservations.leave_room(share, &inner.reserved);
        }
        drop(table);
        inner.add_return_time(returned, expires, id);
        if sweep {
            inner.sweep();
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
        let now = inner.time.now();
        let mut table = inner.shard_of(id).lock();
        let reservations = table.known_reservations();
        let removed = reservations.and_then(|open| open.remove(id, &inner.reserved));
        let Some(reservation) = removed else { return false };
        if let [charge] = &*reservation.charges
            && actual < charge.units
            && now < reservation.expires
            && !charge.limit.algorithm().keeps_log()
            && id == self.number_near(charge.id, id)
        {
            let (limit, _) = current_limit(charge);
            if let Some(charged) = charge.charged {
                let now = table.shard_clock.advance(&inner.time, now);
                let units = charge.units - actual;
                table.return_units((charge.id, &limit), (charge.units, charged), units, now);
            }
            drop(table);
            each(charge, limit, None);
            return true;
        }
        drop(table);
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
        table.return_units((slot.id, slot.limit), (reserved, charged), slot.cost, now);
    }
}

impl Table {
    /// Returns up to `units` of a charge to the cell of a key, if it has one. `reserved` units were charged.
    #[inline]
    fn return_units(
        &mut self,
        (id, limit): (Identity, &Limit),
        (reserved, charged): (u64, ChargedState),
        mut units: u64,
        now: u64,
    ) {
        let Some(place) = self.find(id) else { return };
        if limit.algorithm() == Algorithm::TokenBucket {
            units = self.settle_tokens(id, charged.mark, |since| {
                units.min(algorithm::owed_units(limit, now, charged.state, reserved, since))
            });
        }
        let state = self.state_mut(place);
        let charged_at = charged.state.at().as_micros();
        *state = algorithm::return_units(limit, *state, now, charged_at, units);
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
    /// Returns the shard that the number of a reservation names.
    #[inline]
    fn shard_of(&self, id: u128) -> &Lock<Table> {
        &self.cells[id as usize & (self.cells.len() - 1)].0
    }

    /// Returns the number of open reservations, including expired ones that are not removed yet.
    pub(super) fn open_reservations(&self) -> usize {
        let open =
            |table: &Lock<Table>| table.lock().known_reservations().map_or(0, |it| it.open.len());
        self.cells.iter().map(|table| open(&table.0)).sum()
    }

    /// Removes all reservations whose time to live is over and of which units are returned. The first that expired is
    /// the first in the list.
    fn take_due(&self) -> Vec<OpenReservation> {
        let now = self.time.now();
        if self.next_return.load(Ordering::Relaxed) > now {
            return Vec::new();
        }
        let due = {
            let mut times = self.return_times.lock();
            let due = times.take_due(now);
            self.next_return.store(times.first(), Ordering::Relaxed);
            due
        };
        let remove = |id| self.shard_of(id).lock().reservations().remove(id, &self.reserved);
        due.into_iter().filter_map(remove).map(|reservation| *reservation).collect()
    }

    /// Adds the end of a reservation, if units are returned then.
    #[inline]
    fn add_return_time(&self, returned: bool, expires: u64, id: u128) {
        if returned {
            let mut times = self.return_times.lock();
            times.add(expires, id, |id| self.shard_of(id).lock().reservations().is_open(id));
            self.next_return.store(times.first(), Ordering::Relaxed);
        }
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
    fn take_room(&self, share: Share) -> Result<(), StoreError> {
        if self.reserved.take(share, 1) { Ok(()) } else { self.make_room(share) }
    }

    /// Removes all expired reservations and returns all spare room, and then takes room for a reservation.
    #[cold]
    fn make_room(&self, share: Share) -> Result<(), StoreError> {
        let now = self.time.now();
        for table in &self.cells {
            if let Some(reservations) = table.0.lock().known_reservations() {
                reservations.expire(now, usize::MAX, &self.reserved);
                reservations.give_back_spare(&self.reserved);
            }
        }
        if self.reserved.take(share, 1) {
            return Ok(());
        }
        let problem =
            "too many open reservations: settle them, shorten their ttl, or raise max_keys";
        Err(StoreError::Unavailable(problem.to_owned()))
    }
}

impl Reservations {
    /// Takes room for a reservation. Returns `false` if there is none.
    #[inline]
    fn take_room(&mut self, share: Share, room: &Room) -> bool {
        match &mut self.spare {
            Some((own, spare)) if *own == share && *spare > 0 => {
                *spare -= 1;
                true
            }
            _ => room.take(share, 1),
        }
    }

    /// Returns the room of a reservation.
    #[inline]
    fn leave_room(&mut self, share: Share, room: &Room) {
        match &mut self.spare {
            Some((own, spare)) if *own == share && *spare < MAX_SPARE => *spare += 1,
            Some((_, 1..)) => room.give_back(share, 1),
            none => *none = Some((share, 1)),
        }
    }

    fn give_back_spare(&mut self, room: &Room) {
        if let Some((share, spare)) = self.spare.take() {
            room.give_back(share, spare);
        }
    }

    fn is_open(&self, id: u128) -> bool {
        self.open.contains_key(&id)
    }

    /// Adds a reservation, and removes a few expired ones.
    #[inline]
    fn insert(&mut self, id: u128, reservation: Box<OpenReservation>, now: u64, room: &Room) {
        self.expire(now, 4, room);
        if !reservation.is_returned() {
            if self.expiries.len() >= FEW_EXPIRIES.max(2 * self.open.len()) {
                self.expiries.retain(|Reverse((_, id))| self.open.contains_key(id));
            }
            self.expiries.push(Reverse((reservation.expires, id)));
        }
        self.open.insert(id, reservation);
    }

    /// Removes a reservation, and leaves its room.
    #[inline]
    fn remove(&mut self, id: u128, room: &Room) -> Option<Box<OpenReservation>> {
        let removed = self.open.remove(&id)?;
        self.leave_room(removed.share, room);
        Some(removed)
    }

    /// Removes up to `max` expired reservations whose units stay charged.
    #[inline]
    pub(super) fn expire(&mut self, now: u64, max: usize, room: &Room) {
        let mut expired = 0;
        while let Some(&Reverse((due, id))) = self.expiries.peek()
            && due <= now
            && expired < max
        {
            self.expiries.pop();
            expired += usize::from(self.remove(id, room).is_some());
        }
    }
}

impl ReturnTimes {
    /// Adds the end of a reservation. Sometimes removes the ends of settled reservations.
    fn add(&mut self, expires: u64, id: u128, is_open: impl Fn(u128) -> bool) {
        if self.expiries.len() >= self.max {
            self.expiries.retain(|Reverse((_, id))| is_open(*id));
            self.max = FEW_EXPIRIES.max(2 * self.expiries.len());
        }
        self.expiries.push(Reverse((expires, id)));
    }

    /// Removes the ends that are over. Returns the ids of their reservations, the first to end first.
    fn take_due(&mut self, now: u64) -> Vec<u128> {
        let mut due = Vec::new();
        while let Some(&Reverse((expires, id))) = self.expiries.peek()
            && expires <= now
        {
            self.expiries.pop();
            due.push(id);
        }
        due
    }

    /// Returns the first instant; `u64::MAX` if there is none.
    fn first(&self) -> u64 {
        self.expiries.peek().map_or(u64::MAX, |Reverse((expires, _))| *expires)
    }
}
