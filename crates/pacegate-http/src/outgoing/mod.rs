//! Calls to somebody else's service, kept within somebody else's limit: they wait instead of being denied.
//!
//! [`StayWithinLayer`] goes around a tower client, such as that of hyper-util. A call waits its turn until the limiter
//! has room, in the order of arrival for each host. What responses say is learned: after `Retry-After`, or when
//! `RateLimit` or `X-RateLimit-*` say that nothing remains, further calls with the same key wait until there is more.
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

mod date;
mod learn;
mod pauses;
mod service;
mod wait;

use std::{fmt, sync::Arc, time::Duration};

use http::request::Parts;
use pacegate::{Clock, SystemClock, WaitError};
use tower_layer::Layer;

use crate::{Resolve, resolve::Host, rules::Choice};
use pauses::Pauses;

pub use learn::told_to_wait;
pub use service::{Throttle, ThrottleFuture};
pub use wait::{Wait, Waiting};

/// Makes calls wait until they are within a limit, see the [module](self).
pub struct StayWithinLayer<L> {
    settings: Arc<Settings<L>>,
}

/// Why a call was not made, or how it failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum OutgoingError<E> {
    /// It was made, and failed.
    #[error("the call failed")]
    Service(#[source] E),
    /// There will be no room for it in time. It was not made, and charged nothing.
    #[error("the call was not made")]
    Wait(#[source] WaitError),
    /// The other side has said to wait for longer than the call may. It was not made.
    #[error("the call was not made: the other side wants no calls for another {0:?}")]
    Paused(Duration),
    /// What it is counted by is missing, and that is to be refused. It was not made.
    #[error("the call was not made: it lacks what it is counted by")]
    Missing,
}

struct Settings<L> {
    limiter: L,
    by: Arc<dyn Resolve>,
    cost: Option<Choice<Parts, u64>>,
    within: Duration,
    clock: Arc<dyn Clock>,
    /// `None` if nothing is learned.
    pauses: Option<Arc<Pauses>>,
}

impl<L: Wait> StayWithinLayer<L> {
    /// Calls counted by the host that they go to, which wait for at most 30 seconds, and learn.
    pub fn new(limiter: L) -> Self {
        let settings = Settings {
            limiter,
            by: Arc::new(Host),
            cost: None,
            within: Duration::from_secs(30),
            clock: Arc::new(SystemClock::new()),
            pauses: Some(Arc::default()),
        };
        Self { settings: Arc::new(settings) }
    }

    /// Counts by something else, for instance by a host and an account. Calls that lack it share one budget, unless the
    /// resolver says otherwise.
    #[must_use]
    pub fn by(self, resolver: impl Resolve) -> Self {
        self.set(|settings| settings.by = Arc::new(resolver))
    }

    /// What a call costs; 1 if nothing is said.
    #[must_use]
    pub fn cost(self, cost: impl Fn(&Parts) -> u64 + Send + Sync + 'static) -> Self {
        self.set(|settings| settings.cost = Some(Arc::new(cost)))
    }

    /// How long a call waits at most. One that cannot be made in time fails, mostly at once.
    #[must_use]
    pub fn within(self, within: Duration) -> Self {
        self.set(|settings| settings.within = within)
    }

    /// Learns nothing from responses.
    #[must_use]
    pub fn unlearned(self) -> Self {
        self.set(|settings| settings.pauses = None)
    }

    /// The clock that pauses go by; the system's if nothing is said.
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

impl<L: Clone> Clone for Settings<L> {
    fn clone(&self) -> Self {
        Self {
            limiter: self.limiter.clone(),
            by: self.by.clone(),
            cost: self.cost.clone(),
            within: self.within,
            clock: self.clock.clone(),
            pauses: self.pauses.clone(),
        }
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
