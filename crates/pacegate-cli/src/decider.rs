//! Options and code shared by the commands `check`, `explain` and `top`.

use std::{
    collections::HashSet,
    fs,
    path::{Path, PathBuf},
    str::FromStr,
    time::Duration,
};

use anyhow::{Context, anyhow, bail};
use bytes::Bytes;
use clap::{ArgMatches, error::ErrorKind, parser::ValueSource};
use pacegate::{
    Limit, PolicySet, Request,
    policy::{Match, Policy},
};
use pacegate_server::{
    Client, ConfigSource, Environment, LocalEngine, LocalError, Overrides, Settings, Units,
};
use pacegate_tools::format_seconds;
use serde_json::{Value, json};

use crate::CommandError;

/// Options for the attributes of a request, and for the server, config file or store that decides it.
#[derive(Debug, clap::Args)]
pub(super) struct RequestArgs {
    /// Attribute of the request, such as user=alice; can be repeated
    #[arg(long = "attribute", short = 'a', value_name = "NAME=VALUE")]
    pub(super) attributes: Vec<Attribute>,

    /// Domain of the request
    #[arg(long, value_name = "NAME", default_value = "")]
    pub(super) domain: String,

    /// Use this server, such as http://127.0.0.1:8080; --limit ignores the variable
    #[arg(long, value_name = "URL", env = "PACEGATE_SERVER")]
    server: Option<String>,

    /// Decide locally with the policies of this config file
    #[arg(long, value_name = "FILE")]
    config: Vec<PathBuf>,

    /// Decide locally with the shared counters in this Redis or Valkey store
    #[arg(long, value_name = "URL", env = "PACEGATE_STORE", hide_env_values = true)]
    store: Option<String>,

    /// Trust certificates signed by this CA
    #[arg(long, value_name = "FILE", requires = "server")]
    ca: Option<PathBuf>,

    /// File with the API key of the server [default: the variable PACEGATE_KEY]
    #[arg(long, value_name = "FILE")]
    key_file: Option<PathBuf>,
}

/// An attribute with its value.
#[derive(Clone, Debug)]
pub(super) struct Attribute {
    name: String,
    value: String,
}

/// An attribute without a value.
#[derive(Debug, thiserror::Error)]
#[error("expected NAME=VALUE, such as user=alice")]
pub(super) struct AttributeError;

/// The engine that decides a request: in this process or on a server.
#[derive(Debug)]
pub(super) enum Decider {
    /// This process.
    Local(Box<LocalEngine>),
    /// A server.
    Server(Client),
}

/// A response: its JSON text and the parsed value.
#[derive(Debug)]
pub(super) struct Response {
    pub(super) text: String,
    pub(super) value: Value,
}

/// A key with inline limits.
#[derive(Clone, Copy, Debug)]
pub(super) struct InlineLimits<'a> {
    pub(super) key: &'a str,
    pub(super) limits: &'a [Limit],
}

