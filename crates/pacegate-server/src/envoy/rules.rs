//! Compiled rules, and the lookup of the rule for a descriptor.

use std::{
    collections::{HashMap, hash_map},
    path::PathBuf,
};

use bytes::Bytes;
use pacegate::{
    KeyBuf, KeyRef, Limit, Policy, PolicyName, PolicySet,
    policy::{FailureMode, Match, PolicyError},
};

use super::{
    compile,
    file::{FileError, RuleFile},
    limits::Bound,
    options::EnvoyOptions,
    pattern::Pattern,
    proto::{Entry, Struct},
    stats::RuleHits,
};
use crate::long_key_digest;

/// The compiled rules of envoyproxy/ratelimit files. Immutable: a reload replaces them.
///
/// The time of a lookup does not depend on the number of descriptors at one level, except for values of the same key
/// with a `*`.
#[derive(Debug, Default)]
pub(crate) struct Rules {
    pub(super) domains: HashMap<Box<[u8]>, Level>,
    /// One policy for each rule with a limit, in the order of the files. Only descriptors select them.
    pub(super) policies: Vec<Policy>,
    /// The rules as written, in the order of the files.
    pub(crate) written: Vec<WrittenRule>,
    /// True if no config server has sent rules yet.
    pub(crate) is_pending: bool,
}

/// A rule as written in a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WrittenRule {
    /// The policy of the rule.
    pub policy: PolicyName,
    /// The domain of the file.
    pub domain: String,
    /// The keys from the domain to the rule, with the values that the file gives.
    pub path: Vec<(String, Option<String>)>,
    /// The keys whose values are counted separately.
    pub per: Vec<String>,
    /// Empty: unlimited.
    pub limits: Vec<Limit>,
    /// True if the rule only counts.
    pub shadow: bool,
    /// True if the rule is in quota mode.
    pub quota: bool,
}

/// The descriptors at one level, by key.
#[derive(Debug, Default)]
pub(crate) struct Level {
    keys: HashMap<Box<[u8]>, Keyed>,
}

/// The descriptors of one key.
#[derive(Debug, Default)]
struct Keyed {
    exact: HashMap<Box<[u8]>, Node>,
    /// In the order of the file; the first match wins.
    wildcards: Vec<(Box<str>, Pattern, Node)>,
    /// For all other values.
    bare: Option<Node>,
}

/// A file and a line.
pub(super) type Place = (PathBuf, u64);

/// A descriptor of a file.
#[derive(Debug, Default)]
pub(super) struct Node {
    /// Location, for errors.
    pub(super) place: Place,
    pub(super) rule: Option<Rule>,
    pub(super) below: Level,
}

/// The limits of a descriptor.
#[derive(Debug)]
pub(crate) struct Rule {
    /// The policy of the rule.
    pub(super) policy: PolicyName,
    /// The name in the file, which need not be unique; may be empty.
    pub(super) name: Bytes,
    /// Limits, all of which apply. Empty: unlimited.
    pub(super) bounds: Vec<Bound>,
    /// Indexes of the entries whose values are the key.
    pub(super) varying: Vec<usize>,
    /// Its name in statistics.
    pub(super) hits: RuleHits,
    /// True if a level has `share_threshold`.
    pub(super) is_shared: bool,
    /// Names of rules that do not apply where this one does.
    pub(super) replaces: Vec<Box<str>>,
    pub(super) shadow: bool,
    pub(super) quota: bool,
    /// True if hits that exceed a limit are recorded as debt.
    pub(super) record_in_full: bool,
    /// Metadata for Envoy.
    pub(super) metadata: Option<Struct>,
}

/// The key of a descriptor.
#[derive(Debug)]
pub(super) enum DescriptorKey<'a> {
    /// The value of one entry.
    Borrowed(KeyRef<'a>),
    /// Several values, none, or a digest of a long one.
    Owned(KeyBuf),
}

impl Rules {
    /// Loads a file, or every file of a directory.
    #[cfg(test)]
    pub(crate) fn load(path: &std::path::Path, options: &EnvoyOptions) -> Result<Self, FileError> {
        let environment = crate::config::Environment::of(|_| None);
        let files = crate::config::rule_files(path, &environment).map_err(|error| FileError {
            message: error.to_string(),
            file: path.to_owned(),
            line: 0,
            column: 0,
            snippet: String::new(),
        })?;
        Self::parse(&files, options)
    }

    /// Parses files.
    pub(crate) fn parse(sources: &[RuleFile], options: &EnvoyOptions) -> Result<Self, FileError> {
        compile::files(sources, options)
    }

    /// Creates the rules that apply until a config server has sent some: no request is decided.
    pub(super) fn pending() -> Self {
        Self { is_pending: true, ..Self::default() }
    }

    /// Returns true if there is no domain.
    pub(crate) fn is_empty(&self) -> bool {
        self.domains.is_empty()
    }

