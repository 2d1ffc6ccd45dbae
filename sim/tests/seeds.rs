//! Runs some seeds of the simulator.

use pacegate_sim::{Run, simulate};

#[test]
fn a_seed_has_one_trace() {
    for seed in 0..10 {
        let hashes = [(); 2].map(|()| simulate(Run::of_seed(seed)).unwrap().hash);
        assert_eq!(hashes[0], hashes[1], "seed {seed}");
    }
}

#[test]
fn some_seeds_break_no_promise() {
    for seed in 0..60 {
        let outcome = simulate(Run::of_seed(seed)).unwrap();
        assert!(outcome.violations.is_empty(), "seed {seed}: {:?}", outcome.violations);
    }
}
