//! The shares of domains, and clearing by policy.

use std::{cell::Cell, collections::HashSet};

use super::{
    Inner, MemoryStore, Ordering,
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

thread_local! {
    /// The last tag that this thread looked up: the number of the store, the policy, and its tag, which never changes.
    static LAST: Cell<Option<(u64, PolicyName, Owner)>> = const { Cell::new(None) };
}

impl MemoryStore {
    /// Returns the share of the limits outside policies, if there were any, and that of each domain by name.
    pub fn shares(&self) -> Vec<ShareUsage> {
        let usage = |domain: Option<Box<str>>, share: Share| {
            let (keys, guaranteed) = self.shards().keys.of(share);
            ShareUsage { domain: domain.map(Into::into), keys, guaranteed }
        };
        let domains = self.inner.registry.lock().domains();
        let inline = self.shards().keys.is_known(Share::INLINE).then(|| usage(None, Share::INLINE));
        let own = domains.into_iter().map(|(domain, share)| usage(Some(domain), share));
        inline.into_iter().chain(own).collect()
    }

    /// Gives policies tags in the shares of their domains.
    pub(crate) fn register<'a>(&self, policies: impl Iterator<Item = (PolicyName, &'a str)>) {
        for (policy, domain) in policies {
            self.inner.register(policy, Some(domain));
        }
    }

    /// Returns the policies of a domain, including those of earlier sets.
    pub(crate) fn policies_in(&self, domain: &str) -> Vec<PolicyName> {
        self.inner.registry.lock().policies_in(domain)
    }

    /// Removes all keys of these policies, and returns their number. Locks one shard at a time: requests are decided in
    /// between, and their charges may be removed, too.
    pub(crate) fn clear(&self, policies: &[PolicyName]) -> u64 {
        let registry = self.inner.registry.lock();
        let tags = policies.iter().filter_map(|policy| registry.tag(*policy));
        let tags: HashSet<Owner> = tags.collect();
        drop(registry);
        if tags.is_empty() {
            return 0;
        }
        let inner = self.shards();
        let is_meant = |id: Identity| tags.contains(&id.tag());
        // Before the keys: a new key would inherit from the overflow budget.
        let mut overflow = inner.overflow.lock();
        overflow.clear(is_meant);
        inner.overflows.store(overflow.in_use(), Ordering::Relaxed);
        drop(overflow);
        let mut cleared = 0;
        for (shard, address) in inner.cells.iter().zip(&inner.addresses) {
            let mut table = shard.0.lock();
            let mut freed = inner.keys.returns();
            table.clear(is_meant, |id| {
                cleared += 1;
                freed.add(id.share(), 1);
            });
            address.set(table.lines());
        }
        for shard in inner.logs.get().into_iter().flatten() {
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

impl Inner {
    /// Returns the tag of a policy. A name that is in no set uses the share of inline limits.
    #[inline]
    pub(super) fn tag(&self, policy: PolicyName) -> Owner {
        if policy == PolicyName::INLINE {
            let known = self.inline_tag.load(Ordering::Relaxed);
            if known != 0 {
                return Owner::of(known);
            }
        }
        match LAST.get() {
            Some((number, last, tag)) if number == self.number && last == policy => tag,
            _ => self.look_up_tag(policy),
        }
    }

    #[cold]
    fn look_up_tag(&self, policy: PolicyName) -> Owner {
        let known = self.registry.lock().tag(policy);
        let tag = known.unwrap_or_else(|| self.register(policy, None));
        LAST.set(Some((self.number, policy, tag)));
        if policy == PolicyName::INLINE {
            self.inline_tag.store(tag.bits(), Ordering::Relaxed);
        }
        tag
    }

    /// Gives a policy a tag, and its share guarantees for keys and log entries.
    fn register(&self, policy: PolicyName, domain: Option<&str>) -> Owner {
        let tag = self.registry.lock().add(policy, domain);
        // After the registry is unlocked: a thread that allocates the shards meanwhile opens the share.
        if let Some(shards) = self.shards.get() {
            shards.open(tag);
        }
        tag
    }
}
