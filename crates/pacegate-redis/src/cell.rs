//! Cells: one state in the server each, and the names of their keys.

use std::{fmt, time::Duration};

use arc_swap::ArcSwap;
use pacegate::{Algorithm, Charge, KeyRef, Limit, PolicyName, StoreError};
use redis::RedisWrite;
use smallvec::SmallVec;

use crate::mark::{Mark, Marker};

/// Which state: the digest of policy, counter, algorithm, period and key, beside the tag that places it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct CellId {
    tag: u64,
    /// 128 bits, in halves, so that nothing that holds one has to be aligned to as much.
    digest: [u64; 2],
}

/// What a request wants of one cell.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Want {
    pub(crate) cell: CellId,
    /// The same, as it is known here.
    pub(crate) mark: Mark,
    pub(crate) limit: Limit,
    /// The number of the algorithm in scripts.
    pub(crate) kind: u64,
    pub(crate) cost: u64,
    /// 128 bits, in halves as above.
    pub(crate) permit: [u64; 2],
    pub(crate) enforced: bool,
}

/// Names keys: `prefix{tag}digest`.
///
/// Both parts are digests under a secret, in an alphabet without braces, so nothing that a client sends shows in a
/// name, chooses a slot or meets another's name.
pub(crate) struct Names {
    prefix: Box<[u8]>,
    secret: [u8; blake3::KEY_LEN],
    /// The digests of the scopes that are asked for most likely: the first so many.
    scopes: ArcSwap<Vec<(Scope, u128)>>,
    pub(crate) marker: Marker,
}

thread_local! {
    /// The cell that this thread asked for last: a key that everybody asks for is not hashed each time. Marks are of
    /// one store only, so this may be shared by all.
    static LAST: std::cell::Cell<Option<(Mark, CellId)>> = const { std::cell::Cell::new(None) };
}

/// What names are hashed with. It is not shown.
#[derive(Clone, Default)]
pub(crate) struct Secret(pub(crate) Vec<u8>);

/// Which of the states of a key: policy, counter, algorithm and period.
type Scope = (PolicyName, [u64; 3], Algorithm, Duration);

const MAX_SCOPES: usize = 64;

/// How many slots a cluster has.
pub(crate) const SLOTS: u16 = 16_384;

impl Names {
    pub(crate) fn new(prefix: &str, secret: &[u8]) -> Self {
        let secret = blake3::derive_key("pacegate 2026 names of keys in redis", secret);
        let (scopes, marker) = (ArcSwap::default(), Marker::random());
        Self { prefix: prefix.as_bytes().into(), secret, scopes, marker }
    }

    pub(crate) fn want(&self, charge: &Charge<'_>) -> Result<Want, StoreError> {
        self.want_marked(charge, self.marker.mark(charge))
    }

    /// [`Names::want`], for a charge whose mark is known.
    pub(crate) fn want_marked(&self, charge: &Charge<'_>, mark: Mark) -> Result<Want, StoreError> {
        Ok(Want {
            cell: self.cell_marked(charge, mark),
            mark,
            limit: charge.limit,
            kind: script_id(charge.limit.algorithm())?,
            cost: charge.cost,
            permit: halves(charge.permit),
            enforced: charge.enforced,
        })
    }

    fn cell_marked(&self, charge: &Charge<'_>, mark: Mark) -> CellId {
        if let Some((known, cell)) = LAST.get()
            && known == mark
        {
            return cell;
        }
        let cell = self.cell(charge);
        LAST.set(Some((mark, cell)));
        cell
    }

    /// The digest of the key places the cell, and together with that of the scope it names it.
    fn cell(&self, charge: &Charge<'_>) -> CellId {
        let Charge { policy, counter, limit, .. } = charge;
        let counter = counter.to_words(limit);
        let scope = self.scope((*policy, counter, limit.algorithm(), limit.period()));
        let key = self.digest(charge.key);
        let is_tag = charge.tag == charge.key;
        let tag = if is_tag { key.1 } else { self.digest(charge.tag).1 };
        CellId { tag, digest: halves(key.0.wrapping_add(scope)) }
    }

    fn digest(&self, key: KeyRef<'_>) -> (u128, u64) {
        let mut bytes = SmallVec::<[u8; 128]>::new();
        key.feed(|part| bytes.extend_from_slice(part));
        let hash = blake3::keyed_hash(&self.secret, &bytes);
        let (words, _) = hash.as_bytes().as_chunks::<8>();
        let word = |place: usize| u64::from_le_bytes(words[place]);
        (u128::from(word(0)) << 64 | u128::from(word(1)), word(2))
    }

    fn scope(&self, scope: Scope) -> u128 {
        let known = self.scopes.load();
        if let Some((_, digest)) = known.iter().find(|(other, _)| *other == scope) {
            return *digest;
        }
        let digest = self.digest_scope(&scope);
        if known.len() < MAX_SCOPES {
            self.scopes.rcu(|known| [known.as_slice(), &[(scope, digest)]].concat());
        }
        digest
    }

