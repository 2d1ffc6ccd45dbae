use crate::{command::cargo, fuzz, servers, tidy};

/// How many random histories the tests try.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Histories {
    Some,
    Million,
}

/// What `cargo` runs, quickest first.
const STEPS: [&str; 4] = [
    "test --workspace --lib --bins --examples",
    "test --workspace --exclude tollgate --exclude tollgate-redis --test *",
    "test --workspace --doc",
    // Threads and random histories find more in the same time when they are fast.
    "test --release -p tollgate -p tollgate-redis --test it",
];

/// With a directory of its own, so that its flags do not rebuild everything else.
const LOOM: &str = "test --release -p tollgate --lib --target-dir target/loom loom";

/// The documents against the code: their examples run, and their pictures are what the engine draws now.
const DOCUMENTS: [&str; 2] = [
    "test --doc --manifest-path docs/check/Cargo.toml --target-dir target/docs",
    "run --manifest-path docs/check/Cargo.toml --target-dir target/docs -- --check",
];

/// How long each parser is fed with hostile bytes.
const FUZZ_SECONDS: u32 = 60;

/// Installs the servers that are missing, runs all tests, then the house rules; stops at the first failure.
pub(crate) fn run(histories: Histories) -> anyhow::Result<()> {
    let long: &[_] = match histories {
        Histories::Some => &[],
        Histories::Million => &[("TOLLGATE_LONG", "1")],
    };
    servers::run()?;
    for step in STEPS {
        cargo(&words(step), long)?;
    }
    cargo(&words(LOOM), &[long, &[("RUSTFLAGS", "--cfg tollgate_loom")]].concat())?;
    for step in DOCUMENTS {
        cargo(&words(step), &[])?;
    }
    fuzz::run(FUZZ_SECONDS)?;
    tidy::run()
}

fn words(step: &str) -> Vec<&str> {
    step.split(' ').collect()
}
