use std::{fmt, str::FromStr, sync::Arc};

use base64::{Engine, engine::general_purpose::URL_SAFE_NO_PAD};

use crate::{
    Charge, ChargeBuf, Counter, KeyBuf, KeyRef, PolicyName, StoreError, policy::Unsettled,
};

/// The id of a reservation, to settle or cancel it later, also in another process on the same store.
///
/// Its text has the characters of base64url. It contains the keys of the request in readable form, and any client that
/// knows it can settle the reservation: treat it like a session id. A text that was made up or changed settles nothing.
///
/// ```
/// use std::time::Duration;
/// use pacegate::{Limit, Limiter, ReservationId};
///
/// let limiter = Limiter::memory(Limit::per_minute(100));
/// let reserved = limiter.reserve("alice", 10, Duration::from_secs(30))?;
/// let text = reserved.into_result()?.id().to_string();
/// let id: ReservationId = text.parse()?;
/// assert!(limiter.settle(&id, 4));
/// assert_eq!(limiter.peek("alice").remaining(), 96);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone)]
pub struct ReservationId {
    /// Random, so that it cannot be guessed.
    pub(super) number: u128,
    pub(super) place: Place,
}

/// The place of the reserved units.
#[derive(Clone)]
pub(super) enum Place {
    /// No limit applies.
    Nowhere,
    /// The memory of the process that made the reservation.
    Process,
    /// A store, with these charges.
    Store(Arc<[ChargeBuf]>),
}

/// Error of parsing a [`ReservationId`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not the id of a reservation under these policies: pass the text of the id unchanged")]
pub struct ReservationIdError;

/// Added to the kind of a counter whose units are returned if the reservation is not settled.
const RETURNED: u8 = 4;

/// The first byte of an id.
const VERSION: u8 = 1;

impl ReservationId {
    /// The maximum length of the text.
    pub const MAX_LENGTH: usize = 16_384;

    /// Creates the id of a reservation in a store. Fails if the keys are too long for an id.
    pub(super) fn in_store(number: u128, charges: &[Charge<'_>]) -> Result<Self, StoreError> {
        let length = |charge: &Charge<'_>| {
            128 + [charge.key, charge.tag].map(key_length).iter().sum::<usize>()
        };
        let (length, max) =
            (charges.iter().map(length).sum::<usize>(), Self::MAX_LENGTH / 4 * 3 - 32);
        if length > max {
            let problem = format!(
                "the keys and tags of a reservation are too long for its id: {length} bytes with 128 for each \
                 limit, of at most {max}"
            );
            return Err(StoreError::Unsupported(problem));
        }
        Ok(Self { number, place: Place::Store(charges.iter().map(ChargeBuf::from).collect()) })
    }

    fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = vec![VERSION];
        let (kind, charges) = match &self.place {
            Place::Nowhere => (0, [].as_slice()),
            Place::Process => (1, [].as_slice()),
            Place::Store(charges) => (2, &**charges),
        };
        bytes.push(kind);
        bytes.extend(self.number.to_le_bytes());
        charges.iter().for_each(|charge| encode(&mut bytes, &charge.as_charge()));
        bytes
    }
}

fn key_length(key: KeyRef<'_>) -> usize {
    key.as_bytes().len()
}

fn encode(bytes: &mut Vec<u8>, charge: &Charge<'_>) {
    push(bytes, charge.policy.as_str().as_bytes());
    let (kind, digest) = match charge.counter {
        Counter::Policy => (0, 0),
        Counter::Override(digest) => (1, digest),
        Counter::Limit => (2, 0),
    };
    let is_returned = charge.unsettled == Unsettled::Return;
    bytes.push(if is_returned { kind | RETURNED } else { kind });
    bytes.extend(digest.to_le_bytes());
    push(bytes, charge.limit.to_string().as_bytes());
    push_key(bytes, charge.key);
    // Often the key is the tag.
    let has_tag = charge.tag != charge.key;
    bytes.push(u8::from(has_tag));
    if has_tag {
        push_key(bytes, charge.tag);
    }
}

fn push_key(bytes: &mut Vec<u8>, key: KeyRef<'_>) {
    let mut encoded = Vec::new();
    key.feed(|part| encoded.extend(part));
    push(bytes, &encoded);
}

/// Appends a field after its length, which an id of the maximum length cannot exceed.
fn push(bytes: &mut Vec<u8>, field: &[u8]) {
    bytes.extend((field.len() as u16).to_le_bytes());
    bytes.extend(field);
}

