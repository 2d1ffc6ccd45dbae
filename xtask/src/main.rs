//! The project's chores: `cargo xtask <task>`.

mod agree;
mod bench;
mod command;
mod deny;
mod fuzz;
mod screen;
mod servers;
mod test;
mod tidy;

use std::{
    io::{self, Write},
    path::Path,
    process::ExitCode,
};

use anyhow::{Context, bail};

const USAGE: &str = "\
usage: cargo xtask <task>

  test [--long]           run all tests, then tidy; --long tries a million random histories
  bench engine [--quick]  compare the engine with its peers
  bench redis [--quick]   compare the store on Redis and Valkey with the usual ways
  bench redis --case NAME the same, only where the name of the case has this in it
  bench service [--quick] compare the service with other servers
  bench http [--quick]    compare the middleware with others
  bench machine           measure what a load, a lock and the time take here
  bench agree [PROGRAM]   see whether pacegate bench measures what redis-benchmark and wrk do
  deny                    check licences and sources of dependencies, and advisories where possible
  fuzz [--seconds N]      feed the service with hostile input, each target for a minute or N seconds
  screen FILE             draw what `tmux capture-pane -e -p` says on standard input, as SVG
  servers                 install the programs that the tests run against, unless they are there
  tidy                    check the house rules";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let Err(error) = run(&args) else {
        return ExitCode::SUCCESS;
    };
    drop(writeln!(io::stderr(), "error: {error:#}"));
    ExitCode::FAILURE
}

fn run(args: &[&str]) -> anyhow::Result<()> {
    match *args {
        ["test"] => test::run(test::Histories::Some),
        ["test", "--long"] => test::run(test::Histories::Million),
        ["bench", what @ ("engine" | "http" | "machine" | "redis" | "service")] => {
            bench::run(&[what])
        }
        ["bench", what @ ("engine" | "http" | "redis" | "service"), "--quick"] => {
            bench::run(&[what, "--quick"])
        }
        ["bench", "redis", "--case", name] => bench::run(&["redis", "--case", name]),
        ["bench", "agree"] => agree::run(),
        ["bench", "agree", pacegate] => agree::run_with(pacegate),
        ["deny"] => deny::run(),
        ["fuzz"] => fuzz::run(60),
        ["fuzz", "--seconds", seconds] => {
            let wrong = || format!("`{seconds}` is not a number of seconds");
            fuzz::run(seconds.parse().with_context(wrong)?)
        }
        ["screen", file] => screen::run(Path::new(file)),
        ["servers"] => servers::run(),
        ["tidy"] => tidy::run(),
        _ => bail!("cannot do `{}`\n\n{USAGE}", args.join(" ")),
    }
}
