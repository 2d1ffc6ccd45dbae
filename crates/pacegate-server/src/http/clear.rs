//! `/v1/clear`: clears all keys of a policy or a domain.

use axum::extract::Request;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Context, HttpResult, ProblemDetails, read_request, request, response::json};
use crate::{blocks::find_name, config::Scope, engine::ClearTarget};

/// The keys to clear: those of one policy, or those of all policies of a domain. Exactly one field is required.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ClearRequest {
    /// Policy name; `inline` for inline limits.
    policy: Option<String>,
    /// Domain; empty for the unnamed domain. Includes policies that a reload has removed.
    domain: Option<String>,
}

/// The result of clearing keys.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Cleared")]
pub(super) struct ClearResponse {
    /// Number of keys cleared.
    keys: u64,
}

/// `POST /v1/clear`.
pub(super) async fn clear(shared: Context, request: Request) -> HttpResult {
    let (head, body) = read_request(&shared, request).await?;
    let revision = shared.active.revision();
    // Checked first: without an API key, errors must not reveal the names of policies.
    let access = revision.access(&head.headers)?;
    let body: ClearRequest = request::parse(&body)?;
    let (target, domain) = match (&body.policy, &body.domain) {
        (Some(policy), None) => {
            let (policy, domain) = find_name(policy, &revision, access)?;
            (ClearTarget::Policy(policy), domain)
        }
        (None, Some(domain)) => (ClearTarget::Domain(domain), &**domain),
        _ => return Err(ProblemDetails::request("write either a `policy` or a `domain`")),
    };
    let access = revision.access_to(&head.headers, Scope::Admin, domain)?;
    let keys = revision.engine.clear(target).await?;
    shared.active.audit.clear(&access, target, keys);
    json(&ClearResponse { keys })
}
