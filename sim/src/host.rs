//! Machines with a limiter, which can crash and start again.

use std::{
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use pacegate::SharedLimiter;
use pacegate_redis::RedisStore;
use pacegate_testkit::Random;
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::{
    clock::MachineClock, environment::SimulatedEnvironment, network::Network, scenario::Scenario,
};

/// A machine. Clones share it.
#[derive(Clone, Debug)]
pub(crate) struct Host {
    index: usize,
    pub(crate) clock: MachineClock,
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    /// `None` while the host is down.
    instance: Option<Instance>,
    /// Number of starts.
    starts: usize,
}

/// The program that runs on a host.
#[derive(Clone, Debug)]
pub(crate) struct Instance {
    pub(crate) limiter: SharedLimiter,
    pub(crate) store: RedisStore,
    /// The revision of the policies.
    pub(crate) revision: usize,
    /// Number of restarts before.
    pub(crate) incarnation: usize,
    has_crashed: Arc<AtomicBool>,
    /// Notified when it crashes.
    crash: Arc<Notify>,
}

impl Host {
    pub(crate) fn new(index: usize, clock: MachineClock) -> Self {
        Self { index, clock, state: Arc::default() }
    }

    /// Starts the program, unless it runs.
    pub(crate) fn start(
        &self,
        scenario: &Scenario,
        url: &str,
        network: &Network,
        random: Random,
    ) -> anyhow::Result<()> {
        let mut state = self.state.lock();
        if state.instance.is_some() {
            return Ok(());
        }
        let has_crashed = Arc::new(AtomicBool::new(false));
        let environment = SimulatedEnvironment::new(
            self.index,
            network.clone(),
            self.clock.clone(),
            random,
            has_crashed.clone(),
        );
        let store = RedisStore::builder(url)?
            .environment(environment)
            .deadline(scenario.deadline)
            .deny_cache(if scenario.with_deny_cache { 1_000 } else { 0 })
            .connect_later();
        let limiter = SharedLimiter::builder(store.clone())
            .policies(scenario.policy_set(0)?)
            .clock(self.clock.clone())
            .build()?;
        let (incarnation, crash) = (state.starts, Arc::default());
        let instance = Instance { limiter, store, revision: 0, incarnation, has_crashed, crash };
        state.instance = Some(instance);
        state.starts += 1;
        Ok(())
    }

    /// Stops the program without notice.
    pub(crate) fn crash(&self, network: &Network) {
        let Some(instance) = self.state.lock().instance.take() else { return };
        instance.has_crashed.store(true, Ordering::Relaxed);
        network.crash(self.index);
        instance.crash.notify_waiters();
    }

    /// Returns the program; `None` while the host is down.
    pub(crate) fn instance(&self) -> Option<Instance> {
        self.state.lock().instance.clone()
    }

    /// Changes to the policies of the other revision, and returns it.
    pub(crate) fn reload(&self, scenario: &Scenario) -> anyhow::Result<Option<usize>> {
        let mut state = self.state.lock();
        let Some(instance) = &mut state.instance else { return Ok(None) };
        instance.revision = 1 - instance.revision;
        let policies = scenario.policy_set(instance.revision)?;
        instance.limiter = instance.limiter.with_policies(policies);
        Ok(Some(instance.revision))
    }
}

impl Instance {
    /// Waits for a call. Returns `None` if the program crashes first.
    pub(crate) async fn call<T>(&self, call: impl Future<Output = T>) -> Option<T> {
        let crash = self.crash.notified();
        if self.has_crashed.load(Ordering::Relaxed) {
            return None;
        }
        tokio::select! {
            biased;
            () = crash => None,
            result = call => Some(result),
        }
    }
}
