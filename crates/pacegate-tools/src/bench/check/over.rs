//! Finds units that are certainly over-admitted. Each rule processes the requests in order of their latest
//! possible decision time. Units of a request that do not fit together with those kept so far are
//! over-admitted; the rest is kept.

use std::{cmp::Reverse, collections::BinaryHeap};

use pacegate::{Algorithm, Limit};

use super::{Interval, Requests, Rule, Windows};

/// Counts the units that the limit cannot have admitted.
pub(super) fn over_admitted(rule: &Rule, requests: &Requests) -> u64 {
    let (limit, allowed) = (&rule.limit, &requests.allowed[..]);
    match (limit.algorithm(), rule.windows) {
        (Algorithm::TokenBucket, _) => token_bucket(limit, allowed),
        (Algorithm::SlidingLog, _) => sliding_log(limit, allowed),
        (Algorithm::SlidingWindow, _) => sliding_window(limit, allowed),
        (Algorithm::FixedWindow, Windows::Aligned) => aligned(limit, allowed),
        (Algorithm::FixedWindow, Windows::Anchored) => anchored(limit, requests),
        // Concurrency limits: requests and responses do not show how many permits were held at a time.
        _ => 0,
    }
}

/// Token bucket: for every interval `[a, b]`, the units decided within it are at most the burst plus the
/// refill.
fn token_bucket(limit: &Limit, allowed: &[Interval]) -> u64 {
    let (amount, period) = (i128::from(limit.amount()), period(limit));
    let capacity = i128::from(limit.capacity()) * period;
    let mut starts: Vec<u64> = allowed.iter().map(|span| span.from).collect();
    starts.sort_unstable();
    starts.dedup();
    let Some(&first) = starts.first() else { return 0 };
    let since = |time: u64| i128::from(time - first);
    let mut kept = Kept::new(starts.iter().map(|&start| amount * since(start)));
    let mut over = 0;
    for span in allowed {
        let place = starts.partition_point(|&start| start < span.from);
        let units = i128::from(span.units) * period;
        let excess = kept.most(place) + units - capacity - amount * since(span.to);
        let too_many = ceil_div(excess.max(0), period).min(span.units);
        over += too_many;
        kept.add(place, i128::from(span.units - too_many) * period);
    }
    over
}

/// For every start `a`: its weight plus the units kept from `a` on. Finds the maximum over all starts up to a
/// given one in logarithmic time.
#[derive(Debug)]
struct Kept {
    /// A complete binary tree: the children of node `n` are `2n` and `2n + 1`.
    nodes: Vec<Node>,
    leaves: usize,
}

#[derive(Clone, Copy, Debug)]
struct Node {
    sum: i128,
    most: i128,
}

impl Kept {
    fn new(weights: impl ExactSizeIterator<Item = i128>) -> Self {
        let leaves = weights.len().next_power_of_two();
        let mut nodes = vec![Node { sum: 0, most: i128::MIN / 2 }; 2 * leaves];
        for (place, weight) in weights.enumerate() {
            nodes[leaves + place].most = weight;
        }
        let mut kept = Self { nodes, leaves };
        for node in (1..leaves).rev() {
            kept.gather(node);
        }
        kept
    }

    fn gather(&mut self, node: usize) {
        let (left, right) = (self.nodes[2 * node], self.nodes[2 * node + 1]);
        self.nodes[node] =
            Node { sum: left.sum + right.sum, most: right.most.max(left.most + right.sum) };
    }

    fn add(&mut self, place: usize, units: i128) {
        let mut node = self.leaves + place;
        self.nodes[node].sum += units;
        self.nodes[node].most += units;
        while node > 1 {
            node /= 2;
            self.gather(node);
        }
    }

    /// Returns the maximum over all starts up to `place`.
    fn most(&self, place: usize) -> i128 {
        let mut node = self.leaves + place;
        let mut most = self.nodes[node].most;
        let mut after = 0;
        // On the way up, right siblings contribute their sum and left siblings their maximum.
        let mut sum = self.nodes[node].sum;
        while node > 1 {
            let sibling = self.nodes[node ^ 1];
            match node.is_multiple_of(2) {
                true => after += sibling.sum,
                false => {
                    most = most.max(sibling.most + sum);
                    sum += sibling.sum;
                }
            }
            node /= 2;
        }
        most + after
    }
}

/// Sliding log: the units decided within less than one period are at most the amount.
fn sliding_log(limit: &Limit, allowed: &[Interval]) -> u64 {
    let mut recent = Recent::new(micros(limit), limit.amount());
    allowed.iter().map(|span| span.units - recent.keep(span)).sum()
}

/// The spans kept from the last period.
#[derive(Debug)]
struct Recent {
    period: u64,
    most: u64,
    sum: u64,
    /// Sorted by start, the earliest first.
    spans: BinaryHeap<Reverse<(u64, u64)>>,
}

impl Recent {
    fn new(period: u64, most: u64) -> Self {
        Self { period, most, sum: 0, spans: BinaryHeap::new() }
    }

