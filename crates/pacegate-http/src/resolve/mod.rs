//! Whose budget a request draws on: resolvers, and ways to put them together.
//!
//! A resolver finds one value in the head of a request. [`ResolveExt::and`] makes a key of several,
//! [`ResolveExt::or`] falls back to another, and any closure that returns an optional [`Key`] is a resolver too:
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

/// Finds out whose budget a request draws on.
///
/// Implemented for closures `Fn(&H) -> Option<K>` where `K` is any [`Key`]: text, a number, an address, a tuple. `None`
/// is [`Missing::Unspecified`]. Implement it yourself to read something without a copy, or to miss in another way.
pub trait Resolve<H = Parts>: Send + Sync + 'static {
    /// Adds the value to `key`, or adds nothing and says what is to happen without it.
    fn resolve(&self, head: &H, key: &mut KeyParts) -> Result<(), Missing>;
}

/// What happens to a request that lacks what a resolver looks for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Missing {
    /// Nothing was chosen. A request without its key is answered with 400, as by `Reject`: otherwise clients that have
    /// nothing to do with each other would share a budget. An attribute of policies is absent, as by `Share`.
    #[default]
    Unspecified,
    /// All requests that lack it share one budget, so that leaving it out gains nothing. As an attribute of policies it
    /// is absent, and each policy that counts by it does what [its own setting](pacegate::policy::Policy::missing)
    /// says.
    Share,
    /// The request passes unlimited.
    Skip,
    /// The request is answered with 400.
    Reject,
    /// No request has it, because the program does not provide it: the request is answered with 500, and this is what
    /// to change in the program.
    Misconfigured(&'static str),
}

/// The parts of a key, as resolvers add them.
///
/// A key of one part is the same as that part alone: what a [`Header`] resolves to and `limiter.check("alice")` draw on
/// one budget.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyParts {
    bytes: SmallVec<[u8; 64]>,
    /// Where each part ends in `bytes`, and whether it is there at all.
    ends: SmallVec<[(u32, bool); 4]>,
    /// `true` if parts that are missing with [`Missing::Unspecified`] are absent, `false` if they are rejected.
    lenient: bool,
}

impl KeyParts {
    /// No parts: one budget for all.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a part.
    pub fn push(&mut self, part: &[u8]) {
        self.write(|bytes| bytes.extend_from_slice(part));
    }

    /// Adds that a part is missing, which is not the same as an empty one.
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

    /// The parts; a missing one is `None`.
    pub fn iter(&self) -> impl Iterator<Item = Option<&[u8]>> {
        let starts = std::iter::once(0).chain(self.ends.iter().map(|&(end, _)| end));
        starts.zip(&self.ends).map(|(start, &(end, present))| {
            present.then(|| &self.bytes[start as usize..end as usize])
        })
    }

    /// How many parts there are, with those that are missing.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there is no part.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Sets what [`Missing::Unspecified`] means: that the value is absent, or that the request is rejected.
    pub(crate) fn set_lenient(&mut self, lenient: bool) {
        self.lenient = lenient;
    }

    /// Returns `true` if a value that is missing in this way becomes an absent part.
    pub(crate) fn shares(&self, missing: Missing) -> bool {
        missing == Missing::Share || self.lenient && missing == Missing::Unspecified
    }

    /// Adds all parts of a key, unless they are all missing.
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

    /// Takes back what was added after there were this many parts.
    pub(crate) fn truncate(&mut self, parts: usize) {
        self.ends.truncate(parts);
        let end = self.ends.last().map_or(0, |&(end, _)| end);
        self.bytes.truncate(end as usize);
    }

    /// Makes one part of all after the first `parts`, so that no other parts make the same.
    pub(crate) fn join(&mut self, parts: usize) {
        if self.len() == parts + 1 {
            return;
        }
        let mut joined = KeyBuf::empty();
        self.iter().skip(parts).for_each(|part| joined.push(part));
        self.truncate(parts);
        self.write(|bytes| joined.as_ref().feed(|part| bytes.extend_from_slice(part)));
    }

    /// The same as one part.
    pub(crate) fn joined(&self) -> Self {
        let mut joined = self.clone();
        joined.join(0);
        joined
    }

    /// Heads are far below 4 GiB; no server takes longer ones.
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

/// `None` is missed in the way that nobody chose.
pub(crate) trait OrDefault<T> {
    fn ok_or_default(self) -> Result<T, Missing>;
}

impl<T> OrDefault<T> for Option<T> {
    fn ok_or_default(self) -> Result<T, Missing> {
        self.ok_or(Missing::default())
    }
}
