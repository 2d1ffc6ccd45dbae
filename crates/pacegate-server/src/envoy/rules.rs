//! Which limit a descriptor leads to.

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
    file::{FileError, Source},
    limits::Bound,
    pattern::Pattern,
    proto::{Entry, Struct},
};
use crate::stand_in;

/// What the files of envoyproxy/ratelimit say, compiled. Never changed: a reload makes another.
///
/// How long it takes to find a rule does not grow with the number of descriptors at one level, but for those with a `*`
/// in the value of the same key.
#[derive(Debug, Default)]
pub(crate) struct Rules {
    pub(super) domains: HashMap<Box<[u8]>, Level>,
    /// One for each rule with a limit, in the order of the files. They cover no request by themselves: only
    /// descriptors lead to them.
    pub(super) policies: Vec<Policy>,
    /// All of them as they are written, in the order of the files.
    pub(super) written: Vec<WrittenRule>,
    pub(super) options: Options,
}

/// A rule as its file has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WrittenRule {
    /// Under which its limits are counted.
    pub policy: PolicyName,
    /// The domain of the file.
    pub domain: String,
    /// The keys that lead to it, with their values where the file gives any.
    pub way: Vec<(String, Option<String>)>,
    /// The keys by whose values it counts.
    pub per: Vec<String>,
    /// None: unlimited.
    pub limits: Vec<Limit>,
    /// True if the rule only counts.
    pub shadow: bool,
    /// True if the rule is in quota mode.
    pub quota: bool,
}

/// What their environment says about all rules.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Options {
    /// Several files may have descriptors of one domain.
    pub(crate) merge_domains: bool,
    /// Every rule is in quota mode.
    pub(crate) quota_mode: bool,
    /// Headers that Envoy adds to its answer; `None` for none.
    pub(crate) headers: Option<HeaderNames>,
}

/// What the headers are called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HeaderNames {
    pub(crate) limit: String,
    pub(crate) remaining: String,
    pub(crate) reset: String,
}

/// The descriptors at one level, by key.
#[derive(Debug, Default)]
pub(super) struct Level {
    keys: HashMap<Box<[u8]>, Keyed>,
}

/// The descriptors of one key.
#[derive(Debug, Default)]
struct Keyed {
    exact: HashMap<Box<[u8]>, Node>,
    /// In the order of the file; the first that matches is taken.
    wildcards: Vec<(Box<str>, Pattern, Node)>,
    /// For every other value.
    bare: Option<Node>,
}

/// A file and a line.
pub(super) type Place = (PathBuf, u64);

/// One descriptor of a file.
#[derive(Debug, Default)]
pub(super) struct Node {
    /// Its file and the line there, for errors.
    pub(super) place: Place,
    pub(super) rule: Option<Rule>,
    pub(super) below: Level,
}

/// What applies to descriptors that end here.
#[derive(Debug)]
pub(crate) struct Rule {
    /// Under which its limits are counted.
    pub(super) policy: PolicyName,
    /// Theirs, which need not be unique; may be empty.
    pub(super) name: Bytes,
    /// All of them apply. None at all: unlimited.
    pub(super) bounds: Vec<Bound>,
    /// The entries whose values are the key.
    pub(super) varying: Vec<usize>,
    /// Names of rules that do not apply where this one does.
    pub(super) replaces: Vec<Box<str>>,
    pub(super) shadow: bool,
    pub(super) quota: bool,
    /// What Envoy is told besides.
    pub(super) metadata: Option<Struct>,
}

/// Whose budget a descriptor draws on.
#[derive(Debug)]
pub(super) enum Subject<'a> {
    /// The value of one entry, as it is.
    One(KeyRef<'a>),
    /// None of them, or several, or what stands for one that is too long.
    Made(KeyBuf),
}

