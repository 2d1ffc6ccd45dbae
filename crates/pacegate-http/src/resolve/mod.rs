//! Key resolvers: they read the key that a request is counted by.
//!
//! A resolver reads one value from the head of a request. [`ResolveExt::and`] combines several to one key,
//! [`ResolveExt::or`] falls back to another, and every closure that returns an optional [`Key`] is a resolver too:
//!
//! ```
//! use http::request::Parts;
//! use pacegate_http::resolve::{ClientAddress, Extension, Header, Path, ResolveExt};
//!
//! #[derive(Clone)]
//! struct User { id: u64 }
//!
//! let behind_proxy = ClientAddress::trusting(["10.0.0.0/8".parse()?]);
//! let who = Extension::new(|user: &User| user.id).or(behind_proxy).and(Path);
//! let tenant = Header::from_static("x-tenant").or_reject();
//! let own = |head: &Parts| head.uri.query().map(str::to_owned);
//! # fn resolver(_: impl pacegate_http::Resolve) {}
//! # resolver(who); resolver(tenant); resolver(own);
//! # Ok::<(), ipnet::AddrParseError>(())
//! ```
//!
//! | count by | resolver | a client can forge it |
//! |---|---|---|
//! | connection | [`PeerAddress`] | no |
//! | client behind proxies | [`ClientAddress`] | no, if the trusted proxies are configured correctly |
//! | user, after authentication | [`Extension`] | no |
//! | verified token | [`BearerSubject`] | no |
//! | API key | [`ApiKey`] | yes, unless it is verified before |
//! | header, cookie | [`Header`], [`Cookie`] | yes, unless a proxy sets it |
//! | route | [`MatchedRoute`] | no: there are as many as routes |
//! | path, host, method | [`Path`], [`Host`], [`Method`] | yes |
//! | everything together | [`Everyone`] | no |
//!
//! A value that a client can forge gives it a new counter for each request. Combine it with an address, or use it only
//! for the `match` of a policy.

mod address;
mod combine;
mod forwarded;
mod parts;
mod secret;
mod text;

use http::request::Parts;
use pacegate::{Key, KeyBuf, KeyRef};
use smallvec::SmallVec;

pub use address::{ClientAddress, Peer, PeerAddress, plain_address};
pub use combine::{And, Instead, Or, ResolveExt};
pub use parts::{Cookie, Everyone, ExactPath, Extension, Header, Host, MatchedRoute, Method, Path};
pub use secret::{ApiKey, BearerSubject};
pub use text::plain_host;

/// Reads the key that a request is counted by.
///
/// Implemented for closures `Fn(&H) -> Option<K>` where `K` is any [`Key`]: text, a number, an address, a tuple. `None`
/// is [`Missing::Unspecified`]. Implement it to read a value without a copy, or to return another [`Missing`].
///
/// ```
/// use http::request::Parts;
/// use pacegate_http::{KeyParts, Missing, Resolve};
///
/// /// The first segment of the path, such as `acme` of `/acme/orders`.
/// struct Tenant;
///
/// impl Resolve for Tenant {
///     fn resolve(&self, head: &Parts, key: &mut KeyParts) -> Result<(), Missing> {
///         let tenant = head.uri.path().split('/').nth(1).filter(|tenant| !tenant.is_empty());
///         key.push(tenant.ok_or(Missing::Reject)?.as_bytes());
///         Ok(())
///     }
/// }
///
/// let (head, ()) = http::Request::get("/acme/orders").body(())?.into_parts();
/// let mut key = KeyParts::new();
/// assert_eq!(Tenant.resolve(&head, &mut key), Ok(()));
/// assert_eq!(key.iter().next(), Some(Some(&b"acme"[..])));
/// # Ok::<(), http::Error>(())
/// ```
pub trait Resolve<H = Parts>: Send + Sync + 'static {
    /// Adds the value to `key`, or adds nothing and returns how to treat a request without it.
    fn resolve(&self, head: &H, key: &mut KeyParts) -> Result<(), Missing>;
}

/// The treatment of a request without the value of a resolver.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Missing {
    /// The default. For a key it means `Reject`: otherwise unrelated clients would share a counter. For an attribute of
    /// policies it means `Share`.
    #[default]
    Unspecified,
    /// All requests without the value share one counter, so that a client gains nothing by leaving it out. An attribute
    /// of policies is absent, and [`Policy::missing`](pacegate::policy::Policy::missing) of each policy applies.
    Share,
    /// The request is not limited.
    Skip,
    /// The request is answered with 400.
    Reject,
    /// The program does not provide the value. The request is answered with 500; the text is the change that the
    /// program needs.
    Misconfigured(&'static str),
}

