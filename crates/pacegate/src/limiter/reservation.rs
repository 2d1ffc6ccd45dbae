//! Reservations: units that are charged in advance, and settled once their real number is known.

use std::{slice, time::Duration};

use smallvec::SmallVec;

use super::{
    Charges, CheckError, Limiter, SharedLimiter,
    evaluator::{Evaluation, Evaluator},
    permit_id::new_permit_id,
    reservation_id::{Place, ReservationId},
    resolve::{BoundLimit, Resolved, ResolvedCharge, ResolvedCharges},
    settled_units::SettledUnits,
    shared::complete,
};
use crate::{
    Charge, ChargeBuf, Counter, Decision, Denied, Key, KeyRef, Limit, MemoryStore, Outcomes,
    PolicyName, Request, SettledCharge, StoreError,
    algorithm::Outcome,
    store::memory::{
        Slot,
        reservations::{ChargeOrigin, ReservedCharge},
    },
};

/// Units that were charged in advance.
///
/// [Settle](Self::settle) it once the real number of units is known. If it is dropped, the estimate stays charged,
/// because the units were probably spent; [`cancel`](Self::cancel) returns them. To settle it elsewhere, pass on its
/// [id](Self::id).
///
/// ```
/// use std::time::Duration;
/// use pacegate::{Limit, Limiter};
///
/// let limiter = Limiter::memory(Limit::per_minute(10_000));
/// let reservation = limiter.reserve("alice", 2_000, Duration::from_secs(60))?.into_result()?;
/// let tokens = 1_200; // ... as reported with the answer of the model ...
/// assert!(reservation.settle(tokens));
/// assert_eq!(limiter.peek("alice").remaining(), 8_800);
/// assert!(!reservation.settle(tokens), "it counts once");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "settle the reservation, or its estimate stays charged"]
pub struct Reservation(pub(super) SharedReservation);

/// Units that were charged in advance in a store. See [`Reservation`].
#[derive(Clone, Debug)]
#[must_use = "settle the reservation, or its estimate stays charged"]
pub struct SharedReservation {
    limiter: SharedLimiter,
    id: ReservationId,
}

/// A decision, with a reservation if it was allowed. Returned by [`Limiter::reserve`] and [`SharedLimiter::reserve`].
#[derive(Clone, Debug)]
#[must_use = "a denied request must not proceed"]
pub struct Reserved<R = Reservation> {
    /// The decision.
    pub decision: Decision,
    /// The reservation, if allowed. Also present if no limit applies; settling it then has no effect.
    pub reservation: Option<R>,
}

/// The shortest and the longest time for which a reservation is open.
const TTL: (Duration, Duration) = (Duration::from_millis(1), Duration::from_secs(7 * 24 * 3_600));

impl Limiter {
    /// Charges an estimate to `key` if every limit has room, and nothing otherwise. The returned reservation is
    /// [settled](Self::settle) once the real number of units is known.
    ///
    /// Use it if the cost is known only afterwards, as for the tokens of a language model. With an estimate that is
    /// never too low, no limit is exceeded. If the real number is higher, the difference becomes
    /// [debt](crate::Excess::Debt), which later requests pay back.
    ///
    /// The reservation is open for `ttl`, from a millisecond to seven days: shorter and longer times count as these.
    /// Choose it longer than the work can take. A reservation that is not settled by then ends. Its estimate stays
    /// charged, unless [`Policy::unsettled`](crate::Policy::unsettled()) says otherwise. An estimate of 0 counts as 1,
    /// so that limits bound the number of open reservations too.
    ///
    /// Concurrency limits are left out: [acquire](Self::acquire) a permit for them.
    ///
    /// # Errors
    ///
    /// [`CheckError::Cost`] if an enforced limit never admits the estimate. [`CheckError::Store`] if a limit has a
    /// custom algorithm, or if as many reservations are open as the store can have keys. Of these, each domain has a
    /// guaranteed share.
    ///
    /// # Panics
    ///
    /// Panics if the operating system returns no random bytes for the id.
    ///
    /// ```
    /// use std::time::Duration;
    /// use pacegate::{Limit, Limiter};
    ///
    /// let limiter = Limiter::memory(Limit::per_minute(100));
    /// let ttl = Duration::from_secs(60);
    /// let first = limiter.reserve("alice", 80, ttl)?;
    /// assert!(limiter.reserve("alice", 80, ttl)?.reservation.is_none());
    /// first.into_result()?.cancel();
    /// assert!(limiter.reserve("alice", 80, ttl)?.decision.is_allowed());
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn reserve(
        &self,
        key: impl Key,
        estimate: u64,
        ttl: Duration,
    ) -> Result<Reserved, CheckError> {
        let evaluator = self.evaluator();
        key.with(|key| {
            if let Some(limit) = evaluator.single().filter(|limit| limit.is_reservable()) {
                return self.reserve_single(limit, key, estimate, ttl);
            }
            evaluator.with_key(key, estimate, 0, |charges| {
                self.reserve_resolved(&Resolved::new(reservable(charges)?, false)?, ttl)
            })
        })
    }

