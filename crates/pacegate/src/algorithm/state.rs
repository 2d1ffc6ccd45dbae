use std::fmt;

use crate::clock::Timestamp;

/// The state of one key in a store: an instant, a lifetime and a payload, packed into 16 bytes.
///
/// The instant takes 53 bits, the lifetime 6 and the payload 69. The lifetime is stored as a power of two of
/// microseconds, rounded up, and at least about a second: a state may be removed late, which is harmless, but
/// never early, which would over-admit.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct State {
    /// Instant, lifetime, and the 5 high bits of the payload.
    high: u64,
    /// The 64 low bits of the payload.
    low: u64,
}

const PAYLOAD_BITS_HIGH: u32 = 5;
const LIFETIME_BITS: u32 = 6;

/// Minimum lifetime, about a second; otherwise a key with occasional requests would be removed and created
/// again each time. Not 0, so that no state looks empty.
const MIN_LIFETIME: u32 = 20;
/// Maximum lifetime, longer than every period.
const MAX_LIFETIME: u32 = 62;

// The debt of every valid limit fits.
const _: () = assert!(crate::limit::MAX_DEBT <= State::MAX_PAYLOAD);

impl State {
    /// The state of an unused key. Stores do not keep it.
    pub const EMPTY: Self = Self { high: 0, low: 0 };

    /// The largest payload.
    pub const MAX_PAYLOAD: u128 = (1 << (64 + PAYLOAD_BITS_HIGH)) - 1;

    /// Creates a state that is equivalent to [`State::EMPTY`] once `lifetime_micros` have passed since `at`.
    ///
    /// # Panics
    ///
    /// Panics if the payload is larger than [`State::MAX_PAYLOAD`]: truncating it would over-admit.
    #[inline]
    pub fn new(at: Timestamp, lifetime_micros: u64, payload: u128) -> Self {
        assert!(payload <= Self::MAX_PAYLOAD, "a payload has at most 69 bits");
        let bits = 64 - lifetime_micros.leading_zeros();
        let exponent = u64::from(bits.clamp(MIN_LIFETIME, MAX_LIFETIME));
        let high = at.as_micros() << (LIFETIME_BITS + PAYLOAD_BITS_HIGH)
            | exponent << PAYLOAD_BITS_HIGH
            | (payload >> 64) as u64;
        Self { high, low: payload as u64 }
    }

    /// Returns the same state at another instant.
    pub(crate) fn moved_to(self, at: Timestamp) -> Self {
        let low_bits = LIFETIME_BITS + PAYLOAD_BITS_HIGH;
        let kept = self.high & ((1 << low_bits) - 1);
        Self { high: at.as_micros() << low_bits | kept, low: self.low }
    }

    /// Adds to the payload, whose 64 low bits must not overflow.
    #[inline]
    pub(super) fn add_to_payload(&mut self, more: u64) {
        self.low += more;
    }

    /// Returns the instant of the state.
    #[inline]
    pub fn at(self) -> Timestamp {
        Timestamp::from_micros(self.high >> (LIFETIME_BITS + PAYLOAD_BITS_HIGH))
    }

    /// Returns the data of the algorithm, such as the number of used units. 0 in an empty state.
    #[inline]
    pub fn payload(self) -> u128 {
        u128::from(self.high & ((1 << PAYLOAD_BITS_HIGH) - 1)) << 64 | u128::from(self.low)
    }

    /// Returns true if nothing has been charged.
    #[inline]
    pub fn is_empty(self) -> bool {
        self == Self::EMPTY
    }

    /// Returns true if the state may be removed.
    #[inline]
    pub(crate) fn is_expired(self, now: u64) -> bool {
        now >= self.at().as_micros() + (1 << self.lifetime_bits())
    }

    /// Returns the number of bits of the lifetime, which is less than this power of two.
    #[inline]
    pub(super) fn lifetime_bits(self) -> u64 {
        (self.high >> PAYLOAD_BITS_HIGH) & ((1 << LIFETIME_BITS) - 1)
    }
}

impl fmt::Debug for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("State").field("at", &self.at()).field("payload", &self.payload()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keeps_what_it_was_given() {
        for at in [0, 1, 1_767_225_600_000_000, Timestamp::MAX.as_micros()] {
            for payload in [0, 1, u128::from(u64::MAX), State::MAX_PAYLOAD] {
                for lifetime in [0, 1, 60_000_000, u64::MAX] {
                    let state = State::new(Timestamp::from_micros(at), lifetime, payload);
                    assert_eq!((state.at().as_micros(), state.payload()), (at, payload));
                    assert!(!state.is_empty());
                }
            }
        }
    }

    #[test]
    fn is_never_forgotten_early_and_at_most_twice_as_late() {
        for lifetime in [1, 2, 3, 1_000, 1_024, 1 << 19, 60_000_000, 1 << 48] {
            let state = State::new(Timestamp::from_micros(10), lifetime, 0);
            let kept = lifetime.max(1 << 19);
            assert!(!state.is_expired(10 + kept - 1), "{lifetime}");
            assert!(state.is_expired(10 + 2 * kept), "{lifetime}");
        }
    }

    #[test]
    #[should_panic = "at most 69 bits"]
    fn refuses_a_payload_it_cannot_keep() {
        let _ = State::new(Timestamp::EPOCH, 1, State::MAX_PAYLOAD + 1);
    }
}
