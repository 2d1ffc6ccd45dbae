use http::{HeaderMap, header};
use sha2::{Digest, Sha256};
use subtle::{ConditionallySelectable, ConstantTimeEq};

use crate::config::{Credential, Scope};

/// The configured API keys, as hashes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Keys<'a>(pub(crate) &'a [Credential]);

/// The permissions of a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Access<'a> {
    /// `None` if no API keys are configured: all requests have all permissions.
    credential: Option<&'a Credential>,
}

impl<'a> Keys<'a> {
    /// Returns true if requests need an API key.
    pub(crate) fn are_needed(self) -> bool {
        !self.0.is_empty()
    }

    /// Returns the permissions of an API key, or `None` if the key is unknown.
    pub(crate) fn access(self, key: Option<&[u8]>) -> Option<Access<'a>> {
        self.access_by_digest(key.map(Self::digest).as_ref())
    }

    /// Returns the digest of an API key.
    pub(crate) fn digest(key: &[u8]) -> [u8; 32] {
        Sha256::digest(key).into()
    }

    /// Implements [`Keys::access`] for the digest of a key, in constant time.
    pub(crate) fn access_by_digest(self, digest: Option<&[u8; 32]>) -> Option<Access<'a>> {
        if !self.are_needed() {
            return Some(Access { credential: None });
        }
        let digest = digest?;
        let mut found = u64::MAX;
        for (place, credential) in (0..).zip(self.0) {
            found.conditional_assign(&place, credential.sha256.ct_eq(digest));
        }
        let credential = self.0.get(usize::try_from(found).ok()?)?;
        Some(Access { credential: Some(credential) })
    }
}

impl Access<'_> {
    /// Returns true if this is allowed in `domain`.
    pub(crate) fn allows(&self, scope: Scope, domain: &str) -> bool {
        self.credential.is_none_or(|credential| {
            let covers = |domains: &Vec<String>| domains.iter().any(|own| own == domain);
            credential.scope >= scope && credential.domains.as_ref().is_none_or(covers)
        })
    }

    /// Returns true if inline limits are allowed.
    pub(crate) fn allows_inline(&self) -> bool {
        self.credential.is_none_or(|credential| credential.inline)
    }

    /// Returns true if this is allowed in all domains.
    pub(crate) fn allows_everywhere(&self, scope: Scope) -> bool {
        self.credential
            .is_none_or(|credential| credential.scope >= scope && credential.domains.is_none())
    }

    /// Returns true if the request has an API key.
    pub(crate) fn is_authenticated(&self) -> bool {
        self.credential.is_some()
    }

    /// Returns the name of the API key for logs.
    pub(crate) fn name(&self) -> &str {
        self.credential.map_or("anybody", |credential| &credential.name)
    }
}

/// Returns the API key in `Authorization: Bearer KEY`.
pub(crate) fn bearer(headers: &HeaderMap) -> Option<&[u8]> {
    let value = headers.get(header::AUTHORIZATION)?.as_bytes();
    let (scheme, key) = value.split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"bearer ").then_some(key)
}

/// The message for administration that is off.
pub(crate) const ADMIN_OFF: &str = "administration is off on a public address in the place of \
     envoyproxy/ratelimit: listen on 127.0.0.1, or use a Pacegate file with `keys`";

/// The message for inline limits without permission.
pub(crate) const INLINE_DENIED: &str =
    "inline limits need an API key with `inline: true`: set it under `keys` in the configuration";

#[cfg(test)]
mod tests {
    use super::*;

    fn credential(name: &str, key: &str, scope: Scope, domains: Option<Vec<String>>) -> Credential {
        let sha256 = Sha256::digest(key).into();
        Credential { name: name.into(), sha256, scope, domains, inline: false }
    }

    #[test]
    fn a_key_has_the_permissions_of_its_scope_and_domains() {
        let list = [
            credential("edge", "one", Scope::Check, Some(vec!["edge".into()])),
            credential("boss", "two", Scope::Admin, None),
        ];
        let keys = Keys(&list);
        assert!(keys.access(None).is_none() && keys.access(Some(b"")).is_none());
        assert!(keys.access(Some(b"three")).is_none());
        let edge = keys.access(Some(b"one")).unwrap();
        assert_eq!(edge.name(), "edge");
        assert!(edge.allows(Scope::Check, "edge") && !edge.allows(Scope::Admin, "edge"));
        assert!(!edge.allows(Scope::Check, "") && !edge.allows_everywhere(Scope::Check));
        let boss = keys.access(Some(b"two")).unwrap();
        assert!(boss.allows(Scope::Admin, "any") && boss.allows_everywhere(Scope::Admin));
    }

    #[test]
    fn inline_limits_are_a_permission_of_their_own() {
        let mut list = [credential("boss", "two", Scope::Admin, None)];
        assert!(!Keys(&list).access(Some(b"two")).unwrap().allows_inline(), "admin is not enough");
        list[0] = Credential { inline: true, ..credential("a", "two", Scope::Check, None) };
        assert!(Keys(&list).access(Some(b"two")).unwrap().allows_inline());
        assert!(Keys(&[]).access(None).unwrap().allows_inline(), "no API keys are configured");
    }

    #[test]
    fn without_api_keys_everything_is_allowed() {
        let anybody = Keys(&[]).access(None).unwrap();
        assert!(anybody.allows_everywhere(Scope::Admin));
        assert_eq!(anybody.name(), "anybody");
    }
}
