use std::{
    fs::File,
    io::{self, Write},
    path::PathBuf,
    process::{Child, Command, Stdio},
    time::Duration,
};

use anyhow::{Context, ensure};

use crate::{
    command::{cargo, root, timed},
    portable, recipes, servers, tidy,
};

/// Number of random histories that the tests try.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Histories {
    Some,
    Million,
}

/// Builds all tests at once, so that the compiler always has work for all cores.
const BUILD: &str = "test --workspace --no-run";

/// Tests with real servers or deadlines.
const TIMED: [&str; 5] = [
    // All packages, although some have no unit tests: without them, features differ, and Cargo builds the rest again.
    "test --workspace --lib --bins",
    // Most of the time these tests wait for other processes, or for windows to end.
    "test --workspace --test redis -- --test-threads 4",
    "test --workspace --test it --test fronts --test servers -- --test-threads 4",
    "test --workspace --test differential",
    "test --workspace --doc",
];

/// Tests that may take any time.
const UNTIMED: &str = "test --workspace --test seeds";

/// With a separate target directory, so that its flags do not rebuild everything else.
const LOOM: &str = "test -p pacegate --lib --target-dir target/loom loom";

/// Installs missing servers, then runs all tests and `tidy`.
pub(crate) fn run(histories: Histories) -> anyhow::Result<()> {
    let mut times = Times::default();
    times.measure("servers", servers::run)?;
    times.measure(BUILD, || cargo(&words(BUILD), &[]))?;
    let untimed = Background::start(histories)?;
    let mut steps = TIMED.into_iter();
    let timed = steps
        .try_for_each(|step| times.measure(step, || cargo(&words(step), histories.variables())))
        .and_then(|()| times.measure("recipes", recipes::run_sample));
    let untimed = times.measure("wait for the untimed tests", || untimed.finish());
    timed.and(untimed)?;
    Ok(times.print()?)
}

/// Runs the tests that may take any time. [`run`] starts this in another process.
pub(crate) fn run_untimed() -> anyhow::Result<()> {
    let mut times = Times::default();
    times.measure("tidy", tidy::run)?;
    times.measure(UNTIMED, || cargo(&words(UNTIMED), &[]))?;
    let loom = [("RUSTFLAGS", "--cfg pacegate_loom")];
    times.measure("loom", || cargo(&words(LOOM), &loom))?;
    times.measure("portable", portable::run)?;
    Ok(times.print()?)
}

/// The untimed tests in another process, at low priority: they compute while the timed ones wait.
struct Background {
    process: Child,
    log: PathBuf,
}

impl Background {
    fn start(histories: Histories) -> anyhow::Result<Self> {
        let log = root().join("target/untimed-tests.log");
        let output = File::create(&log)?;
        let mut command = Command::new("nice");
        command.args(["-n", "19", "cargo", "xtask", "test", "--untimed"]).current_dir(root());
        command.envs(histories.variables().iter().copied());
        command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
        let process = command.spawn().context("cannot start `nice`")?;
        Ok(Self { process, log })
    }

    /// Waits for the end, and prints the output.
    fn finish(mut self) -> anyhow::Result<()> {
        let status = self.process.wait()?;
        io::copy(&mut File::open(&self.log)?, &mut io::stdout().lock())?;
        ensure!(status.success(), "the untimed tests failed: see {}", self.log.display());
        Ok(())
    }
}

impl Histories {
    /// Returns the environment variables that tests read.
    fn variables(self) -> &'static [(&'static str, &'static str)] {
        match self {
            Self::Some => &[],
            Self::Million => &[("PACEGATE_LONG", "1")],
        }
    }
}

/// The time that each step took, builds included.
#[derive(Default)]
struct Times(Vec<(&'static str, Duration)>);

impl Times {
    fn measure(
        &mut self,
        step: &'static str,
        run: impl FnOnce() -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        let (result, took) = timed(run);
        self.0.push((step, took));
        result
    }

    fn print(&self) -> io::Result<()> {
        let mut out = io::stdout().lock();
        writeln!(out, "\nseconds  step")?;
        for (step, time) in &self.0 {
            writeln!(out, "{:7}  {step}", time.as_secs())?;
        }
        Ok(())
    }
}

fn words(step: &str) -> Vec<&str> {
    step.split(' ').collect()
}

#[cfg(test)]
mod tests {
    use std::{fs, path::Path};

    use super::*;

    /// Returns the names of the test programs of the packages in a directory.
    fn programs(packages: &Path) -> Vec<String> {
        let folders = fs::read_dir(packages).unwrap().map(|package| package.unwrap().path());
        let tests = folders.filter_map(|package| fs::read_dir(package.join("tests")).ok());
        let entries = tests.flatten().map(|entry| entry.unwrap().path());
        let programs = entries.filter(|entry| {
            entry.extension().is_some_and(|kind| kind == "rs") || entry.join("main.rs").exists()
        });
        programs.map(|path| path.file_stem().unwrap().to_str().unwrap().to_owned()).collect()
    }

    #[test]
    fn every_test_program_is_run() {
        let steps = [&TIMED[..], &[UNTIMED]].concat().join(" ");
        let mut found = programs(&root().join("crates"));
        found.extend(programs(root()));
        assert!(found.len() > 7, "{found:?}");
        for program in found {
            assert!(steps.contains(&format!("--test {program}")), "no step runs {program}");
        }
    }
}
