//! The [`Decide`] trait: the limiter behind the middleware.

use std::{
    fmt,
    future::{Future, Pending},
    pin::Pin,
    sync::{Arc, OnceLock},
    time::Duration,
};

use http::HeaderMap;
use pacegate::{
    Charge, CheckError, Decision, Key, KeyRef, Limit, Limiter, PolicyName, PolicySet, Request,
    Reserved, SharedLimiter, StoreError, Timestamp,
};
use smallvec::SmallVec;

use crate::{KeyParts, Settle, settlement::InMemory};

/// A limiter for the middleware: a [`Limiter`], a [`SharedLimiter`], a closure that returns one ([`Provided`]), or a
/// custom type, which creates its decisions with [`Decision::admission`] and [`Decision::denial`].
///
/// The middleware boxes no futures. A limiter that decides without waiting returns [`Reply::Now`]; otherwise the
/// middleware polls the returned future. The future of a [`SharedLimiter`] is boxed.
///
/// ```
/// use std::{future::Pending, time::Duration};
/// use pacegate::{CheckError, Decision, Limit, PolicyName};
/// use pacegate_http::{Decide, Question, Reply};
///
/// /// Denies everything, for example during maintenance.
/// #[derive(Clone)]
/// struct Maintenance;
///
/// impl Decide for Maintenance {
///     type Deciding = Pending<Result<Decision, CheckError>>;
///
///     fn decide(&self, _: &Question) -> Reply<Result<Decision, CheckError>, Self::Deciding> {
///         let (policy, limit) = (PolicyName::DEFAULT, Limit::per_minute(0));
///         Reply::Now(Ok(Decision::denial(policy, limit, 0, Some(Duration::from_secs(60)))))
///     }
/// }
/// # let _ = pacegate_http::RateLimitLayer::new(Maintenance);
/// ```
pub trait Decide: Clone + Send + Sync + 'static {
    /// The future of a decision. Dropping it must not charge anything that is not charged yet.
    type Deciding: Future<Output = Result<Decision, CheckError>> + Send + 'static;

    /// Charges the cost of a request to all its limits, all or nothing.
    fn decide(&self, question: &Question) -> Reply<Result<Decision, CheckError>, Self::Deciding>;

    /// Charges the cost of a request as an estimate, which the returned reservation corrects within `ttl`. The
    /// middleware calls it instead of [`decide`](Self::decide) if its rules correct charges.
    ///
    /// Default: decides, and returns no reservation, so that charges stay as they are.
    fn reserve(
        &self,
        question: &Question,
        ttl: Duration,
    ) -> Reply<Result<Estimated, CheckError>, Reserving> {
        let _ = ttl;
        uncorrected(self.decide(question))
    }

    /// Returns an error message if this limiter cannot be used in a middleware, for example because it has a
    /// concurrency limit. Default: `None`.
    fn fault(&self) -> Option<&'static str> {
        None
    }
}

/// The decision about a request whose cost is an estimate. Returned by [`Decide::reserve`].
#[derive(Debug)]
pub struct Estimated {
    /// The decision.
    pub decision: Decision,
    /// Corrects the charge. `None` if the request is denied, or if its charge cannot be corrected.
    pub reservation: Option<Box<dyn Settle>>,
}

/// The future of [`Decide::reserve`].
pub type Reserving = Pin<Box<dyn Future<Output = Result<Estimated, CheckError>> + Send>>;

/// An answer, or a future for it.
#[derive(Clone, Copy, Debug)]
pub enum Reply<T, F> {
    /// The answer.
    Now(T),
    /// A future for the answer.
    Later(F),
}

