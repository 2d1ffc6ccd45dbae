//! `CL.THROTTLE` with the replies of redis-cell, and `THROTTLE` with those of throttlecrab.

use std::time::Duration;

use pacegate::{Charge, Decision, KeyRef, Limit, PolicyName};

use super::{error::CommandError, frame, reply::Replies};
use crate::inline_limits;

/// The system whose command and reply are used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dialect {
    /// redis-cell: 0 means allowed, and the capacity is one more than the burst.
    Cell,
    /// throttlecrab: 1 means allowed, the capacity is the burst, and the last two fields are swapped.
    Crab,
}

/// The form of the reply to a throttle command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct ThrottleReply {
    dialect: Dialect,
    capacity: u64,
    /// True if the quantity exceeds the capacity, so that the charge is a peek and the reply a denial.
    is_too_large: bool,
    /// True if the quantity is 0, which is always allowed.
    is_peek: bool,
}

/// The last limit, because clients usually repeat it.
#[derive(Debug, Default)]
pub(super) struct LimitCache(Option<([u64; 3], Limit)>);

/// The last command without its key, to skip parsing commands that differ by the key only.
#[derive(Debug, Default)]
pub(super) struct RepeatedCommand {
    /// Bytes before the length of the key.
    head: Vec<u8>,
    /// Bytes after the key.
    tail: Vec<u8>,
    known: Option<(Limit, u64, ThrottleReply)>,
}

impl Dialect {
    /// Returns the dialect of a command name.
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
    "CL.THROTTLE key max_burst count period [quantity]",
    "THROTTLE key max_burst count period [quantity]",
];

/// Parses the words of a command, including its name.
#[inline]
pub(super) fn read<'a>(
    dialect: Dialect,
    args: &[&'a [u8]],
    cache: &mut LimitCache,
) -> Result<(Charge<'a>, ThrottleReply), CommandError> {
    let (key, burst, count, period, quantity) = match *args {
        [_, key, burst, count, period] => (key, burst, count, period, 1),
        [_, key, burst, count, period, quantity] => {
            (key, burst, count, period, number("quantity", quantity)?)
        }
        _ => return Err(CommandError::Usage(USAGE[dialect as usize])),
    };
    let burst = number("max_burst", burst)?;
    let capacity = if dialect == Dialect::Cell { burst.saturating_add(1) } else { burst };
    let numbers = [capacity, number("count", count)?, number("period", period)?];
    let limit = cache.limit(numbers)?;
    let is_too_large = quantity > capacity;
    if is_too_large && dialect == Dialect::Crab {
        return Err(CommandError::QuantityExceedsBurst { quantity, burst });
    }
    let cost = if is_too_large { 0 } else { quantity };
    let charge = Charge::new(PolicyName::INLINE, KeyRef::new(key), limit).cost(cost);
    Ok((charge, ThrottleReply { dialect, capacity, is_too_large, is_peek: quantity == 0 }))
}

impl LimitCache {
    fn limit(&mut self, numbers: [u64; 3]) -> Result<Limit, CommandError> {
        if let Some((known, limit)) = self.0
            && known == numbers
        {
            return Ok(limit);
        }
        let [capacity, count, period] = numbers;
        if count == 0 {
            return Err(CommandError::ZeroCount);
        }
        let limit = Limit::new(count, Duration::from_secs(period))?.with_burst(capacity)?;
        let limit = inline_limits::check(limit)?;
        self.0 = Some((numbers, limit));
        Ok(limit)
    }
}

impl ThrottleReply {
    /// Writes the five integers.
    #[inline]
    pub(super) fn write(self, decision: &Decision, to: &mut Replies) {
        let allowed = (decision.is_allowed() || self.is_peek) && !self.is_too_large;
        let retry = decision.retry_after_secs().filter(|_| !allowed && !self.is_too_large).map(int);
        let reset = seconds_up(decision.reset_after());
        let [capacity, remaining] = [self.capacity, decision.remaining()].map(int);
        to.integers(match self.dialect {
            Dialect::Cell => [i64::from(!allowed), capacity, remaining, retry.unwrap_or(-1), reset],
            Dialect::Crab => [i64::from(allowed), capacity, remaining, reset, retry.unwrap_or(0)],
        });
    }
}

impl RepeatedCommand {
    /// Remembers the command at the start of `input`, unless it is a line.
    pub(super) fn remember(
        &mut self,
        input: &[u8],
        args: &[&[u8]],
        (charge, reply): (Charge<'_>, ThrottleReply),
    ) {
        if input.first() != Some(&b'*') {
            return;
        }
        let end = |word: &[u8]| word.as_ptr().addr() - input.as_ptr().addr() + word.len();
        let Some(length) = args.last().map(|last| end(last) + 2) else { return };
        let (name, key) = (end(args[0]), end(args[1]));
        self.head.clear();
        self.head.extend_from_slice(&input[..name + 3]);
        self.tail.clear();
        self.tail.extend_from_slice(&input[key..length]);
        self.known = Some((charge.limit, charge.cost, reply));
    }

    /// Parses the command at the start of `input` if it differs from the last one by its key only. Also returns its
    /// length.
    #[inline]
    pub(super) fn read<'a>(
        &self,
        input: &'a [u8],
        max_key: usize,
    ) -> Option<(Charge<'a>, ThrottleReply, usize)> {
        let (limit, cost, reply) = self.known?;
        let rest = input.strip_prefix(&*self.head)?;
        let (length, start) = frame::read_length(rest, 0).ok()??;
        if length > max_key {
            return None;
        }
        let (key, after) = rest.get(start..)?.split_at_checked(length)?;
        after.starts_with(&self.tail).then(|| {
            let charge = Charge::new(PolicyName::INLINE, KeyRef::new(key), limit).cost(cost);
            (charge, reply, self.head.len() + start + length + self.tail.len())
        })
    }
}

