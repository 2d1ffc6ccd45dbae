//! Marks: how this process tells cells apart for itself.
//!
//! The names that a server sees are made by a cryptographic hash, which takes longer than all the rest of a decision
//! that needs no server. What is remembered here, denials, leases and the last name that was made, is kept by a hash
//! that takes a tenth of that: 128 bits under secrets that the store draws at random and never shows, so nobody outside
//! can make two keys meet. It is the hash of the memory store, for the same reasons.

use std::{
    fmt,
    hash::{BuildHasher, BuildHasherDefault, Hash, Hasher, RandomState},
};

use foldhash::{SharedSeed, quality::FoldHasher};
use pacegate::{Charge, Limit};

use crate::cell::period_micros;

/// Which cell, in this process only.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Mark {
    high: u64,
    low: u64,
}

/// What a request wants of one cell, as far as it can be answered here.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Claim<'a> {
    pub(crate) mark: Mark,
    pub(crate) limit: &'a Limit,
    pub(crate) cost: u64,
    pub(crate) enforced: bool,
}

/// Makes marks.
pub(crate) struct Marker {
    scopes: u64,
    high: SharedSeed,
    low: SharedSeed,
}

impl Marker {
    pub(crate) fn random() -> Self {
        // The standard library's keys come from the operating system; SipHash under them gives the seeds.
        let secret = || RandomState::new().hash_one(0);
        let [high, low] = [secret(), secret()].map(SharedSeed::from_u64);
        Self { scopes: secret(), high, low }
    }

    /// Of the cell that a charge is for: the same for all that have the same name at the server.
    pub(crate) fn mark(&self, charge: &Charge<'_>) -> Mark {
        let (policy, limit) = (charge.policy.as_str().as_bytes(), &charge.limit);
        let algorithm = limit.algorithm().name().as_bytes();
        let mut scope = self.scope();
        let counter = charge.counter.to_words(limit);
        scope.write_u64((policy.len() as u64) << 32 | algorithm.len() as u64);
        scope.write_u64(period_micros(limit));
        counter.iter().for_each(|&word| scope.write_u64(word));
        scope.write(policy);
        scope.write(algorithm);
        self.under(scope.finish(), |hasher| {
            if charge.tag != charge.key {
                let mut length = 0;
                charge.tag.feed(|part| length += part.len());
                hasher.write_u64(length as u64);
                charge.tag.feed(|part| hasher.write(part));
            }
            charge.key.feed(|part| hasher.write(part));
        })
    }

    /// Of a counter that is shared with another limiter.
    pub(crate) fn spot(&self, key: &[u8], period: u64) -> Mark {
        let mut scope = self.scope();
        scope.write_u64(period);
        self.under(scope.finish(), |hasher| hasher.write(key))
    }

    fn scope(&self) -> FoldHasher<'_> {
        FoldHasher::with_seed(self.scopes, &self.high)
    }

    /// What comes from outside is hashed under what does not, so that neither can pass for the other.
    fn under(&self, scope: u64, feed: impl Fn(&mut FoldHasher<'_>)) -> Mark {
        let hash = |seed| {
            let mut hasher = FoldHasher::with_seed(scope, seed);
            feed(&mut hasher);
            hasher.finish()
        };
        Mark { high: hash(&self.high), low: hash(&self.low) }
    }

    pub(crate) fn claim<'a>(&self, charge: &'a Charge<'_>) -> Claim<'a> {
        let Charge { limit, cost, enforced, .. } = charge;
        Claim { mark: self.mark(charge), limit, cost: *cost, enforced: *enforced }
    }
}

/// Without its value: nobody is to see one.
impl fmt::Debug for Mark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Mark(..)")
    }
}

/// Without its secrets.
impl fmt::Debug for Marker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Marker(..)")
    }
}

/// For maps by marks, which are hashes already.
pub(crate) type ByMark = BuildHasherDefault<AsItIs>;

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct AsItIs(u64);

impl Hash for Mark {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(self.high);
    }
}

