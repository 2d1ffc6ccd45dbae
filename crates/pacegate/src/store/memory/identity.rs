//! Identities of keys. Keys are not stored: a cell contains a keyed 101-bit hash of policy, counter, algorithm, period
//! and key, and a 27-bit tag for the policy.
//!
//! The hash consists of two independent 64-bit foldhash values, with random secrets that never leave the store. It is
//! not cryptographic. It need not be, because hashes never leave the store either: a client cannot choose a key that
//! collides with another key or overloads one shard. The [`Owner`] replaces the low bits. With four billion keys in
//! one policy, the probability that any two collide is 2^-38.

#[cfg(not(pacegate_loom))]
use std::hash::RandomState as ScopeHasher;
use std::{
    cell::Cell,
    hash::{BuildHasher, Hasher},
    sync::atomic::{AtomicU64, Ordering},
};

use foldhash::{SharedSeed, quality::FoldHasher};

use super::share::Owner;
use crate::{Algorithm, Counter, KeyRef, Limit, policy::PolicyName};

/// The identity of a key in the store. Never zero, which marks an empty cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Identity {
    high: u64,
    low: u64,
}

/// The hash seeds and the tag for the keys of one counter of a policy. Another algorithm or period has another scope,
/// so its counters start unused. For another amount or burst, that depends on the [`Counter`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scope {
    /// Seeds for keys of one part. Tuples have other seeds, so that a single part never collides with a tuple.
    one: Seeds,
    tuple: Seeds,
    tag: Owner,
}

type Seeds = (u64, u64);

/// The random secrets of one store.
#[derive(Clone)]
pub(crate) struct Secret {
    /// A number that is unique in the process.
    number: u64,
    scopes: ScopeHasher,
    high: SharedSeed,
    low: SharedSeed,
}

/// The input from which a scope is computed.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Subject {
    secret: u64,
    policy: PolicyName,
    counter: [u64; 3],
    period: u64,
    algorithm: Algorithm,
}

thread_local! {
    /// The last scope that this thread computed. Inline limits are often the same as in the last request.
    static LAST: Cell<Option<(Subject, Scope)>> = const { Cell::new(None) };
}

/// Without random keys, because the model checker needs deterministic runs.
#[cfg(pacegate_loom)]
type ScopeHasher = std::hash::BuildHasherDefault<std::hash::DefaultHasher>;

impl Secret {
    pub(super) fn random() -> Self {
        // The standard library gets random keys from the operating system. SipHash with these keys returns the seeds.
        let seed = |part: u8| SharedSeed::from_u64(ScopeHasher::default().hash_one(part));
        let (high, low) = (seed(1), seed(2));
        Self { number: next_number(), scopes: ScopeHasher::default(), high, low }
    }

    /// Returns the scope of a counter. `tag` looks up the tag of the policy, which never changes.
    pub(super) fn scope(
        &self,
        policy: PolicyName,
        counter: Counter,
        limit: &Limit,
        tag: impl FnOnce() -> Owner,
    ) -> Scope {
        let subject = self.subject(policy, counter, limit);
        if let Some((known, scope)) = LAST.get()
            && known == subject
        {
            return scope;
        }
        let scope = self.scope_of(subject, tag());
        LAST.set(Some((subject, scope)));
        scope
    }

    fn subject(&self, policy: PolicyName, counter: Counter, limit: &Limit) -> Subject {
        let (period, algorithm) = (limit.period_micros(), limit.algorithm());
        let counter = counter.to_words(limit);
        Subject { secret: self.number, policy, counter, period, algorithm }
    }

    fn scope_of(&self, subject: Subject, tag: Owner) -> Scope {
        let Subject { policy, counter, period, algorithm, .. } = subject;
        let name = (period, policy, counter, algorithm.name());
        let seed = |form: u8| self.scopes.hash_one((form, name));
        let (high, low) = (seed(1), seed(2));
        Scope { one: (high, low), tuple: (scramble(high), scramble(low)), tag }
    }

    /// Returns the identity of `key` in `scope`.
    #[inline]
    pub(crate) fn identity(&self, scope: &Scope, key: KeyRef<'_>) -> Identity {
        let (high, low) = if key.is_tuple() { scope.tuple } else { scope.one };
        let hash = |seed, shared| {
            let mut hasher = FoldHasher::with_seed(seed, shared);
            hasher.write(key.as_bytes());
            hasher.finish()
        };
        Identity::new(hash(high, &self.high), hash(low, &self.low), scope.tag)
    }
}

