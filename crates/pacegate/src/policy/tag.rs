//! What the state of a policy is placed by, and which policies are placed together.

use super::{Policy, PolicyName, PolicySet};
use crate::{KeyRef, Request};

/// What a store that is spread over servers places the state of a policy by.
///
/// On a cluster, the limits of policies whose tags are equal for a request live on one server and are charged all or
/// nothing in one step. Where they differ, they are charged one after the other and given back if one denies: a weaker
/// promise, for others may see units as used that are given back a moment later. [`PolicySet::split_tags`] names those
/// pairs. A store on one server makes no difference.
///
/// Where the state of a policy has been placed, another tag starts afresh.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Tag {
    /// The key: spreads most.
    #[default]
    Key,
    /// The value of this attribute, one of those that are the key. Where a request lacks it: the key.
    Attribute(String),
    /// This name, which other policies may share: all of their state is on one server.
    Name(String),
}

impl PolicySet {
    /// Pairs of policies that may cover one request, but are not known to have the same [`Tag`] for it. On a cluster,
    /// what they promise together is the weaker.
    ///
    /// Tags are known to be the same for the same `per` lists, the same attribute and the same name; as to an
    /// attribute, for requests that have it. Pairs whose conditions plainly exclude each other are left out. Compares
    /// every policy with every other of its domain: for a validator, not for every request.
    pub fn split_tags(&self) -> Vec<(PolicyName, PolicyName)> {
        let policies = self.policies();
        let mut split = Vec::new();
        for (place, first) in policies.iter().enumerate() {
            let later = policies[place + 1..].iter().filter(|second| {
                first.domain == second.domain
                    && first.place() != second.place()
                    && !first.excludes(second)
            });
            split.extend(later.map(|second| (first.name, second.name)));
        }
        split
    }
}

/// What decides where the state of a policy is.
#[derive(PartialEq, Eq)]
enum Place<'a> {
    Key(&'a [String]),
    Attribute(&'a str),
    Name(&'a str),
}

impl Policy {
    /// Returns `true` only if no request can be covered by both.
    fn excludes(&self, other: &Self) -> bool {
        // Different forms of one path cannot be compared.
        let differing = (self.paths != other.paths).then_some(Request::PATH);
        self.matching.excludes_without(&other.matching, differing)
    }

    fn place(&self) -> Place<'_> {
        match (&self.tag, &*self.per) {
            (Tag::Key, [attribute]) | (Tag::Attribute(attribute), _) => Place::Attribute(attribute),
            (Tag::Key, per) => Place::Key(per),
            (Tag::Name(name), _) => Place::Name(name),
        }
    }

    /// The tag of a key of this policy.
    pub(crate) fn tag_of<'a>(&'a self, key: KeyRef<'a>) -> KeyRef<'a> {
        match &self.tag {
            Tag::Key => key,
            Tag::Name(name) => KeyRef::new(name.as_bytes()),
            // One attribute is the key as it is, which may have several parts itself.
            Tag::Attribute(_) if self.per.len() == 1 => key,
            Tag::Attribute(tag) => {
                let place = self.per.iter().position(|attribute| attribute == tag);
                let part = place.and_then(|place| key.parts().nth(place)).flatten();
                part.map_or(key, KeyRef::new)
            }
        }
    }

    /// Were the tag no part of the key, one key would have a state, and a budget, for each tag that it comes with.
    pub(super) fn foreign_tag(&self) -> Option<&str> {
        match &self.tag {
            Tag::Attribute(tag) if !self.per.contains(tag) => Some(tag),
            _ => None,
        }
    }
}
