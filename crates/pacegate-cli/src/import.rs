mod limitador;

use std::{fs, path::PathBuf, process::ExitCode};

use clap::ValueEnum;

use super::{CommandError, print};

/// Convert the limits of another rate limiter into a configuration file
///
/// Prints the file on standard output. If a limit cannot be converted exactly, prints the reason for each, and no file.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(super) struct Import {
    /// The other rate limiter
    #[arg(value_name = "FORMAT")]
    origin: Origin,

    /// Its file
    file: PathBuf,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Origin {
    /// The limits file of limitador
    Limitador,
}

const EXAMPLES: &str = "\
Examples:
  Convert the limits of limitador, and check the result:
    pacegate import limitador limits.yaml > pacegate.yaml
    pacegate validate pacegate.yaml";

pub(super) fn run(args: &Import) -> Result<ExitCode, CommandError> {
    let text = fs::read_to_string(&args.file).map_err(|error| {
        let error = anyhow::Error::from(error).context(args.file.display().to_string());
        CommandError::new(error, "cannot read the file", "check the path of the file")
    })?;
    let converted = match args.origin {
        Origin::Limitador => limitador::convert(&text),
    };
    let converted = converted.map_err(|error| {
        let hint = "correct these limits, or write them as policies: see docs/migrate/limitador.md";
        CommandError::new(error, "cannot convert the file", hint)
    })?;
    print(converted, "cannot print the file")?;
    Ok(ExitCode::SUCCESS)
}
