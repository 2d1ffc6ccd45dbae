//! A client layer for rate-limited upstream APIs: calls wait instead of being denied.
//!
//! [`StayWithinLayer`] wraps a tower client, such as that of hyper-util. Calls wait until the limiter admits them, in
//! the order of arrival for each host. The layer obeys responses: after `Retry-After`, or if `RateLimit` or
//! `X-RateLimit-*` report that nothing remains, further calls with the same key wait until there is more.
//!
//! ```
//! use std::time::Duration;
//! use pacegate::{Limit, Limiter};
//! use pacegate_http::outgoing::StayWithinLayer;
//!
//! let limiter = Limiter::memory(Limit::per_second(10));
//! let layer = StayWithinLayer::new(limiter).within(Duration::from_secs(5));
//! # let _ = layer;
//! ```
//!
//! With the feature `reqwest`, `StayWithinLayer::send` sends requests of reqwest, without tower.

#[cfg(feature = "usage")]
mod budget;
mod date;
mod learn;
mod pauses;
#[cfg(feature = "reqwest")]
mod reqwest;
mod service;
mod settings;
mod wait;

use std::{fmt, sync::Arc, time::Duration};

use http::{request::Parts, response};
use pacegate::{Clock, Key, SystemClock, WaitError};
use tower_layer::Layer;

use crate::{Adjustment, Resolve, resolve::Host, rules::DEFAULT_SETTLE_WITHIN};
use settings::Settings;

#[cfg(feature = "usage")]
pub use budget::{Budget, BudgetFuture, BudgetLayer};
pub use learn::requested_pause;
pub use service::{Throttle, ThrottleFuture};
pub use wait::{Wait, Waiting};

/// A layer that makes calls wait until a limit admits them, see the [module](self).
///
/// ```
/// use std::{convert::Infallible, time::Duration};
/// use http::{Request, Response};
/// use pacegate::{Limit, Limiter};
/// use pacegate_http::outgoing::StayWithinLayer;
/// use tower::{ServiceBuilder, ServiceExt, service_fn};
///
/// # pollster::block_on(async {
/// let limiter = Limiter::memory(Limit::per_second(50).with_burst(1)?);
/// let client = service_fn(|_: Request<()>| async { Ok::<_, Infallible>(Response::new("hello")) });
/// let client = ServiceBuilder::new()
///     .layer(StayWithinLayer::new(limiter).within(Duration::from_secs(5)))
///     .service(client);
/// for _ in 0..2 {
///     let request = Request::get("http://api.example.com/").body(())?;
///     assert_eq!(client.clone().oneshot(request).await?.body(), &"hello"); // one call every 20 ms
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # }).unwrap();
/// ```
///
/// The layer does not repeat calls: a response of 429 is returned to the caller, and only later calls wait. Add a retry
/// layer outside of this one if calls may be repeated.
pub struct StayWithinLayer<L> {
    settings: Arc<Settings<L>>,
}

