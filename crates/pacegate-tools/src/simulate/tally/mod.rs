//! Counts outcomes per policy, per key and over time.

mod distinct;
mod keys;
mod timeline;
pub(crate) mod window;

use std::time::Duration;

use pacegate::{Algorithm, KeyRef, Limit, Policy, Timestamp, algorithm::State};

pub(crate) use self::{
    keys::{Event, KeyCounts, KeyTallies, KeyTally, KeyText, OutcomeCounts, shown},
    timeline::{Columns, Timeline},
};

/// The outcomes of requests under one policy.
#[derive(Debug)]
pub struct PolicyTally {
    pub counts: OutcomeCounts,
    pub keys: KeyTallies,
    pub timeline: Timeline,
    pub bursts: Bursts,
    /// The limit that the timeline refers to: the first limit for requests without an override.
    plain: Option<Limit>,
    text: Vec<u8>,
}

/// Bursts: more than the amount admitted within one period, across the boundary of two fixed windows.
#[derive(Debug, Default)]
pub struct Bursts {
    /// Each key and boundary counts once.
    pub count: u64,
    /// The largest bursts.
    pub worst: Vec<Burst>,
}

/// One burst, at its maximum.
#[derive(Clone, Debug)]
pub struct Burst {
    pub at: u64,
    pub key: Vec<u8>,
    pub admitted: u64,
    pub amount: u64,
    /// Number of the window that it ends in.
    window: u64,
}

/// Maximum number of bursts to list.
const MAX_BURSTS: usize = 50;

impl PolicyTally {
    pub fn new(policy: &Policy, most_keys: usize) -> Self {
        Self {
            counts: OutcomeCounts::default(),
            keys: KeyTallies::new(
                most_keys,
                policy.limits.iter().map(rest).max().unwrap_or_default(),
            ),
            timeline: Timeline::default(),
            bursts: Bursts::default(),
            plain: policy.limits.first().copied(),
            text: Vec::new(),
        }
    }

    /// Decides a request for `key` under `limit`, with `decide` and the state kept here, and counts the
    /// outcome.
    pub fn count(
        &mut self,
        key: KeyRef<'_>,
        at: u64,
        limit: &Limit,
        decide: impl FnOnce(&mut State) -> Event,
    ) {
        let period = micros(limit.period());
        keys::encode(key, &mut self.text);
        let plain = self.plain == Some(*limit);
        let (event, sums) = self.keys.count(&self.text, at, (period, plain), decide);
        let bin = self.timeline.at(at);
        self.counts.add(event);
        bin.counts.add(event);
        if plain {
            bin.asked = bin.asked.max(sums.asked.into());
            bin.admitted = bin.admitted.max(sums.admitted.into());
        }
        let admitted = u64::from(sums.admitted);
        // Overrides have a different amount, so they do not count as bursts of the base limit.
        if plain
            && event == Event::Allowed
            && admitted > limit.amount()
            && limit.algorithm() == Algorithm::FixedWindow
        {
            let window = limit.window_at(Timestamp::from_micros(at)).map_or(0, |it| it.number());
            let amount = limit.amount();
            self.bursts.count += u64::from(self.keys.is_new_burst(&self.text, window));
            self.bursts.note(Burst { at, key: self.text.clone(), admitted, amount, window });
        }
    }
}

/// Returns how long the usage of a limit can matter: two windows, or until a bucket is full again.
fn rest(limit: &Limit) -> u64 {
    let full = limit.capacity().div_ceil(limit.amount().max(1)).max(2);
    micros(limit.period()).saturating_mul(full)
}

fn micros(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX)
}

impl Bursts {
    fn note(&mut self, burst: Burst) {
        let same = |other: &Burst| other.window == burst.window && other.key == burst.key;
        if let Some(known) = self.worst.iter_mut().find(|other| same(other)) {
            if known.excess() < burst.excess() {
                *known = burst;
            }
        } else if self.worst.len() < MAX_BURSTS {
            self.worst.push(burst);
        } else if let Some(least) = self.worst.iter_mut().min_by_key(|other| other.excess())
            && least.excess() < burst.excess()
        {
            *least = burst;
        }
    }
}

impl Burst {
    fn excess(&self) -> u64 {
        self.admitted - self.amount
    }
}
