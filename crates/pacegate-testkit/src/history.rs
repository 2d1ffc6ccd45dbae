use std::time::Duration;

use pacegate::{Algorithm, Excess, Limit, Timestamp, policy::Unsettled};

use crate::{Model, Random, ReservedUnits, model::Answer};

/// A random history of one key: a limit and a sequence of operations.
#[derive(Clone, Debug)]
pub struct History {
    /// The seed that generates it.
    pub seed: u64,
    /// The initial limit.
    pub limit: Limit,
    /// The start time.
    pub start: Timestamp,
    /// The operations, in order.
    pub ops: Vec<Op>,
    /// The treatment of reservations that are not settled. Default: their units are kept.
    pub unsettled: Unsettled,
}

/// One operation on a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Op {
    /// Lets this many microseconds pass.
    Pass(u64),
    /// Charges units, with this permit (0 without permits).
    Charge(u64, u64),
    /// Charges as many units as there are, up to this number.
    UpTo(u64),
    /// Charges units, and records them even if they do not fit.
    Record(u64, Excess),
    /// Refunds units.
    Refund(u64),
    /// Resets the key.
    Reset,
    /// Changes the amount or the burst.
    SetLimit(Limit),
    /// Reserves units for this many microseconds.
    Reserve(u64, u64),
    /// Settles the reservation with this number, counted from 0, at this number of units.
    Settle(u64, u64),
    /// Releases a permit.
    Release(u64),
    /// Renews a permit.
    Renew(u64),
}

impl History {
    /// Generates the history of a seed. Periods are short and amounts are small, so that edge cases are
    /// frequent.
    pub fn random(seed: u64, algorithm: Algorithm) -> Self {
        let random = &mut Random::new(seed);
        let limit = random_limit(random, algorithm);
        Self::of(limit, seed, random)
    }

    /// Generates the history of a seed under a limit with a calendar period.
    pub fn random_calendar(seed: u64) -> Self {
        let random = &mut Random::new(seed);
        let amount = random.pick(&[1, 2, 3, 5, 7, 100]);
        let period = random.pick(&CALENDARS);
        let limit = format!("{amount}/{period}").parse().expect("valid limit");
        Self::of(limit, seed, random)
    }

    fn of(limit: Limit, seed: u64, random: &mut Random) -> Self {
        let period = limit.period().as_micros() as u64;
        let last = match limit.calendar() {
            Some(_) => 4_000_000_000_000_000,
            None => 9_000_000_000_000_000 - 8_000_000_000_000,
        };
        let start = random.pick(&[0, 946_684_800_000_000, 1_767_225_600_000_000, last]);
        let start = start + random.below(2 * period);
        let length = random.between(20, 60);
        let mut now = start;
        let (mut held, mut reserved) = (1, Vec::new());
        // In some histories, many reservations are open at the same time.
        let one_in = random.pick(&[6, 6, 2]);
        let ops = (0..length)
            .map(|_| {
                let op = match random.below(one_in) {
                    0 if limit.algorithm() != Algorithm::Concurrency => {
                        random_reservation(random, &limit, now, &mut reserved)
                    }
                    _ => random_op(random, &limit, now, &mut held),
                };
                if let Op::Pass(micros) = op {
                    now += micros;
                }
                op
            })
            .collect();
        let (start, unsettled) = (Timestamp::from_micros(start), Unsettled::Keep);
        Self { seed, limit, start, ops, unsettled }
    }

