mod blocks;
mod builder;
mod compensating;
mod counters;
mod releases;
mod reservations;
mod session;
mod up_to;

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use arc_swap::{ArcSwap, Guard};
use futures_util::stream::{self, StreamExt};
use pacegate::{
    Charge, ChargeBuf, Claim, Excess, Limit, Outcomes, PolicyName, Reply, SettledCharges, Store,
    StoreError, Task, Update, algorithm::Outcome,
};
use parking_lot::Mutex;
use smallvec::SmallVec;
use tokio::{
    runtime::Handle,
    time::{Instant, timeout},
};

pub(crate) use blocks::BlocksCommand;
pub use blocks::{Block, BlocksReply};
pub use builder::{ConnectError, RedisStoreBuilder};
use releases::PendingReleases;
use session::Session;

use crate::{
    batch::{NewReservation, PendingRequest},
    cell::{CellCharge, CellCharges, halves},
    command::{Command, Payload, UpdateCommand},
    fingerprint::Fingerprint,
    leases::{Drawn, Leases, Unspent},
    responder::{self, Responder},
    stats::RedisStats,
    url::{RedisUrl, UrlError},
    wire::Action,
    worker::Common,
};

/// A store in Redis or Valkey, shared by every process that uses the same servers.
///
/// Clones share connections and state. The store runs one task per server on the Tokio runtime that it was created on.
/// If that runtime shuts down, failure modes apply to requests in flight, and the store reconnects on the runtime of
/// its next caller, who must be inside a runtime. Requests wait at most a second for the new connection.
#[derive(Clone, Debug)]
pub struct RedisStore {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    common: Arc<Common>,
    leases: Leases,
    releases: Arc<PendingReleases>,
    /// Replaced after its runtime has shut down.
    session: ArcSwap<Session>,
    /// Held while the session is replaced.
    reopening: Mutex<()>,
    url: RedisUrl,
    this: Weak<Self>,
}

impl RedisStore {
    /// The prefix of all keys, unless [`RedisStoreBuilder::prefix`] sets another.
    pub const DEFAULT_PREFIX: &'static str = "pg:";
    /// The deadline of a call, unless [`RedisStoreBuilder::deadline`] sets another.
    pub const DEFAULT_DEADLINE: Duration = Duration::from_millis(100);

    /// Connects with the default settings. See [`RedisUrl`] for the forms of addresses.
    pub async fn connect(url: &str) -> Result<Self, ConnectError> {
        Self::builder(url)?.connect().await
    }

    /// Returns a builder, to change the defaults.
    pub fn builder(url: &str) -> Result<RedisStoreBuilder, UrlError> {
        Ok(RedisStoreBuilder::new(url.parse()?))
    }

    /// Returns statistics, and the status of each server.
    pub fn stats(&self) -> RedisStats {
        let Inner { common, leases, .. } = &*self.inner;
        let totals = &common.totals;
        RedisStats {
            servers: self.inner.session.load().servers(),
            trips: totals.trips.get(),
            calls: totals.calls.get(),
            requests: totals.requests.get(),
            keys: totals.cells.get(),
            denied_locally: totals.denied_locally.get(),
            deny_cache_entries: common.deny_cache.len(),
            leased: totals.leased.get(),
            lease_units_outstanding: leases.outstanding(),
            timed_out: totals.timed_out.get(),
            redirects: totals.redirects.get(),
            closed: totals.closed.get(),
            returning: self.inner.releases.len(),
        }
    }

    /// Returns whether all known servers are available.
    pub fn is_connected(&self) -> bool {
        self.inner.session.load().is_connected()
    }

    /// Returns unspent leased units to the servers. Call it before the program exits: units that are not returned stay
    /// charged until their window ends. If some units could not be returned, the result is the last error.
    pub async fn return_leases(&self) -> Result<(), StoreError> {
        let returning = self.inner.runtime().spawn(self.inner.clone().return_leases());
        returning.await.unwrap_or_else(|_| Err(gone()))
    }
}

