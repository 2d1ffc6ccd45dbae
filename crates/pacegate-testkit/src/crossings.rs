use std::collections::HashMap;

use pacegate::{Algorithm, Limit, Timestamp, policy::Threshold};

use crate::{History, Model, Op, model::Answer};

/// A threshold that a charge of a history reaches, and the instant of the charge.
pub type Crossing = (Timestamp, Threshold);

/// The shortest and the longest time of a reservation, in microseconds.
const MIN_TTL: u64 = 1_000;
const MAX_TTL: u64 = 7 * 24 * 3_600_000_000;

/// The crossings of a key so far, for [`History::crossings`].
struct Crossings<'a> {
    thresholds: &'a [Threshold],
    is_shared: bool,
    /// For each threshold, the start of the last fixed window that was reported, or the end of the last report.
    last: HashMap<Threshold, u64>,
    found: Vec<Crossing>,
}

impl History {
    /// Returns the thresholds that charges of the history reach, by the model: each once per fixed window, or once per
    /// period in other algorithms. Reservations have the estimates and times of limiters, which bound them.
    /// `is_shared`: other processes may have charged the key, so the first charge that finds a fixed window at or above
    /// a threshold reports it.
    pub fn crossings(&self, thresholds: &[Threshold], is_shared: bool) -> Vec<Crossing> {
        let (mut model, mut now) = (Model::new(self.limit), self.start.as_micros());
        let mut crossings =
            Crossings { thresholds, is_shared, last: HashMap::new(), found: Vec::new() };
        let mut reservations = Vec::new();
        for op in &self.ops {
            let before = model.charge(now, 0, 0).remaining;
            match *op {
                Op::Pass(micros) => now += micros,
                Op::Reserve(estimate, ttl) => {
                    let estimate = estimate.min(model.limit().capacity()).max(1);
                    let (answer, reserved) = model.reserve(now, estimate);
                    crossings.add(model.limit(), now, estimate, (before, answer), false);
                    let expires = now + ttl.clamp(MIN_TTL, MAX_TTL);
                    reservations.push(reserved.map(|reserved| (reserved, expires)));
                }
                Op::Settle(number, actual) => {
                    let reserved = reservations.get_mut(number as usize).and_then(Option::take);
                    let open = reserved.filter(|(_, expires)| now < *expires);
                    let max_debt = model.limit().capacity();
                    let settled = open
                        .and_then(|(reserved, _)| model.settle(now, &reserved, actual, max_debt));
                    if let Some((units, answer)) = settled {
                        crossings.add(model.limit(), now, units, (before, answer), true);
                    }
                }
                Op::Charge(cost, permit) => {
                    let cost = cost.min(model.limit().capacity());
                    let answer = model.charge(now, cost, permit);
                    crossings.add(model.limit(), now, cost, (before, answer), false);
                }
                Op::UpTo(most) => {
                    let answer = model.charge_up_to(now, most.min(model.limit().capacity()));
                    let cost = answer.granted.max(1);
                    crossings.add(model.limit(), now, cost, (before, answer), false);
                }
                Op::Record(cost, excess) => {
                    let answer = model.record(now, cost, excess);
                    let is_recorded = excess.under(&model.limit()).is_recorded();
                    crossings.add(model.limit(), now, cost, (before, answer), is_recorded);
                }
                Op::Refund(cost) => model.refund(now, cost),
                Op::Reset => model.reset(),
                Op::SetLimit(limit) => model.set_limit(limit),
                Op::Release(permit) => model.release(permit),
                Op::Renew(permit) => {
                    model.renew(now, permit);
                }
            }
        }
        crossings.found
    }
}

impl Crossings<'_> {
    /// Adds the crossings of one charge, with the units that remained before it and its answer.
    fn add(
        &mut self,
        limit: Limit,
        now: u64,
        cost: u64,
        (free_before, answer): (u64, Answer),
        is_recorded: bool,
    ) {
        let is_fixed = limit.algorithm() == Algorithm::FixedWindow;
        let (capacity, period) = (limit.capacity(), limit.period().as_micros() as u64);
        for &threshold in self.thresholds {
            let units = threshold.units(&limit);
            let is_reached = match answer.admitted {
                _ if cost == 0 || answer.retry_after.is_none() => false,
                true => {
                    let was_reached = capacity - free_before >= units;
                    let is_new = !was_reached || self.is_shared && is_fixed;
                    is_new && capacity - answer.remaining >= units
                }
                false => is_recorded || units == capacity,
            };
            let last = self.last.get(&threshold).copied();
            let window = if is_fixed { now - now % period } else { now + period };
            let is_known = match is_fixed {
                true => last == Some(window),
                false => last.is_some_and(|until| until > now),
            };
            if is_reached && !is_known {
                self.last.insert(threshold, window);
                self.found.push((Timestamp::from_micros(now), threshold));
            }
        }
    }
}
