//! `CL.THROTTLE` as redis-cell answers it, and `THROTTLE` as throttlecrab does.

use std::time::Duration;

use pacegate::{Charge, Decision, KeyRef, Limit, PolicyName};

use super::{frame, reply::Replies};
use crate::ad_hoc;

/// Whose command it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dialect {
    /// redis-cell's: 0 is allowed, the capacity is one more than the burst, and what is denied says when to retry.
    Cell,
    /// throttlecrab's: 1 is allowed, the capacity is the burst, and the last two fields change places.
    Crab,
}

/// What is to be answered once the charge is decided.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Form {
    dialect: Dialect,
    capacity: u64,
    /// More was asked for than ever fits; the charge is then a peek.
    never: bool,
    /// Nothing was asked for, and nothing always fits.
    nothing: bool,
}

/// The limit that was built last: clients say the same one again and again.
#[derive(Debug, Default)]
pub(super) struct LimitCache(Option<([u64; 3], Limit)>);

/// The last command but for its key. Clients send it again and again, and what is the same need not be read again.
#[derive(Debug, Default)]
pub(super) struct Repeated {
    /// Up to the length of the key.
    head: Vec<u8>,
    /// From the end of the key on.
    tail: Vec<u8>,
    known: Option<(Limit, u64, Form)>,
}

impl Dialect {
    /// The dialect of the command of this name.
    #[inline]
    pub(super) fn of(name: &[u8]) -> Option<Self> {
        match name.len() {
            8 if name.eq_ignore_ascii_case(b"THROTTLE") => Some(Self::Crab),
            11 if name.eq_ignore_ascii_case(b"CL.THROTTLE") => Some(Self::Cell),
            _ => None,
        }
    }
}

const USAGE: [&str; 2] = [
    "CL.THROTTLE takes: key max_burst count period [quantity]",
    "THROTTLE takes: key max_burst count period [quantity]",
];

/// Reads the words of a command, its name among them.
#[inline]
pub(super) fn read<'a>(
    dialect: Dialect,
    words: &[&'a [u8]],
    cache: &mut LimitCache,
) -> Result<(Charge<'a>, Form), String> {
    let (key, burst, count, period, quantity) = match *words {
        [_, key, burst, count, period] => (key, burst, count, period, 1),
        [_, key, burst, count, period, quantity] => {
            (key, burst, count, period, number("quantity", quantity)?)
        }
        _ => return Err(USAGE[dialect as usize].to_owned()),
    };
    let burst = number("max_burst", burst)?;
    let capacity = if dialect == Dialect::Cell { burst.saturating_add(1) } else { burst };
    let numbers = [capacity, number("count", count)?, number("period", period)?];
    let limit = cache.limit(numbers)?;
    let never = quantity > capacity;
    if never && dialect == Dialect::Crab {
        return Err(format!("a quantity of {quantity} never fits a max_burst of {burst}"));
    }
    let cost = if never { 0 } else { quantity };
    let charge = Charge::new(PolicyName::AD_HOC, KeyRef::new(key), limit).cost(cost);
    Ok((charge, Form { dialect, capacity, never, nothing: quantity == 0 }))
}

impl LimitCache {
    fn limit(&mut self, numbers: [u64; 3]) -> Result<Limit, String> {
        if let Some((known, limit)) = self.0
            && known == numbers
        {
            return Ok(limit);
        }
        let [capacity, count, period] = numbers;
        if count == 0 {
            return Err("count is at least 1".to_owned());
        }
        let limit = Limit::new(count, Duration::from_secs(period));
        let limit = limit.and_then(|limit| limit.with_burst(capacity));
        let limit = limit.map_err(|error| error.to_string())?;
        let limit = ad_hoc::check(limit).map_err(|error| error.to_string())?;
        self.0 = Some((numbers, limit));
        Ok(limit)
    }
}

impl Form {
    /// Writes the five integers.
    #[inline]
    pub(super) fn write(self, decision: &Decision, to: &mut Replies) {
        let allowed = (decision.is_allowed() || self.nothing) && !self.never;
        let retry = decision.retry_after_secs().filter(|_| !allowed && !self.never).map(int);
        let reset = seconds_up(decision.reset_after());
        let [capacity, remaining] = [self.capacity, decision.remaining()].map(int);
        to.five(match self.dialect {
            Dialect::Cell => [i64::from(!allowed), capacity, remaining, retry.unwrap_or(-1), reset],
            Dialect::Crab => [i64::from(allowed), capacity, remaining, reset, retry.unwrap_or(0)],
        });
    }
}

impl Repeated {
    /// Remembers a command that was read from the beginning of `input`. One that was typed as a line is not worth it.
    pub(super) fn remember(
        &mut self,
        input: &[u8],
        words: &[&[u8]],
        (charge, form): (Charge<'_>, Form),
    ) {
        if input.first() != Some(&b'*') {
            return;
        }
        let end = |word: &[u8]| word.as_ptr().addr() - input.as_ptr().addr() + word.len();
        let Some(length) = words.last().map(|last| end(last) + 2) else { return };
        let (name, key) = (end(words[0]), end(words[1]));
        self.head.clear();
        self.head.extend_from_slice(&input[..name + 3]);
        self.tail.clear();
        self.tail.extend_from_slice(&input[key..length]);
        self.known = Some((charge.limit, charge.cost, form));
    }

    /// The same command at the beginning of `input`, and its length, if nothing but its key differs.
    #[inline]
    pub(super) fn read<'a>(
        &self,
        input: &'a [u8],
        longest_key: usize,
    ) -> Option<(Charge<'a>, Form, usize)> {
        let (limit, cost, form) = self.known?;
        let rest = input.strip_prefix(&*self.head)?;
        let (length, start) = frame::read_length(rest, 0).ok()??;
        if length > longest_key {
            return None;
        }
        let (key, after) = rest.get(start..)?.split_at_checked(length)?;
        after.starts_with(&self.tail).then(|| {
            let charge = Charge::new(PolicyName::AD_HOC, KeyRef::new(key), limit).cost(cost);
            (charge, form, self.head.len() + start + length + self.tail.len())
        })
    }
}

