//! A seeded random number generator.

/// SplitMix64.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// Returns a generator with a different sequence.
    pub(crate) fn other(&self, which: u64) -> Self {
        let mut seed = Self(self.0 ^ which);
        Self(seed.number())
    }

    pub(crate) fn number(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number below `bound`.
    #[inline]
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        let wide = u128::from(self.number()) * u128::from(bound);
        u64::try_from(wide >> 64).unwrap_or_default()
    }

    /// Returns a number below `bound`, with a preference for small ones: some clients send far more requests
    /// than others.
    pub(crate) fn skewed(&mut self, bound: u64) -> u64 {
        let once = self.below(bound);
        let twice = self.below(once + 1);
        self.below(twice + 1)
    }

    /// Draws the time between two random requests with this mean: a rough approximation of an exponential
    /// distribution.
    pub(crate) fn gap(&mut self, mean: u64) -> u64 {
        let most = mean.saturating_mul(2).max(1);
        let even = self.below(most + 1);
        // Half of the gaps are short, so that requests cluster.
        if self.number() & 1 == 0 { even / 2 } else { even.saturating_add(even / 2) }
    }
}