impl Hasher for AsItIs {
    fn write(&mut self, _: &[u8]) {
        unreachable!("a mark is one word");
    }

    fn write_u64(&mut self, word: u64) {
        self.0 = word;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use pacegate::{Counter, Key, KeyRef};

    use super::*;

    fn mark(marker: &Marker, policy: &str, key: impl Key, limit: &str) -> Mark {
        key.with(|key| {
            let charge = Charge::new(policy.parse().unwrap(), key, limit.parse().unwrap());
            marker.mark(&charge.counter(Counter::Policy))
        })
    }

    #[test]
    fn what_has_one_name_at_the_server_has_one_mark() {
        let marker = Marker::random();
        let known = mark(&marker, "api", "alice", "10/minute");
        assert_eq!(mark(&marker, "api", "alice", "99/minute"), known, "the amount may change");
        for other in [
            mark(&marker, "web", "alice", "10/minute"),
            mark(&marker, "api", "bob", "10/minute"),
            mark(&marker, "api", ("ali", "ce"), "10/minute"),
            mark(&marker, "api", "alice", "10/hour"),
            mark(&marker, "api", "alice", "10/minute sliding-log"),
            mark(&Marker::random(), "api", "alice", "10/minute"),
        ] {
            assert_ne!((other.high, other.low), (known.high, known.low));
            assert_ne!(other, known);
        }
    }

    #[test]
    fn each_counter_has_its_own_mark() {
        let marker = Marker::random();
        let limits: [Limit; 2] = ["1/hour burst 1", "2/hour burst 9"].map(|l| l.parse().unwrap());
        let charge = |limit| Charge::new("api".parse().unwrap(), KeyRef::new(b"alice"), limit);
        let mark = |counter, limit| marker.mark(&charge(limit).counter(counter));
        let kept = [Counter::Policy, Counter::Override(1), Counter::Override(2)];
        assert!(kept.iter().all(|&one| mark(one, limits[0]) == mark(one, limits[1])));
        let mut marks = kept.map(|counter| mark(counter, limits[0])).to_vec();
        marks.extend(limits.map(|limit| mark(Counter::Limit, limit)));
        for (place, one) in marks.iter().enumerate() {
            assert!(!marks[place + 1..].contains(one), "{place}");
        }
    }

    /// The hash takes short and long keys in different ways.
    #[test]
    fn every_byte_of_a_key_counts() {
        let marker = Marker::random();
        for length in [0, 1, 8, 15, 16, 17, 31, 32, 33, 127, 128, 129, 255, 256, 257, 1_000] {
            let key = vec![b'k'; length];
            let known = mark(&marker, "api", &*key, "10/minute");
            assert_eq!(mark(&marker, "api", &*key, "10/minute"), known);
            for place in 0..length {
                let mut other = key.clone();
                other[place] ^= 1;
                let other = mark(&marker, "api", &*other, "10/minute");
                assert!(other.high != known.high && other.low != known.low, "{place} of {length}");
            }
            let longer = [&*key, b"k"].concat();
            assert_ne!(mark(&marker, "api", &*longer, "10/minute"), known);
        }
    }

    #[test]
    fn a_tag_of_its_own_makes_another_mark() {
        let marker = Marker::random();
        let limit: Limit = "10/minute".parse().unwrap();
        let charge = Charge::new("api".parse().unwrap(), KeyRef::new(b"alice"), limit);
        let with = |tag: &'static [u8]| marker.mark(&tagged(charge, tag));
        assert_eq!(with(b"alice"), marker.mark(&charge), "a key is its own tag");
        for tag in [b"".as_slice(), b"ali", b"alice\0"] {
            assert_ne!(with(tag), marker.mark(&charge));
        }
        assert_ne!(with(b""), with(b"ali"));
    }

    fn tagged<'a>(mut charge: Charge<'a>, tag: &'a [u8]) -> Charge<'a> {
        charge.tag = KeyRef::new(tag);
        charge
    }
}
