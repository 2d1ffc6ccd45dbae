//! Runs some seeds of the simulator.

use pacegate_sim::{Run, simulate};

/// Seeds that failed once, because of a fault of the product or of a check, and whose events are still the same.
const FAILED_BEFORE: [u64; 9] =
    [709, 3_002_762, 5_011_323, 7_001_331, 7_001_573, 7_011_813, 7_014_375, 8_001_884, 8_007_252];

#[test]
fn a_seed_has_one_trace() {
    for seed in 0..10 {
        let hashes = [(); 2].map(|()| simulate(Run::of_seed(seed)).unwrap().hash);
        assert_eq!(hashes[0], hashes[1], "seed {seed}");
    }
}

#[test]
fn some_seeds_break_no_promise() {
    for seed in (0..60).chain(FAILED_BEFORE) {
        let outcome = simulate(Run::of_seed(seed)).unwrap();
        assert!(outcome.violations.is_empty(), "seed {seed}: {:?}", outcome.violations);
    }
}
