use std::{
    io::{self, Write},
    time::Duration,
};

use crate::{
    command::{cargo, timed},
    portable, recipes, servers, tidy,
};

/// Number of random histories that the tests try.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Histories {
    Some,
    Million,
}

/// The cargo commands, the fastest first.
const STEPS: [&str; 5] = [
    "test --workspace --lib --bins --examples",
    "test --workspace --test it --test fronts --test servers",
    // Most of the time these tests wait for failovers or for windows to end.
    "test --workspace --test redis -- --test-threads 4",
    "test --workspace --doc",
    "test --release --manifest-path sim/Cargo.toml --target-dir target/sim",
];

/// With a separate target directory, so that its flags do not rebuild everything else.
const LOOM: &str = "test -p pacegate --lib --target-dir target/loom loom";

/// Installs missing servers, runs all tests, then `tidy`. Stops at the first failure.
pub(crate) fn run(histories: Histories) -> anyhow::Result<()> {
    let long: &[_] = match histories {
        Histories::Some => &[],
        Histories::Million => &[("PACEGATE_LONG", "1")],
    };
    let mut times = Times::default();
    times.measure("servers", servers::run)?;
    for step in STEPS {
        times.measure(step, || cargo(&words(step), long))?;
    }
    let loom = [long, &[("RUSTFLAGS", "--cfg pacegate_loom")]].concat();
    times.measure("loom", || cargo(&words(LOOM), &loom))?;
    times.measure("recipes", recipes::run_sample)?;
    times.measure("portable", portable::run)?;
    times.measure("tidy", tidy::run)?;
    Ok(times.print()?)
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
    use crate::command::root;

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
        let steps = STEPS.join(" ");
        let programs = programs(&root().join("crates"));
        assert!(programs.len() > 5, "{programs:?}");
        for program in programs {
            assert!(steps.contains(&format!("--test {program}")), "no step runs {program}");
        }
    }
}
