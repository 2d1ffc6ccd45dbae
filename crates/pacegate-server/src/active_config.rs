//! The active configuration and the store, shared by all listeners.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use arc_swap::{ArcSwap, Guard};
use pacegate::{BuildError, Limiter, MemoryStore, SharedLimiter, policy::Mode};
use pacegate_redis::{RedisStore, UrlError};
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::{
    audit::Audit,
    config::{Settings, StoreSettings},
    engine::Engine,
    envoy::{HitStats, QuotaRegistry, WrittenRule},
    live::Live,
    thresholds::ThresholdEvents,
};

/// The active configuration. A reload replaces it as a whole, so each request uses one revision from start to end.
#[derive(Debug)]
pub(crate) struct ActiveConfig {
    revision: ArcSwap<Revision>,
    pub(crate) state: State,
    refused: AtomicU64,
    /// The error of the last reload; `None` if it succeeded.
    complaint: ArcSwap<Option<String>>,
    draining: AtomicBool,
    /// The addresses of the config servers, and true for those that are connected.
    config_servers: Mutex<BTreeMap<String, bool>>,
    pub(crate) live: Live,
    pub(crate) audit: Audit,
    pub(crate) quotas: QuotaRegistry,
    /// The number of the active revision.
    reloads: watch::Sender<u64>,
    pub(crate) thresholds: Arc<ThresholdEvents>,
}

/// One version of the configuration.
#[derive(Debug)]
pub(crate) struct Revision {
    /// Starts at 1.
    pub(crate) number: u64,
    /// The limiter with the policies of this revision.
    pub(crate) engine: Engine,
    /// The settings of this revision.
    pub(crate) settings: Arc<Settings>,
    /// The statistics of envoyproxy/ratelimit, which all revisions share.
    pub(crate) hits: Arc<HitStats>,
}

/// The store for counters.
#[derive(Clone, Debug)]
pub(crate) enum State {
    Memory(MemoryStore),
    Redis(RedisStore),
}

