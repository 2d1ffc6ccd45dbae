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
    Charge, CheckError, Decision, Key, KeyRef, Limit, Limiter, Plan, PolicyName, PolicySet,
    Request, SharedLimiter, Timestamp,
};
use smallvec::SmallVec;

use crate::KeyParts;

/// A limiter for the middleware: a [`Limiter`], a [`SharedLimiter`], a closure that returns one ([`Provided`]), or a
/// custom type, which creates its decisions with [`Decision::admission`] and [`Decision::denial`].
///
/// The middleware boxes no futures. A limiter that decides without waiting returns [`Reply::Now`]; otherwise the
/// middleware polls the returned future. The future of a [`SharedLimiter`] is boxed.
///
/// ```
/// use std::{future::{Pending, Ready}, time::Duration};
/// use pacegate::{CheckError, Decision, Limit, PolicyName};
/// use pacegate_http::{Adjustment, Decide, Question, Reply};
///
/// /// Denies everything, for example during maintenance.
/// #[derive(Clone)]
/// struct Maintenance;
///
/// impl Decide for Maintenance {
///     type Deciding = Pending<Result<Decision, CheckError>>;
///     type Settling = Ready<()>;
///
///     fn decide(&self, _: &Question) -> Reply<Result<Decision, CheckError>, Self::Deciding> {
///         let (policy, limit) = (PolicyName::DEFAULT, Limit::per_minute(0));
///         Reply::Now(Ok(Decision::denial(policy, limit, 0, Some(Duration::from_secs(60)))))
///     }
///
///     fn settle(&self, _: &Question, _: &Decision, _: Adjustment) -> Reply<(), Self::Settling> {
///         Reply::Now(())
///     }
/// }
/// # let _ = pacegate_http::RateLimitLayer::new(Maintenance);
/// ```
pub trait Decide: Clone + Send + Sync + 'static {
    /// The future of a decision. Dropping it must not charge anything that is not charged yet.
    type Deciding: Future<Output = Result<Decision, CheckError>> + Send;

    /// The future of a correction.
    type Settling: Future<Output = ()> + Send;

    /// Charges the cost of a request to all its limits, all or nothing.
    fn decide(&self, question: &Question) -> Reply<Result<Decision, CheckError>, Self::Deciding>;

    /// Returns an error message if this limiter cannot be used in a middleware, for example because it has a
    /// concurrency limit. Default: `None`.
    fn fault(&self) -> Option<&'static str> {
        None
    }

    /// Corrects the charge of an allowed request, once its response is known. `decision` is the one that allowed it.
    ///
    /// A correction that fails is skipped. Units that were not charged must not be refunded: a
    /// [degraded](Decision::is_degraded) decision took nothing from the store.
    fn settle(
        &self,
        question: &Question,
        decision: &Decision,
        by: Adjustment,
    ) -> Reply<(), Self::Settling>;
}

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
    /// The time before the decision, for headers and for refunds.
    pub(crate) now: Timestamp,
    /// The time at which the response was known.
    pub(crate) settled: Timestamp,
}