    /// Returns how many units of the span may still fit.
    fn room(&mut self, span: &Interval) -> u64 {
        while let Some(&Reverse((from, units))) = self.spans.peek()
            && from + self.period <= span.to
        {
            self.sum -= units;
            self.spans.pop();
        }
        match span.from + self.period <= span.to {
            // It may have been decided at any time in more than one period, so nothing is certain.
            true => span.units,
            false => span.units.min(self.most - self.sum.min(self.most)),
        }
    }

    fn keep(&mut self, span: &Interval) -> u64 {
        let units = self.room(span);
        self.put(span, units);
        units
    }

    fn put(&mut self, span: &Interval, units: u64) {
        if span.from + self.period > span.to {
            self.sum += units;
            self.spans.push(Reverse((span.from, units)));
        }
    }
}

/// Sliding window: the weighted sum of the units that are certainly in the previous and in the current window
/// is at most the amount.
fn sliding_window(limit: &Limit, allowed: &[Interval]) -> u64 {
    let (amount, whole, length) = (i128::from(limit.amount()), period(limit), micros(limit));
    let (mut window, mut before, mut now, mut over) = (0, 0_i128, 0_i128, 0);
    for span in allowed {
        let own = span.to / length;
        if span.from / length != own {
            continue;
        }
        if own != window {
            before = if own == window + 1 { now } else { 0 };
            (window, now) = (own, 0);
        }
        let left = whole - i128::from(span.to % length);
        let excess = before * left + (now + i128::from(span.units)) * whole - amount * whole;
        let too_many = ceil_div(excess.max(0), whole).min(span.units);
        over += too_many;
        now += i128::from(span.units - too_many);
    }
    over
}

/// Aligned fixed window: distributes each window's amount, earliest deadline first.
fn aligned(limit: &Limit, allowed: &[Interval]) -> u64 {
    let (length, amount) = (micros(limit), limit.amount());
    let mut coming: Vec<(u64, u64, u64)> =
        allowed.iter().map(|span| (span.from / length, span.to / length, span.units)).collect();
    coming.sort_unstable();
    let mut coming = coming.into_iter().peekable();
    let mut waiting: BinaryHeap<Reverse<(u64, u64)>> = BinaryHeap::new();
    let (mut window, mut over) = (0, 0);
    loop {
        if waiting.is_empty() {
            match coming.peek() {
                Some(&(first, _, _)) => window = first,
                None => return over,
            }
        }
        while let Some((_, last, units)) = coming.next_if(|&(first, _, _)| first <= window) {
            waiting.push(Reverse((last, units)));
        }
        over += serve(&mut waiting, window, amount);
        window += 1;
    }
}

/// Distributes one window's amount. Returns the units that had to be decided by the end of the window and got
/// nothing.
fn serve(waiting: &mut BinaryHeap<Reverse<(u64, u64)>>, window: u64, amount: u64) -> u64 {
    let (mut left, mut over) = (amount, 0);
    while let Some(Reverse((last, units))) = waiting.pop() {
        let given = units.min(left);
        left -= given;
        if last <= window {
            over += units - given;
        } else if given < units {
            waiting.push(Reverse((last, units - given)));
            break;
        }
    }
    over
}

/// Anchored fixed window: the first window begins with the first request, and windows start at least one
/// period apart, so less than one period contains at most one edge. After a pause of one period, the next
/// request starts a first window again. A request that is missing or whose outcome is unknown may have been
/// the one that started the window.
fn anchored(limit: &Limit, requests: &Requests) -> u64 {
    let (length, amount, allowed) = (micros(limit), limit.amount(), &requests.allowed);
    let all_known = requests.whole && requests.charged.len() == allowed.len();
    let mut recent = Recent::new(length, amount.saturating_mul(2));
    let earliest = earliest_from_here(allowed);
    let (mut over, mut latest, mut start, mut in_first) = (0, None::<u64>, 0, 0_u64);
    for (span, &from) in allowed.iter().zip(&earliest) {
        if latest.is_none_or(|latest| latest.saturating_add(length) <= from) {
            (start, in_first) = (from, 0);
        }
        latest = Some(span.to);
        let room = recent.room(span);
        let first = all_known && span.to < start + length;
        let fits = if first { room.min(amount - in_first.min(amount)) } else { room };
        in_first += if first { fits } else { 0 };
        recent.put(span, fits);
        over += span.units - fits;
    }
    over
}

/// Returns for every request the earliest send time among it and all later ones.
fn earliest_from_here(spans: &[Interval]) -> Vec<u64> {
    let mut earliest: Vec<u64> = spans.iter().map(|span| span.from).collect();
    for place in (1..earliest.len()).rev() {
        earliest[place - 1] = earliest[place - 1].min(earliest[place]);
    }
    earliest
}

fn micros(limit: &Limit) -> u64 {
    limit.period().as_micros() as u64
}

fn period(limit: &Limit) -> i128 {
    i128::from(micros(limit))
}

/// Divides and rounds up. `amount` must not be negative.
fn ceil_div(amount: i128, by: i128) -> u64 {
    u64::try_from((amount + by - 1) / by).unwrap_or(u64::MAX)
}