/// The input of a decision: the key or attributes of a request, its cost, and its limits.
///
/// A custom [`Decide`] reads [`request`](Self::request) for a limiter with policies, or [`key`](Self::key) for one
/// counter per key, and must honour [`limits`](Self::limits) if there are any.
#[derive(Clone, Debug)]
pub struct Question {
    /// The names of the attributes, one for each part of `key`. `None`: the parts form one key.
    pub(crate) names: Option<Arc<[String]>>,
    pub(crate) key: KeyParts,
    /// The parts of `key` joined into one, computed at first use.
    pub(crate) whole: OnceLock<Box<KeyParts>>,
    pub(crate) domain: Option<Arc<str>>,
    pub(crate) cost: u64,
    pub(crate) limits: Vec<(PolicyName, Limit)>,
    /// The time before the decision, for headers.
    pub(crate) now: Timestamp,
}

/// The correction of the charge for a request, once its response is known.
///
/// The cost of the request was [reserved](pacegate::Limiter::reserve). Refunded units return to where they were
/// charged, and nowhere if they do not count there any more. Additional units cannot deny the request, which has been
/// served: those beyond a limit are [debt](pacegate::Excess::Debt), which later requests wait for. If the limit must
/// never be exceeded, charge the highest possible cost first, and refund the rest.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Adjustment {
    /// Keeps the charge.
    #[default]
    Keep,
    /// Refunds the whole charge.
    Refund,
    /// Refunds this number of units, and no more than were charged.
    RefundUnits(u64),
    /// Charges this number of additional units.
    Charge(u64),
    /// Corrects the charge to this number of units, which the request has used.
    Actual(u64),
}

impl Adjustment {
    /// Corrects the charge to the number in a header of the response, or keeps it if there is none.
    ///
    /// ```
    /// use pacegate::{Limit, Limiter};
    /// use pacegate_http::{Adjustment, RateLimitLayer, resolve::PeerAddress};
    ///
    /// let layer = RateLimitLayer::new(Limiter::memory(Limit::per_minute(10_000)))
    ///     .by(PeerAddress::new())
    ///     .cost(|_| 4_000)
    ///     .settle_with(|response| Adjustment::from_header(&response.headers, "x-total-tokens"));
    /// # let _ = layer;
    /// ```
    pub fn from_header(headers: &HeaderMap, name: &str) -> Self {
        let units = headers.get(name).and_then(|value| value.to_str().ok()?.trim().parse().ok());
        units.map_or(Self::Keep, Self::Actual)
    }

    /// Returns the units that a request of this cost has used.
    pub(crate) fn used(self, cost: u64) -> u64 {
        match self {
            Self::Keep => cost,
            Self::Refund => 0,
            Self::RefundUnits(units) => cost.saturating_sub(units),
            Self::Charge(units) => cost.saturating_add(units),
            Self::Actual(units) => units,
        }
    }
}

/// A closure that returns the limiter. It is called for every request, so the policies can change at runtime.
///
/// ```
/// use std::sync::{Arc, RwLock};
/// use pacegate::{Limit, Limiter};
/// use pacegate_http::{Provided, RateLimitLayer, resolve::PeerAddress};
///
/// let current = Arc::new(RwLock::new(Limiter::memory(Limit::per_minute(100))));
/// let reader = Arc::clone(&current);
/// let limiter = Provided(move || reader.read().unwrap().clone());
/// let layer = RateLimitLayer::new(limiter).by(PeerAddress::new());
///
/// // After a change of the configuration. Usage carries over.
/// let mut current = current.write().unwrap();
/// *current = current.with_limit(Limit::per_minute(50));
/// ```
#[derive(Clone, Copy)]
pub struct Provided<F>(pub F);

impl Question {
    /// Returns the key. If the request has attributes, the parts of the key are their values.
    pub fn key(&self) -> &KeyParts {
        &self.key
    }

    /// Returns the attributes of the request. A request that is only a key has the attribute [`Request::KEY`]; several
    /// parts are joined into one value, which differs for different parts.
    pub fn attributes(&self) -> impl Iterator<Item = (&str, &[u8])> {
        let names = self.names.iter().flat_map(|names| names.iter()).map(String::as_str);
        let key = self.names.is_none().then_some(Request::KEY);
        let values = match self.names {
            None if self.key.len() > 1 => self.whole.get_or_init(|| Box::new(self.key.joined())),
            _ => &self.key,
        };
        let pairs = names.chain(key).zip(values.iter());
        pairs.filter_map(|(name, value)| Some((name, value?)))
    }

