//! Converts a [`State`] to three integers, for stores whose numbers are doubles.

use super::State;
use crate::{Limit, clock::Timestamp};

impl State {
    /// Converts the state of a key under `limit` to integers below 2^53, which a double represents exactly:
    ///
    /// | algorithm | words |
    /// |---|---|
    /// | fixed-window | start of the window, units used in it, and 1 if units beyond the amount are debt |
    /// | sliding-window | start of the window, units used in it, units used in the one before |
    /// | token-bucket | instant, whole tokens owed, and the rest of the debt in parts of `period` |
    /// | custom | instant, and the payload and lifetime in two opaque parts |
    ///
    /// Instants are microseconds since the Unix epoch. The debt of a token bucket is `words[1] × period +
    /// words[2]`, with the period in microseconds and `words[2]` less than that. An empty state is three
    /// zeros.
    pub fn to_words(self, limit: &Limit) -> [u64; 3] {
        let (first, second) = dispatch!(limit, to_words(limit, self));
        [self.at().as_micros(), first, second]
    }

    /// Reverses [`State::to_words`], for a limit with the same algorithm and period.
    ///
    /// Counts that no limit could have led to are reduced to the highest possible ones.
    pub fn from_words(limit: &Limit, words: [u64; 3]) -> Self {
        if words == [0; 3] {
            return Self::EMPTY;
        }
        let [at, first, second] = words;
        let (lifetime, payload) = dispatch!(limit, from_words(limit, first, second));
        Self::new(Timestamp::from_micros(at), lifetime, payload)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::algorithm::{
        Algorithm,
        tests::{limits, states},
    };

    /// Doubles represent integers below this exactly.
    const EXACT: u64 = 1 << 53;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(20_000))]

        /// Any state that steps and refunds lead to.
        #[test]
        fn words_are_small_and_come_back_as_the_state_they_were(
            limit in limits(),
            start in prop_oneof![0..10_000_000_u64, 0..EXACT],
            charges in prop::collection::vec((0..=4_u64, prop_oneof![0..5_000_000_u64, 0..1_u64 << 50]), 1..6),
            refund in prop::option::of(0..1_000_000_u64),
        ) {
            let (mut state, mut now) = (State::EMPTY, Timestamp::from_micros(start));
            for (share, later) in charges {
                let cost = u128::from(limit.capacity()) * u128::from(share) / 4;
                limit.step(&mut state, now, cost as u64);
                now = Timestamp::from_micros(now.as_micros() + later);
            }
            if let Some(cost) = refund {
                state = limit.refund(state, now, cost);
            }
            let words = state.to_words(&limit);
            prop_assert!(words.iter().all(|word| *word < EXACT), "{words:?}");
            prop_assert!(limit.algorithm() != Algorithm::TokenBucket || words[2] < limit.period_micros());
            let back = State::from_words(&limit, words);
            // An unused window at the epoch equals an empty state.
            prop_assert!(back == state || words == [0; 3], "{state:?} {words:?} {back:?}");
        }

        /// Any values found under a key.
        #[test]
        fn any_words_make_a_state_and_any_state_words(
            limit in limits(),
            state in states(),
            words in any::<[u64; 3]>(),
        ) {
            prop_assert!(state.to_words(&limit).iter().all(|word| *word < EXACT));
            let made = State::from_words(&limit, words);
            prop_assert!(made.to_words(&limit).iter().all(|word| *word < EXACT));
        }
    }

    #[test]
    fn a_debt_that_never_drains_is_one_that_takes_long() {
        for text in ["32/ms burst 32", "1/ms burst 1", "0/second"] {
            let limit: Limit = text.parse().unwrap();
            let limit = limit.with_algorithm(Algorithm::TokenBucket).unwrap();
            let words = [0, 575_039_280_802_791_024, 15_256_529_555_914_627_681];
            let made = State::from_words(&limit, words).to_words(&limit);
            assert!(made.iter().all(|word| *word < EXACT), "{text}: {made:?}");
        }
    }

    #[test]
    fn a_custom_state_comes_back_bit_for_bit() {
        #[derive(Debug)]
        struct Any;

        impl super::super::CustomAlgorithm for Any {
            fn name(&self) -> &'static str {
                "any"
            }

            fn step(
                &self,
                _: &Limit,
                _: &mut State,
                _: Timestamp,
                _: u64,
            ) -> super::super::Outcome {
                super::super::Outcome::nothing()
            }
        }

        let limit = Limit::per_day(1).with_algorithm(Algorithm::custom(&Any)).unwrap();
        for lifetime in [0, 1 << 20, 1 << 40, u64::MAX] {
            for payload in [0, 1, u128::from(u64::MAX), State::MAX_PAYLOAD] {
                let state = State::new(Timestamp::MAX, lifetime, payload);
                assert_eq!(State::from_words(&limit, state.to_words(&limit)), state);
            }
        }
        assert_eq!(State::from_words(&limit, State::EMPTY.to_words(&limit)), State::EMPTY);
    }
}
