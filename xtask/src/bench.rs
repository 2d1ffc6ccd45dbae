use crate::{command::cargo, servers};

/// Runs a benchmark: the engine compared with other libraries, the Redis store with other approaches, the
/// server with other servers, or the middleware with others.
pub(crate) fn run(options: &[&str]) -> anyhow::Result<()> {
    if options.contains(&"service") {
        servers::for_bench()?;
        let words = "build --release --package pacegate-cli --target-dir target/bench-build";
        cargo(&words.split(' ').collect::<Vec<_>>(), &[])?;
    }
    let words = "run --release --manifest-path bench/Cargo.toml --target-dir target/bench-build --";
    let words: Vec<&str> = words.split(' ').chain(options.iter().copied()).collect();
    cargo(&words, &[])
}
