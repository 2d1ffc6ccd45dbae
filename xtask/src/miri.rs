//! `cargo xtask miri`: runs the tests of the prefetch with Miri, which detects undefined behaviour. Miri knows neither
//! `cpuid` nor assembly, so it runs the variant for CPUs without `prefetchw`.

use crate::{command::cargo, portable::rustup};

const TOOLCHAIN: &str = "nightly";

/// Runs the tests. Installs Miri if it is missing.
pub(crate) fn run() -> anyhow::Result<()> {
    if rustup(&["run", TOOLCHAIN, "cargo-miri", "--version"]).is_err() {
        rustup(&["toolchain", "install", TOOLCHAIN, "--profile", "minimal"])?;
        rustup(&["component", "add", "--toolchain", TOOLCHAIN, "miri", "rust-src"])?;
    }
    let words = "miri test -p pacegate --lib --target-dir target/miri prefetch";
    let words: Vec<&str> = words.split(' ').collect();
    cargo(&words, &[("RUSTUP_TOOLCHAIN", TOOLCHAIN)])
}
