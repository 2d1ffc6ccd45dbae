use std::process::ExitCode;

use clap::CommandFactory;
use clap_complete::Shell;

use super::{Cli, CommandError, print};

/// Generate shell completions
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(super) struct Completions {
    /// Shell
    shell: Shell,
}

const EXAMPLES: &str = "\
Examples:
  bash:
    pacegate completions bash \\
      > ~/.local/share/bash-completion/completions/pacegate

  zsh, into a directory in $fpath:
    pacegate completions zsh > ~/.zfunc/_pacegate

  fish:
    pacegate completions fish > ~/.config/fish/completions/pacegate.fish";

pub(super) fn run(args: &Completions) -> Result<ExitCode, CommandError> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "pacegate", &mut script);
    print(String::from_utf8_lossy(&script), "cannot print the completions")?;
    Ok(ExitCode::SUCCESS)
}