/// Returns the hint for a failed check: `otherwise`, unless the store is unavailable.
pub(super) fn hint(error: &anyhow::Error, otherwise: &'static str) -> &'static str {
    match error.downcast_ref() {
        Some(LocalError::Undecided) => "check the store with pacegate doctor URL",
        _ => otherwise,
    }
}

impl FromStr for Attribute {
    type Err = AttributeError;

    fn from_str(text: &str) -> Result<Self, AttributeError> {
        let (name, value) = text.split_once('=').ok_or(AttributeError)?;
        Ok(Self { name: name.to_owned(), value: value.to_owned() })
    }
}

impl RequestArgs {
    /// Ignores environment variables that conflict with the command line. Returns an error if two options conflict, or
    /// if an attribute is given twice.
    pub(super) fn resolve_sources(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        let is_typed = |name: &str| {
            matches.ids().any(|id| id == name)
                && matches.value_source(name) == Some(ValueSource::CommandLine)
        };
        // Reject duplicates: a server and this process would not use the same one of the values.
        let mut names = HashSet::new();
        if let Some(again) = self.attributes.iter().find(|one| !names.insert(&one.name)) {
            let text = format!("the attribute '{}' is given twice", again.name.escape_debug());
            return Err(clap::Error::raw(ErrorKind::ArgumentConflict, text));
        }
        let local = [("config", "--config <FILE>"), ("store", "--store <URL>")];
        let local = local.into_iter().find(|(name, _)| is_typed(name));
        let is_remote = is_typed("ca") || is_typed("key_file");
        match (is_typed("server"), local) {
            (true, Some((_, other))) => {
                let text = format!("the argument '--server <URL>' cannot be used with '{other}'");
                return Err(clap::Error::raw(ErrorKind::ArgumentConflict, text));
            }
            (true, None) => self.store = None,
            (false, Some(_)) => self.server = None,
            // Inline limits are checked locally, unless the command line has an option for a server.
            (false, None) if is_typed("limits") && !is_remote => self.server = None,
            (false, None) => {}
        }
        Ok(())
    }

    /// Returns true if there is a source of policies: a server or a config file.
    pub(super) fn has_policies(&self) -> bool {
        self.server.is_some() || !self.config.is_empty()
    }

    /// Returns the request with the given attributes.
    pub(super) fn to_request(&self) -> Request<'_> {
        let request = Request::new().in_domain(&self.domain);
        self.attributes.iter().fold(request, |request, one| request.with(&one.name, &one.value))
    }

    /// Creates the client of the server, or the local engine. Must be called within a Tokio runtime.
    pub(super) async fn decider(&self) -> Result<Decider, CommandError> {
        if let Some(server) = &self.server {
            let client =
                Client::new(server, self.ca.as_deref(), api_key(self.key_file.as_deref())?);
            let hint = "expected a URL such as http://127.0.0.1:8080";
            let client =
                client.map_err(|error| CommandError::new(error, "invalid --server", hint))?;
            return Ok(Decider::Server(client));
        }
        self.local().await.map_err(|error| {
            let hint = "check the file with pacegate validate FILE, and the store with pacegate doctor URL";
            CommandError::new(error, "cannot decide locally", hint)
        })
    }

    async fn local(&self) -> anyhow::Result<Decider> {
        let settings = self.settings()?;
        let is_rule = |policy: &Policy| policy.matching == Match::never();
        let all = settings.policies.policies();
        if !self.attributes.is_empty() && !all.is_empty() && all.iter().all(is_rule) {
            bail!("rules of envoyproxy/ratelimit match descriptors, not attributes");
        }
        Ok(Decider::Local(Box::new(LocalEngine::open(&settings).await?)))
    }

    fn settings(&self) -> anyhow::Result<Settings> {
        if self.config.is_empty() {
            let mut settings = Settings::new(PolicySet::new([])?);
            if let Some(store) = &self.store {
                settings.store = store.parse().map_err(|error| anyhow!("{error}"))?;
            }
            return Ok(settings);
        }
        let overrides = Overrides { store: self.store.clone(), ..Overrides::default() };
        let source = ConfigSource::new(self.config.clone(), overrides);
        source.load().map_err(|error| anyhow!("{error}"))
    }
}

/// Returns the API key from a file, or from the environment.
pub(super) fn api_key(file: Option<&Path>) -> Result<Option<String>, CommandError> {
    let Some(file) = file else {
        return Ok(Environment::process().get("PACEGATE_KEY").filter(|key| !key.is_empty()));
    };
    let text = fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()));
    let text = text.map_err(|error| {
        let hint = "check the file given with --key-file";
        CommandError::new(error, "cannot read the API key", hint)
    })?;
    Ok(Some(text.trim().to_owned()))
}

impl Decider {
    /// Decides the key and inline limits in `inline`, or, without them, the attributes in `request`.
    pub(super) async fn decide(
        &self,
        request: &RequestArgs,
        inline: Option<InlineLimits<'_>>,
        units: Units,
    ) -> anyhow::Result<Response> {
        match self {
            Self::Local(engine) => {
                let text = match inline {
                    Some(InlineLimits { key, limits }) => {
                        engine.check_inline(key, limits, units).await?
                    }
                    None => engine.check(&request.to_request(), units).await?,
                };
                Ok(Response { value: serde_json::from_str(&text)?, text })
            }
            Self::Server(client) => {
                let body = body(request, inline, units);
                let (status, answer) = client.ask("/v1/check", Some(body)).await?;
                parse_response(status, &answer, &[200, 429], &["allowed"])
            }
        }
    }
}

