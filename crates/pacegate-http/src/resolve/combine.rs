//! Resolvers made of others.

use super::{KeyParts, Missing, Resolve};

/// Ways to put resolvers together.
pub trait ResolveExt: Sized {
    /// This, or if it is missing, the other. What is missing in the end is what the other misses.
    ///
    /// The two share their values: a user called `203.0.113.7` has the budget of that address. Where clients choose
    /// their own names, use attributes of different names instead.
    fn or<R>(self, other: R) -> Or<Self, R> {
        Or { first: self, second: other }
    }

    /// This and the other: a key of both. If one is missing and has [`or_share`](Self::or_share), requests without it
    /// share a budget for each value of the other.
    fn and<R>(self, other: R) -> And<Self, R> {
        And { first: self, second: other }
    }

    /// Requests without it pass unlimited.
    fn or_skip(self) -> Instead<Self> {
        Instead { resolver: self, missing: Missing::Skip }
    }

    /// Requests without it share one budget.
    fn or_share(self) -> Instead<Self> {
        Instead { resolver: self, missing: Missing::Share }
    }

    /// Requests without it are answered with 400. Default for a key.
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

/// A resolver with another answer to what happens without its value.
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

/// Whether the value is there. One that is shared by all who lack it is a part of the key too.
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
