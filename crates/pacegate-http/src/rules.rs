//! The framework-independent part of the middleware: read a request, decide, reject, correct the charge.

use std::{
    fmt,
    sync::{Arc, OnceLock},
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderMap, HeaderName, Response, request, response};
use pacegate::{
    CheckError, Clock, CostError, Decision, Key, Limit, PolicyName, Request, StoreError,
    SystemClock, Timestamp,
};

use crate::{
    Adjustment, Decide, Estimated, Head, Headers, IntoDenial, KeyParts, Missing, Question, Reply,
    Reserving, ResetStyle, Resolve, Settlement, Settling, decide, refusal,
};

/// A limiter with the rules of a middleware: the key, the cost and the limits of a request, which requests are skipped,
/// and how denials are answered.
///
/// With the default type parameters it is a tower layer, see [`RateLimitLayer`]. `Q` is the head of a request, `A` the
/// head of a response, and `R` the response to a request that is not served. Middleware for a framework with other
/// types implements [`Exchange`](crate::Exchange).
///
/// A request passes these steps:
///
/// 1. If [`skip`](Self::skip) returns `true`, the request is served without a limit.
/// 2. The resolvers of [`by`](Self::by) and [`attribute`](Self::attribute) read the key. [`Missing`] describes what
///    happens if a value is missing: a refusal, a shared counter, or a skipped request.
/// 3. The limiter charges the [cost](Self::cost) to its policies, or to the limits of [`limits`](Self::limits).
/// 4. A denial is answered by [`deny_with`](Self::deny_with), or with 429 and problem details.
/// 5. When the response is known, [`settle_with`](Self::settle_with) may correct the charge.
///
/// If the store of a `SharedLimiter` fails, the failure modes of the policies decide; the middleware itself never fails
/// a request for that reason.
pub struct Rules<L, Q = request::Parts, A = response::Parts, R = Response<Bytes>> {
    limiter: L,
    names: Arc<[String]>,
    resolvers: Vec<Arc<dyn Resolve<Q>>>,
    domain: Option<Arc<str>>,
    cost: Option<Choice<Q, u64>>,
    skip: Option<Choice<Q, bool>>,
    limits: Option<Choice<Q, Limits>>,
    deny: Deny<Q, R>,
    settle: Option<Choice<A, Adjustment>>,
    /// True if charges are corrected at the end of responses.
    defers: bool,
    settle_within: Duration,
    headers: Headers,
    describes: bool,
    clock: Arc<dyn Clock>,
    /// The reason that the limiter cannot be used in a middleware, see [`Decide::fault`].
    fault: Option<&'static str>,
}

/// A tower layer that limits the requests to a service: axum, tonic, hyper and all other services of
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
///
/// ```
/// use axum::{Router, routing::get};
/// use pacegate::{Limit, Limiter};
/// use pacegate_http::{RateLimitLayer, resolve::Everyone};
/// use tower::ServiceExt;
///
/// # pollster::block_on(async {
/// let layer = RateLimitLayer::new(Limiter::memory(Limit::per_minute(1))).by(Everyone);
/// let app = Router::new().route("/", get(|| async { "hello" })).layer(layer);
/// let request = || http::Request::new(axum::body::Body::empty());
/// let first = app.clone().oneshot(request()).await?;
/// let second = app.oneshot(request()).await?;
/// assert_eq!((first.status().as_u16(), second.status().as_u16()), (200, 429));
/// assert!(second.headers().contains_key("retry-after"));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
///
/// Cloning a layer is cheap, and all clones share the limiter. Put the layer outside of expensive layers, such as
/// decompression, and inside of the layer that authenticates, if it counts by user.
///
/// `B` is the body type of rejections; it must convert to the body type of the service.
pub type RateLimitLayer<L, B = Bytes> = Rules<L, request::Parts, response::Parts, Response<B>>;

/// The next step for a request.
#[derive(Debug)]
pub enum Asked {
    /// Serve it without a limit.
    Skip,
    /// Ask the limiter.
    Ask(Question),
    /// Reject it.
    Refuse(Refusal),
}