    fn digest_scope(&self, (policy, counter, algorithm, period): &Scope) -> u128 {
        let (name, algorithm) = (policy.as_str(), algorithm.name());
        let mut hasher = blake3::Hasher::new_keyed(&self.secret);
        hasher.update(b"scope");
        // All lengths that could be mistaken for one another come first.
        hasher.update(&[name.len() as u8, algorithm.len() as u8]);
        hasher.update(name.as_bytes()).update(algorithm.as_bytes());
        hasher.update(&(period.as_micros() as u64).to_le_bytes());
        // A policy's own limits are named as before there were other counters: an update forgets nothing.
        if *counter != [0; 3] {
            for word in counter {
                hasher.update(&word.to_le_bytes());
            }
        }
        first_half(&hasher.finalize())
    }

    /// The name of a cell's key.
    pub(crate) fn key(&self, cell: CellId) -> Name<'_> {
        Name { names: self, cell }
    }

    /// Where the answer to the request with this id is remembered: beside its first cell.
    ///
    /// It is the answer to these wants and to no others. One id may stand for several requests, as that of a call from
    /// outside does in every service that it passes through, and what one of them was told says nothing of the rest.
    pub(crate) fn answer(&self, id: &[u8], wants: &[Want]) -> CellId {
        let mut hasher = blake3::Hasher::new_keyed(&self.secret);
        hasher.update(b"repeated answer").update(&(id.len() as u64).to_le_bytes()).update(id);
        for Want { cell, limit, cost, enforced, .. } in wants {
            let (amount, capacity) = (limit.amount(), limit.capacity());
            let [first, second] = cell.digest;
            for word in [cell.tag, first, second, amount, capacity, *cost, u64::from(*enforced)] {
                hasher.update(&word.to_le_bytes());
            }
        }
        let tag = wants.first().map_or(0, |want| want.cell.tag);
        CellId { tag, digest: halves(first_half(&hasher.finalize())) }
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// Without the secret.
impl fmt::Debug for Names {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let prefix = String::from_utf8_lossy(&self.prefix);
        f.debug_struct("Names").field("prefix", &prefix).finish_non_exhaustive()
    }
}

fn halves(digest: u128) -> [u64; 2] {
    [(digest >> 64) as u64, digest as u64]
}

fn first_half(hash: &blake3::Hash) -> u128 {
    let (halves, _) = hash.as_bytes().as_chunks::<16>();
    u128::from_le_bytes(halves[0])
}

impl CellId {
    /// The slot of a cluster in which the cell lives.
    pub(crate) fn slot(self) -> u16 {
        crc16(&spell::<11>(u128::from(self.tag))) % SLOTS
    }
}

/// A name to be written into a command.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Name<'a> {
    names: &'a Names,
    cell: CellId,
}

impl Name<'_> {
    pub(crate) fn to_bytes(self) -> Vec<u8> {
        let CellId { tag, digest: [high, low] } = self.cell;
        let digest = u128::from(high) << 64 | u128::from(low);
        let (tag, digest) = (spell::<11>(u128::from(tag)), spell::<22>(digest));
        [&self.names.prefix, b"{".as_slice(), &tag, b"}", &digest].concat()
    }
}

impl redis::ToRedisArgs for Name<'_> {
    fn write_redis_args<W: ?Sized + RedisWrite>(&self, out: &mut W) {
        out.write_arg(&self.to_bytes());
    }
}

impl redis::ToSingleRedisArg for Name<'_> {}

fn script_id(algorithm: Algorithm) -> Result<u64, StoreError> {
    algorithm.id().ok_or_else(|| {
        StoreError::Unsupported(format!(
            "`{algorithm}` runs in this process only; choose one of the built-in algorithms"
        ))
    })
}

pub(crate) fn period_micros(limit: &Limit) -> u64 {
    u64::try_from(limit.period().as_micros()).unwrap_or(u64::MAX)
}

/// A number in digits of six bits.
fn spell<const LENGTH: usize>(mut number: u128) -> [u8; LENGTH] {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    [(); LENGTH].map(|()| {
        let digit = ALPHABET[(number % 64) as usize];
        number /= 64;
        digit
    })
}

/// The slot of any name: of what is between its first braces, if anything is, or of all of it.
pub(crate) fn slot_of(name: &[u8]) -> u16 {
    let tag = || {
        let open = name.iter().position(|&byte| byte == b'{')?;
        let rest = &name[open + 1..];
        let close = rest.iter().position(|&byte| byte == b'}')?;
        Some(&rest[..close]).filter(|tag| !tag.is_empty())
    };
    crc16(tag().unwrap_or(name)) % SLOTS
}

