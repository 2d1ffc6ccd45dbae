//! `POST /json`: Envoy's descriptors as JSON, at the path of envoyproxy/ratelimit.

use axum::extract::Request;
use http::StatusCode;

use super::{
    Context, HttpResult, permit, read_body, request,
    response::{content, mark_degraded},
};
use crate::envoy::{
    EnvoyDecision, decide,
    proto::{Code, RateLimitRequest},
};

/// Checks descriptors. As in envoyproxy/ratelimit, the content type does not matter.
pub(super) async fn json(shared: Context, request: Request) -> HttpResult {
    let (head, body) = request.into_parts();
    let body = read_body(&shared, &head, body).await?;
    let revision = shared.active.revision();
    let message = request::parse::<RateLimitRequest>(&body)?;
    let domain = str::from_utf8(&message.domain).unwrap_or_default();
    let access = revision.access(&head.headers)?;
    permit(&access, message.scope(), domain, message.is_inline(&revision))?;
    let EnvoyDecision { response, is_degraded } = decide(&revision, &message).await?;
    let status = match response.overall_code() {
        Code::OverLimit => StatusCode::TOO_MANY_REQUESTS,
        Code::Ok | Code::Unknown => StatusCode::OK,
    };
    let body = serde_json::to_vec(&response)?;
    Ok(mark_degraded(is_degraded, content(status, "application/json", body.into())))
}