/// Returns the request body of a check.
fn body(request: &RequestArgs, inline: Option<InlineLimits<'_>>, units: Units) -> Bytes {
    let Units { cost, spent, up_to } = units;
    let mut body = match inline {
        Some(InlineLimits { key, limits }) => {
            let limits: Vec<_> = limits.iter().map(Limit::to_string).collect();
            json!({ "key": key, "limit": limits, "cost": cost })
        }
        None => {
            json!({ "domain": request.domain, "attributes": attributes(request), "cost": cost })
        }
    };
    if spent {
        body["spent"] = true.into();
    }
    if up_to {
        body["up_to"] = true.into();
    }
    body.to_string().into()
}

/// Returns the request body of `explain`.
pub(super) fn body_of_attributes(request: &RequestArgs) -> Bytes {
    json!({ "domain": request.domain, "attributes": attributes(request) }).to_string().into()
}

fn attributes(request: &RequestArgs) -> serde_json::Map<String, Value> {
    request.attributes.iter().map(|one| (one.name.clone(), one.value.clone().into())).collect()
}

/// Returns a field of a response as a duration. The response has it in seconds.
pub(super) fn time(answer: &Value, name: &str) -> Option<Duration> {
    Duration::try_from_secs_f64(answer[name].as_f64()?).ok()
}

/// Formats a time with about three digits, or in whole seconds from two minutes on. Rounds up, so that a client that
/// waits this long does not retry too early.
pub(super) fn short_time(time: Duration) -> String {
    let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
    let (unit, step, decimals) = match micros {
        0 => return "0s".to_owned(),
        1..1_000 => return format!("{micros}us"),
        1_000..1_000_000 => ("ms", 100, 1),
        1_000_000..10_000_000 => ("s", 10_000, 2),
        10_000_000..120_000_000 => ("s", 100_000, 1),
        _ => return format_seconds(micros.div_ceil(1_000_000)),
    };
    let steps = micros.div_ceil(step);
    let scale = 10_u64.pow(decimals);
    let (whole, rest) = (steps / scale, steps % scale);
    let rest = format!("{rest:0>width$}", width = decimals as usize);
    match rest.trim_end_matches('0') {
        "" => format!("{whole}{unit}"),
        rest => format!("{whole}.{rest}{unit}"),
    }
}

/// Parses the response of a server. Returns an error if the status is not one of `expected`, or if one of the fields in
/// `parts` is missing: a proxy at the same address may also respond with JSON.
pub(super) fn parse_response(
    status: http::StatusCode,
    answer: &[u8],
    expected: &[u16],
    parts: &[&str],
) -> anyhow::Result<Response> {
    let value: Value = serde_json::from_slice(answer)
        .with_context(|| format!("the server responded with status {status} and no JSON"))?;
    if expected.contains(&status.as_u16()) {
        let has = |part: &&str| value[*part].is_boolean() || value[*part].is_array();
        if !parts.iter().all(has) {
            bail!("unexpected response with status {status}: check that the server is Pacegate");
        }
        return Ok(Response { text: String::from_utf8_lossy(answer).into_owned(), value });
    }
    let detail = ["detail", "title"].iter().find_map(|name| value[name].as_str());
    bail!("the server responded with status {status}: {}", detail.unwrap_or("no details"));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_few_digits_and_are_rounded_up() {
        for (micros, expected) in [
            (0, "0s"),
            (7, "7us"),
            (1_000, "1ms"),
            (1_234, "1.3ms"),
            (250_000, "250ms"),
            (999_999, "1000ms"),
            (1_000_001, "1.01s"),
            (1_500_000, "1.5s"),
            (59_999_756, "60s"),
            (119_900_000, "119.9s"),
            (119_950_000, "120s"),
            (120_000_001, "2m 1s"),
            (3_599_999_756, "1h"),
            (61_077_300_000, "16h 57m 58s"),
        ] {
            assert_eq!(short_time(Duration::from_micros(micros)), expected);
        }
    }
}
