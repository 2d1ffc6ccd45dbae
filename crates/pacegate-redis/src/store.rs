mod apart;
mod counters;
mod returns;
mod session;

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use arc_swap::{ArcSwap, Guard};
use futures_util::stream::{self, StreamExt};
use pacegate::{
    Charge, ChargeBuf, Clock, Limit, Outcomes, PolicyName, Reply, Store, StoreError, Task, Update,
    algorithm::Outcome,
};
use parking_lot::Mutex;
use smallvec::SmallVec;
use tokio::{
    runtime::Handle,
    sync::oneshot,
    time::{Instant, timeout},
};

use returns::Returns;
use session::Session;

use crate::{
    batch::{self, Ask},
    cell::{Names, Secret, Want},
    denials::Denials,
    job::Amend,
    lane::{Common, Lane},
    layout::{self, Layout},
    leases::{Drawn, Leases, Unspent},
    mark::Claim,
    stats::{Counters, RedisStats, ServerStats},
    time::{LONGEST, Time, Trip},
    url::{RedisUrl, UrlError},
    waiter::Waiter,
    wire::Action,
};

/// Budgets in Redis or Valkey, shared by every process that uses the same servers.
///
/// Cheap to clone; clones share everything. It needs a Tokio runtime, on which it keeps one task for each server: the
/// runtime that it was created on. If that runtime shuts down, the store reconnects on the runtime of its next caller,
/// and requests wait for this, for at most a second. Requests in flight at that moment are lost, and decided by failure
/// modes. A caller outside of any runtime cannot reconnect it.
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// use pacegate::{Limit, PolicySet, SharedLimiter};
/// use pacegate_redis::RedisStore;
///
/// let store = RedisStore::connect("redis://127.0.0.1:6379").await?;
/// let limiter = SharedLimiter::new(store, PolicySet::of_limits([Limit::per_minute(100)])?);
/// assert!(limiter.check("alice").await?.is_allowed());
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct RedisStore {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    common: Arc<Common>,
    leases: Leases,
    returns: Arc<Returns>,
    /// Replaced when its runtime has ended.
    session: ArcSwap<Session>,
    /// Held while the session is replaced.
    reopening: Mutex<()>,
    url: RedisUrl,
    this: Weak<Self>,
}

/// How a [`RedisStore`] is to be.
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until it connects"]
pub struct RedisStoreBuilder {
    url: RedisUrl,
    prefix: String,
    secret: Secret,
    deadline: Duration,
    deny_cache: usize,
    deny_cache_for: Duration,
    once: Duration,
    time: Time,
    layout: Layout,
}

/// Why there is no store.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The address cannot be read.
    #[error(transparent)]
    Url(#[from] UrlError),
    /// No server answered. The text says which, and why.
    #[error("no connection to {servers}: {reason}")]
    Unreachable {
        /// The servers as they were given, without user and password.
        servers: String,
        /// What went wrong last.
        reason: String,
    },
}

/// How long [`RedisStore::connect`] goes on trying.
const PATIENCE: Duration = Duration::from_secs(5);

impl RedisStore {
    /// Connects with the defaults. For what an address looks like see [`RedisUrl`].
    pub async fn connect(url: &str) -> Result<Self, ConnectError> {
        Self::builder(url)?.connect().await
    }

    /// A store that differs from the defaults.
    pub fn builder(url: &str) -> Result<RedisStoreBuilder, UrlError> {
        Ok(RedisStoreBuilder::new(url.parse()?))
    }

    /// What it has been doing.
    pub fn stats(&self) -> RedisStats {
        let Inner { common, leases, .. } = &*self.inner;
        let counters = &common.counters;
        let server = |lane: &Arc<Lane>| ServerStats {
            address: lane.resolver().to_string(),
            trouble: (!lane.is_open()).then(|| lane.trouble()),
            round_trip: lane.round_trip(),
        };
        RedisStats {
            servers: self.inner.session.load().lanes().iter().map(server).collect(),
            trips: counters.trips.get(),
            calls: counters.calls.get(),
            requests: counters.requests.get(),
            keys: counters.cells.get(),
            denied_locally: counters.denied_locally.get(),
            deny_cache_entries: common.denials.len(),
            leased: counters.leased.get(),
            lease_units_outstanding: leases.outstanding(),
            timed_out: counters.timed_out.get(),
            redirects: counters.redirects.get(),
            closed: counters.closed.get(),
            returning: self.inner.returns.len(),
        }
    }