/// The checksum by which a cluster places hash tags (CRC-16/XMODEM).
pub(crate) fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |mut crc: u16, &byte| {
        crc ^= u16::from(byte) << 8;
        for _ in 0..8 {
            crc = if crc & 0x8000 == 0 { crc << 1 } else { crc << 1 ^ 0x1021 };
        }
        crc
    })
}

#[cfg(test)]
mod tests {
    use pacegate::{Counter, Key};

    use super::*;

    fn name(names: &Names, policy: &str, key: impl Key, limit: &str) -> String {
        name_of(names, policy, Counter::Policy, key, limit)
    }

    fn name_of(
        names: &Names,
        policy: &str,
        counter: Counter,
        key: impl Key,
        limit: &str,
    ) -> String {
        key.with(|key| {
            let charge = Charge::new(policy.parse().unwrap(), key, limit.parse().unwrap());
            let want = names.want(&charge.counter(counter)).unwrap();
            String::from_utf8(names.key(want.cell).to_bytes()).unwrap()
        })
    }

    #[test]
    fn each_counter_has_its_own_name() {
        let names = Names::new("pg:", b"");
        let named = |counter, limit: &str| name_of(&names, "api", counter, "alice", limit);
        let counters = [Counter::Policy, Counter::Override(1), Counter::Override(2)];
        for counter in counters {
            let known = named(counter, "10/minute burst 10");
            assert_eq!(named(counter, "99/minute burst 20"), known, "{counter:?}: it carries over");
        }
        let own = |limit| named(Counter::Limit, limit);
        let mut all = counters.map(|counter| named(counter, "10/minute burst 10")).to_vec();
        all.extend(["10/minute burst 10", "10/minute burst 20", "20/minute burst 10"].map(own));
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), 6);
        assert_eq!(own("10/minute burst 10"), own("10/minute token-bucket"));
    }

    #[test]
    fn names_are_the_same_in_every_process() {
        let names = Names::new("pg:", b"");
        assert_eq!(
            name(&names, "api", "alice", "10/minute"),
            "pg:{5XFo1mLDlIM}A0diCOjt2Ecc686SgouRMC"
        );
    }

    #[test]
    fn the_last_name_is_given_only_for_what_it_is_of() {
        let [plain, secret] = [Names::new("pg:", b""), Names::new("pg:", b"secret")];
        let named = |names: &Names, limit: &str| name(names, "api", "alice", limit);
        let known = [named(&plain, "1/hour"), named(&secret, "1/hour"), named(&plain, "1/day")];
        assert!(known[0] != known[1] && known[0] != known[2], "{known:?}");
        for _ in 0..3 {
            let again = [named(&plain, "1/hour"), named(&secret, "1/hour"), named(&plain, "1/day")];
            assert_eq!(again, known);
        }
        let fresh = Names::new("pg:", b"secret");
        assert_eq!(named(&fresh, "1/hour"), known[1]);
        assert_eq!(named(&fresh, "1/hour"), known[1]);
    }

    #[test]
    fn nothing_secret_is_shown() {
        let shown = format!("{:?}", Names::new("pg:", b"secret"));
        assert_eq!(shown, "Names { prefix: \"pg:\", .. }");
    }

    #[test]
    fn the_key_alone_chooses_the_tag_and_all_else_the_digest() {
        let names = Names::new("pg:", b"");
        let known = name(&names, "api", "alice", "10/minute");
        assert_eq!(name(&names, "api", "alice", "99/minute"), known, "the amount may change");
        for other in [
            name(&names, "web", "alice", "10/minute"),
            name(&names, "api", "alice", "10/hour"),
            name(&names, "api", "alice", "10/minute sliding-log"),
        ] {
            assert_eq!(other[..16], known[..16]);
            assert_ne!(other, known);
        }
        assert_ne!(name(&names, "api", "bob", "10/minute")[..16], known[..16]);
        assert_ne!(name(&Names::new("pg:", b"secret"), "api", "alice", "10/minute"), known);
    }

    #[test]
    fn nothing_hostile_shows() {
        let names = Names::new("pg:", b"");
        let shown = name(&names, "api", "}{a}\r\n\0", "10/minute");
        assert_eq!(shown.matches(['{', '}']).count(), 2);
        assert!(shown.bytes().all(|byte| byte.is_ascii_graphic()));
    }

    #[test]
    fn slots_are_those_of_the_server() {
        assert_eq!(crc16(b"123456789"), 0x31c3);
        for tagged in [b"foo".as_slice(), b"{foo}.bar", b"a{foo}{bar}"] {
            assert_eq!(slot_of(tagged), 12_182);
        }
        assert_eq!(slot_of(b"foo{}{bar}"), crc16(b"foo{}{bar}") % SLOTS);
        assert_eq!(slot_of(b"foo{{bar}}"), slot_of(b"{bar"));
    }
}