    /// Charges the cost of a request, as an estimate, to all policies that apply to it, all or nothing. See
    /// [`Limiter::reserve`].
    pub fn reserve_request(
        &self,
        request: &Request<'_>,
        ttl: Duration,
    ) -> Result<Reserved, CheckError> {
        let plan = self.evaluator().policies.plan(request);
        let charges = self.evaluator().charges_of(&plan, request.units(), 0);
        self.reserve_resolved(&Resolved::new(reservable(charges)?, false)?, ttl)
    }

    /// [`Limiter::reserve`] for the only limit. Builds no lists of charges.
    fn reserve_single(
        &self,
        limit: &BoundLimit,
        key: KeyRef<'_>,
        estimate: u64,
        ttl: Duration,
    ) -> Result<Reserved, CheckError> {
        let charge = ResolvedCharge::new(limit, key, estimate, 0).reserved();
        charge.check_cost()?;
        let (number, decision) =
            self.evaluator().reserve_single(&charge, ttl.clamp(TTL.0, TTL.1))?;
        let id = ReservationId { number, place: Place::Process };
        let reservation = decision.is_allowed().then(|| Reservation(self.shared.reservation(id)));
        Ok(Reserved { decision, reservation })
    }

    fn reserve_resolved(
        &self,
        resolved: &Resolved<'_>,
        ttl: Duration,
    ) -> Result<Reserved, CheckError> {
        Ok(self.shared.reserve_in_process(resolved, ttl)?.map(Reservation))
    }

    /// Ends a reservation whose units turned out to be `actual`. Returns `false` if it was not open: it was settled
    /// before, has expired, or was made by another limiter. Then nothing changes, so a call can be repeated.
    ///
    /// If fewer units were used than reserved, the rest is returned to where it was charged, if it still counts there:
    /// a fixed window that has ended gets nothing, and a token bucket not what it has refilled since. If others
    /// returned tokens to the bucket since, it may get fewer than are missing, but never more. If more units were used,
    /// the difference is charged now and may become debt, up to [`Policy::max_debt`](crate::Policy::max_debt), for an
    /// inline limit up to its capacity. Each limit is changed independently of the others.
    ///
    /// After a [reset](Self::reset) of the key, units that were charged since can be returned, except of a bucket.
    pub fn settle(&self, id: &ReservationId, actual: u64) -> bool {
        self.shared.settle_in_process(id, actual)
    }

    /// Ends a reservation of which no unit was used. The same as [settling](Self::settle) it with 0.
    pub fn cancel(&self, id: &ReservationId) -> bool {
        self.settle(id, 0)
    }
}

impl SharedLimiter {
    /// Charges an estimate to `key` if every limit has room, and nothing otherwise. See [`Limiter::reserve`].
    ///
    /// One round trip to the store. Leases are not used. The reservation can be settled by every process on the store.
    ///
    /// If the store fails, each policy decides by its failure mode. A reservation that is then allowed is held in this
    /// process: elsewhere, settling it returns `false`. So it does if this process has no room for the reservation; the
    /// estimate then stays charged. Under `open` nothing is charged, and settling changes nothing.
    ///
    /// # Errors
    ///
    /// [`CheckError::Cost`] if an enforced limit never admits the estimate. [`CheckError::Store`] if the store has no
    /// reservations, if a limit has a custom algorithm, or if the keys are too long for an id: 12,000 bytes in all.
    ///
    /// # Cancellation
    ///
    /// If the future is dropped, the estimate may have been charged, and stays so.
    ///
    /// ```
    /// # pollster::block_on(async {
    /// use std::time::Duration;
    /// use pacegate::{MemoryStore, SharedLimiter};
    ///
    /// let limiter = SharedLimiter::builder(MemoryStore::default()).limit("100/minute").build()?;
    /// let reserved = limiter.reserve("alice", 80, Duration::from_secs(60)).await?;
    /// reserved.into_result()?.settle(30).await?;
    /// assert_eq!(limiter.peek("alice").await?.remaining(), 70);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// # }).unwrap();
    /// ```
    pub async fn reserve(
        &self,
        key: impl Key,
        estimate: u64,
        ttl: Duration,
    ) -> Result<Reserved<SharedReservation>, CheckError> {
        let plan = key.with(|key| self.evaluator.plan_key(key));
        let charges = reservable(self.evaluator.charges_of(&plan, estimate, 0))?;
        self.reserve_resolved(&Resolved::new(charges, false)?, ttl).await
    }

