use std::time::Duration;

use pacegate::{Algorithm, Excess, Limit, Timestamp, algorithm::Outcome};

/// The specification of every algorithm, by brute force.
///
/// It keeps everything that was ever charged to one key. All it has of an algorithm is its definition:
/// whether a cost [fits](Self::fits) at an instant. The remaining units, the retry time and the reset time
/// are searched for with that question alone. This is slow but obviously correct. Time must not go back.
#[derive(Clone, Debug)]
pub struct Model {
    limit: Limit,
    entries: Vec<Entry>,
    /// Of a bucket whose first entries were [forgotten](Self::forget): an instant, and the missing tokens × period
    /// then.
    base: Option<(u64, i128)>,
    /// Of a bucket: the tokens that settlements have returned, and those that refunds and resets have.
    settled: i128,
    refunded: i128,
}

/// The model's result of a charge; times in microseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Answer {
    /// True if the cost was admitted; for a cost of 0, if one unit would be.
    pub admitted: bool,
    /// The largest cost that would be admitted now.
    pub remaining: u64,
    /// Time until the same cost will be admitted; 0 if it was, `None` if never.
    pub retry_after: Option<u64>,
    /// Time until the full capacity will be available again.
    pub reset_after: u64,
    /// The units that [`Model::charge_up_to`] charged; 0 for other charges.
    pub granted: u64,
}

/// Units that were reserved in a [`Model`].
#[derive(Clone, Copy, Debug)]
pub struct ReservedUnits {
    at: u64,
    units: u64,
    /// Of a bucket: the missing tokens × period just after the charge.
    missing: i128,
    /// Of a bucket: the tokens that were returned before the charge.
    settled: i128,
    refunded: i128,
}

#[derive(Clone, Copy, Debug)]
struct Entry {
    at: u64,
    /// The number of its window.
    window: u64,
    /// Units taken, or refunded if negative (only for a token bucket and a fixed window).
    units: i128,
    permit: u64,
    /// True if units beyond the amount of a fixed window are carried into the next one.
    is_debt: bool,
    /// The limit at that time.
    limit: Limit,
}

/// The units that count in a fixed window.
#[derive(Clone, Copy, Debug, Default)]
struct WindowUse {
    window: u64,
    used: i128,
    /// Those that the amounts of this window and of later ones have to pay for; 0 if this one pays for all.
    carried: i128,
}

impl WindowUse {
    fn moved_to(self, window: u64, amount: i128) -> Self {
        let carried = if self.carried > amount { self.carried } else { 0 };
        if window == self.window {
            return Self { carried, ..self };
        }
        let used = (carried - i128::from(window - self.window) * amount).max(0);
        Self { window, used, carried: if used > amount { used } else { 0 } }
    }
}

impl Model {
    /// Creates the model of an unused key.
    pub fn new(limit: Limit) -> Self {
        Self { limit, entries: Vec::new(), base: None, settled: 0, refunded: 0 }
    }

    /// Returns the current limit.
    pub fn limit(&self) -> Limit {
        self.limit
    }

    /// Changes the amount or the burst.
    pub fn set_limit(&mut self, limit: Limit) {
        self.limit = limit;
    }

    /// Charges `cost` at `now` with permit `permit` (0 without permits), if it fits.
    pub fn charge(&mut self, now: u64, cost: u64, permit: u64) -> Answer {
        let admitted = self.fits(now, cost.max(1));
        let retry_after = if admitted { Some(0) } else { self.first_fit(now, cost.max(1)) };
        self.take(now, cost, permit);
        self.answer(now, retry_after)
    }

    /// Charges like [`Model::charge`], but returns only whether the cost fits, which is much faster.
    pub fn take(&mut self, now: u64, cost: u64, permit: u64) -> bool {
        let admitted = self.fits(now, cost.max(1));
        if admitted && cost > 0 {
            self.push(now, i128::from(cost), permit);
        }
        admitted
    }

    /// Charges `units` at `now`, even beyond the limit.
    pub fn force(&mut self, now: u64, units: u64) {
        self.push(now, i128::from(units), 0);
    }

    /// Forgets entries that have no effect from `now` on, so that a long history stays fast.
    pub fn forget(&mut self, now: u64) {
        if self.limit.algorithm() == Algorithm::TokenBucket {
            self.base = Some((now, self.tokens_used(now)));
            return self.entries.clear();
        }
        let from = match self.limit.algorithm() {
            // Debt may be older.
            Algorithm::FixedWindow if self.entries.iter().any(|entry| entry.is_debt) => return,
            Algorithm::FixedWindow => now - now % micros(self.limit.period()),
            _ => self.oldest_counted(now),
        };
        self.entries.retain(|entry| entry.at >= from);
    }

