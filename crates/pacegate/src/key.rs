//! Keys of one or several parts, encoded so that different keys never collide.

use std::{
    borrow::Cow,
    fmt, mem,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    rc::Rc,
    sync::Arc,
};

use smallvec::SmallVec;

/// A value that identifies a counter: text, bytes, a number, an address, a `bool`, an option, or a tuple of these.
///
/// Numbers and addresses are encoded as text, so that `42_u64` here and `"42"` over the network are the same key.
/// Tuples are encoded with the length of each part, so `("ab", "c")` and `("a", "bc")` are different keys. This holds
/// for any bytes in the parts, so a client cannot craft a value that collides with another key.
///
/// A key has no maximum length. Stores hash it, so the cost of a check grows with the length, and the memory does not.
/// Reject values of unreasonable length before you check them.
///
/// An `Option` that is `None` is an absent part: all requests that lack it share a counter, and it differs from an
/// empty text. `()` is one counter for everything.
///
/// Implement it for your own types by delegating to their fields:
///
/// ```
/// use pacegate::{Key, KeyRef, Limit, Limiter};
///
/// struct Account {
///     id: u64,
///     region: String,
/// }
///
/// impl Key for Account {
///     fn with<R>(&self, read: impl FnOnce(KeyRef<'_>) -> R) -> R {
///         (self.id, &self.region).with(read)
///     }
/// }
///
/// let limiter = Limiter::memory(Limit::per_minute(1));
/// assert!(limiter.check(Account { id: 7, region: "eu".into() }).is_allowed());
/// assert!(!limiter.check((7, "eu")).is_allowed());
/// assert!(limiter.check((7, "us")).is_allowed());
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a key",
    label = "not a key of a counter",
    note = "a key is text, bytes, a whole number, an address, a `bool`, an option or a tuple of these",
    note = "for a type of another crate, pass its text or its bytes: `&id.to_string()`, `id.as_bytes()`"
)]
pub trait Key {
    /// Calls `read` with the key in encoded form.
    ///
    /// A closure instead of a return value, so that a number or a tuple can be encoded on the stack. An implementation
    /// must pass equal bytes for equal values, and must call `read` exactly once.
    fn with<R>(&self, read: impl FnOnce(KeyRef<'_>) -> R) -> R;
}

/// A borrowed key in encoded form, as stores use it.
///
/// A key of one part is its bytes. A tuple is encoded with the length of each part, so it never equals a key of one
/// part. Two keys are equal if both their kind and their bytes are equal.
///
/// Most programs do not need it: calls take any [`Key`]. Use it to pass bytes that are a key already, as in
/// [`Charge::new`](crate::Charge::new), or to implement a [`Store`](crate::Store).
///
/// ```
/// use pacegate::{KeyBuf, KeyRef};
///
/// let one = KeyRef::new(b"alice");
/// assert_eq!(one.parts().collect::<Vec<_>>(), [Some(&b"alice"[..])]);
/// let pair = KeyBuf::from_key(("eu", 42));
/// assert_eq!(pair.as_ref().parts().count(), 2);
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct KeyRef<'a> {
    bytes: &'a [u8],
    /// True if `bytes` encodes a tuple, false if it is a single part.
    tuple: bool,
}

/// An owned key in encoded form. Keys of up to 64 bytes need no heap allocation.
///
/// ```
/// use pacegate::KeyBuf;
///
/// let mut key = KeyBuf::empty();
/// key.push(Some(b"alice"));
/// key.push(None);
/// assert_eq!(key.to_string(), "alice, (absent)");
/// ```
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct KeyBuf {
    bytes: SmallVec<[u8; 64]>,
    tuple: bool,
}

/// Written instead of a length if the part is absent, which differs from empty.
const ABSENT: u32 = u32::MAX;

impl<'a> KeyRef<'a> {
    /// Creates a key of one part. The bytes may be empty, and need not be valid UTF-8.
    #[inline]
    pub const fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, tuple: false }
    }

    /// Returns the parts; an absent one is `None`.
    ///
    /// A key of one part yields that part. [`KeyBuf::empty`] yields nothing.
    pub fn parts(self) -> impl Iterator<Item = Option<&'a [u8]>> {
        let mut rest = self.bytes;
        let mut one = (!self.tuple).then_some(self.bytes);
        std::iter::from_fn(move || {
            if let Some(part) = one.take() {
                rest = &[];
                return Some(Some(part));
            }
            let (length, tail) = rest.split_first_chunk()?;
            let length = u32::from_le_bytes(*length);
            if length == ABSENT {
                rest = tail;
                return Some(None);
            }
            let (part, tail) = tail.split_at_checked(length as usize)?;
            rest = tail;
            Some(Some(part))
        })
    }

    /// Copies the key. Allocates only if it has more than 64 bytes.
    pub fn to_buf(self) -> KeyBuf {
        KeyBuf { bytes: SmallVec::from_slice(self.bytes), tuple: self.tuple }
    }

    /// Passes bytes to `sink` that are unique to this key when concatenated, for the hash of a store. Other data in the
    /// same hash has to come before them, or has to be separated by their length.
    ///
    /// Use it to name a counter in a store: two different keys never feed the same bytes.
    pub fn feed(self, mut sink: impl FnMut(&[u8])) {
        sink(&[u8::from(self.tuple)]);
        sink(self.bytes);
    }

    /// Copies the first `length` bytes; of a tuple, the parts that begin within them.
    pub(crate) fn first(self, length: usize) -> KeyBuf {
        if self.bytes.len() <= length {
            return self.to_buf();
        }
        if !self.tuple {
            return KeyRef::new(&self.bytes[..length]).to_buf();
        }
        let mut short = KeyBuf::empty();
        for part in self.parts() {
            let room = length.saturating_sub(short.bytes.len());
            if room == 0 {
                break;
            }
            short.push(part.map(|part| &part[..part.len().min(room)]));
        }
        short
    }

    /// Returns the bytes to hash. Two keys are equal only if these and [`KeyRef::is_tuple`] are equal.
    #[inline]
    pub(crate) const fn as_bytes(self) -> &'a [u8] {
        self.bytes
    }

    /// Returns `true` if both are the same bytes in memory. `false` does not mean that the keys differ.
    #[inline]
    pub(crate) fn is_same(self, other: Self) -> bool {
        std::ptr::eq(self.bytes, other.bytes) && self.tuple == other.tuple
    }

    /// Returns `true` if the key is a tuple, so that its bytes include the length of each part.
    #[inline]
    pub(crate) const fn is_tuple(self) -> bool {
        self.tuple
    }
}

