//! Random keys and costs for requests, reproducible by seed.

use std::{str::FromStr, sync::Arc};

use crate::random::Random;

/// The key distribution.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum KeyDistribution {
    /// One key.
    Hot,
    /// N keys with equal probability.
    Uniform(u32),
    /// N keys, the k-th with a probability proportional to 1 / k^s.
    Zipf(u32, f64),
}

/// A mix of costs with weights.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Costs {
    pub(crate) shares: Vec<Share>,
}

/// One cost of a mix and its weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Share {
    pub cost: u32,
    weight: u32,
}

/// Generates keys and indexes into the list of costs.
#[derive(Clone, Debug)]
pub(crate) struct Draw {
    random: Random,
    keys: Source,
    /// A precomputed sample of cost indexes; empty if there is only one cost.
    costs: Arc<[u8]>,
}

#[derive(Clone, Debug)]
enum Source {
    One,
    Any(u32),
    /// A precomputed sample.
    Prepared(Arc<[u32]>),
}

/// Maximum number of keys.
const MAX_KEYS: u32 = 100_000_000;
/// Maximum number of keys of a Zipf distribution.
const MAX_ZIPF: u32 = 10_000_000;
/// Number of precomputed keys.
const PREPARED: usize = 1 << 20;
/// Number of precomputed costs.
const COSTS: usize = 1 << 12;
/// Maximum number of costs in a mix.
const MAX_COSTS: usize = 16;

/// A text that is not a key distribution.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[expect(missing_docs, reason = "the message of each variant documents it")]
pub enum KeysError {
    #[error("expected hot, uniform:100000 or zipf:100000,0.99")]
    Invalid,
    #[error("expected 1 to {0} keys")]
    Count(u32),
    #[error("expected an exponent from 0 to 10")]
    Exponent,
}

/// A text that is not a mix of costs.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected a cost such as 1, or weighted costs such as 1:90,10:10")]
pub struct CostsError;

impl FromStr for KeyDistribution {
    type Err = KeysError;

    fn from_str(text: &str) -> Result<Self, KeysError> {
        let count = |text: &str, most: u32| match text.parse() {
            Ok(count) if (1..=most).contains(&count) => Ok(count),
            Ok(_) => Err(KeysError::Count(most)),
            Err(_) => Err(KeysError::Invalid),
        };
        match text.split_once(':') {
            None if text == "hot" => Ok(Self::Hot),
            Some(("uniform", keys)) => Ok(Self::Uniform(count(keys, MAX_KEYS)?)),
            Some(("zipf", rest)) => {
                let (keys, exponent) = rest.split_once(',').unwrap_or((rest, "1"));
                let exponent: f64 = exponent.parse().map_err(|_| KeysError::Invalid)?;
                match (0.0..=10.0).contains(&exponent) {
                    true => Ok(Self::Zipf(count(keys, MAX_ZIPF)?, exponent)),
                    false => Err(KeysError::Exponent),
                }
            }
            _ => Err(KeysError::Invalid),
        }
    }
}

impl FromStr for Costs {
    type Err = CostsError;

    fn from_str(text: &str) -> Result<Self, CostsError> {
        let share = |part: &str| {
            let (cost, weight) = part.split_once(':').unwrap_or((part, "1"));
            let share = Share { cost: cost.parse().ok()?, weight: weight.parse().ok()? };
            (share.cost > 0 && (1..=1_000_000).contains(&share.weight)).then_some(share)
        };
        let shares: Option<Vec<_>> = text.split(',').map(share).collect();
        match shares {
            Some(shares) if shares.len() <= MAX_COSTS => Ok(Self { shares }),
            _ => Err(CostsError),
        }
    }
}

impl Costs {
    /// Returns all costs, in their order.
    pub fn all(&self) -> Vec<u32> {
        self.shares.iter().map(|share| share.cost).collect()
    }

    /// Returns the largest cost.
    pub fn most(&self) -> u32 {
        self.shares.iter().map(|share| share.cost).max().unwrap_or(1)
    }
}

impl Draw {
    pub(crate) fn new(keys: KeyDistribution, costs: &Costs, seed: u64) -> Self {
        let mut random = Random::new(seed);
        let keys = match keys {
            KeyDistribution::Hot => Source::One,
            KeyDistribution::Uniform(count) => Source::Any(count),
            KeyDistribution::Zipf(count, exponent) => {
                Source::Prepared(prepared(&zipf(count, exponent), &mut random))
            }
        };
        let costs = match costs.shares.len() {
            0 | 1 => Arc::default(),
            _ => (0..COSTS).map(|_| draw_share(&mut random, &costs.shares)).collect(),
        };
        Self { random, keys, costs }
    }

