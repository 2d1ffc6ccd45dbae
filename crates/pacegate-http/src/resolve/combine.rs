//! Combinations of resolvers.

use super::{KeyParts, Missing, Resolve};

/// Combines resolvers, and sets the treatment of requests without a value.
///
/// Implemented for every resolver and every closure.
///
/// ```
/// use http::Request;
/// use pacegate_http::{KeyParts, Missing, Resolve, resolve::{Header, Method, ResolveExt}};
///
/// let by = Header::from_static("x-tenant").or_share().and(Method);
/// let (head, ()) = Request::new(()).into_parts();
/// let mut key = KeyParts::new();
/// assert_eq!(by.resolve(&head, &mut key), Ok(()));
/// assert_eq!(key.iter().collect::<Vec<_>>(), [None, Some(&b"GET"[..])]);
/// # let _: Option<Missing> = None;
/// ```
pub trait ResolveExt: Sized {
    /// Uses `other` if this value is missing. If both are missing, the setting of `other` applies.
    ///
    /// Both share one key space: a user called `203.0.113.7` has the counter of that address. If clients can choose
    /// their names, use attributes of different names instead.
    fn or<R>(self, other: R) -> Or<Self, R> {
        Or { first: self, second: other }
    }

    /// Combines both values to one key. If one is missing and has [`or_share`](Self::or_share), requests without it
    /// share a counter for each value of the other.
    fn and<R>(self, other: R) -> And<Self, R> {
        And { first: self, second: other }
    }

    /// Does not limit requests without the value.
    fn or_skip(self) -> Instead<Self> {
        Instead { resolver: self, missing: Missing::Skip }
    }

    /// Counts all requests without the value together.
    fn or_share(self) -> Instead<Self> {
        Instead { resolver: self, missing: Missing::Share }
    }

    /// Answers requests without the value with 400. This is the default for a key.
    fn or_reject(self) -> Instead<Self> {
        Instead { resolver: self, missing: Missing::Reject }
    }
}

/// See [`ResolveExt::or`].
#[derive(Clone, Copy, Debug)]
pub struct Or<A, B> {
    first: A,
    second: B,
}

/// See [`ResolveExt::and`].
#[derive(Clone, Copy, Debug)]
pub struct And<A, B> {
    first: A,
    second: B,
}

/// A resolver with another treatment of requests without its value.
#[derive(Clone, Copy, Debug)]
pub struct Instead<A> {
    resolver: A,
    missing: Missing,
}

impl<T> ResolveExt for T {}

impl<H, A: Resolve<H>, B: Resolve<H>> Resolve<H> for Or<A, B> {
    fn resolve(&self, head: &H, key: &mut KeyParts) -> Result<(), Missing> {
        let before = key.len();
        self.first.resolve(head, key).or_else(|_| {
            key.truncate(before);
            self.second.resolve(head, key)
        })
    }
}

impl<H, A: Resolve<H>, B: Resolve<H>> Resolve<H> for And<A, B> {
    fn resolve(&self, head: &H, key: &mut KeyParts) -> Result<(), Missing> {
        let before = key.len();
        let first = part(&self.first, head, key)?;
        let second = part(&self.second, head, key)?;
        if first || second {
            return Ok(());
        }
        key.truncate(before);
        Err(Missing::Share)
    }
}

impl<H, A: Resolve<H>> Resolve<H> for Instead<A> {
    fn resolve(&self, head: &H, key: &mut KeyParts) -> Result<(), Missing> {
        self.resolver.resolve(head, key).map_err(|_| self.missing)
    }
}

/// Adds one part and returns whether its value is present. A missing part that is shared is added as missing.
fn part<H>(resolver: &impl Resolve<H>, head: &H, key: &mut KeyParts) -> Result<bool, Missing> {
    let before = key.len();
    match resolver.resolve(head, key) {
        Ok(()) => Ok(true),
        Err(missing) if key.shares(missing) => {
            key.truncate(before);
            key.push_missing();
            Ok(false)
        }
        Err(missing) => Err(missing),
    }
}
