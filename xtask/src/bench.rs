//! `cargo xtask bench`: runs a benchmark of the separate workspace `bench`.

use anyhow::{Context, bail};

use crate::{
    command::cargo,
    servers::{self, Tool},
};

/// A benchmark and everything that it needs.
struct Benchmark {
    name: &'static str,
    /// Programs that it starts, other than Pacegate.
    programs: &'static [Tool],
    /// Whether it starts the `pacegate` program.
    runs_pacegate: bool,
}

const BENCHMARKS: [Benchmark; 6] = [
    Benchmark { name: "engine", programs: &[], runs_pacegate: false },
    Benchmark { name: "machine", programs: &[], runs_pacegate: false },
    Benchmark { name: "http", programs: &[Tool::Wrk], runs_pacegate: false },
    Benchmark { name: "redis", programs: &[Tool::Redis, Tool::Valkey], runs_pacegate: false },
    Benchmark {
        name: "service",
        programs: &[Tool::Redis, Tool::Wrk, Tool::H2load, Tool::Throttlecrab],
        runs_pacegate: true,
    },
    Benchmark { name: "scale", programs: &[Tool::Redis], runs_pacegate: true },
];

/// Runs a benchmark with the options `--quick` and `--only NAME`. Installs missing programs before.
pub(crate) fn run(name: &str, options: &[&str]) -> anyhow::Result<()> {
    let benchmark = BENCHMARKS.iter().find(|benchmark| benchmark.name == name);
    let benchmark = benchmark.with_context(|| {
        let names: Vec<_> = BENCHMARKS.iter().map(|benchmark| benchmark.name).collect();
        format!("unknown benchmark `{name}`: expected one of {}, agree", names.join(", "))
    })?;
    check_options(options)?;
    servers::for_bench(benchmark.programs)?;
    if benchmark.runs_pacegate {
        let words = "build --release --package pacegate-cli --target-dir target/bench-build";
        cargo(&words.split(' ').collect::<Vec<_>>(), &[])?;
    }
    let words = "run --locked --release --manifest-path bench/Cargo.toml --target-dir target/bench-build --";
    let words = words.split(' ').chain([name]).chain(options.iter().copied());
    cargo(&words.collect::<Vec<_>>(), &[])
}

fn check_options(options: &[&str]) -> anyhow::Result<()> {
    match options {
        [] => Ok(()),
        ["--quick", rest @ ..] | ["--only", _, rest @ ..] => check_options(rest),
        [other, ..] => bail!("unknown option `{other}`: expected --quick or --only NAME"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_are_checked_before_anything_is_built() {
        for known in [&[][..], &["--quick"], &["--only", "hot key"], &["--quick", "--only", "RLS"]]
        {
            assert!(check_options(known).is_ok(), "{known:?}");
        }
        for unknown in [&["--rounds"][..], &["--only"], &["--quick", "hot"]] {
            assert!(check_options(unknown).is_err(), "{unknown:?}");
        }
        assert!(run("engines", &[]).is_err());
    }
}