    /// Charges the highest cost up to `most` that fits at `now`. If nothing fits, the result is that of one unit.
    pub fn charge_up_to(&mut self, now: u64, most: u64) -> Answer {
        let granted = (1..=most).rev().find(|&cost| self.fits(now, cost)).unwrap_or(0);
        Answer { granted, ..self.charge(now, granted.max(1), 0) }
    }

    /// Charges `cost` at `now`, even if it does not fit. If it does not, the retry time is that of one more unit. If
    /// the excess is only counted, the remaining units are those before the charge.
    pub fn record(&mut self, now: u64, cost: u64, excess: Excess) -> Answer {
        let excess = excess.under(&self.limit);
        let needed = if excess == Excess::Count { cost } else { cost.max(1) };
        if excess == Excess::Reject || self.fits(now, cost.max(1)) {
            return self.charge(now, cost, 0);
        }
        let is_over = needed > 0 || self.excess(now) > 0;
        let free_before = self.remaining(now);
        let is_debt = matches!(excess, Excess::Debt { .. });
        let max = if let Excess::Debt { max } = excess { max } else { self.limit.max_excess() };
        let capacity = i128::from(self.limit.capacity());
        let is_window = self.limit.algorithm() == Algorithm::FixedWindow;
        let debt = self.debt(now);
        let has_debt = debt > 0;
        // Debt does not include excess that was only counted, or that is from a higher limit.
        let over = if is_window && is_debt { debt } else { self.excess(now) };
        let room = i128::from(max) + i128::from(self.remaining(now)) - over;
        let units = if has_debt && !is_debt { 0 } else { i128::from(cost).min(room.max(0)) };
        if units > 0 {
            debug_assert!(units <= capacity + i128::from(max));
            self.push(now, units, 0);
            self.entries.last_mut().expect("the entry that was pushed").is_debt = is_debt;
        }
        let retry_after = if is_over { self.first_fit(now, 1) } else { Some(0) };
        let mut answer = self.answer(now, retry_after);
        if is_over && excess == Excess::Count {
            answer.remaining = free_before;
        }
        answer
    }

    /// Charges an estimate at `now`, if it fits.
    pub fn reserve(&mut self, now: u64, estimate: u64) -> (Answer, Option<ReservedUnits>) {
        let answer = self.charge(now, estimate, 0);
        let is_bucket = self.limit.algorithm() == Algorithm::TokenBucket;
        let missing = if is_bucket { self.tokens_used(now) } else { 0 };
        let (settled, refunded) = (self.settled, self.refunded);
        let reserved = ReservedUnits { at: now, units: estimate, missing, settled, refunded };
        (answer, answer.admitted.then_some(reserved))
    }

    /// Settles an open reservation: returns units to where they were charged, if they still count there, or records
    /// those beyond the estimate as debt. Returns the number of the latter and the result of that charge.
    pub fn settle(
        &mut self,
        now: u64,
        reserved: &ReservedUnits,
        actual: u64,
        max_debt: u64,
    ) -> Option<(u64, Answer)> {
        if actual > reserved.units {
            let beyond = actual - reserved.units;
            return Some((beyond, self.record(now, beyond, Excess::Debt { max: max_debt })));
        }
        let units = i128::from(reserved.units - actual);
        let period = micros(self.limit.period());
        let (window, charged) = (self.window(now), self.window(reserved.at));
        match self.limit.algorithm() {
            _ if units == 0 => {}
            Algorithm::FixedWindow if charged == window => self.push(now, -units, 0),
            Algorithm::FixedWindow => {}
            Algorithm::TokenBucket => {
                let owed = units.min(self.owed_tokens(now, reserved));
                self.settled += owed;
                self.push(now, -owed, 0);
            }
            Algorithm::SlidingWindow => self.take_back(units, |at| at / period == charged),
            _ => self.take_back(units, |at| at == reserved.at),
        }
        None
    }

    /// Returns the tokens of a reservation that are certainly missing. Only refilled and refunded tokens are gone. And
    /// tokens are refilled in the order in which they were taken, where those that others returned may have been ahead.
    fn owed_tokens(&self, now: u64, reserved: &ReservedUnits) -> i128 {
        let period = i128::from(micros(self.limit.period()));
        let refunded = self.refunded - reserved.refunded;
        let left = |debt| drained(debt, &self.limit, now - reserved.at) / period - refunded;
        let in_order = left(reserved.missing) - (self.settled - reserved.settled);
        in_order.max(left(i128::from(reserved.units) * period)).max(0)
    }

