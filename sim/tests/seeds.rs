//! Runs some seeds of the simulator.

use pacegate_sim::simulate;

#[test]
fn a_seed_has_one_trace() {
    for seed in 0..10 {
        let hashes = [(); 2].map(|()| simulate(seed, false).unwrap().hash);
        assert_eq!(hashes[0], hashes[1], "seed {seed}");
    }
}

#[test]
fn some_seeds_break_no_promise() {
    for seed in 0..60 {
        let outcome = simulate(seed, false).unwrap();
        assert!(outcome.violations.is_empty(), "seed {seed}: {:?}", outcome.violations);
    }
}
