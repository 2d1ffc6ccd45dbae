//! The audit log.

use std::{
    hash::{BuildHasher, Hasher, RandomState},
    net::IpAddr,
};

use pacegate::{Charge, KeyRef, PolicyName};

use crate::{
    engine::ClearTarget,
    listeners::{LISTENER_COUNT, ListenerId},
    service::{Access, RejectionLog},
};

/// Logs the actions of operators with the API key that was used and the affected policies. Keys may be personal data,
/// so the log contains a seeded hash of them, which is the same on all listeners and changes with each start.
#[derive(Debug, Default)]
pub(crate) struct Audit {
    marks: RandomState,
    rejected: [RejectionLog; LISTENER_COUNT],
}

impl Audit {
    /// Logs a missing or wrong API key, with a rate limit for each listener.
    pub(crate) fn rejected_key(&self, listener: ListenerId, peer: Option<IpAddr>) {
        self.rejected[listener as usize].record(listener.name(), peer);
    }

    /// Logs an action on the counters of these charges.
    pub(crate) fn charges(&self, action: &str, access: &Access<'_>, charges: &[Charge<'_>]) {
        let keys: Vec<_> = charges.iter().map(|charge| (charge.policy, charge.key)).collect();
        self.keys(action, access, &keys);
    }

    /// Logs that all keys of a policy or a domain were cleared.
    pub(crate) fn clear(&self, access: &Access<'_>, target: ClearTarget<'_>, cleared: u64) {
        let credential = access.name();
        match target {
            ClearTarget::Policy(policy) => {
                let policies = policy.as_str();
                tracing::info!(
                    target: "audit", action = "clear", credential, policies, cleared, "cleared keys"
                );
            }
            ClearTarget::Domain(domain) => {
                tracing::info!(
                    target: "audit", action = "clear", credential, domain, cleared, "cleared keys"
                );
            }
        }
    }

    /// Logs an action on keys of policies.
    pub(crate) fn keys(
        &self,
        action: &str,
        access: &Access<'_>,
        keys: &[(PolicyName, KeyRef<'_>)],
    ) {
        let mut hasher = self.marks.build_hasher();
        for (policy, key) in keys {
            hasher.write(policy.as_str().as_bytes());
            key.feed(|bytes| hasher.write(bytes));
        }
        let mark = format!("{:08x}", hasher.finish() >> 32);
        let policies: Vec<_> = keys.iter().map(|(policy, _)| policy.as_str()).collect();
        let (credential, policies) = (access.name(), policies.join(","));
        tracing::info!(target: "audit", action, credential, key = mark, policies, "changed state");
    }
}
