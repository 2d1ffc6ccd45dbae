//! The project's development tasks: `cargo xtask <task>`.

mod agree;
mod bench;
mod charts;
mod command;
mod deny;
mod dist;
mod fuzz;
mod miri;
mod portable;
mod recipes;
mod screen;
mod servers;
mod simulate_faults;
mod site;
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

  test [--long]           run all tests and tidy; --long tries a million random histories
  test --untimed          run only what may take any time: doc tests, simulator, loom, portable, recipes
  bench engine            compare the engine with other libraries
  bench redis             compare the Redis store with other approaches, on Redis and Valkey
  bench service           compare the server with other servers
  bench http              compare the middleware with others
  bench scale             measure the growth with keys, policies, connections and servers
  bench NAME [--quick] [--only CASE]
                          with fewer rounds; only the cases whose names contain CASE
  bench machine           measure a memory load, a lock and a clock read on this machine
  bench agree [PROGRAM]   compare the results of pacegate bench with redis-benchmark and wrk
  charts                  check the Helm chart and its examples; builds helm if it is missing
  deny                    check licences and sources of dependencies, and advisories where possible
  dist [TARGET]           build a release archive in target/dist [default: for this machine]
  fuzz [--seconds N]      fuzz the parsers, each for N seconds [default: 60]
  miri                    run the tests of the prefetch with Miri; installs it if it is missing
  portable                compile the library for other targets and with its oldest compiler
  recipes [--only NAME] [--program PATH]
                          test the clients and run docs/recipes and docs/migrate [default: builds the server]
  screen FILE             draw the output of `tmux capture-pane -e -p` (standard input) as SVG
  servers                 install missing programs that the tests need
  simulate-faults [--seed N [--trace] | --seeds A..B | --seconds N | --resume FILE]
                          simulate faults of Redis, the network and clocks [default: for 10 seconds]
  site                    build the documentation as a website in target/site/html, and test it
  tidy                    check the project rules";

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
        ["test", "--untimed"] => test::run_untimed(),
        ["bench", "agree"] => agree::run(),
        ["bench", "agree", pacegate] => agree::run_with(pacegate),
        ["bench", name, ref options @ ..] => bench::run(name, options),
        ["charts"] => charts::run(),
        ["deny"] => deny::run(),
        ["dist"] => dist::run(None),
        ["dist", target] => dist::run(Some(target)),
        ["fuzz"] => fuzz::run(60),
        ["fuzz", "--seconds", seconds] => {
            let wrong = || format!("invalid number of seconds `{seconds}`");
            fuzz::run(seconds.parse().with_context(wrong)?)
        }
        ["recipes"] => recipes::run(None, None),
        ["recipes", "--only", name] => recipes::run(Some(name), None),
        ["recipes", "--program", program] => recipes::run(None, Some(program)),
        ["recipes", "--only", name, "--program", program] => {
            recipes::run(Some(name), Some(program))
        }
        ["screen", file] => screen::run(Path::new(file)),
        ["servers"] => servers::run(),
        ["simulate-faults", ref options @ ..] => simulate_faults::run(options),
        ["site"] => site::run(),
        ["miri"] => miri::run(),
        ["portable"] => portable::run(),
        ["tidy"] => tidy::run(),
        _ => bail!("unknown task `{}`\n\n{USAGE}", args.join(" ")),
    }
}