#[inline]
fn number(name: &str, word: &[u8]) -> Result<u64, String> {
    let digits = word.len() <= 18 && !word.is_empty() && word.iter().all(u8::is_ascii_digit);
    if !digits {
        return Err(format!("{name} is not a whole number of up to 18 digits"));
    }
    Ok(word.iter().fold(0, |value, digit| value * 10 + u64::from(digit - b'0')))
}

fn seconds_up(time: Duration) -> i64 {
    int(time.as_secs()) + i64::from(time.subsec_nanos() > 0)
}

fn int(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{
        super::frame::{FrameBounds, Words},
        *,
    };

    const MOST: usize = 40;

    fn command(words: &[&[u8]]) -> Vec<u8> {
        let mut text = format!("*{}\r\n", words.len()).into_bytes();
        for word in words {
            text.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
            text.extend_from_slice(word);
            text.extend_from_slice(b"\r\n");
        }
        text
    }

    /// What is read without a memory.
    fn afresh<'a>(input: &'a [u8], words: &mut Words<'a>) -> Option<(Charge<'a>, Form, usize)> {
        let bounds = FrameBounds { words: 16, bytes: 1 << 16 };
        let length = frame::read(input, bounds, words).ok()??;
        let dialect = Dialect::of(words.first()?)?;
        let (charge, form) = read(dialect, words, &mut LimitCache::default()).ok()?;
        Some((charge, form, length))
    }

    fn remembered(input: &[u8]) -> Repeated {
        let (mut words, mut repeated) = (Words::new(), Repeated::default());
        let (charge, form, _) = afresh(input, &mut words).unwrap();
        repeated.remember(input, &words, (charge, form));
        repeated
    }

    #[test]
    fn only_the_key_may_differ() {
        let first = command(&[b"CL.THROTTLE", b"alice", b"15", b"30", b"60"]);
        let repeated = remembered(&[&*first, b"more"].concat());
        let key = |text: &[u8]| repeated.read(text, MOST).map(|(charge, ..)| charge.key.to_buf());
        let same = |key: &[u8]| command(&[b"CL.THROTTLE", key, b"15", b"30", b"60"]);
        for name in [&b"alice"[..], b"", b"bob", &[b'x'; MOST], b"\r\n$2\r\n15"] {
            assert_eq!(key(&same(name)), Some(KeyRef::new(name).to_buf()));
        }
        assert_eq!(key(&same(&[b'x'; MOST + 1])), None);
        for (at, _) in first.iter().enumerate() {
            assert_eq!(key(&first[..at]), None, "{at} bytes of it");
        }
        for words in [
            [&b"CL.THROTTLE"[..], b"alice", b"15", b"30", b"61"],
            [b"CL.THROTTLE", b"alice", b"16", b"30", b"60"],
            [b"cl.throttle", b"alice", b"15", b"30", b"60"],
        ] {
            assert_eq!(key(&command(&words)), None);
        }
        assert_eq!(key(&command(&[b"CL.THROTTLE", b"alice", b"15", b"30", b"60", b"1"])), None);
        let mut typed = Repeated::default();
        let words: [&[u8]; 5] = [b"CL.THROTTLE", b"alice", b"15", b"30", b"60"];
        let read = read(Dialect::Cell, &words, &mut LimitCache::default()).unwrap();
        typed.remember(b"CL.THROTTLE alice 15 30 60\r\n", &words, read);
        assert!(typed.known.is_none());
    }

    proptest! {
        #[test]
        fn what_is_remembered_reads_as_afresh(
            key in proptest::collection::vec(any::<u8>(), 0..20),
            quantity in 0_u64..20,
            crab in any::<bool>(),
            place in any::<proptest::sample::Index>(),
            byte in prop_oneof![any::<u8>(), b'0'..=b'9'],
        ) {
            let name: &[u8] = if crab { b"THROTTLE" } else { b"CL.THROTTLE" };
            let quantity = quantity.min(15).to_string();
            let words = [name, b"alice", b"15", b"30", b"60", quantity.as_bytes()];
            let repeated = remembered(&command(&words));
            let mut next = command(&[name, &key, b"15", b"30", b"60", quantity.as_bytes()]);
            prop_assert!(repeated.read(&next, MOST).is_some());
            let place = place.index(next.len());
            next[place] = byte;
            let mut words = Words::new();
            if let Some((charge, form, length)) = repeated.read(&next, MOST) {
                let (expected, expected_form, expected_length) = afresh(&next, &mut words).unwrap();
                prop_assert_eq!((form, length), (expected_form, expected_length));
                let of = |charge: Charge<'_>| (charge.key.to_buf(), charge.limit, charge.cost);
                prop_assert_eq!(of(charge), of(expected));
            }
        }
    }
}