    /// Whether every server that is known answers.
    pub fn is_connected(&self) -> bool {
        self.inner.session.load().is_connected()
    }

    /// Returns the leased units that were not spent. Without this they stay charged until their window ends. So do
    /// units that could not be returned; the error is then the last one.
    pub async fn return_leases(&self) -> Result<(), StoreError> {
        let returning = self.inner.runtime().spawn(self.inner.clone().return_leases());
        returning.await.unwrap_or_else(|_| Err(gone()))
    }
}

pub(crate) const DEFAULT_PREFIX: &str = "pg:";
pub(crate) const DEFAULT_DEADLINE: Duration = Duration::from_millis(100);

impl RedisStoreBuilder {
    pub(crate) fn new(url: RedisUrl) -> Self {
        Self {
            url,
            prefix: DEFAULT_PREFIX.to_owned(),
            secret: Secret::default(),
            deadline: DEFAULT_DEADLINE,
            deny_cache: 100_000,
            deny_cache_for: Duration::from_secs(1),
            once: Duration::from_secs(10),
            time: Time::Server,
            layout: Layout::native(),
        }
    }

    /// What the names of all keys begin with; `pg:` unless said. Braces are left out: they would place all keys in one
    /// slot of a cluster.
    pub fn prefix(self, prefix: impl Into<String>) -> Self {
        let prefix = prefix.into().replace(['{', '}'], "");
        Self { prefix, ..self }
    }

    /// What the names of keys are hashed with. All who share budgets need the same. With a secret of your own, nobody
    /// can find out from a name whom it is about, or choose names that burden one server of a cluster.
    pub fn secret(self, secret: impl Into<Vec<u8>>) -> Self {
        Self { secret: Secret(secret.into()), ..self }
    }

    /// Sets how long a call may take before the policy's failure mode decides instead. Default: 100 ms.
    pub fn deadline(self, deadline: Duration) -> Self {
        Self { deadline, ..self }
    }

    /// How many denied keys are remembered here, so that the server need not be asked again: 100,000 unless said, 0 for
    /// none.
    pub fn deny_cache(self, entries: usize) -> Self {
        Self { deny_cache: entries, ..self }
    }

    /// For how long at most: a second unless said. So long may a reset or refund made by another process go unnoticed.
    pub fn deny_cache_for(self, longest: Duration) -> Self {
        Self { deny_cache_for: longest, ..self }
    }

    /// For how long the answer to a request with an id is remembered. Default: 10 s; at most a year. Meanwhile it is
    /// repeated up to four times, and after that each request with the id counts as a new one.
    pub fn remember_ids_for(self, time: Duration) -> Self {
        Self { once: time, ..self }
    }

    /// Where counters are and how they count: [`Layout::native`] unless said. With any other, [`prefix`](Self::prefix),
    /// [`secret`](Self::secret) and [`remember_ids_for`](Self::remember_ids_for) mean nothing.
    pub fn layout(self, layout: impl Into<Layout>) -> Self {
        Self { layout: layout.into(), ..self }
    }

    /// Goes by this clock instead of the server's: for tests, since several processes never agree on the time.
    pub fn clock(self, clock: impl Clock) -> Self {
        Self { time: Time::Given(Arc::new(clock)), ..self }
    }

    /// Connects, and fails if no server answers within some seconds. In a cluster it is enough that one does by then.
    pub async fn connect(self) -> Result<RedisStore, ConnectError> {
        let store = self.connect_later();
        let session = store.inner.session.load_full();
        let late = timeout(PATIENCE, session.first_connection()).await.is_err();
        let lanes = session.lanes();
        if late && !lanes.iter().any(|lane| lane.is_open()) {
            let reason =
                lanes.first().map_or("no server answered".to_owned(), |lane| lane.trouble());
            let servers = session.describe();
            return Err(ConnectError::Unreachable { servers, reason });
        }
        Ok(store)
    }

