//! The shares of domains, and clearing by policy.

use std::collections::HashSet;

use super::{
    MemoryStore, Ordering, Shards,
    identity::Identity,
    share::{Owner, Share},
};
use crate::PolicyName;

/// The number of keys of one domain in a [`MemoryStore`], or of all limits outside policies.
///
/// Half of the store is divided evenly between the shares as their guarantees, so that a flood of keys in one domain
/// leaves room for the others. The other half is first come, first served.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ShareUsage {
    /// The domain. `None` for limits outside policies, such as inline limits.
    pub domain: Option<String>,
    /// The number of keys, including expired keys that are not removed yet. Domains after the 62nd share one count.
    pub keys: usize,
    /// The number of keys that the share can always hold, even if the store is full. 0 while other shares still use the
    /// room for it.
    pub guaranteed: usize,
}

impl MemoryStore {
    /// Returns the share of the limits outside policies, if there were any, and that of each domain by name.
    pub fn shares(&self) -> Vec<ShareUsage> {
        let usage = |domain: Option<Box<str>>, share: Share| {
            let (keys, guaranteed) = self.inner.keys.of(share);
            ShareUsage { domain: domain.map(Into::into), keys, guaranteed }
        };
        let domains = self.inner.registry.lock().domains();
        let inline = (self.inner.keys.is_known(Share::INLINE)).then(|| usage(None, Share::INLINE));
        let own = domains.into_iter().map(|(domain, share)| usage(Some(domain), share));
        inline.into_iter().chain(own).collect()
    }

    /// Gives policies tags in the shares of their domains.
    pub(crate) fn register<'a>(&self, policies: impl Iterator<Item = (PolicyName, &'a str)>) {
        let mut registry = self.inner.registry.lock();
        for (policy, domain) in policies {
            let tag = registry.add(policy, Some(domain));
            self.inner.open(tag);
        }
    }

    /// Returns the policies of a domain, including those of earlier sets.
    pub(crate) fn policies_in(&self, domain: &str) -> Vec<PolicyName> {
        self.inner.registry.lock().policies_in(domain)
    }

    /// Removes all keys of these policies, and returns their number. Locks one shard at a time: requests are decided in
    /// between, and their charges may be removed, too.
    pub(crate) fn clear(&self, policies: &[PolicyName]) -> u64 {
        let inner = &*self.inner;
        let registry = inner.registry.lock();
        let tags = policies.iter().filter_map(|policy| registry.tag(*policy));
        let tags: HashSet<Owner> = tags.collect();
        drop(registry);
        if tags.is_empty() {
            return 0;
        }
        let is_meant = |id: Identity| tags.contains(&id.tag());
        // Before the keys: a new key would inherit from the overflow budget.
        let mut overflow = inner.overflow.lock();
        overflow.clear(is_meant);
        inner.overflows.store(overflow.in_use(), Ordering::Relaxed);
        drop(overflow);
        let mut cleared = 0;
        for shard in &inner.cells {
            let mut table = shard.0.lock();
            let mut freed = inner.keys.returns();
            table.clear(is_meant, |id| {
                cleared += 1;
                freed.add(id.share(), 1);
            });
        }
        for shard in &inner.logs {
            let mut logs = shard.0.lock();
            let (mut freed, mut entries) = (inner.keys.returns(), inner.entries.returns());
            logs.clear(is_meant, |id, count| {
                cleared += 1;
                freed.add(id.share(), 1);
                entries.add(id.share(), count);
            });
        }
        cleared
    }
}

impl Shards {
    /// Returns the tag of a policy. A name that is in no set uses the share of inline limits.
    pub(super) fn tag(&self, policy: PolicyName) -> Owner {
        let is_inline = policy == PolicyName::INLINE;
        let known = if is_inline { self.inline_tag.load(Ordering::Relaxed) } else { 0 };
        if known != 0 {
            return Owner::of(known);
        }
        let mut registry = self.registry.lock();
        if let Some(tag) = registry.tag(policy) {
            return tag;
        }
        let tag = registry.add(policy, None);
        self.open(tag);
        if is_inline {
            self.inline_tag.store(tag.bits(), Ordering::Relaxed);
        }
        tag
    }

    /// Gives the share of a tag its guarantees for keys and log entries.
    fn open(&self, tag: Owner) {
        self.keys.open(tag.share());
        self.entries.open(tag.share());
    }
}
