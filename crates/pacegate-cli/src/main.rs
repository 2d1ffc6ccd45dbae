//! The program `pacegate`: one file per command.

mod bench;
mod check;
mod completions;
mod decider;
mod doctor;
mod error;
mod explain;
mod import;
mod init;
mod log;
mod man;
#[cfg(test)]
mod reference;
mod sample;
mod schema;
mod serve;
mod signals;
mod simulate;
mod top;
mod validate;

use std::{
    ffi::{OsStr, OsString},
    fmt::Display,
    io::{self, Write},
    path::Path,
    process::ExitCode,
};

use clap::{Arg, CommandFactory, FromArgMatches, Parser, Subcommand};
use tokio::runtime::Runtime;

use self::error::{CommandError, print};
use pacegate_server::Environment;

/// A call allocates blocks of a few kilobytes, which the allocators of glibc and musl handle slowly.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// A rate limiter: server, CLI and tools
#[derive(Debug, Parser)]
#[command(name = "pacegate", version, after_help = EXAMPLES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Serve(serve::Serve),
    Init(init::Init),
    Import(import::Import),
    Check(check::Check),
    Explain(explain::Explain),
    Top(top::Top),
    Simulate(simulate::Simulate),
    Bench(Box<bench::Bench>),
    Doctor(doctor::Doctor),
    Validate(validate::Validate),
    Schema(schema::Schema),
    Completions(completions::Completions),
    Man(man::Man),
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
const EXIT_ERROR: u8 = 2;

/// Runs the command given on the command line.
fn main() -> ExitCode {
    let command = match parse(arguments(std::env::args_os())) {
        Ok(command) => command,
        Err(error) => return print_help(&error),
    };
    let done = match command {
        Command::Serve(args) => serve::run(&args),
        Command::Init(args) => init::run(&args),
        Command::Import(args) => import::run(&args),
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
        Err(error) if error.is_output_closed() => ExitCode::SUCCESS,
        Err(error) => {
            print_error(error);
            ExitCode::from(EXIT_ERROR)
        }
    }
}

/// Parses the command line and environment variables. The command line takes precedence.
fn parse(arguments: Vec<OsString>) -> Result<Command, clap::Error> {
    let mut cli = without_empty_variables(Cli::command());
    let matches = cli.try_get_matches_from_mut(arguments)?;
    let mut command = Cli::from_arg_matches(&matches)?.command;
    let Some((name, matches)) = matches.subcommand() else { return Ok(command) };
    let resolved = match &mut command {
        Command::Serve(args) => args.resolve_sources(matches),
        Command::Check(args) => args.request.resolve_sources(matches),
        Command::Explain(args) => args.request.resolve_sources(matches),
        _ => Ok(()),
    };
    if let Err(error) = resolved {
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

/// Returns the arguments. Deployments of envoyproxy/ratelimit run `/bin/ratelimit`: under that name, the program runs
/// the server with the defaults of envoyproxy/ratelimit, and ignores arguments other than `--help` and `--version`, as
/// that program does.
fn arguments(args: impl Iterator<Item = OsString>) -> Vec<OsString> {
    let mut arguments: Vec<OsString> = args.collect();
    let name = arguments.first().and_then(|name| Path::new(name).file_name());
    if name.is_some_and(|name| name == "ratelimit") {
        let is_question = |argument: &&OsString| *argument == "--help" || *argument == "--version";
        let question = arguments[1..].iter().find(is_question).cloned();
        arguments.truncate(1);
        match question {
            Some(question) => arguments.push(question),
            None => arguments.extend(["serve".into(), "--ratelimit".into()]),
        }
    }
    arguments
}

/// Prints the requested help, or the error in the command line.
fn print_help(error: &clap::Error) -> ExitCode {
    let printed = match error.print() {
        Err(error) => error.kind() == io::ErrorKind::BrokenPipe,
        Ok(()) => true,
    };
    let is_help = !error.use_stderr();
    if is_help && printed { ExitCode::SUCCESS } else { ExitCode::from(EXIT_ERROR) }
}

/// Creates the Tokio runtime of a command.
fn runtime() -> Result<Runtime, CommandError> {
    // Fails only if the process cannot open another file.
    let built = tokio::runtime::Builder::new_current_thread().enable_all().build();
    built.map_err(|error| {
        let hint = "raise the limit for open files, for example with ulimit -n 4096";
        CommandError::new(error, "cannot create the event loop", hint)
    })
}

/// Prints a message on standard error. Ignores errors, for example if it is closed.
fn print_error(message: impl Display) {
    drop(writeln!(anstream::stderr(), "{message}"));
}

/// Prints a line on standard output. Ignores errors, for example if the reader has closed the pipe.
fn print_line(line: impl Display) {
    let mut output = io::stdout().lock();
    drop(writeln!(output, "{line}").and_then(|()| output.flush()));
}
