//! Cells: one state on the server each, and the names of their keys.

use std::{fmt, time::Duration};

use arc_swap::ArcSwap;
use pacegate::{
    Algorithm, Calendar, Charge, Excess, KeyRef, Limit, PolicyName, StoreError, policy::Unsettled,
};
use smallvec::SmallVec;

use crate::fingerprint::{Fingerprint, Fingerprinter};

/// Identifies a cell by a digest of policy, counter, algorithm, period and key. The tag determines the slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct CellId {
    tag: u64,
    /// 128 bits in halves, to avoid the alignment of a `u128`.
    digest: [u64; 2],
}

/// A charge to one cell.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CellCharge {
    pub(crate) cell: CellId,
    pub(crate) fingerprint: Fingerprint,
    pub(crate) limit: Limit,
    /// The number of the algorithm in the scripts.
    pub(crate) script_id: u64,
    pub(crate) cost: u64,
    /// 128 bits in halves, as above.
    pub(crate) permit: [u64; 2],
    pub(crate) enforced: bool,
    /// As it applies [under](Excess::under) the limit.
    pub(crate) excess: Excess,
    /// Whether the cell returns the units of unsettled reservations.
    pub(crate) returns: bool,
}

pub(crate) type CellCharges = SmallVec<[CellCharge; 1]>;

/// Builds key names of the form `prefix{tag}digest`.
///
/// Tag and digest are keyed hashes in an alphabet without braces. Names reveal nothing about the key, and clients
/// cannot choose a slot or construct the name of another key.
pub(crate) struct Names {
    prefix: Box<[u8]>,
    secret: [u8; blake3::KEY_LEN],
    /// A cache of the digests of the first [`MAX_SCOPES`] scopes.
    scopes: ArcSwap<Vec<(Scope, u128)>>,
    pub(crate) fingerprinter: Fingerprinter,
}

thread_local! {
    /// A cache of the last cell of this thread, so that a hot key is not hashed each time. Fingerprints of different
    /// stores differ, so all stores can share it.
    static LAST: std::cell::Cell<Option<(Fingerprint, CellId)>> = const { std::cell::Cell::new(None) };
}

/// The secret of the key names. `Debug` hides it.
#[derive(Clone, Default)]
pub(crate) struct Secret(pub(crate) Vec<u8>);

/// The part of a cell's identity other than the key.
type Scope = (PolicyName, [u64; 3], Algorithm, Duration, Option<Calendar>);

const MAX_SCOPES: usize = 64;

/// The number of slots of a cluster.
pub(crate) const SLOTS: u16 = 16_384;

impl Names {
    pub(crate) fn new(prefix: &str, secret: &[u8]) -> Self {
        let secret = blake3::derive_key("pacegate 2026 names of keys in redis", secret);
        let (scopes, fingerprinter) = (ArcSwap::default(), Fingerprinter::new());
        Self { prefix: prefix.as_bytes().into(), secret, scopes, fingerprinter }
    }

    pub(crate) fn cell_charge(&self, charge: &Charge<'_>) -> Result<CellCharge, StoreError> {
        self.cell_charge_with(charge, self.fingerprinter.of(charge))
    }

    /// [`Names::cell_charge`] with a known fingerprint.
    pub(crate) fn cell_charge_with(
        &self,
        charge: &Charge<'_>,
        fingerprint: Fingerprint,
    ) -> Result<CellCharge, StoreError> {
        let cell = match LAST.get() {
            Some((last, cell)) if last == fingerprint => cell,
            _ => self.cell(charge),
        };
        LAST.set(Some((fingerprint, cell)));
        let excess = charge.excess.under(&charge.limit);
        Ok(CellCharge {
            cell,
            fingerprint,
            limit: charge.limit,
            script_id: script_id(charge.limit.algorithm())?,
            cost: bounded_cost(charge, excess),
            permit: halves(charge.permit),
            enforced: charge.enforced,
            excess,
            returns: charge.unsettled == Unsettled::Return
                && !charge.limit.algorithm().holds_permits(),
        })
    }

