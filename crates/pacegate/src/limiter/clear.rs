//! Removing all keys of a policy or a domain.

use super::{Limiter, SharedLimiter};
use crate::{PolicyName, StoreError};

impl Limiter {
    /// Removes all keys of a policy, and returns their number. Requests are decided meanwhile; those after the call
    /// start with a full budget.
    ///
    /// [`PolicyName::AD_HOC`] clears the limits that came with requests. Takes some milliseconds for a million keys.
    ///
    /// ```
    /// use pacegate::{Limiter, PolicyName};
    ///
    /// let limiter = Limiter::memory("1/hour".parse()?);
    /// assert!(limiter.check("alice").is_allowed() && !limiter.check("alice").is_allowed());
    /// assert_eq!(limiter.clear_policy(PolicyName::DEFAULT), 1);
    /// assert!(limiter.check("alice").is_allowed());
    /// # Ok::<(), pacegate::ParseLimitError>(())
    /// ```
    pub fn clear_policy(&self, policy: PolicyName) -> u64 {
        self.clear(&[policy])
    }

    /// [`Limiter::clear_policy`] for all policies of a domain, including those that this limiter no longer has.
    pub fn clear_domain(&self, domain: &str) -> u64 {
        self.clear(&self.inner.core.memory.policies_in(domain))
    }

    fn clear(&self, policies: &[PolicyName]) -> u64 {
        let cleared = self.inner.core.memory.clear(policies);
        self.inner.core.turnstile.nudge_all();
        cleared
    }
}

impl SharedLimiter {
    /// Removes all keys of a policy, here and in the store, and returns the number of those in the store.
    /// [`StoreError::Unsupported`] if the store cannot find them, as on Redis; then nothing is removed.
    pub async fn clear_policy(&self, policy: PolicyName) -> Result<u64, StoreError> {
        self.clear(&[policy]).await
    }

    /// [`SharedLimiter::clear_policy`] for all policies of a domain, including those that this limiter no longer has.
    pub async fn clear_domain(&self, domain: &str) -> Result<u64, StoreError> {
        self.clear(&self.inner.core.memory.policies_in(domain)).await
    }

    async fn clear(&self, policies: &[PolicyName]) -> Result<u64, StoreError> {
        let cleared = self.inner.heard(self.inner.store.clear(policies).await)?;
        self.inner.core.memory.clear(policies);
        self.inner.core.turnstile.nudge_all();
        Ok(cleared)
    }
}