/// The error of a call: it was not made, or it failed.
///
/// Except for `Service`, the upstream service has not seen the call, so it can be repeated later.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OutgoingError<E> {
    /// The call was made and failed.
    #[error("the call failed")]
    Service(#[source] E),
    /// The limiter does not admit it in time. The call was not made and charged nothing.
    #[error("the call was not made")]
    Wait(#[source] WaitError),
    /// The upstream service asked for a pause that is longer than the call may wait. The call was not made.
    #[error("the call was not made: the upstream service asked for a pause of another {0:?}")]
    Paused(Duration),
    /// The request has no key, and the resolver rejects such requests. The call was not made.
    #[error("the call was not made: the request has no key")]
    Missing,
}

impl<L: Wait> StayWithinLayer<L> {
    /// Creates a layer that counts calls by host, lets them wait for at most 30 seconds, and obeys responses.
    pub fn new(limiter: L) -> Self {
        let settings = Settings {
            limiter,
            by: Arc::new(Host),
            cost: None,
            within: Duration::from_secs(30),
            clock: Arc::new(SystemClock::new()),
            pauses: Some(Arc::default()),
            settle: None,
            defers: false,
            settle_within: DEFAULT_SETTLE_WITHIN,
            #[cfg(feature = "reqwest")]
            retries: reqwest::DEFAULT_RETRIES,
        };
        Self { settings: Arc::new(settings) }
    }

    /// Sets the key that calls are counted by, such as the host and an account. Calls without a key share one counter
    /// by default.
    #[must_use]
    pub fn by(self, resolver: impl Resolve) -> Self {
        self.set(|settings| settings.by = Arc::new(resolver))
    }

    /// Sets the key that calls are counted by, as a closure. Unlike with [`by`](Self::by), the compiler infers the type
    /// of its argument.
    #[must_use]
    pub fn key<K: Key>(self, key: impl Fn(&Parts) -> Option<K> + Send + Sync + 'static) -> Self {
        self.by(key)
    }

    /// Sets the cost of a call. Default: 1. If [`settle_with`](Self::settle_with) corrects it, this is an estimate.
    #[must_use]
    pub fn cost(self, cost: impl Fn(&Parts) -> u64 + Send + Sync + 'static) -> Self {
        self.set(|settings| settings.cost = Some(Arc::new(cost)))
    }

    /// Sets the longest wait of a call. Default: 30 seconds. A call that cannot be made in time usually fails at once.
    #[must_use]
    pub fn within(self, within: Duration) -> Self {
        self.set(|settings| settings.within = within)
    }

    /// Corrects the charge when the response is known: refunds units that the upstream service did not count, or
    /// charges more, which later calls wait for.
    ///
    /// The cost of each call is [reserved](pacegate::Limiter::reserve). A call that fails without a response keeps its
    /// charge, because the upstream service may have counted it. Over a store, each correction is one more round trip.
    /// If the store fails, the charge stays as it is.
    ///
    /// ```
    /// use pacegate::{Limit, Limiter};
    /// use pacegate_http::{Adjustment, outgoing::StayWithinLayer};
    ///
    /// let layer = StayWithinLayer::new(Limiter::memory(Limit::per_minute(10_000)))
    ///     .cost(|_| 4_000)
    ///     .settle_with(|response| match response.status.is_success() {
    ///         true => Adjustment::from_header(&response.headers, "x-total-tokens"),
    ///         false => Adjustment::Refund,
    ///     });
    /// # let _ = layer;
    /// ```
    #[must_use]
    pub fn settle_with(
        self,
        settle: impl Fn(&response::Parts) -> Adjustment + Send + Sync + 'static,
    ) -> Self {
        self.set(|settings| settings.settle = Some(Arc::new(settle)))
    }

    /// Sets the time after which a charge is no longer corrected. Default: ten minutes. Maximum: seven days. Choose it
    /// longer than a call can take: a call that ends later keeps the whole charge.
    #[must_use]
    pub fn settle_within(self, settle_within: Duration) -> Self {
        self.set(|settings| settings.settle_within = settle_within)
    }

    /// Ignores the headers of responses.
    ///
    /// Use it if the upstream service sends wrong or hostile headers: a pause lasts for up to a day.
    #[must_use]
    pub fn ignore_responses(self) -> Self {
        self.set(|settings| settings.pauses = None)
    }

    /// Sets the clock for pauses. Default: the system clock.
    #[must_use]
    pub fn clock(self, clock: impl Clock) -> Self {
        self.set(|settings| settings.clock = Arc::new(clock))
    }

    fn set(mut self, change: impl FnOnce(&mut Settings<L>)) -> Self {
        change(Arc::make_mut(&mut self.settings));
        self
    }
}

impl<S, L: Wait> Layer<S> for StayWithinLayer<L> {
    type Service = Throttle<S, L>;

    fn layer(&self, inner: S) -> Self::Service {
        Throttle::new(inner, Arc::clone(&self.settings))
    }
}

impl<L> Clone for StayWithinLayer<L> {
    fn clone(&self) -> Self {
        Self { settings: Arc::clone(&self.settings) }
    }
}

impl<L> fmt::Debug for StayWithinLayer<L> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("StayWithinLayer")
            .field("within", &self.settings.within)
            .field("learns", &self.settings.pauses.is_some())
            .finish_non_exhaustive()
    }
}
