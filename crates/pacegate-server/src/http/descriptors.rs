//! `POST /json`: what Envoy asks, as JSON, where envoyproxy/ratelimit takes it.

use std::sync::Arc;

use axum::extract::{Request, State};
use schemars::JsonSchema;

use super::{
    Answer, Problem, Shared,
    answer::{degraded_if, typed},
    read_body,
};
use crate::envoy::JsonRequest;

/// Decides by descriptors. Theirs does not look at the content type, so neither does this.
pub(super) async fn json(
    State(shared): State<Arc<Shared>>,
    request: Request,
) -> Result<Answer, Problem> {
    let (head, body) = request.into_parts();
    let body = read_body(&shared, &head, body).await?;
    let revision = shared.gate.revision();
    let asked = JsonRequest::read(&body).map_err(|error| Problem::request(error.to_string()))?;
    let access = revision.access_to(&head.headers, asked.scope(), asked.domain())?;
    if asked.is_inline(&revision) && !access.allows_inline() {
        return Err(Problem::inline());
    }
    let (status, body, is_degraded) = asked.answer(&revision).await?;
    Ok(degraded_if(is_degraded, typed(status, "application/json", body)))
}

/// What Envoy asks. Names may also be written with underscores, and numbers as texts.
#[derive(Debug, JsonSchema)]
#[schemars(rename = "RateLimitRequest", rename_all = "camelCase", deny_unknown_fields)]
#[expect(dead_code, reason = "a schema; what is sent is read by `envoy`")]
pub(super) struct Asked {
    /// The domain whose rules or policies apply.
    #[schemars(length(min = 1))]
    domain: String,
    /// All of them are charged, or none.
    #[schemars(length(min = 1))]
    descriptors: Vec<AskedDescriptor>,
    /// What each descriptor takes that does not say itself, 1 unless said.
    #[schemars(default)]
    hits_addend: u32,
}

/// One thing to be limited.
#[derive(Debug, JsonSchema)]
#[schemars(rename = "RateLimitDescriptor", rename_all = "camelCase", deny_unknown_fields)]
#[expect(dead_code, reason = "a schema; what is sent is read by `envoy`")]
pub(super) struct AskedDescriptor {
    entries: Vec<Entry>,
    /// Replaces the configured limit. Needs an API key with `inline: true`.
    limit: Option<AskedLimit>,
    hits_addend: Option<u64>,
    /// Gives back; takes the scope `admin`.
    #[schemars(default)]
    is_negative_hits: bool,
}

/// One name and value.
#[derive(Debug, JsonSchema)]
#[schemars(deny_unknown_fields)]
#[expect(dead_code, reason = "a schema; what is sent is read by `envoy`")]
pub(super) struct Entry {
    key: String,
    #[schemars(default)]
    value: String,
}

/// A limit that comes with a descriptor.
#[derive(Debug, JsonSchema)]
#[schemars(rename_all = "camelCase", deny_unknown_fields)]
#[expect(dead_code, reason = "a schema; what is sent is read by `envoy`")]
pub(super) struct AskedLimit {
    requests_per_unit: u32,
    unit: Unit,
}

/// What Envoy is told.
#[derive(Debug, JsonSchema)]
#[schemars(rename = "RateLimitResponse", rename_all = "camelCase")]
#[expect(dead_code, reason = "a schema; what is told is written by `envoy`")]
pub(super) struct Told {
    overall_code: Code,
    /// One for each descriptor, in their order.
    statuses: Vec<Status>,
    response_headers_to_add: Option<Vec<Header>>,
    dynamic_metadata: Option<serde_json::Map<String, serde_json::Value>>,
}

/// What became of a descriptor.
#[derive(Debug, JsonSchema)]
#[schemars(rename = "DescriptorStatus", rename_all = "camelCase")]
#[expect(dead_code, reason = "a schema; what is told is written by `envoy`")]
pub(super) struct Status {
    code: Code,
    current_limit: Option<CurrentLimit>,
    limit_remaining: Option<u32>,
    /// Seconds, such as `30s`.
    #[schemars(regex(pattern = "^[0-9]+s$"))]
    duration_until_reset: Option<String>,
}

/// The limit that spoke.
#[derive(Debug, JsonSchema)]
#[schemars(rename_all = "camelCase")]
#[expect(dead_code, reason = "a schema; what is told is written by `envoy`")]
pub(super) struct CurrentLimit {
    name: Option<String>,
    requests_per_unit: u32,
    unit: Unit,
}

/// A header that Envoy adds to its answer.
#[derive(Debug, JsonSchema)]
#[expect(dead_code, reason = "a schema; what is told is written by `envoy`")]
pub(super) struct Header {
    key: String,
    value: String,
}

#[derive(Debug, JsonSchema)]
#[schemars(rename_all = "SCREAMING_SNAKE_CASE")]
#[expect(dead_code, reason = "a schema; what is told is written by `envoy`")]
pub(super) enum Code {
    Unknown,
    Ok,
    OverLimit,
}

#[derive(Debug, JsonSchema)]
#[schemars(rename_all = "SCREAMING_SNAKE_CASE")]
#[expect(dead_code, reason = "a schema; what is sent and told is read and written by `envoy`")]
pub(super) enum Unit {
    Second,
    Minute,
    Hour,
    Day,
    Month,
    Year,
    Week,
}
