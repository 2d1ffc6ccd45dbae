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
    "test --workspace --exclude tollgate-redis --test *",
    // Most of the time they wait: for failovers, for windows to end.
    "test -p tollgate-redis --test it -- --test-threads 4",
    "test --workspace --doc",
];

/// With a directory of its own, so that its flags do not rebuild everything else.
const LOOM: &str = "test -p tollgate --lib --target-dir target/loom loom";

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
    fuzz::run(FUZZ_SECONDS)?;
    tidy::run()
}

fn words(step: &str) -> Vec<&str> {
    step.split(' ').collect()
}