    /// Returns a generator for another thread, with a different random sequence.
    pub(crate) fn other(&self, which: u64) -> Self {
        let random = self.random.other(which + 1);
        Self { random, ..self.clone() }
    }

    #[inline]
    pub(crate) fn next(&mut self) -> (u32, usize) {
        let key = match &self.keys {
            Source::One => 0,
            Source::Any(count) => self.random.below((*count).into()) as u32,
            Source::Prepared(keys) => keys[self.random.below(PREPARED as u64) as usize],
        };
        let cost = match self.costs.is_empty() {
            true => 0,
            false => usize::from(self.costs[self.random.below(COSTS as u64) as usize]),
        };
        (key, cost)
    }
}

/// Draws the index of a share by weight.
fn draw_share(random: &mut Random, shares: &[Share]) -> u8 {
    let all: u32 = shares.iter().map(|share| share.weight).sum();
    let mut drawn = random.below(all.into());
    let place = shares.iter().position(|share| match drawn.checked_sub(share.weight.into()) {
        Some(rest) => {
            drawn = rest;
            false
        }
        None => true,
    });
    place.unwrap_or(0) as u8
}

/// Returns the cumulative weights; the last element is the total.
#[expect(
    clippy::float_arithmetic,
    reason = "only generates keys; no rate-limit decision depends on it"
)]
fn zipf(count: u32, exponent: f64) -> Vec<u64> {
    let mut sum = 0;
    let weight = |place: u32| (f64::from(place).powf(-exponent) * 1e12) as u64 + 1;
    let add = |place| {
        sum += weight(place);
        sum
    };
    (1..=count).map(add).collect()
}

fn prepared(sums: &[u64], random: &mut Random) -> Arc<[u32]> {
    let all = sums.last().copied().unwrap_or(1);
    let draw = |_| {
        let drawn = random.below(all);
        sums.partition_point(|&sum| sum <= drawn) as u32
    };
    (0..PREPARED).map(draw).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counts(keys: &str, draws: usize) -> Vec<usize> {
        let mut draw = Draw::new(keys.parse().unwrap(), &"1".parse().unwrap(), 7);
        let mut counts = vec![0; 1_000];
        (0..draws).for_each(|_| counts[draw.next().0 as usize] += 1);
        counts
    }

    #[test]
    fn keys_follow_their_distribution() {
        assert_eq!(counts("hot", 100)[0], 100);
        let uniform = counts("uniform:1000", 1_000_000);
        assert!(uniform.iter().all(|count| (850..1_150).contains(count)), "{uniform:?}");
        let zipf = counts("zipf:1000,1", 1_000_000);
        // The sum of 1/k for k up to 1000 is 7.485.
        assert!((131_000..136_000).contains(&zipf[0]), "{}", zipf[0]);
        assert!((65_000..68_500).contains(&zipf[1]), "{}", zipf[1]);
        assert!((100..170).contains(&zipf[999]), "{}", zipf[999]);
    }

    #[test]
    fn costs_follow_their_weights() {
        let mut draw = Draw::new(KeyDistribution::Hot, &"1:90,10:10".parse().unwrap(), 7);
        let tens = (0..100_000).filter(|_| draw.next().1 == 1).count();
        assert!((9_000..11_000).contains(&tens), "{tens}");
    }

    #[test]
    fn threads_differ_and_runs_repeat() {
        let draw = Draw::new(KeyDistribution::Uniform(1 << 30), &"1".parse().unwrap(), 7);
        let some = |mut draw: Draw| (0..8).map(|_| draw.next().0).collect::<Vec<_>>();
        assert_eq!(some(draw.other(0)), some(draw.other(0)));
        assert_ne!(some(draw.other(0)), some(draw.other(1)));
    }

    #[test]
    fn invalid_keys_and_costs_are_rejected() {
        for text in ["", "cold", "uniform", "uniform:0", "uniform:x", "zipf:5,x", "zipf:5,11"] {
            assert!(text.parse::<KeyDistribution>().is_err(), "{text}");
        }
        assert_eq!("zipf:5".parse(), Ok(KeyDistribution::Zipf(5, 1.0)));
        for text in ["", "0", "1:0", "x", "1:2:3", "1,,2"] {
            assert!(text.parse::<Costs>().is_err(), "{text}");
        }
        assert_eq!("3,8".parse::<Costs>().map(|costs| costs.most()), Ok(8));
    }
}
