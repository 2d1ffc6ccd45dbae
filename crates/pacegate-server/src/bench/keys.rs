//! Whose budgets are charged, and how much: drawn at random, the same for the same seed.

use std::{str::FromStr, sync::Arc};

/// Which keys are asked about.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Keys {
    /// One key.
    Hot,
    /// So many, all as often.
    Uniform(u32),
    /// So many, the k-th as often as 1 / k^s.
    Zipf(u32, f64),
}

/// Costs and how often each comes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Costs {
    pub(crate) shares: Vec<Share>,
}

/// One cost of a mix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Share {
    pub(crate) cost: u32,
    weight: u32,
}

/// The next key, and the place of the next cost.
#[derive(Clone, Debug)]
pub(crate) struct Draw {
    random: Random,
    keys: Source,
    /// Drawn from without thinking; empty if there is but one cost.
    costs: Arc<[u8]>,
}

#[derive(Clone, Debug)]
enum Source {
    One,
    Any(u32),
    /// Drawn beforehand.
    Prepared(Arc<[u32]>),
}

/// xorshift64*: cheap, and random enough to choose keys by.
#[derive(Clone, Debug)]
struct Random(u64);

/// The most keys.
const MOST_KEYS: u32 = 100_000_000;
/// The most keys of a distribution that is not even.
const MOST_ZIPF: u32 = 10_000_000;
/// How many keys are drawn beforehand.
const PREPARED: usize = 1 << 20;
/// How many costs are drawn beforehand.
const COSTS: usize = 1 << 12;
/// The most costs of a mix.
const MOST_COSTS: usize = 16;

impl FromStr for Keys {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || "write hot, uniform:100000 or zipf:100000,0.99".to_owned();
        let count = |text: &str, most: u32| match text.parse() {
            Ok(count) if (1..=most).contains(&count) => Ok(count),
            Ok(_) => Err(format!("from 1 to {most} keys")),
            Err(_) => Err(wrong()),
        };
        match text.split_once(':') {
            None if text == "hot" => Ok(Self::Hot),
            Some(("uniform", keys)) => Ok(Self::Uniform(count(keys, MOST_KEYS)?)),
            Some(("zipf", rest)) => {
                let (keys, exponent) = rest.split_once(',').unwrap_or((rest, "1"));
                let exponent: f64 = exponent.parse().map_err(|_| wrong())?;
                match (0.0..=10.0).contains(&exponent) {
                    true => Ok(Self::Zipf(count(keys, MOST_ZIPF)?, exponent)),
                    false => Err("an exponent from 0 to 10".to_owned()),
                }
            }
            _ => Err(wrong()),
        }
    }
}

impl FromStr for Costs {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let share = |part: &str| {
            let (cost, weight) = part.split_once(':').unwrap_or((part, "1"));
            let share = Share { cost: cost.parse().ok()?, weight: weight.parse().ok()? };
            (share.cost > 0 && (1..=1_000_000).contains(&share.weight)).then_some(share)
        };
        let shares: Option<Vec<_>> = text.split(',').map(share).collect();
        match shares {
            Some(shares) if shares.len() <= MOST_COSTS => Ok(Self { shares }),
            _ => Err("write a cost such as 1, or costs with weights such as 1:90,10:10".to_owned()),
        }
    }
}

impl Costs {
    /// The largest.
    pub(crate) fn most(&self) -> u32 {
        self.shares.iter().map(|share| share.cost).max().unwrap_or(1)
    }
}

impl Draw {
    pub(crate) fn new(keys: Keys, costs: &Costs, seed: u64) -> Self {
        let mut random = Random::new(seed);
        let keys = match keys {
            Keys::Hot => Source::One,
            Keys::Uniform(count) => Source::Any(count),
            Keys::Zipf(count, exponent) => {
                Source::Prepared(prepared(&zipf(count, exponent), &mut random))
            }
        };
        let costs = match costs.shares.len() {
            0 | 1 => Arc::default(),
            _ => (0..COSTS).map(|_| random.share(&costs.shares)).collect(),
        };
        Self { random, keys, costs }
    }

    /// The same for another thread, which draws others.
    pub(crate) fn other(&self, which: u64) -> Self {
        let random = Random::new(self.random.0 ^ (which + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15));
        Self { random, ..self.clone() }
    }

    #[inline]
    pub(crate) fn next(&mut self) -> (u32, usize) {
        let key = match &self.keys {
            Source::One => 0,
            Source::Any(count) => self.random.below(*count),
            Source::Prepared(keys) => keys[self.random.below(PREPARED as u32) as usize],
        };
        let cost = match self.costs.is_empty() {
            true => 0,
            false => usize::from(self.costs[self.random.below(COSTS as u32) as usize]),
        };
        (key, cost)
    }
}

impl Random {
    fn new(seed: u64) -> Self {
        // A state of 0 would stay 0.
        let mut random = Self(seed.wrapping_mul(0xd129_0d3d_6a5b_71c9) | 1);
        random.next();
        random
    }

    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    fn below(&mut self, bound: u32) -> u32 {
        (((self.next() >> 32) * u64::from(bound)) >> 32) as u32
    }

    fn share(&mut self, shares: &[Share]) -> u8 {
        let all: u32 = shares.iter().map(|share| share.weight).sum();
        let mut drawn = self.below(all);
        let place = shares.iter().position(|share| match drawn.checked_sub(share.weight) {
            Some(rest) => {
                drawn = rest;
                false
            }
            None => true,
        });
        place.unwrap_or(0) as u8
    }
}

/// Sums of weights, the last of which is all of them.
#[expect(clippy::float_arithmetic, reason = "which keys are asked about is no decision")]
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
        let drawn = (u128::from(random.next()) * u128::from(all)) >> 64;
        sums.partition_point(|&sum| u128::from(sum) <= drawn) as u32
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
    fn keys_come_as_often_as_they_should() {
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
    fn costs_come_as_often_as_they_should() {
        let mut draw = Draw::new(Keys::Hot, &"1:90,10:10".parse().unwrap(), 7);
        let tens = (0..100_000).filter(|_| draw.next().1 == 1).count();
        assert!((9_000..11_000).contains(&tens), "{tens}");
    }

    #[test]
    fn threads_draw_others_and_runs_the_same() {
        let draw = Draw::new(Keys::Uniform(1 << 30), &"1".parse().unwrap(), 7);
        let some = |mut draw: Draw| (0..8).map(|_| draw.next().0).collect::<Vec<_>>();
        assert_eq!(some(draw.other(0)), some(draw.other(0)));
        assert_ne!(some(draw.other(0)), some(draw.other(1)));
    }

    #[test]
    fn what_is_no_choice_of_keys_or_costs_is_refused() {
        for text in ["", "cold", "uniform", "uniform:0", "uniform:x", "zipf:5,x", "zipf:5,11"] {
            assert!(text.parse::<Keys>().is_err(), "{text}");
        }
        assert_eq!("zipf:5".parse(), Ok(Keys::Zipf(5, 1.0)));
        for text in ["", "0", "1:0", "x", "1:2:3", "1,,2"] {
            assert!(text.parse::<Costs>().is_err(), "{text}");
        }
        assert_eq!("3,8".parse::<Costs>().map(|costs| costs.most()), Ok(8));
    }
}
