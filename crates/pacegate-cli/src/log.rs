//! Where the program says what it does: one line for each event, on standard error.

use std::{io, num::NonZeroU32};

use anyhow::anyhow;
use clap::ValueEnum;
use pacegate_server::{Exporter, Logging};
use tracing::level_filters::LevelFilter;
use tracing_subscriber::{EnvFilter, Layer, fmt, layer::SubscriberExt, util::SubscriberInitExt};

use super::Trouble;

#[derive(Debug, clap::Args)]
pub(super) struct LogArgs {
    /// What to tell: error, warn, info (unless said), debug, or by module: info,pacegate_server=debug
    #[arg(long = "log", value_name = "LEVEL", env = "PACEGATE_LOG")]
    level: Option<String>,

    /// How to tell it: text unless said
    #[arg(long = "log-format", value_name = "FORMAT", env = "PACEGATE_LOG_FORMAT")]
    format: Option<Format>,

    /// Send traces to this collector, by OTLP over HTTP, such as http://127.0.0.1:4318
    #[arg(long, value_name = "URL", env = "OTEL_EXPORTER_OTLP_ENDPOINT")]
    traces: Option<String>,

    /// Of requests whose caller is not traced, begin a trace for one in so many
    #[arg(long, value_name = "N", default_value = "100", env = "PACEGATE_TRACE_ONE_IN")]
    trace_one_in: NonZeroU32,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Format {
    /// For people
    Text,
    /// One object of JSON per line
    Json,
}

/// Clients can make these libraries warn as often as they like, for example by resetting streams of HTTP/2. The
/// listeners log such connections themselves, at a limited rate. A level that names a library overrides its entry.
const LIBRARIES: &str = "h2=error,hyper=error,rustls=error";

/// From now on, events are told, and requests traced if somebody wants that. What is returned has to be kept for as
/// long. Called within a runtime. What the arguments do not say, `deployment` may.
pub(super) fn start(
    args: &LogArgs,
    deployment: Option<Logging>,
) -> Result<Option<Exporter>, Trouble> {
    let level = args.level.as_deref().or(deployment.map(|it| it.level)).unwrap_or("info");
    let unusable = |error: anyhow::Error| {
        let hint = "write error, warn, info or debug, or a list such as info,pacegate_server=debug";
        Trouble::new(error, "cannot use --log", hint)
    };
    if let Some(stray) = stray(level) {
        return Err(unusable(anyhow!("`{stray}` is neither a level nor a module with one")));
    }
    let filter = EnvFilter::try_new(format!("{LIBRARIES},{level}"))
        .map_err(|error| unusable(error.into()))?;
    let exporter = args.traces.as_deref().map(|url| Exporter::new(url, args.trace_one_in.get()));
    let exporter = exporter.transpose().map_err(|error| {
        Trouble::new(error, "cannot use --traces", "write for example http://127.0.0.1:4318")
    })?;
    let events = fmt::layer().with_writer(io::stderr);
    let theirs = deployment.filter(|it| it.json).map_or(Format::Text, |_| Format::Json);
    let events = match args.format.unwrap_or(theirs) {
        Format::Text => events.with_target(false).with_ansi(is_terminal()).boxed(),
        Format::Json => events.json().flatten_event(true).boxed(),
    };
    let registry = tracing_subscriber::registry();
    let started = match &exporter {
        // One filter for all: what it leaves out costs nothing, and libraries would tell a lot.
        None => registry.with(events).with(filter).try_init(),
        Some(exporter) => {
            registry.with(events.with_filter(filter)).with(exporter.layer()).try_init()
        }
    };
    started.map_err(|error| {
        let hint = "this is a mistake of Pacegate's";
        Trouble::new(anyhow!(error), "cannot begin to log", hint)
    })?;
    Ok(exporter)
}

/// A word that is no level. To the filter it would be the name of a module, and all others would be silent.
fn stray(filter: &str) -> Option<&str> {
    let mut words = filter.split(',').map(str::trim).filter(|word| !word.contains(['=', '[']));
    words.find(|word| !word.is_empty() && word.parse::<LevelFilter>().is_err())
}

fn is_terminal() -> bool {
    anstream::stderr().is_terminal()
        && anstream::AutoStream::choice(&io::stderr()) != anstream::ColorChoice::Never
}
