//! Values that are secrets: what is counted by is a digest, or what a verification made of them.

use std::fmt;

use http::{HeaderName, header};

use super::{KeyParts, Missing, OrDefault, Resolve};
use crate::head::{Head, only};

/// An API key, as 32 hexadecimal digits of its BLAKE3 digest: no store, log or list of busy keys ever holds the key
/// itself.
///
/// It is not verified here. A client that makes up a new key for each request has a new budget each time, so put this
/// layer behind the one that verifies keys, or add an address.
#[derive(Clone)]
pub struct ApiKey {
    place: Place,
    secret: Option<[u8; 32]>,
}

/// The subject of a bearer token that a closure of yours has verified.
///
/// There is no way to read a claim without verification: whoever can write the claim chooses the budget. If a layer
/// before this one has verified the token, read what it left with [`Extension`](super::Extension) instead.
#[derive(Clone)]
pub struct BearerSubject<F> {
    verify: F,
}

#[derive(Clone, Debug)]
enum Place {
    Header(HeaderName),
    Bearer,
}

impl ApiKey {
    /// The key in a header such as `x-api-key`.
    pub const fn header(name: HeaderName) -> Self {
        Self { place: Place::Header(name), secret: None }
    }

    /// The key in `Authorization: Bearer KEY`.
    pub const fn bearer() -> Self {
        Self { place: Place::Bearer, secret: None }
    }

    /// Uses a secret in the digest, so that nobody who reads the store can try out keys that are easy to guess.
    #[must_use]
    pub fn keyed(self, secret: [u8; 32]) -> Self {
        Self { secret: Some(secret), ..self }
    }
}

impl<F> BearerSubject<F> {
    /// `verify` is given the token, and returns its subject if it is genuine and still valid. It runs for every
    /// request.
    pub const fn verified(verify: F) -> Self
    where
        F: Fn(&str) -> Option<String>,
    {
        Self { verify }
    }
}

impl fmt::Debug for ApiKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ApiKey").field(&self.place).finish()
    }
}

impl<F> fmt::Debug for BearerSubject<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("BearerSubject")
    }
}

impl<H: Head> Resolve<H> for ApiKey {
    fn resolve(&self, head: &H, key: &mut KeyParts) -> Result<(), Missing> {
        let secret = match &self.place {
            Place::Header(name) => only(head.lines(name)),
            Place::Bearer => bearer(head),
        };
        let secret = secret.filter(|secret| !secret.is_empty()).ok_or_default()?;
        let digest = match &self.secret {
            Some(own) => blake3::keyed_hash(own, secret),
            None => blake3::hash(secret),
        };
        key.push(&digest.to_hex().as_bytes()[..32]);
        Ok(())
    }
}

impl<H, F> Resolve<H> for BearerSubject<F>
where
    H: Head,
    F: Fn(&str) -> Option<String> + Send + Sync + 'static,
{
    fn resolve(&self, head: &H, key: &mut KeyParts) -> Result<(), Missing> {
        let token = bearer(head).and_then(|token| str::from_utf8(token).ok()).ok_or_default()?;
        key.push((self.verify)(token).ok_or_default()?.as_bytes());
        Ok(())
    }
}

/// The token of the only `Authorization`, if it is one of a bearer.
fn bearer<H: Head>(head: &H) -> Option<&[u8]> {
    let value = only(head.lines(&header::AUTHORIZATION))?;
    let (scheme, token) = value.split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"bearer ").then(|| token.trim_ascii())
}
