//! What is done with a request, whichever framework it comes through: the part that all middleware shares.

use std::{
    fmt,
    sync::{Arc, OnceLock},
};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, Response, request, response};
use pacegate::{
    CheckError, Clock, CostError, Decision, Limit, PolicyName, Request, StoreError, SystemClock,
    Timestamp,
};

use crate::{
    Adjustment, Decide, Head, Headers, KeyParts, Missing, Question, Reply, ResetStyle, Resolve,
    decide, refusal,
};

/// Whose budget, at which cost, under which limits, who is let through unasked, and what is answered: separate choices
/// around a limiter.
///
/// With its defaults it is a tower layer, see [`RateLimitLayer`]. `Q` is the head of a request and `A` that of a
/// response; middleware for frameworks with types of their own is an adapter that calls [`Rules::ask`],
/// [`Rules::decide`], [`Rules::refuse`] and [`Rules::settle`] in this order.
pub struct Rules<L, Q = request::Parts, A = response::Parts> {
    limiter: L,
    names: Arc<[String]>,
    resolvers: Vec<Arc<dyn Resolve<Q>>>,
    domain: Option<Arc<str>>,
    cost: Option<Choice<Q, u64>>,
    skip: Option<Choice<Q, bool>>,
    limits: Option<Choice<Q, Limits>>,
    deny: Option<Deny<Q>>,
    settle: Option<Choice<A, Adjustment>>,
    headers: Headers,
    describes: bool,
    clock: Arc<dyn Clock>,
    /// Why the limiter decides about nothing, see [`Decide::fault`].
    fault: Option<&'static str>,
}

/// A tower layer that limits the requests to a service, for axum, tonic, hyper and everything else that speaks
/// [`http::Request`].
///
/// ```
/// use pacegate::{Limit, Limiter};
/// use pacegate_http::{RateLimitLayer, resolve::PeerAddress};
///
/// let limiter = Limiter::memory(Limit::per_minute(100));
/// let layer = RateLimitLayer::new(limiter)
///     .by(PeerAddress::new())
///     .skip(|head| head.uri.path() == "/health")
///     .cost(|head| if head.method == http::Method::GET { 1 } else { 5 });
/// ```
pub type RateLimitLayer<L> = Rules<L, request::Parts, response::Parts>;

/// What is to be done with a request.
#[derive(Debug)]
pub enum Asked {
    /// Nothing: it passes unlimited.
    Skip,
    /// To decide this.
    Ask(Question),
    /// To refuse it.
    Refuse(Refusal),
}

/// Why a request is not served.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refusal {
    /// It is denied: 429, or `RESOURCE_EXHAUSTED` over gRPC.
    Denied(Decision),
    /// It costs more than could ever be admitted: 400, or `INVALID_ARGUMENT`.
    Cost(CostError),
    /// It lacks the attribute of this name: 400, or `INVALID_ARGUMENT`.
    Missing(String),
    /// The program does not provide what requests are counted by, and this is what to change: 500, or `INTERNAL`.
    Misconfigured(&'static str),
    /// The store cannot do what the limits want of it, a mistake of the program: 500, or `INTERNAL`.
    Unsupported(StoreError),
}

pub(crate) type Choice<H, T> = Arc<dyn Fn(&H) -> T + Send + Sync>;
type Deny<Q> = Arc<dyn Fn(&Refusal, &Q) -> Response<Bytes> + Send + Sync>;
type Limits = Vec<(PolicyName, Limit)>;

impl<L: Decide, Q: Head + 'static, A: 'static> Rules<L, Q, A> {
    /// Requests limited by `limiter`, all on one budget until [`Rules::by`] or [`Rules::attribute`] says more.
    ///
    /// A limit of concurrency is not for a middleware: a request would take a permit and never return it. If the
    /// limiter has one, all requests are answered with 500 and a problem that says so.
    pub fn new(limiter: L) -> Self {
        Self {
            fault: limiter.fault(),
            limiter,
            names: Arc::default(),
            resolvers: Vec::new(),
            domain: None,
            cost: None,
            skip: None,
            limits: None,
            deny: None,
            settle: None,
            headers: Headers::default(),
            describes: false,
            clock: Arc::new(SystemClock::new()),
        }
    }

    /// Counts by the key that `resolver` finds. A request without it is answered with 400, unless the resolver says
    /// otherwise, see [`ResolveExt`](crate::ResolveExt). [`Limiter::check`](pacegate::Limiter::check) with the same key
    /// draws on the same budget. For a key of several parts put resolvers together; of two calls, the last counts.
    #[must_use]
    pub fn by(self, resolver: impl Resolve<Q>) -> Self {
        self.attribute(Request::KEY, resolver)
    }

