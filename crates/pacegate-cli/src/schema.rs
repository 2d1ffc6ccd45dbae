use std::process::ExitCode;

use pacegate_server::{config_reference, config_schema};

use super::{CommandError, print};

/// Print the JSON Schema of the config file
///
/// Editors use it for completion and checks if the first line of the config file is:
///
/// # yaml-language-server: $schema=pacegate.schema.json
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(super) struct Schema {
    /// Print the reference as Markdown instead
    #[arg(long)]
    docs: bool,
}

const EXAMPLES: &str = "\
Examples:
  Write the schema next to the config file:
    pacegate schema > pacegate.schema.json

  Read the reference of all fields:
    pacegate schema --docs | less";

pub(super) fn run(args: &Schema) -> Result<ExitCode, CommandError> {
    let text = match args.docs {
        true => config_reference(),
        false => format!("{:#}\n", config_schema()),
    };
    print(text, "cannot print the schema")?;
    Ok(ExitCode::SUCCESS)
}