impl KeyBuf {
    /// Creates a key without parts: one counter for all requests. It equals the key `()`.
    pub fn empty() -> Self {
        Self { bytes: SmallVec::new(), tuple: true }
    }

    /// Encodes any [`Key`], such as a tuple, and keeps it beyond the call. Needed for
    /// [`Charge::new`](crate::Charge::new).
    ///
    /// ```
    /// use pacegate::KeyBuf;
    ///
    /// assert_eq!(KeyBuf::from_key(42), KeyBuf::from_key("42"));
    /// assert_ne!(KeyBuf::from_key(("ab", "c")), KeyBuf::from_key(("a", "bc")));
    /// ```
    pub fn from_key(key: impl Key) -> Self {
        key.with(|key| key.to_buf())
    }

    /// Decodes the bytes that [`KeyRef::feed`] passes. Returns `None` if they are not those of a key.
    ///
    /// ```
    /// use pacegate::KeyBuf;
    ///
    /// let (key, mut bytes) = (KeyBuf::from_key(("eu", 42)), Vec::new());
    /// key.as_ref().feed(|part| bytes.extend_from_slice(part));
    /// assert_eq!(KeyBuf::decode(&bytes), Some(key));
    /// ```
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        match bytes.split_first()? {
            (0, part) => Some(KeyRef::new(part).to_buf()),
            (1, parts) => {
                let mut key = Self::empty();
                KeyRef { bytes: parts, tuple: true }.parts().for_each(|part| key.push(part));
                (&key.bytes[..] == parts).then_some(key)
            }
            _ => None,
        }
    }

    /// Adds a part, or an absent part. A key of one part becomes a tuple.
    pub fn push(&mut self, part: Option<&[u8]>) {
        if !self.tuple {
            let first = mem::replace(self, Self::empty());
            self.push(Some(&first.bytes));
        }
        // A part of 4 GiB or more is encoded as absent. No caller accepts a request of that size.
        let length = part.map_or(ABSENT, |part| u32::try_from(part.len()).unwrap_or(ABSENT));
        self.bytes.extend_from_slice(&length.to_le_bytes());
        self.bytes.extend_from_slice(part.unwrap_or_default());
    }

    /// Borrows the key.
    #[inline]
    pub fn as_ref(&self) -> KeyRef<'_> {
        KeyRef { bytes: &self.bytes, tuple: self.tuple }
    }

    /// Appends all parts of a key. A nested tuple is flattened.
    fn extend(&mut self, key: &impl Key) {
        key.with(|key| key.parts().for_each(|part| self.push(part)));
    }
}

/// Formats the parts for people, joined by commas and escaped. Different keys may have the same text.
impl fmt::Display for KeyRef<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, part) in self.parts().enumerate() {
            if place > 0 {
                f.write_str(", ")?;
            }
            match part {
                Some(part) => write!(f, "{}", String::from_utf8_lossy(part).escape_debug())?,
                None => f.write_str("(absent)")?,
            }
        }
        Ok(())
    }
}

