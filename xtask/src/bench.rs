use crate::command::cargo;

/// Compares the engine with its peers.
pub(crate) fn engine(options: &[&str]) -> anyhow::Result<()> {
    let words = "run --release --manifest-path bench/Cargo.toml --target-dir target/bench-build --";
    let words: Vec<&str> = words.split(' ').chain(options.iter().copied()).collect();
    cargo(&words, &[])
}
