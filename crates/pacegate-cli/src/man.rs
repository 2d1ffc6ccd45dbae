use std::{
    fs, io,
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::CommandFactory;

use super::{Cli, CommandError, print};

/// Generate manual pages
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(super) struct Man {
    /// Command whose page to print [default: pacegate itself]
    command: Option<String>,

    /// Write all pages into this directory instead; created if missing
    #[arg(long, value_name = "FOLDER", conflicts_with = "command")]
    dir: Option<PathBuf>,
}

const EXAMPLES: &str = "\
Examples:
  Read about a command:
    pacegate man serve | man -l -

  Install the manual pages for `man pacegate` and `man pacegate-serve`:
    pacegate man --dir ~/.local/share/man/man1";

pub(super) fn run(args: &Man) -> Result<ExitCode, CommandError> {
    let pages = Pages::new();
    match &args.dir {
        Some(dir) => pages.write(dir)?,
        None => pages.print(args.command.as_deref())?,
    }
    Ok(ExitCode::SUCCESS)
}

/// The definitions of all commands, the same as for `--help`.
struct Pages(clap::Command);

impl Pages {
    fn new() -> Self {
        let mut pacegate = Cli::command().disable_help_subcommand(true);
        pacegate.build();
        Self(pacegate)
    }

    /// Returns every page with its name, such as `pacegate-serve`.
    fn all(&self) -> impl Iterator<Item = (String, clap::Command)> {
        let commands = self
            .0
            .get_subcommands()
            .map(|command| (format!("pacegate-{}", command.get_name()), command.clone()));
        [("pacegate".to_owned(), self.0.clone())].into_iter().chain(commands)
    }

    fn print(&self, command: Option<&str>) -> Result<(), CommandError> {
        let named = command.map(|command| format!("pacegate-{command}"));
        let wanted = named.as_deref().unwrap_or("pacegate");
        let Some((_, page)) = self.all().find(|(name, _)| name == wanted) else {
            let error = anyhow::anyhow!("unknown page {wanted}");
            let hint = "use a command from `pacegate --help`";
            return Err(CommandError::new(error, "cannot print the page", hint));
        };
        let context = "cannot print the page";
        let page = render(page).map_err(|error| CommandError::output(error, context))?;
        print(String::from_utf8_lossy(&page), context)
    }

    fn write(&self, dir: &Path) -> Result<(), CommandError> {
        let written = fs::create_dir_all(dir).and_then(|()| {
            self.all().try_for_each(|(name, page)| {
                fs::write(dir.join(format!("{name}.1")), render(page)?)
            })
        });
        written.map_err(|error| {
            let error = anyhow::Error::from(error).context(dir.display().to_string());
            CommandError::new(
                error,
                "cannot write the manual pages",
                "check that the directory is writable",
            )
        })
    }
}

fn render(command: clap::Command) -> io::Result<Vec<u8>> {
    let mut page = Vec::new();
    clap_mangen::Man::new(command).render(&mut page)?;
    Ok(page)
}