impl fmt::Debug for KeyRef<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({self})")
    }
}

/// Formats the key like a [`KeyRef`].
impl fmt::Display for KeyBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.as_ref(), f)
    }
}

impl<'a> From<&'a str> for KeyRef<'a> {
    #[inline]
    fn from(text: &'a str) -> Self {
        Self::new(text.as_bytes())
    }
}

impl<'a> From<&'a [u8]> for KeyRef<'a> {
    #[inline]
    fn from(bytes: &'a [u8]) -> Self {
        Self::new(bytes)
    }
}

impl<'a, const N: usize> From<&'a [u8; N]> for KeyRef<'a> {
    #[inline]
    fn from(bytes: &'a [u8; N]) -> Self {
        Self::new(bytes)
    }
}

impl<'a> From<&'a KeyBuf> for KeyRef<'a> {
    #[inline]
    fn from(key: &'a KeyBuf) -> Self {
        key.as_ref()
    }
}

impl From<KeyRef<'_>> for KeyBuf {
    fn from(key: KeyRef<'_>) -> Self {
        key.to_buf()
    }
}

impl fmt::Debug for KeyBuf {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.as_ref(), f)
    }
}

impl Key for KeyRef<'_> {
    #[inline]
    fn with<R>(&self, read: impl FnOnce(KeyRef<'_>) -> R) -> R {
        read(*self)
    }
}