    fn cell(&self, charge: &Charge<'_>) -> CellId {
        let Charge { policy, counter, limit, .. } = charge;
        let counter = counter.to_words(limit);
        let (algorithm, period, calendar) = (limit.algorithm(), limit.period(), limit.calendar());
        let scope = self.scope((*policy, counter, algorithm, period, calendar));
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

    fn digest_scope(&self, (policy, counter, algorithm, period, calendar): &Scope) -> u128 {
        let (name, algorithm) = (policy.as_str(), algorithm.name());
        let mut hasher = blake3::Hasher::new_keyed(&self.secret);
        hasher.update(b"scope");
        // Lengths come first, so that no two scopes have the same encoding.
        hasher.update(&[name.len() as u8, algorithm.len() as u8]);
        hasher.update(name.as_bytes()).update(algorithm.as_bytes());
        hasher.update(&(period.as_micros() as u64).to_le_bytes());
        // The counters of a policy's base limits keep the names that they had before there were other counters.
        if *counter != [0; 3] {
            for word in counter {
                hasher.update(&word.to_le_bytes());
            }
        }
        if let Some(calendar) = calendar {
            // By its text, since other processes may number time zones differently.
            hasher.update(calendar.to_string().as_bytes());
        }
        first_half(&hasher.finalize())
    }

    /// Returns the name of a cell's key.
    pub(crate) fn key(&self, cell: CellId) -> Vec<u8> {
        let CellId { tag, digest: [high, low] } = cell;
        let digest = u128::from(high) << 64 | u128::from(low);
        let (tag, digest) = (spell::<11>(u128::from(tag)), spell::<22>(digest));
        [&self.prefix, b"{".as_slice(), &tag, b"}", &digest].concat()
    }

    /// Returns the name of the key with all blocks.
    pub(crate) fn blocks(&self) -> Vec<u8> {
        [&self.prefix, b"{blocks}".as_slice()].concat()
    }

    /// Returns the key that stores the answer of a request with an id, in the slot of its first cell.
    ///
    /// The key depends on the charges. One id may stand for several requests, such as a trace id in every service that
    /// a call passes through, and each of them gets a separate answer.
    pub(crate) fn answer(&self, id: &[u8], charges: &[CellCharge], times: u64) -> CellId {
        let mut hasher = blake3::Hasher::new_keyed(&self.secret);
        hasher.update(b"repeated answer").update(&(id.len() as u64).to_le_bytes()).update(id);
        for CellCharge { cell, limit, cost, enforced, excess, .. } in charges {
            let (amount, capacity) = (limit.amount(), limit.capacity());
            let [first, second] = cell.digest;
            for word in [cell.tag, first, second, amount, capacity, *cost, u64::from(*enforced)] {
                hasher.update(&word.to_le_bytes());
            }
            if excess.is_recorded() {
                hasher.update(b"recorded");
            }
        }
        if times > 1 {
            hasher.update(b"up to").update(&times.to_le_bytes());
        }
        let tag = charges.first().map_or(0, |charge| charge.cell.tag);
        CellId { tag, digest: halves(first_half(&hasher.finalize())) }
    }
}

/// Reservations.
impl Names {
    /// Returns the key that shows that a reservation is open, in the slot of its first cell. It depends on the cells
    /// and on which of them return its units, so an id that was changed names a reservation that does not exist.
    pub(crate) fn reservation(&self, id: u128, charges: &[CellCharge]) -> CellId {
        let mut hasher = blake3::Hasher::new_keyed(&self.secret);
        hasher.update(b"reservation").update(&id.to_le_bytes());
        for CellCharge { cell: CellId { tag, digest: [first, second] }, returns, .. } in charges {
            for word in [tag, first, second] {
                hasher.update(&word.to_le_bytes());
            }
            if *returns {
                hasher.update(b"returned");
            }
        }
        let tag = charges.first().map_or(0, |charge| charge.cell.tag);
        CellId { tag, digest: halves(first_half(&hasher.finalize())) }
    }

    /// Returns the name of the key with those reservations of a cell whose units are returned if they are not settled.
    pub(crate) fn due(&self, cell: CellId) -> Vec<u8> {
        [self.key(cell), b"u".to_vec()].concat()
    }
}

impl Names {
    /// Returns the charge of a cell for the claim of one of its events, in the slot of the cell.
    pub(crate) fn claim(
        &self,
        charge: &Charge<'_>,
        event: [u64; 2],
    ) -> Result<CellCharge, StoreError> {
        let charge = self.cell_charge(charge)?;
        let CellId { tag, digest: [first, second] } = charge.cell;
        let mut hasher = blake3::Hasher::new_keyed(&self.secret);
        hasher.update(b"claim");
        for word in [tag, first, second, event[0], event[1]] {
            hasher.update(&word.to_le_bytes());
        }
        let cell = CellId { tag, digest: halves(first_half(&hasher.finalize())) };
        Ok(CellCharge { cell, ..charge })
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("***")
    }
}

/// Omits the secret.
impl fmt::Debug for Names {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let prefix = String::from_utf8_lossy(&self.prefix);
        f.debug_struct("Names").field("prefix", &prefix).finish_non_exhaustive()
    }
}