    /// Adds an attribute for policies to match and to count by. All policies that cover a request stand or fall
    /// together: it is charged on all of them or on none. A second one of the same name takes the place of the first.
    #[must_use]
    pub fn attribute(mut self, name: impl Into<String>, resolver: impl Resolve<Q>) -> Self {
        let (name, resolver) = (name.into(), Arc::new(resolver));
        match self.names.iter().position(|other| *other == name) {
            Some(place) => self.resolvers[place] = resolver,
            None => {
                self.names = self.names.iter().cloned().chain([name]).collect();
                self.resolvers.push(resolver);
            }
        }
        self
    }

    /// The domain that policies see; the default one if nothing is said.
    #[must_use]
    pub fn domain(self, domain: &str) -> Self {
        Self { domain: Some(domain.into()), ..self }
    }

    /// What a request costs; 1 if nothing is said. 0 only asks whether there is room, for what is
    /// [charged afterwards](Rules::settle_with).
    #[must_use]
    pub fn cost(self, cost: impl Fn(&Q) -> u64 + Send + Sync + 'static) -> Self {
        Self { cost: Some(Arc::new(cost)), ..self }
    }

    /// Lets some requests pass unlimited, and without headers.
    #[must_use]
    pub fn skip(self, skip: impl Fn(&Q) -> bool + Send + Sync + 'static) -> Self {
        Self { skip: Some(Arc::new(skip)), ..self }
    }

