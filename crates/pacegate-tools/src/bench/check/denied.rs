//! Finds denials that are certainly wrong: there was room even if everything that may have been charged
//! before was charged as late as possible.

use pacegate::{Algorithm, Limit};

use super::{Interval, Requests, Rule, Windows};

/// Counts the denied requests that the limit had room for at every instant at which they can have been
/// decided.
pub(super) fn wrongly_denied(rule: &Rule, requests: &Requests) -> u64 {
    if requests.denied.is_empty() || rule.limit.amount() == 0 {
        return 0;
    }
    let charged = Charged::new(&rule.limit, &requests.charged);
    let is_wrong = |span: &&Interval| match (rule.limit.algorithm(), rule.windows) {
        (Algorithm::TokenBucket, _) => charged.fits_token_bucket(span),
        (Algorithm::FixedWindow, Windows::Aligned) | (Algorithm::SlidingWindow, _) => {
            charged.fits_windows(span)
        }
        // An anchored window contains nothing older than one period either.
        (Algorithm::SlidingLog, _) | (Algorithm::FixedWindow, Windows::Anchored) => {
            charged.fits_log(span)
        }
        _ => false,
    };
    requests.denied.iter().filter(is_wrong).count() as u64
}

/// Maximum number of windows that a denial may span. Longer denials are not judged.
const MAX_WINDOWS: u64 = 16;

/// Everything that may have been charged, ordered by send time and by response time.
#[derive(Debug)]
struct Charged<'a> {
    limit: &'a Limit,
    period: u64,
    sent: Vec<Sum>,
    answered: Vec<Sum>,
    /// For each of `answered`: the debt of a token bucket at that time, in units × period, if everything was
    /// charged as late as possible.
    owed: Vec<i128>,
}

/// The sum of all units up to and including a time.
#[derive(Clone, Copy, Debug)]
struct Sum {
    time: u64,
    units: u64,
}

impl<'a> Charged<'a> {
    fn new(limit: &'a Limit, charged: &[Interval]) -> Self {
        let period = limit.period().as_micros() as u64;
        let answered = sums(charged.iter().map(|span| (span.to, span.units)));
        let owed = match limit.algorithm() {
            Algorithm::TokenBucket => owed(limit, &answered),
            _ => Vec::new(),
        };
        let sent = sums(charged.iter().map(|span| (span.from, span.units)));
        Self { limit, period, sent, answered, owed }
    }

    fn fits_token_bucket(&self, denied: &Interval) -> bool {
        let period = i128::from(self.period);
        let before = self.answered.partition_point(|sum| sum.time <= denied.from);
        let (owed, done) = match before.checked_sub(1) {
            None => (0, 0),
            Some(last) => {
                let Sum { time, units } = self.answered[last];
                let refilled = i128::from(denied.from - time) * i128::from(self.limit.amount());
                ((self.owed[last] - refilled).max(0), units)
            }
        };
        let meanwhile = up_to(&self.sent, denied.to) - done;
        let wanted = i128::from(meanwhile) + i128::from(denied.units);
        owed + wanted * period <= i128::from(self.limit.capacity()) * period
    }

    fn fits_log(&self, denied: &Interval) -> bool {
        let gone = match denied.from.checked_sub(self.period) {
            Some(time) => up_to(&self.answered, time),
            None => 0,
        };
        let used = up_to(&self.sent, denied.to) - gone;
        used + denied.units <= self.limit.amount()
    }

    /// Checks every window in which the request may have been decided.
    fn fits_windows(&self, denied: &Interval) -> bool {
        let (first, last) = (denied.from / self.period, denied.to / self.period);
        last - first < MAX_WINDOWS && (first..=last).all(|window| self.fits_in(window, denied))
    }

    fn fits_in(&self, window: u64, denied: &Interval) -> bool {
        let start = window * self.period;
        let before = |time: u64| time.checked_sub(1).map_or(0, |last| up_to(&self.answered, last));
        let end = denied.to.min(start + self.period - 1);
        let current = up_to(&self.sent, end) - before(start);
        let current = i128::from(current) + i128::from(denied.units);
        let (whole, amount) = (i128::from(self.period), i128::from(self.limit.amount()));
        if self.limit.algorithm() == Algorithm::FixedWindow {
            return current <= amount;
        }
        // Requests that may also belong to this window count here, where they weigh most.
        let previous = before(start) - before(start.saturating_sub(self.period));
        let left = whole - i128::from(denied.from.max(start) - start);
        i128::from(previous) * left + current * whole <= amount * whole
    }
}

/// Returns the debt of a token bucket after each sum, with the refill in between.
fn owed(limit: &Limit, sums: &[Sum]) -> Vec<i128> {
    let period = limit.period().as_micros() as i128;
    let (mut owed, mut last) = (0, Sum { time: 0, units: 0 });
    let mut after = Vec::with_capacity(sums.len());
    for &sum in sums {
        let refilled = i128::from(sum.time - last.time) * i128::from(limit.amount());
        owed = (owed - refilled).max(0) + i128::from(sum.units - last.units) * period;
        after.push(owed);
        last = sum;
    }
    after
}

fn sums(charged: impl Iterator<Item = (u64, u64)>) -> Vec<Sum> {
    let mut sums: Vec<Sum> = charged.map(|(time, units)| Sum { time, units }).collect();
    sums.sort_unstable_by_key(|sum| sum.time);
    let mut total = 0;
    for sum in &mut sums {
        total += sum.units;
        sum.units = total;
    }
    sums
}

/// Returns the sum of all units up to and including `time`.
fn up_to(sums: &[Sum], time: u64) -> u64 {
    let place = sums.partition_point(|sum| sum.time <= time);
    place.checked_sub(1).map_or(0, |last| sums[last].units)
}
