//! `CL.THROTTLE` as redis-cell answers it, and `THROTTLE` as throttlecrab does.

use std::time::Duration;

use tollgate::{Charge, Decision, KeyRef, Limit, PolicyName};

use super::reply::Replies;

/// Whose command it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Dialect {
    /// redis-cell's: 0 is allowed, the capacity is one more than the burst, and what is denied says when to retry.
    Cell,
    /// throttlecrab's: 1 is allowed, the capacity is the burst, and the last two fields change places.
    Crab,
}

/// What is to be answered once the charge is decided.
#[derive(Clone, Copy, Debug)]
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
        to.array(5);
        match self.dialect {
            Dialect::Cell => {
                to.integer(i64::from(!allowed));
                to.integer(int(self.capacity));
                to.integer(int(decision.remaining()));
                to.integer(retry.unwrap_or(-1));
                to.integer(reset);
            }
            Dialect::Crab => {
                to.integer(i64::from(allowed));
                to.integer(int(self.capacity));
                to.integer(int(decision.remaining()));
                to.integer(reset);
                to.integer(retry.unwrap_or(0));
            }
        }
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