    /// A store that connects when it can: until then every policy's failure mode decides.
    ///
    /// # Panics
    ///
    /// Outside a Tokio runtime.
    pub fn connect_later(self) -> RedisStore {
        let rules = self.layout.rules().cloned();
        let counters = rules.map(|rules| layout::Counters::new(rules, self.time.clone()));
        let common = Arc::new(Common {
            layout: counters.map(Arc::new),
            names: Names::new(&self.prefix, &self.secret.0),
            deadline: self.deadline.min(LONGEST),
            once: self.once.min(LONGEST),
            denials: Denials::new(self.deny_cache, self.deny_cache_for, self.time.clone()),
            time: self.time.clone(),
            counters: Counters::default(),
        });
        let (url, returns) = (self.url, Arc::new(Returns::default()));
        let session = Session::open(url.clone(), &common, Handle::current());
        let inner = Arc::new_cyclic(|this| Inner {
            common,
            leases: Leases::new(self.time),
            returns,
            session: ArcSwap::from_pointee(session),
            reopening: Mutex::new(()),
            url,
            this: this.clone(),
        });
        inner.start_returns();
        RedisStore { inner }
    }
}

/// So many leases are given back at a time: few trips for all of them, and no trip takes so long that others feel it.
const RETURNING: usize = 256;