/// The correction of the charge for a request, once its response is known.
///
/// A charge afterwards cannot deny the request, which has been served. If the limit must never be exceeded, charge the
/// highest possible cost first, and refund the rest.
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
    /// Charges this number of additional units. If fewer are left, charges those. The response is sent in any case.
    Charge(u64),
    /// Corrects the charge to this number of units, which the request has used: refunds the rest, or records more as
    /// [debt](pacegate::Excess::Debt), which later requests wait for.
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

    /// Returns the time of the request, if a header or a correction of the charge needs it; otherwise the Unix epoch.
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

    /// Calls `then` with the charges for the limits of this request.
    fn with_charges<R>(&self, then: impl FnOnce(&[Charge<'_>]) -> R) -> R {
        self.key.with(|key| {
            let charge = |&(policy, limit): &_| Charge::new(policy, key, limit).cost(self.cost);
            then(&self.limits.iter().map(charge).collect::<SmallVec<[_; 1]>>())
        })
    }

    fn is_key(&self) -> bool {
        self.names.is_none() && self.domain.is_none()
    }

    /// Returns the question with the units that an adjustment refunds as its cost.
    fn refunded(&self, by: Adjustment) -> Self {
        let units = match by {
            Adjustment::Refund => self.cost,
            Adjustment::RefundUnits(units) => units.min(self.cost),
            Adjustment::Actual(units) => self.cost.saturating_sub(units),
            Adjustment::Keep | Adjustment::Charge(_) => 0,
        };
        self.at_cost(units)
    }

    /// Returns the question with the units beyond the charge as its cost, if an adjustment records any.
    fn exceeded(&self, by: Adjustment) -> Option<Self> {
        match by {
            Adjustment::Actual(units) if units > self.cost => Some(self.at_cost(units - self.cost)),
            _ => None,
        }
    }

    /// Returns `true` if the charge to a limit no longer counts. A refund would then return units that other requests
    /// have used since.
    fn is_over(&self, policy: PolicyName, limit: &Limit, decision: &Decision) -> bool {
        let passed = Duration::from_micros(self.settled.micros_since(self.now));
        if (decision.policy(), decision.limit()) == (Some(policy), Some(*limit)) {
            return passed >= decision.reset_after();
        }
        self.settled >= limit.counts_until(self.now)
    }

    /// Returns the charges to refund for the limits of this request.
    fn own_taken<'a>(&self, key: KeyRef<'a>, decision: &Decision) -> Vec<Charge<'a>> {
        let counts = |(policy, limit): &&_| !self.is_over(*policy, limit, decision);
        let charge = |&(policy, limit): &_| Charge::new(policy, key, limit).cost(self.cost);
        self.limits.iter().filter(counts).map(charge).collect()
    }

    /// Returns the charges to refund for the limits of a plan. `key` is the key of this question. If a policy in shadow
    /// mode would have denied the request, policies in shadow mode are left out, because they may have taken nothing.
    fn taken<'a>(
        &self,
        plan: &'a Plan<'_>,
        policies: &PolicySet,
        key: KeyRef<'a>,
        decision: &Decision,
    ) -> Vec<Charge<'a>> {
        let mut charges = plan.charges(self.cost).unwrap_or_default();
        charges.retain(|charge| {
            let taken = charge.enforced || !decision.is_shadow_denied();
            taken && !self.is_over(charge.policy, &charge.limit, decision)
        });
        self.set_key(&mut charges, policies, key);
        charges
    }

    /// Returns the charges that record the cost as spent, to the limits of this request or those of a plan.
    fn spent<'a>(
        &self,
        plan: &'a Plan<'_>,
        policies: &PolicySet,
        key: KeyRef<'a>,
    ) -> Vec<Charge<'a>> {
        let mut charges = match self.limits.is_empty() {
            // A cost of 0 never exceeds a limit.
            true => plan.charges(0).unwrap_or_default(),
            false => {
                let charge = |&(policy, limit): &_| Charge::new(policy, key, limit);
                self.limits.iter().map(charge).collect()
            }
        };
        self.set_key(&mut charges, policies, key);
        charges.into_iter().map(|charge| charge.cost(self.cost).spent()).collect()
    }

    fn set_key<'a>(&self, charges: &mut [Charge<'a>], policies: &PolicySet, key: KeyRef<'a>) {
        let whole = |charge: &&mut Charge<'_>| {
            let policy = policies.get(charge.policy);
            self.is_key() && policy.is_some_and(|policy| policy.per == [Request::KEY])
        };
        // A request that is only a key was checked with this key, which may have several parts.
        for charge in charges.iter_mut().filter(whole) {
            if charge.tag == charge.key {
                charge.tag = key;
            }
            charge.key = key;
        }
    }
}

/// Decides in this process, always with [`Reply::Now`].
impl Decide for Limiter {
    type Deciding = Pending<Result<Decision, CheckError>>;
    type Settling = Pending<()>;

    fn decide(&self, question: &Question) -> Reply<Result<Decision, CheckError>, Self::Deciding> {
        if !question.limits.is_empty() {
            let decision = question.with_charges(|charges| self.charges().check(charges));
            return Reply::Now(decision.map_err(CheckError::from));
        }
        Reply::Now(match (question.is_key(), question.cost) {
            (true, 1) => Ok(self.check(&question.key)),
            (true, cost) => self.check_cost(&question.key, cost).map_err(CheckError::from),
            (false, _) => self.check_request(&question.request()).map_err(CheckError::from),
        })
    }

    fn fault(&self) -> Option<&'static str> {
        hands_out_permits(self.policies()).then_some(NO_PERMITS)
    }

    fn settle(
        &self,
        question: &Question,
        decision: &Decision,
        by: Adjustment,
    ) -> Reply<(), Self::Settling> {
        match by {
            Adjustment::Keep => {}
            Adjustment::Charge(units) => {
                let mut ask = units;
                while let Reply::Now(answer) = self.decide(&question.at_cost(ask)) {
                    let Some(less) = less_than(ask, &answer) else { break };
                    ask = less;
                }
            }
            Adjustment::Refund | Adjustment::RefundUnits(_) | Adjustment::Actual(_) => {
                if let Some(exceeded) = question.exceeded(by) {
                    let plan = self.charges().plan(&exceeded.request());
                    // Recorded even though the answer is a denial.
                    let _ = exceeded.key.with(|key| {
                        self.charges().check(&exceeded.spent(&plan, self.policies(), key))
                    });
                    return Reply::Now(());
                }
                let refunded = question.refunded(by);
                refunded.key.with(|key| match refunded.limits.is_empty() {
                    true => {
                        let plan = self.charges().plan(&refunded.request());
                        let taken = refunded.taken(&plan, self.policies(), key, decision);
                        self.charges().refund(&taken);
                    }
                    false => self.charges().refund(&refunded.own_taken(key, decision)),
                });
            }
        }
        Reply::Now(())
    }
}

