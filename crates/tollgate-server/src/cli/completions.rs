use std::{
    io::{self, Write},
    process::ExitCode,
};

use clap::CommandFactory;
use clap_complete::Shell;

use super::{Cli, Trouble};

/// Print what completes `tollgate` in a shell
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(super) struct Args {
    /// The shell to complete in
    shell: Shell,
}

const EXAMPLES: &str = "\
Examples:
  bash:
    tollgate completions bash > ~/.local/share/bash-completion/completions/tollgate

  zsh, in a folder of $fpath:
    tollgate completions zsh > ~/.zfunc/_tollgate

  fish:
    tollgate completions fish > ~/.config/fish/completions/tollgate.fish";

pub(super) fn run(args: &Args) -> Result<ExitCode, Trouble> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "tollgate", &mut script);
    io::stdout().write_all(&script).map_err(|error| {
        Trouble::new(error, "cannot print the completions", "check where standard output leads")
    })?;
    Ok(ExitCode::SUCCESS)
}