    /// Removes up to `units` of the entries that were charged at these instants, the newest first.
    fn take_back(&mut self, units: i128, is_meant: impl Fn(u64) -> bool) {
        let mut left = units;
        let is_meant = |entry: &&mut Entry| is_meant(entry.at) && entry.permit == 0;
        for entry in self.entries.iter_mut().rev().filter(is_meant) {
            let back = left.min(entry.units);
            entry.units -= back;
            left -= back;
        }
        self.entries.retain(|entry| entry.units != 0);
    }

    fn answer(&self, now: u64, retry_after: Option<u64>) -> Answer {
        Answer {
            admitted: retry_after == Some(0),
            remaining: self.remaining(now),
            retry_after,
            reset_after: self.reset_after(now),
            granted: 0,
        }
    }

    /// Returns the units in use beyond the capacity: how much the capacity would have to grow before everything fits.
    fn excess(&self, now: u64) -> i128 {
        let grown = |more: u64| {
            let limit = self.limit;
            let (amount, capacity) = (limit.amount() + more, limit.capacity() + more);
            self.fits_into(now, 0, i128::from(amount), i128::from(capacity))
        };
        i128::from(first_true(0, 1 << 40, grown))
    }

    /// Refunds up to `cost` of the units that still count, newest first. Permits are not refunded but
    /// [released](Self::release).
    pub fn refund(&mut self, now: u64, cost: u64) {
        self.refunded += i128::from(cost);
        if matches!(self.limit.algorithm(), Algorithm::TokenBucket | Algorithm::FixedWindow) {
            return self.push(now, -i128::from(cost), 0);
        }
        let from = self.oldest_counted(now);
        self.take_back(i128::from(cost), |at| at >= from);
    }

    /// Resets the key. A bucket gets back all that is missing, and nothing of it again later.
    pub fn reset(&mut self) {
        let period = i128::from(micros(self.limit.period()));
        self.refunded += self.base.map_or(0, |(_, missing)| missing / period + 1);
        self.refunded += self.entries.iter().map(|entry| entry.units.max(0)).sum::<i128>();
        self.entries.clear();
        self.base = None;
    }

    /// Releases a permit.
    pub fn release(&mut self, permit: u64) {
        self.entries.retain(|entry| entry.permit != permit);
    }

    /// Renews a permit, unless it has expired.
    pub fn renew(&mut self, now: u64, permit: u64) -> bool {
        let period = micros(self.limit.period());
        let is_held = |entry: &Entry| entry.permit == permit && entry.at + period > now;
        let (held, others): (Vec<_>, Vec<_>) = self.entries.drain(..).partition(is_held);
        self.entries = others;
        self.entries.extend(held.iter().map(|entry| Entry { at: now, ..*entry }));
        !held.is_empty()
    }

    /// Returns true if `cost` units can be taken at `now`.
    pub fn fits(&self, now: u64, cost: u64) -> bool {
        let (amount, capacity) = (self.limit.amount(), self.limit.capacity());
        amount > 0 && self.fits_into(now, cost, i128::from(amount), i128::from(capacity))
    }

    /// Returns true if `cost` units fit into this amount and capacity at `now`: the definition of each algorithm.
    fn fits_into(&self, now: u64, cost: u64, amount: i128, capacity: i128) -> bool {
        let (cost, period) = (i128::from(cost), micros(self.limit.period()));
        let window = self.window(now);
        let in_window = |wanted: u64| self.units(|at| at / period == wanted);
        match self.limit.algorithm() {
            Algorithm::FixedWindow => self.in_fixed_window(window).used + cost <= amount,
            Algorithm::SlidingWindow => {
                let previous = if window == 0 { 0 } else { in_window(window - 1) };
                let (whole, elapsed) = (i128::from(period), i128::from(now % period));
                previous * (whole - elapsed) + (in_window(window) + cost) * whole <= amount * whole
            }
            Algorithm::SlidingLog | Algorithm::Concurrency => {
                self.units(|at| at + period > now) + cost <= amount
            }
            Algorithm::TokenBucket => {
                self.tokens_used(now) + cost * i128::from(period) <= capacity * i128::from(period)
            }
            other => panic!("the model does not support {other}"),
        }
    }

    /// Returns the units that count in a fixed window: those taken in it, and the debt of earlier windows, each of
    /// which paid its amount. Excess that is not debt ends with its window.
    fn in_fixed_window(&self, window: u64) -> WindowUse {
        let mut current = WindowUse::default();
        for entry in &self.entries {
            let amount = i128::from(entry.limit.amount());
            current = current.moved_to(entry.window, amount);
            if entry.is_debt {
                current.carried = current.carried.max(current.used.min(amount));
            }
            current.used = (current.used + entry.units).max(0);
            if entry.is_debt || current.carried > amount {
                current.carried += entry.units;
            }
            if current.carried <= amount {
                current.carried = 0;
            }
        }
        current.moved_to(window, i128::from(self.limit.amount()))
    }