/// The parts of a key.
///
/// A key of one part equals that part: a [`Header`] with the value `alice` and `limiter.check("alice")` use the same
/// counter.
///
/// ```
/// use pacegate::{Limit, Limiter};
/// use pacegate_http::KeyParts;
///
/// let mut key = KeyParts::new();
/// key.push(b"alice");
/// let limiter = Limiter::memory(Limit::per_minute(1));
/// assert!(limiter.check(&key).is_allowed());
/// assert!(!limiter.check("alice").is_allowed(), "the same counter");
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyParts {
    bytes: SmallVec<[u8; 64]>,
    /// The end of each part in `bytes`, and `false` for a missing part.
    ends: SmallVec<[(u32, bool); 4]>,
    /// `true` if parts that are missing with [`Missing::Unspecified`] are absent, `false` if they are rejected.
    lenient: bool,
}

impl KeyParts {
    /// Creates a key without parts: one counter for all requests.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a part.
    pub fn push(&mut self, part: &[u8]) {
        self.write(|bytes| bytes.extend_from_slice(part));
    }

    /// Adds a missing part, which differs from an empty one.
    pub fn push_missing(&mut self) {
        self.ends.push((self.end(), false));
    }

    /// Adds all parts of a key.
    pub fn push_key(&mut self, key: impl Key) {
        key.with(|key| {
            for part in key.parts() {
                match part {
                    Some(part) => self.push(part),
                    None => self.push_missing(),
                }
            }
        });
    }

    /// Returns the parts; a missing one is `None`.
    pub fn iter(&self) -> impl Iterator<Item = Option<&[u8]>> {
        let starts = std::iter::once(0).chain(self.ends.iter().map(|&(end, _)| end));
        starts.zip(&self.ends).map(|(start, &(end, present))| {
            present.then(|| &self.bytes[start as usize..end as usize])
        })
    }

    /// Returns the number of parts, missing ones included.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Returns `true` if there are no parts.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Sets the meaning of [`Missing::Unspecified`]: `true` for an absent value, `false` for a rejected request.
    pub(crate) fn set_lenient(&mut self, lenient: bool) {
        self.lenient = lenient;
    }

    /// Returns `true` if a value that is missing in this way becomes an absent part.
    pub(crate) fn shares(&self, missing: Missing) -> bool {
        missing == Missing::Share || self.lenient && missing == Missing::Unspecified
    }

    /// Adds all parts of a key. Fails if all of them are missing.
    pub(crate) fn push_found(&mut self, key: impl Key) -> Result<(), Missing> {
        let before = self.len();
        self.push_key(key);
        let found = &self.ends[before..];
        if found.is_empty() || found.iter().any(|&(_, present)| present) {
            return Ok(());
        }
        self.truncate(before);
        Err(Missing::default())
    }

    pub(crate) fn write(&mut self, write: impl FnOnce(&mut SmallVec<[u8; 64]>)) {
        write(&mut self.bytes);
        self.ends.push((self.end(), true));
    }

    /// Removes all parts but the first `parts`.
    pub(crate) fn truncate(&mut self, parts: usize) {
        self.ends.truncate(parts);
        let end = self.ends.last().map_or(0, |&(end, _)| end);
        self.bytes.truncate(end as usize);
    }

    /// Joins all parts after the first `parts` to one, so that different parts never give the same text.
    pub(crate) fn join(&mut self, parts: usize) {
        if self.len() == parts + 1 {
            return;
        }
        let mut joined = KeyBuf::empty();
        self.iter().skip(parts).for_each(|part| joined.push(part));
        self.truncate(parts);
        self.write(|bytes| joined.as_ref().feed(|part| bytes.extend_from_slice(part)));
    }

    /// Returns all parts joined to one.
    pub(crate) fn joined(&self) -> Self {
        let mut joined = self.clone();
        joined.join(0);
        joined
    }

    /// Request heads are far below 4 GiB, so the end fits.
    fn end(&self) -> u32 {
        u32::try_from(self.bytes.len()).unwrap_or(u32::MAX)
    }
}

impl Key for KeyParts {
    fn with<R>(&self, read: impl FnOnce(KeyRef<'_>) -> R) -> R {
        if let [(_, true)] = &*self.ends {
            return read(KeyRef::new(&self.bytes));
        }
        let mut key = KeyBuf::empty();
        self.iter().for_each(|part| key.push(part));
        read(key.as_ref())
    }
}

impl<H, K, F> Resolve<H> for F
where
    F: Fn(&H) -> Option<K> + Send + Sync + 'static,
    K: Key,
{
    fn resolve(&self, head: &H, key: &mut KeyParts) -> Result<(), Missing> {
        key.push_found(self(head).ok_or_default()?)
    }
}

/// Converts `None` to the default [`Missing`].
pub(crate) trait OrDefault<T> {
    fn ok_or_default(self) -> Result<T, Missing>;
}

impl<T> OrDefault<T> for Option<T> {
    fn ok_or_default(self) -> Result<T, Missing> {
        self.ok_or(Missing::default())
    }
}