/// Reads the bytes of an id. Each call returns `None` if too few are left.
struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn array<const LENGTH: usize>(&mut self) -> Option<[u8; LENGTH]> {
        let (array, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*array)
    }

    fn byte(&mut self) -> Option<u8> {
        self.array::<1>().map(|[byte]| byte)
    }

    fn field(&mut self) -> Option<&'a [u8]> {
        let length = u16::from_le_bytes(self.array()?);
        let (field, rest) = self.0.split_at_checked(usize::from(length))?;
        self.0 = rest;
        Some(field)
    }

    fn text(&mut self) -> Option<&'a str> {
        str::from_utf8(self.field()?).ok()
    }

    fn key(&mut self) -> Option<KeyBuf> {
        KeyBuf::decode(self.field()?)
    }

    fn charge(&mut self) -> Option<ChargeBuf> {
        let policy = PolicyName::known(self.text()?)?;
        let (kind, digest) = (self.byte()?, u64::from_le_bytes(self.array()?));
        let is_returned = kind & RETURNED != 0;
        let unsettled = if is_returned { Unsettled::Return } else { Unsettled::Keep };
        let counter = match kind & !RETURNED {
            0 => Counter::Policy,
            1 => Counter::Override(digest),
            2 => Counter::Limit,
            _ => return None,
        };
        let limit = self.text()?.parse().ok()?;
        let key = self.key()?;
        let tag = if self.byte()? == 1 { self.key()? } else { key.clone() };
        let charge = Charge::new(policy, key.as_ref(), limit).counter(counter).unsettled(unsettled);
        Some(ChargeBuf::from(&Charge { tag: tag.as_ref(), ..charge }))
    }

    fn id(&mut self) -> Option<ReservationId> {
        let [version, kind] = self.array()?;
        let number = u128::from_le_bytes(self.array()?);
        let mut charges = Vec::new();
        while kind == 2 && !self.0.is_empty() {
            charges.push(self.charge()?);
        }
        let place = match kind {
            0 => Place::Nowhere,
            1 => Place::Process,
            2 if !charges.is_empty() => Place::Store(charges.into()),
            _ => return None,
        };
        let is_valid = version == VERSION && self.0.is_empty();
        is_valid.then_some(ReservationId { number, place })
    }
}

impl FromStr for ReservationId {
    type Err = ReservationIdError;

    fn from_str(text: &str) -> Result<Self, ReservationIdError> {
        if text.len() > Self::MAX_LENGTH {
            return Err(ReservationIdError);
        }
        let bytes = URL_SAFE_NO_PAD.decode(text).map_err(|_| ReservationIdError)?;
        Reader(&bytes).id().ok_or(ReservationIdError)
    }
}

impl fmt::Display for ReservationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&URL_SAFE_NO_PAD.encode(self.to_bytes()))
    }
}

/// Hides the id, with which anybody could settle the reservation.
impl fmt::Debug for ReservationId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ReservationId(..)")
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::Limit;

    fn id() -> ReservationId {
        let limit: Limit = "10/minute burst 20".parse().unwrap();
        let key = KeyBuf::from_key(("eu", 42));
        let first = Charge::new(PolicyName::INLINE, key.as_ref(), limit);
        let second = Charge::new("reservation-id".parse().unwrap(), "alice", Limit::per_hour(3));
        let second = Charge { tag: key.as_ref(), ..second }.unsettled(Unsettled::Return);
        let second = second.counter(Counter::Override(99));
        ReservationId::in_store(u128::MAX - 1, &[first, second]).unwrap()
    }

    #[test]
    fn an_id_survives_its_text() {
        let text = id().to_string();
        let again: ReservationId = text.parse().unwrap();
        assert_eq!(again.to_string(), text);
        let Place::Store(charges) = &again.place else { panic!("{text}") };
        let (first, second) = (charges[0].as_charge(), charges[1].as_charge());
        assert_eq!((again.number, first.limit.capacity()), (u128::MAX - 1, 20));
        assert_eq!((first.counter, second.counter), (Counter::Limit, Counter::Override(99)));
        assert_eq!((first.unsettled, second.unsettled), (Unsettled::Keep, Unsettled::Return));
        assert_eq!((second.key, second.tag), (KeyRef::new(b"alice"), first.key));
    }

    #[test]
    fn an_id_that_is_too_long_is_rejected() {
        let key = "x".repeat(20_000);
        let charge = Charge::new(PolicyName::INLINE, key.as_str(), Limit::per_hour(3));
        let error = ReservationId::in_store(1, &[charge]).unwrap_err().to_string();
        assert!(error.contains("40128 bytes") && error.contains("at most 12256"), "{error}");
        assert!("A".repeat(20_000).parse::<ReservationId>().is_err());
    }

    /// Otherwise a client could fill the memory with names.
    #[test]
    fn unknown_policies_are_rejected() {
        let bytes = id().to_bytes();
        let name = b"reservation-id";
        let place = bytes.windows(name.len()).position(|part| part == name).unwrap();
        let mut forged = bytes.clone();
        forged[place] = b'X';
        assert!(Reader(&bytes).id().is_some());
        assert!(Reader(&forged).id().is_none());
        assert!(PolicyName::known("Xeservation-id").is_none());
    }

    proptest! {
        #[test]
        fn any_bytes_are_an_id_or_an_error(bytes in prop::collection::vec(any::<u8>(), 0..100), cut in 0..200_usize) {
            drop(Reader(&bytes).id());
            let mut real = id().to_bytes();
            let cut = cut.min(real.len() - 1);
            prop_assert!(Reader(&real[..cut]).id().is_none() || cut > 18);
            real[cut] = bytes.first().copied().unwrap_or(0);
            drop(Reader(&real).id());
        }
    }
}
