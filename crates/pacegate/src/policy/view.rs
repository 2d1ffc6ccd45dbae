//! A request as policies compare it: with its path in a normal form.

use std::borrow::Cow;

use super::{Match, Missing, Paths, Policy};
use crate::{KeyBuf, KeyRef, Request};

/// A request, and its path in the forms that the policies of a set need, each computed once.
#[derive(Debug)]
pub(super) struct View<'r, 'a> {
    request: &'r Request<'a>,
    normalized: Option<Cow<'a, [u8]>>,
    case_sensitive: Option<Cow<'a, [u8]>>,
}

/// The forms that the policies of a set need.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Forms {
    normalized: bool,
    case_sensitive: bool,
}

impl Forms {
    /// Returns the forms that these policies compare or count by.
    pub(super) fn of(policies: &[Policy]) -> Self {
        let mut forms = Self::default();
        for policy in policies.iter().filter(|policy| uses_path(policy)) {
            match policy.paths {
                Paths::Normalized => forms.normalized = true,
                Paths::CaseSensitive => forms.case_sensitive = true,
                Paths::Exact => {}
            }
        }
        forms
    }
}

fn uses_path(policy: &Policy) -> bool {
    let overrides = policy.overrides.iter().map(|other| &other.matching);
    let mut conditions =
        std::iter::once(&policy.matching).chain(overrides).flat_map(Match::conditions);
    conditions.any(|(attribute, _)| attribute == Request::PATH)
        || policy.per.iter().any(|attribute| attribute == Request::PATH)
}

impl<'r, 'a> View<'r, 'a> {
    pub(super) fn new(request: &'r Request<'a>, forms: Forms) -> Self {
        let path = match forms.normalized || forms.case_sensitive {
            true => request.attribute(Request::PATH),
            false => None,
        };
        let form =
            |needed: bool, paths: Paths| path.filter(|_| needed).map(|path| paths.normalize(path));
        Self {
            request,
            normalized: form(forms.normalized, Paths::Normalized),
            case_sensitive: form(forms.case_sensitive, Paths::CaseSensitive),
        }
    }

    pub(super) fn domain(&self) -> &'a str {
        self.request.domain()
    }

    /// Returns the value of an attribute as it is compared and counted.
    pub(super) fn value(&self, attribute: &str, paths: Paths) -> Option<&[u8]> {
        let form = match paths {
            Paths::Normalized if attribute == Request::PATH => &self.normalized,
            Paths::CaseSensitive if attribute == Request::PATH => &self.case_sensitive,
            _ => return self.request.attribute(attribute),
        };
        form.as_deref()
    }

    /// Returns `true` if a policy of the request's domain applies.
    pub(super) fn is_covered_by(&self, policy: &Policy) -> bool {
        let value = |attribute: &str| self.value(attribute, policy.paths);
        let lacks = |attribute: &String| value(attribute).is_none();
        policy.matching.covers_values(value)
            && !(policy.missing == Missing::Skip && policy.per.iter().any(lacks))
    }

    /// Returns the index of the override that applies: the first that matches. A value that is too long to be matched
    /// with certainty meets no override, because an override may lift the limit.
    pub(super) fn override_of(&self, policy: &Policy) -> Option<usize> {
        let value = |attribute: &str| self.value(attribute, policy.paths);
        policy.overrides.iter().position(|other| other.matching.surely_covers(value))
    }

    /// Returns the key of a request under a policy that counts by one attribute, if the request has it.
    pub(super) fn key_of_one(&self, policy: &Policy) -> Option<KeyRef<'_>> {
        match &*policy.per {
            [attribute] => self.value(attribute, policy.paths).map(KeyRef::new),
            _ => None,
        }
    }

    /// Returns the key of a request under a policy: the values of its `per` attributes.
    pub(super) fn key(&self, policy: &Policy) -> KeyBuf {
        if let Some(key) = self.key_of_one(policy) {
            return key.to_buf();
        }
        let mut key = KeyBuf::empty();
        policy.per.iter().for_each(|attribute| key.push(self.value(attribute, policy.paths)));
        key
    }
}
