//! Where the program says what it does: one line for each event, on standard error.

use std::io;

use clap::ValueEnum;
use tracing_subscriber::{EnvFilter, fmt};

use super::Trouble;

#[derive(Debug, clap::Args)]
pub(super) struct Args {
    /// What to tell: error, warn, info, debug, or by module, such as info,tollgate_server=debug
    #[arg(long = "log", value_name = "LEVEL", default_value = "info", env = "TOLLGATE_LOG")]
    level: String,

    /// How to tell it
    #[arg(long = "log-format", value_name = "FORMAT", default_value = "text")]
    #[arg(env = "TOLLGATE_LOG_FORMAT")]
    format: Format,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Format {
    /// For people
    Text,
    /// One object of JSON per line
    Json,
}

/// From now on, events are told.
pub(super) fn start(args: &Args) -> Result<(), Trouble> {
    let filter = EnvFilter::try_new(&args.level).map_err(|error| {
        let hint = "write error, warn, info or debug, or a list such as info,tollgate_server=debug";
        Trouble::new(error, "cannot use --log", hint)
    })?;
    let events = fmt().with_env_filter(filter).with_writer(io::stderr);
    let started = match args.format {
        Format::Text => events.with_target(false).with_ansi(is_terminal()).try_init(),
        Format::Json => events.json().flatten_event(true).try_init(),
    };
    started.map_err(|error| {
        Trouble::new(
            anyhow::anyhow!(error),
            "cannot begin to log",
            "this is a mistake of Tollgate's",
        )
    })
}

fn is_terminal() -> bool {
    anstream::stderr().is_terminal()
        && anstream::AutoStream::choice(&io::stderr()) != anstream::ColorChoice::Never
}
