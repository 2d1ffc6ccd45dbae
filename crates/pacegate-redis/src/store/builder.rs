//! Settings of a store.

use std::{sync::Arc, time::Duration};

use arc_swap::ArcSwap;
use pacegate::Clock;
use parking_lot::Mutex;
use tokio::{runtime::Handle, time::timeout};

use super::{Inner, RedisStore, session::Session};
use crate::{
    cell::{Names, Secret},
    deny_cache::DenyCache,
    environment::{Environment, OperatingSystem},
    layout::{Layout, LayoutState},
    leases::Leases,
    stats::Totals,
    time::{MAX_DURATION, Time},
    url::{RedisUrl, UrlError},
    worker::Common,
};

/// Configures a [`RedisStore`]. The [first page](crate#settings) has all settings with their defaults.
///
/// ```
/// # tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(async {
/// let store = pacegate_redis::RedisStore::builder("redis://127.0.0.1:1")?.connect_later();
/// let limiter = pacegate::SharedLimiter::builder(store).limit("5/minute").build()?;
/// assert!(limiter.check("alice").await?.is_degraded(), "no server listens on this port");
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// # })?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug)]
#[must_use = "a builder does nothing until it connects"]
pub struct RedisStoreBuilder {
    url: RedisUrl,
    prefix: String,
    secret: Secret,
    deadline: Duration,
    deny_cache: usize,
    deny_cache_for: Duration,
    cache_counted: bool,
    once: Duration,
    /// Replaces the server's clock.
    clock: Option<Arc<dyn Clock>>,
    environment: Arc<dyn Environment>,
    layout: Layout,
}

/// An error of [`RedisStore::connect`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The address is invalid.
    #[error(transparent)]
    Url(#[from] UrlError),
    /// No server answered.
    #[error("no connection to {servers}: {reason}")]
    Unreachable {
        /// The configured address, without user and password.
        servers: String,
        /// The last error. In a cluster it includes the address of the server.
        reason: String,
    },
}

/// Timeout of [`RedisStore::connect`].
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

impl RedisStoreBuilder {
    pub(crate) fn new(url: RedisUrl) -> Self {
        Self {
            url,
            prefix: RedisStore::DEFAULT_PREFIX.to_owned(),
            secret: Secret::default(),
            deadline: RedisStore::DEFAULT_DEADLINE,
            deny_cache: 100_000,
            deny_cache_for: Duration::from_secs(1),
            cache_counted: false,
            once: Duration::from_secs(10),
            clock: None,
            environment: Arc::new(OperatingSystem),
            layout: Layout::native(),
        }
    }

    /// Sets the prefix of all key names. Default: `pg:`. Braces are removed, because they would put all keys of a
    /// cluster into one slot.
    pub fn prefix(self, prefix: impl Into<String>) -> Self {
        let prefix = prefix.into().replace(['{', '}'], "");
        Self { prefix, ..self }
    }

    /// Sets the secret for the names of Redis keys, which are keyed hashes. Default: empty. Processes that share limits
    /// need the same secret. If an attacker does not know the secret, key names do not reveal clients, and the attacker
    /// cannot choose keys that overload one server of a cluster.
    pub fn secret(self, secret: impl Into<Vec<u8>>) -> Self {
        Self { secret: Secret(secret.into()), ..self }
    }

    /// Sets the deadline of a call, after which the policy's failure mode applies. Default: 100 ms.
    pub fn deadline(self, deadline: Duration) -> Self {
        Self { deadline, ..self }
    }

    /// Sets the maximum number of entries in the deny cache. Default: 100,000; 0 turns it off.
    pub fn deny_cache(self, entries: usize) -> Self {
        Self { deny_cache: entries, ..self }
    }

    /// Sets the maximum age of an entry in the deny cache. Default: one second. A reset or refund by another process
    /// can go unnoticed for this long.
    pub fn deny_cache_for(self, max_age: Duration) -> Self {
        Self { deny_cache_for: max_age, ..self }
    }

    /// Sets whether the deny cache also answers charges with [`Excess::Count`](pacegate::Excess::Count). These denials
    /// are then not counted. Default: false, so that every such denial reaches the server.
    pub fn cache_counted_denials(self, cache_counted: bool) -> Self {
        Self { cache_counted, ..self }
    }

    /// Sets how long the answer of a request with an id is stored. Default: 10 s. Maximum: one year. Up to four more
    /// requests with the same id get the stored answer and are not charged. Further ones are charged like new requests.
    pub fn remember_ids_for(self, time: Duration) -> Self {
        Self { once: time, ..self }
    }

    /// Sets the layout of keys and counters. Default: [`Layout::native`]. Other layouts ignore
    /// [`prefix`](Self::prefix), [`secret`](Self::secret) and [`remember_ids_for`](Self::remember_ids_for).
    pub fn layout(self, layout: impl Into<Layout>) -> Self {
        Self { layout: layout.into(), ..self }
    }

    /// Uses this clock instead of the server's. For tests only, since the clocks of several processes differ.
    pub fn clock(self, clock: impl Clock) -> Self {
        Self { clock: Some(Arc::new(clock)), ..self }
    }

    /// Sets the source of wall clock time, random numbers and connections, for simulations. Default:
    /// [`OperatingSystem`].
    pub fn environment(self, environment: impl Environment) -> Self {
        Self { environment: Arc::new(environment), ..self }
    }

    /// Connects. Fails if no server answers within five seconds; in a cluster, one server is enough.
    pub async fn connect(self) -> Result<RedisStore, ConnectError> {
        let store = self.connect_later();
        let session = store.inner.session.load_full();
        let late = timeout(CONNECT_TIMEOUT, session.first_connection()).await.is_err();
        if late && !session.workers().iter().any(|worker| worker.is_open()) {
            let servers = store.inner.url.to_string();
            return Err(ConnectError::Unreachable { servers, reason: session.error() });
        }
        Ok(store)
    }

    /// Returns a store that connects in the background. Until it is connected, failure modes apply.
    ///
    /// # Panics
    ///
    /// Outside a Tokio runtime.
    pub fn connect_later(mut self) -> RedisStore {
        self.url.set_environment(&self.environment);
        let time = match self.clock {
            Some(clock) => Time::Given(clock),
            None => Time::Server(self.environment.clone()),
        };
        let state = |rules| Arc::new(LayoutState::new(rules, time.clone(), &*self.environment));
        let common = Arc::new(Common {
            layout: self.layout.rules().cloned().map(state),
            names: Names::new(&self.prefix, &self.secret.0),
            deadline: self.deadline.min(MAX_DURATION),
            once: self.once.min(MAX_DURATION),
            deny_cache: DenyCache::new(
                self.deny_cache,
                self.deny_cache_for,
                self.cache_counted,
                time.clone(),
            ),
            time: time.clone(),
            environment: self.environment,
            totals: Totals::default(),
        });
        let session = Session::open(self.url.clone(), &common, Handle::current());
        let inner = Arc::new_cyclic(|this| Inner {
            common,
            leases: Leases::new(time),
            releases: Arc::default(),
            session: ArcSwap::from_pointee(session),
            reopening: Mutex::new(()),
            url: self.url,
            this: this.clone(),
        });
        inner.start_releases();
        RedisStore { inner }
    }
}
