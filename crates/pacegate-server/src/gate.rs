//! What is in force now, for all listeners.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU64, Ordering},
};

use arc_swap::{ArcSwap, Guard};
use pacegate::{BuildError, Limiter, MemoryStore, SharedLimiter, policy::Mode};
use pacegate_redis::{RedisStore, UrlError};

use crate::{
    audit::Audit,
    config::{Settings, StoreSettings},
    engine::Engine,
    envoy::WrittenRule,
    live::Live,
};

/// One configuration at a time, swapped whole: whoever decides sees one revision from beginning to end.
#[derive(Debug)]
pub(crate) struct Gate {
    revision: ArcSwap<Revision>,
    state: State,
    refused: AtomicU64,
    /// Why the last configuration that was offered was not taken.
    complaint: ArcSwap<Option<String>>,
    draining: AtomicBool,
    live: Live,
    audit: Audit,
}

/// A configuration in force.
#[derive(Debug)]
pub(crate) struct Revision {
    /// 1 for the first.
    pub(crate) number: u64,
    /// Decides by its policies.
    pub(crate) engine: Engine,
    /// What was configured.
    pub(crate) settings: Arc<Settings>,
}

/// Where state lives.
#[derive(Clone, Debug)]
pub(crate) enum State {
    Memory(MemoryStore),
    Redis(RedisStore),
}

/// Why a gate cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    #[error("cannot use the store's address: {0}")]
    Url(#[from] UrlError),
    #[error(transparent)]
    Build(#[from] BuildError),
}

impl Gate {
    /// Opens the store and puts `settings` in force. A server that is not there yet is waited for in passing: until it
    /// answers, failure modes decide. Called within the runtime that the store's connections are to live on.
    pub(crate) fn open(settings: Settings) -> Result<Self, OpenError> {
        let policies = settings.effective_policies();
        let (engine, state) = match &settings.store {
            StoreSettings::Memory { max_keys } => {
                let limiter = Limiter::builder().policies(policies).max_keys(*max_keys).build()?;
                let state = State::Memory(limiter.store().clone());
                (Engine::memory(limiter), state)
            }
            StoreSettings::Redis { url, prefix, deadline } => {
                let builder = RedisStore::builder(url)?.prefix(prefix.clone()).deadline(*deadline);
                let builder = if settings.count_denied { builder.deny_cache(0) } else { builder };
                let store = builder.layout(settings.layout.clone()).connect_later();
                let limiter = SharedLimiter::builder(store.clone()).policies(policies).build()?;
                (Engine::shared(limiter), State::Redis(store))
            }
        };
        Ok(Self::new(engine, state, settings))
    }

    /// A gate over an engine that is there already.
    pub(crate) fn new(engine: Engine, state: State, settings: Settings) -> Self {
        let revision = Revision { number: 1, engine, settings: Arc::new(settings) };
        Self {
            revision: ArcSwap::from_pointee(revision),
            state,
            refused: AtomicU64::new(0),
            complaint: ArcSwap::from_pointee(None),
            draining: AtomicBool::new(false),
            live: Live::new(),
            audit: Audit::default(),
        }
    }

    /// What is in force. Hold it for as long as one request takes.
    pub(crate) fn revision(&self) -> Guard<Arc<Revision>> {
        self.revision.load()
    }

    /// Puts other settings in force, and tells their number. What has been used stays used where a policy keeps its
    /// name and its limit keeps algorithm and period. Listeners and the store stay as they are.
    pub(crate) fn replace(&self, settings: Settings) -> u64 {
        let settings = Arc::new(settings);
        let previous = self.revision.rcu(|current| Revision {
            number: current.number + 1,
            engine: current.engine.with_policies(settings.effective_policies()),
            settings: settings.clone(),
        });
        self.complaint.store(Arc::new(None));
        previous.number + 1
    }

    /// Takes note that settings were offered that cannot be used. Those in force stay.
    pub(crate) fn refuse(&self, complaint: String) {
        self.refused.fetch_add(1, Ordering::Relaxed);
        self.complaint.store(Arc::new(Some(complaint)));
    }

    /// How many times settings were offered that could not be used, and if those were the last, why.
    pub(crate) fn refusals(&self) -> (u64, Option<String>) {
        (self.refused.load(Ordering::Relaxed), (**self.complaint.load()).clone())
    }

    /// Where state lives.
    pub(crate) fn state(&self) -> &State {
        &self.state
    }

    /// What is remembered for those who watch.
    pub(crate) fn live(&self) -> &Live {
        &self.live
    }

    /// Where operators' doings are told.
    pub(crate) fn audit(&self) -> &Audit {
        &self.audit
    }

    /// From now on the service is going away: it answers what it has, and says that it is not ready for more.
    pub(crate) fn drain(&self) {
        self.draining.store(true, Ordering::Relaxed);
    }

    /// Whether [`Gate::drain`] was called.
    pub(crate) fn is_draining(&self) -> bool {
        self.draining.load(Ordering::Relaxed)
    }
}

impl State {
    /// Whether decisions are the store's, and not those of failure modes.
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
        self.rules.written()
    }

    /// The policies as they are to be enforced.
    pub fn effective_policies(&self) -> pacegate::PolicySet {
        let policies = self.policies.clone().failing_ad_hoc(self.ad_hoc_failure);
        if self.shadow { policies.in_mode(Mode::Shadow) } else { policies }
    }
}