    /// Returns the model's result of every charge and reservation, in order. That of a settlement is admitted if the
    /// reservation was open, and has no other field.
    pub fn answers(&self) -> Vec<Answer> {
        let (mut model, mut now) = (Model::new(self.limit), self.start.as_micros());
        let (mut answers, mut reservations) = (Vec::new(), Vec::new());
        for op in &self.ops {
            let is_call = !matches!(op, Op::Pass(_) | Op::SetLimit(_));
            if is_call && self.unsettled == Unsettled::Return {
                return_due(&mut model, now, &mut reservations);
            }
            match *op {
                Op::Pass(micros) => now += micros,
                Op::Charge(cost, permit) => {
                    // The limit may have been lowered below the cost since the cost was drawn.
                    let cost = cost.min(model.limit().capacity());
                    answers.push(model.charge(now, cost, permit));
                }
                Op::UpTo(most) => {
                    answers.push(model.charge_up_to(now, most.min(model.limit().capacity())));
                }
                Op::Record(cost, excess) => answers.push(model.record(now, cost, excess)),
                Op::Reserve(estimate, ttl) => {
                    let estimate = estimate.min(model.limit().capacity());
                    let (answer, reserved) = model.reserve(now, estimate);
                    answers.push(answer);
                    reservations.push(reserved.map(|reserved| (reserved, now + ttl)));
                }
                Op::Settle(number, actual) => {
                    let reserved = reservations.get_mut(number as usize).and_then(Option::take);
                    let open = reserved.filter(|(_, expires)| now < *expires);
                    if let Some((reserved, _)) = open {
                        model.settle(now, &reserved, actual, model.limit().capacity());
                    }
                    answers.push(Answer { admitted: open.is_some(), ..Answer::default() });
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
        answers
    }
}

/// Returns the units of all reservations that are due, in the order in which they expired.
fn return_due(model: &mut Model, now: u64, reservations: &mut [Option<(ReservedUnits, u64)>]) {
    let is_due = |it: &Option<(ReservedUnits, u64)>| it.is_some_and(|(_, expires)| expires <= now);
    let mut due: Vec<_> =
        reservations.iter_mut().filter(|it| is_due(it)).map(Option::take).collect();
    due.sort_by_key(|it| it.map(|(_, expires)| expires));
    for (reserved, _) in due.into_iter().flatten() {
        model.settle(now, &reserved, 0, 0);
    }
}

/// Maximum time in microseconds for which a reservation is open: a year, much longer than limiters allow.
const MAX_TTL: u64 = 1 << 45;

/// Calendar periods of the random histories.
const CALENDARS: [&str; 10] = [
    "month",
    "year",
    "week starting sunday",
    "month anchor 31",
    "day in Europe/Berlin",
    "day in Asia/Tehran",
    "day in America/St_Johns",
    "week starting monday in Australia/Lord_Howe",
    "month anchor 30 in America/New_York",
    "year in Pacific/Apia",
];

fn random_limit(random: &mut Random, algorithm: Algorithm) -> Limit {
    let micros =
        random.pick(&[1, 3, 500, 1_000, 1_001, 7_000, 250_000, 333_334, 1_000_000, 60_000_000]);
    let amount = random.pick(&[1, 2, 3, 5, 7, 10, 59, 100, 997]);
    let limit = Limit::new(amount, Duration::from_micros(micros)).expect("valid limit");
    let limit = limit.with_algorithm(algorithm).expect("valid limit");
    if algorithm == Algorithm::TokenBucket && random.one_in(2) {
        let burst = random.pick(&[1, 2, amount, 3 * amount, amount + 1]);
        return limit.with_burst(burst).expect("valid burst");
    }
    limit
}

fn random_op(random: &mut Random, limit: &Limit, now: u64, held: &mut u64) -> Op {
    let concurrency = limit.algorithm() == Algorithm::Concurrency;
    match random.below(40) {
        0..16 => Op::Pass(random_wait(random, limit, now)),
        16..19 if !concurrency => {
            let cost = random_cost(random, 3 * limit.capacity());
            let max = random.pick(&[0, 1, limit.capacity(), 5 * limit.capacity()]);
            Op::Record(cost, random.pick(&[Excess::Count, Excess::Debt { max }]))
        }
        16..33 => {
            let cost = random_cost(random, limit.capacity());
            *held += u64::from(concurrency);
            // Sometimes without a permit: such a charge can be refunded, but not released.
            let permit = if concurrency && !random.one_in(8) { *held } else { 0 };
            Op::Charge(cost, permit)
        }
        33..35 => Op::Refund(random_cost(random, 2 * limit.capacity())),
        35 => Op::Reset,
        36 => Op::SetLimit(changed(random, limit)),
        37..39 if !concurrency => Op::UpTo(random_cost(random, limit.capacity()).max(1)),
        _ if concurrency && random.one_in(2) => Op::Release(random.between(1, *held)),
        _ if concurrency => Op::Renew(random.between(1, *held)),
        _ => Op::Charge(1, 0),
    }
}

/// Draws a reservation, or the settlement of an earlier one, which may have been settled before. `reserved` has the
/// instants at which the earlier ones expire.
fn random_reservation(random: &mut Random, limit: &Limit, now: u64, reserved: &mut Vec<u64>) -> Op {
    let cost = random_cost(random, limit.capacity());
    let count = reserved.len() as u64;
    if count > 0 && random.one_in(2) {
        // Mostly a recent one.
        let from = if random.one_in(4) { 0 } else { count.saturating_sub(3) };
        let actual = random.pick(&[0, 0, cost, cost, cost + limit.capacity()]);
        return Op::Settle(random.between(from, count - 1), actual);
    }
    let period = limit.period().as_micros() as u64;
    let ttl = random.pick(&[1, period, 3 * period, 100 * period, 100 * period]);
    // The order of returns at one instant is not specified.
    let mut expires = now + ttl.min(MAX_TTL);
    while reserved.contains(&expires) {
        expires += 1;
    }
    reserved.push(expires);
    Op::Reserve(cost, expires - now)
}

/// Returns a limit with the same algorithm and period but another amount, and another burst if it had one. A
/// token bucket is never slowed down: its debt may then be forgotten at the time when it would have been paid
/// at the old rate, or somewhat later, depending on the store.
fn changed(random: &mut Random, limit: &Limit) -> Limit {
    let slowest = if limit.algorithm() == Algorithm::TokenBucket { limit.amount() } else { 1 };
    let amount = random.between(slowest, 2 * limit.amount());
    let other = limit.with_amount(amount).expect("valid limit");
    match limit.burst() {
        Some(burst) => other.with_burst(random.between(1, 2 * burst)).expect("valid burst"),
        None => other,
    }
}

fn random_cost(random: &mut Random, most: u64) -> u64 {
    match random.below(8) {
        0 => 0,
        1 => most,
        2..4 => random.between(1, most.max(1)),
        _ => random.between(1, most.clamp(1, 3)),
    }
}

/// Draws a wait that is often close to the end of a window or to a refill, where errors are likely.
fn random_wait(random: &mut Random, limit: &Limit, now: u64) -> u64 {
    let period = limit.period().as_micros() as u64;
    let window = limit.window_at(Timestamp::from_micros(now));
    let to_end = window.map_or(period - now % period, |window| window.end().as_micros() - now);
    let token = (period / limit.amount()).max(1);
    match random.below(10) {
        0 => 0,
        1 => 1,
        2 => to_end,
        3 => to_end - 1,
        4 => to_end + 1,
        5 => token + random.below(3) - 1,
        6 => random.below(3 * period),
        7 => period + random.below(3) - 1,
        _ => random.below(token + 1),
    }
}
