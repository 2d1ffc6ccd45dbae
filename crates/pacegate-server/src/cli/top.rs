use std::{
    io::{self, IsTerminal, Write},
    path::PathBuf,
    process::ExitCode,
    time::Duration,
};

use anyhow::Context;
use tokio::task::LocalSet;

use super::{Trouble, asking};
use crate::{
    client::Client,
    top::{self, Live, View},
};

/// Watch a service: what it allows and denies, and whom
///
/// Shows each policy with what it allows and denies by the second, how full the fullest budget is,
/// and the last five minutes; and the keys with most requests and most denials. Takes an API key
/// with the scope `admin` if the service has keys. While the service is away it goes on trying.
///
/// Keys: q quits, ? tells the others.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(super) struct Args {
    /// The service
    #[arg(value_name = "URL", env = "PACEGATE_SERVER", default_value = "http://127.0.0.1:8080")]
    server: String,

    /// Trust a service whose certificate was signed by this authority
    #[arg(long, value_name = "FILE")]
    ca: Option<PathBuf>,

    /// The API key for the service is in this file; otherwise in PACEGATE_KEY
    #[arg(long, value_name = "FILE")]
    key_file: Option<PathBuf>,

    /// Ask so often, from 100ms to 60s
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = parse_time)]
    interval: Duration,

    /// Print it once, as plain text, and end; so it is where the output is no terminal
    #[arg(long)]
    once: bool,

    /// Print one line of JSON, as GET /v1/live has it, and end
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  The service on this machine:
    pacegate top

  Another one, with an API key from the environment:
    PACEGATE_KEY=... pacegate top https://limits.example.com

  The policies that have denied anything, for a script:
    pacegate top --json | jq -r '.policies[] | select(.denied > 0) | .name'";

const HINT: &str = "name the service, such as http://127.0.0.1:8080, and see whether it is there";

pub(super) fn run(args: &Args) -> Result<ExitCode, Trouble> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| {
        Trouble::new(error, "cannot begin", "see whether the system is out of threads or files")
    })?;
    let done = LocalSet::new().block_on(&runtime, show(args));
    // A thread that reads the terminal, or a connection, is not waited for.
    runtime.shutdown_background();
    done.map(|()| ExitCode::SUCCESS)
}

async fn show(args: &Args) -> Result<(), Trouble> {
    let key = asking::key(args.key_file.as_deref()).map_err(|error| {
        Trouble::new(error, "cannot read the API key", "write it into the file of --key-file")
    })?;
    let client = Client::new(&args.server, args.ca.as_deref(), key);
    let client = client.map_err(|error| Trouble::new(error, "cannot watch", HINT))?;
    if args.json || args.once || !io::stdout().is_terminal() {
        return once(args, &client).await;
    }
    let view = View::new(args.server.clone());
    let ask = async move |since| {
        let told = told(&client, since).await.map_err(|error| format!("{error:#}"))?;
        serde_json::from_str(&told).map_err(|error| format!("it is not understood: {error}"))
    };
    top::run(view, args.interval, ask).await.map_err(|error| {
        Trouble::new(error, "cannot use the terminal", "try --once, which needs none")
    })
}

/// Prints what there is to see now.
async fn once(args: &Args, client: &Client) -> Result<(), Trouble> {
    let told = told(client, 0).await.map_err(|error| Trouble::new(error, "cannot watch", HINT))?;
    let not_understood = |error| Trouble::new(error, "the answer is not understood", HINT);
    let text = if args.json {
        serde_json::from_str::<serde::de::IgnoredAny>(&told).map_err(not_understood)?;
        without_controls(&told) + "\n"
    } else {
        let live: Live = serde_json::from_str(&told).map_err(not_understood)?;
        let mut view = View::new(args.server.clone());
        view.take(live);
        top::plain(&view)
    };
    let mut output = io::stdout().lock();
    output
        .write_all(text.as_bytes())
        .and_then(|()| output.flush())
        .map_err(|error| Trouble::output(error, "cannot print it"))
}

/// JSON that says the same, with nothing in its texts that a terminal would obey. What is below a space, JSON escapes.
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

/// What the service says, but for the history up to `since`.
async fn told(client: &Client, since: u64) -> anyhow::Result<String> {
    let (status, answer) = client.ask(&format!("/v1/live?since={since}"), None).await?;
    if status == http::StatusCode::NOT_FOUND {
        anyhow::bail!("the service has no /v1/live: is it a Pacegate, and as new as this one?");
    }
    asking::understood(status, &answer, &[200], &["policies"])
        .map(|answer| answer.text)
        .context("it does not tell")
}

/// A time such as `2s` or `500ms`.
fn parse_time(text: &str) -> Result<Duration, String> {
    let number = |digits: &str| digits.parse::<u64>().ok();
    let time = match (text.strip_suffix("ms"), text.strip_suffix('s')) {
        (Some(digits), _) => number(digits).map(Duration::from_millis),
        (None, Some(digits)) => number(digits).map(Duration::from_secs),
        (None, None) => number(text).map(Duration::from_secs),
    };
    let bounds = Duration::from_millis(100)..=Duration::from_secs(60);
    time.filter(|time| bounds.contains(time))
        .ok_or_else(|| "write a time from 100ms to 60s, such as 2s or 500ms".to_owned())
}