    /// Returns these policies together with those of the rules.
    pub(crate) fn beside(&self, native: &PolicySet) -> Result<PolicySet, PolicyError> {
        PolicySet::new(native.policies().iter().chain(&self.policies).cloned())
    }

    /// Returns the number of policies.
    pub(crate) fn policies(&self) -> usize {
        self.policies.len()
    }

    /// Returns the descriptors of a domain, or `None` if no file has it.
    pub(crate) fn domain(&self, name: &[u8]) -> Option<&Level> {
        self.domains.get(name)
    }
}

impl Level {
    /// Finds the rule of a descriptor: each entry descends one level, and the last one has the rule.
    pub(super) fn rule(&self, entries: &[Entry]) -> Option<&Rule> {
        let (last, before) = entries.split_last()?;
        let mut level = self;
        for entry in before {
            level = &level.node(entry)?.below;
        }
        level.node(last)?.rule.as_ref()
    }

    /// Finds the node of an entry: an exact value before wildcards, and these before the key alone.
    fn node(&self, entry: &Entry) -> Option<&Node> {
        let keyed = self.keys.get(&*entry.key)?;
        let wildcard = |value: &[u8]| {
            let found = keyed.wildcards.iter().find(|(_, pattern, _)| pattern.matches(value));
            found.map(|(_, _, node)| node)
        };
        let exact = keyed.exact.get(&*entry.value);
        exact.or_else(|| wildcard(&entry.value)).or(keyed.bare.as_ref())
    }

    /// Adds a descriptor. Returns the location of a duplicate as an error.
    pub(super) fn insert(
        &mut self,
        key: &str,
        value: Option<&str>,
        node: Node,
    ) -> Result<(), Place> {
        let keyed = self.keys.entry(key.as_bytes().into()).or_default();
        let Some(value) = value else {
            return match &keyed.bare {
                Some(known) => Err(known.place.clone()),
                None => {
                    keyed.bare = Some(node);
                    Ok(())
                }
            };
        };
        let Some(pattern) = Pattern::new(value) else {
            return match keyed.exact.entry(value.as_bytes().into()) {
                hash_map::Entry::Occupied(known) => Err(known.get().place.clone()),
                hash_map::Entry::Vacant(free) => {
                    free.insert(node);
                    Ok(())
                }
            };
        };
        let known = keyed.wildcards.iter().find(|(text, ..)| **text == *value);
        if let Some((_, _, known)) = known {
            return Err(known.place.clone());
        }
        keyed.wildcards.push((value.into(), pattern, node));
        Ok(())
    }
}

impl Rule {
    /// Returns the policy of the rule.
    pub(super) fn to_policy(&self, written: &WrittenRule, failure: FailureMode) -> Policy {
        let mut policy = Policy::new(self.policy, written.limits.iter().copied())
            .in_domain(&written.domain)
            .per(&written.per)
            .failing(failure);
        policy.matching = Match::never();
        policy.record_in_full = self.record_in_full;
        if self.shadow { policy.shadow() } else { policy }
    }

    pub(super) fn is_unlimited(&self) -> bool {
        self.bounds.is_empty()
    }

    /// Returns the key for these entries.
    pub(super) fn key<'a>(&self, entries: &'a [Entry]) -> DescriptorKey<'a> {
        if let [place] = *self.varying
            && let Some(entry) = entries.get(place)
        {
            return DescriptorKey::Borrowed(KeyRef::new(&entry.value));
        }
        let mut key = KeyBuf::empty();
        for place in &self.varying {
            key.push(entries.get(*place).map(|entry| &*entry.value));
        }
        DescriptorKey::Owned(key)
    }
}

impl DescriptorKey<'_> {
    /// Creates a key of all entries, for a limit in the request. The first part separates these keys from other keys of
    /// [`PolicyName::INLINE`].
    pub(super) fn whole(domain: &[u8], entries: &[Entry]) -> Self {
        let mut key = KeyBuf::empty();
        key.push(Some(b"envoy"));
        key.push(Some(domain));
        for entry in entries {
            key.push(Some(&entry.key));
            key.push(Some(&entry.value));
        }
        Self::Owned(key)
    }

    /// Replaces every part of more than `max` bytes by its digest.
    pub(super) fn bounded(self, max: usize) -> Self {
        long_key_digest::key(self.as_key(), max).map_or(self, Self::Owned)
    }

    pub(super) fn as_key(&self) -> KeyRef<'_> {
        match self {
            Self::Borrowed(key) => *key,
            Self::Owned(key) => key.as_ref(),
        }
    }
}

/// Returns the directory of rules in a deployment of envoyproxy/ratelimit.
pub(super) fn runtime_path(root: &str, subdirectory: &str, app: &str) -> PathBuf {
    let mut path = PathBuf::from(root);
    path.extend([subdirectory, app].into_iter().filter(|part| !part.is_empty()));
    path
}
