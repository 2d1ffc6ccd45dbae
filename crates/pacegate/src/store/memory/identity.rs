//! Keys are not kept: a cell holds a keyed 101-bit hash of policy, counter, algorithm, period and key, and a tag of 27
//! bits for the policy.
//!
//! The hash is two independent 64-bit values of foldhash, under secrets that each store draws at random and never
//! shows. It is no cryptographic hash, and need not be: nobody outside ever sees one, so an outsider can neither aim
//! for the cell of somebody else nor pile keys onto one shard. The [`Owner`] takes the place of the low bits. By chance,
//! two of four billion keys of one policy meet once in 2^38.

#[cfg(not(pacegate_loom))]
use std::hash::RandomState;
use std::{
    cell::Cell,
    hash::{BuildHasher, Hasher},
    sync::atomic::{AtomicU64, Ordering},
};

use foldhash::{SharedSeed, quality::FoldHasher};

use super::share::Owner;
use crate::{Algorithm, Counter, KeyRef, Limit, policy::PolicyName};

/// Stands for a key in the store. Never zero, which an empty cell has.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Identity {
    high: u64,
    low: u64,
}

/// What the keys of one counter of a policy are hashed with. A change of algorithm or period is a new scope, so it
/// starts afresh. Whether a change of amount or burst is one depends on the [`Counter`].
#[derive(Clone, Copy, Debug)]
pub(crate) struct Scope {
    /// Seeds for keys of one part, and for tuples: no single part can pass for a tuple.
    one: Seeds,
    tuple: Seeds,
    tag: Owner,
}

type Seeds = (u64, u64);

/// What the hashes of one store are made with.
#[derive(Clone)]
pub(crate) struct Secret {
    /// No two secrets of the process have the same.
    number: u64,
    scopes: ScopeHasher,
    high: SharedSeed,
    low: SharedSeed,
}

/// What a scope is made of.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Subject {
    secret: u64,
    policy: PolicyName,
    counter: [u64; 3],
    period: u64,
    algorithm: Algorithm,
}

thread_local! {
    /// The scope that this thread asked for last. Limits that come with requests are mostly the same again and again.
    static LAST: Cell<Option<(Subject, Scope)>> = const { Cell::new(None) };
}

#[cfg(not(pacegate_loom))]
type ScopeHasher = RandomState;
#[cfg(pacegate_loom)]
type ScopeHasher = std::hash::BuildHasherDefault<std::hash::DefaultHasher>;

impl Secret {
    /// The model checker needs every run to be the same.
    #[cfg(pacegate_loom)]
    pub(super) fn random() -> Self {
        let [high, low] = [1, 2].map(SharedSeed::from_u64);
        Self { number: next_number(), scopes: std::hash::BuildHasherDefault::default(), high, low }
    }

    #[cfg(not(pacegate_loom))]
    pub(super) fn random() -> Self {
        // The standard library's keys come from the operating system; SipHash under them gives the seeds.
        let seed = || SharedSeed::from_u64(RandomState::new().hash_one(0));
        let number = next_number();
        Self { number, scopes: RandomState::new(), high: seed(), low: seed() }
    }

    /// `tag` finds the tag of the policy, which never changes.
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

    /// Stands for `key` under `scope`.
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

/// A value that nobody can tell from another without knowing it. A difference that is always the same would not do: the
/// hash takes the exclusive or of its seed and the key, so a key could make up for it and pass for a tuple.
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
    /// Stands for all keys of this scope for which there is no room.
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

    /// One of `shards`, a power of two. Independent of [`Identity::spread`].
    #[inline]
    pub(super) fn shard(self, shards: usize) -> usize {
        self.part(shards)
    }

    /// One of `parts`, a power of two.
    #[inline]
    pub(crate) fn part(self, parts: usize) -> usize {
        self.high as usize & (parts - 1)
    }

    /// A place from 0 to `places`, any number of them.
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

/// Identities are hashes already.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct AsItIs(u64);

impl Hasher for AsItIs {
    fn write(&mut self, _: &[u8]) {
        unreachable!("an identity is two words");
    }

    // The low bits of the second word are a tag, and those of the first one pick the shard: neither may decide alone.
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

    /// The first eight bytes of a key are taken together with the seed by exclusive or.
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
            (PolicyName::AD_HOC, Counter::Limit),
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
