//! Fingerprints identify cells within this process.
//!
//! Key names on the server are cryptographic hashes, which take longer than the rest of a local decision. The deny
//! cache, the leases and the cache of the last key name use a hash that is ten times as fast: 128 bits under random
//! seeds that never leave the process, so that clients cannot construct collisions. The memory store hashes the same
//! way.

use std::{
    fmt,
    hash::{BuildHasher, Hash, Hasher, RandomState},
};

use foldhash::{SharedSeed, quality::FoldHasher};
use pacegate::Charge;

use crate::cell::period_micros;

/// Identifies a cell within this process.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Fingerprint {
    high: u64,
    low: u64,
}

/// Computes fingerprints, with the seeds of one store.
pub(crate) struct Fingerprinter {
    scopes: u64,
    high: SharedSeed,
    low: SharedSeed,
}

/// Returns a random number from the keys that the standard library gets from the operating system.
pub(crate) fn random() -> u64 {
    RandomState::new().hash_one(0)
}

impl Fingerprinter {
    pub(crate) fn new() -> Self {
        let [high, low] = [random(), random()].map(SharedSeed::from_u64);
        Self { scopes: random(), high, low }
    }

    /// Returns the fingerprint of the cell of a charge. Charges have the same fingerprint if and only if they have
    /// the same key name on the server.
    pub(crate) fn of(&self, charge: &Charge<'_>) -> Fingerprint {
        let (policy, limit) = (charge.policy.as_str().as_bytes(), &charge.limit);
        let algorithm = limit.algorithm().name().as_bytes();
        let mut scope = self.scope();
        scope.write_u64((policy.len() as u64) << 32 | algorithm.len() as u64);
        scope.write_u64(period_micros(limit));
        if let Some(calendar) = limit.calendar() {
            calendar.hash(&mut scope);
        }
        charge.counter.to_words(limit).iter().for_each(|&word| scope.write_u64(word));
        scope.write(policy);
        scope.write(algorithm);
        self.hash(scope.finish(), |hasher| {
            if charge.tag != charge.key {
                let mut length = 0;
                charge.tag.feed(|part| length += part.len());
                hasher.write_u64(length as u64);
                charge.tag.feed(|part| hasher.write(part));
            }
            charge.key.feed(|part| hasher.write(part));
        })
    }

    /// Returns the fingerprint of a counter that is shared with another limiter.
    pub(crate) fn of_counter(&self, key: &[u8], period: u64) -> Fingerprint {
        let mut scope = self.scope();
        scope.write_u64(period);
        self.hash(scope.finish(), |hasher| hasher.write(key))
    }

    fn scope(&self) -> FoldHasher<'_> {
        FoldHasher::with_seed(self.scopes, &self.high)
    }

    /// Hashes input from clients, with the hash of the trusted part as the seed: neither can imitate the other.
    fn hash(&self, scope: u64, feed: impl Fn(&mut FoldHasher<'_>)) -> Fingerprint {
        let half = |seed| {
            let mut hasher = FoldHasher::with_seed(scope, seed);
            feed(&mut hasher);
            hasher.finish()
        };
        Fingerprint { high: half(&self.high), low: half(&self.low) }
    }
}

/// Hides the value, which must stay secret.
impl fmt::Debug for Fingerprint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Fingerprint(..)")
    }
}

/// Hides the seeds.
impl fmt::Debug for Fingerprinter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Fingerprinter(..)")
    }
}

#[cfg(test)]
mod tests {
    use pacegate::{Counter, Key, KeyRef, Limit};

    use super::*;

    fn fingerprint(
        fingerprinter: &Fingerprinter,
        policy: &str,
        key: impl Key,
        limit: &str,
    ) -> Fingerprint {
        key.with(|key| {
            let charge = Charge::new(policy.parse().unwrap(), key, limit.parse().unwrap());
            fingerprinter.of(&charge.counter(Counter::Policy))
        })
    }

    #[test]
    fn cells_with_one_key_name_have_one_fingerprint() {
        let fingerprinter = Fingerprinter::new();
        let known = fingerprint(&fingerprinter, "api", "alice", "10/minute");
        assert_eq!(
            fingerprint(&fingerprinter, "api", "alice", "99/minute"),
            known,
            "the amount may change"
        );
        for other in [
            fingerprint(&fingerprinter, "web", "alice", "10/minute"),
            fingerprint(&fingerprinter, "api", "bob", "10/minute"),
            fingerprint(&fingerprinter, "api", ("ali", "ce"), "10/minute"),
            fingerprint(&fingerprinter, "api", "alice", "10/hour"),
            fingerprint(&fingerprinter, "api", "alice", "10/minute sliding-log"),
            fingerprint(&Fingerprinter::new(), "api", "alice", "10/minute"),
        ] {
            assert_ne!((other.high, other.low), (known.high, known.low));
            assert_ne!(other, known);
        }
    }

    #[test]
    fn each_counter_has_a_separate_fingerprint() {
        let fingerprinter = Fingerprinter::new();
        let limits: [Limit; 2] = ["1/hour burst 1", "2/hour burst 9"].map(|l| l.parse().unwrap());
        let charge = |limit| Charge::new("api".parse().unwrap(), KeyRef::new(b"alice"), limit);
        let fingerprint = |counter, limit| fingerprinter.of(&charge(limit).counter(counter));
        let kept = [Counter::Policy, Counter::Override(1), Counter::Override(2)];
        assert!(kept.iter().all(|&one| fingerprint(one, limits[0]) == fingerprint(one, limits[1])));
        let mut all = kept.map(|counter| fingerprint(counter, limits[0])).to_vec();
        all.extend(limits.map(|limit| fingerprint(Counter::Limit, limit)));
        for (place, one) in all.iter().enumerate() {
            assert!(!all[place + 1..].contains(one), "{place}");
        }
    }

    /// The hash treats short and long keys differently.
    #[test]
    fn every_byte_of_a_key_counts() {
        let fingerprinter = Fingerprinter::new();
        for length in [0, 1, 8, 15, 16, 17, 31, 32, 33, 127, 128, 129, 255, 256, 257, 1_000] {
            let key = vec![b'k'; length];
            let known = fingerprint(&fingerprinter, "api", &*key, "10/minute");
            assert_eq!(fingerprint(&fingerprinter, "api", &*key, "10/minute"), known);
            for place in 0..length {
                let mut other = key.clone();
                other[place] ^= 1;
                let other = fingerprint(&fingerprinter, "api", &*other, "10/minute");
                assert!(other.high != known.high && other.low != known.low, "{place} of {length}");
            }
            let longer = [&*key, b"k"].concat();
            assert_ne!(fingerprint(&fingerprinter, "api", &*longer, "10/minute"), known);
        }
    }

    #[test]
    fn a_separate_tag_changes_the_fingerprint() {
        let fingerprinter = Fingerprinter::new();
        let limit: Limit = "10/minute".parse().unwrap();
        let charge = Charge::new("api".parse().unwrap(), KeyRef::new(b"alice"), limit);
        let with = |tag: &'static [u8]| fingerprinter.of(&tagged(charge, tag));
        assert_eq!(with(b"alice"), fingerprinter.of(&charge), "a key is its own tag");
        for tag in [b"".as_slice(), b"ali", b"alice\0"] {
            assert_ne!(with(tag), fingerprinter.of(&charge));
        }
        assert_ne!(with(b""), with(b"ali"));
    }

    fn tagged<'a>(mut charge: Charge<'a>, tag: &'a [u8]) -> Charge<'a> {
        charge.tag = KeyRef::new(tag);
        charge
    }
}