    /// Returns the cost in units; 0 is a peek.
    pub fn cost(&self) -> u64 {
        self.cost
    }

    /// Returns the limits that were chosen for this request. If any, they replace the policies of the limiter.
    pub fn limits(&self) -> &[(PolicyName, Limit)] {
        &self.limits
    }

    /// Returns the time of the request, if a header needs it; otherwise the Unix epoch.
    pub fn asked(&self) -> Timestamp {
        self.now
    }

    /// Returns the same question with another cost.
    #[must_use]
    pub fn at_cost(&self, cost: u64) -> Self {
        Self { cost, ..self.clone() }
    }

    /// Returns the request for [`Limiter::check_request`]: domain, attributes and cost.
    pub fn request(&self) -> Request<'_> {
        let mut request = Request::new().cost(self.cost);
        if let Some(domain) = &self.domain {
            request = request.in_domain(domain);
        }
        for (name, value) in self.attributes() {
            request = request.with(name, value);
        }
        request
    }

    /// Returns the charges for the limits of this request, to its key.
    fn charges<'a>(&self, key: KeyRef<'a>) -> SmallVec<[Charge<'a>; 1]> {
        let charge = |&(policy, limit): &_| Charge::new(policy, key, limit).cost(self.cost);
        self.limits.iter().map(charge).collect()
    }

    fn is_key(&self) -> bool {
        self.names.is_none() && self.domain.is_none()
    }
}

/// Decides in this process, always with [`Reply::Now`].
impl Decide for Limiter {
    type Deciding = Pending<Result<Decision, CheckError>>;

    fn decide(&self, question: &Question) -> Reply<Result<Decision, CheckError>, Self::Deciding> {
        if !question.limits.is_empty() {
            let decision = question.key.with(|key| self.charges().check(&question.charges(key)));
            return Reply::Now(decision.map_err(CheckError::from));
        }
        Reply::Now(match (question.is_key(), question.cost) {
            (true, 1) => Ok(self.check(&question.key)),
            (true, cost) => self.check_cost(&question.key, cost).map_err(CheckError::from),
            (false, _) => self.check_request(&question.request()).map_err(CheckError::from),
        })
    }

    fn reserve(
        &self,
        question: &Question,
        ttl: Duration,
    ) -> Reply<Result<Estimated, CheckError>, Reserving> {
        let reserved = match (question.limits.is_empty(), question.is_key()) {
            (false, _) => {
                question.key.with(|key| self.charges().reserve(&question.charges(key), ttl))
            }
            (true, true) => Self::reserve(self, &question.key, question.cost, ttl),
            (true, false) => self.reserve_request(&question.request(), ttl),
        };
        match reserved {
            Err(error) if is_full(&error) => uncorrected(self.decide(question)),
            Err(error) => Reply::Now(Err(error)),
            Ok(Reserved { decision, reservation }) => {
                let reservation = reservation.map(|it| InMemory::boxed(it, question.cost));
                Reply::Now(Ok(Estimated { decision, reservation }))
            }
        }
    }

    fn fault(&self) -> Option<&'static str> {
        hands_out_permits(self.policies()).then_some(NO_PERMITS)
    }
}

/// Decides over a store. Each decision is boxed, because the futures of a [`SharedLimiter`] cannot be named.
impl Decide for SharedLimiter {
    type Deciding = Pin<Box<dyn Future<Output = Result<Decision, CheckError>> + Send>>;

    fn decide(&self, question: &Question) -> Reply<Result<Decision, CheckError>, Self::Deciding> {
        let (limiter, question) = (self.clone(), question.clone());
        Reply::Later(Box::pin(async move { decide_shared(&limiter, &question).await }))
    }

