//! The requested keys: strings of 20 bytes, the same for all subjects.

/// A small random number generator with a fixed seed (xorshift64*): every run has the same keys.
pub struct Random(u64);

impl Random {
    pub fn new(seed: u64) -> Self {
        Self(seed | 1)
    }

    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }
}

/// Returns the name of the n-th key.
pub fn key(n: u64) -> String {
    format!("user:{n:015}")
}

/// The key distribution.
pub enum Keys {
    One,
    Uniform(u64),
    Zipf(Zipf),
}

impl Keys {
    pub fn draw(&self, random: &mut Random) -> u64 {
        match self {
            Self::One => 7,
            Self::Uniform(count) => random.below(*count),
            Self::Zipf(zipf) => zipf.draw(random),
        }
    }

    pub fn count(&self) -> u64 {
        match self {
            Self::One => 8,
            Self::Uniform(count) => *count,
            Self::Zipf(zipf) => zipf.cumulative.len() as u64,
        }
    }
}

/// The n-th most frequent key has a weight of n^-0.99; ranks are assigned to keys at random.
pub struct Zipf {
    cumulative: Vec<f64>,
    key_of_rank: Vec<u32>,
}

impl Zipf {
    pub fn new(keys: usize) -> Self {
        let mut total = 0.0;
        let cumulative = (1..=keys)
            .map(|rank| {
                total += (rank as f64).powf(-0.99);
                total
            })
            .collect();
        let mut key_of_rank: Vec<u32> = (0..keys as u32).collect();
        let mut random = Random::new(99);
        for last in (1..keys).rev() {
            key_of_rank.swap(last, random.below(last as u64 + 1) as usize);
        }
        Self { cumulative, key_of_rank }
    }

    fn draw(&self, random: &mut Random) -> u64 {
        let total = self.cumulative[self.cumulative.len() - 1];
        let point = (random.next() >> 11) as f64 / (1_u64 << 53) as f64 * total;
        let rank = self.cumulative.partition_point(|sum| *sum < point);
        u64::from(self.key_of_rank[rank.min(self.key_of_rank.len() - 1)])
    }
}
