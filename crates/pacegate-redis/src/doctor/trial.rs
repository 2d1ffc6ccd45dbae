//! Runs the scripts on temporary keys.

use std::time::Duration;

use pacegate::{
    Charge, Clock, KeyRef, Limit, ParseLimitError, PolicyName, Store, StoreError, SystemClock,
    Update, policy::PolicyNameError,
};

use super::{Finding, Options, findings as table};
use crate::{RedisStore, cell::Names, cluster::Range, store::RedisStoreBuilder, url::RedisUrl};

/// Generous, because the trial checks results, not latency.
const DEADLINE: Duration = Duration::from_secs(5);
/// Three limits that together use most commands. None has a window that could end during the trial.
const LIMITS: [&str; 3] = ["1/minute burst 1", "1/minute sliding-log", "1/minute concurrency"];
const POLICY: &str = "doctor";

/// A store with temporary keys.
#[derive(Debug)]
pub(super) struct Trial {
    store: RedisStore,
    names: Names,
}

/// The reason why a trial failed.
#[derive(Debug, thiserror::Error)]
enum TrialError {
    #[error(transparent)]
    Policy(#[from] PolicyNameError),
    #[error(transparent)]
    Limit(#[from] ParseLimitError),
    #[error("{0}: {1}")]
    Charge(&'static str, ChargeError),
}

/// The reason why the charges to one limit failed.
#[derive(Debug, thiserror::Error)]
enum ChargeError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error("no outcome")]
    NoOutcome,
    #[error("the first charge was denied")]
    FirstDenied,
    #[error("the second charge was admitted")]
    SecondAdmitted,
    #[error("the second charge has a retry time of {0:?}; expected up to a minute")]
    RetryAfter(Option<Duration>),
}

impl Trial {
    pub(super) async fn begin(url: &RedisUrl, options: &Options) -> Result<Self, Finding> {
        let prefix = format!("{}doctor:", options.prefix);
        let builder =
            RedisStoreBuilder::new(url.clone()).prefix(&prefix).deadline(DEADLINE).deny_cache(0);
        let store = builder.connect().await.map_err(|error| table::SCRIPTS_FAIL.with(&[&error]))?;
        Ok(Self { store, names: Names::new(&prefix, b"") })
    }

    /// Charges a limit of one twice, on the server with these slots, and cleans up.
    pub(super) async fn run(&self, slots: &[Range]) -> Finding {
        match self.try_all(slots).await {
            Ok(()) => table::SCRIPTS.with(&[]),
            Err(problem) => table::SCRIPTS_FAIL.with(&[&problem]),
        }
    }

    async fn try_all(&self, slots: &[Range]) -> Result<(), TrialError> {
        let policy: PolicyName = POLICY.parse()?;
        let start = SystemClock::new().now().as_micros();
        for text in LIMITS {
            let limit: Limit = text.parse()?;
            // The key contains the time, so that no other process uses it.
            let mut keys = (0..u64::MAX).map(|number| format!("{start}-{number}"));
            let key = keys.find(|key| self.is_in(slots, &charge(policy, key, limit)));
            let tried = self.try_one(charge(policy, &key.unwrap_or_default(), limit)).await;
            tried.map_err(|error| TrialError::Charge(text, error))?;
        }
        Ok(())
    }

    fn is_in(&self, slots: &[Range], charge: &Charge<'_>) -> bool {
        let slot = self.names.cell_charge(charge).map_or(0, |charge| charge.cell.slot());
        slots.is_empty() || slots.iter().any(|range| (range.first..=range.last).contains(&slot))
    }

    async fn try_one(&self, charge: Charge<'_>) -> Result<(), ChargeError> {
        let tried = self.charge_twice(charge).await;
        let reset = self.store.update(&charge, Update::Reset).await;
        tried.and(reset.map(drop).map_err(ChargeError::from))
    }

    async fn charge_twice(&self, charge: Charge<'_>) -> Result<(), ChargeError> {
        for (permit, expected) in [(1, true), (2, false)] {
            let mut charge = charge;
            charge.permit = permit;
            let outcomes = self.store.charge(&[charge], None).await?;
            let outcome = outcomes.first().ok_or(ChargeError::NoOutcome)?;
            match (expected, outcome.is_admitted()) {
                (true, false) => return Err(ChargeError::FirstDenied),
                (false, true) => return Err(ChargeError::SecondAdmitted),
                _ => {}
            }
            let wait = outcome.retry_after();
            let fits = wait.is_some_and(|wait| !wait.is_zero() && wait <= Duration::from_secs(60));
            if !expected && !fits {
                return Err(ChargeError::RetryAfter(wait));
            }
        }
        Ok(())
    }
}

fn charge(policy: PolicyName, key: &str, limit: Limit) -> Charge<'_> {
    Charge::new(policy, KeyRef::new(key.as_bytes()), limit)
}
