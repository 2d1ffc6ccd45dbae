//! Identities of keys. Keys are not stored: a cell contains a keyed 101-bit hash of policy, counter, algorithm, period
//! and key, and a 27-bit tag for the policy.
//!
//! The hash consists of two independent 64-bit foldhash values, with random secrets that never leave the store. It is
//! not cryptographic. It need not be, because hashes never leave the store either: a client cannot choose a key that
//! collides with another key or overloads one shard. The [`Owner`] replaces the low bits. With four billion keys in
//! one policy, the probability that any two collide is 2^-38.
//!
//! A key is hashed once for all its limits. It has the same shard under each of them, so that a request with several
//! limits on one key takes one lock. The bits that select the shard, at most 16, therefore do not separate two limits
//! of one key; the other 85 do.

#[cfg(not(pacegate_loom))]
use std::hash::RandomState as RandomSource;
use std::hash::{BuildHasherDefault, Hasher};

use foldhash::{SharedSeed, fast, quality};

use super::share::Owner;
use crate::{Counter, KeyRef, Limit, policy::PolicyName};

/// The identity of a key in the store. Never zero, which marks an empty cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Identity {
    high: u64,
    low: u64,
}

/// Hashes values whose bits are random already: identities and random ids.
pub(super) type HashIsRandom = BuildHasherDefault<RandomBits>;

#[derive(Debug, Default)]
pub(super) struct RandomBits(u64);

impl Hasher for RandomBits {
    #[inline]
    fn write_u64(&mut self, word: u64) {
        self.0 = self.0.rotate_left(32) ^ word;
    }

    #[inline]
    fn write_u128(&mut self, id: u128) {
        // The lower bits select the shard.
        self.0 = (id >> 64) as u64;
    }

    fn write(&mut self, bytes: &[u8]) {
        bytes.iter().for_each(|byte| self.write_u64(u64::from(*byte)));
    }

    #[inline]
    fn finish(&self) -> u64 {
        self.0
    }
}

/// The hash seeds and the tag for the keys of one counter of a policy. Another algorithm or period has another scope,
/// so its counters start unused. For another amount or burst, that depends on the [`Counter`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Scope {
    high: u64,
    low: u64,
    tag: Owner,
}

/// The hash of a key, which is the same in all scopes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeyHash {
    high: u64,
    low: u64,
}

/// The random secrets of one store.
#[derive(Clone)]
pub(crate) struct Secret {
    high: HalfSecret,
    low: HalfSecret,
}

/// The random secrets of one half of the hash.
#[derive(Clone)]
struct HalfSecret {
    shared: SharedSeed,
    scopes: u64,
    /// Seeds for keys of one part, and for tuples: a single part never collides with a tuple.
    ///
    /// Both are random. A constant difference between them would be unsafe: the hash computes the exclusive or of its
    /// seed and the key, so a client could build a single part that cancels the difference and collides with a tuple.
    keys: [u64; 2],
}

/// The low bits of [`Identity::high`] are the same in all scopes.
const SHARD_BITS: u32 = 16;
/// The maximum number of shards.
pub(super) const MAX_SHARDS: usize = 1 << SHARD_BITS;

/// Without random keys, because the model checker needs deterministic runs.
#[cfg(pacegate_loom)]
type RandomSource = std::hash::BuildHasherDefault<std::hash::DefaultHasher>;

impl Secret {
    pub(super) fn random() -> Self {
        Self { high: HalfSecret::random(0), low: HalfSecret::random(1) }
    }

    /// Returns the scope of a counter, whose policy has the tag `tag`.
    #[inline]
    pub(super) fn scope(
        &self,
        policy: PolicyName,
        counter: Counter,
        limit: &Limit,
        tag: Owner,
    ) -> Scope {
        let [kind, first, second] = counter.to_words(limit);
        let hash = |secret: &HalfSecret| {
            let mut hasher = quality::FoldHasher::with_seed(secret.scopes, &secret.shared);
            hasher.write(policy.as_str().as_bytes());
            hasher.write(limit.algorithm().name().as_bytes());
            for word in [limit.packed_period().to_bits(), kind, first, second] {
                hasher.write_u64(word);
            }
            hasher.finish()
        };
        Scope { high: hash(&self.high), low: hash(&self.low), tag }
    }

