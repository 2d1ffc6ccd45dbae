//! The index that finds the policies of a request.

use std::collections::HashMap;

use smallvec::SmallVec;

use super::{Condition, Missing, Paths, Policy, view::View};
use crate::Request;

/// An index of the policies of one domain. A policy is found by an attribute value or path prefix that a request must
/// have to be covered by it.
#[derive(Debug, Default)]
pub(super) struct DomainIndex {
    /// By attribute and value.
    values: Vec<(Attribute, Places)>,
    /// By attribute and path prefix: the part of the value before a `/`, or the whole value.
    prefixes: Vec<(Attribute, Places)>,
    /// Policies without such a value or prefix: candidates for every request.
    rest: Vec<Candidate>,
}

/// A policy that may cover a request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Candidate {
    /// The index of the policy.
    pub(super) place: usize,
    /// `true` if it covers the request: the index has compared its only condition.
    pub(super) is_sure: bool,
}

/// An attribute and the path form in which it is compared.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Attribute {
    name: String,
    paths: Paths,
}

/// A possible key of a policy in the index: the values of an attribute, or prefixes of its values.
pub(super) struct IndexKey {
    is_prefix: bool,
    attribute: Attribute,
    texts: Vec<Vec<u8>>,
    /// `true` if the policy covers every request with one of these values.
    is_sure: bool,
}

/// The number of policies of a domain that each index key would find.
pub(super) struct Selectivity<'a>(HashMap<(&'a str, bool, Attribute), HashMap<Vec<u8>, usize>>);

/// The policies that may cover a request.
pub(super) type Candidates = SmallVec<[Candidate; 8]>;

/// The policies for each value or prefix. Clients choose the values to look up, but add none.
type Places = HashMap<Vec<u8>, Vec<Candidate>, foldhash::fast::RandomState>;

impl IndexKey {
    /// Returns all possible index keys of a policy, values before prefixes.
    fn all(policy: &Policy) -> impl Iterator<Item = Self> {
        let by_value = policy.matching.conditions().filter_map(|(attribute, condition)| {
            let mut values = condition.values()?.into_owned();
            values.sort_unstable();
            values.dedup();
            let texts = values.into_iter().map(String::into_bytes).collect();
            let is_sure = matches!(condition, Condition::OneOf(_))
                && policy.matching.conditions().count() == 1
                && policy.missing != Missing::Skip;
            let attribute = Attribute::of(policy, attribute);
            Some(Self { is_prefix: false, attribute, texts, is_sure })
        });
        let by_prefix = policy.matching.conditions().filter_map(|(attribute, condition)| {
            let Condition::Glob(glob) = condition else { return None };
            let texts = vec![glob.literal_prefix()?];
            let attribute = Attribute::of(policy, attribute);
            Some(Self { is_prefix: true, attribute, texts, is_sure: false })
        });
        by_value.chain(by_prefix)
    }
}

impl Attribute {
    fn of(policy: &Policy, name: &str) -> Self {
        let paths = if name == Request::PATH { policy.paths } else { Paths::Exact };
        Self { name: name.to_owned(), paths }
    }
}

impl<'a> Selectivity<'a> {
    pub(super) fn of(policies: &'a [Policy]) -> Self {
        let mut selectivity: HashMap<_, HashMap<Vec<u8>, usize>> = HashMap::new();
        for policy in policies {
            for IndexKey { is_prefix, attribute, texts, .. } in IndexKey::all(policy) {
                let by_text =
                    selectivity.entry((&*policy.domain, is_prefix, attribute)).or_default();
                for text in texts {
                    *by_text.entry(text).or_default() += 1;
                }
            }
        }
        Self(selectivity)
    }

    /// Returns the index key of a policy that finds the fewest other policies.
    pub(super) fn rarest(&self, policy: &'a Policy) -> Option<IndexKey> {
        IndexKey::all(policy).min_by_key(|key| {
            let place = (&*policy.domain, key.is_prefix, key.attribute.clone());
            let by_text = self.0.get(&place);
            let crowd = |text: &Vec<u8>| by_text.and_then(|by_text| by_text.get(text));
            key.texts.iter().filter_map(crowd).max().copied()
        })
    }
}

impl DomainIndex {
    /// Adds a policy to the index.
    pub(super) fn file(&mut self, place: usize, key: Option<IndexKey>) {
        let Some(IndexKey { is_prefix, attribute, texts, is_sure }) = key else {
            self.rest.push(Candidate { place, is_sure: false });
            return;
        };
        let index = if is_prefix { &mut self.prefixes } else { &mut self.values };
        for text in texts {
            insert(index, &attribute, text, Candidate { place, is_sure });
        }
    }

    /// Adds the policies that may cover a request to `found`, each once and in any order.
    pub(super) fn candidates(&self, view: &View<'_, '_>, found: &mut Candidates) {
        found.extend_from_slice(&self.rest);
        for (Attribute { name, paths }, by_value) in &self.values {
            if let Some(places) = view.value(name, *paths).and_then(|value| by_value.get(value)) {
                found.extend_from_slice(places);
            }
        }
        for (Attribute { name, paths }, by_prefix) in &self.prefixes {
            let Some(value) = view.value(name, *paths) else { continue };
            let start = &value[..value.len().min(MAX_PREFIX + 1)];
            let slashes = start.iter().enumerate().filter(|(_, byte)| **byte == b'/');
            let ends = slashes.map(|(slash, _)| slash);
            let whole = Some(value.len()).filter(|length| *length <= MAX_PREFIX);
            for end in ends.chain(whole) {
                if let Some(places) = by_prefix.get(&value[..end]) {
                    found.extend_from_slice(places);
                }
            }
        }
    }
}

/// Maximum length of a prefix. Patterns are shorter than this.
const MAX_PREFIX: usize = 128;

fn insert(
    index: &mut Vec<(Attribute, Places)>,
    attribute: &Attribute,
    value: Vec<u8>,
    candidate: Candidate,
) {
    let known = index.iter().position(|(other, _)| other == attribute).unwrap_or_else(|| {
        index.push((attribute.clone(), Places::default()));
        index.len() - 1
    });
    index[known].1.entry(value).or_default().push(candidate);
}
