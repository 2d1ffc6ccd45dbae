//! Responses: decisions with a status, headers and a body, and JSON.

use bytes::Bytes;
use http::{HeaderName, HeaderValue, StatusCode, header};
use http_body_util::Full;
use pacegate::{Decision, Request, Timestamp};
use pacegate_http::{Headers, problem::QUOTA_EXCEEDED};
use serde::Serialize;

use super::{HttpResponse, HttpResult, ProblemDetails, bodies::CheckResponse};
use crate::{active_config::Revision, explain::Seconds};

/// A decision with everything that its response needs.
#[derive(Clone, Copy, Debug)]
pub(super) struct DecisionResponse {
    pub(super) decision: Decision,
    pub(super) headers: Headers,
    /// Read before the decision, so that a window that ends with a second is not rounded up to the next second.
    pub(super) now: Timestamp,
}

/// A denial as problem details (RFC 9457).
#[derive(Debug, Serialize)]
struct QuotaExceeded<'a> {
    r#type: &'static str,
    title: &'static str,
    status: u16,
    key: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    window: Option<Seconds>,
    #[serde(flatten)]
    decision: CheckResponse,
}

/// Marks a response that a failure mode decided because the store did not answer.
pub(super) const DEGRADED: HeaderName = HeaderName::from_static("pacegate-degraded");
/// The number of characters of a key that a denial repeats.
const MAX_KEY_CHARS: usize = 256;

impl DecisionResponse {
    /// Returns 200 or 429 with a JSON body.
    pub(super) fn json(&self, body: &impl Serialize) -> HttpResult {
        let mut out = Vec::with_capacity(512);
        serde_json::to_writer(&mut out, body)?;
        Ok(self.with_body(self.status(), "application/json", out.into()))
    }

    /// Returns 200 or 429 with a text.
    pub(super) fn text(&self, text: String) -> HttpResponse {
        self.with_body(self.status(), "text/plain;charset=UTF-8", text.into())
    }

    /// Returns a denial as problem details with the fields of the decision and the key.
    pub(super) fn problem(&self, status: StatusCode, key: &str, revision: u64) -> HttpResult {
        let problem = QuotaExceeded {
            r#type: QUOTA_EXCEEDED,
            title: "Quota exceeded",
            status: status.as_u16(),
            key,
            window: self.decision.limit().map(|limit| Seconds(limit.period())),
            decision: CheckResponse { decision: self.decision, granted: None, revision },
        };
        let body = serde_json::to_vec(&problem)?;
        Ok(self.with_body(status, "application/problem+json", body.into()))
    }

    fn with_body(&self, status: StatusCode, kind: &'static str, body: Bytes) -> HttpResponse {
        let mut response = self.respond(status, body);
        response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
        response
    }

    /// Returns a response of this status with the headers of the decision and no body.
    pub(super) fn empty(&self, status: StatusCode) -> HttpResponse {
        self.respond(status, Bytes::new())
    }

    fn status(&self) -> StatusCode {
        if self.decision.is_allowed() { StatusCode::OK } else { StatusCode::TOO_MANY_REQUESTS }
    }

    fn respond(&self, status: StatusCode, body: Bytes) -> HttpResponse {
        let mut response = HttpResponse::new(Full::new(body));
        *response.status_mut() = status;
        let headers = response.headers_mut();
        // For the headers written here, and two more by callers.
        headers.reserve(8);
        self.headers.write(&self.decision, self.now, headers);
        mark_degraded(self.decision.is_degraded(), response)
    }
}

/// Adds [`DEGRADED`] to a response if `is_degraded`.
pub(super) fn mark_degraded(is_degraded: bool, mut response: HttpResponse) -> HttpResponse {
    if is_degraded {
        response.headers_mut().insert(DEGRADED, HeaderValue::from_static("true"));
    }
    response
}

/// Returns the values of a request that the deciding policy counts by, separated by colons.
pub(super) fn key_of(revision: &Revision, decision: &Decision, request: &Request<'_>) -> String {
    let policy = decision.policy().and_then(|name| revision.engine.policies().get(name));
    let per = policy.map_or(&[][..], |policy| &policy.per);
    let values = per.iter().map(|name| request.attribute(name).unwrap_or_default());
    let key = values.map(String::from_utf8_lossy).collect::<Vec<_>>().join(":");
    key.chars().take(MAX_KEY_CHARS).collect()
}

/// Returns 200 with a JSON body.
pub(super) fn json(body: &impl Serialize) -> HttpResult {
    Ok(content(StatusCode::OK, "application/json", serde_json::to_vec(body)?.into()))
}

/// Returns a response with this content, which caches do not store.
pub(super) fn content(status: StatusCode, kind: &'static str, body: Bytes) -> HttpResponse {
    let mut response = HttpResponse::new(Full::new(body));
    *response.status_mut() = status;
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    no_store(response)
}

/// Forbids caches to store a response.
pub(super) fn no_store(mut response: HttpResponse) -> HttpResponse {
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

impl From<serde_json::Error> for ProblemDetails {
    fn from(error: serde_json::Error) -> Self {
        Self::unavailable(format!("cannot write the response: {error}"))
    }
}