    /// Hashes a key.
    #[inline(always)]
    pub(crate) fn hash(&self, key: KeyRef<'_>) -> KeyHash {
        let bytes = key.as_bytes();
        let hash = |secret: &HalfSecret| {
            let seed = secret.keys[usize::from(key.is_tuple())];
            // The hash of up to 16 bytes is inlined, so two overlapping parts are faster than the whole.
            if let 17..=32 = bytes.len()
                && let (Some(first), Some(last)) = (bytes.first_chunk(), bytes.last_chunk())
            {
                return hash_parts(first, last, seed.rotate_right(bytes.len() as u32), secret);
            }
            let mut hasher = fast::FoldHasher::with_seed(seed, &secret.shared);
            hasher.write(bytes);
            hasher.finish()
        };
        KeyHash { high: hash(&self.high), low: hash(&self.low) }
    }
}

/// Hashes a key of 17 to 32 bytes. The seed depends on the length, so that keys of different lengths with the same
/// first and last bytes have different hashes.
#[inline(always)]
fn hash_parts(first: &[u8; 16], last: &[u8; 16], seed: u64, secret: &HalfSecret) -> u64 {
    let mut hasher = fast::FoldHasher::with_seed(seed, &secret.shared);
    hasher.write(first);
    hasher.write(last);
    hasher.finish()
}

impl HalfSecret {
    fn random(half: u8) -> Self {
        // The standard library gets random keys from the operating system. SipHash with these keys returns the seeds.
        let source = RandomSource::default();
        let seed = |part: u8| std::hash::BuildHasher::hash_one(&source, (half, part));
        let shared = SharedSeed::from_u64(seed(0));
        Self { shared, scopes: seed(1), keys: [seed(2), seed(3)] }
    }
}

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Secret(..)")
    }
}

impl Scope {
    /// Returns the identity of the overflow budget, which all keys of this scope without room share.
    pub(super) fn overflow(&self) -> Identity {
        Identity::new(self.high, self.low, self.tag)
    }
}

impl KeyHash {
    /// Returns the identity of the key in a scope.
    #[inline(always)]
    pub(crate) fn in_scope(self, scope: &Scope) -> Identity {
        const SHARD: u64 = (1 << SHARD_BITS) - 1;
        // Multiplied, because for some secrets no bits of the hash itself spread similar keys evenly.
        let shard = self.high.wrapping_mul(MULTIPLIER) >> (64 - SHARD_BITS);
        let high = mix(self.high ^ scope.high) & !SHARD | shard;
        Identity::new(high, mix(self.low ^ scope.low), scope.tag)
    }
}

/// Two to the power of 64, divided by the golden ratio.
const MULTIPLIER: u64 = 0x9e37_79b9_7f4a_7c15;

