use std::{
    io::{self, IsTerminal},
    path::PathBuf,
    process::ExitCode,
    time::Duration,
};

use anyhow::Context;
use pacegate_server::Client;
use pacegate_tools::{
    parse_duration,
    top::{self, Live, View},
};
use tokio::task::LocalSet;

use super::{CommandError, decider, print, runtime};

/// Watch a server live: rates, policies and keys
///
/// Shows the rates of allowed and denied requests of each policy, the usage of its fullest key, and the
/// last five minutes; and the keys with the most requests and the most denials. Requires an API key with
/// the scope `admin` if the server has API keys. If the server is unreachable, it keeps retrying.
///
/// Press q to quit and ? for help.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(super) struct Top {
    /// Server URL
    #[arg(value_name = "URL", env = "PACEGATE_SERVER", default_value = "http://127.0.0.1:8080")]
    server: String,

    /// Trust certificates signed by this CA
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,

    /// File with the API key [default: the variable PACEGATE_KEY]
    #[arg(long, value_name = "FILE")]
    key_file: Option<PathBuf>,

    /// Refresh interval, from 100ms to 60s
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = parse_interval)]
    interval: Duration,

    /// Print the data once as plain text and exit; the default if the output is not a terminal
    #[arg(long)]
    once: bool,

    /// Print the response of GET /v1/live as one line of JSON and exit
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  Watch the server on this machine:
    pacegate top

  Watch another server, with an API key from the environment:
    PACEGATE_KEY=... pacegate top https://limits.example.com

  List the policies that have denied requests:
    pacegate top --json | jq -r '.policies[] | select(.denied > 0) | .name'";

const HINT: &str =
    "check the server URL, such as http://127.0.0.1:8080, and that the server is running";

pub(super) fn run(args: &Top) -> Result<ExitCode, CommandError> {
    let runtime = runtime()?;
    let done = LocalSet::new().block_on(&runtime, show(args));
    // Do not wait for the thread that reads the terminal, or for a connection.
    runtime.shutdown_background();
    done.map(|()| ExitCode::SUCCESS)
}

async fn show(args: &Top) -> Result<(), CommandError> {
    let key = decider::api_key(args.key_file.as_deref())?;
    let client = Client::new(&args.server, args.ca.as_deref(), key);
    let client =
        client.map_err(|error| CommandError::new(error, "cannot show live statistics", HINT))?;
    if args.json || args.once || !io::stdout().is_terminal() {
        return once(args, &client).await;
    }
    let view = View::new(args.server.clone());
    let ask = async move |since| {
        let response = response(&client, since).await?;
        serde_json::from_str(&response).context("invalid response")
    };
    top::run(view, args.interval, ask).await.map_err(|error| {
        CommandError::new(error, "cannot use the terminal", "try --once, which needs no terminal")
    })
}

/// Prints the current data.
async fn once(args: &Top, client: &Client) -> Result<(), CommandError> {
    let response = response(client, 0)
        .await
        .map_err(|error| CommandError::new(error, "cannot show live statistics", HINT))?;
    let not_understood = |error| CommandError::new(error, "invalid response", HINT);
    let text = if args.json {
        serde_json::from_str::<serde::de::IgnoredAny>(&response).map_err(not_understood)?;
        without_controls(&response) + "\n"
    } else {
        let live: Live = serde_json::from_str(&response).map_err(not_understood)?;
        let mut view = View::new(args.server.clone());
        view.take(live);
        top::plain(&view)
    };
    print(text, "cannot print the data")
}

/// Escapes DEL and the C1 control characters in JSON, so that it cannot control a terminal. JSON itself
/// escapes those below U+0020.
fn without_controls(json: &str) -> String {
    let mut text = String::with_capacity(json.len());
    for character in json.chars() {
        match character {
            '\u{7f}'..='\u{9f}' => text.push_str(&format!("\\u{:04x}", u32::from(character))),
            other => text.push(other),
        }
    }
    text
}

/// Returns the response of the server, with the history after `since`.
async fn response(client: &Client, since: u64) -> anyhow::Result<String> {
    let (status, answer) = client.ask(&format!("/v1/live?since={since}"), None).await?;
    if status == http::StatusCode::NOT_FOUND {
        anyhow::bail!(
            "the server has no /v1/live: check that it is Pacegate, in at least this version"
        );
    }
    decider::parse_response(status, &answer, &[200], &["policies"])
        .map(|answer| answer.text)
        .context("the server refused the request")
}

/// Parses a refresh interval.
fn parse_interval(text: &str) -> anyhow::Result<Duration> {
    let bounds = Duration::from_millis(100)..=Duration::from_secs(60);
    let interval = parse_duration(text)?;
    anyhow::ensure!(bounds.contains(&interval), "expected a time from 100ms to 60s");
    Ok(interval)
}