impl Rules {
    /// Reads a file, or every file of a directory.
    #[cfg(test)]
    pub(crate) fn load(path: &std::path::Path, options: Options) -> Result<Self, FileError> {
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

    /// Reads what several files say together.
    pub(crate) fn parse(sources: &[Source], options: Options) -> Result<Self, FileError> {
        compile::rules(sources, options)
    }

    /// These policies together with those of the rules.
    pub(crate) fn beside(&self, native: &PolicySet) -> Result<PolicySet, PolicyError> {
        PolicySet::new(native.policies().iter().chain(&self.policies).cloned())
    }

    /// How many policies there are of these rules.
    pub(crate) fn policies(&self) -> usize {
        self.policies.len()
    }

    /// The rules as they are written, for people.
    pub(crate) fn written(&self) -> &[WrittenRule] {
        &self.written
    }

    /// The descriptors of a domain; `None` if no file has it.
    pub(super) fn domain(&self, name: &[u8]) -> Option<&Level> {
        self.domains.get(name)
    }
}

impl Level {
    /// The rule of a descriptor: each entry goes one level down, and only the last one's counts.
    pub(super) fn rule(&self, entries: &[Entry]) -> Option<&Rule> {
        let (last, before) = entries.split_last()?;
        let mut level = self;
        for entry in before {
            level = &level.node(entry)?.below;
        }
        level.node(last)?.rule.as_ref()
    }

    /// The value as it is before any with a `*`, and these before the key alone.
    fn node(&self, entry: &Entry) -> Option<&Node> {
        let keyed = self.keys.get(&*entry.key)?;
        let wildcard = |value: &[u8]| {
            let found = keyed.wildcards.iter().find(|(_, pattern, _)| pattern.matches(value));
            found.map(|(_, _, node)| node)
        };
        let exact = keyed.exact.get(&*entry.value);
        exact.or_else(|| wildcard(&entry.value)).or(keyed.bare.as_ref())
    }

    /// Adds a descriptor. `Err` with the place of the one that is there already.
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
    /// The policy that counts for it.
    pub(super) fn to_policy(&self, written: &WrittenRule, failure: FailureMode) -> Policy {
        let mut policy = Policy::new(self.policy, written.limits.iter().copied())
            .in_domain(&written.domain)
            .per(&written.per)
            .failing(failure);
        policy.matching = Match::never();
        if self.shadow { policy.shadow() } else { policy }
    }

    pub(super) fn is_unlimited(&self) -> bool {
        self.bounds.is_empty()
    }

    /// Whose budget it is for these entries.
    pub(super) fn subject<'a>(&self, entries: &'a [Entry]) -> Subject<'a> {
        if let [place] = *self.varying
            && let Some(entry) = entries.get(place)
        {
            return Subject::One(KeyRef::new(&entry.value));
        }
        let mut key = KeyBuf::empty();
        for place in &self.varying {
            key.push(entries.get(*place).map(|entry| &*entry.value));
        }
        Subject::Made(key)
    }
}

impl Subject<'_> {
    /// Everything that a descriptor says, for a limit that no rule stands for. The first part sets these keys apart
    /// from those that others count under [`PolicyName::AD_HOC`].
    pub(super) fn whole(domain: &[u8], entries: &[Entry]) -> Self {
        let mut key = KeyBuf::empty();
        key.push(Some(b"envoy"));
        key.push(Some(domain));
        for entry in entries {
            key.push(Some(&entry.key));
            key.push(Some(&entry.value));
        }
        Self::Made(key)
    }

    /// With a stand-in for every part that has more bytes than this.
    pub(super) fn bounded(self, most: usize) -> Self {
        stand_in::key(self.as_key(), most).map_or(self, Self::Made)
    }

    pub(super) fn as_key(&self) -> KeyRef<'_> {
        match self {
            Self::One(key) => *key,
            Self::Made(key) => key.as_ref(),
        }
    }
}

/// Where rules are looked for by deployments of envoyproxy/ratelimit.
pub(super) fn runtime_path(root: &str, subdirectory: &str, app: &str) -> PathBuf {
    let mut path = PathBuf::from(root);
    path.extend([subdirectory, app].into_iter().filter(|part| !part.is_empty()));
    path
}