    /// Charges the cost of a request, as an estimate, to all policies that apply to it, all or nothing. See
    /// [`SharedLimiter::reserve`]. The [id](Request::id) of the request is ignored.
    pub async fn reserve_request(
        &self,
        request: &Request<'_>,
        ttl: Duration,
    ) -> Result<Reserved<SharedReservation>, CheckError> {
        let plan = self.evaluator.policies.plan(request);
        let charges = reservable(self.evaluator.charges_of(&plan, request.units(), 0))?;
        self.reserve_resolved(&Resolved::new(charges, false)?, ttl).await
    }

    /// Ends a reservation whose units turned out to be `actual`. Returns `false` if it was not open. See
    /// [`Limiter::settle`].
    ///
    /// # Errors
    ///
    /// The error of the store. The reservation may or may not have been settled: call it again, until the ttl is over.
    /// It counts once. [`StoreError::Unsupported`] if the limits of the reservation are not those of this limiter any
    /// more.
    pub async fn settle(&self, id: &ReservationId, actual: u64) -> Result<bool, StoreError> {
        let Place::Store(charges) = &id.place else {
            return Ok(self.settle_in_process(id, actual));
        };
        let Some(store) = &self.store else { return Ok(false) };
        let evaluator = &*self.evaluator;
        let mut current: SmallVec<[Charge<'_>; 1]> =
            charges.iter().map(ChargeBuf::as_charge).collect();
        for charge in &mut current {
            let current = evaluator.current_limit(charge.policy, charge.counter, charge.limit);
            (charge.limit, charge.max_debt) = current.ok_or_else(|| no_limit(charge))?;
        }
        let settled = evaluator.record_failure(store.settle(&current, id.number, actual).await)?;
        let Some(settled) = settled else { return Ok(false) };
        let mut units = SettledUnits::new(evaluator);
        for (charge, settled) in current.iter().zip(settled) {
            let limit = evaluator.bind_one(charge);
            if let Some(settled) = &settled {
                let counter = (charge.policy, charge.counter);
                units.count(counter, &charge.limit, settled.reserved, actual);
            }
            let mut charge = ResolvedCharge::of_charge(&limit, charge);
            evaluator.notify(evaluator.queue_of(slice::from_ref(&charge)));
            if let Some(SettledCharge { reserved, beyond: Some(outcome) }) = settled {
                charge.cost = actual.saturating_sub(reserved);
                evaluator.report_debt(&charge, &outcome, evaluator.memory.now());
            }
        }
        Ok(true)
    }

    /// Ends a reservation of which no unit was used. The same as [settling](Self::settle) it with 0.
    pub async fn cancel(&self, id: &ReservationId) -> Result<bool, StoreError> {
        self.settle(id, 0).await
    }

    async fn reserve_resolved(
        &self,
        resolved: &Resolved<'_>,
        ttl: Duration,
    ) -> Result<Reserved<SharedReservation>, CheckError> {
        let (evaluation, id) = self.evaluate_reservation(resolved, ttl).await?;
        Ok(self.reserved(resolved, &evaluation, id))
    }

    /// Reserves, and records nothing.
    pub(super) async fn evaluate_reservation(
        &self,
        resolved: &Resolved<'_>,
        ttl: Duration,
    ) -> Result<(Evaluation, ReservationId), CheckError> {
        let sent = resolved.sent();
        let Some(store) = self.store.as_ref().filter(|_| !sent.is_empty()) else {
            return self.evaluate_in_process(resolved, ttl);
        };
        let charges =
            sent.iter().map(|charge| Charge { lease: 0, ..self.evaluator.to_charge(charge) });
        let charges: SmallVec<[Charge<'_>; 1]> = charges.collect();
        let (number, ttl) = (new_permit_id(), ttl.clamp(TTL.0, TTL.1));
        let id = ReservationId::in_store(number, &charges)?;
        let answer = store.reserve(&charges, number, ttl).await;
        match self.evaluator.record_failure(complete(answer, sent.len())) {
            Ok(outcomes) => {
                let now = self.evaluator.memory.now();
                Ok((self.evaluator.conclude(resolved, outcomes, now, false), id))
            }
            Err(error @ StoreError::Unsupported(_)) => Err(error.into()),
            Err(_) => {
                let (evaluation, place) = self.evaluator.reserve_fallback(resolved, (number, ttl));
                Ok((evaluation, ReservationId { number, place }))
            }
        }
    }

    /// Reserves in the memory of this process.
    fn reserve_in_process(
        &self,
        resolved: &Resolved<'_>,
        ttl: Duration,
    ) -> Result<Reserved<SharedReservation>, CheckError> {
        let (evaluation, id) = self.evaluate_in_process(resolved, ttl)?;
        Ok(self.reserved(resolved, &evaluation, id))
    }

    fn evaluate_in_process(
        &self,
        resolved: &Resolved<'_>,
        ttl: Duration,
    ) -> Result<(Evaluation, ReservationId), CheckError> {
        let is_limited = !resolved.sent().is_empty();
        let number = if is_limited { new_permit_id() } else { 0 };
        let place = if is_limited { Place::Process } else { Place::Nowhere };
        let evaluation = self.evaluator.reserve(resolved, (number, ttl.clamp(TTL.0, TTL.1)))?;
        Ok((evaluation, ReservationId { number, place }))
    }

    /// Records an evaluation, and creates the reservation if it was allowed.
    fn reserved(
        &self,
        resolved: &Resolved<'_>,
        evaluation: &Evaluation,
        id: ReservationId,
    ) -> Reserved<SharedReservation> {
        self.evaluator.record(&resolved.charges, evaluation);
        let decision = evaluation.decision;
        let reservation = decision.is_allowed().then(|| self.reservation(id));
        Reserved { decision, reservation }
    }

    pub(super) fn reservation(&self, id: ReservationId) -> SharedReservation {
        SharedReservation { limiter: self.clone(), id }
    }

    fn settle_in_process(&self, id: &ReservationId, actual: u64) -> bool {
        match id.place {
            Place::Nowhere => true,
            Place::Process => self.evaluator.settle(id.number, actual),
            Place::Store(_) => false,
        }
    }
}

/// In memory: every call is synchronous.
impl Charges<'_, Limiter> {
    /// Reserves the costs of charges, all or nothing. See [`Limiter::reserve`]. Settling replaces the cost of each
    /// charge.
    ///
    /// # Errors
    ///
    /// Also [`CheckError::Store`] if charges share a counter but differ in their limit or mode.
    pub fn reserve(self, charges: &[Charge<'_>], ttl: Duration) -> Result<Reserved, CheckError> {
        let limits = self.evaluator().bind(charges);
        let resolved = resolve_reservable(charges, &limits)?;
        Ok(self.shared().reserve_in_process(&resolved, ttl)?.map(Reservation))
    }
}

/// Over a store: every call is asynchronous.
impl Charges<'_, SharedLimiter> {
    /// Reserves the costs of charges, all or nothing. See [`SharedLimiter::reserve`]. Settling replaces the cost of
    /// each charge.
    ///
    /// # Errors
    ///
    /// Also [`CheckError::Store`] if charges share a counter but differ in their limit or mode.
    pub async fn reserve(
        self,
        charges: &[Charge<'_>],
        ttl: Duration,
    ) -> Result<Reserved<SharedReservation>, CheckError> {
        let limits = self.evaluator().bind(charges);
        let resolved = resolve_reservable(charges, &limits)?;
        self.shared().reserve_resolved(&resolved, ttl).await
    }
}

impl Reservation {
    /// Returns the id, to settle the reservation elsewhere.
    pub fn id(&self) -> &ReservationId {
        &self.0.id
    }

    /// Ends the reservation, whose units turned out to be `actual`. Returns `false` if it was not open. See
    /// [`Limiter::settle`].
    pub fn settle(&self, actual: u64) -> bool {
        self.0.limiter.settle_in_process(&self.0.id, actual)
    }

    /// Ends the reservation, and returns all of its units that still count. Returns `false` if it was not open.
    pub fn cancel(&self) -> bool {
        self.settle(0)
    }
}

impl SharedReservation {
    /// Returns the id, to settle the reservation elsewhere.
    pub fn id(&self) -> &ReservationId {
        &self.id
    }

    /// Ends the reservation, whose units turned out to be `actual`. Returns `false` if it was not open.
    ///
    /// # Errors
    ///
    /// The error of the store, after which the call can be repeated. See [`SharedLimiter::settle`].
    pub async fn settle(&self, actual: u64) -> Result<bool, StoreError> {
        self.limiter.settle(&self.id, actual).await
    }

    /// Ends the reservation, and returns all of its units that still count. Returns `false` if it was not open.
    ///
    /// # Errors
    ///
    /// The error of the store, after which the call can be repeated. See [`SharedLimiter::settle`].
    pub async fn cancel(&self) -> Result<bool, StoreError> {
        self.settle(0).await
    }
}

impl<R> Reserved<R> {
    /// Returns the reservation, or the denial as an error, for use with `?`.
    pub fn into_result(self) -> Result<R, Denied> {
        match (self.decision.into_result(), self.reservation) {
            (Ok(_), Some(reservation)) => Ok(reservation),
            (Err(denied), _) => Err(denied),
            (Ok(_), None) => unreachable!("an allowed request has a reservation"),
        }
    }

    fn map<S>(self, convert: impl FnOnce(R) -> S) -> Reserved<S> {
        Reserved { decision: self.decision, reservation: self.reservation.map(convert) }
    }
}

impl Evaluator {
    /// Returns the store in memory, after the units of unsettled reservations that are due were returned to it.
    #[inline]
    pub(super) fn current_memory(&self) -> &MemoryStore {
        if self.memory.has_returns() {
            self.return_unsettled();
        }
        &self.memory
    }

    #[cold]
    fn return_unsettled(&self) {
        let current_limit = |reserved: &ReservedCharge| self.current_limit_of(reserved);
        let mut units = SettledUnits::new(self);
        self.memory.return_unsettled(current_limit, |reserved| {
            self.notify(Some(reserved.id));
            units.count_reserved(reserved, 0);
        });
    }

    /// Reserves in memory. Records nothing.
    fn reserve(
        &self,
        resolved: &Resolved<'_>,
        reservation: (u128, Duration),
    ) -> Result<Evaluation, StoreError> {
        let sent = resolved.sent();
        let slots: SmallVec<[Slot<'_>; 4]> = sent.iter().map(|charge| self.slot(charge)).collect();
        let origin = |place: usize| self.origin_of(&sent[place]);
        let (outcomes, now) = match sent {
            [] => (Outcomes::default(), self.memory.now()),
            _ => self.current_memory().reserve_slots(&slots, origin, reservation)?,
        };
        Ok(self.conclude(resolved, outcomes, now, false))
    }

    /// Reserves in memory under a [single](Self::single) limit, and records the decision. Also returns the number of
    /// the reservation.
    #[inline]
    fn reserve_single(
        &self,
        charge: &ResolvedCharge<'_>,
        ttl: Duration,
    ) -> Result<(u128, Decision), StoreError> {
        let (memory, slot) = (self.current_memory(), self.slot(charge));
        let number = memory.number_near(slot.id, new_permit_id());
        let origin = || self.origin_of(charge);
        let (outcome, now) = memory.reserve_slot(&slot, origin, (number, ttl))?;
        let counted = (charge.key, charge.cost);
        let counters = self.meter.tally();
        Ok((number, self.record_single(counters, charge.limit, counted, outcome, now)))
    }

    fn origin_of(&self, charge: &ResolvedCharge<'_>) -> ChargeOrigin {
        let BoundLimit { policy, counter, unsettled, stats_index, .. } = *charge.limit;
        let watch = self.thresholds.as_ref();
        let is_watched = watch.is_some_and(|watch| watch.has_thresholds(stats_index));
        let key = is_watched.then(|| Box::new(charge.key.to_buf()));
        ChargeOrigin { policy, counter, follows_policy: true, is_recorded: true, key, unsettled }
    }

    /// Settles a reservation in memory. Returns `false` if it was not open.
    fn settle(&self, number: u128, actual: u64) -> bool {
        let current_limit = |reserved: &ReservedCharge| self.current_limit_of(reserved);
        let mut units = SettledUnits::new(self);
        let each = |reserved: &ReservedCharge, limit: Limit, beyond: Option<(Outcome, u64)>| {
            self.notify(Some(reserved.id));
            units.count_reserved(reserved, actual);
            let ChargeOrigin { policy, counter, key, .. } = &reserved.origin;
            if let (Some(key), Some((outcome, now))) = (key, beyond) {
                let charge = Charge::new(*policy, (**key).as_ref(), limit).counter(*counter);
                let charge = charge.cost(actual.saturating_sub(reserved.units));
                let limit = self.bind_one(&charge);
                self.report_debt(&ResolvedCharge::of_charge(&limit, &charge), &outcome, now);
            }
        };
        self.current_memory().settle_reservation(number, actual, current_limit, each)
    }

    /// Returns the limit that applies to a charge in memory now, and its maximum debt.
    pub(super) fn current_limit_of(&self, reserved: &ReservedCharge) -> (Limit, u64) {
        let ChargeOrigin { policy, counter, follows_policy, .. } = reserved.origin;
        if let Some(single) = self.single_of(reserved)
            && follows_policy
        {
            return (single.limit, single.max_debt);
        }
        let current = || self.current_limit(policy, counter, reserved.limit);
        follows_policy.then(current).flatten().unwrap_or_else(|| reserved.unchanged_limit())
    }

    /// Returns the [single](Self::single) limit, if the charge was under it, or under a limit that it replaced.
    #[inline]
    pub(super) fn single_of(&self, reserved: &ReservedCharge) -> Option<&BoundLimit> {
        self.single().filter(|single| single.scope == reserved.scope)
    }

    /// Returns the limit that replaced `limit` on a counter, and its maximum debt. `None` if no policy has the counter.
    pub(super) fn current_limit(
        &self,
        policy: PolicyName,
        counter: Counter,
        limit: Limit,
    ) -> Option<(Limit, u64)> {
        if counter == Counter::Limit {
            return Some((limit, limit.capacity()));
        }
        let charge = Charge::new(policy, KeyRef::new(b""), limit).counter(counter);
        let place = self.policies.index_of(policy)?;
        let limit = self.policies.limit_entries()[self.policies.entry_of(place, &charge)?].limit;
        Some((limit, self.policies.policies()[place].max_debt_of(&limit)))
    }
}

/// Removes the charges that a reservation does not apply to: those of concurrency limits.
pub(super) fn reservable(charges: ResolvedCharges<'_>) -> Result<ResolvedCharges<'_>, StoreError> {
    let charges = charges.into_iter().filter(|charge| !charge.limit.has_permits());
    let charges: ResolvedCharges<'_> = charges.map(ResolvedCharge::reserved).collect();
    match charges.iter().find(|charge| charge.limit.limit.algorithm().id().is_none()) {
        Some(charge) => Err(StoreError::Unsupported(format!(
            "`{}` takes no reservations: use one of the built-in algorithms",
            charge.limit.limit.algorithm()
        ))),
        None => Ok(charges),
    }
}

/// Binds charges to their limits, and checks that a reservation can have them.
fn resolve_reservable<'a>(
    charges: &'a [Charge<'a>],
    limits: &'a [BoundLimit],
) -> Result<Resolved<'a>, CheckError> {
    let pairs = limits.iter().zip(charges);
    let charges = pairs.map(|(limit, charge)| ResolvedCharge::of_charge(limit, charge));
    let resolved = Resolved::new(reservable(charges.collect())?, true)?;
    let is_same = |one: &ResolvedCharge<'_>, other: &ResolvedCharge<'_>| {
        (one.limit.policy, one.key) == (other.limit.policy, other.key)
            && one.limit.counter.to_words(&one.limit.limit)
                == other.limit.counter.to_words(&other.limit.limit)
            && one.limit.limit.counts_like(&other.limit.limit)
    };
    let sent = resolved.sent();
    if (1..sent.len()).any(|place| sent[..place].iter().any(|other| is_same(other, &sent[place]))) {
        let problem = "a reservation cannot charge one key twice under different limits or modes";
        return Err(StoreError::Unsupported(problem.to_owned()).into());
    }
    Ok(resolved)
}

fn no_limit(charge: &Charge<'_>) -> StoreError {
    let Charge { policy, limit, .. } = charge;
    StoreError::Unsupported(format!("policy `{policy}` has no limit like `{limit}` any more"))
}