/// The longest time for which a reservation is open, in microseconds: about a year.
const MAX_TTL: u64 = 1 << 45;

/// Maximum number of leases or permits that are returned at the same time, so that no round trip gets too long.
const MAX_CONCURRENT_RETURNS: usize = 256;

impl Store for RedisStore {
    fn charge(&self, charges: &[Charge<'_>], id: Option<&[u8]>) -> Reply<'_, Outcomes> {
        match &self.inner.common.layout {
            None => self.inner.charge(charges, id),
            Some(state) => self.inner.charge_counters(state, charges, id),
        }
    }

    fn charge_up_to(
        &self,
        charges: &[Charge<'_>],
        most: u64,
        id: Option<&[u8]>,
    ) -> Reply<'_, (u64, Outcomes)> {
        self.inner.charge_up_to(charges, most, id)
    }

    fn update(&self, charge: &Charge<'_>, update: Update) -> Reply<'_, bool> {
        self.inner.start_update(charge, update)
    }

    fn supports(&self, limits: &[Limit], leased: bool) -> Result<(), StoreError> {
        self.inner.supports(limits, leased)
    }

    fn clear(&self, _: &[PolicyName]) -> Reply<'_, u64> {
        Reply::Ready(Err(counters::no_clear()))
    }

    fn reserve(&self, charges: &[Charge<'_>], id: u128, ttl: Duration) -> Reply<'_, Outcomes> {
        self.inner.reserve(charges, id, ttl)
    }

    fn settle(
        &self,
        charges: &[Charge<'_>],
        id: u128,
        actual: u64,
    ) -> Reply<'_, Option<SettledCharges>> {
        self.inner.settle(charges, id, actual)
    }

    fn claim(&self, charge: &Charge<'_>, claim: Claim) -> Reply<'_, bool> {
        self.inner.claim(charge, claim)
    }

    fn spawn(&self, task: Task) {
        self.inner.runtime().spawn(task);
    }
}

/// The result of starting a charge.
enum Started {
    Answered(Outcomes),
    Sent(responder::Reply),
    /// The store is reconnecting on another runtime.
    Opening,
    /// The cells are in several slots, or one cell has two limits. They are charged one after the other, and refunded
    /// if one denies.
    Compensating(CellCharges),
}

impl Inner {
    /// Returns the current session. If its runtime has shut down, opens a new session on the caller's runtime.
    fn session(&self) -> Guard<Arc<Session>> {
        let session = self.session.load();
        if !session.has_ended() {
            return session;
        }
        let _guard = self.reopening.lock();
        if self.session.load().has_ended()
            && let Ok(runtime) = Handle::try_current()
        {
            self.leases.end_draws();
            let session = Session::reopen(self.url.clone(), &self.common, runtime);
            self.session.store(Arc::new(session));
            self.start_releases();
        }
        self.session.load()
    }

    fn runtime(&self) -> Handle {
        self.session().runtime.clone()
    }

    /// Waits until a session that replaced another is connected.
    async fn opened(&self) {
        let session = Guard::into_inner(self.session());
        session.opened().await;
    }

    fn start_releases(&self) {
        let runtime = self.session.load().runtime.clone();
        runtime.spawn(releases::retry(self.releases.clone(), self.this.clone()));
    }

    /// Charges one request: answers it from leases or the deny cache if possible, or sends it to the server.
    fn charge(self: &Arc<Self>, charges: &[Charge<'_>], id: Option<&[u8]>) -> Reply<'_, Outcomes> {
        match self.start(charges, id) {
            Ok(Started::Answered(outcomes)) => Reply::Ready(Ok(outcomes)),
            Ok(Started::Sent(answer)) => Reply::pending(outcomes_of(answer)),
            Ok(Started::Compensating(cells)) => {
                let charging = self.clone().charge_compensating(cells, None);
                Reply::pending(async { charging.await.map(Outcomes::from) })
            }
            Ok(Started::Opening) => {
                let charges = charges.iter().map(ChargeBuf::from).collect();
                Reply::pending(self.clone().charge_when_open(charges, id.map(<[u8]>::to_vec)))
            }
            Err(error) => Reply::Ready(Err(error)),
        }
    }

    async fn charge_when_open(
        self: Arc<Self>,
        charges: Vec<ChargeBuf>,
        id: Option<Vec<u8>>,
    ) -> Result<Outcomes, StoreError> {
        self.opened().await;
        let started = {
            let charges: Vec<_> = charges.iter().map(ChargeBuf::as_charge).collect();
            self.start(&charges, id.as_deref())?
        };
        match started {
            Started::Answered(outcomes) => Ok(outcomes),
            Started::Sent(answer) => outcomes_of(answer).await,
            Started::Compensating(cells) => {
                self.charge_compensating(cells, None).await.map(Outcomes::from)
            }
            Started::Opening => Err(gone()),
        }
    }

    fn start(
        self: &Arc<Self>,
        charges: &[Charge<'_>],
        id: Option<&[u8]>,
    ) -> Result<Started, StoreError> {
        if charges.is_empty() {
            return Ok(Started::Answered(Outcomes::default()));
        }
        let names = &self.common.names;
        let fingerprints: SmallVec<[_; 1]> =
            charges.iter().map(|charge| names.fingerprinter.of(charge)).collect();
        let is_ambiguous = has_cell_with_two_limits(charges, &fingerprints);
        if is_ambiguous && id.is_some() {
            let problem = "a request with an id cannot charge one key under two limits";
            return Err(StoreError::Unsupported(problem.to_owned()));
        }
        let is_recorded = charges.iter().any(|charge| charge.excess.is_recorded());
        if id.is_none() && !is_ambiguous && self.common.deny_cache.may_answer(charges) {
            let answered = match is_recorded {
                true => self.deny_locally(charges, &fingerprints),
                false => self.answer_locally(charges, &fingerprints),
            };
            if let Some(outcomes) = answered {
                return Ok(Started::Answered(outcomes));
            }
        }
        if self.session().is_opening() {
            return Ok(Started::Opening);
        }
        let pairs = charges.iter().zip(&fingerprints);
        let cells = pairs.map(|(charge, fingerprint)| names.cell_charge_with(charge, *fingerprint));
        let cells = cells.collect::<Result<CellCharges, _>>()?;
        if is_ambiguous {
            return Ok(Started::Compensating(cells));
        }
        if self.session().is_cluster() && !is_one_slot(&cells) {
            // A denial refunds the charges in other slots, but a stored answer would still report them as charged.
            return match id {
                Some(_) => Err(StoreError::Unsupported(
                    "a request with an id needs all keys in one slot: give its policies a tag"
                        .to_owned(),
                )),
                None => Ok(Started::Compensating(cells)),
            };
        }
        if !is_recorded {
            self.draw(charges, &cells);
        }
        self.send(cells, 1, id, None).map(Started::Sent)
    }

    /// Answers from leases or the deny cache.
    fn answer_locally(
        &self,
        charges: &[Charge<'_>],
        fingerprints: &[Fingerprint],
    ) -> Option<Outcomes> {
        if let ([charge], [fingerprint]) = (charges, fingerprints) {
            return self
                .answer_one_locally(charge, *fingerprint)
                .map(|outcome| [outcome].into_iter().collect());
        }
        let leased = charges.iter().all(|charge| charge.lease > 0);
        if let Some(outcomes) = leased.then(|| self.leases.spend(charges, fingerprints)).flatten() {
            self.common.totals.leased.add(1);
            return Some(outcomes.into());
        }
        self.deny_locally(charges, fingerprints)
    }

    /// Answers from the deny cache.
    fn deny_locally(
        &self,
        charges: &[Charge<'_>],
        fingerprints: &[Fingerprint],
    ) -> Option<Outcomes> {
        let pairs = fingerprints.iter().copied().zip(charges);
        let outcomes = self.common.deny_cache.answer(pairs)?;
        self.common.totals.denied_locally.add(1);
        Some(outcomes.into())
    }

    /// [`Inner::answer_locally`] for a request with one charge.
    fn answer_one_locally(&self, charge: &Charge<'_>, fingerprint: Fingerprint) -> Option<Outcome> {
        if charge.lease > 0
            && let Some(outcome) = self.leases.spend_one(charge, fingerprint)
        {
            self.common.totals.leased.add(1);
            return Some(outcome);
        }
        let outcome = self.common.deny_cache.answer_one(fingerprint, charge)?;
        self.common.totals.denied_locally.add(1);
        Some(outcome)
    }

    /// Charges cells of one slot on their server.
    async fn charge_cells(
        &self,
        charges: CellCharges,
        times: u64,
        reservation: Option<(u128, Duration)>,
    ) -> Result<responder::Answer, StoreError> {
        self.send(charges, times, None, reservation)?.await.unwrap_or_else(|_| Err(gone()))
    }

    fn send(
        &self,
        charges: CellCharges,
        times: u64,
        id: Option<&[u8]>,
        reservation: Option<(u128, Duration)>,
    ) -> Result<responder::Reply, StoreError> {
        let names = &self.common.names;
        let once = id.map(|id| names.answer(id, &charges, times));
        let reservation = reservation.map(|(id, ttl)| NewReservation {
            key: names.reservation(id, &charges),
            ttl: u64::try_from(ttl.as_micros()).map_or(MAX_TTL, |ttl| ttl.clamp(1, MAX_TTL)),
        });
        let worker = self.session().worker(&charges[0])?;
        let (responder, reply) = Responder::new();
        worker.send(PendingRequest { charges, times, once, reservation, responder })?;
        Ok(reply)
    }

    /// Draws units for the leases of a request that they could not answer. The request itself is sent separately.
    fn draw(self: &Arc<Self>, charges: &[Charge<'_>], cells: &[CellCharge]) {
        // Leases can answer a request only if all of its limits have one.
        if !charges.iter().all(|charge| charge.lease > 0) {
            return;
        }
        for (charge, cell) in charges.iter().zip(cells) {
            if cell.cost > 0
                && cell.limit.algorithm().can_be_leased()
                && let Some(draw) = self.leases.start_draw(cell, Instant::now())
            {
                let cell = CellCharge { cost: 1, excess: Excess::Reject, ..*cell };
                let units = charge.lease.min(cell.limit.capacity());
                self.runtime().spawn(self.clone().draw_one(cell, draw, units));
            }
        }
    }

    async fn draw_one(self: Arc<Self>, charge: CellCharge, draw: u64, units: u64) {
        let sent = Instant::now();
        let answer = self.charge_cells(SmallVec::from_elem(charge, 1), units, None).await;
        let drawn = answer.ok().and_then(|answer| {
            let trip = self.common.time.round_trip(sent, Instant::now());
            Some(Drawn { units: answer.granted, state: answer.state?, now: answer.now, trip })
        });
        self.leases.deposit(&charge, draw, drawn);
    }

    async fn return_leases(self: Arc<Self>) -> Result<(), StoreError> {
        // Wait for draws in progress, because their units would not be returned.
        drop(timeout(self.common.deadline, self.leases.settled()).await);
        let give_back =
            |Unspent { charge, charged_at }| self.update(charge, Action::Return { charged_at });
        let returning = stream::iter(self.leases.take_all()).map(give_back);
        let returning = returning.buffer_unordered(MAX_CONCURRENT_RETURNS);
        returning.fold(Ok(()), async |so_far, updated| updated.map(drop).and(so_far)).await
    }

    /// Starts an update. Runs as a separate task, so that local state is updated even if the caller stops waiting.
    fn start_update(self: &Arc<Self>, charge: &Charge<'_>, update: Update) -> Reply<'_, bool> {
        let action = match update {
            Update::Refund => Action::Refund,
            Update::Reset => Action::Reset,
            Update::Release => Action::Release,
            Update::Renew => Action::Renew,
            _ => return Reply::Ready(Err(unknown_update(update))),
        };
        let (store, names) = (self.clone(), &self.common.names);
        let Some(state) = self.common.layout.clone() else {
            return match names.cell_charge(charge) {
                Ok(charge) => Reply::pending(self.run_when_open(async move {
                    match action {
                        Action::Release => store.release(charge).await.map(|()| true),
                        action => store.update(charge, action).await,
                    }
                })),
                Err(error) => Reply::Ready(Err(error)),
            };
        };
        let op = counters::operation(charge, action);
        match op.and_then(|op| Ok((state.key(&names.fingerprinter, charge)?, op))) {
            Ok((key, op)) => Reply::pending(self.run_when_open(async move {
                store.update_counter(state, key, op).await.map(|()| true)
            })),
            Err(error) => Reply::Ready(Err(error)),
        }
    }

    /// Runs an update as a task, once the store is connected.
    async fn run_when_open<T: Send + 'static>(
        &self,
        update: impl Future<Output = Result<T, StoreError>> + Send + 'static,
    ) -> Result<T, StoreError> {
        self.opened().await;
        self.runtime().spawn(update).await.unwrap_or_else(|_| Err(gone()))
    }

    /// Claims an event. With a layout every process reports it, because ACL rules may forbid other keys.
    fn claim(&self, charge: &Charge<'_>, claim: Claim) -> Reply<'_, bool> {
        if self.common.layout.is_some() {
            return Reply::Ready(Ok(true));
        }
        let (at, ends) = (claim.at.as_micros(), claim.at.after(claim.lifetime).as_micros());
        let action = Action::Claim { owner: halves(claim.owner), at, ends };
        match self.common.names.claim(charge, claim.event) {
            Ok(charge) => {
                Reply::pending(
                    async move { Ok(self.send_update(charge, action).await?.granted > 0) },
                )
            }
            Err(error) => Reply::Ready(Err(error)),
        }
    }

    async fn send_update(
        &self,
        charge: CellCharge,
        action: Action,
    ) -> Result<responder::Answer, StoreError> {
        let worker = self.session().worker(&charge)?;
        let (responder, reply) = Responder::new();
        let update = UpdateCommand { charge, action, responder };
        worker.send_command(Command::new(Payload::Update(update)));
        reply.await.unwrap_or_else(|_| Err(gone()))
    }

    /// Returns whether the update changed anything.
    async fn update(&self, charge: CellCharge, action: Action) -> Result<bool, StoreError> {
        let updated = self.send_update(charge, action).await;
        // Drop local state, because it may be from before the update.
        self.common.deny_cache.forget(charge.fingerprint);
        if action == Action::Reset {
            self.leases.forget(charge.fingerprint);
        }
        updated.map(|answer| answer.granted > 0)
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.releases.wake();
    }
}

async fn outcomes_of(answer: responder::Reply) -> Result<Outcomes, StoreError> {
    answer.await.unwrap_or_else(|_| Err(gone())).map(|answer| answer.outcomes.into_iter().collect())
}

fn unknown_update(update: Update) -> StoreError {
    StoreError::Unsupported(format!("unknown update {update:?}"))
}

fn gone() -> StoreError {
    StoreError::Interrupted("the runtime of the store has shut down".to_owned())
}

fn is_one_slot(charges: &[CellCharge]) -> bool {
    charges.windows(2).all(|pair| pair[0].cell.slot() == pair[1].cell.slot())
}

/// Returns whether two charges have the same cell but different limits. A batch would apply one limit to both.
fn has_cell_with_two_limits(charges: &[Charge<'_>], fingerprints: &[Fingerprint]) -> bool {
    let differs = |a: usize, b: usize| {
        fingerprints[a] == fingerprints[b] && charges[a].limit != charges[b].limit
    };
    (1..charges.len()).any(|a| (0..a).any(|b| differs(a, b)))
}
