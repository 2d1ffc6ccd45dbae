//! Entry points for `fuzz/` and `tests/it/fuzzing.rs`. Not a public API: it may change at any time.

use std::sync::{Arc, LazyLock};

use pacegate::Limiter;

use crate::{
    active_config::{ActiveConfig, State},
    config::{self, Environment, Settings},
    engine::Engine,
    envoy, http, resp,
};

/// The configuration for all inputs, with room for few keys.
static ACTIVE: LazyLock<Option<Arc<ActiveConfig>>> = LazyLock::new(|| {
    let environment = Environment::of(|_| None);
    let settings: Settings = config::read(CONFIG, "fuzz.yaml", &environment).ok()?;
    let policies = settings.policies.clone();
    let limiter = Limiter::builder().policies(policies).max_keys(10_000).build().ok()?;
    let state = State::Memory(limiter.store().clone());
    Some(Arc::new(ActiveConfig::new(Engine::memory(limiter), state, settings)))
});

const CONFIG: &str = "
policies:
  - { name: all, limit: 1000/second }
  - { name: login, match: { path: /login }, per: [ip], limit: 5/minute sliding-window }
  - { name: api, match: { path: /api/** }, per: [user], limit: [10/second burst 20, 9/hour sliding-log] }
  - name: edge
    domain: edge
    per: [user, ip]
    limit: 3/minute
    overrides: [{ match: { plan: pro }, limit: 9/minute }]
";

/// Polls a future once: all counters are in memory, so it never waits.
fn run<T>(work: impl Future<Output = T>) -> Option<T> {
    let mut work = std::pin::pin!(work);
    match work.as_mut().poll(&mut std::task::Context::from_waker(std::task::Waker::noop())) {
        std::task::Poll::Ready(done) => Some(done),
        std::task::Poll::Pending => None,
    }
}

/// Handles the bytes of a RESP connection.
pub fn resp(bytes: &[u8]) {
    if let Some(active) = &*ACTIVE {
        run(resp::answer_all(active.clone(), bytes));
    }
}

/// Handles the body of an HTTP check.
pub fn json(bytes: &[u8]) {
    if let Some(active) = &*ACTIVE {
        run(http::check_bytes(active, bytes));
    }
}

/// Handles a protobuf request of Envoy.
pub fn rls(bytes: &[u8]) {
    if let Some(active) = &*ACTIVE {
        run(envoy::decide_bytes(active, bytes));
    }
}

/// Parses a configuration file.
pub fn policies(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    drop(config::read(&text, "fuzz.yaml", &Environment::of(|_| None)));
    envoy::read_bytes(&text);
}
