//! `cargo xtask fuzz`: runs the fuzz targets for a limited time.

use std::{
    fs::{self, File},
    io::{self, Write},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

use anyhow::{Context, ensure};

use crate::command::{cargo, root};

/// The targets in `fuzz/`. Each has seeds in `fuzz/corpus`, and some have a dictionary in `fuzz/words`.
const TARGETS: [&str; 4] = ["resp", "json", "rls", "policies"];

/// Number of targets to run at the same time.
const ABREAST: usize = 4;

/// The flags of `cargo fuzz build --sanitizer none` that are useful here; all of them work with stable Rust.
const FLAGS: &str = "--cfg fuzzing -Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4 \
    -Cllvm-args=-sanitizer-coverage-inline-8bit-counters -Cllvm-args=-sanitizer-coverage-pc-table \
    -Cllvm-args=-sanitizer-coverage-trace-compares";

/// Builds the targets and runs each for this many seconds. Fails if one of them panics, hangs or uses too
/// much memory.
pub(crate) fn run(seconds: u32) -> anyhow::Result<()> {
    let host = host()?;
    // With an explicit target, build scripts are built without these flags.
    let words = ["build", "--release", "--manifest-path", "fuzz/Cargo.toml"];
    let folder = ["--target-dir", "target/fuzz", "--target", &host];
    cargo(&[&words[..], &folder].concat(), &[("RUSTFLAGS", FLAGS)])?;
    let programs = root().join("target/fuzz").join(host).join("release");
    let mut failed = Vec::new();
    for targets in TARGETS.chunks(ABREAST) {
        let running = targets.iter().map(|name| Running::start(&programs, name, seconds));
        for running in running.collect::<Vec<_>>() {
            failed.extend(running?.wait()?);
        }
    }
    ensure!(failed.is_empty(), "fuzz: findings in {}", failed.join(", "));
    Ok(())
}

/// A running fuzz target.
struct Running {
    name: &'static str,
    child: Child,
    log: PathBuf,
}

impl Running {
    fn start(programs: &Path, name: &'static str, seconds: u32) -> anyhow::Result<Self> {
        let work = root().join("target/fuzz/work").join(name);
        let no_folder = || format!("cannot write to {}", work.display());
        // The inputs found by earlier runs come first, because libFuzzer writes new inputs to the first
        // directory.
        let found = work.join("corpus");
        fs::create_dir_all(&found).with_context(no_folder)?;
        let log = work.join("log");
        let file = File::create(&log).with_context(no_folder)?;
        let mut command = Command::new(programs.join(name));
        command.args(["-rss_limit_mb=512", "-timeout=5", "-max_len=8192", "-print_final_stats=1"]);
        command.arg(format!("-max_total_time={seconds}"));
        command.arg(format!("-artifact_prefix={}/", work.display()));
        let words = root().join("fuzz/words").join(name);
        if words.exists() {
            command.arg(format!("-dict={}", words.display()));
        }
        command.arg(found).arg(root().join("fuzz/corpus").join(name));
        command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
        let child = command.spawn().with_context(|| format!("cannot start the target {name}"))?;
        Ok(Self { name, child, log })
    }

    /// Waits for the end. Returns the name of the target if it found something.
    fn wait(mut self) -> anyhow::Result<Option<&'static str>> {
        let status = self.child.wait()?;
        let log = fs::read(&self.log).with_context(|| format!("no {}", self.log.display()))?;
        let log = String::from_utf8_lossy(&log);
        let mut out = io::stderr();
        if status.success() {
            writeln!(out, "{}: {}", self.name, summary(&log))?;
            return Ok(None);
        }
        let lines: Vec<&str> = log.lines().collect();
        let tail = lines[lines.len().saturating_sub(40)..].join("\n");
        writeln!(out, "{}: {status}\n{tail}\n(full log: {})", self.name, self.log.display())?;
        Ok(Some(self.name))
    }
}

/// Summarises the final output of libFuzzer in one line.
fn summary(log: &str) -> String {
    let done = log.lines().rfind(|line| line.starts_with("Done ")).unwrap_or("ended early");
    let coverage = log.lines().rev().find_map(|line| {
        let mut words = line.split_whitespace().skip_while(|word| *word != "cov:");
        words.nth(1)
    });
    let peak = log.lines().find_map(|line| line.strip_prefix("stat::peak_rss_mb:"));
    let [coverage, peak] = [coverage, peak].map(|word| word.unwrap_or("?").trim().to_owned());
    format!("{done}, {coverage} edges reached, at most {peak} MB")
}

/// Returns the host triple of the compiler.
fn host() -> anyhow::Result<String> {
    let said = Command::new("rustc").arg("-vV").output().context("cannot start `rustc -vV`")?;
    let said = String::from_utf8_lossy(&said.stdout).into_owned();
    let host = said.lines().find_map(|line| line.strip_prefix("host: "));
    Ok(host.context("`rustc -vV` does not name its host")?.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_target_has_seeds() {
        for name in TARGETS {
            let seeds = fs::read_dir(root().join("fuzz/corpus").join(name)).unwrap();
            assert!(seeds.count() > 0, "{name}");
            assert!(root().join(format!("fuzz/targets/{name}.rs")).exists(), "{name}");
        }
    }

    #[test]
    fn the_summary_contains_the_last_coverage() {
        let log = "#2\tINITED cov: 5 ft: 6 corp: 1/1b exec/s: 0 rss: 30Mb\n\
                   #9\tNEW    cov: 17 ft: 20 corp: 2/3b lim: 4 exec/s: 0 rss: 31Mb\n\
                   Done 1234 runs in 61 second(s)\n\
                   stat::number_of_executed_units: 1234\nstat::peak_rss_mb:              88\n";
        let expected = "Done 1234 runs in 61 second(s), 17 edges reached, at most 88 MB";
        assert_eq!(summary(log), expected);
    }
}