#[inline]
pub(super) fn number(name: &'static str, word: &[u8]) -> Result<u64, CommandError> {
    let digits = word.len() <= 18 && !word.is_empty() && word.iter().all(u8::is_ascii_digit);
    if !digits {
        return Err(CommandError::NotANumber(name));
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
        super::frame::{Args, FrameBounds},
        *,
    };

    const MAX_KEY: usize = 40;

    fn command(args: &[&[u8]]) -> Vec<u8> {
        let mut text = format!("*{}\r\n", args.len()).into_bytes();
        for word in args {
            text.extend_from_slice(format!("${}\r\n", word.len()).as_bytes());
            text.extend_from_slice(word);
            text.extend_from_slice(b"\r\n");
        }
        text
    }

    /// Parses a command without the memory of the last one.
    fn parse<'a>(
        input: &'a [u8],
        args: &mut Args<'a>,
    ) -> Option<(Charge<'a>, ThrottleReply, usize)> {
        let bounds = FrameBounds { args: 16, bytes: 1 << 16 };
        let length = frame::read(input, bounds, args).ok()??;
        let dialect = Dialect::of(args.first()?)?;
        let (charge, form) = read(dialect, args, &mut LimitCache::default()).ok()?;
        Some((charge, form, length))
    }

    fn remembered(input: &[u8]) -> RepeatedCommand {
        let (mut args, mut repeated) = (Args::new(), RepeatedCommand::default());
        let (charge, form, _) = parse(input, &mut args).unwrap();
        repeated.remember(input, &args, (charge, form));
        repeated
    }

    #[test]
    fn only_the_key_may_differ() {
        let first = command(&[b"CL.THROTTLE", b"alice", b"15", b"30", b"60"]);
        let repeated = remembered(&[&*first, b"more"].concat());
        let key =
            |text: &[u8]| repeated.read(text, MAX_KEY).map(|(charge, ..)| charge.key.to_buf());
        let same = |key: &[u8]| command(&[b"CL.THROTTLE", key, b"15", b"30", b"60"]);
        for name in [&b"alice"[..], b"", b"bob", &[b'x'; MAX_KEY], b"\r\n$2\r\n15"] {
            assert_eq!(key(&same(name)), Some(KeyRef::new(name).to_buf()));
        }
        assert_eq!(key(&same(&[b'x'; MAX_KEY + 1])), None);
        for (at, _) in first.iter().enumerate() {
            assert_eq!(key(&first[..at]), None, "{at} bytes of it");
        }
        for args in [
            [&b"CL.THROTTLE"[..], b"alice", b"15", b"30", b"61"],
            [b"CL.THROTTLE", b"alice", b"16", b"30", b"60"],
            [b"cl.throttle", b"alice", b"15", b"30", b"60"],
        ] {
            assert_eq!(key(&command(&args)), None);
        }
        assert_eq!(key(&command(&[b"CL.THROTTLE", b"alice", b"15", b"30", b"60", b"1"])), None);
        let mut typed = RepeatedCommand::default();
        let args: [&[u8]; 5] = [b"CL.THROTTLE", b"alice", b"15", b"30", b"60"];
        let read = read(Dialect::Cell, &args, &mut LimitCache::default()).unwrap();
        typed.remember(b"CL.THROTTLE alice 15 30 60\r\n", &args, read);
        assert!(typed.known.is_none());
    }

    proptest! {
        #[test]
        fn repeated_commands_parse_like_new_ones(
            key in proptest::collection::vec(any::<u8>(), 0..20),
            quantity in 0_u64..20,
            crab in any::<bool>(),
            place in any::<proptest::sample::Index>(),
            byte in prop_oneof![any::<u8>(), b'0'..=b'9'],
        ) {
            let name: &[u8] = if crab { b"THROTTLE" } else { b"CL.THROTTLE" };
            let quantity = quantity.min(15).to_string();
            let args = [name, b"alice", b"15", b"30", b"60", quantity.as_bytes()];
            let repeated = remembered(&command(&args));
            let mut next = command(&[name, &key, b"15", b"30", b"60", quantity.as_bytes()]);
            prop_assert!(repeated.read(&next, MAX_KEY).is_some());
            let place = place.index(next.len());
            next[place] = byte;
            let mut args = Args::new();
            if let Some((charge, form, length)) = repeated.read(&next, MAX_KEY) {
                let (expected, expected_form, expected_length) = parse(&next, &mut args).unwrap();
                prop_assert_eq!((form, length), (expected_form, expected_length));
                let of = |charge: Charge<'_>| (charge.key.to_buf(), charge.limit, charge.cost);
                prop_assert_eq!(of(charge), of(expected));
            }
        }
    }
}