/// Keys that convert to a [`KeyRef`] without a copy.
macro_rules! borrowed_keys {
    ($([$($parameters:tt)*] $type:ty;)*) => {$(
        impl<$($parameters)*> Key for $type {
            #[inline]
            fn with<R>(&self, read: impl FnOnce(KeyRef<'_>) -> R) -> R {
                read(KeyRef::from(self))
            }
        }
    )*};
}

borrowed_keys! {
    [] KeyBuf;
    [] [u8];
    [] str;
    [const N: usize] [u8; N];
}

/// Keys behind a pointer.
macro_rules! pointed_keys {
    ($([$($parameters:tt)*] $pointer:ty;)*) => {$(
        impl<$($parameters)*> Key for $pointer {
            #[inline]
            fn with<R>(&self, read: impl FnOnce(KeyRef<'_>) -> R) -> R {
                (**self).with(read)
            }
        }
    )*};
}

pointed_keys! {
    [] String;
    [] Vec<u8>;
    [K: Key + ?Sized] &K;
    [K: Key + ?Sized] Box<K>;
    [K: Key + ?Sized] Rc<K>;
    [K: Key + ?Sized] Arc<K>;
    [K: Key + ToOwned + ?Sized] Cow<'_, K>;
}

/// `None` is an absent part, which differs from an empty one. All requests without it share a counter.
impl<K: Key> Key for Option<K> {
    fn with<R>(&self, read: impl FnOnce(KeyRef<'_>) -> R) -> R {
        match self {
            Some(key) => key.with(read),
            None => read(KeyRef { bytes: &ABSENT.to_le_bytes(), tuple: true }),
        }
    }
}

/// One counter for all requests.
impl Key for () {
    fn with<R>(&self, read: impl FnOnce(KeyRef<'_>) -> R) -> R {
        read(KeyRef { bytes: &[], tuple: true })
    }
}

macro_rules! printed_keys {
    ($($type:ty),*) => {$(
        impl Key for $type {
            fn with<R>(&self, read: impl FnOnce(KeyRef<'_>) -> R) -> R {
                use std::io::Write;
                let mut text = SmallVec::<[u8; 40]>::new();
                // Writing into a vector cannot fail.
                let _ = write!(text, "{self}");
                read(KeyRef::new(&text))
            }
        }
    )*};
}

printed_keys!(u8, u16, u32, u64, u128, usize, i8, i16, i32, i64, i128, isize);
printed_keys!(IpAddr, Ipv4Addr, Ipv6Addr, bool, char);

macro_rules! tuple_keys {
    ($($name:ident)+) => {
        impl<$($name: Key),+> Key for ($($name,)+) {
            #[expect(non_snake_case, reason = "the parts are named as their types are")]
            fn with<R>(&self, read: impl FnOnce(KeyRef<'_>) -> R) -> R {
                let ($($name,)+) = self;
                let mut key = KeyBuf::empty();
                $(key.extend($name);)+
                read(key.as_ref())
            }
        }
    };
}

tuple_keys!(A B);
tuple_keys!(A B C);
tuple_keys!(A B C D);

#[cfg(test)]
mod tests {
    use super::*;

    fn same(a: impl Key, b: impl Key) -> bool {
        a.with(|a| b.with(|b| a == b))
    }

    #[test]
    fn numbers_and_addresses_are_their_text() {
        assert!(same(42_u64, "42"));
        assert!(same(-7_i32, b"-7"));
        assert!(same((true, 'é'), ("true", "é")));
        assert!(same(u128::MAX, u128::MAX.to_string()));
        assert!(same("203.0.113.7".parse::<IpAddr>().unwrap(), "203.0.113.7"));
        assert!(same(Ipv4Addr::LOCALHOST, "127.0.0.1"));
        assert!(same(Ipv6Addr::LOCALHOST, IpAddr::from(Ipv6Addr::LOCALHOST)));
    }

    #[test]
    fn borders_between_parts_count() {
        assert!(!same(("ab", "c"), ("a", "bc")));
        assert!(!same(("a", "b"), "ab"));
        assert!(!same(("a", ""), "a"));
        assert!(!same(("a", ""), ("", "a")));
        assert!(!same((), ""));
        assert!(same(("a", ("b", "c")), ("a", "b", "c")));
        // A single part that spells out the encoding of a pair is still another key.
        let spelt = ("a", "b").with(|key| key.as_bytes().to_vec());
        assert!(!same(("a", "b"), spelt));
    }

    #[test]
    fn different_keys_feed_different_bytes() {
        fn fed(key: impl Key) -> Vec<u8> {
            let mut all = Vec::new();
            key.with(|key| key.feed(|bytes| all.extend_from_slice(bytes)));
            all
        }

        let spelt = ("a", "b").with(|key| key.as_bytes().to_vec());
        let keys = [fed(("a", "b")), fed(spelt), fed("ab"), fed(""), fed(())];
        for (place, key) in keys.iter().enumerate() {
            assert!(!keys[..place].contains(key), "{place}");
        }
    }

    #[test]
    fn absent_is_not_empty() {
        let (mut absent, mut empty) = (KeyBuf::empty(), KeyBuf::empty());
        absent.push(None);
        empty.push(Some(b""));
        assert_ne!(absent, empty);
        assert_eq!(absent.as_ref().parts().collect::<Vec<_>>(), [None]);
        assert_eq!(absent.as_ref().to_string(), "(absent)");
    }

    #[test]
    fn smart_pointers_encode_as_their_value() {
        assert!(same(Cow::Borrowed("a"), "a"));
        assert!(same(Cow::<str>::Owned("a".to_owned()), "a"));
        assert!(same(Box::<str>::from("a"), "a"));
        assert!(same(Arc::<str>::from("a"), "a"));
        assert!(same(Rc::new(("a", 7)), ("a", "7")));
        assert!(same(Box::<[u8]>::from(*b"a"), "a"));
        let keys: [KeyRef<'_>; 3] = ["a".into(), b"a".into(), b"a"[..].into()];
        assert_eq!(keys, [KeyRef::new(b"a"); 3]);
    }

    #[test]
    fn an_option_is_its_value_or_absent() {
        assert!(same(Some("a"), "a"));
        assert!(same(Some(("a", "b")), ("a", "b")));
        let none = None::<&str>;
        assert!(same(("a", none, 7), ("a", none, Some("7"))));
        assert!(!same(none, ""));
        assert!(!same(none, ()));
        assert!(!same((none, "a"), ("a", none)));
        assert!(!same(("a", none), "a"));
        assert!(!same(none, u32::MAX.to_le_bytes()));
        let mut absent = KeyBuf::empty();
        absent.push(None);
        assert!(same(none, &absent));
        ("a", none).with(|key| {
            assert_eq!(key.parts().collect::<Vec<_>>(), [Some(&b"a"[..]), None]);
            assert_eq!(KeyBuf::from(key).to_string(), "a, (absent)");
            assert_eq!(format!("{:?}", KeyBuf::from(key)), "Key(a, (absent))");
        });
    }

    #[test]
    fn any_key_can_grow() {
        let mut key = "a".with(|key| key.to_buf());
        key.push(Some(b"b"));
        assert!(same(&key, ("a", "b")));
        key.push(None);
        assert_eq!(key.as_ref().parts().collect::<Vec<_>>(), [Some(&b"a"[..]), Some(b"b"), None]);
        // A single part whose bytes equal the encoding of a pair stays a single part when another is added.
        let spelt = ("a", "b").with(|key| key.as_bytes().to_vec());
        let mut grown = KeyRef::new(&spelt).to_buf();
        grown.push(Some(b"c"));
        assert!(!same(&grown, ("a", "b", "c")));
        assert!(same(&grown, (spelt, "c")));
        assert_eq!(KeyRef::from(&key), key.as_ref());
        let mut empty = "".with(|key| key.to_buf());
        empty.push(Some(b"b"));
        assert!(same(&empty, ("", "b")));
    }

    #[test]
    fn shows_hostile_parts_escaped() {
        ("a\r\n\0", 7).with(|key| assert_eq!(key.to_string(), "a\\r\\n\\0, 7"));
    }
}