    /// Returns the units beyond the amount of a fixed window that later windows have to pay.
    fn debt(&self, now: u64) -> i128 {
        if self.limit.algorithm() != Algorithm::FixedWindow {
            return 0;
        }
        let current = self.in_fixed_window(self.window(now));
        (current.carried - i128::from(self.limit.amount())).max(0)
    }

    /// Returns the number of the window that contains an instant. The windows of calendar periods are those of the
    /// library, which a recorded fixture checks.
    fn window(&self, at: u64) -> u64 {
        match self.limit.calendar().and(self.limit.window_at(Timestamp::from_micros(at))) {
            Some(window) => window.number(),
            None => at / micros(self.limit.period()),
        }
    }

    /// Returns the tokens missing from a bucket, in tokens × period: initially none, refilled by the amount per
    /// microsecond. More than the burst if the burst has become smaller, or if more was recorded.
    fn tokens_used(&self, now: u64) -> i128 {
        let first = self.base.or_else(|| self.entries.first().map(|first| (first.at, 0)));
        let Some((mut last, mut debt)) = first else { return 0 };
        for entry in &self.entries {
            debt = drained(debt, &entry.limit, entry.at - last);
            debt = (debt + entry.units * i128::from(micros(entry.limit.period()))).max(0);
            last = entry.at;
        }
        drained(debt, &self.limit, now - last)
    }

    fn push(&mut self, at: u64, units: i128, permit: u64) {
        let (window, limit) = (self.window(at), self.limit);
        self.entries.push(Entry { at, window, units, permit, is_debt: false, limit });
    }

    fn units(&self, counts: impl Fn(u64) -> bool) -> i128 {
        self.entries.iter().filter(|entry| counts(entry.at)).map(|entry| entry.units).sum()
    }

    /// Returns the earliest instant whose charges still count at `now`.
    fn oldest_counted(&self, now: u64) -> u64 {
        let period = micros(self.limit.period());
        let start = now - now % period;
        match self.limit.algorithm() {
            Algorithm::SlidingWindow => start.saturating_sub(period),
            _ => (now + 1).saturating_sub(period),
        }
    }

    /// Returns the largest cost that fits at `now`.
    pub fn remaining(&self, now: u64) -> u64 {
        first_true(0, self.limit.capacity(), |more| !self.fits(now, more + 1))
    }

    fn reset_after(&self, now: u64) -> u64 {
        if self.limit.amount() == 0 {
            return 0;
        }
        first_true(0, self.horizon(), |wait| self.remaining(now + wait) == self.limit.capacity())
    }

    /// Returns the time until `cost` fits; 0 if it does at `now`, `None` if never.
    pub fn first_fit(&self, now: u64, cost: u64) -> Option<u64> {
        let wait = first_true(0, self.horizon(), |wait| self.fits(now + wait, cost));
        self.fits(now + wait, cost).then_some(wait)
    }

    /// Returns a time after which nothing charged so far can matter.
    fn horizon(&self) -> u64 {
        let period = micros(self.limit.period());
        let limits = self.entries.iter().map(|entry| &entry.limit).chain([&self.limit]);
        let most = limits.map(|limit| limit.capacity()).max().unwrap_or(0);
        let recorded: i128 = self.entries.iter().map(|entry| entry.units.max(0)).sum();
        let base = self.base.map_or(0, |(_, missing)| missing / i128::from(period) + 1);
        let most = u128::from(most) + (recorded + base).unsigned_abs();
        let bursts = most.div_ceil(u128::from(self.limit.amount().max(1)));
        period * (u64::try_from(bursts).expect("a short history") + 2)
    }
}

impl Answer {
    /// Returns true if the outcome of a store is the same.
    pub fn is(&self, outcome: &Outcome) -> bool {
        let wait = self.retry_after.map(Duration::from_micros);
        outcome.is_admitted() == self.admitted
            && outcome.remaining() == self.remaining
            && outcome.retry_after() == wait
            && outcome.reset_after() == Duration::from_micros(self.reset_after)
    }
}

fn drained(debt: i128, limit: &Limit, wait: u64) -> i128 {
    (debt - i128::from(wait) * i128::from(limit.amount())).max(0)
}

/// Returns the first number from `low` on for which `holds` is true, or `high` if there is none before. Once
/// true, it must stay true.
fn first_true(mut low: u64, mut high: u64, holds: impl Fn(u64) -> bool) -> u64 {
    while low < high {
        let middle = low + (high - low) / 2;
        if holds(middle) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    low
}

fn micros(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros()).expect("a period of at most ten years")
}
