use std::{
    fmt::Write as _,
    process::ExitCode,
    time::{Duration, SystemTime},
};

use serde_json::Value;

use super::{
    CommandError,
    decider::{self, Decider, RequestArgs},
    print, runtime,
};

/// Explain which policies decide a request, and why
///
/// Lists the policies of the request's domain: for those that cover it, the key and the state of each
/// limit; for the others, the condition that does not match. Charges nothing.
///
/// Exit codes: 0 if the request would be allowed, 1 if it would be denied, 2 on error.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES)]
pub(super) struct Explain {
    #[command(flatten)]
    pub(super) request: RequestArgs,

    /// Print one line of JSON
    #[arg(long)]
    json: bool,
}

const EXAMPLES: &str = "\
Examples:
  Use the policies of a file, with empty counters:
    pacegate explain --config pacegate.yaml -a user=alice -a path=/api/export

  Use the counters of a shared store:
    pacegate explain --config pacegate.yaml \\
      --store redis://10.0.0.1:6379 -a user=alice

  Use the policies of a running server:
    pacegate explain --server http://127.0.0.1:8080 \\
      -a ip=203.0.113.7 -a path=/login";

pub(super) fn run(args: &Explain) -> Result<ExitCode, CommandError> {
    if !args.request.has_policies() {
        let error = anyhow::anyhow!("no policies given");
        let hint = "use --config FILE or --server URL";
        return Err(CommandError::new(error, "cannot explain", hint));
    }
    runtime()?.block_on(print_explanation(args))
}

async fn print_explanation(args: &Explain) -> Result<ExitCode, CommandError> {
    let decider = args.request.decider().await?;
    let explanation = explanation(&decider, &args.request).await.map_err(|error| {
        let hint = decider::hint(&error, "check that the server or the store is running");
        CommandError::new(error, "cannot explain", hint)
    })?;
    let text = if args.json { format!("{explanation}\n") } else { text_of(&explanation) };
    print(text, "cannot print the explanation")?;
    Ok(ExitCode::from(u8::from(explanation["allowed"] != true)))
}

async fn explanation(decider: &Decider, request: &RequestArgs) -> anyhow::Result<Value> {
    match decider {
        Decider::Local(engine) => Ok(engine.explain(&request.to_request()).await?),
        Decider::Server(client) => {
            let body = decider::body_of_attributes(request);
            let (status, answer) = client.ask("/v1/explain", Some(body)).await?;
            Ok(decider::parse_response(status, &answer, &[200], &["allowed", "policies"])?.value)
        }
    }
}

/// Formats an explanation, with one paragraph per policy.
fn text_of(explanation: &Value) -> String {
    let (mut text, mut is_covered) = (String::new(), false);
    for policy in explanation["policies"].as_array().into_iter().flatten() {
        let name = shown(&policy["policy"]);
        match &policy["unmet"] {
            Value::Null => {
                is_covered = true;
                covered(&mut text, &name, policy);
            }
            unmet => {
                let _ = writeln!(text, "- {name} does not match: {}", reason(unmet));
            }
        }
    }
    if explanation["omitted"].as_u64() > Some(0) {
        let _ = writeln!(text, "- {} more do not match", explanation["omitted"]);
    }
    let _ = match (explanation["allowed"] == true, explanation["policy"].as_str()) {
        (true, None) if is_covered => writeln!(text, "allowed: only policies in shadow mode match"),
        (true, None) => writeln!(text, "allowed: no policy matches"),
        (true, Some(policy)) => writeln!(text, "allowed; {policy} is the tightest policy"),
        (false, policy) => writeln!(text, "denied by {}", policy.unwrap_or_default()),
    };
    text
}

fn covered(text: &mut String, name: &str, policy: &Value) {
    let key: Vec<_> = policy["key"].as_array().into_iter().flatten().map(shown).collect();
    let whose = if key.is_empty() { "all clients".to_owned() } else { key.join(", ") };
    let instead = match policy["override"].as_u64() {
        Some(place) => format!(", override {place}"),
        None => String::new(),
    };
    let shadow = if policy["mode"] == "shadow" { ", shadow mode" } else { "" };
    let _ = writeln!(text, "+ {name} matches{instead}{shadow}; key: {whose}");
    for limit in policy["limits"].as_array().into_iter().flatten() {
        let state = match (limit["allowed"] == true, decider::time(limit, "retry_after")) {
            (true, _) => format!("{} remaining", limit["remaining"]),
            (false, Some(wait)) => {
                let debt = limit["debt"].as_u64().map(|debt| format!(" with a debt of {debt}"));
                let debt = debt.unwrap_or_default();
                format!("exhausted{debt}, retry in {}", decider::short_time(wait))
            }
            (false, None) => "always denies".to_owned(),
        };
        let _ = writeln!(text, "    {}: {state}{}", shown(&limit["limit"]), window(limit));
    }
    let thresholds: Vec<_> = policy["notify"].as_array().into_iter().flatten().map(shown).collect();
    if !thresholds.is_empty() {
        let _ = writeln!(text, "    reports keys at {}", thresholds.join(", "));
    }
}

/// Formats the window of a calendar period; empty for other limits.
fn window(limit: &Value) -> String {
    let time = |name: &str| {
        let time = Duration::from_secs(limit["window"][name].as_u64()?);
        SystemTime::UNIX_EPOCH.checked_add(time).map(httpdate::fmt_http_date)
    };
    match (time("start"), time("end")) {
        (Some(start), Some(end)) => format!("; window from {start} to {end}"),
        _ => String::new(),
    }
}

fn reason(unmet: &Value) -> String {
    let condition = &unmet["condition"];
    let attribute = shown(&condition["attribute"]);
    let values: Vec<_> = condition["values"].as_array().into_iter().flatten().map(shown).collect();
    let wanted = match condition["is"].as_str() {
        Some("present") => "present".to_owned(),
        Some("absent") => "absent".to_owned(),
        Some("cidr") => format!("in {}", values.join(" or ")),
        Some("glob") => format!("a match of {}", values.join(" or ")),
        _ => values.join(" or "),
    };
    match &unmet["value"] {
        Value::Null => format!("{attribute} is missing; expected {wanted}"),
        value => format!("{attribute} is {}; expected {wanted}", shown(value)),
    }
}

/// Escapes control characters in untrusted text, so that it cannot control the terminal.
fn shown(value: &Value) -> String {
    match value.as_str() {
        Some(text) => text.escape_debug().to_string(),
        None if value.is_null() => "(none)".to_owned(),
        None => value.to_string(),
    }
}
