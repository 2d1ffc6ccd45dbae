//! The log on standard error, and traces.

use std::{io, num::NonZeroU32};

use anyhow::anyhow;
use clap::ValueEnum;
use pacegate_server::{Exporter, Logging, TraceError};
use tracing::level_filters::LevelFilter;
use tracing_subscriber::{
    Layer, filter::Targets, fmt, layer::SubscriberExt, util::SubscriberInitExt,
};

use super::CommandError;

#[derive(Debug, clap::Args)]
pub(super) struct LogArgs {
    /// Log level [default: info]: error, warn, info, debug, or by module: info,pacegate_server=debug
    #[arg(long = "log", value_name = "LEVEL", env = "PACEGATE_LOG")]
    level: Option<String>,

    /// Log format [default: text]
    #[arg(long = "log-format", value_name = "FORMAT", env = "PACEGATE_LOG_FORMAT")]
    format: Option<LogFormat>,

    /// Send traces to this OTLP/HTTP collector, such as http://127.0.0.1:4318
    #[arg(long, value_name = "URL", env = "OTEL_EXPORTER_OTLP_ENDPOINT")]
    traces: Option<String>,

    /// Trace one in N requests whose caller sends no trace context
    #[arg(long, value_name = "N", default_value = "100", env = "PACEGATE_TRACE_ONE_IN")]
    trace_one_in: NonZeroU32,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum LogFormat {
    /// Plain text
    Text,
    /// One JSON object per line
    Json,
}

/// Default levels of libraries that would otherwise let clients flood the log, for example by resetting HTTP/2 streams.
/// The listeners log such connections themselves, at a limited rate. `--log` can override each entry.
const LIBRARIES: &str = "h2=error,hyper=error,rustls=error";

/// Starts the log and, if a collector is given, traces. Keep the returned exporter while the program runs. Must be
/// called within a runtime. `deployment` has the defaults of an envoyproxy/ratelimit deployment.
pub(super) fn start(
    args: &LogArgs,
    deployment: Option<Logging>,
) -> Result<Option<Exporter>, CommandError> {
    let level = args.level.as_deref().or(deployment.map(|it| it.level)).unwrap_or("info");
    let unusable = |error: anyhow::Error| {
        let hint =
            "expected error, warn, info or debug, or a list such as info,pacegate_server=debug";
        CommandError::new(error, "invalid --log", hint)
    };
    let filter = filter(level).map_err(unusable)?;
    let exporter = args.traces.as_deref().map(|url| Exporter::new(url, args.trace_one_in.get()));
    let (exporter, missing) = match exporter.transpose() {
        Ok(exporter) => (exporter, None),
        // The variable is often set for many programs, and traces do not affect decisions.
        Err(error @ TraceError::NotBuilt) => (None, Some(error)),
        Err(error) => {
            let hint = error.hint();
            return Err(CommandError::new(error, "cannot send traces", hint));
        }
    };
    let events = fmt::layer().with_writer(io::stderr);
    let theirs = deployment.filter(|it| it.json).map_or(LogFormat::Text, |_| LogFormat::Json);
    let events = match args.format.unwrap_or(theirs) {
        LogFormat::Text => events.with_target(false).with_ansi(is_terminal()).boxed(),
        LogFormat::Json => events.json().flatten_event(true).boxed(),
    };
    let registry = tracing_subscriber::registry();
    let started = match &exporter {
        // One filter for everything: filtered events cost nothing.
        None => registry.with(events).with(filter).try_init(),
        Some(exporter) => {
            registry.with(events.with_filter(filter)).with(exporter.layer()).try_init()
        }
    };
    started.map_err(|error| {
        let hint = "please report this bug";
        CommandError::new(anyhow!(error), "cannot start the log", hint)
    })?;
    if let Some(error) = missing {
        tracing::warn!(hint = error.hint(), "cannot send traces: {error}");
    }
    Ok(exporter)
}

/// Parses levels such as `info,pacegate_server=debug`. Rejects a word that is not a level, such as a misspelt one: it
/// would be a module name and disable all other modules.
fn filter(levels: &str) -> anyhow::Result<Targets> {
    let words: Vec<_> = levels.split(',').map(str::trim).filter(|word| !word.is_empty()).collect();
    let is_level = |word: &str| word.parse::<LevelFilter>().is_ok();
    if let Some(word) = words.iter().find(|word| {
        word.contains('[') || word.rsplit('=').next().is_some_and(|level| !is_level(level))
    }) {
        anyhow::bail!("invalid level `{word}`");
    }
    Ok(format!("{LIBRARIES},{}", words.join(",")).parse()?)
}

fn is_terminal() -> bool {
    anstream::stderr().is_terminal()
        && anstream::AutoStream::choice(&io::stderr()) != anstream::ColorChoice::Never
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn filters_have_levels_and_modules() {
        for (text, same) in [("info,", "info"), (" info ,, h2=warn", "info,h2=warn")] {
            assert_eq!(filter(text).unwrap().to_string(), filter(same).unwrap().to_string());
        }
        for bad in ["inof", "info,a=inof", "[span]=debug"] {
            assert!(filter(bad).is_err(), "{bad}");
        }
    }
}
