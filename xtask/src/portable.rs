//! Checks that the library compiles for other targets and with the oldest supported compiler.

use std::process::Command;

use anyhow::{Context, ensure};

use crate::command::{cargo, root, show};

/// A 32-bit target, and WebAssembly without an operating system.
const TARGETS: [&str; 2] = ["i686-unknown-linux-gnu", "wasm32-unknown-unknown"];

/// The `rust-version` of the library and of the macros.
const OLDEST: &str = "1.88.0";

/// Compiles the library for each target, and with the oldest compiler. Installs what is missing.
///
/// With separate target directories, so that other builds need not wait, and keep what they have built.
pub(crate) fn run() -> anyhow::Result<()> {
    for target in TARGETS {
        install_target(target)?;
    }
    // Not `check`: the compiler finds overflowing constants only when it generates code.
    let build = "build -p pacegate --all-features --target-dir target/portable \
                 --config profile.dev.package.pacegate.opt-level=0 --target";
    let targets = TARGETS.join(" --target ");
    cargo(&build.split_whitespace().chain(targets.split(' ')).collect::<Vec<_>>(), &[])?;
    if rustup(&["run", OLDEST, "rustc", "--version"]).is_err() {
        rustup(&["toolchain", "install", OLDEST, "--profile", "minimal"])?;
    }
    let check = "check -p pacegate --all-features --target-dir target/oldest";
    let words: Vec<&str> = check.split(' ').collect();
    cargo(&words, &[("RUSTUP_TOOLCHAIN", OLDEST)])
}

/// Installs the standard library for a target, if it is missing.
pub(crate) fn install_target(target: &str) -> anyhow::Result<()> {
    let installed = rustup(&["target", "list", "--installed"])?;
    if !installed.lines().any(|line| line == target) {
        rustup(&["target", "add", target])?;
    }
    Ok(())
}

/// Runs `rustup` and returns its output.
pub(crate) fn rustup(words: &[&str]) -> anyhow::Result<String> {
    let mut command = Command::new("rustup");
    command.args(words).current_dir(root());
    let line = show(&command)?;
    let output = command.output().with_context(|| {
        format!("cannot start `{line}`: install rustup from https://rustup.rs, which provides other targets")
    })?;
    let error = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "`{line}` failed: {}", error.trim());
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn the_oldest_compiler_is_the_one_that_the_crates_declare() {
        for name in ["pacegate", "pacegate-macros"] {
            let manifest = root().join("crates").join(name).join("Cargo.toml");
            let text = fs::read_to_string(manifest).unwrap();
            let declared = text.lines().find_map(|line| line.strip_prefix("rust-version = "));
            let declared = declared.unwrap().trim_matches('"');
            assert_eq!(format!("{declared}.0"), OLDEST, "{name}");
        }
    }
}
