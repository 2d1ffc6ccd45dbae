use std::{
    fs,
    io::{self, Write},
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::CommandFactory;
use clap_mangen::Man;

use super::{Cli, Trouble};

/// Generate manual pages
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(super) struct Args {
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

pub(super) fn run(args: &Args) -> Result<ExitCode, Trouble> {
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

    fn print(&self, command: Option<&str>) -> Result<(), Trouble> {
        let named = command.map(|command| format!("pacegate-{command}"));
        let wanted = named.as_deref().unwrap_or("pacegate");
        let Some((_, page)) = self.all().find(|(name, _)| name == wanted) else {
            let error = anyhow::anyhow!("unknown page {wanted}");
            let hint = "use a command from `pacegate --help`";
            return Err(Trouble::new(error, "cannot print the page", hint));
        };
        let printed = render(page).and_then(|page| io::stdout().write_all(&page));
        printed.map_err(|error| Trouble::output(error, "cannot print the page"))
    }

    fn write(&self, dir: &Path) -> Result<(), Trouble> {
        let written = fs::create_dir_all(dir).and_then(|()| {
            self.all().try_for_each(|(name, page)| {
                fs::write(dir.join(format!("{name}.1")), render(page)?)
            })
        });
        written.map_err(|error| {
            let error = anyhow::Error::from(error).context(dir.display().to_string());
            Trouble::new(
                error,
                "cannot write the manual pages",
                "check that the directory is writable",
            )
        })
    }
}

fn render(command: clap::Command) -> io::Result<Vec<u8>> {
    let mut page = Vec::new();
    Man::new(command).render(&mut page)?;
    Ok(page)
}
