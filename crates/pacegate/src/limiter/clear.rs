//! Removing all keys of a policy or a domain.

use super::{Limiter, SharedLimiter, in_memory};
use crate::{PolicyName, StoreError};

impl Limiter {
    /// Removes all keys of a policy, and returns their number. Does not block requests; those after the call start with
    /// unused counters. Requests during the call may lose their charges.
    ///
    /// [`PolicyName::INLINE`] clears inline limits. Takes some milliseconds for a million keys.
    ///
    /// Use it after a mistake in a limit has denied many clients. For one client, use [`Limiter::reset`].
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
        in_memory(self.shared.clear_policy(policy))
    }

    /// Removes all keys of all policies of a domain, and returns their number. See [`Limiter::clear_policy`].
    ///
    /// Includes policies of the domain that an earlier configuration had and this limiter no longer has.
    pub fn clear_domain(&self, domain: &str) -> u64 {
        in_memory(self.shared.clear_domain(domain))
    }
}

impl SharedLimiter {
    /// Removes all keys of a policy, in this process and in the store, and returns the number removed from the store.
    /// See [`Limiter::clear_policy`].
    ///
    /// # Errors
    ///
    /// [`StoreError::Unsupported`] if the store cannot find the keys of a policy, as on Redis: [reset](Self::reset)
    /// keys one by one instead. After an error, nothing is removed from this process either.
    pub async fn clear_policy(&self, policy: PolicyName) -> Result<u64, StoreError> {
        self.clear(&[policy]).await
    }

    /// Removes all keys of all policies of a domain, and returns the number of keys removed from the store. See
    /// [`SharedLimiter::clear_policy`].
    ///
    /// Includes policies of the domain that an earlier configuration of this process had.
    pub async fn clear_domain(&self, domain: &str) -> Result<u64, StoreError> {
        self.clear(&self.evaluator.memory.policies_in(domain)).await
    }

    async fn clear(&self, policies: &[PolicyName]) -> Result<u64, StoreError> {
        let cleared = match &self.store {
            None => 0,
            Some(store) => self.evaluator.record_failure(store.clear(policies).await)?,
        };
        let in_memory = self.evaluator.memory.clear(policies);
        self.evaluator.wait_queue.notify_all();
        Ok(if self.is_local() { in_memory } else { cleared })
    }
}
