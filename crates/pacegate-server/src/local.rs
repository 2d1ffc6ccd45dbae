//! Decisions in this process, without listeners: the commands `check` and `explain` use it.

use std::time::Duration;

use pacegate::{
    BuildError, CheckError, Decision, Grant, Limit, Limiter, Request, SharedLimiter,
    policy::FailureMode,
};
use pacegate_redis::{ConnectError, RedisStore, UrlError};
use serde_json::Value;

use crate::{
    check::Check,
    config::{Settings, StoreSettings},
    engine::Engine,
    explain,
    inline_limits::{self, InlineLimitError, Limits},
};

/// Decides requests with the policies and the store of a configuration.
#[derive(Debug)]
pub struct LocalEngine {
    engine: Engine,
    /// The failure mode of inline limits.
    inline_failure: FailureMode,
}

/// The units of a check.
#[derive(Clone, Copy, Debug)]
pub struct Units {
    /// Their number.
    pub cost: u64,
    /// They are already spent: record them in full.
    pub spent: bool,
    /// Take fewer if fewer are left. The decision then has their number in `granted`.
    pub up_to: bool,
}

/// Reasons why a request cannot be decided locally.
#[derive(Debug, thiserror::Error)]
pub enum LocalError {
    /// The address of the store is invalid.
    #[error("cannot use the store's address: {0}")]
    Url(#[from] UrlError),
    /// The store is unreachable.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The policies are unusable.
    #[error(transparent)]
    Build(#[from] BuildError),
    /// The request can never be admitted.
    #[error(transparent)]
    Check(#[from] CheckError),
    /// The result has no JSON form.
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    /// The store is unavailable, and only the empty memory of this process is left.
    #[error("store unavailable; no decision was made")]
    Undecided,
}

/// Deadline of the store: a single check should rather wait than fail.
const STORE_DEADLINE: Duration = Duration::from_secs(2);

impl LocalEngine {
    /// Opens the store. Must be called within a runtime.
    ///
    /// # Errors
    ///
    /// If the store is unreachable or the policies are unusable.
    pub async fn open(settings: &Settings) -> Result<Self, LocalError> {
        let policies = settings.effective_policies();
        let engine = match &settings.store {
            StoreSettings::Memory { .. } => {
                Engine::memory(Limiter::builder().policies(policies).build()?)
            }
            StoreSettings::Redis { url, prefix, deadline } => {
                let deadline = (*deadline).max(STORE_DEADLINE);
                let store = RedisStore::builder(url)?.prefix(prefix.clone()).deadline(deadline);
                let store = store.layout(settings.layout.clone()).connect().await?;
                let limiter = SharedLimiter::builder(store.clone()).policies(policies).build()?;
                let engine = Engine::redis(limiter, store);
                // If they cannot be read, the request itself reports what is wrong with the store.
                drop(engine.blocks.refresh().await);
                engine
            }
        };
        Ok(Self { engine, inline_failure: settings.inline_failure })
    }

    /// Decides a request by the policies. Returns the decision as JSON.
    ///
    /// # Errors
    ///
    /// If the cost can never be admitted, or the store is unavailable or does not support it.
    pub async fn check(&self, request: &Request<'_>, units: Units) -> Result<String, LocalError> {
        let request = request.clone().cost(units.cost);
        let request = if units.spent { request.spent() } else { request };
        self.decide(&Check::Policies(request), units).await
    }

    /// Decides a key by inline limits. See [`LocalEngine::check`].
    ///
    /// # Errors
    ///
    /// As [`LocalEngine::check`].
    pub async fn check_inline(
        &self,
        key: &str,
        limits: &[Limit],
        units: Units,
    ) -> Result<String, LocalError> {
        let Units { cost, spent, .. } = units;
        let (key, limits) = (key.as_bytes(), limits.iter().copied().collect());
        self.decide(&Check::Inline { key, limits, cost, id: None, spent }, units).await
    }

    async fn decide(&self, check: &Check<'_>, units: Units) -> Result<String, LocalError> {
        if !units.up_to {
            return self.answer(check.decide(&self.engine).await?);
        }
        let Grant { units, decision } = check.decide_up_to(&self.engine).await?;
        let mut answer: Value = serde_json::from_str(&self.answer(decision)?)?;
        answer["granted"] = units.into();
        Ok(answer.to_string())
    }

    fn answer(&self, decision: Decision) -> Result<String, LocalError> {
        let policy = decision.policy().and_then(|name| self.engine.policies().get(name));
        let failure = policy.map_or(self.inline_failure, |policy| policy.failure);
        if decision.is_degraded() && matches!(failure, FailureMode::Local { .. }) {
            return Err(LocalError::Undecided);
        }
        Ok(serde_json::to_string(&decision)?)
    }

    /// Explains a request, as `POST /v1/explain` does. Charges nothing.
    ///
    /// # Errors
    ///
    /// If the store is unavailable.
    pub async fn explain(&self, request: &Request<'_>) -> Result<Value, LocalError> {
        let explanation = explain::explain(&self.engine, 1, request).await?;
        let mut limits = explanation.policies.iter().flat_map(|policy| &policy.limits);
        if limits.any(|limit| limit.decision.is_degraded()) {
            return Err(LocalError::Undecided);
        }
        Ok(serde_json::to_value(explanation).unwrap_or_default())
    }
}

/// Parses limits that come with a request.
///
/// # Errors
///
/// If one is invalid, there are too many, or two would share one counter.
pub fn parse_inline_limits<'a>(
    texts: impl IntoIterator<Item = &'a str>,
) -> Result<Vec<Limit>, InlineLimitError> {
    let mut limits = Limits::new();
    texts.into_iter().try_for_each(|text| inline_limits::add(&mut limits, text))?;
    Ok(limits.into_vec())
}
