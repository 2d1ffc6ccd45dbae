//! Who decides: a limiter of Pacegate, or one of your own.

use std::{
    fmt,
    future::{Future, Pending},
    pin::Pin,
    sync::{Arc, OnceLock},
    time::Duration,
};

use pacegate::{
    Charge, CheckError, Decision, Key, KeyRef, Limit, Limiter, Plan, PolicyName, PolicySet,
    Request, SharedLimiter, Timestamp,
};
use smallvec::SmallVec;

use crate::KeyParts;

/// Decides about requests: a [`Limiter`], a [`SharedLimiter`], [`Provided`] by a closure, or a limiter of your own,
/// which makes its decisions with [`Decision::admission`] and [`Decision::denial`].
///
/// Nothing is boxed here: a limiter that knows its answer gives it [at once](Reply::Now), and for another the
/// middleware keeps its future. That of a [`SharedLimiter`] is one box.
pub trait Decide: Clone + Send + Sync + 'static {
    /// A decision that takes time. Dropping it must charge nothing that has not been charged yet.
    type Deciding: Future<Output = Result<Decision, CheckError>> + Send;

    /// A correction that takes time.
    type Settling: Future<Output = ()> + Send;

    /// Charges what is asked for, all or nothing.
    fn decide(&self, question: &Question) -> Reply<Result<Decision, CheckError>, Self::Deciding>;

    /// Returns what to change in the program if this limiter cannot decide about requests.
    fn fault(&self) -> Option<&'static str> {
        None
    }

    /// Corrects what was charged for a question that was allowed by this decision. What cannot be corrected is let be,
    /// and what was not charged is not given back: a [degraded](Decision::is_degraded) decision took nothing from the
    /// store.
    fn settle(
        &self,
        question: &Question,
        decision: &Decision,
        by: Adjustment,
    ) -> Reply<(), Self::Settling>;
}

/// An answer, or the future of one.
#[derive(Clone, Copy, Debug)]
pub enum Reply<T, F> {
    /// It is known.
    Now(T),
    /// It will be.
    Later(F),
}

/// What is asked about a request: whose budget, at which cost, under which limits.
#[derive(Clone, Debug)]
pub struct Question {
    /// The names of the attributes, one for each part of `key`. None: the parts are one key.
    pub(crate) names: Option<Arc<[String]>>,
    pub(crate) key: KeyParts,
    /// The parts of `key` as one, if anybody has asked.
    pub(crate) whole: OnceLock<Box<KeyParts>>,
    pub(crate) domain: Option<Arc<str>>,
    pub(crate) cost: u64,
    pub(crate) limits: Vec<(PolicyName, Limit)>,
    /// Before it is decided, for what a client is told and for what may be given back.
    pub(crate) now: Timestamp,
    /// When its response was known, once it is.
    pub(crate) settled: Timestamp,
}

/// How the charge for a request is corrected once its response is known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Adjustment {
    /// It stays.
    #[default]
    Keep,
    /// All of it is given back.
    Refund,
    /// So much of it is given back, and no more than was charged.
    RefundUnits(u64),
    /// So much more is charged, or whatever is left of it. The response is on its way in any case.
    Charge(u64),
}

/// The limiter that a closure returns, asked anew for every request: policies that come from elsewhere and change.
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
/// // Whenever there is something new; what has been used is kept.
/// let mut current = current.write().unwrap();
/// *current = current.with_limit(Limit::per_minute(50));
/// ```
#[derive(Clone, Copy)]
pub struct Provided<F>(pub F);

impl Question {
    /// Whose budget, where the request is one key. Where it has attributes, they are its parts.
    pub fn key(&self) -> &KeyParts {
        &self.key
    }

    /// The attributes that the request has. One that is only a key has it under [`Request::KEY`], several parts as one
    /// that no others make.
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

    /// Units that are asked for; 0 is a peek.
    pub fn cost(&self) -> u64 {
        self.cost
    }

