//! `/v1/clear`: forgets all keys of a policy or a domain.

use std::sync::Arc;

use axum::extract::{Request, State};
use http::StatusCode;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Answer, Problem, Shared, answer::json, block, posted};
use crate::{config::Scope, engine::ClearTarget};

/// Which keys to clear: those of one policy, or of all policies of a domain. One of the two.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct ClearRequest {
    /// The name of a policy; `ad-hoc` for limits that came with requests.
    policy: Option<String>,
    /// A domain; empty for the default domain. Policies that a reload has removed are cleared, too.
    domain: Option<String>,
}

/// The keys that were cleared.
#[derive(Debug, Serialize, JsonSchema)]
pub(super) struct Cleared {
    /// How many there were.
    keys: u64,
}

/// `POST /v1/clear`.
pub(super) async fn clear(
    State(shared): State<Arc<Shared>>,
    request: Request,
) -> Result<Answer, Problem> {
    let (head, body) = posted(&shared, request).await?;
    let revision = shared.gate.revision();
    // Checked first: without an API key, errors must not reveal the names of policies.
    let access = revision.access(&head.headers)?;
    let asked: ClearRequest =
        serde_json::from_slice(&body).map_err(|error| Problem::request(error.to_string()))?;
    let (target, domain) = match (&asked.policy, &asked.domain) {
        (Some(policy), None) => {
            let (policy, domain) = block::find_name(policy, &revision, access)?;
            (ClearTarget::Policy(policy), domain)
        }
        (None, Some(domain)) => (ClearTarget::Domain(domain), &**domain),
        _ => return Err(Problem::request("write either a `policy` or a `domain`")),
    };
    let access = revision.access_to(&head.headers, Scope::Admin, domain)?;
    let keys = revision.engine.clear(target).await?;
    shared.gate.audit().clear(&access, target, keys);
    json(StatusCode::OK, &Cleared { keys })
}
