//! The program `pacegate`: one file per command.

mod asking;
mod bench;
mod check;
mod completions;
mod doctor;
mod explain;
mod init;
mod log;
mod man;
mod sample;
mod schema;
mod serve;
mod simulate;
mod top;
mod trouble;
mod validate;

use std::{
    ffi::{OsStr, OsString},
    fmt::Display,
    io::{self, Write},
    path::Path,
    process::ExitCode,
};

use clap::{Arg, CommandFactory, FromArgMatches, Parser, Subcommand};

use self::trouble::Trouble;
use pacegate_server::Environment;

/// A rate limiter: server, CLI and tools
#[derive(Debug, Parser)]
#[command(name = "pacegate", version, after_help = EXAMPLES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Serve(serve::Args),
    Init(init::Args),
    Check(check::Args),
    Explain(explain::Args),
    Top(top::Args),
    Simulate(simulate::Args),
    Bench(Box<bench::Args>),
    Doctor(doctor::Args),
    Validate(validate::Args),
    Schema(schema::Args),
    Completions(completions::Args),
    Man(man::Args),
}

const EXAMPLES: &str = "\
Examples:
  Try a limit: the sixth request within a minute is denied
    pacegate check --limit 5/minute alice --times 6

  Write a configuration file and run the server with it:
    pacegate init login
    pacegate serve

  Watch a running server:
    pacegate top http://127.0.0.1:8080

  Replay yesterday's traffic against a limit:
    pacegate simulate access.log.gz --limit 60/minute --per ip

  Check that a Redis or Valkey server is set up to hold limits:
    pacegate doctor redis://127.0.0.1:6379

  Check a configuration before you deploy it:
    pacegate validate pacegate.yaml

Run `pacegate COMMAND --help` for the options and examples of a command.";

/// Exit code for errors: the result is neither allowed (0) nor denied (1).
const TROUBLE: u8 = 2;

/// Runs the command given on the command line.
fn main() -> ExitCode {
    let command = match parse(words(std::env::args_os())) {
        Ok(command) => command,
        Err(error) => return explain(&error),
    };
    let done = match command {
        Command::Serve(args) => serve::run(&args),
        Command::Init(args) => init::run(&args),
        Command::Check(args) => check::run(&args),
        Command::Explain(args) => explain::run(&args),
        Command::Top(args) => top::run(&args),
        Command::Simulate(args) => simulate::run(&args),
        Command::Bench(args) => bench::run(&args),
        Command::Doctor(args) => doctor::run(&args),
        Command::Validate(args) => validate::run(&args),
        Command::Schema(args) => schema::run(&args),
        Command::Completions(args) => completions::run(&args),
        Command::Man(args) => man::run(&args),
    };
    match done {
        Ok(code) => code,
        Err(trouble) if trouble.is_output_closed() => ExitCode::SUCCESS,
        Err(trouble) => {
            say(trouble);
            ExitCode::from(TROUBLE)
        }
    }
}

/// Parses the command line and environment variables. The command line takes precedence.
fn parse(words: Vec<OsString>) -> Result<Command, clap::Error> {
    let mut cli = without_empty_variables(Cli::command());
    let matches = cli.try_get_matches_from_mut(words)?;
    let mut command = Cli::from_arg_matches(&matches)?.command;
    let Some((name, matches)) = matches.subcommand() else { return Ok(command) };
    let settled = match &mut command {
        Command::Serve(args) => args.settle(matches),
        Command::Check(args) => args.asking.settle(matches),
        Command::Explain(args) => args.asking.settle(matches),
        _ => Ok(()),
    };
    if let Err(error) = settled {
        return Err(match cli.find_subcommand_mut(name) {
            Some(own) => error.format(own),
            None => error,
        });
    }
    Ok(command)
}

/// Ignores variables with an empty value: deployments often set one to an empty value to unset it.
fn without_empty_variables(command: clap::Command) -> clap::Command {
    let environment = Environment::process();
    let is_empty = |arg: &Arg| {
        let value = arg.get_env().and_then(OsStr::to_str).and_then(|name| environment.get(name));
        value.is_some_and(|value| value.is_empty())
    };
    command.mut_subcommands(|command| {
        command.mut_args(|arg| if is_empty(&arg) { arg.env(None::<&'static str>) } else { arg })
    })
}

/// Returns the arguments. Deployments of envoyproxy/ratelimit run `/bin/ratelimit` without arguments: under
/// that name, the program runs the server.
fn words(args: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut words: Vec<OsString> = args.collect();
    let name = words.first().and_then(|name| Path::new(name).file_name());
    if name.is_some_and(|name| name == "ratelimit") {
        words.insert(1, "serve".into());
    }
    words
}

/// Prints the requested help, or the error in the command line.
fn explain(error: &clap::Error) -> ExitCode {
    let printed = match error.print() {
        Err(error) => error.kind() == io::ErrorKind::BrokenPipe,
        Ok(()) => true,
    };
    let asked_for = !error.use_stderr();
    if asked_for && printed { ExitCode::SUCCESS } else { ExitCode::from(TROUBLE) }
}

/// Prints a message on standard error. Ignores errors, for example if it is closed.
fn say(message: impl Display) {
    drop(writeln!(anstream::stderr(), "{message}"));
}

/// Prints a line on standard output. Ignores errors, for example if the reader has closed the pipe.
fn print_line(line: impl Display) {
    let mut output = io::stdout().lock();
    drop(writeln!(output, "{line}").and_then(|()| output.flush()));
}