/// The reason why the store or the policies cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("cannot use the store's address: {0}")]
    Url(#[from] UrlError),
    #[error(transparent)]
    Build(#[from] BuildError),
}

impl ActiveConfig {
    /// Opens the store and activates `settings`. Does not wait for Redis: it connects in the background, and failure
    /// modes decide until it answers. Must be called within the runtime that runs the connections of the store.
    pub(crate) fn open(settings: Settings) -> Result<Self, OpenError> {
        let policies = settings.effective_policies();
        let thresholds = Arc::new(ThresholdEvents::new(settings.webhook.clone()));
        let events = thresholds.clone();
        let on_threshold = move |event| events.record(&event);
        let (engine, state) = match &settings.store {
            StoreSettings::Memory { max_keys } => {
                let limiter = Limiter::builder().policies(policies).max_keys(*max_keys);
                let limiter = limiter.on_threshold(on_threshold).build()?;
                let state = State::Memory(limiter.store().clone());
                (Engine::memory(limiter), state)
            }
            StoreSettings::Redis { url, prefix, deadline } => {
                let builder = RedisStore::builder(url)?.prefix(prefix.clone()).deadline(*deadline);
                let builder = if settings.count_denied { builder.deny_cache(0) } else { builder };
                let builder = builder.cache_counted_denials(settings.envoy.cache_denials);
                let store = builder.layout(settings.layout.clone()).connect_later();
                let limiter = SharedLimiter::builder(store.clone()).policies(policies);
                let limiter = limiter.on_threshold(on_threshold).build()?;
                (Engine::redis(limiter, store.clone()), State::Redis(store))
            }
        };
        Ok(Self { thresholds, ..Self::new(engine, state, settings) })
    }

    /// Creates an active configuration for an existing engine.
    pub(crate) fn new(engine: Engine, state: State, settings: Settings) -> Self {
        let (settings, hits) = (Arc::new(settings), Arc::default());
        let revision = Revision { number: 1, engine, settings, hits };
        Self {
            revision: ArcSwap::from_pointee(revision),
            state,
            refused: AtomicU64::new(0),
            complaint: ArcSwap::from_pointee(None),
            draining: AtomicBool::new(false),
            config_servers: Mutex::default(),
            live: Live::new(),
            audit: Audit::default(),
            quotas: QuotaRegistry::default(),
            reloads: watch::Sender::new(1),
            thresholds: Arc::new(ThresholdEvents::new(None)),
        }
    }

    /// Returns the active revision. Hold it for the duration of one request.
    pub(crate) fn revision(&self) -> Guard<Arc<Revision>> {
        self.revision.load()
    }

    /// Activates other settings and returns the number of their revision. A counter is kept if its policy keeps its
    /// name and its limit keeps algorithm and period. Listeners and the store do not change.
    pub(crate) fn replace(&self, settings: Settings) -> u64 {
        self.thresholds.webhook.configure(settings.webhook.clone());
        let settings = Arc::new(settings);
        let previous = self.revision.rcu(|current| Revision {
            number: current.number + 1,
            engine: current.engine.with_policies(settings.effective_policies()),
            settings: settings.clone(),
            hits: current.hits.clone(),
        });
        self.clear_complaint();
        self.reloads.send_replace(previous.number + 1);
        previous.number + 1
    }

    /// Returns a receiver that reports each reload.
    pub(crate) fn reloads(&self) -> watch::Receiver<u64> {
        self.reloads.subscribe()
    }

    /// Records a failed reload. The current settings stay active.
    pub(crate) fn refuse(&self, complaint: String) {
        self.refused.fetch_add(1, Ordering::Relaxed);
        self.complaint.store(Arc::new(Some(complaint)));
    }

    /// Records that the last reload succeeded.
    pub(crate) fn clear_complaint(&self) {
        self.complaint.store(Arc::new(None));
    }

    /// Returns the number of failed reloads, and the error if the last reload failed.
    pub(crate) fn refusals(&self) -> (u64, Option<String>) {
        (self.refused.load(Ordering::Relaxed), (**self.complaint.load()).clone())
    }

    /// Records whether a config server is connected.
    pub(crate) fn set_connected(&self, config_server: &str, is_connected: bool) {
        self.config_servers.lock().insert(config_server.to_owned(), is_connected);
    }

    /// Returns the addresses of the config servers, and true for those that are connected.
    pub(crate) fn config_servers(&self) -> BTreeMap<String, bool> {
        self.config_servers.lock().clone()
    }

    /// Returns true if the server is unhealthy because it has no rules.
    pub(crate) fn lacks_rules(&self) -> bool {
        let settings = &self.revision().settings;
        settings.envoy.needs_rules && settings.rules.is_empty()
    }

    /// Marks the server as shutting down: readiness checks fail, and open requests are still answered.
    pub(crate) fn drain(&self) {
        self.draining.store(true, Ordering::Relaxed);
    }

    /// Returns true if [`ActiveConfig::drain`] was called.
    pub(crate) fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }
}

impl State {
    /// Returns true if the store is reachable. If not, failure modes decide.
    pub(crate) fn is_reachable(&self) -> bool {
        match self {
            Self::Memory(_) => true,
            Self::Redis(store) => store.is_connected(),
        }
    }
}

impl Settings {
    /// Returns the rules of envoyproxy/ratelimit, as their files have them.
    pub fn written_rules(&self) -> &[WrittenRule] {
        &self.rules.written
    }

    /// Returns the policies to enforce: with the failure mode of inline limits, and in shadow mode if `shadow` is set.
    pub fn effective_policies(&self) -> pacegate::PolicySet {
        let policies = self.policies.clone().inline_failure(self.inline_failure);
        if self.shadow { policies.in_mode(Mode::Shadow) } else { policies }
    }
}
