use crate::command::cargo;

/// Compares the engine with its peers, or the store on Redis with the usual ways.
pub(crate) fn run(options: &[&str]) -> anyhow::Result<()> {
    let words = "run --release --manifest-path bench/Cargo.toml --target-dir target/bench-build --";
    let words: Vec<&str> = words.split(' ').chain(options.iter().copied()).collect();
    cargo(&words, &[])
}