/// The reason that a request is not served.
///
/// Passed to [`Rules::deny_with`]. The default response is the one named at each variant. Only a denial has rate limit
/// headers.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Refusal {
    /// The limiter denied it: 429, or `RESOURCE_EXHAUSTED` over gRPC.
    Denied(Decision),
    /// Its cost is above the limit, so it can never be admitted: 400, or `INVALID_ARGUMENT`.
    Cost(CostError),
    /// It lacks the attribute of this name: 400, or `INVALID_ARGUMENT`.
    Missing(String),
    /// The program is misconfigured; the text is the change that it needs: 500, or `INTERNAL`.
    Misconfigured(&'static str),
    /// The store does not support a limit, which is a mistake of the program: 500, or `INTERNAL`.
    Unsupported(StoreError),
}

/// Default of [`Rules::settle_within`]: longer than most responses of language models take.
pub(crate) const DEFAULT_SETTLE_WITHIN: Duration = Duration::from_secs(10 * 60);

pub(crate) type Choice<H, T> = Arc<dyn Fn(&H) -> T + Send + Sync>;
type Deny<Q, R> = Arc<dyn Fn(&Refusal, &Q, Option<&Question>) -> R + Send + Sync>;
type Limits = Vec<(PolicyName, Limit)>;

impl<L: Decide, Q: Head + 'static, A: 'static> Rules<L, Q, A> {
    /// Creates rules around a limiter. All requests share one counter until [`Rules::by`] or [`Rules::attribute`] is
    /// called.
    ///
    /// A middleware cannot use a concurrency limit: a request would take a permit and never return it. If the limiter
    /// has one, all requests are answered with 500 and problem details that name the mistake.
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
            deny: Arc::new(refusal::response),
            settle: None,
            defers: false,
            settle_within: DEFAULT_SETTLE_WITHIN,
            headers: Headers::default(),
            describes: false,
            clock: Arc::new(SystemClock::new()),
        }
    }
}