pub(crate) fn halves(digest: u128) -> [u64; 2] {
    [(digest >> 64) as u64, digest as u64]
}

fn first_half(hash: &blake3::Hash) -> u128 {
    let (halves, _) = hash.as_bytes().as_chunks::<16>();
    u128::from_le_bytes(halves[0])
}

impl CellCharge {
    pub(crate) fn holds_permits(&self) -> bool {
        self.limit.algorithm().holds_permits()
    }
}

impl CellId {
    /// Returns the cluster slot of the cell.
    pub(crate) fn slot(self) -> u16 {
        crc16(&spell::<11>(u128::from(self.tag))) % SLOTS
    }
}

/// Returns the cost that a script gets. More than a counter can hold would not be exact in a double.
fn bounded_cost(charge: &Charge<'_>, excess: Excess) -> u64 {
    let most = charge.limit.capacity() + charge.limit.max_excess();
    if excess.is_recorded() { charge.cost.min(most) } else { charge.cost }
}

fn script_id(algorithm: Algorithm) -> Result<u64, StoreError> {
    algorithm.id().ok_or_else(|| {
        let problem = "works in memory only; use one of the built-in algorithms";
        StoreError::Unsupported(format!("`{algorithm}` {problem}"))
    })
}

pub(crate) fn period_micros(limit: &Limit) -> u64 {
    u64::try_from(limit.period().as_micros()).unwrap_or(u64::MAX)
}

/// Encodes a number in digits of six bits, least significant first.
fn spell<const LENGTH: usize>(mut number: u128) -> [u8; LENGTH] {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    [(); LENGTH].map(|()| {
        let digit = ALPHABET[(number % 64) as usize];
        number /= 64;
        digit
    })
}

/// Returns the slot of a key name: of the part between its first braces if that is not empty, else of the whole name.
pub(crate) fn slot_of(name: &[u8]) -> u16 {
    let tag = || {
        let open = name.iter().position(|&byte| byte == b'{')?;
        let rest = &name[open + 1..];
        let close = rest.iter().position(|&byte| byte == b'}')?;
        Some(&rest[..close]).filter(|tag| !tag.is_empty())
    };
    crc16(tag().unwrap_or(name)) % SLOTS
}

/// The checksum of a cluster's hash tags (CRC-16/XMODEM).
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
            let charge = names.cell_charge(&charge.counter(counter)).unwrap();
            String::from_utf8(names.key(charge.cell)).unwrap()
        })
    }

    #[test]
    fn each_counter_has_a_separate_name() {
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
    fn the_cached_name_is_used_for_the_same_cell_only() {
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
    fn debug_hides_the_secret() {
        let shown = format!("{:?}", Names::new("pg:", b"secret"));
        assert_eq!(shown, "Names { prefix: \"pg:\", .. }");
    }

    #[test]
    fn only_the_key_determines_the_tag() {
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
    fn names_escape_hostile_keys() {
        let names = Names::new("pg:", b"");
        let shown = name(&names, "api", "}{a}\r\n\0", "10/minute");
        assert_eq!(shown.matches(['{', '}']).count(), 2);
        assert!(shown.bytes().all(|byte| byte.is_ascii_graphic()));
    }

    #[test]
    fn slots_match_the_server() {
        assert_eq!(crc16(b"123456789"), 0x31c3);
        for tagged in [b"foo".as_slice(), b"{foo}.bar", b"a{foo}{bar}"] {
            assert_eq!(slot_of(tagged), 12_182);
        }
        assert_eq!(slot_of(b"foo{}{bar}"), crc16(b"foo{}{bar}") % SLOTS);
        assert_eq!(slot_of(b"foo{{bar}}"), slot_of(b"{bar"));
    }
}
