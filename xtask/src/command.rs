//! Runs other programs from the project's root and prints the commands.

use std::{
    io::{self, Write},
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

use anyhow::{Context, ensure};

/// Returns the project's root.
pub(crate) fn root() -> &'static Path {
    let xtask = Path::new(env!("CARGO_MANIFEST_DIR"));
    xtask.parent().unwrap_or(xtask)
}

/// Runs `cargo` with these arguments and environment variables. Fails if it fails.
pub(crate) fn cargo(words: &[&str], env: &[(&str, &str)]) -> anyhow::Result<()> {
    let settings = env.iter().map(|(name, value)| format!("{name}='{value}' "));
    let line = format!("{}cargo {}", settings.collect::<String>(), words.join(" "));
    writeln!(io::stderr(), "\n$ {line}")?;
    let mut command = Command::new("cargo");
    command.args(words).envs(env.iter().copied()).current_dir(root());
    let (status, took) = timed(|| command.status());
    let status = status.with_context(|| format!("cannot start `{line}`"))?;
    ensure!(status.success(), "`{line}` failed after {took:.1?}");
    writeln!(io::stderr(), "took {took:.1?}")?;
    Ok(())
}

/// Prints a command and returns it as text.
pub(crate) fn show(command: &Command) -> anyhow::Result<String> {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let line = words.map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ");
    writeln!(io::stderr(), "\n$ {line}")?;
    Ok(line)
}

#[expect(clippy::disallowed_methods, reason = "measures only how long a task takes")]
pub(crate) fn timed<T>(work: impl FnOnce() -> T) -> (T, Duration) {
    let start = Instant::now();
    let done = work();
    (done, start.elapsed())
}