/// Decides over a store. Each decision is boxed, because the futures of a [`SharedLimiter`] cannot be named.
impl Decide for SharedLimiter {
    type Deciding = Pin<Box<dyn Future<Output = Result<Decision, CheckError>> + Send>>;
    type Settling = Pin<Box<dyn Future<Output = ()> + Send>>;

    fn decide(&self, question: &Question) -> Reply<Result<Decision, CheckError>, Self::Deciding> {
        let (limiter, question) = (self.clone(), question.clone());
        Reply::Later(Box::pin(async move { decide_shared(&limiter, &question).await }))
    }

    fn fault(&self) -> Option<&'static str> {
        hands_out_permits(self.policies()).then_some(NO_PERMITS)
    }

    fn settle(
        &self,
        question: &Question,
        decision: &Decision,
        by: Adjustment,
    ) -> Reply<(), Self::Settling> {
        let refunds = !matches!(by, Adjustment::Charge(_)) && question.exceeded(by).is_none();
        // A degraded decision charged nothing in the store, so a refund would return units of other requests.
        if by == Adjustment::Keep || refunds && decision.is_degraded() {
            return Reply::Now(());
        }
        let (limiter, question, decision) = (self.clone(), question.clone(), *decision);
        Reply::Later(Box::pin(async move {
            match (by, question.exceeded(by)) {
                (Adjustment::Charge(units), _) => charge_more(&limiter, &question, units).await,
                (_, Some(exceeded)) => record_shared(&limiter, &exceeded).await,
                _ => refund_shared(&limiter, &question.refunded(by), &decision).await,
            }
        }))
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
        let charge =
            |&(policy, limit): &_| Charge::new(policy, key.as_ref(), limit).cost(question.cost);
        let charges: SmallVec<[_; 1]> = question.limits.iter().map(charge).collect();
        return limiter.charges().check(&charges).await;
    }
    match question.is_key() {
        true => limiter.check_cost(&question.key, question.cost).await,
        false => limiter.check_request(&question.request()).await,
    }
}

async fn charge_more(limiter: &SharedLimiter, question: &Question, units: u64) {
    let mut ask = units;
    while let Some(less) = less_than(ask, &decide_shared(limiter, &question.at_cost(ask)).await) {
        ask = less;
    }
}

/// Records the cost as spent. A failure of the store is recorded by the limiter and ignored here.
async fn record_shared(limiter: &SharedLimiter, exceeded: &Question) {
    let key = exceeded.key.with(|key| key.to_buf());
    let plan = limiter.charges().plan(&exceeded.request());
    let charges = exceeded.spent(&plan, limiter.policies(), key.as_ref());
    let _ = limiter.charges().check(&charges).await;
}

/// Refunds charges. A failure of the store is recorded by the limiter and ignored here.
async fn refund_shared(limiter: &SharedLimiter, refunded: &Question, decision: &Decision) {
    let key = refunded.key.with(|key| key.to_buf());
    let key = key.as_ref();
    let plan;
    let charges = match refunded.limits.is_empty() {
        true => {
            plan = limiter.charges().plan(&refunded.request());
            refunded.taken(&plan, limiter.policies(), key, decision)
        }
        false => refunded.own_taken(key, decision),
    };
    let _ = limiter.charges().refund(&charges).await;
}

/// Returns the units to try next if `asked` units were too many. Always fewer than before, so retries end.
fn less_than(asked: u64, answer: &Result<Decision, CheckError>) -> Option<u64> {
    let left = match answer {
        Ok(decision) if !decision.is_allowed() => decision.remaining(),
        Err(CheckError::Cost(error)) => error.max,
        _ => 0,
    };
    (1..asked).contains(&left).then_some(left)
}

impl<F, L> Decide for Provided<F>
where
    F: Fn() -> L + Clone + Send + Sync + 'static,
    L: Decide,
{
    type Deciding = L::Deciding;
    type Settling = L::Settling;

    fn decide(&self, question: &Question) -> Reply<Result<Decision, CheckError>, Self::Deciding> {
        (self.0)().decide(question)
    }

    fn fault(&self) -> Option<&'static str> {
        (self.0)().fault()
    }

    fn settle(
        &self,
        question: &Question,
        decision: &Decision,
        by: Adjustment,
    ) -> Reply<(), Self::Settling> {
        (self.0)().settle(question, decision, by)
    }
}

impl<F> fmt::Debug for Provided<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Provided")
    }
}
