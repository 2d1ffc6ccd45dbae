//! Tags, which select the server of a counter on a cluster.

use super::{Policy, PolicyName, PolicySet};
use crate::{KeyRef, Request};

/// The value that selects the server of a counter in a cluster.
///
/// On a cluster, the limits of policies whose tags are equal for a request live on one server and are charged all or
/// nothing in one step. If the tags differ, they are charged one after the other and refunded if one denies. Other
/// requests may then be denied because of units that are refunded a moment later. [`PolicySet::split_tags`] returns
/// those pairs. On a single server, tags have no effect.
///
/// Counters start from zero when the tag of a policy changes.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Tag {
    /// The key. Distributes counters evenly.
    #[default]
    Key,
    /// The value of this attribute, which is part of the key. For requests without it: the key.
    Attribute(String),
    /// A fixed name, which other policies may share: their counters are all on one server.
    Name(String),
}

impl PolicySet {
    /// Returns the pairs of policies that may cover one request with different [tags](Tag). On a cluster, such a
    /// request is not charged in one step.
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
                    && first.placement() != second.placement()
                    && !first.excludes(second)
            });
            split.extend(later.map(|second| (first.name, second.name)));
        }
        split
    }
}

/// The part of a request that selects the server of a policy's counters.
#[derive(PartialEq, Eq)]
enum Placement<'a> {
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

    fn placement(&self) -> Placement<'_> {
        match (&self.tag, &*self.per) {
            (Tag::Key, [attribute]) | (Tag::Attribute(attribute), _) => {
                Placement::Attribute(attribute)
            }
            (Tag::Key, per) => Placement::Key(per),
            (Tag::Name(name), _) => Placement::Name(name),
        }
    }

    /// Returns the tag of a key of this policy.
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

    /// Returns the attribute of the tag if it is not part of the key. One key would then have a counter for each tag.
    pub(super) fn foreign_tag(&self) -> Option<&str> {
        match &self.tag {
            Tag::Attribute(tag) if !self.per.contains(tag) => Some(tag),
            _ => None,
        }
    }
}
