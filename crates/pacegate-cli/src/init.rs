use std::{
    fs::OpenOptions,
    io::{self, Write},
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::ValueEnum;

use super::{CommandError, print, print_line};

/// Write a commented configuration file for a common case
///
/// The file is complete: `pacegate serve` in the same folder reads it. An existing file is never
/// overwritten.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(super) struct Init {
    /// Use case of the configuration
    case: Case,

    /// Write to this file, or to standard output if it is `-`
    #[arg(long, short, value_name = "FILE", default_value = "pacegate.yaml")]
    output: PathBuf,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Case {
    /// A login form: few attempts per address and per account
    Login,
    /// An API: limits per user, higher ones for a paid plan
    Api,
    /// The rate limit service of an Envoy proxy
    Envoy,
    /// LLM tokens: budgets per user, with a cost per request
    Llm,
}

const EXAMPLES: &str = "\
Examples:
  Protect a login form:
    pacegate init login
    pacegate serve

  Print a file without writing it:
    pacegate init llm --output -";

impl Case {
    fn text(self) -> &'static str {
        match self {
            Self::Login => include_str!("init/login.yaml"),
            Self::Api => include_str!("init/api.yaml"),
            Self::Envoy => include_str!("init/envoy.yaml"),
            Self::Llm => include_str!("init/llm.yaml"),
        }
    }
}

pub(super) fn run(args: &Init) -> Result<ExitCode, CommandError> {
    let (path, text) = (&args.output, args.case.text());
    if path.as_os_str() == "-" {
        print(text, "cannot print the file")?;
        return Ok(ExitCode::SUCCESS);
    }
    create(path, text).map_err(|error| {
        let hint = match error.kind() {
            io::ErrorKind::AlreadyExists => {
                "choose another file with --output, or move the existing one"
            }
            _ => "choose a file in a writable folder",
        };
        let error = anyhow::Error::from(error).context(path.display().to_string());
        CommandError::new(error, "cannot write the file", hint)
    })?;
    print_line(format_args!("wrote {}; run it with: pacegate serve {0}", path.display()));
    Ok(ExitCode::SUCCESS)
}

fn create(path: &Path, text: &str) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).open(path)?;
    file.write_all(text.as_bytes())
}