fn next_number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// Derives the seed for tuples from the seed for single parts, with an unpredictable difference.
///
/// A constant difference would be unsafe: the hash computes the exclusive or of its seed and the key, so a client could
/// build a single part that cancels the difference and collides with a tuple.
fn scramble(mut seed: u64) -> u64 {
    for (shift, factor) in [(30, 0xbf58_476d_1ce4_e5b9), (27, 0x94d0_49bb_1331_11eb)] {
        seed = (seed ^ seed >> shift).wrapping_mul(factor);
    }
    seed ^ seed >> 31
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret(..)")
    }
}

impl Scope {
    /// Returns the identity of the overflow budget, which all keys of this scope without room share.
    pub(super) fn overflow(&self) -> Identity {
        Identity::new(self.one.0, self.one.1, self.tag)
    }
}

impl Identity {
    pub(super) const ZERO: Self = Self { high: 0, low: 0 };

    #[inline]
    fn new(high: u64, low: u64, tag: Owner) -> Self {
        Self { high, low: low & !Owner::MASK | tag.bits() }
    }

    /// Returns the index of one of `shards`, a power of two. Independent of [`Identity::spread`].
    #[inline]
    pub(super) fn shard(self, shards: usize) -> usize {
        self.part(shards)
    }

    /// Returns the index of one of `parts`, a power of two.
    #[inline]
    pub(crate) fn part(self, parts: usize) -> usize {
        self.high as usize & (parts - 1)
    }

    /// Returns an index below `places`, which need not be a power of two.
    #[inline]
    pub(super) fn spread(self, places: usize) -> usize {
        ((u128::from(self.low) * places as u128) >> 64) as usize
    }

    #[inline]
    pub(super) fn low(self) -> u64 {
        self.low
    }

    #[cfg(test)]
    pub(super) fn of_test(number: u64) -> Self {
        let seed = SharedSeed::from_u64(1);
        let hash = |seed, shared| {
            let mut hasher = FoldHasher::with_seed(seed, shared);
            hasher.write_u64(number);
            hasher.finish()
        };
        Self { high: hash(2, &seed), low: hash(3, &seed) | 1 }
    }
}

/// A hasher that does not hash again, because identities are hashes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct PassThroughHasher(u64);

impl Hasher for PassThroughHasher {
    fn write(&mut self, _: &[u8]) {
        unreachable!("an identity is two words");
    }

    // The low bits of the second word are a tag, and the low bits of the first select the shard, so use both words.
    fn write_u64(&mut self, word: u64) {
        self.0 = self.0.rotate_left(32) ^ word;
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(all(test, not(pacegate_loom)))]
mod tests {
    use super::*;

    /// The hash computes the exclusive or of its seed and the first eight bytes of the key.
    #[test]
    fn no_key_passes_for_a_tuple_by_a_difference_that_is_known() {
        let difference = |scope: &Scope| (scope.one.0 ^ scope.tuple.0, scope.one.1 ^ scope.tuple.1);
        let secret = Secret::random();
        let scopes: Vec<_> = (1..100)
            .map(|amount| {
                let period = std::time::Duration::from_secs(amount);
                let limit = Limit::new(1, period).unwrap();
                secret.scope(PolicyName::DEFAULT, Counter::Policy, &limit, || Owner::of(1))
            })
            .collect();
        let mut seen = std::collections::HashSet::new();
        for scope in &scopes {
            let (high, low) = difference(scope);
            assert!(seen.insert(high) && seen.insert(low), "the same difference twice");
        }
    }

    #[test]
    fn the_last_scope_is_given_only_for_what_it_is_of() {
        let secrets = [Secret::random(), Secret::random()];
        let limits = ["1/minute", "2/minute", "1/hour", "1/minute sliding-window"];
        let counted = [
            (PolicyName::DEFAULT, Counter::Policy),
            (PolicyName::DEFAULT, Counter::Override(1)),
            (PolicyName::DEFAULT, Counter::Override(2)),
            (PolicyName::INLINE, Counter::Limit),
        ];
        for _ in 0..2 {
            for limit in limits.map(|limit| limit.parse::<Limit>().unwrap()) {
                for (secret, counted) in secrets.iter().flat_map(|one| counted.map(|c| (one, c))) {
                    let (policy, counter) = counted;
                    let subject = secret.subject(policy, counter, &limit);
                    let afresh = secret.scope_of(subject, Owner::of(1));
                    let [first, again] =
                        [(); 2].map(|()| secret.scope(policy, counter, &limit, || Owner::of(1)));
                    assert_eq!((first.one, first.tuple), (afresh.one, afresh.tuple));
                    assert_eq!((again.one, again.tuple), (afresh.one, afresh.tuple));
                }
            }
        }
    }
}