    /// Chooses limits for each request, in place of the limiter's own: by plan, by tenant, by whatever you know. They
    /// are charged all or nothing; for a request that gets none the limiter's own hold.
    ///
    /// State is kept by the name, so give limits that differ in period or algorithm different names.
    #[must_use]
    pub fn limits<I>(self, limits: impl Fn(&Q) -> I + Send + Sync + 'static) -> Self
    where
        I: IntoIterator<Item = (PolicyName, Limit)>,
    {
        let limits = move |head: &Q| limits(head).into_iter().collect();
        Self { limits: Some(Arc::new(limits)), ..self }
    }

    /// Answers requests that are not served in a way of your own. The headers of a denial are added to the response.
    #[must_use]
    pub fn deny_with(
        self,
        deny: impl Fn(&Refusal, &Q) -> Response<Bytes> + Send + Sync + 'static,
    ) -> Self {
        Self { deny: Some(Arc::new(deny)), ..self }
    }

    /// Corrects the charge when the response is known, before it is sent: gives back what did not count, or charges
    /// what it turned out to cost.
    ///
    /// To charge only some outcomes, charge before and refund the others: that is exact. Charging afterwards what cost
    /// 0 before lets requests that run at the same time pass together. A request that is given up, because its client
    /// went away or the service failed without a response, keeps its charge. What was decided while the store was away
    /// is not given back: the store was not charged for it. Nor is what no longer counts when the response is known,
    /// since the window of its charge is over: others may have used the one that runs.
    ///
    /// The headers tell what was decided before, and so does what `settle` sees of them: a correction shows in those of
    /// the next response.
    #[must_use]
    pub fn settle_with(self, settle: impl Fn(&A) -> Adjustment + Send + Sync + 'static) -> Self {
        Self { settle: Some(Arc::new(settle)), ..self }
    }

    /// Which headers responses carry.
    #[must_use]
    pub fn headers(self, headers: Headers) -> Self {
        Self { headers, ..self }
    }

    /// Adds `key`, `limit`, `window` (in seconds) and `retry_after` (in seconds) to the problem details of a denial.
    /// Default: off, since a denied client then reads the key that it is counted by.
    #[must_use]
    pub fn describe_denials(self) -> Self {
        Self { describes: true, ..self }
    }

    /// The clock that `X-RateLimit-Reset` and corrections go by; the system's if nothing is said.
    #[must_use]
    pub fn clock(self, clock: impl Clock) -> Self {
        Self { clock: Arc::new(clock), ..self }
    }

    /// What there is to decide about a request.
    pub fn ask(&self, head: &Q) -> Asked {
        if self.skip.as_ref().is_some_and(|skip| skip(head)) {
            return Asked::Skip;
        }
        if let Some(fault) = self.fault {
            return Asked::Refuse(Refusal::Misconfigured(fault));
        }
        let limits = self.limits.as_ref().map(|limits| limits(head)).unwrap_or_default();
        if limits.iter().any(|(_, limit)| decide::is_permit(limit)) {
            return Asked::Refuse(Refusal::Misconfigured(decide::NO_PERMITS));
        }
        let is_key = matches!(&*self.names, [name] if name == Request::KEY);
        let mut key = KeyParts::new();
        for (place, resolver) in self.resolvers.iter().enumerate() {
            key.set_lenient(self.names[place] != Request::KEY);
            match resolver.resolve(head, &mut key) {
                Ok(()) if is_key => {}
                Ok(()) => key.join(place),
                Err(missing) if key.shares(missing) => {
                    key.truncate(place);
                    key.push_missing();
                }
                Err(Missing::Skip) => return Asked::Skip,
                Err(Missing::Misconfigured(hint)) => {
                    return Asked::Refuse(Refusal::Misconfigured(hint));
                }
                Err(Missing::Reject | Missing::Unspecified | Missing::Share) => {
                    return Asked::Refuse(Refusal::Missing(self.names[place].clone()));
                }
            }
        }
        key.set_lenient(false);
        Asked::Ask(Question {
            names: (!is_key && !self.names.is_empty()).then(|| Arc::clone(&self.names)),
            key,
            whole: OnceLock::new(),
            domain: self.domain.clone(),
            cost: self.cost.as_ref().map_or(1, |cost| cost(head)),
            limits,
            now: match self.headers.legacy {
                Some(ResetStyle::Epoch) => self.clock.now(),
                Some(ResetStyle::Delta) | None if self.settles() => self.clock.now(),
                Some(ResetStyle::Delta) | None => Timestamp::EPOCH,
            },
            settled: Timestamp::EPOCH,
        })
    }

    /// Asks the limiter.
    pub fn decide(&self, question: &Question) -> Reply<Result<Decision, CheckError>, L::Deciding> {
        self.limiter.decide(question)
    }

    /// Whether a request is served by what the limiter has answered.
    pub fn admit(&self, answer: Result<Decision, CheckError>) -> Result<Decision, Refusal> {
        match answer {
            Ok(decision) if decision.is_allowed() => Ok(decision),
            Ok(decision) => Err(Refusal::Denied(decision)),
            Err(CheckError::Cost(error)) => Err(Refusal::Cost(error)),
            Err(CheckError::Store(error)) => Err(Refusal::Unsupported(error)),
            Err(other) => Err(Refusal::Unsupported(StoreError::Failed(other.to_string()))),
        }
    }

    /// The response to a request that is not served. `question` is what was asked, if anything was.
    pub fn refuse(
        &self,
        refusal: &Refusal,
        head: &Q,
        question: Option<&Question>,
    ) -> Response<Bytes> {
        let denied = match (refusal, question) {
            (Refusal::Denied(decision), Some(question)) => Some((decision, question.now)),
            _ => None,
        };
        let mut response = match &self.deny {
            Some(deny) => deny(refusal, head),
            None => refusal::response(refusal, head, question.filter(|_| self.describes)),
        };
        if let Some((decision, now)) = denied {
            self.headers.write(decision, now, response.headers_mut());
        }
        response
    }

    /// Puts what was decided into the headers of a response that is served. Those of a layer further in stay: it has
    /// decided later, and may have denied.
    /// `asked` is [when](Question::asked) it was asked.
    pub fn write_headers(&self, decision: &Decision, asked: Timestamp, headers: &mut HeaderMap) {
        self.headers.add(decision, asked, headers);
    }

    /// Whether a response that has headers of these names is to be left as it is, see [`Rules::write_headers`].
    pub fn has_headers(&self, has: impl Fn(&HeaderName) -> bool) -> bool {
        self.headers.are_in(has)
    }

    /// What [`Rules::write_headers`] writes, for frameworks with types of their own: hands the name and the value of
    /// each header to `put`.
    pub fn each_header(
        &self,
        decision: &Decision,
        question: &Question,
        mut put: impl FnMut(&'static HeaderName, Bytes),
    ) {
        self.headers.each(decision, question.now, |name, said| {
            put(name, said.into_bytes());
            true
        });
    }

    /// Whether [`Rules::settle`] has to be called at all.
    pub fn settles(&self) -> bool {
        self.settle.is_some()
    }

    /// Corrects what was charged by this decision, now that the response is known.
    pub fn settle(
        &self,
        question: &Question,
        decision: &Decision,
        answer: &A,
    ) -> Reply<(), L::Settling> {
        let adjustment = self.settle.as_ref().map(|settle| settle(answer)).unwrap_or_default();
        if adjustment == Adjustment::Keep {
            return self.limiter.settle(question, decision, adjustment);
        }
        let question = Question { settled: self.clock.now(), ..question.clone() };
        self.limiter.settle(&question, decision, adjustment)
    }
}

impl<L: Clone, Q, A> Clone for Rules<L, Q, A> {
    fn clone(&self) -> Self {
        Self {
            limiter: self.limiter.clone(),
            names: self.names.clone(),
            resolvers: self.resolvers.clone(),
            domain: self.domain.clone(),
            cost: self.cost.clone(),
            skip: self.skip.clone(),
            limits: self.limits.clone(),
            deny: self.deny.clone(),
            settle: self.settle.clone(),
            headers: self.headers,
            describes: self.describes,
            clock: self.clock.clone(),
            fault: self.fault,
        }
    }
}

impl<L, Q, A> fmt::Debug for Rules<L, Q, A> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rules")
            .field("attributes", &self.names)
            .field("domain", &self.domain)
            .field("headers", &self.headers)
            .finish_non_exhaustive()
    }
}
