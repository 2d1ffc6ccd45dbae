//! Resolvers for secrets. The key is a digest, or the result of a verification.

use std::fmt;

use http::{HeaderName, header};

use super::{KeyParts, Missing, OrDefault, Resolve};
use crate::head::{Head, only};

/// An API key, as the first 32 hexadecimal digits of its BLAKE3 digest. Stores, logs and lists of busy keys never
/// contain the key itself.
///
/// It is not verified here. A client that invents a new key for each request gets a new counter each time, so put this
/// layer behind the one that verifies keys, or add an address.
///
/// ```
/// use pacegate::{Limit, Limiter};
/// use pacegate_http::{RateLimitLayer, resolve::{ApiKey, PeerAddress, ResolveExt}};
///
/// // One client cannot get a new counter by inventing keys: each address has its own.
/// let by = ApiKey::header(http::HeaderName::from_static("x-api-key")).and(PeerAddress::new());
/// let layer = RateLimitLayer::new(Limiter::memory(Limit::per_minute(60))).by(by);
/// # let _ = layer;
/// ```
#[derive(Clone)]
pub struct ApiKey {
    place: Place,
    secret: Option<[u8; 32]>,
}

/// The subject of a bearer token that a closure verifies.
///
/// There is no resolver for an unverified claim, because a client could choose its counter. If an outer layer has
/// verified the token, read its result with [`Extension`](super::Extension) instead.
///
/// ```
/// use pacegate_http::resolve::BearerSubject;
///
/// let by = BearerSubject::verified(|token: &str| {
///     // Verify the signature and the expiry here.
///     (token == "valid").then(|| "alice".to_owned())
/// });
/// # fn is_resolver(_: impl pacegate_http::Resolve) {}
/// # is_resolver(by);
/// ```
///
/// `verify` runs on the thread that serves the request: it must not call another service.
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
    /// Reads the key from a header such as `x-api-key`.
    pub const fn header(name: HeaderName) -> Self {
        Self { place: Place::Header(name), secret: None }
    }

    /// Reads the key from `Authorization: Bearer KEY`.
    pub const fn bearer() -> Self {
        Self { place: Place::Bearer, secret: None }
    }

    /// Adds a secret to the digest, so that a reader of the store cannot guess weak keys by trying them.
    #[must_use]
    pub fn keyed(self, secret: [u8; 32]) -> Self {
        Self { secret: Some(secret), ..self }
    }
}

impl<F> BearerSubject<F> {
    /// Creates a resolver. `verify` returns the subject of a token if it is genuine and valid; it runs for every
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

/// Returns the bearer token of the only `Authorization` header.
fn bearer<H: Head>(head: &H) -> Option<&[u8]> {
    let value = only(head.lines(&header::AUTHORIZATION))?;
    let (scheme, token) = value.split_at_checked(7)?;
    scheme.eq_ignore_ascii_case(b"bearer ").then(|| token.trim_ascii())
}