impl<L: Decide, Q: Head + 'static, A: 'static, R: 'static> Rules<L, Q, A, R> {
    /// Counts requests by the key that `resolver` returns.
    ///
    /// A request without a key is answered with 400; [`ResolveExt`](crate::ResolveExt) has other choices.
    /// [`Limiter::check`](pacegate::Limiter::check) with the same key uses the same counter. For a key of several
    /// parts, combine resolvers: a second call replaces the first.
    ///
    /// ```
    /// use pacegate::{Limit, Limiter};
    /// use pacegate_http::{RateLimitLayer, resolve::{ClientAddress, Path, ResolveExt}};
    ///
    /// let layer = RateLimitLayer::new(Limiter::memory(Limit::per_minute(100)))
    ///     .by(ClientAddress::behind(1).and(Path));
    /// # let _ = layer;
    /// ```
    #[must_use]
    pub fn by(self, resolver: impl Resolve<Q>) -> Self {
        self.attribute(Request::KEY, resolver)
    }

    /// Counts requests by the key that a closure returns. Unlike with [`Rules::by`], the compiler infers the type of
    /// its argument: `.key(|head| head.uri.query().map(str::to_owned))`.
    ///
    /// ```
    /// use pacegate::{Limit, Limiter};
    /// use pacegate_http::RateLimitLayer;
    ///
    /// let layer = RateLimitLayer::new(Limiter::memory(Limit::per_minute(100)))
    ///     .key(|head| head.headers.get("x-tenant").map(|tenant| tenant.as_bytes().to_vec()));
    /// # let _ = layer;
    /// ```
    #[must_use]
    pub fn key<K: Key>(self, key: impl Fn(&Q) -> Option<K> + Send + Sync + 'static) -> Self {
        self.by(key)
    }

    /// Adds an attribute that policies can match and count by. A request is charged to all policies that apply to it or
    /// to none. A second attribute of the same name replaces the first.
    ///
    /// ```
    /// use pacegate::{Limiter, policy::{Condition, Policy, PolicySet}};
    /// use pacegate_http::{RateLimitLayer, resolve::{ClientAddress, Path}};
    ///
    /// let policies = PolicySet::new([
    ///     Policy::new("login", ["5/minute"]).matching("path", Condition::equal("/login")).per(["ip"]),
    ///     Policy::new("site", ["1000/second"]),
    /// ])?;
    /// let limiter = Limiter::builder().policies(policies).build()?;
    /// let layer = RateLimitLayer::new(limiter)
    ///     .attribute("path", Path)
    ///     .attribute("ip", ClientAddress::behind(1));
    /// # let _ = layer;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
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

    /// Sets the domain of the requests. Default: the default domain.
    #[must_use]
    pub fn domain(self, domain: &str) -> Self {
        Self { domain: Some(domain.into()), ..self }
    }

    /// Sets the cost of a request. Default: 1. A cost of 0 is a peek; [`Rules::settle_with`] can charge the actual cost
    /// afterwards.
    ///
    /// A cost above the capacity of a limit is answered with 400. If it comes from the client, such as the length of a
    /// list, bound it with [`Policy::max_cost`](pacegate::Policy::max_cost).
    #[must_use]
    pub fn cost(self, cost: impl Fn(&Q) -> u64 + Send + Sync + 'static) -> Self {
        Self { cost: Some(Arc::new(cost)), ..self }
    }

    /// Skips requests for which `skip` returns `true`: they are not limited and get no headers.
    ///
    /// Do not skip by a header that clients can set: they would set it.
    #[must_use]
    pub fn skip(self, skip: impl Fn(&Q) -> bool + Send + Sync + 'static) -> Self {
        Self { skip: Some(Arc::new(skip)), ..self }
    }

    /// Chooses the limits of each request, for example by plan or by tenant. They replace the limits of the limiter and
    /// are charged all or nothing. If `limits` returns none, the limits of the limiter apply.
    ///
    /// Counters are kept by name, so use different names for limits that differ in period or algorithm.
    ///
    /// ```
    /// use pacegate::{Limit, Limiter, PolicyName};
    /// use pacegate_http::{RateLimitLayer, resolve::Header};
    ///
    /// let paid: PolicyName = "paid".parse()?;
    /// let layer = RateLimitLayer::new(Limiter::memory(Limit::per_minute(10)))
    ///     .by(Header::from_static("x-user"))
    ///     .limits(move |head| {
    ///         // An outer layer has checked this header.
    ///         let is_paid = head.headers.get("x-plan").is_some_and(|plan| plan == "paid");
    ///         is_paid.then_some((paid, Limit::per_minute(1_000)))
    ///     });
    /// # let _ = layer;
    /// # Ok::<(), pacegate::policy::PolicyNameError>(())
    /// ```
    #[must_use]
    pub fn limits<I>(self, limits: impl Fn(&Q) -> I + Send + Sync + 'static) -> Self
    where
        I: IntoIterator<Item = (PolicyName, Limit)>,
    {
        let limits = move |head: &Q| limits(head).into_iter().collect();
        Self { limits: Some(Arc::new(limits)), ..self }
    }

    /// Adds an attribute whose value a closure returns. Unlike with [`Rules::attribute`], the compiler infers the type
    /// of its argument.
    #[must_use]
    pub fn attribute_with<K: Key>(
        self,
        name: impl Into<String>,
        value: impl Fn(&Q) -> Option<K> + Send + Sync + 'static,
    ) -> Self {
        self.attribute(name, value)
    }

    /// Sets the response to requests that are not served: a response of the framework, or another type that
    /// [`IntoDenial`] lists. The rate limit headers are added to it.
    ///
    /// ```
    /// use axum::{Router, http::StatusCode, routing::get};
    /// use pacegate::{Limit, Limiter};
    /// use pacegate_http::{RateLimitLayer, Refusal, resolve::PeerAddress};
    ///
    /// let layer = RateLimitLayer::new(Limiter::memory(Limit::per_minute(10)))
    ///     .by(PeerAddress::new())
    ///     .deny_with(|refusal, _head| match refusal {
    ///         Refusal::Denied(_) => (StatusCode::TOO_MANY_REQUESTS, "Slow down."),
    ///         _ => (StatusCode::BAD_REQUEST, "This request cannot be counted."),
    ///     });
    /// let app: Router = Router::new().route("/", get(|| async { "hello" })).layer(layer);
    /// # let _ = app;
    /// ```
    #[must_use]
    pub fn deny_with<T: IntoDenial<Q>>(
        self,
        deny: impl Fn(&Refusal, &Q) -> T + Send + Sync + 'static,
    ) -> Rules<L, Q, A, T::Response> {
        self.denying(Arc::new(move |refusal, head, _| deny(refusal, head).into_denial(refusal)))
    }

    /// Converts the responses to requests that are not served to another type.
    #[must_use]
    pub fn map_denials<T>(
        self,
        map: impl Fn(R, &Refusal) -> T + Send + Sync + 'static,
    ) -> Rules<L, Q, A, T> {
        let deny = Arc::clone(&self.deny);
        self.denying(Arc::new(move |refusal, head, question| {
            map(deny(refusal, head, question), refusal)
        }))
    }

    fn denying<T>(self, deny: Deny<Q, T>) -> Rules<L, Q, A, T> {
        Rules {
            limiter: self.limiter,
            names: self.names,
            resolvers: self.resolvers,
            domain: self.domain,
            cost: self.cost,
            skip: self.skip,
            limits: self.limits,
            deny,
            settle: self.settle,
            defers: self.defers,
            settle_within: self.settle_within,
            headers: self.headers,
            describes: self.describes,
            clock: self.clock,
            fault: self.fault,
        }
    }

    /// Corrects the charge when the response is known, before it is sent: refunds units, or charges more.
    ///
    /// To count only some responses, charge every request and refund the others: this is exact. If requests cost 0
    /// first and are charged afterwards, requests that run at the same time can exceed the limit.
    ///
    /// The cost of each request is [reserved](pacegate::Limiter::reserve), so refunded units return to where they were
    /// charged. If the window of the charge has ended, nothing is refunded, because the current window has other
    /// requests. A request without a response keeps its charge, for example if its client disconnects or the service
    /// fails. Over a store, each correction is one more round trip, before the response is sent.
    ///
    /// If the store does not answer the request, the failure mode of each policy decides: `local` reserves and corrects
    /// in this process, `open` charges nothing. If it does not answer the correction, the charge stays as it is until
    /// its window ends, and additional units are not charged.
    ///
    /// Custom algorithms and the layouts of `pacegate-redis` have no reservations: requests are then answered with 500
    /// and problem details that name the mistake.
    ///
    /// The headers show the decision before the correction. The next response shows the corrected counter.
    ///
    /// ```
    /// use pacegate::{Limit, Limiter};
    /// use pacegate_http::{Adjustment, RateLimitLayer, resolve::PeerAddress};
    ///
    /// // Counts only failed logins.
    /// let layer = RateLimitLayer::new(Limiter::memory(Limit::per_minute(5)))
    ///     .by(PeerAddress::new())
    ///     .settle_with(|response| match response.status.is_success() {
    ///         true => Adjustment::Refund,
    ///         false => Adjustment::Keep,
    ///     });
    /// # let _ = layer;
    /// ```
    #[must_use]
    pub fn settle_with(self, settle: impl Fn(&A) -> Adjustment + Send + Sync + 'static) -> Self {
        Self { settle: Some(Arc::new(settle)), ..self }
    }

    /// Sets the time after which a charge is no longer corrected. Default: ten minutes. Maximum: seven days. Choose it
    /// longer than a response can take: a response that ends later keeps the whole charge.
    #[must_use]
    pub fn settle_within(self, settle_within: Duration) -> Self {
        Self { settle_within, ..self }
    }

    /// Sets the headers of responses.
    ///
    /// `Headers::OFF` sends only `Retry-After` with denials. Use it if the limits should stay private.
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

    /// Sets the clock for `X-RateLimit-Reset`. Default: the system clock.
    #[must_use]
    pub fn clock(self, clock: impl Clock) -> Self {
        Self { clock: Arc::new(clock), ..self }
    }

    /// Resolves the key, cost and limits of a request.
    ///
    /// The first step of an adapter for another framework. It reads the head only and does not charge.
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
                Some(ResetStyle::Delta | ResetStyle::Off) | None => Timestamp::EPOCH,
            },
        })
    }

    /// Charges the limiter and returns its decision. If the returned future is dropped, the request may have been
    /// charged.
    pub fn decide(&self, question: &Question) -> Reply<Result<Decision, CheckError>, L::Deciding> {
        self.limiter.decide(question)
    }

    /// The same as [`Rules::decide`], for rules whose charges are corrected by responses, see [`Rules::settles`].
    pub fn reserve(&self, question: &Question) -> Reply<Result<Estimated, CheckError>, Reserving> {
        self.limiter.reserve(question, self.settle_within)
    }

    /// Returns the decision if the request is to be served, or else the reason that it is not.
    pub fn admit(&self, answer: Result<Decision, CheckError>) -> Result<Decision, Refusal> {
        match answer {
            Ok(decision) if decision.is_allowed() => Ok(decision),
            Ok(decision) => Err(Refusal::Denied(decision)),
            Err(CheckError::Cost(error)) => Err(Refusal::Cost(error)),
            Err(CheckError::Store(error)) => Err(Refusal::Unsupported(error)),
            Err(other) => Err(Refusal::Unsupported(StoreError::Failed(other.to_string()))),
        }
    }

    /// Returns the response to a request that is not served, without the rate limit headers. `question` is `None` if
    /// the limiter was not called.
    pub fn deny(&self, refusal: &Refusal, head: &Q, question: Option<&Question>) -> R {
        (self.deny)(refusal, head, question.filter(|_| self.describes))
    }

    /// Adds the rate limit headers to a served response. Headers of an inner layer stay, because it has decided later
    /// and may have denied. `asked` is the time of the question, see [`Question::asked`].
    pub fn write_headers(&self, decision: &Decision, asked: Timestamp, headers: &mut HeaderMap) {
        self.headers.add(decision, asked, headers);
    }

    /// Returns whether a response already has rate limit headers, see [`Rules::write_headers`].
    pub fn has_headers(&self, has: impl Fn(&HeaderName) -> bool) -> bool {
        self.headers.are_in(has)
    }

    /// Passes the name and value of each header to `put`, for frameworks with other types than [`HeaderMap`].
    pub fn each_header(
        &self,
        decision: &Decision,
        asked: Timestamp,
        mut put: impl FnMut(HeaderName, Bytes),
    ) {
        self.headers.each(decision, asked, |name, text| {
            put(name, text.into_bytes());
            true
        });
    }

    /// Returns whether charges are corrected by responses, so that [`Rules::settle`] has an effect.
    pub fn settles(&self) -> bool {
        self.settle.is_some() || self.defers
    }

    /// Corrects charges at the end of responses.
    #[cfg(feature = "usage")]
    pub(crate) fn deferring(self) -> Self {
        Self { defers: true, ..self }
    }

    pub(crate) fn defers(&self) -> bool {
        self.defers
    }

    /// Corrects the charge of an admitted request by its response.
    pub fn settle(&self, settlement: Settlement, answer: &A) -> Reply<(), Settling> {
        settlement.adjust(self.adjustment(answer))
    }

    /// Returns the adjustment that [`Rules::settle_with`] chooses for a response.
    pub(crate) fn adjustment(&self, answer: &A) -> Adjustment {
        self.settle.as_ref().map(|settle| settle(answer)).unwrap_or_default()
    }
}

impl<L: Decide, Q: Head + 'static, A: 'static, B: 'static> Rules<L, Q, A, Response<B>> {
    /// Returns the response to a request that is not served, with the rate limit headers if the limiter denied it.
    pub(crate) fn refuse(
        &self,
        refusal: &Refusal,
        head: &Q,
        question: Option<&Question>,
    ) -> Response<B> {
        let mut response = self.deny(refusal, head, question);
        if let (Refusal::Denied(decision), Some(question)) = (refusal, question) {
            self.headers.write(decision, question.now, response.headers_mut());
        }
        response
    }
}

impl<L: Clone, Q, A, R> Clone for Rules<L, Q, A, R> {
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
            defers: self.defers,
            settle_within: self.settle_within,
            headers: self.headers,
            describes: self.describes,
            clock: self.clock.clone(),
            fault: self.fault,
        }
    }
}

impl<L, Q, A, R> fmt::Debug for Rules<L, Q, A, R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Rules")
            .field("attributes", &self.names)
            .field("domain", &self.domain)
            .field("headers", &self.headers)
            .finish_non_exhaustive()
    }
}