    /// The limits that were chosen for this request alone, in place of the limiter's policies.
    pub fn limits(&self) -> &[(PolicyName, Limit)] {
        &self.limits
    }

    /// When it was asked, if a header tells of that or the charge may be corrected: the epoch otherwise.
    pub fn asked(&self) -> Timestamp {
        self.now
    }

    /// The same question at another cost.
    #[must_use]
    pub fn at_cost(&self, cost: u64) -> Self {
        Self { cost, ..self.clone() }
    }

    /// As the limiters of Pacegate see it.
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

    /// What is charged for the limits of this request alone.
    fn with_charges<R>(&self, then: impl FnOnce(&[Charge<'_>]) -> R) -> R {
        self.key.with(|key| {
            let charge = |&(policy, limit): &_| Charge::new(policy, key, limit).cost(self.cost);
            then(&self.limits.iter().map(charge).collect::<SmallVec<[_; 1]>>())
        })
    }

    fn is_key(&self) -> bool {
        self.names.is_none() && self.domain.is_none()
    }

    /// What is given back by an adjustment.
    fn refunded(&self, by: Adjustment) -> Self {
        let units = match by {
            Adjustment::Refund => self.cost,
            Adjustment::RefundUnits(units) => units.min(self.cost),
            Adjustment::Keep | Adjustment::Charge(_) => 0,
        };
        self.at_cost(units)
    }

    /// Whether nothing of what a limit was charged counts any more: what would be given back is what others have used
    /// since.
    fn is_over(&self, policy: PolicyName, limit: &Limit, decision: &Decision) -> bool {
        let passed = Duration::from_micros(self.settled.micros_since(self.now));
        if (decision.policy(), decision.limit()) == (Some(policy), Some(*limit)) {
            return passed >= decision.reset_after();
        }
        self.settled >= limit.counts_until(self.now)
    }

    /// What is given back of the limits of this request alone.
    fn own_taken<'a>(&self, key: KeyRef<'a>, decision: &Decision) -> Vec<Charge<'a>> {
        let counts = |(policy, limit): &&_| !self.is_over(*policy, limit, decision);
        let charge = |&(policy, limit): &_| Charge::new(policy, key, limit).cost(self.cost);
        self.limits.iter().filter(counts).map(charge).collect()
    }

    /// What was taken by the limits of a plan, where `key` is that of this question. Policies in shadow mode of which
    /// one would have denied may have taken nothing.
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
        let whole = |charge: &&mut Charge<'_>| {
            let policy = policies.get(charge.policy);
            self.is_key() && policy.is_some_and(|policy| policy.per == [Request::KEY])
        };
        // A key that was checked as such may have any number of parts.
        for charge in charges.iter_mut().filter(whole) {
            if charge.tag == charge.key {
                charge.tag = key;
            }
            charge.key = key;
        }
        charges
    }
}

/// In this process: always at once.
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
            Adjustment::Refund | Adjustment::RefundUnits(_) => {
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

/// Over a store. Each decision is one box: the futures of a [`SharedLimiter`] have no names.
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
        let refunds = matches!(by, Adjustment::Refund | Adjustment::RefundUnits(_));
        // What the store was not charged would be given back out of what others have used.
        if by == Adjustment::Keep || refunds && decision.is_degraded() {
            return Reply::Now(());
        }
        let (limiter, question, decision) = (self.clone(), question.clone(), *decision);
        Reply::Later(Box::pin(async move {
            match by {
                Adjustment::Charge(units) => charge_more(&limiter, &question, units).await,
                _ => refund_shared(&limiter, &question.refunded(by), &decision).await,
            }
        }))
    }
}

/// The answer if a middleware has a limit of concurrency.
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

/// A store that fails here has already been counted as failing; there is nobody to tell.
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

/// What is left to charge where `asked` units were too many. Less every time, so asking on comes to an end.
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
