//! Shares of the room, and the owner of each key: its share and its policy.
//!
//! The policies of one domain have one share. All limits without a policy have another. An [`Owner`] of a few bits in
//! the identity of a key names its share and its policy. So the room of an expired cell returns to the right share, and
//! all keys of a policy can be found although only hashes of keys are stored.

use std::collections::HashMap;

use super::identity::Identity;
use crate::PolicyName;

/// A part of the room, with a guaranteed number of keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Share(u8);

/// Names the share and the policy of a key, in the low bits of its identity. Never 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Owner(u64);

/// The shares and policies that this store has seen. Entries are never removed: a policy that is removed and added
/// again keeps its counters. Names come from configuration, so clients cannot add entries.
#[derive(Debug, Default)]
pub(super) struct Registry {
    domains: HashMap<Box<str>, Share>,
    policies: HashMap<PolicyName, Registered>,
    /// The number of policies of each share, up to the last one that has any.
    numbered: Vec<u64>,
}

/// A policy that the store has seen.
#[derive(Debug)]
struct Registered {
    tag: Owner,
    /// The last domain of the policy; `None` if it was never part of a set.
    domain: Option<Box<str>>,
}

/// The maximum number of shares. Further domains use the last share together.
pub(super) const SHARES: usize = 64;

impl Share {
    /// The share of limits without a policy.
    pub(super) const INLINE: Self = Self(0);

    #[inline]
    pub(super) fn index(self) -> usize {
        usize::from(self.0)
    }

    #[cfg(all(test, not(pacegate_loom)))]
    pub(super) fn of_test(number: u8) -> Self {
        Self(number)
    }

    /// Returns its bit in a set of shares.
    pub(super) fn bit(self) -> u64 {
        1 << self.0
    }
}

impl Owner {
    /// The bits of an identity that contain the tag.
    pub(super) const MASK: u64 = (1 << (POLICY_SHIFT + POLICY_BITS)) - 1;

    #[cfg(all(test, not(pacegate_loom)))]
    pub(super) const TEST: Self = Self(1);

    fn new(share: Share, policy: u64) -> Self {
        Self(1 | u64::from(share.0) << SHARE_SHIFT | policy.min(MAX_POLICY) << POLICY_SHIFT)
    }

    #[inline]
    pub(super) fn of(bits: u64) -> Self {
        Self(bits & Self::MASK)
    }

    #[inline]
    pub(super) fn bits(self) -> u64 {
        self.0
    }

    #[inline]
    pub(super) fn share(self) -> Share {
        Share((self.0 >> SHARE_SHIFT) as u8 % SHARES as u8)
    }
}

const SHARE_SHIFT: u32 = 1;
const POLICY_SHIFT: u32 = SHARE_SHIFT + SHARES.trailing_zeros();
const POLICY_BITS: u32 = 20;
/// The last number of a policy in a share. Further policies, beyond a million, use it together.
const MAX_POLICY: u64 = (1 << POLICY_BITS) - 1;

impl Registry {
    /// Returns the tag of a policy; `None` if it is new.
    pub(super) fn tag(&self, policy: PolicyName) -> Option<Owner> {
        self.policies.get(&policy).map(|known| known.tag)
    }

    /// Returns the tags of all policies.
    pub(super) fn tags(&self) -> impl Iterator<Item = Owner> {
        self.policies.values().map(|known| known.tag)
    }

    /// Adds a policy of a domain, or a name without a policy, and returns its tag. A known policy keeps its tag and
    /// therefore its counters, even if it has moved to another domain.
    pub(super) fn add(&mut self, policy: PolicyName, domain: Option<&str>) -> Owner {
        if let Some(known) = self.policies.get_mut(&policy) {
            if let Some(domain) = domain.filter(|domain| known.domain.as_deref() != Some(domain)) {
                known.domain = Some(domain.into());
            }
            return known.tag;
        }
        let share = domain.map_or(Share::INLINE, |domain| self.share_of(domain));
        if self.numbered.len() <= share.index() {
            self.numbered.resize(share.index() + 1, 0);
        }
        let number = &mut self.numbered[share.index()];
        let tag = Owner::new(share, *number);
        *number += 1;
        self.policies.insert(policy, Registered { tag, domain: domain.map(Into::into) });
        tag
    }

    /// Returns the share of a domain. A new domain gets the next share.
    fn share_of(&mut self, domain: &str) -> Share {
        if let Some(known) = self.domains.get(domain) {
            return *known;
        }
        let share = Share((self.domains.len() + 1).min(SHARES - 1) as u8);
        self.domains.insert(domain.into(), share);
        share
    }

    /// Returns the policies of a domain, including those of earlier sets.
    pub(super) fn policies_in(&self, domain: &str) -> Vec<PolicyName> {
        let is_there = |known: &Registered| known.domain.as_deref() == Some(domain);
        let known = self.policies.iter().filter(|(_, known)| is_there(known));
        known.map(|(policy, _)| *policy).collect()
    }

    /// Returns every domain with its share, sorted by name.
    pub(super) fn domains(&self) -> Vec<(Box<str>, Share)> {
        let mut all: Vec<_> =
            self.domains.iter().map(|(domain, share)| (domain.clone(), *share)).collect();
        all.sort_unstable_by(|one, other| one.0.cmp(&other.0));
        all
    }
}

impl Identity {
    #[inline]
    pub(super) fn tag(self) -> Owner {
        Owner::of(self.low())
    }

    #[inline]
    pub(super) fn share(self) -> Share {
        self.tag().share()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> PolicyName {
        text.parse().unwrap()
    }

    #[test]
    fn a_policy_keeps_its_tag_wherever_it_moves() {
        let mut registry = Registry::default();
        let first = registry.add(name("share-a"), Some("shop"));
        let second = registry.add(name("share-b"), Some("shop"));
        let inline = registry.add(PolicyName::INLINE, None);
        assert_eq!(first.share(), second.share());
        assert_ne!(first, second);
        assert_eq!(inline.share(), Share::INLINE);
        assert_ne!(first.share(), Share::INLINE);
        assert_eq!(registry.add(name("share-a"), Some("bank")), first);
        assert_eq!(registry.tag(name("share-a")), Some(first));
        assert_eq!(registry.policies_in("bank"), [name("share-a")]);
        assert_eq!(registry.policies_in("shop"), [name("share-b")]);
    }

    #[test]
    fn domains_beyond_the_last_share_have_it_together() {
        let mut registry = Registry::default();
        let tags: Vec<_> = (0..100)
            .map(|n| registry.add(name(&format!("share-{n}")), Some(&format!("domain {n}"))))
            .collect();
        let shares: Vec<_> = tags.iter().map(|tag| tag.share().index()).collect();
        let expected: Vec<_> = (1..=100).map(|n: usize| n.min(63)).collect();
        assert_eq!(shares, expected);
        let distinct: std::collections::HashSet<_> = tags.iter().collect();
        assert_eq!(distinct.len(), 100, "each policy still has its own tag");
    }
}