impl Store for RedisStore {
    fn charge(&self, charges: &[Charge<'_>], id: Option<&[u8]>) -> Reply<'_, Outcomes> {
        match &self.inner.common.layout {
            None => self.inner.charge(charges, id),
            Some(counters) => self.inner.charge_counters(counters, charges, id),
        }
    }

    fn update(&self, charge: &Charge<'_>, update: Update) -> Reply<'_, bool> {
        self.inner.update(charge, update)
    }

    fn supports(&self, limits: &[Limit], leased: bool) -> Result<(), StoreError> {
        self.inner.supports(limits, leased)
    }

    fn clear(&self, _: &[PolicyName]) -> Reply<'_, u64> {
        Reply::Ready(Err(counters::no_clear()))
    }

    fn spawn(&self, task: Task) {
        self.inner.runtime().spawn(task);
    }
}

/// The start of a charge.
enum Started {
    Answered(Outcomes),
    Sent(oneshot::Receiver<batch::Answered>),
    /// The store is connecting to its servers from another runtime than before.
    Opening,
    /// Its cells are on several servers, or one of them comes under two limits.
    Apart(Wants),
}

type Wants = SmallVec<[Want; 1]>;

impl Inner {
    /// The connections to use: those of another runtime if the last one has ended.
    fn session(&self) -> Guard<Arc<Session>> {
        let session = self.session.load();
        if !session.has_ended() {
            return session;
        }
        let _alone = self.reopening.lock();
        if self.session.load().has_ended()
            && let Ok(runtime) = Handle::try_current()
        {
            self.leases.end_draws();
            let session = Session::reopen(self.url.clone(), &self.common, runtime);
            self.session.store(Arc::new(session));
            self.start_returns();
        }
        self.session.load()
    }

    fn runtime(&self) -> Handle {
        self.session().runtime.clone()
    }

    /// Waits until a session that has replaced another is connected.
    async fn opened(&self) {
        let session = Guard::into_inner(self.session());
        session.opened().await;
    }

    fn start_returns(&self) {
        let runtime = self.session.load().runtime.clone();
        runtime.spawn(returns::retry(self.returns.clone(), self.this.clone()));
    }

    /// Charges one request. The key is hashed, and the deny cache and the leases are searched, once.
    fn charge(self: &Arc<Self>, charges: &[Charge<'_>], id: Option<&[u8]>) -> Reply<'_, Outcomes> {
        match self.start(charges, id) {
            Ok(Started::Answered(outcomes)) => Reply::Ready(Ok(outcomes)),
            Ok(Started::Sent(answer)) => Reply::pending(outcomes_of(answer)),
            Ok(Started::Apart(wants)) => {
                let charging = self.clone().charge_apart(wants);
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
            Started::Apart(wants) => self.charge_apart(wants).await.map(Outcomes::from),
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
        let claims: SmallVec<[_; 1]> =
            charges.iter().map(|charge| names.marker.claim(charge)).collect();
        let contradicts = contradict(&claims);
        if contradicts && id.is_some() {
            let problem = "one key under two amounts in one request with an id; ask without one";
            return Err(StoreError::Unsupported(problem.to_owned()));
        }
        if id.is_none()
            && !contradicts
            && let Some(outcomes) = self.answer_here(charges, &claims)
        {
            return Ok(Started::Answered(outcomes));
        }
        if self.session().is_opening() {
            return Ok(Started::Opening);
        }
        let marked = charges.iter().zip(&claims);
        let wants = marked.map(|(charge, claim)| names.want_marked(charge, claim.mark));
        let wants = wants.collect::<Result<Wants, _>>()?;
        if contradicts {
            return Ok(Started::Apart(wants));
        }
        if self.session().is_cluster() && !is_together(&wants) {
            // What was charged in one slot and given back because of another would look charged when asked again.
            return match id {
                Some(_) => Err(StoreError::Unsupported(
                    "a request with an id needs all of its keys in one slot; give its policies a tag"
                        .to_owned(),
                )),
                None => Ok(Started::Apart(wants)),
            };
        }
        self.draw(charges, &wants);
        self.send(wants, 1, id).map(Started::Sent)
    }

    /// What can be said without asking a server.
    fn answer_here(&self, charges: &[Charge<'_>], claims: &[Claim<'_>]) -> Option<Outcomes> {
        if let ([charge], [claim]) = (charges, claims) {
            return self
                .answer_one_here(charge, claim)
                .map(|outcome| [outcome].into_iter().collect());
        }
        let leased = charges.iter().all(|charge| charge.lease > 0);
        if let Some(outcomes) = leased.then(|| self.leases.spend(claims)).flatten() {
            self.common.counters.leased.add(1);
            return Some(outcomes.into());
        }
        let outcomes = self.common.denials.answer(claims.iter().copied())?;
        self.common.counters.denied_locally.add(1);
        Some(outcomes.into())
    }

    /// [`Inner::answer_here`], for a request with one limit.
    fn answer_one_here(&self, charge: &Charge<'_>, claim: &Claim<'_>) -> Option<Outcome> {
        if charge.lease > 0
            && let Some(outcome) = self.leases.spend_one(claim)
        {
            self.common.counters.leased.add(1);
            return Some(outcome);
        }
        let outcome = self.common.denials.answer_one(claim)?;
        self.common.counters.denied_locally.add(1);
        Some(outcome)
    }

    /// Sends one request to the server that has its cells.
    async fn ask(
        &self,
        wants: Wants,
        times: u64,
        id: Option<&[u8]>,
    ) -> Result<batch::Answer, StoreError> {
        self.send(wants, times, id)?.await.unwrap_or_else(|_| Err(gone()))
    }

    fn send(
        &self,
        wants: Wants,
        times: u64,
        id: Option<&[u8]>,
    ) -> Result<oneshot::Receiver<batch::Answered>, StoreError> {
        let once = id.map(|id| self.common.names.answer(id, &wants));
        let (waiter, answered) = Waiter::new(Instant::now());
        let ask = Ask { wants, times, once, waiter };
        self.session().lane(&ask.wants[0])?.ask(ask)?;
        Ok(answered)
    }

    /// Draws units ahead for limits that allow it, along with the request that found none left.
    fn draw(self: &Arc<Self>, charges: &[Charge<'_>], wants: &[Want]) {
        // If one of its limits has no lease, a request can never be paid from those of the others.
        if !charges.iter().all(|charge| charge.lease > 0) {
            return;
        }
        for (charge, want) in charges.iter().zip(wants) {
            if want.cost > 0
                && want.limit.algorithm().can_be_leased()
                && let Some(draw) = self.leases.start_draw(want, Instant::now())
            {
                let want = Want { cost: 1, ..*want };
                let units = charge.lease.min(want.limit.capacity());
                self.runtime().spawn(self.clone().draw_one(want, draw, units));
            }
        }
    }

    async fn draw_one(self: Arc<Self>, want: Want, draw: u64, units: u64) {
        let asked = Instant::now();
        let answer = self.ask(SmallVec::from_elem(want, 1), units, None).await;
        let drawn = answer.ok().and_then(|answer| {
            let trip = Trip::new(asked, Instant::now());
            Some(Drawn { units: answer.granted, state: answer.state?, now: answer.now, trip })
        });
        self.leases.deposit(&want, draw, drawn);
    }

    async fn return_leases(self: Arc<Self>) -> Result<(), StoreError> {
        // What is still on its way would be lost to everybody.
        drop(timeout(self.common.deadline, self.leases.settled()).await);
        let give_back = |Unspent { want, drawn }| self.amend(want, Some(Action::Return { drawn }));
        let returning = stream::iter(self.leases.take_all()).map(give_back);
        let returning = returning.buffer_unordered(RETURNING);
        returning.fold(Ok(()), async |so_far, amended| amended.map(drop).and(so_far)).await
    }

    /// Changes one counter. Runs as a task, so that the caches of this process are updated even if the caller stops
    /// waiting for the answer.
    fn update(self: &Arc<Self>, charge: &Charge<'_>, update: Update) -> Reply<'_, bool> {
        let action = match update {
            Update::Refund => Some(Action::Refund),
            Update::Reset => None,
            Update::Release => Some(Action::Release),
            Update::Renew => Some(Action::Renew),
            _ => return Reply::Ready(Err(unknown_update(update))),
        };
        let store = self.clone();
        match self.common.layout.clone() {
            Some(counters) => match counters::change(&self.common, &counters, charge, action) {
                Ok((spot, act)) => Reply::pending(self.run_when_open(async move {
                    store.change_counter(counters, spot, act).await.map(|()| true)
                })),
                Err(error) => Reply::Ready(Err(error)),
            },
            None => match self.common.names.want(charge) {
                Ok(want) => Reply::pending(self.run_when_open(async move {
                    match action {
                        Some(Action::Release) => store.release(want).await.map(|()| true),
                        _ => store.amend(want, action).await,
                    }
                })),
                Err(error) => Reply::Ready(Err(error)),
            },
        }
    }

    /// Runs an update as a task, once the store is connected.
    async fn run_when_open(
        &self,
        update: impl Future<Output = Result<bool, StoreError>> + Send + 'static,
    ) -> Result<bool, StoreError> {
        self.opened().await;
        self.runtime().spawn(update).await.unwrap_or_else(|_| Err(gone()))
    }

    async fn amend(&self, want: Want, action: Option<Action>) -> Result<bool, StoreError> {
        let lane = self.session().lane(&want)?;
        let (waiter, answered) = Waiter::new(Instant::now());
        lane.amend(Amend { want, action, waiter })?;
        let amended = answered.await.unwrap_or_else(|_| Err(gone()));
        // What was learnt or drawn up to now may have been so before.
        self.common.denials.forget(want.mark);
        if action.is_none() {
            self.leases.forget(want.mark);
        }
        amended
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        self.returns.wake();
    }
}

async fn outcomes_of(answer: oneshot::Receiver<batch::Answered>) -> Result<Outcomes, StoreError> {
    answer.await.unwrap_or_else(|_| Err(gone())).map(|answer| answer.outcomes.into())
}

fn unknown_update(update: Update) -> StoreError {
    StoreError::Unsupported(format!("unknown update {update:?}"))
}

fn gone() -> StoreError {
    StoreError::Interrupted("the runtime of the store has ended".to_owned())
}

fn is_together(wants: &[Want]) -> bool {
    wants.windows(2).all(|pair| pair[0].cell.slot() == pair[1].cell.slot())
}

/// Whether a cell comes twice, with different limits: one of them would be decided by the other's.
fn contradict(claims: &[Claim<'_>]) -> bool {
    let same = |a: &Claim<'_>, b: &Claim<'_>| a.mark != b.mark || a.limit == b.limit;
    claims.iter().enumerate().any(|(place, a)| !claims[..place].iter().all(|b| same(a, b)))
}