/// Spreads each bit over all others, as the last step of a hash: a multiplication, folded to its width.
#[inline]
fn mix(word: u64) -> u64 {
    let product = u128::from(word) * u128::from(MULTIPLIER);
    product as u64 ^ (product >> 64) as u64
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

    /// Returns the bits in which two identities differ, in either half. 0 if they are equal.
    #[inline(always)]
    pub(super) fn difference(self, other: Self) -> u64 {
        (self.high ^ other.high) | (self.low ^ other.low)
    }

    #[inline]
    pub(super) fn low(self) -> u64 {
        self.low
    }

    #[cfg(test)]
    pub(super) fn of_halves(halves: &[(u64, u64)]) -> Vec<Self> {
        halves.iter().map(|&(high, low)| Self { high, low }).collect()
    }

    #[cfg(test)]
    pub(super) fn of_test(number: u64) -> Self {
        let seed = SharedSeed::from_u64(1);
        let hash = |seed, shared| {
            let mut hasher = quality::FoldHasher::with_seed(seed, shared);
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
    use std::collections::HashSet;

    use super::*;
    use crate::Algorithm;

    const OWNER: Owner = Owner::TEST;

    fn scopes(secret: &Secret) -> Vec<Scope> {
        let window = Limit::per_minute(1);
        let sliding = window.with_algorithm(Algorithm::SlidingWindow).unwrap_or(window);
        let limits = [window, Limit::per_minute(2), Limit::per_hour(1), sliding];
        let counters =
            [Counter::Policy, Counter::Override(1), Counter::Override(2), Counter::Limit];
        let policies = [PolicyName::DEFAULT, PolicyName::INLINE];
        let all = policies.into_iter().flat_map(|policy| {
            counters.into_iter().flat_map(move |counter| {
                limits.into_iter().map(move |limit| (policy, counter, limit))
            })
        });
        all.map(|(policy, counter, limit)| secret.scope(policy, counter, &limit, OWNER)).collect()
    }

    #[test]
    fn counters_have_separate_scopes_unless_only_the_amount_differs() {
        let scopes = scopes(&Secret::random());
        let distinct: HashSet<_> = scopes.iter().map(|scope| (scope.high, scope.low)).collect();
        // Of four limits, two differ only in the amount, which separates only the counters of limits.
        assert_eq!(distinct.len(), 2 * (3 * 3 + 4));
    }

    #[test]
    fn keys_have_separate_identities_in_each_scope_and_one_shard() {
        let secret = Secret::random();
        let mut scopes = scopes(&secret);
        scopes.dedup();
        let mut seen = HashSet::new();
        for number in 0..1_000_u32 {
            let text = number.to_string();
            let keys =
                [KeyRef::new(text.as_bytes()).to_buf(), crate::KeyBuf::from_key((number, 1))];
            for key in keys {
                let hash = secret.hash(key.as_ref());
                let shards: HashSet<_> = scopes
                    .iter()
                    .map(|scope| {
                        let id = hash.in_scope(scope);
                        assert!(seen.insert((id, scope.high)), "{key}");
                        id.shard(MAX_SHARDS)
                    })
                    .collect();
                assert_eq!(shards.len(), 1, "{key}");
            }
        }
        let ids: HashSet<_> = seen.iter().map(|(id, _)| *id).collect();
        assert_eq!(ids.len(), seen.len());
    }

    /// Parts of a key overlap, so keys that repeat one byte differ only in their length.
    #[test]
    fn keys_of_all_lengths_are_separate() {
        let secret = Secret::random();
        let scope = scopes(&secret)[0];
        let keys = (0..100).map(|length| vec![b'a'; length]);
        let ids: HashSet<_> =
            keys.map(|key| secret.hash(KeyRef::new(&key)).in_scope(&scope)).collect();
        assert_eq!(ids.len(), 100);
    }

    #[test]
    fn shards_get_equal_shares_of_the_keys() {
        let keys: Vec<String> = (0..64_000).map(|number| format!("user:{number:015}")).collect();
        // For some secrets, the hash itself spreads such keys unevenly.
        for _ in 0..100 {
            let secret = Secret::random();
            let scope = scopes(&secret)[0];
            let mut counts = [0; 64];
            for key in &keys {
                let id = secret.hash(KeyRef::new(key.as_bytes())).in_scope(&scope);
                counts[id.shard(64)] += 1;
            }
            // Six standard deviations.
            assert!(counts.iter().all(|count| (810..1_190).contains(count)), "{counts:?}");
        }
    }

    /// The hash computes the exclusive or of its seed and the first eight bytes of the key.
    #[test]
    fn the_seeds_of_tuples_differ_from_the_others_by_a_secret() {
        let differences: HashSet<_> = (0..100)
            .flat_map(|_| {
                let Secret { high, low } = Secret::random();
                [high, low].map(|half| half.keys[0] ^ half.keys[1])
            })
            .collect();
        assert_eq!(differences.len(), 200);
    }
}