    fn reserve(
        &self,
        question: &Question,
        ttl: Duration,
    ) -> Reply<Result<Estimated, CheckError>, Reserving> {
        let (limiter, question) = (self.clone(), question.clone());
        Reply::Later(Box::pin(async move { reserve_shared(&limiter, &question, ttl).await }))
    }

    fn fault(&self) -> Option<&'static str> {
        hands_out_permits(self.policies()).then_some(NO_PERMITS)
    }
}

/// The error message for a concurrency limit in a middleware.
pub(crate) const NO_PERMITS: &str = "a concurrency limit cannot be used in a middleware, which would never return its \
                                     permits: take them in the handler with `acquire`";

fn hands_out_permits(policies: &PolicySet) -> bool {
    let of = |policy: &pacegate::Policy| {
        let overrides = policy.overrides.iter().flat_map(|other| &other.limits);
        policy.limits.iter().chain(overrides).any(is_permit)
    };
    policies.policies().iter().any(of)
}

pub(crate) fn is_permit(limit: &Limit) -> bool {
    limit.algorithm().holds_permits()
}

async fn decide_shared(
    limiter: &SharedLimiter,
    question: &Question,
) -> Result<Decision, CheckError> {
    if !question.limits.is_empty() {
        let key = question.key.with(|key| key.to_buf());
        return limiter.charges().check(&question.charges(key.as_ref())).await;
    }
    match question.is_key() {
        true => limiter.check_cost(&question.key, question.cost).await,
        false => limiter.check_request(&question.request()).await,
    }
}

async fn reserve_shared(
    limiter: &SharedLimiter,
    question: &Question,
    ttl: Duration,
) -> Result<Estimated, CheckError> {
    let reserved = match (question.limits.is_empty(), question.is_key()) {
        (false, _) => {
            let key = question.key.with(|key| key.to_buf());
            limiter.charges().reserve(&question.charges(key.as_ref()), ttl).await
        }
        (true, true) => limiter.reserve(&question.key, question.cost, ttl).await,
        (true, false) => limiter.reserve_request(&question.request(), ttl).await,
    };
    match reserved {
        Err(error) if is_full(&error) => {
            let decision = decide_shared(limiter, question).await?;
            Ok(Estimated { decision, reservation: None })
        }
        Err(error) => Err(error),
        Ok(Reserved { decision, reservation }) => {
            let reservation = reservation.map(|it| Box::new(it) as Box<dyn Settle>);
            Ok(Estimated { decision, reservation })
        }
    }
}

/// Returns `true` if a limiter has no room for another open reservation.
fn is_full(error: &CheckError) -> bool {
    matches!(error, CheckError::Store(StoreError::Unavailable(_)))
}

/// Returns a decision whose charge stays as it is.
fn uncorrected<F>(
    reply: Reply<Result<Decision, CheckError>, F>,
) -> Reply<Result<Estimated, CheckError>, Reserving>
where
    F: Future<Output = Result<Decision, CheckError>> + Send + 'static,
{
    let estimated = |decision| Estimated { decision, reservation: None };
    match reply {
        Reply::Now(answer) => Reply::Now(answer.map(estimated)),
        Reply::Later(deciding) => {
            Reply::Later(Box::pin(async move { deciding.await.map(estimated) }))
        }
    }
}

impl<F, L> Decide for Provided<F>
where
    F: Fn() -> L + Clone + Send + Sync + 'static,
    L: Decide,
{
    type Deciding = L::Deciding;

    fn decide(&self, question: &Question) -> Reply<Result<Decision, CheckError>, Self::Deciding> {
        (self.0)().decide(question)
    }

    fn reserve(
        &self,
        question: &Question,
        ttl: Duration,
    ) -> Reply<Result<Estimated, CheckError>, Reserving> {
        (self.0)().reserve(question, ttl)
    }

    fn fault(&self) -> Option<&'static str> {
        (self.0)().fault()
    }
}

impl<F> fmt::Debug for Provided<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Provided")
    }
}
